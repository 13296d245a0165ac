"""The words and bars of a search in the Workbench."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llama_index_contextual.retrievers.response import RetrievalResponse
from llama_index_contextual.ui.search import confidence_words, shares_of

HITS = replace(RetrievalResponse.of_nodes("q", []), results=[object()])  # type: ignore[list-item]
LOW = replace(HITS, confidence=0.04, confidence_level="low")


def test_bars_lie_side_by_side_and_deductions_over_their_end() -> None:
    bars = shares_of({"semantic": 0.5, "shared terms": -0.25, "lexical": 0.5}, 2.0)
    assert [(bar.name, bar.x, bar.width) for bar in bars] == [
        ("semantic", 0.0, 25.0),
        ("lexical", 25.0, 25.0),
        ("shared terms", 37.5, 12.5),
    ]
    assert shares_of({}, 0.0) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"results": ()}, "No passage was found."),
        (
            {"confidence": 0.9, "confidence_level": "high"},
            "High confidence: the best passage matches the question closely, in words and in meaning.",
        ),
        (
            {"confidence": 0.4, "confidence_level": "medium"},
            "Medium confidence: the best passage matches a part of the question.",
        ),
        ({"confidence": 0.04, "confidence_level": "low"}, LOW.doubt()),
    ],
)
def test_confidence_is_put_into_words(changes: dict[str, Any], expected: str) -> None:
    assert confidence_words(replace(HITS, **changes)) == expected != ""
