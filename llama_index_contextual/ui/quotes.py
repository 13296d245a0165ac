"""Quotations of search results: a sentence, or a table row under its column headers, and the text around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from markupsafe import Markup

from llama_index_contextual.search.response import visible
from llama_index_contextual.ui.marks import Span

LONGEST = 420
"""Maximum number of characters of a quotation."""

LONGEST_FIGURE = 14
"""Number of characters above which a table cell is shown as text."""

BEFORE, AFTER = 160, 320
"""Number of characters of a sketch before and after the quotation."""

ROWS_AROUND = 2
"""Number of rows of a sketch before and after a table row."""

_COLUMNS = re.compile(r"\t| {2,}")
_PIPES = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"[\s|:-]+")
_SIGNS = re.compile(r"^(?:#{1,6}|[-*+]|\d+[.)]|>)\s+|\*\*|__|`", re.MULTILINE)

MarkWords = Callable[[str], Markup]


Rows = Sequence[Sequence[Markup]]


@dataclass(frozen=True)
class Grid:
    """A quoted table row, or several rows.

    Attributes:
        head: The column headers.
        before: The rows before the quoted ones.
        rows: The quoted rows.
        after: The rows after them.
    """

    head: Sequence[Markup]
    before: Rows
    rows: Rows
    after: Rows

    @property
    def has_texts(self) -> bool:
        """Whether cells after the first column contain texts rather than figures."""
        return any(len(cell.striptags()) > LONGEST_FIGURE for cells in self.rows for cell in cells[1:])


@dataclass(frozen=True)
class Quote:
    """A quotation.

    Attributes:
        text: The quotation as plain text.
        html: The quotation with the words of the question marked.
        grid: The quoted row with its column headers, or None if the quotation is not a table row.
        before: The text before the quotation.
        after: The text after the quotation.
    """

    text: str
    html: Markup
    grid: Grid | None = None
    before: str = ""
    after: str = ""


def quote_of(text: str, span: Span, mark_words: MarkWords, *, table_head: str = "", is_markdown: bool = False) -> Quote:
    """Return the quotation of a sentence or row.

    Args:
        text: The passage.
        span: Start and end of the sentence or row in the passage.
        mark_words: Function that returns text as HTML with the words of the question marked.
        table_head: The column headers of the table that the passage continues, or "".
        is_markdown: Whether the signs of Markdown are left out.
    """
    start, end = span

    def shown(part: str) -> str:
        return visible(_SIGNS.sub("", part) if is_markdown else part)

    quoted = shown(text[start:end])
    cut = quoted if len(quoted) <= LONGEST else f"{quoted[:LONGEST].rpartition(' ')[0] or quoted[:LONGEST]}\u00a0…"
    if (grid := _grid(text, start, end, table_head, mark_words)) is not None:
        return Quote("; ".join(_labelled(grid)), mark_words(cut), grid)
    before = text[max(0, start - BEFORE) : start]
    before, after = shown(before.partition(" ")[2] if start > BEFORE else before), shown(text[end : end + AFTER])
    return Quote(quoted, mark_words(cut), before=before, after=after)


def cells_of(line: str) -> list[str]:
    r"""Return the cells of a line of a table, whose cells are separated by "|" or by several spaces.

    Example:
        >>> cells_of("| Leakage | 15.6 % |"), cells_of("Leakage  15.6  16.9"), cells_of("No table.")
        (['Leakage', '15.6 %'], ['Leakage', '15.6', '16.9'], [])
    """
    line = line.strip()
    if line.startswith("|"):
        return [visible(cell.replace("\\|", "|")) for cell in _PIPES.split(line.removesuffix("|"))[1:]]
    cells = [visible(cell) for cell in _COLUMNS.split(line)]
    return cells if len(cells) > 1 else []


def _rows(lines: Iterable[str]) -> list[list[str]]:
    """Return the cells of the lines up to the first one that is not part of a table, without rules such as "|---|"."""
    rows = takewhile(bool, map(cells_of, lines))
    return [cells for cells in rows if not _RULE.fullmatch("|".join(cells))]


def _grid(text: str, start: int, end: int, table_head: str, mark_words: MarkWords) -> Grid | None:
    """Return the row at a span with its column headers and the rows around it, or None if it is not a table row."""
    first, last = text.rfind("\n", 0, start) + 1, (text.find("\n", end) + 1 or len(text) + 1) - 1
    lines_above, quoted = text[:first].splitlines(), text[first:last].strip().splitlines()
    above, rows, below = _rows(reversed(lines_above))[::-1], _rows(quoted), _rows(text[last + 1 :].splitlines())
    if table_head and len(above) == len(lines_above):  # the passage begins inside the table
        above = [*_rows(reversed(table_head.splitlines()))[:1], *above]
    head, *table = [*above, *rows] or [[]]
    rows = table[len(table) - len(rows) :]
    if not rows or len(_rows(quoted)) < len(quoted) or any(len(cells) != len(head) for cells in rows):
        return None
    before = table[: len(table) - len(rows)][-ROWS_AROUND:]
    marked = [[[mark_words(cell) for cell in cells] for cells in part] for part in (before, rows, below[:ROWS_AROUND])]
    return Grid([mark_words(cell) for cell in head], *marked)


def _labelled(grid: Grid) -> list[str]:
    """Return the cells of each quoted row with their column headers, for copying."""
    heads = [head.striptags() for head in grid.head]
    lines = []
    for cells in grid.rows:
        first, *rest = (cell.striptags() for cell in cells)
        pairs = ", ".join(f"{head}: {cell}" if head else cell for head, cell in zip(heads[1:], rest, strict=True))
        lines.append(f"{first} ({pairs})")
    return lines
