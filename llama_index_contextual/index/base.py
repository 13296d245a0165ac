"""The protocol of an index: what a search needs to know about the chunks of one version.

`FileIndex` keeps them in files, `QdrantIndex` in a collection. They share functions, but no class, and nothing outside
this folder asks which of them it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.index.hits import Hits, Scale
from llama_index_contextual.index.version_docstore import VersionNodes


class ChunkIndex(Protocol):
    """Chunks in rows 0, 1, …, which never change while the index is open."""

    @property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        ...

    @property
    def dimensions(self) -> int | None:
        """Length of the vectors; None without vectors."""
        ...

    @property
    def lexical(self) -> LexicalIndex | None:
        """The terms of the chunks, which analyse queries; None without a lexical index."""
        ...

    @property
    def documents(self) -> DocumentIndex | None:
        """The index of the documents' names and openings; None without a lexical index."""
        ...

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Return the k rows with the largest cosine similarity to a vector.

        Args:
            vector: A unit vector; shape (dimensions,).
            k: Maximum number of hits.
            filters: Only rows that pass are ranked.

        Returns:
            The hits, and mean and standard deviation of the similarities of all rows or of a sample of them.
        """
        ...

    def rank_terms(self, terms: QueryTerms, k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Return the k rows with the largest BM25 score above 0.

        Args:
            terms: The query, from `lexical`.
            k: Maximum number of hits.
            filters: Only rows that pass are ranked.

        Returns:
            The hits, and 0 and the standard deviation of the scores of all rows.
        """
        ...

    def fetch(self, rows: Sequence[int]) -> list[BaseNode]:
        """Return the nodes of some rows, in their order."""
        ...


class VersionIndex(ChunkIndex, Protocol):
    """The index of a published version, with its document store and its vectors."""

    @property
    def docstore(self) -> VersionNodes:
        """The document store."""
        ...

    @property
    def is_stale(self) -> bool:
        """Whether a rebuild has to store the weights of terms again."""
        ...

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit vectors of some rows; shape (rows, dimensions)."""
        ...
