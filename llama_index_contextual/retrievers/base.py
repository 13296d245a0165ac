"""What instrumentation sees of a search that answers with its evidence: a span, and LlamaIndex's own events in it.

`BaseRetriever.retrieve` tells as much by itself; `respond` does not go through it.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.instrumentation import (  # type: ignore[attr-defined]
    DISPATCHER_SPAN_DECORATED_ATTR,
    get_dispatcher,
)
from llama_index.core.instrumentation.event_handlers import NullEventHandler
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.span_handlers import NullSpanHandler
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.config import Fusion
from llama_index_contextual.retrievers.bm25 import LexicalQuery, QueryTerms
from llama_index_contextual.retrievers.fusion import Hits, Scale
from llama_index_contextual.retrievers.queries import as_bundle, require_positive
from llama_index_contextual.retrievers.response import LegScore, RetrievalResponse, RetrievedChunk
from llama_index_contextual.storage.docstore import SQLiteDocumentStore

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

_dispatcher = get_dispatcher(__name__)


def _is_heard() -> bool:
    """Return whether anybody listens: a span costs more than ranking a thousand chunks, and is made for nobody else."""
    one: Any = _dispatcher
    while one.propagate and not _has_handlers(one):
        one = one.parent
    return _has_handlers(one)


def _has_handlers(dispatcher: Any) -> bool:
    handlers = (*dispatcher.event_handlers, *dispatcher.span_handlers)
    return any(not isinstance(handler, NullEventHandler | NullSpanHandler) for handler in handlers)


def without_span(method: F) -> F:
    """Return a method that replaces one of LlamaIndex's and calls it, without a second span around it."""
    setattr(method, DISPATCHER_SPAN_DECORATED_ATTR, True)
    return method


def reported(
    respond: Callable[Concatenate[R, QueryBundle, P], RetrievalResponse],
) -> Callable[Concatenate[R, QueryBundle, P], RetrievalResponse]:
    """Return the method of a retriever in a span that carries the hits: id, score, text and metadata of each."""

    @_dispatcher.span
    @wraps(respond)
    def told(self: R, bundle: QueryBundle, *args: P.args, **options: P.kwargs) -> RetrievalResponse:
        _dispatcher.event(RetrievalStartEvent(str_or_query_bundle=bundle))
        found = respond(self, bundle, *args, **options)
        _dispatcher.event(RetrievalEndEvent(str_or_query_bundle=bundle, nodes=found.to_nodes()))
        return found

    @wraps(respond)
    def chosen(self: R, bundle: QueryBundle, *args: P.args, **options: P.kwargs) -> RetrievalResponse:
        return (told if _is_heard() else respond)(self, bundle, *args, **options)

    return chosen  # type: ignore[return-value]  # `wraps` gives it the names of the other


def areported(
    arespond: Callable[Concatenate[R, QueryBundle, P], Coroutine[Any, Any, RetrievalResponse]],
) -> Callable[Concatenate[R, QueryBundle, P], Coroutine[Any, Any, RetrievalResponse]]:
    """Do as `reported` does for a method that is awaited."""

    @_dispatcher.span
    @wraps(arespond)
    async def told(self: R, bundle: QueryBundle, *args: P.args, **options: P.kwargs) -> RetrievalResponse:
        _dispatcher.event(RetrievalStartEvent(str_or_query_bundle=bundle))
        found = await arespond(self, bundle, *args, **options)
        _dispatcher.event(RetrievalEndEvent(str_or_query_bundle=bundle, nodes=found.to_nodes()))
        return found

    @wraps(arespond)
    async def chosen(self: R, bundle: QueryBundle, *args: P.args, **options: P.kwargs) -> RetrievalResponse:
        return await (told if _is_heard() else arespond)(self, bundle, *args, **options)

    return chosen  # type: ignore[return-value]  # `wraps` gives it the names of the other


Evidence = dict[str, LegScore]
"""What each index said of a chunk, by the index's name."""


@dataclass(frozen=True, eq=False)
class DocumentScores:
    """What the documents say of chunks.

    Attributes:
        scores: BM25 score of each chunk's document, 0 without a term of the query; shape (n,).
        ranks: Rank of that document, from 1, equal scores sharing the best one; 0 without a term; shape (n,).
    """

    scores: NDArray[np.float32]
    ranks: NDArray[np.int64]

    def at(self, positions: NDArray[np.intp]) -> DocumentScores:
        """Return what is said of some of the chunks."""
        return DocumentScores(self.scores[positions], self.ranks[positions])


