"""Plan of an ingestion: which document each input is, and what has to be done for it.

`Intake` lists the files, Documents and nodes of a call. `identify` decides which of the files are documents of the
previous version, by their path or content. `make_plan` compares both: documents are kept, processed again, added,
updated, renamed or dropped. `jobs_of` yields the documents that need work.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.base import has_given_context
from llama_index_contextual.errors import ConfigurationError, InputError, PathNotFoundError, ReadError, Remedy
from llama_index_contextual.index.ledger import content_key
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.records import Records
from llama_index_contextual.index.sources import content_hash_with, former_facts
from llama_index_contextual.index.storable import storable_fault
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.ingestion.identity import FormerFiles, Identities, identify
from llama_index_contextual.ingestion.report import advice_on
from llama_index_contextual.ingestion.sync import (
    CHANGED_MEANWHILE,
    POSTPONED,
    UNSETTLED,
    Status,
    SyncedFolders,
    SyncOptions,
    large_removal,
    status_of,
    unsettled,
    until_others_change,
)
from llama_index_contextual.readers import (
    DocumentReader,
    FileRef,
    FileWarning,
    ReadLimits,
    SkippedFile,
    content_hash,
    discover,
)
from llama_index_contextual.readers.base import has_text, user_facts
from llama_index_contextual.readers.discovery import (
    OFFICE_SUFFIXES,
    PDF_SUFFIXES,
    printable,
)
from llama_index_contextual.readers.documents import FileContent, FileMetadata, with_headings
from llama_index_contextual.readers.ocr import PageStore

FormerFacts = Callable[[DocumentRecord], list[dict[str, Any]]]
"""Gives what the user's metadata of a document of the previous version may have been."""


# ---- Inputs of a call ------------------------------------------------------------------------------------------------

IngestInput = str | os.PathLike[str] | BaseNode

ChunkSpan = tuple[int | None, int | None, str]
"""Start and end of a chunk in its document, and its text."""


def span_of(node: BaseNode) -> ChunkSpan:
    """Return the position of a chunk in its document, and its text."""
    return getattr(node, "start_char_idx", None), getattr(node, "end_char_idx", None), node.get_content()


@dataclass(frozen=True)
class Job:
    """One document to be processed.

    Attributes:
        document: The Document, or None if it was passed as nodes.
        nodes: Chunks of the document, or None if they are still to be made from `document`.
        doc_id: Id of the document.
        content_hash: xxh3 of the file (including the user's metadata), or a hash of text and metadata.
        size: Bytes of the file, or number of characters, for the progress.
        path: Path of its file without links, or None.
        contexts: Contexts that an LLM wrote earlier for the same text, by the span and text of their chunk.
    """

    document: Document | None
    nodes: Sequence[BaseNode] | None
    doc_id: str
    content_hash: str
    size: int
    path: str | None = None
    contexts: Mapping[ChunkSpan, str] = field(default_factory=dict)


class FileReader(Protocol):
    """Reader of the files of a run."""

    def read_all(self, refs: Iterable[FileRef]) -> Iterator[tuple[FileRef, FileContent | ReadError]]:
        """Read files and yield the content of each in order, or the error."""


