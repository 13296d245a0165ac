"""What the retrievers share: checked queries, retrieval over an index, capabilities, instrumentation."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

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

from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.retrievers.queries import as_bundle
from llama_index_contextual.search.rank import Evidence, Leg, Ranking, fetched
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


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
    """A retriever that ranks the rows of an index first, and fetches the nodes of the best ones afterwards.

    Attributes:
        similarity_top_k: Number of results of `retrieve`.
    """

    similarity_top_k: int

    @property
    @abstractmethod
    def chunk_index(self) -> ChunkIndex:
        """The index."""

    # Not abstract: LlamaIndex would make a span of every call, which costs more than ranking a thousand chunks.
    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Rank at least the k best nodes among those that pass the filters."""
        leg = self.leg(as_bundle(query), k, filters)
        return Ranking(leg.hits, self.chunk_index.ids, [leg])

    def leg(self, query: QueryBundle, k: int, filters: MetadataFilters | None = None) -> Leg:
        """Rank in the one index of this retriever."""
        raise NotImplementedError(f"{type(self).__name__} does not rank in a single index: implement `leg`.")

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the chunks, which filters can use; none if the index has no document store."""
        docstore = getattr(self.chunk_index, "docstore", None)
        return [] if docstore is None else list(docstore.metadata_keys())

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Await what `rank` would block for, such as the query's embedding; return a copy of the query with it."""
        return bundle

    def prepare(self, bundle: QueryBundle) -> QueryBundle:
        """Blocking version of `aprepare`."""
        return bundle

    def fetch(self, ranking: Ranking, k: int, evidence: Sequence[Evidence] | None = None) -> list[RetrievedChunk]:
        """Return the k best nodes of a ranking with their evidence, read at once; see `search.rank.fetched`."""
        return [RetrievedChunk.of_hit(hit) for hit in fetched(self.chunk_index, ranking, k, evidence)]

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        k = self.similarity_top_k
        return [*self.fetch(self.rank(query_bundle, k), k)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, await self.aprepare(query_bundle))


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
