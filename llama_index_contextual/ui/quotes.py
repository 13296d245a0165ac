"""Quotations of passages: a sentence, or a table row under its column headers, and the text around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from markupsafe import Markup, escape

from llama_index_contextual.index.cutting import spans_of
from llama_index_contextual.search.response import visible
from llama_index_contextual.ui.marks import Span
from llama_index_contextual.ui.places import icon_of

LONGEST = 420
"""Maximum number of characters of a quotation."""

LONGEST_FIGURE = 14
"""Number of characters above which a table cell is shown as text."""

BEFORE, AFTER = 160, 320
"""Number of characters of a sketch before and after the quotation."""

ROWS_AROUND = 2
"""Number of rows of a sketch before and after a table row."""

MOST_ROWS = 6
"""Number of rows above which a quotation is not shown as a table."""

_COLUMNS = re.compile(r"\t| {2,}")
_PIPES = re.compile(r"(?<!\\)\|")
_FIGURE = re.compile(r"[-–(]?\d(?:[\d.,]*\d)?\)?%?")
_LABEL_END = re.compile(r".\w\W?$")
_YEARS = re.compile(r"(?:(?:19|20)\d\d ?)+")
_RULE = re.compile(r"[\s|:-]+")
_LINE_SIGNS = re.compile(r"^(?:(?:#{1,6}|[-*+]|\d+[.)])\s+|(?:> ?)+)", re.MULTILINE)
_INLINE_SIGNS = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\s]*\)|\*\*|__|`|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)")

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


def quote_of(
    text: str, span: Span, mark_words: MarkWords, *, table_head: str = "", file_name: str | None = None
) -> Quote:
    """Return the quotation of a sentence or row.

    Args:
        text: The passage.
        span: Start and end of the sentence or row in the passage.
        mark_words: Function that returns text as HTML with the words of the question marked.
        table_head: The column headers of the table that the passage continues, or "".
        file_name: Name of the file, whose type determines which Markdown markup is removed.
    """
    (start, end), to_plain = span, partial(plain, file_name=file_name)
    quotation = to_plain(text[start:end])
    opening = (
        quotation
        if len(quotation) <= LONGEST
        else f"{quotation[:LONGEST].rpartition(' ')[0] or quotation[:LONGEST]}\u00a0…"
    )
    if (grid := _grid(text, start, end, table_head, lambda cell: mark_words(to_plain(cell)))) is not None:
        return Quote("; ".join(_labelled(grid)), mark_words(opening), grid)
    before = text[max(0, start - BEFORE) : start]
    before, after = to_plain(before.partition(" ")[2] if start > BEFORE else before), to_plain(text[end : end + AFTER])
    return Quote(quotation, mark_words(opening), before=before, after=after)


def quote_around(
    text: str,
    span: Span,
    mark_words: MarkWords | None = None,
    *,
    table_head: str = "",
    file_name: str | None = None,
) -> Quote:
    """Return the quotation of the sentences or rows that contain the words at a span.

    Args:
        text: The passage.
        span: Start and end of the words in the passage.
        mark_words: As for `quote_of`; None marks the words at the span.
        table_head: As for `quote_of`.
        file_name: As for `quote_of`.
    """
    words = plain(text[slice(*span)], file_name)

    def mark_span(part: str) -> Markup:
        before, match, after = part.partition(words) if words else (part, "", "")
        return Markup("{}<mark>{}</mark>{}").format(before, match, after) if match else escape(part)

    around = [unit for unit in spans_of(text) if unit[0] < span[1] and span[0] < unit[1]] or [span]
    whole = around[0][0], around[-1][1]
    return quote_of(text, whole, mark_words or mark_span, table_head=table_head, file_name=file_name)


def plain(text: str, file_name: str | None) -> str:
    """Return text on one line, without the Markdown markup that its file type contains."""
    icon = icon_of(file_name)
    if icon not in ("pdf", "image", "text"):  # other formats are converted to text with Markdown headings
        text = _LINE_SIGNS.sub("", text)
    return visible(_INLINE_SIGNS.sub(lambda sign: sign[1] or "", text) if icon == "markdown" else text)


def cells_of(line: str) -> list[str]:
    r"""Return the cells of a line of a table, which are separated by "|" or several spaces, or are several figures.

    Example:
        >>> cells_of("| Leakage | 15.6 % |"), cells_of("Leakage 15.6 % 16.9 %"), cells_of("No table.")
        (['Leakage', '15.6 %'], ['Leakage', '15.6 %', '16.9 %'], [])
    """
    line = line.strip()
    if line.startswith("|") or " | " in line:
        inner = line.removeprefix("|").removesuffix("|")
        return [visible(cell.replace("\\|", "|")) for cell in _PIPES.split(inner)]
    if row := _figure_row(line):
        return [visible(row[0]), *row[1]]
    cells = [visible(cell) for cell in _COLUMNS.split(line)]
    return cells if len(cells) > 1 else []


def _rows(lines: Iterable[str]) -> list[list[str]]:
    """Return the cells of the lines up to the first one that is not part of a table, without rules such as "|---|"."""
    rows = takewhile(bool, map(cells_of, lines))
    return [cells for cells in rows if not _RULE.fullmatch("|".join(cells))]


def _grid(text: str, start: int, end: int, table_head: str, mark_cell: MarkWords) -> Grid | None:
    """Return the row at a span with its column headers and the rows around it, or None if it is not a table row."""
    first, last = text.rfind("\n", 0, start) + 1, (text.find("\n", end) + 1 or len(text) + 1) - 1
    lines_above, row_lines = text[:first].splitlines(), text[first:last].strip().splitlines()
    above, rows, below = _rows(reversed(lines_above))[::-1], _rows(row_lines), _rows(text[last + 1 :].splitlines())
    if table_head and len(above) == len(lines_above):  # the passage begins inside the table
        above = [next(iter(_rows(reversed(table_head.splitlines()))), []), *above]
    if (above or below) and (title := _figure_head([*lines_above, *row_lines], len(lines_above) - len(above))):
        above.insert(0, [title, *[""] * (len((above or rows)[0]) - 1)])
    head, *table = [*above, *rows] or [[]]
    rows = table[max(0, len(table) - len(rows)) :]  # without the headers, if they are quoted
    if (
        not 0 < len(rows) <= MOST_ROWS
        or len(_rows(row_lines)) < len(row_lines)
        or any(len(row) != len(head) for row in rows)
    ):
        return None
    before = table[: len(table) - len(rows)][-ROWS_AROUND:]
    row_groups = [
        [[mark_cell(cell) for cell in cells] for cells in part] for part in (before, rows, below[:ROWS_AROUND])
    ]
    return Grid([mark_cell(cell) for cell in head], *row_groups)


def _figure_head(lines: Sequence[str], at: int) -> str:
    """Return the line above the first row of a table of figures, whose column headers cannot be told apart, or ""."""
    row = _figure_row(lines[at].strip()) if 0 < at < len(lines) else None
    return visible(lines[at - 1]) if row and not _YEARS.fullmatch(" ".join(row[1])) else ""


def _figure_row(line: str) -> tuple[str, list[str]] | None:
    """Divide a row of the text of a PDF, such as "Revenue 1,204 (5) %", into its label and two or more figures."""
    words, figures = line.split(" "), []
    while words:
        size = 2 if words[-1] == "%" and not words[-2:][0].endswith("%") else 1
        if not _FIGURE.fullmatch(words[-size]):
            break
        figures.append(" ".join(words[-size:]))
        del words[-size:]
    while len(figures) >= 2:
        if _LABEL_END.search(" ".join(words[-3:])[-3:]) and not line[0].isdecimal():
            return " ".join(words), figures[::-1]
        words.append(figures.pop())
    return None


def _labelled(grid: Grid) -> list[str]:
    """Return the cells of each quoted row with their column headers, for copying."""
    heads = [head.striptags() for head in grid.head]
    lines = []
    for cells in grid.rows:
        first, *rest = (cell.striptags() for cell in cells)
        pairs = ", ".join(f"{head}: {cell}" if head else cell for head, cell in zip(heads[1:], rest, strict=True))
        lines.append(f"{first} ({pairs})" if pairs else first)
    return lines
