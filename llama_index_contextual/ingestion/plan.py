"""Which document a file is: one that the project has, by its place or its content, or a new one with its own id.

A record keeps no path but the SHA-256 of one, its origin. So whether the former file of a document is still there can
only be told where the ids of documents, taken as paths below a folder that was given or the folder above it, lead to
that origin.
"""

from __future__ import annotations

import dataclasses
import filecmp
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.base import has_given_context
from llama_index_contextual.errors import ConfigurationError, InputError, PathNotFoundError, ReadError
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
from llama_index_contextual.readers.discovery import PDF_SUFFIXES, has_magic, notes_on_ids, printable, split_glob
from llama_index_contextual.readers.documents import FileMetadata
from llama_index_contextual.storage.ledger import content_key
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.storable import storable_fault
from llama_index_contextual.storage.version import OpenVersion

IF_MOVED = "; if that one was moved here, say so: `moved=True`, on the command line --moved"


def origin(path: Path) -> str:
    """Return by what a file is known again without its path being kept; all ways of naming it give the same."""
    return _origin_of(os.path.realpath(path))


def _origin_of(real_path: str) -> str:
    return hashlib.sha256(os.fsencode(real_path)).hexdigest()


class FormerFiles:
    """The files that documents once came from, as far as the folders of this call lead to them.

    Args:
        paths: The files and folders of the call.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        given = [os.path.realpath(_fixed_part(Path(path))) for path in paths if "\0" not in os.fspath(path)]
        self._given = [path for path in given if os.path.isdir(path)]
        self._around = list(dict.fromkeys([*self._given, *map(os.path.dirname, given)]))

    def path(self, record: DocumentRecord) -> str | None:
        """Return the path that the file of a document had, or None where it is not known."""
        return next(_places(record, self._around), None)

    def is_gone(self, record: DocumentRecord) -> bool:
        """Return whether the file of a document is known to be gone."""
        path = self.path(record)
        return path is not None and not os.path.lexists(path)

    def is_there(self, record: DocumentRecord) -> bool:
        """Return whether the file of a document is known to be there still."""
        path = self.path(record)
        return path is not None and os.path.lexists(path)

    def missing(self, records: Sequence[DocumentRecord]) -> list[str]:
        """Return the ids of documents whose file was in a folder of the call, and is gone."""
        paths = ((record.doc_id, next(_places(record, self._given), None)) for record in records)
        return [doc_id for doc_id, path in paths if path is not None and not os.path.lexists(path)]


def _places(record: DocumentRecord, folders: Iterable[str]) -> Iterator[str]:
    names = record.doc_id.split("/")
    for folder in folders if record.origin is not None else ():
        for at in range(len(names)):
            path = os.path.join(folder, *names[at:])
            if _origin_of(path) == record.origin:
                yield path


def _fixed_part(path: Path) -> Path:
    is_glob = any(map(has_magic, path.parts)) and not os.path.lexists(path)
    return split_glob(path)[0] if is_glob else path


@dataclass
class Identities:
    """What document each file of a call is.

    Attributes:
        ids: Document id of each file that is taken.
        new: Ids of documents that the project does not have, or has from another file that `replace` takes out.
        renamed: Former id -> new id, of documents whose file has another name or place now.
        moved: Ids of documents whose file has another place now, and which keep their id.
        copies: Files that are not taken because a document of the project has their content.
        notes: What is said about ids that are longer than usual.
    """

    ids: dict[FileRef, str] = field(default_factory=dict)
    new: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    copies: list[SkippedFile] = field(default_factory=list)
    notes: list[FileWarning] = field(default_factory=list)


def identify(
    digests: Mapping[FileRef, str],
    records: Sequence[DocumentRecord],
    former: FormerFiles,
    *,
    replaces: bool = False,
    moved: bool = False,
) -> Identities:
    """Return which document each file is.

    A file that lies where a document's file lay is that document and keeps its id, however it is named in the call. A
    file elsewhere with a document's content is that document if its former file is known to be gone (or is taken out by
    `replace`, or `moved` is said): it takes the id of its new name. If its former file may be there still, the file is
    the same document where it would have the same id, and a copy otherwise. Every other file is a new document; where
    its id belongs to another document, it gets the shortest longer path that differs. So no file ever overwrites a
    document that came from elsewhere, or that came as a LlamaIndex Document or as nodes and so has no origin.

    Args:
        digests: Content hash of each file.
        records: The documents of the version before.
        former: Where the files of these documents were.
        replaces: Documents that are not among the files are taken out, and their ids are free.
        moved: Files have a new place: a file whose path ends with the id of a document is that document, unless the
            document's own file is known to be there still.
    """
    task = _Identification(digests, records, former, replaces=replaces, moved=moved)
    for step in (task.by_place, task.by_content, task.by_id):
        for ref in digests:
            if not task.is_settled(ref):
                step(ref)
    task.name()
    return task.found


class _Identification:
    """What is settled so far, and the documents whose file is not settled: they are free."""

    def __init__(
        self,
        digests: Mapping[FileRef, str],
        records: Sequence[DocumentRecord],
        former: FormerFiles,
        *,
        replaces: bool,
        moved: bool,
    ) -> None:
        self.found = Identities()
        self._digests, self._former = digests, former
        self._replaces, self._moved = replaces, moved
        self._free = {record.doc_id: record for record in records}
        self._by_origin = {record.origin: record for record in records if record.origin is not None}
        self._by_content: dict[str, list[DocumentRecord]] = defaultdict(list)
        self._by_folded_id: dict[str, list[DocumentRecord]] = defaultdict(list)
        for record in self._by_origin.values():
            self._by_content[record.content_hash].append(record)
            self._by_folded_id[record.doc_id.casefold()].append(record)
        self._earlier: dict[FileRef, DocumentRecord] = {}
        self._copies: set[FileRef] = set()

    def is_settled(self, ref: FileRef) -> bool:
        """Return whether it is known which document a file is."""
        return ref in self.found.ids or ref in self._earlier or ref in self._copies

    def by_place(self, ref: FileRef) -> None:
        """Settle a file that lies where a document's file lay."""
        record = self._by_origin.get(origin(ref.path)) or self._in_another_case(ref)
        if record is not None and record.doc_id in self._free:
            self._take(ref, record)

    def _in_another_case(self, ref: FileRef) -> DocumentRecord | None:
        """Return the document of a file that was named with other capitals, where the file system ignores them."""
        for doc_id in ref.ids():
            for record in self._by_folded_id.get(doc_id.casefold(), ()):
                path = self._former.path(record)
                if path is not None and os.path.exists(path) and os.path.samefile(path, ref.path):
                    return record
        return None

    def by_content(self, ref: FileRef) -> None:
        """Settle a file that has the content of a document."""
        equal = [record for record in self._by_content.get(self._digests[ref], ()) if record.doc_id in self._free]
        ids = set(ref.ids())
        equal.sort(key=lambda record: record.doc_id not in ids)
        earlier = next((record for record in equal if self._gave_way(record)), None)
        if earlier is not None:
            self._earlier[ref] = self._free.pop(earlier.doc_id)
        elif equal and equal[0].doc_id in ids:
            self._take(ref, equal[0])
        elif equal:
            self._copies.add(ref)
            reason = f"has the same content as the document {equal[0].doc_id!r}"
            self.found.copies.append(SkippedFile(ref.shown, reason))

    def _gave_way(self, record: DocumentRecord) -> bool:
        if self._moved and not self._replaces:
            return not self._former.is_there(record)
        return self._replaces or self._former.is_gone(record)

    def by_id(self, ref: FileRef) -> None:
        """Settle a file that has the id of a document, if files were moved; the longest id says most."""
        for doc_id in reversed(list(ref.ids())) if self._moved else ():
            record = self._free.get(doc_id)
            if record is not None and not self._former.is_there(record):
                self._take(ref, record)
                self.found.moved.add(doc_id)
                return

    def _take(self, ref: FileRef, record: DocumentRecord) -> None:
        self.found.ids[ref] = self._free.pop(record.doc_id).doc_id

    def name(self) -> None:
        """Give all other files an id that no other document has."""
        taken = {*self.found.ids.values(), *(() if self._replaces else self._free)}
        named: list[FileRef] = []
        for ref in self._digests:
            if ref in self.found.ids or ref in self._copies:
                continue
            doc_id = ref.free_id(taken)
            taken.add(doc_id)
            self.found.ids[ref] = doc_id
            named.append(replace(ref, doc_id=doc_id))
            earlier = self._earlier.get(ref)
            if earlier is not None and earlier.doc_id == doc_id:
                self.found.moved.add(doc_id)
                continue
            self.found.new.add(doc_id)
            if earlier is not None:
                self.found.renamed[earlier.doc_id] = doc_id
        is_held = any(ref.shortest_id in self._free for ref in named)
        self.found.notes = notes_on_ids(named, hint=IF_MOVED if is_held and not self._moved else "")


