"""Paragraphs of a page: which lines belong together.

Lines of a paragraph are joined, because a line feed costs a token, a space does not, and line feeds split sentences.
Rows of tables and tables of contents, list items, headings and short lines remain separate lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from llama_index_contextual.readers.pdf.pieces import Line

STEP = 1.3  # of the usual distance of lines: more is another paragraph
SAME_SIZE = 0.1  # of the font size
MAX_SHIFT = 6.0  # of the font size: how far lines of one paragraph may begin apart
INDENT = 1.0  # of the font size: a line that is indented more begins a paragraph
MIN_CHARACTERS = 28  # of a line that can go on
NEAR_EDGE = 8.0  # of the font size
MIN_NEAR_EDGE = 1 / 3  # of the lines; with less it is a list, not running text

_ITEM = re.compile(r"(?:[•●▪■◦‣·–—*o-]|\(?(?:\d{1,3}|[A-Za-z]|[ivxlc]{1,5})[.)]|\d{1,3}(?:\.\d{1,3})+\.?|§+)(?=\s|$)")
_LEADER = re.compile(r"(?:[._…-]\s?){4}\s*\S{0,8}$")  # of a table of contents, or a blank to fill in
_LETTER = re.compile(r"[^\W_]")


def goes_on(lines: Sequence[Line]) -> list[bool]:
    """Return for each line whether its paragraph continues on the next line."""
    out = [False] * len(lines)
    for first, last in _blocks(lines):
        block = lines[first:last]
        edge = max(line.x1 for line in block)
        near = sum(edge - line.x1 <= NEAR_EDGE * line.size for line in block)
        if near >= MIN_NEAR_EDGE * len(block):
            for at, (line, following) in enumerate(pairwise(block), first):
                out[at] = _is_full(line, following, edge) and not _begins_paragraph(line, following)
    return out


def _blocks(lines: Sequence[Line]) -> Iterator[tuple[int, int]]:
    """Yield the start and the end (exclusive) of each stretch of evenly spaced lines."""
    steps = sorted(_step(a, b) for a, b in pairwise(lines) if _step(a, b) > 0.8)
    largest = STEP * steps[len(steps) // 4] if steps else 0.0
    first = 0
    for at in range(1, len(lines) + 1):
        if at == len(lines) or not _evenly_set(lines[at - 1], lines[at], largest):
            yield first, at
            first = at


def _step(line: Line, following: Line) -> float:
    """Return the distance to the next line in font sizes, or NaN if a position is unknown."""
    return (line.y - following.y) / (line.size or 1.0)


def _evenly_set(line: Line, following: Line, largest: float) -> bool:
    size = max(line.size, following.size)
    return (
        line.cells == following.cells == 1
        and abs(line.size - following.size) <= SAME_SIZE * size
        and abs(line.x0 - following.x0) <= MAX_SHIFT * size
        and 0 < _step(line, following) <= largest
    )


def _is_full(line: Line, following: Line, edge: float) -> bool:
    """Return whether the first word of the next line would not have fitted on this line."""
    word = len(following.text.split(maxsplit=1)[0]) + 1
    width = word * (following.x1 - following.x0) / len(following.text)
    return len(line.text) >= MIN_CHARACTERS and line.x1 + width > edge


def _begins_paragraph(line: Line, following: Line) -> bool:
    is_indented = following.x0 - line.x0 > INDENT * line.size and not _ITEM.match(line.text)
    is_end = line.text.endswith(":") or _LEADER.search(line.text) is not None
    is_rule = not _LETTER.search(following.text)
    return is_indented or is_end or is_rule or _ITEM.match(following.text) is not None
