"""Runs of `ingest`: added, updated, unchanged and skipped documents, and interruptions."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import BaseNode, Document, MetadataMode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    CorruptVersionError,
    InputError,
    ModelError,
    ProjectLockedError,
)
from llama_index_contextual.ingestion.builder import VersionBuilder
from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.node_parser import ChunkNodeParser
from llama_index_contextual.project import project as project_module
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import DocumentReader, ReadLimits
from llama_index_contextual.storage import files
from llama_index_contextual.storage import part as part_module
from llama_index_contextual.storage.current import current_name, leftovers, version_names
from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore
from llama_index_contextual.storage.lock import LOCK_FILE
from tests.support.documents import MARKDOWN, PDF_PAGES, TEXT
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.nodes import chunk, written
from tests.support.recorder import PATIENCE

MANUAL, QUARTER, TARIFF = "reports/manual.txt", "reports/quarter.md", "reports/tariff.pdf"


def nodes_of(project: Project, doc_id: str | None = None) -> list[BaseNode]:
    return list(project.storage_context.docstore.iterate(doc_id=doc_id))  # type: ignore[attr-defined]


def vectors_of(project: Project) -> dict[str, list[float]]:
    store = project.storage_context.vector_store
    assert isinstance(store, UnitFaissVectorStore)
    ids = store.docstore.ids
    return {node_id: row.tolist() for node_id, row in zip(ids, store.vectors(range(len(ids))), strict=True)}


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the files that are read."""
    seen: list[str] = []
    real = DocumentReader._content

    def spy(self: DocumentReader, ref: Any, parsed: Any) -> Any:
        seen.append(ref.doc_id)
        return real(self, ref, parsed)

    monkeypatch.setattr(DocumentReader, "_content", spy)
    return seen


# ---- add, update, keep, drop ---------------------------------------------------------------------------------------


def test_the_text_of_every_format_is_read_back_exactly_after_an_ingest(project: Project, tiny_folder: Path) -> None:
    report = project.ingest([tiny_folder])
    assert report.version == "v000001"
    assert list(report.added) == [MANUAL, QUARTER, TARIFF]
    assert (report.updated, report.unchanged, report.skipped, report.missing) == ((), (), (), ())
    assert report.chunks == len(nodes_of(project)) >= 3
    assert project.read(MANUAL) == TEXT
    assert project.read(QUARTER) == MARKDOWN
    assert [page in project.read(TARIFF) for page in PDF_PAGES] == [True, True]
    pages = [node.metadata.get("page_start") for node in nodes_of(project, TARIFF)]
    assert pages[0] == 1
    assert project.retrieve("What is the duty on cast iron?").results[0].source.file_name == "tariff.pdf"


def test_a_second_run_over_unchanged_files_publishes_reads_and_embeds_nothing(
    counted: Project, model: CountingEmbedding, text_folder: Path, read: list[str]
) -> None:
    counted.ingest([text_folder])
    embedded, before = list(model.texts), files_of(counted.directory / "versions")
    assert sorted(read) == [MANUAL, QUARTER]
    read.clear()
    report = counted.ingest([text_folder])
    assert (report.version, list(report.unchanged)) == ("v000001", [MANUAL, QUARTER])
    assert (report.added, report.updated, report.contexts_paid) == ((), (), 0)
    assert report.chunks == len(nodes_of(counted))
    assert read == []
    assert model.texts == embedded
    assert files_of(counted.directory / "versions") == before


