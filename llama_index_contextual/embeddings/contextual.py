"""Contextual embedding models, which embed all chunks of a document in one request, taking neighbours into account.

To support a model from another provider, write a subclass of `ContextualEmbedding`. `document_parts` decides which
chunks are embedded together, and `aembed_documents` sends the requests. The vector of a chunk depends on all chunks
that it was embedded with, so all of them are part of its key in the ledger; see `document_keys` in `index/ledger.py`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode
from numpy.typing import NDArray
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual.embeddings.batching import (
    Booking,
    book_nothing,
    embedding_tokens,
    pack,
    require_shape,
    send_checked,
)
from llama_index_contextual.errors import InputError


class BatchEmbedding(BaseEmbedding):
    """Base class for embedding models that embed texts in batches, in a thread for asynchronous callers.

    A subclass implements `_get_text_embeddings` and `_get_query_embedding`.
    """

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)


class ContextualEmbedding(BatchEmbedding):
    """Base class for embedding models that embed the chunks of a document together.

    A subclass implements `_get_document_embeddings`, which sends one request, and `_get_query_embedding`. It should
    also implement the asynchronous versions; by default, the synchronous methods run in a thread. The limits are fields
    so that a subclass can set other defaults.

    In a project or an `IngestionPipeline`, the chunks of a document are embedded together. Methods for single texts,
    such as `get_text_embedding_batch`, embed each text without neighbours, because the texts may come from different
    documents. `VectorStoreIndex` uses them for nodes without an embedding, so embed the nodes first:
    `VectorStoreIndex(model(nodes), embed_model=model)`.

    Args:
        dimensions: Requested length of the vectors; None for the model's default.
        max_tokens_per_document: Maximum number of tokens that are embedded together.
        max_tokens_per_request: Maximum number of tokens in a request.
        max_documents_per_request: Maximum number of lists in a request.
        max_chunks_per_request: Maximum number of chunks in a request.

    Example:
        >>> class Neighbours(ContextualEmbedding):
        ...     def _get_document_embeddings(self, documents):
        ...         return [[[len(text), len(document)] for text in document] for document in documents]
        ...     def _get_query_embedding(self, query):
        ...         return [len(query), 1]
        >>> model = Neighbours(model_name="neighbours@1")
        >>> model.get_document_embeddings([["Revenue grew.", "It fell."], ["Costs."]])
        [[[13, 2], [8, 2]], [[6, 1]]]
    """

    dimensions: int | None = None
    max_tokens_per_document: int = Field(default=32_000, gt=0)
    max_tokens_per_request: int = Field(default=120_000, gt=0)
    max_documents_per_request: int = Field(default=1_000, gt=0)
    max_chunks_per_request: int = Field(default=16_000, gt=0)

    # ---- One request, implemented by subclasses --------------------------------------------------------------------

    @abstractmethod
    def _get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        """Return one vector for each chunk of documents that fit into one request."""

    async def _aget_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        return await asyncio.to_thread(self._get_document_embeddings, documents)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens in a text for the limits; the default counts as OpenAI's embedding models do."""
        return embedding_tokens(text)

    # ---- Documents -------------------------------------------------------------------------------------------------

    def get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        """Return the vectors of the chunks of each document, in as few requests as the limits allow.

        A document that exceeds the limits is split into parts, which are embedded separately.

        Args:
            documents: The chunks of each document, in the order of the text; no document may be empty.

        Raises:
            InputError: A chunk is too long for the model; nothing is sent.
            ModelError: The model did not return one vector per chunk.
        """
        answers: list[list[list[float]]] = []
        for sent in self._plan(documents):
            answer = self._get_document_embeddings(sent)
            require_shape(answer, sent, name=self.model_name)
            answers += answer
        return _joined(answers, documents)

    async def aget_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        """Asynchronous version of `get_document_embeddings`."""
        answers: list[list[list[float]]] = []
        for sent in await asyncio.to_thread(self._plan, documents):
            answer = await self._aget_document_embeddings(sent)
            require_shape(answer, sent, name=self.model_name)
            answers += answer
        return _joined(answers, documents)

    def _plan(self, documents: Sequence[Sequence[str]]) -> list[list[list[str]]]:
        """Split documents into parts and group these by request."""
        parts: list[list[str]] = []
        tokens: list[int] = []
        for texts in documents:
            counts = [self.count_tokens(text) for text in texts]
            for part in _cut(counts, range(len(counts)), self):
                parts.append([texts[at] for at in part])
                tokens.append(sum(counts[at] for at in part))
        return [[parts[at] for at in request] for request in _requests(parts, tokens, self)]

    # ---- Single texts ----------------------------------------------------------------------------------------------

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vectors[0] for vectors in self.get_document_embeddings([[text] for text in texts])]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vectors[0] for vectors in await self.aget_document_embeddings([[text] for text in texts])]

    # ---- LlamaIndex transformation ---------------------------------------------------------------------------------

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Set the embeddings of nodes; the chunks of a document are embedded together."""
        texts = _texts(nodes)
        parts = document_parts(self, nodes, texts)
        vectors = self.get_document_embeddings([[texts[at] for at in part] for part in parts])
        return _with_embeddings(nodes, parts, vectors)

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Asynchronous version of calling the model with nodes."""
        texts = _texts(nodes)
        parts = await asyncio.to_thread(document_parts, self, nodes, texts)
        vectors = await self.aget_document_embeddings([[texts[at] for at in part] for part in parts])
        return _with_embeddings(nodes, parts, vectors)


