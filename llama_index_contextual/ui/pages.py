"""Images of the pages of original files, and marks for passages on them.

Pages are drawn and marked in child processes (`_page_worker`), which are killed if a file keeps them busy and restarted
if a file crashes them.
"""

from __future__ import annotations

import base64
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import ReadError
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.sources import SourceFile, SourceFinder
from llama_index_contextual.readers.discovery import IMAGE_SUFFIXES, PDF_SUFFIXES
from llama_index_contextual.readers.process import ChildProcess
from llama_index_contextual.ui.marks import Box

CHILD = "llama_index_contextual.ui._page_worker"
PROCESSES = 2
SECONDS = 20.0
"""Time limit for one page, after which the process is killed."""
WAITING_SECONDS = 60.0
"""Maximum time that a request waits for a free process."""
MAX_MEMORY = 2_000_000_000
CACHE_BYTES = 64_000_000


@dataclass(frozen=True)
class PageMarks:
    """Marks on a page, in points from its upper left corner.

    Attributes:
        width: Width of the displayed page.
        height: Height of the displayed page.
        pages: Number of pages in the file.
        has_text: Whether the page has text; scanned pages cannot be marked.
        lines: The lines of the passage.
        words: Words of the passage to be emphasised.
    """

    width: float
    height: float
    pages: int
    has_text: bool
    lines: Sequence[Box]
    words: Sequence[Box]


class PageRenderer:
    """Pool of child processes that draw and mark pages, with a cache of recent images. It is thread-safe.

    Args:
        processes: Number of child processes; each is started when it is needed.
        seconds: Time limit for one page.
        waiting_seconds: Maximum time that a request waits for a free process.
        cache_bytes: Size of the image cache.
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
        self._cache_bytes = cache_bytes
        self._workers = [ChildProcess(CHILD, task="drawing the page", max_memory=MAX_MEMORY) for _ in range(processes)]
        # Last in, first out: a single user is served by one process, which has the file open.
        self._idle = [*reversed(self._workers)]
        self._waiting: deque[queue.SimpleQueue[ChildProcess]] = deque()
        self._lock = threading.Lock()
        self._images: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def marks(self, file: SourceFile, page: int, text: str, words: Sequence[tuple[int, int]] = ()) -> PageMarks:
        """Return the marks for a passage on a page.

        Args:
            file: The file.
            page: Number of the page, from 1.
            text: The part of the passage on this page.
            words: Start and end of each word of the text to emphasise.

        Raises:
            ReadError: The page cannot be shown; `reason` contains the cause.
        """
        answer = self._ask(file, {"what": "marks", "page": page, "text": text, "words": list(words)})
        return PageMarks(
            width=answer["width"],
            height=answer["height"],
            pages=answer["pages"],
            has_text=answer["has_text"],
            lines=[Box(*edges) for edges in answer["lines"]],
            words=[Box(*edges) for edges in answer["words"]],
        )

    def image(self, file: SourceFile, page: int) -> bytes:
        """Return a page as PNG.

        Raises:
            ReadError: The page cannot be shown; `reason` contains the cause.
        """
        key = (file.digest, page)
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
                return self._images[key]
        image = base64.b64decode(self._ask(file, {"what": "image", "page": page})["png"])
        with self._lock:
            self._images[key] = image
            while sum(map(len, self._images.values())) > self._cache_bytes:
                self._images.popitem(last=False)
        return image

    def close(self) -> None:
        """Stop the child processes; a later request starts new ones."""
        for worker in self._workers:
            worker.close()

    def _ask(self, file: SourceFile, request: dict[str, Any]) -> dict[str, Any]:
        if file.path is None:
            raise ReadError("", "the file was not found")
        worker = self._take_worker()
        if worker is None:
            raise ReadError(str(file.path), "the server is busy with other pages: reload this one later")
        try:
            request = {**request, "path": str(file.path), "digest": file.digest}
            return worker.ask(file.path, request, seconds=self._seconds)
        finally:
            self._give_back(worker)

    def _take_worker(self) -> ChildProcess | None:
        """Return an idle worker in the order of the requests, or None if no worker becomes idle in time."""
        turn: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._waiting.append(turn)
        try:
            return turn.get(timeout=self._waiting_seconds)
        except queue.Empty:
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                    return None
            return turn.get()  # a worker has just become idle

    def _give_back(self, worker: ChildProcess) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().put(worker)
            else:
                self._idle.append(worker)


class Originals:
    """The original files of the projects of an application.

    Args:
        folders: Folders with copies of the files, if they are no longer where they were ingested.
        renderer: Renderer for the pages.
    """

    def __init__(self, folders: Sequence[Path] = (), renderer: PageRenderer | None = None) -> None:
        self.renderer = renderer or PageRenderer()
        self._finder = SourceFinder(folders)

    def find(self, record: DocumentRecord) -> SourceFile:
        """Return the original file of a document, or the reason why it is not available."""
        return self._finder.find(record)


def has_pages(record: DocumentRecord) -> bool:
    """Return whether the pages of a document's file can be shown."""
    return suffix_of(record) in (*PDF_SUFFIXES, *IMAGE_SUFFIXES)


def suffix_of(record: DocumentRecord) -> str:
    """Return the extension of a document's file in lower case, or "" if it has none."""
    return Path(record.file_name or record.doc_id).suffix.lower()
