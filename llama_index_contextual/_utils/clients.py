"""HTTP clients for models, one for each model and event loop.

LlamaIndex's classes for OpenAI, Anthropic and Ollama keep an asynchronous client that works only in the event loop in
which it was first used. With `reuse_client=False`, the OpenAI classes create a client for each call, which takes tens
of milliseconds of CPU time. Therefore, each event loop gets a copy of the model with its own client. Other models are
used unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.redaction import watch
from llama_index_contextual._utils.replies import check_replies

if TYPE_CHECKING:
    import httpx
    from llama_index.core.schema import BaseComponent

T = TypeVar("T")

LOCAL_TIMEOUT = 600.0
"""Timeout in seconds of a call to a local server, which may have to load a model and run it without a GPU."""

_OLLAMA = frozenset({"Ollama_llm", "OllamaEmbedding"})
_DEFAULT_CLIENT = "AsyncHttpxClientWrapper"
"""Class name of the HTTP client that the OpenAI and Anthropic packages create unless the user passes a client."""
_SECONDS_TO_END = 1.0
"""Seconds to wait for the end of a response after its last event."""
_LOCAL_DOMAINS = (".localhost", ".local", ".lan", ".internal", ".home.arpa")


def address_of(model: object) -> str | None:
    """Return the address of a model's server without the user name or password, or None if it is unknown.

    Example:
        >>> from llama_index.llms.openai import OpenAI
        >>> address_of(OpenAI(api_key="any", api_base="https://me:secret@models.example:8443/v1"))
        'https://models.example:8443/v1'
    """
    names = ("base_url", "api_base", "azure_endpoint")
    address = next((value for name in names if isinstance(value := getattr(model, name, None), str) and value), None)
    if address is None:
        return None
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl() or None


def is_local(address: str | None) -> bool:
    """Return whether the address of a server belongs to this machine or a private network.

    Example:
        >>> is_local("http://127.0.0.1:1234/v1"), is_local("http://gpu:8000"), is_local("https://api.openai.com/v1")
        (True, True, False)
    """
    host = (urlsplit(address).hostname or "") if address else ""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return bool(host) and ("." not in host or host.endswith(_LOCAL_DOMAINS))


def unconnected(model: T) -> T:
    """Return a copy of a model that creates its own clients on first use and keeps them.

    This applies to OpenAI models (recognised by their `reuse_client` field), to Ollama models, and to models with a
    client that can be copied, such as Anthropic models or OpenAI models with a client that the user has passed. A
    synchronous HTTP client that the user has passed to an OpenAI model sends the requests in threads. Other models are
    returned unchanged, as are models with an HTTP client that the user may have configured, because httpx does not
    expose a client's certificates, proxies and transport.

    If the server is local and the timeout is the default of the class, the timeout of the copy is `LOCAL_TIMEOUT`.
    """
    from llama_index.core.schema import BaseComponent

    watch(model)  # every model is passed to this function before its first call
    original: Any = model
    if hasattr(model, "reuse_client") and not _has_passed_client(original):
        result = original.model_copy(update={"reuse_client": True, **_longer_timeout(original)})
        result._client = result._aclient = None
        if getattr(model, "_http_client", None) is not None and getattr(model, "_async_http_client", None) is None:
            result._async_http_client = _in_threads(original._http_client)
    elif isinstance(model, BaseComponent) and _has_plain_ollama(model):
        result = original.model_copy(update=_longer_timeout(original))
        result._async_client = _copy_of_ollama_client(original._async_client)
    elif isinstance(model, BaseComponent) and _is_copyable(getattr(model, "_aclient", None)):
        result = original.model_copy()
        result._aclient = original._aclient.copy(http_client=_http_like(original._aclient._client))
    else:
        return model
    if hasattr(result, "achat"):
        check_replies(result)
    return result  # type: ignore[no-any-return]


def _has_passed_client(model: Any) -> bool:
    """Return whether an OpenAI model has a client that it has not created itself."""
    client = model._aclient if model.reuse_client else None
    return client is not None and (client.api_key, f"{client.base_url}".rstrip("/")) != (
        model.api_key,
        (model.api_base or "").rstrip("/"),
    )


def _longer_timeout(model: BaseComponent) -> dict[str, float]:
    """Return the timeout field with its value for a local server, if it applies."""
    for name in ("timeout", "request_timeout"):
        field = type(model).model_fields.get(name)
        if field is not None and getattr(model, name) == field.default and is_local(address_of(model)):
            return {name: LOCAL_TIMEOUT}
    return {}


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


def _in_threads(client: httpx.Client) -> httpx.AsyncClient:
    """Return an asynchronous client that sends its requests with a synchronous one, which the user has configured."""
    import httpx

    class Body(httpx.AsyncByteStream):
        def __init__(self, response: httpx.Response) -> None:
            self._response = response

        async def __aiter__(self) -> AsyncGenerator[bytes, None]:
            parts = self._response.iter_raw()
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                yield part

        async def aclose(self) -> None:
            await asyncio.to_thread(self._response.close)

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            call = client.build_request(
                request.method,
                request.url,
                headers=request.headers,
                content=await request.aread(),
                extensions=request.extensions,
            )
            response = await asyncio.to_thread(client.send, call, stream=True)
            return httpx.Response(response.status_code, headers=response.headers, stream=Body(response))

    return httpx.AsyncClient(transport=Transport(), timeout=client.timeout, follow_redirects=client.follow_redirects)


def _http_like(client: httpx.AsyncClient) -> httpx.AsyncClient:
    return type(client)(base_url=client.base_url, timeout=client.timeout, follow_redirects=client.follow_redirects)


async def _lend(model: T, *, is_copy: bool) -> AsyncGenerator[T, None]:
    """Yield a model, and close the client of a copy at the end unless the user has passed this client."""
    lent: Any = model
    try:
        yield model
    finally:
        client = getattr(lent, "_aclient", None) or getattr(lent, "_async_client", None)
        if is_copy and client is not None and getattr(lent, "_async_http_client", None) is None:
            await (client.aclose if hasattr(client, "aclose") else client.close)()


def _read_streams_to_the_end(model: Any) -> None:
    """Make the client of an OpenAI model read the end of a streamed response, so that its connection is used again.

    The `openai` package stops reading at the event [DONE], which precedes the end of the response. httpx then closes
    the connection.
    """
    client: Any = model._get_aclient() if hasattr(model, "_get_aclient") else None
    if not hasattr(client, "_make_sse_decoder"):
        return
    make_decoder = client._make_sse_decoder

    def make_reading_decoder() -> Any:
        decoder = make_decoder()
        decode = decoder.aiter_bytes

        async def events(body: AsyncGenerator[bytes, None]) -> AsyncGenerator[Any, None]:
            async for event in decode(body):
                if event.data.startswith("[DONE]"):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_SECONDS_TO_END):
                            async for _ in body:
                                pass
                yield event

        decoder.aiter_bytes = events
        return decoder

    client._make_sse_decoder = make_reading_decoder


def own_client(model: T) -> AbstractAsyncContextManager[T]:
    """Return a context manager for a copy of a LlamaIndex model with its own client, which is closed on exit.

    The copy does not retry calls; the caller does, so that the cost of each attempt is recorded.
    """
    copy = unconnected(model)
    if copy is not model:
        _do_not_retry(copy)
    return asynccontextmanager(_lend)(copy, is_copy=copy is not model)


def _do_not_retry(copy: Any) -> None:
    holders: tuple[Any, ...] = copy, getattr(copy, "_aclient", None)
    for holder in holders:
        if getattr(holder, "max_retries", None):
            holder.max_retries = 0


class PerLoop(Generic[T]):
    """A model for use in any thread and event loop, with a separate client for each event loop.

    Args:
        load: Function that returns the model; called in each event loop on first use.

    Attributes:
        refused: Names of the optional parameters that the server has refused.
    """

    def __init__(self, load: Callable[[], T]) -> None:
        self._load = load
        self._lock = Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[T, None], T]] = {}
        self.refused: set[str] = set()

    async def running(self) -> T:
        """Return the model for the running event loop. Its client is closed at the end of `asyncio.run`."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._by_loop = {key: entry for key, entry in self._by_loop.items() if not key.is_closed()}
            if loop not in self._by_loop:
                model = self._load()
                if (copy := unconnected(model)) is model:
                    return model
                _read_streams_to_the_end(copy)
                # An asynchronous generator is used because `asyncio.run` finalises the loop's generators at the end.
                generator = _lend(copy, is_copy=True)
                self._by_loop[loop] = generator, await anext(generator)  # does not suspend
            return self._by_loop[loop][1]


_shared: dict[int, PerLoop[Any]] = {}  # by the id of the model


def shared_clients(model: T) -> PerLoop[T]:
    """Return the clients of a model, which are shared by all engines and kept as long as the model exists."""
    key = id(model)
    if (clients := _shared.get(key)) is None:
        reference = weakref.ref(model, lambda _: _shared.pop(key, None))
        clients = _shared.setdefault(key, PerLoop(reference))
    return clients
