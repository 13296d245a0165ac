"""Relevance and confidence: their arithmetic, spelled out, and properties of any response."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from llama_index_contextual.config import Mode
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.bm25 import LexicalIndex, LexicalQuery
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale
from llama_index_contextual.index.units import Units
from llama_index_contextual.metadata import TITLE
from llama_index_contextual.search.confidence import (
    MODELS,
    READ,
    coverages,
    estimate_confidence,
    query_features,
    shares_of,
    unknown_words,
)
from llama_index_contextual.search.rank import RankedList, Ranking
from llama_index_contextual.search.response import UnknownWord
from llama_index_contextual.search.spotlight import Matches

NOTHING = np.zeros(2)
"""Two hits that cover no word of the question."""


def hits(rows: Sequence[int], scores: Sequence[float]) -> Hits:
    return Hits(np.array(rows, dtype=np.int64), np.array(scores, dtype=np.float64))


def fused(*legs: RankedList, rows: Sequence[int] = (0, 1), scores: Sequence[float] = (1.1, 0.0)) -> Ranking:
    """Return a ranking of three chunks."""
    return Ranking(hits(rows, scores), ["a", "b", "c"], legs)


def alone(leg: RankedList) -> Ranking:
    """Return the ranking of a search in a single index."""
    return Ranking(leg.hits, ["a", "b", "c"], [leg])


def covered(ranking: Ranking, *passages: tuple[str, str]) -> NDArray[np.float64]:
    """Return the coverage of "pump motor" by passages, given as their texts and titles."""
    units = Units.of([(text, {TITLE: title}) for text, title in passages], Analyzer("none"), has_vectors=False)
    weights = {} if ranking.terms is None else ranking.terms.weights
    return coverages(ranking, Matches.of(units, weights))


def trace(query: LexicalQuery = "pump motor") -> Ranking:
    """Two hits: row 0 is first in both indexes and row 1 last.

    The scores of all chunks vary by 2 (BM25) and 0.2 (cosine, about 0.3).
    """
    index = LexicalIndex.build(["pump motor", "motor", "valve"], language="none")
    semantic = RankedList("semantic", hits([0, 1], [0.9, 0.1]), Scale(0.3, 0.2))
    lexical = RankedList("lexical", hits([0, 1], [3.0, 1.0]), Scale(0.0, 2.0), index.query(query))
    return fused(semantic, lexical)


def test_the_shares_of_hits_match_their_description() -> None:
    # 98 missing scores count as 0, so the mean of the fused scores 1.1 and 0 is 0.011: strengths 1 and 0.
    both = math.log(math.exp(8 + 1.5) + math.exp(1.5 * 0.25))
    assert shares_of(trace(), np.array([1.0, 0.25])) == pytest.approx([8 + 1.5 - both, 1.5 * 0.25 - both])
    assert shares_of(trace(), np.zeros(0)) == []


def test_hits_below_the_mean_are_as_strong_as_the_mean() -> None:
    ranking = fused(*trace("sensor").lists, rows=[0, 1, 2, 3], scores=[1.1, 0.6, -0.5, -0.9])
    competing = shares_of(ranking, np.zeros(4))
    assert competing[2] == competing[3] < competing[1] < competing[0]


def test_two_good_hits_of_a_small_file_are_both_strong() -> None:
    ranking = fused(*trace("sensor").lists, rows=[0, 1], scores=[3.0, 2.7])
    first, second = np.exp(shares_of(ranking, np.zeros(2)))
    assert 0.25 < second < first < 0.75


def test_shares_are_always_finite() -> None:
    semantic, lexical = trace().lists
    flat, nothing = replace(semantic, scale=NO_SCALE), replace(lexical, hits=NO_HITS)
    negative = fused(flat, nothing, scores=[-0.1, -0.9])
    assert all(map(math.isfinite, shares_of(negative, np.zeros(2))))
    assert query_features(negative, NOTHING) == {"near": 0.9, "cover": 0.0}


def test_nearness_is_the_best_similarity_less_half_of_what_chance_reaches() -> None:
    found = trace()
    # The best cosine is 0.9 among three chunks, with a standard deviation of 0.2; of the two hits that pass a filter,
    # chance reaches less. Similarities begin at 0: 0.3 - 3.5 x 0.2 is below.
    assert query_features(found, NOTHING)["near"] == pytest.approx(0.9 - 0.5 * 0.2 * math.sqrt(2 * math.log(3)))
    of_two = query_features(found, NOTHING, is_filtered=True)["near"]
    assert of_two == pytest.approx(0.9 - 0.5 * 0.2 * math.sqrt(2 * math.log(2)))


def test_a_model_that_finds_everything_similar_is_measured_from_where_its_similarities_begin() -> None:
    semantic, lexical = trace().lists
    found = fused(replace(semantic, scale=Scale(0.7, 0.02)), lexical)
    begin = 0.7 - 3.5 * 0.02
    chance = 0.5 * 0.02 * math.sqrt(2 * math.log(3))
    assert query_features(found, NOTHING)["near"] == pytest.approx((0.9 - chance - begin) / (1 - begin))


def test_coverage_is_that_of_the_best_hit_with_its_header() -> None:
    found = trace("pump motor")
    pump, motor = (math.log1p((3 - n + 0.5) / (n + 0.5)) for n in (1, 2))
    apart = covered(found, ("The pump.", ""), ("The motor.", ""))
    assert apart.tolist() == pytest.approx([pump / (pump + motor), motor / (pump + motor)])
    assert query_features(found, apart)["cover"] == pytest.approx(pump / (pump + motor))
    titled = covered(found, ("The pump.", "Motor"), ("The valve.", ""))
    assert query_features(found, titled)["cover"] == pytest.approx(1)
    assert query_features(found, np.array([0.2] * READ + [0.9]))["cover"] == 0.2  # only the first hits are read
    assert query_features(alone(found.lists[0]), covered(alone(found.lists[0]), ("The pump.", ""))).keys() == {"near"}


def test_a_follow_up_without_words_of_its_own_is_judged_by_those_of_the_conversation() -> None:
    semantic, lexical = trace().lists
    terms = LexicalIndex.build(["the pump", "motor"]).query((("And why?", 1.0), ("pump motor", 0.5)))
    found = fused(semantic, replace(lexical, terms=terms))
    estimate = estimate_confidence(found, found.evidence(20), np.ones(1), question="And why?")
    assert estimate.level is None
    assert estimate.confidence == pytest.approx(float(MODELS["lexical"].confidence({"cover": 1.0})))


def test_no_hit_is_more_relevant_than_the_documents_answer() -> None:
    found = trace("valve")
    estimate = estimate_confidence(found, found.evidence(20), np.zeros(2), question="valve")
    assert max(estimate.relevances) <= estimate.confidence


def unknown(texts: list[str], question: str, language: str = "english") -> dict[str, bool]:
    """Return the words of a question that no text contains, with whether each is written like a name."""
    terms = LexicalIndex.build(texts, language=language).query(question)
    return {str(word): word.is_name for word in unknown_words(terms, question)}


def test_words_that_no_document_contains_are_listed_and_names_are_recognised() -> None:
    texts = ["The notice period of the lease is three months.", "Error TS-999: watchdog reset.", "Urlaubsregelung"]
    assert unknown(texts, "What is the notice period?") == {}
    assert unknown(texts, "What is the notice period at Zembla?") == {"Zembla": True}
    assert unknown(texts, "how long is the notice at zembla.com?") == {"long": False, "zembla.com": True}
    assert unknown(texts, "Cancellation of the lease") == {"Cancellation": False}, "the first word of a sentence"
    assert unknown(texts, "lease? Cancellation") == {"Cancellation": False}
    assert unknown(texts, "What does TS-998 mean? And TS-999?") == {"TS-998": True, "mean": False}
    assert unknown(texts, "NOTICE AT ZEMBLA") == {"ZEMBLA": False}, "nothing is a name if all letters are capitals"
    assert unknown(texts, "ts 999") == {}, "a code in another spelling"
    assert unknown(["A follow-up is due."], "Two follow-ups, or a follow up?") == {"Two": False}
    assert unknown(texts, "the period-end and the notice-period") == {"period-end": False}, "a part is missing"
    assert unknown(texts, "the notize period") == {"notize": False}, "a corrected word may be another one"
    assert unknown(texts, "Regelung", "german") == {}, "a part of a compound"


def test_a_name_that_no_document_contains_prevents_the_level_high() -> None:
    ranking = trace("pump motor")
    evidence, covering = ranking.evidence(20), np.ones(2)
    sure = estimate_confidence(ranking, evidence, covering, question="pump motor")
    assert sure.level == "high"
    capped = estimate_confidence(
        ranking, evidence, covering, question="pump motor", unknown=[UnknownWord("Zembla", is_name=True)]
    )
    assert capped.level == "medium"
    assert capped.confidence < MODELS["hybrid"].high <= sure.confidence  # type: ignore[operator]
    assert max(capped.relevances) <= capped.confidence
    ordinary = estimate_confidence(
        ranking, evidence, covering, question="pump motor", unknown=[UnknownWord("mean", is_name=False)]
    )
    assert ordinary == sure


def test_more_evidence_is_more_confidence() -> None:
    for mode, models in MODELS.items():
        assert min(models.confidence.coefficients.values()) > 0
        assert min(models.relevance.coefficients.values()) > 0
        assert mode == "lexical" or 0 < (models.low or 0) < (models.high or 0) < 1


@pytest.mark.parametrize("mode", get_args(Mode))
def test_every_mode_is_judged_by_the_features_of_its_indexes(mode: Mode) -> None:
    found = trace()
    ranking = found if mode == "hybrid" else alone(next(leg for leg in found.lists if leg.name == mode))
    estimate = estimate_confidence(ranking, ranking.evidence(20), NOTHING, question="pump motor")
    features, model = query_features(ranking, NOTHING), MODELS[mode].confidence
    logit = model.intercept + sum(model.coefficients[name] * features[name] for name in model.coefficients)
    assert estimate.confidence == pytest.approx(1 / (1 + math.exp(-logit)))
    assert len(estimate.relevances) == 2


def test_a_question_in_another_language_is_judged_by_the_semantic_ranking() -> None:
    semantic, lexical = trace("pumpe").lists
    lexical = replace(lexical, terms=LexicalIndex.build(["the pump", "motor"]).query("Wie groß ist die Pumpe?"))
    found = fused(semantic, lexical)
    german, english = (
        estimate_confidence(found, found.evidence(20), NOTHING, question=text, language=language)
        for text, language in (("Wie groß ist die Pumpe?", "german"), ("The pump?", ""))
    )
    assert german.confidence == MODELS["semantic"].confidence(query_features(found, NOTHING))
    assert english.confidence == MODELS["hybrid"].confidence(query_features(found, NOTHING))


def test_without_results_there_is_no_confidence() -> None:
    empty = fused(*(replace(leg, hits=NO_HITS) for leg in trace("sensor").lists), rows=[], scores=[])
    estimate = estimate_confidence(empty, empty.evidence(20), NOTHING)
    assert (estimate.confidence, estimate.level) == (0.0, "none")


def test_overwhelming_evidence_is_not_a_division_by_zero() -> None:
    semantic = alone(replace(trace().lists[0], scale=Scale(0.3, 1e-4)))
    estimate = estimate_confidence(semantic, semantic.evidence(20), NOTHING)
    assert 0.99 < estimate.confidence < 1
    assert np.isfinite(estimate.relevances).all()
