"""Retrieval metrics, bootstrap intervals and permutation tests, as pure functions.

A metric compares the ranking for one question with its evidence. `ranks` contains, for each evidence item, the rank
(from 1) of the first result that contains it, or None if no result does; it is never empty. Every metric is between 0
and 1, and is 0 if nothing was retrieved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ranks = Sequence[int | None]


def recall(ranks: Ranks, k: int) -> float:
    """Return the share of evidence items in the first k results.

    Example:
        >>> recall([1, 7, None], 5)
        0.3333333333333333
    """
    return len(_within(ranks, k)) / len(ranks)


def hit(ranks: Ranks, k: int) -> float:
    """Return 1 if the first k results contain at least one evidence item, otherwise 0.

    Example:
        >>> hit([None, 5], 5)
        1.0
    """
    return float(bool(_within(ranks, k)))


def precision(relevant: Sequence[bool], k: int) -> float:
    """Return the share of the first k results that contain evidence; missing results count as irrelevant.

    Args:
        relevant: Whether each result, in order, contains any evidence item.
        k: Number of results.

    Example:
        >>> precision([True, False, True], 5)
        0.4
    """
    return sum(relevant[:k]) / k


def reciprocal_rank(ranks: Ranks) -> float:
    """Return 1 / rank of the first result with any evidence; its mean over questions is the MRR.

    Source: Voorhees, "The TREC-8 Question Answering Track Report", 1999.

    Example:
        >>> reciprocal_rank([None, 4, 2])
        0.5
    """
    return max((1 / rank for rank in ranks if rank is not None), default=0.0)


def average_precision(ranks: Ranks) -> float:
    """Return the mean precision at the ranks of the evidence items; its mean over questions is the MAP.

    If every item is in a different result, this is the usual average precision. Items in the same result are counted
    together, and precision never exceeds 1.

    Source: Buckley, Voorhees, "Evaluating Evaluation Measure Stability", SIGIR 2000.

    Example:
        >>> average_precision([1, 4, None])  # (1/1 + 2/4 + 0) / 3
        0.5
    """
    ordered = sorted(rank for rank in ranks if rank is not None)
    # The number of items up to a rank is the last position of that rank in the sorted list.
    up_to = {rank: count for count, rank in enumerate(ordered, start=1)}
    return math.fsum(min(1.0, up_to[rank] / rank) for rank in ordered) / len(ranks)


def ndcg(ranks: Ranks, k: int = 10) -> float:
    """Return nDCG@k with a gain of 1 for each result that is the first to contain some evidence item.

    The ideal ranking has one item in each of the first results; a result with several items counts once.

    Source: Järvelin, Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", TOIS 2002 (binary gains, log2).

    Example:
        >>> round(ndcg([1, 3]), 4)  # (1 + 1/2) / (1 + 1/log2(3))
        0.9197
    """
    ideal = sum(1 / math.log2(1 + rank) for rank in range(1, min(len(ranks), k) + 1))
    return sum(1 / math.log2(1 + rank) for rank in set(_within(ranks, k))) / ideal


def _within(ranks: Ranks, k: int) -> list[int]:
    return [rank for rank in ranks if rank is not None and rank <= k]


# ---- Significance ----------------------------------------------------------------------------------------------------

RESAMPLES = 10_000
ALPHA = 0.05
"""Significance level: a difference with a smaller p-value is significant."""
POWER = 0.8
"""Statistical power: probability that a difference of the detectable size is significant."""
FEWEST = 6
"""Minimum number of questions for a significant difference: with 5, no p-value is below 2 / 2**5 = 0.0625."""

_BLOCK = 500_000
_EXACT_UP_TO = 12


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval.

    Attributes:
        mean: Mean of the values.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    mean: float
    low: float
    high: float


def bootstrap_interval(
    values: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Return the mean of values and its percentile bootstrap interval.

    For a paired comparison, `values` are the differences, one per question.

    Args:
        values: At least one number, shape (questions,).
        confidence: Share of the resampled means within the interval.
        resamples: Number of resamples, drawn with replacement.
        seed: Seed of the random numbers.

    Source: Efron, Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.

    Example:
        >>> bootstrap_interval([1.0, 1.0, 1.0])
        Interval(mean=1.0, low=1.0, high=1.0)
    """
    row = _row(values)
    random = np.random.default_rng(seed)
    means = np.concatenate(
        [row[random.integers(0, len(row), (size, len(row)))].mean(axis=1) for size in _blocks(resamples, len(row))]
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(row.mean()), float(low), float(high))


