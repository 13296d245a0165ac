"""A ranking into an answer: judged, reranked, explained."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.config import Mode
from llama_index_contextual.results import Explanation, RetrievalResponse, RetrievedChunk
from llama_index_contextual.retrievers.base import Found, RankingRetriever
from llama_index_contextual.retrievers.explain import NEAR_MISSES, explain
from llama_index_contextual.retrievers.relevance import JUDGED, Judgement, judge
from llama_index_contextual.retrievers.rerank import Reranked, Reranker


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a version.

    Attributes:
        k: Results.
        filters: Only chunks that pass count.
        explain: Whether to say why.
        reranker: Looks again at the best hits, or None.
        candidates: Hits that the reranker looks at.
        mode_requested: Which indexes were asked for.
        mode_used: Which indexes answer.
        warnings: About what differs from what was asked for.
        version: Name of the version.
        turns: Bounds how many rank at once.
    """

    k: int
    filters: MetadataFilters | None
    explain: bool
    reranker: Reranker | None
    candidates: int
    mode_requested: Mode
    mode_used: Mode
    warnings: Sequence[str]
    version: str
    turns: AbstractContextManager[object]


def respond(bundle: QueryBundle, retriever: RankingRetriever, request: Request) -> RetrievalResponse:
    """Return the answer of a retriever to a query."""
    k = max(request.k, request.candidates) if request.reranker is not None else request.k
    shown = k + NEAR_MISSES if request.explain else k
    # A fused ranking has more than k hits anyway, and asking for more could change it.
    with request.turns:
        trace = retriever.trace(bundle, k if request.mode_used == "hybrid" else shown, request.filters)
        evidence = trace.evidence(max(JUDGED, shown))
        found = retriever.fetch(trace, shown, evidence)
        judgement = judge(trace, evidence)
    relevances = [None] * len(found) if judgement is None else judgement.relevances
    warnings = [*request.warnings, *(warning for leaf in trace.leaves() for warning in leaf.warnings)]
    order = [Reranked(at, hit.score) for at, hit in enumerate(found[:k])]
    if request.reranker is not None:
        order = request.reranker.order(bundle, found[:k])
        if found and not order:
            warnings.append(f"The reranker {request.reranker.name!r} has left out all {len(found[:k])} hits.")
            judgement = judgement and Judgement((), 0.0)
    explanations: list[Explanation] = []
    near_misses: list[Explanation] = []
    if request.explain:
        explanations, near_misses = explain(trace, found, request.k)
        if request.reranker is not None:
            explanations, near_misses = _reranked([*explanations, *near_misses], order, request.k)
    return RetrievalResponse(
        query=bundle.query_str,
        mode_requested=request.mode_requested,
        mode_used=request.mode_used,
        warnings=tuple(warnings),
        results=tuple(
            _chunk(rank, found[hit.at], hit.score, relevances[hit.at])
            for rank, hit in enumerate(order[: request.k], start=1)
        ),
        confidence=None if judgement is None else judgement.confidence,
        confidence_level=None if judgement is None else judgement.level,
        version=request.version,
        explanations=tuple(explanations),
        near_misses=tuple(near_misses[:NEAR_MISSES]),
    )


def _chunk(rank: int, hit: Found, score: float, relevance: float | None) -> RetrievedChunk:
    return RetrievedChunk.made(rank, hit.node, score, hit.evidence, relevance)


def _reranked(
    explained: Sequence[Explanation], order: Sequence[Reranked], k: int
) -> tuple[list[Explanation], list[Explanation]]:
    """Return the explanations in the reranker's order, with its score, and those that it put behind the results."""
    moved = []
    for rank, hit in enumerate(order, start=1):
        one = explained[hit.at]
        why_not = None if rank <= k else f"the reranker's {hit.score:.4f} is less than {order[k - 1].score:.4f}"
        arithmetic = f"{one.arithmetic}; reranked from {one.rank} by {hit.score:.4f}"
        moved.append(replace(one, rank=rank, score=hit.score, arithmetic=arithmetic, why_not=why_not))
    return moved[:k], moved[k:]