@dataclass
class Intake:
    """Documents of one call; files are listed at once and read one after the other.

    Attributes:
        files: Files to read, by document id.
        ready: Documents and nodes of the call, by document id.
        hashes: Content hash of all of them, by document id.
        identities: Documents that the files were identified as.
        missing: Ids of documents whose file no longer exists in a folder of the call.
        removed: Ids of documents that a sync removes: their file is gone, or is now a copy of another one.
        removes_many: Whether a sync removes more than a tenth of the documents of a folder.
        sync: Options of a sync, or None.
        facts: User's metadata of earlier calls for a file, by its path, if this call has no `file_metadata`.
        skipped: Files that are not read, each with its reason; grows while files are read.
        copies: Skipped files with the content of a file to read, by its document id.
        statuses: Status of each file of a watching sync before it was hashed; None if it was being written.
        warnings: Warnings about files; grows while files are read.
    """

    files: dict[str, FileRef] = field(default_factory=dict)
    ready: dict[str, Job] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    identities: Identities = field(default_factory=Identities)
    missing: list[str] = field(default_factory=list)
    removed: frozenset[str] = frozenset()
    removes_many: bool = False
    sync: SyncOptions | None = None
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    skipped: list[SkippedFile] = field(default_factory=list)
    copies: Mapping[str, Sequence[SkippedFile]] = field(default_factory=dict)
    statuses: dict[Path, Status | None] = field(default_factory=dict)
    warnings: list[FileWarning] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        inputs: Sequence[IngestInput],
        records: Sequence[DocumentRecord] = (),
        *,
        file_metadata: FileMetadata | None = None,
        former_facts: FormerFacts | None = None,
        limits: ReadLimits = ReadLimits(),  # noqa: B008
        replaces: bool = False,
        moved: bool = False,
        sync: SyncOptions | None = None,
    ) -> Intake:
        """Sort the inputs into files, Documents and nodes, and hash and identify the files.

        Args:
            inputs: Paths, Documents and nodes.
            records: Documents of the previous version; see `identify`.
            file_metadata: Returns the user's own metadata of a file, which is part of its content.
            former_facts: User's metadata of the documents of the previous version, which they keep; or None.
            limits: Limits for reading a file.
            replaces: Documents that are not among the inputs are removed.
            moved: The files have a new location.
            sync: Options of a sync, whose inputs are folders; None for other runs.

        Raises:
            InputError: An input has another type or cannot be ingested, two inputs have the same id, or a Document or
                node has the id of a document that was read from a file.
            PathNotFoundError: A path does not exist, and nothing else can be read or `replaces` would remove the
                documents at this path.
        """
        paths = [item for item in inputs if isinstance(item, (str, os.PathLike))]
        nodes = [item for item in inputs if isinstance(item, BaseNode)]
        if len(paths) + len(nodes) != len(inputs):
            raise InputError("ingest accepts only paths, LlamaIndex Documents and nodes.")
        intake, documents = cls(sync=sync), Records.of(records)
        if sync is not None:
            intake._take_folders(
                paths,
                documents,
                sync,
                file_metadata=file_metadata,
                former_facts=former_facts,
                limits=limits,
                moved=moved,
            )
        elif paths:
            discovery = discover(paths, limits=limits)
            intake.skipped += discovery.skipped
            digests, copies = intake._hash(discovery.files, documents, file_metadata)
            former = FormerFiles(paths)
            if former_facts is not None:
                is_former = former.is_deleted if not (replaces or moved) else lambda record: True
                intake._add_facts_by_content(digests, documents, former_facts, is_former)
            identities = identify(digests, documents, former, replaces=replaces, moved=moved)
            if former_facts is not None:
                intake._add_facts(digests, identities, documents, former_facts)
            intake._take_files(identities, digests, copies)
            known = {*intake.files, *identities.renamed}
            intake.missing = list(former.gone(record for record in documents if record.doc_id not in known))
        for job in _ready_jobs(nodes, intake.skipped):
            if job.doc_id in intake.hashes:
                raise InputError(f"Two inputs have the document id {job.doc_id!r}: assign unique ids.", value=job)
            same = None if replaces or moved else documents.get(job.doc_id)
            if same is not None and same.path is not None:
                raise InputError(
                    f"{job.doc_id!r} is the id of a document that was read from a file: assign another id to the"
                    f" new one, or pass moved=True to replace that document.",
                    value=job.doc_id,
                )
            intake.ready[job.doc_id], intake.hashes[job.doc_id] = job, job.content_hash
        intake._require_paths(replaces=replaces)
        return intake

    def _take_folders(
        self,
        paths: Sequence[str | os.PathLike[str]],
        documents: Records,
        sync: SyncOptions,
        *,
        file_metadata: FileMetadata | None,
        former_facts: FormerFacts | None,
        limits: ReadLimits,
        moved: bool,
    ) -> None:
        """Take the files of folders, and find the documents whose file is gone."""
        folders = SyncedFolders(paths)
        discovery = discover(paths, limits=limits)
        self.skipped += discovery.skipped
        unready = unsettled(discovery.files, sync.settle)
        self.skipped += [SkippedFile(ref.shown, UNSETTLED) for ref in unready]
        refs = [ref for ref in discovery.files if ref not in unready]
        if sync.watching:
            self.statuses = {ref.path: None if ref in unready else status_of(ref.path) for ref in discovery.files}
        digests, copies = self._hash(refs, documents, file_metadata)
        former = FormerFiles(paths)
        present = {os.path.realpath(ref.path) for ref in discovery.files}
        gone = former.gone([record for record in documents if record.path not in present])
        folders.require_same()
        duplicates = {
            record.doc_id: os.path.realpath(copy.path)
            for same in copies.values()
            for copy in same
            if (record := documents.with_path(os.path.realpath(copy.path))) is not None
        }
        unwanted = duplicates | gone
        removed = {doc_id for doc_id in unwanted if sync.may_remove(doc_id)}
        if former_facts is not None:
            self._add_facts_by_content(
                digests,
                documents,
                former_facts,
                lambda record: moved or record.doc_id in gone or former.is_deleted(record),
            )
        identities = identify(digests, documents, former, moved=moved, removed=removed, takes_new_case=True)
        if former_facts is not None:
            self._add_facts(digests, identities, documents, former_facts)
        self._take_files(identities, digests, copies)
        kept = (set(identities.ids.values()) - identities.new) | identities.renamed.keys()
        self.removed = frozenset(removed - kept)
        self.missing = [doc_id for doc_id in gone if doc_id not in kept]
        if not sync.allow_empty:
            lost = {doc_id: path for doc_id, path in gone.items() if doc_id in self.removed}
            folders.require_not_empty(lost, discovery.files)
        former_paths = {doc_id: path for doc_id, path in unwanted.items() if doc_id in self.removed}
        stays = kept.union(identities.renamed.values())
        present_paths = (os.path.realpath(ref.path) for ref, doc_id in identities.ids.items() if doc_id in stays)
        numbers = folders.large_removals(former_paths, present_paths)
        self.removes_many = bool(numbers)
        refused = numbers if not sync.allow_empty else folders.with_a_file(numbers, discovery.files)
        if refused and not sync.allow_many:
            raise large_removal(refused, self.removed)

    def _require_paths(self, *, replaces: bool) -> None:
        absent = [file for file in self.skipped if file.absent]
        if absent and not self.hashes and not self.identities.copies:
            raise PathNotFoundError(
                nothing_to_ingest(self.skipped),
                value=[file.path for file in absent],
                remedy=remedy_for(self.skipped),
            )
        if absent and replaces:
            raise PathNotFoundError(
                f"{absent[0].path}: {absent[0].reason}. Because all other documents are to be replaced, those from this"
                f" path would be removed: correct the path, or leave it out.",
                value=[file.path for file in absent],
            )

    def _hash(
        self, refs: Sequence[FileRef], documents: Records, file_metadata: FileMetadata | None
    ) -> tuple[dict[FileRef, str], dict[FileRef, list[FileRef]]]:
        """Return the content hash of each file to ingest, and the copies of each file, which are skipped.

        Args:
            refs: The files.
            documents: Documents of the previous version.
            file_metadata: Returns the user's own metadata of a file.
        """
        hash_of = content_hash if self.sync is None else self.sync.digests.hash
        digests: dict[FileRef, str] = {}
        first: dict[tuple[str, str], FileRef] = {}
        copies: dict[FileRef, list[FileRef]] = defaultdict(list)
        # Files of existing documents come first. They are never skipped as copies, because the documents would become
        # outdated, unless a sync removes these.
        for ref in sorted(refs, key=lambda ref: documents.with_path(os.path.realpath(ref.path)) is None):
            try:
                digest = hash_of(ref.path)
            except ReadError as error:
                self.skipped.append(SkippedFile(ref.shown, error.reason))
                continue
            # The same bytes can be a valid text file and an invalid PDF.
            suffix = ref.path.suffix.lower()
            kind = suffix if suffix in (*PDF_SUFFIXES, *OFFICE_SUFFIXES) else "text"
            same = first.setdefault((kind, digest), ref)
            if same is not ref and self._is_droppable(documents.with_path(os.path.realpath(ref.path))):
                copies[same].append(ref)
                continue
            digests[ref] = content_hash_with(digest, user_facts(file_metadata, ref.path))
        return {ref: digests[ref] for ref in refs if ref in digests}, copies

    def _is_droppable(self, record: DocumentRecord | None) -> bool:
        """Return whether a copy of another file is skipped, given its document if it has one."""
        return record is None or (self.sync is not None and self.sync.may_remove(record.doc_id))

    def _add_facts_by_content(
        self,
        digests: dict[FileRef, str],
        documents: Records,
        former_facts: FormerFacts,
        is_former: Callable[[DocumentRecord], bool],
    ) -> None:
        """Add the user's metadata of a document whose file is gone to the new file with the same content.

        Without it, the file would not be recognized: the metadata is part of the content hash.
        """
        paths = {ref: os.path.realpath(ref.path) for ref in digests}
        new = [ref for ref in digests if documents.with_path(paths[ref]) is None]
        if not new:
            return
        present = set(paths.values())

        def is_other(record: DocumentRecord) -> bool:
            return record.path is not None and record.path not in present and is_former(record)

        unknown = [ref for ref in new if not any(map(is_other, documents.with_content(digests[ref])))]
        others = list(filter(is_other, documents.with_facts())) if unknown else []
        hashes = {record.content_hash for record in others}
        variants = {json.dumps(facts, sort_keys=True): facts for record in others for facts in former_facts(record)}
        for ref, facts in itertools.product(unknown, variants.values()):
            if facts and (digest := content_hash_with(digests[ref], facts)) in hashes:
                digests[ref], self.facts[str(ref.path)] = digest, facts

    def _add_facts(
        self,
        digests: dict[FileRef, str],
        identities: Identities,
        documents: Records,
        former_facts: FormerFacts,
    ) -> None:
        """Add to each file the user's metadata of its document."""
        former_ids = {doc_id: former for former, doc_id in identities.renamed.items()}
        for ref, doc_id in identities.ids.items():
            record = documents.get(former_ids.get(doc_id, doc_id))
            is_new = doc_id in identities.new and doc_id not in former_ids
            if record is None or is_new or record.path is None or digests[ref] == record.content_hash:
                continue
            variants = former_facts(record)
            same = (facts for facts in variants if content_hash_with(digests[ref], facts) == record.content_hash)
            if facts := next(same, variants[0]):
                digests[ref], self.facts[str(ref.path)] = content_hash_with(digests[ref], facts), facts

    def _take_files(
        self,
        identities: Identities,
        digests: Mapping[FileRef, str],
        copies: Mapping[FileRef, Sequence[FileRef]],
    ) -> None:
        self.identities = identities
        skipped = {
            first: [SkippedFile(copy.shown, f"has the same content as {first.shown}") for copy in same]
            for first, same in copies.items()
        }
        for ref in digests:
            if (doc_id := identities.ids.get(ref)) is not None:
                self.files[doc_id], self.hashes[doc_id] = replace(ref, doc_id=doc_id), digests[ref]
        self.copies = {doc_id: skipped[ref] for ref, doc_id in identities.ids.items() if ref in skipped}
        self.skipped += [copy for same in skipped.values() for copy in same]
        self.skipped += identities.copies
        self.warnings += identities.notes

    def jobs(self, reader: FileReader, doc_ids: Collection[str], failed: list[str]) -> Iterator[Job]:
        """Yield the requested documents; unreadable files are added to `skipped`, and their ids to `failed`."""
        refs = (ref for doc_id, ref in self.files.items() if doc_id in doc_ids)
        for ref, content in reader.read_all(refs):
            doc_id = ref.doc_id
            if doc_id not in doc_ids:  # the run was interrupted while the file was read ahead
                continue
            if not isinstance(content, ReadError) and (fault := storable_fault(content.document)):
                content = ReadError(ref.shown, f"cannot be stored: {fault}")
            if not isinstance(content, ReadError) and self._has_changed(
                ref, content_hash_with(content.digest, content.facts)
            ):
                content = ReadError(ref.shown, CHANGED_MEANWHILE)
            if isinstance(content, ReadError):
                self._skip(doc_id, content)
                failed.append(doc_id)
                continue
            self.warnings += content.warnings
            # The file may have changed since it was hashed: use the hash of the content that was read.
            hash_as_read = content_hash_with(content.digest, content.facts)
            yield Job(content.document, content.chunks, doc_id, hash_as_read, ref.size, os.path.realpath(ref.path))
        yield from (job for doc_id, job in self.ready.items() if doc_id in doc_ids)

    def _has_changed(self, ref: FileRef, hash_as_read: str) -> bool:
        """Return whether a file of a sync has changed since it was hashed, probably because it is being written."""
        if self.sync is None or hash_as_read == self.hashes[ref.doc_id]:
            return False
        self.sync.digests.forget(ref.path)
        return True

    def postponed(self, plan: Plan) -> list[str]:
        """Return the ids of the documents whose files are left for the next call, and add these to `skipped`."""
        if self.sync is None:
            return []
        sizes = {doc_id: self.size(doc_id) for doc_id in plan.to_read}
        later = self.sync.postponed(sizes, has_others=bool(plan.rework or plan.drop or plan.moved))
        for doc_id in later:
            self.skip(doc_id, POSTPONED)
        return later

    def skip(self, doc_id: str, reason: str) -> None:
        """Skip a document that turns out to be unusable, and the copies of its file for the same reason."""
        self._skip(doc_id, ReadError(self.files[doc_id].shown if doc_id in self.files else doc_id, reason))

    def others_changed(
        self, doc_ids: Iterable[str], folders: Sequence[IngestInput], limits: ReadLimits
    ) -> asyncio.Task[None] | None:
        """Return a task that ends when other files have changed, if the reading of these documents is then given up."""
        sizes = {doc_id: self.size(doc_id) for doc_id in doc_ids}
        if self.sync is None or not self.sync.gives_way(sizes):
            return None
        paths = [path for path in folders if isinstance(path, (str, os.PathLike))]
        reading = {self.files[doc_id].path for doc_id in sizes}
        return asyncio.create_task(until_others_change(paths, self.statuses, reading=reading, limits=limits))

    def give_way(self, doc_ids: Iterable[str]) -> None:
        """Leave documents whose reading was given up for the next call."""
        if self.sync is not None:
            for doc_id in doc_ids:
                self.sync.gave_way.setdefault(doc_id, time.monotonic())
                self.skip(doc_id, POSTPONED)

    def forget_interruptions(self, doc_ids: Iterable[str]) -> None:
        """Forget that the reading of documents was given up, when they are published."""
        if self.sync is not None:
            for doc_id in doc_ids:
                self.sync.gave_way.pop(doc_id, None)

    def _skip(self, doc_id: str, error: ReadError) -> None:
        """Add an unreadable file to `skipped`, and skip its copies for the same reason."""
        copies = self.copies.get(doc_id, ())
        self.skipped = [replace(file, reason=error.reason) if file in copies else file for file in self.skipped]
        self.skipped.append(SkippedFile(error.path, error.reason))

    def size(self, doc_id: str) -> int:
        """Return the size of a document, for the progress."""
        return self.files[doc_id].size if doc_id in self.files else self.ready[doc_id].size


