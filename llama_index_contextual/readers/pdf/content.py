"""Positions of the text on a page, computed from its drawing operators (ISO 32000-2, 9.4).

pypdf parses the content stream, and reads the fonts with their encodings and widths. This module tracks the position of
the text, which pypdf's own `extract_text` does not return.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from pypdf import PageObject
from pypdf.generic import ContentStream, DictionaryObject, StreamObject, TextStringObject
from pypdf.generic._font import Font

from llama_index_contextual.readers.pdf.engine import Run
from llama_index_contextual.readers.pdf.layout import WORD_GAP

# ---- Fonts -----------------------------------------------------------------------------------------------------------

FORCE_BOLD = 1 << 18  # ISO 32000-2, table 121
MIN_BOLD_WEIGHT = 600  # of CSS and of /FontWeight
DEFAULT_SPACE = 200.0  # width in thousandths of the font size, for fonts without a space

BOLD_NAME = re.compile(r"(?i)bold|black|heavy|[,-]b(?:i|old)?$")


class FontTable:
    """Text and width of each code of a font, and whether it is bold."""

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
CELL_JUMP = 2.0  # of the font size: a jump within one operator that ends the run


def multiply(m: Matrix, n: Matrix) -> Matrix:
    """Return the matrix that applies `m` first, then `n`."""
    a, b, c, d, e, f = m
    p, q, r, s, t, u = n
    return (a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s, e * p + f * r + t, e * q + f * s + u)


class _State:
    """The graphics and text state that `q` saves and `Q` restores."""

    __slots__ = ("ctm", "font", "leading", "rise", "size", "stretch", "tracking", "word_tracking")

    def __init__(self) -> None:
        self.ctm: Matrix = IDENTITY
        self.font: FontTable | None = None
        self.size = self.tracking = self.word_tracking = self.leading = self.rise = 0.0
        self.stretch = 1.0

    def copy(self) -> _State:
        new = _State()
        for name in self.__slots__:
            setattr(new, name, getattr(self, name))
        return new


class ContentReader:
    """Interpreter of the drawing operators of one document's pages.

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
        """Return the text of a page in the order in which it is drawn.

        Also count the drawn `images` and `paths`, and set `vertical` if a font writes downwards.
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
                stack.append(self._state.copy())
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
            case b"Tc":
                state.tracking = float(args[0])
            case b"Tw":
                state.word_tracking = float(args[0])
            case b"Tz":
                state.stretch = float(args[0]) / 100
            case b"TL":
                state.leading = float(args[0])
            case b"Ts":
                state.rise = float(args[0])
            case b"'":
                self._move(0.0, -state.leading)
                self._show(args)
            case b'"':
                state.word_tracking, state.tracking = float(args[0]), float(args[1])
                self._move(0.0, -state.leading)
                self._show(args[2:])
            case b"INLINE IMAGE":
                self.images += 1
            case b"f" | b"F" | b"f*" | b"B" | b"B*" | b"b" | b"b*" | b"S" | b"s" | b"sh":
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
        before = self._state.copy(), self._matrix, self._line_matrix
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
