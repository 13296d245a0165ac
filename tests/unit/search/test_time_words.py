"""Time words and their dates for a given reference date."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.search.time_words import explicit_times

SUNDAY = date(2026, 11, 22)


MEANINGS = {
    "yesterday": "21 November 2026",
    "tomorrow": "23 November 2026",
    "last week": "9 November 2026 to 15 November 2026",
    "this week": "16 November 2026 to 22 November 2026",
    "last month": "October 2026",
    "last quarter": "Q3 2026",
    "the current quarter": "Q4 2026",
    "next quarter": "Q1 2027",
    "this year": "2026",
    "LAST YEAR": "2025",
    "last year’s": "2025",
    "last decade": "2010s",
    "the year before last": "2024",
    "year to date": "2026",
    "Q3 last year": "Q3 2025",
    "third quarter of last year": "Q3 2025",
    "last year's Q3": "Q3 2025",
    "two years ago": "2024",
    "a month ago": "October 2026",
    "10 days ago": "12 November 2026",
    "last June": "June 2026",
    "last December": "December 2025",
    "next March": "March 2027",
    "past three quarters": "Q1 2026, Q2 2026, Q3 2026, Q4 2026",
    "past two years": "2024, 2025, 2026",
    "last 30 months": "May 2024 to November 2026",
    "past week": "15 November 2026 to 22 November 2026",
    "next 2 weeks": "22 November 2026 to 6 December 2026",
}


@pytest.mark.parametrize("words", MEANINGS)
def test_time_words_are_followed_by_their_dates(words: str) -> None:
    assert explicit_times(f"What fell in {words}?", SUNDAY) == f"What fell in {words} ({MEANINGS[words]})?"


def test_months_and_quarters_reach_back_into_the_year_before() -> None:
    months = "August 2025, September 2025, October 2025, November 2025, December 2025, January 2026, February 2026"
    assert explicit_times("in the past six months", date(2026, 2, 28)) == f"in the past six months ({months})"
    assert explicit_times("last quarter", date(2026, 1, 1)) == "last quarter (Q4 2025)"


@pytest.mark.parametrize(
    "question",
    [
        *("What does TS-999 mean?", "the last quarter of 2023", "the last two months of the lease", "last fiscal year"),
        *(
            "what did the last may say",
            "half a year ago",
            "last year (2025)",
            "999 decades ago",
            "this quarterly report",
        ),
    ],
)
def test_phrases_without_a_calendar_date_or_with_a_bracket_are_not_changed(question: str) -> None:
    assert explicit_times(question, SUNDAY) == question


def test_every_expression_of_a_question_is_explained() -> None:
    found = explicit_times("Was last year better than the year before last, or Q1 this year?", SUNDAY)
    assert found == "Was last year (2025) better than the year before last (2024), or Q1 this year (Q1 2026)?"


_WORDS = "last next this past the of before ago two 3 's ( year month months years decade Q1 May yesterday"


@given(st.lists(st.sampled_from(_WORDS.split()), max_size=12).map(" ".join), st.dates())
def test_any_question_on_any_day_keeps_its_words_and_is_explained_once(question: str, day: date) -> None:
    found = explicit_times(question, day)
    assert len(found) >= len(question)
    assert explicit_times(found, day) == found
