"""Recognises what is repeated at the head and foot of the pages. Pure.

Repeated is a line that stands outermost on at least three pages, after those that stand further out and are repeated
too; its numbers stay the same or count with the pages. A repeated line is running when it is nothing but a page number
that counts, or when it stands in the margin, set off from the body by more than the usual distance of lines.
"""

from __future__ import annotations

import math
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
    margin: float  # from the edge of the page, as a share of its height
    is_set_off: bool


class _Chain(NamedTuple):
    key: str
    members: list[_Candidate]
    counter: int | None  # which of the numbers counts the pages


def strip_running(pages: Sequence[Page]) -> Running:
    """Take the running headers and footers off the pages."""
    labels = [""] * len(pages)
    footer, below = _texts(_find(pages, foot=True), labels)
    header, above = _texts(_find(pages, foot=False), labels)
    running = below | above
    left = [[line for line in page.lines if (at, id(line)) not in running] for at, page in enumerate(pages)]
    return Running(left, " | ".join(header), " | ".join(reversed(footer)), labels)


def _texts(chains: Sequence[_Chain], labels: list[str]) -> tuple[list[str], set[tuple[int, int]]]:
    """Return the texts of the chains and the lines to leave out, and note the page numbers in `labels`."""
    texts: dict[str, str] = {}
    lines: set[tuple[int, int]] = set()
    for key, members, counter in chains:
        copies = members
        if counter is None and members[0].line.cells > 1 and key not in texts:
            copies = members[1:]  # these may be the column heads of a table: the first one stays
        if not _PAGE_NUMBER.fullmatch(key):
            texts.setdefault(key, members[0].line.text)
        lines.update((member.page, id(member.line)) for member in copies)
        for member in members:
            if counter is not None:
                labels[member.page] = labels[member.page] or member.printed[counter]
    return list(texts.values()), lines


def _find(pages: Sequence[Page], *, foot: bool) -> list[_Chain]:
    """Return the running lines at one edge, the outer ones first."""
    inward = [_inward(page.lines, foot=foot) for page in pages]
    steps = [abs(a.y - b.y) for lines in inward for a, b in pairwise(lines) if abs(a.y - b.y) > 0.5 * a.size]
    set_off = SET_OFF * median(steps or [math.inf])
    largest = MAX_SIZE * median([line.size for lines in inward for line in lines] or [0.0])
    shapes = [hash(tuple(_shape(line.text)[0] for line in page.lines)) for page in pages]
    levels: list[list[_Chain]] = []
    reached = [True] * len(pages)
    for level in range(MAX_LINES):
        groups: dict[str, list[_Candidate]] = defaultdict(list)
        for at, lines in enumerate(inward):
            if reached[at] and len(lines) > level + 1 and lines[level].size <= largest:
                line, (bottom, top) = lines[level], pages[at].span
                margin = (line.y - bottom if foot else top - line.y) / ((top - bottom) or 1.0)
                key, numbers, printed = _shape(line.text)
                apart = abs(line.y - lines[level + 1].y) > set_off
                groups[key].append(_Candidate(at, line, numbers, printed, margin, apart))
        levels.append([chain for key, group in groups.items() for chain in _repeated(key, group, shapes)])
        reached = [False] * len(pages)
        for chain in levels[-1]:
            for member in chain.members:
                reached[member.page] = True
    return _accept(levels, shapes)


def _inward(lines: Sequence[Line], *, foot: bool) -> list[Line]:
    placed = [line for line in lines if not math.isnan(line.y)]
    if not placed:
        return list(reversed(lines) if foot else lines)
    return sorted(placed, key=lambda line: line.y if foot else -line.y)


def _accept(levels: Sequence[Sequence[_Chain]], shapes: Sequence[int]) -> list[_Chain]:
    """Return the chains of page numbers, and those that stand with all that is further out apart from the body."""
    accepted: list[_Chain] = []
    apart: set[int] = set()  # pages with a running line further in
    for chain in (chain for level in reversed(levels) for chain in level):
        copies = len({shapes[member.page] for member in chain.members}) < MIN_PAGES
        margin = NARROW_MARGIN if copies else MARGIN
        fitting = sum(m.margin <= margin and (m.is_set_off or m.page in apart) for m in chain.members)
        if (chain.counter is not None and _PAGE_NUMBER.fullmatch(chain.key)) or 2 * fitting >= len(chain.members):
            accepted.append(chain)
            apart.update(member.page for member in chain.members)
    return accepted[::-1]


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


def _repeated(key: str, group: Sequence[_Candidate], shapes: Sequence[int]) -> list[_Chain]:
    """Return the lines of one shape that are repeated, those that count on from each other together."""
    runs: list[list[_Candidate]] = []
    for candidate in group:
        if runs and _continues(runs[-1][-1], candidate):
            runs[-1].append(candidate)
        else:
            runs.append([candidate])
    chains = [_Chain(key, run, _counter(run)) for run in runs if len(run) > 1]
    return chains if any(_is_repeated(chain, len(shapes)) for chain in chains) else []


def _continues(one: _Candidate, other: _Candidate) -> bool:
    step = other.page - one.page
    return all(b - a in (0, step) for a, b in zip(one.numbers, other.numbers, strict=True))


def _counter(run: Sequence[_Candidate]) -> int | None:
    first, last = run[0].numbers, run[-1].numbers
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=True)) if a != b), None)


def _is_repeated(chain: _Chain, page_count: int) -> bool:
    near = 1 + sum(b.page - a.page <= MAX_STEP for a, b in pairwise(chain.members))
    if chain.counter is not None:
        return near >= MIN_PAGES
    return len(chain.members) >= MIN_PAGES and (2 * len(chain.members) >= page_count or near >= MIN_PAGES_ELSEWHERE)
