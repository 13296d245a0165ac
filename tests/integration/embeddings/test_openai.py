"""Embeddings through LlamaIndex's own OpenAI class, against a real server on the loopback interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import openai
import pytest
from llama_index.embeddings.openai import OpenAIEmbedding

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.embeddings import batching
from llama_index_contextual.embeddings.batching import aembed
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import load_embed_model
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.retrievers import SemanticRetriever
from llama_index_contextual.retrievers import semantic as query_embedding
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from tests.integration.retrievers.corpus import passages, vector_index
from tests.support.embeddings import embed
from tests.support.faults import FaultKind
from tests.support.server import LoopbackProvider

NAME = "openai:text-embedding-3-small"
QUICK = RetryPolicy(attempts=3, base_delay=0.001)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_dimensions=16, embedding_encoding="cl100k_base") as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


async def vectors(texts: list[str], *, policy: RetryPolicy = QUICK) -> np.ndarray:  # type: ignore[type-arg]
    return await aembed(load_embed_model(NAME), texts, name=NAME, policy=policy)


async def test_texts_become_the_models_vectors(provider: LoopbackProvider) -> None:
    texts = ["the pump runs dry", "revenue grew", "the pump\nruns dry"]
    result = await vectors(texts)
    assert result == pytest.approx(np.array([embed(text.replace("\n", " "), 16) for text in texts]), abs=1e-6)
    (record,) = provider.embedding_calls
    assert record.body["model"] == "text-embedding-3-small"


async def test_requests_respect_the_limit_of_inputs(provider: LoopbackProvider) -> None:
    result = await vectors([f"n{n}" for n in range(2 * batching.MAX_INPUTS + 1)])
    assert len(result) == 2 * batching.MAX_INPUTS + 1
    assert [len(record.body["input"]) for record in provider.embedding_calls] == [2048, 2048, 1]


SCRIPTS = {
    "English": "The revenue of the company grew.\n\n\n",
    "German": "Der Umsatz des Unternehmens wuchs über das Vorquartal.\n",
    "Georgian": "კომპანიის შემოსავალი სამი პროცენტით გაიზარდა.\n",
    "code": "\n\n    def f(x):\n\n        return x\n",
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS.keys())
async def test_requests_respect_the_providers_token_limit(text: str, provider: LoopbackProvider) -> None:
    long = text * (4000 // count_tokens(text.replace("\n", " "), encoding="cl100k_base"))
    texts = [long] * 160
    assert len(await vectors(texts)) == len(texts), "nothing was refused"
    sent = [record.usage["prompt_tokens"] for record in provider.embedding_calls]  # type: ignore[index]
    assert {record.status for record in provider.embedding_calls} == {200}
    assert len(sent) > 1
    assert max(sent) <= 300_000
    assert max(sent) > 290_000, "batches are filled"


async def test_the_stock_class_checks_no_limit(provider: LoopbackProvider) -> None:
    stock = OpenAIEmbedding(
        model="text-embedding-3-small", embed_batch_size=2048, api_base=provider.api_base, api_key="k", max_retries=0
    )
    with pytest.raises(openai.BadRequestError, match="max 300000 tokens per request"):
        await stock.aget_text_embedding_batch(["a" + " a" * 7999] * 50)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 8192 tokens"):
        await stock.aget_text_embedding_batch(["a" + " a" * 9000])
    with pytest.raises(openai.BadRequestError, match="cannot be an empty string"):
        await stock.aget_text_embedding_batch([""])


@pytest.mark.parametrize(
    "kind", ["rate_limit", "server_error", "unavailable", "drop", "drop_in_body", "malformed_json"]
)
async def test_a_short_outage_is_retried_without_an_error(kind: FaultKind, provider: LoopbackProvider) -> None:
    provider.fault(kind, times=2, retry_after=0.001)
    assert len(await vectors(["one", "two"])) == 2
    assert len(provider.embedding_calls) == 3


@pytest.mark.parametrize(
    ("kind", "calls", "sentence"),
    [
        ("server_error", 3, "The provider of 'openai:text-embedding-3-small' keeps returning 500 (server error)"),
        ("rate_limit", 3, "keeps returning 429 (rate limit): lower the concurrency, or try again later"),
        ("drop", 3, "cannot be reached: check the address and the network, then try again"),
        ("invalid_key", 1, "refused the API key: check the key in the environment"),
        (
            "model_not_found",
            1,
            "change the setting 'embed_model' to one that it offers",
        ),
        ("insufficient_quota", 1, "has no quota left: top it up, then run the same call again"),
    ],
)
async def test_a_permanent_failure_is_an_error_after_the_last_attempt(
    kind: FaultKind, calls: int, sentence: str, provider: LoopbackProvider
) -> None:
    provider.fault(kind, times=None, retry_after=0.001)
    with pytest.raises(ModelError) as raised:
        await vectors(["one"])
    assert sentence in str(raised.value)
    assert raised.value.setting == "embed_model"
    assert len(provider.embedding_calls) == calls


async def test_a_model_unknown_to_llama_index_is_sent_to_the_provider(provider: LoopbackProvider) -> None:
    model = load_embed_model("openai:text-embedding-9")
    assert len(await aembed(model, ["one"], name="openai:text-embedding-9")) == 1
    assert provider.embedding_calls[0].body["model"] == "text-embedding-9"
    with pytest.raises(
        ModelError, match="does not offer the model 'openai:no-such-model': change the setting 'embed_mo"
    ):
        await aembed(load_embed_model("openai:no-such-model"), ["one"], name="openai:no-such-model")


def test_llama_index_sends_a_failing_call_110_times_and_this_package_follows_its_policy(
    provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.fault("server_error", times=None)
    with pytest.raises(ModelError):
        asyncio.run(vectors(["one"], policy=RetryPolicy(attempts=4, base_delay=0.001)))
    assert len(provider.embedding_calls) == 4

    provider.clear_history()
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    stock = OpenAIEmbedding(api_base=provider.api_base, api_key="k")
    with pytest.raises(openai.InternalServerError):
        stock.get_text_embedding("one")
    assert len(provider.embedding_calls) == 110


# ---- queries ---------------------------------------------------------------------------------------------------------


def retriever(provider: LoopbackProvider) -> SemanticRetriever:
    result = SemanticRetriever(vector_index(passages(), load_embed_model(NAME), SQLiteDocumentStore()))
    provider.clear_history()
    return result


@pytest.mark.usefixtures("lasting_connections")
def test_queries_of_all_loops_and_threads_are_answered_over_kept_connections(provider: LoopbackProvider) -> None:
    ask = retriever(provider)

    async def several(loop: int) -> None:
        for number in range(4):
            assert len(await ask.aretrieve(f"question {loop} {number}")) == len(passages())

    asyncio.run(several(1))
    asyncio.run(several(2))
    for number in range(4):
        assert len(ask.retrieve(f"question 3 {number}")) == len(passages())
    assert len(provider.embedding_calls) == 12
    assert len({record.connection_id for record in provider.embedding_calls}) == 3


def test_a_question_that_is_asked_again_is_not_embedded_again(provider: LoopbackProvider) -> None:
    ask = retriever(provider)
    assert ask.retrieve("the pump runs dry") == asyncio.run(ask.aretrieve("the pump runs dry"))
    assert len(provider.embedding_calls) == 1


async def test_a_query_that_cannot_be_embedded_is_an_error_with_a_message(
    provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_embedding, "_RETRY", QUICK)
    ask = retriever(provider)
    provider.fault("server_error", times=None)
    for run in (lambda: asyncio.to_thread(ask.retrieve, "pump"), lambda: ask.aretrieve("pump")):
        provider.clear_history()
        with pytest.raises(ModelError, match=r"'openai:text-embedding-3-small' keeps returning 500"):
            await run()
        assert len(provider.embedding_calls) == QUICK.attempts
