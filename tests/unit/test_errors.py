"""Exceptions reach another process with their attributes, and their messages are sentences."""

from __future__ import annotations

import copy
import sqlite3

import pytest

from llama_index_contextual.cli.common import cli_message
from llama_index_contextual.errors import (
    BudgetExceededError,
    ContextualError,
    CorruptVersionError,
    ModelError,
    PathNotFoundError,
    ReadError,
    Remedy,
    end_sentence,
)

REMEDY = Remedy("pass it", "add --it")


@pytest.mark.parametrize(
    "error",
    [
        BudgetExceededError("The limit is reached", spent=1.5, max_cost=2.0, remedy=REMEDY),
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


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("a.md cannot be read: it is damaged..", "a.md cannot be read: it is damaged."),
        ("It failed (the disk is full.).. Try again.", "It failed (the disk is full.). Try again."),
        ("One,, two", "One, two"),
        ("The path ../a/.. and a..b and `a.` ...", "The path ../a/.. and a..b and `a.` ..."),
        ("Loading ...", "Loading ..."),
    ],
)
def test_a_message_composed_of_sentences_has_no_doubled_marks(message: str, expected: str) -> None:
    assert str(ContextualError(message)) == expected
    assert str(ContextualError(message, remedy=REMEDY)).startswith(expected)


def test_a_sentence_is_ended_once() -> None:
    assert [end_sentence(text) for text in ("Full", "Full.", "Full?", "Full!")] == ["Full.", "Full.", "Full?", "Full!"]


def test_the_name_of_a_file_that_is_not_valid_text_can_be_printed() -> None:
    assert str(ContextualError("caf\udce9.md is damaged")) == r"caf\udce9.md is damaged"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device", "CURRENT"), "CURRENT: No space left on device."),
        (OSError("The disk is gone."), "The disk is gone."),
        (sqlite3.OperationalError("disk I/O error."), "SQLite: disk I/O error."),
    ],
)
def test_the_command_line_ends_the_message_of_an_error_once(error: OSError | sqlite3.Error, message: str) -> None:
    assert cli_message(error) == message
