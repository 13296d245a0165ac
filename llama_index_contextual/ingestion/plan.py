"""Plan a run: match the inputs with documents, and choose an action for each document.

`Inputs.collect` lists the files, Documents and nodes passed to a call. Each input either matches a document of the
previous version by path, content or id, or is a new document. `make_plan` compares the documents of the previous
version with the inputs and decides whether each is kept, processed again, added, updated, renamed or dropped.
`Plan.jobs` reads the documents that need work.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.base import ChunkPlace, chunk_places, has_given_context
from llama_index_contextual.errors import (
    ConfigurationError,
    InputError,
    LargeRemovalError,
    PathNotFoundError,
    ReadError,
    Remedy,
)
from llama_index_contextual.index.ledger import content_key
from llama_index_contextual.index.manifest import DocumentRecord, Records
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.metadata import storable_fault
from llama_index_contextual.readers import (
    FileRef,
    FileWarning,
    SkippedFile,
    content_hash,
    discover,
)
from llama_index_contextual.readers.documents import FileContent, user_facts, with_headings
from llama_index_contextual.readers.files import (
    OFFICE_SUFFIXES,
    PDF_SUFFIXES,
    has_text,
    is_url,
    notes_on_ids,
    printable,
    printable_path,
    split_glob,
)
from llama_index_contextual.readers.ocr import CHANGED
from llama_index_contextual.readers.remote import RemoteFiles
from llama_index_contextual.readers.urls import RemoteError, checked_url, split_url, without_secrets

IngestInput = str | os.PathLike[str] | BaseNode


def as_inputs(inputs: Iterable[IngestInput] | IngestInput) -> list[IngestInput]:
    """Return the inputs of a call as a list; a single input need not be in a list."""
    if isinstance(inputs, str | os.PathLike | BaseNode) or not isinstance(inputs, Iterable):
        return [inputs]
    return list(inputs)


@dataclass(frozen=True)
class Job:
    """One document to be processed.

    Attributes:
        document: The Document, or None if it was passed as nodes.
        nodes: Chunks of the document, or None if `document` has not been cut into chunks yet.
        doc_id: Id of the document.
        content_hash: xxh3 hash of the file, or a hash of text and metadata.
        path: Path of the file with links resolved, or None.
        facts: The user's metadata for the file, or None.
        origin: Name of the source that the Document was synchronised with, or "".
        former: Contexts that an LLM wrote for chunks of the same file in the previous version.
        warnings: Warnings about the file.
        pictures: Stored pictures of its figures, by their SHA-256 hash.
    """

    document: Document | None
    nodes: Sequence[BaseNode] | None
    doc_id: str
    content_hash: str
    path: str | None = None
    facts: Mapping[str, Any] | None = None
    origin: str = ""
    former: Mapping[ChunkPlace, str] = field(default_factory=dict)
    warnings: tuple[FileWarning, ...] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> str:
        """Hash of the content and the user's metadata, which identify the source of the document."""
        return json.dumps([self.content_hash, dict(self.facts or {})], sort_keys=True)


@dataclass(frozen=True)
class SkippedDocument:
    """A document that cannot be processed.

    Attributes:
        doc_id: Id of the document.
        file: Its file or id, with the reason.
    """

    doc_id: str
    file: SkippedFile


# ---- matching files with documents -----------------------------------------------------------------------------------

Match = tuple[Literal["same", "renamed", "copy"], DocumentRecord]
"""Relation of a file to a document (the same file, renamed or moved, or a copy), and the document."""


