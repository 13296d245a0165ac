"""Base class for the retrievers, and functions that convert and check LlamaIndex queries and send events."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.instrumentation import (  # type: ignore[attr-defined]
    DISPATCHER_SPAN_DECORATED_ATTR,
    get_dispatcher,
)
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_contextual._utils.events import has_listener
from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.analysis import cut_query
from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.search import search
from llama_index_contextual.search.results import RetrievalResponse
from llama_index_contextual.search.search import Query, SearchSettings, require_positive

_SHORT = 1_000  # number of characters that are read in microseconds

F = TypeVar("F", bound=Callable[..., Any])


# ---- questions -------------------------------------------------------------------------------------------------------


@dataclass
class WeightedQuery(QueryBundle):
    """A question that can be searched with different texts in the lexical indexes and in the semantic index.

    Attributes:
        lexical_texts: Texts for the lexical indexes, each with the weight of its terms; if empty, the question is used.
    """

    lexical_texts: tuple[tuple[str, float], ...] = field(default=(), repr=False)


def query_of(bundle: QueryBundle) -> Query:
    """Convert a LlamaIndex query to a `Query`, whose texts are normalised."""
    return Query.of(
        bundle.query_str,
        embedded=bundle.embedding_strs,
        embedding=bundle.embedding,
        lexical=bundle.lexical_texts if isinstance(bundle, WeightedQuery) else (),
    )


def as_bundle(query: object) -> QueryBundle:
    """Return the query as a QueryBundle.

    Raises:
        InputError: The query is neither a string nor a QueryBundle.
    """
    bundle = QueryBundle(query) if isinstance(query, str) else query
    if not isinstance(bundle, QueryBundle):
        raise InputError(f"The query is {_described(query)}: pass a string or a QueryBundle.", value=query)
    if not isinstance(bundle.query_str, str):
        raise InputError(
            f"The query's `query_str` is {_described(bundle.query_str)}: pass a string.", value=bundle.query_str
        )
    return bundle


def as_bundles(queries: object) -> list[QueryBundle]:
    """Return several queries as QueryBundles.

    Raises:
        InputError: The queries are not a list, or one of them is neither a string nor a QueryBundle.
    """
    if isinstance(queries, str | bytes | QueryBundle) or not isinstance(queries, Iterable):
        raise InputError(f"The queries are {_described(queries)}: pass a list.", value=queries)
    return [as_bundle(query) for query in queries]


def limit_query(query: object) -> tuple[QueryBundle, tuple[str, ...]]:
    """Return the query with the normalised part of its texts that is searched, and a warning if the question was cut.

    Raises:
        InputError: The query is empty, or neither a string nor a QueryBundle.
    """
    bundle = as_bundle(query)
    text, notes = search.limit_text(bundle.query_str)
    embedding_texts = bundle.custom_embedding_strs and list(map(cut_query, bundle.custom_embedding_strs))
    if (text, embedding_texts) == (bundle.query_str, bundle.custom_embedding_strs):
        return bundle, notes
    result = copy(bundle)  # keep the class and its fields
    result.query_str, result.custom_embedding_strs = text, embedding_texts
    return result, notes


async def alimit_query(query: object) -> tuple[QueryBundle, tuple[str, ...]]:
    """Asynchronous version of `limit_query`, which reads only long queries in a thread."""
    bundle = as_bundle(query)
    return limit_query(bundle) if len(bundle.query_str) <= _SHORT else await asyncio.to_thread(limit_query, bundle)


def search_nodes(
    bundle: QueryBundle, index: ChunkIndex, settings: SearchSettings, embedder: QueryEmbedder | None = None
) -> list[NodeWithScore]:
    """Search an index and return the results as LlamaIndex nodes, with their evidence."""
    require_positive(settings.k)
    response = search.search(query_of(bundle), index, settings, embedder=embedder)
    return [*RetrievalResponse.of(response).results]


def _described(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


# ---- retrievers ------------------------------------------------------------------------------------------------------


def without_span(method: F) -> F:
    """Mark a method that overrides and calls a LlamaIndex method, so that no second span is created."""
    setattr(method, DISPATCHER_SPAN_DECORATED_ATTR, True)
    return method


def _has_links(nodes: Sequence[NodeWithScore]) -> bool:
    """Return whether LlamaIndex has to follow the links of index nodes, or to remove repeated nodes."""
    return any(isinstance(node.node, IndexNode) for node in nodes) or len({node.node_id for node in nodes}) < len(nodes)


def _without_span(method: F) -> F:
    """Return the method that LlamaIndex has decorated to run it in a span."""
    return cast(F, getattr(method, "__wrapped__", method))


class CheckedRetriever(BaseRetriever):
    """A retriever that checks the type of the query before LlamaIndex uses it.

    Args:
        callback_manager: Manager that receives LlamaIndex's events; None uses `Settings.callback_manager`.
    """

    def __init__(self, callback_manager: CallbackManager | None = None, **options: Any) -> None:
        super().__init__(callback_manager or Settings.callback_manager, **options)

    @without_span
    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the best nodes for a query.

        Raises:
            InputError: The query is neither a string nor a QueryBundle.
        """
        bundle = as_bundle(str_or_query_bundle)
        if self._is_observed():
            return super().retrieve(str_or_query_bundle)
        nodes = _without_span(self._retrieve)(bundle)
        return self._handle_recursive_retrieval(bundle, nodes) if _has_links(nodes) else nodes

    @without_span
    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Asynchronous version of `retrieve`."""
        bundle = as_bundle(str_or_query_bundle)
        if self._is_observed():
            return await super().aretrieve(str_or_query_bundle)
        nodes = await _without_span(self._aretrieve)(bundle)
        return await self._ahandle_recursive_retrieval(bundle, nodes) if _has_links(nodes) else nodes

    def _is_observed(self) -> bool:
        """Return whether anything listens to LlamaIndex's events, which take a part of each search."""
        return bool(self.callback_manager.handlers) or has_listener(_retriever_dispatcher)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [*respond_of(self, query_bundle).results]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [*(await arespond_of(self, query_bundle)).results]