def nothing_to_ingest(skipped: Sequence[SkippedFile]) -> str:
    """Return the message for a run without documents."""
    reasons = "; ".join(f"{file.path}: {file.reason}" for file in skipped[:5])
    more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    message = f"There is nothing to ingest. {reasons}{more}".strip()
    return message if message.endswith(".") else f"{message}."


def remedy_for(skipped: Sequence[SkippedFile]) -> Remedy | None:
    """Return the advice on skipped files in a run without documents."""
    advice = advice_on(file.reason for file in skipped)
    if not advice:
        return None
    command_line = " ".join(remedy.command_line for remedy in advice if remedy.command_line)
    return Remedy(" ".join(remedy.python for remedy in advice), command_line)


def _ready_jobs(nodes: Sequence[BaseNode], skipped: list[SkippedFile]) -> list[Job]:
    """Return jobs for Documents, then for nodes grouped by document; inputs without text are added to `skipped`."""
    documents: list[Document] = []
    chunks: list[BaseNode] = []
    for node in nodes:
        kind = "Document" if isinstance(node, Document) else "Node"
        if not node.node_id:
            raise InputError(f"A {kind.lower()} has an empty id: assign one.", value=node)
        if fault := storable_fault(node):
            raise InputError(f"{kind} {printable(node.node_id)!r} cannot be ingested: {fault}.", value=node)
        if not has_text(node.get_content()):
            reason = f"is a {kind if kind == 'Document' else 'node'} without text: add text, or omit it"
            skipped.append(SkippedFile(printable(node.node_id), reason))
        elif isinstance(node, Document):
            documents.append(node)
        else:
            chunks.append(node)
    return [*map(_job_of_document, documents), *_jobs_of_chunks(chunks)]


