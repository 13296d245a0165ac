"""A published version: the chunks and indexes of its parts, opened read-only.

Every file is checked against its checksum before it is parsed. The rows of a version are the rows of its parts, in
the order of the parts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.errors import InputError
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.base import NO_HITS, NO_SCALE, Chunk, Hits, Scale
from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.index.manifest import (
    DocumentRecord,
    Records,
    read_manifest,
)
from llama_index_contextual.index.nodes import FRAMES, Nodes
from llama_index_contextual.index.part import DocumentFrame, Part, open_parts
from llama_index_contextual.metadata import DocumentMap

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, Document
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.remote import RemoteVectors
    from llama_index_contextual.index.vectors import FaissVectors


class VersionNodes(Nodes):
    """The chunks of a version.

    Args:
        parts: The parts of the version.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._open_parts: Sequence[Part] | None = parts
        # The first row of each part in the version, followed by the total number of rows.
        self._starts = np.cumsum([0, *(part.size for part in parts)], dtype=np.int64)

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of the version."""
        if self._open_parts is None:
            raise sqlite3.ProgrammingError("The version is closed.")
        return self._open_parts

    def close(self) -> None:
        """Drop the references to the parts, so that they cannot be used any more."""
        self._open_parts = None

    # ---- rows --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        return [node_id for part in self.parts for node_id in part.docstore.ids]

    def places(self, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.intp], Part, NDArray[np.int64]]]:
        """Find the parts that contain the given rows.

        Yields:
            For each of these parts, the positions in `rows`, the part, and the row numbers within the part.
        """
        for start, part in zip(self._starts.tolist(), self.parts, strict=False):
            selected = np.flatnonzero((rows >= start) & (rows < start + part.size))
            if len(selected):
                yield selected, part, rows[selected] - start

    def rows(self, node_ids: Sequence[str]) -> list[int]:
        """Return the row numbers of the given nodes, which are the same in all indexes."""
        rows: dict[str, int] = {}
        for part, start in zip(self.parts, self._starts.tolist(), strict=False):
            rows.update((node_id, start + at - 1) for node_id, at in part.docstore.positions(node_ids).items())
        return [rows[node_id] for node_id in node_ids]

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Return a mask that selects the rows that pass the filters, or None if there are no filters."""
        masks = [mask for part in self.parts if (mask := part.docstore.mask(filters)) is not None]
        return np.concatenate(masks) if masks else None

    # ---- chunks and documents ----------------------------------------------------------------------------------------

    def find_nodes(self, node_ids: Sequence[str]) -> Iterator[BaseNode]:
        """Yield the nodes with the given ids, skipping ids that do not exist."""
        for part in self.parts:
            yield from part.docstore.find_nodes(node_ids)

    def existing_ids(self, node_ids: Sequence[str]) -> list[str]:
        """Return the subset of the given node ids that the version contains."""
        return [node_id for part in self.parts for node_id in part.docstore.existing_ids(node_ids)]

    def iterate(self, *, doc_id: str | None = None, span: tuple[int, int] | None = None) -> Iterator[BaseNode]:
        """Yield nodes sorted by part and position; see `Nodes.iterate`."""
        for part in self.parts:
            if doc_id is None or doc_id in part.records.by_id:
                yield from part.docstore.iterate(doc_id=doc_id, span=span)

    def ids_of_document(self, doc_id: str) -> list[str]:
        """Return the ids of a document's nodes in text order."""
        part = self._part_of(doc_id)
        return [] if part is None else part.docstore.ids_of_document(doc_id)

    def ids_by_document(self) -> dict[str, list[str]]:
        """Return a mapping of document ids to the ids of their nodes."""
        of_parts = (part.docstore.ids_by_document() for part in self.parts)
        return {doc_id: ids for of_part in of_parts for doc_id, ids in of_part.items()}

    def get_extra(self, collection: str, key: str) -> dict[str, Any] | None:
        """Return the JSON object stored for a document in a collection, or None if there is none."""
        part = self._part_of(key)
        return None if part is None else part.docstore.get_extra(collection, key)

    def _part_of(self, doc_id: str) -> Part | None:
        return next((part for part in self.parts if doc_id in part.records.by_id), None)

    def children(self, parent_id: str) -> list[BaseNode]:
        """Return the child nodes of a parent, in text order."""
        return [node for part in self.parts for node in part.docstore.children(parent_id)]

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def document_ids(self, filters: MetadataFilters | None) -> set[str]:
        """Return the ids of the documents with at least one node that passes the filters."""
        ids: set[str] = set()
        for part in self.parts:
            mask = part.docstore.mask(filters)
            passing = np.unique(part.document_of if mask is None else part.document_of[mask])
            ids.update(part.records[number].doc_id for number in passing.tolist())
        return ids

    def metadata_values(self, *, skip: Sequence[str]) -> dict[str, list[str | int | float]]:
        """Return the sorted distinct values of each metadata key, except the keys in `skip`.

        Only strings and numbers are included.
        """
        values: dict[str, dict[str | int | float, None]] = {}
        for key, value in self._distinct_metadata():
            if value is not None and key not in skip:
                values.setdefault(key, {})[value] = None
        return {key: sorted(values[key], key=lambda value: (isinstance(value, str), value)) for key in sorted(values)}

    def metadata_keys(self) -> list[str]:
        """Return the sorted metadata keys of all nodes, for use in filters."""
        return sorted({key for key, _ in self._distinct_metadata()})

    def _distinct_metadata(self) -> Iterator[tuple[str, str | int | float | None]]:
        for part in self.parts:
            yield from part.shared("metadata values", part.docstore.distinct_metadata)


