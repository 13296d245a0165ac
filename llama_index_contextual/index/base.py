"""Protocol of the index that a search uses for the chunks of one version, and rankings as arrays.

`VersionIndex` is the index of a published version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
    from llama_index_contextual.index.documents import DocumentIndex

F = TypeVar("F", np.float32, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A stored chunk.

    Attributes:
        node_id: Its id.
        text: Its text, without the context.
        metadata: Its metadata.
        doc_id: Id of its document, or None.
        start: Offset of its first character in the document's text, or None.
        end: Offset after its last character, or None.
        make_node: Returns it as a node of LlamaIndex.
    """

    node_id: str
    text: str
    metadata: dict[str, Any]
    doc_id: str | None
    start: int | None
    end: int | None
    make_node: Callable[[], BaseNode] = field(compare=False, repr=False)

    @classmethod
    def of(cls, node: BaseNode) -> Chunk:
        """Return the chunk for a node."""
        return cls(
            node_id=node.node_id,
            text=node.get_content(),
            metadata=node.metadata,
            doc_id=node.ref_doc_id,
            start=getattr(node, "start_char_idx", None),
            end=getattr(node, "end_char_idx", None),
            make_node=lambda: node,
        )

    @property
    def node(self) -> BaseNode:
        """The chunk as a node of LlamaIndex, which is not imported before."""
        return self.make_node()


class Hits(NamedTuple):
    """A ranking as arrays, best first.

    Attributes:
        rows: Shape (n,), int64, each at most once.
        scores: Shape (n,), float64.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]

    def first(self, k: int) -> Hits:
        """Return the k best hits."""
        return Hits(self.rows[:k], self.scores[:k])


class Scale(NamedTuple):
    """Zero and unit that make the scores of different rankings comparable.

    Attributes:
        zero: The score that is mapped to 0.
        unit: The difference from `zero` that is mapped to 1; 0 if all scores are equal, and then each is mapped to 1.
    """

    zero: float
    unit: float


NO_HITS = Hits(np.zeros(0, dtype=np.int64), np.zeros(0))
NO_SCALE = Scale(0.0, 0.0)


def top(scores: NDArray[F], k: int, *, above: float = -math.inf) -> tuple[NDArray[F], NDArray[np.int64]]:
    """Return the k best scores and their rows, best first, with ties in the order of the rows.

    Args:
        scores: The scores of all rows; shape (n,).
        k: Maximum number of hits.
        above: Only scores greater than this are hits.
    """
    if above > -math.inf:
        # Filter first: a partition takes many times as long if most scores are equal.
        candidates = np.flatnonzero(scores > above)
        best, places = top(scores[candidates], k)
        return best, candidates[places]
    k = min(k, len(scores))
    if k <= 0:
        return scores[:0], np.zeros(0, dtype=np.int64)
    # A partition alone would choose arbitrarily among ties for the last place.
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    rows = np.flatnonzero(scores >= least if least > -math.inf else scores > -math.inf)
    rows = rows[np.argsort(-scores[rows], kind="stable")][:k]
    return scores[rows], rows


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
        """The lexical index of the chunks, which also analyses queries; None without one."""
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

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks of the given rows, in the order given."""
        ...
