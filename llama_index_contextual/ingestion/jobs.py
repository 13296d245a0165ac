"""What `ingest` is given, as one document after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llama_index.core.schema import BaseNode, Document

from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.readers import DocumentReader, FileRef, FileWarning, SkippedFile, content_hash, discover
from llama_index_contextual.storage.ledger import content_key

IngestInput = str | os.PathLike[str] | BaseNode


@dataclass(frozen=True)
class Job:
    """One document on its way into a version.

    Attributes:
        document: The Document, or None where `nodes` are ready.
        nodes: Ready chunks of a document, or None.
        doc_id: Id of the document.
        content_hash: xxh3 of the file, or a hash of text and metadata.
        size: Bytes, for the progress.
    """

    document: Document | None
    nodes: Sequence[BaseNode] | None
    doc_id: str
    content_hash: str
    size: int


@dataclass
class Intake:
    """The documents of one call: found at once, read one after the other.

    Attributes:
        files: Files to read, by document id.
        ready: Documents and chunks that came ready.
        hashes: Content hash of each file, by document id.
        skipped: Files that are not read, each with its reason; grows while files are read.
        warnings: What was noticed; grows while files are read.
    """

    files: dict[str, FileRef] = field(default_factory=dict)
    ready: dict[str, Job] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    skipped: list[SkippedFile] = field(default_factory=list)
    warnings: list[FileWarning] = field(default_factory=list)

    @classmethod
    def of(cls, inputs: Sequence[IngestInput]) -> Intake:
        """Sort paths, Documents and chunks, and hash the files.

        Raises:
            InputError: Something is none of these, or two inputs have one document id.
        """
        paths = [item for item in inputs if isinstance(item, (str, os.PathLike))]
        nodes = [item for item in inputs if isinstance(item, BaseNode)]
        if len(paths) + len(nodes) != len(inputs):
            raise InputError("ingest takes paths, LlamaIndex Documents and nodes; something else was given.")
        intake = cls()
        if paths:
            found = discover(paths)
            intake.skipped += found.skipped
            for ref in found.files:
                intake._take_file(ref)
        documents = [node for node in nodes if isinstance(node, Document)]
        chunks = [node for node in nodes if not isinstance(node, Document)]
        for job in [*map(_job_of_document, documents), *_jobs_of_chunks(chunks)]:
            if job.doc_id in intake.ready or job.doc_id in intake.files:
                raise InputError(
                    f"Two inputs have the document id {job.doc_id!r}: give each its own.", value=job.doc_id
                )
            intake.ready[job.doc_id] = job
        return intake

    def _take_file(self, ref: FileRef) -> None:
        try:
            digest = content_hash(ref.path)
        except ReadError as error:
            self.skipped.append(SkippedFile(ref.shown, error.reason))
            return
        same = next((doc_id for doc_id, known in self.hashes.items() if known == digest), None)
        if same is not None:
            self.skipped.append(SkippedFile(ref.shown, f"has the same content as {same}"))
            return
        self.files[ref.doc_id], self.hashes[ref.doc_id] = ref, digest

    @property
    def total(self) -> int:
        """Number of documents."""
        return len(self.files) + len(self.ready)

    @property
    def size(self) -> int:
        """Bytes of all documents."""
        return sum(ref.size for ref in self.files.values()) + sum(job.size for job in self.ready.values())

    def content_hash(self, doc_id: str) -> str | None:
        """Return the hash of a document's content, or None where the call does not hold it."""
        return self.hashes.get(doc_id) or (self.ready[doc_id].content_hash if doc_id in self.ready else None)

    def jobs(self, reader: DocumentReader, known: Mapping[str, str]) -> Iterator[Job]:
        """Yield what has to be processed; a file that cannot be read is put into `skipped`.

        Args:
            reader: Reads the files.
            known: Content hash of the documents that need no work, by document id.
        """
        for doc_id, ref in self.files.items():
            if known.get(doc_id) == self.hashes[doc_id]:
                continue
            try:
                document, warnings = reader.read(ref)
            except ReadError as error:
                self.skipped.append(SkippedFile(error.path, error.reason))
                continue
            self.warnings += warnings
            yield Job(document, None, doc_id, self.hashes[doc_id], ref.size)
        yield from (job for doc_id, job in self.ready.items() if known.get(doc_id) != job.content_hash)


def _job_of_document(document: Document) -> Job:
    if not document.text.strip():
        raise InputError(f"Document {document.doc_id!r} has no text: leave it out.", value=document)
    return Job(document, None, document.doc_id, document.hash, len(document.text))


def _jobs_of_chunks(nodes: Sequence[BaseNode]) -> list[Job]:
    """Return ready chunks grouped by their document.

    Raises:
        InputError: A node has no text.
    """
    groups: dict[str, list[BaseNode]] = {}
    for node in nodes:
        if not node.get_content().strip():
            raise InputError(f"Node {node.node_id} has no text: leave it out.", value=node)
        groups.setdefault(node.ref_doc_id or node.node_id, []).append(node)
    return [
        Job(None, group, doc_id, content_key(*(part for n in group for part in (n.node_id, n.hash))), len(group))
        for doc_id, group in groups.items()
    ]
