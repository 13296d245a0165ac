"""Contexts and embeddings during an ingest: concurrent batches, outages of the provider, and reused results."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_index.core.schema import BaseNode, Document
from pydantic import PrivateAttr

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.errors import ConfigurationError, ModelError
from llama_index_contextual.ingestion import run
from llama_index_contextual.ingestion.pipeline import Pipeline
from llama_index_contextual.ingestion.plan import Job
from llama_index_contextual.money.price import Price
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.support import nodes_of, passages
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.nodes import chunk
from tests.support.server import LoopbackProvider

CONFIG = ProjectConfig.local(
    context="llm", llm="openai:gpt-4o-mini", indexes="lexical", chunk_size=24, chunk_overlap=0, llm_concurrency=4
)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    quick = LLMContextualizer.model_fields["retry"]
    monkeypatch.setattr(quick, "default_factory", lambda: RetryPolicy(attempts=4, base_delay=0.001))
    LLMContextualizer.model_rebuild(force=True)
    yield
    monkeypatch.undo()
    LLMContextualizer.model_rebuild(force=True)


@pytest.fixture
def project(manager: ProjectManager) -> Project:
    """An empty project whose contexts an LLM writes."""
    return manager.create("contexts", CONFIG)


def documents(count: int, *, sentences: int = 6) -> list[Document]:
    """Return documents of a few chunks each."""
    return [
        Document(
            id_=f"doc-{n}",
            text="\n\n".join(
                f"Sentence {s} of document {n} tells what pump number {s * 7 + n} does in the mill."
                for s in range(sentences)
            ),
        )
        for n in range(count)
    ]


def test_concurrent_batches_give_the_same_version_as_sequential_ones(
    manager: ProjectManager, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = documents(6)
    one = manager.create("one", CONFIG.changed(llm_concurrency=1))
    one.ingest(inputs)
    expected = [(node.node_id, node.metadata["context"]) for node in nodes_of(one)]
    monkeypatch.setattr(run, "GROUP_CHUNKS", 2)
    many = manager.create("many", CONFIG.changed(llm_concurrency=16))
    provider.clear_history()
    with ThreadPoolExecutor(1) as thread:
        with provider.hold():
            running = thread.submit(many.ingest, inputs)
            provider.wait_in_flight(2 * len(expected) // 6)
        running.result()
    assert [(n.node_id, n.metadata["context"]) for n in nodes_of(many)] == expected


def test_documents_are_read_only_when_their_chunks_can_be_processed(
    project: Project, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "GROUP_CHUNKS", 1)
    parsed: list[str] = []
    parse = Pipeline.parse

    def noted(pipeline: Pipeline, job: Job, **options: Any) -> list[BaseNode]:
        parsed.append(job.doc_id)
        return parse(pipeline, job, **options)

    monkeypatch.setattr(Pipeline, "parse", noted)
    with ThreadPoolExecutor(1) as thread:
        with provider.hold():
            running = thread.submit(project.ingest, documents(12))
            provider.wait_in_flight(4)
            started = len(parsed)
        running.result()
    assert started <= 4, "two batches ahead of the one that is worked on, and one that is being read"
    assert len(parsed) == 12


def test_after_an_outage_nothing_is_published_and_the_next_run_continues(
    project: Project, provider: LoopbackProvider
) -> None:
    fault = provider.fault("drop", times=None, after=7)
    with pytest.raises(ModelError, match=r"cannot be reached.* after 4 failures in a row\."):
        project.ingest(documents(5))
    assert project.versions() == []
    assert project.info().ledger.contexts == 7
    fault.times = 0
    provider.clear_history()
    report = project.ingest(documents(5))
    assert report.failures == ()
    assert report.contexts_paid == len(provider.chat_calls) == report.chunks - 7


def test_a_change_of_the_limits_of_calls_needs_no_rebuild(project: Project, provider: LoopbackProvider) -> None:
    project.ingest(documents(2))
    assert project.update_config(llm_concurrency=2, tokens_per_minute=10**7) == []
    provider.clear_history()
    second = project.ingest(documents(4))
    assert second.contexts_paid == len(provider.chat_calls)
    assert second.failures == ()


def test_calls_for_contexts_use_the_call_timeout_setting(
    project: Project, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, allowed = httpx.AsyncClient.send, list[float]()

    async def watched(self: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        allowed.append(request.extensions["timeout"]["read"])
        return await send(self, request, **options)

    monkeypatch.setattr(httpx.AsyncClient, "send", watched)
    assert project.update_config(call_timeout=77) == []
    report = project.ingest(documents(1))
    assert report.failures == ()
    assert allowed == [77.0] * report.chunks


def test_the_prompt_is_a_setting(manager: ProjectManager) -> None:
    llm = ScriptedLLM()
    config = CONFIG.changed(context_prompt="Terms: TS: sensor.\n{segment}\nSituate: {chunk}")
    manager.create("terms", config, llm=llm).ingest(documents(1))
    assert all(prompt.startswith("Terms: TS: sensor.\nSentence 0 of") for prompt in llm.history)
    with pytest.raises(ConfigurationError, match=r"\{glossary\} is not a variable"):
        manager.create("wrong", CONFIG.changed(context_prompt="{glossary} {segment} {chunk}"))


def test_a_service_tier_is_sent_with_every_call_or_refused_if_unsupported(
    project: Project, manager: ProjectManager, provider: LoopbackProvider, tmp_path: Path
) -> None:
    project.update_config(service_tier="flex")
    project.ingest(documents(1))
    assert {call.body["service_tier"] for call in provider.chat_calls} == {"flex"}
    other = manager.create("other", CONFIG.changed(service_tier="flex"), llm=ScriptedLLM())
    with pytest.raises(ConfigurationError, match="has no service tier 'flex'"):
        other.ingest(documents(1))
    assert other.versions() == []


# ---- embeddings ----------------------------------------------------------------------------------------------------


class FailsOnce(CountingEmbedding):
    """Fails for good at one of its requests."""

    _left: int = PrivateAttr(default=2)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        self._left -= 1
        if self._left == -1:
            raise ValueError("the third request")
        return await super()._aget_text_embeddings(texts)


def test_embeddings_received_before_a_failure_are_not_paid_for_again(manager: ProjectManager) -> None:
    model = FailsOnce(embed_batch_size=4)
    prices = {"CountingEmbedding:counting": Price(input=1.0)}
    project = manager.create("a", ProjectConfig(context="none", prices=prices), embed_model=model)
    inputs = passages(20)
    with pytest.raises(ModelError, match="the third request"):
        project.ingest(inputs, max_cost=1.0)
    assert len(model.texts) == 8
    assert project.info().ledger.embeddings == 8
    report = project.ingest(inputs, max_cost=1.0)
    assert report.chunks == 20
    assert sorted(model.texts) == sorted(node.text for node in inputs), "a text was sent twice"


def test_equal_texts_are_embedded_once(counted: Project, model: CountingEmbedding) -> None:
    counted.update_config(context="none")
    counted.ingest([chunk(name, "The same words.") for name in "ab"])
    assert model.texts == ["The same words."]
