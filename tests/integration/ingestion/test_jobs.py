"""Inputs of `ingest`: paths, Documents and chunks, each with its id and content hash."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import xxhash
from llama_index.core.schema import Document

from llama_index_contextual.errors import InputError
from llama_index_contextual.ingestion import plan as jobs
from llama_index_contextual.ingestion.plan import Intake, Job
from llama_index_contextual.readers import DocumentReader, ReadLimits
from llama_index_contextual.storage.manifest import DocumentRecord
from tests.support.nodes import chunk


def records_of(intake: Intake) -> list[DocumentRecord]:
    """Return what a version would remember of the files of an intake."""
    return [
        DocumentRecord(doc_id=doc_id, content_hash=intake.hashes[doc_id], origin=jobs.origin(ref.path))
        for doc_id, ref in intake.files.items()
    ]


def read_all(intake: Intake) -> tuple[list[Job], list[str]]:
    failed: list[str] = []
    with DocumentReader() as reader:
        return list(intake.jobs(reader, list(intake.hashes), failed)), failed


# ---- files ---------------------------------------------------------------------------------------------------------


def test_the_id_of_a_file_is_its_path_relative_to_the_parent_of_its_folder(text_folder: Path) -> None:
    intake = Intake.of([str(text_folder)])
    assert list(intake.files) == ["reports/manual.txt", "reports/quarter.md"]
    assert intake.hashes["reports/manual.txt"] == xxhash.xxh3_128((text_folder / "manual.txt").read_bytes()).hexdigest()
    assert intake.size("reports/manual.txt") == (text_folder / "manual.txt").stat().st_size
    assert not any(str(text_folder) in str(record) for record in records_of(intake))


def test_a_known_file_keeps_its_id_for_any_path(text_folder: Path) -> None:
    before = records_of(Intake.of([text_folder]))
    again = Intake.of([text_folder / "manual.txt"], before)
    assert list(again.files) == ["reports/manual.txt"]
    link = text_folder.parent / "link.txt"
    link.symlink_to(text_folder / "manual.txt")
    assert list(Intake.of([link], before).files) == ["reports/manual.txt"]


def test_a_file_moved_within_the_given_folders_gets_its_new_name(text_folder: Path) -> None:
    before = records_of(Intake.of([text_folder]))
    moved = text_folder.parent / "moved.txt"
    (text_folder / "manual.txt").rename(moved)
    intake = Intake.of([moved], before)
    assert list(intake.files) == ["moved.txt"]
    assert intake.identities.renamed == {"reports/manual.txt": "moved.txt"}
    assert intake.hashes["moved.txt"] == before[0].content_hash


def test_a_new_file_with_an_old_name_does_not_conflict_with_the_renamed_file(text_folder: Path) -> None:
    before = records_of(Intake.of([text_folder]))
    (text_folder / "manual.txt").rename(text_folder / "old manual.txt")
    (text_folder / "manual.txt").write_text("A new manual.", encoding="utf-8")
    for inputs in ([text_folder], [text_folder / "old manual.txt", text_folder / "manual.txt"]):
        intake = Intake.of(inputs, before)
        hashes = {ref.path.name: intake.hashes[doc_id] for doc_id, ref in intake.files.items()}
        ids = {ref.path.name: doc_id for doc_id, ref in intake.files.items()}
        assert ids["manual.txt"] == "reports/manual.txt"
        assert ids["old manual.txt"] != "reports/manual.txt"
        assert hashes["old manual.txt"] == before[0].content_hash


def test_a_file_gets_a_longer_id_if_a_known_file_has_its_id(text_folder: Path, tmp_path: Path) -> None:
    before = records_of(Intake.of([text_folder / "manual.txt"]))
    assert [record.doc_id for record in before] == ["manual.txt"]
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere" / "manual.txt"
    other.write_text("Another manual.", encoding="utf-8")
    intake = Intake.of([text_folder, other], before)
    assert list(intake.files) == ["manual.txt", "reports/quarter.md", "elsewhere/manual.txt"]
    assert [(warning.path, warning.message) for warning in intake.warnings] == [
        (
            str(other),
            "its document gets the id 'elsewhere/manual.txt', because 'manual.txt' is the id of another document",
        )
    ]


def test_a_file_deleted_from_an_ingested_folder_is_missing(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text_folder / "sub folder").mkdir()
    other = tmp_path / "other"
    other.mkdir()
    (other / "note.txt").write_text("A note.", encoding="utf-8")
    before = records_of(Intake.of([text_folder, other]))
    (text_folder / "manual.txt").unlink()
    (other / "note.txt").unlink()
    (other / "more.txt").write_text("More.", encoding="utf-8")
    assert Intake.of([text_folder], before).missing == ["reports/manual.txt"]
    monkeypatch.chdir(text_folder / "sub folder")
    assert Intake.of([".."], before).missing == ["reports/manual.txt"]
    assert Intake.of([text_folder / "quarter.md"], before).missing == []


def test_an_existing_file_that_is_skipped_is_not_missing(text_folder: Path) -> None:
    before = records_of(Intake.of([text_folder]))
    (text_folder / "a copy of the manual.txt").write_bytes((text_folder / "manual.txt").read_bytes())
    assert Intake.of([text_folder], before).missing == []
    single = records_of(Intake.of([text_folder / "quarter.md"]))
    (text_folder / "quarter.md").unlink()
    assert Intake.of([text_folder], single).missing == ["quarter.md"]


def test_files_with_equal_content_are_ingested_once(text_folder: Path) -> None:
    (text_folder / "copy.txt").write_bytes((text_folder / "manual.txt").read_bytes())
    intake = Intake.of([text_folder])
    assert list(intake.files) == ["reports/copy.txt", "reports/quarter.md"]
    assert [(Path(file.path).name, file.reason.split(" as ")[0]) for file in intake.skipped] == [
        ("manual.txt", "has the same content")
    ]


def test_a_known_file_that_now_equals_another_is_updated_not_skipped(text_folder: Path) -> None:
    before = records_of(Intake.of([text_folder]))
    (text_folder / "quarter.md").write_bytes((text_folder / "manual.txt").read_bytes())
    intake = Intake.of([text_folder], before)
    assert list(intake.files) == ["reports/manual.txt", "reports/quarter.md"]
    assert intake.hashes["reports/quarter.md"] == intake.hashes["reports/manual.txt"]
    assert intake.skipped == []


def test_of_equal_files_the_known_one_is_ingested(text_folder: Path) -> None:
    before = records_of(Intake.of([text_folder]))
    (text_folder / "a copy of the manual.txt").write_bytes((text_folder / "manual.txt").read_bytes())
    intake = Intake.of([text_folder], before)
    assert list(intake.files) == ["reports/manual.txt", "reports/quarter.md"]
    assert [Path(file.path).name for file in intake.skipped] == ["a copy of the manual.txt"]


def test_files_with_equal_hashes_and_different_content_are_an_error(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "content_hash", lambda _path: "the same for all")
    with pytest.raises(InputError, match=r"have the same xxh3 .* but different content"):
        Intake.of([text_folder])


def test_a_file_larger_than_the_limit_is_skipped_before_it_is_hashed_and_read_with_a_higher_limit(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    real = jobs.content_hash
    monkeypatch.setattr(jobs, "content_hash", lambda path: hashed.append(path.name) or real(path))
    intake = Intake.of([text_folder], limits=ReadLimits(max_bytes=200))
    assert list(intake.files) == ["reports/manual.txt"]
    assert [Path(file.path).name for file in intake.skipped] == ["quarter.md"]
    assert hashed == ["manual.txt"]
    assert len(Intake.of([text_folder], limits=ReadLimits(max_bytes=2_000)).files) == 2


def test_file_metadata_is_part_of_the_content_hash(text_folder: Path) -> None:
    plain = Intake.of([text_folder])
    with_facts = Intake.of([text_folder], file_metadata=lambda path: {"fund": "IV"} if path.endswith("md") else None)
    assert plain.hashes["reports/manual.txt"] == with_facts.hashes["reports/manual.txt"]
    assert plain.hashes["reports/quarter.md"] != with_facts.hashes["reports/quarter.md"]


def test_a_file_that_cannot_be_opened_is_skipped_with_its_reason(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        if path.name == "manual.txt":
            raise jobs.ReadError(str(path), "cannot be opened: Permission denied")
        return "hash"

    monkeypatch.setattr(jobs, "content_hash", refuse)
    intake = Intake.of([text_folder])
    assert list(intake.files) == ["reports/quarter.md"]
    assert intake.skipped[0].reason == "cannot be opened: Permission denied"


def test_files_are_read_one_by_one_and_a_bad_one_does_not_stop_the_rest(text_folder: Path) -> None:
    (text_folder / "empty.txt").write_bytes(b"")
    intake = Intake.of([text_folder])
    read, failed = read_all(intake)
    assert [job.doc_id for job in read] == ["reports/manual.txt", "reports/quarter.md"]
    assert failed == ["reports/empty.txt"]
    assert [Path(file.path).name for file in intake.skipped] == ["empty.txt"]
    assert "empty" in intake.skipped[0].reason
    assert read[0].document is not None
    assert read[0].document.text.startswith("Procedure manual")
    assert read[0].origin == hashlib.sha256(os.fsencode(os.path.realpath(text_folder / "manual.txt"))).hexdigest()


def test_a_file_whose_metadata_cannot_be_kept_is_skipped_with_its_reason(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DocumentReader._content

    def with_nul(self: DocumentReader, ref: Any, parsed: Any) -> Any:
        content = real(self, ref, parsed)
        if ref.doc_id.endswith("md"):
            content.document.metadata["title"] = "N\0U\0L"
        return content

    monkeypatch.setattr(DocumentReader, "_content", with_nul)
    intake = Intake.of([text_folder])
    read, failed = read_all(intake)
    assert [job.doc_id for job in read] == ["reports/manual.txt"]
    assert failed == ["reports/quarter.md"]
    assert "'title' in its metadata contains a NUL character" in intake.skipped[0].reason


def test_only_requested_documents_are_read(text_folder: Path) -> None:
    intake = Intake.of([text_folder, Document(id_="a", text="x"), Document(id_="b", text="y")])
    with DocumentReader() as reader:
        read = [job.doc_id for job in intake.jobs(reader, ["reports/quarter.md", "b"], [])]
    assert read == ["reports/quarter.md", "b"]


# ---- Documents and chunks ------------------------------------------------------------------------------------------


def test_documents_and_chunks_are_unchanged_and_chunks_are_grouped_by_document() -> None:
    document = Document(id_="report", text="Revenue grew.", metadata={"fund": "IV"})
    chunks = [chunk("a", doc_id="d"), chunk("b", doc_id="e"), chunk("c", doc_id="d"), chunk("alone")]
    intake = Intake.of([document, *chunks])
    read, failed = read_all(intake)
    assert failed == []
    assert [(job.doc_id, [node.node_id for node in job.nodes or []]) for job in read] == [
        ("report", []),
        ("d", ["a", "c"]),
        ("e", ["b"]),
        ("alone", ["alone"]),
    ]
    assert read[0].document is document
    assert intake.size("d") == len(chunks[0].text) + len(chunks[2].text)
    assert intake.size("report") == len(document.text)


def test_a_chunk_without_a_document_becomes_a_document_and_is_not_modified() -> None:
    node = chunk("alone")
    (job,) = Intake.of([node]).ready.values()
    assert [original.ref_doc_id for original in job.nodes or []] == ["alone"]
    assert node.relationships == {}


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Revenue fell."},
        {"metadata": {"fund": "V"}},
        {"excluded_embed_metadata_keys": ["fund"]},
        {"excluded_llm_metadata_keys": ["fund"]},
    ],
)
def test_any_change_of_the_chunks_changes_the_hash_of_the_document(change: dict[str, Any]) -> None:
    inputs: dict[str, Any] = {"id_": "a", "text": "Revenue grew.", "metadata": {"fund": "IV"}}
    same, again, other = Document(**inputs), Document(**inputs), Document(**{**inputs, **change})
    hashes = [Intake.of([document]).hashes["a"] for document in (same, again, other)]
    assert hashes[0] == hashes[1] != hashes[2]

    def hash_of(**fields: Any) -> str:
        return Intake.of([chunk("n", doc_id="a", **{k: v for k, v in fields.items() if k != "id_"})]).hashes["a"]

    assert hash_of(**inputs) == hash_of(**inputs) != hash_of(**{**inputs, **change})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([42], r"ingest accepts only paths, LlamaIndex Documents and nodes"),
        ([b"reports"], r"ingest accepts only paths"),
        ([None], r"ingest accepts only paths"),
        ([Document(id_="a", text="x"), Document(id_="a", text="y")], r"Two inputs have the document id 'a': assign"),
        ([Document(id_="d", text="x"), chunk("n", doc_id="d")], r"Two inputs have the document id 'd'"),
        ([chunk("n", doc_id="d"), chunk("n", doc_id="e")], r"Two nodes have the id 'n': assign unique ids"),
        ([chunk("n", doc_id="d"), chunk("n", doc_id="d")], r"Two nodes have the id 'n': assign unique ids"),
        ([Document(id_="a", text="\ud800")], r"'a' cannot be ingested: its text contains lone surrogates"),
        ([Document(id_="a", text="x", metadata={"v": float("nan")})], r"'v' in its metadata is not a finite number"),
        ([Document(id_="a", text="x", metadata={"v": object()})], r"'v' in its metadata is of type object"),
        ([chunk("n", metadata={"v": {1}})], r"'n' cannot be ingested: the value of 'v' in its metadata is of type set"),
        ([Document(id_="", text="x")], r"A document has an empty id: assign one"),
    ],
)
def test_invalid_inputs_are_refused_with_a_message(inputs: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Intake.of(inputs)


def test_a_document_and_a_file_with_the_same_id_are_refused(text_folder: Path) -> None:
    with pytest.raises(InputError, match=r"Two inputs have the document id 'reports/manual.txt'"):
        Intake.of([text_folder, Document(id_="reports/manual.txt", text="x")])
