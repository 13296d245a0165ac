"""The parts that all retrievers share: rankings with their evidence, weighted queries, base classes, spans.

A search has two steps. `RankingRetriever.rank` ranks rows of the document store and keeps the score and rank of
each row in every index (`Ranking`); `RankingRetriever.fetch` reads the nodes of the best rows with that evidence
(`RetrievedChunk`). `retrieve` does both.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.instrumentation import (  # type: ignore[attr-defined]
    DISPATCHER_SPAN_DECORATED_ATTR,
    get_dispatcher,
)
from llama_index.core.instrumentation.event_handlers import NullEventHandler
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.span_handlers import NullSpanHandler
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.config import Fusion
from llama_index_contextual.index.bm25 import LexicalQuery, QueryTerms
from llama_index_contextual.index.docstore import SQLiteDocumentStore
from llama_index_contextual.index.documents import DocumentScores
from llama_index_contextual.search.fusion import Hits, Scale
from llama_index_contextual.search.queries import as_bundle
from llama_index_contextual.search.response import LegScore, RetrievalResponse, RetrievedChunk

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

Evidence = dict[str, Any]
"""The `LegScore` of a chunk in each index, by the name of the index."""


# ---- rankings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FusionSettings:
    """Method and weights with which rankings were fused.

    Attributes:
        by: Reciprocal ranks or scaled scores.
        weights: One per ranking.
        k: Constant of reciprocal rank fusion.
        scales: One per ranking, for its scores; empty for reciprocal ranks.
        document_weight: Weight of the index of documents, in the unit of the fused scores.
        sibling_weight: Weight of the best chunk of the same document.
    """

    by: Fusion
    weights: Sequence[float]
    k: float
    scales: Sequence[Scale]
    document_weight: float
    sibling_weight: float


@dataclass(frozen=True, eq=False)
class Ranking:
    """A ranking and the rankings that it was fused from.

    Attributes:
        hits: Rows of the document store and their scores, best first.
        ids: Node id of each row of the document store.
        name: Name of the index, for the ranking of a single index; None for a fused ranking.
        parts: The rankings that were fused.
        terms: The query as terms of the lexical index.
        scale: Computes the scale of the scores over all chunks of the index: their standard deviation is the unit. None
            if it is not known.
        support: Scores of the documents of `hits`.
        best: For each of `hits`, the score of the best chunk of its document before it was added; None without an
            index of documents.
        shared_terms: For each of `hits`, the part of its score that was taken off for terms which its document has
            elsewhere as well; None without an index of documents.
        fusion: Settings with which `parts` were fused.
        warnings: Sentences about parts of the query that an index left out.
    """

    hits: Hits
    ids: Sequence[str] = field(default=(), repr=False)
    name: str | None = None
    parts: Sequence[Ranking] = ()
    terms: QueryTerms | None = None
    scale: Callable[[], Scale] | None = None
    support: DocumentScores | None = None
    best: NDArray[np.float64] | None = None
    shared_terms: NDArray[np.float64] | None = None
    fusion: FusionSettings | None = None
    warnings: Sequence[str] = ()

    def first(self, k: int) -> list[tuple[str, float]]:
        """Return the node ids and scores of the k best hits."""
        hits = self.hits.first(k)
        return [(self.ids[row], score) for row, score in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]

    def leaves(self) -> Iterator[Ranking]:
        """Yield the rankings of the individual indexes."""
        if self.name is not None:
            yield self
        for part in self.parts:
            yield from part.leaves()

    @property
    def query_terms(self) -> QueryTerms | None:
        """The terms of the query in the first lexical index."""
        return next((leaf.terms for leaf in self.leaves() if leaf.terms is not None), None)

    def evidence(self, k: int) -> list[Evidence]:
        """Return the scores and ranks of the k best hits in each index and in the index of documents."""
        rows = self.hits.rows[:k].tolist()
        evidence: list[Evidence] = [{} for _ in rows]
        for leaf in self.leaves():
            for scores, leg_score in zip(evidence, leaf._leg_scores(rows), strict=True):
                if leg_score is not None and leaf.name is not None:
                    scores[leaf.name] = leg_score
        if self.support is not None:
            of_documents = zip(self.support.scores[:k].tolist(), self.support.ranks[:k].tolist(), strict=True)
            for scores, (score, rank) in zip(evidence, of_documents, strict=True):
                if rank:
                    scores["document"] = LegScore(score, rank)
        return evidence

    def _leg_scores(self, rows: Sequence[int]) -> list[LegScore | None]:
        """Return score, rank and matched terms of rows in this ranking; None for rows that it does not have."""
        places = dict(zip(self.hits.rows.tolist(), itertools.count()))
        scores = self.hits.scores.tolist()
        matched_terms = [()] * len(rows) if self.terms is None else self.terms.matched(rows)
        return [
            None if place is None else LegScore(scores[place], place + 1, matched)
            for place, matched in zip(map(places.get, rows), matched_terms, strict=True)
        ]


# ---- queries ---------------------------------------------------------------------------------------------------------


@dataclass
class WeightedQuery(QueryBundle):
    """A question with other texts for the lexical indexes than for the semantic one.

    Attributes:
        lexical_texts: Texts for the lexical indexes, each with the weight of its terms; empty for the question itself.
    """

    lexical_texts: tuple[tuple[str, float], ...] = field(default=(), repr=False)


def lexical_query(bundle: QueryBundle) -> LexicalQuery:
    """Return the query for the lexical indexes: the weighted texts if there are any, or else the question."""
    weighted = bundle.lexical_texts if isinstance(bundle, WeightedQuery) else ()
    return weighted or bundle.query_str


def with_terms(bundle: QueryBundle, texts: Sequence[str], weight: float) -> WeightedQuery:
    """Return the query with further texts for the lexical indexes, whose terms have the given weight."""
    query = lexical_query(bundle)
    base_texts = ((query, 1.0),) if isinstance(query, str) else query
    lexical_texts = (*base_texts, *((text, weight) for text in texts))
    if isinstance(bundle, WeightedQuery):
        return replace(bundle, lexical_texts=lexical_texts)
    return WeightedQuery(
        bundle.query_str, bundle.image_path, bundle.custom_embedding_strs, bundle.embedding, lexical_texts
    )


# ---- base classes ----------------------------------------------------------------------------------------------------


def without_span(method: F) -> F:
    """Mark a method that overrides one of LlamaIndex and calls it, so that it gets no second span."""
    setattr(method, DISPATCHER_SPAN_DECORATED_ATTR, True)
    return method


class CheckedRetriever(BaseRetriever):
    """A retriever that checks the type of the query before LlamaIndex uses it.

    Args:
        callback_manager: Receives LlamaIndex's events; None uses `Settings.callback_manager`.
    """

    def __init__(self, callback_manager: CallbackManager | None = None, **options: Any) -> None:
        super().__init__(callback_manager or Settings.callback_manager, **options)

    @without_span
    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the best nodes for a query.

        Raises:
            InputError: The query is neither a text nor a QueryBundle.
        """
        as_bundle(str_or_query_bundle)
        return super().retrieve(str_or_query_bundle)

    @without_span
    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Asynchronous version of `retrieve`."""
        as_bundle(str_or_query_bundle)
        return await super().aretrieve(str_or_query_bundle)


class RankingRetriever(CheckedRetriever):
    """A retriever that ranks rows first and fetches the nodes of the best ones afterwards.

    A subclass implements `docstore` and `rank`. It also implements `prepare` and `aprepare` if it has to wait for
    something, such as an embedding.
    """

    @property
    @abstractmethod
    def docstore(self) -> SQLiteDocumentStore:
        """The document store with the nodes."""

    # Not abstract: LlamaIndex would make a span of every call, which costs more than ranking a thousand chunks.
    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Rank at least the k best nodes among those that pass the filters."""
        raise NotImplementedError(f"{type(self).__name__} does not rank: implement `rank`.")

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Await what `rank` would block for, such as the query's embedding; return a copy of the query with it."""
        return bundle

    def prepare(self, bundle: QueryBundle) -> QueryBundle:
        """Blocking version of `aprepare`."""
        return bundle

    def prepare_many(self, bundles: list[QueryBundle]) -> list[QueryBundle]:
        """Prepare several queries at once, which is faster than one by one if they must be embedded."""
        return bundles

    def fetch(self, ranking: Ranking, k: int, evidence: Sequence[Evidence] | None = None) -> list[RetrievedChunk]:
        """Return the k best nodes of a ranking with their evidence, by one access to the document store.

        Args:
            ranking: The ranking.
            k: Number of nodes.
            evidence: The evidence of at least k hits; None computes it.
        """
        best = ranking.first(k)
        nodes = self.docstore.get_nodes([node_id for node_id, _ in best])
        hit_evidence = ranking.evidence(k) if evidence is None else evidence
        scored = zip(nodes, best, hit_evidence[: len(nodes)], strict=True)
        # Without validation: validating the fields takes longer than the search.
        return [
            RetrievedChunk.model_construct(rank=rank, node=node, score=score, **legs)
            for rank, (node, (_, score), legs) in enumerate(scored, start=1)
        ]


