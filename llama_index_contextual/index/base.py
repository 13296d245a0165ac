"""Protocol for the chunk index used by a search, and rankings as arrays.

`VersionIndex` implements the protocol for a published version.
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
        node_id: Id of the chunk.
        text: Text of the chunk, without the context.
        metadata: Metadata of the chunk.
        doc_id: Id of the document, or None.
        start: Offset of the first character in the document's text, or None.
        end: Offset after the last character, or None.
        make_node: Function that returns the chunk as a LlamaIndex node.
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
        """Create a chunk from a node."""
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
        """The chunk as a LlamaIndex node. LlamaIndex is imported when this property is first used."""
        return self.make_node()


class Hits(NamedTuple):
    """A ranking as arrays, best first.

    Attributes:
        rows: Row numbers, without duplicates; shape (n,), int64.
        scores: Score of each row; shape (n,), float64.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]

    def first(self, k: int) -> Hits:
        """Return the k best hits."""
        return Hits(self.rows[:k], self.scores[:k])


class Scale(NamedTuple):
    """Zero point and unit that make the scores of different rankings comparable.

    Attributes:
        zero: The score that is mapped to 0.
        unit: The difference from `zero` that is mapped to 1. If all scores are equal, the unit is 0, and the scores are
            mapped to 1.
    """

    zero: float
    unit: float


NO_HITS = Hits(np.zeros(0, dtype=np.int64), np.zeros(0))
NO_SCALE = Scale(0.0, 0.0)


def top(scores: NDArray[F], k: int, *, above: float = -math.inf) -> tuple[NDArray[F], NDArray[np.int64]]:
    """Return the k best scores and their rows, best first, with equal scores in row order.

    Args:
        scores: The scores of all rows; shape (n,).
        k: Maximum number of hits.
        above: Lower limit; only greater scores are hits.
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
    """Index of chunks, each with a row number (0, 1, …) that does not change while the index is open."""

    @property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        ...

    @property
    def dimensions(self) -> int | None:
        """Length of the vectors; None if there are no vectors."""
        ...

    @property
    def lexical(self) -> LexicalIndex | None:
        """The lexical index of the chunks, which also analyses queries, or None."""
        ...

    @property
    def documents(self) -> DocumentIndex | None:
        """The index of document names and openings; None if there is no lexical index."""
        ...

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Return up to k rows with the highest cosine similarity to a vector.

        Args:
            vector: A unit vector; shape (dimensions,).
            k: Maximum number of hits.
            filters: Metadata filters; only rows that pass them are ranked.

        Returns:
            The hits and the scale of their scores. The zero point of the scale is the mean of the similarities, and its
            unit is their standard deviation; both are computed from all rows or from a sample.
        """
        ...

    def rank_terms(self, terms: QueryTerms, k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Return up to k rows with the highest BM25 scores, ignoring rows that score 0.

        Args:
            terms: The query, analysed by `lexical`.
            k: Maximum number of hits.
            filters: Metadata filters; only rows that pass them are ranked.

        Returns:
            The hits and the scale of their scores. The zero point of the scale is 0, and its unit is the standard
            deviation of the scores of all rows.
        """
        ...

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks of the given rows, in the order given."""
        ...