@dataclass(frozen=True)
class FusionSettings:
    """How rankings were fused.

    Attributes:
        by: Reciprocal ranks or scaled scores.
        weights: One for each ranking.
        k: Constant of reciprocal ranks.
        scales: Of the scores, one for each ranking; empty for reciprocal ranks.
        document_weight: Weight of what the documents' names say, in the unit of the fused scores.
        sibling_weight: Weight of the best chunk of a document.
    """

    by: Fusion
    weights: Sequence[float]
    k: float
    scales: Sequence[Scale]
    document_weight: float
    sibling_weight: float


@dataclass(frozen=True, eq=False)
class Trace:
    """A ranking and what it was made of.

    Attributes:
        hits: Rows of the document store and their scores, best first.
        name: Of an index's own ranking; None for a fused one.
        parts: What was fused.
        terms: The query as the lexical index sees it.
        scale: Gives the scale of the scores among those of everything that could have been found: their standard
            deviation counts 1. None where that is not known.
        support: What the documents say of `hits`.
        best: For each of `hits`, the score of the best chunk of its document before it was added; None where the
            documents say nothing.
        recipe: How `parts` were fused.
        warnings: Sentences about what an index left out of the query.
    """

    hits: Hits
    name: str | None = None
    parts: Sequence[Trace] = ()
    terms: QueryTerms | None = None
    scale: Callable[[], Scale] | None = None
    support: DocumentScores | None = None
    best: NDArray[np.float64] | None = None
    recipe: FusionSettings | None = None
    warnings: Sequence[str] = ()

    def leaves(self) -> Iterator[Trace]:
        """Yield the rankings of the indexes themselves."""
        if self.name is not None:
            yield self
        for part in self.parts:
            yield from part.leaves()

    @property
    def query_terms(self) -> QueryTerms | None:
        """The query as the first lexical index that ranked sees it."""
        return next((leaf.terms for leaf in self.leaves() if leaf.terms is not None), None)

    def evidence(self, k: int) -> list[Evidence]:
        """Return what each index, and the documents, said of the k best."""
        rows = self.hits.rows[:k].tolist()
        found: list[Evidence] = [{} for _ in rows]
        for leaf in self.leaves():
            for said, hit in zip(found, leaf._said_of(rows), strict=True):
                if hit is not None and leaf.name is not None:
                    said[leaf.name] = hit
        if self.support is not None:
            supported = zip(self.support.scores[:k].tolist(), self.support.ranks[:k].tolist(), strict=True)
            for said, (score, rank) in zip(found, supported, strict=True):
                if rank:
                    said["document"] = LegScore(score, rank)
        return found

    def _said_of(self, rows: Sequence[int]) -> list[LegScore | None]:
        at = dict(zip(self.hits.rows.tolist(), itertools.count()))
        scores = self.hits.scores.tolist()
        terms = [()] * len(rows) if self.terms is None else self.terms.matched(rows)
        return [
            None if place is None else LegScore(scores[place], place + 1, matched)
            for place, matched in zip(map(at.get, rows), terms, strict=True)
        ]


Ranking = list[tuple[str, float]]
"""(node id, score), best first."""


@dataclass
class WeightedQuery(QueryBundle):
    """A question that the lexical indexes are asked in other words than the semantic one.

    Attributes:
        lexical_texts: What they are asked, with the weight of each text's terms; empty for the question itself.
    """

    lexical_texts: tuple[tuple[str, float], ...] = field(default=(), repr=False)


@runtime_checkable
class Responding(Protocol):
    """A retriever that says more than its nodes."""

    def respond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Return the results with their evidence."""
        ...

    async def arespond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Do as `respond` does, without blocking the event loop."""
        ...


def respond_of(retriever: BaseRetriever, bundle: QueryBundle) -> RetrievalResponse:
    """Return what a retriever of any kind finds."""
    if isinstance(retriever, Responding):
        return retriever.respond(bundle)
    return RetrievalResponse.of_nodes(bundle.query_str, retriever.retrieve(bundle))


async def arespond_of(retriever: BaseRetriever, bundle: QueryBundle) -> RetrievalResponse:
    """Do as `respond_of` does, without blocking the event loop."""
    if isinstance(retriever, Responding):
        return await retriever.arespond(bundle)
    return RetrievalResponse.of_nodes(bundle.query_str, await retriever.aretrieve(bundle))


