"""PDF engine that uses pypdf, which is pure Python.

pypdf parses the content stream, and reads the fonts with their encodings and widths. This module computes the positions
of the text, which pypdf's own `extract_text` does not return, from the drawing operators (ISO 32000-2, 9.4).
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from pypdf import Configuration, PageObject, PdfReader
from pypdf.errors import DependencyError, LimitReachedError, PyPdfError
from pypdf.generic import ContentStream, Destination, DictionaryObject, StreamObject, TextStringObject
from pypdf.generic._font import Font  # no public API has the widths of a font; `test_pdf_layout` pins this class

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.discovery import one_line
from llama_index_contextual.readers.pdf.pages import (
    MIN_PATHS,
    NO_PASSWORD,
    RIGHT_TO_LEFT,
    WORD_GAP,
    WRONG_PASSWORD,
    Line,
    OutlineEntry,
    PageContent,
    PageSource,
    Run,
    main_angle,
    page_lines,
    page_span,
)

# "broken PDF files might cause other Exceptions" than its own (pypdf/errors.py)
PARSER_ERRORS = (
    PyPdfError,
    DependencyError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)

# Stricter than pypdf's default limits against malicious files, because text needs less data than images.
CONFIGURATION = Configuration(
    zlib_maximum_output_length=50_000_000,
    zlib_maximum_recovery_input_length=500_000,  # damaged data is inflated byte by byte, at 2 s per megabyte
    lzw_maximum_output_length=50_000_000,
    run_length_maximum_output_length=50_000_000,
    brotli_maximum_output_length=50_000_000,
    array_based_stream_maximum_output_length=50_000_000,
    stream_decoding_work_maximum_length=150_000_000,
    stream_parsing_work_maximum_count=2_000_000,
    outline_maximum_entries=10_000,
    outline_maximum_depth=50,
    named_destinations_maximum_entries=100_000,
    page_tree_maximum_entries=100_000,
    xform_maximum_invocations_per_extraction=5_000,
    xmp_maximum_input_length=1_000_000,
)


class PypdfSource(PageSource):
    """An open PDF, read with pypdf.

    Args:
        path: Path of the file, for error messages.
        data: The bytes of the file.
        password: Password of an encrypted PDF.

    Raises:
        ReadError: The file cannot be opened.
    """

    def __init__(self, path: Path, data: bytes, password: str | None) -> None:
        self._path = str(path)
        with self._reading("the PDF is damaged or truncated"):
            self._pdf = PdfReader(BytesIO(data))
            if self._pdf.is_encrypted and not self._pdf.decrypt(password or ""):
                raise ReadError(self._path, WRONG_PASSWORD if password else NO_PASSWORD)
            self.page_count = len(self._pdf.pages)
        self._content = ContentReader(self._pdf)

    @contextmanager
    def _reading(self, failure: str) -> Iterator[None]:
        try:
            yield
        except DependencyError as error:
            raise ReadError(self._path, "the PDF is encrypted with AES: `pip install cryptography`") from error
        except PARSER_ERRORS as error:
            detail = ": ".join(filter(None, (type(error).__name__, one_line(str(error)))))
            raise ReadError(self._path, f"{failure} ({detail})") from error

    def page(self, index: int) -> PageContent:
        """Return the page at the index."""
        with self._reading("pypdf cannot parse it"):
            page = self._pdf.pages[index]
            runs = self._runs(page)
            lines = page_lines(runs) if runs else _plain_lines(page)
        is_drawn = self._content.images > 0 or self._content.paths >= MIN_PATHS
        return PageContent(lines, is_drawn, _span(page, main_angle(runs)))

    def _runs(self, page: PageObject) -> list[Run]:
        """Return the text with its positions, or an empty list if the page should be left to pypdf's own extraction.

        pypdf's extraction supports right-to-left and vertical scripts, and tolerates more errors.
        """
        try:
            runs = self._content.runs(page)
        except (DependencyError, LimitReachedError, MemoryError):
            raise
        except PARSER_ERRORS:
            if not page.extract_text().strip():
                raise
            return []
        return [] if self._content.vertical or any(RIGHT_TO_LEFT.search(run.text) for run in runs) else runs

    def title(self) -> str | None:
        """Return the title in the document information."""
        with self._reading("the document information cannot be read"):
            return self._pdf.metadata.title if self._pdf.metadata else None

    def labels(self) -> list[str]:
        """Return the page labels."""
        with self._reading("the page labels cannot be read"):
            return list(self._pdf.page_labels) if "/PageLabels" in self._pdf.root_object else []

    def outline(self) -> list[OutlineEntry]:
        """Return the bookmarks that point to a page."""
        with self._reading("the outline cannot be read"):
            return list(self._entries(self._pdf.outline, 1))

    def _entries(self, items: list[Any], level: int) -> Iterator[OutlineEntry]:
        for item in items:
            if isinstance(item, list):
                yield from self._entries(item, level + 1)
            elif isinstance(item, Destination):
                page = self._pdf.get_destination_page_number(item)
                if page is not None and item.title:
                    top = item.top
                    yield OutlineEntry(
                        str(item.title), level, page, float(top) if isinstance(top, (int, float)) else None
                    )

    def close(self) -> None:
        """Close the file."""
        self._pdf.close()


def _span(page: PageObject, angle: int) -> tuple[float, float]:
    try:
        left, bottom, right, top = map(float, page.mediabox)
    except PARSER_ERRORS:  # without a size, the page has no margins
        return 0.0, 0.0
    return page_span((left, bottom, right, top), angle)


def _plain_lines(page: PageObject) -> list[Line]:
    """Return the lines of pypdf's own extraction."""
    return [Line(" ".join(text.split())) for text in page.extract_text().splitlines() if text.strip()]


