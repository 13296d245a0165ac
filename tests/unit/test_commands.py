"""Commands that the user can copy are quoted for the shells of the system."""

from __future__ import annotations

import shlex

import pytest

from llama_index_contextual._utils import text

WORDS = (
    *("reports", "My reports", r"C:\Users\Ada\My docs", r"C:\data", "top_k=5"),
    *("pillow>=11", 'x={"a": "b"}', "a&b", ""),
)


def test_words_are_quoted_for_posix_shells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_WINDOWS", False)
    assert shlex.split(" ".join(map(text.quote_word, WORDS))) == list(WORDS)


def test_words_are_quoted_for_cmd_and_powershell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_WINDOWS", True)
    assert list(map(text.quote_word, WORDS)) == [
        "reports",
        '"My reports"',
        r'"C:\Users\Ada\My docs"',
        r"C:\data",
        "top_k=5",
        '"pillow>=11"',
        r'"x={\"a\": \"b\"}"',
        '"a&b"',
        '""',
    ]
