"""Read Word documents.

mammoth converts a document to HTML. Before that, `_Body` replaces what mammoth does not support with elements that it
does: fields, numbers of lists, headings by outline level, formulas, charts, text boxes.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from itertools import islice
from typing import NamedTuple

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.figures import Figure
from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.charts import chart_blocks, chart_figure, diagram_lines
from llama_index_contextual.readers.files import FileSource, PictureReader, one_line
from llama_index_contextual.readers.html import CAPTION, FIGURE, NUMBER, FigureData, add_html, parse_html
from llama_index_contextual.readers.numbering import WordNumbering
from llama_index_contextual.readers.package import (
    ALTERNATIVES,
    Element,
    Package,
    Relation,
    local,
    parse_xml,
    relation_id,
    remove_dangling_ids,
)
from llama_index_contextual.readers.scripts import office_formula

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_STRICT = "{http://purl.oclc.org/ooxml/wordprocessingml/main}"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_HEADING_STYLE = "ContextualHeading"
_LABEL = "contextual-number:"
"""Prefix of the bookmarks that carry the numbers of paragraphs through mammoth."""
_PICTURE = "contextual-picture:"
_OUTLINE_LEVELS = 6
MAX_MESSAGES = 10
"""Maximum number of different messages of mammoth that are reported."""
MAX_ALT = 1_000
"""Maximum length of an alternative text."""
MAX_PLACE = 60
"""Maximum length of the text that describes a place in a warning."""
MIN_RAISED = 4
"""Minimum distance from the line, in half-points, of raised and lowered text."""
_MAX_STYLES = 50  # maximum length of a chain of styles
_MAX_INDENTED = 5  # mammoth's default style map has five levels of lists
_HEADING_NAME = re.compile(
    r"(?i)(?:heading|überschrift|titre|título|titolo|kop|rubrik|overskrift|otsikko|nagłówek|nadpis|заголовок|başlık"
    r"|标题|標題|見出し|제목) ?([1-9])"
)
_FORMULAS = (
    "{http://schemas.openxmlformats.org/officeDocument/2006/math}",
    "{http://purl.oclc.org/ooxml/officeDocument/math}",
)
_CONTENT = frozenset(("p", "t", "tbl", "imagedata", "blip"))
_DRAWN = frozenset(("oMath", "chart", "relIds"))
_SHAPES = frozenset(("oval", "line", "polyline", "curve", "arc", "shapetype", "diagram"))
_INVISIBLE = ("proofErr", "lastRenderedPageBreak", "bookmarkStart", "bookmarkEnd", "permStart", "permEnd")
_LEFT_OUT = {
    "altChunk": "embedded file",
    "control": "form control",
    "contentPart": "ink drawing",
    "subDoc": "linked document",
}
_SYMBOL_FONTS = frozenset(("Symbol", "Webdings", "Wingdings", "Wingdings 2", "Wingdings 3"))
_STYLE_MAP = "\n".join(
    ["p[style-name='Title'] => h1:fresh"]
    + [f"p[style-name='{name}'] => p.{CAPTION}:fresh" for name in ("caption", "Caption", "Beschriftung", "Légende")]
    + [f"p.{_HEADING_STYLE}{level} => h{level}:fresh" for level in range(1, _OUTLINE_LEVELS + 1)]
)
# Messages of mammoth about its HTML, about properties, or about content that `_Body` has handled.
_IRRELEVANT = re.compile(
    r"Unrecognised (?:paragraph|run) style|.{0,20}style with ID|Image of type|Could not find image|Ignoring complex"
    r"|A v:imagedata|Unsupported break|An unrecognised element was ignored: (?!w:)"
    r"|An unrecognised element was ignored: w:(?:\w*Pr|\w*PrEx|\w*Range\w*|altChunk|control|contentPart|subDoc|delText"
    r"|background|fldData|delInstrText|separator|continuationSeparator|tblGrid)\b"
)


def add_word(builder: DocumentBuilder, source: FileSource) -> str | None:
    """Add a Word document without comments and deleted text, and return its title."""
    import mammoth

    document = _Document(Package(source.data), source.pictures)
    converted = mammoth.convert_to_html(
        document.prepared(),
        style_map=_STYLE_MAP,
        include_embedded_style_map=False,
        convert_image=mammoth.images.img_element(lambda image: {}),
    )
    root = parse_html(source, converted.value)
    for link in root.xpath("//a[starts-with(@href, '#footnote-ref') or starts-with(@href, '#endnote-ref')]"):
        link.text = ""  # this link is an arrow that leads back to the text
    _restore_numbers(root)
    _add_pictures(root, document)
    for box in root.xpath("//input[@type='checkbox']"):
        box.tail = f"{'☒' if box.get('checked') is not None else '☐'}{box.tail or ''}"
        box.drop_tree()
    add_html(builder, root, document.figures)
    titles = root.xpath("//h1")
    title = builder.headings[0].title if titles and builder.headings and builder.headings[0].start == 0 else None
    builder.page_texts(document.page_texts())
    texts = (one_line(text) for message in converted.messages if not _IRRELEVANT.match(text := message.message))
    builder.warnings += document.warnings()
    builder.warnings += [f"Word: {text}" for text in islice(dict.fromkeys(texts), MAX_MESSAGES)]
    return title


def _restore_numbers(root: Element) -> None:
    """Replace the bookmarks that carry numbers: a list item gets an attribute, any other block gets the text."""
    for bookmark in root.xpath(f"//a[starts-with(@id, '{_LABEL}')]"):
        label, block = bookmark.get("id").removeprefix(_LABEL), bookmark.getparent()
        bookmark.attrib.clear()
        if block.tag == "li" and next(block.iterancestors("td", "th"), None) is None:
            block.set(NUMBER, label)
        else:
            if block.tag == "li":
                block.set(NUMBER, "")
            bookmark.tail = f"{label} {bookmark.tail or ''}" if label else bookmark.tail
    for item in root.xpath("//*[self::td or self::th]/*[count(*) = 1]/li[not(.//ol or .//ul)]"):
        item.tag, item.getparent().tag = "p", "div"  # a numbered cell is not a list


def _add_pictures(root: Element, document: _Document) -> None:
    """Replace the bookmarks of pictures by their texts, which become blocks; a picture in a heading follows it."""
    for bookmark in root.xpath(f"//a[starts-with(@id, '{_PICTURE}')]"):
        text, figure = document.picture_text(bookmark.get("id")), document.picture_figure(bookmark.get("id"))
        bookmark.attrib.clear()
        if figure is not None:
            bookmark.set(FIGURE, str(figure))
        if not text:
            continue
        block = bookmark.makeelement("div", {})
        for line in text.split("\n"):
            block.append(lines := bookmark.makeelement("br", {}))
            lines.tail = _writable(line)
        heading = next(bookmark.iterancestors("h1", "h2", "h3", "h4", "h5", "h6"), None)
        before = bookmark if heading is None else heading
        block.tail, before.tail = before.tail, None
        before.addnext(block)


@dataclass
class _Style:
    """A style of a document: its name, the style it is based on, and its own properties."""

    name: str = ""
    based_on: str = ""
    outline_level: int | None = None
    list_id: str | None = None
    list_level: int | None = None
    is_hidden: bool | None = None
    script: str = ""


class _ShownPicture(NamedTuple):
    """The text of a picture, as read by OCR, and the index of its figure."""

    text: str
    figure: int


class _Document:
    """The parts of a Word document.

    Attributes:
        notes: What is left out, with the number of occurrences.
        page_references: The relationship ids of the headers and footers, in order.
        styles: The styles by their ids.
        numbering: The numbers of the paragraphs.
        figures: The pictures and charts.
    """

    def __init__(self, package: Package, pictures: PictureReader | None) -> None:
        self.package = package
        self._shown_pictures: list[_ShownPicture] = []
        self.figures: list[FigureData] = []
        self._pictures = pictures
        self.notes: Counter[str] = Counter()
        self.page_references: dict[str, None] = {}
        self._lists: dict[str, tuple[str, int] | None] = {}
        self._main = package.main_part() or "word/document.xml"
        if self._main not in package.names:
            raise ValueError("it has no document")
        self._relations = package.relations(self._main)
        root = package.xml(self._part("styles"))
        self.styles = {} if root is None else dict(_styles(root))
        self._defaults = {} if root is None else dict(_default_styles(root))
        definitions = package.xml(self._part("numbering"))
        space = _W if definitions is None else definitions.tag.removesuffix("numbering")
        links = {} if root is None else dict(_numbering_styles(root))
        self.numbering = WordNumbering(definitions, space, links)

    def _part(self, kind: str) -> str:
        targets = [to.target for to in self._relations.values() if to.kind == kind and to.target in self.package.names]
        return targets[0] if targets else f"word/{kind}.xml"

    def prepared(self) -> BytesIO:
        """Return the document as an archive that mammoth can convert."""
        from lxml import etree

        bodies = {self._main: self._relations}
        for kind in ("footnotes", "endnotes"):
            if (name := self._part(kind)) in self.package.names:
                bodies[name] = self.package.relations(name)
        comments = self.package.xml(self._part("comments"))  # a damaged part is left out of the archive
        archive = BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
            for name in self.package.names - self.package.damaged.keys():
                if name in bodies:
                    root = parse_xml(self.package.read(name)) if name == self._main else self.package.xml(name)
                    if root is None:
                        continue
                    _Body(self, root, bodies[name]).prepare()
                    remove_dangling_ids(root, self.package.relation_ids(name))
                    target.writestr(name, etree.tostring(root, encoding="utf-8", xml_declaration=True))
                elif name.endswith((".xml", ".rels")) and not name.startswith(("customXml", "word/theme")):
                    target.writestr(name, self.package.read(name))
        archive.seek(0)
        count = 0 if comments is None else sum(local(child) == "comment" for child in comments)
        if count:
            self.notes["comment"] += count
        return archive

    @cached_property
    def note_ids(self) -> dict[str, set[str]]:
        """Ids of the footnotes and of the endnotes."""
        ids: dict[str, set[str]] = {}
        for kind in ("footnote", "endnote"):
            root = self.package.xml(self._part(f"{kind}s"))
            notes = [] if root is None else list(root)
            ids[kind] = {value for note in notes for key, value in note.attrib.items() if key.endswith("}id")}
        return ids

    def chain(self, style: str) -> Iterator[_Style]:
        """Yield a style and the styles on which it is based."""
        for _ in range(_MAX_STYLES):
            if style not in self.styles:
                return
            yield self.styles[style]
            style = self.styles[style].based_on

    @cached_property
    def heading_levels(self) -> dict[str, int]:
        """Levels of the headings with a style that mammoth does not recognise, by the id of the style."""
        levels = {}
        for style_id, style in self.styles.items():
            if _is_known(style_id, style.name):
                continue
            for other in self.chain(style_id):
                match = _HEADING_NAME.fullmatch(other.name)
                if match or other.outline_level is not None:
                    level = int(match[1]) - 1 if match else other.outline_level or 0
                    if level < 9:
                        levels[style_id] = min(level + 1, _OUTLINE_LEVELS)
                    break
                if other.name.lower() == "title":
                    levels[style_id] = 1
                    break
        return levels

    def list_of(self, style: str) -> tuple[str, int] | None:
        """Return the list and the level of a paragraph style, or None; an empty style is the default style."""
        style = style or self._defaults.get("paragraph", "")
        if style not in self._lists:
            self._lists[style] = self._find_list(style)
        return self._lists[style]

    def _find_list(self, style: str) -> tuple[str, int] | None:
        list_id = level = None
        for other in self.chain(style):
            list_id = other.list_id if list_id is None else list_id
            level = other.list_level if level is None else level
        if not list_id or list_id == "0":
            return None
        linked = self.numbering.level_of_style(list_id, style)
        return list_id, linked if linked is not None else level or 0

    def is_hidden(self, run_style: str, paragraph_style: str) -> bool:
        """Return whether a run with these styles is hidden."""
        for style in (run_style, paragraph_style or self._defaults.get("paragraph", "")):
            for other in self.chain(style):
                if other.is_hidden is not None:
                    return other.is_hidden
        return False

    def script(self, run_style: str) -> str:
        """Return "superscript", "subscript" or an empty string for a run style."""
        return next((other.script for other in self.chain(run_style) if other.script), "")

    @cached_property
    def has_hidden_styles(self) -> bool:
        """Whether any style hides its text."""
        return any(style.is_hidden for style in self.styles.values())

    def page_texts(self) -> list[tuple[str, str]]:
        """Return the kind ("header" or "footer") and the text of each header and footer that a section uses."""
        texts = []
        for key in self.page_references:
            to = self._relations.get(key)
            if to is not None and to.kind in ("header", "footer") and (root := self.package.xml(to.target)) is not None:
                body = _Body(self, root, self.package.relations(to.target))
                body.prepare()
                texts += [(to.kind, text) for text in body.lines()]
        return texts

    def picture(self, name: str, place: str, alt: str) -> int | None:
        """Return the index of a picture in `_shown_pictures`, or None if the file does not contain it."""
        if name not in self.package.names:
            return None
        data = self.package.read(name)
        text = None if self._pictures is None else self._pictures.text(data, place)
        return self._show(text or "", (Figure(id="", alt=alt), data))

    def chart(self, figure: Figure) -> int:
        """Return the index of a chart in `_shown_pictures`."""
        return self._show("", (figure, None))

    def _show(self, text: str, figure: FigureData) -> int:
        self.figures.append(figure)
        self._shown_pictures.append(_ShownPicture(text, len(self.figures) - 1))
        return len(self._shown_pictures) - 1

    def _shown_picture(self, bookmark: str) -> _ShownPicture | None:
        index = bookmark.removeprefix(_PICTURE)
        is_picture = bookmark.startswith(_PICTURE) and index.isdecimal() and int(index) < len(self._shown_pictures)
        return self._shown_pictures[int(index)] if is_picture else None

    def picture_text(self, bookmark: str) -> str:
        """Return the text of the picture that a bookmark stands for, or an empty string."""
        picture = self._shown_picture(bookmark)
        return "" if picture is None else picture.text

    def picture_figure(self, bookmark: str) -> int | None:
        """Return the index in `figures` of the picture that a bookmark stands for, or None for any other bookmark."""
        picture = self._shown_picture(bookmark)
        return None if picture is None else picture.figure

    def warnings(self) -> list[str]:
        """Return a sentence for each kind of content that is left out."""
        return [
            _SENTENCES[kind].format(pluralize(count, kind), "is" if count == 1 else "are")
            for kind, count in self.notes.items()
        ] + self.package.warnings()


_SENTENCES = {
    "comment": "{} {} left out: move what is needed into the text",
    "deletion": "{} {} left out, which Word tracks: accept or reject the changes in Word",
    "hidden passage": "{} {} left out: show it in Word (Font, Hidden) to have it read",
    "embedded file": "{} {} left out: save it as a file of its own to have it read",
    "form control": "{} {} left out: enter what is needed as text",
    "ink drawing": "{} {} left out: write what is needed as text",
    "linked document": "{} {} left out: add it as a file of its own",
    "chart without values": "{} {} left out: save it as a picture, or its values as a table",
    "diagram without text": "{} {} left out: save it as a picture",
    "picture that the file does not contain": "{} {} left out: insert it again",
    "note that the file does not contain": "{} {} left out: open the file, repair it and save it",
}


def _is_known(style_id: str, name: str) -> bool:
    """Return whether mammoth's default style map or `_STYLE_MAP` makes a heading of this style."""
    is_heading = re.fullmatch(r"[Hh]eading [1-6]|Heading|Title", name) or re.fullmatch(r"Heading[1-6]?", style_id)
    return is_heading is not None


