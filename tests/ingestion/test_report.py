"""The report: every document and file accounted for, in words and as JSON."""

from __future__ import annotations

import json

from llama_index_contextual.contextualizer.base import ChunkFailure
from llama_index_contextual.ingestion.report import IngestReport
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


def test_it_says_in_words_what_was_done_to_whom() -> None:
    assert str(REPORT).splitlines() == [
        "Version v000002: 2 added, 1 updated, 1 missing, 1 skipped; 1,234 chunks.",
        "  missing d",
        "  skipped x.docx: has the type .docx",
        "  y.pdf: page 3 has no text",
        "  chunk n of a: the model answered nothing",
    ]


def test_it_is_json() -> None:
    raw = json.loads(json.dumps(REPORT.to_dict()))
    assert raw["skipped"] == [{"path": "x.docx", "reason": "has the type .docx", "absent": False}]
    assert raw["failures"] == [{"node_id": "n", "doc_id": "a", "error": "the model answered nothing"}]
    assert raw["added"] == ["a", "b"]
    assert set(raw) == set(IngestReport.__dataclass_fields__)


def test_what_the_contextualizer_did_is_added_to_a_copy() -> None:
    done = IngestReport(version="v1").completed([ChunkFailure("n", "a", "e")], 7)
    assert (done.contexts_paid, len(done.failures)) == (7, 1)
    assert IngestReport(version="v1").contexts_paid == 0
