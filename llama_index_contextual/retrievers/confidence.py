"""Probability that a passage is relevant and that the documents answer the question, estimated without an LLM.

Two logistic models use a few features of the ranking, which depend neither on the scale of an embedding nor on the
number of results. They were fitted by `python -m tests.benchmarks.relevance --data ../shared/data` with the local
settings on four question sets (source code, contracts, long Markdown documents, conversations) with equal weights. The
script prints the constants below and their accuracy on a held-out set. With other settings the
probabilities are rough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.retrievers.base import Evidence, Ranking
from llama_index_contextual.retrievers.fusion import Scale
from llama_index_contextual.retrievers.response import ConfidenceLevel

JUDGED = 20
"""Number of hits that are compared with each other, independent of the number of results."""

_RANKED = 100  # hits over which scores are averaged; fewer if the settings allow fewer candidates
_FIRST = 10
_STRENGTH, _COVERAGE = 8.0, 1.5  # chosen on the same sets; values from 6 to 10 and from 1 to 2 differ little


@dataclass(frozen=True)
class Logistic:
    """A probability, 1 / (1 + exp(-(intercept + coefficients . features)))."""

    intercept: float
    coefficients: tuple[float, ...]

    def __call__(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one probability for each row of features."""
        linear: NDArray[np.float64] = self.intercept + features @ np.asarray(self.coefficients)
        return 1.0 / (1.0 + np.exp(-linear))


RELEVANCE = Logistic(-1.6672, (0.2363, 0.8360, 2.7752, 0.2704, 0.1395))
CONFIDENCE = Logistic(-5.0256, (10.5203, 2.0860))
LOW, HIGH = 0.11, 0.881
"""Limits of the levels: at most 3 % of the answerable questions of each set are below the first ("low"), half of them
at or above the second ("high")."""


@dataclass(frozen=True)
class Judgement:
    """Probabilities for one response.

    Attributes:
        relevances: Probability that each hit is relevant, in the order of the hits.
        confidence: Probability that the documents answer the question.
    """

    relevances: Sequence[float]
    confidence: float

    @property
    def level(self) -> ConfidenceLevel:
        """The confidence in words."""
        if not self.relevances:
            return "none"
        return "low" if self.confidence < LOW else "medium" if self.confidence < HIGH else "high"


def judge(ranking: Ranking, evidence: Sequence[Evidence]) -> Judgement | None:
    """Return the probabilities for a ranking; None unless both indexes ranked.

    Args:
        ranking: A hybrid ranking.
        evidence: Scores and ranks of its first hits: at least `JUDGED` if there are so many.
    """
    if ranking.query_terms is None or {leaf.name for leaf in ranking.leaves()} != {"semantic", "lexical"}:
        return None
    if not evidence:
        return Judgement((), 0.0)
    return Judgement(
        RELEVANCE(hit_features(ranking, evidence)).tolist(),
        float(CONFIDENCE(query_features(ranking, evidence)[None])[0]),
    )


def hit_features(ranking: Ranking, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return one row of features for each hit.

    The strength of a hit is the distance of its fused score from the mean of the best 100, divided by the distance of
    the best score; 0 below the mean. Its coverage is the share of the query's terms that it contains, weighted by idf.
    Few passages answer a question, so the hits compete: the share of a hit is the softmax of 8 strength + 1.5 coverage
    over the first 20 hits. The features are

    0. the logarithm of the share times the coverage;
    1. the logarithm of the share times the rarity of the query's terms: their mean idf over log(1 + chunks), which is
       about the largest possible idf;
    2. the share times the overlap of the first 10 hits of the indexes;
    3. the share times the distance of the best cosine similarity from the mean of all chunks, in standard deviations;
    4. the BM25 score of the hit, in standard deviations of the scores of all chunks.
    """
    scores, mean = ranking.hits.scores[: len(evidence)], float(ranking.hits.scores[:_RANKED].mean())
    reach = float(scores[0]) - mean
    strength = np.maximum(scores - mean, 0.0) / reach if reach > 0 else np.zeros(len(scores))
    coverage = _coverage(ranking, evidence)
    logits = _STRENGTH * strength + _COVERAGE * coverage
    log_share = logits - math.log(float(np.exp(logits[:JUDGED]).sum()))
    share = np.exp(log_share)
    bm25 = [0.0 if (lexical := one.get("lexical")) is None else lexical.score for one in evidence]
    return np.array(
        [
            log_share * coverage,
            log_share * _rarity(ranking),
            share * _agreement(ranking),
            share * _above(_leaf(ranking, "semantic")),
            np.array(bm25) / (_scale(_leaf(ranking, "lexical")).unit or 1.0),
        ]
    ).T


def query_features(ranking: Ranking, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return the features of a response.

    0. The best BM25 score divided by the length of the query, as in WIG (Zhou, Croft, "Query Performance Prediction in
       Web Search Environments", SIGIR 2007), and by log(1 + chunks), which is about the largest possible idf. The
       length is the root of the sum of the squared weights of the terms, which is the root of their number outside
       conversations.
    1. The BM25 score of the first hit divided by the sum of the weights of all terms, including unknown ones.
    """
    terms = ranking.query_terms
    if terms is None or not terms.counts:
        return np.zeros(2)
    length = math.sqrt(sum(weight**2 for weight in terms.counts.values()))
    lexical = _leaf(ranking, "lexical")
    best = 0.0 if lexical is None else float(lexical.hits.scores[:1].sum())
    gain = best / length / math.log1p(terms.size)
    first = evidence[0].get("lexical")
    return np.array([gain, 0.0 if first is None else first.score / sum(terms.weights.values())])


def _leaf(ranking: Ranking, name: str) -> Ranking | None:
    return next((leaf for leaf in ranking.leaves() if leaf.name == name), None)


def _scale(leaf: Ranking | None) -> Scale:
    return Scale(0.0, 0.0) if leaf is None or leaf.scale is None else leaf.scale()


def _above(leaf: Ranking | None) -> float:
    """Return the distance of the best score from the mean of all chunks, in standard deviations."""
    scale = _scale(leaf)
    if leaf is None or len(leaf.hits.scores) == 0 or scale.unit == 0:
        return 0.0
    return (float(leaf.hits.scores[0]) - scale.zero) / scale.unit


def _coverage(ranking: Ranking, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return for each hit the share of the query's terms that it contains, weighted by idf."""
    weights = {} if (terms := ranking.query_terms) is None else terms.weights
    total = sum(weights.values()) or 1.0
    terms_of_hits = [() if (lexical := one.get("lexical")) is None else lexical.matched_terms for one in evidence]
    return np.array([sum(map(weights.__getitem__, matched)) / total for matched in terms_of_hits])


def _rarity(ranking: Ranking) -> float:
    """Return the mean idf of the query's terms over log(1 + chunks)."""
    terms = ranking.query_terms
    if terms is None or not terms.counts:
        return 0.0
    return sum(terms.weights.values()) / sum(terms.counts.values()) / math.log1p(terms.size)


def _agreement(ranking: Ranking) -> float:
    """Return the number of hits that the first 10 hits of all indexes share, over the length of the longest list."""
    firsts = [set(leaf.hits.rows[:_FIRST].tolist()) for leaf in ranking.leaves()]
    longest = max(map(len, firsts), default=0)
    return len(set.intersection(*firsts)) / longest if longest else 0.0
