"""What a project promises, on each storage backend."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document, TextNode
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import ConfigurationError, ContextualError, InputError, NoVersionError
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage import files
from llama_index_contextual.storage.current import CURRENT
from tests.integration.backends.backends import Backend
from tests.integration.backends.child import READY, STOP
from tests.integration.backends.site import (
    NAME,
    QUERIES,
    Interruption,
    Site,
    WordVectors,
    answers,
    documents,
    marks,
    require_equal_evidence,
    require_equal_explanations,
)
from tests.slow.faults.system import Crash
from tests.support.nodes import chunk

MODES = ("semantic", "lexical", "hybrid")
SECRET = "Quincunx"
SEED = 11

pytestmark = pytest.mark.usefixtures("_fast")


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


# ---- documents -------------------------------------------------------------------------------------------------------


def test_documents_chunks_and_texts_are_those_that_were_ingested(site: Site, twin: Site) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(documents()))
    assert project.documents() == reference.documents()
    for document in documents():
        assert project.read(document.id_) == document.text
        assert project.read(document.id_, 5, 25) == document.text[5:25]
        chunks = project.chunks(document.id_)
        assert [node.to_dict() for node in chunks] == [node.to_dict() for node in reference.chunks(document.id_)]
    assert project.chunks("unknown") == []
    with pytest.raises(InputError, match="no document 'unknown'"):
        project.read("unknown")
    assert project.metadata_keys() == reference.metadata_keys()
    assert project.metadata_values() == reference.metadata_values()
    (info,), (expected,) = project.versions(), reference.versions()
    assert (info.name, info.documents, info.chunks, info.live) == (
        expected.name,
        expected.documents,
        expected.chunks,
        True,
    )


def test_before_the_first_version_there_is_nothing_and_a_search_says_so(site: Site) -> None:
    project = site.create()
    assert (project.documents(), project.versions()) == ((), [])
    with pytest.raises(NoVersionError):
        project.retrieve("pump")
    assert project.verify().problems == []


def test_ids_and_texts_in_any_script_are_kept(site: Site) -> None:
    ids = [
        *("合同/2023 q&a.md", "РЕЗЮМЕ", "a'b\"c", "%_\\", "🦙", "x" * 900, "\u202eabc", "a/../b", "A", "a"),
        *(unicodedata.normalize(form, "über.md") for form in ("NFC", "NFD")),
    ]
    given = [Document(id_=doc_id, text=f"pump {number} 🦙 合同 e\u0301 ß İ") for number, doc_id in enumerate(ids)]
    project = site.create()
    project.ingest(given)
    project = site.load()
    assert {record.doc_id for record in project.documents()} == set(ids)
    for document in given:
        assert project.read(document.id_) == document.text
    assert {hit.source.doc_id for hit in project.retrieve("pump 🦙", top_k=50)} == set(ids)
    for doc_id in ids:
        project.remove(doc_id)
    assert project.documents() == []


def test_ids_and_metadata_of_nodes_are_kept(site: Site, twin: Site) -> None:
    metadata = {
        "none": None,
        "yes": True,
        "number": 2**53 + 1,
        "negative": -(2**63),
        "real": 0.1 + 0.2,
        "list": ["a", "ß", 3],
        "empty": [],
        "text": "e\u0301\n\t\\",
        "a.b[0]": "key with signs",
    }
    nodes: list[TextNode] = [
        chunk("合同-1", "pump one", doc_id="d 1", metadata=metadata),
        chunk("🦙", "pump two", doc_id="d 1", metadata={}),
        chunk("x" * 500, "valve", doc_id="é", metadata={"yes": False}),
    ]
    project, reference = both(site, twin, lambda project: project.ingest(nodes))
    for doc_id in ("d 1", "é"):
        mine, theirs = project.chunks(doc_id), reference.chunks(doc_id)
        assert [node.to_dict() for node in mine] == [node.to_dict() for node in theirs]
    require_equal_answers(project, reference)
    with pytest.raises(InputError, match="has the id of a node of another document"):
        project.ingest([chunk("🦙", "pump three", doc_id="other")])


def test_empty_documents_are_reported_and_an_empty_version_answers_nothing(site: Site, twin: Site) -> None:
    project = site.create()
    report = project.ingest([Document(id_="empty", text=""), Document(id_="blank", text=" \n "), documents()[0]])
    assert {skipped.path for skipped in report.skipped} == {"empty", "blank"}
    assert [record.doc_id for record in project.documents()] == [documents()[0].id_]
    project.remove(documents()[0].id_)
    for mode in MODES:
        response = project.retrieve("report", mode=mode)
        assert (list(response), response.confidence_level) == ([], "none")
    assert project.verify().problems == []
    project.ingest(documents(2))
    reference = twin.create()
    reference.ingest(documents(2))
    assert [hit.text for hit in project.retrieve("pump")] == [hit.text for hit in reference.retrieve("pump")]


def test_a_document_without_words_is_kept(site: Site, twin: Site) -> None:
    given = [Document(id_="stop words", text="the of and"), Document(id_="signs", text="*** --- +++"), *documents()]
    project, reference = both(site, twin, lambda project: project.ingest(given))
    assert project.read("signs") == "*** --- +++"
    for mode in MODES:
        require_equal_answers(project, reference, mode=mode)


# ---- search ----------------------------------------------------------------------------------------------------------


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


async def test_asynchronous_searches_give_the_same_results(site: Site) -> None:
    project = site.create()
    await project.aingest(documents())
    expected = [[hit.node_id for hit in project.retrieve(query)] for query in QUERIES]
    found = await asyncio.gather(*(project.aretrieve(query) for query in QUERIES))
    assert [[hit.node_id for hit in response] for response in found] == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"bm25": False},
        {"faiss": False},
        {"faiss_index": "flat"},
        {"document_weight": 0.0},
        {"sibling_weight": 0.0},
        {"document_idf": False},
        {"language": "none"},
        {"language": "german"},
        {"candidates": 5},
        {"context": "none"},
        {"acronym_table": {"PV": "pump valve"}},
    ],
    ids=lambda settings: "-".join(map(str, *settings.items())),
)
def test_settings_have_the_same_effect_as_on_files(site: Site, twin: Site, settings: dict[str, Any]) -> None:
    if refused := settings.keys() & site.backend.refused_settings.keys():
        pytest.skip(f"{site.backend.name} refuses {', '.join(refused)}")
    project, reference = both(site, twin, lambda project: project.ingest(documents(1, 20)), **settings)
    for mode in MODES:
        require_equal_answers(project, reference, mode=mode)
    mine, theirs = (one.retrieve("PV of iron") for one in (project, reference))
    require_equal_evidence(mine, theirs)


def test_settings_of_the_search_take_effect_at_once_and_others_after_a_rebuild(site: Site, twin: Site) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(documents(1, 20)))
    for one in (project, reference):
        assert one.update_config(top_k=4, fusion="rrf", semantic_weight=0.8) == []
    require_equal_answers(project, reference)
    assert len(project.retrieve("pump")) == 4
    for one in (project, reference):
        assert one.update_config(chunk_size=20) == ["chunk_size"]
        one.rebuild()
    assert [node.text for node in project.chunks(documents()[2].id_)] == [
        node.text for node in reference.chunks(documents()[2].id_)
    ]
    require_equal_answers(project, reference)


def test_llama_index_handles_answer(site: Site) -> None:
    project = site.create()
    project.ingest(documents())
    expected = {hit.node_id for hit in project.retrieve("pump valve", mode="semantic", top_k=5)}
    found = project.index.as_retriever(similarity_top_k=5).retrieve("pump valve")
    assert {hit.node_id for hit in found} == expected
    retriever = project.as_retriever(similarity_top_k=3)
    assert [hit.node_id for hit in retriever.retrieve("pump valve")] == [
        hit.node_id for hit in project.retrieve("pump valve", top_k=3)
    ]


# ---- filters ---------------------------------------------------------------------------------------------------------

FACTS: dict[str, dict[str, Any]] = {
    "a": {"year": 2021, "name": "Über GmbH", "tags": ["x", "y"], "day": "2021-03-01", "draft": True, "rate": 0.5},
    "b": {"year": 2022, "name": "Orlen", "tags": ["y"], "day": "2022-11-30", "draft": False, "rate": 1.5},
    "c": {"year": 2023, "name": "orlen works", "tags": [], "day": "2023-01-15", "rate": -2.0, "a.b": "it's"},
    "d": {"year": "2023", "name": "", "tags": "x", "day": None, "ключ": "значение"},
    "e": {},
}


def one_filter(key: str, operator: str, value: Any = None) -> MetadataFilter:
    return MetadataFilter(key=key, operator=FilterOperator(operator), value=value)


FILTERS: dict[str, tuple[MetadataFilters, str]] = {
    f"{key} {operator} {value}": (MetadataFilters(filters=[one_filter(key, operator, value)]), expected)
    for key, operator, value, expected in [
        ("year", "==", 2022, "b"),
        ("year", "==", "2023", "d"),
        ("year", "!=", 2022, "acde"),
        ("year", ">", 2021, "bc"),
        ("year", ">=", 2021, "abc"),
        ("year", "<", 2023, "ab"),
        ("year", "<=", 2021.5, "a"),
        ("year", "in", [2021, 2023], "ac"),
        ("year", "nin", [2021, 2023], "bde"),
        ("rate", "<", 0, "c"),
        ("rate", ">=", 0.5, "ab"),
        ("draft", "==", 1, "a"),
        ("name", "==", "Über GmbH", "a"),
        ("name", "text_match", "rlen", "bc"),
        ("name", "text_match", "Orlen", "b"),
        ("name", "text_match_insensitive", "ORLEN", "bc"),
        ("tags", "contains", "y", "ab"),
        ("tags", "any", ["x", "z"], "ad"),
        ("tags", "all", ["x", "y"], "a"),
        ("tags", "is_empty", None, "ce"),
        ("name", "is_empty", None, "de"),
        ("day", ">=", "2022-01-01", "bc"),
        ("day", "<", "2022-01-01", "a"),
        ("a.b", "==", "it's", "c"),
        ("ключ", "==", "значение", "d"),
        ("absent", "==", 1, ""),
        ("absent", "!=", 1, "abcde"),
    ]
}
FILTERS["and, or, not"] = (
    MetadataFilters(
        condition=FilterCondition.AND,
        filters=[
            MetadataFilters(
                condition=FilterCondition.OR, filters=[one_filter("year", ">", 2021), one_filter("draft", "==", 1)]
            ),
            MetadataFilters(condition=FilterCondition.NOT, filters=[one_filter("name", "==", "Orlen")]),
        ],
    ),
    "ac",
)
FILTERS["none"] = (MetadataFilters(filters=[]), "abcde")


def facts() -> list[Document]:
    return [Document(id_=name, text=f"pump valve report {name}", metadata=data) for name, data in FACTS.items()]


def operators(filters: MetadataFilters) -> set[FilterOperator]:
    """Return the operators of filters and of those inside."""
    return set().union(
        *(operators(item) if isinstance(item, MetadataFilters) else {item.operator} for item in filters.filters)
    )


def require_passing(project: Project, backend: Backend, filters: MetadataFilters, expected: set[str]) -> None:
    """Check that filters let the expected documents pass in each mode, or are refused by the name of an operator."""
    if refused := operators(filters) & set(backend.refused_operators):
        with pytest.raises(InputError) as refusal:
            project.retrieve("pump", filters=filters)
        assert any(operator.value in str(refusal.value) for operator in refused)
        return
    for mode in MODES:
        passing = {hit.source.doc_id for hit in project.retrieve("pump", mode=mode, filters=filters, top_k=50)}
        assert passing == expected, mode


def test_filters_let_the_same_documents_pass_as_files(site: Site) -> None:
    project = site.create()
    project.ingest(facts())
    for filters, expected in FILTERS.values():
        require_passing(project, site.backend, filters, set(expected))


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
        expected = {hit.source.doc_id for hit in reference.retrieve("pump", filters=filters, top_k=50)}
        require_passing(project, site.backend, filters, {str(doc_id) for doc_id in expected})


def test_filters_apply_before_the_ranking(site: Site, twin: Site) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(documents(1, 40)), candidates=5)
    for share in (0, 3, 39):
        filters = MetadataFilters(filters=[one_filter("share", ">=", share)])
        require_equal_answers(project, reference, filters=filters, top_k=3)


# ---- versions --------------------------------------------------------------------------------------------------------


def test_a_publish_replaces_changed_documents_and_embeds_nothing_else(site: Site) -> None:
    model = WordVectors()
    project = site.create(embed_model=model)
    project.ingest(documents(1))
    model.texts.clear()
    changed = documents(2)[3]
    report = project.ingest([*documents(1)[:3], changed])
    assert (report.version, list(report.updated), len(report.unchanged)) == ("v000002", [changed.id_], 3)
    assert model.texts
    assert all("mark2" in text for text in model.texts)
    assert project.read(changed.id_) == changed.text
    found = [hit for hit in project.retrieve("mark1 mark2 report", top_k=100) if hit.source.doc_id == changed.id_]
    assert found
    assert all("mark2" in hit.text for hit in found)


def test_many_small_publishes_answer_like_one_of_all(site: Site, twin: Site) -> None:
    project, reference = site.create(), twin.create()
    for document in documents(1, 24):
        project.ingest([document])
    project.remove([documents(1, 24)[5].id_, documents(1, 24)[17].id_])
    kept = [document for at, document in enumerate(documents(1, 24)) if at not in (5, 17)]
    reference.ingest(kept)
    assert {record.doc_id for record in project.documents()} == {document.id_ for document in kept}
    for query in QUERIES:
        mine, theirs = project.retrieve(query, top_k=10), reference.retrieve(query, top_k=10)
        assert [hit.get_score() for hit in mine] == pytest.approx(
            [hit.get_score() for hit in theirs], rel=1e-4, abs=1e-4
        )
        assert {hit.text for hit in mine} == {hit.text for hit in theirs}


def test_removed_documents_are_in_no_answer(site: Site, twin: Site) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(documents(1)))
    for one in (project, reference):
        one.remove([documents()[2].id_, documents()[7].id_])
    assert len(project.documents()) == len(documents()) - 2
    for mode in MODES:
        require_equal_answers(project, reference, mode=mode, top_k=100)
        found = {hit.source.doc_id for hit in project.retrieve("report", mode=mode, top_k=100)}
        assert not found & {documents()[2].id_, documents()[7].id_}
    assert project.chunks(documents()[2].id_) == []
    with pytest.raises(InputError):
        project.remove(documents()[2].id_)


def test_a_rollback_restores_the_answers_of_the_version(site: Site) -> None:
    project = site.create()
    project.ingest(documents(1))
    before = answers(project)
    project.ingest([*documents(2)[:6], *documents(3, 15)[12:]])
    after = answers(project)
    project.remove(documents()[0].id_)
    assert project.rollback("v000001") == "v000001"
    assert answers(project) == before
    assert answers(site.load()) == before
    assert project.rollback("v000002") == "v000002"
    assert answers(project) == after
    assert project.rollback() == "v000001"
    with pytest.raises(InputError, match="There is no version"):
        project.rollback()
    assert project.verify().problems == []


def test_an_ingest_after_a_rollback_continues_from_the_version_that_is_live(site: Site, twin: Site) -> None:
    def steps(project: Project) -> None:
        project.ingest(documents(1))
        project.ingest([*documents(2)[:6], Document(id_="abandoned", text="abandoned pump report")])
        project.rollback()
        project.ingest([documents(3, 15)[13]])

    project, reference = both(site, twin, steps)
    assert project.retrieve("report").version == "v000003"
    assert project.documents() == reference.documents()
    assert "abandoned" not in {hit.source.doc_id for hit in project.retrieve("abandoned pump report", top_k=100)}
    require_equal_answers(project, reference, top_k=100)
    project.ingest([Document(id_="abandoned", text="ingested again")])
    assert project.read("abandoned") == "ingested again"
    project.rollback()
    require_equal_answers(project, reference, top_k=100)
    assert project.verify().sound


def test_only_the_newest_versions_are_kept(site: Site) -> None:
    project = site.create(keep_versions=2)
    for mark in range(1, 6):
        project.ingest(documents(mark))
    assert [info.name for info in project.versions()] == ["v000004", "v000005"]
    with pytest.raises(InputError, match="There is no version v000001; versions: v000004, v000005"):
        project.rollback("v000001")
    assert marks(project.retrieve("report")) == {"mark5"}
    project.rollback()
    assert marks(project.retrieve("report")) == {"mark4"}


def test_an_open_index_answers_from_its_version(site: Site) -> None:
    project = site.create(keep_versions=5)
    project.ingest(documents(1))
    index = project.index
    before = [hit.node_id for hit in index.as_retriever().retrieve("pump valve")]
    project.ingest(documents(2))
    assert [hit.node_id for hit in index.as_retriever().retrieve("pump valve")] == before
    assert marks(project.retrieve("pump valve")) == {"mark2"}


def test_each_answer_during_publishes_is_of_one_version_and_later_ones_of_the_new_one(site: Site) -> None:
    project = site.create()
    project.ingest(documents(1))
    reader = site.load()
    retriever = reader.as_retriever()
    wrong: list[str] = []
    seen: set[str | None] = set()
    stopped = threading.Event()

    def read() -> None:
        number = 0
        while number == 0 or not stopped.is_set():
            query = QUERIES[number % len(QUERIES)]
            many = reader.retrieve_many([query, "report"])
            for response in (reader.retrieve(query), *many):
                seen.add(response.version)
                if len(marks(response)) != 1:
                    wrong.append(f"{response.version}: {sorted(marks(response))}")
            if len({response.version for response in many}) != 1:
                wrong.append(f"{[response.version for response in many]} together")
            if len(marks(retriever.retrieve(query))) != 1:
                wrong.append("retriever")
            number += 1

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for mark in range(2, 8):
            project.ingest(documents(mark))
            assert marks(site.load().retrieve("report")) == {f"mark{mark}"}
            if mark % 3 == 0:
                project.rollback()
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert seen
    assert marks(reader.retrieve("report")) == {"mark7"}
    assert marks(retriever.retrieve("report")) == {"mark7"}


# ---- removal for good ------------------------------------------------------------------------------------------------


def holding(folder: Path, secret: str) -> list[str]:
    """Return the files that contain a text."""
    return [path.name for path in files.walk(folder) if secret.encode() in path.read_bytes()]


def test_what_is_forgotten_is_in_no_version_and_no_file(site: Site) -> None:
    project = site.create(keep_versions=5)
    project.ingest(documents(1))
    project.ingest([Document(id_="secret", text=f"{SECRET} pump report.", metadata={"owner": SECRET})])
    project.ingest(documents(2))
    project.remove("secret", forget=True)
    assert len(project.versions()) == 1
    assert [hit.text for hit in project.retrieve(SECRET, top_k=100) if SECRET in hit.text] == []
    assert SECRET not in project.metadata_values().get("owner", ())
    assert holding(site.folder, SECRET) == []
    assert marks(project.retrieve("report")) == {"mark2"}
    with pytest.raises(InputError, match="There is no version"):
        project.rollback()
    assert project.verify().problems == []


def test_a_dry_run_of_forget_removes_nothing(site: Site) -> None:
    project = site.create(keep_versions=5)
    project.ingest(documents(1))
    project.ingest(documents(2))
    assert project.forget(dry_run=True).versions == ["v000001"]
    project.rollback()
    assert marks(project.retrieve("report")) == {"mark1"}


def test_a_deleted_project_leaves_nothing_to_one_of_the_same_name(site: Site) -> None:
    project = site.create()
    project.ingest([*documents(1), Document(id_="secret", text=f"{SECRET} pump report.")])
    site.manager.delete(NAME)
    assert holding(site.folder, SECRET) == []
    project = site.create(embed_model=WordVectors(model_name="other", dimensions=32))
    with pytest.raises(NoVersionError):
        project.retrieve("report")
    project.ingest(documents(2))
    assert marks(project.retrieve("report", top_k=100)) == {"mark2"}


def test_projects_do_not_see_each_other(site: Site) -> None:
    one, other = site.create("one"), site.create("other")
    one.ingest(documents(1))
    other.ingest(documents(2))
    assert marks(one.retrieve("report", top_k=100)) == {"mark1"}
    site.manager.delete("one")
    assert marks(site.load("other").retrieve("report", top_k=100)) == {"mark2"}


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_verify_reports_damage_and_a_new_ingest_repairs_it(site: Site) -> None:
    project = site.create()
    for number, damage in enumerate(site.backend.damages):
        project.ingest(documents(3 * number + 1))
        project.ingest(documents(3 * number + 2))
        assert project.verify().problems == []
        damage(project)
        report = project.verify()
        assert not report.sound, damage
        assert all(problem.message for problem in report.problems)
        project = site.load()
        project.ingest(documents(3 * number + 3), replace=True)
        assert marks(project.retrieve("report")) == {f"mark{3 * number + 3}"}
        assert project.verify(repair=True).sound


def test_a_damaged_switch_is_reported_and_mended_by_a_rollback(site: Site) -> None:
    project = site.create()
    project.ingest(documents(1))
    project.ingest(documents(2))
    (project.directory / CURRENT).write_bytes(b"v0000")
    assert not project.verify().sound
    with pytest.raises(ContextualError):
        site.load().retrieve("report")
    site.load().rollback("v000002")
    assert marks(site.load().retrieve("report")) == {"mark2"}
    assert project.verify().sound


# ---- interruptions ---------------------------------------------------------------------------------------------------


def interrupted(site: Site, at: int, run: Callable[[], object]) -> bool:
    """Do something that ends at a call that writes, and return whether it was reached."""
    with Interruption(at).of(site.backend) as interruption:
        try:
            run()
        except (Crash, ContextualError, OSError):
            assert interruption.struck
    return interruption.struck


def test_a_publish_that_is_interrupted_at_any_step_leaves_the_old_or_the_new_version(site: Site) -> None:
    site.create(keep_versions=2).ingest(documents(1))
    mark, at, reached = 1, 0, True
    while reached:
        mark += 1
        reached = interrupted(site, at, lambda: site.load().ingest(documents(mark)))  # noqa: B023 - called at once
        project = site.load()
        assert marks(project.retrieve("report", top_k=100)) in ({f"mark{mark - 1}"}, {f"mark{mark}"}), at
        assert project.verify().sound, at
        project.ingest(documents(mark))
        assert marks(project.retrieve("report", top_k=100)) == {f"mark{mark}"}, at
        assert len(project.documents()) == len(documents())
        assert project.verify().problems == [], at
        at += 1
    assert at > 10


def test_a_removal_a_rollback_and_the_next_ingest_can_be_interrupted(site: Site) -> None:
    site.create(keep_versions=2).ingest(documents(1))
    gone = documents()[4].id_
    mark, at, reached = 1, 0, True
    while reached:
        site.load().ingest(documents(mark + 1))
        whole = answers(site.load())

        reached = interrupted(site, at, lambda: site.load().remove(gone))
        project = site.load()
        assert project.verify().sound, at
        if gone in {record.doc_id for record in project.documents()}:
            assert answers(project) == whole, at
            project.remove(gone)
        assert gone not in {hit.source.doc_id for hit in project.retrieve("report", top_k=100)}

        reached = interrupted(site, at, lambda: site.load().rollback()) or reached
        project = site.load()
        assert project.verify().sound, at
        if gone not in {record.doc_id for record in project.documents()}:
            project.rollback()
        assert answers(project) == whole, at

        reached = interrupted(site, at, lambda: site.load().ingest(documents(mark + 2))) or reached  # noqa: B023
        project = site.load()
        assert marks(project.retrieve("report", top_k=100)) in ({f"mark{mark + 1}"}, {f"mark{mark + 2}"}), at
        project.ingest(documents(mark + 2))
        assert marks(project.retrieve("report", top_k=100)) == {f"mark{mark + 2}"}, at
        assert project.verify().problems == [], at
        mark, at = mark + 2, at + 3


def child(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.backends.child", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_child(*arguments: object) -> tuple[int, str]:
    """Run a process and return its exit code and its output."""
    with child(*arguments) as process:
        output, errors = process.communicate()
    assert "Traceback" not in errors, errors[-2000:]
    return process.returncode, output


def test_a_killed_process_leaves_the_old_or_the_new_version(site: Site) -> None:
    if not site.backend.reopens:
        pytest.skip(f"no process can open what another one has stored in {site.backend.name}")
    place = site.backend.name, site.folder
    _, steps = run_child("prepare", *place)
    for share in (0.4, 0.85):
        code, _ = run_child("ingest", *place, 3, int(int(steps) * share))
        assert code != 0
    project = site.load()
    assert marks(project.retrieve("report", top_k=100)) in ({"mark2"}, {"mark3"})
    assert project.verify().sound
    project.ingest(documents(3))
    assert marks(project.retrieve("report", top_k=100)) == {"mark3"}
    assert project.verify().problems == []


def test_a_second_process_reads_whole_versions_while_the_first_writes(site: Site) -> None:
    if not site.backend.shared:
        pytest.skip(f"{site.backend.name} can be used by one process at a time")
    project = site.create(keep_versions=2)
    project.ingest(documents(1))
    with child("read", site.backend.name, site.folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == READY
        try:
            for mark in range(2, 8):
                project.ingest(documents(mark))
                if mark % 3 == 0:
                    project.rollback()
        finally:
            (site.folder / STOP).touch()
        output, errors = process.communicate()
    assert errors == ""
    result = json.loads(output)
    assert result["wrong"] == []
    assert result["answers"] > 0


# ---- comparisons, refusals -------------------------------------------------------------------------------------------


def test_variants_are_compared_as_on_files_and_leave_nothing(site: Site, twin: Site) -> None:
    project, reference = both(site, twin, lambda project: project.ingest(documents(1, 20)))
    questions = [
        Question(text=document.text.split(": ")[1].split(".")[0], evidence=[Evidence(text=document.text[:60])])
        for document in documents(1, 20)[::4]
    ]
    mine, theirs = (one.compare(questions, variants=["none", "structural"]) for one in (project, reference))
    assert mine.names == theirs.names
    for name in mine.names:
        assert mine[name].values("MRR") == pytest.approx(theirs[name].values("MRR"))
    assert project.retrieve("report").version == "v000001"
    assert project.verify().problems == []
    swept = project.sweep(questions, chunk_sizes=[20, 40], modes=["hybrid"], top_ks=[5])
    assert swept
    assert project.verify().problems == []


def test_what_the_backend_cannot_do_is_said_when_a_project_is_created(site: Site) -> None:
    for name, value in site.backend.refused_settings.items():
        with pytest.raises(ConfigurationError, match=name):
            site.create(f"with {name}", **{name: value})
    assert site.manager.list() == []
