"""Progress of long work: a counter that any display can follow, and a Rich bar with rate and time left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from llama_index_contextual.contextualizer.prices import money
from llama_index_contextual.ingestion.report import IngestProgress, ReportProgress
from llama_index_contextual.wording import counted


class ProgressCounter:
    """Adds up what was done and tells `report`, from any thread, beginning with what there is to do.

    Args:
        report: Called after each step; None tells nobody.
        documents_total: Documents that need work.
        bytes_total: Bytes of these documents.

    Attributes:
        spent: Gives the dollars that the run has cost so far.
    """

    def __init__(self, report: ReportProgress | None, *, documents_total: int, bytes_total: int) -> None:
        self._report = report
        self._state = IngestProgress(stage="ingest", documents_total=documents_total, bytes_total=bytes_total)
        self._lock = threading.Lock()
        self.spent: Callable[[], float | None] = float
        self._tell()

    def read(self, documents: int) -> None:
        """Count documents that were just read, those included that cannot be."""
        with self._lock:
            self._state = replace(self._state, documents_read=self._state.documents_read + documents)
            self._tell()

    def add(self, documents: int, chunks: int, size: int) -> None:
        """Count documents, chunks and bytes that were just done."""
        with self._lock:
            self._state = replace(
                self._state,
                documents_done=self._state.documents_done + documents,
                chunks_done=self._state.chunks_done + chunks,
                bytes_done=self._state.bytes_done + size,
            )
            self._tell()

    def batches(self, done: int, total: int) -> None:
        """Say how many requests of the provider's batches are answered."""
        with self._lock:
            self._state = replace(self._state, stage="batch", batch_done=done, batch_total=total)
            self._tell()

    def enter(self, stage: Literal["ingest", "publish", "done"]) -> None:
        """Say that every document is done, and what comes now; what could not be read counts as done too."""
        with self._lock:
            done = self._state.bytes_done if stage == "ingest" else self._state.bytes_total
            self._state = replace(self._state, stage=stage, bytes_done=done)
            self._tell()

    def _tell(self) -> None:
        if self._report is not None:
            self._state = replace(self._state, dollars=self.spent())
            self._report(self._state)


@contextmanager
def progress_bar() -> Iterator[ReportProgress]:
    """Show a Rich progress bar on standard error from the first report on: documents, chunks, rate, time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        BarColumn(bar_width=None),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
        expand=True,
    )
    task = bar.add_task("", total=None, left="")

    def report(state: IngestProgress) -> None:
        if not state.documents_total:
            return
        bar.start()
        seconds = bar.tasks[0].elapsed or 0.0
        bar.update(
            task,
            description=_describe(state, seconds),
            left=_time_left(state, seconds),
            # The last 2 % are the writing: Rich stops the clock of a bar that is full.
            completed=state.bytes_done if state.stage != "done" else state.bytes_total * 1.02,
            total=state.bytes_total * 1.02,
        )

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()


def _describe(state: IngestProgress, seconds: float) -> str:
    if state.stage == "batch":
        requests = counted(state.batch_total, "request")
        return f"batch: {state.batch_done:,}/{requests} answered (Ctrl-C leaves it running)"
    documents = counted(state.documents_total, "document")
    parts = [f"{state.documents_read:,}/{documents}", counted(state.chunks_done, "chunk")]
    if state.chunks_done and seconds >= 1:
        parts.append(f"{state.chunks_done / seconds:,.0f}/s")
    if state.dollars:
        parts.append(money(state.dollars))
    return " · ".join([*parts, "publishing"] if state.stage == "publish" else parts)


def _time_left(state: IngestProgress, seconds: float) -> str:
    """Return the time left at the mean rate so far: documents are finished in bursts, which mislead a moving one."""
    if not state.bytes_done or state.stage == "done":
        return ""
    left = seconds * (state.bytes_total - state.bytes_done) / state.bytes_done
    return f"· {timedelta(seconds=round(left))} left"
