"""An interrupted ingest completes the calls in flight: the provider charges for them, so their answers are kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.versions import current_name, leftovers
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.ingestion import run
from llama_index_contextual.node_parser import ChunkNodeParser
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.support import ids, passages
from tests.support.charges import cost_at
from tests.support.recorder import PATIENCE
from tests.support.server import LoopbackProvider


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", PATIENCE)


def chunks(provider: LoopbackProvider) -> list[str]:
    return [str(call.body["messages"]) for call in provider.chat_calls]


async def has_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    while words not in caplog.text:
        await asyncio.sleep(0)


@asynccontextmanager
async def cancelled(provider: LoopbackProvider, project: Project, calls: int = 4) -> AsyncIterator[asyncio.Task[Any]]:
    """Cancel an ingest with this many calls in flight, which are answered at the end of the block."""
    with provider.hold():
        running = asyncio.create_task(project.aingest(passages(9)))
        await asyncio.to_thread(provider.wait_in_flight, calls)
        running.cancel()
        yield running


@pytest.fixture
def project(manager: ProjectManager) -> Project:
    return manager.create("p", ProjectConfig(llm="openai:gpt-4.1", indexes="lexical", llm_concurrency=4))


async def test_a_cancelled_ingest_keeps_the_answers_to_the_calls_in_flight(
    provider: LoopbackProvider, project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    async with cancelled(provider, project) as running:
        await has_logged(caplog, "for 4 calls in flight")
        assert not running.done()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(provider.chat_calls) == project.info().ledger.contexts == 4
    assert project.cost().booked == 0.0
    await project.aingest(passages(9))
    assert len(provider.chat_calls) == len(set(chunks(provider))) == 9, "each is paid for once"
    assert project.cost().dollars == pytest.approx(cost_at(provider.charged()))


async def test_a_second_cancellation_ends_the_ingest_at_once_and_books_the_calls_in_flight(
    provider: LoopbackProvider, project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    async with cancelled(provider, project) as running:
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
    monkeypatch.setattr(run, "PATIENCE", 0.0)
    async with cancelled(provider, project) as running:
        with pytest.raises(asyncio.CancelledError):
            await running
    assert project.cost().runs[0].unsettled_calls == 4


async def test_a_cancelled_ingest_keeps_the_vectors_of_a_request_in_flight(
    provider: LoopbackProvider, manager: ProjectManager, caplog: pytest.LogCaptureFixture
) -> None:
    project = manager.create("vectors", ProjectConfig(context="none", indexes="semantic", embed_window=None))
    async with cancelled(provider, project, calls=1) as running:
        await has_logged(caplog, "for 1 call in flight")
    with pytest.raises(asyncio.CancelledError):
        await running
    assert project.info().ledger.embeddings == 9
    await project.aingest(passages(9))
    assert len(provider.embedding_calls) == 1


@pytest.mark.parametrize(
    ("work", "left"),
    [
        (lambda project: project.aingest([Document(id_="d", text="More.")]), "abcd"),
        (lambda project: project.aremove("a"), "bc"),
    ],
    ids=["ingest", "remove"],
)
async def test_a_run_cancelled_while_it_publishes_or_removes_is_completed_first(
    counted: Project, monkeypatch: pytest.MonkeyPatch, work: Callable[..., Any], left: str
) -> None:
    counted.ingest([Document(id_=one, text=f"Pump {one} runs.") for one in "abc"])
    reached, goes_on = threading.Event(), threading.Event()
    real = VersionBuilder.publish

    def held(*given: Any, **options: Any) -> Any:
        reached.set()
        assert goes_on.wait(PATIENCE)
        return real(*given, **options)

    monkeypatch.setattr(VersionBuilder, "publish", held)
    running = asyncio.create_task(work(counted))
    assert await asyncio.to_thread(reached.wait, PATIENCE)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ids(counted) == [*left]
    assert counted.verify().sound
    assert leftovers(counted.directory) == []
    counted.remove("b")  # the lock is free


async def test_a_cancelled_run_reads_no_further_and_leaves_nothing_unfinished(
    counted: Project, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing, go_on = threading.Event(), threading.Event()
    parsed: list[str] = []
    real = ChunkNodeParser.__call__

    def slow(self: ChunkNodeParser, nodes: Any, **options: Any) -> Any:
        parsed.append(nodes[0].node_id)
        parsing.set()
        assert go_on.wait(PATIENCE)
        return real(self, nodes, **options)

    monkeypatch.setattr(ChunkNodeParser, "__call__", slow)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor := ThreadPoolExecutor(max_workers=2))
    task = asyncio.create_task(counted.aingest([text_folder]))
    assert await asyncio.to_thread(parsing.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (counted.directory / "versions" / "v000001.building").exists()
    go_on.set()
    executor.shutdown(wait=True)
    assert len(parsed) == 1, "the second document is not read any more"
    assert leftovers(counted.directory) == []
    assert current_name(counted.directory) is None