def _default_styles(root: Element) -> Iterator[tuple[str, str]]:
    """Yield the type and the id of each default style."""
    w = root.tag.removesuffix("styles")
    for element in root.iterchildren(f"{w}style"):
        if _is_on(element.get(f"{w}default", "0")):
            yield element.get(f"{w}type", ""), element.get(f"{w}styleId", "")


def _numbering_styles(root: Element) -> Iterator[tuple[str, str]]:
    """Yield the id of each numbering style and the id of its list."""
    w = root.tag.removesuffix("styles")
    for element in root.iterchildren(f"{w}style"):
        if element.get(f"{w}type") == "numbering":
            number = element.find(f"{w}pPr/{w}numPr/{w}numId")
            if number is not None:
                yield element.get(f"{w}styleId", ""), number.get(f"{w}val", "")


def _styles(root: Element) -> Iterator[tuple[str, _Style]]:
    """Yield the ids and the properties of the paragraph and character styles."""
    w = root.tag.removesuffix("styles")

    def value(element: Element, path: str) -> str | None:
        child = element.find("/".join(f"{w}{name}" for name in path.split("/")))
        return None if child is None else child.get(f"{w}val", "")

    for element in root.iterchildren(f"{w}style"):
        hidden = value(element, "rPr/vanish")
        yield (
            element.get(f"{w}styleId", ""),
            _Style(
                name=value(element, "name") or "",
                based_on=value(element, "basedOn") or "",
                outline_level=_integer(value(element, "pPr/outlineLvl")),
                list_id=value(element, "pPr/numPr/numId"),
                list_level=_integer(value(element, "pPr/numPr/ilvl")),
                is_hidden=None if hidden is None else _is_on(hidden),
                script=value(element, "rPr/vertAlign") or _script(value(element, "rPr/position")),
            ),
        )


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 4 else None


