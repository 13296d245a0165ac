"""Async ingestion does not block the event loop: slow work is done in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer import base as contextualizer
from llama_index_contextual.contextualizer import prompts
from llama_index_contextual.embeddings import contextual
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.ingestion import estimate, state
from llama_index_contextual.ingestion.estimate import CostCounter
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.recorder import PATIENCE

ALWAYS = [
    (contextualizer, "segments"),
    (contextualizer, "with_context"),
    (contextual, "embedding_tokens"),
    (contextual, "unit_vectors"),
    (Ledger, "vectors"),
    (Ledger, "add_vectors"),
    (VersionBuilder, "append"),
    (VersionBuilder, "publish"),
]
OF_AN_LLM = [
    (CostCounter, "add"),
    (prompts, "chunks_by_key"),
    (prompts, "context_requests"),
    (Ledger, "contexts"),
    (Ledger, "add_contexts"),
]
DOCUMENTS = [Document(id_=name, text=f"Pump {name} runs dry.\n\nValve {name} is shut.") for name in "abc"]


class Clock:
    """Ticks in the event loop, while there is somebody who waits for it."""

    def __init__(self) -> None:
        self._waiting: list[threading.Event] = []
        self.waited_in: set[str] = set()

    async def run(self) -> None:
        """Tick until it is cancelled."""
        while True:
            while self._waiting:
                self._waiting.pop().set()
            await asyncio.sleep(0)

    def watch(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        """Let a function begin only when the event loop has ticked meanwhile."""
        work = getattr(owner, name)

        def watched(*given: Any, **options: Any) -> Any:
            ticked = threading.Event()
            self._waiting.append(ticked)
            assert ticked.wait(PATIENCE), f"{name} holds up the event loop"
            self.waited_in.add(name)
            return work(*given, **options)

        patch.setattr(owner, name, watched)


async def beside_a_clock(watched: list[tuple[Any, str]], work: Callable[[], Any]) -> None:
    """Await some work while a clock ticks in the same event loop, and see that all the functions had a part in it."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in watched:
            clock.watch(patch, owner, name)
        ticking = asyncio.create_task(clock.run())
        try:
            await work()
        finally:
            ticking.cancel()
    assert clock.waited_in == {name for _, name in watched}


@pytest.mark.parametrize(
    ("context", "more"),
    [("llm", OF_AN_LLM), ("structural", [(contextualizer, "truncate")])],
    ids=["llm", "structural"],
)
async def test_the_event_loop_is_not_blocked_during_an_ingest(
    manager: ProjectManager, model: CountingEmbedding, context: str, more: list[tuple[Any, str]]
) -> None:
    config = ProjectConfig(context=context, indexes="semantic")  # type: ignore[arg-type]
    project = manager.create("loop", config, llm=ScriptedLLM(), embed_model=model)
    await beside_a_clock([*ALWAYS, *more], lambda: project.aingest(DOCUMENTS))


@pytest.mark.parametrize(
    ("watched", "work"),
    [
        ([(state, "make_pipeline"), (state, "OpenVersion")], lambda project: rebuild(project)),
        ([(state, "OpenVersion")], lambda project: project.aretry_failed()),
        ([(estimate, "estimate")], lambda project: project.aestimate(DOCUMENTS)),
        ([(VersionBuilder, "publish")], lambda project: project.aremove("a")),
        ([(VersionBuilder, "keep")], lambda project: project.aingest([Document(id_="d", text="More.")])),
    ],
    ids=["rebuild", "retry", "estimate", "remove", "ingest"],
)
async def test_the_event_loop_is_not_blocked_by_opening_estimating_or_removing(
    manager: ProjectManager,
    model: CountingEmbedding,
    watched: list[tuple[Any, str]],
    work: Callable[[Project], Awaitable[Any]],
) -> None:
    project = manager.create("loop", ProjectConfig.local(), embed_model=model)
    project.ingest(DOCUMENTS)
    await beside_a_clock(watched, lambda: work(project))


async def rebuild(project: Project) -> None:
    project.update_config(chunk_size=400, chunk_overlap=0)
    await project.arebuild()
