"""Find the pictures and the drawn shapes on a page of a PDF with pdfium."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium
import xxhash

MAX_OBJECTS = 20_000
"""Maximum number of objects on a page that are searched."""
MAX_DEPTH = 6
"""Maximum nesting depth of forms, which are groups of objects."""
MAX_SEGMENTS = 60
"""Maximum number of segments of a path that are searched for curves and slanting lines."""
THICK = 3.0  # in points: maximum thickness of a rule
STRAIGHT = 1.0  # in points: maximum slant of a horizontal or vertical line
SLANTING = 0.3  # minimum sine of the angle of text that does not run in the direction of the page's text
WHITE = 250  # minimum value of each component of a colour that is seen as white

_Matrix = tuple[float, float, float, float, float, float]
_IDENTITY: _Matrix = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)


class Graphic(NamedTuple):
    """A picture or a drawn shape.

    Attributes:
        x0: Left edge in points, in the direction of the page's text.
        y0: Lower edge.
        x1: Right edge.
        y1: Upper edge.
        kind: "picture", "shape" for a path with curves or slanting lines, "box" for a rectangle, "rule" for a
            horizontal or vertical line, or "text" for text in another direction than the page's.
        key: Identity of a picture, which is equal for pictures that are repeated; otherwise an empty string.
    """

    x0: float
    y0: float
    x1: float
    y1: float
    kind: str
    key: str = ""


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float


def page_graphics(page: Any, angle: int) -> list[Graphic]:
    """Return the pictures and drawn shapes on a page that are not white, in the direction of its text.

    Args:
        page: The page, of class `pypdfium2.PdfPage`.
        angle: Direction of the text in degrees.
    """
    return list(_Reader(page, angle).graphics())


class _Reader:
    def __init__(self, page: Any, angle: int) -> None:
        self._page = page
        self._angle = angle
        self._along, self._across = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        left, bottom, right, top = page.get_bbox()
        self._visible = _Box(left, bottom, right, top)
        self._left = MAX_OBJECTS
        self._edges = (ctypes.c_float * 4)()
        self._matrix = pdfium.FS_MATRIX()

    def graphics(self) -> Iterator[Graphic]:
        count = pdfium.FPDFPage_CountObjects(self._page.raw)
        yield from self._of(
            (pdfium.FPDFPage_GetObject(self._page.raw, at) for at in range(count)), _IDENTITY, self._visible, 0
        )

    def _of(self, shapes: Iterator[Any], matrix: _Matrix, visible: _Box, depth: int) -> Iterator[Graphic]:
        for shape in shapes:
            if self._left <= 0:
                return
            self._left -= 1
            kind = pdfium.FPDFPageObj_GetType(shape)
            if kind == pdfium.FPDF_PAGEOBJ_TEXT:
                yield from self._slanting_text(shape, matrix, visible)
            elif kind == pdfium.FPDF_PAGEOBJ_FORM:
                if depth < MAX_DEPTH:
                    inner = self._clipped(shape, matrix, visible)
                    objects = range(max(0, pdfium.FPDFFormObj_CountObjects(shape)))
                    children = (pdfium.FPDFFormObj_GetObject(shape, at) for at in objects)
                    yield from self._of(children, _product(self._matrix_of(shape), matrix), inner, depth + 1)
            elif (box := self._bounds(shape, matrix, self._clipped(shape, matrix, visible))) is not None:
                graphic = self._graphic(shape, kind, box)
                if graphic is not None:
                    yield graphic

    def _graphic(self, shape: Any, kind: int, box: _Box) -> Graphic | None:
        edges = self._turned(box)
        if kind == pdfium.FPDF_PAGEOBJ_IMAGE:
            return Graphic(*edges, "picture", _picture_key(shape))
        if kind == pdfium.FPDF_PAGEOBJ_SHADING:
            return Graphic(*edges, "shape")
        if kind != pdfium.FPDF_PAGEOBJ_PATH or not self._is_drawn(shape):
            return None
        if box.right - box.left <= THICK or box.top - box.bottom <= THICK:
            return Graphic(*edges, "rule")
        return Graphic(*edges, "shape" if _is_shape(shape) else "box")

    def _is_drawn(self, shape: Any) -> bool:
        """Return whether a path is drawn in another colour than white."""
        fill, stroke = ctypes.c_int(), ctypes.c_int()
        if not pdfium.FPDFPath_GetDrawMode(shape, fill, stroke):
            return True
        if fill.value and self._is_dark(shape, pdfium.FPDFPageObj_GetFillColor):
            return True
        return bool(stroke.value) and self._is_dark(shape, pdfium.FPDFPageObj_GetStrokeColor)

    def _is_dark(self, shape: Any, get: Any) -> bool:
        red, green, blue, alpha = (ctypes.c_uint(0) for _ in range(4))
        if not get(shape, red, green, blue, alpha):
            return True
        return alpha.value > 0 and min(red.value, green.value, blue.value) < WHITE

    def _slanting_text(self, shape: Any, matrix: _Matrix, visible: _Box) -> Iterator[Graphic]:
        a, b, *_ = _product(self._matrix_of(shape), matrix)
        is_slanting = abs(a * self._across - b * self._along) > SLANTING * math.hypot(a, b)
        if is_slanting and (box := self._bounds(shape, matrix, visible)) is not None:
            yield Graphic(*self._turned(box), "text")

    def _clipped(self, shape: Any, matrix: _Matrix, visible: _Box) -> _Box:
        """Return the visible part of a shape: that of the group it belongs to, within its own clipping paths."""
        clip = pdfium.FPDFPageObj_GetClipPath(shape)
        count = pdfium.FPDFClipPath_CountPaths(clip) if clip else 0
        for path in range(min(max(count, 0), 20)):
            segments = pdfium.FPDFClipPath_CountPathSegments(clip, path)
            if not 2 < segments <= 200:
                continue
            xs, ys = [], []
            x, y = ctypes.c_float(), ctypes.c_float()
            for at in range(segments):
                segment = pdfium.FPDFClipPath_GetPathSegment(clip, path, at)
                if segment and pdfium.FPDFPathSegment_GetPoint(segment, x, y):
                    px, py = _moved(matrix, x.value, y.value)
                    xs.append(px)
                    ys.append(py)
            if xs:
                visible = _intersection(visible, _Box(min(xs), min(ys), max(xs), max(ys)))
        return visible

    def _bounds(self, shape: Any, matrix: _Matrix, visible: _Box) -> _Box | None:
        """Return the visible part of a shape's bounding box on the page, or None if there is none."""
        left, bottom, right, top = (ctypes.c_float() for _ in range(4))
        if not pdfium.FPDFPageObj_GetBounds(shape, left, bottom, right, top):
            return None
        points = [_moved(matrix, x, y) for x in (left.value, right.value) for y in (bottom.value, top.value)]
        xs, ys = zip(*points, strict=True)
        if not all(map(math.isfinite, (*xs, *ys))):
            return None
        box = _intersection(_Box(min(xs), min(ys), max(xs), max(ys)), visible)
        return box if box.left <= box.right and box.bottom <= box.top else None

    def _turned(self, box: _Box) -> tuple[float, float, float, float]:
        if not self._angle:
            return box
        points = [
            (x * self._along + y * self._across, y * self._along - x * self._across)
            for x in (box.left, box.right)
            for y in (box.bottom, box.top)
        ]
        xs, ys = zip(*points, strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    def _matrix_of(self, shape: Any) -> _Matrix:
        if not pdfium.FPDFPageObj_GetMatrix(shape, self._matrix):
            return _IDENTITY
        m = self._matrix
        return m.a, m.b, m.c, m.d, m.e, m.f


def _intersection(box: _Box, other: _Box) -> _Box:
    return _Box(
        max(box.left, other.left),
        max(box.bottom, other.bottom),
        min(box.right, other.right),
        min(box.top, other.top),
    )


def _moved(matrix: _Matrix, x: float, y: float) -> tuple[float, float]:
    a, b, c, d, e, f = matrix
    return a * x + c * y + e, b * x + d * y + f


def _product(first: _Matrix, second: _Matrix) -> _Matrix:
    """Return the matrix that applies the first one and then the second one."""
    a, b, c, d, e, f = first
    g, h, i, j, k, m = second
    return a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + m


def _is_shape(path: Any) -> bool:
    """Return whether a path has curves or slanting lines, or is not a rectangle."""
    count = pdfium.FPDFPath_CountSegments(path)
    if count > MAX_SEGMENTS:
        return True
    x, y = ctypes.c_float(), ctypes.c_float()
    before = (0.0, 0.0)
    for at in range(count):
        segment = pdfium.FPDFPath_GetPathSegment(path, at)
        kind = pdfium.FPDFPathSegment_GetType(segment)
        pdfium.FPDFPathSegment_GetPoint(segment, x, y)
        point = x.value, y.value
        if kind == pdfium.FPDF_SEGMENT_BEZIERTO:
            return True
        is_line = kind == pdfium.FPDF_SEGMENT_LINETO and at > 0
        if is_line and min(abs(point[0] - before[0]), abs(point[1] - before[1])) > STRAIGHT:
            return True
        before = point
    return False


def _picture_key(image: Any) -> str:
    """Return the size of a picture and a hash of the beginning of its stored data."""
    size = pdfium.FPDFImageObj_GetImageDataRaw(image, None, 0)
    if not 0 < size <= 50_000_000:
        return f"{size}"
    data = (ctypes.c_ubyte * size)()
    pdfium.FPDFImageObj_GetImageDataRaw(image, data, size)
    return f"{size}:{xxhash.xxh3_64_hexdigest(memoryview(data))}"