class VersionIndex:
    """The chunks of a published version; see `ChunkIndex`.

    Args:
        nodes: The chunks.
        language: Language of the lexical index, or None if there is no lexical index.
        dimensions: Length of the vectors; None if there are no vectors.
        remote: Directory of the version if an engine stores its vectors, otherwise None.
    """

    def __init__(
        self, nodes: VersionNodes, *, language: str | None, dimensions: int | None, remote: Path | None = None
    ) -> None:
        self.docstore = nodes
        self.dimensions = dimensions
        self._language = language
        self._remote = remote

    @property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        return self.docstore.ids

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks of the given rows, in the same order."""
        chunks: dict[int, Chunk] = {}
        wanted = np.unique(np.asarray(rows, dtype=np.int64))
        for selected, part, places in self.docstore.places(wanted):
            chunks.update(zip(wanted[selected].tolist(), part.docstore.at(places.tolist()), strict=True))
        return [chunks[row] for row in rows]

    # ---- vectors -----------------------------------------------------------------------------------------------------

    @cached_property
    def _vectors(self) -> FaissVectors | RemoteVectors | None:
        if self.dimensions is None:
            return None
        # Imported here, because faiss is slow to import and not needed without vectors.
        if self._remote is not None:
            from llama_index_contextual.index.remote import RemoteVectors

            return RemoteVectors(self.docstore, self.dimensions, self._remote)
        from llama_index_contextual.index.vectors import FaissVectors

        return FaissVectors(self.docstore, self.dimensions)

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Rank chunks by cosine similarity; see `ChunkIndex.rank_vectors`."""
        return (NO_HITS, NO_SCALE) if self._vectors is None else self._vectors.rank(vector, k, filters)

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit vectors of the given rows; shape (rows, dimensions)."""
        if self._vectors is None:
            return np.zeros((len(rows), 0), dtype=np.float32)
        return self._vectors.of_rows(rows)

    # ---- terms -------------------------------------------------------------------------------------------------------

    @cached_property
    def lexical(self) -> LexicalIndex | None:
        """The lexical index of the chunks, or None if there is none."""
        if self._language is None:
            return None
        return LexicalIndex(Analyzer(self._language, has_periods=True), [part.terms for part in self.docstore.parts])

    @cached_property
    def documents(self) -> DocumentIndex | None:
        """The document index, or None if there is no lexical index."""
        if self._language is None:
            return None
        entries = [part.document_terms for part in self.docstore.parts]
        sizes = np.concatenate([np.zeros(0, dtype=np.int64), *(part.chunks_of for part in self.docstore.parts)])
        sizes = sizes[sizes > 0]
        return DocumentIndex(
            LexicalIndex(Analyzer(self._language, has_periods=True), entries),
            np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        )

    def rank_terms(self, terms: QueryTerms, k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Rank chunks by BM25; see `ChunkIndex.rank_terms`."""
        if self.lexical is None:
            return NO_HITS, NO_SCALE
        return self.lexical.rank(terms, k, self.docstore.mask(filters))


