"""The chunks of a version in files: FAISS, BM25 and nodes over the parts of the version.

The rows of a version are the live rows of its parts, one part after the other.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.base import NO_HITS, NO_SCALE, Chunk, Hits, Scale, top
from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms, TermCounts
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.index.manifest import BM25_DIRECTORY, DOCUMENTS_DIRECTORY
from llama_index_contextual.index.nodes import Nodes, NodeTable
from llama_index_contextual.index.part import Part

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, TextNode
    from llama_index.core.vector_stores.types import MetadataFilters


class RowIds(Sequence[str]):
    """The node ids of the rows of a version.

    Args:
        parts: The parts of the version.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._starts = first_rows(parts).tolist()
        self._of_parts: list[tuple[Sequence[str], Sequence[int] | None] | None] = [None] * len(parts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> list[str]: ...

    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        place = row if 0 <= row < self._starts[-1] else range(len(self))[row]
        at = bisect_right(self._starts, place) - 1
        ids, rows = self._of_parts[at] or self._read(at)
        place -= self._starts[at]
        node_id: str = ids[place if rows is None else rows[place]]
        return node_id

    def _read(self, at: int) -> tuple[Sequence[str], Sequence[int] | None]:
        """Return the ids of a part, and its live rows if not all of them are."""
        part = self._parts[at]
        of_part = part.docstore.ids, None if part.rows is None else part.rows.tolist()
        self._of_parts[at] = of_part
        return of_part

    def __iter__(self) -> Iterator[str]:
        for ids, rows in map(self._read, range(len(self._parts))):
            yield from ids if rows is None else map(ids.__getitem__, rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def first_rows(parts: Sequence[Part]) -> NDArray[np.int64]:
    """Return the row of the version at which each part starts, and the number of rows."""
    return np.cumsum([0, *(part.size for part in parts)], dtype=np.int64)


class VersionNodes(Nodes):
    """The chunks of a version.

    Args:
        parts: The parts of the version.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._live_parts: Sequence[Part] | None = parts
        self._starts = first_rows(parts)
        self._row_ids = RowIds(parts)

    @property
    def parts(self) -> Sequence[Part]:
        """The parts."""
        if self._live_parts is None:
            raise sqlite3.ProgrammingError("The version is closed.")
        return self._live_parts

    def close(self) -> None:
        """Release the parts; the store cannot be used afterwards."""
        self._live_parts = None

    def save(self, path: Path) -> None:
        """Write the chunks to a file and sync it."""
        copy = NodeTable()
        for part in self.parts:
            copy.copy_from(part.docstore, part.live, {record.doc_id for record in part.records})
        copy.save(path)
        copy.close()

    # ---- rows --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def ids(self) -> Sequence[str]:
        """Node ids by row."""
        return self._row_ids

    def rows(self, node_ids: Sequence[str]) -> list[int]:
        """Return the rows of nodes in the indexes."""
        rows: dict[str, int] = {}
        for part, start in zip(self.parts, self._starts.tolist(), strict=False):
            for node_id, row in _live_rows(part, node_ids):
                rows[node_id] = start + (row if part.rows is None else int(np.searchsorted(part.rows, row)))
        return [rows[node_id] for node_id in node_ids]

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Return a mask of the rows that pass the filters, or None without filters."""
        if filters is None:
            return None
        from llama_index_contextual.index.filters import valid_filters

        if valid_filters(filters) is None:
            return None
        masks = (part.mask(filters) for part in self.parts)
        return np.concatenate([np.zeros(0, dtype=np.bool_), *(mask for mask in masks if mask is not None)])

    # ---- chunks and documents ----------------------------------------------------------------------------------------

    def nodes_at(self, node_ids: Sequence[str]) -> Iterator[tuple[int, BaseNode]]:
        """Yield the nodes among `node_ids` that exist, with their positions in their part."""
        for part in self.parts:
            nodes = part.docstore.nodes_at(node_ids)
            yield from ((position, node) for position, node in nodes if part.is_live(position - 1))

    def known(self, node_ids: Sequence[str]) -> list[str]:
        """Return the ids of existing nodes among `node_ids`."""
        return [node_id for part in self.parts for node_id, _ in _live_rows(part, node_ids)]

    def iterate_positions(
        self, *, doc_id: str | None = None, span: tuple[int, int] | None = None, batch: int = 512
    ) -> Iterator[tuple[int, BaseNode]]:
        """Yield nodes with their positions in their part; see `iterate`."""
        for part in self.parts:
            if doc_id is None or part.has(doc_id):
                nodes = part.docstore.iterate_positions(doc_id=doc_id, span=span, batch=batch)
                yield from ((position, node) for position, node in nodes if part.is_live(position - 1))

    def ids_of_document(self, doc_id: str) -> list[str]:
        """Return the ids of a document's nodes in the order of the text."""
        part = self._part_of(doc_id)
        return [] if part is None else part.docstore.ids_of_document(doc_id)

    def ids_by_document(self) -> dict[str, list[str]]:
        """Return the node ids of every document."""
        of_parts = ((part, part.docstore.ids_by_document()) for part in self.parts)
        return {doc_id: ids for part, of_part in of_parts for doc_id, ids in of_part.items() if part.has(doc_id)}

    def get_extra(self, collection: str, key: str) -> dict[str, Any] | None:
        """Return a JSON object that was stored for a document, or None."""
        part = self._part_of(key)
        return None if part is None else part.docstore.get_extra(collection, key)

    def _part_of(self, doc_id: str) -> Part | None:
        return next((part for part in self.parts if part.has(doc_id)), None)

    def documents_of_parents(self) -> dict[str, str | None]:
        """Return the document of every parent of a node."""
        return {
            parent: doc_id
            for part in self.parts
            for parent, doc_id in part.docstore.documents_of_parents().items()
            if doc_id is None or part.has(doc_id)
        }

    def assemble(self, node_id: str) -> TextNode | None:
        """Return the parent of stored nodes with their text, or None if no node has this parent."""
        for part in self.parts:
            parents = part.docstore.documents_of_parents()
            if node_id in parents and ((doc_id := parents[node_id]) is None or part.has(doc_id)):
                return part.docstore.assemble(node_id)
        return None

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def document_ids(self, filters: MetadataFilters | None) -> set[str]:
        """Return the ids of the documents of which at least one node passes the filters."""
        ids: set[str] = set()
        for part in self.parts:
            numbers = part.document_of if part.rows is None else part.document_of[part.rows]
            mask = part.mask(filters)
            passing = np.unique(numbers if mask is None else numbers[mask])
            ids.update(part.record_index.records[number].doc_id for number in passing.tolist())
        return ids

    def metadata_values(self, *, skip: Sequence[str]) -> dict[str, list[str | int | float]]:
        """Return the distinct texts and numbers of each metadata key, sorted, except the keys in `skip`."""
        values: dict[str, dict[str | int | float, None]] = {}
        for part in self.parts:
            for key, value, doc_id in part.shared("metadata values", part.docstore.distinct_metadata):
                if value is not None and key not in skip and (doc_id is None or part.has(doc_id)):
                    values.setdefault(key, {})[value] = None
        return {key: sorted(values[key], key=lambda value: (isinstance(value, str), value)) for key in sorted(values)}

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of all nodes, sorted; filters can refer to them."""
        keys: set[str] = set()
        for part in self.parts:
            distinct = part.shared("metadata values", part.docstore.distinct_metadata)
            keys.update(key for key, _, doc_id in distinct if doc_id is None or part.has(doc_id))
        return sorted(keys)


def _live_rows(part: Part, node_ids: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the nodes among `node_ids` that are live in a part, with their rows there."""
    for node_id, position in part.docstore.positions(node_ids).items():
        if part.is_live(position - 1):
            yield node_id, position - 1


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

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks of some rows, in their order."""
        chunks: dict[int, Chunk] = {}
        wanted = np.unique(np.asarray(rows, dtype=np.int64))
        for start, part in self._parts():
            of_part = wanted[(wanted >= start) & (wanted < start + part.size)] - start
            places = of_part if part.rows is None else part.rows[of_part]
            chunks.update(zip((of_part + start).tolist(), part.docstore.at(places.tolist()), strict=True))
        return [chunks[row] for row in rows]

    # ---- vectors -----------------------------------------------------------------------------------------------------

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Rank by cosine similarity; see `ChunkIndex.rank_vectors`."""
        # Imported here, because faiss is slow to import and not needed without vectors.
        from llama_index_contextual.index.vectors import products, search_index

        mask = None if filters is None else self.docstore.mask(filters)
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
        mask = None if filters is None else self.docstore.mask(filters)
        return self.lexical.rank(terms, k, mask) if self.lexical else (NO_HITS, NO_SCALE)


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
