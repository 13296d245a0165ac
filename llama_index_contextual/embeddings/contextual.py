"""Send requests to embedding models, including models that embed all chunks of a document together.

To support a contextual model from another provider, write a subclass of `ContextualEmbedding`. `document_parts` decides
which chunks are embedded together. The vector of a chunk depends on all chunks in the same group, so its key in the
ledger is computed from all of them; see `document_keys` in `index/ledger.py`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from typing import Any, TypeVar

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode
from numpy.typing import NDArray
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import RetryPolicy, acall, describe
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual.config import LOCAL
from llama_index_contextual.embeddings.batching import (
    MAX_LENGTH,
    as_row,
    embedding_tokens,
    fault_of,
    pack,
    unit_vectors,
)
from llama_index_contextual.embeddings.replies import check_replies, count_error, record_usage, require_number
from llama_index_contextual.errors import ContextualError, InputError, ModelError
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.tokens import EmbeddingUsage

MAX_TOKENS_PER_REQUEST = 300_000
MAX_TOKENS_PER_INPUT = 8_192

Vectors = NDArray[np.float32]

T = TypeVar("T")


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
            inputs = [parts[at] for at in request]
            answer = self._get_document_embeddings(inputs)
            require_shape(answer, inputs, name=self.model_name)
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

MOST_UNUSABLE = 16
"""Number of texts, or of documents for a contextual model, without a usable vector in a row after which no more are
sent, because the model seems to be broken."""


@dataclass(frozen=True)
class GroupVectors:
    """Vectors of a group of texts.

    Attributes:
        rows: Unit vectors, one row for each text; the rows of unusable vectors contain zeros.
        faults: What is wrong with each unusable vector, by row.
    """

    rows: Vectors
    faults: Mapping[int, str]

    @property
    def has_usable(self) -> bool:
        """Whether at least one vector is usable."""
        return len(self.faults) < len(self.rows)


async def aembed(
    model: BaseEmbedding, texts: Sequence[str], *, name: str, policy: RetryPolicy | None = None
) -> Vectors:
    """Embed texts and return their unit vectors as the rows of a matrix.

    For the arguments and errors, see `aembed_groups`.

    Raises:
        ModelError: A vector is unusable.
    """
    rows: dict[int, Vectors] = {}
    async for answer in aembed_groups(model, [[text] for text in texts], name=name, policy=policy):
        for at, vectors in answer.items():
            for fault in vectors.faults.values():
                raise unusable_error(name, fault)
            rows[at] = vectors.rows
    return np.concatenate([rows[at] for at in range(len(texts))]) if rows else np.zeros((0, 0), dtype=np.float32)


async def aembed_groups(
    model: BaseEmbedding,
    groups: Sequence[Sequence[str]],
    *,
    name: str,
    policy: RetryPolicy | None = None,
    account: Account | None = None,
) -> AsyncGenerator[dict[int, GroupVectors], None]:
    """Embed groups of texts and, after each request, yield a mapping of group indices to the vectors of the groups.

    A contextual model embeds the texts of a group together, within its own limits. OpenAI's limits are used for every
    other model except the local model, which has no limits. The local model returns a zero vector for a text without
    known words.

    A group with an unusable vector is requested once more, because the cause may be temporary. If the vector is still
    unusable, the other vectors of the group are nevertheless returned.

    Args:
        model: Any LlamaIndex embedding.
        groups: The groups, each of which contains the windows of a text, or chunks of a document that are embedded
            together. No group may be empty.
        name: Name of the model, as in the settings.
        policy: Retry policy for failed calls.
        account: Account to which each attempt is charged, or None.

    Raises:
        InputError: A text is too long for the model; nothing was sent.
        ModelError: The model failed after all retries, did not return one vector per text, or returned many unusable
            vectors in a row.
    """
    sizes = [[0] * len(texts) for texts in groups]
    if name != LOCAL:
        sizes = await asyncio.to_thread(lambda: [[*map(embedding_tokens, texts)] for texts in groups])
    if isinstance(model, ContextualEmbedding):
        requests = await asyncio.to_thread(model.requests_for, groups)
    else:
        require_fitting(list(chain.from_iterable(sizes)), name, MAX_TOKENS_PER_INPUT)
        requests = _pack(model, [(len(texts), sum(tokens)) for texts, tokens in zip(groups, sizes, strict=True)])
    check, consecutive = _VectorCheck(name, getattr(model, "dimensions", None)), 0
    async with own_client(model) as client:
        checked_client = await _retry(partial(asyncio.to_thread, check_replies, client, name), policy, name)
        sender = _Sender(checked_client, name, policy, account)

        async def request(places: Sequence[int]) -> dict[int, GroupVectors]:
            inputs = [list(groups[at]) for at in places]
            answer = await sender.send(inputs, [sizes[at] for at in places])
            return dict(zip(places, await asyncio.to_thread(check.vectors, answer, inputs), strict=True))

        for places in requests:
            vectors = await request(places)
            if usable := {at: vectors[at] for at in places if not vectors[at].faults}:
                consecutive = 0
                yield usable
            if again := [at for at in places if at not in usable]:
                vectors = await request(again)
                if not usable:
                    consecutive = 0 if any(vectors[at].has_usable for at in again) else consecutive + len(again)
                if consecutive >= MOST_UNUSABLE:
                    raise unusable_error(name, next(iter(vectors[again[-1]].faults.values())))
                yield vectors


def _pack(model: BaseEmbedding, weights: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Distribute items over requests and yield the indices of the items in each request.

    Args:
        model: The model, which limits the number of texts in a request.
        weights: Number of texts and of tokens in each item.
    """
    return pack(range(len(weights)), weights.__getitem__, (model.embed_batch_size, MAX_TOKENS_PER_REQUEST))


