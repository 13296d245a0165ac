"""Read access to a published version; every file is compared with the manifest before it is parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llama_index.core.data_structs.data_structs import IndexDict
from llama_index.core.graph_stores.simple import SimpleGraphStore
from llama_index.core.schema import Document
from llama_index.core.storage.index_store.simple_index_store import SimpleIndexStore
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE, SimpleVectorStore

from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual.errors import InputError
from llama_index_contextual.storage.check import Check, check_files, check_headers, read_manifest
from llama_index_contextual.storage.docstore import FRAMES, SQLiteDocumentStore
from llama_index_contextual.storage.export import INDEX_ID, VersionStorageContext
from llama_index_contextual.storage.manifest import (
    BM25_DIRECTORY,
    DOCSTORE,
    DOCUMENTS_DIRECTORY,
    FAISS_FILE,
    DocumentRecord,
)


@dataclass(frozen=True)
class DocumentFrame:
    """Data to reconstruct a Document from its chunks.

    Attributes:
        metadata: The Document's metadata, including pages and headings.
        excluded_embed: Metadata keys that are not embedded.
        excluded_llm: Metadata keys that are not shown to the LLM.
        gaps: Text that no chunk contains, such as white space between chunks, as (start, text).
    """

    metadata: Mapping[str, Any]
    excluded_embed: Sequence[str]
    excluded_llm: Sequence[str]
    gaps: Sequence[tuple[int, str]]

    @classmethod
    def of(cls, document: Document, spans: Sequence[tuple[int, int]]) -> DocumentFrame:
        """Return the frame of a document, given the spans of its chunks, which may overlap."""
        gaps, at = [], 0
        for start, end in (*sorted(spans), (len(document.text), len(document.text))):
            if start > at:
                gaps.append((at, document.text[at:start]))
            at = max(at, end)
        return cls(
            metadata=document.metadata,
            excluded_embed=document.excluded_embed_metadata_keys,
            excluded_llm=document.excluded_llm_metadata_keys,
            gaps=gaps,
        )


class OpenVersion:
    """A published version, opened read-only; its parts are loaded on first use.

    Args:
        directory: versions/<name> of a project.
        check: How to compare the files with the manifest.

    Raises:
        CorruptVersionError: A file is damaged or missing, or belongs to another version.
        FormatError: The version was written by a newer release.
    """

    def __init__(self, directory: Path, *, check: Check = "xxh3") -> None:
        self.directory = directory
        self.name = directory.name
        self.manifest = read_manifest(directory)
        check_files(directory, self.manifest, check)
        check_headers(directory, self.manifest)

    @property
    def has_semantic(self) -> bool:
        """Whether the version has a semantic index."""
        return FAISS_FILE in self.manifest.files

    @property
    def has_lexical(self) -> bool:
        """Whether the version has a lexical index."""
        return any(name.startswith(f"{BM25_DIRECTORY}/") for name in self.manifest.files)

    @property
    def has_documents(self) -> bool:
        """Whether the version has an index of documents in addition to the lexical index."""
        return any(name.startswith(f"{DOCUMENTS_DIRECTORY}/") for name in self.manifest.files)

    @property
    def documents_directory(self) -> Path:
        """Directory of the index of documents."""
        return self.directory / DOCUMENTS_DIRECTORY

    @property
    def bm25_directory(self) -> Path:
        """Directory of the lexical index."""
        return self.directory / BM25_DIRECTORY

    @cached_property
    def docstore(self) -> SQLiteDocumentStore:
        """The chunks."""
        return SQLiteDocumentStore(self.directory / DOCSTORE, access="read")

    @cached_property
    def storage_context(self) -> VersionStorageContext:
        """The version as a LlamaIndex StorageContext that cannot be changed.

        The index struct is kept in memory, because LlamaIndex writes to it when an index is loaded.
        """
        index_store = SimpleIndexStore()
        vector_stores: dict[str, Any] = {DEFAULT_VECTOR_STORE: SimpleVectorStore()}
        if self.has_semantic:
            from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore

            path = str(self.directory / FAISS_FILE)
            vector_stores = {DEFAULT_VECTOR_STORE: UnitFaissVectorStore.from_persist_path(path, docstore=self.docstore)}
            index_store.add_index_struct(IndexDict(index_id=INDEX_ID))
        return VersionStorageContext(
            docstore=self.docstore,
            index_store=index_store,
            vector_stores=vector_stores,
            graph_store=SimpleGraphStore(),
            has_semantic=self.has_semantic,
            has_lexical=self.has_lexical,
        )

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


def open_storage_context(version_dir: str | Path) -> VersionStorageContext:
    """Open a version as a LlamaIndex StorageContext that cannot be changed.

    Args:
        version_dir: versions/<name> of a project.

    Raises:
        CorruptVersionError: A file is damaged or missing, or belongs to another version.
        FormatError: The version was written by a newer release.

    Example:
        >>> load_index_from_storage(open_storage_context(version_dir), embed_model=embed_model)  # doctest: +SKIP
    """
    return OpenVersion(Path(version_dir)).storage_context


def store_frame(docstore: SQLiteDocumentStore, doc_id: str, frame: DocumentFrame) -> None:
    """Store the frame of a document in a version that is being built."""
    docstore.put_extra(FRAMES, doc_id, asdict(frame))


def load_frame(docstore: SQLiteDocumentStore, doc_id: str) -> DocumentFrame | None:
    """Return the frame of a document that `store_frame` has stored, or None."""
    raw = docstore.get_extra(FRAMES, doc_id)
    return None if raw is None else DocumentFrame(**raw)
