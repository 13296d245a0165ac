"""Read access to a published version; every file is compared with its checksum before it is parsed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.base import VersionIndex
from llama_index_contextual.index.check import Check, read_manifest
from llama_index_contextual.index.file_index import FileIndex, VersionNodes
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.part import DocumentFrame, load_frame, open_parts
from llama_index_contextual.index.records import Records

if TYPE_CHECKING:
    from llama_index.core.schema import Document


class OpenVersion:
    """A published version, opened read-only; the indexes of its parts are opened on first use.

    Args:
        directory: versions/<name> of a project.
        check: How to compare the files with their descriptions.
        reads: Names of the files of a part that are compared with "xxh3", while only the sizes of the others are; None
            for all.
        without: Names of parts that are left out because they are damaged.

    Raises:
        CorruptVersionError: A file is damaged or missing, or belongs to another version.
        FormatError: The version was written by a newer release.
    """

    def __init__(
        self,
        directory: Path,
        *,
        check: Check = "xxh3",
        reads: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        self.directory = directory
        self.name = directory.name
        self.without = without
        manifest = read_manifest(directory)
        self.manifest = replace(manifest, parts=[entry for entry in manifest.parts if entry.name not in without])
        self.parts = open_parts(directory, self.manifest, check, reads=reads)

    @property
    def is_remote(self) -> bool:
        """Whether an engine keeps the chunks and vectors; see `index/engine.py`."""
        return self.manifest.engine != "files"

    @property
    def is_self_contained(self) -> bool:
        """Whether its files contain its chunks and vectors, so that they stay when other versions are published."""
        return not self.is_remote

    @property
    def has_semantic(self) -> bool:
        """Whether the version has a semantic index."""
        return any(part.has_semantic for part in self.parts)

    @property
    def has_lexical(self) -> bool:
        """Whether the version has a lexical index."""
        return bool(self.manifest.config["indexes"] != "semantic")

    @cached_property
    def records(self) -> Records:
        """The records of the documents, in the order of their first chunk."""
        return Records([(part.record_index, part.live_documents) for part in self.parts])

    def record(self, doc_id: str) -> DocumentRecord | None:
        """Return the record of a document, or None."""
        return self.records.get(doc_id)

    @cached_property
    def docstore(self) -> VersionNodes:
        """The chunks."""
        if self.is_remote:
            from llama_index_contextual.index.remote import RemoteVersionStore

            return RemoteVersionStore(self.parts, self.directory)
        return VersionNodes(self.parts)

    @cached_property
    def index(self) -> VersionIndex:
        """The index of the chunks."""
        language = str(self.manifest.config["language"]) if self.has_lexical else None
        dimensions = self.manifest.dimensions if self.has_semantic else None
        docstore: Any = self.docstore
        if self.is_remote:
            # Imported here, because a version in files needs none of it.
            from llama_index_contextual.index.qdrant_index import QdrantIndex

            return QdrantIndex(docstore, language=language, dimensions=dimensions)
        return FileIndex(docstore, language=language, dimensions=dimensions)

    def frame(self, doc_id: str) -> DocumentFrame | None:
        """Return the frame of a document, or None if it was ingested as chunks."""
        return load_frame(self.docstore, doc_id)

    def read_text(self, record: DocumentRecord, start: int = 0, end: int | None = None) -> str:
        """Return a span of a document's original text, reconstructed from its chunks and the gaps between them.

        Raises:
            InputError: The document was ingested as chunks without offsets.
        """
        span = range(record.characters)[max(0, start) : end]
        text = self.docstore.read_span(record.doc_id, span.start, span.stop)
        if text is None:
            raise InputError(
                f"Document {record.doc_id!r} was ingested as chunks without offsets: read its chunks instead.",
                value=record.doc_id,
            )
        return text

    def document(self, record: DocumentRecord) -> Document | None:
        """Return a document as it was ingested, or None if it was ingested as chunks."""
        frame = self.frame(record.doc_id)
        if frame is None:
            return None
        from llama_index.core.schema import Document

        return Document(
            id_=record.doc_id,
            text=self.read_text(record),
            metadata=dict(frame.metadata),
            excluded_embed_metadata_keys=list(frame.excluded_embed),
            excluded_llm_metadata_keys=list(frame.excluded_llm),
        )

    def close(self) -> None:
        """Close open files; the version cannot be used afterwards."""
        if "docstore" in self.__dict__:
            self.docstore.close()
        parts, self.parts = self.parts, []
        for part in parts:
            part.release()
