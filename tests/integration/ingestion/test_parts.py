"""Versions over several parts answer as one that is built at once; parts are shared, merged and written again."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.schema import Document, ImageNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.ingestion import builder
from llama_index_contextual.ingestion.builder import merges
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage import files, publish
from llama_index_contextual.storage.current import current_name, leftovers
from llama_index_contextual.storage.part import LivePart
from tests.slow.faults.system import Crash, FaultySystem, installed
from tests.support.models import CountingEmbedding

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
    return [part.part.directory.name for part in project._live.current().parts]


def sizes(project: Project) -> list[int]:
    return [part.size for part in project._live.current().parts]


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


def test_a_version_over_parts_answers_exactly_as_one_built_at_once(tmp_path: Path) -> None:
    grown = create(tmp_path, "grown")
    documents = live_through(grown)
    assert len(sizes(grown)) > 2
    assert any(part.gone for part in grown._live.current().parts)
    fresh = create(tmp_path, "fresh")
    by_id = {one.doc_id: one for one in documents}
    fresh.ingest([by_id[record.doc_id] for record in grown.documents()])
    assert len(sizes(fresh)) == 1
    ids = [node.node_id for node in fresh._live.current().docstore.iterate()]
    assert [node.node_id for node in grown._live.current().docstore.iterate()] == ids
    assert list(grown._live.current().docstore.ids) == ids
    assert answers(grown) == answers(fresh)
    assert [grown.chunks(doc_id) for doc_id in by_id] == [fresh.chunks(doc_id) for doc_id in by_id]
    assert [grown.read(doc_id) for doc_id in by_id] == [one.text for one in by_id.values()]
    assert grown.metadata_keys() == fresh.metadata_keys()
    assert grown._live.current().metadata_values == fresh._live.current().metadata_values
    assert grown.info().chunks == fresh.info().chunks == len(ids)
    assert grown._live.current().acronyms.table == fresh._live.current().acronyms.table
    assert grown.verify().sound


def test_compact_parts_find_nearly_the_same_as_one_part(tmp_path: Path) -> None:
    grown = create(tmp_path, "grown", faiss_index="rabitq")
    by_id = {one.doc_id: one for one in live_through(grown)}
    fresh = create(tmp_path, "fresh", faiss_index="rabitq")
    fresh.ingest([by_id[record.doc_id] for record in grown.documents()])
    shares = []
    for query in queries():
        for filters in (None, year(2023)):
            found, wanted = (
                {hit.node_id for hit in project.retrieve(query, mode="semantic", top_k=20, filters=filters)}
                for project in (grown, fresh)
            )
            assert len(found) == len(wanted)
            shares.append(len(found & wanted) / len(wanted))
    assert np.mean(shares) >= 0.99


def test_the_sample_of_a_version_over_parts_is_that_of_one_part(tmp_path: Path) -> None:
    grown = create(tmp_path, "grown", faiss_index="rabitq")
    by_id = {one.doc_id: one for one in live_through(grown)}
    fresh = create(tmp_path, "fresh", faiss_index="rabitq")
    fresh.ingest([by_id[record.doc_id] for record in grown.documents()])
    for size in (40, 10_000):
        sample, wanted = (project.storage_context.vector_store.sampled_vectors(size) for project in (grown, fresh))  # type: ignore[attr-defined]
        assert len(wanted) == min(size, len(fresh._live.current().docstore))
        assert len(wanted) * 0.8 <= len(sample) <= len(wanted)  # some are gone
        np.testing.assert_array_equal(sample, wanted[: len(sample)])


def test_the_stores_of_a_version_over_parts_equal_those_of_one_built_at_once(tmp_path: Path) -> None:
    grown = create(tmp_path, "grown")
    documents = live_through(grown)
    store = grown._live.current().docstore
    context = grown.storage_context
    by_id = {one.doc_id: one for one in documents}
    assert set(store.get_all_ref_doc_info()) == set(by_id)
    for doc_id in by_id:
        assert (store.get_ref_doc_info(doc_id) or RelatedNodeInfo(node_id="")).node_ids == [  # type: ignore[union-attr]
            node.node_id for node in grown.chunks(doc_id)
        ]
    assert store.get_ref_doc_info("doc021") is None
    ids = list(store.ids)
    assert len(store) == len(ids) == len(set(ids))
    assert store.rows(ids) == list(range(len(ids)))
    assert [node.node_id for node in store.get_nodes(ids[::-3])] == ids[::-3]
    assert store.ids[-1] == ids[-1]
    assert store.ids[2:5] == ids[2:5]
    model = grown.embed_model
    vectors = context.vector_store.vectors(range(len(ids)))  # type: ignore[attr-defined]
    wanted = [model.get_text_embedding(node.get_content("embed")) for node in store.iterate()]  # type: ignore[arg-type]
    np.testing.assert_allclose(vectors, np.asarray(wanted) / np.linalg.norm(wanted, axis=1)[:, None], atol=1e-6)
    stock = context.vector_store.to_stock()  # type: ignore[attr-defined]
    assert stock.client.ntotal == len(ids)
    store.persist(str(tmp_path / "copy.sqlite"))
    copy = type(store).__mro__[1](tmp_path / "copy.sqlite", access="read")  # type: ignore[call-arg]
    assert copy.ids == ids
    assert copy.get_nodes(ids) == store.get_nodes(ids)
    copy.close()
    context.persist(str(tmp_path / "stock"))
    parents = {node.relationships[NodeRelationship.PARENT].node_id for node in store.iterate()}  # type: ignore[union-attr]
    for parent in parents:
        assert store.get_node(parent).get_content()


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


def test_removing_a_document_writes_no_part(tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    project.ingest(map(document, range(30)))
    before = files.xxh3(project.directory / "parts" / "p000001" / "part.json")
    project.remove("doc004")
    assert part_names(project) == ["p000001"]
    assert files.xxh3(project.directory / "parts" / "p000001" / "part.json") == before
    assert all(hit.source.doc_id != "doc004" for query in queries() for hit in project.retrieve(query))
    assert project.rollback() == "v000001"
    assert any(record.doc_id == "doc004" for record in project.documents())


def test_small_parts_are_merged_and_unused_ones_removed(tmp_path: Path) -> None:
    project = create(tmp_path, "p", keep_versions=2)
    counts = []
    for number in range(60):
        project.ingest([document(number)])
        counts.append(len(sizes(project)))
        assert project.read(f"doc{number:03d}") == document(number).text
    assert max(counts) <= builder.MAX_SMALL_PARTS + 1
    named = {entry.name for name in ("v000059", "v000060") for entry in manifest_parts(project, name)}
    assert {path.name for path in (project.directory / "parts").iterdir()} == named
    assert len(project.documents()) == 60
    assert leftovers(project.directory) == []


def manifest_parts(project: Project, name: str) -> list:  # type: ignore[type-arg]
    from llama_index_contextual.storage.check import read_manifest

    return list(read_manifest(project.directory / "versions" / name).parts)


def test_a_part_of_which_much_is_gone_is_written_again(tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    project.ingest(map(document, range(12)))
    for number in range(4):
        project.remove(f"doc{number:03d}")
    (part,) = project._live.current().parts
    assert part.part.directory.name != "p000001"
    gone = len(part.part.document_of) - part.size
    assert gone <= 0.1 * len(part.part.document_of)
    project.remove([record.doc_id for record in project.documents()])
    assert project.documents() == []
    assert project.retrieve("pump", mode="lexical").results == ()
    project.ingest([document(1)])
    assert project.retrieve(document(1).text).results


def test_a_large_ingest_is_written_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = create(tmp_path, "whole")
    whole.ingest(map(document, range(40)))
    monkeypatch.setattr(builder, "PART_CHUNKS", 20)
    divided = create(tmp_path, "divided")
    divided.ingest(map(document, range(40)))
    assert len(sizes(divided)) > 3
    assert all(size <= 20 for size in sizes(divided))
    assert answers(divided) == answers(whole)


def test_forgetting_leaves_no_trace_of_removed_documents(tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    project.ingest([*map(document, range(20)), Document(id_="secret", text="Quincunx and the pump.")])
    project.remove("secret", forget=True)
    assert project.retrieve("pump").results
    assert [path for path in files.walk(project.directory) if b"Quincunx" in path.read_bytes()] == []
    assert project.verify().sound


def test_forgetting_leaves_no_trace_of_what_nodes_have_in_common(tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="secret")}
    node = ImageNode(id_="n", text="A pump.", image="Quincunx", relationships=source)
    project.ingest([*map(document, range(20)), node])
    assert any(b"Quincunx" in path.read_bytes() for path in files.walk(project.directory / "parts"))
    project.remove("secret", forget=True)
    assert [path for path in files.walk(project.directory) if b"Quincunx" in path.read_bytes()] == []
    assert len(project.chunks("doc003")) > 0


@pytest.mark.parametrize("name", ["default__vector_store.faiss", "bm25/counts.npy", "documents.json"])
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


def test_other_files_next_to_the_parts_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = create(tmp_path, "p", keep_versions=2)
    parts = project.directory / "parts"
    real = files.system.rename

    def rename(source: Path, target: Path) -> None:
        real(source, target)
        (parts / ".DS_Store").write_bytes(b"a file manager wrote this")

    monkeypatch.setattr(files.system, "rename", rename)
    for number in range(4):
        project.ingest([document(number)], replace=True)
    assert {path.name for path in parts.iterdir()} == {".DS_Store", "p000003", "p000004"}
    assert project.verify().problems == []


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


def test_a_document_that_cannot_be_read_any_more_is_kept_although_parts_are_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    project = create(tmp_path / "root", "p")
    paths = [folder / f"{number}.txt" for number in range(2 * builder.MAX_SMALL_PARTS)]
    with monkeypatch.context() as patch:
        patch.setattr(builder, "MAX_SMALL_PARTS", 99)
        for number, path in enumerate(paths):
            path.write_text(f"Pump {number} runs.", encoding="utf-8")
            project.ingest([path])
    monkeypatch.setattr(builder, "_GROWTH", 0)  # only two parts are merged at a time
    unreadable = paths[-3:]
    for number, path in enumerate(unreadable):
        path.write_bytes(b"\xff\xfe\x00" + bytes(number))
    paths[0].unlink()
    report = project.sync(folder)
    assert report.removed == ("0.txt",)
    assert {skipped.path for skipped in report.skipped} == {str(path) for path in unreadable}
    kept = {record.doc_id: project.read(record.doc_id) for record in project.documents()}
    assert kept == {path.name: f"Pump {number} runs." for number, path in enumerate(paths) if number}


def test_a_node_id_of_a_document_in_another_part_is_refused_and_that_of_a_gone_one_is_free(tmp_path: Path) -> None:
    project = create(tmp_path, "p")

    def node(node_id: str, doc_id: str) -> TextNode:
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)}
        return TextNode(id_=node_id, text=f"The pump of {doc_id}.", relationships=source)

    project.ingest([node("a", "one"), *(node(f"x{n}", f"doc{n}") for n in range(20))])
    project.ingest([node("b", "two")])
    with pytest.raises(InputError, match=r"Node 'a' of 'three' has the id of a node of another document"):
        project.ingest([node("a", "three")])
    project.remove("one")
    project.ingest([node("a", "three")])
    assert [one.ref_doc_id for one in project.chunks("three")] == ["three"]
    assert project._live.current().docstore.get_node("a").ref_doc_id == "three"


def test_an_unchanged_document_is_neither_read_nor_copied(tmp_path: Path) -> None:
    project = create(tmp_path, "p")
    project.ingest(map(document, range(10)))
    project.ingest([*map(document, range(10)), document(10)])
    assert part_names(project) == ["p000001", "p000002"]
    assert sizes(project)[1] == len(project.chunks("doc010"))


def test_no_model_is_loaded_if_nothing_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("The pump runs dry.", encoding="utf-8")
    project = ProjectManager(tmp_path / "root").create("p", ProjectConfig.local(context="none"))
    project.ingest([folder])
    again = ProjectManager(tmp_path / "root").load("p")
    with monkeypatch.context() as patch:
        patch.setattr("llama_index_contextual.project.project.load_embed_model", lambda *_: pytest.fail("loaded"))
        assert again.ingest([folder]).unchanged == ("files/a.txt",)
        again.remove("files/a.txt")
    (folder / "b.txt").write_text("The valve is shut.", encoding="utf-8")
    assert again.ingest([folder]).added == ("files/a.txt", "files/b.txt")


# ---- what is merged --------------------------------------------------------------------------------------------------


def test_a_chunk_is_copied_a_number_of_times_that_grows_with_the_logarithm_only() -> None:
    parts: list[int] = []
    copied = added = 0
    for _ in range(5_000):
        parts.append(10)
        added += 10
        for first, last in reversed(merges([(size, size) for size in parts])):
            copied += sum(parts[first:last])
            parts[first:last] = [sum(parts[first:last])]
        full = sum(size >= builder._FULL * builder.PART_CHUNKS for size in parts)
        assert len(parts) - full <= builder.MAX_SMALL_PARTS + 1
        assert max(parts) <= builder.PART_CHUNKS
    assert copied < 8 * added


def test_only_parts_after_the_last_full_one_are_merged() -> None:
    full = [(40_000, 40_000)]
    assert merges([*full, *[(10, 10)] * 9]) == [(1, 10)]
    assert merges([*full, *[(10, 10)] * 8]) == []
    assert merges([(100, 120), *full, (10, 10)]) == [(0, 1)]
    assert merges([]) == []


# ---- interrupted merges ----------------------------------------------------------------------------------------------


PARTS = builder.MAX_SMALL_PARTS + 1
"""Number of parts that the next ingest merges."""

STRIDE = 7
"""Every so many operations a merge is killed."""


def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the name of every part is added that is copied from now on."""
    names: list[str] = []
    copy = builder.PartWriter.copy

    def counted(self: builder.PartWriter, source: LivePart) -> None:
        names.append(source.part.directory.name)
        copy(self, source)

    monkeypatch.setattr(builder.PartWriter, "copy", counted)
    return names


