"""Progress: counts that never decrease, and the progress bar."""

from __future__ import annotations

import io
import threading
from dataclasses import replace

import pytest

from llama_index_contextual.ingestion.report import (
    IngestProgress,
    ProgressCounter,
    ReportProgress,
    progress_bar,
)


def started(documents: int, size: int) -> IngestProgress:
    return IngestProgress(stage="ingest", documents_total=documents, bytes_total=size)


def test_progress_starts_with_the_total_and_adds_up_completed_work() -> None:
    messages: list[IngestProgress] = []
    counter = ProgressCounter(messages.append, started(2, 30))
    counter.read(1)
    counter.add(chunks_done=5, bytes_done=10)
    counter.add(documents_done=1, bytes_done=2)
    counter.enter("publish")
    counter.enter("done")
    start = started(2, 30)
    read = replace(start, documents_read=1)
    done = replace(read, chunks_done=5, bytes_done=12, documents_done=1)
    assert messages == [
        start,
        read,
        replace(read, chunks_done=5, bytes_done=10),
        done,
        replace(done, stage="publish", bytes_done=30),
        replace(done, stage="done", bytes_done=30),
    ]


def test_counts_from_many_threads_add_up_and_arrive_in_order() -> None:
    messages: list[IngestProgress] = []
    counter = ProgressCounter(messages.append, started(400, 800))
    threads = [
        threading.Thread(
            target=lambda: [counter.add(documents_done=1, chunks_done=3, bytes_done=2) for _ in range(100)]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state.documents_done for state in messages] == list(range(401))
    assert (messages[-1].chunks_done, messages[-1].bytes_done) == (1_200, 800)


def finish(report: ReportProgress) -> None:
    """Report an ingestion from its beginning to its end."""
    counter = ProgressCounter(report, started(2, 30))
    counter.reading("second.pdf")
    counter.read(2)
    counter.add(chunks_total=1_500)
    counter.add(documents_done=2, chunks_done=1_500, bytes_done=30)
    counter.enter("publish")
    counter.enter("done")


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Let standard error look like a terminal to Rich, and return what is written to it."""
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    return shown


def test_the_bar_shows_documents_chunks_and_the_last_step_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    with progress_bar() as report:
        finish(report)
    assert "2/2 documents" in terminal.getvalue()
    assert "1,500 chunks" in terminal.getvalue()


def test_other_programs_get_no_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress_bar() as report:
        finish(report)
    assert capsys.readouterr() == ("", "")
