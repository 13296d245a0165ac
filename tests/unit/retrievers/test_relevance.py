"""Relevance and confidence: their arithmetic, spelled out, and properties of any response."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from llama_index.core.schema import Document, TextNode

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.base import Ranking
from llama_index_contextual.retrievers.bm25 import LexicalIndex, LexicalQuery
from llama_index_contextual.retrievers.confidence import MODELS, Logistic, hit_features, judge, query_features
from llama_index_contextual.retrievers.fusion import Hits, Scale
from llama_index_contextual.retrievers.response import RetrievedChunk
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
    features = hit_features(found, found.evidence(20), 0.8)
    # The mean of the fused scores 1.1 and 0 is 0.55: strengths 1 and 0. Row 0 holds both terms, row 1 the more frequent
    # one. Both indexes have both rows. The cosine similarities are 3 standard deviations above the mean, and 1 below.
    pump, motor = (math.log1p((3 - n + 0.5) / (n + 0.5)) for n in (1, 2))
    rarity, covered = (pump + motor) / 2 / math.log1p(3), motor / (pump + motor)
    all_bids = math.log(math.exp(8 + 1.5) + math.exp(1.5 * covered))
    first, second = 8 + 1.5 - all_bids, 1.5 * covered - all_bids
    assert {name: values.tolist() for name, values in features.items()} == {
        "answer": pytest.approx([math.log(4), math.log(4)]),
        "share": pytest.approx([first, second]),
        "covering": pytest.approx([first, second * covered]),
        "rare": pytest.approx([first * rarity, second * rarity]),
        "agreed": pytest.approx([math.exp(first), math.exp(second)]),
        "bm25": pytest.approx([1.5, 0.5]),
        "cosine": pytest.approx([3, -1]),
    }


def test_hits_below_the_mean_are_as_strong_as_the_mean() -> None:
    semantic, lexical = trace("sensor").leaves()
    found = Ranking(hits([0, 1, 2, 3], [1.1, 0.6, -0.5, -0.9]), parts=(semantic, lexical))
    competing = hit_features(found, found.evidence(20), 0.5)["share"]
    assert competing[2] == competing[3] < competing[1] < competing[0]


def test_the_overlap_of_the_indexes_is_relative_to_the_longest_list() -> None:
    _, lexical = trace().leaves()
    semantic = Ranking(hits([0, 5, 6, 7], [0.9, 0.8, 0.7, 0.1]), name="semantic")
    found = Ranking(hits([0, 1], [1.1, 0.0]), parts=(semantic, lexical))
    assert hit_features(found, found.evidence(20), 0.5)["agreed"][0] == pytest.approx(1 / 4, rel=1e-3)


def test_features_are_always_finite() -> None:
    found = trace()
    semantic, lexical = found.leaves()
    nothing = Ranking(hits([], []), name="lexical", terms=lexical.terms)
    flat = replace(semantic, scale=lambda: Scale(0.0, 0.0))
    negative = Ranking(hits([0, 1], [-0.1, -0.9]), parts=(flat, nothing))
    features = hit_features(negative, negative.evidence(20), 0.5)
    assert all(np.isfinite(values).all() for values in features.values())
    assert query_features(negative, [], "pump") == {"near": 0.9, "cover": 0.0}


def chunk(text: str, **metadata: str) -> RetrievedChunk:
    return RetrievedChunk(node=TextNode(text=text, metadata=metadata), score=1.0)


def test_nearness_is_the_best_similarity_less_half_of_what_chance_reaches() -> None:
    found = replace(trace(), ids=["a", "b", "c"])
    # The best cosine is 0.9 among three chunks, with a standard deviation of 0.2; of the two hits that pass a filter,
    # chance reaches less. Similarities begin at 0: 0.3 - 3.5 x 0.2 is below.
    assert query_features(found, [], "")["near"] == pytest.approx(0.9 - 0.5 * 0.2 * math.sqrt(2 * math.log(3)))
    of_two = query_features(found, [], "", is_filtered=True)["near"]
    assert of_two == pytest.approx(0.9 - 0.5 * 0.2 * math.sqrt(2 * math.log(2)))


def test_a_model_that_finds_everything_similar_is_measured_from_where_its_similarities_begin() -> None:
    semantic, lexical = trace().leaves()
    narrow = replace(semantic, scale=lambda: Scale(0.7, 0.02))
    found = Ranking(hits([0, 1], [1.1, 0.0]), ids=["a", "b", "c"], parts=(narrow, lexical))
    begin = 0.7 - 3.5 * 0.02
    chance = 0.5 * 0.02 * math.sqrt(2 * math.log(3))
    assert query_features(found, [], "")["near"] == pytest.approx((0.9 - chance - begin) / (1 - begin))


def test_coverage_is_that_of_the_best_hit_with_its_header() -> None:
    found = trace("pump motor")
    pump, motor = (math.log1p((3 - n + 0.5) / (n + 0.5)) for n in (1, 2))
    apart = [chunk("The pump."), chunk("The motor.")]
    assert query_features(found, apart, "pump motor")["cover"] == pytest.approx(pump / (pump + motor))
    titled = [chunk("The pump.", title="Motor"), chunk("The valve.")]
    assert query_features(found, titled, "pump motor")["cover"] == pytest.approx(1)


def test_hits_from_one_document_are_no_better_than_hits_from_several() -> None:
    one, several = ([chunk("pump", file_name=name) for name in names] for names in (("a.md", "a.md"), ("a.md", "b.md")))
    judged = [judge(trace(), trace().evidence(20), found, question="pump motor") for found in (one, several)]
    assert judged[0] == judged[1]


def test_a_follow_up_without_words_of_its_own_is_judged_by_those_of_the_conversation() -> None:
    semantic, lexical = trace().leaves()
    terms = LexicalIndex.build(["the pump", "motor"]).query((("And why?", 1.0), ("pump motor", 0.5)))
    found = Ranking(hits([0, 1], [1.1, 0.0]), parts=(semantic, replace(lexical, terms=terms)))
    judgement = judge(found, found.evidence(20), [chunk("The pump and its motor.")], question="And why?")
    assert judgement is not None
    assert judgement.level is None
    assert judgement.confidence == pytest.approx(float(MODELS["lexical"].confidence({"cover": 1.0})))


def test_no_hit_is_more_relevant_than_the_documents_answer() -> None:
    found = trace("valve")
    judgement = judge(found, found.evidence(20), [chunk("sensor")], question="valve")
    assert judgement is not None
    assert max(judgement.relevances) <= judgement.confidence


def test_a_logistic_model_is_one_over_one_plus_exp() -> None:
    model = Logistic(0.5, {"a": 2.0, "b": -1.0})
    assert model({"a": np.array([1.0]), "b": 3.0, "c": 9.0}).tolist() == pytest.approx([1 / (1 + math.exp(0.5))])


@pytest.mark.parametrize("mode", get_args(Mode))
def test_more_evidence_is_more_confidence(mode: Mode) -> None:
    models = MODELS[mode]
    assert min(models.confidence.coefficients.values()) > 0
    assert models.relevance.coefficients["answer"] > 0
    if mode != "lexical":
        assert models.low is not None
        assert models.high is not None
        assert 0 < models.low < models.high < 1


@pytest.mark.parametrize("mode", get_args(Mode))
def test_the_models_have_the_features_of_their_indexes(mode: Mode) -> None:
    found = trace()
    ranking = found if mode == "hybrid" else next(leaf for leaf in found.leaves() if leaf.name == mode)
    evidence = ranking.evidence(20)
    assert MODELS[mode].confidence.coefficients.keys() <= query_features(ranking, [], "").keys()
    assert MODELS[mode].relevance.coefficients.keys() <= hit_features(ranking, evidence, 0.5).keys()
    judgement = judge(ranking, evidence, [], question="pump motor")
    assert judgement is not None
    assert 0 < judgement.confidence < 1
    assert len(judgement.relevances) == 2


def test_other_indexes_are_not_judged() -> None:
    other = Ranking(hits([0], [1.0]), name="sparse")
    assert judge(other, other.evidence(20), []) is None


def test_a_question_in_another_language_is_judged_by_the_semantic_ranking() -> None:
    semantic, lexical = trace("pumpe").leaves()
    lexical = replace(lexical, terms=LexicalIndex.build(["the pump", "motor"]).query("Wie groß ist die Pumpe?"))
    found = Ranking(hits([0, 1], [1.1, 0.0]), parts=(semantic, lexical))
    evidence = found.evidence(20)
    german, english = (judge(found, evidence, [], question=text) for text in ("Wie groß ist die Pumpe?", "The pump?"))
    assert german is not None
    assert german.confidence == MODELS["semantic"].confidence(query_features(found, [], ""))
    assert english is not None
    assert english.confidence == MODELS["hybrid"].confidence(query_features(found, [], "The pump?"))


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


@pytest.mark.parametrize("mode", get_args(Mode))
def test_there_are_probabilities_in_every_mode(project: Project, mode: Mode) -> None:
    response = project.retrieve("error TS-999", mode=mode)
    assert response.confidence is not None
    assert response.confidence_level in ((None,) if mode == "lexical" else ("low", "medium", "high"))
    assert all(hit.relevance is not None and 0 < hit.relevance < 1 for hit in response)


def test_a_hit_is_less_relevant_if_the_documents_probably_do_not_answer(project: Project) -> None:
    known, strange = project.retrieve("error TS-999"), project.retrieve("quokka habitat on Rottnest")
    assert (known[0].relevance or 0) > 2 * (strange[0].relevance or 1)


@pytest.mark.parametrize("mode", get_args(Mode))
def test_the_number_of_results_does_not_change_the_probabilities(project: Project, mode: Mode) -> None:
    one, all_of_them = (project.retrieve("error TS-999", top_k=k, mode=mode) for k in (1, 3))
    assert one.confidence == all_of_them.confidence
    assert one[0].relevance == all_of_them[0].relevance


def test_words_that_no_document_has_lower_the_confidence(project: Project) -> None:
    known, strange = project.retrieve("error TS-999"), project.retrieve("quokka habitat on Rottnest")
    assert known.confidence is not None
    assert strange.confidence is not None
    assert strange.confidence < (MODELS["hybrid"].low or 0) < known.confidence
    assert strange.confidence_level == "low"


def test_without_results_there_is_no_confidence() -> None:
    empty = Ranking(hits([], []), parts=(Ranking(hits([], []), name="semantic"), _nothing()))
    judgement = judge(empty, [], [])
    assert judgement is not None
    assert (judgement.confidence, judgement.level) == (0.0, "none")


def _nothing() -> Ranking:
    return Ranking(hits([], []), name="lexical", terms=LexicalIndex.build(["pump"]).query("valve"))


def test_overwhelming_evidence_is_not_a_division_by_zero() -> None:
    semantic = Ranking(hits([0, 1], [0.9, 0.1]), name="semantic", scale=lambda: Scale(0.3, 1e-4))
    judgement = judge(semantic, semantic.evidence(20), [])
    assert judgement is not None
    assert 0.99 < judgement.confidence < 1
    assert np.isfinite(judgement.relevances).all()


def test_the_setting_min_confidence_moves_the_limit_of_a_low_confidence(project: Project) -> None:
    before = project.config
    assert project.retrieve("error TS-999").doubt() == ""
    project.config = before.changed(min_confidence=1.0)
    assert "Low confidence" in project.retrieve("error TS-999").doubt()
    project.config = before
