"""Progress: counts that never decrease, and the progress bar."""

from __future__ import annotations

import threading

import pytest

from llama_index_contextual.ingestion.report import IngestProgress, ProgressCounter, progress_bar


def test_progress_starts_with_the_total_and_adds_up_completed_work() -> None:
    messages: list[IngestProgress] = []
    counter = ProgressCounter(messages.append, documents_total=2, bytes_total=30)
    counter.read(1)
    counter.add(0, 5, 10)
    counter.add(1, 0, 2)
    counter.enter("publish")
    counter.enter("done")
    assert messages == [
        IngestProgress(stage="ingest", documents_total=2, bytes_total=30),
        IngestProgress(stage="ingest", documents_total=2, bytes_total=30, documents_read=1),
        IngestProgress(
            stage="ingest", documents_total=2, bytes_total=30, documents_read=1, chunks_done=5, bytes_done=10
        ),
        IngestProgress(
            stage="ingest",
            documents_total=2,
            bytes_total=30,
            documents_read=1,
            chunks_done=5,
            bytes_done=12,
            documents_done=1,
        ),
        *(
            IngestProgress(
                stage=stage,  # type: ignore[arg-type]
                documents_total=2,
                bytes_total=30,
                documents_read=1,
                chunks_done=5,
                bytes_done=30,
                documents_done=1,
            )
            for stage in ("publish", "done")
        ),
    ]


def test_progress_works_without_a_listener() -> None:
    ProgressCounter(None, documents_total=1, bytes_total=1).add(1, 1, 1)


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


def test_the_bar_shows_documents_chunks_and_the_last_step_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as report:
        counter = ProgressCounter(report, documents_total=2, bytes_total=30)
        counter.read(2)
        counter.add(2, 1_500, 30)
        counter.enter("publish")
        counter.enter("done")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2/2 documents" in shown.err
    assert "1,500 chunks" in shown.err


def test_a_bar_without_a_report_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar():
        pass
    assert capsys.readouterr().err == ""
