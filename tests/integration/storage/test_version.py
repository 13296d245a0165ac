"""A published version: read-only, checked before it is parsed, and usable as a LlamaIndex store."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, load_index_from_storage
from llama_index.core.data_structs.data_structs import IndexDict
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual import open_storage_context
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    FormatError,
    InputError,
    ReadOnlyVersionError,
)
from llama_index_contextual.ingestion.builder import MAX_SMALL_PARTS
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage import files
from llama_index_contextual.storage import part as part_module
from llama_index_contextual.storage.check import read_manifest
from llama_index_contextual.storage.manifest import FAISS_FILE, Manifest, PartManifest
from llama_index_contextual.storage.version import OpenVersion
from tests.support.documents import MARKDOWN, TEXT
from tests.support.models import CountingEmbedding

MANUAL, QUARTER = "reports/manual.txt", "reports/quarter.md"


YEAR = MetadataFilters(filters=[MetadataFilter(key="year", value=1)])


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# ---- LlamaIndex ----------------------------------------------------------------------------------------------------


def test_an_index_loaded_from_a_version_answers_without_changing_files(published: Project, version: Path) -> None:
    before = contents(published.directory)
    index = load_index_from_storage(published.storage_context, embed_model=published.embed_model)
    answer = index.as_query_engine(llm=MockLLM(), similarity_top_k=1).query("pump runs dry")
    assert "TS-999" in str(answer)
    assert "TS-999" in answer.source_nodes[0].node.get_content()
    retriever = index.as_retriever(similarity_top_k=2, doc_ids=[QUARTER])
    assert {hit.node.ref_doc_id for hit in retriever.retrieve("pump")} == {QUARTER}
    assert contents(published.directory) == before


def test_a_version_opens_by_its_directory_alone(published: Project, version: Path) -> None:
    index = load_index_from_storage(open_storage_context(version), embed_model=CountingEmbedding())
    (hit,) = index.as_retriever(similarity_top_k=1).retrieve("orders from shipyards made up half of it")
    assert hit.node.ref_doc_id == QUARTER
    index = load_index_from_storage(open_storage_context(str(version)), embed_model=CountingEmbedding())
    assert len(index.docstore.docs) == len(published.storage_context.docstore.docs)


def test_the_index_struct_stays_empty(published: Project) -> None:
    (struct,) = published.storage_context.index_store.index_structs()
    assert isinstance(struct, IndexDict)
    assert struct.nodes_dict == {}


CHANGES: dict[str, Callable[[Project], object]] = {
    "index.insert": lambda p: p.index.insert(Document(text="new")),
    "index.insert_nodes": lambda p: p.index.insert_nodes([TextNode(text="new")]),
    "index.delete_ref_doc": lambda p: p.index.delete_ref_doc(MANUAL),
    "index.delete_ref_doc with its nodes": lambda p: p.index.delete_ref_doc(MANUAL, delete_from_docstore=True),
    "index.delete_nodes": lambda p: p.index.delete_nodes([p.storage_context.docstore.ids[0]]),  # type: ignore[attr-defined]
    "index.update_ref_doc": lambda p: p.index.update_ref_doc(Document(id_=MANUAL, text="new")),
    "index.refresh_ref_docs": lambda p: p.index.refresh_ref_docs([Document(id_=MANUAL, text="new")]),
    "docstore.add_documents": lambda p: p.storage_context.docstore.add_documents([TextNode(text="new")]),
    "docstore.add_documents, none": lambda p: p.storage_context.docstore.add_documents([]),
    "docstore.delete_ref_doc": lambda p: p.storage_context.docstore.delete_ref_doc(MANUAL),
    "docstore.set_document_hashes": lambda p: p.storage_context.docstore.set_document_hashes({"a": "b"}),
    "docstore.delete_document": lambda p: p.storage_context.docstore.delete_document("unknown", raise_error=False),
    "docstore.set_document_hash": lambda p: p.storage_context.docstore.set_document_hash("a", "b"),
    "vector_store.add": lambda p: p.storage_context.vector_store.add([TextNode(text="new", embedding=[1.0] * 64)]),
    "vector_store.add, none": lambda p: p.storage_context.vector_store.add([]),
    "vector_store.delete, unknown": lambda p: p.storage_context.vector_store.delete("unknown"),
    "vector_store.delete_nodes, filters": lambda p: p.storage_context.vector_store.delete_nodes(filters=YEAR),
    "vector_store.delete": lambda p: p.storage_context.vector_store.delete(MANUAL),
    "vector_store.delete_nodes": lambda p: p.storage_context.vector_store.delete_nodes(["a"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_version_refuses_every_change(change: Callable[[Project], object], published: Project) -> None:
    before = contents(published.directory)
    chunks = len(published.storage_context.docstore.docs)
    with pytest.raises(
        ReadOnlyVersionError, match=r"A published version does not change: use `project.ingest\(\[...\]\)`"
    ):
        change(published)
    assert len(published.storage_context.docstore.docs) == chunks
    assert len(published.storage_context.vector_store) == chunks  # type: ignore[arg-type]
    assert published.retrieve("pump").results
    assert contents(published.directory) == before


# ---- text ----------------------------------------------------------------------------------------------------------


def test_every_span_of_the_original_is_read_back_including_gaps_between_chunks(published: Project) -> None:
    texts = {MANUAL: TEXT, QUARTER: MARKDOWN}
    for doc_id, text in texts.items():
        chunks = [n for n in published.storage_context.docstore.docs.values() if n.ref_doc_id == doc_id]
        assert len(chunks) > 1
        assert sum(len(n.get_content()) for n in chunks) < len(text)
        step = 17
        for start in range(0, len(text) + step, step):
            for end in range(start, len(text) + step, step):
                assert published.read(doc_id, start, end) == text[start:end]
        assert published.read(doc_id) == text
        assert published.read(doc_id, -5, 10) == text[:10]


def test_an_unknown_document_is_named(published: Project) -> None:
    with pytest.raises(InputError, match=r"Project 'reports' has no document 'other.txt'"):
        published.read("other.txt")


def test_a_document_is_restored_as_it_was_ingested(published: Project, version: Path) -> None:
    opened = OpenVersion(version)
    record = opened.record(QUARTER)
    assert record is not None
    document = opened.document(record)
    assert document is not None
    assert (document.doc_id, document.text) == (QUARTER, MARKDOWN)
    assert document.metadata["title"] == "Orlen Valve Works, second quarter"
    opened.close()
    with pytest.raises(sqlite3.ProgrammingError):
        opened.docstore.get_node("a")


# ---- damage --------------------------------------------------------------------------------------------------------


def names_of_files(published: Project) -> list[str]:
    (part,) = OpenVersion(published.directory / "versions" / "v000001").parts
    return sorted(part.part.files)


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "a directory":
        path.unlink()
        path.mkdir()
    else:
        middle = len(content) // 2
        path.write_bytes(
            {
                "truncated": content[:-1],
                "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            }[how]
        )


@pytest.mark.parametrize("how", ["removed", "a directory", "truncated", "flipped"])
def test_damage_to_any_file_is_reported_with_remedies_before_the_file_is_parsed(
    how: str, published: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    import faiss

    names = [f"parts/p000001/{name}" for name in names_of_files(published)]
    names += ["parts/p000001/part.json", "versions/v000001/manifest.json"]
    assert len(names) >= 8
    monkeypatch.setattr(faiss, "read_index", lambda *_arguments: pytest.fail("a damaged file was parsed"))
    for name in names:
        sound = published.directory.with_name("sound")
        shutil.copytree(published.directory, sound)
        damage(published.directory / name, how)
        with pytest.raises(CorruptVersionError) as caught:
            published.retrieve("pump")
        assert caught.value.file == name, caught.value
        assert str(caught.value).startswith(f"{name} ")
        assert "`rollback`" in str(caught.value)
        assert "ledger" in str(caught.value)
        shutil.rmtree(published.directory)
        sound.rename(published.directory)


def test_a_part_other_than_the_one_that_a_version_names_is_detected(published: Project, version: Path) -> None:
    published.ingest([Document(id_="note", text="Something about tin.")])
    other = ProjectManager(published.directory.parent).create(
        "other", published.config, embed_model=CountingEmbedding()
    )
    other.ingest([Document(id_="first", text="Something about zinc.")])
    shutil.rmtree(published.directory / "parts" / "p000001")
    shutil.copytree(other.directory / "parts" / "p000001", published.directory / "parts" / "p000001")
    with pytest.raises(CorruptVersionError, match=r"parts/p000001/part.json is not the one that the version was"):
        OpenVersion(version)


def test_an_open_part_is_shared_and_its_files_are_compared_only_once(
    published: Project, version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = OpenVersion(version)
    names = names_of_files(published)
    hashed: list[str] = []
    real = files._digest

    def digest(path: Path, *digests: Any) -> int:
        hashed.append(path.as_posix().split("/parts/")[1])
        return real(path, *digests)

    monkeypatch.setattr(files, "_digest", digest)
    published.ingest([Document(id_="note", text="Something about tin.")])
    assert sorted(hashed) == sorted(f"p000002.building/{name}" for name in names)
    hashed.clear()
    second = OpenVersion(version.with_name("v000002"))
    assert second.parts[0].part is first.parts[0].part
    first.close()
    second.close()
    OpenVersion(version.with_name("v000002")).close()
    assert hashed == []  # in this process these files have been hashed already
    OpenVersion(version, check="sha256").close()
    hashed.clear()

    monkeypatch.setattr(part_module, "_parts", part_module._OpenParts())  # as in another process
    OpenVersion(version.with_name("v000002")).close()
    assert sorted(hashed) == sorted(f"{part}/{name}" for part in ("p000001", "p000002") for name in names)


def test_a_writer_compares_what_it_reads_and_a_merge_what_it_copies(
    published: Project, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_module, "_parts", part_module._OpenParts())  # as in another process
    damage(part / FAISS_FILE, "flipped")
    published.ingest([Document(id_="note", text="Something about tin.")])
    with pytest.raises(CorruptVersionError, match=r"parts/p000001/default__vector_store.faiss has changed"):
        published.retrieve("tin")
    for at in range(MAX_SMALL_PARTS - 1):
        published.ingest([Document(id_=f"note {at}", text="Something about tin.")])
    with pytest.raises(CorruptVersionError, match=r"parts/p000001/default__vector_store.faiss has changed"):
        published.ingest([Document(id_="one more", text="Something about tin.")])


def test_a_file_that_changes_after_it_was_compared_is_noticed(published: Project, version: Path, part: Path) -> None:
    first = OpenVersion(version)
    damage(part / "docstore.sqlite", "flipped")
    with pytest.raises(CorruptVersionError, match=r"parts/p000001/docstore.sqlite has changed"):
        OpenVersion(version)
    first.close()


def test_a_whole_version_under_another_name_is_detected(published: Project, version: Path) -> None:
    shutil.copytree(version, version.with_name("v000002"))
    with pytest.raises(CorruptVersionError, match=r"versions/v000002/manifest.json belongs to version v000001"):
        OpenVersion(version.with_name("v000002"))


def test_a_foreign_index_in_the_directory_is_not_read(published: Project, part: Path) -> None:
    lexical = ProjectManager(published.directory.parent).create("lexical", published.config.changed(faiss=False))
    lexical.ingest([Document(id_="note", text="Something about tin.")])
    shutil.copyfile(part / FAISS_FILE, lexical.directory / "parts" / "p000001" / FAISS_FILE)
    opened = OpenVersion(lexical.directory / "versions" / "v000001")
    assert not opened.has_semantic
    assert opened.storage_context.index_store.index_structs() == []
    response = lexical.retrieve("tin", mode="semantic")
    assert (response.mode_used, len(response.results)) == ("lexical", 1)
    assert "no semantic index" in response.warnings[0]
    with pytest.raises(ConfigurationError, match=r"no semantic index"):
        _ = lexical.index


@pytest.mark.parametrize(
    ("name", "known"), [("project.json", 2), ("versions/v000001/manifest.json", 3), ("parts/p000001/part.json", 3)]
)
def test_files_of_a_newer_release_are_refused_with_a_message(
    name: str, known: int, published: Project, version: Path
) -> None:
    path = published.directory / name
    path.write_text(path.read_text("utf-8").replace(f'"format_version": {known}', f'"format_version": {known + 1}'))
    if path.name == "part.json":  # a version names it by its checksum
        manifest = read_manifest(version)
        (entry,) = manifest.parts
        sealed = replace(manifest, parts=[replace(entry, xxh3=files.xxh3(path))])
        (version / "manifest.json").write_bytes(sealed.to_json())
    for use in (
        lambda project: project.retrieve("pump"),
        lambda project: project.ingest([Document(text="new")]),
        lambda project: project.documents(),
    ):
        with pytest.raises(
            FormatError, match=f"has format {known + 1}, this release reads up to {known}: upgrade llama-"
        ):
            use(ProjectManager(published.directory.parent).load("reports", embed_model=CountingEmbedding()))


@pytest.mark.parametrize("content", [b"", b"v000001 \n", b"../../elsewhere", b"v1", b"\xff\xfe", b"v000001\nv000002\n"])
def test_a_damaged_pointer_to_the_live_version_is_reported(content: bytes, published: Project) -> None:
    (published.directory / "CURRENT").write_bytes(content)
    with pytest.raises(CorruptVersionError, match=r"^CURRENT ") as caught:
        published.retrieve("pump")
    assert caught.value.file == "CURRENT"
    assert "rollback" in str(caught.value)


def test_the_manifests_describe_the_version_and_its_part(published: Project, version: Path, part: Path) -> None:
    manifest = Manifest.from_json((version / "manifest.json").read_bytes(), file="manifest.json")
    nodes = published.storage_context.docstore.docs
    assert (manifest.version, manifest.embed_model, manifest.dimensions) == (
        "v000001",
        "CountingEmbedding:counting",
        64,
    )
    opened = OpenVersion(version)
    assert [record.doc_id for record in opened.records] == [MANUAL, QUARTER]
    assert (manifest.chunks, manifest.documents) == (len(nodes), 2)
    assert manifest.config == published.config.model_dump()
    assert set(contents(version)) == {"manifest.json"}
    (entry,) = manifest.parts
    assert (entry.name, entry.gone) == ("p000001", [])
    described = PartManifest.from_json((part / "part.json").read_bytes(), file="part.json")
    assert (described.documents, described.chunks, described.dimensions) == (2, len(nodes), 64)
    assert set(described.files) | {"part.json"} == set(contents(part))
    assert all(file["bytes"] == (part / name).stat().st_size for name, file in described.files.items())
    assert manifest.size == sum(file["bytes"] for file in described.files.values())
    assert sum(record.tokens for record in opened.records) == sum(n.metadata["token_count"] for n in nodes.values())
