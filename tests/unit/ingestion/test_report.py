"""The report: lists every document and file, as text and as JSON."""

from __future__ import annotations

import json

import pytest

from llama_index_contextual.contextualizer.base import ChunkFailure
from llama_index_contextual.ingestion.report import IngestReport, condense, skipped_lines
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
        "  y.pdf: page 3 has no text",
        "  no LLM context for 1 chunk of a: the model answered nothing",
        "  These chunks have the structural context. To request it again: project.retry_failed()",
    ]


FAILED = "'openai:gpt-4.1' failed: BadRequestError: Error code:"


def raw(request: str, message: str = "Invalid prompt.", status: int = 400) -> str:
    """Return an error as a provider's client words it."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "request_id": request}}
    return f"{FAILED} {status} - {body}"


def test_failures_are_one_line_for_each_kind_with_a_count_and_an_example() -> None:
    failures = [ChunkFailure(f"n{n}", f"d{n % 3}", raw(f"req_{n}a7f")) for n in range(9)]
    failures += [ChunkFailure("n9", "d9", raw("req_9", f"Retry in {n}.5s", status=503)) for n in (1, 20)]
    report = IngestReport(version="v1", failures=tuple(failures))
    assert report.failure_lines() == [
        f"9 chunks of 3 documents, such as d0: {FAILED} 400: Invalid prompt.",
        f"2 chunks of d9: {FAILED} 503: Retry in 1.5s",
    ]
    assert str(report).count("project.retry_failed()") == 1
    assert str(report).count("\n") == 3
    assert [failure["error"] for failure in report.to_dict()["failures"]] == [f.error for f in failures]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("'m' failed: ValueError: one\n  two", "'m' failed: ValueError: one two"),
        ("Error code: 400 - {'error': {'message': 'It is {cut off, and", "Error code: 400: It is {cut off, and"),
        ('Error: {"message": "It\'s "so"", "code": 3}', 'Error: It\'s "so"'),
        ("no {body} here", "no {body} here"),
        ("", ""),
    ],
)
def test_an_error_is_condensed_to_its_message(error: str, line: str) -> None:
    assert condense(error) == line


def test_up_to_ten_skipped_files_are_named_one_by_one() -> None:
    skipped = [SkippedFile(f"{n}.docx", "has the type .docx") for n in range(10)]
    assert skipped_lines(skipped) == [f"{n}.docx: has the type .docx" for n in range(10)]
    assert skipped_lines([]) == []


def test_more_skipped_files_are_grouped_by_type_and_reason() -> None:
    skipped = [SkippedFile(f"in/{n}.docx", "has the type .docx, and only .pdf are read") for n in range(200)]
    skipped += [SkippedFile(f"in/{n}.pdf", f"has {n},345 bytes, more than the limit of 10") for n in range(7, 12)]
    skipped += [SkippedFile(f"in/copy {n}.md", f"has the same content as in/original {n}x.md") for n in range(3)]
    skipped += [SkippedFile(f"in/{name}", "has no file extension") for name in ("Makefile", "LICENSE")]
    skipped += [SkippedFile("in/odd.pdf", "the PDF has no pages")]
    report = IngestReport(version="v1", skipped=tuple(skipped))
    assert skipped_lines(report.skipped) == [
        "200 .docx files, such as in/0.docx: has the type .docx, and only .pdf are read",
        "5 .pdf files, such as in/7.pdf: has 7,345 bytes, more than the limit of 10",
        "3 .md files, such as in/copy 0.md: has the same content as in/original 0x.md",
        "2 files, such as in/Makefile: has no file extension",
        "in/odd.pdf: the PDF has no pages",
    ]
    assert f"  skipped {skipped_lines(report.skipped)[0]}" in str(report).splitlines()
    assert len(report.to_dict()["skipped"]) == len(skipped)  # type: ignore[arg-type]


def test_a_report_is_converted_to_json() -> None:
    raw = json.loads(json.dumps(REPORT.to_dict()))
    assert raw["skipped"] == [{"path": "x.docx", "reason": "has the type .docx", "absent": False}]
    failure = {"node_id": "n", "doc_id": "a", "error": "the model answered nothing", "is_held_back": False}
    assert raw["failures"] == [failure]
    assert raw["added"] == ["a", "b"]
    assert set(raw) == set(IngestReport.__dataclass_fields__)
