"""Page images of the original files, and the marks for passages on these pages.

pdfium is not thread-safe, and a malicious file may crash it or keep it busy. Therefore, the server never loads pdfium:
pages are rendered and marked in child processes, which are killed after a time limit and restarted after a crash. A
child process runs this module as a program.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import io
import math
import os
import queue
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.locks import call_in_child
from llama_index_contextual.errors import ReadError
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.sources import SourceFile, SourceFinder
from llama_index_contextual.readers.files import IMAGE_SUFFIXES, PDF_SUFFIXES
from llama_index_contextual.readers.ocr import ImageFile, OpenFile, PdfFile, PictureFile, grey_page, image_hash
from llama_index_contextual.readers.pdf.scans import Page
from llama_index_contextual.readers.process import ChildProcess, answer_requests
from llama_index_contextual.ui.marks import Box, Char, Span, align, mark_span, scan_chars
from llama_index_contextual.ui.places import suffix_of

if TYPE_CHECKING:
    from PIL.Image import Image

CHILD = __name__
PROCESSES = 2
SECONDS = 20.0
"""Time limit for one page, in seconds, after which the process is killed."""
WAITING_SECONDS = 60.0
"""Maximum time that a request waits for a free process, in seconds."""
MAX_MEMORY = 2_000_000_000
CACHE_BYTES = 64_000_000
MARKED_PAGES = 1_000
"""Number of pages whose marks are cached, because the view of a result needs the same marks as its picture."""
MAX_BYTES = 1_000_000_000


@dataclass(frozen=True)
class PageMarks:
    """Marks on a page, in points from its upper left corner.

    Attributes:
        width: Width of the displayed page.
        height: Height of the displayed page.
        pages: Number of pages in the file.
        has_text: Whether the page has a text layer or was read by OCR; otherwise, nothing on it can be marked.
        lines: The lines of the passage.
        mark: The lines of the sentence or row to mark.
    """

    width: float
    height: float
    pages: int
    has_text: bool
    lines: Sequence[Box]
    mark: Sequence[Box]


class PageRenderer:
    """Thread-safe pool of child processes that render and mark pages, with a cache of recent images and marks.

    Args:
        processes: Number of child processes; each process is started on first use.
        seconds: Time limit for one page.
        waiting_seconds: Maximum time that a request waits for a free process.
        cache_bytes: Size of the image cache.

    Attributes:
        picture_slots: Semaphore that keeps one process free for pages while many small pictures are drawn.
    """

    def __init__(
        self,
        *,
        processes: int = PROCESSES,
        seconds: float = SECONDS,
        waiting_seconds: float = WAITING_SECONDS,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._seconds = seconds
        self._waiting_seconds = waiting_seconds
        self._workers = [ChildProcess(CHILD, task="drawing the page", max_memory=MAX_MEMORY) for _ in range(processes)]
        self._queue_workers()
        call_in_child(self._queue_workers)
        self._images = LRUCache[tuple[str, int], bytes](cache_bytes, len)
        self._marks = LRUCache[tuple[Any, ...], PageMarks](MARKED_PAGES)
        self._hashes = LRUCache[tuple[str, int], str](MARKED_PAGES)

    def _queue_workers(self) -> None:
        # Last in, first out: a single user is always served by the same process, which has the file open.
        self._idle: queue.LifoQueue[ChildProcess] = queue.LifoQueue()
        for worker in reversed(self._workers):
            self._idle.put(worker)
        self.picture_slots = asyncio.Semaphore(max(1, len(self._workers) - 1))

    def marks(
        self, file: SourceFile, page: int, text: str, sentence: Span = (0, 0), scan: Page | None = None
    ) -> PageMarks:
        """Return the marks for a passage on a page.

        Args:
            file: The file.
            page: Number of the page, starting at 1.
            text: The part of the passage on this page.
            sentence: Start and end of the sentence or row to mark.
            scan: The page as read by OCR, if it has no text layer.

        Raises:
            ReadError: The page cannot be shown; `reason` contains the cause.
        """
        key = (file.digest, page, text, sentence, scan is None)
        if (marks := self._marks.get(key)) is None:
            request = {"what": "marks", "page": page, "text": text, "sentence": list(sentence), "scan": scan}
            answer = self._ask(file, request)
            boxes = {name: [Box(*edges) for edges in answer[name]] for name in ("lines", "mark")}
            marks = PageMarks(**{**answer, **boxes})
            self._marks.put(key, marks)
        return marks

    def scan_hash(self, file: SourceFile, page: int) -> str:
        """Return the hash of a page's image, which identifies its OCR result in the ledger.

        Raises:
            ReadError: The page cannot be shown; `reason` contains the cause.
        """
        if (image := self._hashes.get((file.digest, page))) is None:
            image = str(self._ask(file, {"what": "hash", "page": page})["hash"])
            self._hashes.put((file.digest, page), image)
        return image

    def image(self, file: SourceFile, page: int) -> bytes:
        """Return a page as PNG.

        Raises:
            ReadError: The page cannot be shown; `reason` contains the cause.
        """
        if (image := self._images.get((file.digest, page))) is None:
            image = base64.b64decode(self._ask(file, {"what": "image", "page": page})["image"])
            self._images.put((file.digest, page), image)
        return image

    def picture(self, file: SourceFile, page: int, marks: PageMarks) -> bytes:
        """Return a small picture of the part of a page around its marks, as JPEG.

        Raises:
            ReadError: The page cannot be shown; `reason` contains the cause.
        """
        return base64.b64decode(self._ask(file, {**asdict(marks), "what": "picture", "page": page})["image"])

    def close(self) -> None:
        """Stop the child processes; a later request starts new processes."""
        for worker in self._workers:
            worker.close()

    def _ask(self, file: SourceFile, request: dict[str, Any]) -> dict[str, Any]:
        if file.path is None:
            raise ReadError("", "the file was not found")
        try:
            worker = self._idle.get(timeout=self._waiting_seconds)
        except queue.Empty:
            reason = "the server is busy with other pages: reload this one later"
            raise ReadError(str(file.path), reason) from None
        try:
            request = {**request, "path": str(file.path), "digest": file.digest, "max_bytes": MAX_BYTES}
            return worker.ask(file.path, request, seconds=self._seconds)
        finally:
            self._idle.put(worker)


class Originals(SourceFinder):
    """The original files of an application's projects.

    Args:
        folders: Folders with copies of the files, if they are no longer where they were ingested.
        renderer: Renderer for the pages.
    """

    def __init__(self, folders: Sequence[Path] = (), renderer: PageRenderer | None = None) -> None:
        super().__init__(folders)
        self.renderer = renderer or PageRenderer()

    def may_have_pages(self, record: DocumentRecord) -> bool:
        """Return whether the pages of a document's file can probably be shown; the file is not read."""
        return has_pages(record) and (bool(self._folders) or (bool(record.path) and os.path.exists(record.path or "")))