class OpenVersion:
    """A published version, opened read-only; the indexes of its parts are opened on first use.

    Args:
        directory: The `versions/<name>` directory of a project.
        without: Names of parts that are left out because they are damaged.

    Attributes:
        is_restricted: Whether this object contains only some of the documents; see `RestrictedVersion`.

    Raises:
        CorruptVersionError: A file is damaged or missing, or belongs to another version.
        FormatError: The version was written by a newer release.
    """

    is_restricted = False

    def __init__(self, directory: Path, *, without: Collection[str] = ()) -> None:
        self.directory = directory
        self.name = directory.name
        self.without = without
        manifest = read_manifest(directory)
        entries = [entry for entry in manifest.parts if entry.name not in without]
        self.manifest = manifest.model_copy(update={"parts": entries})
        self.parts = open_parts(directory, self.manifest)

    @property
    def is_remote(self) -> bool:
        """True if an engine stores the vectors; see `index/remote.py`."""
        return self.manifest.engine != "files"

    @property
    def has_semantic(self) -> bool:
        """True if the version has a semantic index."""
        return any(part.has_semantic for part in self.parts)

    @property
    def has_lexical(self) -> bool:
        """True if the version has a lexical index."""
        return bool(self.manifest.config["indexes"] != "semantic")

    @cached_property
    def records(self) -> Records:
        """The records of the documents, in the order of their first chunks."""
        return Records(record for part in self.parts for record in part.records)

    def record(self, doc_id: str) -> DocumentRecord | None:
        """Return the record of a document, or None if there is no such document."""
        return self.records.get(doc_id)

    @cached_property
    def docstore(self) -> VersionNodes:
        """The chunks."""
        return VersionNodes(self.parts)

    @cached_property
    def index(self) -> VersionIndex:
        """The index of the chunks."""
        return VersionIndex(
            self.docstore,
            language=str(self.manifest.config["language"]) if self.has_lexical else None,
            dimensions=self.manifest.dimensions if self.has_semantic else None,
            remote=self.directory if self.is_remote else None,
        )

    def frame(self, doc_id: str) -> DocumentFrame | None:
        """Return the frame of a document, or None if it was ingested as chunks."""
        raw = self.docstore.get_extra(FRAMES, doc_id)
        return None if raw is None else DocumentFrame(**raw)

    def map_of(self, doc_id: str) -> DocumentMap:
        """Return the pages and headings of a document; the map is empty if the document was ingested as chunks."""
        frame = self.frame(doc_id)
        return DocumentMap() if frame is None else DocumentMap.from_metadata(dict(frame.metadata))

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

    def lost_documents(self) -> list[str]:
        """Return the ids of documents whose vectors are missing from the engine, if an engine stores them.

        Raises:
            BackendError: The engine does not respond.
        """
        if not self.is_remote:
            return []
        from llama_index_contextual.index.remote import lost_documents

        return lost_documents(self)

    def close(self) -> None:
        """Close open files. The version cannot be used afterwards."""
        if "docstore" in self.__dict__:
            self.docstore.close()
        parts, self.parts = self.parts, []
        for part in parts:
            part.release()
