"""Recognise running headers and footers.

A line is repeated if it is the outermost line on at least three pages, not counting repeated lines further out. Its
numbers must either stay the same or include the page number, which is the first or the last word of the line and
increases from page to page. Thus "Q2 2022 – Income by Segment" and "Q3 2022 – Income by Segment" stay in the text.

A repeated line is a running header or footer in three cases:

- It consists only of an increasing page number.
- It is in the margin, separated from the body by more than the usual line spacing.
- It is on most pages, these pages are not copies of each other, and the line is in the margin or near another running
  line.

A running line with a name or a number that is nowhere else in the document, such as the number of a contract, stays in
the text on its first page. Text in another direction, such as a watermark, stays only on the first of the pages that
repeat it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.pages import PageContent
from llama_index_contextual.readers.pdf.sections import roman_value

MIN_PAGES = 3
MIN_PAGES_ELSEWHERE = 5  # minimum number of occurrences of text that is on fewer than half of the pages
MOST = 0.66  # share of the pages: a line on more pages than this, not counting copies, need not be set off
MAX_STEP = 2  # maximum distance in pages between occurrences, because left and right pages may differ
MAX_LINES = 5  # maximum number of running lines at one edge of a page
MAX_SIZE = 1.6  # times the usual font size: a larger line is a heading
MARGIN = 0.12  # height of a margin, as a share of the height of the page
NARROW_MARGIN = 0.07  # height of a margin if the pages are copies of each other
SET_OFF = 1.25  # times the usual line spacing: a line with a wider gap is set off from the body
SET_OFF_SIZE = 2.5  # times the font size: a line with a wider gap is always set off
NEAR = 4.0  # times the font size: maximum distance between neighbouring running lines
MIN_YEAR, MAX_YEAR = 1900, 2100

_WORD = re.compile(r"\w+")
_CONTENTS = re.compile(r"(?i)\btable of contents\b")
_NAME = re.compile(
    r"\b[^\W\d_a-zß-ÿ][\w’'&.-]{0,40}(?: (?:(?:and|of|und|&|de|von) )?[^\W\d_a-zß-ÿ][\w’'&.-]{0,40}){1,20}"
)
_ADDRESS = re.compile(r"(?<!\S)(?:\S{1,60}@|www\.|https?://)\S{3,60}")
_DIGITS = re.compile(r"\d{1,9}")
_ROMAN = re.compile(r"(?i)([\W_]*)(c{0,3}(?:x[cl]|l?x{0,3})(?:i[xv]|v?i{0,3}))([\W_]*)")
_PAGE_NUMBER = re.compile(r"(?:# )?(?:(?:page|pg|p|seite|página|pagina) )?#(?: (?:of|von|de|di|sur) #)?(?: page)?")
_WORD_OR_NUMBER = re.compile(r"#|[^\W_]+")
_REPEATED_NUMBER = re.compile(r"#(?: #)+")
_NUMBERED_WORD = re.compile(r"[\W_]*[^\W\d_]+[\W_]*#[\W_]*")  # "Chapter 1"


class Running(NamedTuple):
    """Running headers and footers of a document.

    Attributes:
        pages: The lines of each page without running headers or footers.
        header: The distinct lines of the running headers as one string, without bare page numbers.
        footer: The distinct lines of the running footers as one string, without bare page numbers.
        labels: The printed page number of each page, or "".
    """

    pages: list[list[Line]]
    header: str
    footer: str
    labels: list[str]


class _MarginLine(NamedTuple):
    page: int
    line: Line
    numbers: tuple[int, ...]
    printed: tuple[str, ...]
    margin: float  # distance from the edge of the page, as a share of its height
    is_set_off: bool  # whether the line is set off from the next line further in
    is_near: bool  # whether the line is near the next line further out


class _Chain(NamedTuple):
    key: str
    members: list[_MarginLine]
    counter: int | None  # index of the number that counts the pages

    @property
    def is_page_number(self) -> bool:
        return self.counter is not None and _is_page_number(self.key)


def strip_running(pages: Sequence[PageContent]) -> Running:
    """Remove the running headers and footers from the pages."""
    labels = [""] * len(pages)
    footer, below = _chain_texts(_running_lines(pages, foot=True), labels)
    header, above = _chain_texts(_running_lines(pages, foot=False), labels)
    running = (below | above) - _first_with_facts(pages, below | above)
    running |= _watermarks(pages)
    left = [[line for line in page.lines if (at, id(line)) not in running] for at, page in enumerate(pages)]
    return Running(left, " | ".join(header), " | ".join(reversed(footer)), labels)


def _first_with_facts(pages: Sequence[PageContent], running: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the running lines to keep: the first line with each name or number that is not in the rest of the text.

    The result contains pairs of a page index and an `id()`, like `running`.
    """
    if not running:
        return set()
    known: set[str] = set()
    for at, page in enumerate(pages):
        for line in page.lines:
            if (at, id(line)) not in running:
                known.update(_WORD.findall(line.text.casefold()))
    copies = Counter(line.text for at, page in enumerate(pages) for line in page.lines if (at, id(line)) in running)
    kept: set[tuple[int, int]] = set()
    shapes: set[str] = set()
    for at, page in enumerate(pages):
        for line in page.lines:
            if (at, id(line)) not in running or _is_page_number(key := _shape(line.text)[0]) or key in shapes:
                continue
            shapes.add(key)
            if any(word.casefold() not in known for word in _facts(line.text, is_same=copies[line.text] > 1)):
                kept.add((at, id(line)))
                known.update(_WORD.findall(line.text.casefold()))
    return kept