IngestInput = str | os.PathLike[str] | BaseNode

ChunkSpan = tuple[int | None, int | None, str]
"""Where a chunk begins and ends in its document, and its text."""


def span_of(node: BaseNode) -> ChunkSpan:
    """Return where a chunk stands, and its text."""
    return getattr(node, "start_char_idx", None), getattr(node, "end_char_idx", None), node.get_content()


@dataclass(frozen=True)
class Job:
    """One document on its way into a version.

    Attributes:
        document: The Document, or None where `nodes` are ready.
        nodes: Ready chunks of a document, or None.
        doc_id: Id of the document.
        content_hash: xxh3 of the file (with the user's facts), or a hash of text and metadata.
        size: Bytes of the file, or characters, for the progress.
        origin: SHA-256 of the path that its file was read from, or None.
        contexts: Contexts that an LLM has written for the same text, by the span of their chunk and its text.
    """

    document: Document | None
    nodes: Sequence[BaseNode] | None
    doc_id: str
    content_hash: str
    size: int
    origin: str | None = None
    contexts: Mapping[ChunkSpan, str] = field(default_factory=dict)


@dataclass
class Intake:
    """The documents of one call: found at once, read one after the other.

    Attributes:
        files: Files to read, by document id.
        ready: Documents and chunks that came ready, by document id.
        hashes: Content hash of all of them, by document id.
        identities: Which of the files are documents of the version before.
        missing: Ids of documents whose file is gone from a folder that was given.
        skipped: Files that are not read, each with its reason; grows while files are read.
        copies: Those of the skipped files that have the content of a file to read, by its document id.
        warnings: What was noticed; grows while files are read.
    """

    files: dict[str, FileRef] = field(default_factory=dict)
    ready: dict[str, Job] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    identities: Identities = field(default_factory=Identities)
    missing: list[str] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    copies: Mapping[str, Sequence[SkippedFile]] = field(default_factory=dict)
    warnings: list[FileWarning] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        inputs: Sequence[IngestInput],
        records: Sequence[DocumentRecord] = (),
        *,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits = ReadLimits(),  # noqa: B008
        replaces: bool = False,
        moved: bool = False,
    ) -> Intake:
        """Sort paths, Documents and chunks, and hash the files.

        Args:
            inputs: What the user gave.
            records: The documents of the version before; see `identify` for which of them a file is.
            file_metadata: Gives the user's own facts about a file; they are part of its content.
            limits: What one file may cost.
            replaces: Documents that are not given are taken out.
            moved: Files have a new place.

        Raises:
            InputError: Something is none of these or cannot be ingested, two inputs have one id, or a Document or
                chunk has the id of a file's document.
            PathNotFoundError: A path does not exist, and nothing else can be read or `replaces` would take its
                documents out.
        """
        paths = [item for item in inputs if isinstance(item, (str, os.PathLike))]
        nodes = [item for item in inputs if isinstance(item, BaseNode)]
        if len(paths) + len(nodes) != len(inputs):
            raise InputError("ingest takes paths, LlamaIndex Documents and nodes; something else was given.")
        intake = cls()
        if paths:
            found = discover(paths, limits=limits)
            intake.skipped += found.skipped
            digests, copies = intake._hash(found.files, {record.origin for record in records}, file_metadata)
            former = FormerFiles(paths)
            identities = identify(digests, records, former, replaces=replaces, moved=moved)
            intake._take_files(identities, digests, copies)
            known = {*intake.files, *identities.renamed}
            intake.missing = former.missing([record for record in records if record.doc_id not in known])
        of_files = set() if replaces or moved else {record.doc_id for record in records if record.origin is not None}
        for job in _ready_jobs(nodes, intake.skipped):
            if job.doc_id in intake.hashes:
                raise InputError(f"Two inputs have the document id {job.doc_id!r}: give each its own.", value=job)
            if job.doc_id in of_files:
                raise InputError(
                    f"{job.doc_id!r} is the id of a document that was read from a file: give the new one another id, or"
                    f" say with moved=True that it takes that place.",
                    value=job.doc_id,
                )
            intake.ready[job.doc_id], intake.hashes[job.doc_id] = job, job.content_hash
        intake._require_paths(replaces=replaces)
        return intake

    def _require_paths(self, *, replaces: bool) -> None:
        absent = [file for file in self.skipped if file.absent]
        if absent and not self.hashes and not self.identities.copies:
            raise PathNotFoundError(nothing_to_ingest(self.skipped), value=[file.path for file in absent])
        if absent and replaces:
            raise PathNotFoundError(
                f"{absent[0].path}: {absent[0].reason}. Since all other documents are to be replaced, those from there"
                f" would be taken out: correct the path, or leave it out.",
                value=[file.path for file in absent],
            )

    def _hash(
        self, refs: Sequence[FileRef], known: Collection[str | None], file_metadata: FileMetadata | None
    ) -> tuple[dict[FileRef, str], dict[FileRef, list[SkippedFile]]]:
        """Return the content hash of each file to take, and the copies of it that are not taken."""
        digests: dict[FileRef, str] = {}
        first: dict[tuple[bool, str], FileRef] = {}
        copies: dict[FileRef, list[SkippedFile]] = defaultdict(list)
        # What is a document already stays one, whatever its file equals by now: it would go on saying what it said.
        for ref in sorted(refs, key=lambda ref: origin(ref.path) not in known):
            try:
                digest = content_hash(ref.path)
            except ReadError as error:
                self.skipped.append(SkippedFile(ref.shown, error.reason))
                continue
            # The same bytes can be a text and no PDF.
            same = first.setdefault((ref.path.suffix.lower() in PDF_SUFFIXES, digest), ref)
            if same is not ref and origin(ref.path) not in known:
                _require_equal(same, ref)
                copies[same].append(SkippedFile(ref.shown, f"has the same content as {same.shown}"))
                continue
            digests[ref] = _with_facts(digest, user_facts(file_metadata, ref.path))
        return {ref: digests[ref] for ref in refs if ref in digests}, copies

    def _take_files(
        self,
        identities: Identities,
        digests: Mapping[FileRef, str],
        copies: Mapping[FileRef, Sequence[SkippedFile]],
    ) -> None:
        self.identities = identities
        for ref in digests:
            if (doc_id := identities.ids.get(ref)) is not None:
                self.files[doc_id], self.hashes[doc_id] = replace(ref, doc_id=doc_id), digests[ref]
        self.copies = {doc_id: copies[ref] for ref, doc_id in identities.ids.items() if ref in copies}
        self.skipped += [copy for same in copies.values() for copy in same]
        self.skipped += identities.copies
        self.warnings += identities.notes

    def jobs(self, reader: DocumentReader, wanted: Collection[str], failed: list[str]) -> Iterator[Job]:
        """Yield the wanted documents; a file that cannot be read is put into `skipped` and its id into `failed`."""
        for doc_id, ref in self.files.items():
            if doc_id not in wanted:
                continue
            try:
                content = reader.read(ref)
                if fault := storable_fault(content.document):
                    raise ReadError(ref.shown, f"cannot be stored: {fault}")
            except ReadError as error:
                self._skip(doc_id, error)
                failed.append(doc_id)
                continue
            self.warnings += content.warnings
            # The file may have changed since it was hashed: what counts is what was read.
            content_hash_read = _with_facts(content.digest, content.facts)
            yield Job(content.document, None, doc_id, content_hash_read, ref.size, origin(ref.path))
        yield from (job for doc_id, job in self.ready.items() if doc_id in wanted)

    def _skip(self, doc_id: str, error: ReadError) -> None:
        """Say why a file cannot be read, and the same of its copies."""
        copies = self.copies.get(doc_id, ())
        self.skipped = [replace(file, reason=error.reason) if file in copies else file for file in self.skipped]
        self.skipped.append(SkippedFile(error.path, error.reason))

    def size(self, doc_id: str) -> int:
        """Return the bytes of a document."""
        return self.files[doc_id].size if doc_id in self.files else self.ready[doc_id].size


