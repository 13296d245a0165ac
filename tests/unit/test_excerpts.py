"""Excerpts of passages begin shortly before the matched terms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual._utils.text import excerpt

FILLER = "The station was serviced in spring and nothing was found. " * 5


def test_a_short_text_is_shown_whole() -> None:
    assert excerpt("The pump runs dry.", ["dry"], 90) == "The pump runs dry."


def test_it_begins_with_the_sentence_of_the_rarest_term() -> None:
    text = f"{FILLER}TS-999: the processor did not answer. {FILLER}"
    assert excerpt(text, ["station", "ts-999", "999"], 90).startswith("… TS-999: the processor did not answer. The")


def test_a_piece_with_two_rare_terms_is_better_than_one_with_one() -> None:
    text = f"{FILLER}A valve leaks. {FILLER}The lease ends early by notice. {FILLER}"
    assert excerpt(text, ["valve", "early", "notice"], 120).startswith("… The lease ends early by notice.")


def test_a_compound_counts_more_than_its_parts() -> None:
    text = f"{FILLER}TS-999 means that it runs dry. {FILLER}TS-104 means that it is not calibrated. {FILLER}"
    assert excerpt(text, ["ts-999", "ts", "999"], 90).startswith("… TS-999 means")


def test_terms_are_the_beginnings_of_words_in_any_case() -> None:
    text = f"{FILLER}Undetermined. {FILLER}She may TERMINATE it."
    assert excerpt(text, ["termin"], 60) == "… She may TERMINATE it."


def test_without_a_term_in_it_the_text_is_shown_from_its_beginning() -> None:
    assert excerpt(FILLER, ["zebra"], 60) == excerpt(FILLER, [], 60) == FILLER


@given(st.text(max_size=200), st.lists(st.text(min_size=1, max_size=5), max_size=4), st.integers(1, 80))
def test_an_excerpt_is_a_suffix_of_the_text(text: str, terms: list[str], width: int) -> None:
    assert text.endswith(excerpt(text, terms, width).removeprefix("… "))