class Matcher:
    """Match the files of a call with documents of the previous version.

    - A file at the location of a document's file matches that document, which keeps its id regardless of how the path
      is spelled in the call.
    - A file at a different location with the same content as a document is treated as the document's renamed file if
      the former file is known to no longer exist, or if `replace` or a sync removes the document. The document then
      gets a new id, based on the new name. If the former file may still exist, the file matches the document if both
      have the same id. Otherwise it is a copy, unless this call provides different metadata for it.
    - Every other file is a new document. If its id is used by another document, the id is extended by the names of
      parent folders until it is unique.

    A file therefore never overwrites a document that was read from a different location, or a document that was passed
    as a LlamaIndex Document or as nodes and has no path.

    Args:
        digests: xxh3 hash of each file.
        facts: The user's metadata for files, by path, if this call provides any.
        records: Documents of the previous version.
        options: Options for the run.
        removed: Ids of documents that a sync removes unless a file matches them.
        gone: URLs of documents whose source says that their file no longer exists.

    Attributes:
        matches: The match for each file that is not a new document.
    """

    def __init__(
        self,
        digests: Mapping[FileRef, str],
        facts: Mapping[str, Mapping[str, Any]],
        records: Records,
        options: RunOptions,
        removed: Collection[str],
        gone: Collection[str] = (),
    ) -> None:
        self._digests, self._facts, self._records = digests, facts, records
        self._options, self._removed, self._gone = options, removed, gone
        self._identified: set[str] = set()  # ids of documents whose file is known
        self.matches: dict[FileRef, Match] = {}
        for find in (self._by_location, self._by_content):
            for ref in digests:
                if ref not in self.matches and (match := find(ref)) is not None:
                    self.matches[ref] = match
                    if match[0] != "copy":
                        self._identified.add(match[1].doc_id)
        self._ids = {record.doc_id for kind, record in self.matches.values() if kind == "same"}

    def _by_location(self, ref: FileRef) -> Match | None:
        record = self._records.with_path(ref.location)
        if record is not None and self._is_free(record):
            return "same", record
        return None

    def _by_content(self, ref: FileRef) -> Match | None:
        ids = set(ref.ids)
        equal = [record for record in self._records.with_content(self._digests[ref]) if record.path is not None]
        equal = sorted(filter(self._is_free, equal), key=lambda record: record.doc_id not in ids)
        for record in equal:
            if not self._is_kept(record.doc_id) or self._is_gone(record.path or ""):
                return "renamed", record
        facts = self._facts.get(ref.name)
        for record in equal:
            if facts is None or facts == (record.facts or {}):
                return "same" if record.doc_id in ids else "copy", record
        return None

    def _is_free(self, record: DocumentRecord) -> bool:
        """Return whether a document has not been matched with a file yet."""
        return record.doc_id not in self._identified

    def _is_gone(self, path: str) -> bool:
        """Return whether the file of a document is known to no longer exist."""
        return path in self._gone if is_url(path) else is_absent(path)

    def _is_kept(self, doc_id: str) -> bool:
        """Return whether a document is kept even if no file matches it."""
        return not self._options.replace and doc_id not in self._removed

    def new_id(self, ref: FileRef) -> str:
        """Return an id for a file that is not used by another file or by a document that is kept."""
        doc_id = ref.free_id(self)
        self._ids.add(doc_id)
        return doc_id

    def __contains__(self, doc_id: object) -> bool:
        record = self._records.get(str(doc_id))
        return doc_id in self._ids or (record is not None and self._is_free(record) and self._is_kept(record.doc_id))


# ---- files of a sync -------------------------------------------------------------------------------------------------

# A file that cannot be accessed has not necessarily been deleted. A document is therefore removed only if its folder
# can be listed and the operating system reports that the file does not exist. It is an error if a folder is missing or
# no longer contains any readable file, because it may be on a drive that is not mounted.

UNSETTLED = "is being written: it is read as soon as it no longer changes"
CHANGED_MEANWHILE = "changed while it was read: it is read by the next sync"
POSTPONED = "is large: it is read as soon as the smaller files are published"
FOR_LATER = (UNSETTLED, CHANGED_MEANWHILE, POSTPONED, CHANGED)
"""Reasons for leaving a file for the next sync."""

_MOST_NAMED = 3


