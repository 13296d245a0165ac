"""Read HTML: headings, paragraphs, lists and tables, without scripts, navigation or hidden elements.

Linked files and images are not fetched. Links are replaced by their text, and images by their alternative text.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from llama_index_contextual._utils.files import read_file
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.figures import Figure
from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.files import FileSource, ParsedFile
from llama_index_contextual.readers.numbering import html_number
from llama_index_contextual.readers.scripts import html_formula, subscript, superscript
from llama_index_contextual.readers.text import MAX_TITLE, decode

Element = Any  # lxml ships no types

_CHARSET = re.compile(rb"(?i)<(?:meta|\?xml)\b[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{1,40})")
_META_REACH = 4096
_DROPPED = frozenset(
    re.findall(
        r"\w+",
        "script style template noscript iframe frame object embed applet canvas audio video svg select datalist"
        " textarea nav title del",
    )
)
FIGURE = "contextual-figure"
"""Attribute of an element at the place of a figure: the index of the figure in the list passed to `add_html`."""
CAPTION = "contextual-caption"
"""Class of a paragraph that is a caption."""
MAX_LOCAL_BYTES = 20_000_000
"""Maximum size of a picture in a file next to a page, or of the pictures in a page, in bytes."""
MAX_IMAGES = 1_000
NUMBER = "contextual-number"
"""Attribute of a list item whose number is known; the number is empty if the item has none."""
_SCRIPTS = ("sup", "sub", "span", "font", "small", "a", "b", "i")
_RAISING = re.compile(r"(?i)vertical-align\s*:\s*(sup|sub)")
_HIDDEN = re.compile(r"(?i)display\s*:\s*none|visibility\s*:\s*hidden")
_TITLES = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure"
        " footer form head header hgroup hr html legend li main ol p section summary table tbody td tfoot th thead tr"
        " ul",
    )
)
_ARRANGED = frozenset((*_TITLES, "table", "ul", "ol", "pre", "form"))
"""Elements that occur in tables used for page layout, but not in tables with data."""
MAX_LONG_TITLE = 3 * MAX_TITLE
"""Maximum length of a heading that does not end like a sentence."""
_MAX_INDENT = 8
_MAX_NUMBER = 1_000_000
_LIST_STYLE = re.compile(r"(?i)list-style(?:-type)?\s*:\s*([a-z-]{1,30})")
_MAX_STEPS = 20  # maximum number of elements that are searched for the text before an element
_MAX_CELL_ELEMENTS = 200
_MAX_CELL_TEXT = 1_000
_MAX_LABEL = 100  # maximum length of a cell in a row or column of labels
# Elements that are shown when their tab, question or button is clicked, and the buttons that do so.
_REVEALED = re.compile(
    r"(?i)(?<![^\W_])(?:tab-?(?:pane|panel|content)|accordion|collaps|expand|panel|faq|answer|toggle-content|more|read-?more"
    r"|carousel|slide(?![^\W_]))"
)
_REVEALING = re.compile(
    r"(?i)(?<![^\W_])(?:accordion|collaps|faq|question|tablinks?|(?:tabs?|nav|nav-tabs|nav-link)(?![^\W_]))"
)
_POPUP = re.compile(
    r"(?i)modal|popup|pop-up|cookie|menu|dropdown|tooltip|offcanvas|navbar|hamburger|dialog|copy|close|search"
)
_POPUP_ROLES = ("dialog", "alertdialog", "menu", "listbox", "tooltip", "navigation", "status", "alert")
_FIELDS = ("input", "select", "textarea")
_TYPED = ("text", "number", "email", "tel", "url", "date", "month", "week", "time", "datetime-local", "range")
_NAMING = ("class", "id", "name", "role", "action")
_CONTROLLING = (
    *("aria-expanded", "aria-controls", "data-toggle", "data-bs-toggle", "data-target", "data-bs-target"),
    *("popovertarget", "commandfor"),
)
_DRAWN_FORMULAS = frozenset(
    ("katex-html", "MathJax", "MathJax_Display", "MathJax_SVG", "MathJax_CHTML", "MathJax_Preview")
)
"""Classes of formulas drawn letter by letter, next to which the page contains the formula itself."""
_FORMULA_SIGN = re.compile(r"[\^=\\{]")
_QUOTED = re.compile(r"['\"]#?([\w-]{1,100})['\"]")
_MAX_SPAN = 1_000
_MAX_SPANNING = 200  # maximum number of columns in which cells span several rows
# The parsing time of lxml is quadratic in the number of attributes, so attributes are removed from very long tags.
_DATA_URI = re.compile(r"(?i)(\ssrc\s*=\s*[\"']?)data:[^\"'\s>]*")
_DATA_PLACE = "contextual-data:"  # takes the place of the data
_INLINE = re.compile(r"(?i)\ssrc\s*=\s*[\"']?data:(?:image/[\w.+-]{1,30})?[^\"'\s>,]{0,100},([^\"'\s>]*)")
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp")
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
    builder = DocumentBuilder(source.account, figures=source.figures)
    builder.warnings += warnings
    page = parse_html(source, text)
    figures = _images(page, source, text) if source.figures else []
    title = " ".join(page.xpath("string(//title[not(ancestor::svg)])").split())
    add_html(builder, page, figures)
    first = min(builder.headings, key=lambda heading: heading.level, default=None)
    return builder.parsed(title or (first.title if first else None), source.digest)


def parse_html(source: FileSource, text: str) -> Element:
    """Parse HTML and return the root element.

    Raises:
        ReadError: The elements are nested too deeply.
    """
    from lxml import etree, html

    parser = html.HTMLParser(encoding="utf-8", huge_tree=True, no_network=True, remove_comments=True, remove_pis=True)
    text = _LONG_TAG.sub(r"<\1>", _DATA_URI.sub(rf"\1{_DATA_PLACE}", text))
    root = etree.fromstring(b"<html>" + text.encode("utf-8", "replace"), parser)
    if any(entry.message.startswith("Excessive depth") for entry in parser.error_log):
        raise source.error("has HTML elements nested too deeply: save the page as PDF or text")
    return root


def _prepare(root: Element) -> int:
    """Remove elements that are not shown and deletions, replace images and form fields with text, and separate blocks.

    Returns:
        The number of deletions.
    """
    for element in root.iter():
        if (text := element.text) and (writable := text.translate(_UNWRITABLE)) != text:
            element.text = writable
        if (tail := element.tail) and (writable := tail.translate(_UNWRITABLE)) != tail:
            element.tail = writable
    _replace_formulas(root)
    _replace_drawings(root)
    controls, fields, deletions = _Controls(root), _Fields(root), 0
    for element in list(root.iterdescendants()):
        before = ""
        if element.tag in _FIELDS:
            before = fields.text(element)
        if _is_dropped(element, controls):
            deletions += element.tag == "del" and bool(_flat(element))
            element.tail = f"{before}{element.tail or ''}"
            element.drop_tree()
            continue
        if element.tag == "img":
            before = (element.get("alt") or "").translate(_UNWRITABLE).strip()
            if " " not in before and not _FORMULA_SIGN.search(before):
                before = ""  # a single word is probably a file name
        elif element.tag in _BLOCKS or element.tag in ("br", "button"):
            before = " "
            is_apart = element.tag == "button" and _text_before(element)[-1:].isspace()
            element.text = f"{'' if is_apart else ' '}{element.text or ''}"
        element.tail = f"{before}{element.tail or ''}"
    _mark_scripts(root)
    return deletions


def _replace_formulas(root: Element) -> None:
    """Replace formulas, and text with its pronunciation above it, by plain text."""
    for formula in list(root.iter("math")):
        with suppress(RecursionError):  # its symbols are read one after the other
            _set_text(formula, html_formula(formula))
    for formula in list(root.iter("script")):
        if (formula.get("type") or "").startswith("math/tex"):
            formula.tag = "span"
    for ruby in list(root.iter("ruby")):
        marks = ["".join(mark.itertext()) for mark in ruby.iter("rp")]
        reading = "".join("".join(part.itertext()) for part in ruby.iter("rt")).strip()
        for part in list(ruby.iter("rt", "rp")):
            part.drop_tree()
        opening, closing = (marks[0], marks[-1]) if len(marks) > 1 else ("(", ")")
        _set_text(ruby, f"{''.join(ruby.itertext()).strip()}{f'{opening}{reading}{closing}' if reading else ''}")


def _replace_drawings(root: Element) -> None:
    """Replace drawings by the text in them."""
    for drawing in list(root.iter("svg")):
        lines = (_flat(text) for text in drawing.iter("text", "foreignobject"))
        if text := " ".join(filter(None, lines)):
            drawing.tag = "figure"
            _set_text(drawing, text)


def _set_text(element: Element, text: str) -> None:
    """Replace the content of an element."""
    for child in list(element):
        element.remove(child)
    element.text = text


def _mark_scripts(root: Element) -> None:
    """Mark superscripts and subscripts that would otherwise join the digits before them."""
    for element in list(root.iter(*_SCRIPTS)):
        script = _RAISING.search(element.get("style") or "")
        kind = script[1].lower() if script else element.tag
        if kind not in ("sup", "sub") or element.getparent() is None:  # its text was replaced with that around it
            continue
        text, after = "".join(element.itertext()), (element.tail or "")[:1]
        before = _text_before(element)
        if kind == "sup":
            is_note = element.getparent().tag == "a" or element.find(".//a") is not None
            plain = superscript(text, before, after, is_note=is_note)
        else:
            plain = subscript(text, before, after)
        if plain != text:
            _set_text(element, plain)


def _text_before(element: Element) -> str:
    """Return the end of the text before an element in its block."""
    for _ in range(_MAX_STEPS):
        before = element.getprevious()
        if before is None:
            element = element.getparent()
            if element is None or element.text or element.tag in _BLOCKS:
                return "" if element is None else (element.text or "")[-20:]
            continue
        last = before
        while not last.tail and len(last):
            last = last[-1]
        if text := last.tail or last.text:
            return str(text[-20:])
        if last.tag == "br" or last.tag in _BLOCKS:
            return ""
        element = before
    return ""


class _Fields:
    """The form fields of a page, of which those with a value are shown."""

    def __init__(self, root: Element) -> None:
        self._root = root

    @cached_property
    def _has_choices(self) -> bool:
        """Whether any box is checked; the boxes of a blank form are not marked."""
        return any(True for _ in self._root.iterfind(".//input[@checked]"))

    def text(self, field: Element) -> str:
        """Return the value of a field or the mark of a box with spaces around it, or an empty string if it has none."""
        form = next(field.iterancestors("form", "fieldset", "table"), None)
        is_hidden = field.get("hidden") is not None or _HIDDEN.search(field.get("style") or "")
        if form is None or is_hidden or _is_search(field) or _is_search(form):
            return ""
        kind, text = (field.get("type") or "text").strip().lower(), ""
        if field.tag == "textarea":
            text = "".join(field.itertext())
        elif field.tag == "select":
            chosen = (_flat(option) for option in field.iter("option") if option.get("selected") is not None)
            text = ", ".join(filter(None, chosen))
        elif kind in ("checkbox", "radio") and self._has_choices:
            text = "☒" if field.get("checked") is not None else "☐"
        elif kind in _TYPED:
            text = (field.get("value") or "").translate(_UNWRITABLE)
        if not (text := text.strip()):
            return ""
        before, after = _text_before(field)[-1:], (field.tail or "")[:1]
        return f"{'' if not before or before.isspace() else ' '}{text}{' ' if after and not after.isspace() else ''}"


def _is_search(element: Element) -> bool:
    return _POPUP.search(" ".join((element.get(name) or "")[:500] for name in _NAMING)) is not None


class _Controls:
    """The elements of a page that are shown when a button or a tab is clicked."""

    def __init__(self, root: Element) -> None:
        self._root = root

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of these elements."""
        ids: set[str] = set()
        for element in self._root.xpath(f"//*[{' or '.join(f'@{name}' for name in (*_CONTROLLING, 'onclick'))}]"):
            for name in ("aria-controls", "data-target", "data-bs-target", "popovertarget", "commandfor"):
                ids.update(part.removeprefix("#") for part in (element.get(name) or "")[:500].split())
            if any(element.get(name) is not None for name in _CONTROLLING):
                ids.add((element.get("href") or "")[:200].removeprefix("#"))
            ids.update(_QUOTED.findall((element.get("onclick") or "")[:500]))
        return frozenset(ids - {""})

    @cached_property
    def switches(self) -> frozenset[str]:
        """Ids of the boxes outside forms, which show and hide elements by style."""
        boxes = self._root.xpath("//input[@type = 'checkbox' or @type = 'radio'][@id][not(ancestor::form)]")
        return frozenset(box.get("id") for box in boxes)