def _with_facts(digest: str, facts: Mapping[str, Any]) -> str:
    return content_key(digest, json.dumps(facts, sort_keys=True)) if facts else digest


def _require_equal(one: FileRef, other: FileRef) -> None:
    # xxh3 is not made to withstand an attacker: a file made to collide must not hide another one.
    if not filecmp.cmp(one.path, other.path, shallow=False):
        raise InputError(
            f"{one.shown} and {other.shown} have the same xxh3 checksum but different content, which does not happen by"
            f" chance: leave one of them out.",
            value=other.shown,
        )


def nothing_to_ingest(skipped: Sequence[SkippedFile]) -> str:
    """Return why a run has no documents."""
    reasons = "; ".join(f"{file.path}: {file.reason}" for file in skipped[:5])
    more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    return f"There is nothing to ingest. {reasons}{more}".strip()


def _ready_jobs(nodes: Sequence[BaseNode], skipped: list[SkippedFile]) -> list[Job]:
    """Return the Documents, then the chunks by their documents; what has no text is put into `skipped`."""
    documents: list[Document] = []
    chunks: list[BaseNode] = []
    for node in nodes:
        kind = "Document" if isinstance(node, Document) else "Node"
        if not node.node_id:
            raise InputError(f"A {kind.lower()} has an empty id: give it one.", value=node)
        if fault := storable_fault(node):
            raise InputError(f"{kind} {printable(node.node_id)!r} cannot be ingested: {fault}.", value=node)
        if not has_text(node.get_content()):
            reason = f"is a {kind if kind == 'Document' else 'node'} without text: give it one, or leave it out"
            skipped.append(SkippedFile(printable(node.node_id), reason))
        elif isinstance(node, Document):
            documents.append(node)
        else:
            chunks.append(node)
    return [*map(_job_of_document, documents), *_jobs_of_chunks(chunks)]


