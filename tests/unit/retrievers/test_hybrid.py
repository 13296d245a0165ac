"""Fusion of the legs by id and weight, nodes that are fetched once, evidence, and other retrievers as legs."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.base import BaseEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.retrievers import HybridRetriever
from llama_index_contextual.search import search
from llama_index_contextual.search.response import IndexScore
from llama_index_contextual.search.results import RetrievedChunk
from tests.integration.retrievers.corpus import FixedRetriever, PassageIndex, both_legs, hits, passages, ranking
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.unit.retrievers.test_semantic import BUNDLES

QUERY = "error TS-999 of the pump"


def only(kind: str) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key="kind", value=kind)])


def ids(found: list[NodeWithScore]) -> list[str]:
    return [hit.node.node_id for hit in found]


def ranked(retriever: Any, query: str = QUERY, filters: MetadataFilters | None = None) -> dict[str, float]:
    return dict(ranking(retriever, query, 100, filters))


# ---- legs that rank ids ----------------------------------------------------------------------------------------------


def test_the_result_is_the_fusion_of_the_ranks() -> None:
    semantic, lexical = both_legs()
    hybrid = HybridRetriever([semantic, lexical], retriever_weights=[3, 1], fusion="rrf", rrf_k=7, spotlight=False)
    by_meaning, by_words = ({name: at for at, name in enumerate(ranked(leg), start=1)} for leg in (semantic, lexical))
    assert len(by_meaning) == 5
    assert list(by_words) == ["dry", "sensor", "valve"]
    wanted = {
        node_id: 3 / 4 / (7 + rank) + (1 / 4 / (7 + by_words[node_id]) if node_id in by_words else 0)
        for node_id, rank in by_meaning.items()
    }
    found = ranked(hybrid)
    assert found == pytest.approx(wanted)
    assert list(found) == sorted(wanted, key=lambda node_id: -wanted[node_id])
    assert [(hit.node.node_id, hit.score) for hit in hybrid.retrieve(QUERY)] == list(found.items())


def test_scores_are_fused_in_units_of_their_standard_deviation_over_all_chunks() -> None:
    semantic, lexical = both_legs()
    cosines, bm25 = ranked(semantic), ranked(lexical)
    assert 0 < len(bm25) < len(cosines) == 5  # passages without a term of the query have the score 0
    mean, spread = statistics.fmean(cosines.values()), statistics.pstdev(cosines.values())
    unit = statistics.pstdev([bm25.get(key, 0.0) for key in cosines])
    wanted = {key: 0.75 * (cosines[key] - mean) / spread + 0.25 * bm25.get(key, 0.0) / unit for key in cosines}
    found = ranked(HybridRetriever([semantic, lexical], retriever_weights=[3, 1], fusion="score"))
    assert found == pytest.approx(wanted, rel=1e-4)
    assert list(found) == sorted(wanted, key=lambda key: -wanted[key])


def test_filters_do_not_change_a_score() -> None:
    everything = ranked(HybridRetriever(list(both_legs()), fusion="score"))
    some = ranked(HybridRetriever(list(both_legs()), fusion="score"), filters=only("manual"))
    assert some == {key: everything[key] for key in ("dry", "sensor", "valve")}


def test_hits_of_other_retrievers_are_scaled_to_their_own_range() -> None:
    semantic, lexical = both_legs()
    semantic.spotlight = False
    assert list(ranked(lexical)) == ["dry", "sensor", "valve"]
    # The inner scores are 1/11, 1/12 and 1/13: min-max makes them 1, (1/12 - 1/13) / (1/11 - 1/13) and 0.
    inner = {"dry": 1.0, "sensor": 11 / 24, "valve": 0.0}
    cosines = ranked(semantic)
    low, high = min(cosines.values()), max(cosines.values())
    wanted = {key: 0.5 * inner.get(key, 0.0) + 0.5 * (cosines[key] - low) / (high - low) for key in cosines}
    found = HybridRetriever([HybridRetriever([lexical], fusion="rrf"), semantic], fusion="score").retrieve(QUERY)
    assert {hit.node_id: hit.score for hit in found} == pytest.approx(wanted)
    assert ids(found) == sorted(wanted, key=lambda node_id: -wanted[node_id])


@pytest.mark.parametrize("fusion", ["score", "rrf"])
@pytest.mark.parametrize("weights", [[1, 0], [0, 2]])
def test_with_a_single_weight_the_order_is_that_of_its_leg(fusion: Any, weights: list[float]) -> None:
    index = PassageIndex(passages())
    index.documents = DocumentIndex.build([node] for node in passages())
    legs = both_legs(index=index)
    hybrid = HybridRetriever([*legs], retriever_weights=weights, fusion=fusion)
    leg = legs[weights.index(0) ^ 1]
    assert ids(hybrid.retrieve(QUERY)) == ids(leg.retrieve(QUERY))


def test_nodes_are_fetched_once() -> None:
    index = PassageIndex(passages())
    hybrid = HybridRetriever(list(both_legs(index=index)), similarity_top_k=2, spotlight=False)
    found = hybrid.retrieve(QUERY)
    ((*fetched,),) = index.fetches
    assert fetched[:2] == ids(found)


def test_every_result_carries_score_and_rank_in_each_leg() -> None:
    semantic, lexical = both_legs()
    found = HybridRetriever([semantic, lexical]).retrieve(QUERY)
    for name, leg in (("semantic", semantic), ("lexical", lexical)):
        wanted = {key: (rank, score) for rank, (key, score) in enumerate(ranked(leg).items(), start=1)}
        carried = {hit.node.node_id: getattr(hit, name) for hit in found}
        assert {key: (score.rank, score.score) for key, score in carried.items() if score is not None} == wanted
    assert found[0].lexical.matched_terms == ("error", "ts-999", "ts999", "ts", "999", "pump")  # type: ignore[attr-defined]


def test_each_leg_is_asked_once_for_the_number_of_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    semantic, lexical = both_legs()
    asked: list[int] = []
    for name in ("rank_vectors", "rank_terms"):
        real = getattr(lexical.chunk_index, name)
        monkeypatch.setattr(lexical.chunk_index, name, lambda q, k, f=None, real=real: asked.append(k) or real(q, k, f))
    assert len(HybridRetriever([semantic, lexical], similarity_top_k=1).retrieve(QUERY)) == 1
    assert asked == [200, 200]
    # With more results than candidates, the legs must return enough hits for the results.
    HybridRetriever([semantic, lexical], similarity_top_k=400).retrieve(QUERY)
    assert asked == [200, 200, 400, 400]


def test_filters_reach_every_leg_before_ranking() -> None:
    query = "pump error revenue duty"
    found = HybridRetriever(list(both_legs()), filters=only("report"), similarity_top_k=5).retrieve(query)
    assert set(ids(found)) == {"revenue", "tariff"}
    assert all(hit.semantic and hit.semantic.rank <= 2 for hit in found)  # type: ignore[attr-defined]
    hybrid = HybridRetriever(list(both_legs()))
    assert set(ranked(hybrid, query, only("manual"))) == {"dry", "sensor", "valve"}
    assert ranked(hybrid, query, only("novel")) == {}


@pytest.mark.parametrize("k", [0, -3])
def test_at_least_one_result_must_be_requested(k: int) -> None:
    with pytest.raises(InputError, match=f"top_k is {k}: request at least one result"):
        HybridRetriever(list(both_legs()), similarity_top_k=k).retrieve(QUERY)


def test_a_hybrid_retriever_can_be_a_leg_and_keeps_filters_and_evidence() -> None:
    semantic, lexical = both_legs()
    for filters in (None, only("report")):
        outer = HybridRetriever([HybridRetriever([semantic, lexical], filters=filters), semantic], similarity_top_k=5)
        found = outer.retrieve("pump error revenue duty")
        assert found
        assert any(hit.lexical for hit in found)  # type: ignore[attr-defined]
        by_both = {hit.node_id for hit in found if hit.lexical}  # type: ignore[attr-defined]
        assert filters is None or by_both == {"revenue", "tariff"}
        assert all(hit.semantic for hit in found)  # type: ignore[attr-defined]


# ---- foreign retrievers ----------------------------------------------------------------------------------------------


class Unscored(BaseRetriever):
    """A retriever that returns nodes without scores, best first."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(id_=name, text=name)) for name in ("x", "y")]


