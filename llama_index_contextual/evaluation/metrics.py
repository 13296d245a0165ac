"""Metrics of one ranking against the evidence of one question: pure functions.

`ranks` holds, for each evidence item, the rank (from 1) of the first result that holds it, or None where no result
does; it is never empty. Every metric is between 0 and 1, and 0 for an empty retrieval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
