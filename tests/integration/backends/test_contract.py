"""What a project promises, on each storage backend."""

from __future__ import annotations

import threading
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import Document, TextNode
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import InputError, NoVersionError
from llama_index_contextual.index import files
from llama_index_contextual.project.project import Project
from tests.integration.backends.site import NAME, QUERIES, Site, WordVectors, answers, documents, marks
from tests.support.editions import make_outdated
from tests.support.nodes import chunk

MODES = ("semantic", "lexical", "hybrid")
SECRET = "Quincunx"

# ---- documents -------------------------------------------------------------------------------------------------------


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


def test_ids_and_metadata_of_nodes_are_kept(site: Site) -> None:
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
    project = site.create()
    project.ingest(nodes)
    for doc_id in ("d 1", "é"):
        given = [node for node in nodes if node.ref_doc_id == doc_id]
        kept = project.chunks(doc_id)
        assert [(node.node_id, node.get_content()) for node in kept] == [(one.node_id, one.text) for one in given]
        assert all(one.metadata.items() <= node.metadata.items() for node, one in zip(kept, given, strict=True))
    with pytest.raises(InputError, match="has the id of a node of another document"):
        project.ingest([chunk("🦙", "pump three", doc_id="other")])


def test_empty_documents_are_reported_and_an_empty_version_answers_nothing(site: Site) -> None:
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
    assert marks(project.retrieve("pump")) == {"mark2"}


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
        ("year", "==", "2023", "cd"),
        ("year", "!=", 2022, "acde"),
        ("year", ">", 2021, "bcd"),
        ("year", ">=", 2021, "abcd"),
        ("year", "<", 2023, "ab"),
        ("year", "<=", 2021.5, "a"),
        ("year", "in", [2021, 2023], "acd"),
        ("year", "nin", [2021, 2023], "be"),
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
    "acd",
)
FILTERS["none"] = (MetadataFilters(filters=[]), "abcde")


def facts() -> list[Document]:
    return [Document(id_=name, text=f"pump valve report {name}", metadata=data) for name, data in FACTS.items()]


def require_passing(project: Project, filters: MetadataFilters, expected: set[str]) -> None:
    """Check that filters let the expected documents pass in each mode."""
    for mode in MODES:
        if not expected:
            with pytest.raises(InputError, match="No document"):
                project.retrieve("pump", mode=mode, filters=filters, top_k=50)
            continue
        passing = {hit.source.doc_id for hit in project.retrieve("pump", mode=mode, filters=filters, top_k=50)}
        assert passing == expected, (mode, filters)


def test_filters_let_the_expected_documents_pass(site: Site) -> None:
    project = site.create()
    project.ingest(facts())
    for filters, expected in FILTERS.values():
        require_passing(project, filters, set(expected))
    for operator in ("==", "!="):
        require_passing(project, MetadataFilters(filters=[one_filter("absent", operator, 1)]), set())


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


def test_removed_documents_are_in_no_answer(site: Site) -> None:
    project = site.create()
    project.ingest(documents(1))
    project.remove([documents()[2].id_, documents()[7].id_])
    assert len(project.documents()) == len(documents()) - 2
    for mode in MODES:
        found = {hit.source.doc_id for hit in project.retrieve("report", mode=mode, top_k=100)}
        assert not found & {documents()[2].id_, documents()[7].id_}
    assert project.chunks(documents()[2].id_) == []
    with pytest.raises(InputError):
        project.remove(documents()[2].id_)


def test_an_ingest_after_a_rollback_continues_from_the_version_that_is_live(site: Site) -> None:
    project = site.create()
    project.ingest(documents(1))
    project.ingest([*documents(2)[:6], Document(id_="abandoned", text="abandoned pump report")])
    project.rollback()
    added = documents(3, 15)[13]
    project.ingest([added])
    assert project.retrieve("report").version == "v000003"
    texts = {record.doc_id: project.read(record.doc_id) for record in project.documents()}
    assert texts == {document.id_: document.text for document in [*documents(1), added]}
    assert "abandoned" not in {hit.source.doc_id for hit in project.retrieve("abandoned pump report", top_k=100)}
    before = answers(project, top_k=100)
    project.ingest([Document(id_="abandoned", text="ingested again")])
    assert project.read("abandoned") == "ingested again"
    project.rollback()
    assert answers(project, top_k=100) == before
    assert project.verify().sound


def test_outdated_derived_data_are_made_again_by_the_next_change(site: Site) -> None:
    project = site.create()
    project.ingest(documents())
    before = answers(project)
    make_outdated(project.directory)
    project = site.load()
    assert not list(project.retrieve(QUERIES[0], mode="lexical"))
    assert answers(project, mode="semantic") != []
    project.ingest(documents())
    assert answers(project) == before
    project.update_config(language="german")
    project.rebuild()
    project.update_config(language="auto")
    project.remove([])
    project.rebuild(derived=True)
    assert answers(site.load()) == before
    assert site.load().verify().problems == []


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
    assert SECRET not in project.live_version.metadata_values.get("owner", ())
    assert holding(site.folder if site.backend.frees_at_once else site.manager.root, SECRET) == []
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


# ---- restricted projects ---------------------------------------------------------------------------------------------


def test_a_restricted_project_answers_as_one_that_never_had_the_other_documents(site: Site) -> None:
    mixed = [
        chunk(f"mixed-{share}", f"pump valve {share}", doc_id="mixed", metadata={"share": share, "mark": share % 2})
        for share in (2, 3)
    ]
    project = site.create()
    project.ingest([*documents(), *mixed])
    for number, filters in enumerate(({"share": {"<": 6}}, {"share": {"nin": [*range(6, 12)]}}, {"mark": {"!=": 0}})):
        restricted = project.only(filters)
        seen = {record.doc_id for record in restricted.documents()}
        assert ("mixed" in seen) == ("share" in filters)
        never = site.on_files().create(f"never{number}")
        never.ingest([*(one for one in documents() if one.id_ in seen), *(mixed if "mixed" in seen else ())])
        for mode in MODES:
            assert answers(restricted, mode=mode) == answers(never, mode=mode)
        narrow = MetadataFilters(filters=[MetadataFilter(key="share", value=3, operator=FilterOperator.NE)])
        assert answers(restricted, filters=narrow) == answers(never, filters=narrow)
        rows = np.arange(len(restricted.live_version.index.ids))[::-1]
        mine, theirs = (one.live_version.index.vectors(rows) for one in (restricted, never))
        assert mine == pytest.approx(theirs, abs=1e-5)
        assert restricted.retrieve("pump").confidence == pytest.approx(never.retrieve("pump").confidence, abs=1e-5)
    assert list(project.only({"share": 99}).retrieve("pump valve")) == []