@runtime_checkable
class Specific(Protocol):
    """A retriever that knows how specific a question is among its passages."""

    def specificity(self, text: str) -> float | None:
        """Return how specific a text is, or None where that is not known."""
        ...


def specificity_of(retriever: BaseRetriever, text: str) -> float | None:
    """Return how specific a text is among the passages of a retriever: 1 where its terms could just single out one.

    It is the sum of the inverse document frequencies of its terms over the logarithm of the number of passages: were
    terms independent, as many passages as `N ** (1 - specificity)` would hold them all. None where a retriever has no
    terms.

    Source: Spärck Jones, "A statistical interpretation of term specificity and its application in retrieval", Journal
    of Documentation 28, 1972.
    """
    return retriever.specificity(text) if isinstance(retriever, Specific) else None


class Hit(NamedTuple):
    """A node of an answer, its score, and what each index said of it."""

    node: BaseNode
    score: float
    evidence: Evidence


class CheckedRetriever(BaseRetriever):
    """A retriever that refuses what is not a query with a sentence, before LlamaIndex looks at it."""

    @without_span
    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes that answer a query best.

        Raises:
            InputError: It is neither a text nor a QueryBundle.
        """
        as_bundle(str_or_query_bundle)
        return super().retrieve(str_or_query_bundle)

    @without_span
    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Do as `retrieve` does, without blocking the event loop."""
        as_bundle(str_or_query_bundle)
        return await super().aretrieve(str_or_query_bundle)


class RankingRetriever(CheckedRetriever):
    """A retriever that can rank without touching a node, and fetch the nodes afterwards.

    A subclass implements `docstore` and `trace`, and `prepare` and `aprepare` when it has something to wait for.
    """

    @property
    @abstractmethod
    def docstore(self) -> SQLiteDocumentStore:
        """Where the nodes are."""

    # Not abstract: LlamaIndex would make a span of every call, which costs more than ranking a thousand chunks.
    def trace(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Trace:
        """Rank at least the k best; only nodes that pass the filters count."""
        raise NotImplementedError(f"{type(self).__name__} does not rank: implement `trace`.")

    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Return the k best (node id, score), best first; only nodes that pass the filters count."""
        hits = self.trace(query, k, filters).hits.first(k)
        ids = self.docstore.ids
        return [(ids[row], score) for row, score in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Await what `trace` would block for, such as the query's embedding; a copy is returned, never a change."""
        return bundle

    def prepare(self, bundle: QueryBundle) -> QueryBundle:
        """Do as `aprepare` does, and block."""
        return bundle

    def prepare_many(self, bundles: list[QueryBundle]) -> list[QueryBundle]:
        """Return the queries with what is cheaper to find out for all of them at once, such as their embeddings."""
        return bundles

    def fetch(self, trace: Trace, k: int, evidence: Sequence[Evidence] | None = None) -> list[Hit]:
        """Return the k best nodes of a ranking by one fetch, with their evidence, which may be known already."""
        hits, ids = trace.hits.first(k), self.docstore.ids
        nodes = self.docstore.get_nodes([ids[row] for row in hits.rows.tolist()])
        said = (trace.evidence(k) if evidence is None else evidence)[: len(nodes)]
        return [Hit(*found) for found in zip(nodes, hits.scores.tolist(), said, strict=True)]

    def search(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> list[NodeWithScore]:
        """Return the k best nodes with their evidence; each index ranks once."""
        trace = self.trace(as_bundle(query), require_positive(k), filters)
        return [RetrievedChunk.made(rank, *found).to_node() for rank, found in enumerate(self.fetch(trace, k), start=1)]


def lexical_query(bundle: QueryBundle) -> LexicalQuery:
    """Return what the lexical indexes are asked: the question, or what a conversation made of it."""
    weighted = bundle.lexical_texts if isinstance(bundle, WeightedQuery) else ()
    return weighted or bundle.query_str


def with_terms(bundle: QueryBundle, texts: Sequence[str], weight: float) -> WeightedQuery:
    """Return the query with the terms of more texts, each at a weight, for the lexical indexes."""
    asked = lexical_query(bundle)
    whole = ((asked, 1.0),) if isinstance(asked, str) else asked
    lexical_texts = (*whole, *((text, weight) for text in texts))
    if isinstance(bundle, WeightedQuery):
        return replace(bundle, lexical_texts=lexical_texts)
    return WeightedQuery(
        bundle.query_str, bundle.image_path, bundle.custom_embedding_strs, bundle.embedding, lexical_texts
    )