def _job_of_document(document: Document) -> Job:
    return Job(with_headings(document), None, document.doc_id, _content_key(document), len(document.text))


def _jobs_of_chunks(nodes: Sequence[BaseNode]) -> list[Job]:
    """Return one job for the nodes of each document; a node without a document is a document of its own.

    Raises:
        InputError: Two nodes have the same id.
    """
    groups: dict[str, list[BaseNode]] = {}
    ids: set[str] = set()
    for node in nodes:
        if node.node_id in ids:
            raise InputError(f"Two nodes have the id {printable(node.node_id)!r}: assign unique ids.", value=node)
        ids.add(node.node_id)
        groups.setdefault(node.ref_doc_id or node.node_id, []).append(_of_document(node))
    return [
        Job(
            None,
            group,
            doc_id,
            content_key(*(part for node in group for part in (node.node_id, _content_key(node)))),
            sum(len(node.get_content()) for node in group),
        )
        for doc_id, group in groups.items()
    ]


def _of_document(node: BaseNode) -> BaseNode:
    """Return a node that refers to its document, and whose context, if any, is marked as given."""
    update: dict[str, Any] = {}
    if node.metadata.get(keys.CONTEXT) and keys.CONTEXT_SOURCE in node.metadata:
        update["metadata"] = {**node.metadata, keys.CONTEXT_GIVEN: True}
    if not node.ref_doc_id:
        source = RelatedNodeInfo(node_id=node.node_id)
        update["relationships"] = {**node.relationships, NodeRelationship.SOURCE: source}
    return node.model_copy(update=update) if update else node


