"""The action for each document, from the previous version and the hashes of the inputs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.ingestion.plan import Plan, make_plan
from llama_index_contextual.storage.manifest import DocumentRecord


def record(doc_id: str, content: str = "1", *, failed: bool = False) -> DocumentRecord:
    return DocumentRecord(doc_id=doc_id, content_hash=content, chunks=1, fallback_chunks=("chunk",) if failed else ())


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
    ids=str,
)
def test_each_document_gets_exactly_one_action(
    options: dict[str, Any], keep: list[str], rework: list[str], update: list[str], drop: list[str]
) -> None:
    plan = make_plan(BEFORE, GIVEN, **options)
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
    plan = make_plan(before, given_, replace=replace, remove=remove, rebuild=rebuild, retry_failed=retry)
    fates = [*ids(plan.keep), *ids(plan.rework), *plan.update, *plan.drop]
    assert sorted(fates) == sorted(ids(before))
    assert sorted(plan.add) == sorted(set(given_) - set(ids(before)))
    assert plan.changes_nothing == (plan == Plan(keep=before))
    for stored in before:
        if stored.doc_id in ids(plan.keep):
            assert given_.get(stored.doc_id, stored.content_hash) == stored.content_hash
