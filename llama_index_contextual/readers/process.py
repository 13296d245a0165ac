"""Child processes that parse files, so that a malicious file can neither hang nor crash this process.

`ChildProcess` is used in the parent process, and `answer_requests` in the child process. Requests and answers are lines
of JSON. While a PDF is being read, the child process also writes progress lines (`PAGES_READ`). When run as a program,
this module parses PDF and Office files for `ParserProcess`.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from llama_index_contextual._utils.locks import call_in_child
from llama_index_contextual.errors import ReadError
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers.figures import StoredPicture
from llama_index_contextual.readers.files import FileSource, ParsedFile, ReadLimits, one_line

if TYPE_CHECKING:
    from llama_index_contextual.readers.pdf.drawing import FigureDrawer

START_SECONDS = 120.0
PAGES_READ = "pages {} {}\n"  # number of pages read, and total number of pages
REPORT_SECONDS = 0.25  # minimum time between two progress lines
MAX_COMPLAINT = 200  # maximum number of characters quoted from the child's last error line
MAX_STDERR = 10_000_000  # maximum number of bytes that a child may write to stderr or to any other file
DRAWING_SECONDS = 20.0
"""Time limit for one figure."""
DEFAULT_MEMORY = 4_000_000_000
DEFAULT_LIMITS = ReadLimits()

_PAGES_READ = re.compile(PAGES_READ.format(*[r"(\d{1,9})"] * 2))
_SECRET = re.compile(r"(?i)key|token|secret|passw|credential")


_INHERITED: list[object] = []


# ---- Parent ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ChildProcess:
    """A child process that is started by the first request, and again by the first request after a crash or timeout.

    Use it from one thread at a time; only `close` may be called from another thread.

    Args:
        module: Module that the child runs, which calls `answer_requests`; by default this module.
        task: Name of the task in error messages.
        max_memory: Limit for the child's address space in bytes, if the system supports it (`resource.setrlimit`).
        niceness: How far other processes have precedence over the child, as for the command `nice`.
        on_page: Called a few times a second with the path of the PDF, the number of pages that have been read, and the
            total number of pages; pages that need OCR are not counted as read.
    """

    module: str = __name__
    task: str = field(default="parsing", kw_only=True)
    max_memory: int = field(default=DEFAULT_MEMORY, kw_only=True)
    niceness: int = field(default=0, kw_only=True)
    on_page: Callable[[Path, int, int], None] | None = field(default=None, kw_only=True)
    _process: subprocess.Popen[str] | None = field(default=None, init=False, repr=False)
    _stderr: IO[bytes] = field(default_factory=BytesIO, init=False, repr=False)

    def __post_init__(self) -> None:
        call_in_child(self._disown)

    def _disown(self) -> None:
        """Leave the child to the parent of this forked process."""
        _INHERITED.extend((self._process, self._stderr))  # never closed, because unsent data would be sent twice
        self._process, self._stderr = None, BytesIO()

    def close(self) -> None:
        """Kill the child; a later request starts a new child."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(BrokenPipeError), process:  # close the pipes and wait; a request may be half written
                self._stderr.close()

    def ask(self, path: Path, request: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Send a request and return its answer.

        Args:
            path: The file to which the request refers, for error messages.
            request: The request, as JSON values.
            seconds: Time after which the child is killed.

        Raises:
            ReadError: The child crashed, took too long, or could not read the file. For a crash, `reason` ends with
                the last line that the child wrote to stderr.
        """
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
            self._exchange(process, path, "", START_SECONDS)  # wait until the child is ready
        answer: dict[str, Any] = json.loads(self._exchange(process, path, json.dumps(request) + "\n", seconds))
        if "reason" in answer:
            raise ReadError(str(path), answer["reason"])
        return answer

    def _start(self) -> subprocess.Popen[str]:
        self.close()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self.module, str(self.max_memory), str(self.niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            errors="surrogatepass",
            env=child_environment(),
        )
        return self._process

    def _exchange(self, process: subprocess.Popen[str], path: Path, request: str, seconds: float) -> str:
        """Send a request to the child as one line, and return the line that contains the answer.

        Raises `ReadError` if the child crashed or took longer than `seconds`.
        """
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        line = reason = ""
        try:
            line = self._talk(process, path, request)
            reason = "" if line.endswith("\n") else self._crash(process)
        finally:
            timer.cancel()
            timer.join()
            if is_late.is_set() or not line.endswith("\n"):  # later answers from this child must not be read
                self.close()
        if is_late.is_set():
            reason = f"took longer than {seconds:g} seconds and was stopped"
        if reason:
            raise ReadError(str(path), f"{self.task} {reason}")
        return line

    def _talk(self, process: subprocess.Popen[str], path: Path, request: str) -> str:
        """Send a request and return the answer, which is incomplete if the child has exited or was killed."""
        stdin, stdout = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
        with suppress(OSError, ValueError):
            self._stderr.seek(0)
            self._stderr.truncate()  # the child shares this file position
            stdin.write(request)
            stdin.flush()
        while True:
            line = ""
            with suppress(OSError, ValueError):
                line = stdout.readline()
            pages = _PAGES_READ.fullmatch(line)
            if pages is None:
                return line
            if self.on_page is not None:
                self.on_page(path, int(pages[1]), int(pages[2]))

    def _crash(self, process: subprocess.Popen[str]) -> str:
        """Kill the child if it is still running, and return a description of the crash for an error message."""
        process.kill()
        code = process.wait()
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        lines = [""]
        with suppress(ValueError):  # the file was closed
            self._stderr.seek(0)
            lines = self._stderr.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"crashed ({': '.join(filter(None, (name, one_line(last[:MAX_COMPLAINT]))))})"


def child_environment() -> dict[str, str]:
    """Return the environment variables of this process without secrets, and with `sys.path` as PYTHONPATH."""
    env = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    return env | {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}


class ParserProcess(ChildProcess):
    """Child process that parses PDF and Office files."""

    def read(
        self,
        path: Path,
        *,
        reader: Literal["office", "pdf"] = "pdf",
        limits: ReadLimits = DEFAULT_LIMITS,
        scans: Mapping[int, Mapping[str, Any]] | None = None,
        **options: object,
    ) -> ParsedFile:
        """Call `parse_pdf` or `parse_office` in the child process.

        Args:
            path: The file.
            reader: "pdf" for `parse_pdf`, or "office" for `parse_office`.
            limits: Limits for the file.
            scans: Pages or pictures that were read by OCR, as for the function.
            options: Other keyword arguments for the function, as JSON values.

        Raises:
            ReadError: The function raised this error, or the child crashed or took longer than `limits.max_seconds`.
        """
        if scans is not None:
            options["scans"] = list(scans.items())  # JSON objects cannot have numbers as keys
        request = {"reader": reader, "path": str(path), "limits": asdict(limits), "options": options}
        answer = self.ask(path, request, seconds=limits.max_seconds)
        answer["pictures"] = {sha256: base64.b64decode(data) for sha256, data in answer["pictures"].items()}
        sequences = {name: tuple(answer[name]) for name in ("warnings", "scanned", "covered")}
        return ParsedFile(**{**answer, **sequences, "map": DocumentMap.from_metadata(answer["map"])})

    def draw(self, path: Path, *, digest: str, limits: ReadLimits, **request: object) -> StoredPicture | None:
        """Draw a part of a page of a PDF in the child process.

        Args:
            path: The file.
            digest: Hexadecimal xxh3-128 hash of the file.
            limits: Limits for the file.
            request: The `page`, starting at 1, the `box` on the displayed page, and the `password`, as JSON values.

        Returns:
            The picture, or None if there is nothing to see.

        Raises:
            ReadError: The page cannot be drawn, the child crashed, or it took longer than `DRAWING_SECONDS`.
        """
        request = {"reader": "figure", "path": str(path), "digest": digest, "max_bytes": limits.max_bytes, **request}
        answer = self.ask(path, request, seconds=min(limits.max_seconds, DRAWING_SECONDS))
        if not answer["data"]:
            return None
        return StoredPicture(**{**answer, "data": base64.b64decode(answer["data"])})


# ---- Child -----------------------------------------------------------------------------------------------------------


def answer_requests(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Report that this process is ready, then answer requests until stdin ends.

    Args:
        answer: Function that returns the answer to a request. If it raises `ReadError`, the reason becomes the answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    logging.getLogger("pypdf").setLevel(logging.ERROR)  # the last line on stderr should explain a crash
    max_memory, niceness = map(int, sys.argv[1:3])
    if niceness and hasattr(os, "nice"):
        os.nice(niceness)
    answers, sys.stdout = sys.stdout, sys.stderr  # library output must not mix with answers
    if isinstance(answers, TextIOWrapper):
        answers.reconfigure(encoding="utf-8", errors="surrogatepass")
    _limit_resources(max_memory)
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        try:
            text = json.dumps(answer(json.loads(line)), ensure_ascii=False)
        except ReadError as error:
            text = json.dumps({"reason": error.reason})
        except MemoryError:
            text = json.dumps({"reason": f"needs more than {max_memory:,} bytes of memory"})
        answers.write(text + "\n")
        answers.flush()


def _limit_resources(memory: int) -> None:
    """Limit the address space of this process and the size of the files that it writes, if the system supports it."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_STDERR, MAX_STDERR))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (ImportError, ValueError, OSError):  # Windows lacks the module, and macOS rejects the second limit
        return


def _parse(request: dict[str, Any]) -> dict[str, Any]:
    """Parse a file and return the result as JSON values. The modules of a reader are imported on first use."""
    if request["reader"] == "figure":
        return _draw(request)
    source, options = FileSource.open(Path(request["path"]), ReadLimits(**request["limits"])), request["options"]
    if "scans" in options:
        options["scans"] = dict(options["scans"])
    if request["reader"] == "office":
        from llama_index_contextual.readers.office import parse_office

        parsed = parse_office(source, **options)
    else:
        from llama_index_contextual.readers.pdf.reader import parse_pdf

        on_page = None if options.get("scans") else _page_reporter()  # with scans, the pages are read a second time
        parsed = parse_pdf(source, on_page=on_page, **options)
    pictures = {sha256: base64.b64encode(data).decode("ascii") for sha256, data in parsed.pictures.items()}
    return {
        **vars(parsed),
        "map": parsed.map.to_metadata(),
        "metadata": dict(parsed.metadata),
        "pictures": pictures,
    }


def _draw(request: dict[str, Any]) -> dict[str, Any]:
    """Draw a part of a page; see `FigureDrawer`."""
    from llama_index_contextual.readers.pdf.drawing import FigureDrawer

    if not _drawers:
        _drawers.append(FigureDrawer())
    picture = _drawers[0].draw(request)
    if picture is None:
        return {"data": "", "media_type": "", "width": 0, "height": 0}
    return {**vars(picture), "data": base64.b64encode(picture.data).decode("ascii")}


_drawers: list[FigureDrawer] = []


def _page_reporter() -> Callable[[int, int], None]:
    """Return a function that reports the number of pages read, at most once every `REPORT_SECONDS`, and at the end."""
    due = 0.0

    def report(done: int, total: int) -> None:
        nonlocal due
        if sys.__stdout__ is not None and ((now := time.monotonic()) >= due or done == total):
            due = now + REPORT_SECONDS
            sys.__stdout__.write(PAGES_READ.format(done, total))
            sys.__stdout__.flush()

    return report


if __name__ == "__main__":
    answer_requests(_parse)
