"""Intervals and p-values: checked against enumeration and the normal approximation; reproducible by seed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_index_contextual.evaluation.metrics import (
    bootstrap_interval,
    detectable_difference,
    permutation_p_value,
    questions_needed,
)

thirds = st.integers(-3, 3).map(lambda n: n / 3)


def test_the_interval_is_about_two_standard_errors_wide() -> None:
    values = np.random.default_rng(5).normal(0.3, 1.0, 400)
    error = values.std() / math.sqrt(len(values))
    interval = bootstrap_interval(values)
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(interval.mean - 1.96 * error, abs=0.15 * error)
    assert interval.high == pytest.approx(interval.mean + 1.96 * error, abs=0.15 * error)


def test_intervals_contain_the_true_mean_as_often_as_their_confidence() -> None:
    random = np.random.default_rng(7)
    samples = [random.normal(0.0, 1.0, 60) for _ in range(200)]
    intervals = [bootstrap_interval(sample, resamples=400, seed=seed) for seed, sample in enumerate(samples)]
    stored = sum(interval.low <= 0 <= interval.high for interval in intervals)
    assert 176 <= stored <= 199  # 190 expected, standard deviation 3.1


def test_the_same_seed_gives_the_same_result() -> None:
    values = np.random.default_rng(8).normal(0.1, 1, 80)
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)
    assert permutation_p_value(values, seed=3) == permutation_p_value(values, seed=3)


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
    # 20 of 25 signs positive, two-sided: the binomial test gives 0.0041.
    exact = 2 * sum(math.comb(25, n) for n in range(20, 26)) / 2**25
    assert permutation_p_value([1] * 20 + [-1] * 5, resamples=100_000) == pytest.approx(exact, rel=0.2)


def test_a_p_value_is_never_zero() -> None:
    assert permutation_p_value([1.0] * 500, resamples=1_000) == pytest.approx(1 / 1_001)


def test_equal_retrievers_are_rarely_significantly_different() -> None:
    random = np.random.default_rng(9)
    p_values = [permutation_p_value(random.normal(0, 1, 30), resamples=500, seed=seed) for seed in range(200)]
    assert sum(p <= 0.05 for p in p_values) <= 20  # 10 expected, standard deviation 3.1


@pytest.mark.parametrize("values", [[], [[1.0]], [math.nan], [math.inf]])
def test_values_that_are_not_a_row_of_finite_numbers_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_interval(values)
    with pytest.raises(ValueError, match="at least one value"):
        permutation_p_value(values)


def test_the_detectable_difference_is_that_of_the_normal_distribution() -> None:
    differences = [1.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    # The mean is 0.1, the sum of squares 3: s² = (3 - 10 * 0.1²) / 9 = 0.3222, s = 0.5676.
    expected = (1.959964 + 0.841621) * 0.5676 / math.sqrt(10)
    assert detectable_difference(differences) == pytest.approx(expected, abs=1e-4)
    assert detectable_difference(differences * 4) == pytest.approx(expected / 2, rel=0.05)  # s is for n - 1
    # Four times as many questions for half the difference.
    assert questions_needed(differences, expected / 2) == pytest.approx(40, abs=1)
    assert questions_needed(differences, expected) == pytest.approx(10, abs=1)
    assert questions_needed(differences, 100.0) == 6


@pytest.mark.parametrize("differences", [[0.3] * 20, [0.0] * 20, [0.1, 0.2, 0.3, 0.4, 0.5]])
def test_without_spread_or_with_five_questions_nothing_can_be_estimated(differences: list[float]) -> None:
    assert detectable_difference(differences) is None
    assert questions_needed(differences, 0.05) is None


def test_a_detectable_difference_is_significant_in_four_of_five_samples() -> None:
    random = np.random.default_rng(9)
    spread, number = 0.4, 60
    mean = 2.8016 * spread / math.sqrt(number)
    samples = random.normal(mean, spread, (300, number))
    assert np.mean([detectable_difference(sample) for sample in samples]) == pytest.approx(mean, rel=0.02)
    significant = sum(permutation_p_value(sample, resamples=800) < 0.05 for sample in samples)
    assert 215 <= significant <= 265  # 240 expected, standard deviation 6.9
