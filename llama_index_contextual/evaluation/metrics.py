"""Metrics of one ranking against the evidence of one question: pure functions.

`ranks` holds, for each evidence item, the rank (from 1) of the first result that holds it, or None where no result
does; it is never empty. Every metric is between 0 and 1, and 0 for an empty retrieval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ranks = Sequence[int | None]


def recall(ranks: Ranks, k: int) -> float:
    """Return the share of evidence items that the first k results hold.

    Example:
        >>> recall([1, 7, None], 5)
        0.3333333333333333
    """
    return len(_within(ranks, k)) / len(ranks)


def hit(ranks: Ranks, k: int) -> float:
    """Return 1 where the first k results hold at least one evidence item, otherwise 0.

    Example:
        >>> hit([None, 5], 5)
        1.0
    """
    return float(bool(_within(ranks, k)))


def precision(relevant: Sequence[bool], k: int) -> float:
    """Return how many of the first k places hold a result with some evidence; a missing result counts as a miss.

    Args:
        relevant: For each result, in its order, whether it holds any evidence item.
        k: Places.

    Example:
        >>> precision([True, False, True], 5)
        0.4
    """
    return sum(relevant[:k]) / k


def reciprocal_rank(ranks: Ranks) -> float:
    """Return 1 / rank of the first result that holds any evidence; its mean over questions is the MRR.

    Source: Voorhees, "The TREC-8 Question Answering Track Report", 1999.

    Example:
        >>> reciprocal_rank([None, 4, 2])
        0.5
    """
    return max((1 / rank for rank in ranks if rank is not None), default=0.0)


def average_precision(ranks: Ranks) -> float:
    """Return the mean over evidence items of the precision at the rank where each is found; over questions, the MAP.

    With every item in a result of its own this is the usual average precision; items that share a result count as
    found there together, and no precision exceeds 1.

    Source: Buckley, Voorhees, "Evaluating Evaluation Measure Stability", SIGIR 2000.

    Example:
        >>> average_precision([1, 4, None])  # (1/1 + 2/4 + 0) / 3
        0.5
    """
    found = sorted(rank for rank in ranks if rank is not None)
    # The number of items found up to a rank: the last place of that rank in the sorted list.
    upto = {rank: count for count, rank in enumerate(found, start=1)}
    return math.fsum(min(1.0, upto[rank] / rank) for rank in found) / len(ranks)


def ndcg(ranks: Ranks, k: int = 10) -> float:
    """Return nDCG@k with a gain of 1 for each result that is the first to hold some evidence item.

    The ideal ranking holds one item in each of the first results; a result that holds several counts once.

    Source: Järvelin, Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", TOIS 2002 (binary gains, log2).

    Example:
        >>> round(ndcg([1, 3]), 4)  # (1 + 1/2) / (1 + 1/log2(3))
        0.9197
    """
    ideal = sum(1 / math.log2(1 + rank) for rank in range(1, min(len(ranks), k) + 1))
    return sum(1 / math.log2(1 + rank) for rank in set(_within(ranks, k))) / ideal


def _within(ranks: Ranks, k: int) -> list[int]:
    return [rank for rank in ranks if rank is not None and rank <= k]


RESAMPLES = 10_000

_BLOCK = 500_000
_EXACT_UP_TO = 12


@dataclass(frozen=True)
class Interval:
    """A mean and the interval that holds it with the chosen confidence.

    Attributes:
        mean: Mean of the values.
        low: Lower end.
        high: Upper end.
    """

    mean: float
    low: float
    high: float


def bootstrap_interval(
    values: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Return the mean of values with its percentile bootstrap interval.

    For a paired comparison, `values` are the differences, one per question.

    Args:
        values: At least one number, shape (questions,).
        confidence: Share of resampled means that the interval holds.
        resamples: How often the questions are drawn anew, with replacement.
        seed: Of the random numbers.

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
    """Return the two-sided p-value of a paired randomisation test: how often chance alone gives such a mean.

    If both sides were equal, each difference could have had the other sign. Up to 12 differences other than 0 all
    signs are tried; with more, `resamples` random ones, where the observed one counts too (so p is never 0).

    Args:
        differences: One per question, shape (questions,).
        resamples: Random assignments of signs.
        seed: Of the random numbers.

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
    # Sums that are equal on paper must not differ by rounding.
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


def _row(values: ArrayLike) -> NDArray[np.float64]:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or not len(row) or not np.isfinite(row).all():
        raise ValueError("there must be at least one value per side, one for each question, and all of them finite")
    return row


def _blocks(total: int, width: int) -> Iterator[int]:
    """Yield sizes that add up to `total`, so that one block of random numbers stays small."""
    size = max(1, _BLOCK // width)
    for start in range(0, total, size):
        yield min(size, total - start)
