"""Headings of a PDF from its bookmarks: their positions in the text."""

from __future__ import annotations

import math
import re
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

_PAGE_MARK = re.compile(r"(?i)(?:(?:page|p|slide|folie|seite|página|sheet)\W*)?[\divxlc]{1,6}(?:\s+of\s+\d+)?")
_FILE_MARK = re.compile(r"(?i)\S.*\.(?:pdf|docx?|xlsx?|pptx?|html?|txt|rtf|indd)|\d{10}-\d\d-\d{6}.*")


class PlacedLine(NamedTuple):
    """A line of the text of the document.

    Attributes:
        text: The line.
        start: Offset of its first character in the document.
        y: Baseline on its page, or NaN if unknown.
        end: Separator before the next line: a line feed, or a space within a paragraph.
        cells: Number of separate pieces on the line.
        x0: Start in points, along the line.
        x1: End in points.
        size: Height of the font.
        bold: Whether most of it is in bold.
    """

    text: str
    start: int
    y: float
    end: str = "\n"
    cells: int = 1
    x0: float = 0.0
    x1: float = 0.0
    size: float = 0.0
    bold: bool = False


def bookmarks(outline: Iterable[OutlineEntry], pages: Sequence[Sequence[PlacedLine]]) -> list[Heading]:
    """Return the bookmarks as headings, in the order of the text, or none if they name pages or files.

    On the page that the bookmark points to, a heading begins at the line with its title, or at the most similar line,
    or at the line below the position of the bookmark, or at the top of the page.
    """
    entries = []
    for entry in outline:
        title = " ".join(entry.title.split())[:MAX_LETTERS]
        if title and 0 <= entry.page < len(pages) and pages[entry.page]:
            entries.append(entry._replace(title=title))
    useless = sum(bool(_PAGE_MARK.fullmatch(entry.title) or _FILE_MARK.fullmatch(entry.title)) for entry in entries)
    if 2 * useless > len(entries):
        return []
    found = [
        Heading(_find(entry.title, entry.top, pages[entry.page]).start, entry.level, entry.title) for entry in entries
    ]
    return sorted(found, key=lambda heading: heading.start)


def _find(title: str, top: float | None, lines: Sequence[PlacedLine]) -> PlacedLine:
    wanted = letters(title)
    exact = [at for at in range(len(lines)) if wanted and _begins(wanted, lines[at : at + MAX_LINES])]
    if exact:
        return lines[min(exact, key=lambda at: _distance(top, lines[at].y))]
    similar = max(lines[:MAX_COMPARED], key=partial(_similarity, SequenceMatcher(b=wanted)))
    if wanted and _similarity(SequenceMatcher(b=wanted), similar) >= MIN_RATIO:
        return similar
    below = [line for line in lines if top is not None and line.y <= top]
    return max(below, key=lambda line: line.y, default=lines[0])


def _similarity(matcher: SequenceMatcher[str], line: PlacedLine) -> float:
    matcher.set_seq1(letters(line.text)[:MAX_LETTERS])
    return matcher.ratio() if matcher.real_quick_ratio() >= MIN_RATIO <= matcher.quick_ratio() else 0.0


def _begins(wanted: str, lines: Sequence[PlacedLine]) -> bool:
    """Return whether the title is the first line, several first lines joined, or the beginning of the first line."""
    joined = accumulate(letters(line.text) for line in lines)
    return bool(letters(lines[0].text)) and any(text.startswith(wanted) for text in joined)


def _distance(top: float | None, y: float) -> float:
    """Return the distance of a line from the position of the bookmark, which is usually slightly above it."""
    if top is None or math.isnan(y):
        return 0.0
    return top - y if y <= top else 3 * (y - top)


def letters(text: str) -> str:
    """Return the letters and digits of a text in lower case, for comparisons."""
    return "".join(char for char in text.casefold() if char.isalnum())
