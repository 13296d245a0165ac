"""Relevance and confidence: their arithmetic, spelled out, and properties of any response."""

from __future__ import annotations

import math

import numpy as np
import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers import confidence as relevance
from llama_index_contextual.retrievers.base import Ranking
from llama_index_contextual.retrievers.bm25 import LexicalIndex, LexicalQuery
from llama_index_contextual.retrievers.confidence import Logistic, hit_features, judge, query_features
from llama_index_contextual.retrievers.fusion import Hits, Scale
from tests.support.models import CountingEmbedding


def hits(rows: list[int], scores: list[float]) -> Hits:
    return Hits(np.array(rows, dtype=np.int64), np.array(scores, dtype=np.float64))


def trace(query: LexicalQuery = "pump motor") -> Ranking:
    """Two hits: row 0 is first in both indexes and row 1 last.

    The scores of all chunks vary by 2 (BM25) and 0.2 (cosine, about 0.3).
    """
    index = LexicalIndex.build(["pump motor", "motor", "valve"], language="none")
    semantic = Ranking(hits([0, 1], [0.9, 0.1]), name="semantic", scale=lambda: Scale(0.3, 0.2))
    lexical = Ranking(hits([0, 1], [3.0, 1.0]), name="lexical", terms=index.query(query), scale=lambda: Scale(0.0, 2.0))
    return Ranking(hits([0, 1], [1.1, 0.0]), parts=(semantic, lexical))


def test_the_features_of_hits_match_their_description() -> None:
    found = trace()
    features = hit_features(found, found.evidence(20))
    # The mean of the fused scores 1.1 and 0 is 0.55: strengths 1 and 0. Row 0 holds both terms, row 1 the more frequent
    # one. Both indexes have both rows; the best cosine similarity is 3 standard deviations above the mean.
    pump, motor = (math.log1p((3 - n + 0.5) / (n + 0.5)) for n in (1, 2))
    rarity, covered = (pump + motor) / 2 / math.log1p(3), motor / (pump + motor)
    all_bids = math.log(math.exp(8 + 1.5) + math.exp(1.5 * covered))
    first, second = 8 + 1.5 - all_bids, 1.5 * covered - all_bids
    assert features[0].tolist() == pytest.approx([first, first * rarity, math.exp(first), 3 * math.exp(first), 1.5])
    assert features[1].tolist() == pytest.approx(
        [second * covered, second * rarity, math.exp(second), 3 * math.exp(second), 0.5],
    )


def test_hits_below_the_mean_are_as_strong_as_the_mean() -> None:
    semantic, lexical = trace("sensor").leaves()
    found = Ranking(hits([0, 1, 2, 3], [1.1, 0.6, -0.5, -0.9]), parts=(semantic, lexical))
    competing = hit_features(found, found.evidence(20))[:, 1]
    assert competing[2] == competing[3] < competing[1] < competing[0]


def test_the_overlap_of_the_indexes_is_relative_to_the_longest_list() -> None:
    _, lexical = trace().leaves()
    semantic = Ranking(hits([0, 5, 6, 7], [0.9, 0.8, 0.7, 0.1]), name="semantic")
    found = Ranking(hits([0, 1], [1.1, 0.0]), parts=(semantic, lexical))
    assert hit_features(found, found.evidence(20))[0, 2] == pytest.approx(1 / 4, rel=1e-3)


def test_features_are_always_finite() -> None:
    found = trace()
    semantic, lexical = found.leaves()
    nothing = Ranking(hits([], []), name="lexical", terms=lexical.terms)
    negative = Ranking(hits([0, 1], [-0.1, -0.9]), parts=(semantic, nothing))
    features = hit_features(negative, negative.evidence(20))
    assert np.isfinite(features).all()
    assert query_features(negative, negative.evidence(20)).tolist() == [0, 0]


