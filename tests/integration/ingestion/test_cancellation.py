"""An interrupted ingest completes the calls in flight: the provider charges for them, so their answers are kept."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.ingestion import pipeline
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.budgets import SMALL, cost_at, write_documents
from tests.support.recorder import PATIENCE
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    monkeypatch.setattr(pipeline, "PATIENCE", PATIENCE)
    with LoopbackProvider(embedding_encoding="cl100k_base") as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


def nodes(number: int) -> list[TextNode]:
    return [TextNode(id_=f"n{at}", text=f"Passage {at} of the handbook.") for at in range(number)]


def chunks(provider: LoopbackProvider) -> list[str]:
    return [str(call.body["messages"]) for call in provider.chat_calls]


async def has_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    while words not in caplog.text:
        await asyncio.sleep(0)


@pytest.fixture
def project(manager: ProjectManager) -> Project:
    return manager.create("p", ProjectConfig(llm="openai:gpt-4.1", faiss=False, llm_concurrency=4))


async def test_a_cancelled_ingest_keeps_the_answers_to_the_calls_in_flight(
    provider: LoopbackProvider, project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    with provider.hold():
        running = asyncio.create_task(project.aingest(nodes(9)))
        await asyncio.to_thread(provider.wait_in_flight, 4)
        running.cancel()
        await has_logged(caplog, "for 4 calls in flight")
        assert not running.done()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(provider.chat_calls) == project.info().ledger.contexts == 4
    assert project.cost().booked == 0.0
    await project.aingest(nodes(9))
    assert len(provider.chat_calls) == len(set(chunks(provider))) == 9, "each is paid for once"
    assert project.cost().dollars == pytest.approx(cost_at(provider.charged()))


async def test_a_second_cancellation_ends_the_ingest_at_once_and_books_the_calls_in_flight(
    provider: LoopbackProvider, project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    with provider.hold():
        running = asyncio.create_task(project.aingest(nodes(9)))
        await asyncio.to_thread(provider.wait_in_flight, 4)
        running.cancel()
        await has_logged(caplog, "for 4 calls in flight")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert project.info().ledger.contexts == 0
    assert project.cost().runs[0].unsettled_calls == 4
    assert project.cost().booked > 0


async def test_calls_that_are_not_answered_in_time_do_not_delay_the_end(
    provider: LoopbackProvider, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "PATIENCE", 0.0)
    with provider.hold():
        running = asyncio.create_task(project.aingest(nodes(9)))
        await asyncio.to_thread(provider.wait_in_flight, 4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert project.cost().runs[0].unsettled_calls == 4


async def test_a_cancelled_ingest_keeps_the_vectors_of_a_request_in_flight(
    provider: LoopbackProvider, manager: ProjectManager, caplog: pytest.LogCaptureFixture
) -> None:
    project = manager.create("vectors", ProjectConfig(context="none", bm25=False, embed_window=None))
    with provider.hold():
        running = asyncio.create_task(project.aingest(nodes(9)))
        await asyncio.to_thread(provider.wait_in_flight, 1)
        running.cancel()
        await has_logged(caplog, "for 1 call in flight")
    with pytest.raises(asyncio.CancelledError):
        await running
    assert project.info().ledger.embeddings == 9
    await project.aingest(nodes(9))
    assert len(provider.embedding_calls) == 1


def test_nothing_is_awaited_without_calls_in_flight(manager: ProjectManager, caplog: pytest.LogCaptureFixture) -> None:
    project = manager.create("local", ProjectConfig.local())

    def interrupt(_state: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        project.ingest(nodes(3), progress=interrupt)
    assert "in flight" not in caplog.text


PATIENT_PROGRAM = f"""
from llama_index_contextual.ingestion import pipeline
pipeline.PATIENCE = {PATIENCE}
from llama_index_contextual.cli.app import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("interruptions", [1, 2])
def test_ctrl_c_waits_for_the_calls_in_flight_and_a_second_one_does_not(
    provider: LoopbackProvider, tmp_path: Path, interruptions: int
) -> None:
    documents = write_documents(tmp_path / "documents", parts=3)
    project = ProjectManager(tmp_path / "knowledge").create(
        "p", ProjectConfig(**SMALL, llm="openai:gpt-4.1", llm_concurrency=2)
    )
    command = [sys.executable, "-c", PATIENT_PROGRAM, "ingest", "p", str(documents), "--quiet"]
    root = ["--root", str(tmp_path / "knowledge")]
    with provider.hold():
        child = subprocess.Popen([*command, *root], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        provider.wait_in_flight(2)
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        line = child.stderr.readline()
        if interruptions == 2:
            child.send_signal(signal.SIGINT)
            assert child.wait(PATIENCE) == 130
    rest = child.stderr.read()
    child.stderr.close()
    assert child.wait(PATIENCE) == 130
    assert line.startswith(f"Interrupted: waiting at most {PATIENCE:.0f} s for 2 calls in flight")
    assert "Run the same command again to continue." in rest
    assert "Traceback" not in rest
    assert len(provider.chat_calls) == 2
    assert project.info().ledger.contexts == (2 if interruptions == 1 else 0)
    assert (project.cost().booked > 0) == (interruptions == 2)