FigureData = tuple[Figure, bytes | None]
"""A figure with its picture, or None for a chart."""


def _images(page: Element, source: FileSource, text: str) -> list[FigureData]:
    """Return the images of a page that are in it, or in files in its folder, and mark their places.

    Nothing is fetched, and no file outside the folder of the page is opened.
    """
    inline = iter(_INLINE.findall(text)) if "data:image" in text else iter(())
    figures: list[FigureData] = []
    total = 0
    for image in islice(page.iter("img"), MAX_IMAGES):
        address = (image.get("src") or "").strip()
        if address.lower().startswith(_DATA_PLACE):
            data = _inline_data(next(inline, ""))
        else:
            data = _local_data(source, address)
        total += len(data)
        if data and total <= MAX_LOCAL_BYTES:
            names = (image.get("alt"), image.get("title"))
            alt = next((name.translate(_UNWRITABLE).strip() for name in names if name and name.strip()), "")
            image.set(FIGURE, str(len(figures)))
            figures.append((Figure(id="", alt=" ".join(alt.split())), data))
    return figures


def _inline_data(encoded: str) -> bytes:
    with suppress(ValueError):
        return base64.b64decode("".join(unquote(encoded).split()))
    return b""


def _local_data(source: FileSource, address: str) -> bytes:
    """Return a picture in a file in the folder of a page, or nothing."""
    name = unquote(address.partition("?")[0].partition("#")[0])
    path = PurePosixPath(name.replace("\\", "/"))
    if source.depth > 1 or not name or ":" in name or "\0" in name or path.is_absolute() or ".." in path.parts:
        return b""
    if path.suffix.lower() not in _PICTURES:
        return b""
    folder = os.path.realpath(source.path.parent)
    file = os.path.realpath(os.path.join(folder, *path.parts))
    if os.path.commonpath([folder, file]) != folder:  # a link to another place
        return b""
    with suppress(OSError, ValueError):
        return read_file(Path(file), MAX_LOCAL_BYTES)
    return b""


