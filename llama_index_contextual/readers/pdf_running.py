"""Recognises what is repeated at the head and foot of the pages. Pure.

Repeated is a line that stands outermost on at least three pages, after those that stand further out and are repeated
too; its numbers stay the same or count with the pages. A repeated line is running when it is nothing but a page number
that counts, or when it stands in the margin, set off from the body by more than the usual distance of lines.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from llama_index_contextual.readers.pdf_layout import Line

MIN_PAGES = 3
MIN_PAGES_ELSEWHERE = 5  # of a text that stands on less than half of the pages
MAX_STEP = 2  # left and right pages may differ
MAX_LINES = 5  # at one edge of a page
MAX_SIZE = 1.6  # of the usual font size: more is a heading
MARGIN = 0.12  # of the height of a page
NARROW_MARGIN = 0.075  # where the pages are copies of each other
SET_OFF = 1.25  # of the usual distance of lines

_DIGITS = re.compile(r"\d{1,9}")
_ROMAN = re.compile(r"(?i)([\W_]*)(c{0,3}(?:x[cl]|l?x{0,3})(?:i[xv]|v?i{0,3}))([\W_]*)")
_ROMAN_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_PAGE_NUMBER = re.compile(
    r"[\W_]*(?:(?:page|pg|p|seite|página|pagina)\b)?[\W_]*#(?:[\W_]*(?:of|von|de|di|sur)?[\W_]*#)?[\W_]*(?:page)?"
)


class Page(NamedTuple):
    """A page to look at.

    Attributes:
        lines: In reading order.
        span: The heights of its lower and upper edge, in the measure of `Line.y`.
    """

    lines: Sequence[Line]
    span: tuple[float, float]


class Running(NamedTuple):
    """What was found.

    Attributes:
        pages: The lines of each page without the running ones.
        header: The distinct running lines at the head, joined; bare page numbers are not among them.
        footer: The same of the foot.
        labels: The page number printed on each page, "" where none was found.
    """

    pages: list[list[Line]]
    header: str
    footer: str
    labels: list[str]


class _Candidate(NamedTuple):
    page: int
    line: Line
    numbers: tuple[int, ...]
    printed: tuple[str, ...]


def strip_running(pages: Iterable[Sequence[Line]]) -> Running:
    """Take the running headers and footers off the pages."""
    left = [list(page) for page in pages]
    labels = [""] * len(left)
    shapes = [hash(tuple(_shape(line.text)[0] for line in page)) for page in left]
    footer = _strip_edge(left, shapes, labels, foot=True)
    header = _strip_edge(left, shapes, labels, foot=False)
    return Running(left, header, footer, labels)


def _strip_edge(pages: list[list[Line]], shapes: list[int], labels: list[str], *, foot: bool) -> str:
    largest = MAX_SIZE * median([line.size for page in pages for line in page] or [0.0])
    found: dict[str, str] = {}
    for _ in range(MAX_LINES):
        groups: dict[str, list[_Candidate]] = defaultdict(list)
        for index, page in enumerate(pages):
            line = _outermost(page, foot=foot)
            if line is not None and line.size <= largest:
                key, numbers, printed = _shape(line.text)
                groups[key].append(_Candidate(index, line, numbers, printed))
        chains = [(key, chain) for key, group in groups.items() for chain in _running(key, group, shapes)]
        for key, chain in chains:
            counter = _counter(chain)
            if counter is None and chain[0].line.cells > 1 and key not in found:
                found[key] = chain[0].line.text
                chain = chain[1:]  # these may be the column heads of a table: the first copy stays
            if not _PAGE_NUMBER.fullmatch(key):
                found.setdefault(key, chain[0].line.text)
            for index, line, _numbers, printed in chain:
                pages[index] = [other for other in pages[index] if other is not line]
                if counter is not None:
                    labels[index] = labels[index] or printed[counter]
        if not chains:
            break
    return " | ".join(reversed(found.values()) if foot else found.values())


def _outermost(page: Sequence[Line], *, foot: bool) -> Line | None:
    return min(page, key=lambda line: line.y if foot else -line.y, default=None)


def _shape(text: str) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Return the text with "#" for each number, the numbers, and how they are printed; a lone Roman one counts too."""
    roman = _ROMAN.fullmatch(text)
    if roman and roman[2]:
        return f"{roman[1]}#{roman[3]}", (_roman_value(roman[2].lower()),), (roman[2],)
    printed = _DIGITS.findall(text)
    return _DIGITS.sub("#", text).casefold(), tuple(map(int, printed)), tuple(printed)


def _roman_value(digits: str) -> int:
    values = [_ROMAN_VALUES[digit] for digit in digits]
    return sum(-a if a < b else a for a, b in pairwise([*values, 0]))


def _running(key: str, group: list[_Candidate], shapes: list[int]) -> list[list[_Candidate]]:
    """Return the lines of one shape that are running, those that count on from each other together."""
    chains: list[list[_Candidate]] = []
    for candidate in group:
        if chains and _continues(chains[-1][-1], candidate):
            chains[-1].append(candidate)
        else:
            chains.append([candidate])
    if not any(_is_running(key, chain, shapes) for chain in chains):
        return []
    return [chain for chain in chains if len(chain) > 1]


def _continues(one: _Candidate, other: _Candidate) -> bool:
    step = other.page - one.page
    return all(b - a in (0, step) for a, b in zip(one.numbers, other.numbers, strict=True))


def _counter(chain: Sequence[_Candidate]) -> int | None:
    """Return which of the numbers counts the pages, or None."""
    first, last = chain[0].numbers, chain[-1].numbers
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=True)) if a != b), None)


def _is_running(key: str, chain: list[_Candidate], shapes: list[int]) -> bool:
    if len({shapes[candidate.page] for candidate in chain}) < MIN_PAGES:
        return False  # copies of one page
    if 2 * len(chain) >= len(shapes) and _counter(chain) is None:
        return True
    near = 1 + sum(b.page - a.page <= MAX_STEP for a, b in pairwise(chain))
    if _counter(chain) is None:
        same_place = max(c.line.y for c in chain) - min(c.line.y for c in chain) < chain[0].line.size
        return near >= MIN_PAGES_ELSEWHERE and same_place
    is_heading = _NUMBERED_WORD.fullmatch(key) and not _PAGE_NUMBER.fullmatch(key)  # "Chapter 1", "Chapter 2"
    return near >= MIN_PAGES and not is_heading