async def test_foreign_retrievers_are_fused_by_node_id_and_weight() -> None:
    legs: list[BaseRetriever] = [FixedRetriever(hits(a=9, b=8)), FixedRetriever(hits(b=7, c=6))]
    hybrid = HybridRetriever(legs, retriever_weights=[0.25, 0.75], fusion="rrf", rrf_k=1)
    wanted = {"b": 0.25 / 3 + 0.75 / 2, "c": 0.75 / 3, "a": 0.25 / 2}
    for found in (hybrid.retrieve("q"), await hybrid.aretrieve("q")):
        assert ids(found) == list(wanted)
        assert {hit.node.node_id: hit.score for hit in found} == pytest.approx(wanted)
    legs = [FixedRetriever(hits(a=10, b=5, c=0)), FixedRetriever(hits(c=2, b=1))]
    by_score = HybridRetriever(legs, fusion="score", similarity_top_k=2).retrieve("q")
    assert [(hit.node.node_id, hit.score) for hit in by_score] == [("a", 0.5), ("c", 0.5)]


def test_foreign_hits_are_ranked_by_score_and_without_scores_by_order() -> None:
    unsorted = FixedRetriever(hits(low=1, high=3, middle=2))
    assert ids(HybridRetriever([unsorted]).retrieve("q")) == ["high", "middle", "low"]
    assert ids(HybridRetriever([Unscored()]).retrieve("q")) == ["x", "y"]


