"""Scores that a cut-off of LlamaIndex understands: the estimated relevance of each hit, from 0 to 1."""

from __future__ import annotations

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from pydantic import Field

from llama_index_contextual._utils.redaction import get_logger

logger = get_logger(__name__)


class RelevancePostprocessor(BaseNodePostprocessor):
    """Replace the score of each hit by its relevance, and optionally drop hits below a cut-off.

    The score of a hybrid search is a weighted sum without fixed range, comparable only within one search, so that a
    fixed cut-off on it, such as `SimilarityPostprocessor(similarity_cutoff=0.5)`, is meaningless. `relevance` is the
    estimated probability that a passage is relevant. If a hit has none, because its search estimates none, all hits
    keep their scores, nothing is dropped, and a warning is logged.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> from llama_index_contextual import RetrievedChunk
        >>> hits = [
        ...     RetrievedChunk(node=TextNode(text="a"), score=6.4, relevance=0.7),
        ...     RetrievedChunk(node=TextNode(text="b"), score=2.1, relevance=0.1),
        ... ]
        >>> kept = RelevancePostprocessor(relevance_cutoff=0.5).postprocess_nodes(hits)
        >>> [(hit.text, hit.score) for hit in kept]
        [('a', 0.7)]
    """

    relevance_cutoff: float | None = Field(
        default=None, ge=0, le=1, description="Lowest relevance of a hit that is kept; None keeps all hits."
    )

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "RelevancePostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        relevances = [getattr(hit, "relevance", None) for hit in nodes]
        if None in relevances:
            logger.warning("The search estimated no relevance: the hits keep their scores, and none is dropped.")
            return nodes
        scored = [hit.model_copy(update={"score": p}) for hit, p in zip(nodes, relevances, strict=True)]
        return [hit for hit in scored if hit.get_score() >= (self.relevance_cutoff or 0.0)]
