"""Quotations of passages: a sentence, or a table row under its column headers, and the text around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup, escape

from llama_index_contextual.index.cutting import spans_of
from llama_index_contextual.index.rows import TableRows, rows_at
from llama_index_contextual.search.response import visible
from llama_index_contextual.ui.marks import Span
from llama_index_contextual.ui.places import icon_of

LONGEST = 420
"""Maximum number of characters of a quotation."""

LONGEST_FIGURE = 14
"""Number of characters above which a table cell is shown as text."""

MOST_COLUMNS, LONGEST_ROW = 6, 80
"""Number of columns and of characters above which a table row is shown as a list."""

BEFORE, AFTER = 160, 320
"""Number of characters of a sketch before and after the quotation."""

_LINE_SIGNS = re.compile(r"^(?:(?:#{1,6}|[-*+]|\d+[.)])\s+|(?:> ?)+)", re.MULTILINE)
_INLINE_SIGNS = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\s]*\)|\*\*|__|`|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)")

MarkWords = Callable[[str], Markup]
Rows = Sequence[Sequence[Markup]]


@dataclass(frozen=True)
class Grid:
    """A quoted table row, or several rows.

    Attributes:
        head: The header of each column; empty if they cannot be told apart.
        before: The rows before the quoted ones.
        rows: The quoted rows.
        after: The rows after them.
        title: The line above the table if the headers cannot be told apart, or "".
    """

    head: Sequence[Markup]
    before: Rows
    rows: Rows
    after: Rows
    title: Markup

    @property
    def is_wide(self) -> bool:
        """Whether a single row is shown as a list of headers and cells, because it is too long for a line."""
        if len(self.rows) != 1 or not self.head:
            return False
        return len(self.head) > MOST_COLUMNS or sum(len(cell.striptags()) for cell in self.rows[0]) > LONGEST_ROW

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
    text: str,
    span: Span,
    mark_words: MarkWords,
    *,
    table_head: str = "",
    columns: Sequence[str] = (),
    file_name: str | None = None,
) -> Quote:
    """Return the quotation of a sentence or row.

    Args:
        text: The passage.
        span: Start and end of the sentence or row in the passage.
        mark_words: Function that returns text as HTML with the words of the question marked.
        table_head: The column headers of the table that the passage continues, or "".
        columns: The header of each column if the text does not separate the cells; see `rows_at`.
        file_name: Name of the file, whose type determines which Markdown markup is removed.
    """
    (start, end), to_plain = span, partial(plain, file_name=file_name)
    quotation = to_plain(text[start:end])
    opening = (
        quotation
        if len(quotation) <= LONGEST
        else f"{quotation[:LONGEST].rpartition(' ')[0] or quotation[:LONGEST]}\u00a0…"
    )
    if (rows := rows_at(text, start, end, table_head=table_head, columns=columns)) is not None:
        grid = _grid(rows, lambda cell: mark_words(to_plain(cell)))
        return Quote(to_plain(rows.labelled()), mark_words(opening), grid)
    before = text[max(0, start - BEFORE) : start]
    before, after = to_plain(before.partition(" ")[2] if start > BEFORE else before), to_plain(text[end : end + AFTER])
    return Quote(quotation, mark_words(opening), before=before, after=after)


def quote_around(
    text: str,
    span: Span,
    mark_words: MarkWords | None = None,
    *,
    table_head: str = "",
    columns: Sequence[str] = (),
    file_name: str | None = None,
) -> Quote:
    """Return the quotation of the sentences or rows that contain the words at a span.

    Args:
        text: The passage.
        span: Start and end of the words in the passage.
        mark_words: As for `quote_of`; None marks the words at the span.
        table_head: As for `quote_of`.
        columns: As for `quote_of`.
        file_name: As for `quote_of`.
    """
    words = plain(text[slice(*span)], file_name)

    def mark_span(part: str) -> Markup:
        before, match, after = part.partition(words) if words else (part, "", "")
        return Markup("{}<mark>{}</mark>{}").format(before, match, after) if match else escape(part)

    around = [unit for unit in spans_of(text) if unit[0] < span[1] and span[0] < unit[1]] or [span]
    whole = around[0][0], around[-1][1]
    marks = mark_words or mark_span
    return quote_of(text, whole, marks, table_head=table_head, columns=columns, file_name=file_name)


def plain(text: str, file_name: str | None) -> str:
    """Return text on one line, without the Markdown markup that its file type contains."""
    icon = icon_of(file_name)
    if icon not in ("pdf", "image", "text"):  # other formats are converted to text with Markdown headings
        text = _LINE_SIGNS.sub("", text)
    return visible(_INLINE_SIGNS.sub(lambda sign: sign[1] or "", text) if icon == "markdown" else text)


def _grid(rows: TableRows, mark_cell: MarkWords) -> Grid:
    before, quoted, after = (
        [[mark_cell(cell) for cell in cells] for cells in part] for part in (rows.before, rows.rows, rows.after)
    )
    return Grid([mark_cell(cell) for cell in rows.head], before, quoted, after, mark_cell(rows.title))
