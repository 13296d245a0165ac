"""Text of scanned pages, read by RapidOCR or tesseract in child processes.

`engine_for` chooses the engine, and `OcrReader` reads the pages of a PDF that have no text, or the pages of an image
file. The children (`_ocr_worker`) draw a page and return the hash of its image first: a page that is already in the
store is not read again. The store has the boxes of a page as the engine returned them. `page_content` makes lines of
them, so that better code for the layout needs no OCR.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, Protocol

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.base import ParsedFile, ReadLimits
from llama_index_contextual.readers.discovery import one_line
from llama_index_contextual.readers.pdf.engine import OutlineEntry, PageContent, Run
from llama_index_contextual.readers.pdf.layout import page_lines
from llama_index_contextual.readers.pdf.process import MAX_COMPLAINT, LastLine, child_environment

INSTALL = '`pip install "llama-index-contextual[ocr]"`'
LOW_CONFIDENCE = 0.8  # of a page, below which it is reported as hard to read
CHILD = "llama_index_contextual._ocr_worker"
MAX_PROCESSES = 4  # a child needs up to 1.2 GB
MAX_MEMORY = 6_000_000_000
START_SECONDS = 120.0
MAX_RANGES = 10  # of pages that one warning lists
CHANGED = "was replaced by another file in the meantime: run again"

Page = Mapping[str, Any]
"""A page as the children return it: its width and height in pixels, its resolution, and its boxes.