def add_html(builder: DocumentBuilder, root: Element, figures: Sequence[FigureData] = ()) -> None:
    """Add the content of a page to a document; if the page has exactly one main element, add only this element.

    Args:
        builder: Builder of the document.
        root: Root element of the page.
        figures: The figures whose places are marked; see `FIGURE`.
    """
    if deletions := _prepare(root):
        verb = "is" if deletions == 1 else "are"
        builder.warnings.append(f"{pluralize(deletions, 'deletion')} {verb} left out: remove the mark to have it read")
    mains = root.findall(".//main")
    if len(mains) == 1 and "".join(mains[0].itertext()).strip():
        root = mains[0]
    _walk(builder, root, figures)


def _walk(builder: DocumentBuilder | _CellText, root: Element, figures: Sequence[FigureData] = ()) -> None:
    from lxml import etree

    walk, skipped = _Walk(builder, figures), None
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


@dataclass
class _CellText:
    """The lines of a table cell that contains lists, headings or tables."""

    lines: list[str] = field(default_factory=list)

    def heading(self, level: int, title: str) -> None:
        self.lines.append(title)

    def paragraph(
        self, text: str, *, follows: bool = False, keeps_space: bool = False, is_caption: bool = False
    ) -> None:
        self.lines += text.split("\n")

    def figure(self, figure: Figure, data: bytes | None = None) -> None:
        """Ignore a figure: it is added after the table."""

    def table(self, rows: Iterator[list[str]], *, caption: str = "") -> None:
        self.lines += [" ".join(filter(None, row)) for row in rows]

    def text(self) -> str:
        """Return the lines as one line."""
        text = ""
        for line in self.lines:
            if line := " ".join(line.split()).removeprefix("- "):
                separator = "; " if text and text[-1] not in ".:;,!?。：；，" else " "
                text = f"{text}{separator}{line}" if text else line
        return text


