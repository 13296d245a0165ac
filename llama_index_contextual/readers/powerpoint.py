"""Read PowerPoint presentations."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import BytesIO
from itertools import islice
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.figures import Figure
from llama_index_contextual.readers.builder import DocumentBuilder, clean_text
from llama_index_contextual.readers.charts import chart_blocks, chart_figure, diagram_lines, drawing_line
from llama_index_contextual.readers.figures import FILE_NAME
from llama_index_contextual.readers.files import FileSource, PictureReader, one_line
from llama_index_contextual.readers.numbering import slide_number
from llama_index_contextual.readers.package import Element, Package, local, parse_xml, relation_id, use_choices
from llama_index_contextual.readers.text import MAX_TITLE

MAX_DEPTH = 100
"""Maximum nesting depth of groups of shapes."""
MAX_ALT = 1_000
BACKGROUND = 0.9
"""Minimum share of a slide that a picture covers for it to be the background, or a scan."""
EMU_PER_POINT = 12_700
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_BLANK_CHART = b'<c:chartSpace xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"/>'


def add_slides(builder: DocumentBuilder, source: FileSource) -> str | None:
    """Add the slides of a presentation with their notes, and return its title."""
    from pptx import Presentation

    first = None
    presentation = Presentation(_with_sound_charts(source.data))
    size = presentation.slide_width or 0, presentation.slide_height or 0
    slides = _Slides(builder, source.pictures, size)
    for number, slide in enumerate(presentation.slides, 1):
        builder.page(str(number))
        heading = slides.add(number, slide)
        first = first or heading
    slides.finish(presentation)
    return first


def _with_sound_charts(data: bytes) -> BytesIO:
    """Return a presentation in which blank charts replace damaged ones, with which no slide could be read."""
    package = Package(data)
    charts = [name for name in package.names if name.startswith("ppt/charts/") and name.endswith(".xml")]
    damaged = {name for name in charts if package.xml(name) is None}
    if not damaged:
        return BytesIO(data)
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
        for name in package.names:
            target.writestr(name, _BLANK_CHART if name in damaged else package.read(name))
    archive.seek(0)
    return archive


class _Slides:
    """The slides added so far, and what they have in common.

    Args:
        builder: Builder of the document.
        pictures: Pictures of the presentation.
        size: Width and height of a slide.
    """

    def __init__(self, builder: DocumentBuilder, pictures: PictureReader | None, size: tuple[int, int]) -> None:
        self._builder = builder
        self._pictures = pictures
        self._footers: dict[str, None] = {}
        self._size = size
        self._hidden: list[int] = []
        self._unseen: dict[int, int] = {}  # slide -> number of shapes
        self._comments = 0
        self._unread: dict[str, None] = {}

    def add(self, number: int, slide: Any) -> str:
        """Add a slide with its notes, and return its title."""
        builder = self._builder
        use_choices(slide.element)
        title = slide.shapes.title
        has_title = title is not None and title.has_text_frame
        heading = " ".join(clean_text(_text(title.text_frame)).split()) if has_title else ""
        is_long = len(heading) > MAX_TITLE
        builder.heading(1, f"Slide {number}" if is_long or not heading else heading)
        if is_long:
            builder.paragraph(heading)
        for shape in _shapes(slide.shapes, partial(self._is_shown, number)):
            if title is None or shape.shape_id != title.shape_id:
                self._add_shape(number, shape)
        for background in slide.element.xpath("./p:cSld/p:bg"):
            self._add_pictures(number, slide.part, background)
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        if notes is not None and notes.text.strip():
            builder.heading(2, "Notes")
            builder.paragraph(_text(notes))
        if slide.element.get("show") in ("0", "false"):
            self._hidden.append(number)
        for relation in _internal(slide.part, "comments"):
            self._comments += sum(local(child) == "cm" for child in part_root(relation.target_part))
        return heading

    def finish(self, presentation: Any) -> None:
        """Add the footers, and warnings about what is hidden or left out."""
        builder = self._builder
        builder.page_texts(("footer", text) for text in (*self._footers, *_texts_of_layouts(presentation)))
        if self._hidden:
            slides = ", ".join(map(str, self._hidden[:20]))
            builder.warnings.append(f"{pluralize(len(self._hidden), 'slide')} hidden in the show and read: {slides}")
        if self._unseen:
            slides = ", ".join(map(str, islice(self._unseen, 20)))
            count = sum(self._unseen.values())
            builder.warnings.append(
                f"{pluralize(count, 'shape')} {'is' if count == 1 else 'are'} hidden or outside the slide and left out"
                f" (slide {slides}): show in PowerPoint what is needed (Arrange, Selection Pane), or move it"
            )
        if self._comments:
            verb = "is" if self._comments == 1 else "are"
            builder.warnings.append(f"{pluralize(self._comments, 'comment')} {verb} left out")
        builder.warnings += self._unread

    def _is_shown(self, number: int, shape: Any) -> bool:
        """Return whether a shape is on the slide and visible, and count it otherwise if it has text."""
        is_hidden = shape.element.xpath("boolean(./*/p:cNvPr[@hidden = '1' or @hidden = 'true'])")
        is_outside = local(shape.element.getparent()) == "spTree" and self._is_outside(shape)
        if not is_hidden and not is_outside:
            return True
        if any((text.text or "").strip() for text in shape.element.iter(f"{_A}t")):
            self._unseen[number] = self._unseen.get(number, 0) + 1
        return False

    def _is_outside(self, shape: Any) -> bool:
        left, top, width, height = shape.left, shape.top, shape.width, shape.height
        if None in (left, top, width, height):
            return False
        right, bottom = self._size
        return bool(left >= right > 0 or top >= bottom > 0 or left + width <= 0 or top + height <= 0)

    def _add_shape(self, number: int, shape: Any) -> None:
        from pptx.enum.shapes import PP_PLACEHOLDER

        builder = self._builder
        kind = shape.placeholder_format.type if shape.is_placeholder else None
        if kind in (PP_PLACEHOLDER.SLIDE_NUMBER, PP_PLACEHOLDER.DATE):
            return
        if kind == PP_PLACEHOLDER.FOOTER or kind == PP_PLACEHOLDER.HEADER:
            self._footers.setdefault(_text(shape.text_frame))
        elif shape.has_text_frame:
            builder.paragraph(_text(shape.text_frame))
        elif getattr(shape, "has_table", False):
            builder.table(_rows(shape.table))
        elif shape.element.tag.endswith("}graphicFrame"):
            self._add_frame(number, shape)
        else:
            description = shape.element.xpath("string(.//p:cNvPr/@descr)")
            if " " in description.strip():  # a single word is probably a file name
                builder.paragraph(description)
        self._add_pictures(number, shape.part, shape.element, shape)

    def _add_pictures(self, number: int, part: Any, element: Element, shape: Any = None) -> None:
        """Add the text of the pictures in an element and, if it is a shape, the pictures as figures."""
        for blip in element.iter(f"{_A}blip"):
            relation = part.rels.get(relation_id(blip, "embed"))
            if relation is None or relation.is_external:
                continue
            data = relation.target_part.blob
            if shape is not None and (box := self._box(shape)) is not None:
                self._builder.figure(Figure(id="", alt=_description(element), box=box), data)
            if self._pictures is not None:
                text = self._pictures.text(data, f"slide {number}")
                self._builder.paragraph(text or "", keeps_space=True)

    def _box(self, shape: Any) -> tuple[float, float, float, float] | None:
        """Return the edges of a shape on its slide in points, or None for a picture that covers the slide."""
        edges = (shape.left, shape.top, shape.width, shape.height)
        if None in edges or 0 in self._size:
            return 0.0, 0.0, 0.0, 0.0
        left, top, width, height = edges
        if width * height >= BACKGROUND * self._size[0] * self._size[1]:
            return None
        points = (edge / EMU_PER_POINT for edge in (left, top, left + width, top + height))
        x0, y0, x1, y1 = (round(point, 1) for point in points)
        return x0, y0, x1, y1

    def _add_frame(self, number: int, shape: Any) -> None:
        """Add the values of a chart or the text of a diagram, or a warning if it has none."""
        is_empty = True
        for rid in shape.element.xpath(".//*[local-name()='chart']/@*[local-name()='id']"):
            root = _related_root(shape.part, rid)
            blocks = [] if root is None else chart_blocks(root)
            if blocks:
                self._builder.figure(chart_figure(blocks, alt=_description(shape.element), box=self._box(shape)))
            for block in blocks:
                self._builder.paragraph(block) if isinstance(block, str) else self._builder.table(block)
                is_empty = False
        for rid in shape.element.xpath(".//*[local-name()='relIds']/@*[local-name()='dm']"):
            root = _related_root(shape.part, rid)
            for line in [] if root is None else diagram_lines(root):
                self._builder.paragraph(line, follows=True)
                is_empty = False
        kinds = shape.element.xpath(".//*[local-name()='graphicData']/@uri")
        kind = kinds[0].rpartition("/")[2] if kinds else ""
        if is_empty and kind in ("chart", "chartex", "ole", "diagram"):
            names = {"ole": "an embedded file", "diagram": "a diagram without stored text"}
            name = names.get(kind, "a chart without stored values")
            self._unread.setdefault(f"slide {number} has {name} ({one_line(shape.name, 60)}), which is left out")


def _description(element: Element) -> str:
    """Return the alternative text of a shape, or its title."""
    texts = element.xpath(".//*[local-name()='cNvPr']/@descr") or element.xpath(".//*[local-name()='cNvPr']/@title")
    text = one_line(clean_text(texts[0]), MAX_ALT) if texts else ""
    return "" if FILE_NAME.fullmatch(text) else text


def _internal(part: Any, kind: str) -> list[Any]:
    """Return the relationships of a part to other parts of the file whose type ends with `kind`."""
    return [each for each in part.rels.values() if not each.is_external and each.reltype.lower().endswith(kind)]


def part_root(part: Any) -> Element:
    """Return the root element of a part."""
    return parse_xml(part.blob)


def _related_root(part: Any, key: str) -> Element | None:
    """Return the root element of a part to which another one refers, or None if it is missing or damaged."""
    from lxml import etree

    relation = part.rels.get(key)
    if relation is None or relation.is_external:
        return None
    try:
        return part_root(relation.target_part)
    except etree.XMLSyntaxError:
        return None


def _shapes(shapes: Iterable[Any], is_shown: Callable[[Any], bool] = lambda _: True, depth: int = 0) -> Iterator[Any]:
    """Yield the shapes for which `is_shown` is true, including shapes in groups, from top to bottom."""
    if depth > MAX_DEPTH:
        raise RecursionError
    for shape in sorted(shapes, key=lambda shape: (shape.top or 0, shape.left or 0)):
        if not is_shown(shape):
            continue
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes, is_shown, depth + 1)
        else:
            yield shape


def _texts_of_layouts(presentation: Any) -> Iterator[str]:
    """Yield the text of the shapes on slide masters and layouts that every slide shows, which are no placeholders."""
    layouts = {layout.part.partname: layout for layout in (slide.slide_layout for slide in presentation.slides)}
    masters = {master.part.partname: master for master in (layout.slide_master for layout in layouts.values())}
    for page in (*masters.values(), *layouts.values()):
        for shape in _shapes(page.shapes):
            if not shape.is_placeholder and shape.has_text_frame:
                yield _text(shape.text_frame)


def _rows(table: Any) -> Iterator[list[str]]:
    """Yield the rows of a table. A cell that spans several rows is repeated in each of them."""
    below: dict[int, tuple[int, str]] = {}  # column -> number of further rows, text
    for row in table.rows:
        cells = []
        for column, cell in enumerate(row.cells):
            rows, text = below.get(column, (0, ""))
            if not (rows and cell.is_spanned):
                text, rows = _text(cell.text_frame), cell.span_height
            cells.append(text)
            below[column] = (rows - 1, text)
        yield cells


def _text(frame: Any) -> str:
    """Return the text of a shape or a cell, with the numbers of numbered paragraphs."""
    counters: dict[int, tuple[str, int]] = {}  # level -> type of number, last number
    lines = []
    for paragraph in frame._txBody.iterchildren(f"{_A}p"):
        line = drawing_line(paragraph)
        properties = paragraph.find(f"{_A}pPr")
        level = int(properties.get("lvl") or 0) if properties is not None else 0
        number = None if properties is None else properties.find(f"{_A}buAutoNum")
        if number is None:
            counters = {at: count for at, count in counters.items() if at < level}
        elif line.strip():
            kind, start = number.get("type") or "arabicPeriod", int(number.get("startAt") or 1)
            before, last = counters.get(level, ("", 0))
            count = last + 1 if before == f"{kind} {start}" else start
            counters = {at: each for at, each in counters.items() if at < level} | {level: (f"{kind} {start}", count)}
            line = f"{slide_number(count, kind)} {line}"
        lines.append(line)
    return "\n".join(lines)
