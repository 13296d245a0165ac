"""Records of the documents of a version are found by id, file and content, whatever parts they are in."""

from __future__ import annotations

import numpy as np

from llama_index_contextual.index.manifest import DocumentRecord, RecordIndex, Records


def record(doc_id: str, content: str = "1", path: str | None = None) -> DocumentRecord:
    return DocumentRecord(doc_id=doc_id, content_hash=content, path=path)


NONE = np.array([False])
FORMER = [record("a", "1", "x"), record("B", "2"), record("c", "1", "y")]
LATER = [record("a", "3", "x"), record("b", "2", "z")]


def records() -> Records:
    """A version in which the first edition of `a` is gone."""
    gone = np.array([False, True, True])
    return Records([(RecordIndex(FORMER), gone), (RecordIndex(LATER), None)])


def test_they_are_a_sequence_of_the_live_records_in_the_order_of_the_parts() -> None:
    assert [one.doc_id for one in records()] == ["B", "c", "a", "b"]
    assert len(records()) == 4
    assert records()[2] is LATER[0]
    assert records()[:1] == FORMER[1:2]
    assert list(Records.of(LATER)) == LATER
    assert Records.of(found := records()) is found


def test_a_document_that_is_gone_is_not_found() -> None:
    assert records().get("a") is LATER[0]
    assert records().get("B") is FORMER[1]
    assert records().get("unknown") is None
    assert records().with_path("x") is LATER[0]
    assert records().with_path("unknown") is None
    assert records().with_content("1") == [FORMER[2]]
    assert records().with_content("2") == [FORMER[1], LATER[1]]
    assert records().with_folded_id("b") == [FORMER[1], LATER[1]]
    assert Records().get("a") is None


def test_ids_are_compared_as_by_file_systems_that_ignore_case_or_normalize() -> None:
    decomposed = record("Pru\u0308fung", "2")
    same = Records.of([decomposed, record("PR\xdcFUNG")])
    assert same.with_folded_id("pr\xfcfung") == list(same)
    assert same.with_folded_id("prufung") == []
