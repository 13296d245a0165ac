"""What `ingest` is given, as one document after the other."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo

from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.readers import (
    DocumentReader,
    FileRef,
    FileWarning,
    ReadLimits,
    SkippedFile,
    content_hash,
    discover,
)
from llama_index_contextual.readers.documents import FileMetadata
from llama_index_contextual.readers.facts import user_facts
from llama_index_contextual.readers.names import printable
from llama_index_contextual.storage.ledger import content_key
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.storable import storable_fault

IngestInput = str | os.PathLike[str] | BaseNode


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
    """

    document: Document | None
    nodes: Sequence[BaseNode] | None
    doc_id: str
    content_hash: str
    size: int
    origin: str | None = None


@dataclass
class Intake:
    """The documents of one call: found at once, read one after the other.

    Attributes:
        files: Files to read, by document id.
        ready: Documents and chunks that came ready, by document id.
        hashes: Content hash of all of them, by document id.
        missing: Ids of documents whose file is gone from a folder that was given.
        skipped: Files that are not read, each with its reason; grows while files are read.
        warnings: What was noticed; grows while files are read.
    """

    files: dict[str, FileRef] = field(default_factory=dict)
    ready: dict[str, Job] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    warnings: list[FileWarning] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        inputs: Sequence[IngestInput],
        records: Sequence[DocumentRecord] = (),
        *,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits = ReadLimits(),  # noqa: B008
    ) -> Intake:
        """Sort paths, Documents and chunks, and hash the files.

        Args:
            inputs: What the user gave.
            records: The documents of the version before: a file that is known by its path or its content keeps its id.
            file_metadata: Gives the user's own facts about a file; they are part of its content.
            limits: What one file may cost.

        Raises:
            InputError: Something is none of these or cannot be ingested, or two inputs have one id.
        """
        paths = [item for item in inputs if isinstance(item, (str, os.PathLike))]
        nodes = [item for item in inputs if isinstance(item, BaseNode)]
        if len(paths) + len(nodes) != len(inputs):
            raise InputError("ingest takes paths, LlamaIndex Documents and nodes; something else was given.")
        intake = cls()
        if paths:
            found = discover(paths, limits=limits)
            intake.skipped += found.skipped
            intake._take_files(found.files, records, file_metadata)
            intake.missing = _missing(paths, records, intake.files)
        documents = [node for node in nodes if isinstance(node, Document)]
        chunks = [node for node in nodes if not isinstance(node, Document)]
        for job in [*map(_job_of_document, documents), *_jobs_of_chunks(chunks)]:
            if job.doc_id in intake.hashes:
                raise InputError(f"Two inputs have the document id {job.doc_id!r}: give each its own.", value=job)
            intake.ready[job.doc_id], intake.hashes[job.doc_id] = job, job.content_hash
        return intake

    def _take_files(
        self, refs: Sequence[FileRef], records: Sequence[DocumentRecord], file_metadata: FileMetadata | None
    ) -> None:
        known = {record.origin for record in records}
        digests: dict[FileRef, str] = {}
        first: dict[str, FileRef] = {}
        # What is a document already stays one, whatever its file equals by now: it would go on saying what it said.
        for ref in sorted(refs, key=lambda ref: origin(ref.path) not in known):
            try:
                digest = content_hash(ref.path)
            except ReadError as error:
                self.skipped.append(SkippedFile(ref.shown, error.reason))
                continue
            if (same := first.setdefault(digest, ref)) is not ref and origin(ref.path) not in known:
                _require_equal(same, ref)
                self.skipped.append(SkippedFile(ref.shown, f"has the same content as {same.shown}"))
                continue
            digests[ref] = _with_facts(digest, ref, file_metadata)
        digests = {ref: digests[ref] for ref in refs if ref in digests}
        for ref, doc_id in _ids(digests, records):
            if doc_id in self.files:
                raise InputError(
                    f"{self.files[doc_id].shown} and {ref.shown} would both be document {doc_id!r}:"
                    f" give the folder above both, or ingest them under different names.",
                    value=doc_id,
                )
            self.files[doc_id], self.hashes[doc_id] = replace(ref, doc_id=doc_id), digests[ref]

    def jobs(self, reader: DocumentReader, wanted: Collection[str], failed: list[str]) -> Iterator[Job]:
        """Yield the wanted documents; a file that cannot be read is put into `skipped` and its id into `failed`."""
        for doc_id, ref in self.files.items():
            if doc_id not in wanted:
                continue
            try:
                document, warnings = reader.read(ref)
                if fault := storable_fault(document):
                    raise ReadError(ref.shown, f"cannot be stored: {fault}")
            except ReadError as error:
                self.skipped.append(SkippedFile(error.path, error.reason))
                failed.append(doc_id)
                continue
            self.warnings += warnings
            yield Job(document, None, doc_id, self.hashes[doc_id], ref.size, origin(ref.path))
        yield from (job for doc_id, job in self.ready.items() if doc_id in wanted)

    def size(self, doc_id: str) -> int:
        """Return the bytes of a document."""
        return self.files[doc_id].size if doc_id in self.files else self.ready[doc_id].size


