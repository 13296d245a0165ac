"""The report: lists every document and file, as text and as JSON."""

from __future__ import annotations

import json

from llama_index_contextual.contextualizer.base import ChunkFailure
from llama_index_contextual.ingestion.report import IngestReport, skipped_lines
from llama_index_contextual.readers import FileWarning, SkippedFile

REPORT = IngestReport(
    version="v000002",
    added=("a", "b"),
    updated=("c",),
    missing=("d",),
    skipped=(SkippedFile("x.docx", "has the type .docx"),),
    warnings=(FileWarning("y.pdf", "page 3 has no text"),),
    failures=(ChunkFailure("n", "a", "the model answered nothing"),),
    chunks=1_234,
)


def test_the_summary_lists_documents_by_action() -> None:
    assert str(REPORT).splitlines() == [
        "Version v000002: 2 added, 1 updated, 1 missing, 1 skipped; 1,234 chunks.",
        "  missing d",
        "  skipped x.docx: has the type .docx",
        "  note y.pdf: page 3 has no text",
        "  no LLM context for a: the model answered nothing",
        "  These chunks have the structural context. To request their contexts again: project.retry_failed()",
    ]


def test_failures_are_one_line_for_each_kind_with_a_count_and_an_example() -> None:
    failures = [ChunkFailure(f"n{n}", f"d{n % 3}", f"Error 400:\n request req_{n}a7f is invalid") for n in range(9)]
    failures += [ChunkFailure("n9", "d9", "Refused.", is_held_back=True)]
    report = IngestReport(version="v1", failures=tuple(failures))
    assert str(report).splitlines()[1:] == [
        "  no LLM context for 9 chunks, such as d0: Error 400: request req_0a7f is invalid",
        "  no LLM context for d9: Refused.",
        "  These chunks have the structural context. To request their contexts again:"
        " project.retry_failed(max_cost=...)",
    ]
    assert [failure["error"] for failure in report.to_dict()["failures"]] == [f.error for f in failures]  # type: ignore[attr-defined]


def test_up_to_ten_skipped_files_are_named_one_by_one() -> None:
    skipped = [SkippedFile(f"{n}.docx", "has the type .docx") for n in range(10)]
    assert skipped_lines(skipped) == [f"{n}.docx: has the type .docx" for n in range(10)]
    assert skipped_lines([]) == []


def test_more_skipped_files_are_grouped_by_reason() -> None:
    skipped = [SkippedFile(f"in/{n}.docx", "has the type .docx, and only .pdf are read") for n in range(200)]
    skipped += [SkippedFile(f"in/{n}.pdf", f"has {n},345 bytes, more than the limit of 10") for n in range(7, 12)]
    skipped += [SkippedFile("in/odd.pdf", "the PDF has no pages")]
    report = IngestReport(version="v1", skipped=tuple(skipped))
    assert skipped_lines(report.skipped) == [
        "200 files, such as in/0.docx: has the type .docx, and only .pdf are read",
        "5 files, such as in/7.pdf: has 7,345 bytes, more than the limit of 10",
        "in/odd.pdf: the PDF has no pages",
    ]
    assert f"  skipped {skipped_lines(report.skipped)[0]}" in str(report).splitlines()
    assert len(report.to_dict()["skipped"]) == len(skipped)  # type: ignore[arg-type]


def test_a_report_is_converted_to_json() -> None:
    raw = json.loads(json.dumps(REPORT.to_dict()))
    assert raw["skipped"] == [{"path": "x.docx", "reason": "has the type .docx", "absent": False, "content_hash": None}]
    failure = {"node_id": "n", "doc_id": "a", "error": "the model answered nothing", "is_held_back": False}
    failure["step"] = "context"
    assert raw["failures"] == [failure]
    assert raw["added"] == ["a", "b"]
    assert set(raw) == set(IngestReport.__dataclass_fields__)
