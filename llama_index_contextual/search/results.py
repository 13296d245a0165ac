"""The results of a search as LlamaIndex nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from llama_index.core.schema import (
    Document,
    ImageDocument,
    ImageNode,
    IndexNode,
    Node,
    NodeWithScore,
    TextNode,
)
from pydantic import ConfigDict, Field

from llama_index_contextual._utils.keywords import suggests_attributes
from llama_index_contextual.search.response import INDEX_NAMES, BaseHit, Hit, IndexScore, Mark, SearchResponse, Source

_NODE_CLASSES = {kind.class_name(): kind for kind in (TextNode, Node, IndexNode, ImageNode, Document, ImageDocument)}


_OTHER_NAMES = {
    **dict.fromkeys(("file", "file_name", "filename"), "source.file_name"),
    **dict.fromkeys(("page", "page_number"), "source.page_start, or source.page_label for the printed number"),
    **{name: f"source.{name}" for name in ("doc_id", "file_path", "page_label", "section", "title")},
    **dict.fromkeys(("chunk", "content"), "text"),
    "highlights": "quote",
    "id": "node_id",
    "path": "source.file_path",
}


@suggests_attributes(_OTHER_NAMES)
class RetrievedChunk(BaseHit, NodeWithScore):
    """A passage with its score and evidence, as a LlamaIndex `NodeWithScore` for any postprocessor or engine.

    The score is the overall score of the passage, and is comparable only within one response.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    rank: int = 0
    """Position among the results, from 1."""
    relevance: float | None = None
    """Estimated probability that the passage is relevant, calibrated with the local settings; never above the
    confidence of the search. None for retrievers that are not of a project.
    """
    semantic: IndexScore | None = None
    """Score and rank in the semantic index, or None if the chunk is not among its hits."""
    lexical: IndexScore | None = None
    """Score and rank in the lexical index, or None if the chunk is not among its hits."""
    document: IndexScore | None = None
    """Score and rank of the chunk's document, or None if documents are not searched or the document's name and opening
    have no term of the query.
    """
    spotlight: Mark | None = None
    """The sentence or table row that matches the question best, with its offsets in the document; `place` has its
    pages and section. None if nothing in the passage matches.
    """
    newer: str | None = None
    """Id of the newest document that supersedes the document of the passage, or None."""
    figures_folder: str | None = Field(default=None, exclude=True, repr=False)
    """Folder with the pictures of the figures, or None; see `figures`."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex uses to serialise this class."""
        return cls.__name__

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Create a result with a node of the right class from the output of `to_dict`.

        Pydantic cannot do this, because the field is declared with LlamaIndex's abstract class. A validator of the
        field would run for every result of a search.
        """
        node: Any = data.get("node")
        kind = _NODE_CLASSES.get(node.get("class_name", "")) if isinstance(node, dict) else None
        return super().from_dict(data if kind is None else {**data, "node": kind.from_dict(node)}, **kwargs)

    @classmethod
    def of(cls, rank: int, scored: NodeWithScore) -> RetrievedChunk:
        """Create a result from a node returned by any retriever, keeping existing evidence."""
        values = {
            name: getattr(scored, name, None)
            for name in ("relevance", "spotlight", "newer", "figures_folder", *INDEX_NAMES)
        }
        return cls(rank=rank, node=scored.node, score=float(scored.score or 0.0), **values)

    @classmethod
    def of_hit(cls, hit: Hit) -> RetrievedChunk:
        """Create a result from a hit."""
        return cls(
            rank=hit.rank,
            node=hit.chunk.node,
            score=hit.score,
            relevance=hit.relevance,
            semantic=hit.semantic,
            lexical=hit.lexical,
            document=hit.document,
            spotlight=hit.spotlight,
            newer=hit.newer,
            figures_folder=hit.figures_folder,
        )

    @property
    def text(self) -> str:
        """The original text, without the context."""
        return self.node.get_content()

    @property
    def source(self) -> Source:
        """The location of the passage in its document."""
        return Source.of(self.node)


@suggests_attributes(dict.fromkeys(("hits", "nodes", "source_nodes"), "results") | {"answer": "Project.ask(question)"})
@dataclass(frozen=True, kw_only=True, repr=False)
class RetrievalResponse(SearchResponse):
    """Search results as LlamaIndex nodes; for the other attributes, see `SearchResponse`.

    Attributes:
        results: The results, best first.
        folded: The hits that are less likely to be relevant; see `SearchResponse`.
    """

    results: Sequence[RetrievedChunk]
    folded: Sequence[RetrievedChunk] = ()

    def __iter__(self) -> Iterator[RetrievedChunk]:
        return iter(self.results)

    def __getitem__(self, index: int) -> RetrievedChunk:
        return self.results[index]

    @classmethod
    def of(cls, response: SearchResponse) -> RetrievalResponse:
        """Convert the hits in a response to LlamaIndex nodes."""
        chunks = {
            name: tuple(map(RetrievedChunk.of_hit, cast("Sequence[Hit]", getattr(response, name))))
            for name in ("results", "folded")
        }
        return cls(**{**vars(response), **chunks})

    @classmethod
    def of_nodes(cls, query: str, hits: Sequence[NodeWithScore]) -> RetrievalResponse:
        """Create a response from the nodes returned by any retriever."""
        results = tuple(RetrievedChunk.of(rank, hit) for rank, hit in enumerate(hits, start=1))
        return cls(query=query, mode_requested="retriever", mode_used="retriever", results=results)

    def to_nodes(self) -> list[NodeWithScore]:
        """Return copies of the results, for a postprocessor that changes their scores."""
        return [chunk.model_copy() for chunk in self.results]