def _facts(text: str, *, is_same: bool) -> list[str]:
    """Return the words of names and the numbers in a running line.

    A name is an address, or has at least two words with capitals. A number at either end is omitted if it may be a page
    number, because other pages do not have the same line, or if it is a year.
    """
    if _CONTENTS.search(text):
        return []
    words = _WORD.findall(text)
    first = 1 if words[:1] and _may_count_pages(words[0], is_same=is_same) else 0
    last = len(words) - (1 if words[-1:] and _may_count_pages(words[-1], is_same=is_same) else 0)
    facts = [word for word in words[first:last] if len(word) > 1 and any(map(str.isdigit, word))]
    names = _NAME.findall(text) + _ADDRESS.findall(text)
    return facts + [word for name in names for word in _WORD.findall(name) if len(word) > 1]


def _may_count_pages(word: str, *, is_same: bool) -> bool:
    """Return whether a word at an end of a running line may be a page number or is a year."""
    return word.isdigit() and (not is_same or (len(word) == 4 and MIN_YEAR <= int(word) <= MAX_YEAR))


def _watermarks(pages: Sequence[PageContent]) -> set[tuple[int, int]]:
    """Return the lines in another direction that repeat a line of an earlier page, if most pages have the line."""
    lines: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for at, page in enumerate(pages):
        for line in page.lines:
            if not line.upright:
                lines[line.text].append((at, id(line)))
    groups = (group for group in lines.values() if len({at for at, _line in group}) >= max(MIN_PAGES, len(pages) / 2))
    return {place for group in groups for place in group[1:]}


def _chain_texts(chains: Sequence[_Chain], labels: list[str]) -> tuple[list[str], set[tuple[int, int]]]:
    """Return the distinct texts of running lines, and the lines to remove as pairs of a page index and an `id()`.

    The page numbers that the lines contain are written to `labels`.
    """
    texts: dict[str, str] = {}
    lines: set[tuple[int, int]] = set()
    for key, members, counter in chains:
        copies = members
        if counter is None and members[0].line.cells > 1 and key not in texts:
            copies = members[1:]  # the line may be column headers: keep it on the first page
        if not _is_page_number(key):
            texts.setdefault(key, members[0].line.text)
        lines.update((member.page, id(member.line)) for member in copies)
        for member in members:
            if counter is not None:
                labels[member.page] = labels[member.page] or member.printed[counter]
    return list(texts.values()), lines


