"""An engine answers as files do: the same documents, results, scores, evidence and reasons."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import compare_variants, sweep_variants
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import INDEX_NAMES, Explanation, IndexScore
from llama_index_contextual.search.results import RetrievalResponse
from tests.integration.backends.site import QUERIES, Site, documents
from tests.integration.backends.test_contract import FILTERS, MODES, facts

SEED = 11


def require_equal_evidence(one: RetrievalResponse, other: RetrievalResponse) -> None:
    """Check that two responses have the same results, scores, evidence and confidence.

    Results with equal scores may be in any order.
    """
    assert (one.mode_used, one.warnings, one.version) == (other.mode_used, other.warnings, other.version)
    assert one.confidence_level == other.confidence_level
    assert one.confidence == pytest.approx(other.confidence, abs=1e-4)
    assert [hit.rank for hit in one] == [hit.rank for hit in other]
    theirs = {hit.node_id: hit for hit in other}
    assert {hit.node_id for hit in one} == theirs.keys()
    for hit in one:
        twin = theirs[hit.node_id]
        assert (hit.text, hit.context, hit.source) == (twin.text, twin.context, twin.source)
        assert hit.get_score() == pytest.approx(twin.get_score(), rel=1e-4, abs=1e-4)
        assert (hit.relevance is None) == (twin.relevance is None)
        assert hit.relevance is None or hit.relevance == pytest.approx(twin.relevance, abs=1e-4)
        for leg in INDEX_NAMES:
            require_equal_legs(getattr(hit, leg), getattr(twin, leg), leg)


def require_equal_legs(one: IndexScore | None, other: IndexScore | None, leg: str) -> None:
    """Check that score, rank and matched terms of a chunk in an index are the same."""
    assert (one is None) == (other is None), leg
    if one is not None and other is not None:
        assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-5), leg
        assert (one.rank, set(one.matched_terms)) == (other.rank, set(other.matched_terms)), leg


def require_equal_explanations(ones: Sequence[Explanation], others: Sequence[Explanation]) -> None:
    """Check that the reasons for the ranks are the same."""
    theirs = {item.node_id: item for item in others}
    assert {item.node_id for item in ones} == theirs.keys()
    for item in ones:
        twin = theirs[item.node_id]
        assert dict(item.shares) == pytest.approx(dict(twin.shares), rel=1e-3, abs=1e-3)
        for terms in ("in_text", "in_context", "in_structure", "missing"):
            assert set(getattr(item, terms)) == set(getattr(twin, terms)), terms


def both(site: Site, twin: Site, run: Callable[[Project], object], **settings: Any) -> tuple[Project, Project]:
    """Do the same with a project on the backend and one on files, and return both."""
    projects = site.create(**settings), twin.create(**settings)
    for project in projects:
        run(project)
    return projects


def require_equal_answers(one: Project, other: Project, **options: Any) -> None:
    """Check that two projects give the same answers."""
    for query in QUERIES:
        require_equal_evidence(one.retrieve(query, **options), other.retrieve(query, **options))


@pytest.mark.parametrize("fusion", ["rrf", "score"])
@pytest.mark.parametrize("mode", MODES)
def test_results_evidence_and_confidence_are_those_of_files(site: Site, twin: Site, mode: str, fusion: str) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(documents(1, 40)), fusion=fusion)
    require_equal_answers(project, reference, mode=mode)
    require_equal_answers(project, reference, mode=mode, top_k=1_000)
    mine, theirs = (one.retrieve_many(list(QUERIES), mode=mode, top_k=3) for one in (project, reference))
    for response, expected in zip(mine, theirs, strict=True):
        require_equal_evidence(response, expected)


def test_explanations_are_those_of_files(site: Site, twin: Site) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(documents(1, 40)))
    for query in QUERIES:
        mine, theirs = (one.retrieve(query, explain=True, top_k=5) for one in (project, reference))
        require_equal_explanations(mine.explanations, theirs.explanations)
        require_equal_explanations(mine.near_misses, theirs.near_misses)


@pytest.mark.parametrize(
    "settings",
    [
        {"indexes": "semantic"},
        {"indexes": "lexical"},
        {"document_weight": 0.0},
        {"language": "none"},
        {"language": "german"},
        {"context": "none"},
        {"acronym_table": {"PV": "pump valve"}},
    ],
    ids=str,
)
def test_settings_have_the_same_effect_as_on_files(site: Site, twin: Site, settings: dict[str, Any]) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(documents(1, 20)), **settings)
    for mode in MODES:
        require_equal_answers(project, reference, mode=mode)
    mine, theirs = (one.retrieve("PV of iron") for one in (project, reference))
    require_equal_evidence(mine, theirs)


def test_drawn_filters_let_the_same_documents_pass_as_files(site: Site, twin: Site) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(facts()))
    chance = random.Random(SEED)
    singles = [filters.filters[0] for filters, _ in FILTERS.values() if filters.filters]
    for _ in range(60):
        inner = [
            MetadataFilters(filters=chance.choices(singles, k=count), condition=chance.choice(["and", "or"]))
            for count in chance.choices([1, 2, 3], k=chance.randint(1, 3))
        ]
        filters = MetadataFilters(filters=inner, condition=chance.choice(["and", "or", "not"]))
        for mode in MODES:
            assert passing(project, filters, mode) == passing(reference, filters, mode), (mode, filters)


def passing(project: Project, filters: MetadataFilters, mode: Any) -> set[str | None] | str:
    """Return the documents that filters let pass, or the message of the error if none passes."""
    try:
        return {hit.source.doc_id for hit in project.retrieve("pump", mode=mode, filters=filters, top_k=50)}
    except InputError as error:
        return str(error)


def test_variants_are_compared_as_on_files_and_leave_nothing(site: Site, twin: Site) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(documents(1, 20)))
    questions = [
        Question(text=document.text.split(": ")[1].split(".")[0], evidence=[Evidence(text=document.text[:60])])
        for document in documents(1, 20)[::4]
    ]
    mine, theirs = (compare_variants(one, questions, variants=["none", "structural"]) for one in (project, reference))
    assert mine.names == theirs.names
    for name in mine.names:
        assert mine[name].values("MRR") == pytest.approx(theirs[name].values("MRR"))
    assert project.retrieve("report").version == "v000001"
    assert project.verify().problems == []
    swept = sweep_variants(project, questions, chunk_sizes=[20, 40], modes=["hybrid"], top_ks=[5])
    assert swept
    assert project.verify().problems == []