def has_pages(record: DocumentRecord) -> bool:
    """Return whether the pages of a document's file can be shown."""
    return suffix_of(record.file_name or record.doc_id) in (*PDF_SUFFIXES, *IMAGE_SUFFIXES)


# ---- Child -----------------------------------------------------------------------------------------------------------

DPI = 160
"""Resolution of a rendered page in dots per inch, which gives about 1.7 pixels per CSS pixel at the original size."""
MAX_PIXELS = 8_000_000
"""Maximum number of pixels of a rendered page; larger pages are rendered at a lower resolution."""
MAX_CHARS = 60_000
"""Maximum number of characters on a page; if there are more, the passage is not marked."""
TALL = 2.5
"""Maximum ratio of a character box, as defined by the font, to the font size; for larger boxes, use the glyph's box."""
COMPRESSION = 3
"""PNG compression level; higher levels take longer and save little."""

RECENT_PAGES = 16
"""Number of pages whose characters are cached, because several results are often on one page."""

PICTURE = (340, 240)
"""Width and height, in points, of the part of a page that a small picture shows."""
PICTURE_PIXELS = (510, 360)
QUALITY = 80
"""JPEG quality of small pictures."""
FAINT, STRONG = "#fdf0bf", "#ffd54a"
"""Colours of a passage and of its sentence in a small picture."""


