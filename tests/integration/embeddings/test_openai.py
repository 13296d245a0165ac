"""Embeddings through LlamaIndex's own OpenAI class, and outages of it and of Voyage, against a real loopback server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.embeddings import queries as query_embedding
from llama_index_contextual.embeddings.contextual import aembed
from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import load_embed_model
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.retrievers import SemanticRetriever
from tests.integration.retrievers.corpus import PassageIndex, by_meaning, passages
from tests.support.embeddings import embed
from tests.support.faults import FaultKind
from tests.support.server import LoopbackProvider

NAME = "openai:text-embedding-3-small"
QUICK = RetryPolicy(attempts=3, base_delay=0.001)


VOYAGE = "voyage:voyage-context-3"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_dimensions=16, embedding_encoding="cl100k_base") as running:
        for name, address in (("OPENAI", "OPENAI_BASE_URL"), ("VOYAGE", "VOYAGE_API_BASE")):
            monkeypatch.setenv(f"{name}_API_KEY", "sk-test")
            monkeypatch.setenv(address, running.api_base)
        yield running


async def vectors(texts: list[str], name: str = NAME, policy: RetryPolicy = QUICK) -> Any:
    return await aembed(load_embed_model(name), texts, name=name, policy=policy)


async def test_texts_become_the_models_vectors(provider: LoopbackProvider) -> None:
    texts = ["the pump runs dry", "revenue grew", "the pump\nruns dry"]
    result = await vectors(texts)
    assert result == pytest.approx(np.array([embed(text.replace("\n", " "), 16) for text in texts]), abs=1e-6)
    (record,) = provider.embedding_calls
    assert record.body["model"] == "text-embedding-3-small"


async def test_requests_respect_the_limit_of_inputs(provider: LoopbackProvider) -> None:
    result = await vectors([f"n{n}" for n in range(2 * 2_048 + 1)])
    assert len(result) == 2 * 2_048 + 1
    assert [len(record.body["input"]) for record in provider.embedding_calls] == [2048, 2048, 1]


SCRIPTS = {
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


@pytest.mark.parametrize("name", [NAME, VOYAGE])
@pytest.mark.parametrize(
    "kind", ["rate_limit", "server_error", "unavailable", "drop", "drop_in_body", "malformed_json"]
)
async def test_a_short_outage_is_retried_without_an_error(
    kind: FaultKind, name: str, provider: LoopbackProvider
) -> None:
    provider.fault(kind, times=2, retry_after=0.001)
    assert len(await vectors(["one", "two"], name)) == 2
    assert len(provider.history) == 3


FAILURES: dict[FaultKind, tuple[int, str]] = {
    "server_error": (3, "The provider of '{name}' keeps returning 500 (server error)"),
    "rate_limit": (3, "keeps returning 429 (rate limit): lower the concurrency, or try again later"),
    "drop": (3, "cannot be reached: check the address and the network, then try again"),
    "invalid_key": (1, "refused the API key: check the key in the environment"),
    "model_not_found": (1, "change the setting 'embed_model' to one that it offers"),
    "insufficient_quota": (1, "has no quota left: top it up, then run the same call again"),
    "content_filter_error": (1, "The response was filtered"),
}


OF_OPENAI = ("insufficient_quota", "model_not_found")


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((NAME, kind) for kind in FAILURES), *((VOYAGE, kind) for kind in FAILURES if kind not in OF_OPENAI)],
)
async def test_a_permanent_failure_is_an_error_after_the_last_attempt(
    kind: FaultKind, name: str, provider: LoopbackProvider
) -> None:
    provider.fault(kind, times=None, retry_after=0.001)
    calls, sentence = FAILURES[kind]
    with pytest.raises(ModelError) as raised:
        await vectors(["one"], name)
    assert sentence.format(name=name) in str(raised.value)
    assert raised.value.setting == "embed_model"
    assert len(provider.history) == calls


async def test_a_model_unknown_to_llama_index_is_sent_to_the_provider(provider: LoopbackProvider) -> None:
    assert len(await vectors(["one"], "openai:text-embedding-9")) == 1
    assert provider.embedding_calls[0].body["model"] == "text-embedding-9"
    with pytest.raises(
        ModelError, match="does not offer the model 'openai:no-such-model': change the setting 'embed_m"
    ):
        await vectors(["one"], "openai:no-such-model")


@pytest.mark.parametrize("run", ["texts", "query", "async query"])
async def test_a_failing_call_is_repeated_by_our_policy_and_not_by_the_client(
    provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    policy = RetryPolicy(attempts=4, base_delay=0.001)
    monkeypatch.setattr(query_embedding, "_RETRY", policy)
    ask = retriever(provider)
    provider.fault("server_error", times=None)
    calls = {
        "texts": lambda: vectors(["one"], policy=policy),
        "query": lambda: asyncio.to_thread(ask.retrieve, "pump"),
        "async query": lambda: ask.aretrieve("pump"),
    }
    with pytest.raises(ModelError, match=r"'openai:text-embedding-3-small' keeps returning 500"):
        await calls[run]()
    assert len(provider.embedding_calls) == 4


# ---- queries ---------------------------------------------------------------------------------------------------------


def retriever(provider: LoopbackProvider) -> SemanticRetriever:
    model = load_embed_model(NAME)
    result = by_meaning(PassageIndex(passages(), model), model)
    provider.clear_history()
    return result


@pytest.mark.usefixtures("lasting_connections")
def test_queries_of_all_loops_and_threads_are_answered_over_one_connection(provider: LoopbackProvider) -> None:
    embedder = QueryEmbedder(load_embed_model(NAME))

    async def several(loop: int) -> None:
        for number in range(4):
            assert len(await asyncio.to_thread(embedder.embed, [f"question {loop} {number}"])) == 16

    asyncio.run(several(1))
    asyncio.run(several(2))
    for number in range(4):
        assert len(embedder.embed([f"question 3 {number}"])) == 16
    assert len(provider.history) == 12
    assert len({record.connection_id for record in provider.history}) == 1
    assert len(embedder.embed(["question 1 1"])) == 16
    assert len(provider.history) == 12, "a question that is asked again is not embedded again"
