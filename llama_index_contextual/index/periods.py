"""Fiscal years, quarters and dates as terms of the lexical index: one term for all spellings of a period.

A question says "FY2018", the report "fiscal year 2018" or "fiscal year ended May 31, 2018", its file name "2018Q1" and
its first page "first quarter of 2018". As words they share at most the year, which also occurs in every table of the
report for the next year.

A fiscal year is `fy2018`, a quarter `2018q1`, a date `2018-12-31`. The end of a year or quarter names the period as
well: "quarter ended June 30, 2022" is also `2022q2`. A year that ends in January counts as both years by which
companies call it. The names of months and quarters are English; in "31.12.2022" the day comes first, in "12/31/2022"
the month, unless it would be above 12.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import compress
from typing import NamedTuple

_MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTHS = {name[:3]: number for number, name in enumerate(map(str.lower, _MONTH_NAMES), 1)}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4}
_QUARTERS = {
    **{f"q{number}": number for number in range(1, 5)},
    **{f"{number}q": number for number in range(1, 5)},
    **{f"{ordinal}-quarter": number for ordinal, number in _ORDINALS.items()},
}
_BETWEEN_YEARS = frozenset({"and", "or", "to", "through", "vs", "versus"})
_BEFORE_YEAR = frozenset({"of", "in", "for", "the", "calendar", "fiscal", "fy", "year"})
_WEEKDAYS = frozenset({"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"})
_ENDS = {
    **dict.fromkeys((("twelve", "months"), ("12", "months"), ("52", "weeks"), ("53", "weeks")), "year"),
    **dict.fromkeys((("three", "months"), ("3", "months"), ("13", "weeks"), ("quarterly", "period")), "quarter"),
}


def _spellings(*words: str) -> frozenset[str]:
    return frozenset(spelling for word in words for spelling in (word.lower(), word.title(), word.upper()))


# "may" is a verb.
_MONTH_WORDS = _spellings(*_MONTH_NAMES, *_MONTHS, "Sept") - {"may"}
_IS_ANCHOR = (_MONTH_WORDS | _spellings("fiscal", "FY", "quarter", "quarters", *_QUARTERS)).__contains__

_YEAR = re.compile(r"(?:19|20)\d\d")
_FISCAL_YEAR = re.compile(r"FY'?((?:19|20)?\d\d)", re.IGNORECASE)
_DAY = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?", re.IGNORECASE)
_ONE_TOKEN = re.compile(
    r"FY'?(?P<fiscal>(?:19|20)?\d\d)|(?P<fy>FY)?(?P<year>(?:19|20)\d\d)-?Q(?P<q>[1-4])"
    r"|(?:Q(?P<before>[1-4])['-]|(?P<after>[1-4])Q['-]?)(?P<of>(?:19|20)?\d\d)",
    re.IGNORECASE,
)
_PERIOD_TERM = re.compile(r"fy\d{4}|\d{4}q[1-4]")
_SPELT_TERM = re.compile(rf"{_PERIOD_TERM.pattern}|\d{{4}}-\d\d-\d\d")
_NUMERIC_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2((?:19|20)\d\d)")


class Period(NamedTuple):
    """A year, quarter or date that is named in a text: its term, and the positions of its first and last token."""

    term: str
    first: int
    last: int


def periods(words: Sequence[str]) -> list[str]:
    """Return the terms of the periods that several tokens of a text name together, in order, with repetitions.

    Args:
        words: The tokens of the text, from `analysis.tokens`.

    Example:
        >>> periods("fiscal years 2018 and 2017 ; second quarter of 2018 ; year ended May 31 2018".split())
        ['fy2018', 'fy2017', '2018q2', '2018-05-31', 'fy2018']
    """
    return [period.term for period in find_periods(words)]


def find_periods(words: Sequence[str]) -> Iterator[Period]:
    """Yield the periods that several tokens of a text name together, in order.

    Example:
        >>> list(find_periods("the second quarter of 2018".split()))
        [Period(term='2018q2', first=1, last=4)]
    """
    for at in compress(range(len(words)), map(_IS_ANCHOR, words)):
        if words[at] in _MONTH_WORDS:
            yield from _dates(words, at)
        elif (word := words[at].lower()) in ("fiscal", "fy"):
            yield from _fiscal_years(words, at)
        elif word in _QUARTERS:
            yield from _quarter(words, at, at, _QUARTERS[word])
        else:
            first = at - 2 if _word(words, at - 1) == "fiscal" else at - 1
            yield from _quarter(words, first, at, _ORDINALS.get(_word(words, first), 0))


def period_token(token: str) -> tuple[str, ...]:
    """Return the terms of a token that names a year or quarter, and its year; empty for other tokens.

    Example:
        >>> period_token("FY2018"), period_token("2018Q1"), period_token("1Q18"), period_token("TS-999")
        (('fy2018', '2018'), ('2018q1', '2018'), ('2018q1', '2018'), ())
    """
    match = _ONE_TOKEN.fullmatch(token)
    if match is None:
        return ()
    if match["fiscal"]:
        year = _full_year(match["fiscal"])
        return f"fy{year}", str(year)
    year = _full_year(match["year"] or match["of"])
    terms = (f"{year}q{match['q'] or match['before'] or match['after']}", str(year))
    return (f"fy{year}", *terms) if match["fy"] else terms


def date_token(token: str) -> str | None:
    """Return the term of a date in figures, or None for other tokens.

    Example:
        >>> date_token("31.12.2022"), date_token("12/31/2022"), date_token("1.2.3")
        ('2022-12-31', '2022-12-31', None)
    """
    match = _NUMERIC_DATE.fullmatch(token)
    if match is None:
        return None
    day, month = int(match[1]), int(match[3])
    if (match[2] == "/" and day <= 12) or month > 12:
        day, month = month, day
    found = _day(int(match[4]), month, day)
    return None if found is None else found.isoformat()


def is_period(term: str) -> bool:
    """Return whether a term is a fiscal year or a quarter."""
    return _PERIOD_TERM.fullmatch(term) is not None


def may_have_words(term: str) -> bool:
    """Return whether a term is a fiscal year, a quarter or a date, which several words of a text can name together."""
    return _SPELT_TERM.fullmatch(term) is not None


def _word(words: Sequence[str], at: int) -> str:
    """Return a token in lower case, or "" outside the text."""
    return words[at].lower() if 0 <= at < len(words) else ""


def _full_year(digits: str) -> int:
    year = int(digits)
    return year if year > 99 else year + (1900 if year >= 70 else 2000)


def _day(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:  # there is no such day
        return None


def _dates(words: Sequence[str], at: int) -> Iterator[Period]:
    """Yield "May 31, 2018" or "31 May 2018", and a year or quarter that it ends."""
    after, before = _word(words, at + 1), _word(words, at - 1)
    if (number := _DAY.fullmatch(after)) and _YEAR.fullmatch(_word(words, at + 2)):
        start, last = at, at + 2
    elif (number := _DAY.fullmatch(before)) and _YEAR.fullmatch(after):
        start, last = at - 1, at + 1
    else:
        return
    day = _day(int(words[last]), _MONTHS[words[at][:3].lower()], int(number[1]))
    if day is None:
        return
    yield Period(day.isoformat(), start, last)
    while _word(words, start - 1) in _WEEKDAYS or _word(words, start - 1) == "on":
        start -= 1
    if _word(words, start - 1) not in ("ended", "ending"):
        return
    first, kind = start - 2, _word(words, start - 2)
    if of_two_words := _ENDS.get((_word(words, start - 3), kind)):
        first, kind = start - 3, of_two_words
    if kind == "year":
        yield Period(f"fy{day.year}", first, last)
        if day.month == 1:
            yield Period(f"fy{day.year - 1}", first, last)
    if kind == "quarter":
        yield Period(f"{day.year}q{(day.month + 2) // 3}", first, last)


def _fiscal_years(words: Sequence[str], at: int) -> Iterator[Period]:
    """Yield the years of "fiscal 2018", "fiscal years 2018, 2017 and 2016" or "2018 fiscal year"."""
    has_year = _word(words, at + 1) in ("year", "years")
    if has_year and _YEAR.fullmatch(_word(words, at - 1)):
        yield Period(f"fy{words[at - 1]}", at - 1, at + 1)
        return
    first, at = at, at + 1 + has_year
    while _YEAR.fullmatch(year := _word(words, at)):
        yield Period(f"fy{year}", first, at)
        at += 2 if _word(words, at + 1) in _BETWEEN_YEARS else 1
        first = at


def _quarter(words: Sequence[str], first: int, last: int, number: int) -> Iterator[Period]:
    """Yield a quarter whose year follows or precedes its name.

    Args:
        words: The tokens of the text.
        first: Position of the first word of the name.
        last: Position of its last word.
        number: The number of the quarter; 0 if it has none.
    """
    if not number:
        return
    at = last + 1
    while _word(words, at) in _BEFORE_YEAR:
        at += 1
    for place in (at, first - 1):
        word = _word(words, place)
        if match := _YEAR.fullmatch(word) or _FISCAL_YEAR.fullmatch(word):
            year = int(word) if match.re is _YEAR else _full_year(match[1])
            yield Period(f"{year}q{number}", min(place, first), max(place, last))
            return
