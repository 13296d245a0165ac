"""Probability that a passage is relevant and that the documents answer the question, estimated without an LLM.

Logistic models use a few features of the ranking, which depend neither on the scale of an embedding nor on the number
of results. There is one pair of models for each kind of search, because a ranking has only the features of its indexes.
They were fitted by `python -m tests.benchmarks.relevance --data ../shared/data --embedding MODEL` on five question sets
(source code, contracts, long Markdown documents, conversations, annual and quarterly reports), each of which counts
alike: all with WordLlama, and for the confidence all but the reports also with a transformer (all-MiniLM-L6-v2, chunks
of 180 tokens). The script prints the constants below and how they hold for a set that took no part in the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import Mode
from llama_index_contextual.retrievers.base import Evidence, Ranking
from llama_index_contextual.retrievers.documents import DocumentLeg
from llama_index_contextual.retrievers.fusion import Scale
from llama_index_contextual.retrievers.response import ConfidenceLevel

Array = NDArray[np.float64]

JUDGED = 20
"""Number of hits that are compared with each other, independent of the number of results."""

RANKED = 100
"""Number of hits over which scores are averaged; fewer if the settings allow fewer candidates."""

_FIRST = 10
_NEARLY = 1e-9  # a probability is never 0 or 1, so that its log-odds are finite
_BEST = 5
_ALONE = 0.7  # concentration in a collection of one document: `python -m tests.benchmarks.alone --data ../shared/data`
_STRENGTH, _COVERAGE = 8.0, 1.5  # chosen on the same sets; values from 6 to 10 and from 1 to 2 differ little


@dataclass(frozen=True)
class Logistic:
    """A probability, 1 / (1 + exp(-(intercept + sum of coefficient x feature)))."""

    intercept: float
    coefficients: Mapping[str, float]

    def __call__(self, features: Mapping[str, Array | float]) -> Array:
        """Return the probabilities for the values of the features, by name."""
        linear = self.intercept + sum(value * features[name] for name, value in self.coefficients.items())
        return np.asarray(1.0 / (1.0 + np.exp(-np.asarray(linear))))


@dataclass(frozen=True)
class Models:
    """The models for one kind of search.

    Attributes:
        confidence: Probability that the documents answer the question.
        relevance: Probability that a hit is relevant.
        low: Limit of the level "low": at most 2 % of the answerable questions of each set are below it.
        high: Limit of the level "high": half of all answerable questions reach it.
    """

    confidence: Logistic
    relevance: Logistic
    low: float
    high: float


MODELS: Mapping[Mode, Models] = {
    "semantic": Models(
        confidence=Logistic(-4.2293, {"reach": 3.8359, "concentration": 1.7477}),
        relevance=Logistic(-3.8578, {"answer": 0.1637, "share": 0.2336, "cosine": 0.5863}),
        low=0.147,
        high=0.732,
    ),
    "lexical": Models(
        confidence=Logistic(-4.7085, {"gain": 8.3129, "concentration": 2.5208}),
        relevance=Logistic(
            -3.2913, {"answer": 0.2373, "share": 0.1262, "covering": -0.1276, "rare": 0.5330, "bm25": 0.2421}
        ),
        low=0.108,
        high=0.929,
    ),
    "hybrid": Models(
        confidence=Logistic(-8.0051, {"gain": 8.6049, "reach": 2.5656, "concentration": 2.6525, "named": 0.6598}),
        relevance=Logistic(
            -3.2476,
            {
                "answer": 0.1421,
                "share": 0.1442,
                "covering": -0.1048,
                "rare": 0.7775,
                "agreed": 2.4556,
                "bm25": 0.1701,
                "cosine": 0.1942,
            },
        ),
        low=0.055,
        high=0.927,
    ),
}


@dataclass(frozen=True)
class Judgement:
    """Probabilities for one response.

    Attributes:
        relevances: Probability that each hit is relevant, in the order of the hits.
        confidence: Probability that the documents answer the question.
        level: The confidence in words.
    """

    relevances: Sequence[float]
    confidence: float
    level: ConfidenceLevel


def judge(
    ranking: Ranking,
    evidence: Sequence[Evidence],
    documents: DocumentLeg | None = None,
    *,
    question: str = "",
    low: float | None = None,
) -> Judgement | None:
    """Return the probabilities for a ranking; None if other indexes than those of a project ranked.

    A question in another language than that of the index shares few words with the passages that answer it, so it is
    judged by the semantic ranking only.

    Args:
        ranking: The ranking of a search.
        evidence: Scores and ranks of its first hits: at least `JUDGED` if there are so many.
        documents: Tells which hits belong to the same document; None if that is not known.
        question: The question in words.
        low: Limit of the level "low"; None uses that of the models.
    """
    mode, terms = _mode(ranking), ranking.query_terms
    if mode is None:
        return None
    if mode == "hybrid" and terms is not None and terms.analyzer.is_foreign(question):
        mode = "semantic"
    if not evidence:
        return Judgement((), 0.0, "none")
    models, of_query = MODELS[mode], query_features(ranking, evidence, documents)
    confidence = min(max(float(models.confidence(of_query)), _NEARLY), 1 - _NEARLY)
    relevances = models.relevance(hit_features(ranking, evidence, confidence))
    limit = models.low if low is None else low
    level: ConfidenceLevel = "low" if confidence < limit else "medium" if confidence < models.high else "high"
    return Judgement(relevances.tolist(), confidence, level)


def _mode(ranking: Ranking) -> Mode | None:
    modes: dict[frozenset[str | None], Mode] = {
        frozenset(("semantic", "lexical")): "hybrid",
        frozenset(("semantic",)): "semantic",
        frozenset(("lexical",)): "lexical",
    }
    return modes.get(frozenset(leaf.name for leaf in ranking.leaves()))


# ---- features of a question ------------------------------------------------------------------------------------------


def query_features(
    ranking: Ranking, evidence: Sequence[Evidence], documents: DocumentLeg | None = None
) -> dict[str, float]:
    """Return the features of a response, as far as its indexes have them.

    All are independent of the number of chunks and of the length of the question.

    - gain: the best BM25 score over the length of the query, as in WIG (Zhou, Croft, "Query Performance Prediction in
      Web Search Environments", SIGIR 2007), and over the largest possible idf, that of a term in a single chunk. The
      length is the root of the sum of the squared weights of the terms: outside conversations, of their number.
    - reach: the mean of the best 5 cosine similarities (in small collections, of the best twentieth), in standard
      deviations above the mean of all chunks, over sqrt(2 log(chunks)), which is about the largest of as many random
      values.
    - concentration: the share of the most frequent document among the first 10 hits, above its share of all chunks. A
      collection of one document tells nothing by it and gets a constant, with which at most about 2 % of the answerable
      questions are "low".
    - named: the reciprocal rank of the first hit's document by its name, title and opening.
    """
    features: dict[str, float] = {"concentration": _concentration(ranking, documents)}
    document = evidence[0].get("document") if evidence else None
    features["named"] = 0.0 if document is None else 1.0 / document.rank
    if (lexical := _leaf(ranking, "lexical")) is not None:
        features["gain"] = _gain(lexical)
    if (semantic := _leaf(ranking, "semantic")) is not None:
        features["reach"] = _reach(semantic, max(2, len(ranking.ids)))
    return features


def _gain(leaf: Ranking) -> float:
    if (terms := leaf.terms) is None or not terms.counts:
        return 0.0
    length = math.sqrt(sum(weight**2 for weight in terms.counts.values()))
    largest = math.log1p((terms.size - 0.5) / 1.5)
    return float(leaf.hits.scores[:1].sum()) / length / largest


def _reach(leaf: Ranking, chunks: int) -> float:
    scale = _scale(leaf)
    if len(leaf.hits.scores) == 0 or scale.unit == 0:
        return 0.0
    best = leaf.hits.scores[: max(1, min(_BEST, chunks // 20))]
    return (float(best.mean()) - scale.zero) / scale.unit / math.sqrt(2 * math.log(chunks))


def _concentration(ranking: Ranking, documents: DocumentLeg | None) -> float:
    if documents is None or len(ranking.hits.rows) == 0:
        return 0.0
    numbers, counts = np.unique(documents.of(ranking.hits.rows[:_FIRST]), return_counts=True)
    found, expected = counts.max() / counts.sum(), documents.share(int(numbers[counts.argmax()]))
    return _ALONE if expected == 1.0 else max(0.0, float(found - expected) / (1.0 - expected))


# ---- features of hits ------------------------------------------------------------------------------------------------


def hit_features(ranking: Ranking, evidence: Sequence[Evidence], confidence: float) -> dict[str, Array]:
    """Return the features of each hit, one value per hit.

    The strength of a hit is the distance of its score from the mean of the best 100, divided by the distance of the
    best score; 0 below the mean. Its coverage is the share of the query's terms that it contains, weighted by idf. Few
    passages answer a question, so the hits compete: the share of a hit is the softmax of 8 strength + 1.5 coverage over
    the first 20 hits.

    - answer: the log-odds of the confidence, since a hit is relevant only if the documents answer the question.
    - share: the logarithm of the share.
    - covering: the same times the coverage.
    - rare: the same times the rarity of the query's terms: their mean idf over log(1 + chunks).
    - agreed: the share times the overlap of the first 10 hits of the indexes.
    - bm25: the BM25 score, in standard deviations of the scores of all chunks.
    - cosine: the distance of the cosine similarity from the mean of all chunks, in standard deviations.
    """
    scores, mean = ranking.hits.scores[: len(evidence)], float(ranking.hits.scores[:RANKED].mean())
    reach = float(scores[0]) - mean
    strength = np.maximum(scores - mean, 0.0) / reach if reach > 0 else np.zeros(len(scores))
    coverage = _coverage(ranking, evidence)
    logits = _STRENGTH * strength + _COVERAGE * coverage
    log_share = logits - math.log(float(np.exp(logits[:JUDGED]).sum()))
    return {
        "answer": np.full(len(scores), math.log(confidence / (1.0 - confidence))),
        "share": log_share,
        "covering": log_share * coverage,
        "rare": log_share * _rarity(ranking),
        "agreed": np.exp(log_share) * _agreement(ranking),
        "bm25": _scaled(ranking, "lexical", evidence, zero=False),
        "cosine": _scaled(ranking, "semantic", evidence, zero=True),
    }


def _scaled(ranking: Ranking, name: str, evidence: Sequence[Evidence], *, zero: bool) -> Array:
    """Return the scores of the hits in an index in standard deviations, from zero or from the mean; 0 for others."""
    scale = _scale(_leaf(ranking, name))
    start = scale.zero if zero else 0.0
    scores = [start if (one := found.get(name)) is None else one.score for found in evidence]
    return (np.array(scores) - start) / (scale.unit or 1.0)


def _leaf(ranking: Ranking, name: str) -> Ranking | None:
    return next((leaf for leaf in ranking.leaves() if leaf.name == name), None)


def _scale(leaf: Ranking | None) -> Scale:
    return Scale(0.0, 0.0) if leaf is None or leaf.scale is None else leaf.scale()


def _coverage(ranking: Ranking, evidence: Sequence[Evidence]) -> Array:
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