def test_the_nodes_of_foreign_retrievers_are_not_changed() -> None:
    legs = [FixedRetriever(hits(a=9, b=8)), FixedRetriever(hits(b=7))]
    before = [hit.model_copy(deep=True) for leg in legs for hit in leg.hits]
    found = HybridRetriever(list(legs)).retrieve("q")
    given = [hit for leg in legs for hit in leg.hits]
    assert given == before
    assert not any(hit is one for hit in found for one in given)


@pytest.mark.parametrize("use_async", [True, False])
def test_a_leg_of_this_package_keeps_its_evidence_next_to_a_foreign_one(use_async: bool) -> None:
    _, lexical = both_legs()
    foreign = FixedRetriever(hits(elsewhere=1.0))
    found = HybridRetriever([lexical, foreign], use_async=use_async).retrieve(QUERY)
    by_id = {hit.node.node_id: hit for hit in found}
    assert by_id["elsewhere"].lexical is None  # type: ignore[attr-defined]
    assert "ts-999" in by_id["dry"].lexical.matched_terms  # type: ignore[attr-defined]


def test_evidence_that_a_foreign_leg_carries_is_kept() -> None:
    evidence = {leg: IndexScore(score=1.0, rank=1) for leg in ("semantic", "lexical", "document")}
    leg = FixedRetriever([RetrievedChunk(node=TextNode(id_="a", text="a"), score=1.0, **evidence)])
    (hit,) = HybridRetriever([leg]).retrieve("q")
    assert {name: getattr(hit, name) for name in evidence} == evidence


def test_legs_over_different_stores_are_fused_as_foreign_ones() -> None:
    (semantic, _), (_, lexical) = both_legs(), both_legs()
    found = HybridRetriever([semantic, lexical], use_async=False).retrieve(QUERY)
    assert ids(found)[0] == "dry"
    assert found[0].semantic.rank == 1  # type: ignore[attr-defined]
    assert found[0].lexical.rank == 1  # type: ignore[attr-defined]


def test_filters_that_would_not_reach_every_leg_are_refused() -> None:
    semantic, lexical = both_legs()
    for legs, queries in (([FixedRetriever([]), lexical], 1), ([semantic, lexical], 2)):
        with pytest.raises(ConfigurationError, match="pass filters to each retriever instead") as raised:
            HybridRetriever(legs, filters=only("report"), num_queries=queries, llm=MockLLM())
        assert raised.value.setting == "filters"


