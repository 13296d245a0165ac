"""Rankings into one ranking: pure functions over ids and scores.

A ranking is a list of (id, score), best first. Ties are broken by the best rank in any ranking, then by the id, so the
same input always gives the same output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Ranking = Sequence[tuple[str, float]]


def reciprocal_rank_fusion(
    rankings: Sequence[Ranking], weights: Sequence[float], *, k: float = 60.0
) -> list[tuple[str, float]]:
    """Fuse by weighted reciprocal ranks: score(d) = sum over rankings of weight / (k + rank(d)), ranks from 1.

    Args:
        rankings: Best first; an id at most once in each.
        weights: One per ranking.
        k: The larger, the less the first ranks stand out.

    Source: Cormack, Clarke, Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning
    Methods", SIGIR 2009 (unweighted, k = 60).

    Example:
        >>> reciprocal_rank_fusion([[("a", 9.0), ("b", 8.0)], [("b", 0.5)]], [0.5, 0.5], k=1)
        [('b', 0.41666666666666663), ('a', 0.25)]
    """
    shares: dict[str, list[float]] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, (node_id, _) in enumerate(ranking, start=1):
            shares.setdefault(node_id, []).append(weight / (k + rank))
    return _sorted(shares, rankings)


def score_fusion(rankings: Sequence[Ranking], weights: Sequence[float]) -> list[tuple[str, float]]:
    """Fuse by weighted scores, each ranking scaled to 0..1 (min-max over its own hits); absent hits count 0.

    Args:
        rankings: Best first; an id at most once in each. A ranking whose scores are all equal counts 1 for each hit.
        weights: One per ranking.

    Source: convex combination, Bruch, Gai, Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS 2023.

    Example:
        >>> score_fusion([[("a", 9.0), ("b", 7.0), ("c", 5.0)], [("b", 0.5)]], [0.5, 0.5])
        [('b', 0.75), ('a', 0.5), ('c', 0.0)]
    """
    shares: dict[str, list[float]] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        values = [score for _, score in ranking]
        low, high = min(values, default=0.0), max(values, default=0.0)
        for node_id, score in ranking:
            scaled = (score - low) / (high - low) if high > low else 1.0
            shares.setdefault(node_id, []).append(weight * scaled)
    return _sorted(shares, rankings)


def add_support(ranking: Ranking, shares: Mapping[str, float]) -> list[tuple[str, float]]:
    """Add to each score its id's share, 0 where it has none; ids that are not in the ranking stay out.

    Args:
        ranking: Best first; ties stay in its order.
        shares: What else speaks for an id, in the unit of the ranking's scores.

    Example:
        >>> add_support([("a", 0.5), ("b", 0.25), ("c", 0.25)], {"c": 0.5, "d": 9.0})
        [('c', 0.75), ('a', 0.5), ('b', 0.25)]
    """
    return sorted(((node_id, score + shares.get(node_id, 0.0)) for node_id, score in ranking), key=lambda hit: -hit[1])


def scaled_shares(scores: Mapping[str, float], weight: float) -> dict[str, float]:
    """Return weight * score / largest score for each id; scores are above 0.

    Example:
        >>> scaled_shares({"a": 4.0, "b": 1.0}, 0.1)
        {'a': 0.1, 'b': 0.025}
    """
    largest = max(scores.values(), default=1.0)
    return {node_id: weight * score / largest for node_id, score in scores.items()}


def reciprocal_shares(ranks: Mapping[str, int], weight: float, *, k: float) -> dict[str, float]:
    """Return weight / (k + rank) for each id; ids may share a rank.

    Example:
        >>> reciprocal_shares({"a": 1, "b": 1, "c": 3}, 0.5, k=1)
        {'a': 0.25, 'b': 0.25, 'c': 0.125}
    """
    return {node_id: weight / (k + rank) for node_id, rank in ranks.items()}


def normalise_weights(weights: Sequence[float], count: int) -> list[float]:
    """Return the weights divided by their sum.

    Raises:
        ValueError: There are not `count` of them or count is 0, one is NaN, infinite or negative, or all are zero.
    """
    if count == 0:
        raise ValueError("there is nothing to fuse: give at least one ranking")
    if len(weights) != count:
        raise ValueError(f"there are {len(weights)} weights for {count} rankings: give one weight per ranking")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError(f"the weights {list(weights)} must be finite and not negative")
    largest = max(weights)
    if largest == 0:
        raise ValueError("the weights are all 0: give at least one ranking some weight")
    scaled = [weight / largest for weight in weights]  # the sum of large weights may be infinite
    total = math.fsum(scaled)
    return [weight / total for weight in scaled]


def _sorted(shares: dict[str, list[float]], rankings: Sequence[Ranking]) -> list[tuple[str, float]]:
    # Rounded once, so that the order of the rankings does not decide between equal sums.
    scores = {node_id: math.fsum(values) for node_id, values in shares.items()}
    best: dict[str, int] = {}
    for ranking in rankings:
        for rank, (node_id, _) in enumerate(ranking):
            best[node_id] = min(rank, best.get(node_id, rank))
    return sorted(scores.items(), key=lambda item: (-item[1], best[item[0]], item[0]))
