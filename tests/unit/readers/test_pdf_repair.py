"""Hyphens at line ends, ligatures, characters that are no text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.readers.pdf.repair import HyphenJoiner, clean
from tests.unit.readers.examples import sections


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("con\ufb01dential \ufb02oor e\ufb00ect o\ufb03ce ra\ufb04e", "confidential floor effect office raffle"),
        ("a\u00a0b", "a b"),
        ("a\x00b\x1b[31mc\x9b", "ab[31mc"),
        ("a\ud800b", "a\ufffdb"),
        ("Straße, naïve, 契約, عقد", "Straße, naïve, 契約, عقد"),
        ("½ x² №", "½ x² №"),
    ],
)
def test_characters_are_made_readable_and_others_left_alone(raw: str, text: str) -> None:
    assert clean(raw) == text


@given(st.text(st.characters()))
def test_clean_text_can_be_encoded_and_stays_clean(text: str) -> None:
    cleaned = clean(text)

    assert cleaned.encode().decode() == cleaned
    assert clean(cleaned) == cleaned


EXAMPLES = sections("pdf_hyphens")


@pytest.mark.parametrize("name", EXAMPLES)
def test_words_at_line_ends_are_joined_as_in_the_example(name: str) -> None:
    text, elsewhere, expected = EXAMPLES[name]
    lines = text.split("\n")
    joined = HyphenJoiner([lines, [elsewhere, ""]]).join(lines)
    assert [line for line in joined if line] == expected.split("\n")


def test_a_line_that_gives_its_only_word_away_is_empty() -> None:
    lines = ["a run-", "of-", "station basis"]

    assert HyphenJoiner([lines]).join(lines) == ["a run-of-", "", "station basis"]


@given(st.lists(st.text("abC -,.", max_size=12), max_size=8))
def test_no_letter_is_lost(lines: list[str]) -> None:
    after = HyphenJoiner([lines]).join(lines)

    assert len(after) == len(lines)
    letters = [char for line in lines for char in line if char not in " -"]
    assert [char for line in after for char in line if char not in " -"] == letters
