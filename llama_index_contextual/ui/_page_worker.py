"""Child process of `PageRenderer`: draw the pages of PDFs and images, and mark passages on them.

pdfium is not thread-safe, and a malicious file may crash it or keep it busy, so the server never loads it.
"""

from __future__ import annotations

import base64
import ctypes
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pypdfium2
import pypdfium2.raw as pdfium
from PIL import Image, ImageOps, UnidentifiedImageError

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.discovery import IMAGE_SUFFIXES, read_once
from llama_index_contextual.readers.process import serve
from llama_index_contextual.ui.marks import Box, Char, align, line_boxes, mark_words

DPI = 160
"""Resolution of a drawn page, in dots per inch: about 1.7 pixels per CSS pixel of a page at its original size."""
MAX_PIXELS = 8_000_000
"""Maximum size of a drawn page; larger pages are drawn at a lower resolution."""
MAX_IMAGE_PIXELS = 200_000_000
"""Maximum size of an image file, which has to be decoded as a whole."""
MAX_CHARS = 60_000
"""Maximum number of characters on a page; if there are more, the passage is not marked."""
MAX_BYTES = 1_000_000_000
TALL = 2.5
"""Ratio of a character's box, as the font defines it, to the font size above which the glyph's own box is used."""
COMPRESSION = 3
"""PNG compression level; higher levels take longer and save little."""

CHANGED = "the file has changed since it was ingested: ingest it again"
ENCRYPTED = "the PDF is encrypted, and passwords are not stored"


class Pages(Protocol):
    """The pages of an open file."""

    page_count: int

    def size(self, index: int) -> tuple[float, float]:
        """Return the width and height of a page in points, as displayed."""

    def chars(self, index: int) -> list[Char]:
        """Return the characters of a page with their boxes in points."""

    def draw(self, index: int) -> Image.Image:
        """Return a page as an image."""

    def close(self) -> None:
        """Close the file."""


def main() -> None:
    """Answer requests to draw and mark pages."""
    serve(Desk().answer)


class Desk:
    """Handler of requests that keeps the last requested file open."""

    def __init__(self) -> None:
        self._pages: Pages | None = None
        self._digest = ""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a drawn page or the marks on it, or the reason why it cannot be shown."""
        try:
            pages = self._open(Path(request["path"]), request["digest"])
            index = request["page"] - 1
            if not 0 <= index < pages.page_count:
                return {"reason": f"the file has {pages.page_count} pages, and no page {request['page']}"}
            if request["what"] == "image":
                return {"png": base64.b64encode(_png(pages.draw(index))).decode("ascii")}
            return _marks(pages, index, request["text"], request["words"])
        except pypdfium2.PdfiumError as error:
            raise ReadError(request["path"], f"pdfium cannot show the page ({error})") from error

    def _open(self, path: Path, digest: str) -> Pages:
        if self._pages is not None and self._digest == digest:
            return self._pages
        if self._pages is not None:
            self._pages.close()
            self._pages = None
        try:
            data, digest_now = read_once(path, max_bytes=MAX_BYTES)
        except OSError as error:
            raise ReadError(str(path), f"the file cannot be opened ({error.strerror or error})") from error
        if digest_now != digest:
            raise ReadError(str(path), CHANGED)
        self._pages = ImagePages(path, data) if path.suffix.lower() in IMAGE_SUFFIXES else PdfPages(path, data)
        self._digest = digest
        return self._pages


class PdfPages:
    """The pages of a PDF."""

    def __init__(self, path: Path, data: bytes) -> None:
        try:
            self._pdf = pypdfium2.PdfDocument(data)
        except pypdfium2.PdfiumError as error:
            is_encrypted = error.err_code == pdfium.FPDF_ERR_PASSWORD
            reason = ENCRYPTED if is_encrypted else f"the PDF is damaged or truncated ({error})"
            raise ReadError(str(path), reason) from error
        self.page_count = len(self._pdf)
        if self._pdf.get_formtype() != pdfium.FORMTYPE_NONE:
            self._pdf.init_forms()

    def size(self, index: int) -> tuple[float, float]:
        """Return the width and height of a page in points, after its rotation."""
        width, height = self._pdf.get_page_size(index)
        return _positive(width), _positive(height)

    def chars(self, index: int) -> list[Char]:
        """Return the characters of a page in pdfium's order."""
        page = self._pdf[index]
        text = page.get_textpage()
        try:
            count = text.count_chars()
            if count > MAX_CHARS:
                return []
            reader = _CharReader(text.raw, _placement(page, *self.size(index)))
            return [reader.char(at) for at in range(count)]
        finally:
            text.close()
            page.close()

    def draw(self, index: int) -> Image.Image:
        """Return a page as an image."""
        width, height = self.size(index)
        page = self._pdf[index]
        try:
            bitmap = page.render(scale=min(DPI / 72, math.sqrt(MAX_PIXELS / (width * height))), rev_byteorder=True)
            image: Image.Image = bitmap.to_pil().convert("RGB")
            bitmap.close()
            return image
        finally:
            page.close()

    def close(self) -> None:
        """Close the file."""
        self._pdf.close()


