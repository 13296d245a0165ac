"""Token counts in replies, indexes of vectors, and clients with interfaces like that of OpenAI's client."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import PrivateAttr

from llama_index_contextual.embeddings.replies import check_replies, in_order, record_usage, report_usage, tokens_of
from llama_index_contextual.errors import ModelError
from llama_index_contextual.money.tokens import MAX_REPORTED_TOKENS, EmbeddingUsage
from tests.support.models import CountingEmbedding

COUNTS: list[tuple[object, int | None]] = [
    (7, 7),
    ("7", 7),
    (7.0, 7),
    (MAX_REPORTED_TOKENS, MAX_REPORTED_TOKENS),
    *((bad, None) for bad in (0, -7, 7.5, True, "many", "", "-7", "9" * 5_000, 10**30, float("nan"), None, [7], {})),
]


@pytest.mark.parametrize(("count", "tokens"), COUNTS)
def test_only_plausible_counts_are_read(count: object, tokens: int | None) -> None:
    assert tokens_of({"usage": {"total_tokens": count}}) == tokens
    usage = SimpleNamespace(prompt_tokens=count, total_tokens=None)
    assert tokens_of(SimpleNamespace(usage=usage)) == tokens


def test_the_larger_of_two_counts_is_read() -> None:
    assert tokens_of({"usage": {"prompt_tokens": 5, "total_tokens": 9}}) == 9
    assert tokens_of({"usage": {"prompt_tokens": 5, "total_tokens": "unknown"}}) == 5


@pytest.mark.parametrize(
    "reply",
    [
        {"total_tokens": 7},
        {"prompt_eval_count": 7},
        {"usage": {"input_tokens": 7}},
        {"meta": {"billed_units": {"input_tokens": 7.0}}},
    ],
)
def test_the_counts_of_other_providers_are_read(reply: dict[str, Any]) -> None:
    assert tokens_of(reply) == 7


@pytest.mark.parametrize("reply", [None, "<html>", [], {}, {"usage": 7}, {"usage": []}, {"meta": None}])
def test_a_reply_without_counts_has_none(reply: object) -> None:
    assert tokens_of(reply) is None


# ---- usage of a request ----------------------------------------------------------------------------------------------


async def test_concurrent_requests_get_their_own_counts() -> None:
    async def request(tokens: int) -> EmbeddingUsage:
        usage = EmbeddingUsage()
        with record_usage(usage):
            await asyncio.sleep(0)
            await asyncio.gather(asyncio.to_thread(report_usage, tokens), asyncio.to_thread(report_usage, 1_000))
        return usage

    usages = await asyncio.gather(*(request(tokens) for tokens in range(1, 20)))
    assert [usage.tokens for usage in usages] == [1_000 + tokens for tokens in range(1, 20)]
    report_usage(5)  # outside a request, it does nothing


def test_the_tokens_are_known_only_if_every_reply_has_a_count() -> None:
    assert EmbeddingUsage().tokens is None
    assert EmbeddingUsage(counts=[3, 4]).tokens == 7
    partly = EmbeddingUsage(counts=[3, None])
    assert (partly.tokens, partly.reported) == (None, 3)


# ---- indexes ---------------------------------------------------------------------------------------------------------


def test_vectors_in_any_order_are_sorted() -> None:
    assert in_order([2, 0, 1], lambda index: index, expected=3, name="m") == [0, 1, 2]
    assert in_order([], lambda index: index, expected=0, name="m") == []


@pytest.mark.parametrize(
    ("indexes", "shown"),
    [
        ([0, 0, 1], "0 more than once"),
        ([-1, -2, -3], "-1"),
        ([1, 2, 3], "3"),
        ([0, 1, 10**12], "1000000000000"),
        ([0, None, 2], "None"),
        ([0, True, 2], "True"),
        (["0", "1", "2"], "'0'"),
        ([0.0, 1, 2], "0.0"),
        ([0, [1], 2], "\\[1\\]"),
    ],
)
def test_indexes_other_than_those_of_the_texts_are_refused(indexes: list[object], shown: str) -> None:
    with pytest.raises(ModelError, match=rf"'m' returned vectors with the index {shown} instead of .* 0 to 2"):
        in_order(indexes, lambda index: index, expected=3, name="m")


@pytest.mark.parametrize("indexes", [[0, 1], [0, 1, 2, 3], []])
def test_too_few_or_too_many_vectors_are_refused(indexes: list[int]) -> None:
    with pytest.raises(ModelError, match=rf"'m' did not return one vector per text \({len(indexes)} for 3\)"):
        in_order(indexes, lambda index: index, expected=3, name="m")


# ---- clients ---------------------------------------------------------------------------------------------------------


class Client:
    """A client with an interface like that of Voyage's package."""

    def embed(self, texts: list[str], **_options: Any) -> Any:
        return SimpleNamespace(embeddings=[[1.0, 0.0]] * len(texts), total_tokens=100 * len(texts))


class AsyncClient:
    """A client with an interface like that of Mistral's package."""

    class Embeddings:
        indexes = (0, 1)

        def create(self, **_options: Any) -> Any:
            raise NotImplementedError

        async def create_async(self, *, inputs: list[str]) -> Any:
            data = [SimpleNamespace(index=index, embedding=[1.0, float(index)]) for index in self.indexes]
            return SimpleNamespace(data=data[: len(inputs)], usage=SimpleNamespace(total_tokens=50))

    def __init__(self) -> None:
        self.embeddings = self.Embeddings()


class ForeignEmbedding(BaseEmbedding):
    """An embedding class that keeps both clients."""

    _client: Client = PrivateAttr(default_factory=Client)
    _aclient: AsyncClient = PrivateAttr(default_factory=AsyncClient)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._client.embed([text]).embeddings[0]  # type: ignore[no-any-return]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        reply = await self._aclient.embeddings.create_async(inputs=texts)
        return [item.embedding for item in reply.data]


async def test_clients_of_other_packages_are_checked_in_a_copy_of_the_model() -> None:
    model, usage = ForeignEmbedding(), EmbeddingUsage()
    before = {name: (client, dict(vars(client))) for name, client in model.__pydantic_private__.items()}  # type: ignore[union-attr]
    checking = check_replies(model, "m")
    with record_usage(usage):
        assert await checking.aget_text_embedding_batch(["a", "b"]) == [[1.0, 0.0], [1.0, 1.0]]
        assert checking.get_query_embedding("c") == [1.0, 0.0]
    assert (usage.calls, usage.counts) == (2, [50, 100])
    model._aclient.embeddings.indexes = (1, 0)  # type: ignore[assignment]
    assert await check_replies(model, "m").aget_text_embedding_batch(["a", "b"]) == [[1.0, 0.0], [1.0, 1.0]]
    model._aclient.embeddings.indexes = (1, 2)  # type: ignore[assignment]
    with pytest.raises(ModelError, match="the index 2 instead"):
        await check_replies(model, "m").aget_text_embedding_batch(["a", "b"])
    after = {name: (client, dict(vars(client))) for name, client in model.__pydantic_private__.items()}  # type: ignore[union-attr]
    assert after == before, "the user's object is not changed"


def test_a_model_without_a_known_client_is_returned_unchanged() -> None:
    model = CountingEmbedding()
    assert check_replies(model, "m") is model
