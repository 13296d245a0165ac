"""LlamaIndex's instrumentation events."""

from __future__ import annotations

from typing import Any

from llama_index.core.instrumentation.event_handlers import NullEventHandler
from llama_index.core.instrumentation.span_handlers import NullSpanHandler


def has_listener(dispatcher: Any) -> bool:
    """Return whether a dispatcher of LlamaIndex passes events or spans to any handler.

    Without a handler, no events and spans are created, because that takes longer than ranking.
    """
    while dispatcher.propagate and not _has_handlers(dispatcher):
        dispatcher = dispatcher.parent
    return _has_handlers(dispatcher)


def _has_handlers(dispatcher: Any) -> bool:
    handlers = (*dispatcher.event_handlers, *dispatcher.span_handlers)
    return any(not isinstance(handler, NullEventHandler | NullSpanHandler) for handler in handlers)
