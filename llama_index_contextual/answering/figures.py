"""Numbers and dates of a text as values that can be compared, however they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october"),
    *("november", "december"),
)
_MONTH = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<![\d-])(?P<year>\d{4})[-/.](?P<a>\d{1,2})[-/.](?P<b>\d{1,2})(?!\d)",
        r"(?<![\d/.-])(?P<b>\d{1,2})[-/.](?P<a>\d{1,2})[-/.](?P<year>\d{4})(?!\d)",
        rf"\b{_MONTH} (?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,? (?P<year>\d{{4}}))?\b",
        rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\.? (?:of )?{_MONTH}(?:,? (?P<year>\d{{4}}))?\b",
        rf"\b{_MONTH},? (?P<year>\d{{4}})\b",
    )
)
_NUMBER = re.compile(r"\d{1,3}(?:([.,'’\u00a0\u202f ])\d{3})(?:\1\d{3})*(?:[.,]\d+)?(?!\d)|\d+(?:[.,]\d+)*")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"[\s-]*({'|'.join(_SCALES)})s?\b", re.IGNORECASE)
_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_WORDS: dict[str, int | Decimal] = {
    **{word: value for value, word in enumerate(_ONES)},
    **{word: 10 * value for value, word in enumerate(_TENS, start=2)},
    **{word: value for value, word in enumerate(_ORDINALS, start=1)},
    "hundred": 100,
    "dozen": 12,
    "half": Decimal("0.5"),
    "once": 1,
    "twice": 2,
}
_SPELLED = re.compile(rf"\b(?:({'|'.join(_TENS)})[\s-])?({'|'.join(_WORDS)})\b", re.IGNORECASE)

_LONGEST = 100
"""Characters of a number, at most: longer ones are no figures, and too large for decimals."""

Date = tuple[int | None, int, int | None]
"""Year, month, day; None for what is not said."""


@dataclass(frozen=True)
class Figure:
    """A number or date of a text.

    Attributes:
        text: As it is written.
        start: Where it begins.
        end: Where it ends.
        values: What the number may be ("1,000" is a thousand, or one by another custom).
        dates: What the date may be ("3/4/2021" is in April or in March); empty for a number.
    """

    text: str
    start: int
    end: int
    values: frozenset[Decimal] = frozenset()
    dates: frozenset[Date] = frozenset()


def figures_of(text: str) -> list[Figure]:
    """Return the dates and numbers that a text writes in digits, in order.

    Example:
        >>> [figure.text for figure in figures_of("On March 3, 2021 it cost $1,250.50 or 4 %.")]
        ['March 3, 2021', '1,250.50', '4']
    """
    found: list[Figure] = []
    taken = bytearray(len(text))  # 1 where a date stands
    for pattern in _DATES:
        for match in pattern.finditer(text):
            dates = frozenset(_dates(match.groupdict()))
            if dates and not any(taken[match.start() : match.end()]):
                taken[match.start() : match.end()] = b"\1" * len(match[0])
                found.append(Figure(match.group(), match.start(), match.end(), dates=dates))
    for match in _NUMBER.finditer(text):
        if len(match[0]) <= _LONGEST and not any(taken[match.start() : match.end()]):
            values = frozenset(_values(match.group(), text[match.end() : match.end() + 12]))
            found.append(Figure(match.group(), match.start(), match.end(), values))
    return sorted(found, key=lambda figure: figure.start)


def _dates(parts: dict[str, str | None]) -> Iterator[Date]:
    written = parts.get("year")
    year = int(written) if written else None
    if parts.get("month"):
        month = next(at for at, name in enumerate(_MONTHS, 1) if name.startswith(str(parts["month"]).lower()))
        of_month = parts.get("day")
        yield year, month, int(of_month) if of_month else None
        return
    a, b = int(parts["a"] or 0), int(parts["b"] or 0)
    for month, day in {(a, b), (b, a)}:
        if 1 <= month <= 12 and 1 <= day <= 31:
            yield year, month, day


def _values(written: str, after: str) -> Iterator[Decimal]:
    plain = re.sub(r"['’\u00a0\u202f ]", "", written)
    separators = re.findall(r"[.,]", plain)
    readings = {re.sub(r"[.,]", "", plain)} if separators else {plain}
    if separators and (len(separators) == 1 or separators[-1] != separators[0]):
        whole, _, fraction = plain.rpartition(separators[-1])
        decimal = f"{re.sub('[.,]', '', whole)}.{fraction}"
        # A single separator before three digits may part thousands or decimals.
        readings = readings | {decimal} if len(separators) == 1 and len(fraction) == 3 else {decimal}
    scale = _SCALE.match(after)
    for reading in readings:
        value = Decimal(reading).normalize()
        yield value
        if scale:
            yield (value * 10 ** _SCALES[scale[1].lower()]).normalize()


class Facts:
    """The numbers and dates of a passage, those that are spelled out included.

    Example:
        >>> facts = Facts("Three days from 2 May 2020, at 1000 EUR.")
        >>> [facts.support(figure) for figure in figures_of("3 days, 1,000, 2020-05-02, 7")]
        [True, True, True, False]
    """

    def __init__(self, text: str) -> None:
        figures = figures_of(text)
        self._dates = {date for figure in figures for date in figure.dates}
        self._values = {value for figure in figures for value in figure.values}
        self._values |= {Decimal(part) for date in self._dates for part in (date[0], date[2]) if part is not None}
        # Numbers within dates and compounds too: "2020-21" holds 21.
        self._values |= {Decimal(digits).normalize() for digits in re.findall(r"\d+", text) if len(digits) <= _LONGEST}
        for match in _SPELLED.finditer(text):
            value = Decimal(_WORDS[match[2].lower()])
            value += Decimal(_WORDS[match[1].lower()]) if match[1] else 0
            scale = _SCALE.match(text, match.end())
            self._values |= {value, value * 10 ** _SCALES[scale[1].lower()] if scale else value}

    def support(self, figure: Figure) -> bool:
        """Return whether the passage holds a number or date, in any way of writing."""
        if figure.dates:
            return any(self._matches(asked, held) for asked in figure.dates for held in self._dates)
        return not self._values.isdisjoint(figure.values)

    def _matches(self, asked: Date, held: Date) -> bool:
        """Return whether two dates agree; what the held one leaves open must stand beside it."""
        for mine, theirs in zip(asked, held, strict=True):
            if mine is not None and mine != theirs and (theirs is not None or Decimal(mine) not in self._values):
                return False
        return True