def _job_of_document(document: Document) -> Job:
    return Job(document, None, document.doc_id, _content_key(document), len(document.text))


def _jobs_of_chunks(nodes: Sequence[BaseNode]) -> list[Job]:
    """Return ready chunks grouped by their document; one that names none is a document of its own.

    Raises:
        InputError: Two nodes have one id.
    """
    groups: dict[str, list[BaseNode]] = {}
    seen: set[str] = set()
    for node in nodes:
        if node.node_id in seen:
            raise InputError(f"Two nodes have the id {printable(node.node_id)!r}: give each its own.", value=node)
        seen.add(node.node_id)
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
    """Return a node that names its document, and says that its context came with it, whatever wrote that."""
    update: dict[str, Any] = {}
    if node.metadata.get(keys.CONTEXT) and keys.CONTEXT_SOURCE in node.metadata:
        update["metadata"] = {**node.metadata, keys.CONTEXT_GIVEN: True}
    if not node.ref_doc_id:
        source = RelatedNodeInfo(node_id=node.node_id)
        update["relationships"] = {**node.relationships, NodeRelationship.SOURCE: source}
    return node.model_copy(update=update) if update else node


def _content_key(node: BaseNode) -> str:
    """Return a hash of text, metadata, and of who sees which metadata."""
    seen = [sorted(node.excluded_embed_metadata_keys), sorted(node.excluded_llm_metadata_keys)]
    return content_key(node.hash, json.dumps(seen))


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


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How one run differs from the plain case.

    Attributes:
        replace: Make the version exactly the inputs.
        moved: Files have a new place: those whose ids match are the same documents.
        remove: Ids of documents to leave out.
        retry_failed: Process documents again that have chunks whose context failed.
        file_metadata: Gives further facts about a file.
        limits: What one file may cost.
        passwords: Passwords of encrypted PDFs.
        max_cost: Dollars that the run must not pass, or None.
        batch: Ask for contexts in batches of the provider.
        purpose: What the run is for; stands in its receipt.
    """

    replace: bool = False
    moved: bool = False
    remove: frozenset[str] = frozenset()
    retry_failed: bool = False
    file_metadata: FileMetadata | None = None
    limits: ReadLimits = field(default_factory=ReadLimits)
    passwords: Mapping[str, str] | str | None = None
    max_cost: float | None = None
    batch: bool = False
    purpose: Literal["ingest", "rebuild", "retry", "compare"] = "ingest"


def plan_run(
    inputs: Sequence[IngestInput], options: RunOptions, config: ProjectConfig, before: OpenVersion | None
) -> tuple[Intake, Plan]:
    """Return the documents of a call, and what becomes of each document.

    Raises:
        ConfigurationError: Only what has failed shall be asked again, and settings have changed.
        InputError: Something cannot be ingested, or two inputs have one id.
        PathNotFoundError: A path does not exist.
    """
    records = [] if before is None else before.manifest.documents
    changed = [] if before is None else config.rebuild_fields(ProjectConfig.recorded(before.manifest.config))
    if changed and options.retry_failed:
        _require_nothing_failed(records, changed)
    intake = Intake.of(
        inputs,
        records,
        file_metadata=options.file_metadata,
        limits=options.limits,
        replaces=options.replace,
        moved=options.moved,
    )
    plan = make_plan(
        records,
        intake.hashes,
        replace=options.replace,
        remove=options.remove,
        rebuild=bool(changed) and not options.retry_failed,
        retry_failed=options.retry_failed,
        new=intake.identities.new,
        renamed=intake.identities.renamed,
        moved={doc_id: origin(intake.files[doc_id].path) for doc_id in intake.identities.moved},
    )
    return intake, plan


def _require_nothing_failed(records: Sequence[DocumentRecord], changed: Sequence[str]) -> None:
    """Refuse to ask for single contexts again where other settings would give the rest another one."""
    if any(record.fallback_chunks for record in records):
        raise ConfigurationError(
            f"Settings have changed since the live version was built ({', '.join(changed)}): `rebuild` processes all"
            f" documents by them, those with failed chunks too; or set them back.",
            setting=changed[0],
        )


def make_reader(options: RunOptions, config: ProjectConfig) -> DocumentReader:
    """Return what reads the files of a run."""
    return DocumentReader(
        limits=options.limits,
        passwords=options.passwords,
        pdf_engine=config.pdf_engine,
        file_metadata=options.file_metadata,
    )


def jobs_of(
    plan: Plan,
    intake: Intake,
    reader: DocumentReader,
    before: OpenVersion | None,
    wanted: Collection[str],
    failed: list[str],
) -> Iterator[Job]:
    """Yield the documents that need work, one after the other.

    A file that has the content of a document, renamed or not, gets the contexts that an LLM has written for that.

    Args:
        plan: What becomes of each document.
        intake: Those that were given.
        reader: Reads files.
        before: The version before, or None.
        wanted: Ids of those of the given ones to read.
        failed: Gets the ids of those that cannot be read.
    """
    if before is None:
        yield from intake.jobs(reader, wanted, failed)
        return
    for record in plan.rework:
        yield _job_of_record(before, record)
    records = {record.content_hash: record for record in before.manifest.documents}
    for job in intake.jobs(reader, wanted, failed):
        same = None if plan.rebuild else records.get(job.content_hash)
        yield job if same is None else replace(job, contexts=_written_contexts(before, same))


def _written_contexts(before: OpenVersion, record: DocumentRecord) -> dict[ChunkSpan, str]:
    return {
        span_of(node): node.metadata[keys.CONTEXT]
        for node in before.docstore.iterate(doc_id=record.doc_id)
        if node.metadata.get(keys.CONTEXT_SOURCE) == "llm"
    }


def _job_of_record(before: OpenVersion, record: DocumentRecord) -> Job:
    document = before.document(record)
    nodes = None if document else [_without_context(node) for node in before.docstore.iterate(doc_id=record.doc_id)]
    return Job(document, nodes, record.doc_id, record.content_hash, record.characters, record.origin)


def _without_context(node: BaseNode) -> BaseNode:
    if has_given_context(node):
        return node
    metadata = {k: v for k, v in node.metadata.items() if k not in (keys.CONTEXT, keys.CONTEXT_SOURCE)}
    return node.model_copy(update={"metadata": metadata})
