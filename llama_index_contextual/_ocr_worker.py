"""Child process of `OcrReader`: draws pages, and reads them by RapidOCR or tesseract.

Each line of JSON on stdin is a request, and each line of JSON on stdout an answer. A file is opened, then a page is
drawn, whose hash is returned, and then it is read, unless the parent process already has the page.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import logging
import signal
import subprocess
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._pdf_worker import limit_memory
from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.discovery import read_once

DPI = 200  # higher resolutions take longer and are not read better
MAX_PIXELS = 30_000_000  # of a drawn page; larger pages are drawn at a lower resolution
MAX_IMAGE_PIXELS = 200_000_000  # of an image file, which has to be decoded as a whole
MIN_CONTRAST = 24  # in grey levels; a page with less is blank
GOOD = 0.85  # confidence from which on a page is not turned to see whether it is read better

Image = NDArray[np.uint8]


class Reading(NamedTuple):
    """Boxes of an image, and whether most of its text runs up or down."""

    boxes: list[list[Any]]
    is_sideways: bool

    @property
    def confidence(self) -> float:
        """Mean confidence of the characters."""
        letters = sum(len(box[0]) for box in self.boxes)
        return sum(len(box[0]) * box[1] for box in self.boxes) / letters if letters else 0.0


class Engine(Protocol):
    """An OCR engine."""

    def read(self, image: Image) -> Reading:
        """Return the text of a grey image."""


def main() -> None:
    """Answer requests until stdin ends; an empty one asks whether the process is ready."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    name, language, threads, max_memory = json.loads(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr  # output of libraries must not mix with answers
    if isinstance(answers, TextIOWrapper):
        answers.reconfigure(encoding="utf-8", errors="surrogatepass")
    limit_memory(max_memory)
    worker = Worker(name, language, threads)
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except ReadError as error:
            answer = {"reason": error.reason}
        except MemoryError:
            answer = {"reason": f"OCR needs more than {max_memory:,} bytes of memory"}
        answers.write(json.dumps(answer, ensure_ascii=False) + "\n")
        answers.flush()


class Worker:
    """The file that is open, the page drawn last, and the engine, which is loaded for the first page."""

    def __init__(self, name: str, language: str, threads: int) -> None:
        self._name, self._language, self._threads = name, language, threads
        self._engine: Engine | None = None
        self._file: PdfImages | ImageFile | None = None
        self._drawn: tuple[int, Image, float] | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        if "open" in request:
            return self._open(Path(request["open"]), request["password"], request["max_bytes"])
        if "draw" in request:
            return self._draw(request["draw"])
        if "read" in request:
            return self._read(request["read"])
        return {}

    def _open(self, path: Path, password: str | None, max_bytes: int) -> dict[str, Any]:
        self._file = self._drawn = None
        try:
            data, digest = read_once(path, max_bytes=max_bytes)
        except OSError as error:
            raise ReadError(str(path), f"the file cannot be opened ({error.strerror or error})") from error
        if len(data) > max_bytes:
            raise ReadError(str(path), f"the file has more bytes than the limit of {max_bytes:,}")
        is_pdf = path.suffix.lower() == ".pdf"
        self._file = PdfImages(path, data, password) if is_pdf else ImageFile(path, data)
        return {"pages": self._file.page_count, "digest": digest}

    def _draw(self, index: int) -> dict[str, Any]:
        image, _ = self._image(index)
        return {"image": hashlib.sha256(repr(image.shape).encode() + image.tobytes()).hexdigest()}

    def _image(self, index: int) -> tuple[Image, float]:
        if self._drawn is None or self._drawn[0] != index:
            if self._file is None:
                raise ReadError("", "no file is open")
            self._drawn = (index, *self._file.page(index))
        return self._drawn[1:]

    def _read(self, index: int) -> dict[str, Any]:
        image, dpi = self._image(index)
        boxes: list[list[Any]] = []
        if np.ptp(image) >= MIN_CONTRAST:
            self._engine = self._engine or load(self._name, self._language, self._threads)
            boxes, image = upright(self._engine, image)
        height, width = image.shape
        return {"width": width, "height": height, "dpi": dpi, "boxes": boxes}


def upright(engine: Engine, image: Image) -> tuple[list[list[Any]], Image]:
    """Read an image, turned by quarters if that is read better; return the boxes and the image as it was turned."""
    best, best_image = engine.read(image), image
    if not best.boxes:
        return [], image
    if best.confidence >= GOOD and not best.is_sideways:
        return best.boxes, best_image
    for quarters in (1, 3) if best.is_sideways else (2,):
        turned = np.ascontiguousarray(np.rot90(image, quarters))
        reading = engine.read(turned)
        is_better = reading.confidence > best.confidence or (best.is_sideways and not reading.is_sideways)
        if reading.boxes and is_better:
            best, best_image = reading, turned
        if best.confidence >= GOOD and not best.is_sideways:
            break
    return best.boxes, best_image


# ---- Images ----------------------------------------------------------------------------------------------------------


