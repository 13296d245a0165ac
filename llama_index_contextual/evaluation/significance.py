"""Whether a difference is more than chance: paired bootstrap intervals and permutation p-values.

Pure functions over one value per question, the same questions in the same order on both sides. Random numbers come
from a seed, so the same input always gives the same output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
