"""Protocol for the chunk index used by a search.

`VersionIndex` implements the protocol for a published version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.index.hits import Hits, Scale

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
    from llama_index_contextual.index.documents import DocumentIndex
    from llama_index_contextual.index.units import Units


# Not frozen, because creating a frozen object takes several times as long, and a search creates many.
@dataclass(slots=True, kw_only=True)
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
        figures_folder: Folder with the pictures of its figures, or None.
    """

    node_id: str
    text: str
    metadata: dict[str, Any]
    doc_id: str | None
    start: int | None
    end: int | None
    make_node: Callable[[], BaseNode] = field(compare=False, repr=False)
    figures_folder: str | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_node(cls, node: BaseNode) -> Chunk:
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

    def units(self, rows: NDArray[np.int64]) -> Units:
        """Return the units of the given rows, in the order given."""
        ...
