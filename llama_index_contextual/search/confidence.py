"""Confidence of a search and relevance of its hits, estimated without an LLM.

Two values, each meaningful on its own, show whether the documents answer a question: the similarity of the best passage
to the question, and the share of the question's words that occur together in one sentence or table row, where rare
words count most. Neither value depends on whether the hits come from one document or from several, because this is not
informative if many documents resemble each other. For each kind of search, a logistic model turns these values into the
confidence. A second model turns the confidence, and the share of a hit among the first hits, into the relevance of the
hit.

The models were fitted by `python -m tests.benchmarks.relevance --data DATA` on eight equally weighted question sets
(source code, contracts, long Markdown documents, conversations, manuals, tables, and encyclopaedia articles in German
and in Arabic). The negative examples were questions from the other sets, and questions whose relevant documents had
been removed. The script prints the constants below, and their results on sets that were not used for fitting.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import Mode
from llama_index_contextual.index.bm25 import QueryTerms
from llama_index_contextual.index.hits import Scale
from llama_index_contextual.search.rank import Evidence, RankedList, Ranking
from llama_index_contextual.search.response import ConfidenceLevel, UnknownWord
from llama_index_contextual.search.spotlight import Matches

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

    def __call__(self, features: Mapping[str, float]) -> float:
        """Return the probability, given the value of each feature by name."""
        return self.each({name: [value] for name, value in features.items()})[0]

    def each(self, features: Mapping[str, Sequence[float]]) -> list[float]:
        """Return the probability of each item, given the values of each feature, one for each item."""
        values = tuple(self.coefficients.values())
        rows = zip(*(features[name] for name in self.coefficients), strict=True)
        linear = (self.intercept + sum(map(operator.mul, values, row)) for row in rows)
        return [1.0 / (1.0 + math.exp(-min(max(value, -500.0), 500.0))) for value in linear]


@dataclass(frozen=True)
class Models:
    """The logistic models for one kind of search.

    Attributes:
        confidence: Model of the probability that the documents answer the question.
        relevance: Model of the probability that a hit is relevant, from the logarithm of its share and the log-odds of
            the confidence.
        cut: Relevance below which a result is folded away where people and agents read. On sets that were not used for
            fitting, 97 % of the evidence among the first five hits and 90 % of that among the first twenty are kept.
        low: Confidence below which the level is "low"; at most 5 % of the answerable questions are below this limit.
            None if there are no levels.
        high: Confidence from which the level is "high"; at most 3 % of the questions on other subjects reach this
            limit.
    """

    confidence: Logistic
    relevance: Logistic
    cut: float
    low: float | None
    high: float | None


MODELS: Mapping[Mode, Models] = {
    "semantic": Models(
        confidence=Logistic(-3.0946, {"near": 13.2696}),
        relevance=Logistic(-0.0117, {"share": 1.1595, "confidence": 0.2854}),
        cut=0.02,
        low=0.21,
        high=0.57,
    ),
    "lexical": Models(
        confidence=Logistic(-2.9856, {"cover": 7.6875}),
        relevance=Logistic(-0.01, {"share": 0.9524, "confidence": 0.2871}),
        cut=0.03,
        low=None,
        high=None,
    ),
    "hybrid": Models(
        confidence=Logistic(-4.7327, {"near": 9.6583, "cover": 5.8213}),
        relevance=Logistic(0.0267, {"share": 1.0615, "confidence": 0.3114}),
        cut=0.045,
        low=0.215,
        high=0.581,
    ),
}


@dataclass(frozen=True)
class ConfidenceEstimate:
    """Probabilities for one response.

    Attributes:
        relevances: Probability that each hit is relevant, in the order of the hits; at most the confidence.
        confidence: Probability that the documents answer the question.
        level: The confidence as a word; None if there are no reliable limits for this kind of search.
        cut: Relevance below which a hit is folded away by default.
    """

    relevances: Sequence[float]
    confidence: float
    level: ConfidenceLevel | None
    cut: float = 0.0


def estimate_confidence(
    ranking: Ranking,
    evidence: Evidence,
    covered: Array,
    *,
    question: str = "",
    language: str = "",
    unknown: Sequence[UnknownWord] = (),
    is_filtered: bool = False,
    low: float | None = None,
) -> ConfidenceEstimate:
    """Return the probabilities for a ranking.

    If a question is in a different language from the index, it shares few words with the passages that answer it, so
    the confidence depends only on the semantic ranking. If a follow-up question has no content words ("And why?"), its
    embedding is not close to any passage, so the confidence depends only on the words of the conversation. If only
    lines of contexts are in the language of a question, there is no level, because no limits are reliable. If no
    document contains a name in the question, the level is at most "medium".

    Args:
        ranking: The ranking of a search.
        evidence: Scores and ranks of the hits whose relevance is estimated.
        covered: Coverage of the question by each of the first hits, from `coverages`: at least `SCORED_HITS`, or all if
            there are fewer.
        question: Text of the question.
        language: Language of the question if it is not one of those of the documents, otherwise "".
        unknown: Words of the question that no document contains.
        is_filtered: Whether only some of the chunks were ranked.
        low: Confidence below which the level is "low"; None uses the limit from the models.
    """
    names = {ranked.name for ranked in ranking.lists}
    mode: Mode = "hybrid" if len(names) > 1 else next(iter(names))
    if not len(ranking.hits.rows):
        return ConfidenceEstimate((), 0.0, "none")
    if mode == "hybrid" and (terms := ranking.terms) is not None:
        if not terms.counts or language:
            mode = "semantic"
        elif not any(of_word for _, of_word, _ in terms.analyzer.own_terms(question)):
            mode = "lexical"
    models, of_query = MODELS[mode], query_features(ranking, covered, is_filtered=is_filtered)
    most = 1 - _NEARLY
    if models.high is not None and any(word.is_name for word in unknown):
        most = math.nextafter(models.high, 0.0)
    confidence = min(max(models.confidence(of_query), _NEARLY), most)
    shares = shares_of(ranking, covered)[: evidence.matches.shape[1]]
    of_hits = {"share": shares, "confidence": [math.log(confidence / (1 - confidence))] * len(shares)}
    relevances = [min(probability, confidence) for probability in models.relevance.each(of_hits)]
    if ranking.terms is not None and language in ranking.terms.analyzer.context_languages:
        return ConfidenceEstimate(relevances, confidence, None)
    return ConfidenceEstimate(relevances, confidence, _level(confidence, models, low), models.cut)


def _level(confidence: float, models: Models, low: float | None) -> ConfidenceLevel | None:
    limit = models.low if low is None else low
    if limit is None:
        return None
    return "low" if confidence < limit else "high" if confidence >= (models.high or 1.0) else "medium"


# ---- unknown words ---------------------------------------------------------------------------------------------------

_OPENING, _SENTENCE_ENDS = " \t\n\"'“„«(", ".!?:;"
_HYPHENATED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")
_QUESTION_WORD = re.compile(r"\w+(?:[-.'/@:+&]\w+)*")


def unknown_words(terms: QueryTerms, text: str) -> list[UnknownWord]:
    """Return the words of a question that no document contains, neither as they are written nor in another form.

    A word whose spelling was corrected is unknown, because another word may have been meant.

    Args:
        terms: The question in the index of the documents.
        text: Text of the question.
    """
    known = {*terms.known, *(variant.of for variant in terms.variants.values() if variant.kind != "spelling")}
    missing = terms.counts.keys() - known
    if not missing:
        return []
    first_letters = {form[0] for form in missing}
    unknown: dict[str, UnknownWord] = {}
    is_shouted = text.upper() == text
    for match in _QUESTION_WORD.finditer(text):
        word = match[0]
        if word.isascii() and word.isalnum() and word[0].lower() not in first_letters:
            continue  # the forms of such a word begin with its first letter
        forms = terms.analyzer.query_terms(word)
        if len(forms) > 1 and _HYPHENATED.fullmatch(word):  # "follow-up" may be written "follow-ups" or "follow up"
            forms = [form for form in forms[1:] if form in missing]
        if (form := max(forms, key=len, default="")) in missing:
            is_marked = any(sign in ".@_" or sign.isdecimal() for sign in word)
            before = text[max(0, match.start() - 9) : match.start()].rstrip(_OPENING)
            is_inside = before != "" and before[-1] not in _SENTENCE_ENDS  # of a sentence
            is_name = is_marked or (is_inside and not is_shouted and word != word.lower())
            unknown.setdefault(form, UnknownWord(word, is_name))
    return list(unknown.values())


# ---- question features -----------------------------------------------------------------------------------------------


def query_features(ranking: Ranking, covered: Array, *, is_filtered: bool = False) -> dict[str, float]:
    """Return the features of a question that can be computed from the searched indexes.

    - near: the best cosine similarity, minus half of the best similarity expected by chance, which is about
      sqrt(2 log(n)) standard deviations for n chunks. With some embedding models, any two texts have a similarity far
      above 0, so the zero point is 3.5 standard deviations below the mean, or 0 if that is negative.
    - cover: the share of the question's terms (weighted by idf) that occur in a single sentence or table row of the
      first 10 hits, or in its title, file name, section or column headers; the highest of these shares is used.
    """
    features: dict[str, float] = {}
    if (semantic := ranking.list_of("semantic")) is not None:
        zero, unit = _nearness(ranking, semantic, is_filtered=is_filtered)
        features["near"] = (float(semantic.hits.scores[0]) - zero) / unit if len(semantic.hits.scores) else 0.0
    if ranking.terms is not None:
        features["cover"] = float(covered[:READ].max(initial=0.0))
    return features


def _nearness(ranking: Ranking, semantic: RankedList, *, is_filtered: bool) -> Scale:
    """Return the scale that turns similarities into `near`; see `query_features`."""
    scale, chunks = semantic.scale, len(semantic.hits.rows) if is_filtered else len(ranking.ids)
    lowest = max(0.0, scale.zero - _LOWEST * scale.unit)
    chance = scale.unit * math.sqrt(2 * math.log(max(2, chunks)))
    return Scale(lowest + _CHANCE * chance, max(1.0 - lowest, _NEARLY))


def coverages(ranking: Ranking, matches: Matches) -> Array:
    """Return the coverage of the question by each of the first hits, or zeros; see `cover` in `query_features`.

    Args:
        ranking: The ranking.
        matches: The units of its first hits.
    """
    terms = ranking.terms
    if terms is None:
        return np.zeros(matches.units.rows)
    weights = {term: weight for term, weight in terms.weights.items() if term not in terms.variants}
    # A corrected word may not be the word that was meant, so it does not cover the question.
    covering = {one.term: one.of for one in terms.variants.values() if one.kind != "spelling"}
    return matches.coverage(weights, covering)


# ---- hits ------------------------------------------------------------------------------------------------------------


def shares_of(ranking: Ranking, covered: Array) -> list[float]:
    """Return the logarithm of the share of each hit for which a coverage is given.

    The strength of a hit is the difference between its score and the mean of the best 100 scores, divided by the same
    difference for the best score. Below the mean, the strength is 0; if there are fewer scores, the others count as 0.
    Few passages answer a question, so the hits are compared with each other: the share of a hit is the softmax of
    8 × strength + 1.5 × coverage over the first 20 hits.

    Args:
        ranking: The ranking of a search.
        covered: Coverage of the question by each of the first hits, from `coverages`.
    """
    if not len(covered):
        return []
    above = np.maximum(ranking.hits.scores[: len(covered)] - ranking.hits.scores[:RANKED].sum() / RANKED, 0.0)
    logits = _STRENGTH * above / (above.max(initial=0.0) or 1.0) + _COVERAGE * covered
    shares: list[float] = (logits - math.log(np.exp(logits[:SCORED_HITS]).sum())).tolist()
    return shares
