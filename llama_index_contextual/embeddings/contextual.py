"""Contextual embedding models, which embed all chunks of a document in one request, each with its neighbours in view.

A model of another provider is a subclass of `ContextualEmbedding`. `document_parts` decides which chunks are embedded
together, and `aembed_documents` sends them request by request. The vector of a chunk depends on all chunks that it was
embedded with, so the ledger keys it by all of them: see `document_keys` in `index/ledger.py`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from functools import partial
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
    TIMES,
    Booking,
    book_nothing,
    embedding_tokens,
    one_request,
    stacked,
    unit_vectors,
)
from llama_index_contextual.errors import InputError, ModelError


class ContextualEmbedding(BaseEmbedding):
    """Base class of embedding models that embed the chunks of a document together.

    A subclass implements `_get_document_embeddings`, which sends one request, and `_get_query_embedding`. It should
    also implement their asynchronous versions; otherwise they run in a thread. The limits are fields, so that a
    subclass can set other defaults.

    In a project, and in an `IngestionPipeline`, the chunks of a document are embedded together. A method for single
    texts, such as `get_text_embedding_batch`, embeds each text without neighbours, because the texts may belong to
    different documents. `VectorStoreIndex` calls it for nodes without an embedding, so embed the nodes beforehand:
    `VectorStoreIndex(model(nodes), embed_model=model)`.

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

    dimensions: int | None = Field(default=None, description="Requested length of the vectors; None: the model's.")
    max_tokens_per_document: int = Field(
        default=32_000, gt=0, description="Maximum number of tokens that are embedded together."
    )
    max_tokens_per_request: int = Field(default=120_000, gt=0, description="Maximum number of tokens of a request.")
    max_documents_per_request: int = Field(default=1_000, gt=0, description="Maximum number of lists in a request.")
    max_chunks_per_request: int = Field(default=16_000, gt=0, description="Maximum number of chunks in a request.")

    # ---- One request, implemented by subclasses --------------------------------------------------------------------

    @abstractmethod
    def _get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        """Return one vector per chunk of documents that fit into one request."""

    async def _aget_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        return await asyncio.to_thread(self._get_document_embeddings, documents)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text for the limits; by default as counted by OpenAI's embedding models."""
        return embedding_tokens(text)

    # ---- Documents -------------------------------------------------------------------------------------------------

    def get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        """Return the vectors of the chunks of each document, in as few requests as the limits allow.

        A document that exceeds the limits is split into parts, which are embedded separately.

        Args:
            documents: The chunks of each document, in the order of the text; none of them empty.

        Raises:
            InputError: A chunk is longer than the model accepts; nothing is sent.
            ModelError: The model did not return one vector per chunk.
        """
        parts, requests = self._plan(documents)
        answers: list[list[list[float]]] = []
        for request in requests:
            sent = [parts[at] for at in request]
            answers += require_shape(self._get_document_embeddings(sent), sent, name=self.model_name)
        return _joined(answers, documents)

    async def aget_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        """Asynchronous version of `get_document_embeddings`."""
        parts, requests = await asyncio.to_thread(self._plan, documents)
        answers: list[list[list[float]]] = []
        for request in requests:
            sent = [parts[at] for at in request]
            answers += require_shape(await self._aget_document_embeddings(sent), sent, name=self.model_name)
        return _joined(answers, documents)

    def _plan(self, documents: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[range]]:
        """Return the parts of documents, and for each request the indices of its parts."""
        counts = [[self.count_tokens(text) for text in texts] for texts in documents]
        cuts = [_cut(each, range(len(each)), self) for each in counts]
        parts = [list(texts[cut]) for texts, all_cuts in zip(documents, cuts, strict=True) for cut in all_cuts]
        sizes = [
            (sum(each[cut]), cut.stop - cut.start)
            for each, all_cuts in zip(counts, cuts, strict=True)
            for cut in all_cuts
        ]
        return parts, list(_requests(sizes, self))

    # ---- Single texts ----------------------------------------------------------------------------------------------

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

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
    """Return the vectors of parts by document."""
    vectors = iter([vector for part in parts for vector in part])
    return [[next(vectors) for _ in texts] for texts in documents]


def require_shape(
    answer: Sequence[Sequence[Any]], documents: Sequence[Sequence[str]], *, name: str
) -> list[list[list[float]]]:
    """Return the vectors that a model returned if there is one per chunk.

    Raises:
        ModelError: There are too many or too few.
    """
    try:
        lengths = [len(vectors) for vectors in answer]
    except TypeError:
        lengths = []
    if lengths != [len(texts) for texts in documents]:
        raise ModelError(
            f"{name!r} did not return one vector per chunk ({sum(lengths)} for {sum(map(len, documents))} in"
            f" {len(documents)} lists): run the same call again, or choose another embedding model.",
            setting="embed_model",
        )
    return [list(vectors) for vectors in answer]


# ---- Which chunks are embedded together ------------------------------------------------------------------------------


def document_parts(model: ContextualEmbedding, nodes: Sequence[BaseNode], texts: Sequence[str]) -> list[list[int]]:
    """Return the indices of the chunks that are embedded together, in the order of their document.

    These are all chunks of a document. If they exceed the limits of the model, they are split between two segments, or
    within a segment that is too long itself.

    Args:
        model: The model.
        nodes: Chunks of any number of documents.
        texts: The text of each chunk that is embedded.

    Raises:
        InputError: A chunk is longer than the model accepts.
    """
    documents: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        documents.setdefault(node.ref_doc_id or node.node_id, []).append(at)
    parts: list[list[int]] = []
    for places in documents.values():
        places.sort(key=lambda at: getattr(nodes[at], "start_char_idx", None) or 0)
        counts = [model.count_tokens(texts[at]) for at in places]
        segments = [nodes[at].metadata.get(keys.SEGMENT_INDEX) for at in places]
        parts += [places[cut] for cut in _cut(counts, segments, model)]
    return parts


