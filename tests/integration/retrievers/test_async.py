"""Asynchronous searches: one call in a thread, nothing in the event loop, and events in order."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalStartEvent
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.llms import MockLLM
from llama_index.core.schema import QueryBundle
from pydantic import PrivateAttr

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.version import VersionIndex
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
from llama_index_contextual.search.live import LiveIndexes
from llama_index_contextual.search.results import RetrievalResponse
from tests.integration.retrievers.conftest import TEXTS
from tests.integration.retrievers.corpus import project_of
from tests.support.documents import write_texts
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.server import LoopbackProvider

QUERY = "error TS-999 of the pump"


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that event loops run in threads."""
    calls: list[str] = []
    run = asyncio.base_events.BaseEventLoop.run_in_executor

    def count(self: Any, executor: Any, function: Any, *arguments: Any) -> Any:
        calls.append(repr(function))
        return run(self, executor, function, *arguments)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "run_in_executor", count)
    return calls


async def test_a_question_of_a_conversation_takes_one_call_more(built: Project, hops: list[str]) -> None:
    retriever = ConversationalRetriever(built.as_retriever(), embed_model=built.embed_model)
    query = ConversationQuery("Why?", history=[ChatMessage(QUERY)])
    assert (await retriever.arespond(query)).results
    assert len(hops) == 2, hops


async def test_a_prompt_takes_one_call_more(built: Project, hops: list[str]) -> None:
    engine = built.as_query_engine(llm=MockLLM())
    draft: Any = await engine.adraft(QueryBundle(QUERY))  # type: ignore[attr-defined]
    assert draft.hits
    assert len(hops) == 2, hops


async def test_sixteen_searches_at_once_are_sixteen_calls(built: Project, hops: list[str]) -> None:
    expected = built.retrieve(QUERY).to_dict()
    responses = await asyncio.gather(*(built.aretrieve(QUERY) for _ in range(16)))
    assert [response.to_dict() for response in responses] == [expected] * 16
    assert len(hops) == 16


async def test_an_llm_that_reranks_is_awaited_in_the_callers_loop(tmp_path: Path, hops: list[str]) -> None:
    loops: list[object] = []

    class Listening(ScriptedLLM):
        async def achat(self, messages: Any, **options: Any) -> Any:
            loops.append(asyncio.get_running_loop())
            return self.chat(messages)

    llm = Listening(default="[2, 1, 3]")
    project = project_of(tmp_path, TEXTS, llm=llm, rerank="llm")
    hops.clear()
    response = await project.aretrieve("pump")
    assert loops == [asyncio.get_running_loop()]
    assert "find_candidates" in hops[0]
    reranked = [(hit.node_id, hit.score) for hit in response]
    assert reranked == [(hit.node_id, hit.score) for hit in project.retrieve("pump")]
    assert response.reranker is not None
    assert response.reranker.name == "llm"


@pytest.mark.usefixtures("lasting_connections")
def test_a_question_is_embedded_in_the_same_call_over_one_connection_of_all_loops(
    tmp_path: Path, hops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackProvider(embedding_dimensions=16) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
        config = ProjectConfig.local(context="none", embed_model="openai:text-embedding-3-small")
        project = ProjectManager(tmp_path).create("p", config)
        project.ingest([write_texts(tmp_path / "files")])
        provider.clear_history()
        hops.clear()
        for number in range(3):
            assert asyncio.run(project.aretrieve(f"question {number}"))
        assert len(hops) == 3, hops
        assert [record.body["input"] for record in provider.embedding_calls] == [
            [f"question {number}"] for number in range(3)
        ]
        assert len({record.connection_id for record in provider.embedding_calls}) == 1


async def test_nothing_of_a_search_runs_in_the_thread_of_the_event_loop(
    built: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, set[int]] = {}

    def watch(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            threads.setdefault(name, set()).add(threading.get_ident())
            return real(*arguments, **options)

        monkeypatch.setattr(kind, name, staticmethod(watched) if isinstance(real, staticmethod) else watched)

    watch(LiveIndexes, "current")
    watch(CountingEmbedding, "_get_query_embedding")
    for name in ("rank_vectors", "rank_terms", "fetch"):
        watch(VersionIndex, name)
    of = RetrievalResponse.of
    monkeypatch.setattr(
        RetrievalResponse,
        "of",
        lambda response: threads.setdefault("of", set()).add(threading.get_ident()) or of(response),
    )
    assert await built.aretrieve("Which question was not asked before?")
    assert set(threads) == {"current", "_get_query_embedding", "rank_vectors", "rank_terms", "fetch", "of"}
    assert threading.get_ident() not in set().union(*threads.values())


# ---- events ----------------------------------------------------------------------------------------------------------


class Recorder(BaseEventHandler):
    """The events in the order in which they are sent, each with its span."""

    _events: list[BaseEvent] = PrivateAttr(default_factory=list)

    def handle(self, event: BaseEvent, **_: Any) -> None:
        """Record an event."""
        self._events.append(event)


async def test_the_spans_and_events_of_searches_at_once_are_nested(built: Project) -> None:
    root, spans, recorder = get_dispatcher(), SimpleSpanHandler(), Recorder()
    root.add_span_handler(spans)
    root.add_event_handler(recorder)
    questions = [f"Which pump is number {number}?" for number in range(4)]
    try:
        await asyncio.gather(*(built.aretrieve(question) for question in questions))
    finally:
        root.span_handlers.remove(spans)
        root.event_handlers.remove(recorder)
    assert (spans.open_spans, spans.dropped_spans) == ({}, [])
    parents = {span.id_: span.parent_id for span in spans.completed_spans}
    searches = [span for span in parents if span.startswith("ProjectRetriever.arespond")]
    assert [parents[span] for span in searches] == [None] * len(questions)
    for question in questions:
        (start,) = (
            event
            for event in recorder._events
            if isinstance(event, RetrievalStartEvent) and str(event.str_or_query_bundle) == question
        )
        own = [event for event in recorder._events if _root(event.span_id, parents) == start.span_id]
        names = [type(event).__name__ for event in own]
        assert names == ["RetrievalStartEvent", "EmbeddingStartEvent", "EmbeddingEndEvent", "RetrievalEndEvent"]
        assert parents[str(own[1].span_id)] == start.span_id
        assert own[2].chunks == [question]  # type: ignore[attr-defined]


def _root(span: str | None, parents: dict[str, str | None]) -> str | None:
    while span is not None and (parent := parents[span]) is not None:
        span = parent
    return span
