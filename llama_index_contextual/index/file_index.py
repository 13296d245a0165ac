"""The chunks of a version in files: FAISS, BM25 and document store over the parts of the version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms, TermCounts
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale, top
from llama_index_contextual.index.manifest import BM25_DIRECTORY, DOCUMENTS_DIRECTORY
from llama_index_contextual.index.part import Part
from llama_index_contextual.index.version_docstore import VersionNodes, first_rows


class _Sample(NamedTuple):
    """The rows of a part with the smallest hashes of their ids.

    Attributes:
        rows: The rows; shape (n,).
        hashes: Their hashes, in ascending order; shape (n,).
        vectors: Their vectors; shape (n, dimensions).
        limit: All rows with hashes up to this one are in the sample.
    """

    rows: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    vectors: NDArray[np.float32]
    limit: int


class FileIndex:
    """The chunks of a version in files; see `ChunkIndex`.

    Args:
        docstore: The document store of the version.
        language: Language of the lexical index; None without one.
        dimensions: Length of the vectors; None without vectors.
    """

    def __init__(self, docstore: VersionNodes, *, language: str | None, dimensions: int | None) -> None:
        self.docstore = docstore
        self.dimensions = dimensions
        self._language = language
        self.is_stale = False  # weights are computed for each query

    @property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        return self.docstore.ids

    def fetch(self, rows: Sequence[int]) -> list[BaseNode]:
        """Return the nodes of some rows, in their order."""
        return self.docstore.get_nodes([self.ids[row] for row in rows])

    # ---- vectors -----------------------------------------------------------------------------------------------------

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Rank by cosine similarity; see `ChunkIndex.rank_vectors`."""
        # Imported here, because faiss is slow to import and not needed without vectors.
        from llama_index_contextual.index.vectors import products, search_index

        mask = self.docstore.mask(filters)
        if mask is not None and not mask.any():
            return NO_HITS, NO_SCALE
        query = vector[None]
        scores, rows, similarities = [np.zeros(0, dtype=np.float32)], [np.zeros(0, dtype=np.int64)], []
        for start, part in self._parts():
            allowed = None if mask is None else mask[start : start + part.size]
            if part.rows is not None:
                passing, allowed = allowed, np.zeros(part.index.ntotal, dtype=np.bool_)
                allowed[part.rows] = True if passing is None else passing
            of_hits, hits, of_all = search_index(part.index, query, min(k, part.size), allowed)
            if part.rows is not None:
                hits = np.searchsorted(part.rows, hits)
                of_all = None if of_all is None else of_all[part.rows]
            scores.append(of_hits)
            rows.append(hits + start)
            similarities.append(of_all)
        best, places = top(np.concatenate(scores), k)  # ties are in the order of the rows
        if len(best) == 0:
            return NO_HITS, NO_SCALE
        compared = [of_all for of_all in similarities if of_all is not None]
        if len(compared) == len(similarities):
            everything = compared[0] if len(compared) == 1 else np.concatenate(compared)
        else:
            everything = products(self._sample, query[0])
        scale = Scale(float(everything.mean()), float(everything.std()))
        # Because of rounding, the product of two unit vectors may exceed 1.
        return Hits(np.concatenate(rows)[places], np.clip(best.astype(np.float64), -1.0, 1.0)), scale

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit vectors of some rows; shape (rows, dimensions)."""
        from llama_index_contextual.index.vectors import reconstructed

        vectors = np.zeros((len(rows), self.dimensions or 0), dtype=np.float32)
        for start, part in self._parts():
            places = np.flatnonzero((rows >= start) & (rows < start + part.size))
            if len(places):
                of_part = rows[places] - start
                vectors[places] = reconstructed(part.index, of_part if part.rows is None else part.rows[of_part])
        return vectors

    def _parts(self) -> Iterator[tuple[int, Part]]:
        """Yield the parts with chunks, each with its first row."""
        parts = self.docstore.parts
        return ((start, part) for start, part in zip(first_rows(parts).tolist(), parts, strict=False) if part.size)

    @cached_property
    def _sample(self) -> NDArray[np.float32]:
        """The vectors of at most 1,024 nodes, chosen by the hashes of their ids; shape (n, dimensions).

        The sample does not depend on how the nodes are distributed over parts, except that it may be a little smaller
        where some of them are gone. Versions share the samples of their parts.
        """
        from llama_index_contextual.index.vectors import SAMPLE

        drawn = [(part, part.shared("sample", partial(_draw, part))) for _, part in self._parts()]
        limit = min((sample.limit for _, sample in drawn), default=0)
        hashes, vectors = [np.zeros(0, dtype=np.uint64)], [np.zeros((0, self.dimensions or 0), dtype=np.float32)]
        for part, sample in drawn:
            chosen = sample.hashes <= limit
            if part.live is not None:
                chosen &= part.live[sample.rows]
            hashes.append(sample.hashes[chosen])
            vectors.append(sample.vectors[chosen])
        order = np.argsort(np.concatenate(hashes), kind="stable")[:SAMPLE]
        return np.asarray(np.concatenate(vectors)[order])

    # ---- terms -------------------------------------------------------------------------------------------------------

    @cached_property
    def lexical(self) -> LexicalIndex | None:
        """The terms of the chunks; None without a lexical index."""
        if self._language is None:
            return None
        parts = [(_counts(part, BM25_DIRECTORY), part.live) for part in self.docstore.parts]
        return LexicalIndex(Analyzer(self._language, has_periods=True), parts)

    @cached_property
    def documents(self) -> DocumentIndex | None:
        """The index of documents; None without a lexical index."""
        if self._language is None:
            return None
        parts = self.docstore.parts
        return DocumentIndex(document_entries(parts, self._language), documents_of_rows(parts))

    def rank_terms(self, terms: QueryTerms, k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Rank by BM25; see `ChunkIndex.rank_terms`."""
        return self.lexical.rank(terms, k, self.docstore.mask(filters)) if self.lexical else (NO_HITS, NO_SCALE)


def document_entries(parts: Sequence[Part], language: str) -> LexicalIndex:
    """Return the index of the names and openings of the documents with chunks of some parts."""
    counts = [(_counts(part, DOCUMENTS_DIRECTORY), part.live_entries) for part in parts]
    return LexicalIndex(Analyzer(language, has_periods=True), counts)


def documents_of_rows(parts: Sequence[Part]) -> NDArray[np.int32]:
    """Return for each row of some parts the number of its document among the documents with chunks."""
    of_parts = (
        part.chunks_of if part.live_documents is None else part.chunks_of[part.live_documents] for part in parts
    )
    sizes = np.concatenate([np.zeros(0, dtype=np.int64), *of_parts])
    sizes = sizes[sizes > 0]
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)


def _counts(part: Part, name: str) -> TermCounts:
    """Return the terms of the chunks or of the documents of a part, which all versions share."""
    texts = len(part.document_of) if name == BM25_DIRECTORY else int(np.count_nonzero(part.chunks_of))
    return part.shared(name, partial(TermCounts.load, part.directory / name, texts))


def _draw(part: Part) -> _Sample:
    from llama_index_contextual.index.vectors import SAMPLE, reconstructed, sampled

    rows, hashes = sampled(part.docstore.ids, SAMPLE)
    limit: Any = np.iinfo(np.uint64).max if len(rows) == part.index.ntotal else hashes[-1]
    return _Sample(rows, hashes, reconstructed(part.index, rows), int(limit))
