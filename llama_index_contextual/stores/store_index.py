"""Stand-alone stores as an index: a document store with vectors, terms, or both over the same rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.index.base import NO_HITS, NO_SCALE, Chunk, Hits, Scale
from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.stores.docstore import SQLiteDocumentStore
from llama_index_contextual.stores.faiss import UnitFaissVectorStore


class StoreIndex:
    """The nodes of a document store; see `ChunkIndex`.

    Args:
        docstore: The nodes.
        vector_store: Their vectors, in the order of the document store.
        lexical: Their terms, in the same order.
        documents: The index of the documents, in the same order.
    """

    def __init__(
        self,
        docstore: SQLiteDocumentStore,
        *,
        vector_store: UnitFaissVectorStore | None = None,
        lexical: LexicalIndex | None = None,
        documents: DocumentIndex | None = None,
    ) -> None:
        self.docstore = docstore.nodes
        self.lexical = lexical
        self.documents = documents
        self._vector_store = vector_store

    @property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        return self.docstore.ids

    @property
    def dimensions(self) -> int | None:
        """Length of the vectors; None without vectors."""
        return None if self._vector_store is None else self._vector_store.dimensions

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Rank by cosine similarity; see `ChunkIndex.rank_vectors`."""
        if self._vector_store is None:
            return NO_HITS, NO_SCALE
        return self._vector_store.rank_rows(vector, k, self.docstore.mask(filters))

    def rank_terms(self, terms: QueryTerms, k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Rank by BM25; see `ChunkIndex.rank_terms`."""
        if self.lexical is None:
            return NO_HITS, NO_SCALE
        return self.lexical.rank(terms, k, self.docstore.mask(filters))

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks of some rows, in their order."""
        return [Chunk.of(node) for node in self.docstore.get_nodes([self.ids[row] for row in rows])]
