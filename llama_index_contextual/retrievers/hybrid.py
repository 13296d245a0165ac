"""Retrieval by meaning and by words, with fused rankings."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.llms import LLM, MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.config import Fusion, Mode
from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.retrievers.base import (
    CheckedRetriever,
    alimit_query,
    limit_query,
    search_nodes,
    specificity_of,
)
from llama_index_contextual.retrievers.lexical import LexicalRetriever
from llama_index_contextual.retrievers.semantic import SemanticRetriever, similarities
from llama_index_contextual.search.filters import Filters, to_filters
from llama_index_contextual.search.rank import (
    FusionSettings,
    normalise_weights,
    reciprocal_rank_fusion,
    score_fusion,
)
from llama_index_contextual.search.response import INDEX_NAMES
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.search.search import SearchSettings, number_of_results


@dataclass(frozen=True)
class SharedIndex:
    """The index that a semantic and a lexical retriever share, so that `search` can fuse their rankings by row.

    Attributes:
        index: The index.
        modes: "semantic" and "lexical", in the order of the retrievers.
        embedder: Embeds the queries.
        filters: The filters of both retrievers.
    """

    index: ChunkIndex
    modes: Sequence[Mode]
    embedder: QueryEmbedder
    filters: MetadataFilters | None

    @classmethod
    def from_retrievers(cls, retrievers: Sequence[BaseRetriever]) -> SharedIndex | None:
        """Return the index that two retrievers share, or None if they have to be asked separately."""
        semantic = next((retriever for retriever in retrievers if isinstance(retriever, SemanticRetriever)), None)
        lexical = next((retriever for retriever in retrievers if isinstance(retriever, LexicalRetriever)), None)
        if len(retrievers) != 2 or semantic is None or lexical is None or semantic.chunk_index is None:
            return None
        if _chunks_of(semantic.chunk_index) is not _chunks_of(lexical.chunk_index):
            return None
        if semantic.settings.filters != lexical.settings.filters:
            return None
        modes = [retriever.settings.mode for retriever in retrievers]  # type: ignore[attr-defined]
        return cls(semantic.chunk_index, modes, semantic.embedder, semantic.settings.filters)


def _chunks_of(index: ChunkIndex) -> object:
    return getattr(index, "docstore", index)


class HybridRetriever(QueryFusionRetriever, CheckedRetriever):
    """Fuse the weighted rankings of several retrievers and fetch only the nodes of the result.

    The rankings of a `SemanticRetriever` and a `LexicalRetriever` for the same index are fused without reading any
    nodes, and the document scores of the index are added. For other retrievers, and for several generated queries,
    LlamaIndex's own code is used with the same weighted fusion by node id. The nodes that the retrievers return are not
    changed.

    The defaults are those of a project, so that a `SemanticRetriever` and a `LexicalRetriever` for the index of a
    project give the results of `project.retrieve`, unless its settings have been changed.

    Args:
        retrievers: The retrievers to fuse.
        retriever_weights: One weight per retriever, not all zero. None for the weights of a project's settings if one
            of two retrievers searches vectors and the other is a BM25 retriever, or for equal weights. If only one of
            several retrievers has a weight above 0, the result has the order of that retriever, without document
            scores.
        similarity_top_k: Number of results that `retrieve` returns; None for the default of the `top_k` setting.
        top_k: The same as `similarity_top_k`.
        fusion: Whether to fuse reciprocal ranks or scaled scores.
        rrf_k: Constant used in reciprocal rank fusion.
        document_weight: Weight of the document scores, relative to the retrievers' weights, whose sum is scaled to 1.
            Score fusion increases this weight if documents have more than ten chunks on average, and decreases it if
            they have fewer.
        spotlight: Whether the first nodes are reranked by their best sentence or table row (only for retrievers that
            share an index).
        filters: Filters in any form; see `to_filters`. Only nodes that pass them are ranked. They require retrievers
            with the same index, and a single query.
        llm: LLM that writes additional queries if num_queries > 1.
        num_queries: Number of queries, including the given query.
        **kwargs: Further arguments for `QueryFusionRetriever`.

    Raises:
        ConfigurationError: There are no retrievers, a weight is NaN, infinite or negative, all weights are zero, or the
            filters cannot be applied in every retriever.
    """

    def __init__(
        self,
        retrievers: list[BaseRetriever],
        *,
        retriever_weights: list[float] | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        fusion: Fusion = FusionSettings.by,
        rrf_k: float = FusionSettings.rrf_k,
        document_weight: float = FusionSettings.document_weight,
        spotlight: bool = SearchSettings.spotlight,
        filters: Filters | None = None,
        llm: LLM | None = None,
        num_queries: int = 1,
        **kwargs: Any,
    ) -> None:
        if "mode" in kwargs:
            raise ConfigurationError(
                "HybridRetriever: use `fusion`, 'score' or 'rrf', instead of `mode`.", setting="mode"
            )
        try:
            weights = _default_weights(retrievers)
            if retriever_weights is not None:
                weights = normalise_weights(retriever_weights, len(retrievers))
        except ValueError as error:
            raise ConfigurationError(f"HybridRetriever: {error}.", setting="retriever_weights") from None
        is_weight = isinstance(document_weight, Real) and math.isfinite(document_weight) and document_weight >= 0
        if not is_weight:
            raise ConfigurationError(
                f"HybridRetriever: document_weight ({document_weight!r}) must be a finite number and not negative.",
                setting="document_weight",
            )
        super().__init__(
            retrievers,
            # Without an LLM, the base class would use Settings.llm, which requires a key even for a single query.
            llm=llm or (MockLLM() if num_queries <= 1 else None),
            mode=FUSION_MODES.RECIPROCAL_RANK,
            similarity_top_k=number_of_results(similarity_top_k, top_k, SearchSettings.k),
            num_queries=num_queries,
            retriever_weights=weights,
            **kwargs,
        )
        self.settings = FusionSettings(by=fusion, weights=weights, rrf_k=rrf_k, document_weight=document_weight)
        self.spotlight = spotlight
        self._filters = to_filters(filters)
        self._shared = SharedIndex.from_retrievers(retrievers) if num_queries <= 1 else None
        if self._filters is not None and self._shared is None:
            raise ConfigurationError(
                "HybridRetriever: filters need a SemanticRetriever and a LexicalRetriever over the same chunks, and a"
                " single query: pass filters to each retriever instead.",
                setting="filters",
            )

    def specificity(self, text: str) -> float | None:
        """Return the specificity of a text for the first retriever that can measure it; see `specificity_of`."""
        values = (specificity_of(retriever, text) for retriever in self._retrievers)
        return next((value for value in values if value is not None), None)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._shared is None:
            return super()._retrieve(limit_query(query_bundle)[0])
        weights = dict(zip(self._shared.modes, self.settings.weights, strict=True))
        settings = SearchSettings(
            mode="hybrid",
            k=self.similarity_top_k,
            filters=self._filters or self._shared.filters,
            fusion=replace(self.settings, weights=(weights["semantic"], weights["lexical"])),
            spotlight=self.spotlight,
        )
        return search_nodes(query_bundle, self._shared.index, settings, self._shared.embedder)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._shared is not None:
            return await asyncio.to_thread(self._retrieve, query_bundle)
        query, _ = await alimit_query(query_bundle)
        return await super()._aretrieve(query)

    def _reciprocal_rerank_fusion(self, results: dict[tuple[str, int], list[NodeWithScore]]) -> list[NodeWithScore]:
        """Fuse the weighted hits of retrievers that do not share an index, by node id.

        The results are new objects that contain the evidence of the original hits.
        """
        rankings, chunks = [], dict[str, dict[str, Any]]()
        for (_, number), hits in results.items():
            retriever = self._retrievers[number]
            store = None if isinstance(retriever, SemanticRetriever) else getattr(retriever, "_vector_store", None)
            rankings.append([(hit.node.node_id, score) for hit, score in similarities(hits, store)])
            for hit in hits:
                fields = chunks.setdefault(hit.node.node_id, {"node": hit.node})
                for name in INDEX_NAMES:
                    if (evidence := getattr(hit, name, None)) is not None:
                        fields.setdefault(name, evidence)
        weights = [self._retriever_weights[number] for _, number in results]
        if self.settings.by == "score":
            ranking = score_fusion(rankings, weights)
        else:
            ranking = reciprocal_rank_fusion(rankings, weights, k=self.settings.rrf_k)
        return [
            RetrievedChunk(rank=rank, score=score, **chunks[node_id])
            for rank, (node_id, score) in enumerate(ranking, start=1)
        ]


def _default_weights(retrievers: Sequence[BaseRetriever]) -> list[float]:
    """Return the weights of a project for a vector retriever and a BM25 retriever, or equal weights for others.

    Raises:
        ValueError: There are no retrievers.
    """
    kinds = [
        isinstance(retriever, VectorIndexRetriever) - isinstance(retriever, BM25Retriever) for retriever in retrievers
    ]
    if sorted(kinds) == [-1, 1]:
        semantic, lexical = FusionSettings.weights
        return [semantic if kind > 0 else lexical for kind in kinds]
    return normalise_weights([1.0] * len(retrievers), len(retrievers))
