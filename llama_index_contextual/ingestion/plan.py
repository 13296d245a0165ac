"""Plan of an ingestion: which document each input is, and what has to be done for it.

`Intake` lists the files, Documents and nodes of a call. `identify` decides which of the files are documents of the
previous version, by their path or content. `make_plan` compares both: documents are kept, processed again, added,
updated, renamed or dropped. `jobs_of` yields the documents that need work.

A record stores no path, only the SHA-256 of one, its origin. Whether the former file of a document still exists can
therefore only be checked if the id of the document, taken as a path below a folder of the call or its parent, has that
origin.
"""

from __future__ import annotations

import dataclasses
import filecmp
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from llama_index_contextual.readers.discovery import (
    OFFICE_SUFFIXES,
    PDF_SUFFIXES,
    has_magic,
    notes_on_ids,
    printable,
    split_glob,
)
from llama_index_contextual.readers.documents import FileMetadata, with_headings
from llama_index_contextual.readers.ocr import PageStore
from llama_index_contextual.storage.ledger import content_key
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.storable import storable_fault
from llama_index_contextual.storage.version import OpenVersion

# ---- Identity of files -----------------------------------------------------------------------------------------------

IF_MOVED = "; if that file was moved here, pass `moved=True`, or --moved on the command line"


def origin(path: Path) -> str:
    """Return the SHA-256 of the real path of a file, by which it is recognized without storing the path."""
    return _origin_of(os.path.realpath(path))


def _origin_of(real_path: str) -> str:
    return hashlib.sha256(os.fsencode(real_path)).hexdigest()


class FormerFiles:
    """Files from which documents were read earlier, if they are in or near the folders of this call.

    Args:
        paths: Files and folders of the call.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        real_paths = [os.path.realpath(_fixed_part(Path(path))) for path in paths if "\0" not in os.fspath(path)]
        self._folders = [path for path in real_paths if os.path.isdir(path)]
        self._around = list(dict.fromkeys([*self._folders, *map(os.path.dirname, real_paths)]))

    def path(self, record: DocumentRecord) -> str | None:
        """Return the former path of the file of a document, or None if it is unknown."""
        return next(_places(record, self._around), None)

    def is_deleted(self, record: DocumentRecord) -> bool:
        """Return whether the file of a document is known to no longer exist."""
        path = self.path(record)
        return path is not None and not os.path.lexists(path)

    def exists(self, record: DocumentRecord) -> bool:
        """Return whether the file of a document is known to still exist."""
        path = self.path(record)
        return path is not None and os.path.lexists(path)

    def missing(self, records: Sequence[DocumentRecord]) -> list[str]:
        """Return the ids of documents whose file was in a folder of the call and no longer exists."""
        paths = ((record.doc_id, next(_places(record, self._folders), None)) for record in records)
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
    """Documents that the files of a call were identified as.

    Attributes:
        ids: Document id of each file that is ingested.
        new: Ids of new documents, including those whose id belonged to another file that `replace` removes.
        renamed: Former id -> new id, of documents whose file has a new name or location.
        moved: Ids of documents whose file has a new location, and which keep their id.
        copies: Files that are not ingested because a document of the project has the same content.
        notes: Warnings about ids that are longer than usual.
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
    """Identify the document of each file.

    - A file at the location of a document's file is that document and keeps its id, regardless of how the call spells
      its path.
    - A file elsewhere with the content of a document is that document if its former file is known to no longer exist
      (or is removed by `replace`, or `moved` is set): it gets the id of its new name. If the former file may still
      exist, the file is the same document if it would have the same id, and a copy otherwise.
    - Every other file is a new document. If its id belongs to another document, it gets the shortest longer path that
      is unique.

    Therefore a file never overwrites a document that was read from elsewhere, or a document without an origin, which
    was passed as a LlamaIndex Document or as nodes.

    Args:
        digests: Content hash of each file.
        records: Documents of the previous version.
        former: Former files of these documents.
        replaces: Documents that are not among the files are removed, and their ids become free.
        moved: The files have a new location: a file whose path ends with the id of a document is that document, unless
            the document's own file is known to still exist.
    """
    identification = _Identification(digests, records, former, replaces=replaces, moved=moved)
    for step in (identification.by_location, identification.by_content, identification.by_id):
        for ref in digests:
            if not identification.is_settled(ref):
                step(ref)
    identification.assign_ids()
    return identification.result