def _content_key(node: BaseNode) -> str:
    """Return a hash of the text, the metadata, and the lists of excluded metadata keys."""
    exclusions = [sorted(node.excluded_embed_metadata_keys), sorted(node.excluded_llm_metadata_keys)]
    return content_key(node.hash, json.dumps(exclusions))


# ---- Plan of a run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Actions for the documents of the previous version and of a call.

    Attributes:
        keep: Documents copied unchanged from the previous version.
        rework: Documents of the previous version processed again, because settings changed or chunks failed.
        add: Ids of documents that are not in the previous version.
        update: Ids of documents whose content has changed.
        rename: Documents of the previous version whose file has a new name or location, by new id.
        drop: Ids of documents that are not in the new version.
        moved: Ids of documents whose file has a new location; they also occur in the other lists.
        rebuild: Whether settings changed, so that no document can be copied unchanged.
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
        """Whether the new version would equal the previous one."""
        return not (self.rework or self.to_read or self.drop or self.moved)

    @property
    def not_kept(self) -> set[str]:
        """Ids of the documents of the previous version that are not kept as they are."""
        reworked = (record.doc_id for record in (*self.rework, *self.rename.values()))
        return {*reworked, *self.update, *self.drop, *self.moved}

    @property
    def to_read(self) -> list[str]:
        """Ids of the documents that are processed from the inputs of the call."""
        return [*self.add, *self.update, *self.rename]


