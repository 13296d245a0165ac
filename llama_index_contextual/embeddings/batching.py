"""Embed texts in batches that providers accept, check the vectors, and scale them to unit length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.calls import RetryPolicy, acall, describe
from llama_index_contextual._utils.clients import own_client, sort_vectors
from llama_index_contextual._utils.tokens import count_tokens, get_tokenizer
from llama_index_contextual.config import LOCAL
from llama_index_contextual.errors import ContextualError, InputError, ModelError

if TYPE_CHECKING:
    from llama_index.core.base.embeddings.base import BaseEmbedding

T = TypeVar("T")

MAX_TOKENS_PER_REQUEST = 300_000
MAX_TOKENS_PER_INPUT = 8_192
_CUT_TOKENS = 8_000
# OpenAI's embedding models use the older encoding, which needs up to seven times as many tokens in some scripts.
ENCODING = "cl100k_base"

Booking = Callable[[int], AbstractAsyncContextManager[None]]


def book_nothing(_tokens: int) -> AbstractAsyncContextManager[None]:
    """Return a context manager that books nothing."""
    return nullcontext()


def pack(items: Iterable[T], weigh: Callable[[T], tuple[int, ...]], limits: tuple[int, ...]) -> Iterator[list[T]]:
    """Yield lists of consecutive items whose weights add up to at most the limits.

    An item that exceeds a limit is put in a list of its own.

    Args:
        items: The items, which are read lazily.
        weigh: Returns the weights of an item, one for each limit.
        limits: Maximum sum of each weight.

    Example:
        >>> list(pack([3, 4, 9, 1], lambda number: (number, 1), (8, 2)))
        [[3, 4], [9], [1]]
    """
    packed: list[T] = []
    sums = [0] * len(limits)
    for item in items:
        weights = weigh(item)
        sums = [total + weight for total, weight in zip(sums, weights, strict=True)]
        if packed and any(total > limit for total, limit in zip(sums, limits, strict=True)):
            yield packed
            packed, sums = [], list(weights)
        packed.append(item)
    if packed:
        yield packed


async def aembed(
    model: BaseEmbedding, texts: Sequence[str], *, name: str, policy: RetryPolicy | None = None
) -> NDArray[np.float32]:
    """Return the unit vectors of `texts`, one row each; see `aembed_parts` for arguments and errors."""
    rows: dict[int, NDArray[np.float32]] = {}
    async for places, vectors in aembed_parts(model, [[text] for text in texts], name=name, policy=policy):
        rows.update(zip(places, vectors, strict=True))
    return np.stack([rows[at] for at in range(len(texts))]) if rows else np.zeros((0, 0), dtype=np.float32)


TIMES = 3
"""Maximum number of times that a text is sent if its vector is unusable, that is, not finite or all zeros."""


async def aembed_parts(
    model: BaseEmbedding,
    documents: Sequence[Sequence[str]],
    *,
    name: str,
    policy: RetryPolicy | None = None,
    booking: Booking = book_nothing,
) -> AsyncGenerator[tuple[list[int], NDArray[np.float32]], None]:
    """Yield the indices of texts and the unit vectors of their parts for each request, in any order of texts.

    OpenAI's limits apply to every model except the local one, which has no limits and returns a vector of zeros for a
    part without words. Texts with vectors that are not finite or all zeros are sent again; a vector that is zero every
    time stays zero.

    Args:
        model: Any LlamaIndex embedding.
        documents: Parts of each text to embed; no text may be without parts.
        name: Name of the model, as in the settings.
        policy: Retry policy for failed calls.
        booking: Returns a context manager that books the cost of a request, given its tokens; entered for each attempt.

    Raises:
        InputError: A part is too long for the model; nothing was sent.
        ModelError: The model failed after all retries, did not return one vector per part, or returned vectors that
            are not finite.
    """
    counts = [[0] * len(texts) for texts in documents]
    if name != LOCAL:
        counts = await asyncio.to_thread(lambda: [[*map(embedding_tokens, texts)] for texts in documents])
    longest = max((max(tokens) for tokens in counts), default=0)
    if longest > MAX_TOKENS_PER_INPUT:
        raise InputError(
            f"A chunk with its context has {longest} tokens, but an embedding model accepts at most"
            f" {MAX_TOKENS_PER_INPUT}: lower chunk_size.",
            value=longest,
        )
    tokens = [sum(each) for each in counts]
    limits = model.embed_batch_size, MAX_TOKENS_PER_REQUEST
    requests = pack(range(len(documents)), lambda at: (len(documents[at]), tokens[at]), limits)
    length = getattr(model, "dimensions", None)
    async with own_client(model) as connected:
        if connected is not model:
            sort_vectors(connected)

        async def send(places: list[int]) -> list[list[list[float]]]:
            texts = [text for at in places for text in documents[at]]
            vectors = iter(await connected.aget_text_embedding_batch(texts))
            of_documents = [list(islice(vectors, len(documents[at]))) for at in places]
            surplus = list(vectors)
            return [*of_documents, surplus] if surplus else of_documents

        async for answer in send_checked(
            send, requests, documents, tokens, name=name, dimensions=length, policy=policy, booking=booking
        ):
            yield answer


async def send_checked(
    send: Callable[[list[int]], Awaitable[Sequence[Sequence[Sequence[float]]]]],
    requests: Iterable[list[int]],
    documents: Sequence[Sequence[str]],
    tokens: Sequence[int],
    *,
    name: str,
    dimensions: int | None,
    policy: RetryPolicy | None,
    booking: Booking,
) -> AsyncGenerator[tuple[list[int], NDArray[np.float32]], None]:
    """Send requests, and yield the indices of their documents with the unit vectors of all texts, in order.

    Args:
        send: Sends documents, given by index, and returns the vectors of the texts of each document.
        requests: Indices of the documents in each request.
        documents: Texts that are embedded together, or single texts.
        tokens: Number of tokens in each document.
        name: Name of the model, as in the settings.
        dimensions: Requested length of the vectors, or None for the model's default.
        policy: Retry policy for failed calls.
        booking: Returns a context manager that books the cost of a request, given its tokens; entered for each attempt.
    """

    async def booked(places: list[int]) -> Sequence[Sequence[Sequence[float]]]:
        async with booking(sum(tokens[at] for at in places)):
            return await send(places)

    lengths = {dimensions} if isinstance(dimensions, int) else set()
    for todo in requests:
        for attempt in range(1, TIMES + 1):
            try:
                answer = await acall(partial(booked, todo), policy or RetryPolicy())
            except ContextualError:
                raise
            except Exception as error:  # any embedding class may raise anything
                raise ModelError(describe(error, setting="embed_model", model=name), setting="embed_model") from error
            matrices = await asyncio.to_thread(lambda rows: [*map(stacked, rows)], answer)
            require_shape(matrices, [documents[at] for at in todo], name=name)
            lengths |= {matrix.shape[1] for matrix in matrices}
            if len(lengths) != 1 or 0 in lengths:
                raise ModelError(
                    f"{name!r} did not return vectors of {dimensions or 'the same number of'} dimensions: set the"
                    f" dimensions that the embedding model supports, or choose another one.",
                    setting="embed_model",
                )
            is_last = name == LOCAL or attempt == TIMES
            usable = {at: m for at, m in zip(todo, matrices, strict=True) if _is_usable(m, zeros=is_last)}
            if usable:
                yield list(usable), await asyncio.to_thread(unit_vectors, np.concatenate(list(usable.values())))
            todo = [at for at in todo if at not in usable]
            if not todo:
                break
        else:
            raise ModelError(
                f"{name!r} returned vectors that are not finite numbers {TIMES} times: run the same call again, or"
                f" choose another embedding model.",
                setting="embed_model",
            )


def require_shape(answer: Sequence[Any], documents: Sequence[Sequence[str]], *, name: str) -> None:
    """Check that a model's answer has one vector for each text of each document.

    Raises:
        ModelError: There are too many or too few vectors.
    """
    try:
        lengths = [len(vectors) for vectors in answer]
    except TypeError:
        lengths = []
    expected = [len(texts) for texts in documents]
    if lengths != expected:
        raise ModelError(
            f"{name!r} did not return one vector of the same length per text ({sum(lengths)} for {sum(expected)}):"
            f" run the same call again, or choose another embedding model.",
            setting="embed_model",
        )


def _is_usable(matrix: NDArray[np.float32], *, zeros: bool) -> bool:
    return bool(np.isfinite(matrix).all() and (zeros or matrix.any(axis=1).all()))


def stacked(rows: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    """Return vectors as the rows of a matrix, or an empty array if they are invalid or differ in length."""
    try:
        # One row at a time, so that other threads can run in between. Numbers that are too large become infinite.
        with np.errstate(over="ignore"):
            matrix = np.stack([np.array(row, dtype=np.float32) for row in rows])
    except (TypeError, ValueError):
        return np.zeros(0, dtype=np.float32)
    return matrix if matrix.ndim == 2 else np.zeros(0, dtype=np.float32)


def embedding_tokens(text: str) -> int:
    """Return the number of tokens in a text as counted by OpenAI's embedding models."""
    # LlamaIndex's OpenAI class replaces line breaks with spaces, which changes the tokens.
    return count_tokens(text.replace("\n", " "), encoding=ENCODING)


def cut_to_input(text: str) -> str:
    """Cut the text to the length that an embedding model accepts as one input.

    OpenAI's limit applies to every model. The result stays a little below it, because the beginning of a text may have
    more tokens on its own than as a part of the text.

    Example:
        >>> len(cut_to_input("pump " * 10_000).split())
        7999
    """
    # A token has at least one byte, and a character has at most four.
    if 4 * len(text) <= _CUT_TOKENS or len(text.encode("utf-8", "replace")) <= _CUT_TOKENS:
        return text
    tokenizer = get_tokenizer(ENCODING)
    encoded = tokenizer.encode_ordinary(text.replace("\n", " "))
    if len(encoded) <= _CUT_TOKENS:
        return text
    return text[: len(tokenizer.decode(encoded[:_CUT_TOKENS], errors="ignore"))]


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale each row to length 1; rows of zeros stay zero, and NaN becomes zero."""
    if not np.isfinite(vectors).all():
        vectors = np.nan_to_num(vectors)
    # Scale first, because the squares of large numbers overflow and those of small ones underflow.
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    vectors = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: NDArray[np.float32] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return units