def _script(position: str | None) -> str:
    """Return the name of the script for a position in half-points above or below the line; small ones are corrections.

    Example:
        >>> _script("8"), _script("-6"), _script("1")
        ('superscript', 'subscript', '')
    """
    number = _integer((position or "").removeprefix("-")) or 0
    if number < MIN_RAISED:
        return ""
    return "subscript" if (position or "").startswith("-") else "superscript"


def _is_on(value: str) -> bool:
    return value not in ("0", "false", "off")


@dataclass
class _Field:
    """A complex field.

    Attributes:
        in_instruction: Whether the instruction is still being read.
        texts: The elements with text in the instruction.
        instruction: The parts of the instruction.
        has_result: Whether text has been read after the instruction.
    """

    in_instruction: bool = True
    texts: list[Element] = field(default_factory=list)
    instruction: list[str] = field(default_factory=list)
    has_result: bool = False


_OVERPRINT = re.compile(r"\\o(?:\\a[a-z])?\(\\s\\up ?\d{1,3}\(([^()]{0,100})\)[,;]([^()]{0,100})\)")
_EQUATION_FRACTION = re.compile(r"\\f ?\(([^(),;]{1,100})[,;]([^(),;]{1,100})\)", re.IGNORECASE)
_FORMAT_SWITCH = re.compile(r'\\\* ?(?:"[^"]*+"|\w+) ?')