@dataclass
class _ListState:
    """A numbered list: the number of the next item, the difference to the one after it, and the type of number."""

    number: int
    step: int = 1
    kind: str = "1"

    @classmethod
    def of(cls, element: Element) -> _ListState:
        style = _LIST_STYLE.search(element.get("style") or "")
        kind = style[1].lower() if style else (element.get("type") or "1").strip()
        is_reversed = element.get("reversed") is not None
        default = sum(child.tag == "li" for child in element) if is_reversed else 1
        return cls(_whole(element.get("start"), default), -1 if is_reversed else 1, kind)

    def mark(self, item: Element) -> str:
        """Return the number of an item, followed by a space, and count it."""
        number = _whole(item.get("value"), self.number)
        self.number = number + self.step
        kind = item.get("type") or self.kind
        return "" if kind == "none" else f"{html_number(number, kind)}. "


def _whole(text: str | None, default: int) -> int:
    digits = (text or "").strip()
    is_number = re.fullmatch(r"-?[0-9]{1,9}", digits) is not None
    return max(-_MAX_NUMBER, min(int(digits), _MAX_NUMBER)) if is_number else default


class _Walk:
    """Traversal of the elements of a page that collects inline text up to the next block."""

    def __init__(self, builder: DocumentBuilder | _CellText, figures: Sequence[FigureData]) -> None:
        self._builder = builder
        self._figures = figures
        self._pending: list[FigureData] = []
        self._caption: Element | None = None
        self._pieces: list[str] = []
        self._lists: list[_ListState | None] = []  # None for a bulleted list
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
            is_caption = self._caption is not None
            self._builder.paragraph(text, follows=self._follows, keeps_space=bool(indent), is_caption=is_caption)
            self._mark, self._follows = "", bool(self._lists)
        for figure, data in self._pending:
            self._builder.figure(figure, data)
        self._pending.clear()

    def _add_figure(self, element: Element) -> None:
        """Add the figure of an element after the text of its block."""
        index = element.get(FIGURE) or ""
        if index.isdecimal() and int(index) < len(self._figures):
            self._pending.append(self._figures[int(index)])

    def enter(self, element: Element) -> bool:
        """Start an element and return whether to visit its content."""
        tag = element.tag
        if element.get(FIGURE) is not None:
            self._add_figure(element)
        if tag == "br":
            self._pieces.append("\n")
        elif tag in _TITLES and _is_title(title := _flat(element)):
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
            for inner in element.iter():
                if inner.get(FIGURE) is not None:
                    self._add_figure(inner)
            self.flush()
            return False
        if tag in _BLOCKS:
            self.flush()
            self._enter_block(element)
            if self._caption is None and (tag == "figcaption" or element.get("class") == CAPTION):
                self._caption = element
        self.inline(element.text)
        return True

    def _enter_block(self, element: Element) -> None:
        if element.tag in ("ol", "ul"):
            self._follows = bool(self._lists)
            self._lists.append(_ListState.of(element) if element.tag == "ol" else None)
        elif element.tag == "li":
            numbered = self._lists[-1] if self._lists else None
            self._mark = "- " if numbered is None else numbered.mark(element)
            if (number := element.get(NUMBER)) is not None:
                self._mark = f"{number} " if number else ""

    def leave(self, element: Element) -> None:
        """End an element."""
        if element.tag in _BLOCKS:
            self.flush()
        if element is self._caption:
            self._caption = None
        if element.tag in ("ol", "ul") and self._lists:
            self._lists.pop()
            self._mark, self._follows = "", bool(self._lists)
        elif element.tag == "li":
            self._mark = ""
        elif element.tag == "p" and not self._lists:
            self._follows = False


