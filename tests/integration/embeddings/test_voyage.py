"""Voyage's contextual embeddings, against a real server on the loopback interface with Voyage's wire format."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import PrivateAttr

from llama_index_contextual import VoyageContextualEmbedding
from llama_index_contextual._utils.calls import ProviderError, RetryPolicy
from llama_index_contextual.contextualizer.cost import PriceTable
from llama_index_contextual.embeddings.contextual import aembed_documents
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import contextual_model, embedding_identity, load_embed_model
from llama_index_contextual.retrievers.semantic import QueryEmbedder
from tests.support.faults import FaultKind
from tests.support.recorder import PATIENCE
from tests.support.records import CONTEXTUAL_PATH, Answer, Request
from tests.support.server import LoopbackProvider
from tests.support.voyage import contextual_vectors

KEY = "pa-a-key-of-the-tests-0123456789"
NAME = "voyage:voyage-context-3"
QUICK = RetryPolicy(attempts=3, base_delay=0.001)
DOCUMENTS = [["The pump runs dry.", "Close valve 7."], ["Umsatz wächst.", "收入增长。", "🚰"]]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_dimensions=16, require_key=KEY) as running:
        monkeypatch.setenv("VOYAGE_API_KEY", KEY)
        monkeypatch.setenv("VOYAGE_API_BASE", running.api_base)
        yield running


def load() -> VoyageContextualEmbedding:
    model = load_embed_model(NAME)
    assert isinstance(model, VoyageContextualEmbedding)
    return model


async def vectors(documents: list[list[str]], model: VoyageContextualEmbedding | None = None) -> dict[int, Any]:
    found: dict[int, Any] = {}
    async for answer in aembed_documents(model or load(), documents, name=NAME, policy=QUICK):
        found |= answer
    return found


# ---- wire format ---------------------------------------------------------------------------------------------------


async def test_documents_are_sent_as_lists_of_chunks(provider: LoopbackProvider) -> None:
    found = await vectors(DOCUMENTS)
    for at, texts in enumerate(DOCUMENTS):
        assert found[at] == pytest.approx(np.array(contextual_vectors(texts, 16)), abs=1e-6)
    (record,) = provider.history
    assert (record.method, record.path) == ("POST", CONTEXTUAL_PATH)
    assert record.headers["content-type"] == "application/json"
    assert record.body == {
        "inputs": DOCUMENTS,
        "model": "voyage-context-3",
        "input_type": "document",
        "encoding_format": "base64",
    }


async def test_a_query_is_sent_alone_and_as_a_query(provider: LoopbackProvider) -> None:
    expected = pytest.approx(contextual_vectors(["Which valve?"], 16)[0], abs=1e-6)
    assert load().get_query_embedding("Which valve?") == expected
    assert await load().aget_query_embedding("Which valve?") == expected
    for record in provider.history:
        assert record.body["inputs"] == [["Which valve?"]]
        assert record.body["input_type"] == "query"


def test_the_requested_dimensions_are_sent(provider: LoopbackProvider) -> None:
    model = VoyageContextualEmbedding(dimensions=256, api_base=provider.api_base)
    assert len(model.get_document_embeddings([["one"]])[0][0]) == 256
    assert provider.history[0].body["output_dimension"] == 256
    with pytest.raises(ValueError, match="256, 512, 1024 or 2048"):
        VoyageContextualEmbedding(dimensions=100)


def test_vectors_come_as_numbers_too_and_in_any_order(provider: LoopbackProvider) -> None:
    def shuffle(_: Request, answer: Answer) -> None:
        for each in answer.payload["data"]:
            each["data"].reverse()
        answer.payload["data"].reverse()

    provider.tamper = shuffle
    packed = load().get_document_embeddings(DOCUMENTS)

    def unpack(request: Request, answer: Answer) -> None:
        for each, texts in zip(answer.payload["data"], request.body["inputs"], strict=True):
            for item, vector in zip(each["data"], contextual_vectors(texts, 16), strict=True):
                item["embedding"] = vector
        shuffle(request, answer)

    provider.tamper = unpack
    for texts, one, other in zip(DOCUMENTS, packed, load().get_document_embeddings(DOCUMENTS), strict=True):
        assert np.array(one) == pytest.approx(np.array(contextual_vectors(texts, 16)), abs=1e-6)
        assert np.array(other) == pytest.approx(np.array(one), abs=1e-6)


def test_single_texts_never_become_neighbours(provider: LoopbackProvider) -> None:
    load().get_text_embedding_batch(["of one document", "of another"])
    (record,) = provider.history
    assert record.body["inputs"] == [["of one document"], ["of another"]]


async def test_requests_respect_the_limits_of_the_service(provider: LoopbackProvider) -> None:
    long = "The revenue of the company grew. " * 500
    documents = [[f"{at} {long}", long] for at in range(20)] + [[f"short {at}"] for at in range(2_100)]
    assert len(await vectors(documents)) == len(documents)
    assert {record.status for record in provider.history} == {200}
    sent = [record.usage["total_tokens"] for record in provider.history]  # type: ignore[index]
    assert max(sent) <= 32_000
    provider.reset()
    assert len(await vectors(documents, VoyageContextualEmbedding(**_large(provider)))) == len(documents)
    large = [record.usage["total_tokens"] for record in provider.history]  # type: ignore[index]
    assert 32_000 < max(large) <= 120_000
    assert max(len(record.body["inputs"]) for record in provider.history) <= 1_000


def _large(provider: LoopbackProvider) -> dict[str, Any]:
    return {"api_base": provider.api_base, "max_tokens_per_request": 120_000}


# ---- keys and addresses --------------------------------------------------------------------------------------------


def test_the_model_is_loaded_by_name_and_has_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOYAGE_API_KEY", raising=False)
    with pytest.raises(ModelError, match="'voyage:voyage-context-3' needs VOYAGE_API_KEY, which is not set"):
        load_embed_model(NAME)
    named = contextual_model("voyage:voyage-context-4")
    assert named is not None
    assert embedding_identity(named) == "voyage:voyage-context-4"
    assert contextual_model("openai:text-embedding-3-small") is None
    with pytest.raises(ModelError, match="needs VOYAGE_API_KEY, which is not set: set it, or pass api_key="):
        named.get_query_embedding("q")


def test_a_model_that_embeds_texts_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    with pytest.raises(ModelError, match="'voyage-3-large' is not a contextual embedding model: use one such as"):
        load_embed_model("voyage:voyage-3-large")


def test_the_address_follows_the_issuer_of_the_key() -> None:
    for key, address in ((KEY, "https://api.voyageai.com/v1"), ("al-0123456789", "https://ai.mongodb.com/v1")):
        assert VoyageContextualEmbedding(api_key=key)._client_options()["base_url"] == address


async def test_the_key_appears_nowhere(provider: LoopbackProvider, caplog: pytest.LogCaptureFixture) -> None:
    secret = "pa-another-key-9876543210"
    model = VoyageContextualEmbedding(api_key=secret, api_base=provider.api_base)
    texts = [repr(model), str(model), str(model.to_dict()), model.to_json()]
    caplog.set_level(0)
    with pytest.raises(ProviderError) as raised:
        model.get_query_embedding("q")
    error: BaseException | None = raised.value
    while error is not None:
        texts += [repr(error), str(vars(error))]
        error = error.__cause__ or error.__context__
    with pytest.raises(ModelError) as described:
        await vectors([["one"]], model)
    texts += [str(described.value), caplog.text]
    assert provider.history[0].status == 401
    assert not [text for text in texts if secret in text]
    assert "refused the API key" in str(described.value)
    assert secret not in str(VoyageContextualEmbedding.from_dict(model.to_dict()))


async def test_a_key_that_no_header_can_hold_is_not_shown() -> None:
    key = "pa-with-a-line\nbreak-inside-123"
    with pytest.raises(ModelError) as raised:
        await vectors([["one"]], VoyageContextualEmbedding(api_key=key, api_base="http://127.0.0.1:9"))
    assert "break-inside" not in str(raised.value)


def test_a_model_can_be_copied_and_serialised(provider: LoopbackProvider) -> None:
    model = load()
    for other in (model.model_copy(deep=True), VoyageContextualEmbedding.from_dict(model.to_dict())):
        assert other.get_query_embedding("q") == model.get_query_embedding("q")


def test_prices_are_known_by_name() -> None:
    price = PriceTable().price(NAME)
    assert price is not None
    assert price.input == pytest.approx(0.18)


# ---- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["rate_limit", "server_error", "unavailable", "drop", "drop_in_body", "malformed_json"]
)
async def test_a_short_outage_is_retried_without_an_error(kind: FaultKind, provider: LoopbackProvider) -> None:
    provider.fault(kind, times=2, retry_after=0.001)
    assert len(await vectors(DOCUMENTS)) == 2
    assert len(provider.contextual_calls) == 3


@pytest.mark.parametrize(
    ("kind", "calls", "sentence"),
    [
        ("server_error", 3, "The provider of 'voyage:voyage-context-3' keeps returning 500 (server error)"),
        ("rate_limit", 3, "keeps returning 429 (rate limit): lower the concurrency, or try again later"),
        ("drop", 3, "cannot be reached: check the address and the network, then try again"),
        ("invalid_key", 1, "refused the API key: check the key in the environment"),
        ("model_not_found", 1, "change the setting 'embed_model'"),
        ("content_filter_error", 1, "failed: ProviderError: HTTP 400: The response was filtered"),
    ],
)
async def test_a_permanent_failure_is_an_error_after_the_last_attempt(
    kind: FaultKind, calls: int, sentence: str, provider: LoopbackProvider
) -> None:
    provider.fault(kind, times=None, retry_after=0.001)
    with pytest.raises(ModelError) as raised:
        await vectors(DOCUMENTS)
    assert sentence in str(raised.value)
    assert raised.value.setting == "embed_model"
    assert len(provider.contextual_calls) == calls


class ImpatientOnce(VoyageContextualEmbedding):
    """Waits a moment for its first answer, and as long as it takes for all others."""

    _provider: LoopbackProvider = PrivateAttr()
    _asked: int = PrivateAttr(default=0)

    def _client_options(self) -> dict[str, Any]:
        """Return the options of a new client; the second one is made when the first request has arrived."""
        self._asked += 1
        if self._asked > 1:
            self._provider.wait_until(lambda: len(self._provider.contextual_calls) == 1)
        timeout = httpx.Timeout(PATIENCE, read=0.3 if self._asked == 1 else PATIENCE)
        return super()._client_options() | {"timeout": timeout}


async def test_a_late_answer_is_a_timeout_and_sent_again(provider: LoopbackProvider) -> None:
    provider.fault("hang", times=1)
    impatient = ImpatientOnce(api_base=provider.api_base)
    impatient._provider = provider
    assert len(await vectors(DOCUMENTS, impatient)) == 2
    assert len(provider.contextual_calls) == 2
    provider.fault("hang", times=1)
    model = VoyageContextualEmbedding(api_base=provider.api_base, timeout=0.3)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.3 s"):
        model.get_query_embedding("q")


async def test_an_unknown_model_and_too_many_tokens_have_their_advice(provider: LoopbackProvider) -> None:
    gone = VoyageContextualEmbedding(model_name="no-such-context-1", api_base=provider.api_base)
    with pytest.raises(ModelError, match="change the setting 'embed_model'"):
        await vectors(DOCUMENTS, gone)

    class Trusting(VoyageContextualEmbedding):
        def count_tokens(self, text: str) -> int:
            return 1

    with pytest.raises(ModelError, match=r"max allowed tokens is 32000\. Use smaller chunks, or pass"):
        await vectors([["word " * 20_000] * 2], Trusting(api_base=provider.api_base))


def _no_data(answer: Answer) -> None:
    del answer.payload["data"]


def _same_index(answer: Answer) -> None:
    answer.payload["data"][0]["data"][1]["index"] = 0


def _no_index(answer: Answer) -> None:
    del answer.payload["data"][1]["index"]


def _cut_base64(answer: Answer) -> None:
    answer.payload["data"][0]["data"][0]["embedding"] = "AAA"


def _page(answer: Answer) -> None:
    answer.payload = ["<html>"]


def _too_few(answer: Answer) -> None:
    answer.payload["data"].pop()


@pytest.mark.parametrize("change", [_no_data, _same_index, _no_index, _cut_base64, _page, _too_few])
async def test_an_answer_in_another_format_is_an_error(change: Any, provider: LoopbackProvider) -> None:
    provider.tamper = lambda _, answer: change(answer)
    with pytest.raises(ModelError, match=r"is not that of Voyage's API|did not return one vector per chunk") as raised:
        await vectors(DOCUMENTS)
    assert "run the same call again" in str(raised.value)
    assert len(provider.contextual_calls) == 1


async def test_nothing_answers_at_the_address() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))  # nothing listens there, and nothing else can while it is taken
        model = VoyageContextualEmbedding(api_key=KEY, api_base=f"http://127.0.0.1:{used.getsockname()[1]}/v1")
        with pytest.raises(ModelError, match="cannot be reached: check the address and the network"):
            await vectors([["one"]], model)


# ---- clients -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("lasting_connections")
def test_queries_of_all_loops_and_threads_are_answered_over_kept_connections(provider: LoopbackProvider) -> None:
    embedder = QueryEmbedder(load())

    async def several(loop: int) -> None:
        for number in range(3):
            assert len(await embedder.aembed([f"question {loop} {number}"])) == 16

    asyncio.run(several(1))
    asyncio.run(several(2))
    for number in range(3):
        assert len(embedder.embed([f"question 3 {number}"])) == 16
    assert len(provider.contextual_calls) == 9
    assert len({record.connection_id for record in provider.contextual_calls}) == 3


@pytest.mark.usefixtures("lasting_connections")
async def test_the_requests_of_a_run_use_one_connection(provider: LoopbackProvider) -> None:
    model = VoyageContextualEmbedding(api_base=provider.api_base, max_documents_per_request=1)
    await vectors([["one"], ["two"], ["three"]], model)
    assert len(provider.contextual_calls) == 3
    assert len({record.connection_id for record in provider.contextual_calls}) == 1


def test_the_body_of_a_request_is_json_in_utf8(provider: LoopbackProvider) -> None:
    bodies: list[bytes] = []
    provider.tamper = lambda request, _: bodies.append(request.raw)
    load().get_document_embeddings(DOCUMENTS)
    assert json.loads(bodies[0].decode("utf-8"))["inputs"] == DOCUMENTS
