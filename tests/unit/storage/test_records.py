"""Records of the documents of a version are found by id, file and content, whatever parts they are in."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.part import ranges
from llama_index_contextual.storage.records import RecordIndex, Records


def record(doc_id: str, content: str = "1", origin: str | None = None) -> DocumentRecord:
    return DocumentRecord(doc_id=doc_id, content_hash=content, origin=origin)


FORMER = [record("a", "1", "x"), record("B", "2"), record("c", "1", "y")]
LATER = [record("a", "3", "x"), record("b", "2", "z")]


def records() -> Records:
    """A version in which the first edition of `a` is gone."""
    gone = np.array([False, True, True])
    return Records([(RecordIndex(FORMER), gone), (RecordIndex(LATER), None)])


def test_a_document_that_is_gone_is_not_found() -> None:
    assert records().get("a") is LATER[0]
    assert records().get("B") is FORMER[1]
    assert records().get("unknown") is None
    assert records().with_origin("x") is LATER[0]
    assert records().with_origin("unknown") is None
    assert records().with_content("1") == [FORMER[2]]
    assert records().with_content("2") == [FORMER[1], LATER[1]]
    assert records().with_folded_id("b") == [FORMER[1], LATER[1]]
    assert Records().get("a") is None


def test_ids_are_compared_as_by_file_systems_that_ignore_case_or_normalize() -> None:
    decomposed = record("Pru\u0308fung", "2")
    same = Records.of([decomposed, record("PR\xdcFUNG")])
    assert same.with_folded_id("pr\xfcfung") == list(same)
    assert same.with_folded_id("prufung") == []


@given(st.sets(st.integers(0, 50)))
def test_ranges_contain_the_same_numbers_and_are_as_few_as_possible(numbers: set[int]) -> None:
    result = ranges(numbers)
    assert {number for first, last in result for number in range(first, last + 1)} == numbers
    assert all(one[1] + 1 < other[0] for one, other in itertools.pairwise(result))