def permutation_p_value(differences: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Return the two-sided p-value of a paired randomisation test.

    Under the null hypothesis the sign of each difference is random. With up to 12 nonzero differences all assignments
    of signs are tested; with more, `resamples` random ones and the observed one, so that p is never 0.

    Args:
        differences: One difference per question, shape (questions,).
        resamples: Number of random assignments of signs.
        seed: Seed of the random numbers.

    Source: Smucker, Allan, Carterette, "A Comparison of Statistical Significance Tests for Information Retrieval
    Evaluation", CIKM 2007.

    Example:
        >>> permutation_p_value([1.0, 1.0, 1.0, 1.0])  # 2 of the 16 assignments of signs
        0.125
    """
    row = _row(differences)
    row = row[row != 0]
    if not len(row):
        return 1.0
    # Allow for rounding, so that sums that are mathematically equal count as equal.
    observed = abs(row.sum()) - 1e-9 * np.abs(row).sum()
    if len(row) <= _EXACT_UP_TO:
        signs = 1 - 2 * ((np.arange(2 ** len(row))[:, None] >> np.arange(len(row))) & 1)
        return float((np.abs(signs @ row) >= observed).mean())
    random = np.random.default_rng(seed)
    extreme = sum(
        int((np.abs((1 - 2 * random.integers(0, 2, (size, len(row)))) @ row) >= observed).sum())
        for size in _blocks(resamples, len(row))
    )
    return (extreme + 1) / (resamples + 1)


def detectable_difference(differences: ArrayLike) -> float | None:
    """Return the smallest mean difference that is significant at the level of 5 % with a probability of 80 %.

    This is the minimum detectable effect of a paired two-sided test: (1.96 + 0.84) s / sqrt(n), with the standard
    deviation s of the n observed differences.

    Args:
        differences: One difference per question, shape (questions,).

    Returns:
        The difference, above 0; None if it cannot be estimated: with fewer than 6 questions no difference is
        significant, and if all differences are equal, their spread is unknown.

    Source: Sakai, "Topic Set Size Design", Information Retrieval Journal 19, 2016.

    Example:
        >>> differences = [0.3, -0.1, 0.2, 0.0, 0.1, -0.2, 0.4, 0.1]  # s = 0.2
        >>> round(detectable_difference(differences), 4)  # 2.8016 * 0.2 / sqrt(8)
        0.1981
    """
    row = _row(differences)
    if len(row) < FEWEST or (spread := float(row.std(ddof=1))) < _NO_SPREAD:
        return None
    return _QUANTILES * spread / math.sqrt(len(row))


def questions_needed(differences: ArrayLike, difference: float) -> int | None:
    """Return the number of questions needed to detect a mean difference, as in `detectable_difference`.

    Args:
        differences: One observed difference per question, shape (questions,).
        difference: The mean difference to detect, above 0.

    Returns:
        The number, at least 6; None if it cannot be estimated.

    Example:
        >>> questions_needed([0.3, -0.1, 0.2, 0.0, 0.1, -0.2, 0.4, 0.1], 0.05)  # (2.8016 * 0.2 / 0.05) ** 2 = 125.6
        126
    """
    row = _row(differences)
    detectable = detectable_difference(row)
    return None if detectable is None else max(FEWEST, math.ceil(len(row) * (detectable / difference) ** 2))


_NO_SPREAD = 1e-9  # a smaller spread is due to rounding
_QUANTILES = NormalDist().inv_cdf(1 - ALPHA / 2) + NormalDist().inv_cdf(POWER)


def _row(values: ArrayLike) -> NDArray[np.float64]:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or not len(row) or not np.isfinite(row).all():
        raise ValueError("there must be at least one value, one for each question, and all values must be finite")
    return row


def _blocks(total: int, width: int) -> Iterator[int]:
    """Yield block sizes that add up to `total`, to limit the memory for random numbers."""
    size = max(1, _BLOCK // width)
    for start in range(0, total, size):
        yield min(size, total - start)
