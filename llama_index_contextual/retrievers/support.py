"""What documents add to the scores of their chunks: pure functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.retrievers.fusion import Hits, share_of_rank


def add_support(hits: Hits, shares: NDArray[np.float64]) -> tuple[Hits, NDArray[np.intp]]:
    """Add a share to each score; ties stay in the order of the hits.

    Args:
        hits: Best first.
        shares: What else speaks for each hit, in the unit of its score; shape (n,).

    Returns:
        The hits, and where each of them stood before.

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
        groups: Which group each of them is of; shape (n,).

    Example:
        >>> best_of_group(np.array([3.0, 1.0, 2.0]), np.array([7, 7, 5])).tolist()
        [3.0, 3.0, 2.0]
    """
    _, where = np.unique(groups, return_inverse=True)
    best = np.full(len(scores), -np.inf)
    np.maximum.at(best, where, scores)
    return best[where]


def scaled_shares(scores: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """Return weight * score / largest score for each; scores are not below 0.

    Example:
        >>> scaled_shares(np.array([4.0, 0.0, 1.0]), 0.1).tolist()
        [0.1, 0.0, 0.025]
    """
    largest = scores.max(initial=0.0)
    return weight * scores / largest if largest > 0 else np.zeros(len(scores))


def reciprocal_shares(ranks: NDArray[np.int64], weight: float, *, k: float) -> NDArray[np.float64]:
    """Return weight / (k + rank) for each rank; ranks may be shared, and 0 has none.

    Example:
        >>> reciprocal_shares(np.array([1, 1, 0, 3]), 0.5, k=1).tolist()
        [0.25, 0.25, 0.0, 0.125]
    """
    return np.where(ranks > 0, share_of_rank(ranks, weight, k=k), 0.0)
