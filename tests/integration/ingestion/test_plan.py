"""The action for each document, from the previous version and the hashes of the inputs."""

from __future__ import annotations

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


def test_each_document_gets_exactly_one_action() -> None:
    plan = make_plan(BEFORE, GIVEN)
    assert ids(plan.keep) == ["same", "absent", "failed"]
    assert (plan.add, plan.update, plan.drop, plan.rework) == (["new"], ["changed"], [], [])


def test_replace_drops_documents_that_are_not_inputs() -> None:
    plan = make_plan(BEFORE, GIVEN, replace=True)
    assert plan.drop == ["absent", "failed"]
    assert ids(plan.keep) == ["same"]


def test_a_removed_document_is_dropped_even_if_it_is_an_input() -> None:
    plan = make_plan(BEFORE, GIVEN, remove=frozenset({"same", "changed"}))
    assert plan.drop == ["same", "changed"]
    assert plan.update == []


def test_a_rebuild_processes_every_document() -> None:
    plan = make_plan(BEFORE, GIVEN, rebuild=True)
    assert plan.keep == []
    assert ids(plan.rework) == ["same", "absent", "failed"]
    assert plan.update == ["changed"]


def test_only_documents_with_failed_chunks_are_retried() -> None:
    assert ids(make_plan(BEFORE, {}, retry_failed=True).rework) == ["failed"]


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
