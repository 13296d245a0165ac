"""A published version: read-only, checked before it is parsed, and usable as a LlamaIndex store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llama_index.core import Document, load_index_from_storage
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQuery
from llama_index.vector_stores.faiss import FaissVectorStore

from llama_index_contextual import open_storage_context
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    FormatError,
    InputError,
    ReadOnlyVersionError,
)
from llama_index_contextual.index.manifest import FAISS_FILE
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.stores import IndexVectorStore
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


def test_a_path_that_is_not_a_version_is_an_input_error(published: Project) -> None:
    for path in (published.directory, published.directory / "versions", published.directory / "versions" / "v000099"):
        with pytest.raises(InputError, match="is not a version: pass the directory `versions/<name>` of a project"):
            open_storage_context(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_embedding_that_is_not_finite_is_an_input_error(published: Project, value: float) -> None:
    query = VectorStoreQuery(query_embedding=[value, *published.embed_model.get_query_embedding("pump")[1:]])
    with pytest.raises(InputError, match="contains NaN or infinity: embed the query again"):
        published.storage_context.vector_store.query(query)


CHANGES: dict[str, Callable[[Project], object]] = {
    "index.insert": lambda p: p.index.insert(Document(text="new")),
    "index.insert_nodes": lambda p: p.index.insert_nodes([TextNode(text="new")]),
    "index.delete_ref_doc": lambda p: p.index.delete_ref_doc(MANUAL),
    "index.delete_ref_doc with its nodes": lambda p: p.index.delete_ref_doc(MANUAL, delete_from_docstore=True),
    "index.delete_nodes": lambda p: p.index.delete_nodes([next(iter(p.storage_context.docstore.docs))]),  # type: ignore[attr-defined]
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
    "vector_store.clear": lambda p: p.storage_context.vector_store.clear(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_version_refuses_every_change(change: Callable[[Project], object], published: Project) -> None:
    before = contents(published.directory)
    chunks = len(published.storage_context.docstore.docs)
    message = (
        r"A published version does not change: use `project.ingest\(\[...\]\)`.* `project.storage_context.to_stock\(\)`"
    )
    with pytest.raises(ReadOnlyVersionError, match=message):
        change(published)
    assert len(published.storage_context.docstore.docs) == chunks
    assert len(published.storage_context.vector_store) == chunks  # type: ignore[arg-type]
    assert published.retrieve("pump").results
    assert contents(published.directory) == before


def test_the_vectors_can_be_copied_to_a_faiss_vector_store_in_memory_or_in_a_file(
    published: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = published.storage_context.vector_store
    assert isinstance(store, IndexVectorStore)
    query = VectorStoreQuery(query_embedding=store.client.vectors(np.array([1]))[0].tolist(), similarity_top_k=2)
    expected = store.query(query)
    monkeypatch.chdir(tmp_path)
    store.persist("vectors.faiss")
    for copy in (store.to_stock(), FaissVectorStore.from_persist_path(str(tmp_path / "vectors.faiss"))):
        result = copy.query(query)
        assert [store.client.ids[int(row)] for row in result.ids or []] == expected.ids
        assert result.similarities == pytest.approx(expected.similarities)


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


# ---- damage --------------------------------------------------------------------------------------------------------


def names_of_files(published: Project) -> list[str]:
    (part,) = OpenVersion(published.directory / "versions" / "v000001").parts
    return sorted(part.files)


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
    names += ["versions/v000001/manifest.json"]
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
    with pytest.raises(CorruptVersionError, match=r"parts/p000001/.* bytes instead of"):
        OpenVersion(version)


def test_a_writer_refuses_a_damaged_part(published: Project, part: Path) -> None:
    damage(part / FAISS_FILE, "flipped")
    with pytest.raises(CorruptVersionError, match=r"parts/p000001/default__vector_store.faiss has changed"):
        published.ingest([Document(id_="note", text="Something about tin.")])


def test_a_foreign_index_in_the_directory_is_not_read(published: Project, part: Path) -> None:
    lexical = ProjectManager(published.directory.parent).create("lexical", published.config.changed(indexes="lexical"))
    lexical.ingest([Document(id_="note", text="Something about tin.")])
    shutil.copyfile(part / FAISS_FILE, lexical.directory / "parts" / "p000001" / FAISS_FILE)
    opened = open_storage_context(lexical.directory / "versions" / "v000001")
    assert not isinstance(opened.vector_store, IndexVectorStore)
    assert opened.index_store.index_structs() == []
    response = lexical.retrieve("tin", mode="semantic")
    assert (response.mode_used, len(response.results)) == ("lexical", 1)
    assert "no semantic index" in response.warnings[0]
    with pytest.raises(ConfigurationError, match=r"no semantic index"):
        _ = lexical.index


@pytest.mark.parametrize(("name", "known"), [("project.json", 1), ("versions/v000001/manifest.json", 1)])
def test_files_of_a_newer_release_are_refused_with_a_message(
    name: str, known: int, published: Project, version: Path
) -> None:
    path = published.directory / name
    path.write_text(path.read_text("utf-8").replace(f'"format": {known}', f'"format": {known + 1}'))
    for use in (
        lambda project: project.retrieve("pump"),
        lambda project: project.ingest([Document(text="new")]),
        lambda project: project.documents(),
    ):
        with pytest.raises(
            FormatError, match=f"has format {known + 1}, this release reads up to {known}: upgrade llama-"
        ):
            use(ProjectManager(published.directory.parent).load("reports", embed_model=CountingEmbedding()))
