"""Ranking: rows by meaning and by words, fused into one ranking, with the evidence for each row.

Functions over a `ChunkIndex`; no node is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.config import Fusion
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.index.bm25 import MAX_TERMS, LexicalQuery, QueryTerms
from llama_index_contextual.index.documents import DocumentIndex, DocumentScores
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale
from llama_index_contextual.search.fusion import (
    add_support,
    best_of_group,
    fuse,
    reciprocal_shares,
    scaled_shares,
)
from llama_index_contextual.search.response import LegScore, RetrievedChunk

LegName = Literal["semantic", "lexical"]

Evidence = dict[str, Any]
"""The `LegScore` of a chunk in each index, by the name of the index."""


@dataclass(frozen=True, kw_only=True)
class FusionSettings:
    """How rankings are fused.

    Attributes:
        by: By reciprocal ranks or by scaled scores.
        weights: One per ranking, with a sum of 1.
        rrf_k: Constant of reciprocal rank fusion.
        candidates: Number of hits of each ranking that are fused.
        document_weight: Weight of the documents' names.
        sibling_weight: Share of the score of its document's best chunk that is added to each chunk.
        document_idf: Whether a term counts in a chunk by how rare it is within the document, in fusion by score.
    """

    by: Fusion = "score"
    weights: Sequence[float] = (0.5, 0.5)
    rrf_k: float = 10.0
    candidates: int = 100
    document_weight: float = 0.0
    sibling_weight: float = 0.0
    document_idf: bool = True


@dataclass(frozen=True, eq=False)
class Leg:
    """The ranking of one index.

    Attributes:
        name: Name of the index.
        hits: Rows and scores, best first.
        scale: Scale of the scores over all chunks.
        terms: The query as terms of the lexical index.
        warnings: Sentences about parts of the query that the index left out.
    """

    name: LegName
    hits: Hits
    scale: Scale
    terms: QueryTerms | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Ranking:
    """A ranking and the rankings that it was fused from.

    Attributes:
        hits: Rows and scores, best first.
        ids: Node id of each row of the index.
        legs: The rankings of the indexes: one, or those that were fused.
        fusion: How they were fused; None for the ranking of a single index.
        document_weight: Weight of the documents' names in the unit of the scores.
        support: Scores of the documents of `hits`; None without an index of documents.
        best: For each of `hits`, the score of the best chunk of its document before it was added.
        shared_terms: For each of `hits`, the part of its score that was taken off for terms which its document has
            elsewhere as well.
    """

    hits: Hits
    ids: Sequence[str] = field(repr=False)
    legs: Sequence[Leg]
    fusion: FusionSettings | None = None
    document_weight: float = 0.0
    support: DocumentScores | None = None
    best: NDArray[np.float64] | None = None
    shared_terms: NDArray[np.float64] | None = None

    def first(self, k: int) -> list[tuple[str, float]]:
        """Return the node ids and scores of the k best hits."""
        hits = self.hits.first(k)
        return [(self.ids[row], score) for row, score in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]

    def leg(self, name: LegName) -> Leg | None:
        """Return the ranking of an index, or None if it was not searched."""
        return next((leg for leg in self.legs if leg.name == name), None)

    @property
    def terms(self) -> QueryTerms | None:
        """The query as terms of the lexical index; None if that was not searched."""
        return next((leg.terms for leg in self.legs if leg.terms is not None), None)

    def evidence(self, k: int) -> list[Evidence]:
        """Return the scores and ranks of the k best hits in each index and in the index of documents."""
        rows = self.hits.rows[:k].tolist()
        evidence: list[Evidence] = [{} for _ in rows]
        for leg in self.legs:
            places, scores = {row: at for at, row in enumerate(leg.hits.rows.tolist())}, leg.hits.scores.tolist()
            matched = [()] * len(rows) if leg.terms is None else leg.terms.matched(rows)
            for row, terms, of_row in zip(rows, matched, evidence, strict=True):
                if (place := places.get(row)) is not None:
                    of_row[leg.name] = LegScore(scores[place], place + 1, terms)
        if self.support is not None:
            support = self.support.at(np.arange(len(rows)))
            for of_row, score, rank in zip(evidence, support.scores.tolist(), support.ranks.tolist(), strict=True):
                if rank:
                    of_row["document"] = LegScore(score, rank)
        return evidence


def semantic_leg(
    index: ChunkIndex, embedding: object, k: int, filters: MetadataFilters | None = None, *, model: str
) -> Leg:
    """Rank by the cosine similarity of a query's embedding.

    Args:
        index: The index.
        embedding: The query's embedding; one of zeros has no hits.
        k: Number of hits.
        filters: Only chunks that pass are ranked.
        model: Name of the embedding model, for messages.

    Raises:
        InputError: The embedding does not fit the index, or contains values that are not finite numbers.
    """
    vector = _checked(embedding, index.dimensions, model)
    if not vector.any():
        warning = (
            f"The query's embedding by {model!r} is zero: the semantic index finds nothing for it; rephrase the query."
        )
        return Leg("semantic", NO_HITS, NO_SCALE, warnings=(warning,))
    hits, scale = index.rank_vectors(vector, k, filters)
    return Leg("semantic", hits, scale)


def lexical_leg(index: ChunkIndex, query: LexicalQuery, k: int, filters: MetadataFilters | None = None) -> Leg:
    """Rank by BM25; scores are above 0."""
    if index.lexical is None:
        return Leg("lexical", NO_HITS, NO_SCALE)
    terms = index.lexical.query(query)
    hits, scale = index.rank_terms(terms, k, filters)
    warnings: tuple[str, ...] = ()
    if terms.omitted:
        warnings = (
            f"The query has {MAX_TERMS + terms.omitted:,} different terms: only the {MAX_TERMS} with the largest"
            f" weights were searched lexically.",
        )
    return Leg("lexical", hits, scale, terms, warnings)


def fused(
    legs: Sequence[Leg],
    ids: Sequence[str],
    settings: FusionSettings,
    *,
    documents: DocumentIndex | None = None,
    query: LexicalQuery = "",
) -> Ranking:
    """Fuse rankings, and add the scores of the documents.

    If only one of several rankings has a weight, the result has its order.

    Args:
        legs: The rankings; hits after the candidates are ignored.
        ids: Node id of each row.
        settings: How to fuse.
        documents: The index of documents; None leaves their scores out.
        query: The query for the index of documents, if the lexical index was not searched.
    """
    weights = settings.weights
    rankings = [leg.hits.first(settings.candidates if weight else 0) for leg, weight in zip(legs, weights, strict=True)]
    hits = fuse(
        rankings,
        weights,
        by=settings.by,
        k=settings.rrf_k,
        scales=[leg.scale for leg in legs],
        names=ids,
    )
    ranking = Ranking(hits, ids, legs, settings)
    has_weight = settings.document_weight or settings.sibling_weight
    if documents is None or not has_weight or (len(legs) > 1 and max(weights) == 1.0):
        return ranking
    # Spelling is corrected with the vocabulary of the chunks; the documents' names have too few words for that.
    terms = ranking.terms
    support = documents.support(query if terms is None else terms.counts, hits.rows)
    if settings.by == "rrf":
        weight = settings.document_weight
        shares = reciprocal_shares(support.ranks, weight, k=settings.rrf_k)
    else:
        # Scores have no fixed range, so the weight is relative to the best score; it grows with the documents' length.
        weight = settings.document_weight * documents.emphasis * float(hits.scores.max(initial=0.0))
        shares = scaled_shares(support.scores.astype(np.float64), weight)
    best = best_of_group(hits.scores + shares, documents.rows[hits.rows])
    shared = _shared_terms(legs, rankings, hits, documents, settings)
    supported, before = add_support(hits, shares - shared + settings.sibling_weight * best)
    return Ranking(
        supported,
        ids,
        legs,
        settings,
        document_weight=weight,
        support=support.at(before),
        best=best[before],
        shared_terms=shared[before],
    )


def _shared_terms(
    legs: Sequence[Leg],
    rankings: Sequence[Hits],
    hits: Hits,
    documents: DocumentIndex,
    settings: FusionSettings,
) -> NDArray[np.float64]:
    """Return the part of each score that comes from terms which the document of the chunk has elsewhere as well."""
    shared = np.zeros(len(hits.rows))
    # Without the share of its best chunk, a document would lose what is taken off here.
    if not (settings.document_idf and settings.sibling_weight) or settings.by == "rrf":
        return shared
    order = np.argsort(hits.rows)
    for leg, ranking, weight in zip(legs, rankings, settings.weights, strict=True):
        if leg.terms is not None and leg.scale.unit > 0 and len(ranking.rows):
            places = order[np.searchsorted(hits.rows, ranking.rows, sorter=order)]
            shared[places] += weight * documents.shared_terms(leg.terms, ranking.rows) / leg.scale.unit
    return shared


def fetched(
    index: ChunkIndex, ranking: Ranking, k: int, evidence: Sequence[Evidence] | None = None
) -> list[RetrievedChunk]:
    """Return the k best chunks of a ranking with their evidence, read at once.

    Args:
        index: The index that was ranked.
        ranking: The ranking.
        k: Number of chunks.
        evidence: The evidence of at least k hits; None computes it.
    """
    hits = ranking.hits.first(k)
    nodes = index.fetch(hits.rows.tolist())
    of_hits = ranking.evidence(k) if evidence is None else evidence[: len(nodes)]
    # Without validation: validating the fields takes longer than the search.
    return [
        RetrievedChunk.model_construct(rank=rank, node=node, score=score, **legs)
        for rank, (node, score, legs) in enumerate(zip(nodes, hits.scores.tolist(), of_hits, strict=True), start=1)
    ]


def _checked(embedding: object, dimensions: int | None, model: str) -> NDArray[np.float32]:
    """Return a query's embedding as a unit vector of an index, or zeros."""
    try:
        with np.errstate(over="ignore"):  # numbers too large for 32 bits become infinite
            vector = np.asarray(embedding, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The query's embedding is not a list of numbers: pass an embedding by {model!r}, or none.",
            value=embedding,
        ) from error
    if vector.ndim != 1 or len(vector) != (dimensions or len(vector)):
        raise InputError(
            f"The query's embedding has {' × '.join(map(str, vector.shape)) or 'no'} dimensions, the index"
            f" {dimensions}: search with the embedding model that built the index ({model!r} is set).",
            value=embedding,
        )
    if not np.isfinite(vector).all():
        raise InputError(
            f"The query's embedding ({len(vector)} dimensions, as many as the index has) contains NaN or infinity:"
            f" embed the query again with {model!r}.",
            value=embedding,
        )
    return np.asarray(unit_vectors(vector[None])[0])
