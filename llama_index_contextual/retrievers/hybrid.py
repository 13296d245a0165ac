"""Hybrid retrieval: semantic and lexical rankings are fused by row, then the best nodes are fetched once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import LLM, MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.config import Fusion
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.index.docstore import SQLiteDocumentStore
from llama_index_contextual.index.documents import DocumentLeg, DocumentScores
from llama_index_contextual.retrievers.base import (
    FusionSettings,
    Ranking,
    RankingRetriever,
    lexical_query,
    specificity_of,
)
from llama_index_contextual.search.fusion import (
    Hits,
    Scale,
    ScoredIds,
    add_support,
    best_of_group,
    fuse,
    min_max,
    normalise_weights,
    reciprocal_rank_fusion,
    reciprocal_shares,
    scaled_shares,
    score_fusion,
)
from llama_index_contextual.search.queries import as_bundle, number_of_results, require_positive
from llama_index_contextual.search.response import LEGS, RetrievedChunk


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
        candidates: int = 100,
        fusion: Fusion = "rrf",
        rrf_k: float = 10.0,
        documents: DocumentLeg | None = None,
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
        self.candidates = candidates
        self.fusion = fusion
        self.rrf_k = rrf_k
        for name, weight in (("document_weight", document_weight), ("sibling_weight", sibling_weight)):
            if not (isinstance(weight, Real) and math.isfinite(weight) and weight >= 0):
                raise ConfigurationError(
                    f"HybridRetriever: {name} ({weight!r}) must be a finite number and not negative.", setting=name
                )
        self._documents = documents
        self.document_weight = document_weight
        self.sibling_weight = sibling_weight
        self.document_idf = document_idf
        self._filters = filters
        if filters is not None and not self._ranks_ids:
            raise ConfigurationError(
                "HybridRetriever: filters work with retrievers that rank ids over one document store, and with a single"
                " query: pass filters to each retriever instead.",
                setting="filters",
            )
        if documents is not None and not self._ranks_ids:
            raise ConfigurationError(
                "HybridRetriever: documents support the hits of retrievers that rank ids over one document store, for a"
                " single query: leave documents out.",
                setting="documents",
            )

    @property
    def _legs(self) -> list[RankingRetriever]:
        return [retriever for retriever in self._retrievers if isinstance(retriever, RankingRetriever)]

    @property
    def _ranks_ids(self) -> bool:
        """Whether the legs can be fused by id: all of them rank over the same store, and there is a single query."""
        stores = {id(leg.docstore) for leg in self._legs}
        return self.num_queries <= 1 and len(self._legs) == len(self._retrievers) and len(stores) == 1

    @property
    def _has_idle_leg(self) -> bool:
        """Whether only one of several legs has any weight; the result then has the order of that leg."""
        return len(self._retriever_weights) > 1 and max(self._retriever_weights) == 1.0

    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Rank with every leg, fuse the rankings, and add the scores of the documents.

        Raises:
            InputError: k is not positive, or the legs do not rank ids.
        """
        if not self._ranks_ids:
            raise InputError(
                "HybridRetriever ranks ids only when all its retrievers do, over one document store and for a single"
                " query: use retrieve()."
            )
        bundle, depth = as_bundle(query), max(self.candidates, require_positive(k))
        parts = [leg.rank(bundle, depth, filters or self._filters) for leg in self._legs]
        rankings = [part.hits.first(depth) for part in parts]
        scales = self._scales(parts, rankings)
        rankings = [hits.first(depth if w else 0) for hits, w in zip(rankings, self._retriever_weights, strict=True)]
        hits = fuse(
            rankings,
            self._retriever_weights,
            by=self.fusion,
            k=self.rrf_k,
            scales=scales,
            names=self.docstore.ids,
        )
        weight = self._document_weight(hits)
        fusion = FusionSettings(self.fusion, self._retriever_weights, self.rrf_k, scales, weight, self.sibling_weight)
        ranking = Ranking(hits, self.docstore.ids, parts=parts, fusion=fusion)
        if self._documents is None or self._has_idle_leg:
            return ranking
        # Spelling is corrected with the vocabulary of the chunks; the documents' names have too few words for that.
        terms = ranking.query_terms
        support = self._documents.support(lexical_query(bundle) if terms is None else terms.counts, hits.rows)
        shares = self._shares(support, weight)
        best = best_of_group(hits.scores + shares, self._documents.of(hits.rows))
        shared = self._shared_terms(parts, rankings, scales, hits)
        supported, before = add_support(hits, shares - shared + self.sibling_weight * best)
        return replace(
            ranking, hits=supported, support=support.at(before), best=best[before], shared_terms=shared[before]
        )

    def _shared_terms(
        self, parts: Sequence[Ranking], rankings: Sequence[Hits], scales: Sequence[Scale], hits: Hits
    ) -> NDArray[np.float64]:
        """Return the part of each score that comes from terms which the document of the chunk has elsewhere as well."""
        shared = np.zeros(len(hits.rows))
        # Without the share of its best chunk, a document would lose what is taken off here.
        if self._documents is None or not (self.document_idf and self.sibling_weight) or self.fusion == "rrf":
            return shared
        order = np.argsort(hits.rows)
        for part, ranking, scale, weight in zip(parts, rankings, scales, self._retriever_weights, strict=True):
            if part.terms is not None and scale.unit > 0 and len(ranking.rows):
                places = order[np.searchsorted(hits.rows, ranking.rows, sorter=order)]
                shared[places] += weight * self._documents.shared_terms(part.terms, ranking.rows) / scale.unit
        return shared

    def _scales(self, parts: Sequence[Ranking], rankings: Sequence[Hits]) -> list[Scale]:
        """Return the scales of the rankings' scores: by standard deviation if all are known, or else by min-max."""
        if self.fusion == "rrf":
            return []
        known = [part.scale for part in parts if part.scale is not None]
        if len(known) == len(parts):
            return [scale() for scale in known]
        return [min_max(hits.scores) for hits in rankings]

    def _document_weight(self, hits: Hits) -> float:
        """Return the weight of the documents' names in the unit of the fused scores.

        Fusion by score has no fixed range, so the weight is relative to the best score, and grows with the documents'
        length.
        """
        if self.fusion == "rrf" or self._documents is None:
            return self.document_weight
        return self.document_weight * self._documents.emphasis * float(hits.scores.max(initial=0.0))

    def _shares(self, support: DocumentScores, weight: float) -> NDArray[np.float64]:
        if self.fusion == "score":
            return scaled_shares(support.scores.astype(np.float64), weight)
        return reciprocal_shares(support.ranks, weight, k=self.rrf_k)

    def _fuse(self, rankings: Sequence[ScoredIds], weights: Sequence[float]) -> list[tuple[str, float]]:
        if self.fusion == "score":
            return score_fusion(rankings, weights)
        return reciprocal_rank_fusion(rankings, weights, k=self.rrf_k)

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

    def prepare_many(self, bundles: list[QueryBundle]) -> list[QueryBundle]:
        """Return several queries as prepared by every leg."""
        for leg in self._legs:
            bundles = leg.prepare_many(bundles)
        return bundles

    @property
    def docstore(self) -> SQLiteDocumentStore:
        """The document store, which all legs share."""
        return self._legs[0].docstore

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._ranks_ids:
            k = self.similarity_top_k
            return [*self.fetch(self.rank(query_bundle, k), k)]
        return super()._retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._ranks_ids:
            return await asyncio.to_thread(self._retrieve, await self.aprepare(query_bundle))
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
