"""Contextual embedding models: what is embedded together, within which limits, and what is checked."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from pydantic import Field, PrivateAttr

from llama_index_contextual import ContextualEmbedding
from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.embeddings.contextual import aembed_groups, document_parts
from llama_index_contextual.errors import InputError, ModelError
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import Prices
from llama_index_contextual.money.tokens import EmbeddingUsage
from tests.support.voyage import contextual_vectors

QUICK = RetryPolicy(attempts=3, base_delay=0.001)


class Neighbours(ContextualEmbedding):
    """Vectors that depend on the whole list; a word is a token; remembers its requests."""

    model_name: str = Field(default="neighbours@1")
    _requests: list[list[list[str]]] = PrivateAttr(default_factory=list)
    _answers: list[Any] = PrivateAttr(default_factory=list)

    @property
    def requests(self) -> list[list[list[str]]]:
        return self._requests

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def _get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        self._requests.append(documents)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer or [contextual_vectors(texts, 16) for texts in documents]

    def _get_query_embedding(self, query: str) -> list[float]:
        return contextual_vectors([query], 16)[0]


def chunk(text: str, doc: str, *, segment: int | None = None, start: int | None = None) -> TextNode:
    return TextNode(
        id_=f"{doc}-{text[:20]}-{start}",
        text=text,
        start_char_idx=start,
        metadata={} if segment is None else {"segment_index": segment},
        excluded_embed_metadata_keys=["segment_index"],
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc)},
    )


def parts_of(model: ContextualEmbedding, nodes: list[TextNode]) -> list[list[int]]:
    return document_parts(model, nodes, [node.text for node in nodes])


# ---- what is embedded together -------------------------------------------------------------------------------------


def test_the_chunks_of_a_document_are_embedded_together_in_the_order_of_the_text() -> None:
    nodes = [
        chunk("second", "a", start=10),
        chunk("alone", "b"),
        chunk("first", "a", start=0),
        chunk("third", "a", start=20),
        TextNode(text="no document"),
    ]
    assert parts_of(Neighbours(), nodes) == [[2, 0, 3], [1], [4]]


@pytest.mark.parametrize(
    ("limits", "parts"),
    [
        ({"max_tokens_per_document": 36}, [[0, 1, 2, 3, 4, 5, 6, 7, 8]]),
        ({"max_tokens_per_document": 35}, [[0, 1, 2, 3, 4, 5], [6, 7, 8]]),
        ({"max_tokens_per_document": 23}, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        ({"max_chunks_per_request": 5}, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        ({"max_tokens_per_document": 9}, [[0, 1], [2, 3], [4, 5], [6, 7], [8]]),
    ],
)
def test_a_long_document_is_split_between_segments_and_a_long_segment_between_chunks(
    limits: dict[str, int], parts: list[list[int]]
) -> None:
    nodes = [chunk("w " * 4, "a", segment=at // 3, start=at) for at in range(9)]
    assert parts_of(Neighbours(**limits), nodes) == parts


def test_a_chunk_that_is_too_long_is_an_error_before_anything_is_sent() -> None:
    model = Neighbours(max_tokens_per_document=3)
    message = "A chunk with its context has 4 tokens, but 'neighbours@1' accepts at most 3: lower chunk_size"
    with pytest.raises(InputError, match=message):
        parts_of(model, [chunk("one", "a"), chunk("w w w w", "a")])
    with pytest.raises(InputError, match=message):
        model.get_document_embeddings([["one"], ["w w w w"]])
    assert model.requests == []


@pytest.mark.parametrize("seed", range(30))
def test_parts_keep_to_the_limits_and_cover_each_chunk_once(seed: int) -> None:
    draw = random.Random(seed)
    limit = draw.randint(5, 40)
    model = Neighbours(max_tokens_per_document=limit, max_chunks_per_request=draw.randint(1, 8))
    nodes = [
        chunk("w " * draw.randint(0, 5), doc, segment=at // draw.randint(1, 4), start=at)
        for doc in "abc"
        for at in range(draw.randint(0, 15))
    ]
    parts = parts_of(model, nodes)
    assert sorted(at for part in parts for at in part) == list(range(len(nodes))), seed
    for part in parts:
        assert len({nodes[at].ref_doc_id for at in part}) == 1
        assert part == sorted(part)
        assert sum(len(nodes[at].text.split()) for at in part) <= limit
        assert len(part) <= model.max_chunks_per_request


# ---- the model as a LlamaIndex embedding ---------------------------------------------------------------------------


def test_documents_are_sent_in_requests_within_the_limits_and_returned_whole() -> None:
    documents = [["a b", "c d e"], ["f"], [], ["g h i", "j k l", "m"], ["n"]]
    model = Neighbours(max_tokens_per_document=6, max_tokens_per_request=7, max_documents_per_request=2)
    sync = model.get_document_embeddings(documents)
    assert model.requests == [[["a b", "c d e"], ["f"]], [["g h i", "j k l"], ["m"]], [["n"]]]
    assert [len(vectors) for vectors in sync] == [2, 1, 0, 3, 1]
    assert sync[0] == contextual_vectors(["a b", "c d e"], 16)
    assert model.get_document_embeddings([]) == []


async def test_single_texts_have_no_neighbours() -> None:
    model = Neighbours()
    expected = [contextual_vectors([text], 16)[0] for text in ("one", "two")]
    assert model.get_text_embedding_batch(["one", "two"]) == expected
    assert await model.aget_text_embedding_batch(["one", "two"]) == expected
    for alone in (model.get_text_embedding, model.get_query_embedding):
        assert alone("one") == expected[0]
    for alone in (model.aget_text_embedding, model.aget_query_embedding):
        assert await alone("one") == expected[0]
    assert all(len(texts) == 1 for request in model.requests for texts in request)


async def test_a_pipeline_embeds_the_nodes_of_a_document_together() -> None:
    nodes = [chunk("the pump", "a", start=0), chunk("the valve", "a", start=9), chunk("the pump", "b", start=0)]
    model = Neighbours()
    expected = [*contextual_vectors(["the pump", "the valve"], 16), *contextual_vectors(["the pump"], 16)]
    pipeline = IngestionPipeline(transformations=[model], disable_cache=True)
    for done in (pipeline.run(nodes=nodes), await pipeline.arun(nodes=nodes)):
        assert [node.embedding for node in done] == expected
    requests = len(model.requests)
    index = VectorStoreIndex(done, embed_model=model)
    assert len(model.requests) == requests, "nodes that have an embedding are not embedded again"
    assert index.as_retriever(similarity_top_k=1).retrieve("valve")[0].text == "the valve"


@pytest.mark.parametrize("answer", [[[[1.0]]], [[[1.0], [1.0]], [[1.0]]], [[1.0], [1.0]], [3]])
def test_an_answer_without_one_vector_per_chunk_is_an_error(answer: Any) -> None:
    model = Neighbours()
    model._answers += [answer, answer]
    with pytest.raises(ModelError, match="'neighbours@1' did not return one vector per text"):
        model.get_document_embeddings([["one", "two"]])


# ---- requests of a project -----------------------------------------------------------------------------------------


async def rows(model: ContextualEmbedding, documents: list[list[str]], **options: Any) -> dict[int, Any]:
    found: dict[int, Any] = {}
    async for answer in aembed_groups(model, documents, name="n", policy=QUICK, **options):
        assert not found.keys() & answer.keys()
        found |= answer
    return found


async def test_unit_vectors_are_yielded_request_by_request_and_each_is_charged() -> None:
    model = Neighbours(max_tokens_per_request=4)
    charges: list[int] = []

    class RecordingAccount(Account):
        @asynccontextmanager
        async def embedding(self, model: str, tokens: int) -> AsyncIterator[EmbeddingUsage]:
            charges.append(tokens)
            async with super().embedding(model, tokens) as usage:
                yield usage

    documents = [["a b"], ["c", "d"], ["e f g"]]
    found = await rows(model, documents, account=RecordingAccount(Prices()))
    assert charges == [4, 3], "as counted by OpenAI's embedding models"
    assert sorted(found) == [0, 1, 2]
    for at, texts in enumerate(documents):
        assert found[at].rows == pytest.approx(np.array(contextual_vectors(texts, 16)), abs=1e-6)


@pytest.mark.parametrize("bad", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [1e38, 0.0], [1.0], None, ["x"], []])
async def test_an_unusable_vector_of_a_document_is_refused_alone(bad: Any) -> None:
    model = Neighbours()
    model._answers += 2 * [[[[0.0, 2.0], bad, [3.0, 0.0]]]]  # the document is requested once more
    found = (await rows(model, [["one", "two", "three"]]))[0]
    assert list(found.faults) == [1]
    assert found.rows.tolist() == [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    assert len(model.requests) == 2


async def test_vectors_that_do_not_have_the_requested_length_are_refused() -> None:
    found = await rows(Neighbours(dimensions=8), [["one"]])
    assert found[0].faults == {0: "has 16 dimensions instead of 8"}
    model = Neighbours()
    model._answers.append([[[1.0]]])
    with pytest.raises(ModelError, match="did not return one vector per text"):
        await rows(model, [["one", "two"]])


async def test_failed_requests_are_repeated_and_the_last_error_has_a_message() -> None:
    model = Neighbours()
    model._answers += [ConnectionError("gone"), TimeoutError("late")]
    assert len(await rows(model, [["one"]])) == 1
    model._answers += [ValueError("no such thing")]
    with pytest.raises(ModelError, match="'n' failed: ValueError: no such thing"):
        await rows(model, [["one"]])
