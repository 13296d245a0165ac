"""Add explicit dates for relative time expressions, because a report contains "Q3 2026", not "last quarter"."""

from __future__ import annotations

import re
from datetime import date, timedelta

from llama_index_contextual.index.analysis import MONTH_NAMES

_NUMBERS = (
    *("one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
_MONTHS_IN = {"month": 1, "quarter": 3, "year": 12, "decade": 120}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4}
_LISTED = 12  # maximum number of time periods listed individually; longer series show only the first and last

_BACK = "last|previous|prior"
_WHICH = rf"(?P<which>{_BACK}|this|the current|current|next|the coming|coming)"
_COUNT = rf"(?P<count>\d{{1,3}}|a couple of|couple of|{'|'.join(_NUMBERS)})"
_UNIT = "day|week|month|quarter|year|decade"
# "The last quarter of 2023" and "the last two months of the lease" do not depend on the reference date.
_END = r"\b(?!\s+of\b)(?:['’]s?\b)?"
_BRACKET = re.compile(r"\s*\(")
_QUARTER = rf"(?:Q(?P<digit>[1-4])|(?P<ordinal>{'|'.join(_ORDINALS)})\s+quarter)"
# "May" is also a verb.
_NAMED = "|".join(name for name in MONTH_NAMES if name != "May")
_PHRASES = tuple(
    (name, re.compile(rf"\b{pattern}{_END}", re.IGNORECASE))
    for name, pattern in (
        ("quarter", rf"{_QUARTER}\s+(?:of\s+)?{_WHICH}\s+year"),
        ("quarter", rf"{_WHICH}\s+year['’]s\s+{_QUARTER}"),
        ("before", r"the\s+(?P<unit>week|month|quarter|year)\s+before\s+last"),
        ("span", rf"(?P<toward>past|{_BACK}|next|coming)\s+{_COUNT}\s+(?P<unit>{_UNIT})s"),
        ("ago", rf"(?<!half )(?P<count>\d{{1,3}}|an?|{'|'.join(_NUMBERS)})\s+(?P<unit>{_UNIT})s?\s+ago"),
        ("past", rf"past\s+(?P<unit>{_UNIT})"),
        ("month", rf"(?P<which>{_BACK}|this|next)\s+(?P<month>{_NAMED}|(?-i:May))"),
        ("period", rf"{_WHICH}\s+(?P<unit>week|month|quarter|year|decade)"),
        ("day", r"(?P<day>yesterday|today|tomorrow)"),
        ("year", r"(?:year[- ]to[- ]date|ytd)"),
    )
)


def explicit_times(question: str, reference: date) -> str:
    """Add explicit dates, in brackets, after the English relative time expressions in a question.

    Quarters and years are calendar quarters and years, so "last fiscal year" is not changed. Phrases that do not depend
    on the reference date ("the last quarter of 2023") or that are already followed by a bracket are not changed either.

    Args:
        question: The question.
        reference: The day on which the question is asked.

    Example:
        >>> explicit_times("What was revenue last quarter, and in Q3 last year?", date(2026, 11, 22))
        'What was revenue last quarter (Q3 2026), and in Q3 last year (Q3 2025)?'
    """
    matched = bytearray(len(question))  # 1 for each character that belongs to a phrase
    meanings: dict[int, str] = {}  # keyed by the end of the phrase
    for name, pattern in _PHRASES:
        for match in pattern.finditer(question):
            if not any(matched[match.start() : match.end()]):
                matched[match.start() : match.end()] = b"\1" * len(match[0])
                meanings[match.end()] = _meaning(name, match.groupdict(), reference)
    pieces, position = [], 0
    for end in sorted(meanings):
        if meanings[end] and not _BRACKET.match(question, end):
            pieces += [question[position:end], f" ({meanings[end]})"]
            position = end
    return "".join([*pieces, question[position:]])


def _meaning(name: str, groups: dict[str, str | None], today: date) -> str:
    """Return the dates that a phrase refers to, or an empty string if they are not in the years 1 to 9999."""
    try:
        return _dates(name, {key: value.lower() for key, value in groups.items() if value is not None}, today)
    except (ValueError, OverflowError):
        return ""


def _dates(name: str, groups: dict[str, str], today: date) -> str:
    unit = groups.get("unit", "year")
    if name == "day":
        return _name("day", _shifted("day", today, {"yesterday": -1, "today": 0, "tomorrow": 1}[groups["day"]]))
    if name == "month":
        return _named_month(groups["which"], groups["month"], today)
    if name == "quarter":
        number = int(groups["digit"]) if "digit" in groups else _ORDINALS[groups["ordinal"]]
        return f"Q{number} {_shifted('year', today, _step(groups['which'])).year}"
    if name == "past":
        return _span(unit, today, -1)
    if name == "span":
        return _span(unit, today, _number(groups["count"]) * (1 if groups["toward"] in ("next", "coming") else -1))
    steps = {"before": -2, "year": 0}
    step = -_number(groups["count"]) if name == "ago" else steps[name] if name in steps else _step(groups["which"])
    return _name(unit, _shifted(unit, today, step))


def _step(which: str) -> int:
    return -1 if which in _BACK.split("|") else 0 if which.endswith(("this", "current")) else 1


def _number(word: str) -> int:
    if word in _NUMBERS:
        return _NUMBERS.index(word) + 1
    return int(word) if word.isdecimal() else 1 if word in ("a", "an") else 2


def _shifted(unit: str, day: date, steps: int) -> date:
    """Return a day in the period that is `steps` periods after the given day's period.

    If `steps` is negative, the period is before the given day's period. For a month or a longer period, the returned
    day is the first day of the period.
    """
    if unit in ("day", "week"):
        return day + timedelta(days=steps * (7 if unit == "week" else 1))
    months = 12 * day.year + day.month - 1 + steps * _MONTHS_IN[unit]
    return date(months // 12, months % 12 + 1, 1)


def _name(unit: str, day: date) -> str:
    """Return the name of the time period that contains a day."""
    if unit == "week":
        monday = day - timedelta(days=day.weekday())
        return f"{_name('day', monday)} to {_name('day', monday + timedelta(days=6))}"
    return {
        "day": f"{day.day} {MONTH_NAMES[day.month - 1]} {day.year}",
        "month": f"{MONTH_NAMES[day.month - 1]} {day.year}",
        "quarter": f"Q{(day.month + 2) // 3} {day.year}",
        "year": str(day.year),
        "decade": f"{day.year // 10}0s",
    }[unit]


def _span(unit: str, today: date, steps: int) -> str:
    """Return the names of all time periods from the current period to the period that is `steps` periods away.

    The names of both periods are included. A long series is shortened to its first and last names.
    """
    first, last = sorted((steps, 0))
    if unit in ("day", "week"):
        return f"{_name('day', _shifted(unit, today, first))} to {_name('day', _shifted(unit, today, last))}"
    if unit == "decade":
        unit, first, last = "year", 10 * first, 10 * last
    names = [_name(unit, _shifted(unit, today, step)) for step in (first, last)]
    if last - first < _LISTED:
        return ", ".join(_name(unit, _shifted(unit, today, step)) for step in range(first, last + 1))
    return " to ".join(names)


def _named_month(which: str, month: str, today: date) -> str:
    number = [name.lower() for name in MONTH_NAMES].index(month) + 1
    year = today.year
    if _step(which) < 0 and number >= today.month:
        year -= 1
    if _step(which) > 0 and number <= today.month:
        year += 1
    return _name("month", date(year, number, 1))
