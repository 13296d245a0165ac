"""Semantic retrieval: ranking by cosine similarity, embedding of queries, and errors."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import xxhash
from llama_index.core import VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.schema import Document, QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError, ModelError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.retrievers import SemanticRetriever, semantic
from llama_index_contextual.retrievers import semantic as query_embedding
from llama_index_contextual.retrievers.response import LegScore, RetrievedChunk
from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore
from tests.integration.retrievers.corpus import PASSAGES, CountingStore, both_legs, passages, vector_index
from tests.support.models import CountingEmbedding

QUERY = "the pump runs dry"


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def embedding() -> CountingEmbedding:
    return CountingEmbedding()


@pytest.fixture
def retriever(store: CountingStore, embedding: CountingEmbedding) -> SemanticRetriever:
    return SemanticRetriever(vector_index(passages(), embedding, store))


def cosine(left: list[float], right: list[float]) -> float:
    return float(np.dot(left, right) / np.linalg.norm(left) / np.linalg.norm(right))


def test_scores_are_cosines_best_first(retriever: SemanticRetriever, embedding: CountingEmbedding) -> None:
    query = embedding.vector(QUERY)
    wanted = {key: cosine(query, embedding.vector(text)) for key, text in PASSAGES.items()}
    found = retriever.rank(QUERY, 5).first(5)
    assert dict(found) == pytest.approx(wanted, abs=1e-6)
    assert [node_id for node_id, _ in found] == sorted(wanted, key=lambda key: -wanted[key])


def test_the_scale_is_that_of_the_similarities_to_all_chunks(retriever: SemanticRetriever) -> None:
    similarities = [score for _, score in retriever.rank(QUERY, 5).first(5)]
    scale = retriever.rank(QUERY, 1).scale
    assert scale is not None
    assert scale() == pytest.approx((np.mean(similarities), np.std(similarities)), abs=1e-6)


def test_the_scale_comes_from_a_sample_if_not_all_vectors_are_compared(
    monkeypatch: pytest.MonkeyPatch, retriever: SemanticRetriever
) -> None:
    similarities = dict(retriever.rank(QUERY, 5).first(5))
    monkeypatch.setattr(semantic, "_SAMPLE", 3)
    retriever._store.compact("rabitq")
    scale = retriever.rank(QUERY, 1).scale
    assert scale is not None
    sample = [
        similarities[key] for key in sorted(similarities, key=lambda key: xxhash.xxh3_64_intdigest(key.encode()))[:3]
    ]
    assert scale() == pytest.approx((np.mean(sample), np.std(sample)), abs=1e-3)


def test_the_scale_comes_from_the_hits_if_the_index_returns_no_vectors() -> None:
    rows = np.random.default_rng(7).normal(size=(60, 4)).astype(np.float32)
    inverted = faiss.index_factory(4, "IVF2,Flat", faiss.METRIC_INNER_PRODUCT)
    inverted.train(rows)
    store = UnitFaissVectorStore(inverted)
    store.add([TextNode(id_=str(at), text=".", embedding=row.tolist()) for at, row in enumerate(rows)])
    index = VectorStoreIndex.from_vector_store(store, embed_model=CountingEmbedding())
    ranking = SemanticRetriever(index).rank(QueryBundle("", embedding=rows[0].tolist()), 10)
    assert ranking.scale is not None
    assert ranking.scale() == pytest.approx((ranking.hits.scores.mean(), ranking.hits.scores.std()))


def test_ranking_fetches_no_node_and_a_search_fetches_once(retriever: SemanticRetriever, store: CountingStore) -> None:
    ranking = retriever.rank(QUERY, 3)
    assert store.fetches == []
    hits = retriever.fetch(ranking, 3)
    assert store.fetches == [[node_id for node_id, _ in ranking.first(3)]]
    assert [(hit.node_id, hit.score) for hit in hits] == ranking.first(3)


def test_every_result_carries_its_score_and_rank(retriever: SemanticRetriever) -> None:
    for rank, hit in enumerate(retriever.retrieve(QUERY), start=1):
        assert isinstance(hit, RetrievedChunk)
        assert hit.semantic == LegScore(score=hit.score, rank=rank)
        assert hit.lexical is None


def test_top_k_may_exceed_the_corpus(store: CountingStore, embedding: CountingEmbedding) -> None:
    index = vector_index(passages(), embedding, store)
    assert len(SemanticRetriever(index, similarity_top_k=2).retrieve(QUERY)) == 2
    assert len(SemanticRetriever(index, similarity_top_k=99).retrieve(QUERY)) == len(PASSAGES)
    with pytest.raises(InputError, match="top_k is 0: request at least one result"):
        SemanticRetriever(index, similarity_top_k=0).retrieve(QUERY)


def test_filters_come_before_ranking(store: CountingStore, embedding: CountingEmbedding) -> None:
    index = vector_index(passages(), embedding, store)
    filters = MetadataFilters(filters=[MetadataFilter(key="kind", value="report")])
    found = SemanticRetriever(index, similarity_top_k=2, filters=filters).retrieve(QUERY)
    assert {hit.node.node_id for hit in found} == {"revenue", "tariff"}
    nothing = MetadataFilters(filters=[MetadataFilter(key="kind", value="novel")])
    assert SemanticRetriever(index, filters=nothing).retrieve(QUERY) == []


def test_unsupported_restrictions_are_refused(store: CountingStore, embedding: CountingEmbedding) -> None:
    index = vector_index(passages(), embedding, store)
    for name in ("doc_ids", "node_ids", "alpha", "sparse_top_k", "vector_store_query_mode"):
        with pytest.raises(TypeError, match=name):
            SemanticRetriever(index, **{name: ["dry"]})  # type: ignore[arg-type]


async def test_a_given_embedding_is_not_computed_again(
    retriever: SemanticRetriever, embedding: CountingEmbedding
) -> None:
    bundle = QueryBundle("something else", embedding=embedding.vector(PASSAGES["tariff"]))
    assert retriever.retrieve(bundle)[0].node.node_id == "tariff"
    assert (await retriever.aretrieve(bundle))[0].node.node_id == "tariff"
    assert embedding.queries == []


def test_a_query_with_a_zero_embedding_finds_nothing(retriever: SemanticRetriever) -> None:
    assert retriever.retrieve("… !?") == []


def test_another_kind_of_vector_store_is_refused(embedding: CountingEmbedding) -> None:
    index = VectorStoreIndex(passages(), embed_model=embedding)
    with pytest.raises(InputError, match=r"needs an index over UnitFaissVectorStore; for others use index\.as_retrie"):
        SemanticRetriever(index)


def test_a_query_of_another_length_is_refused(store: CountingStore, embedding: CountingEmbedding) -> None:
    index = vector_index(passages(), embedding, store)
    other = SemanticRetriever(index, embed_model=CountingEmbedding(dimensions=7))
    with pytest.raises(InputError, match="has 7 dimensions, the index 64: search with the embedding model that built"):
        other.retrieve(QUERY)


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


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda bundle: type(bundle).__name__)
async def test_queries_of_any_class_survive_unchanged(retriever: SemanticRetriever, bundle: QueryBundle) -> None:
    before = dict(vars(bundle))
    prepared = await retriever.aprepare(bundle)
    assert type(prepared) is type(bundle)
    assert vars(prepared) == {**before, "embedding": prepared.embedding}
    assert prepared.embedding is not None
    assert await retriever.aretrieve(bundle) == retriever.retrieve(bundle)
    assert vars(bundle) == before
    assert bundle.embedding is None


def test_stock_writes_the_embedding_into_the_users_query(store: CountingStore, embedding: CountingEmbedding) -> None:
    bundle = QueryBundle(QUERY)
    VectorIndexRetriever(vector_index(passages(), embedding, store)).retrieve(bundle)
    assert bundle.embedding is not None


async def test_the_query_is_embedded_once(retriever: SemanticRetriever, embedding: CountingEmbedding) -> None:
    await retriever.aretrieve(QUERY)
    assert embedding.queries == [QUERY]
    retriever.retrieve(QUERY)
    retriever.retrieve(QueryBundle(QUERY))
    assert embedding.queries == [QUERY]
    retriever.retrieve(QueryBundle(QUERY, custom_embedding_strs=["another"]))
    assert embedding.queries == [QUERY, "another"]


def test_several_queries_are_embedded_once_each_and_prepared_in_their_order(
    retriever: SemanticRetriever, embedding: CountingEmbedding
) -> None:
    given = QueryBundle("given", embedding=[1.0] * 8)
    prepared = retriever.prepare_many([QueryBundle("one"), given, QueryBundle("two"), QueryBundle("one")])
    assert sorted(embedding.queries) == ["one", "two"]
    assert [bundle.query_str for bundle in prepared] == ["one", "given", "two", "one"]
    assert prepared[0].embedding == prepared[3].embedding != prepared[2].embedding
    assert prepared[1] is given
    before = list(embedding.queries)
    retriever.rank("two", 1).first(1)
    assert embedding.queries == before


# ---- without blocking the loop ---------------------------------------------------------------------------------------


async def test_ranking_does_not_block_the_event_loop(
    retriever: SemanticRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, real = asyncio.get_running_loop(), retriever.rank

    def rank(*arguments: Any) -> Any:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(300)
        return real(*arguments)

    monkeypatch.setattr(retriever, "rank", rank)
    assert (await retriever.aretrieve(QUERY))[0].node.node_id == "dry"


class AwaitedEmbedding(CountingEmbedding):
    """An embedding model that returns only after another task has run in the loop."""

    async def _aget_query_embedding(self, query: str) -> list[float]:
        await asyncio.sleep(0)
        return self.vector(query)

    def _get_query_embedding(self, query: str) -> list[float]:
        raise AssertionError("the blocking way was taken")


async def test_the_embedding_of_the_query_is_awaited(store: CountingStore) -> None:
    retriever = SemanticRetriever(vector_index(passages(), AwaitedEmbedding(), store))
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
    error: Exception, sentence: str, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_embedding, "_RETRY", RetryPolicy(attempts=3, base_delay=0))
    model = FailingEmbedding(error=error)
    retriever = SemanticRetriever(vector_index(passages(), model, store))
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


async def test_a_short_failure_is_retried(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_embedding, "_RETRY", RetryPolicy(attempts=3, base_delay=0))
    for run in ("sync", "async"):
        model = FailingEmbedding(error=ConnectionError("refused"), times=2)
        retriever = SemanticRetriever(vector_index(passages(), model, CountingStore()))
        found = retriever.retrieve(QUERY) if run == "sync" else await retriever.aretrieve(QUERY)
        assert found[0].node.node_id == "dry"


def test_similarities_stay_within_one(retriever: SemanticRetriever) -> None:
    for text in PASSAGES.values():
        (first, *_) = retriever.rank(text, 1).first(1)
        assert math.isclose(first[1], 1, abs_tol=1e-5)


def test_both_legs_can_share_one_store() -> None:
    semantic_leg, lexical_leg = both_legs()
    assert semantic_leg.docstore is lexical_leg.docstore


# ---- embeddings that are none ----------------------------------------------------------------------------------------


def given(embedding: Any) -> QueryBundle:
    return QueryBundle(QUERY, embedding=embedding)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e300])
def test_an_embedding_that_is_not_finite_is_refused(retriever: SemanticRetriever, wrong: float) -> None:
    message = (
        r"embedding \(64 dimensions, as many as the index has\) contains NaN or infinity.*'CountingEmbedding:counting'"
    )
    query = given([wrong, *[1.0] * 63])
    for ask in (lambda: retriever.rank(query, 3), lambda: retriever.retrieve(query)):
        with pytest.raises(InputError, match=message):
            ask()


@pytest.mark.parametrize("length", [0, 1, 63, 65])
def test_an_embedding_of_another_length_is_refused_with_both_lengths_and_the_model(
    retriever: SemanticRetriever, length: int
) -> None:
    with pytest.raises(
        InputError, match=rf"has {length} dimensions, the index 64: search with .*'CountingEmbedding:counting' is set"
    ):
        retriever.rank(given([1.0] * length), 3)


@pytest.mark.parametrize("wrong", ["0.1", ["a"] * 64, [[1.0] * 64], 0.5, {"a": 1.0}], ids=repr)
def test_an_embedding_that_is_not_numbers_is_refused(retriever: SemanticRetriever, wrong: Any) -> None:
    with pytest.raises(InputError, match=r"The query's embedding (is not a list of numbers|has .* dimensions)"):
        retriever.rank(given(wrong), 3)


def test_an_array_is_an_embedding(retriever: SemanticRetriever, embedding: CountingEmbedding) -> None:
    vector = embedding.vector(QUERY)
    assert retriever.rank(given(np.asarray(vector)), 3).first(3) == retriever.rank(given(vector), 3).first(3)


def test_an_embedding_of_zeros_finds_nothing_and_says_so(retriever: SemanticRetriever) -> None:
    ranking = retriever.rank(given([0.0] * 64), 3)
    assert len(ranking.hits.rows) == 0
    (warning,) = ranking.warnings
    assert "embedding by 'CountingEmbedding:counting' is zero: the semantic index finds nothing for it" in warning


def test_a_hybrid_search_with_an_embedding_of_zeros_answers_by_words_and_says_so(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("p", ProjectConfig.local(context="none"), embed_model=CountingEmbedding())
    project.ingest([Document(id_="a", text="The pump runs dry."), Document(id_="b", text="Close the valve.")])
    response = project.retrieve(QueryBundle("pump", embedding=[0.0] * 64))
    assert [chunk.source.doc_id for chunk in response] == ["a"]
    assert "is zero" in response.warnings[0]
    assert list(project.retrieve(QueryBundle("pump", embedding=[0.0] * 64), mode="semantic")) == []


class Broken(CountingEmbedding):
    """An embedding model that returns a given value for a query."""

    answer: Any = None

    def _get_query_embedding(self, query: str) -> Any:
        return self.answer

    async def _aget_query_embedding(self, query: str) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [[math.nan] * 64, [], [math.inf, 1.0]], ids=repr)
async def test_a_model_that_does_not_answer_with_finite_numbers_is_named(store: CountingStore, answer: Any) -> None:
    broken = SemanticRetriever(vector_index(passages(), CountingEmbedding(), store), embed_model=Broken(answer=answer))
    for ask in (broken.rank, lambda query, k: asyncio.run(broken.aprepare(QueryBundle(query)))):
        with pytest.raises(ModelError, match="The embedding model 'CountingEmbedding:counting' did not return"):
            await asyncio.to_thread(ask, QUERY, 3)
    assert len(broken._embedder._cache) == 0
