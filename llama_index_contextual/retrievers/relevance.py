"""How likely a passage is relevant, and that the documents answer at all: from what ranking computed anyway, no LLM.

Two logistic models over a handful of features that do not depend on the scale of an embedding. They were fitted by
`python -m tests.benchmarks.relevance --data ../shared/data` with the local settings on four question sets (source code,
contracts, long Markdown documents, conversations), each set counting alike; the script prints the constants below and
how they hold on a set that the fit has not seen. With other settings they are an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.results import ConfidenceLevel
from llama_index_contextual.retrievers.fusion import share_of_score
from llama_index_contextual.retrievers.lexical_index import QueryTerms
from llama_index_contextual.retrievers.trace import Evidence, Trace

JUDGED = 20
"""Hits that compete with each other, however many are asked for."""

_SEMANTIC, _LEXICAL, _DOCUMENT = 0.3, 0.7, 0.1  # the local settings' weights, with which the models were fitted
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


RELEVANCE = Logistic(-1.5510, (0.5117, 1.2944, 1.0344, 0.2069))
CONFIDENCE = Logistic(-5.1273, (11.8104, 1.7714))
LOW, HIGH = 0.16, 0.885
"""Below the first, confidence is low: 3 % of a set's answerable questions; from the second on it is high: half."""


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
    terms = _terms(trace)
    if terms is None or {leaf.name for leaf in trace.leaves()} != {"semantic", "lexical"}:
        return None
    if not evidence:
        return Judgement((), 0.0)
    return Judgement(
        RELEVANCE(hit_features(trace, evidence)).tolist(), float(CONFIDENCE(query_features(trace, evidence)[None])[0])
    )


def hit_features(trace: Trace, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return one row of features for each hit.

    The strength of a hit is what the local settings' score fusion gives it. The features:

    0. the logarithm of its share when the strengths of the first 20 compete (softmax with sharpness 10);
    1. its lead over the next hit, as a share of the largest strength;
    2. its strength times the share of the query's terms that it holds, rare terms weighing more;
    3. its BM25 score in standard deviations above the mean of the lexical candidates.
    """
    terms = _terms(trace)
    strength = _strengths(trace, evidence)
    first = strength[:JUDGED]
    largest = float(first.max())
    competing = _SHARPNESS * (strength - largest)
    share = competing - math.log(float(np.exp(competing[:JUDGED]).sum()))
    lead = np.maximum(strength - np.append(strength[1:], 0.0), 0.0) / (largest or 1.0)
    weights = terms.weights if terms is not None else {}
    total = sum(weights.values()) or 1.0
    covered = np.array([_weight_of(said, weights) / total for said in evidence])
    return np.column_stack([share, lead, strength * covered, _lexical_deviation(trace, evidence)])


def query_features(trace: Trace, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return the features of an answer.

    0. The best BM25 score over the root of the number of terms, as in WIG (Zhou, Croft, "Query Performance Prediction
       in Web Search Environments", SIGIR 2007), and over log(1 + chunks), about the most that a term can weigh.
    1. The BM25 score of the first hit as a share of the most it could be, unknown terms included.
    """
    terms = _terms(trace)
    if terms is None or not terms.counts:
        return np.zeros(2)
    lexical = next(leaf.hits.scores for leaf in trace.leaves() if leaf.name == "lexical")
    gain = float(lexical.max(initial=0.0)) / math.sqrt(sum(terms.counts.values())) / math.log1p(terms.size)
    first = evidence[0].get("lexical")
    most = sum(terms.weights.values())
    return np.array([gain, 0.0 if first is None else first.score / most])


def _terms(trace: Trace) -> QueryTerms | None:
    return next((leaf.terms for leaf in trace.leaves() if leaf.terms is not None), None)


def _strengths(trace: Trace, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    found = np.zeros(len(evidence))
    for leaf in trace.leaves():
        weight = _SEMANTIC if leaf.name == "semantic" else _LEXICAL
        shares = share_of_score(leaf.hits.scores, weight)
        for at, said in enumerate(evidence):
            if leaf.name is not None and (hit := said.get(leaf.name)) is not None:
                found[at] += shares[hit.rank - 1]
    if trace.support is not None and (largest := float(trace.support.scores.max(initial=0.0))) > 0:
        found += _DOCUMENT * trace.support.scores[: len(evidence)] / largest
    return found


def _lexical_deviation(trace: Trace, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    scores = next(leaf.hits.scores for leaf in trace.leaves() if leaf.name == "lexical")
    if len(scores) < 2 or (spread := float(scores.std())) == 0:
        return np.zeros(len(evidence))
    mean, hits = float(scores.mean()), [said.get("lexical") for said in evidence]
    return np.array([0.0 if hit is None else (hit.score - mean) / spread for hit in hits])


def _weight_of(said: Evidence, weights: dict[str, float]) -> float:
    hit = said.get("lexical")
    return 0.0 if hit is None else sum(weights.get(term, 0.0) for term in hit.matched_terms)
