"""The default PDF engine, which uses pdfium.

pdfium decodes the fonts and finds the words, and the `pages` module uses the word positions to find lines, columns and
table rows. Each call to pdfium has a high overhead, so positions are read only for the first and last letters of most
words.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pypdfium2
import pypdfium2.raw as pdfium

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.files import one_line
from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.annotations import draw_stamps, page_annotations, with_annotations
from llama_index_contextual.readers.pdf.graphics import Graphic, page_graphics
from llama_index_contextual.readers.pdf.grid import Rule, Rules
from llama_index_contextual.readers.pdf.layers import (
    MAX_UNKNOWN,
    NOTHING,
    count_lost_letters,
    decoded,
    find_false_spaces,
    unknown_share,
    with_accents,
)
from llama_index_contextual.readers.pdf.order import ordered_rows, with_watermarks_apart
from llama_index_contextual.readers.pdf.pages import (
    BOLD_NAME,
    COVERED,
    COVERED_BESIDE_MARGINS,
    MARGIN,
    MAX_MARGIN_TEXT,
    MAX_STAMP,
    MIN_PATHS,
    NO_PASSWORD,
    RIGHT_TO_LEFT,
    WRONG_PASSWORD,
    XFA,
    OutlineEntry,
    PageContent,
    PageSource,
    Run,
    embedded_note,
    lines_of,
    main_angle,
    page_span,
)
from llama_index_contextual.readers.pdf.scans import unreadable_notes

FORCE_BOLD = 1 << 18  # font flag (ISO 32000-2, table 121)
MIN_BOLD_WEIGHT = 700  # pdfium estimates weights from the width of stems; its estimates for italics reach 610
SPACE = 0.25  # times the font size; only used where pdfium does not report whether there is a space
WIDE_SPACE = 0.55  # times the font size: a wider space may leave room for a footnote mark that is drawn later
SAME_BASELINE = 0.1  # times the font size
MAX_ATTACHMENTS = 1_000
MAX_SEARCHED = 2_000_000  # maximum number of objects in a file that are searched for figures
DOWN = 270  # direction in degrees in which text runs down the displayed page; pdfium returns its lines in reverse order

_HYPHENS = dict.fromkeys((0x02, 0xFFFE), "-")  # characters that pdfium returns for a hyphen at the end of a line
_DIGITS_INSIDE = re.compile(r"\d\d[^\d\s]{1,12}\Z")
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_WORD = re.compile(r"[^\s\x02\ufffe]+[\x02\ufffe]?|[\x02\ufffe]")


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    """Return a copy of a pdfium function that takes addresses as plain integers, so that calls take half the time."""
    fast = type(function)(ctypes.cast(function, ctypes.c_void_p).value)
    fast.restype, fast.argtypes = result, arguments
    return fast


_AT = (ctypes.c_void_p, ctypes.c_int)
_object_of = _function(pdfium.FPDFText_GetTextObject, ctypes.c_void_p, *_AT)
_origin_of = _function(pdfium.FPDFText_GetCharOrigin, ctypes.c_int, *_AT, ctypes.c_void_p, ctypes.c_void_p)
_box_of = _function(pdfium.FPDFText_GetLooseCharBox, ctypes.c_int, *_AT, ctypes.c_void_p)
_matrix_of = _function(pdfium.FPDFText_GetMatrix, ctypes.c_int, *_AT, ctypes.c_void_p)
_size_of = _function(pdfium.FPDFText_GetFontSize, ctypes.c_double, *_AT)
_is_inserted = _function(pdfium.FPDFText_IsGenerated, ctypes.c_int, *_AT)
_font_of = _function(pdfium.FPDFTextObj_GetFont, ctypes.c_void_p, ctypes.c_void_p)
_font_flags = _function(pdfium.FPDFFont_GetFlags, ctypes.c_int, ctypes.c_void_p)
_font_weight = _function(pdfium.FPDFFont_GetWeight, ctypes.c_int, ctypes.c_void_p)
_font_name = _function(
    pdfium.FPDFFont_GetBaseFontName, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)

_OBJECT = (ctypes.c_void_p,)
_count_objects = _function(pdfium.FPDFPage_CountObjects, ctypes.c_int, *_OBJECT)
_get_object = _function(pdfium.FPDFPage_GetObject, ctypes.c_void_p, *_AT)
_type_of = _function(pdfium.FPDFPageObj_GetType, ctypes.c_int, *_OBJECT)
_bounds_of = _function(pdfium.FPDFPageObj_GetBounds, ctypes.c_int, ctypes.c_void_p, *[ctypes.c_void_p] * 4)
_draw_mode = _function(pdfium.FPDFPath_GetDrawMode, ctypes.c_int, *[ctypes.c_void_p] * 3)
_count_segments = _function(pdfium.FPDFPath_CountSegments, ctypes.c_int, *_OBJECT)
_segment_of = _function(pdfium.FPDFPath_GetPathSegment, ctypes.c_void_p, *_AT)
_segment_type = _function(pdfium.FPDFPathSegment_GetType, ctypes.c_int, *_OBJECT)
_segment_closes = _function(pdfium.FPDFPathSegment_GetClose, ctypes.c_int, *_OBJECT)
_segment_point = _function(pdfium.FPDFPathSegment_GetPoint, ctypes.c_int, *[ctypes.c_void_p] * 3)
_path_matrix = _function(pdfium.FPDFPageObj_GetMatrix, ctypes.c_int, *[ctypes.c_void_p] * 2)


class PdfiumSource(PageSource):
    """An open PDF, read with pdfium.

    Args:
        path: Path of the file, for error messages.
        data: The bytes of the file.
        password: Password of an encrypted PDF.
        figures: Whether to search the pages for pictures and shapes.

    Raises:
        ReadError: The file cannot be opened.
    """

    def __init__(self, path: Path, data: bytes, password: str | None, *, figures: bool = True) -> None:
        self._path = str(path)
        self._objects_left = MAX_SEARCHED if figures else 0
        self._displays: dict[int, _Display] = {}
        try:
            self._pdf = pypdfium2.PdfDocument(data, password=password)
        except pypdfium2.PdfiumError as error:
            if error.err_code == pdfium.FPDF_ERR_PASSWORD:
                raise ReadError(self._path, WRONG_PASSWORD if password else NO_PASSWORD) from error
            raise ReadError(self._path, f"the PDF is damaged or truncated ({error})") from error
        self.page_count = len(self._pdf)
        self._unreadable: list[int] = []
        self._files: list[str] = []  # attached to pages
        self._lost_letters: dict[int, int] = {}
        self._form: Any = None
        if self._pdf.get_formtype() != pdfium.FORMTYPE_NONE:
            self._pdf.init_forms()
            self._form = self._pdf.formenv

    def page(self, index: int) -> PageContent:
        """Return the page with the given index."""
        try:
            page = self._pdf[index]
            notes = page_annotations(page, self._form, self._files)
            if draw_stamps(page, self._form):
                page.close()
                page = self._pdf[index]
            text = page.get_textpage()
            box, rotation = _visible_box(page), page.get_rotation()
            reader = _PageText(text)
            runs = _visible(reader.runs(), box)
            angle = main_angle(runs)
            if (angle - page.get_rotation()) % 360 == DOWN:
                text.close()
                page.set_rotation(angle % 360)
                text = page.get_textpage()
                reader = _PageText(text)
                runs = _visible(reader.runs(), box)
            if notes and angle == 0:
                runs = with_annotations(runs, notes)
            if runs and not reader.has_own_order:
                runs = with_watermarks_apart(runs, angle)
                lines = lines_of(ordered_rows(runs, angle, partial(_rules, page, angle)), angle)
            else:
                lines = _plain_lines("\n".join([reader.text, *(note.text for note in notes)]))
            is_drawn = not lines and _is_drawn(page)
            span = page_span(box, angle)
            is_in_margins = all(_is_in_margin(line, span) for line in lines)
            most, share = (MAX_MARGIN_TEXT, COVERED_BESIDE_MARGINS) if is_in_margins else (MAX_STAMP, COVERED)
            is_covered = 0 < sum(len(line.text) for line in lines) <= most and _covered_share(page, box) >= share
            if unknown_share(reader.text) > MAX_UNKNOWN:
                self._unreadable.append(index + 1)
                lines, is_drawn, is_covered = [], True, False
            elif count := count_lost_letters(reader.text):
                self._lost_letters[index + 1] = count
            graphics: list[Graphic] = []
            if self._objects_left > 0 and angle % 90 == 0:
                graphics = page_graphics(page, angle)
                self._objects_left -= pdfium.FPDFPage_CountObjects(page.raw)
                if graphics:
                    self._displays[index] = _Display(box, rotation, angle)
            text.close()
            page.close()
        except pypdfium2.PdfiumError as error:
            raise ReadError(self._path, f"pdfium cannot parse it ({error})") from error
        (x0, x1), (y0, y1) = page_span(box, angle - 90), span
        return PageContent(lines, is_drawn, span, is_covered, graphics, (x0, y0, x1, y1))

    def displayed(self, index: int, box: tuple[float, float, float, float]) -> tuple[float, float, float, float] | None:
        """Return the edges of a box on the displayed page; see `PageSource.displayed`."""
        return self._displays[index].edges(box) if index in self._displays else None

    def title(self) -> str | None:
        """Return the title in the document information."""
        return str(self._pdf.get_metadata_value("Title"))

    def labels(self) -> list[str]:
        """Return the page labels."""
        labels = [self._pdf.get_page_label(index) for index in range(self.page_count)]
        return labels if any(labels) else []

    def outline(self) -> list[OutlineEntry]:
        """Return the bookmarks that point to a page."""
        try:
            return [entry for mark in self._pdf.get_toc() if (entry := _outline_entry(mark)) is not None]
        except pypdfium2.PdfiumError as error:
            raise ReadError(self._path, f"the outline cannot be read ({error})") from error

    def notes(self) -> list[str]:
        """Return warnings about an XFA form, letters that the fonts do not name, and embedded files."""
        try:
            count = self._pdf.count_attachments()
            names = [one_line(self._pdf.get_attachment(at).get_name()) for at in range(min(count, MAX_ATTACHMENTS))]
        except pypdfium2.PdfiumError as error:
            raise ReadError(self._path, f"the embedded files cannot be listed ({error})") from error
        form = [XFA] if self._pdf.get_formtype() == pdfium.FORMTYPE_XFA_FULL else []
        return [
            *form,
            *unreadable_notes(self._unreadable, self._lost_letters),
            *embedded_note([*names, *map(one_line, self._files)]),
        ]

    def close(self) -> None:
        """Close the file."""
        self._pdf.close()


class _Display(NamedTuple):
    """The edges of the visible part of a page, its rotation, and the direction of its text in degrees."""

    box: _Edges
    rotation: int
    angle: int

    def edges(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """Return the left, upper, right and lower edge of a box, from the upper left corner of the displayed page."""
        along, across = round(math.cos(math.radians(self.angle))), round(math.sin(math.radians(self.angle)))
        left, bottom, right, top = self.box
        xs, ys = [], []
        for u, v in ((box[0], box[1]), (box[2], box[3])):
            x, y = u * along - v * across, u * across + v * along
            places = {0: (x - left, top - y), 90: (y - bottom, x - left), 180: (right - x, y - bottom)}
            shown = places.get(self.rotation, (top - y, right - x))
            xs.append(round(shown[0], 1))
            ys.append(round(shown[1], 1))
        return min(xs), min(ys), max(xs), max(ys)


class _Style(NamedTuple):
    """Properties shared by the letters of a text object.

    Attributes:
        size: Height of the font on the page in points.
        angle: Direction of the text in degrees.
        along: Cosine of the direction.
        across: Sine of the direction.
        bold: Whether the font is bold.
    """

    size: float
    angle: int
    along: float
    across: float
    bold: bool


_NO_STYLE = _Style(1.0, 0, 1.0, 0.0, False)


_Place = tuple[float, float, float]  # start, end and baseline in points, along and across the direction of the text
_Piece = tuple[int, int, _Style, _Place]  # index of the first letter, index after the last letter, style, place


class _PageText:
    """The text of a page, which can be divided into runs.

    Attributes:
        text: The characters of the page in pdfium's order, with the spaces and line ends that it inserts.
        has_own_order: Whether the text runs from right to left, so that the layout rules do not apply.
    """

    def __init__(self, page: Any) -> None:
        self._page = ctypes.cast(page.raw, ctypes.c_void_p).value
        self._styles: dict[tuple[Any, ...], _Style] = {}
        self._bold: dict[int | None, bool] = {}
        self._point = (ctypes.c_double * 2)()
        self._x = ctypes.addressof(self._point)
        self._y = self._x + ctypes.sizeof(ctypes.c_double)
        self._box = (ctypes.c_float * 4)()  # left, top, right, bottom
        self._corners = ctypes.addressof(self._box)
        self._matrix = (ctypes.c_float * 6)()
        self._factors = ctypes.addressof(self._matrix)
        self.text = with_accents(decoded(_characters(page), self._font), self._edges)
        self.has_own_order = RIGHT_TO_LEFT.search(self.text) is not None
        self._false_spaces = find_false_spaces(self.text, partial(_is_inserted, self._page), self._edges)

    def runs(self) -> list[Run]:
        """Return the runs in pdfium's order, which is from left to right for text on the same baseline.

        A run ends where the line, the font size or the font weight changes, and at a gap that may be the edge of a
        column or the place of a footnote mark.
        """
        runs: list[Run] = []
        parts: list[str] = []
        text, false_spaces = self.text, self._false_spaces
        style, start, end, y, done = _NO_STYLE, 0.0, 0.0, 0.0, 0
        tolerance = widest = narrowest = 0.0
        for first, last, new, (x0, x1, new_y) in self._pieces():
            gap = text[done:first]
            is_inside = done in false_spaces
            done = last
            # pdfium ends lines with "\r\n"; other line feeds are spaces in fonts that encode a space as a line feed
            is_new_line = "\r" in gap and not is_inside
            is_same_line = -tolerance <= new_y - y <= tolerance and not is_new_line
            if new is style and is_same_line and (is_inside or -widest <= x0 - end <= (widest if gap else narrowest)):
                if gap and not is_inside:
                    parts.append(" ")
                parts.append(text[first:last])
                end = x1
                continue
            if parts:
                runs.append(_run(parts, start, end, y, style))
            parts = [" ", text[first:last]] if gap.strip("\r\n") or (gap and not is_new_line) else [text[first:last]]
            style, start, end, y = new, x0, x1, new_y
            tolerance, widest, narrowest = SAME_BASELINE * new.size, WIDE_SPACE * new.size, SPACE * new.size
        if parts:
            runs.append(_run(parts, start, end, y, style))
        return runs

    def _pieces(self) -> Iterator[_Piece]:
        """Yield each word, or its parts if some of its letters are raised or differ in size.

        In a horizontal word, only the first and last letters are compared: if they have the same font, size and
        baseline, their boxes have the same top and bottom.
        """
        page, box, corners = self._page, self._box, self._corners
        box_of, object_of = _box_of, _object_of
        style, shape, font = _NO_STYLE, None, None
        y = bottom = top = math.nan
        is_upright = False
        for match in _WORD.finditer(self.text):
            first, last = match.span()
            box_of(page, first, corners)
            left, this_top, right, this_bottom = box
            this = object_of(page, first)
            if this != shape or this_bottom != bottom:
                shape, this_font = this, _font_of(this) if this else None
                if this_font != font or this_bottom != bottom or this_top != top:
                    font = this_font
                    style = self._style(first, font)
                    is_upright = style.angle == 0
                    _origin_of(page, first, self._x, self._y)
                    y = self._point[1]
                bottom, top = this_bottom, this_top
            if is_upright:
                if last - first > 1:
                    box_of(page, last - 1, corners)
                    _left, this_top, right, this_bottom = box
                if this_bottom == bottom and this_top == top and not self._has_raised_digit(first, last, bottom):
                    yield first, last, style, (left, right, y)
                    continue
            yield from self._letters(first, last)

    def _has_raised_digit(self, first: int, last: int, bottom: float) -> bool:
        """Return whether the last digit of a word that does not end with a digit is raised."""
        if last - first < 3 or self.text[last - 1].isdigit():
            return False
        digits = _DIGITS_INSIDE.search(self.text, first, last)
        if digits is None:
            return False
        _box_of(self._page, digits.start() + 1, self._corners)
        return self._box[3] != bottom

    def _letters(self, first: int, last: int) -> Iterator[_Piece]:
        """Split a word wherever the style or the baseline changes, and yield its parts."""
        at, style, (start, end, y) = first, *self._letter(first)
        for here in range(first + 1, last):
            new, place = self._letter(here)
            if new is style and abs(place[2] - y) <= SAME_BASELINE * style.size:
                end = max(end, place[1])
            else:
                yield at, here, style, (start, end, y)
                at, style, (start, end, y) = here, new, place
        yield at, last, style, (start, end, y)

    def _letter(self, at: int) -> tuple[_Style, _Place]:
        page = self._page
        style = self._style(at, self._font(at))
        _origin_of(page, at, self._x, self._y)
        _box_of(page, at, self._corners)
        x, y = self._point
        left, top, right, bottom = self._box
        along, across = style.along, style.across
        end = max(a * along + b * across for a in (left, right) for b in (bottom, top))
        return style, (x * along + y * across, end, y * along - x * across)

    def _font(self, at: int) -> int | None:
        shape = _object_of(self._page, at)
        return _font_of(shape) if shape else None

    def _edges(self, at: int) -> _Edges:
        _box_of(self._page, at, self._corners)
        left, top, right, bottom = self._box
        return left, bottom, right, top

    def _style(self, at: int, font: int | None) -> _Style:
        _matrix_of(self._page, at, self._factors)
        a, b, c, d, _e, _f = self._matrix
        key = (a, b, c, d, _size_of(self._page, at), font)
        if key not in self._styles:
            self._styles[key] = self._new_style(*key)
        return self._styles[key]

    def _new_style(self, a: float, b: float, c: float, d: float, size: float, font: int | None) -> _Style:
        height, scale = math.hypot(c, d) * abs(size), math.hypot(a, b)
        if not (math.isfinite(scale) and math.isfinite(height) and scale and height):
            return _NO_STYLE
        is_upright = b == 0 and a > 0
        along, across = (1.0, 0.0) if is_upright else (a / scale, b / scale)
        angle = 0 if is_upright else round(math.degrees(math.atan2(b, a)))
        # fonts with the same values share a style, so that a change to italics does not end a run
        style = _Style(round(height, 2), angle, along, across, self._is_bold(font))
        return self._styles.setdefault(style, style)

    def _is_bold(self, font: int | None) -> bool:
        if font is not None and font not in self._bold:
            name = ctypes.create_string_buffer(100)
            _font_name(font, name, len(name))
            self._bold[font] = (
                bool(BOLD_NAME.search(name.value.decode("utf-8", "replace")))
                or _font_weight(font) >= MIN_BOLD_WEIGHT
                or bool(max(_font_flags(font), 0) & FORCE_BOLD)
            )
        return self._bold.get(font, False)


_Edges = tuple[float, float, float, float]  # left, lower, right and upper edge


def _visible_box(page: Any) -> _Edges:
    """Return the edges of the visible part of a page."""
    left, bottom, right, top = page.get_bbox()  # unlike `get_mediabox`, it knows boxes that pages inherit
    return left, bottom, right, top


def _visible(runs: list[Run], box: _Edges) -> list[Run]:
    """Return the runs whose middle is in the visible part of the page."""
    left, bottom, right, top = box
    return [
        run
        for run in runs
        if (not run.angle and left <= run.x0 and run.x1 <= right and bottom <= run.y and run.y + run.size <= top)
        or _is_visible(run, box)
    ]


def _is_visible(run: Run, box: _Edges) -> bool:
    x, y = (run.x0 + run.x1) / 2, run.y + 0.3 * run.size
    if run.angle:
        along, across = math.cos(math.radians(run.angle)), math.sin(math.radians(run.angle))
        x, y = x * along - y * across, x * across + y * along
    left, bottom, right, top = box
    return left <= x <= right and bottom <= y <= top


def _run(parts: list[str], start: float, end: float, y: float, style: _Style) -> Run:
    text = "".join(parts).translate(_HYPHENS)
    return Run(text, start, end, y, style.size, SPACE * style.size, style.angle, style.bold)


def _characters(page: Any) -> str:
    """Return the text of a page as a string in which each character has the same index as in pdfium."""
    text = str(page.get_text_range())
    count = page.count_chars()
    if len(text) != count:  # pdfium omits characters for which it has no text, and counts surrogates
        codes = (pdfium.FPDFText_GetUnicode(page.raw, at) for at in range(count))
        text = "".join(chr(code) if 0 < code <= 0x10FFFF else "\ufffd" for code in codes)
        return _SURROGATES.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16") + NOTHING, text)
    if "\ufffe" not in text:
        return text
    # pdfium returns the same character for a hyphen at the end of a line and for a letter without Unicode
    codes = (pdfium.FPDFText_GetUnicode(page.raw, at) if char == "\ufffe" else 1 for at, char in enumerate(text))
    return "".join(char if code else "\ufffd" for char, code in zip(text, codes, strict=True))


def _plain_lines(text: str) -> list[Line]:
    """Split text extracted by pdfium into lines and normalise its white space."""
    return [Line(line) for part in text.translate(_HYPHENS).splitlines() if (line := " ".join(part.split()))]


def _is_drawn(page: Any) -> bool:
    kinds = [shape.type for shape in page.get_objects()]
    return pdfium.FPDF_PAGEOBJ_IMAGE in kinds or len(kinds) >= MIN_PATHS


# ---- Rules -----------------------------------------------------------------------------------------------------------

MAX_PATHS = 3_000  # maximum number of objects on a page that are searched for rules
MAX_SEGMENTS = 2_000  # maximum number of segments in a path that are searched for rules
THICK = 3.0  # in points: maximum thickness of a rule
MIN_LENGTH = 4.0  # in points: minimum length of a rule

_Point = tuple[float, float]


def _rules(page: Any, angle: int) -> Rules:
    """Return the horizontal and vertical lines that are drawn on a page, as seen in the direction of its text."""
    address = ctypes.cast(page.raw, ctypes.c_void_p).value
    count = _count_objects(address)
    if angle % 90 or count > MAX_PATHS:
        return Rules()
    horizontal: list[Rule] = []
    vertical: list[Rule] = []
    along, across = round(math.cos(math.radians(angle))), round(math.sin(math.radians(angle)))
    for at in range(count):
        shape = _get_object(address, at)
        if _type_of(shape) != pdfium.FPDF_PAGEOBJ_PATH:
            continue
        for (ax, ay), (bx, by) in _path_lines(shape):
            x0, x1 = sorted((ax * along + ay * across, bx * along + by * across))
            y0, y1 = sorted((ay * along - ax * across, by * along - bx * across))
            if y1 - y0 <= THICK and x1 - x0 >= MIN_LENGTH:
                horizontal.append(Rule((y0 + y1) / 2, x0, x1))
            elif x1 - x0 <= THICK and y1 - y0 >= MIN_LENGTH:
                vertical.append(Rule((x0 + x1) / 2, y0, y1))
    return Rules(horizontal, vertical)


def _path_lines(shape: int) -> Iterator[tuple[_Point, _Point]]:
    """Yield the straight lines of a path: the strokes of a stroked path, and the diagonals of thin filled parts."""
    fill, stroke = ctypes.c_int(), ctypes.c_int()
    _draw_mode(shape, ctypes.addressof(fill), ctypes.addressof(stroke))
    count = _count_segments(shape)
    if not stroke.value and count <= SINGLE_RECTANGLE:
        corners = (ctypes.c_float * 4)()
        at = ctypes.addressof(corners)
        if fill.value and _bounds_of(shape, *(at + 4 * number for number in range(4))):
            left, bottom, right, top = corners
            yield (left, bottom), (right, top)
        return
    if count > MAX_SEGMENTS:
        return
    for points in _subpaths(shape, count):
        if stroke.value:
            yield from pairwise(points)
        else:
            xs, ys = zip(*points, strict=True)
            yield (min(xs), min(ys)), (max(xs), max(ys))


MAX_FORMS = 10  # maximum number of nested forms that are searched for pictures
SINGLE_RECTANGLE = 6  # maximum number of segments in a path that is a single rectangle


def _subpaths(shape: int, count: int) -> Iterator[list[_Point]]:
    """Yield the points of each part of a path on the page."""
    matrix, point = (ctypes.c_float * 6)(), (ctypes.c_float * 2)()
    _path_matrix(shape, ctypes.addressof(matrix))
    a, b, c, d, e, f = matrix
    x, y = ctypes.addressof(point), ctypes.addressof(point) + ctypes.sizeof(ctypes.c_float)
    points: list[_Point] = []
    for at in range(count):
        segment = _segment_of(shape, at)
        if _segment_type(segment) == pdfium.FPDF_SEGMENT_MOVETO and points:
            yield points
            points = []
        _segment_point(segment, x, y)
        points.append((a * point[0] + c * point[1] + e, b * point[0] + d * point[1] + f))
        if _segment_closes(segment):
            yield [*points, points[0]]
            points = []
    if points:
        yield points


def _is_in_margin(line: Line, span: tuple[float, float]) -> bool:
    bottom, top = span
    return not bottom + MARGIN * (top - bottom) < line.y < top - MARGIN * (top - bottom)


def _covered_share(page: Any, box: _Edges) -> float:
    """Return the share of the visible part of a page that pictures cover; it may exceed 1 if they overlap."""
    left, bottom, right, top = box
    area = 0.0
    for shape in islice(page.get_objects(max_depth=1), MAX_PATHS):
        if shape.type == pdfium.FPDF_PAGEOBJ_IMAGE or (shape.type == pdfium.FPDF_PAGEOBJ_FORM and _has_image(shape)):
            x0, y0, x1, y1 = shape.get_bounds()
            area += max(0.0, min(x1, right) - max(x0, left)) * max(0.0, min(y1, top) - max(y0, bottom))
    return area / ((right - left) * (top - bottom) or 1.0)


def _has_image(form: Any) -> bool:
    """Return whether a form, or a form inside it, contains a picture."""
    forms = [form.raw]
    for outer in islice(iter(forms), MAX_FORMS):
        for at in range(min(pdfium.FPDFFormObj_CountObjects(outer), MAX_PATHS)):
            shape = pdfium.FPDFFormObj_GetObject(outer, at)
            kind = pdfium.FPDFPageObj_GetType(shape)
            if kind == pdfium.FPDF_PAGEOBJ_IMAGE:
                return True
            if kind == pdfium.FPDF_PAGEOBJ_FORM:
                forms.append(shape)
    return False


def _outline_entry(mark: Any) -> OutlineEntry | None:
    destination = mark.get_dest()
    page = destination.get_index() if destination is not None else None
    if page is None:
        return None
    _mode, position = destination.get_view()
    return OutlineEntry(mark.get_title(), mark.level + 1, page, position[1] if len(position) > 1 else None)