# ---- Fonts -----------------------------------------------------------------------------------------------------------

FORCE_BOLD = 1 << 18  # ISO 32000-2, table 121
MIN_BOLD_WEIGHT = 600  # of CSS and of /FontWeight
DEFAULT_SPACE = 200.0  # width in thousandths of the font size, for fonts without a space

BOLD_NAME = re.compile(r"(?i)bold|black|heavy|[,-]b(?:i|old)?$")


class FontTable:
    """Text and width of each code of a font, and whether the font is bold."""

    def __init__(self, resource: DictionaryObject) -> None:
        self.resource = resource  # kept alive, so that its id is not reused
        font = self._font = Font.from_font_resource(resource)
        self._glyphs: dict[str, tuple[str, float]] = {}
        matrix = resource.get("/FontMatrix") if font.sub_type == "Type3" else None
        self._scale = abs(float(matrix[0])) if matrix else 0.001
        known = font.character_widths.get(font.space_char, 0)
        self.space = (font.space_width if known else DEFAULT_SPACE) * self._scale
        self.bold = _is_bold(resource)
        self.vertical = str(resource.get("/Encoding")).endswith("-V")

    def decode(self, data: bytes) -> tuple[str, float, int, int]:
        """Return the text, its width at font size 1, the number of codes, and the number of one-byte spaces."""
        encoding = self._font.encoding
        if isinstance(encoding, str):
            codes, spaces = data.decode(encoding, "replace"), 0
        else:
            codes, spaces = data.decode("latin-1"), data.count(32)
        glyphs = self._glyphs
        found = [glyphs.get(code) or self._look_up(code) for code in codes]
        return "".join([text for text, _ in found]), sum([width for _, width in found]), len(codes), spaces

    def _look_up(self, code: str) -> tuple[str, float]:
        font = self._font
        text = code if isinstance(font.encoding, str) else font.encoding.get(ord(code), code)
        widths = font.character_widths
        width = font.space_width if code == font.space_char else widths.get(code, widths["default"])
        glyph = self._glyphs[code] = (str(font.character_map.get(text, text)), float(width) * self._scale)
        return glyph


