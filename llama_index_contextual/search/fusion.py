"""Fusion of several rankings into one, by reciprocal ranks or by scores: pure functions.

A ranking is a list of (id, score), best first, or `Hits`: rows and scores as arrays. Ties are broken by the best rank
in any ranking, then by id, so the result is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.index.hits import Hits, Scale

ScoredIds = Sequence[tuple[str, float]]
"""(node id, score), best first."""


def reciprocal_rank_fusion(
    rankings: Sequence[ScoredIds], weights: Sequence[float], *, k: float = 60.0
) -> list[tuple[str, float]]:
    """Fuse by weighted reciprocal ranks: score(d) = sum over rankings of weight / (k + rank(d)), ranks from 1.

    Args:
        rankings: Best first; each id at most once per ranking.
        weights: One per ranking.
        k: Constant; the larger it is, the smaller the differences between the first ranks.

    Source: Cormack, Clarke, Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning
    Methods", SIGIR 2009 (unweighted, k = 60).

    Example:
        >>> reciprocal_rank_fusion([[("a", 9.0), ("b", 8.0)], [("b", 0.5)]], [0.5, 0.5], k=1)
        [('b', 0.41666666666666663), ('a', 0.25)]
    """
    return _by_name(rankings, weights, "rrf", k)


def score_fusion(rankings: Sequence[ScoredIds], weights: Sequence[float]) -> list[tuple[str, float]]:
    """Fuse by weighted scores, each ranking scaled to 0..1 (min-max over its own hits); missing hits count as 0.

    Args:
        rankings: Best first; each id at most once per ranking. If all scores of a ranking are equal, each counts as 1.
        weights: One per ranking.

    Source: convex combination, Bruch, Gai, Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS 2023.

    Example:
        >>> score_fusion([[("a", 9.0), ("b", 7.0), ("c", 5.0)], [("b", 0.5)]], [0.5, 0.5])
        [('b', 0.75), ('a', 0.5), ('c', 0.0)]
    """
    return _by_name(rankings, weights, "score", 0.0)


def fuse(
    rankings: Sequence[Hits],
    weights: Sequence[float],
    *,
    by: Literal["rrf", "score"],
    k: float = 60.0,
    scales: Sequence[Scale] | None = None,
    names: Sequence[str] | None = None,
) -> Hits:
    """Fuse rankings of rows as `reciprocal_rank_fusion` and `score_fusion` do.

    Args:
        rankings: Best first.
        weights: One per ranking.
        by: Reciprocal ranks or scaled scores.
        k: Constant of reciprocal ranks.
        scales: One per ranking, for its scores; None maps the lowest and highest score of each ranking to 0 and 1.
        names: Id of each row, to break ties; None breaks them by row.

    Example:
        >>> one, other = Hits(np.array([7, 3]), np.array([9.0, 8.0])), Hits(np.array([3]), np.array([0.5]))
        >>> fuse([one, other], [0.5, 0.5], by="rrf", k=1).rows.tolist()
        [3, 7]
    """
    everything = np.concatenate([np.zeros(0, dtype=np.int64), *(hits.rows for hits in rankings)])
    rows, where = np.unique(everything, return_inverse=True)
    shares = np.zeros((len(rankings), len(rows)))
    best = np.full(len(rows), len(everything))
    start = 0
    for number, (hits, weight) in enumerate(zip(rankings, weights, strict=True)):
        at = where[start : (start := start + len(hits.rows))]
        ranks = np.arange(1, len(at) + 1)
        if by == "rrf":
            shares[number, at] = share_of_rank(ranks, weight, k=k)
        else:
            shares[number, at] = share_of_score(hits.scores, weight, scale=scales[number] if scales else None)
        best[at] = np.minimum(best[at], ranks)
    if len(rankings) > 2:
        shares.sort(axis=0)  # equal sums stay equal whatever the order of the rankings
    scores: NDArray[np.float64] = shares.sum(axis=0)
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    for start, stop in _runs(ordered[1:] == ordered[:-1]):
        order[start:stop] = sorted(
            order[start:stop], key=lambda at: (best[at], rows[at] if names is None else names[int(rows[at])])
        )
    return Hits(rows[order], ordered)


def share_of_rank(ranks: NDArray[np.int64], weight: float, *, k: float) -> NDArray[np.float64]:
    """Return weight / (k + rank) for each rank from 1."""
    return weight / (k + ranks.astype(np.float64))


def share_of_score(scores: NDArray[np.float64], weight: float, *, scale: Scale | None = None) -> NDArray[np.float64]:
    """Return weight * scaled score for each score; without a scale, by min-max over the scores."""
    zero, unit = scale or min_max(scores)
    return weight * ((scores - zero) / unit if unit > 0 else np.ones(len(scores)))


def min_max(scores: NDArray[np.float64]) -> Scale:
    """Return the scale that maps the lowest score to 0 and the highest to 1.

    Example:
        >>> min_max(np.array([7.0, 9.0, 5.0]))
        Scale(zero=5.0, unit=4.0)
    """
    if len(scores) == 0:
        return Scale(0.0, 0.0)
    low, high = float(scores.min()), float(scores.max())
    return Scale(low, high - low)


def normalise_weights(weights: Sequence[float], count: int) -> list[float]:
    """Return the weights divided by their sum.

    Raises:
        ValueError: `count` is 0 or not the number of weights, a weight is not a number, NaN, infinite or negative, or
            all weights are zero.
    """
    if count == 0:
        raise ValueError("there is nothing to fuse: pass at least one ranking")
    if not isinstance(weights, list | tuple) or not all(isinstance(weight, Real) for weight in weights):
        raise ValueError(f"the weights {weights!r} must be a list of numbers")
    if len(weights) != count:
        raise ValueError(f"there are {len(weights)} weights for {count} rankings: pass one weight per ranking")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError(f"the weights {list(weights)} must be finite and not negative")
    largest = max(weights)
    if largest == 0:
        raise ValueError("the weights are all 0: set at least one of them above 0")
    scaled = [weight / largest for weight in weights]  # the sum of large weights could be infinite
    total = math.fsum(scaled)
    return [weight / total for weight in scaled]


def add_support(hits: Hits, shares: NDArray[np.float64]) -> tuple[Hits, NDArray[np.intp]]:
    """Add a share to each score and sort again; ties keep the order of the hits.

    Args:
        hits: Best first.
        shares: The number to add to each score; shape (n,).

    Returns:
        The hits in the new order, and the previous position of each.

    Example:
        >>> hits, before = add_support(Hits(np.array([7, 8, 9]), np.array([0.5, 0.25, 0.25])), np.array([0, 0, 0.5]))
        >>> hits.rows.tolist(), hits.scores.tolist(), before.tolist()
        ([9, 7, 8], [0.75, 0.5, 0.25], [2, 0, 1])
    """
    scores = hits.scores + shares
    order = np.argsort(-scores, kind="stable")
    return Hits(hits.rows[order], scores[order]), order


def best_of_group(scores: NDArray[np.float64], groups: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return for each score the largest one of its group.

    Args:
        scores: Shape (n,).
        groups: The group of each score; shape (n,).

    Example:
        >>> best_of_group(np.array([3.0, 1.0, 2.0]), np.array([7, 7, 5])).tolist()
        [3.0, 3.0, 2.0]
    """
    _, where = np.unique(groups, return_inverse=True)
    best = np.full(len(scores), -np.inf)
    np.maximum.at(best, where, scores)
    return best[where]


