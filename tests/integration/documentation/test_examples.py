"""The examples: documents, questions and scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.readers import ReadResult, read_documents
from tests.support.examples import DATA, EXAMPLES, rows, script

QUESTIONS = rows(DATA / "questions.jsonl")
CONTRACTS = EXAMPLES / "contracts"
OTHER_QUESTIONS = {CONTRACTS: rows(CONTRACTS / "questions.jsonl"), DATA: rows(EXAMPLES / "paraphrases.jsonl")}
"""Questions of the notebooks by the folder of their documents."""


@pytest.fixture(scope="module")
def read() -> ReadResult:
    """All example documents."""
    return read_documents([DATA])


@pytest.mark.parametrize("row", QUESTIONS, ids=[row["id"] for row in QUESTIONS])
def test_the_evidence_of_each_question_stands_in_its_document(row: dict[str, object], read: ReadResult) -> None:
    (document,) = (d for d in read if d.metadata["file_name"] == row["file"])
    text = " ".join(document.text.split())
    evidence = row["evidence"]
    assert isinstance(evidence, list)
    assert evidence
    for passage in evidence:
        assert " ".join(passage.split()) in text


@pytest.mark.parametrize("folder", OTHER_QUESTIONS, ids=lambda folder: folder.name)
def test_the_evidence_of_the_notebooks_questions_occurs_once_in_its_document(folder: Path) -> None:
    texts = {d.metadata["file_name"]: " ".join(d.text.split()) for d in read_documents([folder])}
    counts = {
        row["id"]: [texts[row["file"]].count(text) for text in row["evidence"]] for row in OTHER_QUESTIONS[folder]
    }
    assert {key: count for key, count in counts.items() if count != [1]} == {}
    assert len(counts) == len(OTHER_QUESTIONS[folder])


def test_the_recorded_contexts_of_the_contracts_are_what_the_recorder_writes_today(tmp_path: Path) -> None:
    recorder, fresh = script("record_contexts"), tmp_path / "contexts.jsonl"
    recorder.record(fresh, CONTRACTS, EXAMPLES / "context_notes" / "contracts", **recorder.CONTRACT_SETTINGS)
    assert rows(fresh) == rows(CONTRACTS / "contexts.jsonl"), "run `python examples/record_contexts.py`"
