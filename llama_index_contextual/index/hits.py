"""Rankings as arrays."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", np.float32, np.float64)


class Hits(NamedTuple):
    """A ranking as arrays, best first.

    Attributes:
        rows: Row numbers, without duplicates; shape (n,), int64.
        scores: Score of each row; shape (n,), float64.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]

    def first(self, k: int) -> Hits:
        """Return the k best hits."""
        return Hits(self.rows[:k], self.scores[:k])


class Scale(NamedTuple):
    """Zero point and unit that make the scores of different rankings comparable.

    Attributes:
        zero: The score that is mapped to 0.
        unit: The difference from `zero` that is mapped to 1. If all scores are equal, the unit is 0, and the scores are
            mapped to 1.
    """

    zero: float
    unit: float


NO_HITS = Hits(np.zeros(0, dtype=np.int64), np.zeros(0))
NO_SCALE = Scale(0.0, 0.0)


def top(scores: NDArray[F], k: int, *, above: float = -math.inf) -> tuple[NDArray[F], NDArray[np.int64]]:
    """Return the k best scores and their rows, best first, with equal scores in row order.

    Args:
        scores: The scores of all rows; shape (n,).
        k: Maximum number of hits.
        above: Lower limit; only greater scores are hits.
    """
    if above > -math.inf:
        # Filter first: a partition takes many times as long if most scores are equal.
        candidates = np.flatnonzero(scores > above)
        best, places = top(scores[candidates], k)
        return best, candidates[places]
    k = min(k, len(scores))
    if k <= 0:
        return scores[:0], np.zeros(0, dtype=np.int64)
    # A partition alone would choose arbitrarily among ties for the last place.
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    rows = np.flatnonzero(scores >= least if least > -math.inf else scores > -math.inf)
    rows = rows[np.argsort(-scores[rows], kind="stable")][:k]
    return scores[rows], rows


def mean_and_deviation(scores: NDArray[np.float32]) -> tuple[float, float]:
    """Return the mean and the standard deviation of the scores of all rows, at least one.

    The deviation is computed from the sum of the squares, without the copies that NumPy's `std` makes. Cosine
    similarities and BM25 scores are small enough for this.
    """
    values = scores.astype(np.float64)
    mean = float(np.add.reduce(values)) / len(values)
    return mean, math.sqrt(max(0.0, float(np.einsum("i,i->", values, values)) / len(values) - mean * mean))
