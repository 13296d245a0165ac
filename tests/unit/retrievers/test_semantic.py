"""Semantic retrieval: ranking by cosine similarity, embedding of queries, and errors."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.embeddings import queries
from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.errors import InputError, ModelError
from llama_index_contextual.retrievers import SemanticRetriever
from llama_index_contextual.search.rank import semantic_list
from tests.integration.retrievers.corpus import PASSAGES, PassageIndex, by_meaning, passages, ranking
from tests.support.models import CountingEmbedding

QUERY = "the pump runs dry"


@pytest.fixture
def index() -> PassageIndex:
    return PassageIndex(passages())


@pytest.fixture
def embedding() -> CountingEmbedding:
    return CountingEmbedding()


@pytest.fixture
def retriever(index: PassageIndex, embedding: CountingEmbedding) -> SemanticRetriever:
    return by_meaning(index, embedding)


def cosine(left: list[float], right: list[float]) -> float:
    return float(np.dot(left, right) / np.linalg.norm(left) / np.linalg.norm(right))


def test_scores_are_cosines_best_first(retriever: SemanticRetriever, embedding: CountingEmbedding) -> None:
    query = embedding.vector(QUERY)
    wanted = {key: cosine(query, embedding.vector(text)) for key, text in PASSAGES.items()}
    found = ranking(retriever, QUERY, 5)
    assert dict(found) == pytest.approx(wanted, abs=1e-6)
    assert [node_id for node_id, _ in found] == sorted(wanted, key=lambda key: -wanted[key])


def test_top_k_may_exceed_the_corpus(retriever: SemanticRetriever) -> None:
    for k, number in ((2, 2), (99, len(PASSAGES))):
        assert len(SemanticRetriever(retriever._index, similarity_top_k=k).retrieve(QUERY)) == number
    with pytest.raises(InputError, match="top_k is 0: request at least one result"):
        SemanticRetriever(retriever._index, similarity_top_k=0).retrieve(QUERY)


def test_filters_come_before_ranking(retriever: SemanticRetriever) -> None:
    for kind, wanted in {"report": {"revenue", "tariff"}, "novel": set()}.items():
        filters = MetadataFilters(filters=[MetadataFilter(key="kind", value=kind)])
        found = SemanticRetriever(retriever._index, similarity_top_k=2, filters=filters).retrieve(QUERY)
        assert {hit.node.node_id for hit in found} == wanted


@pytest.mark.parametrize("name", ["doc_ids", "node_ids", "alpha", "sparse_top_k", "vector_store_query_mode"])
def test_unsupported_restrictions_are_refused(retriever: SemanticRetriever, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        SemanticRetriever(retriever._index, **{name: ["dry"]})  # type: ignore[arg-type]


async def test_a_given_embedding_is_not_computed_again(
    retriever: SemanticRetriever, embedding: CountingEmbedding
) -> None:
    vector = embedding.vector(PASSAGES["tariff"])
    for given in (vector, np.asarray(vector)):
        bundle = QueryBundle("something else", embedding=given)
        assert retriever.retrieve(bundle)[0].node.node_id == "tariff"
        assert (await retriever.aretrieve(bundle))[0].node.node_id == "tariff"
    assert embedding.queries == []


def test_another_kind_of_index_is_searched_by_its_store(embedding: CountingEmbedding) -> None:
    semantic = SemanticRetriever(VectorStoreIndex(passages(), embed_model=embedding))
    assert semantic.chunk_index is None
    assert semantic.retrieve(QUERY)[0].node.node_id == "dry"


# ---- the user's query ------------------------------------------------------------------------------------------------


@dataclass
class WithHistory(QueryBundle):
    """A query with a field of its own."""

    history: list[str] = field(default_factory=list)


class Handmade(QueryBundle):
    """A query whose class is not a dataclass itself."""

    def __init__(self, question: str, tenant: str) -> None:
        super().__init__(question)
        self.tenant = tenant


BUNDLES = [QueryBundle(QUERY), WithHistory(QUERY, history=["before"]), Handmade(QUERY, "acme")]


async def test_the_query_is_embedded_once(retriever: SemanticRetriever, embedding: CountingEmbedding) -> None:
    await retriever.aretrieve(QUERY)
    assert embedding.queries == [QUERY]
    retriever.retrieve(QUERY)
    retriever.retrieve(QueryBundle(QUERY))
    assert embedding.queries == [QUERY]
    retriever.retrieve(QueryBundle(QUERY, custom_embedding_strs=["another"]))
    assert embedding.queries == [QUERY, "another"]


def test_several_questions_are_embedded_once_each_in_their_order(embedding: CountingEmbedding) -> None:
    embedder = QueryEmbedder(embedding)
    vectors = embedder.embed_many([["one"], ["two"], ["one"], ["one", "two"]])
    assert sorted(embedding.queries) == ["one", "one", "two", "two"], "two questions, and the texts of a third"
    assert vectors[:3] == [embedding.vector(text) for text in ("one", "two", "one")]
    assert vectors[3] == pytest.approx(np.mean(vectors[:2], axis=0).tolist())
    before = list(embedding.queries)
    assert embedder.embed_many([["two"], ["one"]]) == [vectors[1], vectors[0]]
    assert embedder.embed(["two"]) == vectors[1]
    assert embedding.queries == before
    assert embedder.embed_many([]) == []


# ---- without blocking the loop ---------------------------------------------------------------------------------------


class SlowEmbedding(CountingEmbedding):
    """An embedding model that must not be called in the thread of the event loop."""

    def _get_query_embedding(self, query: str) -> list[float]:
        assert threading.current_thread() is not threading.main_thread()
        return self.vector(query)


async def test_a_query_is_embedded_in_another_thread(index: PassageIndex) -> None:
    retriever = by_meaning(index, SlowEmbedding())
    assert (await retriever.aretrieve(QUERY))[0].node.node_id == "dry"


# ---- failures --------------------------------------------------------------------------------------------------------


class FailingEmbedding(CountingEmbedding):
    """An embedding model that fails a given number of times."""

    error: Any = None
    times: int = 99

    def _get_query_embedding(self, query: str) -> list[float]:
        self._queries.append(query)
        if self.times > 0:
            self.times -= 1
            raise self.error
        return self.vector(query)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ConnectionError("refused"), "cannot be reached: check the address and the network"),
        (ValueError("odd input"), "failed: ValueError: odd input"),
        (ModelError("No key: set it."), "^No key: set it.$"),
    ],
)
async def test_a_query_that_cannot_be_embedded_is_a_model_error(
    error: Exception, sentence: str, index: PassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_RETRY", RetryPolicy(attempts=3, base_delay=0))
    model = FailingEmbedding(error=error)
    retriever = by_meaning(index, model)
    with pytest.raises(ModelError, match=sentence) as raised:
        retriever.retrieve(QUERY)
    with pytest.raises(ModelError, match=sentence):
        await retriever.aretrieve(QUERY)
    retries = 3 if isinstance(error, ConnectionError) else 1
    assert model.queries == [QUERY] * 2 * retries
    if not isinstance(error, ModelError):
        assert raised.value.setting == "embed_model"
        assert repr(raised.value.__cause__) == repr(error)
        assert "'CountingEmbedding:counting'" in str(raised.value)


async def test_a_short_failure_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_RETRY", RetryPolicy(attempts=3, base_delay=0))
    for run in ("sync", "async"):
        model = FailingEmbedding(error=ConnectionError("refused"), times=2)
        retriever = by_meaning(PassageIndex(passages()), model)
        found = retriever.retrieve(QUERY) if run == "sync" else await retriever.aretrieve(QUERY)
        assert found[0].node.node_id == "dry"


# ---- embeddings that are none ----------------------------------------------------------------------------------------


NO_NUMBERS = r"The query's embedding (is not a list of numbers|has .* dimensions)"
REFUSED = [
    *(([wrong, *[1.0] * 63], r"\(64 dimensions.*\) contains NaN or infinity") for wrong in (math.nan, math.inf, 1e300)),
    *(([1.0] * length, rf"has {length} dimensions, the index 64: search with") for length in (0, 1, 63, 65)),
    *((wrong, NO_NUMBERS) for wrong in ("0.1", ["a"] * 64, [[1.0] * 64], 0.5, {"a": 1.0})),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_an_embedding_that_does_not_fit_is_refused(retriever: SemanticRetriever, wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        retriever.retrieve(QueryBundle(QUERY, embedding=wrong))
    assert message == NO_NUMBERS or "'CountingEmbedding:counting'" in str(raised.value)


def test_an_embedding_of_zeros_finds_nothing_and_says_so(retriever: SemanticRetriever) -> None:
    assert retriever.retrieve(QueryBundle(QUERY, embedding=[0.0] * 64)) == []
    assert retriever.chunk_index is not None
    (warning,) = semantic_list(retriever.chunk_index, [0.0] * 64, 3, model=retriever.embedder.name).warnings
    assert "embedding by 'CountingEmbedding:counting' is zero: the semantic index finds nothing for it" in warning


class Broken(CountingEmbedding):
    """An embedding model that returns a given value for a query."""

    answer: Any = None

    def _get_query_embedding(self, query: str) -> Any:
        return self.answer

    async def _aget_query_embedding(self, query: str) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [[math.nan] * 64, [], [math.inf, 1.0]], ids=repr)
async def test_a_model_that_does_not_answer_with_finite_numbers_is_named(
    retriever: SemanticRetriever, answer: Any
) -> None:
    broken = SemanticRetriever(retriever._index, embed_model=Broken(answer=answer))
    message = "^'CountingEmbedding:counting' returned an embedding of the query that"
    with pytest.raises(ModelError, match=message):
        broken.retrieve(QUERY)
    with pytest.raises(ModelError, match=message):
        await broken.aretrieve(QUERY)
    assert len(broken.embedder._cache) == 0
