"""An ingestion in a background thread, whose progress the Workbench shows while it answers from the live version."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.ingestion.report import IngestProgress, IngestReport, ReportProgress


class BackgroundIngest:
    """An ingestion in a thread of its own.

    Args:
        folder: Name of the folder, for messages.
        ingest: Function that returns the coroutine of the ingestion; its argument is the progress callback.
        describe: Function that describes an expected error to the user.
        finished: Called in the thread with the report; an error that it raises ends the ingestion.

    Attributes:
        folder: As above.
        progress: The progress so far, or None.
        report: The report of a finished ingestion, or None.
        error: Description of the error that ended the ingestion, or "".
    """

    def __init__(
        self,
        folder: str,
        ingest: Callable[[ReportProgress], Coroutine[Any, Any, IngestReport]],
        *,
        describe: Callable[[Any], str] = str,
        finished: Callable[[IngestReport], object] = lambda report: None,
    ) -> None:
        self.folder = folder
        self.progress: IngestProgress | None = None
        self.report: IngestReport | None = None
        self.error = ""
        self._ingest, self._describe, self._finished = ingest, describe, finished
        self._started_at = time.monotonic()
        self._is_entered = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._run), name="ingest")

    def start(self) -> None:
        """Start the ingestion."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the ingestion has not ended yet."""
        return self.report is None and not self.error

    def stop(self) -> bool:
        """Interrupt the ingestion if it is running, wait until it has ended, and return whether it was interrupted.

        Calls in flight are awaited, as after Ctrl-C in the foreground; a KeyboardInterrupt ends this wait.
        """
        was_running = self.is_running
        while self._thread.is_alive():
            if not self._is_entered.wait(0.1) or self._loop is None or self._task is None:
                continue  # there is nothing to cancel yet
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._task.cancel)
            with contextlib.suppress(KeyboardInterrupt):
                self._thread.join()
        return was_running and self.report is None

    def _run(self) -> None:
        error = "This is a bug: the terminal shows the details."
        try:
            report = asyncio.run(self._main())
            self._finished(report)
            self.report, error = report, ""
        except asyncio.CancelledError:
            error = "The ingestion was interrupted."
        except (ContextualError, OSError, sqlite3.Error) as problem:
            error = self._describe(problem)
        finally:
            self.error = error

    async def _main(self) -> IngestReport:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._is_entered.set()
        return await self._ingest(self._set_progress)

    def _set_progress(self, progress: IngestProgress) -> None:
        self.progress = progress

    # ---- words for the views ----

    @property
    def total(self) -> int:
        """Number of files to read; 0 if it is not known yet."""
        return self.progress.documents_total if self.progress else 0

    @property
    def percent(self) -> float:
        """Share of the work that is finished, in per cent."""
        return round(100 * self.progress.share_done, 1) if self.progress else 0.0

    @property
    def state(self) -> str:
        """Description of the finished work and of the time that is left."""
        progress = self.progress
        if progress is None or not self.total:
            return "Looking for new and changed files"
        if progress.stage == "batch":
            return f"Waiting for {pluralize(progress.batch_total, 'request')} to the provider"
        if progress.stage != "ingest":
            return "Writing the new version"
        progress_text = f"{progress.documents_read:,} of {pluralize(self.total, 'file')}"
        if progress.share_done < 0.05:
            return progress_text
        elapsed = time.monotonic() - self._started_at
        minutes = elapsed * (1 - progress.share_done) / progress.share_done / 60
        remainder = "less than a minute" if minutes < 1 else f"about {pluralize(round(minutes), 'minute')}"
        return f"{progress_text}, {remainder} left"
