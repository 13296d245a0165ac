"""Lexical retrieval over an engine: the scores and the evidence of files, also after the mean length has changed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index import remote
from llama_index_contextual.index.qdrant_index import QdrantIndex
from llama_index_contextual.index.remote_terms import RemoteQueryTerms
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers import LexicalRetriever
from llama_index_contextual.search.rank import Ranking
from tests.support.models import CountingEmbedding

pytest.importorskip("qdrant_client")

WORDS = "pump valve lease court tariff engine filter copper harbour freight boiler sensor".split()  # noqa: SIM905
QUESTIONS = ("pump valve", "report 7 tariff", "valv pump harbour", "unheard of zymurgy", "the pump")


def documents(seed: int, number: int = 20, length: int = 30) -> list[Document]:
    chance = random.Random(seed)
    return [
        Document(text=f"Report {at}. " + " ".join(chance.choices(WORDS, range(1, 13), k=length)) + ".", id_=f"d{at}")
        for at in range(number)
    ]


Pair = tuple[Project, Project]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """The same project in files and in an engine."""
    manager = ProjectManager(tmp_path)
    config = ProjectConfig.local(chunk_size=24, chunk_overlap=4, keep_versions=9)
    model = CountingEmbedding()
    on_files = manager.create("files", config, embed_model=model)
    settings = config.changed(backend="qdrant::memory:")
    yield on_files, manager.create("engine", settings, embed_model=model)
    manager.delete("engine")


def ranked(project: Project, question: str, k: int = 30) -> Ranking:
    return LexicalRetriever(project.live_version.index).rank(question, k)


def require_equal(pair: Pair) -> None:
    """Check that rows, scores, frequencies and evidence of the lexical index are the same."""
    for question in QUESTIONS:
        mine, theirs = (ranked(project, question) for project in pair)
        assert mine.hits.rows.tolist() == theirs.hits.rows.tolist(), question
        assert mine.hits.scores.tolist() == theirs.hits.scores.tolist(), question
        assert mine.terms is not None
        assert theirs.terms is not None
        assert mine.terms.weights == theirs.terms.weights
        assert mine.evidence(10) == theirs.evidence(10)
        answers = [project.retrieve(question, top_k=10) for project in pair]
        assert [hit.node_id for hit in answers[0]] == [hit.node_id for hit in answers[1]]
        assert [hit.score for hit in answers[0]] == pytest.approx([hit.score for hit in answers[1]], rel=1e-4)
        assert [hit.relevance for hit in answers[0]] == pytest.approx([hit.relevance for hit in answers[1]], abs=1e-5)


def test_scores_and_evidence_are_those_of_files_without_documents_that_are_gone(pair: Pair) -> None:
    for project in pair:
        project.ingest(documents(1, 40))
        project.ingest([*documents(2)[:2], Document(text="A new harbour", id_="new")])
        project.remove("d5")
    assert any(part.gone for part in pair[1].live_version.parts)
    assert isinstance(pair[1].live_version.index, QdrantIndex)
    require_equal(pair)


def test_scores_follow_the_mean_length_of_today(pair: Pair) -> None:
    for project in pair:
        project.ingest(documents(1, 10, length=8))
        project.ingest([Document(text=one.text, id_=f"long {one.id_}") for one in documents(3, 30, length=300)])
    index: Any = pair[1].live_version.index.lexical
    assert index.drift > 0.1
    require_equal(pair)
    pair[1].rebuild()
    index = pair[1].live_version.index.lexical
    assert index.drift == 0.0
    for question in QUESTIONS:
        mine, theirs = (ranked(project, question) for project in pair)
        assert sorted(mine.hits.scores.tolist()) == sorted(theirs.hits.scores.tolist())
    assert pair[1].rebuild().version == "v000003"  # nothing is left to do


def test_a_merge_of_parts_changes_no_score(pair: Pair) -> None:
    for project in pair:
        project.ingest(documents(1, 30))
        for number in range(12):
            project.ingest([Document(text=f"Addendum {number} about a pump {number}", id_=f"a{number}")])
        assert len(project.live_version.parts) < 12
    require_equal(pair)
    assert pair[1].verify().problems == []


def test_the_deviation_of_scores_is_estimated_for_large_parts(pair: Pair) -> None:
    for project in pair:
        project.ingest(documents(1, 120, length=60))
    index: Any = pair[1].live_version.index.lexical
    for question in QUESTIONS[:3]:
        rankings = [ranked(project, question) for project in pair]
        exact, own = (ranking.legs[0].scale.unit for ranking in rankings)
        assert own == pytest.approx(exact, rel=1e-6)
        terms = rankings[1].terms
        assert isinstance(terms, RemoteQueryTerms)
        assert terms.deviation(index.chunks_of) == pytest.approx(exact, rel=0.05)
    assert remote.SAMPLE == 2_048


def test_the_deviation_of_independent_terms_is_the_sum_of_their_variances(pair: Pair) -> None:
    pair[1].ingest([Document(text="alpha beta", id_="1"), Document(text="alpha", id_="2"), Document(text="c", id_="3")])
    terms: Any = ranked(pair[1], "alpha").terms
    (holders,) = terms.holders
    weights = [float(terms.idf[0]) * holders.mean] * 2 + [0.0]
    # The mean square of the weights differs from the square of their mean, as the texts have different lengths.
    second = 2 / 3 * float(terms.idf[0]) ** 2 * holders.square
    assert terms.deviation(np.array([1, 1, 1])) == pytest.approx((second - np.mean(weights) ** 2) ** 0.5)
