"""Render the text of a document as HTML: sheets as grids, slides, mails, source code and plain text.

The text was extracted when the document was ingested, so it can be shown even if the file is gone. `markdown` renders
Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

from markupsafe import Markup, escape

from llama_index_contextual.metadata import DocumentMap, Table
from llama_index_contextual.readers.builder import BLANK, GAP
from llama_index_contextual.readers.files import OFFICE_SUFFIXES
from llama_index_contextual.readers.tables import is_figure
from llama_index_contextual.ui.markdown import IN_PASSAGE, SPOTLIGHT, render_markdown, with_anchor
from llama_index_contextual.ui.marks import Span
from llama_index_contextual.ui.places import icon_of, suffix_of

TextKind = Literal["markdown", "sheet", "slides", "mail", "blocks", "code", "text"]

_CODE = re.compile(
    r"\.(?:[ch](?:pp|xx)?|cc|cs|css|go|ini|java|jl|js|json|jsx|kt|lua|php|pl|py|r|rb|rs|scala|sh|sql|swift|toml|tsx?|xml|ya?ml)"
)
_MAIL_HEADER = re.compile(r"(?:Subject|From|To|Cc|Date): ")
_SIGNS = re.compile(r"#{1,6} ")
LONG_CELL = 40
"""Number of characters above which a cell of a table is not made narrow."""
_HEAD_CELL = Markup('<th scope="col">{}</th>')


def kind_of(file_name: str | None) -> TextKind:
    """Return how the text of a file is shown."""
    suffix, icon = suffix_of(file_name), icon_of(file_name)
    if icon in ("markdown", "sheet", "slides", "mail"):
        return icon  # type: ignore[return-value]  # mypy does not narrow the string
    return "blocks" if suffix in OFFICE_SUFFIXES else "code" if _CODE.fullmatch(suffix) else "text"


@dataclass(frozen=True)
class TextMarks:
    """The marks in a text.

    Attributes:
        passage: Start and end of the passage in the document's text; empty if nothing is marked.
        sentence: Start and end of the sentence or row to mark strongly; empty if nothing is marked.
        mark_words: Function that returns part of the passage as HTML with the words of the question marked.
    """

    passage: Span = (0, 0)
    sentence: Span = (0, 0)
    mark_words: Callable[[str], Markup] = escape

    def html(self, text: str, start: int) -> Markup:
        """Return a piece of the document's text, which begins at `start`, as HTML with its marks."""
        cuts = {min(max(at - start, 0), len(text)) for at in (*self.passage, *self.sentence)} | {0, len(text)}
        places = sorted(cuts)
        return Markup("").join(self._piece(text[first:last], start + first) for first, last in pairwise(places))

    def _piece(self, text: str, start: int) -> Markup:
        if self.sentence[0] <= start < self.sentence[1]:
            return Markup('<mark class="{}">{}</mark>').format(SPOTLIGHT, self.mark_words(text))
        if self.passage[0] <= start < self.passage[1]:
            return Markup('<span class="{}">{}</span>').format(IN_PASSAGE, self.mark_words(text))
        return escape(text)

    def row_class(self, start: int, end: int) -> str:
        """Return the class of a table row: that of the sentence, that of the passage, or ""."""
        if _overlap((start, end), self.sentence):
            return SPOTLIGHT
        return IN_PASSAGE if _overlap((start, end), self.passage) else ""


def _overlap(span: Span, other_span: Span) -> bool:
    return max(span[0], other_span[0]) < min(span[1], other_span[1])


def render_text(text: str, start: int, kind: TextKind, where: DocumentMap, marks: TextMarks) -> Markup:
    """Return a part of a document's text as HTML.

    The first marked element gets the id "passage".

    Args:
        text: The part, which consists of whole lines.
        start: Start of the part in the document's text.
        kind: How the text is shown.
        where: Map of the document.
        marks: The marks.
    """
    if kind == "markdown":
        passage, sentence = ((at - start, end - start) for at, end in (marks.passage, marks.sentence))
        return render_markdown(text, passage, sentence, mark_words=marks.mark_words)
    if kind in ("code", "text"):
        return with_anchor(Markup("<pre>{}</pre>").format(marks.html(text, start)))
    return with_anchor(_Blocks(text, start, kind, where, marks).html())


