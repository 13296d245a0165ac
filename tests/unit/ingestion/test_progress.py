"""Progress: counts that never decrease, and the progress bar."""

from __future__ import annotations

import contextlib
import io
import threading
from dataclasses import replace
from typing import Any

import pytest

from llama_index_contextual.ingestion.report import (
    IngestProgress,
    ProgressCounter,
    ReportProgress,
    _phase,
    progress_bar,
)


def test_progress_starts_with_the_total_and_adds_up_completed_work() -> None:
    messages: list[IngestProgress] = []
    counter = ProgressCounter(messages.append, documents_total=2, bytes_total=30)
    counter.read(1)
    counter.add(0, 5, 10)
    counter.add(1, 0, 2)
    counter.enter("publish")
    counter.enter("done")
    start = IngestProgress(stage="ingest", documents_total=2, bytes_total=30)
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
    counter = ProgressCounter(messages.append, documents_total=400, bytes_total=800)
    threads = [threading.Thread(target=lambda: [counter.add(1, 3, 2) for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state.documents_done for state in messages] == list(range(401))
    assert (messages[-1].chunks_done, messages[-1].bytes_done) == (1_200, 800)


def finish(report: ReportProgress) -> None:
    """Report an ingestion from its beginning to its end."""
    counter = ProgressCounter(report, documents_total=2, bytes_total=30)
    counter.reading("second.pdf")
    counter.read(2)
    counter.parsed(1_500)
    counter.add(2, 1_500, 30)
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


def test_the_bar_shows_how_many_pages_of_a_file_have_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    with progress_bar() as report:
        report(IngestProgress(stage="ingest", documents_total=4, document="a.pdf", pages_done=1_200, pages_total=1_800))
    assert "Reading 1 of 4 (1,200 of 1,800 pages): a.pdf" in terminal.getvalue()


def test_other_programs_get_no_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress_bar() as report:
        finish(report)
    assert capsys.readouterr() == ("", "")


def test_a_report_after_the_end_starts_no_second_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    with contextlib.suppress(KeyboardInterrupt), progress_bar() as report:
        finish(report)
        raise KeyboardInterrupt
    before = terminal.getvalue()
    finish(report)
    assert terminal.getvalue() == before
    assert before.count("\x1b[?25h") == before.count("\x1b[?25l") == 1, "the cursor is shown again"


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ({"documents_total": 48, "documents_read": 11, "document": "a.pdf"}, "Reading 12 of 48: a.pdf"),
        ({"documents_read": 1}, "Reading 2 of 2"),
        ({"documents_read": 2, "chunks_total": 5, "chunks_done": 2, "writes_contexts": True}, "Requesting contexts"),
        ({"documents_read": 2, "chunks_total": 5, "chunks_done": 5}, "Embedding 0 of 5 chunks"),
        ({"stage": "publish"}, "Publishing the version"),
        ({"stage": "done"}, ""),
    ],
)
def test_the_phase_is_named(state: dict[str, Any], phase: str) -> None:
    assert _phase(IngestProgress(**{"stage": "ingest", "documents_total": 2, **state})) == phase
