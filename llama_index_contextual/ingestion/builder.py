"""Builder of a version: collect documents with their chunks and vectors, then write the indexes and publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from llama_index.core.graph_stores.simple import SimpleGraphStore
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.storage.index_store.simple_index_store import SimpleIndexStore
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE
from numpy.typing import NDArray

from llama_index_contextual._version import __version__
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.retrievers.bm25 import LexicalIndexBuilder
from llama_index_contextual.retrievers.documents import DocumentIndexBuilder
from llama_index_contextual.storage import files, publish
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore
from llama_index_contextual.storage.manifest import (
    BM25_DIRECTORY,
    DOCSTORE,
    DOCUMENTS_DIRECTORY,
    DocumentRecord,
    Manifest,
)
from llama_index_contextual.storage.version import DocumentFrame, OpenVersion, store_frame


@dataclass
class VersionBuilder:
    """Builder of a version; the positions of chunks in its indexes follow the order in which they are added.

    Attributes:
        project_dir: Folder of the project.
        config: Settings of the project.
        records: Records of the documents added so far.
    """

    project_dir: Path
    config: ProjectConfig
    records: list[DocumentRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory = publish.start_building(self.project_dir)
        self._docstore = SQLiteDocumentStore(self.directory / DOCSTORE)
        self._vectors = UnitFaissVectorStore(docstore=self._docstore) if self.config.faiss else None
        self._lexical = LexicalIndexBuilder(language=self.config.language) if self.config.bm25 else None
        self._documents = DocumentIndexBuilder(language=self.config.language) if self.config.bm25 else None

    def append(
        self,
        record: DocumentRecord,
        nodes: Sequence[BaseNode],
        vectors: NDArray[np.float32] | None,
        frame: DocumentFrame | None,
    ) -> None:
        """Add a document.

        Args:
            record: Record of the document.
            nodes: Chunks of the document.
            vectors: Their unit vectors, or None without a semantic index.
            frame: Frame of the document, or None if it was passed as nodes.

        Raises:
            InputError: A chunk has the id of a chunk already in the version.
        """
        if known := self._docstore.known([node.node_id for node in nodes]):
            raise InputError(
                f"Node {known[0]!r} of {record.doc_id!r} has the id of a node of another document: assign a unique id.",
                value=known[0],
            )
        self.records.append(record)
        if frame is not None:
            store_frame(self._docstore, record.doc_id, frame)
        if not nodes:
            return
        if self._vectors is not None and vectors is not None:
            self._vectors.add_vectors(nodes, vectors)
        else:
            self._docstore.add_documents(nodes)
        if self._lexical is not None:
            self._lexical.add(node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes)
        if self._documents is not None:
            self._documents.add(nodes)

    def take_over(self, before: OpenVersion, record: DocumentRecord) -> None:
        """Copy a document from the previous version, including its vectors."""
        nodes = list(before.docstore.iterate(doc_id=record.doc_id))
        vectors = None
        if self._vectors is not None and nodes:
            store = before.storage_context.vector_store
            vectors = cast(UnitFaissVectorStore, store).vectors(before.docstore.rows([node.node_id for node in nodes]))
        self.append(record, nodes, vectors, before.frame(record.doc_id))

    def publish(self, *, embed_model: str | None) -> Manifest:
        """Write the indexes and make the version live."""
        if self._vectors is not None:
            self._vectors.compact(self.config.faiss_index)
        stores = {DEFAULT_VECTOR_STORE: self._vectors} if self._vectors is not None and len(self._vectors) else {}
        publish.persist(
            StorageContext(
                docstore=self._docstore,
                index_store=SimpleIndexStore(),
                vector_stores=dict(stores),
                graph_store=SimpleGraphStore(),
            ),
            self.directory,
        )
        self._docstore.close()
        if self._lexical is not None:
            self._lexical.build().save(self.directory / BM25_DIRECTORY)
        if self._documents is not None:
            self._documents.build().save(self.directory / DOCUMENTS_DIRECTORY)

        def manifest(name: str, created: str) -> Manifest:
            return Manifest(
                version=name,
                created=created,
                package=__version__,
                config=self.config.model_dump(),
                embed_model=embed_model if stores else None,
                dimensions=self._vectors.dimensions if self._vectors is not None else None,
                documents=self.records,
            )

        return publish.publish(
            self.project_dir, self.directory, make_manifest=manifest, keep_versions=self.config.keep_versions
        )

    def discard(self) -> None:
        """Remove the unpublished version; the live version is not affected."""
        self._docstore.close()
        files.remove_tree(self.directory)
