"""What `ingest` is given, as one document after the other."""

from __future__ import annotations

import filecmp
import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo

from llama_index_contextual import metadata as keys
from llama_index_contextual.errors import InputError, PathNotFoundError, ReadError
from llama_index_contextual.ingestion.identity import FormerFiles, Identities, identify, origin
from llama_index_contextual.readers import (
    DocumentReader,
    FileRef,
    FileWarning,
    ReadLimits,
    SkippedFile,
    content_hash,
    discover,
)
from llama_index_contextual.readers.base import has_text
from llama_index_contextual.readers.documents import FileMetadata
from llama_index_contextual.readers.facts import user_facts
from llama_index_contextual.readers.inputs import PDF_SUFFIXES
from llama_index_contextual.readers.names import printable
from llama_index_contextual.storage.ledger import content_key
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.storable import storable_fault

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