class _Identification:
    """Files identified so far, and the documents that are still free because no file was identified as them."""

    def __init__(
        self,
        digests: Mapping[FileRef, str],
        records: Sequence[DocumentRecord],
        former: FormerFiles,
        *,
        replaces: bool,
        moved: bool,
    ) -> None:
        self.result = Identities()
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
        """Return whether a file is already identified."""
        return ref in self.result.ids or ref in self._earlier or ref in self._copies

    def by_location(self, ref: FileRef) -> None:
        """Identify a file at the location of a document's file."""
        record = self._by_origin.get(origin(ref.path)) or self._in_another_case(ref)
        if record is not None and record.doc_id in self._free:
            self._settle(ref, record)

    def _in_another_case(self, ref: FileRef) -> DocumentRecord | None:
        """Return the document of a file whose path is spelled in another case, if the file system ignores case."""
        for doc_id in ref.ids():
            for record in self._by_folded_id.get(doc_id.casefold(), ()):
                path = self._former.path(record)
                if path is not None and os.path.exists(path) and os.path.samefile(path, ref.path):
                    return record
        return None

    def by_content(self, ref: FileRef) -> None:
        """Identify a file with the content of a document."""
        equal = [record for record in self._by_content.get(self._digests[ref], ()) if record.doc_id in self._free]
        ids = set(ref.ids())
        equal.sort(key=lambda record: record.doc_id not in ids)
        earlier = next((record for record in equal if self._is_replaceable(record)), None)
        if earlier is not None:
            self._earlier[ref] = self._free.pop(earlier.doc_id)
        elif equal and equal[0].doc_id in ids:
            self._settle(ref, equal[0])
        elif equal:
            self._copies.add(ref)
            reason = f"has the same content as the document {equal[0].doc_id!r}"
            self.result.copies.append(SkippedFile(ref.shown, reason))

    def _is_replaceable(self, record: DocumentRecord) -> bool:
        if self._moved and not self._replaces:
            return not self._former.exists(record)
        return self._replaces or self._former.is_deleted(record)

    def by_id(self, ref: FileRef) -> None:
        """Identify a moved file with the id of a document; the longest id takes precedence."""
        for doc_id in reversed(list(ref.ids())) if self._moved else ():
            record = self._free.get(doc_id)
            if record is not None and not self._former.exists(record):
                self._settle(ref, record)
                self.result.moved.add(doc_id)
                return

    def _settle(self, ref: FileRef, record: DocumentRecord) -> None:
        self.result.ids[ref] = self._free.pop(record.doc_id).doc_id

    def assign_ids(self) -> None:
        """Assign an unused id to each of the other files."""
        used = {*self.result.ids.values(), *(() if self._replaces else self._free)}
        named: list[FileRef] = []
        for ref in self._digests:
            if ref in self.result.ids or ref in self._copies:
                continue
            doc_id = ref.free_id(used)
            used.add(doc_id)
            self.result.ids[ref] = doc_id
            named.append(replace(ref, doc_id=doc_id))
            earlier = self._earlier.get(ref)
            if earlier is not None and earlier.doc_id == doc_id:
                self.result.moved.add(doc_id)
                continue
            self.result.new.add(doc_id)
            if earlier is not None:
                self.result.renamed[earlier.doc_id] = doc_id
        has_owner = any(ref.shortest_id in self._free for ref in named)
        self.result.notes = notes_on_ids(named, hint=IF_MOVED if has_owner and not self._moved else "")


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
        document: The Document, or None if `nodes` are given.
        nodes: Chunks of a document, or None if they are still to be made from `document`.
        doc_id: Id of the document.
        content_hash: xxh3 of the file (including the user's metadata), or a hash of text and metadata.
        size: Bytes of the file, or number of characters, for the progress.
        origin: SHA-256 of the path of its file, or None.
        contexts: Contexts that an LLM wrote earlier for the same text, by the span and text of their chunk.
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
    """Documents of one call; files are listed at once and read one after the other.

    Attributes:
        files: Files to read, by document id.
        ready: Documents and nodes of the call, by document id.
        hashes: Content hash of all of them, by document id.
        identities: Documents that the files were identified as.
        missing: Ids of documents whose file no longer exists in a folder of the call.
        skipped: Files that are not read, each with its reason; grows while files are read.
        copies: Skipped files with the content of a file to read, by its document id.
        warnings: Warnings about files; grows while files are read.
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
        """Sort the inputs into files, Documents and nodes, and hash and identify the files.

        Args:
            inputs: Paths, Documents and nodes.
            records: Documents of the previous version; see `identify`.
            file_metadata: Returns the user's own metadata of a file, which is part of its content.
            limits: Limits for reading a file.
            replaces: Documents that are not among the inputs are removed.
            moved: The files have a new location.

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
        intake = cls()
        if paths:
            discovery = discover(paths, limits=limits)
            intake.skipped += discovery.skipped
            digests, copies = intake._hash(discovery.files, {record.origin for record in records}, file_metadata)
            former = FormerFiles(paths)
            identities = identify(digests, records, former, replaces=replaces, moved=moved)
            intake._take_files(identities, digests, copies)
            known = {*intake.files, *identities.renamed}
            intake.missing = former.missing([record for record in records if record.doc_id not in known])
        of_files = set() if replaces or moved else {record.doc_id for record in records if record.origin is not None}
        for job in _ready_jobs(nodes, intake.skipped):
            if job.doc_id in intake.hashes:
                raise InputError(f"Two inputs have the document id {job.doc_id!r}: assign unique ids.", value=job)
            if job.doc_id in of_files:
                raise InputError(
                    f"{job.doc_id!r} is the id of a document that was read from a file: assign another id to the"
                    f" new one, or pass moved=True to replace that document.",
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
                f"{absent[0].path}: {absent[0].reason}. Because all other documents are to be replaced, those from this"
                f" path would be removed: correct the path, or leave it out.",
                value=[file.path for file in absent],
            )

    def _hash(
        self, refs: Sequence[FileRef], known: Collection[str | None], file_metadata: FileMetadata | None
    ) -> tuple[dict[FileRef, str], dict[FileRef, list[SkippedFile]]]:
        """Return the content hash of each file to ingest, and the copies of each file, which are skipped."""
        digests: dict[FileRef, str] = {}
        first: dict[tuple[str, str], FileRef] = {}
        copies: dict[FileRef, list[SkippedFile]] = defaultdict(list)
        # Files of existing documents come first and are never skipped as copies: the documents would become outdated.
        for ref in sorted(refs, key=lambda ref: origin(ref.path) not in known):
            try:
                digest = content_hash(ref.path)
            except ReadError as error:
                self.skipped.append(SkippedFile(ref.shown, error.reason))
                continue
            # The same bytes can be a valid text file and an invalid PDF.
            suffix = ref.path.suffix.lower()
            kind = suffix if suffix in (*PDF_SUFFIXES, *OFFICE_SUFFIXES) else "text"
            same = first.setdefault((kind, digest), ref)
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

    def jobs(self, reader: DocumentReader, doc_ids: Collection[str], failed: list[str]) -> Iterator[Job]:
        """Yield the requested documents; unreadable files are added to `skipped`, and their ids to `failed`."""
        refs = (ref for doc_id, ref in self.files.items() if doc_id in doc_ids)
        for ref, content in reader.read_all(refs):
            doc_id = ref.doc_id
            if doc_id not in doc_ids:  # the run was interrupted while the file was read ahead
                continue
            if not isinstance(content, ReadError) and (fault := storable_fault(content.document)):
                content = ReadError(ref.shown, f"cannot be stored: {fault}")
            if isinstance(content, ReadError):
                self._skip(doc_id, content)
                failed.append(doc_id)
                continue
            self.warnings += content.warnings
            # The file may have changed since it was hashed: use the hash of the content that was read.
            hash_as_read = _with_facts(content.digest, content.facts)
            yield Job(content.document, None, doc_id, hash_as_read, ref.size, origin(ref.path))
        yield from (job for doc_id, job in self.ready.items() if doc_id in doc_ids)

    def _skip(self, doc_id: str, error: ReadError) -> None:
        """Add an unreadable file to `skipped`, and skip its copies for the same reason."""
        copies = self.copies.get(doc_id, ())
        self.skipped = [replace(file, reason=error.reason) if file in copies else file for file in self.skipped]
        self.skipped.append(SkippedFile(error.path, error.reason))

    def size(self, doc_id: str) -> int:
        """Return the size of a document, for the progress."""
        return self.files[doc_id].size if doc_id in self.files else self.ready[doc_id].size


def _with_facts(digest: str, facts: Mapping[str, Any]) -> str:
    return content_key(digest, json.dumps(facts, sort_keys=True)) if facts else digest


def _require_equal(one: FileRef, other: FileRef) -> None:
    # xxh3 is not collision-resistant: a file constructed to collide must not hide another one.
    if not filecmp.cmp(one.path, other.path, shallow=False):
        raise InputError(
            f"{one.shown} and {other.shown} have the same xxh3 checksum but different content, which does not happen by"
            f" chance: leave one of them out.",
            value=other.shown,
        )


def nothing_to_ingest(skipped: Sequence[SkippedFile]) -> str:
    """Return the message for a run without documents."""
    reasons = "; ".join(f"{file.path}: {file.reason}" for file in skipped[:5])
    more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    return f"There is nothing to ingest. {reasons}{more}".strip()


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
    for record in records:
        doc_id = record.doc_id
        if doc_id in renamed:
            plan.rename[renamed[doc_id]] = record
            continue
        content = None if doc_id in new else contents.get(doc_id)
        if content is not None:
            same.add(doc_id)
        if doc_id in moved:
            plan.moved.append(doc_id)
            record = dataclasses.replace(record, origin=moved[doc_id])
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
        retry_failed: Process documents again that have chunks whose context failed.
        reread: Read files again whose content has not changed.
        file_metadata: Returns additional metadata of a file.
        limits: Limits for reading a file.
        passwords: Passwords of encrypted PDFs.
        max_cost: Limit in dollars, or None.
        batch: Request contexts through the provider's Batch API.
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
    purpose: Literal["ingest", "rebuild", "retry", "compare"] = "ingest"


def plan_run(
    inputs: Sequence[IngestInput], options: RunOptions, config: ProjectConfig, before: OpenVersion | None
) -> tuple[Intake, Plan]:
    """Return the documents of a call, and the plan of the run.

    Raises:
        ConfigurationError: Failed chunks should be retried, but settings have changed.
        InputError: An input cannot be ingested, or two inputs have the same id.
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
        reread=intake.files if options.reread else (),
        new=intake.identities.new,
        renamed=intake.identities.renamed,
        moved={doc_id: origin(intake.files[doc_id].path) for doc_id in intake.identities.moved},
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
    *,
    page_store: PageStore | None = None,
    on_scanned_page: Callable[[int, int], None] | None = None,
) -> DocumentReader:
    """Return the reader for the files of a run.

    Args:
        options: Options of the run.
        config: Settings of the project.
        page_store: Store of scanned pages.
        on_scanned_page: Called with the number of scanned pages of a file that are done, and with their total.
    """
    return DocumentReader(
        limits=options.limits,
        passwords=options.passwords,
        pdf_engine=config.pdf_engine,
        file_metadata=options.file_metadata,
        ocr=config.ocr,
        ocr_language=config.ocr_language,
        page_store=page_store,
        on_scanned_page=on_scanned_page,
    )


def jobs_of(
    plan: Plan,
    intake: Intake,
    reader: DocumentReader,
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
    records = {record.content_hash: record for record in before.manifest.documents}
    for job in intake.jobs(reader, doc_ids, failed):
        same = None if plan.rebuild else records.get(job.content_hash)
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
    nodes = None if document else [_without_context(node) for node in before.docstore.iterate(doc_id=record.doc_id)]
    return Job(document, nodes, record.doc_id, record.content_hash, record.characters, record.origin)


def _without_context(node: BaseNode) -> BaseNode:
    if has_given_context(node):
        return node
    metadata = {
        k: v for k, v in node.metadata.items() if k not in (keys.CONTEXT, keys.CONTEXT_SOURCE, keys.CONTEXT_WRITTEN_AT)
    }
    return node.model_copy(update={"metadata": metadata})
