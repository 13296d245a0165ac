"""Parsing of PDFs and other binary files in a child process that can be killed."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from llama_index_contextual.errors import ReadError
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers.base import ParsedFile, ReadLimits
from llama_index_contextual.readers.discovery import one_line
from llama_index_contextual.readers.pdf.engine import PdfEngine

CHILD = "llama_index_contextual._pdf_worker"
START_SECONDS = 120.0
NEXT_FILE = "\x1e\n"  # separator that the child writes to stderr before each file
PAGES_READ = "pages {} {}\n"  # line that the child writes to stdout before its answer: pages read, and their total
MAX_COMPLAINT = 200  # characters of the child's last error line
DEFAULT_MEMORY = 4_000_000_000
DEFAULT_LIMITS = ReadLimits()

_PAGES_READ = re.compile(PAGES_READ.format(*[r"(\d{1,9})"] * 2))
_SECRET = re.compile(r"(?i)key|token|secret|passw|credential")


class PdfWorker:
    """Parser of files in a child process, so that a malicious file can neither hang nor crash this process.

    The child is started for the first file, reused for the following ones, and killed if a file takes longer than
    `limits.max_seconds`; the next file starts a new one. Use it as a context manager, from one thread at a time.

    Args:
        max_memory: Limit of the child's address space in bytes, if the system supports it (`resource.setrlimit`).
        module: Module of the child process; None uses `CHILD`.
        on_page: Called a few times a second with the PDF that is read, the number of its pages that have been read, and
            their total; pages that need OCR do not count as read.
    """

    def __init__(
        self,
        *,
        max_memory: int = DEFAULT_MEMORY,
        module: str | None = None,
        on_page: Callable[[Path, int, int], None] | None = None,
    ) -> None:
        self._max_memory = max_memory
        self._module = module
        self._on_page = on_page
        self._child: subprocess.Popen[str] | None = None
        self._complaint: LastLine | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the child process; a later `read` starts a new one."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            if self._complaint is not None:
                self._complaint.join(10.0)
            with suppress(BrokenPipeError), child:  # closes the pipes and waits; a request may be half written
                pass

    def read(
        self,
        path: Path,
        *,
        password: str | None = None,
        limits: ReadLimits = DEFAULT_LIMITS,
        engine: PdfEngine = "pdfium",
        scans: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> ParsedFile:
        """Read one PDF in the child process, with the arguments and errors of `read_pdf`.

        Raises:
            ReadError: Also if the child crashed or took longer than `limits.max_seconds`; the reason of a crash ends
                with the last line that the child wrote to stderr.
        """
        pages = None if scans is None else list(scans.items())
        return self.run("pdf", path, limits=limits, password=password, engine=engine, scans=pages)

    def run(
        self, reader: Literal["office", "pdf"], path: Path, *, limits: ReadLimits = DEFAULT_LIMITS, **options: object
    ) -> ParsedFile:
        """Call a reader of this package in the child process, with the errors of `read`.

        Args:
            reader: "pdf" (`read_pdf`) or "office" (`read_office`).
            path: The file.
            limits: Limits of the file.
            options: Further keyword arguments of the function, as JSON values.
        """
        request = {"reader": reader, "path": str(path), "limits": asdict(limits), "options": options}
        return _parsed(self.ask(path, request, seconds=limits.max_seconds))

    def ask(self, path: Path, request: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Send a request to the child process and return its answer.

        Args:
            path: The file that the request is about, for error messages.
            request: The request, as JSON values.
            seconds: Time after which the child is killed.

        Raises:
            ReadError: The child crashed, took too long, or answered with a reason.
        """
        child = self._running(path)
        line = None
        on_page = None if self._on_page is None else partial(self._on_page, path)
        try:
            line = _exchange(child, json.dumps(request) + "\n", seconds, on_page)
        finally:
            if line is None:  # late or interrupted: a later answer of this child must not be read
                self.close()
        if line is None:
            raise ReadError(str(path), f"parsing took longer than {seconds:g} seconds and was stopped")
        if not line.endswith("\n"):
            raise self._crash(path, child)
        answer: dict[str, Any] = json.loads(line)
        if "reason" in answer:
            raise ReadError(str(path), answer["reason"])
        return answer

    def _running(self, path: Path) -> subprocess.Popen[str]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        child = self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module or CHILD, str(self._max_memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogatepass",
            env=child_environment(),
        )
        self._complaint = LastLine(child.stderr)
        if not _exchange(child, "", START_SECONDS):  # wait until it is ready
            raise self._crash(path, child)
        return child

    def _crash(self, path: Path, child: subprocess.Popen[str]) -> ReadError:
        self.close()
        code = child.wait()
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        complaint = one_line(self._complaint.text, MAX_COMPLAINT) if self._complaint is not None else ""
        return ReadError(str(path), f"the parser crashed ({': '.join(filter(None, (name, complaint)))})")


class LastLine(threading.Thread):
    """Thread that reads the child's stderr and keeps the beginning of the last line about the current file."""

    def __init__(self, stream: IO[str] | None) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.text = ""
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
        self.start()

    def run(self) -> None:
        """Read until the child ends."""
        is_beginning = True
        with suppress(OSError, ValueError):  # closed by the other thread
            while self._stream is not None and (piece := self._stream.readline(MAX_COMPLAINT)):
                if is_beginning and (piece == NEXT_FILE or piece.strip()):
                    self.text = piece.strip()
                is_beginning = piece.endswith("\n")


def child_environment() -> dict[str, str]:
    """Return the environment and module path of this process, without secrets."""
    env = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    return env | {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}


def _exchange(
    child: subprocess.Popen[str], request: str, seconds: float, on_page: Callable[[int, int], None] | None = None
) -> str | None:
    """Send a line and return the answer: None after a timeout, and incomplete if the child has ended."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_talk, args=(child, request, lines), daemon=True).start()
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left)
        except queue.Empty:
            break
        if (pages := _PAGES_READ.fullmatch(line)) is None:
            return line
        if on_page is not None:
            on_page(int(pages[1]), int(pages[2]))
    return None


def _talk(child: subprocess.Popen[str], request: str, lines: queue.SimpleQueue[str]) -> None:
    line = ""
    try:
        if child.stdin is not None and child.stdout is not None:
            child.stdin.write(request)
            child.stdin.flush()
            while _PAGES_READ.fullmatch(line := child.stdout.readline()):
                if lines.empty():  # otherwise `on_page` is slower than the child
                    lines.put(line)
    except (OSError, ValueError):  # the child has ended, or its pipes were closed after a timeout
        line = ""
    lines.put(line)


def _parsed(answer: dict[str, Any]) -> ParsedFile:
    return ParsedFile(
        text=answer["text"],
        map=DocumentMap.from_metadata(answer["map"]),
        title=answer["title"],
        warnings=tuple(answer["warnings"]),
        metadata=answer["metadata"],
        digest=answer["digest"],
        scanned=tuple(answer.get("scanned", ())),
    )
