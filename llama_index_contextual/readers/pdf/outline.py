"""Headings of a PDF: positions of its bookmarks in the text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.pdf.engine import OutlineEntry

MAX_LINES = 3  # that one heading may take
MIN_RATIO = 0.6
MAX_COMPARED = 200  # lines of a page that are compared letter by letter
MAX_LETTERS = 200  # of a title


class PlacedLine(NamedTuple):
    """A line of the text of the document.

    Attributes:
        text: The line.
        start: Offset of its first character in the document.
        y: Baseline on its page, or NaN if unknown.
        end: Separator before the next line: a line feed, or a space within a paragraph.
        cells: Number of separate pieces on the line.
        x0: Start in points, along the line.
    """

    text: str
    start: int
    y: float
    end: str = "\n"
    cells: int = 1
    x0: float = 0.0


def headings(outline: Iterable[OutlineEntry], pages: Sequence[Sequence[PlacedLine]]) -> list[Heading]:
    """Return the bookmarks as headings, in the order of the text.

    On the page that the bookmark points to, a heading begins at the line with its title, or at the most similar line,
    or at the line below the position of the bookmark, or at the top of the page.
    """
    found = []
    for entry in outline:
        title = " ".join(entry.title.split())[:MAX_LETTERS]
        if title and 0 <= entry.page < len(pages) and pages[entry.page]:
            found.append(Heading(_find(title, entry.top, pages[entry.page]).start, entry.level, title))
    return sorted(found, key=lambda heading: heading.start)


def _find(title: str, top: float | None, lines: Sequence[PlacedLine]) -> PlacedLine:
    wanted = _letters(title)
    exact = [at for at in range(len(lines)) if wanted and _begins(wanted, lines[at : at + MAX_LINES])]
    if exact:
        return lines[min(exact, key=lambda at: _distance(top, lines[at]))]
    similar = max(lines[:MAX_COMPARED], key=partial(_similarity, SequenceMatcher(b=wanted)))
    if wanted and _similarity(SequenceMatcher(b=wanted), similar) >= MIN_RATIO:
        return similar
    below = [line for line in lines if top is not None and line.y <= top]
    return max(below, key=lambda line: line.y, default=lines[0])


def _similarity(matcher: SequenceMatcher[str], line: PlacedLine) -> float:
    matcher.set_seq1(_letters(line.text)[:MAX_LETTERS])
    return matcher.ratio() if matcher.real_quick_ratio() >= MIN_RATIO <= matcher.quick_ratio() else 0.0


def _begins(wanted: str, lines: Sequence[PlacedLine]) -> bool:
    """Return whether the title is the first line, several first lines joined, or the beginning of the first line."""
    joined = accumulate(_letters(line.text) for line in lines)
    return bool(_letters(lines[0].text)) and any(text.startswith(wanted) for text in joined)


def _distance(top: float | None, line: PlacedLine) -> float:
    """Return the distance of a line from the position of the bookmark, which is usually slightly above it."""
    if top is None or math.isnan(line.y):
        return 0.0
    return top - line.y if line.y <= top else 3 * (line.y - top)


def _letters(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())