class _Line(NamedTuple):
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class _Blocks:
    """Renderer for documents that `DocumentBuilder` wrote: headings, paragraphs and rows of cells."""

    def __init__(self, text: str, start: int, kind: TextKind, where: DocumentMap, marks: TextMarks) -> None:
        self._kind, self._where, self._marks = kind, where, marks
        self._mail_body = text.find("\n\n") if start == 0 else 0
        self._lines = []
        for line in text.split("\n"):
            self._lines.append(_Line(line, start))
            start += len(line) + 1
        self._headings = {heading.start: heading for heading in where.headings}
        self._pages = {start: number for number, start in enumerate(where.page_starts, start=1)}

    def html(self) -> Markup:
        """Return the text as HTML."""
        if self._kind != "slides":
            return self._blocks(self._lines)
        slides = groupby(self._lines, key=lambda line: self._where.page(line.start))
        section = Markup('<section class="slide">{}</section>\n')
        return Markup("").join(section.format(self._blocks(of_slide)) for _, of_slide in slides)

    def _blocks(self, lines: Iterable[_Line]) -> Markup:
        blocks = groupby(lines, key=self._block_of)
        return Markup("\n").join(self._block(kind, list(of_block)) for (kind, _), of_block in blocks if kind != "blank")

    def _block_of(self, line: _Line) -> tuple[str, int]:
        """Return the kind of block to which a line belongs, and a number that differs between adjacent blocks."""
        if not line.text.strip():
            return "blank", 0
        if line.start in self._headings:
            return "heading", line.start
        if self._kind == "sheet":
            return "table", 0
        if table := self._table_at(line):
            return "table", table.start
        is_header = self._kind == "mail" and line.start < self._mail_body and _MAIL_HEADER.match(line.text)
        return ("mail" if is_header else "lines"), 0

    def _table_at(self, line: _Line) -> Table | None:
        table = self._where.table(line.start + 1)
        return table if table is not None and table.start <= line.start and GAP in line.text else None

    def _block(self, kind: str, lines: Sequence[_Line]) -> Markup:
        if kind == "heading":
            return self._heading(lines[0])
        if kind == "table":
            return self._table(lines)
        if kind == "mail":
            return Markup('<dl class="mail-head">{}</dl>').format(Markup("").join(map(self._mail_header, lines)))
        text = "\n".join(line.text for line in lines)
        quote_class = " quoted" if self._kind == "mail" and text.startswith(">") else ""
        return Markup('<p class="lines{}">{}</p>').format(quote_class, self._marks.html(text, lines[0].start))

    def _heading(self, line: _Line) -> Markup:
        heading, number = self._headings[line.start], self._pages.get(line.start)
        signs = _SIGNS.match(line.text)
        at = signs.end() if signs else 0
        title = self._marks.html(line.text[at:], line.start + at)
        if number is not None and self._kind == "sheet":
            return Markup("<h2>Sheet “{}”</h2>").format(title)
        if number is not None and self._kind == "slides" and heading.title != f"Slide {number}":
            return Markup("<h2>Slide {}: {}</h2>").format(number, title)
        return Markup("<h{0}>{1}</h{0}>").format(min(heading.level + 1, 6), title)

    def _mail_header(self, line: _Line) -> Markup:
        name, _, _ = line.text.partition(": ")
        value = self._marks.html(line.text[len(name) + 2 :], line.start + len(name) + 2)
        return Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(name, value)

    def _table(self, lines: Sequence[_Line]) -> Markup:
        first = lines[0]
        table = self._where.table(first.start + 1)
        rows = []
        if table is not None and first.start > table.start:  # the part begins within the table
            cells = table.head.rpartition("\n")[2].split(GAP)
            rows.append(Markup("<tr>{}</tr>").format(Markup("").join(map(_HEAD_CELL.format, cells))))
        return Markup('<table class="grid">{}</table>').format(Markup("").join([*rows, *map(self._row, lines)]))

    def _row(self, line: _Line) -> Markup:
        table, cells = self._where.table(line.start + 1), []
        is_head = table is not None and table.start <= line.start < table.body
        name = self._marks.row_class(line.start, line.end)
        for cell in line.text.split(GAP):
            text = self._marks.mark_words(cell) if name else escape(cell)
            if is_head:
                cells.append(_HEAD_CELL.format(text))
            else:
                kind = "number" if is_figure(cell) else "long" if len(cell) > LONG_CELL else ""
                kind = Markup(' class="{}"').format(kind) if kind and cell != BLANK else ""
                cells.append(Markup("<td{}>{}</td>").format(kind, "" if cell == BLANK else text))
        attribute = Markup(' class="{}"').format(name) if name else ""
        return Markup("<tr{}>{}</tr>").format(attribute, Markup("").join(cells))
