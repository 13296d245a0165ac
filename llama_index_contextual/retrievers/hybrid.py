"""Hybrid retrieval: semantic and lexical rankings are fused by row, then the best nodes are fetched once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import LLM, MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.config import Fusion
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.retrievers.base import RankingRetriever, specificity_of
from llama_index_contextual.retrievers.lexical import LexicalRetriever
from llama_index_contextual.retrievers.queries import as_bundle, query_of
from llama_index_contextual.retrievers.semantic import SemanticRetriever
from llama_index_contextual.search.rank import (
    CANDIDATES,
    FusionSettings,
    Ranking,
    ScoredIds,
    fused,
    normalise_weights,
    reciprocal_rank_fusion,
    score_fusion,
)
from llama_index_contextual.search.response import LEGS
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.search.search import number_of_results, require_positive

_REMEDIES = {"filters": "pass filters to each retriever instead", "documents": "leave documents out"}


class HybridRetriever(QueryFusionRetriever, RankingRetriever):
    """Fuse the weighted rankings of several retrievers and fetch only the nodes of the result.

    Retrievers that rank ids (`SemanticRetriever`, `LexicalRetriever`) are fused without reading a node. Other
    retrievers, and several generated queries, use LlamaIndex's own path with the same fusion: by node id, weighted, and
    without changing the scores of the given nodes.

    Args:
        retrievers: The retrievers to fuse ("legs").
        retriever_weights: One per leg, not all zero; None for equal weights. If only one of several legs has a weight,
            the result has the order of that leg, without scores of documents.
        similarity_top_k: Number of results of `retrieve`, 20 by default.
        top_k: The same.
        candidates: Hits taken from each leg before fusion, if the legs rank ids; other retrievers decide themselves.
        fusion: By reciprocal ranks or by scaled scores.
        rrf_k: Constant of reciprocal rank fusion.
        documents: Adds scores of the candidates' documents; needs legs that rank ids, and a single query.
        document_weight: Weight of the documents' names, relative to the legs' weights, which are scaled to a sum of 1.
            Fusion by score raises it for documents of more than ten chunks and lowers it for shorter ones.
        sibling_weight: Share of the score of its document's best chunk that is added to each chunk; needs `documents`.
        document_idf: Whether a term counts in a chunk by how rare it is within the document, in fusion by score; needs
            `documents` and a `sibling_weight`.
        filters: Only nodes that pass are ranked; needs legs that rank ids, and a single query.
        llm: Writes further queries if num_queries > 1.
        num_queries: Number of queries, including the given one.

    Raises:
        ConfigurationError: There are no legs, a weight is NaN, infinite or negative, all weights are zero, or the
            filters or documents would not reach every leg.
    """

    def __init__(
        self,
        retrievers: list[BaseRetriever],
        *,
        retriever_weights: list[float] | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        candidates: int = CANDIDATES,
        fusion: Fusion = "rrf",
        rrf_k: float = 10.0,
        documents: DocumentIndex | None = None,
        document_weight: float = 0.1,
        sibling_weight: float = 0.5,
        document_idf: bool = True,
        filters: MetadataFilters | None = None,
        llm: LLM | None = None,
        num_queries: int = 1,
        **kwargs: Any,
    ) -> None:
        try:
            leg_weights = [1.0] * len(retrievers) if retriever_weights is None else retriever_weights
            weights = normalise_weights(leg_weights, len(retrievers))
        except ValueError as error:
            raise ConfigurationError(f"HybridRetriever: {error}.", setting="retriever_weights") from None
        for name, weight in (("document_weight", document_weight), ("sibling_weight", sibling_weight)):
            if not (isinstance(weight, Real) and math.isfinite(weight) and weight >= 0):
                raise ConfigurationError(
                    f"HybridRetriever: {name} ({weight!r}) must be a finite number and not negative.", setting=name
                )
        super().__init__(
            retrievers,
            # Without an LLM the base class would use Settings.llm, which demands a key even for a single query.
            llm=llm or (MockLLM() if num_queries <= 1 else None),
            mode=FUSION_MODES.RECIPROCAL_RANK,
            similarity_top_k=number_of_results(similarity_top_k, top_k, 20),
            num_queries=num_queries,
            retriever_weights=weights,
            **kwargs,
        )
        self.settings = FusionSettings(
            by=fusion,
            weights=weights,
            rrf_k=rrf_k,
            candidates=candidates,
            document_weight=document_weight,
            sibling_weight=sibling_weight,
            document_idf=document_idf,
        )
        self._documents = documents
        self._filters = filters
        for name, value in (("filters", filters), ("documents", documents)):
            if value is not None and not self._ranks_rows:
                raise ConfigurationError(
                    f"HybridRetriever: {name} need a SemanticRetriever and a LexicalRetriever over the same chunks, and"
                    f" a single query: {_REMEDIES[name]}.",
                    setting=name,
                )
        if documents is not None and len(documents.rows) != len(self.chunk_index.ids):
            raise ConfigurationError(
                f"HybridRetriever: the index of documents has {len(documents.rows)} chunks, the retrievers rank"
                f" {len(self.chunk_index.ids)}: build it from the same chunks, in the same order.",
                setting="documents",
            )

    @property
    def _legs(self) -> list[RankingRetriever]:
        return [one for one in self._retrievers if isinstance(one, RankingRetriever)]

    @property
    def _ranks_rows(self) -> bool:
        """Whether the legs can be fused by row: all of them rank the same rows, and there is a single query."""
        legs = [one for one in self._retrievers if isinstance(one, SemanticRetriever | LexicalRetriever)]
        rows = {id(getattr(leg.chunk_index, "docstore", leg.chunk_index)) for leg in legs}
        return self.num_queries <= 1 and len(legs) == len(self._retrievers) and len(rows) == 1

    @property
    def chunk_index(self) -> ChunkIndex:
        """The index that all legs rank."""
        return self._legs[0].chunk_index

    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Rank with every leg, fuse the rankings, and add the scores of the documents.

        Raises:
            InputError: k is not positive, or the legs do not rank the rows of one index.
        """
        if not self._ranks_rows:
            raise InputError(
                "HybridRetriever ranks rows only if it has a SemanticRetriever and a LexicalRetriever over the same"
                " chunks, and a single query: use retrieve()."
            )
        bundle, depth = as_bundle(query), max(self.settings.candidates, require_positive(k))
        legs = [one.leg(bundle, depth, filters or self._filters) for one in self._legs]
        settings = replace(self.settings, candidates=depth)
        return fused(legs, self.chunk_index.ids, settings, documents=self._documents, query=query_of(bundle).lexical)

    def _fuse(self, rankings: Sequence[ScoredIds], weights: Sequence[float]) -> list[tuple[str, float]]:
        if self.settings.by == "score":
            return score_fusion(rankings, weights)
        return reciprocal_rank_fusion(rankings, weights, k=self.settings.rrf_k)

    def specificity(self, text: str) -> float | None:
        """Return how specific a text is, by the first retriever that can measure it; see `specificity_of`."""
        values = (specificity_of(retriever, text) for retriever in self._retrievers)
        return next((value for value in values if value is not None), None)

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Return the query as prepared by every leg, for example with its embedding."""
        for leg in self._legs:
            bundle = await leg.aprepare(bundle)
        return bundle

    def prepare(self, bundle: QueryBundle) -> QueryBundle:
        """Blocking version of `aprepare`."""
        for leg in self._legs:
            bundle = leg.prepare(bundle)
        return bundle

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._ranks_rows:
            return super(QueryFusionRetriever, self)._retrieve(query_bundle)
        return super()._retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._ranks_rows:
            return await super(QueryFusionRetriever, self)._aretrieve(query_bundle)
        return await super()._aretrieve(query_bundle)

    def _reciprocal_rerank_fusion(self, results: dict[tuple[str, int], list[NodeWithScore]]) -> list[NodeWithScore]:
        """Fuse the hits of other retrievers by node id, weighted, into new objects that keep the evidence."""
        rankings, chunks = [], dict[str, dict[str, Any]]()
        for hits in results.values():
            ordered = sorted(hits, key=lambda hit: hit.score or 0.0, reverse=True)
            rankings.append([(hit.node.node_id, hit.score or 0.0) for hit in ordered])
            for hit in hits:
                fields = chunks.setdefault(hit.node.node_id, {"node": hit.node})
                for leg in LEGS:
                    if (evidence := getattr(hit, leg, None)) is not None:
                        fields.setdefault(leg, evidence)
        weights = [self._retriever_weights[leg] for _, leg in results]
        fused = enumerate(self._fuse(rankings, weights), start=1)
        return [RetrievedChunk(rank=rank, score=score, **chunks[node_id]) for rank, (node_id, score) in fused]