def _texts(nodes: Sequence[BaseNode]) -> list[str]:
    return [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]


def _with_embeddings(
    nodes: Sequence[BaseNode], parts: Sequence[Sequence[int]], vectors: Sequence[Sequence[list[float]]]
) -> Sequence[BaseNode]:
    for part, rows in zip(parts, vectors, strict=True):
        for at, row in zip(part, rows, strict=True):
            nodes[at].embedding = row
    return nodes


def _joined(parts: Iterable[list[list[float]]], documents: Sequence[Sequence[str]]) -> list[list[list[float]]]:
    """Group the vectors of the parts by document."""
    vectors = iter([vector for part in parts for vector in part])
    return [[next(vectors) for _ in texts] for texts in documents]


# ---- Which chunks are embedded together ------------------------------------------------------------------------------


def document_parts(model: ContextualEmbedding, nodes: Sequence[BaseNode], texts: Sequence[str]) -> list[list[int]]:
    """Return lists of the indices of chunks that are embedded together, in document order.

    All chunks of a document are embedded together. If they exceed the model's limits, they are split between segments,
    or within a segment that is too long itself.

    Args:
        model: The model.
        nodes: Chunks of any number of documents.
        texts: The text to embed for each chunk.

    Raises:
        InputError: A chunk is too long for the model.
    """
    documents: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        documents.setdefault(node.ref_doc_id or node.node_id, []).append(at)
    parts: list[list[int]] = []
    for places in documents.values():
        places.sort(key=lambda at: getattr(nodes[at], "start_char_idx", None) or 0)
        counts = [model.count_tokens(texts[at]) for at in places]
        segments = [nodes[at].metadata.get(keys.SEGMENT_INDEX) for at in places]
        parts += [[places[at] for at in part] for part in _cut(counts, segments, model)]
    return parts


def _cut(counts: Sequence[int], segments: Sequence[object], model: ContextualEmbedding) -> list[list[int]]:
    """Return the indices of the chunks in each part of a document; chunks of a segment stay together if possible."""
    limits = min(model.max_tokens_per_document, model.max_tokens_per_request), model.max_chunks_per_request
    if counts and (longest := max(counts)) > limits[0]:
        raise InputError(
            f"A chunk with its context has {longest} tokens, but {model.model_name!r} accepts at most {limits[0]}:"
            f" lower chunk_size.",
            value=longest,
        )

    def weigh(block: list[int]) -> tuple[int, int]:
        return sum(counts[at] for at in block), len(block)

    blocks: list[list[int]] = []
    for _, group in groupby(range(len(counts)), key=lambda at: segments[at]):
        block = list(group)
        fits = all(weight <= limit for weight, limit in zip(weigh(block), limits, strict=True))
        blocks += [block] if fits else [[at] for at in block]
    return [[at for block in part for at in block] for part in pack(blocks, weigh, limits)]


def _requests(
    documents: Sequence[Sequence[str]], tokens: Sequence[int], model: ContextualEmbedding
) -> Iterator[list[int]]:
    """Yield the indices of the documents in each request, given their numbers of tokens."""
    limits = model.max_tokens_per_request, model.max_chunks_per_request, model.max_documents_per_request
    return pack(range(len(documents)), lambda at: (tokens[at], len(documents[at]), 1), limits)


# ---- Requests --------------------------------------------------------------------------------------------------------


async def aembed_documents(
    model: ContextualEmbedding,
    documents: Sequence[Sequence[str]],
    *,
    name: str,
    policy: RetryPolicy | None = None,
    booking: Booking = book_nothing,
) -> AsyncGenerator[tuple[list[int], NDArray[np.float32]], None]:
    """Yield the indices of the documents in each request, and their unit vectors, one row per chunk, in order.

    A document with vectors that are not finite or all zeros is sent again; a vector that is zero every time stays zero.

    Args:
        model: The model.
        documents: Chunks that are embedded together, as returned by `document_parts`.
        name: Name of the model, as in the settings.
        policy: Retry policy for failed calls.
        booking: Returns a context manager that books the cost of a request, given its tokens; entered for each attempt.

    Raises:
        ModelError: The model failed after all retries, did not return one vector per chunk, or returned vectors that
            are not finite.
    """
    sizes = await asyncio.to_thread(lambda: [sum(map(model.count_tokens, texts)) for texts in documents])
    # Booked as for other embedding models, without the margin that `count_tokens` may add for the limits.
    tokens = await asyncio.to_thread(lambda: [sum(map(embedding_tokens, texts)) for texts in documents])
    requests = _requests(documents, sizes, model)
    async with own_client(model) as connected:

        async def send(places: list[int]) -> list[list[list[float]]]:
            return await connected._aget_document_embeddings([list(documents[at]) for at in places])

        async for answer in send_checked(
            send, requests, documents, tokens, name=name, dimensions=model.dimensions, policy=policy, booking=booking
        ):
            yield answer