def make_plan(
    records: Iterable[DocumentRecord],
    contents: Mapping[str, str],
    *,
    replace: bool = False,
    remove: frozenset[str] = frozenset(),
    rebuild: bool = False,
    retry_failed: bool = False,
    reread: Collection[str] = (),
    new: Collection[str] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
    moved: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Return the action for each document.

    Args:
        records: Documents of the previous version.
        contents: Content hash of each input, by document id.
        replace: Drop documents that are not among the inputs.
        remove: Ids of documents to drop.
        rebuild: Process all documents again, because settings changed.
        retry_failed: Process documents again that have chunks whose context failed.
        reread: Ids of inputs that are processed again even if their content has not changed.
        new: Ids of inputs that are not the document with this id in the previous version.
        renamed: Former id -> new id, of inputs that had another id.
        moved: Origin, by document id, of inputs whose file has a new location.
    """
    plan = Plan(rebuild=rebuild)
    same = set()
    named = {*contents, *renamed, *moved, *remove}
    others_stay = not (replace or rebuild or retry_failed)
    for record in records:
        doc_id = record.doc_id
        if others_stay and doc_id not in named:  # nearly all documents of a large project
            plan.keep.append(record)
            continue
        if doc_id in renamed:
            plan.rename[renamed[doc_id]] = record
            continue
        content = None if doc_id in new else contents.get(doc_id)
        if content is not None:
            same.add(doc_id)
        if doc_id in moved:
            plan.moved.append(doc_id)
            record = dataclasses.replace(record, path=moved[doc_id])
        if doc_id in remove or (content is None and replace):
            plan.drop.append(doc_id)
        elif content is not None and (content != record.content_hash or not record.chunks or doc_id in reread):
            plan.update.append(doc_id)
        elif rebuild or (retry_failed and record.fallback_chunks):
            plan.rework.append(record)
        else:
            plan.keep.append(record)
    plan.add.extend(doc_id for doc_id in contents if doc_id not in same and doc_id not in plan.rename)
    return plan


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of one run.

    Attributes:
        replace: Remove all documents that are not among the inputs.
        moved: The files have a new location: those whose ids match are the same documents.
        remove: Ids of documents to remove.
        retry_failed: Process documents again that have chunks whose context failed. With `max_cost`, contexts that are
            held back are requested again too.
        reread: Read files again whose content has not changed.
        file_metadata: Returns additional metadata of a file; None keeps that of earlier calls.
        limits: Limits for reading a file.
        passwords: Passwords of encrypted PDFs.
        max_cost: Limit in dollars, or None.
        batch: Request contexts through the provider's Batch API.
        sync: The inputs are folders, and documents whose file in them is gone are removed; None for other runs.
        purpose: Purpose of the run, for its receipt.
    """

    replace: bool = False
    moved: bool = False
    remove: frozenset[str] = frozenset()
    retry_failed: bool = False
    reread: bool = False
    file_metadata: FileMetadata | None = None
    limits: ReadLimits = field(default_factory=ReadLimits)
    passwords: Mapping[str, str] | str | None = field(default=None, repr=False)
    max_cost: float | None = None
    batch: bool = False
    sync: SyncOptions | None = None
    purpose: Literal["ingest", "rebuild", "retry", "compare", "sync"] = "ingest"

    @property
    def requests_held_back(self) -> bool:
        """Whether contexts are requested again that the LLM refused, or whose reply in a batch cannot be read."""
        return self.retry_failed and self.max_cost is not None


def plan_run(
    inputs: Sequence[IngestInput], options: RunOptions, config: ProjectConfig, before: OpenVersion | None
) -> tuple[Intake, Plan]:
    """Return the documents of a call, and the plan of the run.

    Raises:
        ConfigurationError: Failed chunks should be retried, but settings have changed.
        InputError: An input cannot be ingested, or two inputs have the same id.
        PathNotFoundError: A path does not exist.
    """
    records = [] if before is None else before.records
    changed = [] if before is None else config.rebuild_fields(ProjectConfig(**before.manifest.config))
    if changed and options.retry_failed:
        _require_nothing_failed(records, changed)
    is_stale = options.purpose == "rebuild" and before is not None and before.index.is_stale
    intake = Intake.of(
        inputs,
        records,
        file_metadata=options.file_metadata,
        former_facts=None if before is None or options.file_metadata is not None else partial(former_facts, before),
        limits=options.limits,
        replaces=options.replace,
        moved=options.moved,
        sync=options.sync,
    )
    plan = make_plan(
        records,
        intake.hashes,
        replace=options.replace,
        remove=options.remove | intake.removed,
        rebuild=(bool(changed) or is_stale) and not options.retry_failed,
        retry_failed=options.retry_failed,
        reread=intake.files if options.reread else (),
        new=intake.identities.new,
        renamed=intake.identities.renamed,
        moved={doc_id: os.path.realpath(intake.files[doc_id].path) for doc_id in intake.identities.moved},
    )
    return intake, plan


def _require_nothing_failed(records: Sequence[DocumentRecord], changed: Sequence[str]) -> None:
    """Require that no chunks failed: a retry with changed settings would mix contexts of both settings."""
    if any(record.fallback_chunks for record in records):
        raise ConfigurationError(
            f"Settings have changed since the live version was built ({', '.join(changed)}): use `rebuild` to process"
            f" all documents with them, including those with failed chunks, or restore the former settings.",
            setting=changed[0],
        )


def make_reader(
    options: RunOptions,
    config: ProjectConfig,
    intake: Intake,
    *,
    page_store: PageStore | None = None,
    on_file: Callable[[str], None] | None = None,
    on_page: Callable[[int, int], None] | None = None,
) -> DocumentReader:
    """Return the reader for the files of a run.

    Args:
        options: Options of the run.
        config: Settings of the project.
        intake: Documents of the call.
        page_store: Store of scanned pages.
        on_file: Called with the name of each file before it is read.
        on_page: Called with the number of pages of that file that have been read, and with their total.
    """
    return DocumentReader(
        limits=options.limits,
        passwords=options.passwords,
        pdf_engine=config.pdf_engine,
        file_metadata=options.file_metadata or intake.facts.get,
        ocr=config.ocr,
        page_store=page_store,
        on_file=on_file,
        on_page=on_page,
    )


def jobs_of(
    plan: Plan,
    intake: Intake,
    reader: FileReader,
    before: OpenVersion | None,
    doc_ids: Collection[str],
    failed: list[str],
) -> Iterator[Job]:
    """Yield the documents that need work, one after the other.

    A file with the content of an existing document, renamed or not, reuses the contexts that an LLM wrote for it,
    unless another text is now read from it.

    Args:
        plan: Plan of the run.
        intake: Documents of the call.
        reader: Reader for the files.
        before: The previous version, or None.
        doc_ids: Ids of the documents of the call to read.
        failed: List to which the ids of unreadable documents are added.
    """
    if before is None:
        yield from intake.jobs(reader, doc_ids, failed)
        return
    for record in plan.rework:
        yield _job_of_record(before, record)
    for job in intake.jobs(reader, doc_ids, failed):
        equal = [] if plan.rebuild else before.records.with_content(job.content_hash)
        same = equal[-1] if equal else None
        yield job if same is None else replace(job, contexts=_written_contexts(before, same, job.document))


def _written_contexts(before: OpenVersion, record: DocumentRecord, document: Document | None) -> dict[ChunkSpan, str]:
    former = before.document(record)
    if former is not None and document is not None and former.text != document.text:
        return {}
    return {
        span_of(node): keys.context_parts(node.metadata)[1]
        for node in before.docstore.iterate(doc_id=record.doc_id)
        if node.metadata.get(keys.CONTEXT_SOURCE) == "llm"
    }


def _job_of_record(before: OpenVersion, record: DocumentRecord) -> Job:
    document = before.document(record)
    nodes = None if document else [without_context(node) for node in before.docstore.iterate(doc_id=record.doc_id)]
    return Job(document, nodes, record.doc_id, record.content_hash, record.characters, record.path)


def without_context(node: BaseNode) -> BaseNode:
    """Return a stored chunk as it was before its context was written; a context that the user has given stays."""
    if has_given_context(node):
        return node
    metadata = {
        k: v for k, v in node.metadata.items() if k not in (keys.CONTEXT, keys.CONTEXT_SOURCE, keys.CONTEXT_WRITTEN_AT)
    }
    return node.model_copy(update={"metadata": metadata})