def _is_title(text: str) -> bool:
    """Return whether a heading is one, and not a paragraph that is set like a heading."""
    return len(text) <= MAX_TITLE or (len(text) <= MAX_LONG_TITLE and not text.endswith((".", ";", ":", ",", "。")))


def _is_dropped(element: Element, controls: _Controls) -> bool:
    """Return whether an element is not part of the text."""
    if element.tag == "template" and element.get("shadowrootmode") is not None:
        return False
    if element.tag in _DROPPED or element.get("role") == "navigation":
        return True
    if element.get("class") is not None and not _DRAWN_FORMULAS.isdisjoint(element.get("class")[:500].split()):
        return True
    if element.tag == "button":
        return not _is_toggle(element)
    if element.get("hidden") is None and not _HIDDEN.search(element.get("style") or ""):
        return False
    return not _is_revealed(element, controls)


def _is_toggle(button: Element) -> bool:
    """Return whether a button contains text of the page, such as the question of an accordion or the name of a tab."""
    names = f"{button.get('class') or ''} {button.get('id') or ''}"[:500]
    if button.get("type") in ("submit", "reset") or button.get("aria-haspopup") is not None or _POPUP.search(names):
        return False
    if any(button.get(name) is not None for name in _CONTROLLING) or button.get("role") == "tab":
        return True
    above = list(islice(button.iterancestors(), 3))
    if any(other.tag in _TITLES or other.tag in ("summary", "dt", "legend", "caption", "th") for other in above):
        return True
    if above and above[0].tag == "p" and _text_before(button).strip() and (button.tail or "").strip():
        return True  # it is named in a sentence
    is_question = "".join(islice(button.itertext(), 50)).rstrip().endswith(("?", "？"))
    after = button.getnext()
    reveals = after is not None and (after.get("hidden") is not None or _HIDDEN.search(after.get("style") or ""))
    classes = " ".join([names, *((other.get("class") or "")[:500] for other in above)])
    return is_question or bool(reveals) or _REVEALING.search(classes) is not None


