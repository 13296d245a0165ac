"""What has to be done for each document: pure, from the records of the version before and the hashes of the inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from llama_index_contextual.storage.manifest import DocumentRecord


@dataclass(frozen=True)
class Plan:
    """What becomes of each document.

    Attributes:
        keep: Taken over as they stand in the version before.
        rework: Processed again from the version before: settings have changed, or chunks had failed.
        add: Ids of documents that the version before does not have.
        update: Ids of documents whose content has changed.
        rename: Documents of the version before whose file has another name or place now, by their new id.
        drop: Ids of documents that the new version will not have.
        moved: Ids of documents whose file has another place now; they are among the others too.
        rebuild: Whether settings have changed, so that nothing can be taken over as it stands.
    """

    keep: list[DocumentRecord] = field(default_factory=list)
    rework: list[DocumentRecord] = field(default_factory=list)
    add: list[str] = field(default_factory=list)
    update: list[str] = field(default_factory=list)
    rename: dict[str, DocumentRecord] = field(default_factory=dict)
    drop: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    rebuild: bool = field(default=False, compare=False)

    @property
    def changes_nothing(self) -> bool:
        """Whether the new version would equal the one before."""
        return not (self.rework or self.to_read or self.drop or self.moved)

    @property
    def to_read(self) -> list[str]:
        """Ids of the documents that are processed from what was given."""
        return [*self.add, *self.update, *self.rename]


def make_plan(
    records: Iterable[DocumentRecord],
    given: Mapping[str, str],
    *,
    replace: bool = False,
    remove: frozenset[str] = frozenset(),
    rebuild: bool = False,
    retry_failed: bool = False,
    new: Collection[str] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
    moved: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Return what has to be done.

    Args:
        records: The documents of the version before.
        given: Content hash of each input, by document id.
        replace: Documents that are not given are dropped.
        remove: Ids of documents that are dropped.
        rebuild: Nothing can be taken over as it stands, because settings have changed.
        retry_failed: Documents with chunks whose context failed are processed again.
        new: Ids of inputs that are another document than the one of this id in the version before.
        renamed: Former id -> new id, of inputs that had another id.
        moved: Origin, by document id, of inputs whose file has another place.
    """
    plan = Plan(rebuild=rebuild)
    same = set()
    for record in records:
        doc_id = record.doc_id
        if doc_id in renamed:
            plan.rename[renamed[doc_id]] = record
            continue
        content = None if doc_id in new else given.get(doc_id)
        if content is not None:
            same.add(doc_id)
        if doc_id in moved:
            plan.moved.append(doc_id)
            record = dataclasses.replace(record, origin=moved[doc_id])
        if doc_id in remove or (content is None and replace):
            plan.drop.append(doc_id)
        elif content is not None and (content != record.content_hash or not record.chunks):
            plan.update.append(doc_id)
        elif rebuild or (retry_failed and record.fallback_chunks):
            plan.rework.append(record)
        else:
            plan.keep.append(record)
    plan.add.extend(doc_id for doc_id in given if doc_id not in same and doc_id not in plan.rename)
    return plan