class PageWorker:
    """Handler for requests in the child process."""

    def __init__(self) -> None:
        self._file = OpenFile()
        self._chars = LRUCache[tuple[str, int], tuple[tuple[float, float], list[Char]]](RECENT_PAGES)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a rendered page, the marks on a page, or the reason why the page cannot be shown."""
        file, digest = self._file.get(request)
        index = request["page"] - 1
        if not 0 <= index < file.page_count:
            return {"reason": f"the file has {file.page_count} pages, and no page {request['page']}"}
        if isinstance(file, PdfFile) and file.pdf.formenv is None and file.pdf.get_formtype():
            file.pdf.init_forms()
        if request["what"] == "image":
            return _encoded(file.draw(index, DPI, MAX_PIXELS, "RGB")[0], "PNG", compress_level=COMPRESSION)
        if request["what"] == "picture":
            return _encoded(_picture(file, index, request), "JPEG", quality=QUALITY)
        if request["what"] == "hash":
            return {"hash": image_hash(grey_page(file, index)[0])}
        if isinstance(file, PdfFile):
            page_chars = self._chars.get((digest, index)) or _page_chars(file.pdf, index)
            self._chars.put((digest, index), page_chars)
            size, chars = page_chars
        else:
            image, _ = file.draw(index, DPI, MAX_PIXELS, "RGB")
            size, chars = (image.width * 72 / DPI, image.height * 72 / DPI), []
        if request["scan"] is not None:
            chars = scan_chars(request["scan"], size)
        return {"pages": file.page_count, **_marks(size, chars, request)}


def _encoded(image: Image, kind: str, **options: int) -> dict[str, Any]:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return {"image": base64.b64encode(data.getvalue()).decode("ascii")}


def _picture(file: PdfFile | ImageFile | PictureFile, index: int, request: dict[str, Any]) -> Image:
    """Return the part of a page around its marks, with the lines of the passage and of the sentence coloured."""
    from PIL import Image, ImageChops, ImageDraw

    left, top, right, bottom = _picture_area(request)
    crop = (left, request["height"] - bottom, request["width"] - right, top)
    image, dpi = file.draw(index, DPI, MAX_PIXELS, "RGB", crop)
    scale, colours = dpi / 72, Image.new("RGB", image.size, "white")
    draw = ImageDraw.Draw(colours)
    for boxes, colour in ((request["lines"], FAINT), (request["mark"], STRONG)):
        for x0, y0, x1, y1 in boxes:
            edges = (x0 - 1 - left, y0 - top, x1 + 1 - left, y1 - top)
            draw.rectangle([edge * scale for edge in edges], fill=colour)
    image = ImageChops.multiply(image, colours)
    image.thumbnail(PICTURE_PIXELS)
    return image


def _picture_area(request: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return the edges, in points, of the part of a page that a small picture shows."""
    boxes = request["mark"] or request["lines"] or [[0, 0, 0, 0]]
    width, height = (min(edges) for edges in zip((request["width"], request["height"]), PICTURE, strict=True))
    first, last = boxes[0][1], boxes[-1][3]
    middle = (first + last) / 2 if last - first < PICTURE[1] else first + PICTURE[1] / 3
    left = min(max(0.0, min(box[0] for box in boxes) - 12), request["width"] - width)
    top = min(max(0.0, middle - height / 2), request["height"] - height)
    return left, top, left + width, top + height