def _is_bold(resource: DictionaryObject) -> bool:
    fonts = [resource, *resource.get("/DescendantFonts", ())]
    descriptors = [font.get_object().get("/FontDescriptor", {}) for font in fonts]
    for descriptor in (each.get_object() if hasattr(each, "get_object") else each for each in descriptors):
        if int(descriptor.get("/Flags", 0)) & FORCE_BOLD or float(descriptor.get("/FontWeight", 0)) >= MIN_BOLD_WEIGHT:
            return True
    return BOLD_NAME.search(str(resource.get("/BaseFont", ""))) is not None


Matrix = tuple[float, float, float, float, float, float]
IDENTITY: Matrix = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
MAX_FORMS = 5_000  # form XObjects drawn on one page
CELL_JUMP = 2.0  # times the font size: a jump within one operator that ends the run


def multiply(m: Matrix, n: Matrix) -> Matrix:
    """Return the matrix that applies `m` first, then `n`."""
    a, b, c, d, e, f = m
    p, q, r, s, t, u = n
    return (a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s, e * p + f * r + t, e * q + f * s + u)


@dataclass(slots=True)
class _State:
    """The graphics and text state that `q` saves and `Q` restores."""

    ctm: Matrix = IDENTITY
    font: FontTable | None = None
    size: float = 0.0
    tracking: float = 0.0
    word_tracking: float = 0.0
    leading: float = 0.0
    rise: float = 0.0
    stretch: float = 1.0


# Operators that set a number in the state.
_NUMBERS = {b"Tc": "tracking", b"Tw": "word_tracking", b"TL": "leading", b"Ts": "rise"}
_PATHS = frozenset((b"f", b"F", b"f*", b"B", b"B*", b"b", b"b*", b"S", b"s", b"sh"))