def _shown_instruction(instruction: str) -> str:
    """Return what is shown for a field without a stored result, such as a button, or an empty string.

    Example:
        >>> _shown_instruction(" MACROBUTTON NoMacro [Enter name] "), _shown_instruction(r"EQ \\f(a,b)")
        ('[Enter name]', '(a)/(b)')
    """
    kind, _, rest = instruction.strip().partition(" ")
    rest = rest.strip()
    if kind.upper() in ("MACROBUTTON", "GOTOBUTTON"):
        return rest.partition(" ")[2].strip()
    if kind.upper() == "EQ":
        rest = _OVERPRINT.sub(r"\2(\1)", _FORMAT_SWITCH.sub("", rest))
        return _EQUATION_FRACTION.sub(r"(\1)/(\2)", rest).strip()
    number = _integer(rest.partition(" ")[0]) if kind.upper() == "SYMBOL" else None
    return chr(number) if number and number >= 32 else ""


class _Body:
    """A part of a Word document with paragraphs, which is prepared for mammoth in place.

    Args:
        document: The document.
        root: Root element of the part.
        relations: The parts to which it refers.
    """

    def __init__(self, document: _Document, root: Element, relations: Mapping[str, Relation]) -> None:
        self._document = document
        self._root = root
        self._relations = relations
        self._w = _STRICT if root.tag.startswith(_STRICT) else _W
        self._fields: list[_Field] = []
        self._place = "at the beginning"
        self._reading = ""  # pronunciation of adjacent words
        word: dict[str, Callable[[Element], None]] = {
            "p": self._paragraph,
            "r": self._run,
            "t": self._text,
            "tab": self._text,
            "br": self._break,
            "cr": self._line_end,
            "ptab": self._tab,
            "fldChar": self._field_mark,
            "instrText": self._instruction,
            "footnoteReference": self._note_mark,
            "endnoteReference": self._note_mark,
            "ruby": self._ruby,
            "tr": self._row,
            "del": self._deletion,
            "drawing": self._drawing,
            "pict": self._picture,
            "object": self._picture,
            "headerReference": self._page_text,
            "footerReference": self._page_text,
            **dict.fromkeys(("fldSimple", "dir", "bdo"), self._unwrap),
            **dict.fromkeys(_INVISIBLE, self._remove),
            **dict.fromkeys(_LEFT_OUT, self._leave_out),
        }
        self._steps = {f"{self._w}{name}": step for name, step in word.items()}
        self._steps |= {f"{space}oMath": self._formula for space in _FORMULAS}
        self._steps["{urn:schemas-microsoft-com:office:office}OLEObject"] = self._leave_out

    def prepare(self) -> None:
        """Replace what mammoth does not support."""
        for element in list(self._root.iter(ALTERNATIVES)):
            self._choose(element)
        for element in list(self._root.iter()):
            step = self._steps.get(element.tag)
            if step is not None and element.getparent() is not None:
                step(element)

    def lines(self) -> list[str]:
        """Return the text of each paragraph, with tab stops as spaces."""
        lines = []
        for paragraph in self._root.iter(f"{self._w}p"):
            pieces = []
            for element in paragraph.iter():
                name = local(element)
                if name == "t":
                    pieces.append(element.text or "")
                elif name in ("tab", "br"):
                    pieces.append(" ")
                elif name == "bookmarkStart":
                    pieces.append(f" {self._document.picture_text(element.get(f'{self._w}name', ''))} ")
            lines.append(" ".join("".join(pieces).split()))
        return [line for line in lines if line]

    # Elements

    def _new(self, tag: str, text: str | None = None, **attributes: str) -> Element:
        element = self._root.makeelement(f"{self._w}{tag}", {f"{self._w}{key}": at for key, at in attributes.items()})
        if text is not None:
            element.text = _writable(text)
            element.set(_SPACE, "preserve")
        return element

    def _run_of(self, text: str) -> Element:
        """Return a run with a text, in which line feeds are line breaks."""
        run = self._new("r")
        for at, line in enumerate(text.split("\n")):
            if at:
                run.append(self._new("br"))
            run.append(self._new("t", line))
        return run

    def _paragraph_of(self, text: str) -> Element:
        paragraph = self._new("p")
        paragraph.append(self._run_of(text))
        return paragraph

    def _remove(self, element: Element) -> None:
        element.getparent().remove(element)

    def _replace(self, element: Element, others: Iterable[Element]) -> None:
        for other in others:
            element.addprevious(other)  # takes constant time, unlike the assignment of a slice
        element.getparent().remove(element)

    def _unwrap(self, element: Element) -> None:
        self._replace(element, list(element))

    def _choose(self, element: Element) -> None:
        """Replace alternatives with the fallback, as mammoth does, or with the first choice if only it has content."""
        if element.getparent() is None:
            return
        branches = {local(child): child for child in reversed(element)}
        fallback, choice = branches.get("Fallback"), branches.get("Choice")
        has_text = fallback is not None and any(local(each) in _CONTENT for each in fallback.iter())
        is_drawn = choice is not None and any(local(each) in _DRAWN for each in choice.iter())
        branch = fallback if has_text and not is_drawn else choice if choice is not None else fallback
        self._replace(element, [] if branch is None else list(branch))

    # Fields

    def _field_mark(self, element: Element) -> None:
        kind = element.get(f"{self._w}fldCharType")
        if kind == "begin":
            self._fields.append(_Field())
            if (choice := self._choice(element)) is not None:
                element.addnext(self._new("t", choice))
        elif self._fields:
            ended = self._fields[-1]
            # Text in the instruction of a field, such as the condition of an IF field, is not shown.
            for text in ended.texts:
                if text.getparent() is not None:
                    self._remove(text)
            ended.in_instruction = False
            ended.texts.clear()
            if kind == "end":
                self._fields.pop()
                self._show_instruction(element, ended)

    def _show_instruction(self, element: Element, ended: _Field) -> None:
        """Add the text of a field without a result after its end, unless it is in the instruction of another field."""
        is_hidden = ended.has_result or any(outer.in_instruction for outer in self._fields)
        if not is_hidden and (text := _shown_instruction("".join(ended.instruction))):
            element.addnext(self._new("t", text))

    def _instruction(self, element: Element) -> None:
        if self._fields:
            self._fields[-1].instruction.append(element.text or "")

    def _choice(self, element: Element) -> str | None:
        """Return the selected entry of a drop-down list of a form, or None."""
        for choices in element.iter(f"{self._w}ddList"):
            entries = [each.get(f"{self._w}val", "") for each in choices.iterchildren(f"{self._w}listEntry")]
            marks = [choices.find(f"{self._w}{name}") for name in ("result", "default")]
            at = next((_integer(mark.get(f"{self._w}val")) for mark in marks if mark is not None), 0) or 0
            return entries[at] if at < len(entries) else None
        return None

    def _text(self, element: Element) -> None:
        if (element.text or "").strip():
            self._place = f"after {one_line(element.text, MAX_PLACE)!r}"
        for outer in reversed(self._fields):
            if outer.in_instruction:
                outer.texts.append(element)
                return
            outer.has_result = True

    def _note_mark(self, element: Element) -> None:
        """Remove the mark of a note that does not exist, with which mammoth could not read the document."""
        kind = local(element).removesuffix("Reference")
        if element.get(f"{self._w}id", "") not in self._document.note_ids[kind]:
            self._document.notes["note that the file does not contain"] += 1
            self._remove(element)

    def _ruby(self, element: Element) -> None:
        """Replace text with its pronunciation above it by the text and the pronunciation in parentheses."""
        base, reading = element.find(f"{self._w}rubyBase"), element.find(f"{self._w}rt")
        self._reading += "" if reading is None else "".join(text.text or "" for text in reading.iter(f"{self._w}t"))
        run = element.getparent()
        after = run.getnext() if local(run) == "r" else None
        others = [] if base is None else list(base)
        if (after is None or after.find(f"{self._w}ruby") is None) and self._reading:
            others.append(self._new("t", f"({self._reading})"))
            self._reading = ""
        self._replace(element, others)

    # Runs

    def _run(self, element: Element) -> None:
        properties = element.find(f"{self._w}rPr")
        style = self._value(properties, "rStyle") or ""
        self._decode_symbols(element, properties)
        hidden = self._value(properties, "vanish")
        if _is_on(hidden) if hidden is not None else self._has_hidden_style(element, style):
            self._hide(element)
        elif self._value(properties, "vertAlign") is None and (
            script := _script(self._value(properties, "position")) or self._document.script(style)
        ):
            names = {local(child) for child in element}
            if not names & {"footnoteReference", "endnoteReference", "footnoteRef", "endnoteRef"}:
                properties.append(self._new("vertAlign", val=script))

    def _decode_symbols(self, element: Element, properties: Element | None) -> None:
        """Replace characters in the private use area by what fonts of symbols such as Wingdings show for them."""
        fonts = None if properties is None else properties.find(f"{self._w}rFonts")
        font = "" if fonts is None else fonts.get(f"{self._w}ascii", "")
        if font in _SYMBOL_FONTS:
            from mammoth.docx.dingbats import dingbats

            for text in element.iterchildren(f"{self._w}t"):
                codes = (dingbats.get((font, ord(char) - 0xF000), ord(char)) for char in text.text or "")
                text.text = "".join(map(chr, codes))

    def _hide(self, element: Element) -> None:
        """Remove the text of a hidden run, but not the marks of fields."""
        has_text = False
        for child in list(element):
            if local(child) not in ("fldChar", "instrText", "rPr"):
                has_text = has_text or bool("".join(child.itertext()).strip())
                element.remove(child)
        before = element.getprevious()
        if has_text and not (before is not None and before.get("hidden")):
            self._document.notes["hidden passage"] += 1
        element.set("hidden", "1")

    def _has_hidden_style(self, element: Element, style: str) -> bool:
        if not self._document.has_hidden_styles:
            return False
        paragraph = next(element.iterancestors(f"{self._w}p"), None)
        around = None if paragraph is None else self._value(paragraph.find(f"{self._w}pPr"), "pStyle")
        return self._document.is_hidden(style, around or "")

    def _value(self, properties: Element | None, name: str) -> str | None:
        child = None if properties is None else properties.find(f"{self._w}{name}")
        return None if child is None else child.get(f"{self._w}val", "")

    def _break(self, element: Element) -> None:
        if element.get(f"{self._w}type") in ("page", "column"):
            self._replace(element, [self._new("t", " ")])
        else:
            self._text(element)

    def _line_end(self, element: Element) -> None:
        self._replace(element, [self._new("br")])

    def _tab(self, element: Element) -> None:
        self._replace(element, [self._new("tab")])

    def _deletion(self, element: Element) -> None:
        if local(element.getparent()) != "rPr" and any(local(each) == "delText" for each in element.iter()):
            self._document.notes["deletion"] += 1

    def _formula(self, element: Element) -> None:
        if local(element.getparent()) == "oMathPara":
            element = element.getparent()
            if element.getparent() is None:  # it has been replaced with the first of its formulas
                return
        self._replace(element, [self._run_of(office_formula(element))])

    # Paragraphs and tables

    def _paragraph(self, element: Element) -> None:
        properties = element.find(f"{self._w}pPr")
        style = self._value(properties, "pStyle") or ""
        level = _integer(self._value(properties, "outlineLvl"))
        heading = self._document.heading_levels.get(style)
        if level is not None and level < 9 and not self._is_heading(style):
            heading = min(level + 1, _OUTLINE_LEVELS)
        numbered = self._list_of(properties, style)
        if numbered is None and heading is None:
            return
        if properties is None:
            properties = self._new("pPr")
            element.insert(0, properties)
        if heading is not None:
            self._set(properties, "pStyle", f"{_HEADING_STYLE}{heading}", first=True)
        if numbered is not None and not self._is_deleted(properties):
            self._number(element, properties, *numbered)

    def _is_heading(self, style: str) -> bool:
        return style in self._document.styles and _is_known(style, self._document.styles[style].name)

    def _is_deleted(self, properties: Element) -> bool:
        return properties.find(f"{self._w}rPr/{self._w}del") is not None

    def _list_of(self, properties: Element | None, style: str) -> tuple[str, int] | None:
        own = None if properties is None else properties.find(f"{self._w}numPr")
        list_id, level = self._value(own, "numId"), _integer(self._value(own, "ilvl"))
        if list_id == "0":
            for name in ("numId", "ilvl"):  # mammoth would number it by its style
                self._set(own, name, "0")
            return None
        by_style = self._document.list_of(style)
        if list_id is None:
            return by_style if by_style is None or level is None else (by_style[0], level)
        linked = self._document.numbering.level_of_style(list_id, style) if level is None else level
        return list_id, linked or 0

    def _number(self, element: Element, properties: Element, list_id: str, level: int) -> None:
        """Count a numbered paragraph, and add its number as a bookmark."""
        own = properties.find(f"{self._w}numPr")
        if own is None:
            own = self._new("numPr")
            properties.append(own)
        self._set(own, "ilvl", str(level))
        self._set(own, "numId", list_id)
        label = self._document.numbering.label(list_id, level)
        if label is not None:
            properties.addnext(self._new("bookmarkStart", name=f"{_LABEL}{label}"))

    def _set(self, parent: Element, name: str, value: str, *, first: bool = False) -> None:
        child = parent.find(f"{self._w}{name}")
        if child is None:
            child = self._new(name)
            parent.insert(0, child) if first else parent.append(child)
        child.set(f"{self._w}val", value)

    def _row(self, element: Element) -> None:
        """Add the blank cells of a row that begins further right than its table."""
        for properties in element.findall(f"{self._w}trPr"):
            skipped = _integer(self._value(properties, "gridBefore")) or 0
            for _ in range(min(skipped, 60)):
                cell = self._new("tc")
                cell.append(self._new("p"))
                properties.addnext(cell)

    # Drawings

    def _drawing(self, element: Element) -> None:
        """Add the text of charts, diagrams and text boxes after the paragraph of a drawing."""
        blocks: list[Element] = []
        for part in list(element.iter()):
            name = local(part)
            if part.tag == f"{self._w}txbxContent":
                box = self._new("pict")
                box.append(part)
                element.addnext(box)
            elif name == "blip":
                self._add_picture(element, relation_id(part, "embed"))
            elif name == "chart" and (key := relation_id(part, "id")):
                blocks += self._chart(self._target(key))
            elif name == "relIds":
                root = self._target(relation_id(part, "dm"))
                lines = [] if root is None else diagram_lines(root)
                if not lines:
                    self._document.notes["diagram without text"] += 1
                blocks += map(self._paragraph_of, lines)
        paragraph = next(element.iterancestors(f"{self._w}p"), None)
        if paragraph is not None:
            for block in reversed(blocks):
                paragraph.addnext(block)

    def _picture(self, element: Element) -> None:
        """Move text boxes out of shapes that mammoth does not support, such as ellipses."""
        for box in list(element.iter(f"{self._w}txbxContent")):
            if any(local(shape) in _SHAPES for shape in box.iterancestors()):
                element.append(box)

        for path in element.iter("{urn:schemas-microsoft-com:vml}textpath"):  # decorative text
            element.addnext(self._new("t", f" {path.get('string', '')} "))
        for image in element.iter("{urn:schemas-microsoft-com:vml}imagedata"):
            self._add_picture(element, relation_id(image, "id"))

    def _add_picture(self, element: Element, key: str) -> None:
        """Add a bookmark with the index of a picture whose text is known after the element that shows it."""
        to = self._relations.get(key)
        if key and (to is None or to.target not in self._document.package.names):
            self._document.notes["picture that the file does not contain"] += 1
        index = None if to is None else self._document.picture(to.target, self._place, _description(element))
        if index is not None:
            element.addnext(self._new("bookmarkStart", name=f"{_PICTURE}{index}"))

    def _page_text(self, element: Element) -> None:
        self._document.page_references.setdefault(relation_id(element, "id"))

    def _target(self, key: str) -> Element | None:
        to = self._relations.get(key)
        return None if to is None else self._document.package.xml(to.target)

    def _chart(self, root: Element | None) -> Iterator[Element]:
        blocks = [] if root is None else chart_blocks(root)
        if not blocks:
            self._document.notes["chart without values"] += 1
        else:
            place = self._new("p")
            place.append(self._new("bookmarkStart", name=f"{_PICTURE}{self._document.chart(chart_figure(blocks))}"))
            yield place
        for block in blocks:
            if isinstance(block, str):
                yield self._paragraph_of(block)
                continue
            table = self._new("tbl")
            for row in block:
                table.append(line := self._new("tr"))
                for text in row:
                    line.append(cell := self._new("tc"))
                    cell.append(self._paragraph_of(text))
            yield table

    def _leave_out(self, element: Element) -> None:
        self._document.notes[_LEFT_OUT.get(local(element), "embedded file")] += 1


def _description(element: Element) -> str:
    """Return the alternative text of a drawing, or its title."""
    properties = "descendant::*[local-name()='docPr' or local-name()='cNvPr']"
    texts = [*element.xpath(f"{properties}/@descr"), *element.xpath(f"{properties}/@title"), *element.xpath(".//@alt")]
    return one_line(_writable(next((text for text in texts if text.strip()), "")), MAX_ALT)


# Characters that XML does not allow.
_CONTROLS = dict.fromkeys((*range(0x20), 0xFFFE, 0xFFFF)) | {0x09: "\t", 0x0A: "\n"}


def _writable(text: str) -> str:
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode()
