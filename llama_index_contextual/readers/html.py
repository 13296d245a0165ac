"""Read HTML: headings, paragraphs, lists and tables, without scripts, navigation or hidden elements.

Linked files and images are not fetched. Links are replaced by their text, and images by their alternative text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.files import FileSource, ParsedFile
from llama_index_contextual.readers.text import MAX_TITLE, decode

Element = Any  # lxml ships no types

_CHARSET = re.compile(rb"(?i)<(?:meta|\?xml)\b[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{1,40})")
_META_REACH = 4096
_DROPPED = frozenset(
    re.findall(
        r"\w+",
        "script style template noscript iframe frame object embed applet canvas audio video svg select datalist button"
        " textarea nav head title",
    )
)
_HIDDEN = re.compile(r"(?i)display\s*:\s*none|visibility\s*:\s*hidden")
_TITLES = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure"
        " footer form header hgroup hr html legend li main ol p section summary table tbody td tfoot th thead tr ul",
    )
)
_ARRANGED = frozenset((*_TITLES, "table", "ul", "ol", "pre", "form"))
"""Elements that occur in tables used for page layout, but not in tables with data."""
_MAX_INDENT = 8
_MAX_SPAN = 1_000
# The parsing time of lxml is quadratic in the number of attributes, so attributes are removed from very long tags.
_DATA_URI = re.compile(r"(?i)(\ssrc\s*=\s*[\"']?)data:[^\"'\s>]*")
_LONG_TAG = re.compile(r"<(\w+)\s[^<>]{20000,}>")
_SPACE = re.compile(r"[ \t\r\n\f]+")
# Characters that lxml reads but refuses to write.
_UNWRITABLE = dict.fromkeys((*range(0x20), 0xFFFE, 0xFFFF)) | {0x09: "\t", 0x0A: "\n", 0x0B: " ", 0x0C: " ", 0x0D: "\r"}


def read_html(source: FileSource) -> ParsedFile:
    """Read an HTML page.

    Raises:
        ReadError: The bytes are not text or exceed a limit, or the elements are nested too deeply.
    """
    declared = _CHARSET.search(source.data[:_META_REACH])
    text, warnings = decode(source, declared[1].decode("ascii") if declared else None)
    builder = DocumentBuilder(source.account)
    builder.warnings += warnings
    page = parse_html(source, text)
    title = " ".join((page.findtext(".//title") or "").split())
    add_html(builder, page)
    first = min(builder.headings, key=lambda heading: heading.level, default=None)
    return builder.parsed(title or (first.title if first else None), source.digest)


def parse_html(source: FileSource, text: str) -> Element:
    """Parse HTML and return the root element.

    Raises:
        ReadError: The elements are nested too deeply.
    """
    from lxml import etree, html

    parser = html.HTMLParser(encoding="utf-8", huge_tree=True, no_network=True, remove_comments=True, remove_pis=True)
    text = _LONG_TAG.sub(r"<\1>", _DATA_URI.sub(r"\1", text))
    root = etree.fromstring(b"<html>" + text.encode("utf-8", "replace"), parser)
    if any(entry.message.startswith("Excessive depth") for entry in parser.error_log):
        raise source.error("has HTML elements nested too deeply: save the page as PDF or text")
    return root


def _prepare(root: Element) -> None:
    """Remove elements that are not shown, replace images with their alternative text, and add spaces between blocks."""
    for element in root.iter():
        if (text := element.text) and (writable := text.translate(_UNWRITABLE)) != text:
            element.text = writable
        if (tail := element.tail) and (writable := tail.translate(_UNWRITABLE)) != tail:
            element.tail = writable
    for element in list(root.iterdescendants()):
        before = ""
        if _is_dropped(element):
            element.drop_tree()
        elif element.tag == "img":
            before = (element.get("alt") or "").translate(_UNWRITABLE).strip()
            before = before if " " in before else ""  # a single word is probably a file name
        elif element.tag == "br" or element.tag in _BLOCKS:
            before = " "
            element.text = f" {element.text or ''}"
        element.tail = f"{before}{element.tail or ''}"


def add_html(builder: DocumentBuilder, root: Element) -> None:
    """Add the content of a page to a document; if the page has exactly one main element, add only this element."""
    from lxml import etree

    _prepare(root)
    mains = root.findall(".//main")
    if len(mains) == 1 and "".join(mains[0].itertext()).strip():
        root = mains[0]
    walk, skipped = _Walk(builder), None
    events = etree.iterwalk(root, events=("start", "end"))
    for event, element in events:
        if event == "start":
            if not walk.enter(element):
                skipped = element
                events.skip_subtree()
            continue
        if element is not skipped:
            walk.leave(element)
        if element is not root:
            walk.inline(element.tail)
    walk.flush()


class _Walk:
    """Traversal of the elements of a page that collects inline text up to the next block."""

    def __init__(self, builder: DocumentBuilder) -> None:
        self._builder = builder
        self._pieces: list[str] = []
        self._lists: list[int | None] = []  # number of the last item, or None for a bulleted list
        self._mark = ""
        self._follows = False

    def inline(self, text: str | None) -> None:
        if text:
            self._pieces.append(_SPACE.sub(" ", text))

    def flush(self) -> None:
        """Add the collected text as a paragraph or list item."""
        text = "".join(self._pieces)
        self._pieces.clear()
        if text.strip():
            indent = "  " * min(len(self._lists) - 1, _MAX_INDENT) if self._mark else ""
            text = f"{indent}{self._mark}{text.strip()}"
            self._builder.paragraph(text, follows=self._follows, keeps_space=bool(indent))
            self._mark, self._follows = "", bool(self._lists)

    def enter(self, element: Element) -> bool:
        """Start an element and return whether to visit its content."""
        tag = element.tag
        if tag == "br":
            self._pieces.append("\n")
        elif tag in _TITLES and len(title := _flat(element)) <= MAX_TITLE:
            self.flush()
            self._builder.heading(_TITLES[tag], title)
            return False
        if tag == "pre":
            self.flush()
            self._builder.paragraph("".join(element.itertext()), keeps_space=True)
            return False
        if tag == "table" and _lists_data(element):
            self.flush()
            captions = [text for caption in element.iterchildren("caption") if (text := _flat(caption))]
            for caption in captions:
                self._builder.paragraph(caption)
            self._builder.table(_rows(element), caption=" ".join(captions))
            return False
        if tag in _BLOCKS:
            self.flush()
            self._enter_block(element)
        self.inline(element.text)
        return True

    def _enter_block(self, element: Element) -> None:
        if element.tag in ("ol", "ul"):
            self._follows = bool(self._lists)
            self._lists.append(0 if element.tag == "ol" else None)
        elif element.tag == "li":
            number = self._lists[-1] if self._lists else None
            self._mark = "- " if number is None else f"{number + 1}. "
            if number is not None:
                self._lists[-1] = number + 1

    def leave(self, element: Element) -> None:
        """End an element."""
        if element.tag in _BLOCKS:
            self.flush()
        if element.tag in ("ol", "ul") and self._lists:
            self._lists.pop()
            self._mark, self._follows = "", bool(self._lists)
        elif element.tag == "li":
            self._mark = ""
        elif element.tag == "p" and not self._lists:
            self._follows = False


def _is_dropped(element: Element) -> bool:
    return (
        element.tag in _DROPPED
        or element.get("hidden") is not None
        or element.get("role") == "navigation"
        or bool(_HIDDEN.search(element.get("style") or ""))
    )


def _flat(element: Element) -> str:
    """Return the text of an element and its descendants on one line."""
    return " ".join("".join(element.itertext()).split())


# Tables


def _lists_data(table: Element) -> bool:
    """Return whether a table contains data and is not used for page layout.

    In a table with data, at least one row has several cells, and no element is typical of page layout.
    """
    if table.get("role") == "presentation":
        return False
    elements = table.iterdescendants()
    is_wide = False
    for element in elements:
        if element.tag in _ARRANGED:
            return False
        is_wide = is_wide or (element.tag == "tr" and sum(cell.tag in ("td", "th") for cell in element) > 1)
    return is_wide


def _rows(table: Element) -> Iterator[list[str]]:
    """Yield the rows of a table.

    A cell that spans several columns is followed by blank cells. A cell that spans several rows is repeated in each of
    them.
    """
    below: dict[int, tuple[int, str]] = {}  # column -> number of further rows, text
    for row in table.iterdescendants("tr"):
        cells: list[str] = []
        for cell in (*(cell for cell in row if cell.tag in ("td", "th")), None):
            while (spanning := below.pop(len(cells), None)) is not None:
                rows, text = spanning
                if rows > 1:
                    below[len(cells)] = (rows - 1, text)
                cells.append(text)
            if cell is None:
                break
            text, rows = _flat(cell), _cell_span(cell, "rowspan")
            if rows > 1:
                below[len(cells)] = (rows - 1, text)
            cells += [text, *[""] * (_cell_span(cell, "colspan") - 1)]
        yield cells


def _cell_span(cell: Element, name: str) -> int:
    value = (cell.get(name) or "").strip()
    return max(1, min(int(value), _MAX_SPAN)) if value.isascii() and value.isdigit() and len(value) < 9 else 1
