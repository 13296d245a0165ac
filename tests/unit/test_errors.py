"""Exceptions reach another process with their attributes."""

from __future__ import annotations

import copy

import pytest

from llama_index_contextual.errors import (
    BudgetExceededError,
    ContextualError,
    ContextualizationError,
    CorruptVersionError,
    ModelError,
    PathNotFoundError,
    ReadError,
    Remedy,
)

REMEDY = Remedy("pass it", "add --it")


@pytest.mark.parametrize(
    "error",
    [
        BudgetExceededError("The limit is reached", spent=1.5, max_cost=2.0, remedy=REMEDY),
        ContextualizationError("No context", node_ids=("a", "b")),
        CorruptVersionError("Damaged", name="contracts", file="parts/p000001/docstore.sqlite"),
        ModelError("No key", setting="llm", remedy=REMEDY),
        PathNotFoundError("Nothing there", value=["lease.pdf"]),
        ReadError("lease.pdf", "is empty"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_copy_has_the_class_message_and_attributes(error: ContextualError) -> None:
    copied = copy.copy(error)  # in the way in which pickle does it
    assert type(copied) is type(error)
    assert (str(copied), copied.args, vars(copied)) == (str(error), error.args, vars(error))