def respond_of(retriever: BaseRetriever, bundle: QueryBundle) -> RetrievalResponse:
    """Return the response of any retriever; if it has no `respond` method, the results have no evidence."""
    respond: Callable[[QueryBundle], RetrievalResponse] | None = getattr(retriever, "respond", None)
    if respond is not None:
        return respond(bundle)
    return RetrievalResponse.of_nodes(bundle.query_str, retriever.retrieve(bundle))


async def arespond_of(retriever: BaseRetriever, bundle: QueryBundle) -> RetrievalResponse:
    """Asynchronous version of `respond_of`."""
    arespond: Callable[[QueryBundle], Any] | None = getattr(retriever, "arespond", None)
    if arespond is not None:
        return cast(RetrievalResponse, await arespond(bundle))
    return RetrievalResponse.of_nodes(bundle.query_str, await retriever.aretrieve(bundle))


def specificity_of(retriever: BaseRetriever, text: str) -> float | None:
    """Return the specificity of a text for a retriever.

    At a specificity of 1, the terms of the text are just enough to identify a single passage.

    The value is the sum of the inverse document frequencies of the text's terms, divided by log(N), where N is the
    number of passages. If terms were independent, `N ** (1 - specificity)` passages would contain all of them. The
    value is None if the retriever does not use terms or has no `specificity` method.

    Source: Spärck Jones, "A statistical interpretation of term specificity and its application in retrieval", Journal
    of Documentation 28, 1972.
    """
    measure: Callable[[str], float | None] | None = getattr(retriever, "specificity", None)
    return None if measure is None else measure(text)


# ---- instrumentation -------------------------------------------------------------------------------------------------

_dispatcher = get_dispatcher(__name__)
_retriever_dispatcher = get_dispatcher(BaseRetriever.__module__)


def with_events(respond: F) -> F:
    """Decorator for `respond` and `arespond` that runs them in a span and sends LlamaIndex's retrieval events.

    `BaseRetriever.retrieve` also does this, but `respond` does not call `retrieve`.
    """

    @wraps(respond)
    def run(self: Any, bundle: QueryBundle, **options: Any) -> RetrievalResponse:
        _dispatcher.event(RetrievalStartEvent(str_or_query_bundle=bundle))
        response: RetrievalResponse = respond(self, bundle, **options)
        _dispatcher.event(RetrievalEndEvent(str_or_query_bundle=bundle, nodes=response.to_nodes()))
        return response

    @wraps(respond)
    async def arun(self: Any, bundle: QueryBundle, **options: Any) -> RetrievalResponse:
        _dispatcher.event(RetrievalStartEvent(str_or_query_bundle=bundle))
        response: RetrievalResponse = await respond(self, bundle, **options)
        _dispatcher.event(RetrievalEndEvent(str_or_query_bundle=bundle, nodes=response.to_nodes()))
        return response

    with_span = _dispatcher.span(arun if inspect.iscoroutinefunction(respond) else run)

    @wraps(respond)
    def wrapper(self: Any, bundle: QueryBundle, **options: Any) -> Any:
        return (with_span if has_listener(_dispatcher) else respond)(self, bundle, **options)

    return cast(F, wrapper)
