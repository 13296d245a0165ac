"""HTTP clients for models, one for each event loop.

LlamaIndex's classes for OpenAI, Anthropic and Ollama keep an asynchronous client that works only in the event loop in
which it was first used. With `reuse_client=False`, the OpenAI classes create a client for each call, which takes tens
of milliseconds of CPU time. Therefore, each event loop gets a copy of the model with its own client. Other models are
used unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.redaction import watch

if TYPE_CHECKING:
    import httpx
    from llama_index.core.schema import BaseComponent

T = TypeVar("T")

_OLLAMA = frozenset({"Ollama_llm", "OllamaEmbedding"})
_DEFAULT_CLIENT = "AsyncHttpxClientWrapper"
"""Class name of the HTTP client that the OpenAI and Anthropic packages create unless the user passes a client."""


def unconnected(model: T) -> T:
    """Return a copy of a model that creates its own clients on first use and keeps them.

    This applies to OpenAI models (recognised by their `reuse_client` field), to Ollama models, and to models with a
    client that can be copied, such as Anthropic models. Other models are returned unchanged, as are models with an HTTP
    client that the user may have configured, because httpx does not expose a client's certificates, proxies and
    transport.
    """
    from llama_index.core.schema import BaseComponent

    watch(model)  # every model is passed to this function before its first call
    original: Any = model
    if hasattr(model, "reuse_client"):
        copied = original.model_copy(update={"reuse_client": True})
        copied._client = copied._aclient = None
    elif isinstance(model, BaseComponent) and _has_plain_ollama(model):
        copied = original.model_copy()
        copied._async_client = _copy_of_ollama_client(original._async_client)
    elif isinstance(model, BaseComponent) and _is_copyable(getattr(model, "_aclient", None)):
        copied = original.model_copy()
        copied._aclient = original._aclient.copy(http_client=_http_like(original._aclient._client))
    else:
        return model
    return copied  # type: ignore[no-any-return]


def _has_plain_ollama(model: BaseComponent) -> bool:
    """Return whether `model` is an Ollama model whose client does not exist yet or does not use TLS."""
    if model.class_name() not in _OLLAMA or not hasattr(model, "_async_client"):
        return False
    return model._async_client is None or model._async_client._client.base_url.scheme == "http"


def _copy_of_ollama_client(client: Any) -> Any:
    """Return a new Ollama client with the address, headers and timeouts of `client`."""
    if client is None:
        return None
    http = client._client
    return type(client)(host=str(http.base_url), headers=dict(http.headers), timeout=http.timeout)


def _is_copyable(client: Any) -> bool:
    """Return whether `client` is an OpenAI or Anthropic client with the default HTTP client."""
    return hasattr(client, "copy") and type(getattr(client, "_client", None)).__name__ == _DEFAULT_CLIENT


def _http_like(client: httpx.AsyncClient) -> httpx.AsyncClient:
    return type(client)(base_url=client.base_url, timeout=client.timeout, follow_redirects=client.follow_redirects)


async def _lend(model: T, *, retries: bool = True) -> AsyncGenerator[T, None]:
    copy: Any = unconnected(model)
    if copy is not model and not retries:
        holders: tuple[Any, ...] = copy, getattr(copy, "_aclient", None)
        for holder in holders:
            if getattr(holder, "max_retries", None):
                holder.max_retries = 0
    try:
        yield copy
    finally:
        client = getattr(copy, "_aclient", None) or getattr(copy, "_async_client", None)
        # A client passed by the user stays open.
        if copy is not model and client is not None and getattr(copy, "_async_http_client", None) is None:
            await (client.aclose if hasattr(client, "aclose") else client.close)()


def own_client(model: T) -> AbstractAsyncContextManager[T]:
    """Return a context manager for a copy of a LlamaIndex model with its own client, which is closed on exit.

    The copy does not retry calls; the caller does, so that the cost of each attempt is recorded.
    """
    return asynccontextmanager(partial(_lend, retries=False))(model)


class PerLoop(Generic[T]):
    """A model for use in any thread and event loop, with a separate client for each event loop.

    Args:
        load: Function that returns the model; called on first use.
    """

    def __init__(self, load: Callable[[], T]) -> None:
        self._load = load
        self._lock = Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[T, None], T]] = {}

    async def running(self) -> T:
        """Return the model for the running event loop. Its client is closed at the end of `asyncio.run`."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._by_loop = {other: entry for other, entry in self._by_loop.items() if not other.is_closed()}
            if loop not in self._by_loop:
                # An asynchronous generator is used because `asyncio.run` finalises the loop's generators at the end.
                generator = _lend(self._load())
                self._by_loop[loop] = generator, await anext(generator)  # does not suspend
            return self._by_loop[loop][1]
