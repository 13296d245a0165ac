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
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.results import ConfidenceLevel
from llama_index_contextual.retrievers.trace import Evidence, Trace

T = TypeVar("T", float, NDArray[np.float64])

JUDGED = 20
"""Hits that compete with each other, however many are asked for."""

_RANKED = 100  # of each index; settings with fewer candidates are judged by what there is
_SHARPNESS = 10.0


@dataclass(frozen=True)
class Logistic:
    """A probability, 1 / (1 + exp(-(intercept + coefficients . features)))."""

    intercept: float
    coefficients: tuple[float, ...]

    def __call__(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one probability for each row of features."""
        found: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-(self.intercept + features @ np.asarray(self.coefficients))))
        return found


RELEVANCE = Logistic(-2.3038, (1.5279, 0.2812, 0.0598, 0.4020, 0.3478, 0.1744, 3.7481))
CONFIDENCE = Logistic(-5.1339, (11.2417, 2.4577))
LOW, HIGH = 0.133, 0.888
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

    The strength of a hit is its fused score as a share of the best one. Its share is what it gets when the strengths of
    the first 20 compete (softmax with sharpness 10), and counts as a logarithm. The BM25 scores that the others are
    compared with are the best 100.

    0. strength times coverage: the share of the query's terms that the hit holds, rare terms weighing more;
    1. share times coverage;
    2. share times the standard deviations by which the best BM25 score is above the mean;
    3. share times the spread of the BM25 scores over their mean, as in NQC (Shtok, Kurland, Carmel, "Predicting Query
       Performance by Query-Drift Estimation", ICTIR 2009);
    4. the hit's BM25 score in standard deviations above the mean, times the best one's lead over the second;
    5. its BM25 score in standard deviations of those of all chunks;
    6. agreement of the indexes, 1 / ((1 + semantic rank) (1 + lexical rank)), 0 unless both have it, less its mean over
       the first 20.
    """
    lexical, scores = _lexical(trace), trace.hits.scores[: len(evidence)]
    best = float(scores[0])
    strength = scores / best if best > 0 else np.zeros(len(scores))
    share = _SHARPNESS * (strength - strength[0])
    share -= math.log(float(np.exp(share[:JUDGED]).sum()))
    covered = _covered(trace, evidence)
    bm25 = np.array([0.0 if (hit := said.get("lexical")) is None else hit.score for said in evidence])
    agreement = _agreement(evidence)
    return np.column_stack(
        [
            strength * covered,
            share * covered,
            share * lexical.deviation(lexical.best),
            share * (lexical.spread / (lexical.mean or 1.0)),
            np.where(bm25 > 0, lexical.deviation(bm25), 0.0) * lexical.lead,
            bm25 / (lexical.unit or 1.0),
            agreement - agreement[:JUDGED].mean(),
        ]
    )


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
    gain = _lexical(trace).best / length / math.log1p(terms.size)
    first = evidence[0].get("lexical")
    return np.array([gain, 0.0 if first is None else first.score / sum(terms.weights.values())])


@dataclass(frozen=True)
class _Lexical:
    """The best BM25 scores, and what scores are compared with.

    Attributes:
        best: The largest; 0 without any.
        lead: How much of it the second one lacks.
        mean: Of them.
        spread: Their standard deviation.
        unit: Standard deviation of the scores of all chunks.
    """

    best: float
    lead: float
    mean: float
    spread: float
    unit: float

    def deviation(self, scores: T) -> T:
        """Return how many standard deviations scores are above the mean."""
        return (scores - self.mean) / (self.spread or 1.0)


def _lexical(trace: Trace) -> _Lexical:
    leaf = next((leaf for leaf in trace.leaves() if leaf.name == "lexical"), None)
    if leaf is None or len(leaf.hits.scores) == 0:
        return _Lexical(0.0, 0.0, 0.0, 0.0, 0.0)
    scores, unit = leaf.hits.scores[:_RANKED], 0.0 if leaf.scale is None else leaf.scale().unit
    best, second = float(scores[0]), float(scores[1]) if len(scores) > 1 else 0.0
    return _Lexical(best, (best - second) / best, float(scores.mean()), float(scores.std()), unit)


def _covered(trace: Trace, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    weights = {} if (terms := trace.query_terms) is None else terms.weights
    total = sum(weights.values()) or 1.0
    held = [() if (hit := said.get("lexical")) is None else hit.matched_terms for said in evidence]
    return np.array([sum(weights.get(term, 0.0) for term in matched) / total for matched in held])


def _agreement(evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    found = np.zeros(len(evidence))
    for at, said in enumerate(evidence):
        one, other = said.get("semantic"), said.get("lexical")
        if one is not None and other is not None:
            found[at] = 1 / ((1 + one.rank) * (1 + other.rank))
    return found