def before_a_merge(root: Path) -> Project:
    project = create(root, "p")
    for number in range(PARTS - 1):
        project.ingest([document(number)])
    project.ingest([document(20), document(21)])
    return project


def interrupt(project: Project, at: int) -> bool:
    """Add document 50, and stop at an operation on files as a killed process does; return whether it stopped."""
    system = FaultySystem(at, "exit", after=True)
    with installed(system):
        try:
            project.ingest([document(50)])
        except Crash:
            return True
    return False


def test_a_merge_that_is_killed_at_any_step_is_not_repeated_once_its_part_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = before_a_merge(tmp_path)
    expected = [f"doc{number:03d}" for number in (*range(PARTS - 1), 20, 21, 50)]
    names = copies(monkeypatch)
    reused: list[bool] = []
    for at in range(0, 10_000, STRIDE):
        root = tmp_path / f"copy{at}"
        shutil.copytree(template.directory, root / "p")
        project = ProjectManager(root).load("p", embed_model=CountingEmbedding())
        was_interrupted = interrupt(project, at)
        unfinished = current_name(project.directory) == f"v{PARTS:06d}"
        names.clear()
        again = ProjectManager(root).load("p", embed_model=CountingEmbedding())
        again.ingest([document(50)])
        if was_interrupted and unfinished:
            reused.append(not names)
        assert sorted(record.doc_id for record in again.documents()) == expected
        assert again.read("doc003") == document(3).text
        assert again.verify().sound
        again.ingest([document(51)])
        assert leftovers(again.directory) == []
        shutil.rmtree(root)
        if not was_interrupted:
            break
    # Up to some operation the merge is repeated, from then on its part is used.
    assert reused == sorted(reused)
    assert reused.count(False) > 2
    assert reused.count(True) > 2