# ---- capabilities of retrievers --------------------------------------------------------------------------------------


@runtime_checkable
class Responding(Protocol):
    """A retriever that returns a `RetrievalResponse`."""

    def respond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Return the results with their evidence."""
        ...

    async def arespond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Asynchronous version of `respond`."""
        ...


def respond_of(retriever: BaseRetriever, bundle: QueryBundle) -> RetrievalResponse:
    """Return the response of any retriever; one that only returns nodes has no evidence."""
    if isinstance(retriever, Responding):
        return retriever.respond(bundle)
    return RetrievalResponse.of_nodes(bundle.query_str, retriever.retrieve(bundle))


async def arespond_of(retriever: BaseRetriever, bundle: QueryBundle) -> RetrievalResponse:
    """Asynchronous version of `respond_of`."""
    if isinstance(retriever, Responding):
        return await retriever.arespond(bundle)
    return RetrievalResponse.of_nodes(bundle.query_str, await retriever.aretrieve(bundle))


@runtime_checkable
class Specific(Protocol):
    """A retriever that can measure how specific a question is."""

    def specificity(self, text: str) -> float | None:
        """Return the specificity of a text, or None if it is not known."""
        ...


def specificity_of(retriever: BaseRetriever, text: str) -> float | None:
    """Return how specific a text is among the passages of a retriever: 1 if its terms are just enough to identify one.

    The value is the sum of the inverse document frequencies of the text's terms, divided by the logarithm of the number
    of passages N: if terms were independent, `N ** (1 - specificity)` passages would contain all of them. None for a
    retriever without terms.

    Source: Spärck Jones, "A statistical interpretation of term specificity and its application in retrieval", Journal
    of Documentation 28, 1972.
    """
    return retriever.specificity(text) if isinstance(retriever, Specific) else None


