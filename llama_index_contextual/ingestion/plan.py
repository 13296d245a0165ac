"""What has to be done for each document: pure, from the records of the version before and the hashes of the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llama_index_contextual.storage.manifest import DocumentRecord


@dataclass(frozen=True)
class Plan:
    """What becomes of each document.

    Attributes:
        keep: Taken over as they stand in the version before.
        rework: Processed again from the version before: settings have changed, or chunks had failed.
        add: Ids of documents that the version before does not have.
        update: Ids of documents whose content has changed.
        drop: Ids of documents that the new version will not have.
    """

    keep: list[DocumentRecord] = field(default_factory=list)
    rework: list[DocumentRecord] = field(default_factory=list)
    add: list[str] = field(default_factory=list)
    update: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)

    @property
    def changes_nothing(self) -> bool:
        """Whether the new version would equal the one before."""
        return not (self.rework or self.add or self.update or self.drop)


def make_plan(
    records: Iterable[DocumentRecord],
    given: Mapping[str, str],
    *,
    replace: bool = False,
    remove: frozenset[str] = frozenset(),
    rebuild: bool = False,
    retry_failed: bool = False,
) -> Plan:
    """Return what has to be done.

    Args:
        records: The documents of the version before.
        given: Content hash of each input, by document id.
        replace: Documents that are not given are dropped.
        remove: Ids of documents that are dropped.
        rebuild: Nothing can be taken over as it stands, because settings have changed.
        retry_failed: Documents with chunks whose context failed are processed again.
    """
    plan = Plan()
    known = set()
    for record in records:
        known.add(record.doc_id)
        content = given.get(record.doc_id)
        if record.doc_id in remove or (content is None and replace):
            plan.drop.append(record.doc_id)
        elif content is not None and content != record.content_hash:
            plan.update.append(record.doc_id)
        elif rebuild or (retry_failed and record.fallback_chunks):
            plan.rework.append(record)
        else:
            plan.keep.append(record)
    plan.add.extend(doc_id for doc_id in given if doc_id not in known)
    return plan
