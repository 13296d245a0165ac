"""Find the numbers and months in a text, and their values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from llama_index_contextual.index.analysis import MONTH_NAMES

_MONTH = rf"\b(?:{'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in MONTH_NAMES)})\b"
_MONTH_OF_DATE = re.compile(rf"(?<=\d ){_MONTH}|{_MONTH}(?=,? \d)")
_NUMBER = re.compile(r"\d{1,3}(?:([.,'’\u00a0\u202f ])\d{3})(?:\1\d{3})*(?:[.,]\d+)?(?!\d)|\d+(?:[.,]\d+)*")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"[\s-]*({'|'.join(_SCALES)})s?\b", re.IGNORECASE)
_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {
    **{word: value for value, word in enumerate(_ONES)},
    **{word: 10 * value for value, word in enumerate(_TENS, start=2)},
}
_SPELLED = re.compile(rf"\b(?:({'|'.join(_TENS)})[\s-])?({'|'.join(_WORDS)})\b", re.IGNORECASE)

_MAX_DIGITS = 100
"""Maximum number of characters in a number. Longer numbers are not checked: they may exceed the range of `Decimal`."""


def number_matches(text: str) -> list[tuple[re.Match[str], set[Decimal]]]:
    """Find the numbers written in digits and the months in dates.

    Return the matches in order of occurrence, each with its possible values.

    Example:
        >>> [match[0] for match, _ in number_matches("On March 3, 2021 it cost $1,250.50 or 4 %.")]
        ['March', '3', '2021', '1,250.50', '4']
    """
    figures = [(match, {_month(match[0])}) for match in _MONTH_OF_DATE.finditer(text)]
    figures += [
        (match, set(_number_values(match[0], text[match.end() : match.end() + 12])))
        for match in _NUMBER.finditer(text)
        if len(match[0]) <= _MAX_DIGITS
    ]
    return sorted(figures, key=lambda figure: figure[0].start())


def _month(name: str) -> Decimal:
    return next(Decimal(number) for number, month in enumerate(MONTH_NAMES, start=1) if month.startswith(name[:3]))


def _number_values(digits: str, after: str) -> Iterator[Decimal]:
    plain = re.sub(r"['’\u00a0\u202f ]", "", digits)
    separators = re.findall(r"[.,]", plain)
    readings = {re.sub(r"[.,]", "", plain)} if separators else {plain}
    if separators and (len(separators) == 1 or separators[-1] != separators[0]):
        whole, _, fraction = plain.rpartition(separators[-1])
        decimal = f"{re.sub('[.,]', '', whole)}.{fraction}"
        # A single separator before three digits may be a thousands separator or a decimal separator.
        readings = readings | {decimal} if len(separators) == 1 and len(fraction) == 3 else {decimal}
    for reading in readings:
        value = Decimal(reading).normalize()
        yield value
        if scale := _SCALE.match(after):
            yield _scale_value(value, scale)


def _scale_value(value: Decimal, scale: re.Match[str]) -> Decimal:
    return value.scaleb(_SCALES[scale[1].lower()]).normalize()


def numbers_in(text: str) -> set[Decimal]:
    """Return the values of all numbers and months in a passage, including numbers that are spelled out.

    Example:
        >>> sorted(map(int, numbers_in("Twenty-five days from 2 May 2020-21.")))
        [2, 5, 21, 25, 2020]
    """
    numbers = {value for _, values in number_matches(text) for value in values}
    numbers |= {_month(name) for name in re.findall(_MONTH, text)}
    # Include the numbers within dates and compounds, such as 21 in "2020-21".
    numbers |= {Decimal(digits).normalize() for digits in re.findall(r"\d+", text) if len(digits) <= _MAX_DIGITS}
    for match in _SPELLED.finditer(text):
        value = Decimal(_WORDS[match[2].lower()] + (_WORDS[match[1].lower()] if match[1] else 0))
        numbers.add(value)
        if scale := _SCALE.match(text, match.end()):
            numbers.add(_scale_value(value, scale))
    return numbers