class ImagePages:
    """A PNG, JPEG or TIFF file; a TIFF may have several pages."""

    def __init__(self, path: Path, data: bytes) -> None:
        Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS
        try:
            self._image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "TIFF"))
            self.page_count = getattr(self._image, "n_frames", 1) if self._image.format == "TIFF" else 1
        except (Image.DecompressionBombError, UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
            raise ReadError(str(path), f"the image cannot be decoded ({error})") from error

    def size(self, index: int) -> tuple[float, float]:
        """Return the width and height in points, assuming 160 pixels per inch."""
        image = self.draw(index)
        return image.width * 72 / DPI, image.height * 72 / DPI

    def chars(self, index: int) -> list[Char]:
        """Return an empty list, because an image has no characters."""
        return []

    def draw(self, index: int) -> Image.Image:
        """Return a frame, upright and no larger than needed."""
        try:
            self._image.seek(index)
            image = ImageOps.exif_transpose(self._image).convert("RGB")
        except (Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
            raise ReadError("", f"the image cannot be decoded ({error})") from error
        side = int(math.sqrt(MAX_PIXELS))
        image.thumbnail((side, side))
        return image

    def close(self) -> None:
        """Close the file."""
        self._image.close()


def _marks(pages: Pages, index: int, text: str, words: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the size of a page, and the boxes of a passage and of its words."""
    chars = pages.chars(index)
    width, height = pages.size(index)
    places = align([char.text for char in chars], text)
    lines = line_boxes(chars, {at for at in places if at is not None})
    return {
        "width": width,
        "height": height,
        "pages": pages.page_count,
        "has_text": any(char.text.isalnum() for char in chars),
        "lines": [_within(box, width, height) for box in lines],
        "words": [
            _within(box, width, height) for box in mark_words(chars, places, ((start, end) for start, end in words))
        ],
    }


def _within(box: Box, width: float, height: float) -> list[float]:
    """Return the edges of a box, clipped to the page."""
    x0, x1 = (round(min(max(x, 0.0), width), 1) for x in (box.x0, box.x1))
    y0, y1 = (round(min(max(y, 0.0), height), 1) for y in (box.y0, box.y1))
    return [x0, y0, x1, y1]


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=COMPRESSION)
    return file.getvalue()


# ---- Characters of pdfium --------------------------------------------------------------------------------------------

Placement = tuple[float, float, float, float, float, float]
"""Coefficients that convert PDF coordinates to points on the displayed page: x = a x + b y + c, y = d x + e y + f."""


def _placement(page: Any, width: float, height: float) -> Placement:
    """Return the placement of a page, which depends on its boxes and its rotation."""
    fine = 100  # pdfium returns whole numbers
    x, y = ctypes.c_int(), ctypes.c_int()

    def shown(at_x: float, at_y: float) -> tuple[float, float]:
        pdfium.FPDF_PageToDevice(page.raw, 0, 0, round(width * fine), round(height * fine), 0, at_x, at_y, x, y)
        return x.value / fine, y.value / fine

    unit = 1_000.0
    (c, f), (ax, dx), (by, ey) = shown(0, 0), shown(unit, 0), shown(0, unit)
    return (ax - c) / unit, (by - c) / unit, c, (dx - f) / unit, (ey - f) / unit, f


class _CharReader:
    """Reads the characters of a page, with as few calls to pdfium as possible and with reused arguments.

    Args:
        text: The text of the page.
        place: The placement of the page.
    """

    def __init__(self, text: Any, place: Placement) -> None:
        self._text, self._place = text, place
        self._left, self._right, self._bottom, self._top = edges = [ctypes.c_double() for _ in range(4)]
        self._edges = [ctypes.byref(edge) for edge in edges]
        self._loose, self._matrix = pdfium.FS_RECTF(), pdfium.FS_MATRIX()
        self._sound: tuple[float, float] | None = None

    def char(self, at: int) -> Char:
        """Return a character; a character that is not drawn has an empty box."""
        code = pdfium.FPDFText_GetUnicode(self._text, at)
        sign = chr(code) if 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else "\ufffd"
        if sign.isspace():
            return Char(sign, 0.0, 0.0, 0.0, 0.0)
        loose = self._loose
        if pdfium.FPDFText_GetLooseCharBox(self._text, at, loose) and self._is_sound(at):
            return Char(sign, *_shown(loose.left, loose.bottom, loose.right, loose.top, self._place))
        pdfium.FPDFText_GetCharBox(self._text, at, *self._edges)
        return Char(
            sign, *_shown(self._left.value, self._bottom.value, self._right.value, self._top.value, self._place)
        )

    def _is_sound(self, at: int) -> bool:
        """Return whether the box that the font defines for a character is not much larger than the font size."""
        loose = self._loose
        width, height = loose.right - loose.left, loose.top - loose.bottom
        if not (0 < width < math.inf and 0 < height < math.inf):
            return False
        # The letters of a line differ only in width.
        if (loose.bottom, loose.top) != self._sound:
            size = abs(float(pdfium.FPDFText_GetFontSize(self._text, at)))
            if pdfium.FPDFText_GetMatrix(self._text, at, self._matrix):
                size *= math.hypot(self._matrix.c, self._matrix.d)
            if max(width, height) > TALL * size > 0:
                return False
            self._sound = loose.bottom, loose.top
        return True


def _shown(left: float, bottom: float, right: float, top: float, place: Placement) -> tuple[float, float, float, float]:
    a, b, c, d, e, f = place
    x0, x1 = a * left + b * bottom + c, a * right + b * top + c
    y0, y1 = d * left + e * bottom + f, d * right + e * top + f
    return (x0 if x0 < x1 else x1), (y0 if y0 < y1 else y1), (x1 if x0 < x1 else x0), (y1 if y0 < y1 else y0)


def _positive(size: float) -> float:
    return size if math.isfinite(size) and size > 0 else 1.0


if __name__ == "__main__":
    main()