def test_the_features_of_an_answer_are_gain_and_share_of_the_best_possible_score() -> None:
    found = trace()
    pump, motor = (math.log1p((3 - n + 0.5) / (n + 0.5)) for n in (1, 2))
    gain = 3 / math.sqrt(2) / math.log1p(3)
    assert query_features(found, found.evidence(20)).tolist() == pytest.approx([gain, 3 / (pump + motor)])


def test_terms_from_a_conversation_count_by_their_weight() -> None:
    found = trace((("pump", 1.0), ("motor", 0.5)))
    pump, motor = (math.log1p((3 - n + 0.5) / (n + 0.5)) for n in (1, 2))
    gain = 3 / math.sqrt(1 + 0.25) / math.log1p(3)
    assert query_features(found, found.evidence(20)).tolist() == pytest.approx([gain, 3 / (pump + motor / 2)])


def test_a_logistic_model_is_one_over_one_plus_exp() -> None:
    model = Logistic(0.5, (2.0, -1.0))
    assert model(np.array([[1.0, 3.0]])).tolist() == pytest.approx([1 / (1 + math.exp(0.5))])


def test_every_coefficient_says_that_more_is_better() -> None:
    assert min(relevance.RELEVANCE.coefficients) > 0
    assert min(relevance.CONFIDENCE.coefficients) > 0
    assert 0 < relevance.LOW < relevance.HIGH < 1


def test_a_single_index_is_not_judged() -> None:
    found = trace()
    for leaf in found.leaves():
        assert judge(leaf, leaf.evidence(20)) is None


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    texts = {
        "dry": "Error code TS-999 means that the pump runs dry.",
        "valve": "Close the valve before the pump is switched off.",
        "revenue": "Revenue grew in the second quarter.",
    }
    manager = ProjectManager(tmp_path_factory.mktemp("judged"))
    made = manager.create("p", ProjectConfig.local(context="none"), embed_model=CountingEmbedding())
    made.ingest([Document(id_=name, text=text) for name, text in texts.items()])
    return made


def test_an_answer_says_how_likely_its_hits_are_relevant(project: Project) -> None:
    response = project.retrieve("error TS-999")
    shown = [hit.relevance for hit in response]
    assert all(value is not None and 0 < value < 1 for value in shown)
    assert shown[0] == max(shown, key=lambda value: value or 0)
    assert [node.relevance for node in response.to_nodes()] == shown  # type: ignore[attr-defined]
    assert response.to_dict()["results"][0]["relevance"] == shown[0]


@pytest.mark.parametrize("mode", ["semantic", "lexical"])
def test_without_both_indexes_there_are_no_probabilities(project: Project, mode: str) -> None:
    response = project.retrieve("error TS-999", mode=mode)  # type: ignore[arg-type]
    assert (response.confidence, response.confidence_level, response[0].relevance) == (None, None, None)


def test_the_number_of_results_does_not_change_the_probabilities(project: Project) -> None:
    one, all_of_them = project.retrieve("error TS-999", top_k=1), project.retrieve("error TS-999", top_k=3)
    assert one.confidence == all_of_them.confidence
    assert one[0].relevance == all_of_them[0].relevance


def test_words_that_no_document_has_lower_the_confidence(project: Project) -> None:
    known, strange = project.retrieve("error TS-999"), project.retrieve("quokka habitat on Rottnest")
    assert known.confidence is not None
    assert strange.confidence is not None
    assert strange.confidence < relevance.LOW < known.confidence
    assert strange.confidence_level == "low"


def test_without_results_there_is_no_confidence() -> None:
    empty = Ranking(hits([], []), parts=(Ranking(hits([], []), name="semantic"), _nothing()))
    judgement = judge(empty, [])
    assert judgement is not None
    assert (judgement.confidence, judgement.level) == (0.0, "none")


def _nothing() -> Ranking:
    return Ranking(hits([], []), name="lexical", terms=LexicalIndex.build(["pump"]).query("valve"))