def origin(path: Path) -> str:
    """Return by what a file is known again without its path being kept."""
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()


def _with_facts(digest: str, ref: FileRef, file_metadata: FileMetadata | None) -> str:
    facts = user_facts(file_metadata, ref.path)
    return content_key(digest, json.dumps(facts, sort_keys=True)) if facts else digest


def _require_equal(one: FileRef, other: FileRef) -> None:
    # xxh3 is not made to withstand an attacker: a file made to collide must not hide another one.
    if not filecmp.cmp(one.path, other.path, shallow=False):
        raise InputError(
            f"{one.shown} and {other.shown} have the same xxh3 checksum but different content, which does not happen by"
            f" chance: leave one of them out.",
            value=other.shown,
        )


def _ids(digests: Mapping[FileRef, str], records: Sequence[DocumentRecord]) -> Iterator[tuple[FileRef, str]]:
    """Yield the document id of each file: that of its path or its content in the version before, or its own."""
    origins = {record.origin: record.doc_id for record in records if record.origin}
    contents = {record.content_hash: record.doc_id for record in records}
    by_path = {ref: origins.get(origin(ref.path)) for ref in digests}
    # A renamed file does not take the id of the one that has its former name now.
    taken = {doc_id or ref.doc_id for ref, doc_id in by_path.items()}
    for ref, digest in digests.items():
        by_content = contents.get(digest)
        yield ref, by_path[ref] or (by_content if by_content and by_content not in taken else ref.doc_id)


def _missing(
    paths: Sequence[str | os.PathLike[str]], records: Sequence[DocumentRecord], files: Collection[str]
) -> list[str]:
    """Return the documents whose file once was in a folder that was given, and is there no more."""
    missing = []
    for folder in [Path(path) for path in paths if os.path.isdir(path)]:
        prefix = f"{Path(os.path.realpath(folder)).name if folder.name in ('', '..') else folder.name}/"
        for record in records:
            file = folder / record.doc_id.removeprefix(prefix)
            if record.doc_id not in files and not os.path.lexists(file) and origin(file) == record.origin:
                missing.append(record.doc_id)
    return missing


def _job_of_document(document: Document) -> Job:
    _check(document, "Document", document.doc_id)
    return Job(document, None, document.doc_id, _content_key(document), len(document.text))


def _jobs_of_chunks(nodes: Sequence[BaseNode]) -> list[Job]:
    """Return ready chunks grouped by their document; one that names none is a document of its own.

    Raises:
        InputError: A node cannot be ingested, or two have one id.
    """
    groups: dict[str, list[BaseNode]] = {}
    seen: set[str] = set()
    for node in nodes:
        _check(node, "Node", node.node_id)
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


def _check(node: BaseNode, kind: str, node_id: str) -> None:
    if not node_id:
        raise InputError(f"A {kind.lower()} has an empty id: give it one.", value=node)
    if not node.get_content().strip():
        raise InputError(f"{kind} {printable(node_id)!r} has no text: leave it out.", value=node)
    if fault := storable_fault(node):
        raise InputError(f"{kind} {printable(node_id)!r} cannot be ingested: {fault}.", value=node)


def _of_document(node: BaseNode) -> BaseNode:
    if node.ref_doc_id:
        return node
    source = RelatedNodeInfo(node_id=node.node_id)
    return node.model_copy(update={"relationships": {**node.relationships, NodeRelationship.SOURCE: source}})


def _content_key(node: BaseNode) -> str:
    """Return a hash of text, metadata, and of who sees which metadata."""
    seen = [sorted(node.excluded_embed_metadata_keys), sorted(node.excluded_llm_metadata_keys)]
    return content_key(node.hash, json.dumps(seen))
