"""The arithmetic of fusion, spelled out, and properties of any rankings."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.retrievers import HybridRetriever
from llama_index_contextual.search.rank import normalise_weights, reciprocal_rank_fusion, score_fusion
from tests.integration.retrievers.corpus import FixedRetriever, hits

Fuse = Callable[..., list[tuple[str, float]]]
BOTH = pytest.mark.parametrize("fuse", [reciprocal_rank_fusion, score_fusion])

ids = st.sampled_from("abcdefgh")
scores = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@st.composite
def ranking(draw: st.DrawFn) -> list[tuple[str, float]]:
    names = draw(st.lists(ids, unique=True, max_size=8))
    values = sorted(draw(st.lists(scores, min_size=len(names), max_size=len(names))), reverse=True)
    return list(zip(names, values, strict=True))


@st.composite
def weighted(draw: st.DrawFn) -> tuple[list[list[tuple[str, float]]], list[float]]:
    rankings = draw(st.lists(ranking(), min_size=1, max_size=4))
    weights = draw(st.lists(st.floats(0.01, 1), min_size=len(rankings), max_size=len(rankings)))
    return rankings, weights


# ---- reciprocal ranks ------------------------------------------------------------------------------------------------


def test_each_rank_counts_its_weight_over_k_plus_rank() -> None:
    fused = dict(reciprocal_rank_fusion([[("a", 9), ("b", 8)], [("b", 7), ("c", 6)]], [0.3, 0.7], k=10))
    wanted = {"a": 0.3 / (10 + 1), "b": 0.3 / (10 + 2) + 0.7 / (10 + 1), "c": 0.7 / (10 + 2)}
    assert fused == pytest.approx(wanted)


def test_sixty_is_the_constant_of_the_paper_and_the_default() -> None:
    assert reciprocal_rank_fusion([[("a", 1.0)]], [1.0]) == [("a", 1 / 61)]


def test_equal_reciprocal_scores_are_ordered_by_the_best_rank_and_then_by_id() -> None:
    fused = reciprocal_rank_fusion([[("x", 1), ("b", 1)], [("x", 1), ("a", 1)]], [0.5, 0.5])
    assert [name for name, _ in fused] == ["x", "a", "b"]
    # 1/2 + 1/6 = 1/3 + 1/3: the id with the best single rank comes first, although it sorts last.
    first, second = [("z", 0), ("y", 0)], [(f"_{n}", 0) for n in range(4)]
    uneven = reciprocal_rank_fusion(
        [[first[0]], [second[0], first[1]], [*second, ("z", 0)], [second[0], ("y", 0)]], [1] * 4, k=1
    )
    scores_of = dict(uneven)
    assert scores_of["z"] == pytest.approx(scores_of["y"])
    assert [name for name, _ in uneven if name in "zy"] == ["z", "y"]


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_scores_are_scaled_to_their_own_range_before_they_are_weighted() -> None:
    fused = score_fusion([[("a", 30), ("b", 20), ("c", -10)], [("c", 0.9), ("a", 0.1)]], [0.25, 0.75])
    assert fused == [("c", 0.25 * 0 + 0.75 * 1), ("a", 0.25 * 1 + 0.75 * 0), ("b", 0.25 * 0.75)]


def test_a_ranking_of_equal_scores_counts_one_for_each_hit() -> None:
    assert score_fusion([[("a", 0.0), ("b", 0.0)], [("b", 5)]], [0.5, 0.5]) == [("b", 1.0), ("a", 0.5)]


# ---- both ------------------------------------------------------------------------------------------------------------


@BOTH
def test_empty_rankings_add_nothing(fuse: Fuse) -> None:
    assert fuse([[], []], [0.5, 0.5]) == []
    assert fuse([], []) == []
    assert fuse([[], [("a", 2), ("b", 1)]], [0.5, 0.5]) == fuse([[("a", 2), ("b", 1)]], [0.5])


@BOTH
def test_a_ranking_without_weight_adds_hits_but_no_score(fuse: Fuse) -> None:
    fused = fuse([[("a", 2), ("b", 1)], [("c", 2), ("b", 1)]], [1.0, 0.0])
    assert next(name for name, _ in fused) == "a"
    assert dict(fused)["c"] == 0


@BOTH
@given(data=weighted())
def test_every_id_comes_once_and_scores_only_fall(fuse: Fuse, data) -> None:  # type: ignore[no-untyped-def]
    rankings, weights = data
    fused = fuse(rankings, weights)
    assert {name for name, _ in fused} == {name for ranking in rankings for name, _ in ranking}
    assert len({name for name, _ in fused}) == len(fused)
    values = [value for _, value in fused]
    assert values == sorted(values, reverse=True)
    assert all(0 <= value <= sum(weights) + 1e-9 for value in values)


@BOTH
@given(data=weighted(), seed=st.randoms())
def test_the_order_of_the_rankings_does_not_matter(fuse: Fuse, data, seed) -> None:  # type: ignore[no-untyped-def]
    rankings, weights = data
    pairs = list(zip(rankings, weights, strict=True))
    seed.shuffle(pairs)
    assert fuse([ranking for ranking, _ in pairs], [weight for _, weight in pairs]) == fuse(rankings, weights)


@BOTH
@given(data=weighted(), names=st.permutations("ABCDEFGH"))
def test_the_names_matter_only_between_equals(fuse: Fuse, data, names) -> None:  # type: ignore[no-untyped-def]
    rankings, weights = data
    renamed = [[(names["abcdefgh".index(name)], value) for name, value in ranking] for ranking in rankings]
    before = {names["abcdefgh".index(name)]: value for name, value in fuse(rankings, weights)}
    assert dict(fuse(renamed, weights)) == before


@given(data=ranking(), weight=st.floats(0.1, 1))
def test_a_single_ranking_keeps_its_order(data, weight) -> None:  # type: ignore[no-untyped-def]
    names = [name for name, _ in data]
    assert [name for name, _ in reciprocal_rank_fusion([data], [weight])] == names
    if len({value for _, value in data}) == len(data):
        assert [name for name, _ in score_fusion([data], [weight])][:1] == names[:1]


# ---- weights ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, allow_infinity=False, allow_nan=False), min_size=1, max_size=5).filter(any))
def test_usable_weights_always_add_up_to_one(weights: list[float]) -> None:
    assert math.fsum(normalise_weights(weights, len(weights))) == pytest.approx(1)
    assert normalise_weights([1, 3], 2) == [0.25, 0.75]


BAD_WEIGHTS = [
    ([0.5, math.nan], "must be finite and not negative"),
    ([math.inf, 1.0], "must be finite and not negative"),
    ([-1.0, 1.0], "must be finite and not negative"),
    ([0.0, 0.0], "the weights are all 0: set at least one of them above 0"),
    ([1.0], "there are 1 weights for 2 rankings: pass one weight per ranking"),
]


@pytest.mark.parametrize(("weights", "message"), BAD_WEIGHTS)
def test_bad_weights_are_refused_with_a_message(weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        normalise_weights(weights, 2)
    with pytest.raises(ConfigurationError, match=f"^HybridRetriever: .*{message}") as raised:
        HybridRetriever([FixedRetriever([]), FixedRetriever([])], retriever_weights=weights)
    assert raised.value.setting == "retriever_weights"


def test_a_hybrid_retriever_needs_something_to_fuse() -> None:
    with pytest.raises(ConfigurationError, match="there is nothing to fuse: pass at least one ranking"):
        HybridRetriever([])


def test_different_nodes_of_equal_text_are_not_merged() -> None:
    footers = [NodeWithScore(node=TextNode(id_=f"footer-{n}", text="Confidential."), score=1.0) for n in range(2)]
    legs = [FixedRetriever([*hits(best=2), footers[0]]), FixedRetriever([footers[1]])]
    found = [hit.node.node_id for hit in HybridRetriever(list(legs)).retrieve("q")]
    assert sorted(found) == ["best", "footer-0", "footer-1"]
    assert found[0] == "best"
