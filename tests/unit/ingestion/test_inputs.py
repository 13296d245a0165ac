"""Inputs of `ingest`: paths, Documents and chunks, each with its id and content hash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import xxhash
from llama_index.core.schema import Document

from llama_index_contextual.errors import InputError
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.ingestion import plan
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.plan import Inputs, Job, SkippedDocument
from llama_index_contextual.readers import DocumentReader, ReadLimits
from tests.support.nodes import chunk
from tests.support.trees import reasons


def records_of(inputs: Inputs) -> list[DocumentRecord]:
    """Return what a version would remember of the files of a call."""
    return [
        DocumentRecord(doc_id=doc_id, content_hash=source.digest, path=os.path.realpath(source.ref.path))
        for doc_id, source in inputs.documents.items()
        if source.ref is not None
    ]


# ---- files ---------------------------------------------------------------------------------------------------------


def test_the_id_of_a_file_is_its_path_relative_to_the_parent_of_its_folder(text_folder: Path) -> None:
    inputs = Inputs.collect([str(text_folder)])
    assert list(inputs.documents) == ["reports/manual.txt", "reports/quarter.md"]
    assert (
        inputs.documents["reports/manual.txt"].digest
        == xxhash.xxh3_128((text_folder / "manual.txt").read_bytes()).hexdigest()
    )
    assert not any(str(text_folder) in str(record) for record in records_of(inputs))


def test_a_file_larger_than_the_limit_is_skipped_before_it_is_hashed_and_read_with_a_higher_limit(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    real = plan.content_hash
    monkeypatch.setattr(plan, "content_hash", lambda path: hashed.append(path.name) or real(path))
    inputs = Inputs.collect([text_folder], RunOptions(limits=ReadLimits(max_bytes=200)))
    assert list(inputs.documents) == ["reports/manual.txt"]
    assert "split it into smaller files" in reasons(inputs)["quarter.md"]
    assert hashed == ["manual.txt"]
    assert len(Inputs.collect([text_folder], RunOptions(limits=ReadLimits(max_bytes=2_000))).documents) == 2


def test_a_file_that_cannot_be_opened_is_skipped_with_its_reason(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        if path.name == "manual.txt":
            raise plan.ReadError(str(path), "cannot be opened: Permission denied")
        return "hash"

    monkeypatch.setattr(plan, "content_hash", refuse)
    inputs = Inputs.collect([text_folder])
    assert list(inputs.documents) == ["reports/quarter.md"]
    assert inputs.skipped[0].reason == "cannot be opened: Permission denied"


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
    inputs = Inputs.collect([text_folder])
    with DocumentReader() as reader:
        read = list(inputs.read(reader, list(inputs.documents)))
    assert [(job.doc_id, type(job)) for job in read] == [
        ("reports/manual.txt", Job),
        ("reports/quarter.md", SkippedDocument),
    ]
    assert "'title' in its metadata contains a NUL character" in read[1].file.reason
    assert inputs.skipped == [], "the inputs do not change while they are read"


# ---- Documents and chunks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Revenue fell."},
        {"metadata": {"fund": "V"}},
        {"excluded_embed_metadata_keys": ["fund"]},
        {"excluded_llm_metadata_keys": ["fund"]},
    ],
)
def test_any_change_of_a_document_or_of_its_chunks_changes_its_hash(change: dict[str, Any]) -> None:
    def hashes(**fields: Any) -> list[str]:
        inputs = (Document(id_="a", **fields), chunk("n", doc_id="a", **fields))
        return [Inputs.collect([one]).documents["a"].digest for one in inputs]

    fields: dict[str, Any] = {"text": "Revenue grew.", "metadata": {"fund": "IV"}}
    before, changed = hashes(**fields), hashes(**{**fields, **change})
    assert hashes(**fields) == before
    assert not {*before} & {*changed}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([42], r"ingest accepts only paths, LlamaIndex Documents and nodes"),
        ([b"reports"], r"ingest accepts only paths"),
        ([Document(id_="a", text="x"), Document(id_="a", text="y")], r"Two inputs have the document id 'a': assign"),
        ([Document(id_="d", text="x"), chunk("n", doc_id="d")], r"Two inputs have the document id 'd'"),
        (["reports", Document(id_="reports/manual.txt", text="x")], r"Two inputs have the document id 'reports/manual"),
        ([chunk("n", doc_id="d"), chunk("n", doc_id="e")], r"Two nodes have the id 'n': assign unique ids"),
        ([chunk("n", doc_id="d"), chunk("n", doc_id="d")], r"Two nodes have the id 'n': assign unique ids"),
        ([Document(id_="a", text="\ud800")], r"'a' cannot be ingested: its text contains lone surrogates"),
        ([Document(id_="", text="x")], r"A document has an empty id: assign one"),
    ],
)
def test_invalid_inputs_are_refused_with_a_message(
    inputs: list[Any], message: str, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text_folder.parent)
    with pytest.raises(InputError, match=message):
        Inputs.collect(inputs)