# ---- instrumentation -------------------------------------------------------------------------------------------------

_dispatcher = get_dispatcher(__name__)


def reported(
    respond: Callable[Concatenate[R, QueryBundle, P], RetrievalResponse],
) -> Callable[Concatenate[R, QueryBundle, P], RetrievalResponse]:
    """Run a retriever's `respond` in a span with LlamaIndex's retrieval events, which contain the hits.

    `BaseRetriever.retrieve` does this, but `respond` does not call it.
    """

    @_dispatcher.span
    @wraps(respond)
    def with_span(self: R, bundle: QueryBundle, *args: P.args, **options: P.kwargs) -> RetrievalResponse:
        _dispatcher.event(RetrievalStartEvent(str_or_query_bundle=bundle))
        response = respond(self, bundle, *args, **options)
        _dispatcher.event(RetrievalEndEvent(str_or_query_bundle=bundle, nodes=response.to_nodes()))
        return response

    @wraps(respond)
    def wrapper(self: R, bundle: QueryBundle, *args: P.args, **options: P.kwargs) -> RetrievalResponse:
        return (with_span if _has_listener() else respond)(self, bundle, *args, **options)

    return wrapper  # type: ignore[return-value]  # `wraps` gives it the attributes of the other function


def areported(
    arespond: Callable[Concatenate[R, QueryBundle, P], Coroutine[Any, Any, RetrievalResponse]],
) -> Callable[Concatenate[R, QueryBundle, P], Coroutine[Any, Any, RetrievalResponse]]:
    """Asynchronous version of `reported`."""

    @_dispatcher.span
    @wraps(arespond)
    async def with_span(self: R, bundle: QueryBundle, *args: P.args, **options: P.kwargs) -> RetrievalResponse:
        _dispatcher.event(RetrievalStartEvent(str_or_query_bundle=bundle))
        response = await arespond(self, bundle, *args, **options)
        _dispatcher.event(RetrievalEndEvent(str_or_query_bundle=bundle, nodes=response.to_nodes()))
        return response

    @wraps(arespond)
    async def wrapper(self: R, bundle: QueryBundle, *args: P.args, **options: P.kwargs) -> RetrievalResponse:
        return await (with_span if _has_listener() else arespond)(self, bundle, *args, **options)

    return wrapper  # type: ignore[return-value]  # `wraps` gives it the attributes of the other function


def _has_listener() -> bool:
    """Return whether any handler listens; without one the span is left out, as it costs more than ranking."""
    dispatcher: Any = _dispatcher
    while dispatcher.propagate and not _has_handlers(dispatcher):
        dispatcher = dispatcher.parent
    return _has_handlers(dispatcher)


def _has_handlers(dispatcher: Any) -> bool:
    handlers = (*dispatcher.event_handlers, *dispatcher.span_handlers)
    return any(not isinstance(handler, NullEventHandler | NullSpanHandler) for handler in handlers)
