"""Progress of long work: a counter that any display can follow, and a Rich bar with rate and time left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from llama_index_contextual.ingestion.report import IngestProgress, ReportProgress


class ProgressCounter:
    """Adds up what was done and tells `report`, from any thread.

    Args:
        report: Called after each step; None tells nobody.
        documents_total: Documents in all.
        bytes_total: Bytes of all documents.
    """

    def __init__(self, report: ReportProgress | None, *, documents_total: int, bytes_total: int) -> None:
        self._report = report
        self._documents_total = documents_total
        self._bytes_total = bytes_total
        self._documents = self._chunks = self._bytes = 0
        self._lock = threading.Lock()

    def add(self, documents: int, chunks: int, size: int) -> None:
        """Count documents, chunks and bytes that were just done."""
        with self._lock:
            self._documents += documents
            self._chunks += chunks
            self._bytes += size
            state = IngestProgress(
                stage="ingest",
                documents_done=self._documents,
                documents_total=self._documents_total,
                chunks_done=self._chunks,
                bytes_done=self._bytes,
                bytes_total=self._bytes_total,
            )
        if self._report is not None:
            self._report(state)


@contextmanager
def progress_bar(*, transient: bool = False) -> Iterator[ReportProgress]:
    """Show a Rich progress bar on standard error: documents, chunks, chunks a second, time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("Ingesting"),
        BarColumn(),
        TextColumn("{task.fields[documents]} documents · {task.fields[chunks]} chunks · {task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=transient,
    )
    with bar:
        task = bar.add_task("ingest", total=None, documents="0", chunks="0", rate="")

        def report(state: IngestProgress) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            bar.update(
                task,
                completed=state.bytes_done,
                total=state.bytes_total or None,
                documents=f"{state.documents_done}/{state.documents_total}",
                chunks=f"{state.chunks_done:,}",
                rate=f"{state.chunks_done / elapsed:,.0f} chunks/s" if elapsed > 0.5 else "",
            )

        yield report