def is_absent(path: str) -> bool:
    """Return whether a file is known to no longer exist; return False after an error such as a missing permission."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def changing_files(files: Sequence[FileRef], seconds: float) -> set[FileRef]:
    """Wait, and return the files that changed during the wait, which are probably still being written."""
    if not seconds:
        return set()
    files = [ref for ref in files if not ref.url]
    before = [_status_of(ref.path) for ref in files]
    time.sleep(seconds)
    return {ref for ref, status in zip(files, before, strict=True) if _status_of(ref.path) != status}


def _status_of(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino


class SyncedFolders:
    """The folders of a sync. They must exist and be readable, and must not be replaced during the search.

    Args:
        paths: The folders; URLs of folders are checked by the search.

    Raises:
        InputError: A path is not a folder, the folder cannot be opened, or a URL is invalid.
        PathNotFoundError: A folder does not exist.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._folders: dict[str, tuple[int, int] | None] = {}
        for path in paths:
            if isinstance(path, str) and is_url(path):
                url = checked_url(path)
                if split_url(url)[1]:
                    raise InputError(f"{printable(url)} is not a folder but a pattern: name the folder.", value=url)
                self._folders[url] = None
            else:
                self._folders[os.path.realpath(path)] = _identity_of_folder(path)

    def require_same(self) -> None:
        """Check that the folders have not been replaced in the meantime, for example by unmounting a drive.

        Raises:
            InputError: There is now another folder at the same path.
            PathNotFoundError: A folder no longer exists.
        """
        for path, identity in self._folders.items():
            if identity is not None and _identity_of_folder(path) != identity:
                raise InputError(f"{printable_path(path)} was replaced while it was searched: run the sync again.")

    def check_removals(
        self,
        removed: Mapping[str, str],
        gone: Mapping[str, str],
        *,
        remaining: Iterable[str],
        files: Iterable[str],
        options: RunOptions,
    ) -> bool:
        """Check that a sync does not remove all or many documents in a folder, unless this is allowed.

        Here, "many" means more than one and more than a tenth. While a folder is watched, it must not be empty even if
        no document is removed, so that an unmounted drive is reported.

        Args:
            removed: Former paths of the documents that would be removed, by document id.
            gone: Former paths of all documents whose file no longer exists.
            remaining: Locations of the files of the documents that are kept.
            files: Locations of all files that were found.
            options: Options for the run.

        Raises:
            InputError: All documents in a folder would be removed because it contains no files.
            LargeRemovalError: Many documents in a folder would be removed.

        Returns:
            Whether many documents in a folder are removed.
        """
        kept_paths, paths = list(remaining), list(files)
        many: dict[str, str] = {}
        is_refused = False
        for folder in self._folders:
            removals = [doc_id for doc_id, path in removed.items() if _is_in(path, folder)]
            has_file = any(_is_in(path, folder) for path in paths)
            absent = [doc_id for doc_id, path in gone.items() if _is_in(path, folder)] if options.watching else removals
            if absent and not has_file and not options.allow_empty:
                raise _empty_folder(folder, absent)
            total = len(removals) + sum(_is_in(path, folder) for path in kept_paths)
            if len(removals) > max(1, total // 10):
                many[folder] = f"{len(removals):,} of {pluralize(total, 'document')}"
                is_refused = is_refused or (has_file and not options.allow_many)
        if is_refused:
            raise _large_removal(many, removed)
        return bool(many)


def _is_in(path: str, folder: str) -> bool:
    """Return whether a file is in a folder or its subfolders, or is the page that is synced instead of a folder."""
    if is_url(folder):
        return path == folder or path.startswith(f"{folder}/")
    return path.startswith(os.path.join(folder, ""))


def _empty_folder(folder: str, ids: Sequence[str]) -> InputError:
    return InputError(
        f"{printable_path(folder)} contains no file that can be read, but {pluralize(len(ids), 'document')} came from"
        f" it, such as {ids[0]!r}. If a drive or share is not mounted, mount it and run the sync again.",
        value=folder,
        remedy=Remedy(
            "if the files were deleted on purpose, pass `allow_empty=True`",
            "if the files were deleted on purpose, add --allow-empty",
        ),
    )


def _large_removal(
    numbers: Mapping[str, str],
    doc_ids: Collection[str],
    advice: str = "the folder is being restored, or a drive or share is not completely mounted",
) -> LargeRemovalError:
    """Return the error for a sync that would remove many documents.

    Args:
        numbers: Description of the number of documents to remove, by folder or source.
        doc_ids: Ids of these documents.
        advice: Another reason why the documents may be missing.
    """
    examples = ", ".join(map(repr, sorted(doc_ids)[:_MOST_NAMED]))
    more = f" and {len(doc_ids) - _MOST_NAMED:,} more" if len(doc_ids) > _MOST_NAMED else ""
    return LargeRemovalError(
        f"{', '.join(numbers.values())} from {printable(', '.join(numbers))} would be removed at once, because they are"
        f" gone: {examples}{more}. If {advice}, run the sync again afterwards.",
        documents=sorted(doc_ids),
        remedy=Remedy(
            "if they were deleted on purpose, pass these ids as `remove`, or `allow_many=True`",
            "if they were deleted on purpose, add --allow-many",
        ),
    )


def _identity_of_folder(path: str | os.PathLike[str]) -> tuple[int, int]:
    name = printable_path(os.fspath(path))
    advice = "if it is on a drive or share that is not mounted, mount it; no document was changed"
    try:
        status = os.stat(path)
        if is_folder := stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                next(entries, None)
    except FileNotFoundError as error:
        raise PathNotFoundError(f"The folder {name} does not exist: {advice}.", value=[os.fspath(path)]) from error
    except (OSError, ValueError) as error:
        raise InputError(f"The folder {name} cannot be opened ({error}): {advice}.", value=path) from error
    if not is_folder:
        raise InputError(f"{name} is not a folder: name the folder that contains it.", value=path)
    return status.st_dev, status.st_ino


# ---- inputs of a call ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DocumentInput:
    """Input from which a document is created: a file, a Document, or nodes.

    Attributes:
        doc_id: Id of the document.
        digest: xxh3 hash of the file, or a hash of text and metadata.
        record: The matching document of the previous version, or None for a new document.
        ref: The file, or None.
        job: The Document or the nodes, or None.
        facts: The user's metadata for the file, or None.
        is_moved: Whether the file has a new location.
    """

    doc_id: str
    digest: str
    record: DocumentRecord | None = None
    ref: FileRef | None = None
    job: Job | None = None
    facts: Mapping[str, Any] | None = None
    is_moved: bool = False

    def is_outdated(self, record: DocumentRecord) -> bool:
        """Return whether the input differs from a record in content, metadata or location."""
        has_changed = self.digest != record.content_hash or self.facts != record.facts
        return has_changed or self.is_moved

    def skip(self, reason: str, *, is_final: bool = True) -> SkippedDocument:
        """Return the document as one that cannot be processed.

        Args:
            reason: The reason, with the remedy.
            is_final: Whether the result does not change until the content of the file changes.
        """
        path = self.doc_id if self.ref is None else self.ref.shown
        content = self.digest if is_final and reason not in FOR_LATER else None
        return SkippedDocument(self.doc_id, SkippedFile(path, reason, content_hash=content))


class FileReader(Protocol):
    """Reader for the files of a run."""

    def read_all(self, refs: Iterable[FileRef]) -> Iterator[tuple[FileRef, FileContent | ReadError]]:
        """Read files in order and yield the content of each file, or the error."""


def _missing_files(
    paths: Iterable[str | os.PathLike[str]], records: Sequence[DocumentRecord], remote: RemoteFiles
) -> dict[str, str]:
    """Return the file paths, by document id, of documents whose file is missing from a folder passed to the call."""
    urls = [split_url(checked_url(path))[0] for path in paths if isinstance(path, str) and is_url(path)]
    remote_missing = {
        record.doc_id: record.path
        for record in records
        if record.path is not None and any(_is_in(record.path, url) for url in urls) and remote.is_gone(record.path)
    }
    fixed_parts = (
        path if os.path.lexists(path) else split_glob(Path(path))[0]
        for path in paths
        if not is_url(path) and "\0" not in os.fspath(path)
    )
    real_paths = [os.path.realpath(path) for path in fixed_parts]
    folders = tuple(os.path.join(path, "") for path in real_paths if os.path.isdir(path))
    below = ((record.doc_id, record.path) for record in records if (record.path or "").startswith(folders))
    return remote_missing | {doc_id: path for doc_id, path in below if path is not None and is_absent(path)}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of one call: files, Documents and nodes, matched with the documents of the previous version.

    Attributes:
        options: Options for the run.
        documents: The input of each document, by id.
        facts: The user's metadata for files, by path.
        missing: Ids of documents whose file no longer exists in a folder of the call.
        removed: Ids of documents that a sync removes because their file no longer exists or is now a copy of another
            file.
        removes_many: Whether a sync removes more than a tenth of the documents in a folder.
        has_copies: Whether a file is skipped because it is a copy of the file of a document.
        skipped: Files that are not read, each with the reason.
        warnings: Warnings about the ids of documents.
    """

    options: RunOptions = field(default_factory=RunOptions)
    documents: Mapping[str, DocumentInput] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: Sequence[str] = ()
    removed: frozenset[str] = frozenset()
    removes_many: bool = False
    has_copies: bool = False
    skipped: Sequence[SkippedFile] = ()
    warnings: Sequence[FileWarning] = ()

    @classmethod
    def collect(
        cls,
        inputs: Sequence[IngestInput],
        options: RunOptions | None = None,
        records: Sequence[DocumentRecord] = (),
        remote: RemoteFiles | None = None,
    ) -> Inputs:
        """Sort the inputs into files, Documents and nodes, and find the matching documents.

        Args:
            inputs: Paths, Documents and nodes.
            options: Options for the run.
            records: Documents of the previous version.
            remote: Access to files at URLs.

        Raises:
            InputError: An input has the wrong type or cannot be ingested, two inputs have the same id, a Document or
                node has the id of a document that was read from a file, or all documents of a synced folder would be
                removed.
            LargeRemovalError: A sync would remove many documents.
            PathNotFoundError: A synced folder does not exist; or another path does not exist, and either no other input
                can be read or `replace` would remove the documents ingested from that path.
        """
        paths = [item for item in inputs if isinstance(item, (str, os.PathLike))]
        nodes = [item for item in inputs if isinstance(item, BaseNode)]
        if len(paths) + len(nodes) != len(inputs):
            raise InputError("ingest accepts only paths, LlamaIndex Documents and nodes.")
        options, records = options or RunOptions(), Records(records)
        remote = remote or RemoteFiles(limits=options.limits)
        files = collect_files(paths, options, records, remote) if paths else cls(options=options)
        documents, skipped = dict(files.documents), list(files.skipped)
        ids = {document.record.doc_id for document in documents.values() if document.record is not None}
        jobs = jobs_of_nodes(nodes, skipped)
        if options.source:
            jobs = jobs_of_source(jobs, options, records)
            empty = {_name_in_source(node, options) for node in nodes if not has_text(node.get_content())}
            files = _with_removals(files, {job.doc_id for job in jobs}, empty, records)
        for job in jobs:
            record = records.get(job.doc_id)
            if job.doc_id in documents:
                raise InputError(f"Two inputs have the document id {job.doc_id!r}: assign unique ids.", value=job)
            if record is not None and record.path is not None and not options.replace:
                raise InputError(
                    f"{job.doc_id!r} is the id of a document that was read from a file: assign another id to the new"
                    f" one.",
                    value=job.doc_id,
                )
            if options.source and record is not None and record.source != options.source:
                raise InputError(
                    f"{job.doc_id!r} is the id of a document that is not from the source {options.source!r}: choose"
                    f" another name for the source.",
                    value=job.doc_id,
                )
            documents[job.doc_id] = DocumentInput(
                doc_id=job.doc_id,
                digest=job.content_hash,
                record=None if job.doc_id in ids else record,
                job=job,
            )
        absent = [file for file in skipped if file.absent]
        if absent and not documents and not files.has_copies:
            raise PathNotFoundError(nothing_to_ingest(skipped), value=[file.path for file in absent])
        if absent and options.replace:
            raise PathNotFoundError(
                f"{absent[0].path}: {absent[0].reason}. Because all other documents are to be replaced, those from this"
                f" path would be removed: correct the path, or leave it out.",
                value=[file.path for file in absent],
            )
        return replace(files, documents=documents, skipped=skipped)

    def read(self, reader: FileReader, doc_ids: Collection[str]) -> Iterator[Job | SkippedDocument]:
        """Yield the requested documents, files first."""
        refs = (source.ref for source in self.documents.values() if source.ref is not None and source.doc_id in doc_ids)
        for ref, content in reader.read_all(refs):
            source = self.documents[ref.doc_id]
            if isinstance(content, ReadError):
                # After an error of the operating system, the file may become readable without a change.
                yield source.skip(content.reason, is_final=not isinstance(content.__cause__, OSError))
            elif fault := storable_fault(content.document):
                yield source.skip(f"cannot be stored: {fault}")
            elif self.options.is_sync and content.digest != source.digest:
                yield source.skip(CHANGED_MEANWHILE)
            else:
                # The file may have changed since it was hashed: use the hash of the content that was read.
                path, facts = ref.location, content.facts or None
                document, chunks, warnings = content.document, content.chunks, content.warnings
                pictures = content.pictures
                yield Job(
                    document, chunks, ref.doc_id, content.digest, path, facts, warnings=warnings, pictures=pictures
                )
        for source in self.documents.values():
            if source.job is not None and source.doc_id in doc_ids:
                yield source.job


def collect_files(
    paths: Sequence[str | os.PathLike[str]], options: RunOptions, records: Records, remote: RemoteFiles
) -> Inputs:
    """Return the files at the given paths, and the documents whose file no longer exists.

    Each file gets the id of the document that it matches, or a new id.
    """
    folders = SyncedFolders(paths) if options.is_sync else None
    discovery = discover(paths, limits=options.limits, find=partial(_found, remote, options))
    changing = changing_files(discovery.files, options.settle)
    skipped = [*discovery.skipped, *(SkippedFile(ref.shown, UNSETTLED) for ref in changing)]
    stable = [ref for ref in discovery.files if ref not in changing]
    digests, copies = _hash_files(stable, options, records, skipped, remote)
    present = {ref.location for ref in discovery.files}
    missing_paths = _missing_files(paths, [record for record in records if record.path not in present], remote)
    if folders is not None:
        folders.require_same()
    removable = dict(missing_paths)
    for path in (copy.location for copy in copies):
        if (record := records.with_path(path)) is not None:
            removable[record.doc_id] = path
    removals = set(filter(options.may_remove, removable))
    facts: dict[str, Mapping[str, Any]] = {}
    if options.file_metadata is not None:
        facts = {ref.name: user_facts(options.file_metadata, ref.name) for ref in digests}
    matcher = Matcher(digests, facts, records, options, removals, frozenset(missing_paths.values()))
    documents: dict[str, DocumentInput] = {}
    new: list[FileRef] = []
    for ref, digest in digests.items():
        kind, record = matcher.matches.get(ref, ("new", None))
        if kind == "copy" and record is not None:
            skipped.append(SkippedFile(ref.shown, f"has the same content as the document {record.doc_id!r}"))
            continue
        if kind == "same" and record is not None:
            doc_id = record.doc_id
        else:
            doc_id = matcher.new_id(ref)
            new.append(replace(ref, doc_id=doc_id))
        if record is not None and record.facts and options.file_metadata is None:
            facts[ref.name] = record.facts
        documents[doc_id] = DocumentInput(
            doc_id=doc_id,
            digest=digest,
            record=record,
            ref=replace(ref, doc_id=doc_id),
            facts=facts.get(ref.name) or None,
            is_moved=kind == "renamed",
        )
    ids = {document.record.doc_id for document in documents.values() if document.record is not None}
    inputs = Inputs(
        options=options,
        documents=documents,
        facts=facts,
        missing=[doc_id for doc_id in missing_paths if doc_id not in ids],
        has_copies=any(kind == "copy" for kind, _ in matcher.matches.values()),
        skipped=skipped,
        warnings=notes_on_ids(new),
    )
    if folders is None:
        return inputs
    inputs = replace(inputs, removed=frozenset(removals - ids))
    removes_many = folders.check_removals(
        {doc_id: removable[doc_id] for doc_id in inputs.removed},
        {doc_id: missing_paths[doc_id] for doc_id in inputs.missing},
        remaining=[document.ref.location for document in documents.values() if document.ref and document.record],
        files=[ref.location for ref in discovery.files],
        options=options,
    )
    return replace(inputs, removes_many=removes_many)


def _found(remote: RemoteFiles, options: RunOptions, url: str) -> list[FileRef | SkippedFile]:
    """Return the files at a URL; a source that cannot be listed completely is skipped, but never synced.

    Raises:
        InputError: The source of a sync cannot be listed completely.
        PathNotFoundError: There is nothing at the URL of a sync.
    """
    shown = printable(without_secrets(url))
    try:
        return list(remote.find(url))
    except FileNotFoundError as error:
        if options.is_sync and not options.allow_empty:
            raise PathNotFoundError(
                f"There is nothing at {shown}: no document was changed; check the address and the settings of the"
                f" source.",
                value=[shown],
                remedy=Remedy(
                    "if everything there was deleted on purpose, pass `allow_empty=True`",
                    "if everything there was deleted on purpose, add --allow-empty",
                ),
            ) from error
        return [] if options.is_sync else [SkippedFile(shown, "does not exist", absent=True)]
    except RemoteError as error:
        if options.is_sync:
            raise InputError(f"{shown} {error.reason}. No document was changed: run the sync again.") from error
        return [SkippedFile(shown, error.reason, absent=True)]


def _hash_files(
    refs: Sequence[FileRef], options: RunOptions, records: Records, skipped: list[SkippedFile], remote: RemoteFiles
) -> tuple[dict[FileRef, str], list[FileRef]]:
    """Return the xxh3 hash of each file to ingest, and a list of files skipped as copies of other files.

    Copies and unreadable files are added to `skipped`.
    """
    digests: dict[FileRef, str] = {}
    first: dict[tuple[str, str], FileRef] = {}
    copies: list[FileRef] = []
    documents = {ref: records.with_path(ref.location) for ref in refs}
    downloads = remote.digests([ref for ref in refs if ref.url])
    # Files of existing documents come first. If they were skipped as copies, their documents would become outdated.
    # They are therefore skipped only if a sync removes these documents.
    for ref in sorted(refs, key=lambda ref: documents[ref] is None):
        try:
            digest = downloads[ref]() if ref.url else content_hash(ref.path)
        except ReadError as error:
            # With `replace`, the document of a file that cannot be downloaded would be removed.
            skipped.append(SkippedFile(ref.shown, error.reason, absent=bool(ref.url) and options.replace))
            continue
        # The same bytes can be a valid text file and an invalid PDF.
        suffix = ref.path.suffix.lower()
        kind = suffix if suffix in (*PDF_SUFFIXES, *OFFICE_SUFFIXES) else "text"
        same, record = first.setdefault((kind, digest), ref), documents[ref]
        if same is not ref and (record is None or options.may_remove(record.doc_id)):
            copies.append(ref)
            skipped.append(SkippedFile(ref.shown, f"has the same content as {same.shown}"))
        else:
            digests[ref] = digest
    return {ref: digests[ref] for ref in refs if ref in digests}, copies


def nothing_to_ingest(skipped: Sequence[SkippedFile]) -> str:
    """Return the error message for a run that has no documents to ingest."""
    reasons = "; ".join(f"{file.path}: {file.reason}" for file in skipped[:5])
    more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    message = f"There is nothing to ingest. {reasons}{more}".strip()
    return message if message.endswith(".") else f"{message}."


# ---- Documents and nodes of a call -----------------------------------------------------------------------------------


def jobs_of_nodes(nodes: Sequence[BaseNode], skipped: list[SkippedFile]) -> list[Job]:
    """Return jobs for Documents, then for nodes grouped by document.

    Args:
        nodes: Documents and nodes of a call.
        skipped: List to which inputs without text are added.

    Raises:
        InputError: An input has no id or cannot be stored, or two nodes have the same id.
    """
    jobs: list[Job] = []
    groups: dict[str, list[BaseNode]] = {}
    ids: set[str] = set()
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
            jobs.append(Job(with_headings(node), None, node.doc_id, _content_key(node)))
        elif node.node_id in ids:
            raise InputError(f"Two nodes have the id {printable(node.node_id)!r}: assign unique ids.", value=node)
        else:
            ids.add(node.node_id)
            groups.setdefault(node.ref_doc_id or node.node_id, []).append(_of_document(node))
    for doc_id, group in groups.items():
        parts = (part for node in group for part in (node.node_id, _content_key(node)))
        jobs.append(Job(None, group, doc_id, content_key(*parts)))
    return jobs


def jobs_of_source(jobs: Sequence[Job], options: RunOptions, records: Records) -> list[Job]:
    """Return jobs whose ids begin with the name of their source and stay the same in each sync.

    A Document whose id is not known, but whose text and metadata are those of a document of this source that has no
    other match, keeps the id of this document: many readers assign a new random id in each call.

    Raises:
        InputError: A Document has no metadata with the key `id_key`.
    """
    named: dict[str, Job] = {}
    numbers: Counter[str] = Counter()
    for job in jobs:
        doc_id = name = "" if job.document is None else _name_in_source(job.document, options)
        while doc_id in named:
            numbers[name] += 1
            doc_id = f"{name} ({numbers[name] + 1})"
        named[doc_id] = job
    free: dict[str, deque[str]] = {}
    for record in records:
        if record.source == options.source and record.doc_id not in named:
            free.setdefault(record.content_hash, deque()).append(record.doc_id)
    result = []
    for doc_id, job in named.items():
        if records.get(doc_id) is None and (former := free.get(job.content_hash)):
            doc_id = former.popleft()
        document = None if job.document is None else job.document.model_copy(update={"id_": doc_id})
        result.append(replace(job, document=document, doc_id=doc_id, origin=options.source))
    return result


def _name_in_source(node: BaseNode, options: RunOptions) -> str:
    """Return the id of the document for a Document of a source.

    Raises:
        InputError: The Document has no metadata with the key `id_key`.
    """
    key = node.node_id if options.id_key is None else str(node.metadata.get(options.id_key) or "").strip()
    if not key:
        raise InputError(
            f"The Document {printable(node.node_id)!r} has no metadata {options.id_key!r}, which should identify it:"
            f" name another key as id_key.",
            value=options.id_key,
        )
    return f"{options.source}/{printable(key)}"


def _with_removals(inputs: Inputs, doc_ids: Collection[str], empty: Collection[str], records: Records) -> Inputs:
    """Return the inputs with the documents of the source that are not among its Documents, which a sync removes.

    Args:
        inputs: The inputs.
        doc_ids: Ids of the Documents.
        empty: Ids of Documents without text, which have not been removed from their source.
        records: Documents of the previous version.

    Raises:
        InputError: All documents of the source would be removed.
        LargeRemovalError: Many documents of the source would be removed.
    """
    options = inputs.options
    own = [record.doc_id for record in records if record.source == options.source]
    missing = [doc_id for doc_id in own if doc_id not in doc_ids and doc_id not in empty]
    removed = frozenset(filter(options.may_remove, missing))
    if removed and not doc_ids and not options.allow_empty:
        raise InputError(
            f"There is no Document with text, but {pluralize(len(own), 'document')} came from {options.source!r}. If"
            f" the access of the reader has expired, renew it and run the sync again; if they were deleted on purpose,"
            f" pass `allow_empty=True`.",
            value=options.source,
        )
    is_many = len(removed) > max(1, len(own) // 10)
    if is_many and doc_ids and not options.allow_many:
        numbers = {options.source: f"{len(removed):,} of {pluralize(len(own), 'document')}"}
        raise _large_removal(numbers, removed, "the reader returned only a part of its documents")
    return replace(inputs, missing=missing, removed=removed, removes_many=is_many)


def _of_document(node: BaseNode) -> BaseNode:
    """Return the node with a reference to its document, and mark its context, if any, as given by the user."""
    update: dict[str, Any] = {}
    if node.metadata.get(keys.CONTEXT) and keys.CONTEXT_SOURCE in node.metadata:
        update["metadata"] = {**node.metadata, keys.CONTEXT_GIVEN: True}
    if not node.ref_doc_id:
        source = RelatedNodeInfo(node_id=node.node_id)
        update["relationships"] = {**node.relationships, NodeRelationship.SOURCE: source}
    return node.model_copy(update=update) if update else node


def _content_key(node: BaseNode) -> str:
    """Return a hash of a node's text, its metadata, and its lists of excluded metadata keys."""
    exclusions = [sorted(node.excluded_embed_metadata_keys), sorted(node.excluded_llm_metadata_keys)]
    return content_key(node.hash, json.dumps(exclusions))


# ---- stored documents ------------------------------------------------------------------------------------------------


def job_of_record(previous: OpenVersion, record: DocumentRecord) -> Job:
    """Return the job to process a document of the previous version again."""
    document = previous.document(record)
    nodes = None if document else [without_context(node) for node in previous.docstore.iterate(doc_id=record.doc_id)]
    return Job(document, nodes, record.doc_id, record.content_hash, record.path, record.facts, record.source)


def without_context(node: BaseNode) -> BaseNode:
    """Return a stored chunk without its context, unless the context was given by the user."""
    if has_given_context(node):
        return node
    metadata = {
        k: v for k, v in node.metadata.items() if k not in (keys.CONTEXT, keys.CONTEXT_SOURCE, keys.CONTEXT_WRITTEN_AT)
    }
    return node.model_copy(update={"metadata": metadata})


def former_contexts(previous: OpenVersion, job: Job) -> Mapping[ChunkPlace, str]:
    """Return the contexts that an LLM wrote for a file with the same content, which may have been renamed."""
    equal = [record for record in previous.records.with_content(job.content_hash) if record.facts == job.facts]
    nodes = list(previous.docstore.iterate(doc_id=equal[-1].doc_id)) if equal else []
    return {
        place: keys.context_parts(node.metadata)[1]
        for place, node in zip(chunk_places(nodes), nodes, strict=True)
        if node.metadata.get(keys.CONTEXT_SOURCE) == "llm"
    }


CONTEXT_FIELDS = frozenset({"context", "llm", "context_prompt", "context_languages", "segment_size"})
"""Settings that determine what an LLM is asked about a chunk."""


# ---- run plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Actions for the documents of the previous version and for the inputs of a call.

    Attributes:
        keep: Documents copied unchanged from the previous version.
        rework: Documents of the previous version to process again, because settings changed or chunks failed.
        add: Ids of documents that are not in the previous version.
        update: Ids of documents whose content has changed.
        rename: Documents of the previous version whose file has a new name or location, by new id.
        drop: Ids of documents that are not in the new version.
        reuses_contexts: Whether contexts of the previous version may be kept, because the settings for contexts have
            not changed.
    """

    keep: list[DocumentRecord] = field(default_factory=list)
    rework: list[DocumentRecord] = field(default_factory=list)
    add: list[str] = field(default_factory=list)
    update: list[str] = field(default_factory=list)
    rename: dict[str, DocumentRecord] = field(default_factory=dict)
    drop: list[str] = field(default_factory=list)
    reuses_contexts: bool = field(default=True, compare=False)

    @property
    def not_kept(self) -> set[str]:
        """Ids of the documents of the previous version that are not kept unchanged."""
        changes = (record.doc_id for record in (*self.rework, *self.rename.values()))
        return {*changes, *self.update, *self.drop}

    @property
    def to_read(self) -> list[str]:
        """Ids of the documents that are read from the inputs of the call and processed."""
        return [*self.add, *self.update, *self.rename]

    def jobs(
        self, inputs: Inputs, reader: FileReader, previous: OpenVersion | None, *, failed: Collection[str] = ()
    ) -> Iterator[Job | SkippedDocument]:
        """Read and yield the documents that need work, with contexts that an LLM wrote for the same files.

        Args:
            inputs: Inputs of the call.
            reader: Reader for the files.
            previous: The previous version, or None.
            failed: Ids of documents that are not read.
        """
        if previous is not None:
            yield from (job_of_record(previous, record) for record in self.rework)
        for item in inputs.read(reader, frozenset(self.to_read).difference(failed)):
            if isinstance(item, SkippedDocument) or previous is None or not self.reuses_contexts:
                yield item
            else:
                yield replace(item, former=former_contexts(previous, item))


def make_plan(
    records: Iterable[DocumentRecord],
    sources: Mapping[str, DocumentInput],
    options: RunOptions,
    *,
    removed: Collection[str] = (),
    rebuild: bool = False,
    reuses_contexts: bool = True,
) -> Plan:
    """Choose an action for each document.

    Args:
        records: Documents of the previous version.
        sources: Inputs of the call, by document id.
        options: Options for the run.
        removed: Ids of documents to drop, in addition to the ids in the options.
        rebuild: Whether to process all documents again, because settings changed or contexts are renewed.
        reuses_contexts: As in `Plan`.
    """
    add = [source.doc_id for source in sources.values() if source.record is None]
    plan = Plan(reuses_contexts=reuses_contexts, add=add)
    source_of = {source.record.doc_id: source for source in sources.values() if source.record is not None}
    for record in records:
        source = source_of.get(record.doc_id)
        if record.doc_id in options.remove or record.doc_id in removed or (source is None and options.replace):
            plan.drop.append(record.doc_id)
        elif source is not None and source.doc_id != record.doc_id:
            plan.rename[source.doc_id] = record
        elif source is not None and (source.is_outdated(record) or (options.reread and source.ref)):
            plan.update.append(record.doc_id)
        elif (rebuild and options.processes(record.doc_id)) or (options.retry_failed and record.has_failed_chunks):
            plan.rework.append(record)
        else:
            plan.keep.append(record)
    return plan


def plan_run(
    inputs: Sequence[IngestInput],
    options: RunOptions,
    config: ProjectConfig,
    previous: OpenVersion | None,
    remote: RemoteFiles | None = None,
) -> tuple[Inputs, Plan]:
    """Return the inputs of a call and the plan for the run.

    Raises:
        ConfigurationError: `retry_failed` is set, but settings have changed.
        InputError: An input cannot be ingested, or two inputs have the same id.
        PathNotFoundError: A path does not exist.
    """
    records: Sequence[DocumentRecord] = [] if previous is None else previous.records
    changes = (
        [] if previous is None else config.rebuild_fields(ProjectConfig(**previous.manifest.config), derived=False)
    )
    # A retry with changed settings would mix contexts written with different settings.
    if changes and options.retry_failed and any(record.has_failed_chunks for record in records):
        raise ConfigurationError(
            f"Settings have changed since the live version was built ({', '.join(changes)}): use `rebuild` to process"
            f" all documents with them, including those with failed chunks, or restore the former settings.",
            setting=changes[0],
        )
    rebuild = (bool(changes) and not options.retry_failed) or (options.renew and config.context == "llm")
    sources = Inputs.collect(inputs, options, records, remote)
    return sources, make_plan(
        records,
        sources.documents,
        options,
        removed=sources.removed,
        rebuild=rebuild,
        reuses_contexts=CONTEXT_FIELDS.isdisjoint(changes),
    )