@pytest.mark.parametrize("change", ["document", "release", "damage"])
def test_a_finished_merge_of_other_content_or_a_damaged_one_is_not_used(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = before_a_merge(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(publish, "publish", raising(RuntimeError("killed")))
        patch.setattr(builder.VersionBuilder, "discard", lambda self: None)
        with pytest.raises(RuntimeError, match="killed"):
            project.ingest([document(50)])
    merged = project.directory / "parts" / f"p{PARTS + 1:06d}"
    assert merged in leftovers(project.directory)
    names = copies(monkeypatch)
    if change == "document":
        project.ingest([document(20, edition=2)])
    elif change == "release":
        monkeypatch.setattr(builder, "__version__", "999")
        project.ingest([document(50)])
    else:
        store = merged / "docstore.sqlite"
        store.write_bytes(store.read_bytes()[:-1] + b"?")
        project.ingest([document(50)])
    assert len(names) == PARTS
    assert leftovers(project.directory) == []
    assert project.verify().sound
    assert project.read("doc020") == document(20, edition=2 if change == "document" else 1).text


def raising(error: Exception) -> Callable[..., object]:
    def fail(*args: object, **options: object) -> object:
        raise error

    return fail


def test_the_work_on_new_documents_is_not_lost_to_an_interrupted_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = before_a_merge(tmp_path)
    model = CountingEmbedding()
    again = ProjectManager(tmp_path).load("p", embed_model=model)
    with monkeypatch.context() as patch:
        patch.setattr(builder.PartWriter, "copy", raising(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            again.ingest([document(50)])
    assert model.texts == []
    assert leftovers(project.directory) == []


def test_a_document_that_was_left_out_of_a_merged_part_can_be_kept_after_all(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    project = create(tmp_path / "root", "p")
    (folder / "20.txt").write_text(document(20).text, encoding="utf-8")
    for number in range(PARTS):
        (folder / f"{number}.txt").write_text(document(number).text, encoding="utf-8")
        project.ingest([folder])
    before = {record.doc_id: project.read(record.doc_id) for record in project.documents()}
    (folder / "20.txt").write_bytes(b"\x00\xff\xfe" * 100)
    (folder / "50.txt").write_text(document(50).text, encoding="utf-8")
    report = project.ingest([folder])
    assert len(report.skipped) == 1
    assert len(sizes(project)) < PARTS
    assert {doc_id: project.read(doc_id) for doc_id in before} == before
    assert len(project.documents()) == PARTS + 2