def _running_lines(pages: Sequence[PageContent], *, foot: bool) -> list[_Chain]:
    """Return the running lines at the top of the pages, or at the bottom if `foot`, beginning at the outer edge."""
    inward = [_inward(page.lines, foot=foot) for page in pages]
    steps = sorted(abs(a.y - b.y) for lines in inward for a, b in pairwise(lines) if abs(a.y - b.y) > 0.5 * a.size)
    step = steps[len(steps) // 4] if steps else 0.0  # a low quantile, because short pages have many wide gaps
    largest = MAX_SIZE * median([line.size for lines in inward for line in lines] or [0.0])
    shapes = [hash(tuple(_shape(line.text)[0] for line in page.lines)) for page in pages]
    levels: list[list[_Chain]] = []
    reached = [True] * len(pages)
    for level in range(MAX_LINES):
        groups: dict[str, list[_MarginLine]] = defaultdict(list)
        for at, lines in enumerate(inward):
            if reached[at] and len(lines) > level + 1 and lines[level].size <= largest:
                line, (bottom, top) = lines[level], pages[at].span
                key, numbers, printed = _shape(line.text)
                margin = (line.y - bottom if foot else top - line.y) / ((top - bottom) or 1.0)
                gap = abs(line.y - lines[level + 1].y)
                is_set_off = gap > SET_OFF * step or gap > SET_OFF_SIZE * line.size
                is_near = level > 0 and abs(line.y - lines[level - 1].y) <= NEAR * line.size
                groups[key].append(_MarginLine(at, line, numbers, printed, margin, is_set_off, is_near))
        levels.append([chain for key, group in groups.items() for chain in _repeated(key, group, len(pages))])
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
    """Return the chains that are running headers or footers, beginning at the outer edge of the pages."""
    different = {id(chain): len({shapes[m.page] for m in chain.members}) for level in levels for chain in level}
    accepted: set[int] = set()
    further_out: set[int] = set()  # pages with a running line one level further out
    for level in levels:
        for chain in level:
            is_everywhere = different[id(chain)] >= max(MIN_PAGES_ELSEWHERE, MOST * len(shapes))
            placed = sum(m.margin <= MARGIN or (m.is_near and m.page in further_out) for m in chain.members)
            if chain.is_page_number or (is_everywhere and 2 * placed >= len(chain.members)):
                accepted.add(id(chain))
        further_out = {m.page for chain in level if id(chain) in accepted for m in chain.members}
    further_in: set[int] = set()
    for level in reversed(levels):
        for chain in level:
            margin = MARGIN if different[id(chain)] >= MIN_PAGES else NARROW_MARGIN
            placed = sum(m.margin <= margin and (m.is_set_off or m.page in further_in) for m in chain.members)
            if 2 * placed >= len(chain.members):
                accepted.add(id(chain))
        further_in |= {m.page for chain in level if id(chain) in accepted for m in chain.members}
    return [chain for level in levels for chain in level if id(chain) in accepted]


def _shape(text: str) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Replace numbers, or a lone Roman numeral, with "#". Return the result, the numbers and their printed forms."""
    roman = _ROMAN.fullmatch(text)
    if roman and roman[2]:
        return f"{roman[1]}#{roman[3]}", (roman_value(roman[2].upper()),), (roman[2],)
    printed = _DIGITS.findall(text)
    return _DIGITS.sub("#", text).casefold(), tuple(map(int, printed)), tuple(printed)


def _repeated(key: str, group: Sequence[_MarginLine], page_count: int) -> list[_Chain]:
    """Group lines of the same shape into chains whose numbers stay the same or increase with the page number.

    The result is empty if none of the chains is a repeated line.
    """
    runs: list[list[_MarginLine]] = []
    for candidate in group:
        if runs and _continues(runs[-1], candidate):
            runs[-1].append(candidate)
        else:
            runs.append([candidate])
    chains = [_Chain(key, run, _counter(run)) for run in runs if len(run) > 1]
    return chains if any(_is_repeated(chain, page_count) for chain in chains) else []


def _is_page_number(key: str) -> bool:
    """Return whether the text of a line, with "#" for each number, is only a page number, such as "Page # of #"."""
    words = _REPEATED_NUMBER.sub("#", " ".join(_WORD_OR_NUMBER.findall(key)))
    return _PAGE_NUMBER.fullmatch(words) is not None


def _continues(run: Sequence[_MarginLine], other: _MarginLine) -> bool:
    """Return whether a line repeats the last line of `run` or has the next page number."""
    last = run[-1]
    step = other.page - last.page
    if any(b - a not in (0, step) for a, b in zip(last.numbers, other.numbers, strict=True)):
        return False
    if _is_page_number(_shape(last.line.text)[0]):
        return True
    is_same = last.numbers == other.numbers
    if len(run) > 1 and is_same != (run[-2].numbers == last.numbers):
        return False
    return is_same or _counts_pages(last, other)


def _counts_pages(one: _MarginLine, other: _MarginLine) -> bool:
    """Return whether a number that differs between two lines may be a page number.

    A page number is at an end of the line and is not a year.
    """
    return any(
        a != b and not MIN_YEAR <= a <= b <= MAX_YEAR and _is_at_edge(other.line.text, position)
        for position, (a, b) in enumerate(zip(one.numbers, other.numbers, strict=True))
    )


def _is_at_edge(text: str, position: int) -> bool:
    """Return whether a number is the first or the last word of the text, or is a lone Roman numeral."""
    words, numbers = _WORD.findall(text), _DIGITS.findall(text)
    is_first = position == 0 and numbers and words[0] == numbers[0]
    return not numbers or is_first or (position == len(numbers) - 1 and words[-1] == numbers[-1])


def _counter(run: Sequence[_MarginLine]) -> int | None:
    first, last = run[0].numbers, run[-1].numbers
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=True)) if a != b), None)


def _is_repeated(chain: _Chain, page_count: int) -> bool:
    near = 1 + sum(b.page - a.page <= MAX_STEP for a, b in pairwise(chain.members))
    if chain.counter is not None:
        return near >= MIN_PAGES and (_is_page_number(chain.key) or not _NUMBERED_WORD.fullmatch(chain.key))
    return len(chain.members) >= MIN_PAGES and (2 * len(chain.members) >= page_count or near >= MIN_PAGES_ELSEWHERE)
