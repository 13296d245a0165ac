"""Build the text of a document from headings, paragraphs, tables and pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from llama_index_contextual.figures import Figure
from llama_index_contextual.metadata import DocumentMap, Heading, Table
from llama_index_contextual.readers.figures import FigureCollector, stored_picture, with_captions
from llama_index_contextual.readers.files import FileAccount, ParsedFile, one_line
from llama_index_contextual.readers.tables import MAX_ABOVE, MAX_CAPTION_WORDS, SHORT_DATE, is_figure, naming_lines
from llama_index_contextual.readers.text import MAX_TITLE, plain_headings

GAP = "  "
"""Separator between the cells of a row. Of the unambiguous separators, it affects the embedding least."""
BLANK = "–"
"""Placeholder for a blank cell between other cells, so that the columns stay recognisable."""
MAX_HEAD = 2_000
"""Maximum length of recorded column headers in characters; a chunk includes at most 60 tokens of them."""
PEEK = 50  # number of first rows that are searched for column headers

MAX_PAGE_TEXTS = 100
"""Maximum number of headers and footers that are added to the text."""
_WORD = re.compile(r"[^\W\d_]+")
_PAGE_WORDS = frozenset(
    re.findall(
        r"\w+",
        "page pages pg p of seite seiten s von pagina pagine pag página de di da van la sur sida av strana stran z"
        " стр страница из 第 页 共 頁 ページ",
    )
)
_CONTROLS = dict.fromkeys((*range(0x20), 0x7F)) | {0x09: " ", 0x0A: "\n", 0x0B: "\n", 0x0C: "\n", 0x0D: "\n"}
_SURROGATES = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile(r"(?:(?<![ \u00a0])[ \u00a0]++)?\r?\n[ \u00a0]*")


class DocumentBuilder:
    """Builder for the text and map of a document.

    Args:
        account: Counter for the characters of the text.
        figures: Whether to keep figures.

    Attributes:
        warnings: Problems found so far.
        headings: Headings added so far.
        tables: Tables with column headers added so far.
    """

    def __init__(self, account: FileAccount, *, figures: bool = True) -> None:
        self._figures = FigureCollector() if figures else None
        self._captions: list[tuple[int, int]] = []
        self.warnings: list[str] = []
        self.headings: list[Heading] = []
        self.tables: list[Table] = []
        self._account = account
        self._parts: list[str] = []
        self._size = self._feeds = 0
        self._starts: list[int] = []
        self._labels: list[str] = []
        self._above: list[str] = []  # paragraphs since the last heading or table

    def page(self, label: str) -> None:
        """Start a page, sheet or slide."""
        self._break(2)
        self._starts.append(self._size)
        self._labels.append(one_line(label))
        self._above.clear()

    def heading(self, level: int, title: str) -> None:
        """Add a heading on its own line, marked with one # per level, up to six; the name of its section may be cut."""
        if title := one_line(title, 10 * MAX_TITLE):
            self._break(2)
            self.headings.append(Heading(self._size, level, one_line(title, MAX_TITLE)))
            self._add(f"{'#' * min(level, 6)} {title}")
            self._above.clear()

    def paragraph(
        self, text: str, *, follows: bool = False, keeps_space: bool = False, is_caption: bool = False
    ) -> None:
        """Add a paragraph after a blank line, or on the next line if it `follows` the previous paragraph.

        Args:
            text: The text; line feeds are kept.
            follows: Whether to omit the blank line, as between the items of a list.
            keeps_space: Whether to keep the spaces at the beginning of lines, as in source code.
            is_caption: Whether the file marks it as a caption.
        """
        text = clean_text(text)
        text = text.strip("\n").rstrip() if keeps_space else _LINE_END.sub("\n", text).strip()
        if text:
            self._break(1 if follows else 2)
            if is_caption:
                self._captions.append((self._size, self._size + len(text)))
            self._add(text)
            self._above = [*self._above, text][-MAX_ABOVE:]

    def table(self, rows: Iterable[Sequence[str]], *, head_before: str = "", caption: str = "") -> str:
        """Add the rows of a table as lines, and return its column headers.

        Blank rows are omitted, as are leading columns that are blank in all of the first `PEEK` rows.

        Args:
            rows: The cells of each row.
            head_before: Column headers to use if the table has none because it continues another table.
            caption: Title of the table, which has already been added as a paragraph.
        """
        filled = (row for row in map(self._stripped, rows) if any(row))
        first = list(islice(filled, PEEK))
        if not first:
            return head_before
        margin = min(next(at for at, cell in enumerate(row) if cell) for row in first)
        at_head = next((at for at, row in enumerate(first) if sum(map(bool, row)) > 1), None)
        if at_head is not None and any(is_figure(cell) and not SHORT_DATE.fullmatch(cell) for cell in first[at_head]):
            at_head = None
        head = head_before if at_head is None else self._head(first[: at_head + 1], margin, caption)
        is_list = all(sum(map(bool, row)) == 1 for row in first)  # such as titles above a blank row of a sheet
        self._above = [row_line(row[margin:]) for row in first[-MAX_ABOVE:]] if is_list else []
        self._break(2)
        start = body = self._size
        for number, row in enumerate(chain(first, filled)):
            if number == at_head:
                start = self._size
            self._append(row_line(row[margin:] if any(row[margin:]) else row) + "\n")
            if number == at_head:
                body = self._size
        if head and body < self._size:
            self._account.add_text(len(head))  # many tables in a sheet can share the headers of the first table
            self.tables.append(Table(start, body, self._size - 1, head))
        return head

    def _head(self, rows: Sequence[Sequence[str]], margin: int, caption: str) -> str:
        """Return the text of the column headers, preceded by the title, the unit and the time period of the table.

        The last of the `rows` contains the column headers; the rows before it may be titles.
        """
        *titles, columns = (row_line(row[margin:])[:MAX_HEAD] for row in rows)
        captions = [line for line in titles[-MAX_ABOVE:] if len(line.split()) <= MAX_CAPTION_WORDS]
        above = [caption[:MAX_HEAD]] if caption else naming_lines(self._above)
        return "\n".join([*above, *captions, columns])

    def _stripped(self, row: Sequence[str]) -> list[str]:
        """Return the cells of a row with normalised white space and count their characters towards the limit."""
        cells = [" ".join(clean_text(cell).split()) for cell in row]
        self._account.add_text(sum(len(cell) + len(GAP) for cell in cells if cell))
        return cells

    def figure(self, figure: Figure, data: bytes | None = None) -> None:
        """Add a figure at the end of the text.

        Args:
            figure: The figure; its place and its page are set here.
            data: Its picture in a format such as PNG or JPEG, or None for a chart of which the values are known.
        """
        if self._figures is None:
            return
        page = len(self._starts) or None
        placed = replace(figure, start=self._size, end=self._size, page=figure.page or page)
        if data is not None:
            self._figures.add_encoded(placed, data)
        elif figure.values:
            self._figures.add(placed, None)

    def page_texts(self, texts: Iterable[tuple[str, str]]) -> None:
        """Add headers and footers of pages that stand nowhere else in the text, each of them once, at the end.

        Args:
            texts: The kind ("header" or "footer") and the text of each of them; page numbers are omitted.
        """
        unique = {" ".join(clean_text(text).split()): kind for kind, text in reversed(list(texts))}
        if not unique:
            return
        body = " ".join(self.text().split())
        for text, kind in islice(reversed(unique.items()), MAX_PAGE_TEXTS):
            if any(word not in _PAGE_WORDS for word in _WORD.findall(text.lower())) and text not in body:
                self.paragraph(f"Page {kind}: {text}")

    def embed(self, title: str, part: ParsedFile) -> None:
        """Add another document as a section, with its headings as subsections but without its pages.

        The characters of its text must already have been counted.
        """
        self.heading(1, title)
        self._break(2)
        base = self._size
        self.headings += [Heading(base + head.start, head.level + 1, head.title) for head in part.map.headings]
        self.tables += [table.moved(base) for table in part.map.tables]
        if self._figures is not None:
            for figure in part.map.figures:
                moved = replace(figure.moved(base), page=None, box=None)
                self._figures.add(moved, stored_picture(figure, part.pictures))
        self._append(part.text)

    def text(self) -> str:
        """Return the text added so far."""
        return "".join(self._parts).rstrip("\n")

    def parsed(self, title: str | None, digest: str, metadata: Mapping[str, str] | None = None) -> ParsedFile:
        """Return the document; if no headings were added, detect them as in plain text.

        Args:
            title: Title of the document.
            digest: Hash of the file.
            metadata: Additional metadata.
        """
        text = self.text()
        headings = tuple(self.headings or plain_headings(text))
        where = DocumentMap(tuple(self._starts), tuple(self._labels), headings, tuple(self.tables))
        parsed = ParsedFile(text, where, one_line(title or "") or None, tuple(self.warnings), metadata or {}, digest)
        if self._figures is None or not (self._figures.figures or self._figures.notes()):
            return parsed
        self._figures.figures = with_captions(self._figures.figures, text, self._captions)
        self._figures.figures = self._figures.without_repeated()
        return self._figures.added_to(parsed)

    def _break(self, feeds: int) -> None:
        """Make the text end with at least `feeds` line feeds: 1 ends the line, and 2 also adds a blank line."""
        if self._size and self._feeds < feeds:
            self._add("\n" * (feeds - self._feeds))

    def _add(self, text: str) -> None:
        self._account.add_text(len(text))
        self._append(text)

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        body = len(text.rstrip("\n"))
        self._feeds = len(text) - body + (0 if body else self._feeds)


def clean_text(text: str) -> str:
    """Return the text with control characters removed and lone surrogates replaced by U+FFFD."""
    if text.isprintable():
        return text
    return _SURROGATES.sub("\ufffd", text.replace("\r\n", "\n").translate(_CONTROLS))


def row_line(cells: Sequence[str]) -> str:
    """Return a row as a line, with a placeholder for each blank cell unless most of the cells are blank.

    Example:
        >>> row_line(["Cash", "", "1,234", "987", ""])
        'Cash  –  1,234  987'
    """
    filled = [cell for cell in cells if cell]
    last = max((at for at, cell in enumerate(cells) if cell), default=-1) + 1
    if len(filled) == 1 or last > 3 * len(filled):
        return GAP.join(filled)
    return GAP.join(cell or BLANK for cell in cells[:last])