class PdfImages:
    """The pages of a PDF, drawn by pdfium."""

    def __init__(self, path: Path, data: bytes, password: str | None) -> None:
        import pypdfium2

        self._path, self._error = str(path), pypdfium2.PdfiumError
        try:
            self._pdf: Any = pypdfium2.PdfDocument(data, password=password)
        except pypdfium2.PdfiumError as error:
            raise ReadError(self._path, f"pdfium cannot draw its pages ({error})") from error
        self.page_count = len(self._pdf)

    def page(self, index: int) -> tuple[Image, float]:
        """Return a page in grey, and its resolution."""
        try:
            page = self._pdf[index]
            width, height = page.get_size()
            scale = min(DPI / 72, (MAX_PIXELS / max(width * height, 1.0)) ** 0.5)
            bitmap = page.render(scale=scale, grayscale=True)
            image = np.array(bitmap.to_numpy(), dtype=np.uint8).squeeze()
            bitmap.close()
            page.close()
        except (self._error, ValueError) as error:
            raise ReadError(self._path, f"pdfium cannot draw it ({error})") from error
        return image, scale * 72


class ImageFile:
    """A PNG, JPEG or TIFF file; a TIFF may have several pages."""

    def __init__(self, path: Path, data: bytes) -> None:
        from PIL import Image, UnidentifiedImageError

        Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS
        self._path = str(path)
        self._errors = (Image.DecompressionBombError, UnidentifiedImageError, OSError, ValueError, SyntaxError)
        try:
            self._image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "TIFF"))
            # A second frame of a PNG or JPEG is a preview or an animation.
            self.page_count = getattr(self._image, "n_frames", 1) if self._image.format == "TIFF" else 1
        except self._errors as error:
            raise ReadError(self._path, f"the image is damaged or of another type ({_detail(error)})") from error

    def page(self, index: int) -> tuple[Image, float]:
        """Return a page in grey, and its resolution."""
        from PIL import ImageOps

        try:
            self._image.seek(index)
            width, height = self._image.size
            if width * height > MAX_IMAGE_PIXELS:
                limit = f"more than the limit of {MAX_IMAGE_PIXELS:,}"
                raise ReadError(self._path, f"the image has {width * height:,} pixels, {limit}")
            image = ImageOps.exif_transpose(self._image)
            if image.has_transparency_data:
                image = _on_white(image)
            image = image.convert("L")
            if (shrink := (MAX_PIXELS / (width * height)) ** 0.5) < 1:
                image = image.resize((max(1, int(image.width * shrink)), max(1, int(image.height * shrink))))
        except self._errors as error:
            raise ReadError(self._path, f"the image is damaged ({_detail(error)})") from error
        return np.array(image, dtype=np.uint8), DPI


def _on_white(image: Any) -> Any:
    from PIL import Image

    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def _detail(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# ---- Engines ---------------------------------------------------------------------------------------------------------


def load(name: str, language: str, threads: int) -> Engine:
    """Return an engine."""
    return Tesseract(language) if name == "tesseract" else RapidOcr(threads)


class RapidOcr:
    """RapidOCR with the models in its wheel; nothing is downloaded."""

    def __init__(self, threads: int) -> None:
        import cv2
        from rapidocr import RapidOCR

        cv2.setNumThreads(threads)
        engine = "EngineConfig.onnxruntime"
        self._engine: Any = RapidOCR(
            params={
                "Global.log_level": "error",
                "Global.use_cls": False,  # upside-down pages are turned as a whole
                "Global.max_side_len": 10_000,  # the resolution is limited when a page is drawn
                "Det.model_path": _model("det"),
                "Rec.model_path": _model("rec"),
                f"{engine}.intra_op_num_threads": threads,
                f"{engine}.inter_op_num_threads": 1,
            }
        )
        logging.getLogger("RapidOCR").setLevel(logging.ERROR)

    def read(self, image: Image) -> Reading:
        """Return the text of a grey image."""
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


def _model(kind: str) -> str:
    """Return the path of a model that came in the wheel, not of one that was downloaded later."""
    files = importlib.metadata.files("rapidocr") or []
    models = [file for file in files if file.suffix == ".onnx" and f"_{kind}_" in file.name]
    if not models or not Path(str(models[0].locate())).is_file():
        raise ReadError(
            "", 'rapidocr has no models in its wheel: `pip install --upgrade "llama-index-contextual[ocr]"`'
        )
    return str(models[0].locate())


class Tesseract:
    """The program `tesseract`."""

    def __init__(self, language: str) -> None:
        self._language = language

    def read(self, image: Image) -> Reading:
        """Return the text of a grey image."""
        from PIL import Image as Pillow

        file = io.BytesIO()
        Pillow.fromarray(image).save(file, "PNG", compress_level=1)
        command = ["tesseract", "stdin", "stdout", "-l", self._language, "--dpi", str(DPI), "--psm", "3", "tsv"]
        try:
            done = subprocess.run(command, input=file.getvalue(), capture_output=True, check=False)
        except OSError as error:
            raise ReadError("", f"tesseract cannot be started ({error.strerror or error})") from error
        if done.returncode:
            complaint = " ".join(done.stderr.decode(errors="replace").split())[:200]
            raise ReadError("", f"tesseract failed ({complaint or done.returncode})")
        return _reading_of_tsv(done.stdout.decode("utf-8", errors="replace"))


def _reading_of_tsv(table: str) -> Reading:
    """Return the words of a line as one box, or as several where they stand far apart."""
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
    margin = (bottom - top) // 5  # the boxes of tesseract end at the ink
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
    main()
