"""HTTP clients of models: one per event loop, closed with it; other models are unchanged."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import ChatMessage, CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata
from llama_index.core.schema import Document
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from llama_index_contextual._utils.calls import RetryPolicy, acall, run_sync
from llama_index_contextual._utils.clients import PerLoop, own_client, shared_clients, unconnected
from llama_index_contextual.answering.streaming import AnswerStream
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding
from tests.support.recorder import PATIENCE
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT


@pytest.fixture
def provider() -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_dimensions=8) as running:
        yield running


def embedding(provider: LoopbackProvider, **options: object) -> OpenAIEmbedding:
    return OpenAIEmbedding(api_base=provider.api_base, api_key="k", max_retries=0, **options)  # type: ignore[arg-type]


def connections(provider: LoopbackProvider) -> int:
    return len({record.connection_id for record in provider.embedding_calls})


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


# ---- clients that engines share --------------------------------------------------------------------------------------

QUESTION = "What does error TS-999 mean?"


def chat_connections(provider: LoopbackProvider) -> int:
    return len({record.connection_id for record in provider.calls()})


@pytest.fixture
def project(tmp_path: Path, provider: LoopbackProvider) -> Project:
    """A project that answers with a model of the provider."""
    llm = OpenAI(model="gpt-4o-mini", api_base=provider.api_base, api_key="k", max_retries=0, reuse_client=False)
    project = ProjectManager(tmp_path).create("p", ProjectConfig.local(), llm=llm)
    project.ingest([Document(id_="pump", text="Error TS-999: the pump runs dry. Close valve V2.")])
    return project


@pytest.mark.usefixtures("lasting_connections")
def test_blocking_answers_of_all_engines_share_a_connection(project: Project, provider: LoopbackProvider) -> None:
    engine = project.as_query_engine()
    for _ in range(3):
        engine.query(QUESTION)
        list(project.as_query_engine(streaming=True).query(QUESTION).response_gen)  # type: ignore[union-attr]
        project.as_chat_engine().chat(QUESTION)
    assert len(provider.calls()) == 9
    assert chat_connections(provider) == 1
    for _ in range(3):
        project.as_query_engine(judge=True).query(QUESTION)
    assert chat_connections(provider) == 2, "the judge runs in a loop of its own while the answer waits"


@pytest.mark.usefixtures("lasting_connections")
async def test_blocking_answers_inside_an_event_loop_share_a_connection(
    project: Project, provider: LoopbackProvider
) -> None:
    for _ in range(3):
        project.as_query_engine().query(QUESTION)  # as in a notebook
    assert chat_connections(provider) == 1
    for _ in range(3):
        await project.as_query_engine().aquery(QUESTION)
    assert chat_connections(provider) == 2


@pytest.mark.usefixtures("lasting_connections")
def test_answers_in_threads_and_in_loops_have_connections_of_their_own(
    project: Project, provider: LoopbackProvider
) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: str(project.as_query_engine().query(QUESTION)), range(12)))
    assert len(set(answers)) == 1
    assert chat_connections(provider) <= 4

    async def ask() -> list[str]:
        engines = [project.as_query_engine() for _ in range(2)]
        return [str(await engine.aquery(QUESTION)) for engine in engines]

    before = chat_connections(provider)
    assert {answer for _ in range(3) for answer in asyncio.run(ask())} == set(answers)
    assert chat_connections(provider) == before + 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.usefixtures("lasting_connections")
def test_a_forked_process_answers_over_a_connection_of_its_own(project: Project, provider: LoopbackProvider) -> None:
    engine = project.as_query_engine()
    answer = str(engine.query(QUESTION))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: libraries have threads
        child = os.fork()
    if child == 0:
        os._exit(7 if str(engine.query(QUESTION)) == answer else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert str(engine.query(QUESTION)) == answer
    assert chat_connections(provider) == 2


def test_the_clients_of_a_model_are_kept_as_long_as_the_model(provider: LoopbackProvider) -> None:
    model = embedding(provider)
    assert shared_clients(model) is shared_clients(model)
    assert shared_clients(embedding(provider)) is not shared_clients(model)

    async def ask(model: OpenAIEmbedding) -> Any:
        copy = await shared_clients(model).running()
        await copy.aget_query_embedding("x")
        return copy._aclient

    client = run_sync(partial(ask, model))
    reference = weakref.ref(shared_clients(model))
    del model
    gc.collect()
    assert reference() is None
    run_sync(partial(asyncio.sleep, 0))  # the loop closes what was left open in it
    assert client.is_closed()


def test_a_model_without_clients_is_not_kept(provider: LoopbackProvider) -> None:
    model = CountingEmbedding()
    reference = weakref.ref(model)
    assert run_sync(shared_clients(model).running) is model
    del model
    gc.collect()
    assert reference() is None


PROGRAM = """
from llama_index.llms.openai import OpenAI
from llama_index_contextual.answering.streaming import AnswerStream
from llama_index_contextual._utils.calls import run_sync
from llama_index.core.llms import ChatMessage
llm = OpenAI(model="gpt-4o-mini", api_base={address!r}, api_key="k", max_retries=0)
for _ in range(2):
    print(run_sync(lambda: AnswerStream(llm).acomplete([ChatMessage("Hello")])).problem)
"""


def test_nothing_is_left_open_at_the_end_of_a_process(provider: LoopbackProvider) -> None:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", PROGRAM.format(address=provider.api_base)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, "None\nNone\n", "")


@pytest.mark.usefixtures("lasting_connections")
def test_a_client_that_the_user_has_passed_is_copied_with_its_key_and_address(provider: LoopbackProvider) -> None:
    client = AsyncOpenAI(api_key="passed", base_url=provider.api_base, default_headers={"x-team": "pumps"})
    llm = OpenAI(model="gpt-4o-mini", api_key="k", api_base="http://127.0.0.1:9/v1", async_openai_client=client)
    for _ in range(2):
        assert run_sync(partial(AnswerStream(llm).acomplete, [ChatMessage("Hello")])).problem is None
    assert {call.headers["x-team"] for call in provider.calls()} == {"pumps"}
    assert chat_connections(provider) == 1
    assert not client.is_closed()


# ---- timeouts --------------------------------------------------------------------------------------------------------


async def test_the_model_is_loaded_when_it_is_needed() -> None:
    loaded: list[str] = []
    models = PerLoop(lambda: loaded.append("now") or CountingEmbedding())
    assert loaded == []
    await models.running()
    assert loaded == ["now"]