class ContentReader:
    """Interpreter for the drawing operators of the pages of one document.

    Args:
        pdf: The `PdfReader` that the pages belong to.
    """

    def __init__(self, pdf: Any) -> None:
        self._pdf = pdf
        self._fonts: dict[tuple[int, int] | int, FontTable] = {}
        self._reset()

    def _reset(self) -> None:
        self._runs: list[Run] = []
        self._state = _State()
        self._matrix = self._line_matrix = IDENTITY
        self._forms = 0
        self._open_forms: set[int] = set()
        self.images = self.paths = 0
        self.vertical = False

    def runs(self, page: PageObject) -> list[Run]:
        """Return the text of a page in drawing order.

        Also count the drawn `images` and `paths`, and set `vertical` if a font has vertical writing mode.
        """
        self._reset()
        content = page.get("/Contents")
        content = content.get_object() if content is not None else None
        if isinstance(content, (list, StreamObject)):
            resources = page.get_inherited(key="/Resources", default=DictionaryObject())
            self._draw(content, resources.get_object())
        return self._runs

    def _draw(self, content: Any, resources: DictionaryObject) -> None:
        stack: list[_State] = []
        for args, operator in ContentStream(content, self._pdf, "bytes").operations:
            if operator == b"q":
                stack.append(replace(self._state))
            elif operator == b"Q":
                if stack:
                    self._state = stack.pop()
            elif operator == b"Tf":
                self._state.font, self._state.size = self._font(args[0], resources), float(args[1])
            elif operator == b"Do":
                self._draw_object(args[0], resources)
            else:
                self._operate(operator, args)

    def _operate(self, operator: bytes, args: Any) -> None:
        state = self._state
        match operator:
            case b"TJ":
                self._show(args[0])
            case b"Tj":
                self._show(args)
            case b"Td":
                self._move(args[0], args[1])
            case b"Tm":
                self._matrix = self._line_matrix = _matrix(args)
            case b"TD":
                state.leading = -float(args[1])
                self._move(args[0], args[1])
            case b"T*":
                self._move(0.0, -state.leading)
            case b"BT":
                self._matrix = self._line_matrix = IDENTITY
            case b"cm":
                state.ctm = multiply(_matrix(args), state.ctm)
            case b"Tz":
                state.stretch = float(args[0]) / 100
            case b"'":
                self._move(0.0, -state.leading)
                self._show(args)
            case b'"':
                state.word_tracking, state.tracking = float(args[0]), float(args[1])
                self._move(0.0, -state.leading)
                self._show(args[2:])
            case b"INLINE IMAGE":
                self.images += 1
            case _ if operator in _NUMBERS:
                setattr(state, _NUMBERS[operator], float(args[0]))
            case _ if operator in _PATHS:
                self.paths += 1

    def _font(self, name: str, resources: DictionaryObject) -> FontTable | None:
        fonts = resources.get("/Font", DictionaryObject()).get_object()
        if name not in fonts:
            return None
        raw = fonts.raw_get(name)
        key = (raw.idnum, raw.generation) if hasattr(raw, "idnum") else id(raw)
        if key not in self._fonts:
            self._fonts[key] = FontTable(raw.get_object())
        return self._fonts[key]

    def _draw_object(self, name: str, resources: DictionaryObject) -> None:
        objects = resources.get("/XObject", DictionaryObject()).get_object()
        form: Any = objects[name] if name in objects else DictionaryObject()
        if form.get("/Subtype") != "/Form":
            self.images += 1
            return
        if id(form) in self._open_forms or self._forms >= MAX_FORMS:
            return
        self._forms += 1
        self._open_forms.add(id(form))
        before = replace(self._state), self._matrix, self._line_matrix
        if "/Matrix" in form:
            self._state.ctm = multiply(_matrix(form["/Matrix"]), self._state.ctm)
        self._draw(form, form.get("/Resources", resources).get_object())
        self._state, self._matrix, self._line_matrix = before
        self._open_forms.discard(id(form))

    def _move(self, x: float, y: float) -> None:
        a, b, c, d, e, f = self._line_matrix
        self._matrix = self._line_matrix = (a, b, c, d, x * a + y * c + e, x * b + y * d + f)

    def _show(self, items: Sequence[Any]) -> None:
        state = self._state
        font, size, stretch = state.font, state.size, state.stretch
        if font is None:
            return
        self.vertical = self.vertical or font.vertical
        pen, parts = 0.0, []
        for item in items:
            if isinstance(item, (bytes, str)):
                data = item if isinstance(item, bytes) else TextStringObject(item).original_bytes
                text, width, codes, spaces = font.decode(data)
                pen += (width * size + state.tracking * codes + state.word_tracking * spaces) * stretch
                parts.append(text)
                continue
            gap = -float(item) / 1000
            if gap > CELL_JUMP and parts:
                self._emit("".join(parts), pen)
                pen, parts = 0.0, []
            elif gap >= WORD_GAP * font.space and parts and not parts[-1].endswith(" "):
                parts.append(" ")
            pen += gap * size * stretch
            if not parts:
                self._advance(pen)
                pen = 0.0
        self._emit("".join(parts), pen)

    def _emit(self, text: str, pen: float) -> None:
        state = self._state
        if text and state.font is not None:
            a, b, c, d, e, f = multiply(self._matrix, state.ctm)
            e, f = e + state.rise * c, f + state.rise * d
            scale, size = math.hypot(a, b), abs(state.size)
            along, across = (a / scale, b / scale) if scale else (1.0, 0.0)
            start = e * along + f * across
            end = start + (pen - state.tracking * state.stretch) * scale
            height = math.hypot(c, d) * size
            space = state.font.space * size * scale
            angle = 0 if b == 0 and a >= 0 else round(math.degrees(math.atan2(across, along)))
            y = f * along - e * across
            self._runs.append(Run(text, start, end, y, height, space, angle, state.font.bold))
        self._advance(pen)

    def _advance(self, pen: float) -> None:
        a, b, c, d, e, f = self._matrix
        self._matrix = (a, b, c, d, e + pen * a, f + pen * b)


def _matrix(args: Sequence[Any]) -> Matrix:
    a, b, c, d, e, f = map(float, args)
    return (a, b, c, d, e, f)
