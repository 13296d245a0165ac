"""Units of a passage, and how much of a question one of them covers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.search.spotlight import coverage, question_parts, units

ENGLISH = Analyzer("english")


def pieces(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in units(text)]


@given(st.text(alphabet="ab |.\n\r\u2028é。", max_size=400))
def test_units_are_ordered_and_hold_all_visible_characters(text: str) -> None:
    spans = units(text)
    assert all(first_end <= second_start for (_, first_end), (second_start, _) in itertools.pairwise(spans))
    assert "".join("".join(text[start:end].split()) for start, end in spans) == "".join(text.split())
    assert all(text[start:end].strip() for start, end in spans)


def test_rows_of_a_table_are_units() -> None:
    text = "Revenue by zone\nUpper Vale    2.95    3.10\nTarn Coast    2.10    2.20\n"
    assert pieces(text) == ["Revenue by zone", "Upper Vale    2.95    3.10", "Tarn Coast    2.10    2.20"]


def test_a_long_line_is_divided_into_sentences() -> None:
    sentences = [
        "The contract may be terminated by either party at any time.",
        "Notice is due within ninety days of it.",
    ]
    assert pieces(" ".join(sentences * 2)) == sentences * 2


def test_lines_that_were_wrapped_by_hand_are_one_unit() -> None:
    text = "Water for gardens is metered apart from that of the\nhouse, and free in spring.\n\nnext paragraph"
    assert pieces(text) == [text.partition("\n\n")[0], "next paragraph"]


@pytest.mark.parametrize(
    ("text", "header", "share"),
    [
        ("The pump stops.\nThe motor runs.", "", 0.75),
        ("The pump stops the motor.", "", 1.0),
        ("The pump stops.\nThe valve.", "Motors", 1.0),
        ("", "Motors", 0.0),  # a header alone says nothing
    ],
)
def test_a_part_of_the_question_is_covered_by_one_unit_only(text: str, header: str, share: float) -> None:
    assert coverage(text, header, [{"pump": 3.0, "motor": 1.0}], ENGLISH) == share
    assert coverage(text, header, question_parts("of the", {}, ENGLISH), ENGLISH) == 0.0


def test_the_best_covered_sentence_of_the_question_counts() -> None:
    question = "Which pump feeds the upper reservoir? Answer in full sentences with figures in millions."
    weights = dict.fromkeys(ENGLISH.query_terms(question), 1.0)
    parts = question_parts(question, weights, ENGLISH)
    assert len(parts) == 2
    assert coverage("The old pump feeds the upper reservoir.", "", parts, ENGLISH) == 1.0


@pytest.mark.parametrize("question", ["And the pump?", "Pump. Motor. Valve.", ""])
def test_a_question_of_short_sentences_is_one_part(question: str) -> None:
    weights = {"pump": 2.0, "motor": 1.0, "valve": 1.0}
    assert question_parts(question, weights, ENGLISH) == [weights]
