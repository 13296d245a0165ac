"""HTTP clients of models: one per event loop, closed with it; other models are unchanged."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata
from llama_index.embeddings.openai import OpenAIEmbedding
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from llama_index_contextual._utils.calls import RetryPolicy, acall
from llama_index_contextual._utils.clients import PerLoop, own_client, unconnected
from tests.support.models import CountingEmbedding
from tests.support.recorder import PATIENCE
from tests.support.server import LoopbackProvider


@pytest.fixture
def provider() -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_dimensions=8) as running:
        yield running


def embedding(provider: LoopbackProvider, **options: object) -> OpenAIEmbedding:
    return OpenAIEmbedding(api_base=provider.api_base, api_key="k", max_retries=0, **options)  # type: ignore[arg-type]


def connections(provider: LoopbackProvider) -> int:
    return len({record.connection_id for record in provider.embedding_calls})


def test_a_model_without_the_setting_is_used_as_it_is() -> None:
    model = CountingEmbedding()
    assert unconnected(model) is model


@pytest.mark.parametrize("reuse_client", [True, False])
def test_the_users_object_is_not_modified(reuse_client: bool, provider: LoopbackProvider) -> None:
    model = embedding(provider, reuse_client=reuse_client)
    copied = unconnected(model)
    assert copied is not model
    copied.get_query_embedding("x")
    assert (model.reuse_client, model._client, model._aclient) == (reuse_client, None, None)
    assert copied.model_name == model.model_name
    assert copied._text_engine == model._text_engine


async def test_an_own_client_is_closed_at_the_end(provider: LoopbackProvider) -> None:
    async with own_client(embedding(provider)) as model:
        await model.aget_query_embedding("x")
        client = model._aclient
        assert client is not None
        assert not client.is_closed()
    assert client.is_closed()
    async with own_client(embedding(provider)) as unused:
        assert unused._aclient is None


async def test_a_client_of_the_user_stays_open(provider: LoopbackProvider) -> None:
    async with httpx.AsyncClient() as client:
        async with own_client(embedding(provider, async_http_client=client)) as model:
            await model.aget_query_embedding("x")
        assert not client.is_closed


async def test_a_model_without_the_setting_is_not_closed() -> None:
    model = CountingEmbedding()
    async with own_client(model) as copy:
        assert copy is model


class KeepsItsClient(CustomLLM):
    """A model that makes one asynchronous client for all event loops, as Anthropic's class does."""

    _aclient: AsyncOpenAI = PrivateAttr()

    def __init__(self, provider: LoopbackProvider, **options: Any) -> None:
        super().__init__()
        self._aclient = AsyncOpenAI(api_key="k", base_url=provider.api_base, max_retries=0, timeout=PATIENCE, **options)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="kept")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        raise NotImplementedError

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        raise NotImplementedError

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        answer = await self._aclient.embeddings.create(model="kept", input=[prompt])
        return CompletionResponse(text=answer.model)


def test_a_model_with_one_client_for_all_loops_works_only_through_own_client(
    provider: LoopbackProvider,
) -> None:
    model = KeepsItsClient(provider)
    kept = model._aclient

    async def ask() -> bool:
        async with own_client(model) as copy:
            await copy.acomplete("x")
            return bool(copy._aclient.timeout == kept.timeout and copy._aclient.api_key == "k")

    assert [asyncio.run(ask()) for _ in range(3)] == [True, True, True]
    assert len(provider.embedding_calls) == 3, "a call was sent again"
    assert model._aclient is kept
    assert not kept.is_closed()


@pytest.mark.parametrize("kind", [httpx.AsyncClient, DefaultAsyncHttpxClient])
def test_a_client_that_the_user_set_up_keeps_its_certificates_and_headers_in_every_loop(
    kind: type[httpx.AsyncClient], provider: LoopbackProvider
) -> None:
    client = kind(verify=ssl.create_default_context(), headers={"x-team": "pumps"})
    model = KeepsItsClient(provider, http_client=client)

    async def ask() -> bool:
        async with own_client(model) as copy:
            await acall(lambda: copy.acomplete("x"), RetryPolicy())
            return copy._aclient._client is client

    assert [asyncio.run(ask()) for _ in range(2)] == [True, True]
    assert {record.headers["x-team"] for record in provider.embedding_calls} == {"pumps"}
    assert not client.is_closed


def test_a_default_client_is_copied_for_each_loop(provider: LoopbackProvider) -> None:
    model = KeepsItsClient(provider)
    kept, copied = model._aclient._client, unconnected(model)._aclient._client
    assert copied is not kept
    assert type(copied) is type(kept), "and so with the package's own limits of connections"
    assert (copied.base_url, copied.timeout) == (kept.base_url, kept.timeout)


@pytest.mark.parametrize(("scheme", "is_kept"), [("https", True), ("http", False)])
def test_an_ollama_behind_tls_keeps_its_certificates(scheme: str, is_kept: bool) -> None:
    ollama = pytest.importorskip("llama_index.embeddings.ollama", reason="needs llama-index-embeddings-ollama")
    options = {"verify": ssl.create_default_context()}
    model = ollama.OllamaEmbedding(model_name="any", base_url=f"{scheme}://127.0.0.1:1", client_kwargs=options)
    assert (unconnected(model) is model) == is_kept


async def test_a_loop_keeps_one_client(provider: LoopbackProvider) -> None:
    models = PerLoop(lambda: embedding(provider))
    first, *others = await asyncio.gather(*(models.running() for _ in range(5)))
    assert all(other is first for other in others)
    for _ in range(3):
        await (await models.running()).aget_query_embedding("x")
    assert connections(provider) == 1


def test_every_loop_has_its_own_client_and_closes_it(
    provider: LoopbackProvider, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what others have left open
    caplog.clear()
    models = PerLoop(lambda: embedding(provider))
    recorded = []

    async def ask() -> None:
        model = await models.running()
        await model.aget_query_embedding("x")
        recorded.append(model._aclient)

    for _ in range(3):
        asyncio.run(ask())
    assert len({id(client) for client in recorded}) == 3
    assert all(client.is_closed() for client in recorded)
    assert len(models._by_loop) == 1, "loops that ended are forgotten"
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_loops_in_several_threads_do_not_disturb_each_other(provider: LoopbackProvider) -> None:
    models = PerLoop(lambda: embedding(provider))

    async def ask() -> int:
        return len(await (await models.running()).aget_query_embedding("x"))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: asyncio.run(ask()), range(8))) == [8] * 8


async def test_the_model_is_loaded_when_it_is_needed() -> None:
    loaded: list[str] = []
    models = PerLoop(lambda: loaded.append("now") or CountingEmbedding())
    assert loaded == []
    await models.running()
    assert loaded == ["now"]
