"""The chunks of a version in a collection of an engine such as Qdrant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.base import NO_HITS, NO_SCALE, Chunk, Hits, Scale
from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
from llama_index_contextual.index.collection import View
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.index.engine import read_collection, write_collection
from llama_index_contextual.index.file_index import document_entries, documents_of_rows
from llama_index_contextual.index.manifest import SAMPLE_FILE
from llama_index_contextual.index.part import Part
from llama_index_contextual.index.remote import EXACT_CHUNKS, RemoteVersionStore, sampled_rows
from llama_index_contextual.index.remote_docstore import missing
from llama_index_contextual.index.remote_terms import DRIFT, MAX_DRIFT, RemoteLexicalIndex, RemoteQueryTerms
from llama_index_contextual.index.vectors import products

MIN_RECALL, PROBED_K = 0.99, 20
EF = (128, 256, 512, 1_024, 2_048, 4_096)
"""Sizes of the list of candidates that are probed; if none is accurate enough, the search is exact."""

TIES = 16
"""Number of further hits that are requested, since equal scores are in no particular order."""

_SURPLUS = 4
_PROBES = 128
_CONFIDENCE = 2.0  # number of standard errors


class QdrantIndex:
    """The chunks of a version in a collection; see `ChunkIndex`.

    The ids, the places and the terms of documents are in the parts of the version. A hit of the engine is the id of a
    chunk, whose row the parts know.

    Args:
        docstore: The document store of the version.
        language: Language of the lexical index; None without one.
        dimensions: Length of the vectors; None without vectors.
    """

    def __init__(self, docstore: RemoteVersionStore, *, language: str | None, dimensions: int | None) -> None:
        self.docstore = docstore
        self.dimensions = dimensions
        self._language = language

    @property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        return self.docstore.ids

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks of some rows, in their order."""
        return [Chunk.of(node) for node in self.docstore.get_nodes([self.ids[row] for row in rows])]

    # ---- vectors -----------------------------------------------------------------------------------------------------

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Rank by cosine similarity; see `ChunkIndex.rank_vectors`."""
        hits = self._nearest(vector, k, self.docstore.view(filters))
        similarities = products(self.sample, vector)
        if len(hits.rows) == 0 or len(similarities) == 0:
            return hits, NO_SCALE
        return hits, Scale(float(similarities.mean()), float(similarities.std()))

    def _nearest(self, query: NDArray[np.float32], k: int, view: View) -> Hits:
        k = min(k, len(self.ids))
        if k == 0:
            return NO_HITS
        nearest = self.docstore.engine.rank_vectors(view, query, k + TIES)
        self.docstore.require_hits(view, nearest)
        rows = np.asarray(self.docstore.rows([node_id for node_id, _ in nearest]), dtype=np.int64)
        # Because of rounding, the product of two unit vectors may exceed 1.
        scores = np.clip(np.asarray([score for _, score in nearest], dtype=np.float64), -1.0, 1.0)
        order = np.lexsort((rows, -scores))[:k]
        return Hits(rows[order], scores[order])

    @cached_property
    def sample(self) -> NDArray[np.float32]:
        """Some vectors, of every part in proportion to its size; shape (n, dimensions)."""
        samples = [(part.size, _live_sample(part)) for part in self.docstore.parts if part.size]
        density = min((len(sample) / size for size, sample in samples if len(sample)), default=0.0)
        vectors = [_thinned(sample, round(density * size)) for size, sample in samples]
        return np.concatenate([np.zeros((0, self.dimensions or 0), dtype=np.float32), *vectors])

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit vectors of some rows; shape (rows, dimensions)."""
        distinct, where = np.unique(rows, return_inverse=True)
        keys = self.docstore.keys_of_rows(distinct)
        stored = self.docstore.engine.vectors(keys)
        if lost := [node_id for node_id, _ in keys if node_id not in stored]:
            raise missing(lost[0])
        vectors = np.asarray([stored[node_id] for node_id, _ in keys], dtype=np.float32)
        return vectors.reshape(len(keys), self.dimensions or 0)[where]

    def settle(self) -> bool:
        """Wait until the engine's index contains all vectors; see `Engine.settle`."""
        return self.docstore.engine.settle()

    def probe(self) -> int | None:
        """Return the smallest size of the list of candidates that is accurate enough, or None if none is.

        The questions are means of four and of eight vectors: like real ones, they are farther from the chunks than
        chunks from each other, and at a given size they find no more than those
        (`python -m tests.benchmarks.engines recall --data ../shared/data`). The recall is taken two standard errors
        below its mean.
        """
        chance, sample = np.random.default_rng(0), self.sample
        groups = [chance.integers(0, len(sample), (_PROBES // 2, size)) for size in (4, 8)]
        questions = unit_vectors(np.concatenate([sample[group].mean(axis=1) for group in groups]))
        exact = [set(self._nearest(one, PROBED_K, View(self.docstore.number)).rows.tolist()) for one in questions]
        for ef in EF:
            view = View(self.docstore.number, ef=ef)
            found = [set(self._nearest(one, PROBED_K, view).rows.tolist()) for one in questions]
            shares = [len(best & hits) / len(best) for best, hits in zip(exact, found, strict=True)]
            if np.mean(shares) - _CONFIDENCE * np.std(shares) / math.sqrt(len(shares)) >= MIN_RECALL:
                return ef
        return None

    # ---- terms -------------------------------------------------------------------------------------------------------

    @cached_property
    def lexical(self) -> LexicalIndex | None:
        """The terms of the chunks; None without a lexical index."""
        if self._language is None:
            return None
        return RemoteLexicalIndex(Analyzer(self._language, has_periods=True), self.docstore.parts)

    @cached_property
    def documents(self) -> DocumentIndex | None:
        """The index of documents; None without a lexical index."""
        if self._language is None:
            return None
        parts = self.docstore.parts
        return DocumentIndex(document_entries(parts, self._language), documents_of_rows(parts))

    @property
    def is_stale(self) -> bool:
        """Whether the mean length of chunks has changed so much that a rebuild has to store the weights again."""
        return isinstance(self.lexical, RemoteLexicalIndex) and self.lexical.drift > MAX_DRIFT

    def rank_terms(self, terms: QueryTerms, k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Rank by BM25; see `ChunkIndex.rank_terms`."""
        index = self.lexical
        if not isinstance(index, RemoteLexicalIndex) or not isinstance(terms, RemoteQueryTerms):
            return NO_HITS, NO_SCALE
        requested = _SURPLUS * k if index.drift > DRIFT else k
        hits = self.docstore.rank_terms(filters, terms.query_weights(), requested)
        rows = np.asarray(self.docstore.rows([hit.node_id for hit in hits]), dtype=np.int64)
        scores = terms.score(hits, rows.tolist(), index.mean_length)
        order = np.lexsort((rows, -scores))[:k]
        return Hits(rows[order], scores[order].astype(np.float64)), Scale(0.0, index.deviation(terms))


def tune(project_dir: Path, index: QdrantIndex, *, is_rebuilt: bool) -> None:
    """Choose how to search the vectors of a large version, if it has grown by half since that was last chosen.

    Args:
        project_dir: The project.
        index: The vectors.
        is_rebuilt: Whether all of them are new, perhaps from another model.
    """
    collection, size = read_collection(project_dir), len(index.ids)
    if collection is None or size <= EXACT_CHUNKS or (size < 1.5 * collection.probed and not is_rebuilt):
        return
    if index.settle():
        write_collection(project_dir, replace(collection, ef=index.probe(), probed=size))
    else:  # until the next version
        write_collection(project_dir, replace(collection, ef=None, probed=0))


def _live_sample(part: Part) -> NDArray[np.float32]:
    """Return the sample of a part, without vectors that are gone."""

    def load() -> NDArray[np.float32]:
        vectors = np.load(part.directory / SAMPLE_FILE)
        return np.ascontiguousarray(vectors, dtype=np.float32)

    if SAMPLE_FILE not in part.files:
        return np.zeros((0, 0), dtype=np.float32)
    vectors: NDArray[np.float32] = part.shared(SAMPLE_FILE, load)
    if part.live is None:
        return vectors
    return vectors[part.live[sampled_rows(len(part.live))]]


def _thinned(sample: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    return sample[np.linspace(0, len(sample) - 1, min(size, len(sample)), dtype=np.int64)]
