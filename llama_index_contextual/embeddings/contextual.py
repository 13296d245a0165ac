"""Send requests to embedding models, including models that embed all chunks of a document together.

To support a contextual model from another provider, write a subclass of `ContextualEmbedding`. `document_parts` decides
which chunks are embedded together. The vector of a chunk depends on all chunks in the same group, so its key in the
ledger is computed from all of them; see `document_keys` in `index/ledger.py`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import chain, groupby, islice
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode
from numpy.typing import NDArray
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import RetryPolicy, acall, describe
from llama_index_contextual._utils.clients import own_client, sort_vectors
from llama_index_contextual.config import LOCAL
from llama_index_contextual.embeddings.batching import as_matrix, embedding_tokens, pack, unit_vectors
from llama_index_contextual.errors import ContextualError, InputError, ModelError

MAX_TOKENS_PER_REQUEST = 300_000
MAX_TOKENS_PER_INPUT = 8_192

Vectors = NDArray[np.float32]
Booking = Callable[[int], AbstractAsyncContextManager[None]]
"""Function that takes the number of tokens in a request and returns a context manager that records its cost.

The function is called for each attempt.
"""


class BatchEmbedding(BaseEmbedding):
    """Base class for embedding models that embed texts in batches; asynchronous calls run in a thread.

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

    A subclass implements `_get_document_embeddings`, which sends one request, and `_get_query_embedding`; for
    asynchronous callers, both run in a thread. The limits are fields so that a subclass can set other defaults.

    In a project or an `IngestionPipeline`, the chunks of a document are embedded together. Methods for single texts,
    such as `get_text_embedding_batch`, embed each text without neighbours, because the texts may come from different
    documents. `VectorStoreIndex` uses these methods for nodes without an embedding, so embed the nodes first:
    `VectorStoreIndex(model(nodes), embed_model=model)`.

    Args:
        dimensions: Requested length of the vectors; None for the model's default.
        max_tokens_per_document: Maximum number of tokens that are embedded together.
        max_tokens_per_request: Maximum number of tokens in a request.
        max_documents_per_request: Maximum number of documents (lists of chunks) in a request.
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

    @abstractmethod
    def _get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        """Return one vector for each chunk of each document. The documents must fit into one request."""

    def count_tokens(self, text: str) -> int:
        """Count the tokens in a text, for comparison with the limits. By default, OpenAI's tokenizer is used."""
        return embedding_tokens(text)

    def requests_for(self, documents: Sequence[Sequence[str]]) -> Iterator[list[int]]:
        """Distribute documents over requests and yield the indices of the documents in each request.

        No document may exceed the limits.
        """
        limits = self.max_tokens_per_request, self.max_chunks_per_request, self.max_documents_per_request
        tokens = [sum(map(self.count_tokens, texts)) for texts in documents]
        return pack(range(len(documents)), lambda at: (tokens[at], len(documents[at]), 1), limits)

    def get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        """Return the vectors of the chunks of each document, in as few requests as the limits allow.

        A document that exceeds the limits is split into parts, which are embedded separately.

        Args:
            documents: The chunks of each document, in the order of the text.

        Raises:
            InputError: A chunk is too long for the model; nothing is sent.
            ModelError: The model did not return one vector per chunk.
        """
        parts: list[list[str]] = []
        for texts in documents:
            parts += [[texts[at] for at in part] for part in _pack_document(texts, range(len(texts)), self)]
        vectors: list[list[float]] = []
        for request in self.requests_for(parts):
            sent = [parts[at] for at in request]
            answer = self._get_document_embeddings(sent)
            require_shape(answer, sent, name=self.model_name)
            vectors += chain.from_iterable(answer)
        rows = iter(vectors)
        return [[next(rows) for _ in texts] for texts in documents]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vectors[0] for vectors in self.get_document_embeddings([[text] for text in texts])]

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Embed nodes and set their embeddings. The chunks of each document are embedded together."""
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        parts = document_parts(self, nodes, texts)
        vectors = self.get_document_embeddings([[texts[at] for at in part] for part in parts])
        for at, row in zip(chain.from_iterable(parts), chain.from_iterable(vectors), strict=True):
            nodes[at].embedding = row
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Asynchronous version of `__call__`."""
        return await asyncio.to_thread(self, nodes)


