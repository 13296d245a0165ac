"""Fiscal years, quarters and dates: one term for all spellings."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.index.analysis import Analyzer, date_token, is_period, period_token, periods, tokens
from llama_index_contextual.index.bm25 import PERIOD_WEIGHT, LexicalIndex

analyzer = Analyzer("english", has_periods=True)

SPELLINGS = {
    "fy2018": (
        *("FY2018", "FY 2018", "FY18", "FY'18", "FY’18", "fy2018", "fiscal 2018", "fiscal year 2018"),
        *("Fiscal Year 2018", "FISCAL YEAR 2018", "2018 fiscal year", "fiscal\nyear 2018", "Fiscal: 2018"),
        *("fiscal year ended May 31, 2018", "year ended December 31, 2018", "Year Ending 31 December 2018"),
        *("fiscal year ended on Saturday, June 30, 2018", "52 weeks ended December 29, 2018"),
    ),
    "2018q1": (
        *("2018Q1", "2018-Q1", "2018 Q1", "Q1 2018", "Q1 of 2018", "Q1, 2018", "1Q18", "1Q 2018", "Q1'18", "q1 2018"),
        *("first quarter of 2018", "First-Quarter 2018", "2018 first quarter", "first quarter 2018"),
        *("FY2018Q1", "Q1 of FY2018", "Q1 FY18", "first fiscal quarter of 2018", "first quarter of fiscal year 2018"),
        *("quarter ended March 31, 2018", "three months ended March 31, 2018", "quarterly period ended 31 March 2018"),
    ),
    "2018-03-31": (
        *("2018-03-31", "31.3.2018", "31.03.2018", "3/31/2018", "03/31/2018", "31/3/2018", "31-03-2018"),
        *("March 31, 2018", "Mar. 31, 2018", "MARCH 31, 2018", "March 31st, 2018", "31 March 2018", "31st March 2018"),
        *("March\n31, 2018", "March 31,\n2018"),
    ),
}


@pytest.mark.parametrize(("term", "text"), [(term, text) for term, texts in SPELLINGS.items() for text in texts])
def test_all_spellings_of_a_period_have_one_term(term: str, text: str) -> None:
    assert analyzer.terms(f"Sales ({text}) rose").count(term) == 1
    assert term in analyzer.query_terms(f"How much did sales rise in {text}?")


PERIODS = {
    "fiscal years 2018, 2017 and 2016": ["fy2018", "fy2017", "fy2016"],
    "Fiscal 2018 to 2016": ["fy2018", "fy2016"],
    "year ended January 29, 2022": ["2022-01-29", "fy2022", "fy2021"],
    "between May 1, 2018 and June 2, 2019": ["2018-05-01", "2019-06-02"],
    "twelve months ended June 30, 2018": ["2018-06-30", "fy2018"],
}
NO_PERIODS = (
    *("2018 2017 2016", "you may 31 2018", "30 February 2018", "fiscal policy", "the fourth quarter", "Q3 25 items"),
    *("quarter of 2018", "$2,018", "in 2018", "a year ended", "March 2018", "FY", "Q5 2018", "fiscal 18", "May", ""),
)


@pytest.mark.parametrize(("text", "expected"), [*PERIODS.items(), *((text, []) for text in NO_PERIODS)])
def test_lists_and_ends_of_periods_and_other_years_and_numbers(text: str, expected: list[str]) -> None:
    assert periods(tokens(text)) == expected


@pytest.mark.parametrize("token", ["32.1.2018", "1.2.3", "13/13/2018", "1.2.18", "10.0.0.2018", "1/2-2018"])
def test_figures_that_are_no_date_have_no_date(token: str) -> None:
    assert date_token(token) is None


def test_a_token_of_a_period_has_no_parts_but_its_year() -> None:
    assert analyzer.terms("FY2018 2018Q1 FY") == ["fy2018", "2018", "2018q1", "2018"]
    assert analyzer.terms("31.12.2022") == ["31.12.2022", "2022-12-31", "31", "12", "2022"]
    assert Analyzer("english").terms("FY2018, fiscal 2018") == ["fy2018", "fy", "2018", "fiscal", "2018"]


@given(st.dates(date(1900, 1, 1), date(2099, 12, 31)))
def test_every_date_has_one_term_however_it_is_written(day: date) -> None:
    name = f"{day:%B}"
    named = [f"{name} {day.day}, {day.year}", f"{day.day} {name} {day.year}", f"{name[:3]}. {day.day:02}, {day.year}"]
    figures = [f"{day.month:02}/{day.day:02}/{day.year}", f"{day.day}.{day.month}.{day.year}", day.isoformat()]
    for text in named + figures:
        assert analyzer.terms(text).count(day.isoformat()) == 1, text


WORDS = "fiscal FY Q1 1Q 2018 May 31 31st of ended year quarter first 2019 and".split()  # noqa: SIM905


@given(st.text(max_size=300) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_keeps_its_terms_and_gets_only_terms_of_periods(text: str) -> None:
    added, terms = periods(tokens(text)), analyzer.terms(text)
    assert all(is_period(term) or date.fromisoformat(term) for term in added)
    assert terms[len(terms) - len(added) :] == added
    assert all(is_period(term) or term.isdigit() for word in tokens(text) for term in period_token(word))


# ---- index -----------------------------------------------------------------------------------------------------------


def test_a_question_finds_the_other_spelling() -> None:
    index = LexicalIndex.build(["Sales of fiscal year 2018.", "Sales of fiscal year 2019, after 2018."])
    plain, spelled = index.query("sales FY2018"), index.query("sales of fiscal 2018")
    assert plain.counts == {"sale": 1.0, "fy2018": PERIOD_WEIGHT, "2018": 1.0}
    assert spelled.counts == {**plain.counts, "fiscal": 1.0}
    first, second = index.scores(plain)
    assert first > second > 0
