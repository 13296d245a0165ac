"""Hyphens at line ends, ligatures, characters that are no text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.readers.pdf.repair import HyphenJoiner, clean


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


def joined(lines: list[str], elsewhere: str = "") -> list[str]:
    pages = [lines, [elsewhere, ""]]
    return [line for line in HyphenJoiner(pages).join(lines) if line]


def test_a_word_that_occurs_whole_elsewhere_loses_its_hyphen() -> None:
    assert joined(["This agree-", "ment ends."], "The agreement of today") == ["This agreement", "ends."]


def test_a_word_that_occurs_with_its_hyphen_elsewhere_keeps_it() -> None:
    assert joined(["The long-", "term lease"], "A long-term view, no longterm one") == ["The long-term", "lease"]


def test_an_unknown_word_keeps_its_hyphen() -> None:
    assert joined(["all market-", "facing offers"]) == ["all market-facing", "offers"]


CUTS = ["The agree-", "ment of the par-", "ties and the ten-", "ant says"]
WHOLE = "The agreement of parties and the tenant"


def test_an_unknown_word_is_joined_in_a_document_that_cuts_words() -> None:
    assert joined([*CUTS, "that the maisonet-", "te is dry"], WHOLE)[-2:] == ["that the maisonette", "is dry"]


def test_two_words_keep_their_hyphen_even_in_a_document_that_cuts_words() -> None:
    assert joined([*CUTS, "a rent-", "free year"], f"{WHOLE} with rent that is free now")[-2:] == [
        "a rent-free",
        "year",
    ]


def test_a_soft_hyphen_always_goes() -> None:
    assert joined(["the zyg\u00ad", "ote and in\u00advisible"]) == ["the zygote", "and invisible"]


def test_punctuation_goes_with_the_word() -> None:
    assert joined(["first-", "class, regis\u00ad", "tered; end"]) == ["first-class,", "registered;", "end"]


def test_a_line_that_gives_its_only_word_away_is_empty() -> None:
    lines = ["a run-", "of-", "station basis"]

    assert HyphenJoiner([lines]).join(lines) == ["a run-of-", "", "station basis"]


@pytest.mark.parametrize("line", ["pages 3-", "- 5 -", "a dash -", "A-", "--------"])
def test_other_dashes_at_a_line_end_are_left_alone(line: str) -> None:
    assert joined([line, "Following text"]) == [line, "Following text"]


def test_capitals_are_joined_to_capitals_only() -> None:
    assert joined(["THE AGREE-", "MENT ENDS"], "the AGREEMENT now") == ["THE AGREEMENT", "ENDS"]
    assert joined(["The North-", "American branch"]) == ["The North-", "American branch"]


@given(st.lists(st.text("abC -,.", max_size=12), max_size=8))
def test_no_letter_is_lost(lines: list[str]) -> None:
    after = HyphenJoiner([lines]).join(lines)

    assert len(after) == len(lines)
    letters = [char for line in lines for char in line if char not in " -"]
    assert [char for line in after for char in line if char not in " -"] == letters
