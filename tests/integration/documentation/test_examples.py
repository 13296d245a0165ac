"""The examples: documents, questions and scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers import ReadResult, read_documents
from tests.support.examples import DATA, EXAMPLES, rows, script

PDF = "quarterly-reports-2024.pdf"
_QUARTERS = ("first", "second", "third")
QUESTIONS = rows(DATA / "questions.jsonl")
CONTRACTS = EXAMPLES / "contracts"
OTHER_QUESTIONS = {CONTRACTS: rows(CONTRACTS / "questions.jsonl"), DATA: rows(EXAMPLES / "paraphrases.jsonl")}
"""Questions of the notebooks by the folder of their documents."""


@pytest.fixture(scope="module")
def read() -> ReadResult:
    """All example documents."""
    return read_documents([DATA])


def test_the_corpus_is_one_pdf_two_markdown_and_two_text_files(read: ReadResult) -> None:
    suffixes = [Path(document.metadata["file_name"]).suffix for document in read]
    assert sorted(suffixes) == [".md", ".md", ".pdf", ".txt", ".txt"]
    assert {Path(file.path).suffix for file in read.skipped} == {".jsonl"}
    assert read.warnings == []


def test_the_pdf_has_more_than_twenty_pages_and_an_outline_of_three_reports(read: ReadResult) -> None:
    (pdf,) = (document for document in read if document.metadata["file_name"] == PDF)
    result = DocumentMap.from_metadata(pdf.metadata)
    assert len(result.page_starts) > 20
    reports = [heading.title for heading in result.headings if heading.title.startswith("Haldermoor")]
    assert [title.split(" the ")[1] for title in reports] == [f"{n} quarter of 2024" for n in _QUARTERS]


@pytest.mark.parametrize("row", QUESTIONS, ids=[row["id"] for row in QUESTIONS])
def test_the_evidence_of_each_question_stands_in_its_document(row: dict[str, object], read: ReadResult) -> None:
    (document,) = (d for d in read if d.metadata["file_name"] == row["file"])
    text = " ".join(document.text.split())
    evidence = row["evidence"]
    assert isinstance(evidence, list)
    assert evidence
    for passage in evidence:
        assert " ".join(passage.split()) in text


def test_questions_have_ids_of_their_own() -> None:
    assert len({row["id"] for row in QUESTIONS}) == len(QUESTIONS) >= 20


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


@pytest.mark.parametrize("report", [*sorted(EXAMPLES.glob("pdf_source/*.md")), DATA / "interim-report-q4-2024.md"])
def test_a_report_names_company_and_quarter_in_its_opening_only(report: Path) -> None:
    opening, _, rest = report.read_text(encoding="utf-8").partition("\n## ")
    assert "Haldermoor" in opening
    assert "quarter of 2024" in opening
    assert "Haldermoor" not in rest
    assert "quarter of 2024" not in rest


def test_the_quickstart_has_at_most_25_lines() -> None:
    assert len((EXAMPLES / "quickstart.py").read_text(encoding="utf-8").splitlines()) <= 25
