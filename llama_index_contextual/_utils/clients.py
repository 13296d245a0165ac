"""Models and event loops: which HTTP client a call goes through.

OpenAI's, Anthropic's and Ollama's classes keep the asynchronous client of the event loop that first used it, and fail
in every other; OpenAI's with `reuse_client=False` make a client for each call, which costs tens of milliseconds of CPU
time. So every event loop gets a copy of the model with a client of its own. Other models are used as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseComponent

from llama_index_contextual._utils.forks import keep, new_lock, renewed
from llama_index_contextual._utils.redaction import watch

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

HeaderCallback = Callable[[Mapping[str, str]], None]


_OLLAMA = frozenset({"Ollama_llm", "OllamaEmbedding"})
_MADE_BY_THE_PACKAGE = "AsyncHttpxClientWrapper"
"""What OpenAI's and Anthropic's packages call the HTTP client that they make where the user gives none."""


def unconnected(model: T) -> T:
    """Return a copy of a model that makes its clients when they are first used, and keeps them.

    Other models than those of OpenAI, known by the setting `reuse_client`, of Ollama, and those with a client that can
    be copied, such as Anthropic's, are returned themselves. So are those with an HTTP client that the user has set up,
    or may have: none can be made like it, because httpx does not say by which certificates, proxies and transport it
    connects.
    """
    watch(model)  # every model passes here before it is called
    given: Any = model
    if hasattr(model, "reuse_client"):
        copied = given.model_copy(update={"reuse_client": True})
        copied._client = copied._aclient = None
    elif isinstance(model, BaseComponent) and _has_plain_ollama(model):
        copied = given.model_copy()
        copied._async_client = _another(given._async_client)
    elif isinstance(model, BaseComponent) and _is_copyable(getattr(model, "_aclient", None)):
        copied = given.model_copy()
        copied._aclient = given._aclient.copy(http_client=_http_like(given._aclient._client))
    else:
        return model
    return copied  # type: ignore[no-any-return]


def _has_plain_ollama(model: BaseComponent) -> bool:
    """Return whether this is a model of Ollama that is reached without TLS, or has no client yet."""
    if model.class_name() not in _OLLAMA or not hasattr(model, "_async_client"):
        return False
    return model._async_client is None or model._async_client._client.base_url.scheme == "http"


def _another(client: Any) -> Any:
    """Return a client of Ollama with the address, headers and times of one that another event loop may hold."""
    if client is None:
        return None
    http = client._client
    return type(client)(host=str(http.base_url), headers=dict(http.headers), timeout=http.timeout)


def _is_copyable(client: Any) -> bool:
    """Return whether this is a client of OpenAI's or Anthropic's package with the HTTP client that it made itself."""
    return hasattr(client, "copy") and type(getattr(client, "_client", None)).__name__ == _MADE_BY_THE_PACKAGE


def _http_like(client: httpx.AsyncClient) -> httpx.AsyncClient:
    return type(client)(base_url=client.base_url, timeout=client.timeout, follow_redirects=client.follow_redirects)


async def _lend(model: T, on_headers: HeaderCallback | None = None) -> AsyncGenerator[T, None]:
    lent: Any = unconnected(model)
    if on_headers is not None and lent is not model:
        _watch(lent, on_headers)
    try:
        yield lent
    finally:
        client = getattr(lent, "_aclient", None) or getattr(lent, "_async_client", None)
        # A client that the user brought stays open.
        if lent is not model and client is not None and getattr(lent, "_async_http_client", None) is None:
            await client.close()


def _watch(lent: Any, on_headers: HeaderCallback) -> None:
    """Let `on_headers` see the headers of all answers; a client that the user brought is left as it is."""
    if not hasattr(lent, "_get_aclient") or getattr(lent, "_async_http_client", None) is not None:
        return

    async def on_response(response: Any) -> None:
        on_headers(response.headers)

    http = lent._get_aclient()._client
    http.event_hooks = {**http.event_hooks, "response": [*http.event_hooks["response"], on_response]}


def put_in_order(lent: BaseEmbedding) -> None:
    """Let the vectors of an answer stand in the order of their `index`, of which OpenAI's class takes no notice.

    Args:
        lent: A model with a client of its own; others are left as they are, and so is a client that the user brought.
    """
    given: Any = lent
    if not hasattr(lent, "_get_aclient") or getattr(lent, "_async_http_client", None) is not None:
        return
    if (embeddings := getattr(given._get_aclient(), "embeddings", None)) is None:
        return
    create = embeddings.create

    async def in_order(**options: Any) -> Any:
        answer = await create(**options)
        items = getattr(answer, "data", None) or []
        if sorted(getattr(item, "index", -1) for item in items) == list(range(len(items))):
            items.sort(key=lambda item: item.index)
        return answer

    embeddings.create = in_order


def own_client(model: T, on_headers: HeaderCallback | None = None) -> AbstractAsyncContextManager[T]:
    """Give a copy of a model with a client of its own, which is closed at the end.

    Args:
        model: A LlamaIndex model.
        on_headers: Called with the headers of each answer, where the model's client lets us see them.
    """
    return asynccontextmanager(_lend)(model, on_headers)


class PerLoop(Generic[T]):
    """A model for callers in any thread and event loop; each loop keeps one client until it ends.

    Args:
        load: Gives the model, when it is first needed.
    """

    def __init__(self, load: Callable[[], T]) -> None:
        self._load = load
        self._lock = new_lock()
        self._sync: T | None = None
        self._lent: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[T, None], T]] = {}
        renewed(self)

    def renew_after_fork(self) -> None:
        """Make new clients in a forked child: two processes must not speak over one connection."""
        keep((self._sync, self._lent))
        self._sync, self._lent = None, {}

    def sync(self) -> T:
        """Return the model for blocking calls; its client serves all threads."""
        with self._lock:
            if self._sync is None:
                self._sync = unconnected(self._load())
            return self._sync

    async def running(self) -> T:
        """Return the model for the running event loop; its client is closed when `asyncio.run` ends the loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._lent = {known: lent for known, lent in self._lent.items() if not known.is_closed()}
            if loop not in self._lent:
                # An asynchronous generator, because those are what a loop finishes when it ends.
                generator = _lend(self._load())
                self._lent[loop] = generator, await anext(generator)  # does not suspend
            return self._lent[loop][1]