def test_a_run_over_unchanged_files_loads_no_model_and_compares_no_vectors(
    counted: Project, manager: ProjectManager, text_folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.ingest([text_folder])
    read.clear()
    monkeypatch.setattr(part_module, "_parts", part_module._OpenParts())  # as in another process
    hashed: list[str] = []
    real = files.xxh3
    monkeypatch.setattr(files, "xxh3", lambda path: hashed.append(path.name) or real(path))
    fresh = manager.load("counted", embed_model=CountingEmbedding())
    monkeypatch.setattr(project_module, "make_stages", lambda *_args, **_options: pytest.fail("models were loaded"))
    assert len(fresh.ingest([text_folder]).unchanged) == 2
    assert read == []
    assert hashed == ["docstore.sqlite"]


def test_only_changed_documents_are_read_and_embedded_again(
    counted: Project, model: CountingEmbedding, text_folder: Path, read: list[str]
) -> None:
    counted.ingest([text_folder])
    (text_folder / "manual.txt").write_text(TEXT + "\nError TS-200 is new.\n", encoding="utf-8")
    (text_folder / "note.txt").write_text("A new note.", encoding="utf-8")
    read.clear()
    model.texts.clear()
    report = counted.ingest([text_folder])
    assert report.version == "v000002"
    assert (list(report.added), list(report.updated)) == (["reports/note.txt"], [MANUAL])
    assert list(report.unchanged) == [QUARTER]
    assert sorted(read) == [MANUAL, "reports/note.txt"]
    assert len(model.texts) == 2
    assert "TS-200" in counted.read(MANUAL)


def test_unchanged_documents_keep_ids_contexts_and_vectors(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    nodes, vectors = nodes_of(counted, QUARTER), vectors_of(counted)
    records = {record.doc_id: record for record in counted.documents()}
    counted.ingest([Document(id_="new", text="Something else."), text_folder])
    assert current_name(counted.directory) == "v000002"
    assert nodes_of(counted, QUARTER) == nodes
    assert [node.metadata["context"] for node in nodes] != []
    assert {node_id: vectors_of(counted)[node_id] for node_id in vectors} == vectors
    assert {record.doc_id: record for record in counted.documents() if record.doc_id != "new"} == records
    assert counted.read(QUARTER) == MARKDOWN


def test_the_same_documents_in_another_project_have_the_same_node_ids(
    counted: Project, manager: ProjectManager, text_folder: Path
) -> None:
    other = manager.create("other", ProjectConfig.local(), embed_model=CountingEmbedding())
    counted.ingest([text_folder])
    other.ingest([text_folder / "quarter.md", text_folder])
    assert {node.node_id for node in nodes_of(counted)} != set()
    assert vectors_of(counted).keys() & vectors_of(other).keys() == {n.node_id for n in nodes_of(counted, MANUAL)}


def test_documents_that_are_not_inputs_stay_unless_replace_is_set(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    report = counted.ingest([Document(id_="note", text="A note.")])
    assert (list(report.added), list(report.unchanged)) == (["note"], [])
    assert [record.doc_id for record in counted.documents()] == [MANUAL, QUARTER, "note"]
    report = counted.ingest([text_folder / "quarter.md"], replace=True)
    assert (list(report.unchanged), list(report.removed)) == ([QUARTER], [MANUAL, "note"])
    assert [record.doc_id for record in counted.documents()] == [QUARTER]
    assert {node.ref_doc_id for node in nodes_of(counted)} == {QUARTER}


def test_a_deleted_file_is_reported_and_kept_until_replace_is_set(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    (text_folder / "manual.txt").unlink()
    report = counted.ingest([text_folder])
    assert list(report.missing) == [MANUAL]
    assert report.version == "v000001"
    assert f"missing {MANUAL}" in str(report)
    report = counted.ingest([text_folder], replace=True)
    assert (list(report.missing), list(report.removed)) == ([], [MANUAL])


def test_new_metadata_of_an_unchanged_file_is_an_update(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    report = counted.ingest([text_folder], file_metadata=lambda path: {"fund": "IV"} if path.endswith("md") else {})
    assert (list(report.updated), list(report.unchanged)) == ([QUARTER], [MANUAL])
    assert {node.metadata.get("fund") for node in nodes_of(counted, QUARTER)} == {"IV"}


def test_a_single_path_document_or_node_needs_no_list(counted: Project, text_folder: Path) -> None:
    assert list(counted.ingest(str(text_folder / "manual.txt")).added) == ["manual.txt"]
    assert list(counted.ingest(text_folder / "quarter.md").added) == ["quarter.md"]
    assert list(counted.ingest(Document(id_="note", text="A note.")).added) == ["note"]
    assert list(counted.ingest(chunk("n", doc_id="ready")).added) == ["ready"]


# ---- Documents and ready chunks ------------------------------------------------------------------------------------


def test_paths_documents_and_ready_chunks_go_into_one_version(counted: Project, text_folder: Path) -> None:
    original = chunk("g", "Costs fell.", doc_id="ready", metadata={"context": "The cost report of Orlen."})
    plain = chunk("p", "Orders rose.", doc_id="ready")
    alone = chunk("alone", "A single line.")
    document = Document(id_="note", text="Prices were stable.", metadata={"fund": "IV"})
    report = counted.ingest([text_folder, original, plain, alone, document])
    assert sorted(report.added) == ["alone", "note", "ready", MANUAL, QUARTER]
    nodes = {node.node_id: node for node in nodes_of(counted)}
    assert nodes["g"].metadata["context"] == "The cost report of Orlen."
    assert nodes["g"].metadata["context_source"] == "given"
    assert nodes["g"].get_content(metadata_mode=MetadataMode.EMBED) == "The cost report of Orlen.\n\nCosts fell."
    assert nodes["g"].get_content() == "Costs fell."
    assert nodes["p"].metadata["context_source"] == "structural"
    assert [node.metadata["fund"] for node in nodes_of(counted, "note")] == ["IV"]
    assert original.metadata == {"context": "The cost report of Orlen."}
    assert document.metadata == {"fund": "IV"}
    assert counted.read("note") == "Prices were stable."

    counted.ingest([Document(id_="later", text="Later.")])
    assert {node.node_id: node for node in nodes_of(counted) if node.ref_doc_id != "later"} == nodes
    assert counted.retrieve("cost report of Orlen").results[0].node_id == "g"


def test_ready_chunks_are_unchanged_until_one_of_them_changes(counted: Project) -> None:
    chunks = [chunk("a", doc_id="d"), chunk("b", doc_id="d")]
    counted.ingest(chunks)
    assert list(counted.ingest(chunks).unchanged) == ["d"]
    assert list(counted.ingest([chunks[0], chunk("b", "Changed.", doc_id="d")]).updated) == ["d"]
    assert [node.get_content() for node in nodes_of(counted)] == ["Text of a.", "Changed."]


def test_chunks_without_offsets_cannot_be_read_back_as_text(counted: Project) -> None:
    whole = "Revenue grew. Costs fell."
    placed = [
        chunk("p", whole[:13], doc_id="placed", start_char_idx=0, end_char_idx=13),
        chunk("q", whole[14:], doc_id="placed", start_char_idx=14, end_char_idx=len(whole)),
    ]
    counted.ingest([*placed, chunk("a", doc_id="loose"), chunk("b", doc_id="loose")])
    assert counted.read("placed") == whole
    for end in (None, 0, 14):
        placed[1].end_char_idx = end
        counted.ingest(placed)
        assert counted.read("placed") == whole, end
        assert counted.read("placed", 20, 24) == whole[20:24], end
    with pytest.raises(InputError, match=r"'loose' was ingested as chunks without offsets: read its chunks instead"):
        counted.read("loose")


def test_a_node_id_used_by_another_document_is_refused_and_nothing_is_published(counted: Project) -> None:
    counted.ingest([chunk("n", doc_id="d")])
    with pytest.raises(InputError, match=r"Node 'n' of 'e' has the id of a node of another document: assign a unique"):
        counted.ingest([chunk("n", doc_id="e")])
    assert current_name(counted.directory) == "v000001"


METALS = ("zinc", "copper", "tin")


def test_many_ready_chunks_keep_their_order_and_their_documents(counted: Project) -> None:
    chunks = [chunk(f"{d}-{n}", f"Line {n} of {d}.", doc_id=d) for d in METALS for n in range(200)]
    report = counted.ingest(chunks)
    assert report.chunks == 600
    assert [node.node_id for node in nodes_of(counted)] == [node.node_id for node in chunks]
    assert [(record.doc_id, record.chunks) for record in counted.documents()] == [(metal, 200) for metal in METALS]
    assert counted.retrieve("line 150 of copper", mode="lexical").results[0].node_id == "copper-150"


def test_a_rebuild_replaces_generated_contexts_but_not_given_ones(
    manager: ProjectManager, model: CountingEmbedding, text_folder: Path
) -> None:
    config = ProjectConfig.local(context="none")
    project = manager.create("plain", config, embed_model=model)
    inputs = chunk("g", "Costs fell.", doc_id="ready", metadata={"context": "The cost report."})
    report = project.ingest([text_folder, inputs, chunk("p", "Orders rose.", doc_id="ready")])
    assert report.contexts_paid == 0
    sources = {node.node_id: node.metadata["context_source"] for node in nodes_of(project)}
    assert (sources.pop("g"), set(sources.values())) == ("given", {"none"})
    assert project.update_config(context="structural") == ["context"]
    report = project.rebuild()
    assert sorted(report.rebuilt) == ["ready", MANUAL, QUARTER]
    nodes = {node.node_id: node for node in nodes_of(project)}
    assert nodes["g"].metadata["context"] == "The cost report."
    assert {node.metadata["context_source"] for node in nodes.values()} == {"given", "structural"}
    assert nodes.keys() == {"g", *sources}
    assert project.read(QUARTER) == MARKDOWN


@pytest.mark.parametrize("leg", ["faiss", "bm25"])
def test_a_project_with_one_index_keeps_it_on_updates(leg: str, manager: ProjectManager, text_folder: Path) -> None:
    config = ProjectConfig.local(**{leg: False})
    project = manager.create("one", config, embed_model=CountingEmbedding())
    project.ingest([text_folder])
    project.ingest([Document(id_="note", text="A note on tin.")])
    assert len(project.documents()) == 3
    response = project.retrieve("pump runs dry")
    assert response.mode_used == {"faiss": "lexical", "bm25": "semantic"}[leg]
    assert response.results[0].source.doc_id == MANUAL
    assert project.info().ledger.embeddings == (0 if leg == "faiss" else 3)


# ---- what cannot be read -------------------------------------------------------------------------------------------


def test_an_unreadable_file_is_skipped_with_its_reason_and_the_rest_is_ingested(
    counted: Project, text_folder: Path
) -> None:
    (text_folder / "empty.txt").write_bytes(b"")
    (text_folder / "letter.zip").write_bytes(b"PK")
    (text_folder / "copy.md").write_bytes((text_folder / "quarter.md").read_bytes())
    report = counted.ingest([text_folder, text_folder / "nowhere.txt"])
    assert sorted(report.added) == ["reports/copy.md", MANUAL]
    reasons = {Path(file.path).name: file.reason for file in report.skipped}
    assert sorted(reasons) == ["empty.txt", "letter.zip", "nowhere.txt", "quarter.md"]
    assert "empty" in reasons["empty.txt"]
    assert "unpack it" in reasons["letter.zip"]
    assert reasons["nowhere.txt"] == "does not exist"
    assert "has the same content as" in reasons["quarter.md"]
    assert all(f"skipped {file.path}: {file.reason}" in str(report) for file in report.skipped)


def test_a_document_whose_new_file_cannot_be_read_keeps_its_former_content(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    nodes = nodes_of(counted, MANUAL)
    (text_folder / "manual.txt").write_bytes(b"   ")
    (text_folder / "quarter.md").write_text("# New\n\nRevenue fell.", encoding="utf-8")
    report = counted.ingest([text_folder])
    assert (list(report.updated), list(report.unchanged)) == ([QUARTER], [MANUAL])
    assert [Path(file.path).name for file in report.skipped] == ["manual.txt"]
    assert nodes_of(counted, MANUAL) == nodes
    assert counted.read(MANUAL) == TEXT


def test_an_unreadable_file_does_not_publish_a_version_at_every_run(counted: Project, text_folder: Path) -> None:
    (text_folder / "empty.txt").write_bytes(b"")
    counted.ingest([text_folder])
    for content in (b" ", b"  "):
        (text_folder / "manual.txt").write_bytes(content)
        report = counted.ingest([text_folder])
        assert report.version == "v000001"
        assert sorted(report.unchanged) == [MANUAL, QUARTER]
        assert len(report.skipped) == 2
        assert version_names(counted.directory) == ["v000001"]
    assert counted.read(MANUAL) == TEXT


@pytest.mark.parametrize("replace", [False, True])
def test_a_run_without_a_single_document_is_refused_with_the_reasons(
    replace: bool, counted: Project, text_folder: Path
) -> None:
    empty = text_folder / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=r"^There is nothing to ingest\. .*nowhere: does not exist"):
        counted.ingest([text_folder / "nowhere"], replace=replace)
    with pytest.raises(InputError, match=r"^There is nothing to ingest\. .*empty: contains no file"):
        counted.ingest([empty], replace=replace)
    with pytest.raises(InputError, match=r"^There is nothing to ingest\.$"):
        counted.ingest([], replace=replace)
    many = [text_folder / f"nowhere {n}" for n in range(8)]
    with pytest.raises(InputError, match=r"nowhere 4: does not exist; and 3 more\.$"):
        counted.ingest(many, replace=replace)
    assert current_name(counted.directory) is None


def test_replacing_with_a_missing_path_does_not_empty_the_project(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    (text_folder / "blank.txt").write_bytes(b" ")
    for inputs in ([text_folder / "nowhere"], [text_folder / "blank.txt"], []):
        with pytest.raises(InputError, match=r"There is nothing to ingest"):
            counted.ingest(inputs, replace=True)
    assert current_name(counted.directory) == "v000001"
    assert len(counted.documents()) == 2


def test_every_document_can_be_removed(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    report = counted.remove([MANUAL, QUARTER])
    assert list(report.removed) == [MANUAL, QUARTER]
    assert list(counted.documents()) == []
    assert counted.retrieve("pump").results == ()
    assert list(counted.ingest([text_folder]).added) == [MANUAL, QUARTER]


def test_a_file_above_the_limit_is_skipped_and_ingested_with_a_higher_limit(
    counted: Project, text_folder: Path
) -> None:
    report = counted.ingest([text_folder], limits=ReadLimits(max_bytes=200))
    assert [Path(file.path).name for file in report.skipped] == ["quarter.md"]
    assert "split it into smaller files" in report.skipped[0].reason
    assert list(counted.ingest([text_folder], limits=ReadLimits(max_bytes=10_000)).added) == [QUARTER]


# ---- the ledger ----------------------------------------------------------------------------------------------------


def test_embeddings_of_a_provider_are_reused_from_the_ledger(
    counted: Project, model: CountingEmbedding, text_folder: Path
) -> None:
    counted.ingest([text_folder])
    first, vectors = len(model.texts), vectors_of(counted)
    counted.remove([MANUAL])
    counted.ingest([text_folder])
    counted.rebuild()
    assert len(model.texts) == first
    assert vectors_of(counted) == vectors
    assert counted.info().ledger.embeddings == first


def test_embeddings_of_other_dimensions_are_not_reused(manager: ProjectManager, text_folder: Path) -> None:
    project = manager.create("dims", ProjectConfig.local(), embed_model=CountingEmbedding(dimensions=8))
    project.ingest([text_folder])
    project.remove([MANUAL, QUARTER])
    wider = manager.load("dims", embed_model=CountingEmbedding(dimensions=16))
    wider.ingest([text_folder])
    assert {len(row) for row in vectors_of(wider).values()} == {16}


def test_contexts_are_paid_for_once(manager: ProjectManager, model: CountingEmbedding, text_folder: Path) -> None:
    llm = ScriptedLLM()
    project = manager.create("paid", ProjectConfig.local(context="llm"), llm=llm, embed_model=model)
    llm.enqueue("The manual of the test bench; this part of it says what the two error codes mean there.")
    report = project.ingest([text_folder])
    calls = len(llm.history)
    assert report.contexts_paid == calls == report.chunks
    assert "The manual of the test bench; this part of it says what the two error codes mean there." in set(
        map(written, nodes_of(project))
    )
    project.remove([MANUAL])
    report = project.ingest([text_folder])
    assert report.contexts_paid == 0
    assert len(llm.history) == calls
    assert project.info().ledger.contexts == calls


def test_a_chunk_whose_context_fails_is_reported_and_retried(
    manager: ProjectManager, model: CountingEmbedding, text_folder: Path
) -> None:
    llm = ScriptedLLM()
    project = manager.create("failing", ProjectConfig.local(context="llm"), llm=llm, embed_model=model)
    llm.enqueue(ValueError("odd answer"))
    report = project.ingest([text_folder])
    assert len(report.failures) == 1
    assert "odd answer" in str(report)
    (failed,) = [record for record in project.documents() if record.fallback_chunks]
    assert list(failed.fallback_chunks) == [report.failures[0].node_id]
    again = project.retry_failed()
    assert (list(again.rebuilt), again.contexts_paid, again.failures) == ([failed.doc_id], 1, ())
    assert {node.metadata["context_source"] for node in nodes_of(project)} == {"llm"}
    assert project.retry_failed().version == again.version


# ---- interruptions -------------------------------------------------------------------------------------------------


class Stop(Exception):
    """Raised by a callback."""


def interrupting(at: int, error: type[BaseException]) -> tuple[Callable[[IngestProgress], None], list[IngestProgress]]:
    """Return a progress callback that raises at its n-th call, and what it was told."""
    messages: list[IngestProgress] = []

    def report(state: IngestProgress) -> None:
        messages.append(state)
        if len(messages) == at:
            raise error

    return report, messages


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_an_interruption_anywhere_leaves_the_old_version_live_and_nothing_unfinished(
    error: type[BaseException], counted: Project, text_folder: Path
) -> None:
    counted.ingest([Document(id_="old", text="The old version.")])
    before = files_of(counted.directory / "versions")
    steps = 0
    while True:
        steps += 1
        report, messages = interrupting(steps, error)
        try:
            counted.ingest([text_folder], progress=report)
        except error:
            if version_names(counted.directory) != ["v000001"]:
                assert messages[-1].stage == "done"
                break
            assert leftovers(counted.directory) == []
            assert files_of(counted.directory / "versions") == before
            assert [record.doc_id for record in counted.documents()] == ["old"]
            assert counted.retrieve("old version").results[0].source.doc_id == "old"
            continue
        break
    assert steps > 4
    assert current_name(counted.directory) == "v000002"
    assert len(counted.documents()) == 3


def test_if_a_model_fails_the_old_version_stays_live_and_paid_results_are_kept(
    manager: ProjectManager, text_folder: Path
) -> None:
    llm = ScriptedLLM()
    model = CountingEmbedding(fail_on="Orlen Valve Works")
    project = manager.create("failing", ProjectConfig.local(context="llm"), llm=llm, embed_model=model)
    project.ingest([text_folder / "manual.txt"])
    paid = len(llm.history)
    with pytest.raises(ModelError, match=r"this model takes no text with 'Orlen Valve Works'"):
        project.ingest([text_folder])
    assert current_name(project.directory) == "v000001"
    assert leftovers(project.directory) == []
    assert project.info().ledger.contexts == len(llm.history) > paid
    model.fail_on = None
    report = project.ingest([text_folder])
    assert report.contexts_paid == 0


def test_files_of_a_killed_writer_are_removed_by_the_next_one(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder / "manual.txt"])
    unfinished = counted.directory / "versions" / "v000002.building"
    unfinished.mkdir()
    (unfinished / "docstore.sqlite").write_bytes(b"half")
    (counted.directory / "CURRENT.new").write_bytes(b"v0")
    assert len(counted.documents()) == 1
    counted.ingest([text_folder / "quarter.md"])
    assert leftovers(counted.directory) == []
    assert version_names(counted.directory) == ["v000001", "v000002"]


async def test_a_cancelled_run_reads_no_further_and_leaves_nothing_unfinished(
    counted: Project, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    real = ChunkNodeParser.__call__

    def slow(self: ChunkNodeParser, nodes: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        parsing.set()
        assert go_on.wait(PATIENCE)
        return real(self, nodes, **options)

    monkeypatch.setattr(ChunkNodeParser, "__call__", slow)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor := ThreadPoolExecutor(max_workers=2))
    task = asyncio.create_task(counted.aingest([text_folder]))
    assert await asyncio.to_thread(parsing.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (counted.directory / "versions" / "v000001.building").exists()
    go_on.set()
    executor.shutdown(wait=True)
    assert len(threads) == 1  # the second document is not read any more
    assert leftovers(counted.directory) == []
    assert current_name(counted.directory) is None


# ---- one writer ----------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from filelock import FileLock

with FileLock(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def locked_by_another_process(counted: Project) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(counted.directory / LOCK_FILE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        yield child
        child.kill()


def test_a_second_writer_is_refused_until_the_first_ends_or_is_killed(
    counted: Project, text_folder: Path, locked_by_another_process: subprocess.Popen[str]
) -> None:
    message = r"Another process is writing to project 'counted': wait until it has finished"
    for write in (lambda: counted.ingest([text_folder]), counted.rebuild, counted.rollback):
        with pytest.raises(ProjectLockedError, match=message):
            write()
    assert not (counted.directory / "versions").exists()
    locked_by_another_process.kill()
    locked_by_another_process.wait()
    assert len(counted.ingest([text_folder]).added) == 2


async def test_two_runs_in_one_event_loop_do_not_mix(
    counted: Project, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()
    publish = VersionBuilder.publish

    def held(self: VersionBuilder, **options: Any) -> Any:
        assert refused.wait(PATIENCE)
        return publish(self, **options)

    monkeypatch.setattr(VersionBuilder, "publish", held)
    runs = [asyncio.create_task(counted.aingest([text_folder / name])) for name in ("manual.txt", "quarter.md")]
    await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
    refused.set()
    results = await asyncio.gather(*runs, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["IngestReport", "ProjectLockedError"]


# ---- progress ------------------------------------------------------------------------------------------------------


def test_progress_ends_with_all_work_completed(counted: Project, text_folder: Path) -> None:
    (text_folder / "empty.txt").write_bytes(b" ")
    counted.ingest([Document(id_="old", text="The old version.")])
    messages: list[IngestProgress] = []
    inputs = chunk("g", "Costs fell.", doc_id="ready", metadata={"context": "The cost report."})
    report = counted.ingest([text_folder, inputs], progress=messages.append)
    last = messages[-1]
    assert (last.documents_total, last.documents_read, last.documents_done) == (4, 4, 3)
    assert last.chunks_done == report.chunks - 1  # the old document is taken over
    assert last.bytes_done == last.bytes_total == 1 + len(TEXT.encode()) + len(MARKDOWN.encode()) + len("Costs fell.")
    assert list(dict.fromkeys(state.stage for state in messages)) == ["ingest", "publish", "done"]
    for earlier, later in itertools.pairwise(messages):
        for name in ("documents_read", "documents_done", "chunks_done", "bytes_done"):
            assert getattr(earlier, name) <= getattr(later, name)


# ---- damage and handles --------------------------------------------------------------------------------------------


def test_a_damaged_current_file_does_not_prevent_a_replacement(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    (counted.directory / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(CorruptVersionError, match=r"^CURRENT "):
        counted.ingest([text_folder])
    assert len(counted.ingest([text_folder], replace=True).added) == 2
    assert counted.read(MANUAL) == TEXT


def test_a_damaged_version_can_be_replaced_without_paying_again(
    manager: ProjectManager, model: CountingEmbedding, text_folder: Path
) -> None:
    llm = ScriptedLLM()
    project = manager.create("damaged", ProjectConfig.local(context="llm"), llm=llm, embed_model=model)
    project.ingest([text_folder])
    paid, embedded = len(llm.history), len(model.texts)
    (project.directory / "parts" / "p000001" / "docstore.sqlite").write_bytes(b"damaged")
    with pytest.raises(CorruptVersionError, match=r"docstore.sqlite has 7 bytes .*`rebuild`"):
        project.ingest([text_folder])
    report = project.ingest([text_folder], replace=True)
    assert list(report.added) == [MANUAL, QUARTER]
    assert (len(llm.history), len(model.texts)) == (paid, embedded)
    assert project.read(MANUAL) == TEXT
    shutil.rmtree(project.directory / "versions" / "v000001")
    shutil.rmtree(project.directory / "parts" / "p000001")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to count open files")
def test_runs_and_queries_leave_no_file_open(counted: Project, text_folder: Path) -> None:
    def open_files() -> int:
        return sum(
            str(counted.directory) in os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
        )

    counts = []
    for number in range(4):
        counted.ingest([Document(id_="note", text=f"Note {number}."), text_folder])
        counted.retrieve("note")
        gc.collect()
        counts.append(open_files())
    assert counts[2:] == [counts[1]] * 2


def test_vectors_are_normalised_to_unit_length(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    assert np.linalg.norm(list(vectors_of(counted).values()), axis=1) == pytest.approx(1.0, abs=1e-6)


async def test_an_async_run_copies_and_publishes_in_threads(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    await project.aingest([Document(id_="a", text="The first one.")])
    recorded: dict[str, bool] = {}
    for name in ("keep", "publish"):
        work = getattr(VersionBuilder, name)

        def watched(*given: Any, work: Any = work, name: str = name, **options: Any) -> Any:
            recorded[name] = threading.current_thread() is not threading.main_thread()
            return work(*given, **options)

        monkeypatch.setattr(VersionBuilder, name, watched)
    await project.aingest([Document(id_="b", text="The second one.")])
    assert recorded == {"keep": True, "publish": True}


async def test_a_run_cancelled_while_publishing_completes_the_publication(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, goes_on = threading.Event(), threading.Event()
    publish = VersionBuilder.publish

    def held(self: VersionBuilder, **options: Any) -> Any:
        reached.set()
        assert goes_on.wait(300)
        return publish(self, **options)

    monkeypatch.setattr(VersionBuilder, "publish", held)
    running = asyncio.create_task(project.aingest([Document(id_="a", text="The first one.")]))
    assert await asyncio.to_thread(reached.wait, 300)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [record.doc_id for record in project.documents()] == ["a"]
    assert project.verify().sound
    assert leftovers(project.directory) == []


def test_chunks_with_start_offsets_only_are_read_at_their_positions(project: Project) -> None:
    project.ingest(
        [
            chunk("n1", "Hello world.", doc_id="doc", start_char_idx=100),
            chunk("n2", "A second.", doc_id="doc", start_char_idx=120),
        ]
    )
    assert project.read("doc", 100, 112) == "Hello world."
    assert project.read("doc", 120) == "A second."


def test_a_document_that_takes_too_long_to_divide_is_skipped_and_its_former_content_kept(
    project: Project, tmp_path: Path
) -> None:
    changed, other = tmp_path / "changed.txt", tmp_path / "other.txt"
    changed.write_text("The pump runs dry.", encoding="utf-8")
    project.ingest([changed])
    changed.write_text("The pump runs again.", encoding="utf-8")
    other.write_text("The valve is closed.", encoding="utf-8")
    inputs = [changed, other, Document(text="The motor hums.", id_="m")]
    report = project.ingest(inputs, limits=ReadLimits(max_seconds=0))
    assert {file.path for file in report.skipped} == {str(changed), str(other), "m"}
    assert {file.reason for file in report.skipped} == {
        "takes more than 0 seconds to divide into chunks: split it into smaller files"
    }
    assert [hit.text for hit in project.retrieve("pump")] == ["The pump runs dry."]
