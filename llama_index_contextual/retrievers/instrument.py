"""What instrumentation sees of a search that answers with its evidence: a span, and LlamaIndex's own events in it.

`BaseRetriever.retrieve` tells as much by itself; `respond` does not go through it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from llama_index.core.instrumentation import (  # type: ignore[attr-defined]
    DISPATCHER_SPAN_DECORATED_ATTR,
    get_dispatcher,
)
from llama_index.core.instrumentation.event_handlers import NullEventHandler
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.span_handlers import NullSpanHandler
from llama_index.core.schema import QueryBundle

from llama_index_contextual.results import RetrievalResponse

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