def _is_revealed(element: Element, controls: _Controls) -> bool:
    """Return whether a hidden element is shown when a tab, a question or a button is clicked."""
    names = f"{element.get('class') or ''} {element.get('id') or ''}"[:500]
    if element.get("role") in _POPUP_ROLES or _POPUP.search(names):
        return False
    if element.get("hidden") == "until-found" or element.get("role") == "tabpanel" or _REVEALED.search(names):
        return True
    before = element.getprevious()
    follows = before is not None and (before.tag == "button" or before.get("role") == "button")
    if before is not None and before.tag == "label":
        follows = before.get("for") in controls.switches
    if before is not None and before.tag in _TITLES:
        follows = before.find(".//button") is not None
    return follows or (element.get("id") or "") in controls.ids


def _flat(element: Element) -> str:
    """Return the text of an element and its descendants on one line."""
    return " ".join("".join(element.itertext()).split())


# Tables


def _lists_data(table: Element) -> bool:
    """Return whether a table contains data and is not used for page layout.

    In a table with data, at least one row has several cells. Elements that are typical of page layout, such as lists,
    are in few of its cells.
    """
    if table.get("role") == "presentation":
        return False
    rows = (cells for row in _own_rows(table) if len(cells := _cells_of(row)) > 1)
    if _is_arranged(table):
        return _is_grid(list(rows))
    return any(rows)