A box is a text, its confidence, and its four corners in pixels, clockwise from the upper left.
"""


class PageStore(Protocol):
    """A store of pages by the key of their image and the engine, such as the ledger."""

    def page(self, key: str) -> str | None:
        """Return the page with this key, or None."""

    def add_page(self, key: str, page: str, engine: str) -> None:
        """Store a page; it is on disk when this returns."""


@dataclass(frozen=True)
class OcrEngine:
    """An engine that is installed.

    Attributes:
        name: Its name.
        version: Its version; a page is read again with another one.
        language: Languages of tesseract, such as "deu+fra"; empty for RapidOCR, which reads Latin and Chinese scripts.
    """

    name: Literal["rapidocr", "tesseract"]
    version: str
    language: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.version, self.language)))

    def key(self, image: str) -> str:
        """Return the key under which a page with this hash of its image is stored."""
        return hashlib.sha256(json.dumps(["ocr", image, self.name, self.version, self.language]).encode()).hexdigest()


def engine_for(setting: str | None) -> OcrEngine | str:
    """Return the engine for the setting `ocr`, or the reason why there is none and what to do.

    "auto" takes RapidOCR if it is installed, else tesseract.
    """
    if setting is None:
        return "set `ocr` to 'auto'"
    if find_spec("pypdfium2") is None or find_spec("PIL") is None or find_spec("numpy") is None:
        return INSTALL
    if setting in ("auto", "rapidocr"):
        if find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None:
            return OcrEngine("rapidocr", version("rapidocr"))
        if setting == "rapidocr":
            return INSTALL
    wanted = setting.partition(":")[2] or "eng"
    release, languages = _tesseract()
    if not release:
        return INSTALL if setting == "auto" else "install tesseract (Debian: apt install tesseract-ocr)"
    if missing := [name for name in wanted.split("+") if name not in languages]:
        return f"tesseract has no language {missing[0]!r}: install it (Debian: apt install tesseract-ocr-{missing[0]})"
    return OcrEngine("tesseract", release, wanted)


@cache
def _tesseract() -> tuple[str, frozenset[str]]:
    """Return the version of tesseract and its languages; both are empty if it is not installed."""

    def output(option: str) -> list[str]:
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(["tesseract", option], capture_output=True, text=True, timeout=30, check=True)
            return (done.stdout or done.stderr).splitlines()
        return [""]

    return output("--version")[0].removeprefix("tesseract "), frozenset(output("--list-langs")[1:])


# ---- Layout ----------------------------------------------------------------------------------------------------------

FONT_SIZE = 0.72  # of the height of a box, which has a margin around ascenders and descenders
BASELINE = 0.28  # of the height of a box, from its lower edge
SPACE = 0.28  # of the font size
SAME_SIZE = 1.3  # heights within this factor are one font size, as they depend on the letters of the line
VERTICAL = 1.5  # height of a box in widths, from which on its text runs up or down
MAX_SKEW = 5  # degrees
MIN_SKEWED = 4  # boxes; fewer do not tell the angle
MIN_COLUMN_LINES = 5
MIN_WORDS = 3  # of a line of prose
FILLED = 0.6  # of the width of a column, by half of its lines
MAX_CROSSING = 0.5  # lines across the gap between two columns, such as headings, in lines of the shorter column


class _Box(NamedTuple):
    """A box in points, with the page turned straight; y grows upwards."""

    text: str
    x0: float
    x1: float
    y: float
    height: float
    angle: int = 0


def page_content(page: Page) -> PageContent:
    """Return the lines of a page in reading order."""
    scale = 72.0 / page["dpi"]
    rows = _rows(_boxes(page["boxes"], scale, page["height"]))
    sizes = _font_sizes([box for row in rows for box in row])
    runs = [
        Run(box.text, box.x0, box.x1, box.y, sizes[box], SPACE * sizes[box], box.angle) for row in rows for box in row
    ]
    return PageContent(page_lines(runs), True, (0.0, page["height"] * scale))


def confidence(page: Page) -> float:
    """Return the mean confidence of the characters of a page; 0 without any."""
    letters = sum(len(text) for text, *_ in page["boxes"])
    return sum(len(text) * score for text, score, *_ in page["boxes"]) / letters if letters else 0.0


def _boxes(boxes: Sequence[Sequence[Any]], scale: float, height: float) -> list[_Box]:
    """Return the boxes in points, turned by the skew of the page."""
    skew = _skew(boxes)
    along, across = math.cos(math.radians(skew)), math.sin(math.radians(skew))
    out = []
    for text, _score, *corners in boxes:
        points = [
            ((x * along + y * across) * scale, (height - y * along + x * across) * scale)
            for x, y in zip(corners[::2], corners[1::2], strict=True)
        ]
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = points
        wide = max(math.hypot(bx - ax, by - ay), 1.0)
        high = max(math.hypot(dx - ax, dy - ay), 1.0)
        x0, x1, low = min(ax, dx), max(bx, cx), (cy + dy) / 2
        if high >= VERTICAL * wide and len(text) > 1:
            out.append(_Box(text, min(ay, dy), max(ay, dy), -x1, wide, 90))
        else:
            out.append(_Box(text, x0, x1, low + BASELINE * high, high))
    return out


def _skew(boxes: Sequence[Sequence[Any]]) -> float:
    """Return the angle in degrees at which the ends of the boxes are on the smallest number of lines.

    The corners of a short box do not tell its angle, but the rows of a table do.
    """
    ends: list[tuple[float, float]] = []
    heights: list[float] = []
    for _text, _score, x0, y0, x1, y1, x2, y2, x3, y3 in boxes:
        if abs(y3 - y0) < VERTICAL * abs(x1 - x0):
            ends += (((x0 + x3) / 2, (y0 + y3) / 2), ((x1 + x2) / 2, (y1 + y2) / 2))
            heights.append(abs(y3 - y0))
    if len(heights) < MIN_SKEWED:
        return 0.0
    step = max(median(heights) / 4, 1.0)

    def levelness(degrees: float) -> tuple[int, float]:
        slope = math.tan(math.radians(degrees))
        levels = Counter((half, round((y - x * slope) / step + half / 2)) for x, y in ends for half in (0, 1))
        return sum(number * number for number in levels.values()), -abs(degrees)

    return max((tenths / 10 for tenths in range(-10 * MAX_SKEW, 10 * MAX_SKEW + 1)), key=levelness)


def _weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    half = sum(weight for _, weight in pairs) / 2
    for value, weight in pairs:
        half -= weight
        if half <= 0:
            return value
    return 0.0


def _font_sizes(boxes: Sequence[_Box]) -> dict[_Box, float]:
    """Return a font size for each box; boxes of about the same height have the same one."""
    sizes: dict[_Box, float] = {}
    rest = sorted(boxes, key=lambda box: box.height)
    while rest:
        usual = _weighted_median([(box.height, len(box.text)) for box in rest])
        for box in rest:
            if usual / SAME_SIZE <= box.height <= usual * SAME_SIZE:
                sizes[box] = FONT_SIZE * usual
        rest = [box for box in rest if box not in sizes]
    return sizes


def _rows(boxes: Sequence[_Box]) -> list[list[_Box]]:
    """Return the boxes row by row from the top, and columns of prose one after the other."""
    gap = _gap(boxes)
    if gap is None:
        return _by_height(boxes)
    left, right, across = _sides(boxes, gap)
    out: list[list[_Box]] = []
    top = math.inf
    for heading in [*sorted(across, key=lambda box: -box.y), None]:
        bottom = -math.inf if heading is None else heading.y
        for side in (left, right):
            out += _rows([box for box in side if bottom < box.y <= top])
        if heading is not None:
            out.append([heading])
            top = bottom
    return out


def _by_height(boxes: Iterable[_Box]) -> list[list[_Box]]:
    rows: list[list[_Box]] = []
    for box in sorted(boxes, key=lambda box: (box.angle, -box.y)):
        row = rows[-1] if rows else []
        if row and row[0].angle == box.angle and abs(row[-1].y - box.y) <= 0.4 * min(row[-1].height, box.height):
            row.append(box)
        else:
            rows.append([box])
    return [sorted(row, key=lambda box: box.x0) for row in rows]


def _gap(boxes: Sequence[_Box]) -> float | None:
    """Return an x position between two columns of prose, or None."""
    prose = [box for box in boxes if box.angle == 0 and _is_prose(box.text)]
    best, most = None, 0.0
    for x in sorted({box.x1 for box in prose}):
        left, right, across = _sides(prose, x)
        lines = min(len(left), len(right))
        if lines < MIN_COLUMN_LINES or len(across) > MAX_CROSSING * lines or lines - len(across) <= most:
            continue
        if _is_filled(left) and _is_filled(right):
            best, most = x, lines - len(across)
    return best


def _sides(boxes: Sequence[_Box], x: float) -> tuple[list[_Box], list[_Box], list[_Box]]:
    """Return the boxes to the left and to the right of a position, and those across it."""
    sides: tuple[list[_Box], list[_Box], list[_Box]] = [], [], []
    for box in boxes:
        slack = 0.3 * box.height
        sides[0 if box.x1 <= x + slack else 1 if box.x0 >= x - slack else 2].append(box)
    return sides


def _is_prose(text: str) -> bool:
    words = sum(word[0].isalpha() for word in text.split())
    return words >= MIN_WORDS or sum(ord(char) >= 0x2E80 for char in text) >= 2 * MIN_WORDS


def _is_filled(column: Sequence[_Box]) -> bool:
    width = max(box.x1 for box in column) - min(box.x0 for box in column)
    return median(box.x1 - box.x0 for box in column) >= FILLED * width


# ---- Pages of a file -------------------------------------------------------------------------------------------------


class OcrPages(NamedTuple):
    """Pages of a file that were read by OCR.

    Attributes:
        pages: The pages by number, from 1.
        failed: A warning for each page that could not be read.
        total: Number of pages of the file.
        digest: xxh3-128 of the bytes of the file, in hexadecimal.
    """

    pages: dict[int, Page]
    failed: list[str]
    total: int
    digest: str


class ImagePages:
    """The pages of an image file, as a source of pages like an open PDF."""

    def __init__(self, scans: OcrPages) -> None:
        self._pages = scans.pages
        self.page_count = scans.total

    def page(self, index: int) -> PageContent:
        """Return the page with an index, from 0."""
        page = self._pages.get(index + 1)
        return PageContent((), True, (0.0, 0.0)) if page is None else page_content(page)

    def title(self) -> str | None:
        """Return None: an image has no title."""
        return None

    def labels(self) -> list[str]:
        """Return no labels."""
        return []

    def outline(self) -> list[OutlineEntry]:
        """Return no bookmarks."""
        return []

    def close(self) -> None:
        """Do nothing."""


def with_ocr_notes(parsed: ParsedFile, scans: OcrPages) -> ParsedFile:
    """Return a file with the confidence of its scanned pages in the map, and with warnings that list them."""
    scores = {number: confidence(page) for number, page in scans.pages.items() if page["boxes"]}
    confidences = tuple(round(scores[number], 3) if number in scores else None for number in range(1, scans.total + 1))
    notes = list(_confidence_notes(scores)) if scores else []
    if empty := [number for number, page in scans.pages.items() if not page["boxes"]]:
        notes.append(f"{page_ranges(empty)} {'has' if len(empty) == 1 else 'have'} no text: OCR found none")
    return replace(
        parsed,
        map=replace(parsed.map, page_confidences=confidences if scores else ()),
        warnings=(*notes, *scans.failed, *parsed.warnings),
        scanned=(),
    )


def _confidence_notes(scores: Mapping[int, float]) -> Iterator[str]:
    """Yield a warning that lists the pages, and one about those that are hard to read."""
    mean = sum(scores.values()) / len(scores)
    yield f"{page_ranges(scores)} {'was' if len(scores) == 1 else 'were'} read by OCR (confidence {mean:.2f})"
    if low := {number: score for number, score in scores.items() if score < LOW_CONFIDENCE}:
        verb, them = ("is", "it") if len(low) == 1 else ("are", "them")
        yield (
            f"{page_ranges(low)} {verb} hard to read (confidence {min(low.values()):.2f}): check the text, or scan"
            f" {them} again at 300 dpi"
        )


def page_ranges(pages: Iterable[int]) -> str:
    """Return page numbers as ranges.

    Example:
        >>> page_ranges([3, 4, 5, 9])
        'pages 3–5, 9'
    """
    ranges: list[list[int]] = []
    for page in sorted(pages):
        if ranges and ranges[-1][1] == page - 1:
            ranges[-1][1] = page
        else:
            ranges.append([page, page])
    shown = [f"{first}" if first == last else f"{first}–{last}" for first, last in ranges[:MAX_RANGES]]
    more = f" and {len(ranges) - MAX_RANGES} more ranges" if len(ranges) > MAX_RANGES else ""
    word = "page" if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else "pages"
    return f"{word} {', '.join(shown)}{more}"


# ---- Child processes -------------------------------------------------------------------------------------------------


class OcrReader:
    """Reader of scanned pages in child processes, which are started for the first page and can be killed.

    Args:
        engine: The engine.
        store: Store of pages, or None.
        on_page: Called with the file that is read, the number of its pages that have been read or need no OCR, and
            their total.
        processes: Number of children at most; None for one per core, up to `MAX_PROCESSES`.
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
        self._lock = threading.Lock()
        self._children: list[_Child] = []
        self._stopped = threading.Event()

    def close(self) -> None:
        """Stop the children, and a `read` in another thread; a later `read` starts new ones."""
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
        """Read pages of a PDF or of an image file, several at a time.

        Args:
            path: The file.
            pages: Numbers of the pages, from 1; None for all.
            password: Password of an encrypted PDF.
            digest: xxh3-128 that the file must have; None for any.
            limits: Limits of the file; `max_seconds` applies to each page.

        Raises:
            ReadError: The file cannot be read, or was replaced by another one.
        """
        with self._lock:
            file = _File(path, password, limits, self._stopped)
            while len(self._children) < self._processes:
                self._children.append(_Child(self.engine, max(1, (os.cpu_count() or 1) // self._processes)))
            idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
            for child in self._children:
                idle.put(child)
            opened = self._children[0].opened(file)
            if digest not in (None, opened["digest"]):
                raise ReadError(str(path), CHANGED)
            wanted = list(range(1, opened["pages"] + 1)) if pages is None else list(pages)
            if len(wanted) > limits.max_pages:
                raise ReadError(str(path), f"has {len(wanted):,} pages, more than the limit of {limits.max_pages:,}")
            counter = itertools.count(opened["pages"] - len(wanted) + 1)

            def read(number: int) -> Page | str:
                child = idle.get()
                try:
                    page = self._page(child, file, number, opened["digest"])
                except ReadError as error:
                    return f"page {number} was left out: {error.reason}"
                finally:
                    idle.put(child)
                if self._on_page is not None:
                    self._on_page(path, next(counter), opened["pages"])
                return page

            with ThreadPoolExecutor(self._processes) as pool:
                answers = list(pool.map(read, wanted))
        if file.stopped.is_set():
            raise ReadError(str(path), "was not read to its end, because the run was stopped")
        return OcrPages(
            pages={number: page for number, page in zip(wanted, answers, strict=True) if not isinstance(page, str)},
            failed=[answer for answer in answers if isinstance(answer, str)],
            total=opened["pages"],
            digest=opened["digest"],
        )

    def _page(self, child: _Child, file: _File, number: int, digest: str) -> Page:
        """Return a page from the store, or read it and store it."""
        if child.opened(file)["digest"] != digest:
            raise ReadError(str(file.path), CHANGED)
        key = self.engine.key(child.ask(file, {"draw": number - 1})["image"])
        stored = None if self._store is None else self._store.page(key)
        page: Page = child.ask(file, {"read": number - 1}) if stored is None else json.loads(stored)
        if self._store is not None and stored is None:
            self._store.add_page(key, json.dumps(page, ensure_ascii=False), str(self.engine))
        return page


class _File(NamedTuple):
    """A file to read, and an event that is set when the run has been stopped."""

    path: Path
    password: str | None
    limits: ReadLimits
    stopped: threading.Event


class _Child:
    """A child process that draws and reads pages; each line of JSON that it gets is answered by one.

    It is started by the first request, and by the first one after a crash or a timeout.
    """

    def __init__(self, engine: OcrEngine, threads: int) -> None:
        self._engine, self._threads = engine, threads
        self._process: subprocess.Popen[str] | None = None
        self._file: _File | None = None
        self._answer: dict[str, Any] = {}
        self._complaint: LastLine | None = None

    def close(self) -> None:
        """Kill it."""
        process, self._process, self._file = self._process, None, None
        if process is not None:
            process.kill()
            if self._complaint is not None:
                self._complaint.join(10.0)
            with suppress(BrokenPipeError), process:  # closes the pipes and waits; a request may be half written
                pass

    def opened(self, file: _File) -> dict[str, Any]:
        """Return the number of pages of a file and its digest."""
        if self._process is None or self._process.poll() is not None or self._file is not file:
            request = {"open": str(file.path), "password": file.password, "max_bytes": file.limits.max_bytes}
            self._answer = self.ask(file, request)
            self._file = file
        return self._answer

    def ask(self, file: _File, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            ReadError: The child says why it cannot answer, has crashed, or took longer than `max_seconds`.
        """
        if file.stopped.is_set():
            raise ReadError(str(file.path), "the run was stopped")
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
            self._exchange(file, {}, START_SECONDS)
        return self._exchange(file, request, file.limits.max_seconds)

    def _start(self) -> None:
        settings = json.dumps([self._engine.name, self._engine.language, self._threads, MAX_MEMORY])
        threads = {"OMP_THREAD_LIMIT": str(self._threads), "OMP_NUM_THREADS": str(self._threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", CHILD, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogatepass",
            env=child_environment() | threads,
        )
        self._complaint = LastLine(self._process.stderr)

    def _exchange(self, file: _File, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        process, answers = self._process, queue.SimpleQueue[str]()
        threading.Thread(target=_talk, args=(process, request, answers), daemon=True).start()
        line = None
        try:
            line = answers.get(timeout=seconds)
        except queue.Empty:
            raise ReadError(str(file.path), f"OCR took longer than {seconds:g} seconds and was stopped") from None
        finally:
            if line is None:  # late or interrupted: a later answer of this child must not be read
                self.close()
        if not line.endswith("\n"):
            self.close()
            code = "" if process is None else f"exit code {process.returncode}"
            complaint = "" if self._complaint is None else one_line(self._complaint.text, MAX_COMPLAINT)
            detail = ": ".join(filter(None, (code, complaint)))
            raise ReadError(str(file.path), f"OCR crashed ({detail})")
        answer: dict[str, Any] = json.loads(line)
        if "reason" in answer:
            raise ReadError(str(file.path), answer["reason"])
        return answer


def _talk(process: subprocess.Popen[str] | None, request: Mapping[str, Any], answers: queue.SimpleQueue[str]) -> None:
    line = ""
    try:
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
    except (OSError, ValueError):  # the child has ended, or its pipes were closed after a timeout
        line = ""
    answers.put(line)
