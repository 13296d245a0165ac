"""Runs of `ingest`: added, updated, unchanged and skipped documents, and interruptions."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document, MetadataMode

from llama_index_contextual.config import DEFAULT_LLM, ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    InputError,
    ModelError,
    ProjectLockedError,
)
from llama_index_contextual.index.project_file import write_lock
from llama_index_contextual.index.versions import current_name, leftovers, version_names
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.ingestion import state
from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import DocumentReader, ReadLimits
from tests.integration.ingestion.support import MANUAL, QUARTER, TARIFF, files_of, ids, nodes_of, vectors_of
from tests.support.documents import MARKDOWN, PDF_PAGES, TEXT
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.nodes import chunk
from tests.support.recorder import PATIENCE


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
    assert nodes_of(project, TARIFF)[0].metadata["page_start"] == 1
    assert project.retrieve("What is the duty on cast iron?").results[0].source.file_name == "tariff.pdf"


def test_a_second_run_over_unchanged_files_reads_publishes_and_loads_nothing(
    counted: Project, manager: ProjectManager, text_folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.ingest([text_folder])
    assert sorted(read) == [MANUAL, QUARTER]
    read.clear()
    before = files_of(counted.directory / "versions")
    fresh = manager.load("counted", embed_model=CountingEmbedding())
    monkeypatch.setattr(state, "make_pipeline", lambda *_args, **_options: pytest.fail("models were loaded"))
    report = fresh.ingest([text_folder])
    assert (report.version, list(report.unchanged)) == ("v000001", [MANUAL, QUARTER])
    assert (report.added, report.updated, report.contexts_paid) == ((), (), 0)
    assert report.chunks == len(nodes_of(counted))
    assert read == []
    assert files_of(counted.directory / "versions") == before


def test_only_changed_documents_are_read_and_embedded_again(
    counted: Project, model: CountingEmbedding, text_folder: Path, read: list[str]
) -> None:
    counted.ingest([text_folder])
    nodes, vectors = nodes_of(counted, QUARTER), vectors_of(counted)
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
    assert nodes_of(counted, QUARTER) == nodes
    assert all(vectors_of(counted)[node.node_id] == vectors[node.node_id] for node in nodes)


def test_documents_that_are_not_inputs_stay_unless_replace_is_set(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    report = counted.ingest([Document(id_="note", text="A note.")])
    assert (list(report.added), list(report.unchanged)) == (["note"], [])
    assert ids(counted) == [MANUAL, QUARTER, "note"]
    report = counted.ingest([text_folder / "quarter.md"], replace=True)
    assert (list(report.unchanged), list(report.removed)) == ([QUARTER], [MANUAL, "note"])
    assert ids(counted) == [QUARTER]
    assert {node.ref_doc_id for node in nodes_of(counted)} == {QUARTER}


def test_a_deleted_file_is_reported_and_kept_until_replace_is_set(counted: Project, text_folder: Path) -> None:
    counted.ingest([text_folder])
    (text_folder / "manual.txt").unlink()
    assert counted.ingest([text_folder / "quarter.md"]).missing == ()
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


# ---- Documents and ready chunks ------------------------------------------------------------------------------------


def test_paths_documents_and_ready_chunks_go_into_one_version(counted: Project, text_folder: Path) -> None:
    original = chunk("g", "Costs fell.", doc_id="ready", metadata={"context": "The cost report of Orlen."})
    plain = chunk("p", "Orders rose.", doc_id="ready")
    alone = chunk("alone", "A single line.")
    document = Document(id_="note", text="Prices were stable.", metadata={"fund": "IV"})
    report = counted.ingest([text_folder, original, alone, plain, document])
    assert sorted(report.added) == ["alone", "note", "ready", MANUAL, QUARTER]
    nodes = {node.node_id: node for node in nodes_of(counted)}
    assert nodes["g"].metadata["context"] == "The cost report of Orlen."
    assert nodes["g"].metadata["context_source"] == "given"
    assert nodes["g"].get_content(metadata_mode=MetadataMode.EMBED) == "The cost report of Orlen.\n\nCosts fell."
    assert nodes["g"].get_content() == "Costs fell."
    assert nodes["p"].metadata["context_source"] == "structural"
    assert [node.metadata["fund"] for node in nodes_of(counted, "note")] == ["IV"]
    assert (original.metadata, document.metadata) == ({"context": "The cost report of Orlen."}, {"fund": "IV"})
    assert alone.relationships == {}
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


def test_chunks_are_read_back_as_text_by_their_offsets_and_without_any_not_at_all(counted: Project) -> None:
    whole = "Revenue grew. Costs fell."
    placed = [
        chunk("p", whole[:13], doc_id="placed", start_char_idx=0, end_char_idx=13),
        chunk("q", whole[14:], doc_id="placed", start_char_idx=14, end_char_idx=len(whole)),
    ]
    late = [
        chunk("n1", "Hello world.", doc_id="late", start_char_idx=100),
        chunk("n2", "A second.", doc_id="late", start_char_idx=120),
    ]
    counted.ingest([*placed, *late, chunk("a", doc_id="loose"), chunk("b", doc_id="loose")])
    assert counted.read("placed") == whole
    assert (counted.read("late", 100, 112), counted.read("late", 120)) == ("Hello world.", "A second.")
    for end in (None, 0, 14):
        placed[1].end_char_idx = end
        counted.ingest(placed)
        assert counted.read("placed") == whole, end
        assert counted.read("placed", 20, 24) == whole[20:24], end
    with pytest.raises(InputError, match=r"'loose' was ingested as chunks without offsets: read its chunks instead"):
        counted.read("loose")


@pytest.mark.parametrize("leg", ["lexical", "semantic"])
def test_a_project_with_one_index_keeps_it_on_updates(leg: Any, manager: ProjectManager, text_folder: Path) -> None:
    config = ProjectConfig.local(indexes=leg)
    project = manager.create("one", config, embed_model=CountingEmbedding())
    project.ingest([text_folder])
    project.ingest([Document(id_="note", text="A note on tin.")])
    assert len(project.documents()) == 3
    response = project.retrieve("pump runs dry")
    assert response.mode_used == leg
    assert response.results[0].source.doc_id == MANUAL
    assert project.info().ledger.embeddings == (0 if leg == "lexical" else 3)


# ---- what cannot be read -------------------------------------------------------------------------------------------


def test_an_unreadable_file_is_skipped_with_its_reason_and_the_rest_is_ingested(
    counted: Project, text_folder: Path
) -> None:
    (text_folder / "empty.txt").write_bytes(b"")
    (text_folder / "letter.zip").write_bytes(b"PK")
    (text_folder / "copy.md").write_bytes((text_folder / "quarter.md").read_bytes())
    report = counted.ingest([text_folder, text_folder / "nowhere.txt"])
    assert sorted(report.added) == ["reports/copy.md", MANUAL]
    why = {Path(file.path).name: file.reason for file in report.skipped}
    assert sorted(why) == ["empty.txt", "letter.zip", "nowhere.txt", "quarter.md"]
    assert "empty" in why["empty.txt"]
    assert "unpack it" in why["letter.zip"]
    assert why["nowhere.txt"] == "does not exist"
    assert "has the same content as" in why["quarter.md"]
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
    (text_folder / "manual.txt").write_bytes(b" ")
    report = counted.ingest([text_folder])
    assert (report.version, len(report.skipped)) == ("v000002", 1), "nothing is published"
    assert counted.read(MANUAL) == TEXT


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
    reason = "takes more than 0 seconds to divide into chunks: split it into smaller files"
    assert {file.path: file.reason for file in report.skipped} == dict.fromkeys([str(changed), str(other), "m"], reason)
    assert [hit.text for hit in project.retrieve("pump")] == ["The pump runs dry."]


@pytest.mark.parametrize("passes_the_file", [False, True])
def test_a_stored_document_is_divided_again_without_a_time_limit(
    passes_the_file: bool, project: Project, tmp_path: Path
) -> None:
    stored, other = tmp_path / "stored.txt", tmp_path / "other.txt"
    stored.write_text("The pump runs dry.", encoding="utf-8")
    other.write_text("The valve is closed.", encoding="utf-8")
    project.ingest([stored])
    project.update_config(chunk_size=400)
    inputs = [stored, other] if passes_the_file else [other]
    report = project.ingest(inputs, limits=ReadLimits(max_seconds=0))
    assert (list(report.rebuilt), [file.path for file in report.skipped]) == (["stored.txt"], [str(other)])
    assert [hit.text for hit in project.retrieve("pump")] == ["The pump runs dry."]


@pytest.mark.parametrize("replace", [False, True])
def test_a_run_without_a_single_document_is_refused_with_the_reasons_and_changes_nothing(
    replace: bool, counted: Project, text_folder: Path
) -> None:
    if replace:
        counted.ingest([text_folder])
    empty = text_folder / "empty"
    empty.mkdir()
    (text_folder / "blank.txt").write_bytes(b" ")
    for inputs, message in (
        ([text_folder / "nowhere"], r"\. .*nowhere: does not exist"),
        ([empty], r"\. .*empty: contains no file"),
        ([text_folder / "blank.txt"], r"\. .*blank.txt: "),
        ([], r"\.$"),
        ([text_folder / f"nowhere {n}" for n in range(8)], r"\. .*nowhere 4: does not exist; and 3 more\.$"),
    ):
        with pytest.raises(InputError, match=r"^There is nothing to ingest" + message):
            counted.ingest(inputs, replace=replace)
    assert (current_name(counted.directory), len(ids(counted))) == (("v000001", 2) if replace else (None, 0))


# ---- the ledger ----------------------------------------------------------------------------------------------------


@pytest.fixture
def paid(manager: ProjectManager, model: CountingEmbedding) -> tuple[Project, ScriptedLLM]:
    """An empty project whose contexts an LLM writes."""
    llm = ScriptedLLM()
    return manager.create("paid", ProjectConfig.local(context="llm"), llm=llm, embed_model=model), llm


def test_a_chunk_whose_context_fails_is_reported_and_it_alone_is_retried(
    paid: tuple[Project, ScriptedLLM], text_folder: Path
) -> None:
    project, llm = paid
    llm.enqueue(ValueError("odd answer"))
    report = project.ingest([text_folder])
    assert len(report.failures) == 1
    assert "odd answer" in str(report)
    (failed,) = [record for record in project.documents() if record.fallback_chunks]
    assert list(failed.fallback_chunks) == [report.failures[0].node_id]
    calls = len(llm.history)
    again = project.retry_failed()
    assert (list(again.rebuilt), again.contexts_paid, again.failures) == ([failed.doc_id], 1, ())
    assert len(llm.history) == calls + 1
    assert {node.metadata["context_source"] for node in nodes_of(project)} == {"llm"}
    assert project.retry_failed().version == again.version


def test_if_a_model_fails_the_old_version_stays_live_and_paid_results_are_kept(
    paid: tuple[Project, ScriptedLLM], model: CountingEmbedding, text_folder: Path
) -> None:
    project, llm = paid
    model.fail_on = "Orlen Valve Works"
    project.ingest([text_folder / "manual.txt"])
    before = len(llm.history)
    with pytest.raises(ModelError, match=r"this model takes no text with 'Orlen Valve Works'"):
        project.ingest([text_folder])
    assert current_name(project.directory) == "v000001"
    assert leftovers(project.directory) == []
    assert project.info().ledger.contexts == len(llm.history) > before
    model.fail_on = None
    assert project.ingest([text_folder]).contexts_paid == 0


def test_a_damaged_version_can_be_replaced_without_paying_again(
    paid: tuple[Project, ScriptedLLM], model: CountingEmbedding, text_folder: Path
) -> None:
    project, llm = paid
    project.ingest([text_folder])
    calls, embedded = len(llm.history), len(model.texts)
    (project.directory / "parts" / "p000001" / "docstore.sqlite").write_bytes(b"damaged")
    with pytest.raises(CorruptVersionError, match=r"docstore.sqlite has 7 bytes .*`verify\(repair=True\)`"):
        project.ingest([text_folder])
    assert list(project.ingest([text_folder], replace=True).added) == [MANUAL, QUARTER]
    (project.directory / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(CorruptVersionError, match=r"^CURRENT "):
        project.ingest([text_folder])
    assert list(project.ingest([text_folder], replace=True).added) == [MANUAL, QUARTER]
    assert (len(llm.history), len(model.texts)) == (calls, embedded)
    assert project.read(MANUAL) == TEXT


# ---- interruptions and other writers -------------------------------------------------------------------------------


class Stop(Exception):
    """Raised by a callback."""


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_an_interruption_anywhere_leaves_the_old_version_live_and_nothing_unfinished(
    error: type[BaseException], counted: Project, text_folder: Path
) -> None:
    def interrupt_after(steps: int) -> Callable[[IngestProgress], None]:
        left = itertools.count(steps, -1)

        def report(state: IngestProgress) -> None:
            if next(left) == 0 and state.stage != "done":
                raise error

        return report

    counted.ingest([Document(id_="old", text="The old version.")])
    before = files_of(counted.directory / "versions")
    for steps in itertools.count():
        try:
            counted.ingest([text_folder], progress=interrupt_after(steps))
        except error:
            assert leftovers(counted.directory) == []
            assert files_of(counted.directory / "versions") == before
            assert counted.retrieve("old version").results[0].source.doc_id == "old"
        else:
            break
    assert steps > 4
    assert current_name(counted.directory) == "v000002"
    assert len(counted.documents()) == 3


def test_a_second_writer_is_refused_until_the_first_ends(counted: Project, text_folder: Path) -> None:
    message = r"Another process is writing to project 'counted': wait until it has finished"
    with write_lock(counted.directory):
        for write in (lambda: counted.ingest([text_folder]), counted.rebuild, counted.rollback):
            with pytest.raises(ProjectLockedError, match=message):
                write()
    assert not (counted.directory / "versions").exists()
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


# ---- progress and open files ---------------------------------------------------------------------------------------


def test_progress_ends_with_all_work_completed(counted: Project, text_folder: Path) -> None:
    (text_folder / "empty.txt").write_bytes(b" ")
    counted.ingest([Document(id_="old", text="The old version.")])
    messages: list[IngestProgress] = []
    inputs = chunk("g", "Costs fell.", doc_id="ready", metadata={"context": "The cost report."})
    report = counted.ingest([text_folder, inputs], progress=messages.append)
    last = messages[-1]
    assert (last.documents_total, last.documents_read, last.documents_done) == (4, 4, 3)
    assert last.chunks_done == report.chunks - 1  # the old document is taken over
    assert list(dict.fromkeys(state.stage for state in messages)) == ["ingest", "publish", "done"]
    for earlier, later in itertools.pairwise(messages):
        for name in ("documents_read", "documents_done", "chunks_done"):
            assert getattr(earlier, name) <= getattr(later, name)


# ---- removal ---------------------------------------------------------------------------------------------------------


DOCUMENTS = [Document(id_=metal, text=f"The price of {metal} rose. " * 8) for metal in ("copper", "tin", "zinc")]


@pytest.fixture
def llm() -> ScriptedLLM:
    return ScriptedLLM(
        default="From the price list of metals: how the prices of copper, tin and zinc rose in the last year."
    )


@pytest.fixture
def filled(manager: ProjectManager, llm: ScriptedLLM, model: CountingEmbedding) -> Project:
    """Three documents with contexts that were paid for."""
    config = ProjectConfig.local(context="llm", chunk_size=40, chunk_overlap=4)
    project = manager.create("metals", config, llm=llm, embed_model=model)
    project.ingest(DOCUMENTS)
    return project


def test_removing_nothing_publishes_nothing(filled: Project, manager: ProjectManager) -> None:
    report = filled.remove([])
    assert (report.version, report.removed, report.unchanged) == ("v000001", (), ())
    filled.update_config(chunk_size=20, chunk_overlap=0)
    assert filled.remove([]).version == "v000001"
    assert version_names(filled.directory) == ["v000001"]
    assert manager.create("empty", ProjectConfig.local()).remove([]).version is None
    with pytest.raises(InputError, match="Project 'metals' has no document 'lead'"):
        filled.remove(["tin", "lead"])
    assert version_names(filled.directory) == ["v000001"]


def test_a_removal_applies_no_pending_settings_and_calls_no_model(
    filled: Project, llm: ScriptedLLM, model: CountingEmbedding
) -> None:
    nodes = {node.node_id: node for node in nodes_of(filled) if node.ref_doc_id != "tin"}
    vectors, calls, embedded = vectors_of(filled), len(llm.history), len(model.texts)
    assert filled.update_config(chunk_size=20, chunk_overlap=0, indexes="semantic", top_k=3, keep_versions=2)
    report = filled.remove("tin")
    assert (report.version, report.removed, report.unchanged) == ("v000002", ("tin",), ())
    assert report.chunks == len(nodes)
    assert (len(llm.history), len(model.texts)) == (calls, embedded)
    assert {node.node_id: node for node in nodes_of(filled)} == nodes
    assert vectors_of(filled) == {node_id: vectors[node_id] for node_id in nodes}
    assert len(filled.retrieve("price of zinc", mode="lexical")) == 3
    rebuilt = filled.rebuild()
    assert rebuilt.rebuilt == ("copper", "zinc")
    assert rebuilt.chunks > report.chunks


def test_failed_contexts_are_not_retried_with_changed_settings(filled: Project, llm: ScriptedLLM) -> None:
    filled.update_config(chunk_overlap=0)
    assert filled.retry_failed().version == "v000001", "nothing has failed"
    filled.update_config(chunk_overlap=4)
    llm.enqueue(ValueError("odd answer"))
    assert len(filled.ingest([Document(id_="lead", text="Lead is heavy.")]).failures) == 1
    filled.update_config(chunk_overlap=0, llm="openai:gpt-4.1-mini")
    calls = len(llm.history)
    with pytest.raises(ConfigurationError, match=r"have changed .*\(llm, chunk_overlap\): use `rebuild`"):
        filled.retry_failed()
    assert len(llm.history) == calls
    filled.update_config(chunk_overlap=4, llm=DEFAULT_LLM)
    assert filled.retry_failed().rebuilt == ("lead",)
    assert len(llm.history) == calls + 1
