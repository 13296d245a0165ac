"""The action for each document, from the previous version and the hashes of the inputs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.index import writer
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.writer import merged_from
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.plan import DocumentInput, Plan, make_plan


def record(doc_id: str, content: str = "1", *, failed: bool = False) -> DocumentRecord:
    return DocumentRecord(doc_id=doc_id, content_hash=content, chunks=1, fallback_chunks=("chunk",) if failed else ())


def sources(before: list[DocumentRecord], given_: dict[str, str]) -> dict[str, DocumentInput]:
    known = {record.doc_id: record for record in before}
    return {
        doc_id: DocumentInput(doc_id=doc_id, digest=content, record=known.get(doc_id))
        for doc_id, content in given_.items()
    }


def ids(records: list[DocumentRecord]) -> list[str]:
    return [record.doc_id for record in records]


BEFORE = [record("same"), record("changed"), record("absent"), record("failed", failed=True)]
GIVEN = {"same": "1", "changed": "2", "new": "1"}


@pytest.mark.parametrize(
    ("options", "keep", "rework", "update", "drop"),
    [
        ({}, ["same", "absent", "failed"], [], ["changed"], []),
        ({"replace": True}, ["same"], [], ["changed"], ["absent", "failed"]),
        ({"remove": frozenset({"same", "changed"})}, ["absent", "failed"], [], [], ["same", "changed"]),
        ({"rebuild": True}, [], ["same", "absent", "failed"], ["changed"], []),
        ({"retry_failed": True}, ["same", "absent"], ["failed"], ["changed"], []),
    ],
    ids=["ingest", "replace", "remove", "rebuild", "retry"],
)
def test_each_document_gets_exactly_one_action(
    options: dict[str, Any], keep: list[str], rework: list[str], update: list[str], drop: list[str]
) -> None:
    options = dict(options)
    rebuild = options.pop("rebuild", False)
    plan = make_plan(BEFORE, sources(BEFORE, GIVEN), RunOptions(**options), rebuild=rebuild)
    assert (ids(plan.keep), ids(plan.rework)) == (keep, rework)
    assert (plan.add, plan.update, plan.drop) == (["new"], update, drop)


doc_ids = st.sampled_from("abcdef")
records = st.dictionaries(doc_ids, st.tuples(st.sampled_from("12"), st.booleans())).map(
    lambda held: [record(doc_id, content, failed=failed) for doc_id, (content, failed) in held.items()]
)


@given(
    records,
    st.dictionaries(doc_ids, st.sampled_from("12")),
    st.booleans(),
    st.frozensets(doc_ids),
    st.booleans(),
    st.booleans(),
)
def test_no_document_is_lost_or_counted_twice(
    before: list[DocumentRecord],
    given_: dict[str, str],
    replace: bool,
    remove: frozenset[str],
    rebuild: bool,
    retry: bool,
) -> None:
    options = RunOptions(replace=replace, remove=remove, retry_failed=retry)
    plan = make_plan(before, sources(before, given_), options, rebuild=rebuild)
    fates = [*ids(plan.keep), *ids(plan.rework), *plan.update, *plan.drop]
    assert sorted(fates) == sorted(ids(before))
    assert sorted(plan.add) == sorted(set(given_) - set(ids(before)))
    assert bool(plan.rework or plan.to_read or plan.drop) == (plan != Plan(keep=before))
    for stored in before:
        if stored.doc_id in ids(plan.keep):
            assert given_.get(stored.doc_id, stored.content_hash) == stored.content_hash


# ---- merges of parts -------------------------------------------------------------------------------------------------


def test_a_chunk_is_copied_a_number_of_times_that_grows_with_the_logarithm_only() -> None:
    parts: list[int] = []
    copied = added = 0
    for _ in range(5_000):
        parts.append(10)
        added += 10
        first = merged_from(parts)
        if first < len(parts):
            copied += sum(parts[first:])
            parts[first:] = [sum(parts[first:])]
        full = sum(size >= writer._FULL * writer.PART_CHUNKS for size in parts)
        assert len(parts) - full <= writer.MAX_SMALL_PARTS + 1
        assert max(parts) <= writer.PART_CHUNKS
    assert copied < 8 * added


def test_only_parts_after_the_last_full_one_are_merged() -> None:
    assert merged_from([8_000, *[10] * 9]) == 1
    assert merged_from([8_000, *[10] * 8]) == 9
    assert merged_from([]) == 0
