"""Read scanned pages with RapidOCR or tesseract in child processes.

`engine_for` chooses the engine, and `OcrReader` reads the pages of a PDF that have no text, or the pages of an image
file. When run as a program, this module is the child process: it opens a file, renders a page, returns the hash of the
image, and reads the page unless the parent process has already stored it.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import itertools
import json
import logging
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.files import IMAGE_SUFFIXES, OFFICE_SUFFIXES, FileSource, ReadLimits, one_line
from llama_index_contextual.readers.pdf.scans import OcrPages, Page, mean_confidence
from llama_index_contextual.readers.process import ChildProcess, answer_requests

if TYPE_CHECKING:
    from PIL.Image import Image

INSTALL = '`pip install "llama-index-contextual[ocr]"`'
CHILD = __name__
MAX_PROCESSES = 4  # a child process needs up to 1.2 GB of memory
MAX_MEMORY = 6_000_000_000
CHANGED = "was replaced by another file in the meantime: ingest it again"
ENCRYPTED = "the PDF is encrypted, and passwords are not stored"


class PageStore(Protocol):
    """Store for the text of pages, such as the ledger. The key of a page depends on its image and the engine."""

    def page(self, key: str) -> str | None:
        """Return the page with this key, or None."""

    def add_page(self, key: str, page: str, engine: str) -> None:
        """Store a page and return after it has been written to disk."""


@dataclass(frozen=True)
class OcrEngine:
    """An installed OCR engine.

    Attributes:
        name: Name of the engine.
        version: Version of the engine; when it changes, pages are read again.
        language: tesseract's languages, such as "deu+fra"; empty for RapidOCR, which reads Latin and Chinese scripts.
    """

    name: Literal["rapidocr", "tesseract"]
    version: str
    language: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.version, self.language)))

    def key(self, image: str) -> str:
        """Return the key under which a page is stored, given the hash of its image."""
        return hashlib.sha256(json.dumps(["ocr", image, self.name, self.version, self.language]).encode()).hexdigest()


def engine_for(setting: str | None) -> OcrEngine | str:
    """Return the engine for the `ocr` setting, or a message that explains why no engine is used and what to do.

    "auto" uses RapidOCR if it is installed, otherwise tesseract.
    """
    if setting is None:
        return "set `ocr` to 'auto'"
    if setting in ("auto", "rapidocr"):
        if find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None:
            return OcrEngine("rapidocr", version("rapidocr"))
        if setting == "rapidocr":
            return INSTALL
    codes = setting.partition(":")[2] or "eng"
    release, languages = _tesseract()
    if not release:
        return INSTALL if setting == "auto" else "install tesseract (Debian: apt install tesseract-ocr)"
    if missing := [name for name in codes.split("+") if name not in languages]:
        return f"tesseract has no language {missing[0]!r}: install it (Debian: apt install tesseract-ocr-{missing[0]})"
    return OcrEngine("tesseract", release, codes)


@cache
def _tesseract() -> tuple[str, frozenset[str]]:
    """Return the version and the languages of tesseract; both are empty if it is not installed."""

    def output(option: str) -> list[str]:
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(["tesseract", option], capture_output=True, text=True, timeout=30, check=True)
            return (done.stdout or done.stderr).splitlines()
        return [""]

    return output("--version")[0].removeprefix("tesseract "), frozenset(output("--list-langs")[1:])


# ---- Parent ----------------------------------------------------------------------------------------------------------


class OcrReader:
    """Reader that runs OCR in child processes, which are started by the first call of `read`.

    Args:
        engine: The engine.
        store: Store for pages, or None.
        on_page: Called with the path of the file, the number of its pages that have been read or need no OCR, and the
            total number of pages.
        processes: Maximum number of child processes; None for one per core, up to `MAX_PROCESSES`.
    """

    def __init__(
        self,
        engine: OcrEngine,
        *,
        store: PageStore | None = None,
        on_page: Callable[[Path, int, int], None] | None = None,
        processes: int | None = None,
    ) -> None:
        self.engine = engine
        self._store = store
        self._on_page = on_page
        self._processes = processes or min(os.cpu_count() or 1, MAX_PROCESSES)
        self._lock = Lock()
        self._children: list[ChildProcess] = []
        self._stopped = threading.Event()

    def close(self) -> None:
        """Stop the children and any `read` in another thread; a later `read` starts new children."""
        self._stopped.set()
        self._stopped = threading.Event()
        children, self._children = self._children, []
        for child in children:
            child.close()

    def read(
        self,
        path: Path,
        pages: Sequence[int] | None = None,
        *,
        password: str | None = None,
        digest: str | None = None,
        limits: ReadLimits,
    ) -> OcrPages:
        """Read pages of a PDF or an image file in parallel.

        Args:
            path: The file.
            pages: Numbers of the pages, starting at 1; None for all.
            password: Password of an encrypted PDF.
            digest: Expected xxh3-128 hash of the file; None to accept any file.
            limits: Limits for the file; `max_seconds` applies to each page.

        Raises:
            ReadError: The file cannot be read or has been replaced.
        """
        with self._lock:
            while len(self._children) < self._processes:
                child = ChildProcess(CHILD, task="OCR", max_memory=MAX_MEMORY, niceness=limits.niceness)
                self._children.append(child)
            idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
            for child in self._children:
                idle.put(child)
            threads = max(1, (os.cpu_count() or 1) // self._processes)
            request = {"path": str(path), "password": password, "digest": digest, "max_bytes": limits.max_bytes}
            request |= {"engine": self.engine.name, "language": self.engine.language, "threads": threads}
            file = _File(path, request, limits.max_seconds, self._stopped)
            opened = file.ask(self._children[0], "open")
            request["digest"] = opened["digest"]
            numbers = list(range(1, opened["pages"] + 1)) if pages is None else list(pages)
            if len(numbers) > limits.max_pages:
                raise ReadError(str(path), f"has {len(numbers):,} pages, more than the limit of {limits.max_pages:,}")
            counter = itertools.count(opened["pages"] - len(numbers) + 1)

            def read(number: int) -> Page | str:
                child = idle.get()
                try:
                    page = self._page(child, file, number)
                except ReadError as error:
                    return f"page {number} was left out: {error.reason}"
                finally:
                    idle.put(child)
                if self._on_page is not None:
                    self._on_page(path, next(counter), opened["pages"])
                return page

            with ThreadPoolExecutor(self._processes) as pool:
                answers = list(pool.map(read, numbers))
        if file.stopped.is_set():
            raise ReadError(str(path), "was not read to its end, because the run was stopped")
        return OcrPages(
            pages={number: page for number, page in zip(numbers, answers, strict=True) if not isinstance(page, str)},
            failed=[answer for answer in answers if isinstance(answer, str)],
            total=opened["pages"],
            digest=opened["digest"],
        )

    def _page(self, child: ChildProcess, file: _File, number: int) -> Page:
        """Return the text boxes of a page from the store, or read the page by OCR and store the result."""
        key = self.engine.key(file.ask(child, "draw", number)["image"])
        stored = None if self._store is None else self._store.page(key)
        if stored is not None:
            page: Page = json.loads(stored)
            return page
        page = file.ask(child, "read", number)
        if self._store is not None:
            self._store.add_page(key, json.dumps(page, ensure_ascii=False), str(self.engine))
        return page


class _File(NamedTuple):
    """A file to read, with the fields common to all requests, the time limit, and the event that stops the run."""

    path: Path
    request: dict[str, Any]
    seconds: float
    stopped: threading.Event

    def ask(self, child: ChildProcess, what: str, number: int = 1) -> dict[str, Any]:
        """Ask a child process to open the file, or to render or read one of its pages, and return the response."""
        if self.stopped.is_set():
            raise ReadError(str(self.path), "the run was stopped")
        return child.ask(self.path, {**self.request, "what": what, "page": number - 1}, seconds=self.seconds)


# ---- Child -----------------------------------------------------------------------------------------------------------

DPI = 200  # higher resolutions take longer and do not improve the result
MAX_PIXELS = 30_000_000  # limit for rendered pages; larger pages are rendered at a lower resolution
MAX_IMAGE_PIXELS = 200_000_000  # limit for image files, which have to be decoded as a whole
MIN_CONTRAST = 24  # grey levels; a page with less contrast is considered blank
GOOD = 0.85  # a page with a lower confidence is rotated and read again

Pixels = NDArray[np.uint8]
ImageMode = Literal["L", "RGB"]
Crop = tuple[float, float, float, float]
"""Points to cut off at the left, bottom, right and top of a page."""


class OcrWorker:
    """State of a child process: the open file, the last rendered page, and the OCR engine.

    The engine is loaded when the first page is read.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._file = OpenFile()
        self._drawn: tuple[str, int, Pixels, float] | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open a file, or render or read one of its pages."""
        file, digest = self._file.get(request)
        if request["what"] == "open":
            return {"pages": file.page_count, "digest": digest}
        if self._drawn is None or self._drawn[:2] != (digest, request["page"]):
            self._drawn = (digest, request["page"], *grey_page(file, request["page"]))
        _, _, image, dpi = self._drawn
        if request["what"] == "draw":
            return {"image": image_hash(image)}
        boxes: list[list[Any]] = []
        turns = 0
        if np.ptp(image) >= MIN_CONTRAST:
            if self._engine is None:
                threads, is_tesseract = request["threads"], request["engine"] == "tesseract"
                self._engine = Tesseract(request["language"], threads) if is_tesseract else RapidOcr(threads)
            boxes, turns = read_upright(self._engine, image)
        height, width = image.shape[::-1] if turns % 2 else image.shape
        return {"width": width, "height": height, "dpi": dpi, "turns": turns, "boxes": boxes}


# ---- Images ----------------------------------------------------------------------------------------------------------


def grey_page(file: PdfFile | ImageFile | PictureFile, index: int) -> tuple[Pixels, float]:
    """Return a page as a greyscale image for OCR, and the resolution of the image."""
    drawn, dpi = file.draw(index, DPI, MAX_PIXELS, "L")
    return np.array(drawn, dtype=np.uint8), dpi


def image_hash(image: Pixels) -> str:
    """Return the hash of a page image for `OcrEngine.key`."""
    return hashlib.sha256(repr(image.shape).encode() + image.tobytes()).hexdigest()


class OpenFile:
    """Cache for the file of the last request to a child process."""

    def __init__(self) -> None:
        self._file: PdfFile | ImageFile | PictureFile | None = None
        self._digest = ""

    def get(self, request: Mapping[str, Any]) -> tuple[PdfFile | ImageFile | PictureFile, str]:
        """Open the file that a request specifies by "path" and "digest". Return the file and its xxh3-128 hash.

        The last file is kept open and returned again if the next request contains the same digest.
        """
        if self._file is None or self._digest != request["digest"]:
            self._file = None
            path = Path(request["path"])
            source = FileSource.open(path, ReadLimits(max_bytes=request["max_bytes"]))
            data, self._digest = source.data, source.digest
            if request["digest"] not in (None, self._digest):
                raise ReadError(str(path), CHANGED)
            suffix = path.suffix.lower()
            if suffix in OFFICE_SUFFIXES:
                self._file = PictureFile(source)
            elif suffix in IMAGE_SUFFIXES:
                self._file = ImageFile(path, data)
            else:
                self._file = PdfFile(path, data, request.get("password"))
        return self._file, self._digest


class PdfFile:
    """The pages of a PDF, rendered by pdfium.

    Attributes:
        pdf: The document.
        page_count: Number of pages.
    """

    def __init__(self, path: Path, data: bytes, password: str | None) -> None:
        import pypdfium2

        self._path, self._errors = str(path), (pypdfium2.PdfiumError, ValueError)
        try:
            self.pdf: Any = pypdfium2.PdfDocument(data, password=password)
        except pypdfium2.PdfiumError as error:
            is_encrypted = error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD
            raise ReadError(self._path, ENCRYPTED if is_encrypted else f"the PDF is damaged ({error})") from error
        self.page_count = len(self.pdf)

    def draw(
        self, index: int, dpi: int, max_pixels: int, mode: ImageMode, crop: Crop = (0, 0, 0, 0)
    ) -> tuple[Image, float]:
        """Render a page, or a part of it, at a resolution of at most `dpi`; return the image and its resolution."""
        try:
            page = self.pdf[index]
            width, height = page.get_size()
            scale = min(dpi / 72, (max_pixels / max(width * height, 1.0)) ** 0.5)
            with_forms = mode == "RGB"  # OCR reads no forms
            bitmap = page.render(scale=scale, crop=crop, grayscale=mode == "L", may_draw_forms=with_forms)
            image = bitmap.to_pil().convert(mode)
            bitmap.close()
            page.close()
        except self._errors as error:
            raise ReadError(self._path, f"pdfium cannot draw it ({error})") from error
        return image, scale * 72


class ImageFile:
    """A PNG, JPEG or TIFF file; a TIFF may have several pages.

    Attributes:
        page_count: Number of pages.
    """

    def __init__(self, path: Path, data: bytes, formats: tuple[str, ...] = ("PNG", "JPEG", "TIFF")) -> None:
        from PIL import Image, UnidentifiedImageError

        Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS
        self._path = str(path)
        self._errors = (Image.DecompressionBombError, UnidentifiedImageError, OSError, ValueError, SyntaxError)
        try:
            self._image = Image.open(io.BytesIO(data), formats=formats)
            # The second frame of a PNG or JPEG is a preview or part of an animation.
            self.page_count = getattr(self._image, "n_frames", 1) if self._image.format == "TIFF" else 1
        except self._errors as error:
            raise ReadError(self._path, _undecodable(error)) from error

    def draw(
        self, index: int, dpi: int, max_pixels: int, mode: ImageMode, crop: Crop = (0, 0, 0, 0)
    ) -> tuple[Image, float]:
        """Return a page, or a part of it, and `dpi` as its assumed resolution.

        A page with more than `max_pixels` is scaled down.
        """
        from PIL import Image, ImageOps

        try:
            self._image.seek(index)
            width, height = self._image.size
            if width * height > MAX_IMAGE_PIXELS:
                limit = f"more than the limit of {MAX_IMAGE_PIXELS:,}"
                raise ReadError(self._path, f"the image has {width * height:,} pixels, {limit}")
            image = ImageOps.exif_transpose(self._image)
            if image.has_transparency_data:
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            image = image.convert(mode)
            if (shrink := (max_pixels / (width * height)) ** 0.5) < 1:
                image = image.resize((max(1, int(image.width * shrink)), max(1, int(image.height * shrink))))
            left, bottom, right, top = (round(points * dpi / 72) for points in crop)
            image = image.crop((left, top, image.width - right, image.height - bottom))
        except self._errors as error:
            raise ReadError(self._path, _undecodable(error)) from error
        return image, dpi


class PictureFile:
    """The pictures of an Office file or an email, and the pages of PDFs attached to the email, as pages.

    Attributes:
        page_count: Number of pictures.
    """

    def __init__(self, source: FileSource) -> None:
        from llama_index_contextual.readers.pictures import pictures_of

        self._path = source.path
        self._pictures = list(pictures_of(source))
        self.page_count = len(self._pictures)

    def draw(
        self, index: int, dpi: int, max_pixels: int, mode: ImageMode, crop: Crop = (0, 0, 0, 0)
    ) -> tuple[Image, float]:
        """Return a picture; see `ImageFile.draw`."""
        from llama_index_contextual.readers.pictures import FORMATS

        _, data, page = self._pictures[index]
        is_pdf = data.startswith(b"%PDF")
        file = PdfFile(self._path, data, None) if is_pdf else ImageFile(self._path, data, FORMATS)
        return file.draw(page, dpi, max_pixels, mode, crop)


def _undecodable(error: Exception) -> str:
    return f"the image cannot be decoded ({one_line(str(error)) or type(error).__name__})"


# ---- Engines ---------------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """The text boxes of an image, and whether most of the text runs up or down."""

    boxes: list[list[Any]]
    is_sideways: bool

    @property
    def confidence(self) -> float:
        """Mean confidence of the characters."""
        return mean_confidence(self.boxes)


class Engine(Protocol):
    """An OCR engine."""

    def read(self, image: Pixels) -> Reading:
        """Recognise the text in a greyscale image."""


def read_upright(engine: Engine, image: Pixels) -> tuple[list[list[Any]], int]:
    """Read an image, rotating it if that improves the result. Return the boxes and the anticlockwise quarter turns."""
    best, turns = engine.read(image), 0
    if not best.boxes or (best.confidence >= GOOD and not best.is_sideways):
        return best.boxes, turns
    for quarters in (1, 3) if best.is_sideways else (2,):
        turned = np.ascontiguousarray(np.rot90(image, quarters))
        reading = engine.read(turned)
        is_better = reading.confidence > best.confidence or (best.is_sideways and not reading.is_sideways)
        if reading.boxes and is_better:
            best, turns = reading, quarters
        if best.confidence >= GOOD and not best.is_sideways:
            break
    return best.boxes, turns


class RapidOcr:
    """RapidOCR with the models from its wheel, so that nothing is downloaded."""

    def __init__(self, threads: int) -> None:
        import cv2
        from rapidocr import RapidOCR

        cv2.setNumThreads(threads)
        engine = "EngineConfig.onnxruntime"
        self._engine: Any = RapidOCR(
            params={
                "Global.log_level": "error",
                "Global.use_cls": False,  # upside-down pages are rotated as a whole
                "Global.max_side_len": 10_000,  # the resolution is limited when a page is rendered
                "Det.model_path": _model_path("det"),
                "Rec.model_path": _model_path("rec"),
                f"{engine}.intra_op_num_threads": threads,
                f"{engine}.inter_op_num_threads": 1,
            }
        )
        logging.getLogger("RapidOCR").setLevel(logging.ERROR)

    def read(self, image: Pixels) -> Reading:
        """Recognise the text in a greyscale image."""
        result = self._engine(np.repeat(image[:, :, None], 3, axis=2))
        if result.txts is None:
            return Reading([], is_sideways=False)
        boxes = [
            [text.strip(), round(float(score), 3), *(int(value) for point in corners for value in point)]
            for text, score, corners in zip(result.txts, result.scores, result.boxes, strict=True)
            if text.strip()
        ]
        vertical = sum(len(box[0]) for box in boxes if _is_vertical(box))
        return Reading(boxes, 2 * vertical > sum(len(box[0]) for box in boxes))


def _is_vertical(box: list[Any]) -> bool:
    text, _score, x0, y0, x1, _y1, _x2, _y2, _x3, y3 = box
    return len(text) > 1 and abs(y3 - y0) >= 1.5 * abs(x1 - x0)


def _model_path(kind: str) -> str:
    """Return the path of a model in the wheel, even if another model was downloaded later."""
    files = importlib.metadata.files("rapidocr") or []
    models = [file for file in files if file.suffix == ".onnx" and f"_{kind}_" in file.name]
    if not models or not Path(str(models[0].locate())).is_file():
        raise ReadError(
            "", 'rapidocr has no models in its wheel: `pip install --upgrade "llama-index-contextual[ocr]"`'
        )
    return str(models[0].locate())


class Tesseract:
    """OCR engine that runs the `tesseract` program."""

    def __init__(self, language: str, threads: int) -> None:
        self._language = language
        self._environment = os.environ | {"OMP_THREAD_LIMIT": str(threads)}

    def read(self, image: Pixels) -> Reading:
        """Recognise the text in a greyscale image."""
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG", compress_level=1)
        command = ["tesseract", "stdin", "stdout", "-l", self._language, "--dpi", str(DPI), "--psm", "3", "tsv"]
        try:
            done = subprocess.run(
                command, input=file.getvalue(), capture_output=True, check=False, env=self._environment
            )
        except OSError as error:
            raise ReadError("", f"tesseract cannot be started ({error.strerror or error})") from error
        if done.returncode:
            complaint = " ".join(done.stderr.decode(errors="replace").split())[:200]
            raise ReadError("", f"tesseract failed ({complaint or done.returncode})")
        return _reading_of_tsv(done.stdout.decode("utf-8", errors="replace"))


def _reading_of_tsv(table: str) -> Reading:
    """Parse tesseract's TSV output. The words of a line become one box, or several boxes if there are wide gaps."""
    lines: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE):
        if row["level"] == "5" and row["text"].strip():
            lines.setdefault((row["block_num"], row["par_num"], row["line_num"]), []).append(row)
    letters = vertical = 0
    for word in (word for words in lines.values() for word in words):
        letters += len(word["text"])
        vertical += len(word["text"]) if int(word["height"]) >= 1.5 * int(word["width"]) else 0
    boxes = [box for words in lines.values() for box in _boxes_of_line(words)]
    return Reading(boxes, is_sideways=2 * vertical > letters)


def _boxes_of_line(words: list[dict[str, str]]) -> list[list[Any]]:
    edges = [(int(w["left"]), int(w["top"]), int(w["width"]), int(w["height"])) for w in words]
    top, bottom = min(y for _, y, _, _ in edges), max(y + h for _, y, _, h in edges)
    margin = (bottom - top) // 5  # tesseract's boxes have no margin around the letters
    boxes: list[list[Any]] = []
    parts: list[list[int]] = []
    for at, (x, _y, _w, _h) in enumerate(edges):
        last = parts[-1][-1] if parts else None
        if last is None or x - (edges[last][0] + edges[last][2]) > 1.2 * (bottom - top):
            parts.append([at])
        else:
            parts[-1].append(at)
    for part in parts:
        text = " ".join(words[at]["text"].strip() for at in part)
        score = sum(float(words[at]["conf"]) for at in part) / len(part) / 100
        x0, x1 = edges[part[0]][0], edges[part[-1]][0] + edges[part[-1]][2]
        y0, y1 = top - margin, bottom + margin
        boxes.append([text, round(score, 3), x0, y0, x1, y0, x1, y1, x0, y1])
    return boxes


if __name__ == "__main__":
    answer_requests(OcrWorker().answer)