# ---- Groups of chunks ------------------------------------------------------------------------------------------------


def document_parts(model: ContextualEmbedding, nodes: Sequence[BaseNode], texts: Sequence[str]) -> list[list[int]]:
    """Group chunks that are embedded together, and return the indices of the chunks in each group.

    The chunks of a document form one group, in the order of the text. If a group exceeds the model's limits, it is
    split between segments, or within a segment that is too long by itself.

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
        segments = [nodes[at].metadata.get(keys.SEGMENT_INDEX) for at in places]
        of_document = _pack_document([texts[at] for at in places], segments, model)
        parts += [[places[at] for at in part] for part in of_document]
    return parts


def _pack_document(texts: Sequence[str], segments: Sequence[object], model: ContextualEmbedding) -> list[list[int]]:
    """Divide a document into parts that respect the model's limits, and return the indices of the chunks in each part.

    Chunks of the same segment are kept together where possible.
    """
    counts = [model.count_tokens(text) for text in texts]
    limits = min(model.max_tokens_per_document, model.max_tokens_per_request), model.max_chunks_per_request
    require_fitting(counts, model.model_name, limits[0])

    def weigh(block: list[int]) -> tuple[int, int]:
        return sum(counts[at] for at in block), len(block)

    blocks: list[list[int]] = []
    for _, group in groupby(range(len(counts)), key=lambda at: segments[at]):
        block = list(group)
        fits = all(weight <= limit for weight, limit in zip(weigh(block), limits, strict=True))
        blocks += [block] if fits else [[at] for at in block]
    return [[at for block in part for at in block] for part in pack(blocks, weigh, limits)]


# ---- Requests --------------------------------------------------------------------------------------------------------


def book_nothing(_tokens: int) -> AbstractAsyncContextManager[None]:
    """Return a context manager that records nothing."""
    return nullcontext()


async def aembed(
    model: BaseEmbedding, texts: Sequence[str], *, name: str, policy: RetryPolicy | None = None
) -> Vectors:
    """Embed texts and return their unit vectors as the rows of a matrix.

    For the arguments and errors, see `aembed_groups`.
    """
    rows: dict[int, Vectors] = {}
    async for answer in aembed_groups(model, [[text] for text in texts], name=name, policy=policy):
        rows.update(answer)
    return np.concatenate([rows[at] for at in range(len(texts))]) if rows else np.zeros((0, 0), dtype=np.float32)


async def aembed_groups(
    model: BaseEmbedding,
    groups: Sequence[Sequence[str]],
    *,
    name: str,
    policy: RetryPolicy | None = None,
    booking: Booking = book_nothing,
) -> AsyncGenerator[dict[int, Vectors], None]:
    """Embed groups of texts and, after each request, yield a mapping of group indices to matrices of unit vectors.

    Each matrix has one row for each text in the group.

    A contextual model embeds the texts of a group together, within its own limits. OpenAI's limits are used for every
    other model except the local model, which has no limits. The local model returns a zero vector for a text without
    known words.

    Args:
        model: Any LlamaIndex embedding.
        groups: The groups, each of which contains the windows of a text, or chunks of a document that are embedded
            together. No group may be empty.
        name: Name of the model, as in the settings.
        policy: Retry policy for failed calls.
        booking: Function that records the cost of each attempt.

    Raises:
        InputError: A text is too long for the model; nothing was sent.
        ModelError: The model failed after all retries, did not return one vector per text, or returned vectors that
            are not finite.
    """
    sizes = [[0] * len(texts) for texts in groups]
    if name != LOCAL:
        sizes = await asyncio.to_thread(lambda: [[*map(embedding_tokens, texts)] for texts in groups])
    tokens = [*map(sum, sizes)]
    if isinstance(model, ContextualEmbedding):
        requests = await asyncio.to_thread(model.requests_for, groups)
    else:
        require_fitting(list(chain.from_iterable(sizes)), name, MAX_TOKENS_PER_INPUT)
        limits = model.embed_batch_size, MAX_TOKENS_PER_REQUEST
        requests = pack(range(len(groups)), lambda at: (len(groups[at]), tokens[at]), limits)
    length = getattr(model, "dimensions", None)
    async with own_client(model) as connected:
        if connected is not model:
            sort_vectors(connected)
        for places in requests:
            sent = [list(groups[at]) for at in places]
            attempt = partial(_send, connected, sent, booking, sum(tokens[at] for at in places))
            vectors = await asyncio.to_thread(_vectors, await _retry(attempt, policy, name), sent, name, length)
            if name != LOCAL and not vectors.any(axis=1).all():
                # Zero vectors may be caused by a provider error, so request them once more.
                vectors = await asyncio.to_thread(_vectors, await _retry(attempt, policy, name), sent, name, length)
            length = vectors.shape[1]
            ends = np.cumsum([len(texts) for texts in sent])[:-1]
            yield dict(zip(places, np.split(vectors, ends), strict=True))


async def _retry(
    attempt: Callable[[], Awaitable[Sequence[Any]]], policy: RetryPolicy | None, name: str
) -> Sequence[Any]:
    """Send one request, with retries, and return the vectors of each group.

    Raises:
        ModelError: The model failed after all retries.
    """
    try:
        return await acall(attempt, policy or RetryPolicy())
    except ContextualError:
        raise
    except Exception as error:  # embedding classes may raise any exception
        raise ModelError(describe(error, setting="embed_model", model=name), setting="embed_model") from error


async def _send(model: BaseEmbedding, groups: list[list[str]], booking: Booking, tokens: int) -> Sequence[Any]:
    """Send one request, without retries, and return the vectors of each group."""
    async with booking(tokens):
        if isinstance(model, ContextualEmbedding):
            return await asyncio.to_thread(model._get_document_embeddings, groups)
        vectors = iter(await model.aget_text_embedding_batch(list(chain.from_iterable(groups))))
        of_groups = [list(islice(vectors, len(texts))) for texts in groups]
        surplus = list(vectors)
        return [*of_groups, surplus] if surplus else of_groups


def _vectors(answer: Sequence[Any], groups: Sequence[Sequence[str]], name: str, dimensions: object) -> Vectors:
    """Check the vectors in a model's answer and return them as unit vectors, one row for each text.

    Raises:
        ModelError: There are too many or too few vectors, or the vectors are not finite or differ in length.
    """
    require_shape(answer, groups, name=name)
    vectors = as_matrix(list(chain.from_iterable(answer)))
    if vectors.ndim != 2 or not vectors.shape[1] or dimensions not in (None, vectors.shape[1]):
        size = dimensions or "the same number of"
        raise ModelError(
            f"{name!r} did not return vectors of {size} dimensions: set the dimensions that the embedding model"
            f" supports, or choose another one.",
            setting="embed_model",
        )
    if not np.isfinite(vectors).all():
        raise ModelError(
            f"{name!r} returned vectors that are not finite numbers: run the same call again, or choose another"
            f" embedding model.",
            setting="embed_model",
        )
    return unit_vectors(vectors)


def require_shape(answer: Sequence[Any], groups: Sequence[Sequence[str]], *, name: str) -> None:
    """Check that a model's answer has one vector for each text of each group.

    Raises:
        ModelError: There are too many or too few vectors.
    """
    try:
        lengths = [len(vectors) for vectors in answer]
    except TypeError:
        lengths = []
    expected = [len(texts) for texts in groups]
    if lengths != expected:
        raise ModelError(
            f"{name!r} did not return one vector per text ({sum(lengths)} for {sum(expected)}): run the same call"
            f" again, or choose another embedding model.",
            setting="embed_model",
        )


def require_fitting(counts: Sequence[int], name: str, limit: int) -> None:
    """Check that no text is too long for an embedding model.

    Args:
        counts: Number of tokens in each text.
        name: Name of the model, for the message.
        limit: Maximum number of tokens that the model accepts.

    Raises:
        InputError: A text is too long.
    """
    if (longest := max(counts, default=0)) > limit:
        raise InputError(
            f"A chunk with its context has {longest} tokens, but {name!r} accepts at most {limit}: lower chunk_size.",
            value=longest,
        )