def _cut(counts: Sequence[int], segments: Sequence[object], model: ContextualEmbedding) -> list[slice]:
    """Return the parts of a document with chunks of these lengths; chunks of a segment stay together if possible."""
    limit, most = model.max_tokens_per_document, model.max_chunks_per_request
    limit = min(limit, model.max_tokens_per_request)
    if counts and (longest := max(counts)) > limit:
        raise InputError(
            f"A chunk with its context has {longest} tokens, but {model.model_name!r} accepts at most {limit}: lower"
            f" chunk_size.",
            value=longest,
        )
    blocks: list[list[int]] = []
    for _, group in groupby(range(len(counts)), key=lambda at: segments[at]):
        block = list(group)
        fits = sum(counts[at] for at in block) <= limit and len(block) <= most
        blocks += [block] if fits else [[at] for at in block]
    cuts: list[slice] = []
    start = stop = tokens = 0
    for block in blocks:
        size = sum(counts[at] for at in block)
        if stop > start and (tokens + size > limit or stop - start + len(block) > most):
            cuts.append(slice(start, stop))
            start, tokens = stop, 0
        stop, tokens = stop + len(block), tokens + size
    return [*cuts, slice(start, stop)] if stop > start else cuts


def _requests(sizes: Sequence[tuple[int, int]], model: ContextualEmbedding) -> Iterator[range]:
    """Yield ranges of parts that fit into one request, given the tokens and chunks of each part."""
    start = tokens = chunks = 0
    for at, (size, number) in enumerate(sizes):
        if at > start and (
            tokens + size > model.max_tokens_per_request
            or chunks + number > model.max_chunks_per_request
            or at - start >= model.max_documents_per_request
        ):
            yield range(start, at)
            start, tokens, chunks = at, 0, 0
        tokens, chunks = tokens + size, chunks + number
    if start < len(sizes):
        yield range(start, len(sizes))


# ---- Requests --------------------------------------------------------------------------------------------------------


async def aembed_documents(
    model: ContextualEmbedding,
    documents: Sequence[Sequence[str]],
    *,
    name: str,
    policy: RetryPolicy | None = None,
    booking: Booking = book_nothing,
) -> AsyncGenerator[dict[int, NDArray[np.float32]], None]:
    """Yield the unit vectors of documents request by request: a matrix with one row per chunk, by index.

    A document with vectors that are not finite or all zeros is sent again; a vector that is zero each time stays zero.

    Args:
        model: The model.
        documents: Chunks that are embedded together, as returned by `document_parts`.
        name: Name of the model, as in the settings.
        policy: Retry policy for failed calls.
        booking: Returns, for the tokens of a request, a context manager around each attempt that books its cost.

    Raises:
        ModelError: The model finally failed, did not return one vector per chunk, or returned vectors that are not
            finite.
    """
    policy = policy or RetryPolicy()
    sizes = await asyncio.to_thread(lambda: [(sum(map(model.count_tokens, texts)), len(texts)) for texts in documents])
    # Booked like the tokens of other embedding models, without the margin that `count_tokens` may have for the limits.
    counts = await asyncio.to_thread(lambda: [sum(map(embedding_tokens, texts)) for texts in documents])
    length = model.dimensions
    dimensions: set[int] = set()
    async with own_client(model) as connected:
        for request in _requests(sizes, model):
            todo = list(request)
            for attempt in range(1, TIMES + 1):
                sent = [list(documents[at]) for at in todo]
                send = partial(connected._aget_document_embeddings, sent)
                answer = await one_request(send, name, policy, partial(booking, sum(counts[at] for at in todo)))
                vectors = await asyncio.to_thread(_matrices, require_shape(answer, sent, name=name))
                dimensions.update(matrix.shape[1] if matrix.ndim == 2 else 0 for matrix in vectors)
                if len(dimensions) > 1 or 0 in dimensions or dimensions != {length or max(dimensions)}:
                    raise ModelError(
                        f"{name!r} did not return vectors of {length or 'the same number of'} dimensions: run the same"
                        f" call again, or choose another embedding model.",
                        setting="embed_model",
                    )
                by_index = dict(zip(todo, vectors, strict=True))
                usable = {at: m for at, m in by_index.items() if _is_usable(m, zeros=attempt == TIMES)}
                if usable:
                    yield {at: unit_vectors(matrix) for at, matrix in usable.items()}
                todo = [at for at in todo if at not in usable]
                if not todo:
                    break
            else:
                raise ModelError(
                    f"{name!r} returned vectors that are not finite numbers {TIMES} times: run the same call again, or"
                    f" choose another embedding model.",
                    setting="embed_model",
                )


def _matrices(answer: Iterable[Sequence[Sequence[float]]]) -> list[NDArray[np.float32]]:
    return [stacked(rows) for rows in answer]


def _is_usable(matrix: NDArray[np.float32], *, zeros: bool) -> bool:
    return bool(np.isfinite(matrix).all() and (zeros or matrix.any(axis=1).all()))
