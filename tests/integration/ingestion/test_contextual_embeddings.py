"""Projects with a contextual embedding model: what is sent, what is reused, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import Document, TextNode
from numpy.typing import NDArray

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.voyage import VoyageContextualEmbedding
from llama_index_contextual.errors import BudgetExceededError, ModelError
from llama_index_contextual.money.price import Price
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.support import nodes_of, vectors_of
from tests.support.models import ScriptedLLM
from tests.support.nodes import chunk
from tests.support.server import LoopbackProvider
from tests.support.voyage import contextual_vectors

NAME = "voyage:voyage-context-3"
PRICES = {NAME: Price(input=1_000.0)}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_dimensions=64, embedding_encoding="cl100k_base") as running:
        monkeypatch.setenv("VOYAGE_API_KEY", "pa-a-key-of-the-tests-0123456789")
        monkeypatch.setenv("VOYAGE_API_BASE", running.api_base)
        yield running


def config(**changes: Any) -> ProjectConfig:
    settings = {"embed_model": NAME, "context": "none", "chunk_size": 20, "chunk_overlap": 0, "prices": PRICES}
    return ProjectConfig.local(**{**settings, **changes})


@pytest.fixture
def handbook(manager: ProjectManager, provider: LoopbackProvider) -> Project:
    return manager.create("handbook", config())


def document(name: str, *, chapters: int = 4, changed: int | None = None) -> Document:
    parts = []
    for at in range(chapters):
        new = " and its new valve" if at == changed else ""
        parts.append(f"Chapter {at} of {name} is about pump number {at}{new}.\n\n")
        parts.append(f"In {name} pump {at} runs at {at} bar and is checked each week.\n\n")
    return Document(id_=name, text="".join(parts))


def lists(provider: LoopbackProvider) -> list[list[str]]:
    """Return the lists of all answered requests for documents."""
    records = [record for record in provider.contextual_calls if record.status == 200]
    return list(chain.from_iterable(r.body["inputs"] for r in records if r.body["input_type"] == "document"))


def stored(project: Project) -> dict[str, NDArray[Any]]:
    """Return the texts of the live version with their vectors."""
    vectors = vectors_of(project)
    return {node.get_content(): np.array(vectors[node.node_id], dtype=np.float32) for node in nodes_of(project)}


# ---- what is sent --------------------------------------------------------------------------------------------------


def test_each_document_is_one_list_and_its_vectors_depend_on_its_neighbours(
    handbook: Project, provider: LoopbackProvider
) -> None:
    handbook.ingest([document("a"), document("b")])
    sent = lists(provider)
    assert [len(texts) > 3 for texts in sent] == [True, True]
    assert len(provider.contextual_calls) == 1, "both documents are in one request"
    vectors = stored(handbook)
    for texts in sent:
        expected = np.array(contextual_vectors(texts, 64))
        assert np.array([vectors[text] for text in texts]) == pytest.approx(expected, abs=1e-5)
    alone = np.array(contextual_vectors(sent[0][:1], 64))[0]
    assert not np.allclose(vectors[sent[0][0]], alone, atol=1e-3), "without neighbours the vector is another one"


def test_questions_are_embedded_as_queries_and_found(handbook: Project, provider: LoopbackProvider) -> None:
    handbook.ingest([document("a"), document("b")])
    provider.clear_history()
    hits = handbook.retrieve("pump number 2 of b", mode="semantic", top_k=1)
    assert [record.body["input_type"] for record in provider.contextual_calls] == ["query"]
    assert hits[0].source.file_name == "b" or "Chapter 2 of b" in hits[0].text
    assert len(asyncio.run(handbook.aretrieve("pump number 2 of a", top_k=3))) == 3


# ---- what is reused ------------------------------------------------------------------------------------------------


def test_a_changed_chunk_embeds_its_document_again_and_no_other(handbook: Project, provider: LoopbackProvider) -> None:
    handbook.ingest([document("a"), document("b")])
    before = stored(handbook)
    provider.clear_history()
    report = handbook.ingest([document("a", changed=2), document("b")])
    (sent,) = lists(provider)
    assert len(report.updated) == 1
    assert all(" of a is" in text or "In a pump" in text for text in sent)
    after = stored(handbook)
    unchanged = [text for text in before.keys() & after.keys() if text in sent]
    assert unchanged, "some chunks of the document have the same text"
    assert all(not np.array_equal(before[text], after[text]) for text in unchanged), "their neighbours have changed"
    assert all(np.array_equal(before[text], after[text]) for text in after.keys() - {*sent})


def test_a_changed_part_of_a_long_document_is_embedded_alone(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    model = VoyageContextualEmbedding(api_base=provider.api_base, max_tokens_per_document=220)
    project = manager.create("long", config(segment_size=100), embed_model=model)
    project.ingest([document("a", chapters=40)])
    whole = len(lists(provider))
    provider.clear_history()
    text = document("a", chapters=40).text
    project.ingest([Document(id_="a", text=text.replace("pump number 39.", "pomp number 39."))])
    assert 1 <= len(lists(provider)) <= 2 < whole


def test_known_chunks_among_other_neighbours_are_embedded_again(handbook: Project, provider: LoopbackProvider) -> None:
    def nodes(doc: str, *texts: str) -> list[TextNode]:
        return [chunk(f"{doc}{text}", text, doc_id=doc) for text in texts]

    handbook.ingest([*nodes("one", "pump", "valve"), *nodes("two", "crane", "gate")])
    provider.clear_history()
    handbook.ingest(nodes("three", "pump", "gate"))
    assert lists(provider) == [["pump", "gate"]], "each was known at the same place of another document"


def test_equal_documents_are_sent_once_and_equal_chunks_have_the_vectors_of_their_places(
    handbook: Project, provider: LoopbackProvider
) -> None:
    texts = ["same", "other", "same"]
    handbook.ingest([chunk(f"{doc}{at}", text, doc_id=doc) for doc in "de" for at, text in enumerate(texts)])
    assert lists(provider) == [texts]
    vectors = vectors_of(handbook)
    rows = np.array([vectors[name] for name in ("d0", "d1", "d2")])
    assert rows == pytest.approx(np.array(contextual_vectors(texts, 64)), abs=1e-5)
    assert not np.array_equal(rows[0], rows[2])


def test_requests_answered_before_a_failure_are_not_paid_for_again(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    model = VoyageContextualEmbedding(api_base=provider.api_base, max_documents_per_request=1)
    project = manager.create("a", config(), embed_model=model)
    documents = [document(name) for name in "abcd"]
    fault = provider.fault("content_filter_error", times=None, after=2)
    with pytest.raises(ModelError, match="The response was filtered"):
        project.ingest(documents)
    assert len(lists(provider)) == 2
    fault.times = 0
    assert project.ingest(documents).chunks == project.info().chunks
    sent = [tuple(texts) for texts in lists(provider)]
    assert len(sent) == len(set(sent)) == 4


def test_forget_keeps_the_vectors_of_live_documents_and_no_others(
    handbook: Project, provider: LoopbackProvider
) -> None:
    handbook.ingest([document("a"), document("b"), document("c")])
    handbook.ingest([document("a", changed=1)])
    handbook.remove(["c"])
    live = handbook.info().chunks
    report = handbook.forget()
    assert report.embeddings > 0
    ledger = handbook.info().ledger
    assert ledger.embeddings == live, "chunks of earlier states are removed though their own text is live"
    provider.clear_history()
    handbook.rebuild()
    assert provider.history == []


# ---- what it costs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "structural"])
def test_the_estimate_is_what_is_paid_and_a_known_document_costs_nothing(
    kind: str, manager: ProjectManager, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = manager.create("a", config(context=kind))
    documents = [document("a"), document("b")]
    with monkeypatch.context() as patch:
        patch.delenv("VOYAGE_API_KEY")
        expected = project.estimate(documents)
    assert provider.history == []
    report = project.ingest(documents, max_cost=expected.max_cost)
    (record,) = provider.contextual_calls
    assert record.usage["total_tokens"] == pytest.approx(expected.embedding_tokens, rel=0.05)  # type: ignore[index]
    assert report.paid.embedding_tokens == record.usage["total_tokens"]  # type: ignore[index]
    assert report.paid.dollars == pytest.approx(expected.dollars, rel=0.05)
    assert report.paid.dollars == pytest.approx(project.cost().dollars)
    changed = project.estimate([document("a", changed=2), document("b")])
    provider.clear_history()
    project.ingest([document("a", changed=2), document("b")])
    (record,) = provider.contextual_calls
    assert record.usage["total_tokens"] == pytest.approx(changed.embedding_tokens, rel=0.05)  # type: ignore[index]
    assert project.estimate([document("a"), document("b")], replace=True).embedding_tokens == 0


def test_with_contexts_by_an_llm_they_are_embedded_and_the_estimate_counts_each_document_once(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    project = manager.create("a", config(context="llm", prices={}), llm=ScriptedLLM())
    documents = [document("a"), document("b")]
    expected = project.estimate(documents)
    project.ingest(documents)
    (record,) = provider.contextual_calls
    assert [text for texts in lists(provider) for text in texts] == [n.get_content("embed") for n in nodes_of(project)]  # type: ignore[arg-type]
    assert 0.3 < record.usage["total_tokens"] / expected.embedding_tokens < 1.5  # type: ignore[index]
    assert project.estimate(documents, replace=True).embedding_tokens == 0
    changed = project.estimate([document("a", changed=2)])
    assert 0 < changed.embedding_tokens < expected.embedding_tokens


def test_a_limit_stops_before_the_request_that_could_exceed_it(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    model = VoyageContextualEmbedding(api_base=provider.api_base, max_documents_per_request=1)
    project = manager.create("a", config(), embed_model=model)
    documents = [document(name) for name in "abc"]
    price = project.estimate(documents).dollars
    with pytest.raises(BudgetExceededError):
        project.ingest(documents, max_cost=price / 2)
    assert len(provider.contextual_calls) == 1
    project.ingest(documents, max_cost=price)
    assert len(lists(provider)) == 3


# ---- indexes -------------------------------------------------------------------------------------------------------


def test_vectors_of_another_length_in_the_ledger_are_replaced(handbook: Project, provider: LoopbackProvider) -> None:
    handbook.ingest([document("a"), document("b")])
    handbook.remove(["a", "b"])
    provider.embedding_dimensions = 32
    provider.clear_history()
    handbook.ingest([document("a"), document("c")])
    assert {len(vector) for vector in stored(handbook).values()} == {32}
    assert len(lists(provider)) == 2
