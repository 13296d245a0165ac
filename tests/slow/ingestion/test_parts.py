"""Versions over several parts answer as one that is built at once; parts are shared, merged and written again."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.schema import Document, NodeRelationship
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.index import files, writer
from llama_index_contextual.index.manifest import read_manifest
from llama_index_contextual.index.versions import leftovers
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.support import ids, nodes_of, texts_of
from tests.support.models import CountingEmbedding
from tests.support.nodes import chunk

SEED = 7
WORDS = (
    *("pump", "valve", "sump", "motor", "filter", "heater", "sensor", "tariff"),
    *("revenue", "quarter", "iron", "copper", "zinc", "clause", "notice", "term"),
)
MODES: tuple[Mode, ...] = ("semantic", "lexical", "hybrid")


def text(chance: random.Random, sentences: int) -> str:
    return " ".join(f"The {' '.join(chance.choices(WORDS, k=9))}." for _ in range(sentences))


def document(number: int, *, edition: int = 1) -> Document:
    chance = random.Random(f"{SEED} {number} {edition}")
    metadata = {"year": 2020 + number % 5, "title": f"Report {number} on {chance.choice(WORDS)}"}
    return Document(id_=f"doc{number:03d}", text=text(chance, chance.randint(1, 12)), metadata=metadata)


def create(root: Path, name: str, **settings: object) -> Project:
    config = ProjectConfig.local(context="structural", chunk_size=40, chunk_overlap=0, **settings)
    return ProjectManager(root).create(name, config, embed_model=CountingEmbedding())


def part_names(project: Project) -> list[str]:
    return [part.directory.name for part in project.state.live.current().parts]


def sizes(project: Project) -> list[int]:
    return [part.size for part in project.state.live.current().parts]


def queries() -> list[str]:
    chance = random.Random(SEED)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 4))) for _ in range(25)]


def year(value: int) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key="year", value=value, operator=FilterOperator.GTE)])


def answers(project: Project) -> list[list[tuple[object, ...]]]:
    """Return everything that searches of all modes find, with and without a filter."""
    return [
        [(hit.node_id, hit.text, hit.score, hit.relevance, hit.semantic, hit.lexical, hit.document) for hit in response]
        for mode in MODES
        for filters in (None, year(2023))
        for query in queries()
        for response in (project.retrieve(query, mode=mode, filters=filters),)
    ]


def live_through(project: Project) -> list[Document]:
    """Add, update and remove documents one by one, and return those that remain, in the order of their parts."""
    latest: dict[str, Document] = {}

    def ingest(*documents: Document) -> None:
        project.ingest(documents)
        for one in documents:
            latest.pop(one.doc_id, None)
            latest[one.doc_id] = one

    ingest(*map(document, range(60)))
    for number in range(60, 74):
        ingest(document(number))
    ingest(document(3, edition=2), document(25, edition=2))
    for removed in (["doc007"], ["doc021", "doc062"]):
        project.remove(removed)
        for doc_id in removed:
            del latest[doc_id]
    ingest(document(90), document(7, edition=3))
    return list(latest.values())


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Project]:
    """A project with a history and another one, made at once, with the same documents. Tests only read them."""
    root = tmp_path_factory.mktemp("parts")
    grown, fresh = (create(root, name) for name in ("grown", "fresh"))
    by_id = {one.doc_id: one for one in live_through(grown)}
    fresh.ingest([by_id[doc_id] for doc_id in ids(grown)])
    assert len(sizes(grown)) > 2
    assert len(sizes(fresh)) == 1
    return grown, fresh


def test_a_version_over_parts_answers_exactly_as_one_built_at_once(pair: tuple[Project, Project]) -> None:
    grown, fresh = pair
    nodes = nodes_of(fresh)
    assert nodes_of(grown) == nodes
    assert list(grown.state.live.current().docstore.ids) == [node.node_id for node in nodes]
    assert answers(grown) == answers(fresh)
    assert [grown.chunks(doc_id) for doc_id in ids(fresh)] == [fresh.chunks(doc_id) for doc_id in ids(fresh)]
    assert texts_of(grown) == texts_of(fresh)
    assert grown.live_version.metadata_keys() == fresh.live_version.metadata_keys()
    assert grown.state.live.current().metadata_values == fresh.state.live.current().metadata_values
    assert grown.info().chunks == fresh.info().chunks == len(nodes)
    assert grown.verify().sound


def test_the_stores_of_a_version_over_parts_are_those_of_one_part(
    pair: tuple[Project, Project], tmp_path: Path
) -> None:
    grown, _ = pair
    store, context = grown.state.live.current().docstore, grown.storage_context
    assert set(store.ids_by_document()) == {*ids(grown)}
    for doc_id in ids(grown):
        assert store.ids_of_document(doc_id) == [node.node_id for node in grown.chunks(doc_id)]
    assert store.ids_of_document("doc021") == []
    names = list(store.ids)
    assert len(store) == len(names) == len(set(names))
    assert store.rows(names) == list(range(len(names)))
    assert [node.node_id for node in store.get_nodes(names[::-3])] == names[::-3]
    assert (store.ids[-1], store.ids[2:5]) == (names[-1], names[2:5])
    vectors = grown.state.live.current().index.vectors(np.arange(len(names)))
    wanted = [grown.embed_model.get_text_embedding(node.get_content("embed")) for node in store.iterate()]  # type: ignore[arg-type]
    np.testing.assert_allclose(vectors, np.asarray(wanted) / np.linalg.norm(wanted, axis=1)[:, None], atol=1e-6)
    assert context.vector_store.to_stock().client.ntotal == len(names)  # type: ignore[attr-defined]
    context.persist(str(tmp_path / "stock"))
    for parent in {node.relationships[NodeRelationship.PARENT].node_id for node in store.iterate()}:  # type: ignore[union-attr]
        assert store.get_nodes([parent])[0].get_content()


# ---- sharing and merging ---------------------------------------------------------------------------------------------


def test_adding_a_document_writes_only_its_own_part(tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    project.ingest(map(document, range(10)))
    before = {path: path.stat().st_mtime_ns for path in files.walk(project.directory / "parts")}
    project.ingest([document(11)])
    after = {path: path.stat().st_mtime_ns for path in files.walk(project.directory / "parts")}
    assert {path: after[path] for path in before} == before
    assert {path.parts[len(project.directory.parts) + 1] for path in after.keys() - before.keys()} == {"p000002"}
    assert part_names(project) == ["p000001", "p000002"]


def test_removing_a_document_writes_only_its_part_again(tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    project.ingest(map(document, range(30)))
    project.ingest([document(30)])
    project.remove("doc004")
    assert part_names(project) == ["p000003", "p000002"]
    assert all(hit.source.doc_id != "doc004" for query in queries() for hit in project.retrieve(query))
    assert project.rollback() == "v000002"
    assert any(record.doc_id == "doc004" for record in project.documents())


def test_small_parts_are_merged_and_unused_ones_removed(tmp_path: Path) -> None:
    project = create(tmp_path, "p", keep_versions=2)
    counts = []
    for number in range(30):
        project.ingest([document(number)])
        counts.append(len(sizes(project)))
        assert project.read(f"doc{number:03d}") == document(number).text
    assert max(counts) <= writer.MAX_SMALL_PARTS + 1
    named = {
        entry.name
        for name in ("v000029", "v000030")
        for entry in read_manifest(project.directory / "versions" / name).parts
    }
    assert {path.name for path in (project.directory / "parts").iterdir()} == named
    assert len(project.documents()) == 30
    assert leftovers(project.directory) == []


def test_a_version_without_documents_can_be_searched_and_filled_again(tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    project.ingest(map(document, range(12)))
    project.remove([record.doc_id for record in project.documents()])
    assert project.documents() == []
    assert project.retrieve("pump", mode="lexical").results == ()
    project.ingest([document(1)])
    assert project.retrieve(document(1).text).results


def test_a_large_ingest_is_written_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = create(tmp_path, "whole")
    whole.ingest(map(document, range(40)))
    monkeypatch.setattr(writer, "PART_CHUNKS", 20)
    divided = create(tmp_path, "divided")
    divided.ingest(map(document, range(40)))
    assert len(sizes(divided)) > 3
    assert all(size <= 20 for size in sizes(divided))
    assert answers(divided) == answers(whole)


def test_forgetting_leaves_no_trace_of_removed_documents(tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    marked = {"note": "Quincunx"}  # texts are compressed, metadata is not
    project.ingest([*map(document, range(20)), Document(id_="secret", text="A pump.", metadata=marked)])
    assert any(b"Quincunx" in path.read_bytes() for path in files.walk(project.directory / "parts"))
    project.remove("secret", forget=True)
    assert [path for path in files.walk(project.directory) if b"Quincunx" in path.read_bytes()] == []
    assert len(project.chunks("doc003")) > 0
    assert project.retrieve("pump").results
    assert project.verify().sound


@pytest.mark.parametrize("name", ["default__vector_store.faiss", "bm25/counts.bin", "units.bin", "documents.json"])
def test_nothing_is_forgotten_while_the_live_version_is_damaged(name: str, tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    project.ingest([document(1)])
    project.ingest([document(2)])
    path = project.directory / "parts" / "p000002" / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for dry_run in (True, False):
        with pytest.raises(CorruptVersionError, match=name):
            ProjectManager(tmp_path).load("p", embed_model=CountingEmbedding()).forget(dry_run=dry_run)
    assert [version.name for version in project.versions()] == ["v000001", "v000002"]
    assert project.rollback() == "v000001"


def test_a_part_that_another_process_has_open_is_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = create(tmp_path, "p", keep_versions=2)
    real = files.system.remove_tree

    def remove_tree(path: Path) -> None:
        if path.parent.name == "parts":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files.system, "remove_tree", remove_tree)
        for number in range(4):
            assert project.ingest([document(number)], replace=True).version == f"v{number + 1:06d}"
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):  # it still has the text of removed documents
            project.forget()
    project.ingest([document(5)], replace=True)
    assert {path.name for path in (project.directory / "parts").iterdir()} == {"p000004", "p000005"}


def test_a_node_id_of_a_document_in_another_part_is_refused_and_that_of_a_gone_one_is_free(tmp_path: Path) -> None:
    project = create(tmp_path, "p")

    project.ingest([chunk("a", doc_id="one"), *(chunk(f"x{n}", doc_id=f"doc{n}") for n in range(20))])
    project.ingest([chunk("b", doc_id="two")])
    with pytest.raises(InputError, match=r"Node 'a' of 'three' has the id of a node of another document"):
        project.ingest([chunk("a", doc_id="three")])
    project.remove("one")
    project.ingest([chunk("a", doc_id="three")])
    assert [one.ref_doc_id for one in project.chunks("three")] == ["three"]
    assert project.state.live.current().docstore.get_nodes(["a"])[0].ref_doc_id == "three"