def _marks(size: tuple[float, float], chars: Sequence[Char], request: dict[str, Any]) -> dict[str, Any]:
    """Return the size of a page and the boxes of the passage and of the sentence to mark."""
    places = align([char.text for char in chars], request["text"])
    return {
        "width": size[0],
        "height": size[1],
        "has_text": any(char.text.isalnum() for char in chars),
        **{
            name: [_clip_to_page(box, *size) for box in mark_span(chars, places, span)]
            for name, span in (("lines", (0, len(places))), ("mark", request["sentence"]))
        },
    }


def _clip_to_page(box: Box, width: float, height: float) -> list[float]:
    """Return the edges of a box, clipped to the page."""
    x0, x1 = (round(min(max(x, 0.0), width), 1) for x in (box.x0, box.x1))
    y0, y1 = (round(min(max(y, 0.0), height), 1) for y in (box.y0, box.y1))
    return [x0, y0, x1, y1]


def _page_chars(pdf: Any, index: int) -> tuple[tuple[float, float], list[Char]]:
    """Return the size of a page as displayed, and its characters in pdfium's order, with their boxes in points."""
    import pypdfium2

    try:
        page = pdf[index]
        width, height = (size if math.isfinite(size) and size > 0 else 1.0 for size in page.get_size())
        text = page.get_textpage()
        chars = _chars(text, _placement(page, width, height)) if text.count_chars() <= MAX_CHARS else []
        text.close()
        page.close()
    except pypdfium2.PdfiumError as error:
        raise ReadError("", f"pdfium cannot show the page ({error})") from error
    return (width, height), chars


Placement = tuple[float, float, float, float, float, float]
"""Coefficients that convert PDF coordinates to points on the displayed page: x = a x + b y + c, y = d x + e y + f."""


def _placement(page: Any, width: float, height: float) -> Placement:
    """Return the placement of a page, which depends on its page boxes and its rotation."""
    import pypdfium2.raw as pdfium

    fine = 100  # pdfium returns whole numbers
    x, y = ctypes.c_int(), ctypes.c_int()

    def shown(at_x: float, at_y: float) -> tuple[float, float]:
        pdfium.FPDF_PageToDevice(page.raw, 0, 0, round(width * fine), round(height * fine), 0, at_x, at_y, x, y)
        return x.value / fine, y.value / fine

    unit = 1_000.0
    (c, f), (ax, dx), (by, ey) = shown(0, 0), shown(unit, 0), shown(0, unit)
    return (ax - c) / unit, (by - c) / unit, c, (dx - f) / unit, (ey - f) / unit, f


def _chars(text: Any, place: Placement) -> list[Char]:
    """Return the characters of a page with their boxes, which are empty for white space."""
    import pypdfium2.raw as pdfium

    a, b, c, d, e, f = place
    matrix = pdfium.FS_MATRIX()
    chars: list[Char] = []
    for at in range(text.count_chars()):
        code = pdfium.FPDFText_GetUnicode(text.raw, at)
        sign = chr(code) if 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else "\ufffd"
        if sign.isspace():
            chars.append(Char(sign, 0.0, 0.0, 0.0, 0.0))
            continue
        left, bottom, right, top = text.get_charbox(at, loose=True)
        size = abs(float(pdfium.FPDFText_GetFontSize(text.raw, at)))
        if pdfium.FPDFText_GetMatrix(text.raw, at, matrix):
            size *= math.hypot(matrix.c, matrix.d)
        if not (left < right < math.inf and bottom < top < math.inf and max(right - left, top - bottom) <= TALL * size):
            left, bottom, right, top = text.get_charbox(at)
        x0, x1 = sorted((a * left + b * bottom + c, a * right + b * top + c))
        y0, y1 = sorted((d * left + e * bottom + f, d * right + e * top + f))
        chars.append(Char(sign, x0, y0, x1, y1))
    return chars


if __name__ == "__main__":
    answer_requests(PageWorker().answer)
