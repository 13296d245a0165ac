"""Metrics: the arithmetic spelled out, and properties of every ranking."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_index_contextual.evaluation import run as metrics
from llama_index_contextual.evaluation.compare import (
    RESAMPLES,
    bootstrap_interval,
    detectable_difference,
    permutation_p_value,
)

ranks_of_items = st.lists(st.one_of(st.none(), st.integers(1, 30)), min_size=1, max_size=6)
ks = st.integers(1, 25)


def test_recall_is_the_share_of_items_found_up_to_k() -> None:
    assert metrics.recall([1, 5, 6, None], 5) == 2 / 4
    assert metrics.recall([1, 5, 6, None], 6) == 3 / 4


def test_precision_divides_by_k_not_by_the_number_of_results() -> None:
    assert metrics.precision([True, False, True, True], 2) == 1 / 2
    assert metrics.precision([True, True], 10) == 2 / 10


def test_the_reciprocal_rank_is_that_of_the_first_relevant_result() -> None:
    assert metrics.reciprocal_rank([7, 3, None]) == 1 / 3


def test_ndcg_discounts_each_piece_of_evidence_by_the_logarithm_of_its_rank() -> None:
    gained = 1 / math.log2(2) + 1 / math.log2(5)  # ranks 1 and 4
    best = 1 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)  # three items
    assert metrics.ndcg([1, 4, None], 10) == pytest.approx(gained / best)
    assert metrics.ndcg([1, 4, None], 3) == pytest.approx(1 / best)
    assert metrics.ndcg([3, 3, None], 10) == pytest.approx(2 / math.log2(4) / best)


def test_a_first_result_with_all_evidence_is_a_full_hit() -> None:
    assert metrics.ndcg([1, 1, 1]) == metrics.ndcg([1, 2, 3]) == metrics.ndcg([1]) == 1
    assert metrics.ndcg([1, 1, None]) == pytest.approx(2 / (1 + 1 / math.log2(3) + 1 / 2))
    assert metrics.ndcg([2, 2, 2]) < 1


def test_the_ideal_ranking_has_at_most_k_results() -> None:
    assert metrics.ndcg([1, 2, 3], 2) == pytest.approx(1)


@given(ranks_of_items, ks, st.data())
def test_ndcg_does_not_fall_if_a_piece_is_found_earlier(ranks: list[int | None], k: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ranks) - 1))
    earlier = [*ranks[:at], data.draw(st.integers(1, ranks[at] or 20)), *ranks[at + 1 :]]
    assert metrics.ndcg(earlier, k) >= metrics.ndcg(ranks, k) - 1e-12


@given(ks, st.integers(1, 6))
def test_an_empty_retrieval_scores_zero(k: int, items: int) -> None:
    none = [None] * items
    assert metrics.recall(none, k) == metrics.ndcg(none, k) == metrics.precision([], k) == 0
    assert metrics.reciprocal_rank(none) == 0


@given(st.integers(1, 6), ks)
def test_the_best_ranking_scores_one(items: int, k: int) -> None:
    best = list(range(1, items + 1))
    assert metrics.ndcg(best, k) == metrics.ndcg([1] * items, k) == pytest.approx(1)
    assert metrics.reciprocal_rank(best) == metrics.recall(best, items) == 1


@given(ranks_of_items, ks)
def test_every_metric_lies_between_zero_and_one(ranks: list[int | None], k: int) -> None:
    values = [metrics.recall(ranks, k), metrics.ndcg(ranks, k), metrics.reciprocal_rank(ranks)]
    assert all(0 <= value <= 1 + 1e-12 for value in values)


# ---- significance ----------------------------------------------------------------------------------------------------


thirds = st.integers(-3, 3).map(lambda n: n / 3)


def test_the_interval_is_about_two_standard_errors_wide() -> None:
    values = np.random.default_rng(5).normal(0.3, 1.0, 400)
    error = values.std() / math.sqrt(len(values))
    low, high = bootstrap_interval(values)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_the_same_seed_gives_the_same_result() -> None:
    values = np.random.default_rng(8).normal(0.1, 1, 80)
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)
    assert permutation_p_value(values) == permutation_p_value(values)


@settings(max_examples=50)
@given(st.lists(thirds, min_size=1, max_size=7))
def test_few_differences_are_enumerated(differences: list[float]) -> None:
    observed = abs(math.fsum(differences))
    signs = list(itertools.product((1, -1), repeat=len(differences)))
    sums = [abs(math.fsum(s * d for s, d in zip(row, differences, strict=True))) for row in signs]
    expected = sum(value >= observed - 1e-9 for value in sums) / len(signs)
    assert permutation_p_value(differences) == pytest.approx(expected)


def test_questions_without_a_difference_do_not_matter() -> None:
    assert permutation_p_value([1, 1, 1, -1]) == permutation_p_value([1, 0, 1, 0, 1, 0, 0, -1])


def test_without_any_difference_the_p_value_is_one() -> None:
    assert permutation_p_value([0.0] * 50) == 1.0


def test_many_differences_agree_with_the_binomial_test() -> None:
    # 17 of 25 signs positive, two-sided: the binomial test gives 0.108; 10,000 resamples are within 3 % of it.
    exact = 2 * sum(math.comb(25, n) for n in range(17, 26)) / 2**25
    assert permutation_p_value([1] * 17 + [-1] * 8) == pytest.approx(exact, rel=0.1)


def test_a_p_value_is_never_zero() -> None:
    assert permutation_p_value([1.0] * 500) == pytest.approx(1 / (RESAMPLES + 1))


def test_the_detectable_difference_is_that_of_the_normal_distribution() -> None:
    differences = [1.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    # The mean is 0.1, the sum of squares 3: s² = (3 - 10 * 0.1²) / 9 = 0.3222, s = 0.5676.
    expected = (1.959964 + 0.841621) * 0.5676 / math.sqrt(10)
    assert detectable_difference(differences) == pytest.approx(expected, abs=1e-4)
    assert detectable_difference(differences * 4) == pytest.approx(expected / 2, rel=0.05)  # s is for n - 1