_GROUPS = ("thead", "tbody", "tfoot")


def _is_arranged(element: Element) -> bool:
    """Return whether an element contains lists, headings, tables or other elements that are typical of page layout."""
    return next(element.iterdescendants(*_ARRANGED), None) is not None


def _own_rows(table: Element) -> Iterator[Element]:
    """Yield the rows of a table without those of the tables in its cells."""
    for child in table:
        if child.tag == "tr":
            yield child
        elif child.tag in _GROUPS:
            yield from child.iterchildren("tr")


def _cells_of(row: Element) -> list[Element]:
    return [cell for cell in row if cell.tag in ("td", "th")]


def _is_grid(rows: Sequence[Sequence[Element]]) -> bool:
    """Return whether rows with lists, headings or tables in some of their cells are rows of a table with data.

    Such a table has labels in its first row or column, and its cells are short.
    """
    if len(rows) < 2 or not all(_is_short(cell, _MAX_CELL_TEXT) for row in rows for cell in row):
        return False
    widths = [sum(_cell_span(cell, "colspan") for cell in row) for row in rows]
    arranged = [[_is_arranged(cell) for cell in row] for row in rows]
    has_forms = any(cell.find(".//form") is not None for row in rows for cell in row)
    is_regular = 5 * widths.count(max(set(widths), key=widths.count)) >= 4 * len(widths)
    if has_forms or not is_regular:
        return False
    has_top = _are_labels(rows[0], arranged[0])
    has_left = _are_labels([row[0] for row in rows], [marks[0] for marks in arranged])
    if has_top and has_left:
        return True
    if 2 * sum(map(sum, arranged)) > sum(map(len, arranged)):
        return False
    if has_top or any(cell.tag == "th" for row in rows for cell in row):
        return True
    return has_left and not any(next(cell.iterdescendants(*_TITLES), None) is not None for row in rows for cell in row)


def _are_labels(cells: Sequence[Element], arranged: Sequence[bool]) -> bool:
    """Return whether cells contain short text only; the first one may be blank."""
    return not any(arranged) and all(_is_short(cell, _MAX_LABEL) and _flat(cell) for cell in cells[1:])


def _is_short(cell: Element, limit: int) -> bool:
    """Return whether a cell has few elements and at most `limit` characters."""
    elements = sum(1 for _ in islice(cell.iter(), _MAX_CELL_ELEMENTS + 1))
    return elements <= _MAX_CELL_ELEMENTS and len(_flat(cell)) <= limit


def _rows(table: Element) -> Iterator[list[str]]:
    """Yield the rows of a table.

    A cell that spans several columns is followed by blank cells. A cell that spans several rows is repeated in each of
    them.
    """
    below: dict[int, tuple[int, str]] = {}  # column -> number of further rows, text
    for row in _own_rows(table):
        cells: list[str] = []
        for cell in (*_cells_of(row), None):
            while (spanning := below.pop(len(cells), None)) is not None:
                rows, text = spanning
                if rows > 1:
                    below[len(cells)] = (rows - 1, text)
                cells.append(text)
            if cell is None:
                break
            rows = _cell_span(cell, "rowspan")
            for text in (_cell_text(cell), *[""] * (_cell_span(cell, "colspan") - 1)):
                if rows > 1 and len(cells) < _MAX_SPANNING:
                    below[len(cells)] = (rows - 1, text)
                cells.append(text)
        yield cells


def _cell_text(cell: Element) -> str:
    """Return the text of a cell on one line, with the lines of lists and tables in it separated by semicolons."""
    if not len(cell) or not _is_arranged(cell):
        return _flat(cell)
    lines = _CellText()
    _walk(lines, cell)
    return lines.text()


def _cell_span(cell: Element, name: str) -> int:
    value = (cell.get(name) or "").strip()
    if not (value.isascii() and value.isdigit() and len(value) < 9):
        return 1
    to_end = name == "rowspan" and int(value) == 0
    return _MAX_SPAN if to_end else max(1, min(int(value), _MAX_SPAN))
