"""The parent's side of the process that parses PDFs and can be killed."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from llama_index_contextual.errors import ReadError
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers.base import ParsedFile, ReadLimits

CHILD = "llama_index_contextual._pdf_worker"


class PdfWorker:
    """Parses PDFs in a child process, so that a hostile file can neither hang nor crash this one.

    The child is started at the first file, kept for the following ones, and killed when a file exceeds
    `limits.max_seconds`; the next file starts a new one. Use it as a context manager. Not for several threads at once.

    Args:
        max_memory: Bytes that the child may allocate, where the system can limit it (`resource.setrlimit`).
    """

    def __init__(self, *, max_memory: int = 4_000_000_000) -> None:
        self._max_memory = max_memory
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()

    def read(
        self,
        path: Path,
        *,
        password: str | None = None,
        limits: ReadLimits = ReadLimits(),  # noqa: B008
        engine: str = "pypdf",
    ) -> ParsedFile:
        """Read one PDF in the child process; arguments and errors are those of `read_pdf`.

        Raises:
            ReadError: Also when the child crashed, or needed more than `limits.max_seconds`.
        """
        request = {"path": str(path), "password": password, "limits": asdict(limits), "engine": engine}
        answer = self._ask(path, json.dumps(request), limits.max_seconds)
        if "reason" in answer:
            raise ReadError(str(path), answer["reason"])
        return ParsedFile(
            text=answer["text"],
            map=DocumentMap.from_metadata(answer["map"]),
            title=answer["title"],
            warnings=tuple(answer["warnings"]),
            metadata=answer["metadata"],
        )

    def _ask(self, path: Path, request: str, seconds: float) -> dict[str, Any]:
        child = self._running()
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_exchange, args=(child, request, answers), daemon=True).start()
        try:
            line = answers.get(timeout=seconds)
        except queue.Empty:
            self._kill()
            raise ReadError(str(path), f"parsing took longer than {seconds:g} seconds and was stopped") from None
        if not line.endswith("\n"):
            code = child.wait()
            self._kill()
            raise ReadError(str(path), f"the parser crashed (exit code {code})")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-m", CHILD, str(self._max_memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
            )
        return self._child

    def _kill(self) -> None:
        self.close()


def _exchange(child: subprocess.Popen[str], request: str, answers: queue.SimpleQueue[str]) -> None:
    try:
        _pipe(child.stdin).write(request + "\n")
        _pipe(child.stdin).flush()
        answers.put(_pipe(child.stdout).readline())
    except (OSError, ValueError):
        answers.put("")


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise ValueError("the child process has no pipe")
    return pipe
