"""A published version: the chunks and indexes of its parts, opened read-only.

Every file is checked against its checksum before it is parsed. The rows of a version are the rows of its parts, in
the order of the parts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import LANGUAGES
from llama_index_contextual.errors import InputError
from llama_index_contextual.figures import Figure, figures_from_json
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
from llama_index_contextual.index.derived import without_derived
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale
from llama_index_contextual.index.languages import analyzer_of, languages_of
from llama_index_contextual.index.manifest import DocumentRecord, Records, read_manifest
from llama_index_contextual.index.nodes import FRAMES
from llama_index_contextual.index.part import DocumentFrame, open_parts
from llama_index_contextual.index.units import Units
from llama_index_contextual.index.version_nodes import VersionNodes
from llama_index_contextual.metadata import DocumentMap

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, Document
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.remote import RemoteVectors
    from llama_index_contextual.index.vectors import FaissVectors


class VersionIndex:
    """The chunks of a published version; see `ChunkIndex`.

    Args:
        nodes: The chunks.
        analyzer: Analyzer for the languages of the chunks, or None if there is no lexical index.
        dimensions: Length of the vectors; None if there are no vectors.
        remote: Directory of the version if an engine stores its vectors, otherwise None.
    """

    def __init__(
        self,
        nodes: VersionNodes,
        *,
        analyzer: Analyzer | None,
        dimensions: int | None,
        remote: Path | None = None,
    ) -> None:
        self.docstore = nodes
        self.dimensions = dimensions
        self._analyzer = analyzer
        self._remote = remote

    @property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        return self.docstore.ids

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks of the given rows, in the same order."""
        chunks: dict[int, Chunk] = {}
        for selected, part, places in self.docstore.places(np.asarray(rows, dtype=np.int64)):
            chunks.update(zip(selected.tolist(), part.docstore.at(places.tolist()), strict=True))
        return [chunks[place] for place in range(len(rows))]

    def units(self, rows: NDArray[np.int64]) -> Units:
        """Return the units of the given rows, in the same order; see `ChunkIndex.units`."""
        places, groups = [np.zeros(0, dtype=np.intp)], []
        for selected, part, of_part in self.docstore.places(rows):
            places.append(selected)
            groups.append(part.units.take(of_part))
        units = Units.join(groups)
        return units if len(groups) == 1 else units.take(np.argsort(np.concatenate(places)))

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
        if self._analyzer is None:
            return None
        return LexicalIndex(self._analyzer, [part.terms for part in self.docstore.parts])

    @cached_property
    def documents(self) -> DocumentIndex | None:
        """The document index, or None if there is no lexical index."""
        if self._analyzer is None:
            return None
        entries = [part.document_terms for part in self.docstore.parts]
        sizes = np.concatenate([np.zeros(0, dtype=np.int64), *(part.chunks_of for part in self.docstore.parts)])
        sizes = sizes[sizes > 0]
        return DocumentIndex(
            LexicalIndex(self._analyzer, entries),
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
        remade: Names of parts whose derived data are damaged, and are made from the chunks.

    Attributes:
        is_restricted: Whether this object contains only some of the documents; see `RestrictedVersion`.

    Raises:
        CorruptVersionError: A file is damaged or missing, or belongs to another version.
        FormatError: The version was written by a newer release.
    """

    is_restricted = False

    def __init__(self, directory: Path, *, without: Collection[str] = (), remade: Collection[str] = ()) -> None:
        self.directory = directory
        self.name = directory.name
        self.without = without
        manifest = read_manifest(directory)
        entries = [
            without_derived(entry) if entry.name in remade else entry
            for entry in manifest.parts
            if entry.name not in without
        ]
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
            analyzer=self._analyzer if self.has_lexical else None,
            dimensions=self.manifest.dimensions if self.has_semantic else None,
            remote=self.directory if self.is_remote else None,
        )

    @property
    def _analyzer(self) -> Analyzer:
        codes = self.manifest.config.get("context_languages", ())
        languages = self.manifest.languages or languages_of(self.records)  # not in the manifests of older releases
        return analyzer_of(languages, contexts=map(LANGUAGES.__getitem__, codes))

    def frame(self, doc_id: str) -> DocumentFrame | None:
        """Return the frame of a document, or None if it was ingested as chunks."""
        raw = self.docstore.get_extra(FRAMES, doc_id)
        return None if raw is None else DocumentFrame(**raw)

    def map_of(self, doc_id: str) -> DocumentMap:
        """Return the pages and headings of a document; the map is empty if the document was ingested as chunks."""
        frame = self.frame(doc_id)
        return DocumentMap() if frame is None else DocumentMap.from_metadata(dict(frame.metadata))

    def figures_of(self, node: BaseNode) -> tuple[Figure, ...]:
        """Return the figures of a chunk with the folder of their pictures."""
        figures = figures_from_json(node.metadata.get(keys.FIGURES))
        folders = {name: part.figures_folder for part in self.parts for name in part.pictures} if figures else {}
        return tuple(replace(figure, folder=folders.get(figure.file_name)) for figure in figures)

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

        return lost_documents(self.directory, self.parts)

    def close(self) -> None:
        """Close open files. The version cannot be used afterwards."""
        if "docstore" in self.__dict__:
            self.docstore.close()
        parts, self.parts = self.parts, []
        for part in parts:
            part.release()
