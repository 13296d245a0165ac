"""Confidence of a search and relevance of its hits, estimated without an LLM.

Two values, each meaningful on its own, show whether the documents answer a question: the similarity of the best passage
to the question, and the share of the question's words that occur together in one sentence or table row, where rare
words count most. Neither value depends on whether the hits come from one document or from several, because this is not
informative if many documents resemble each other.

For each kind of search, a logistic model turns these values into probabilities. The models were fitted by `python -m
tests.benchmarks.relevance --data DATA` on five equally weighted question sets (source code, contracts, long
Markdown documents, conversations, annual and quarterly reports). The negative examples were questions from the other
sets, and questions whose relevant documents had been removed. The script prints the constants below, and their results
on sets that were not used for fitting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import Mode
from llama_index_contextual.index.hits import NO_SCALE
from llama_index_contextual.search.rank import Evidence, Leg, LegName, Ranking
from llama_index_contextual.search.response import ConfidenceLevel
from llama_index_contextual.search.spotlight import Matches, question_parts

Array = NDArray[np.float64]

READ = 10
"""Number of hits whose text is compared with the question."""

SCORED_HITS = 20
"""Number of hits that are compared with each other, regardless of the number of results."""

RANKED = 100
"""Number of hits whose scores are averaged, or fewer if the settings allow fewer candidates."""

_FIRST = 10
_NEARLY = 1e-9  # keeps probabilities away from 0 and 1, so that log-odds are finite
_CHANCE = 0.5  # subtracted share of the similarity expected by chance; values from 0.3 to 0.7 give similar results
_LOWEST = 3.5  # similarities are measured from this many standard deviations below the mean
_STRENGTH, _COVERAGE = 8.0, 1.5  # chosen on the same sets; values of 6 to 10 and 1 to 2 give similar results


@dataclass(frozen=True)
class Logistic:
    """Logistic model of a probability: 1 / (1 + exp(-(intercept + sum of coefficient x feature)))."""

    intercept: float
    coefficients: Mapping[str, float]

    def __call__(self, features: Mapping[str, Array | float]) -> Array:
        """Return the probabilities, given the values of each feature by name."""
        linear = self.intercept + sum(value * features[name] for name, value in self.coefficients.items())
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(linear, -500.0, 500.0))))


@dataclass(frozen=True)
class Models:
    """The logistic models for one kind of search.

    Attributes:
        confidence: Model of the probability that the documents answer the question.
        relevance: Model of the probability that a hit is relevant.
        low: Confidence below which the level is "low"; at most 5 % of the answerable questions are below this limit.
            None if there are no levels.
        high: Confidence from which the level is "high"; at most 5 % of the questions on other subjects reach this
            limit.
    """

    confidence: Logistic
    relevance: Logistic
    low: float | None
    high: float | None


MODELS: Mapping[Mode, Models] = {
    "semantic": Models(
        confidence=Logistic(-3.3527, {"near": 13.7138}),
        relevance=Logistic(-2.3001, {"answer": 0.2497, "share": 0.7612, "cosine": 0.4502}),
        low=0.204,
        high=0.718,
    ),
    "lexical": Models(
        confidence=Logistic(-2.6142, {"cover": 6.2153}),
        relevance=Logistic(
            -2.9830, {"answer": 0.2709, "share": 0.4064, "covering": 0.0539, "rare": 0.2370, "bm25": 0.2766}
        ),
        low=None,
        high=None,
    ),
    "hybrid": Models(
        confidence=Logistic(-4.2385, {"near": 10.2358, "cover": 3.9438}),
        relevance=Logistic(
            -3.0823,
            {
                "answer": 0.1796,
                "share": 0.2679,
                "covering": 0.0191,
                "rare": 0.5185,
                "agreed": 4.2135,
                "bm25": 0.1694,
                "cosine": 0.1960,
            },
        ),
        low=0.230,
        high=0.680,
    ),
}


@dataclass(frozen=True)
class ConfidenceEstimate:
    """Probabilities for one response.

    Attributes:
        relevances: Probability that each hit is relevant, in the order of the hits; at most the confidence.
        confidence: Probability that the documents answer the question.
        level: The confidence as a word; None if there are no reliable limits for this kind of search.
    """

    relevances: Sequence[float]
    confidence: float
    level: ConfidenceLevel | None


def estimate_confidence(
    ranking: Ranking,
    evidence: Sequence[Evidence],
    covered: Array,
    *,
    question: str = "",
    is_filtered: bool = False,
    low: float | None = None,
) -> ConfidenceEstimate:
    """Return the probabilities for a ranking.

    If a question is in a different language from the index, it shares few words with the passages that answer it, so
    the confidence depends only on the semantic ranking. If a follow-up question has no content words ("And why?"), its
    embedding is not close to any passage, so the confidence depends only on the words of the conversation.

    Args:
        ranking: The ranking of a search.
        evidence: Scores and ranks of the first hits: at least `SCORED_HITS`, or all if there are fewer.
        covered: Coverage of the question by each of the first hits, from `coverages`: at least `READ`, or all if there
            are fewer.
        question: Text of the question.
        is_filtered: Whether only some of the chunks were ranked.
        low: Confidence below which the level is "low"; None uses the limit from the models.
    """
    names = {leg.name for leg in ranking.legs}
    mode: Mode = "hybrid" if len(names) > 1 else next(iter(names))
    if not evidence:
        return ConfidenceEstimate((), 0.0, "none")
    if mode == "hybrid" and (terms := ranking.terms) is not None:
        if not terms.counts or terms.analyzer.is_foreign(question):
            mode = "semantic"
        elif not terms.analyzer.query_terms(question):
            mode = "lexical"
    models, of_query = MODELS[mode], query_features(ranking, covered, is_filtered=is_filtered)
    confidence = min(max(float(models.confidence(of_query)), _NEARLY), 1 - _NEARLY)
    relevances = np.minimum(models.relevance(hit_features(ranking, evidence, confidence)), confidence)
    return ConfidenceEstimate(relevances.tolist(), confidence, _level(confidence, models, low))


def _level(confidence: float, models: Models, low: float | None) -> ConfidenceLevel | None:
    limit = models.low if low is None else low
    if limit is None:
        return None
    return "low" if confidence < limit else "high" if confidence >= (models.high or 1.0) else "medium"


# ---- question features -----------------------------------------------------------------------------------------------


def query_features(ranking: Ranking, covered: Array, *, is_filtered: bool = False) -> dict[str, float]:
    """Return the features of a question that can be computed from the searched indexes.

    - near: the best cosine similarity, minus half of the best similarity expected by chance, which is about
      sqrt(2 log(n)) standard deviations for n chunks. With some embedding models, any two texts have a similarity far
      above 0, so the zero point is 3.5 standard deviations below the mean, or 0 if that is negative.
    - cover: for each sentence of the question, the share of its terms (weighted by idf) that occur in a single sentence
      or table row of the first 10 hits, or in its title, file name, section or column headers; the highest of these
      shares is used.
    """
    features: dict[str, float] = {}
    if (semantic := ranking.leg("semantic")) is not None:
        features["near"] = _near(semantic, len(semantic.hits.rows) if is_filtered else len(ranking.ids))
    if ranking.terms is not None:
        features["cover"] = float(covered[:READ].max(initial=0.0))
    return features


def _near(leg: Leg, chunks: int) -> float:
    if len(leg.hits.scores) == 0:
        return 0.0
    scale = leg.scale
    lowest = max(0.0, scale.zero - _LOWEST * scale.unit)
    chance = scale.unit * math.sqrt(2 * math.log(max(2, chunks)))
    return (float(leg.hits.scores[0]) - _CHANCE * chance - lowest) / max(1.0 - lowest, _NEARLY)


def coverages(ranking: Ranking, matches: Matches, question: str) -> Array:
    """Return the coverage of the question by each of the first hits, or zeros; see `cover` in `query_features`.

    Args:
        ranking: The ranking.
        matches: The units of its first hits.
        question: The question.
    """
    terms = ranking.terms
    if terms is None:
        return np.zeros(matches.units.rows)
    return matches.coverage(question_parts(question, terms.weights, terms.analyzer))


# ---- hit features ----------------------------------------------------------------------------------------------------


def hit_features(ranking: Ranking, evidence: Sequence[Evidence], confidence: float) -> dict[str, Array]:
    """Return the features of each hit, one value per hit.

    The strength of a hit is the difference between its score and the mean of the best 100 scores, divided by the same
    difference for the best score. Below the mean, the strength is 0. The coverage of a hit is the share of the query's
    terms that the hit contains, weighted by idf. Few passages answer a question, so the hits are compared with each
    other: the share of a hit is the softmax of 8 × strength + 1.5 × coverage over the first 20 hits.

    - answer: the log-odds of the confidence, because a hit is relevant only if the documents answer the question.
    - share: the logarithm of the share.
    - covering: the logarithm of the share, multiplied by the coverage.
    - rare: the logarithm of the share, multiplied by the rarity of the query's terms: their mean idf divided by
      log(1 + chunks).
    - agreed: the share, multiplied by the overlap between the first 10 hits of each index.
    - bm25: the BM25 score, in standard deviations over all chunks.
    - cosine: the difference between the cosine similarity and its mean over all chunks, in standard deviations.
    """
    scores, mean = ranking.hits.scores[: len(evidence)], float(ranking.hits.scores[:RANKED].mean())
    reach = float(scores[0]) - mean
    strength = np.maximum(scores - mean, 0.0) / reach if reach > 0 else np.zeros(len(scores))
    covered = _matched_share(ranking, evidence)
    logits = _STRENGTH * strength + _COVERAGE * covered
    log_share = logits - math.log(float(np.exp(logits[:SCORED_HITS]).sum()))
    return {
        "answer": np.full(len(scores), math.log(confidence / (1.0 - confidence))),
        "share": log_share,
        "covering": log_share * covered,
        "rare": log_share * _rarity(ranking),
        "agreed": np.exp(log_share) * _agreement(ranking),
        "bm25": _scaled_scores(ranking, "lexical", evidence, zero=False),
        "cosine": _scaled_scores(ranking, "semantic", evidence, zero=True),
    }


def _scaled_scores(ranking: Ranking, name: LegName, evidence: Sequence[Evidence], *, zero: bool) -> Array:
    """Return each hit's score in an index, in standard deviations; a missing score becomes 0.

    If `zero` is set, the scale's zero point is subtracted from the scores first.
    """
    leg = ranking.leg(name)
    scale = NO_SCALE if leg is None else leg.scale
    start = scale.zero if zero else 0.0
    scores = [start if (one := found.get(name)) is None else one.score for found in evidence]
    return (np.array(scores) - start) / (scale.unit or 1.0)


def _matched_share(ranking: Ranking, evidence: Sequence[Evidence]) -> Array:
    """Return, for each hit, the share of the query's terms that it contains, weighted by idf."""
    weights = {} if (terms := ranking.terms) is None else terms.weights
    total = sum(weights.values()) or 1.0
    terms_of_hits = [() if (lexical := one.get("lexical")) is None else lexical.matched_terms for one in evidence]
    return np.array([sum(map(weights.__getitem__, matched)) / total for matched in terms_of_hits])


def _rarity(ranking: Ranking) -> float:
    """Return how rare the query's terms are: their mean idf, divided by log(1 + number of chunks)."""
    terms = ranking.terms
    if terms is None or not terms.counts:
        return 0.0
    return sum(terms.weights.values()) / sum(terms.counts.values()) / math.log1p(terms.size)


def _agreement(ranking: Ranking) -> float:
    """Return the share of the first 10 hits in each index that all indexes have in common."""
    firsts = [set(leg.hits.rows[:_FIRST].tolist()) for leg in ranking.legs]
    longest = max(map(len, firsts), default=0)
    return len(set.intersection(*firsts)) / longest if longest else 0.0