def scaled_shares(scores: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """Return weight * (score / largest score)² for each score; no score is negative.

    The square sets the best document apart from those that share only its ordinary words.

    Example:
        >>> scaled_shares(np.array([4.0, 0.0, 1.0]), 0.8).tolist()
        [0.8, 0.0, 0.05]
    """
    largest = scores.max(initial=0.0)
    return weight * (scores / largest) ** 2 if largest > 0 else np.zeros(len(scores))


def reciprocal_shares(ranks: NDArray[np.int64], weight: float, *, k: float) -> NDArray[np.float64]:
    """Return weight / (k + rank) for each rank, and 0 for rank 0; ranks may be shared.

    Example:
        >>> reciprocal_shares(np.array([1, 1, 0, 3]), 0.5, k=1).tolist()
        [0.25, 0.25, 0.0, 0.125]
    """
    return np.where(ranks > 0, share_of_rank(ranks, weight, k=k), 0.0)


def _by_name(
    rankings: Sequence[ScoredIds], weights: Sequence[float], by: Literal["rrf", "score"], k: float
) -> list[tuple[str, float]]:
    names = sorted({name for ranking in rankings for name, _ in ranking})
    row = {name: at for at, name in enumerate(names)}
    arrays = [
        Hits(
            np.fromiter((row[name] for name, _ in ranking), dtype=np.int64, count=len(ranking)),
            np.fromiter((score for _, score in ranking), dtype=np.float64, count=len(ranking)),
        )
        for ranking in rankings
    ]
    fused = fuse(arrays, weights, by=by, k=k)
    return [(names[at], score) for at, score in zip(fused.rows.tolist(), fused.scores.tolist(), strict=True)]


def _runs(equal: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (start, stop) of every run of equal neighbours; equal[i] compares i with i + 1."""
    if not equal.any():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]])))
    return [(int(start), int(stop) + 1) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
