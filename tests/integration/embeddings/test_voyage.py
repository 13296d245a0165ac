"""Voyage's contextual embeddings, against a real server on the loopback interface with Voyage's wire format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llama_index_contextual._utils.calls import ProviderError, RetryPolicy
from llama_index_contextual.embeddings.contextual import aembed_groups
from llama_index_contextual.embeddings.voyage import VoyageContextualEmbedding
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import contextual_model, embedding_identity, load_embed_model
from llama_index_contextual.money.price import Prices
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
    async for answer in aembed_groups(model or load(), documents, name=NAME, policy=QUICK):
        found |= answer
    return found


# ---- wire format ---------------------------------------------------------------------------------------------------


async def test_documents_are_sent_as_lists_of_chunks(provider: LoopbackProvider) -> None:
    raw: list[bytes] = []
    provider.tamper = lambda request, _: raw.append(request.raw)
    found = await vectors(DOCUMENTS)
    for at, texts in enumerate(DOCUMENTS):
        assert found[at].rows == pytest.approx(np.array(contextual_vectors(texts, 16)), abs=1e-6)
    (record,) = provider.history
    assert (record.method, record.path) == ("POST", CONTEXTUAL_PATH)
    assert record.headers["content-type"] == "application/json"
    body = {"inputs": DOCUMENTS, "model": "voyage-context-3", "input_type": "document"}
    assert record.body == json.loads(raw[0].decode("utf-8")) == body


async def test_queries_and_single_texts_are_sent_alone(provider: LoopbackProvider) -> None:
    expected = pytest.approx(contextual_vectors(["Which valve?"], 16)[0], abs=1e-6)
    assert load().get_query_embedding("Which valve?") == expected
    assert await load().aget_query_embedding("Which valve?") == expected
    for record in provider.history:
        assert (record.body["inputs"], record.body["input_type"]) == ([["Which valve?"]], "query")
    load().get_text_embedding_batch(["of one document", "of another"])
    assert provider.history[-1].body["inputs"] == [["of one document"], ["of another"]]


def test_vectors_come_in_any_order(provider: LoopbackProvider) -> None:
    def shuffle(_: Request, answer: Answer) -> None:
        for each in answer.payload["data"]:
            each["data"].reverse()
        answer.payload["data"].reverse()

    provider.tamper = shuffle
    for texts, vectors in zip(DOCUMENTS, load().get_document_embeddings(DOCUMENTS), strict=True):
        assert np.array(vectors) == pytest.approx(np.array(contextual_vectors(texts, 16)), abs=1e-6)


async def test_requests_respect_the_limits_of_the_service(provider: LoopbackProvider) -> None:
    long = "The revenue of the company grew. " * 500
    documents = [[f"{at} {long}", long] for at in range(20)] + [[f"short {at}"] for at in range(1_050)]
    for least, most in ((0, 32_000), (32_000, 120_000)):
        model = VoyageContextualEmbedding(api_base=provider.api_base, max_tokens_per_request=most)
        assert len(await vectors(documents, model)) == len(documents)
        assert {record.status for record in provider.history} == {200}
        sent = [record.usage["total_tokens"] for record in provider.history]  # type: ignore[index]
        assert least < max(sent) <= most
        assert max(len(record.body["inputs"]) for record in provider.history) <= 1_000
        provider.reset()


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
    assert Prices().price(NAME).input == pytest.approx(0.18)  # type: ignore[union-attr]


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


# ---- what goes wrong -----------------------------------------------------------------------------------------------


def test_a_late_answer_is_a_timeout(provider: LoopbackProvider) -> None:
    provider.fault("hang", times=1)
    model = VoyageContextualEmbedding(api_base=provider.api_base, timeout=0.3)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.3 s"):
        model.get_query_embedding("q")


def _changed(place: str, value: Any) -> Any:
    """Return a change of the answer at a place such as `data.0.index`; None deletes."""

    def change(answer: Answer) -> None:
        *path, last = (int(key) if key.isdigit() else key for key in place.split("."))
        target: Any = answer.payload
        for key in path:
            target = target[key]
        if value is None:
            del target[last]
        else:
            target[last] = value

    return change


def _page(answer: Answer) -> None:
    answer.payload = ["<html>"]


CHANGES = [
    _page,
    _changed("data", None),
    _changed("data.1", None),
    _changed("data.1.index", None),
    _changed("data.0.data.0.embedding", None),
]


@pytest.mark.parametrize("change", CHANGES)
async def test_an_answer_in_another_format_is_an_error(change: Any, provider: LoopbackProvider) -> None:
    provider.tamper = lambda _, answer: change(answer)
    with pytest.raises(ModelError, match=r"is not that of Voyage's API|did not return one vector") as raised:
        await vectors(DOCUMENTS)
    assert "run the same call again" in str(raised.value)
    assert len(provider.contextual_calls) == 1
