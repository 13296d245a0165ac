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


def started(documents: int) -> IngestProgress:
    return IngestProgress(stage="ingest", documents_total=documents)


def test_progress_starts_with_the_total_and_adds_up_completed_work() -> None:
    messages: list[IngestProgress] = []
    counter = ProgressCounter(messages.append, started(2))
    counter.set(documents_read=1)
    counter.add(chunks_done=5)
    counter.add(documents_done=1)
    counter.set(stage="done")
    read = replace(started(2), documents_read=1)
    done = replace(read, chunks_done=5, documents_done=1)
    assert messages == [started(2), read, replace(read, chunks_done=5), done, replace(done, stage="done")]


def test_the_share_that_is_done_never_decreases_while_documents_are_read_and_processed() -> None:
    states = [started(4)]
    for number in range(1, 5):
        states.append(replace(states[-1], documents_read=number))
        states.append(replace(states[-1], chunks_total=10 * number))
        states.append(replace(states[-1], chunks_done=10 * number))
        states.append(replace(states[-1], chunks_embedded=10 * number))
    ends = [state.share_done for state in states if state.chunks_embedded == state.chunks_total]
    assert ends == sorted(ends)
    assert ends[-1] == 0.98
    assert replace(states[-1], stage="done").share_done == 1.0


def test_counts_from_many_threads_add_up_and_arrive_in_order() -> None:
    messages: list[IngestProgress] = []
    counter = ProgressCounter(messages.append, started(400))
    threads = [
        threading.Thread(target=lambda: [counter.add(documents_done=1, chunks_done=3) for _ in range(100)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state.documents_done for state in messages] == list(range(401))
    assert messages[-1].chunks_done == 1_200


def finish(report: ReportProgress) -> None:
    """Report an ingestion from its beginning to its end."""
    counter = ProgressCounter(report, started(2))
    counter.reading("second.pdf")
    counter.set(documents_read=2)
    counter.add(chunks_total=1_500)
    counter.add(documents_done=2, chunks_done=1_500)
    counter.set(stage="publish")
    counter.set(stage="done")


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


def test_a_long_file_name_is_shortened_and_not_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    with progress_bar() as report:
        counter = ProgressCounter(report, started(2))
        counter.reading(f"minutes of the {'very ' * 20}long meeting.pdf")
    assert "0:00:00" in terminal.getvalue()
    assert "reading minutes of the …" in terminal.getvalue()


def test_other_programs_get_no_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress_bar() as report:
        finish(report)
    assert capsys.readouterr() == ("", "")