@dataclass(frozen=True)
class _Sender:
    """Sender of requests to an embedding model, with retries.

    Attributes:
        model: The model.
        name: Name of the model, as in the settings.
        policy: Retry policy for failed calls.
        account: Account to which each attempt is charged, or None.
    """

    model: BaseEmbedding
    name: str
    policy: RetryPolicy | None
    account: Account | None

    async def send(self, groups: list[list[str]], sizes: list[list[int]]) -> Sequence[Sequence[Any]]:
        """Return the vectors of each group; `sizes` contains the number of tokens in each text."""
        model, tokens = self.model, list(chain.from_iterable(sizes))
        if isinstance(model, ContextualEmbedding):
            embed = partial(asyncio.to_thread, model._get_document_embeddings, groups)
            answer = await self._attempt(embed, sum(tokens))
            require_shape(answer, groups, name=self.name)
            return answer
        texts = list(chain.from_iterable(groups))
        vectors: list[list[float]] = []
        # LlamaIndex would send the parts of a group that exceeds the limits at the same time.
        for part in _pack(model, [(1, size) for size in tokens]):
            embed_texts = partial(model.aget_text_embedding_batch, [texts[at] for at in part])
            of_part = await self._attempt(embed_texts, sum(tokens[at] for at in part))
            require_number(len(of_part), len(part), name=self.name)
            vectors += of_part
        rows = iter(vectors)
        return [list(islice(rows, len(group))) for group in groups]

    async def _attempt(self, send: Callable[[], Awaitable[T]], tokens: int) -> T:
        async def attempt() -> T:
            account = self.account
            charge = nullcontext(EmbeddingUsage()) if account is None else account.embedding(self.name, tokens)
            async with charge as usage:
                with record_usage(usage):
                    return await send()

        return await _retry(attempt, self.policy, self.name)


async def _retry(attempt: Callable[[], Awaitable[T]], policy: RetryPolicy | None, name: str) -> T:
    """Return the result of a call, with retries.

    Raises:
        ModelError: The model failed after all retries.
    """
    try:
        return await acall(attempt, policy or RetryPolicy())
    except ContextualError:
        raise
    except Exception as error:  # embedding classes may raise any exception
        raise ModelError(describe(error, setting="embed_model", model=name), setting="embed_model") from error


class _VectorCheck:
    """Check of the vectors that a model returns.

    Args:
        name: Name of the model.
        dimensions: Requested length of the vectors, or None; the first vectors then determine the length.
    """

    def __init__(self, name: str, dimensions: int | None) -> None:
        self._allows_zeros, self._dimensions = name == LOCAL, dimensions

    def vectors(self, answer: Sequence[Sequence[Any]], groups: Sequence[Sequence[str]]) -> list[GroupVectors]:
        """Return the vectors of a reply as unit vectors, with the faults of those that are unusable."""
        rows = [as_row(vector) for vector in chain.from_iterable(answer)]
        length = self._dimensions = self._dimensions or _most_frequent(len(row) for row in rows if len(row))
        matrix = np.zeros((len(rows), length or 0), dtype=np.float32)
        faults: dict[int, str] = {}
        for at, row in enumerate(rows):
            if length and len(row) == length:
                matrix[at] = row
            else:
                size = f"{length}" if length else "the same number as the others"
                faults[at] = fault_of(row, allows_zero=True) or f"has {len(row)} dimensions instead of {size}"
        lengths = np.linalg.norm(matrix.astype(np.float64), axis=1)
        for at in np.flatnonzero(~((lengths > 0) & (lengths <= MAX_LENGTH))).tolist():
            if at not in faults and (fault := fault_of(rows[at], allows_zero=self._allows_zeros)) is not None:
                faults[at] = fault
        matrix[list(faults)] = 0.0
        units, result, start = unit_vectors(matrix), [], 0
        for texts in groups:
            of_group = {row: faults[start + row] for row in range(len(texts)) if start + row in faults}
            result.append(GroupVectors(units[start : start + len(texts)], of_group))
            start += len(texts)
        return result


def _most_frequent(lengths: Iterable[int]) -> int | None:
    """Return the most frequent length, or None if it is not unique."""
    (first, number), (_, second) = [*Counter(lengths).most_common(2), (0, 0), (0, 0)][:2]
    return first if number > second else None


def unusable(name: str, fault: str) -> str:
    """Return a sentence about an unusable vector.

    Args:
        name: Name of the model.
        fault: What is wrong with the vector.
    """
    return f"{name!r} returned a vector that {fault}."


def unusable_error(name: str, fault: str) -> ModelError:
    """Return the error for a model that returned an unusable vector; for the arguments, see `unusable`."""
    return ModelError(
        f"{unusable(name, fault)} Run the same call again, or choose another embedding model or number of dimensions.",
        setting="embed_model",
    )


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
        raise count_error(sum(lengths), sum(expected), name=name)


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