# ---- several queries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["sync", "sync in threads", "async"])
async def test_generated_queries_are_asked_of_every_leg(run: str) -> None:
    llm = ScriptedLLM()
    llm.enqueue("pump dry\n\nvalve closed\nnever asked")
    legs = [FixedRetriever(hits(a=2, b=1)), FixedRetriever(hits(b=1))]
    hybrid = HybridRetriever(list(legs), fusion="rrf", llm=llm, num_queries=3, use_async=run == "sync in threads")
    ask = hybrid.aretrieve("what is wrong?") if run == "async" else asyncio.to_thread(hybrid.retrieve, "what is wrong?")
    found = {hit.node.node_id: hit.score for hit in await ask}
    for leg in legs:  # in threads, in any order
        assert sorted(query.query_str for query in leg.queries) == ["pump dry", "valve closed", "what is wrong?"]
    assert "what is wrong?" in llm.history[0]
    assert list(found) == ["b", "a"]
    assert found == pytest.approx({"b": 3 * (0.5 / 12 + 0.5 / 11), "a": 3 * 0.5 / 11})


def test_generated_queries_keep_the_evidence_of_the_given_one() -> None:
    llm = ScriptedLLM()
    llm.enqueue("close the valve")
    hybrid = HybridRetriever(list(both_legs()), llm=llm, num_queries=2, use_async=False)
    found = {hit.node.node_id: hit for hit in hybrid.retrieve("the pump runs dry")}
    assert found["dry"].semantic.rank == 1  # type: ignore[attr-defined]
    assert "pump" in found["valve"].lexical.matched_terms  # type: ignore[attr-defined]


# ---- async -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", ["rrf", "score"])
@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda bundle: type(bundle).__name__)
async def test_async_gives_what_sync_gives_and_embeds_once(fusion: Any, bundle: Any) -> None:
    embedding, before = CountingEmbedding(), dict(vars(bundle))
    hybrid = HybridRetriever(list(both_legs(embedding)), fusion=fusion)
    assert await hybrid.aretrieve(bundle) == hybrid.retrieve(bundle)
    assert vars(bundle) == before
    assert len(embedding.queries) == 1


# ---- in LlamaIndex ---------------------------------------------------------------------------------------------------


class Events(BaseEventHandler):
    """Keeps the events of retrieval."""

    seen: list[BaseEvent] = []  # noqa: RUF012 - a pydantic field: each instance has its own

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Keep the event."""
        if isinstance(event, (RetrievalStartEvent, RetrievalEndEvent)):
            self.seen.append(event)


@pytest.fixture
def events() -> Iterator[list[BaseEvent]]:
    root, handler = get_dispatcher("root"), Events()
    root.add_event_handler(handler)
    yield handler.seen
    root.event_handlers.remove(handler)


def retriever_of(kind: str) -> Any:
    semantic, lexical = both_legs()
    return {"semantic": semantic, "lexical": lexical, "hybrid": HybridRetriever([semantic, lexical])}[kind]


@pytest.mark.parametrize("kind", ["semantic", "lexical", "hybrid"])
async def test_retrieval_is_announced_and_closed(kind: str, events: list[BaseEvent]) -> None:
    retriever = retriever_of(kind)
    found, again = retriever.retrieve(QUERY), await retriever.aretrieve(QUERY)
    assert found == again
    assert [type(event) for event in events] == [RetrievalStartEvent, RetrievalEndEvent] * 2
    assert [event.str_or_query_bundle for event in events] == [QUERY] * 4  # type: ignore[attr-defined]
    assert [event.nodes for event in events[1::2]] == [found, again]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["semantic", "lexical", "hybrid"])
async def test_ranking_does_not_block_the_event_loop(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever, loop = retriever_of(kind), asyncio.get_running_loop()
    real = search.rank

    def rank(*arguments: Any, **options: Any) -> Any:  # returns only if the loop can run something while it waits
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(300)
        return real(*arguments, **options)

    monkeypatch.setattr(search, "rank", rank)
    assert ids(await retriever.aretrieve(QUERY))[0] == "dry"
