"""How likely a passage is relevant, and that the documents answer at all: from what ranking computed anyway, no LLM.

Two logistic models over a handful of features that depend neither on the scale of an embedding nor on how many hits
are asked for. They were fitted by `python -m tests.benchmarks.relevance --data ../shared/data` with the local settings
on four question sets (source code, contracts, long Markdown documents, conversations), each set counting alike; the
script prints the constants below and how they hold on a set that the fit has not seen. With other settings they are an
estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.retrievers.base import Evidence, Trace
from llama_index_contextual.retrievers.fusion import Scale
from llama_index_contextual.retrievers.response import ConfidenceLevel

JUDGED = 20
"""Hits that compete with each other, however many are asked for."""

_RANKED = 100  # settings with fewer candidates are judged by what there is
_FIRST = 10
_STRENGTH, _COVERAGE = 8.0, 1.5  # chosen on the same sets; from 6 to 10 and from 1 to 2 little differs


@dataclass(frozen=True)
class Logistic:
    """A probability, 1 / (1 + exp(-(intercept + coefficients . features)))."""

    intercept: float
    coefficients: tuple[float, ...]

    def __call__(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one probability for each row of features."""
        found: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-(self.intercept + features @ np.asarray(self.coefficients))))
        return found


RELEVANCE = Logistic(-1.6672, (0.2363, 0.8360, 2.7752, 0.2704, 0.1395))
CONFIDENCE = Logistic(-5.0256, (10.5203, 2.0860))
LOW, HIGH = 0.11, 0.881
"""Below the first, confidence is low: at most 3 % of each set's answerable questions; from the second on it is high:
half of them."""


@dataclass(frozen=True)
class Judgement:
    """Probabilities for one answer.

    Attributes:
        relevances: That each hit is relevant, in the order of the hits.
        confidence: That the documents answer the question.
    """

    relevances: Sequence[float]
    confidence: float

    @property
    def level(self) -> ConfidenceLevel:
        """The confidence in words."""
        if not self.relevances:
            return "none"
        return "low" if self.confidence < LOW else "medium" if self.confidence < HIGH else "high"


def judge(trace: Trace, evidence: Sequence[Evidence]) -> Judgement | None:
    """Return how likely the hits are relevant and answer the question; None unless both indexes ranked.

    Args:
        trace: A hybrid ranking.
        evidence: What is said of its first hits, of `JUDGED` at least where there are so many.
    """
    if trace.query_terms is None or {leaf.name for leaf in trace.leaves()} != {"semantic", "lexical"}:
        return None
    if not evidence:
        return Judgement((), 0.0)
    return Judgement(
        RELEVANCE(hit_features(trace, evidence)).tolist(), float(CONFIDENCE(query_features(trace, evidence)[None])[0])
    )


def hit_features(trace: Trace, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return one row of features for each hit.

    The strength of a hit is how far its fused score is above the mean of the best 100, as a part of how far the best
    one is; 0 below the mean. Its coverage is the part of the query's terms that it holds, rare terms weighing more. Few
    passages answer a question, so what one gains the others lose: the share of a hit is what it gets when 8 strength +
    1.5 coverage of the first 20 compete by softmax. Of that there are

    0. the share's logarithm times the coverage;
    1. the share's logarithm times how rare the query's terms are: their mean idf over log(1 + chunks), about the most
       that a term can have;
    2. the share times what the indexes' first 10 hits have in common;
    3. the share times the standard deviations by which the best cosine similarity is above the mean of all chunks;
    4. and the hit's BM25 score in standard deviations of those of all chunks.
    """
    scores, mean = trace.hits.scores[: len(evidence)], float(trace.hits.scores[:_RANKED].mean())
    reach = float(scores[0]) - mean
    strength = np.maximum(scores - mean, 0.0) / reach if reach > 0 else np.zeros(len(scores))
    covered = _covered(trace, evidence)
    bids = _STRENGTH * strength + _COVERAGE * covered
    share = bids - math.log(float(np.exp(bids[:JUDGED]).sum()))
    won = np.exp(share)
    bm25 = [0.0 if (hit := said.get("lexical")) is None else hit.score for said in evidence]
    return np.array(
        [
            share * covered,
            share * _rarity(trace),
            won * _agreement(trace),
            won * _above(_leaf(trace, "semantic")),
            np.array(bm25) / (_scale(_leaf(trace, "lexical")).unit or 1.0),
        ]
    ).T


def query_features(trace: Trace, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return the features of an answer.

    0. The best BM25 score over the length of the query, as in WIG (Zhou, Croft, "Query Performance Prediction in Web
       Search Environments", SIGIR 2007), and over log(1 + chunks), about the most that a term can weigh. The length is
       the root of the sum of its terms' squared weights: of their number, where none comes from a conversation.
    1. The BM25 score of the first hit as a share of the most it could be, unknown terms included.
    """
    terms = trace.query_terms
    if terms is None or not terms.counts:
        return np.zeros(2)
    length = math.sqrt(sum(weight**2 for weight in terms.counts.values()))
    lexical = _leaf(trace, "lexical")
    best = 0.0 if lexical is None else float(lexical.hits.scores[:1].sum())
    gain = best / length / math.log1p(terms.size)
    first = evidence[0].get("lexical")
    return np.array([gain, 0.0 if first is None else first.score / sum(terms.weights.values())])


def _leaf(trace: Trace, name: str) -> Trace | None:
    return next((leaf for leaf in trace.leaves() if leaf.name == name), None)


def _scale(leaf: Trace | None) -> Scale:
    return Scale(0.0, 0.0) if leaf is None or leaf.scale is None else leaf.scale()


def _above(leaf: Trace | None) -> float:
    """Return how many standard deviations of the scores of all chunks the best one is above their mean."""
    scale = _scale(leaf)
    if leaf is None or len(leaf.hits.scores) == 0 or scale.unit == 0:
        return 0.0
    return (float(leaf.hits.scores[0]) - scale.zero) / scale.unit


def _covered(trace: Trace, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return for each hit the idf of the query's terms that it holds, as a part of that of all of them."""
    weights = {} if (terms := trace.query_terms) is None else terms.weights
    total = sum(weights.values()) or 1.0
    held = [() if (hit := said.get("lexical")) is None else hit.matched_terms for said in evidence]
    return np.array([sum(map(weights.__getitem__, matched)) / total for matched in held])


def _rarity(trace: Trace) -> float:
    terms = trace.query_terms
    if terms is None or not terms.counts:
        return 0.0
    return sum(terms.weights.values()) / sum(terms.counts.values()) / math.log1p(terms.size)


def _agreement(trace: Trace) -> float:
    """Return how many of their first 10 hits all indexes have, as a part of what the longest list has."""
    firsts = [set(leaf.hits.rows[:_FIRST].tolist()) for leaf in trace.leaves()]
    longest = max(map(len, firsts), default=0)
    return len(set.intersection(*firsts)) / longest if longest else 0.0
