"""Metrics: the arithmetic spelled out, and properties of every ranking."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.evaluation import metrics

ranks_of_items = st.lists(st.one_of(st.none(), st.integers(1, 30)), min_size=1, max_size=6)
ks = st.integers(1, 25)


def test_recall_is_the_share_of_items_found_up_to_k() -> None:
    assert metrics.recall([1, 5, 6, None], 5) == 2 / 4
    assert metrics.recall([1, 5, 6, None], 6) == 3 / 4


def test_hit_needs_one_item_only() -> None:
    assert metrics.hit([None, 6], 5) == 0
    assert metrics.hit([None, 5], 5) == 1


def test_precision_divides_by_k_not_by_the_number_of_results() -> None:
    assert metrics.precision([True, False, True, True], 2) == 1 / 2
    assert metrics.precision([True, True], 10) == 2 / 10


def test_the_reciprocal_rank_is_that_of_the_first_relevant_result() -> None:
    assert metrics.reciprocal_rank([7, 3, None]) == 1 / 3


def test_average_precision_is_the_usual_one_if_no_items_share_a_result() -> None:
    assert metrics.average_precision([1, 3, 6, None]) == pytest.approx((1 / 1 + 2 / 3 + 3 / 6 + 0) / 4)


def test_average_precision_counts_items_of_one_result_together() -> None:
    # Both at rank 2: 2 items up to rank 2 is a precision of 1; the third at 4: 3/4.
    assert metrics.average_precision([2, 2, 4]) == pytest.approx((2 / 2 + 2 / 2 + 3 / 4) / 3)
    assert metrics.average_precision([1, 1]) == 1


def test_ndcg_discounts_by_the_logarithm_of_the_rank() -> None:
    gained = 1 / math.log2(2) + 1 / math.log2(5)  # ranks 1 and 4
    best = 1 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)  # three items
    assert metrics.ndcg([1, 4, None], 10) == pytest.approx(gained / best)
    assert metrics.ndcg([1, 4, None], 3) == pytest.approx(1 / best)


def test_ndcg_counts_a_result_with_two_items_once() -> None:
    assert metrics.ndcg([1, 1], 10) == pytest.approx(1 / (1 + 1 / math.log2(3)))


def test_the_ideal_ranking_has_at_most_k_results() -> None:
    assert metrics.ndcg([1, 2, 3], 2) == pytest.approx(1)


@given(ks, st.integers(1, 6))
def test_an_empty_retrieval_scores_zero(k: int, items: int) -> None:
    none = [None] * items
    assert metrics.recall(none, k) == metrics.hit(none, k) == metrics.ndcg(none, k) == metrics.precision([], k) == 0
    assert metrics.reciprocal_rank(none) == metrics.average_precision(none) == 0


@given(st.integers(1, 6), ks)
def test_the_best_ranking_scores_one(items: int, k: int) -> None:
    best = list(range(1, items + 1))
    assert metrics.ndcg(best, k) == pytest.approx(1)
    assert metrics.average_precision(best) == metrics.reciprocal_rank(best) == metrics.recall(best, items) == 1


@given(ranks_of_items, ks)
def test_every_metric_lies_between_zero_and_one(ranks: list[int | None], k: int) -> None:
    values = [metrics.recall(ranks, k), metrics.hit(ranks, k), metrics.ndcg(ranks, k), metrics.average_precision(ranks)]
    assert all(0 <= value <= 1 + 1e-12 for value in [*values, metrics.reciprocal_rank(ranks)])
    assert metrics.recall(ranks, k) <= metrics.hit(ranks, k)


@given(ranks_of_items, ks)
def test_recall_never_falls_with_more_results(ranks: list[int | None], k: int) -> None:
    assert metrics.recall(ranks, k) <= metrics.recall(ranks, k + 1)


@given(ranks_of_items.filter(lambda ranks: any(rank and rank > 1 for rank in ranks)), ks)
def test_moving_everything_up_a_rank_never_lowers_a_metric(ranks: list[int | None], k: int) -> None:
    better = [max(1, rank - 1) if rank else None for rank in ranks]
    if len(set(better) - {None}) < len(set(ranks) - {None}):
        return  # two results became one, which nDCG counts once
    assert metrics.ndcg(better, k) >= metrics.ndcg(ranks, k) - 1e-12
    assert metrics.average_precision(better) >= metrics.average_precision(ranks) - 1e-12
