"""Embed texts in batches that providers accept, check the vectors, and scale them to unit length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

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

MAX_INPUTS = 2_048
MAX_TOKENS_PER_REQUEST = 300_000
MAX_TOKENS_PER_INPUT = 8_192
_CUT_TOKENS = 8_000
# OpenAI's embedding models use the older encoding, with up to seven times the tokens of the newer one in some scripts.
ENCODING = "cl100k_base"

Booking = Callable[[int], AbstractAsyncContextManager[None]]


def book_nothing(_tokens: int) -> AbstractAsyncContextManager[None]:
    """Return a context manager that books nothing."""
    return nullcontext()


def batches(texts: Sequence[str], token_counts: Sequence[int], *, max_inputs: int) -> Iterator[slice]:
    """Yield slices of `texts` within OpenAI's limits on inputs and tokens per request.

    Args:
        texts: Texts to embed.
        token_counts: Tokens of each text.
        max_inputs: Maximum number of texts per request.
    """
    start = tokens = 0
    for at, count in enumerate(token_counts):
        if at > start and (at - start >= max_inputs or tokens + count > MAX_TOKENS_PER_REQUEST):
            yield slice(start, at)
            start, tokens = at, 0
        tokens += count
    if start < len(texts):
        yield slice(start, len(texts))


async def aembed(
    model: BaseEmbedding,
    texts: Sequence[str],
    *,
    name: str,
    policy: RetryPolicy | None = None,
) -> NDArray[np.float32]:
    """Return the unit vectors of `texts`, one row each; see `aembed_parts` for arguments and errors."""
    rows: dict[int, NDArray[np.float32]] = {}
    async for places, vectors in aembed_parts(model, texts, name=name, policy=policy):
        rows.update(zip(places, vectors, strict=True))
    return np.stack([rows[at] for at in range(len(texts))]) if rows else np.zeros((0, 0), dtype=np.float32)


TIMES = 3
"""Maximum number of times that a text is sent whose vector is not usable: not finite, or all zeros."""


async def aembed_parts(
    model: BaseEmbedding,
    texts: Sequence[str],
    *,
    name: str,
    policy: RetryPolicy | None = None,
    booking: Booking = book_nothing,
) -> AsyncGenerator[tuple[list[int], NDArray[np.float32]], None]:
    """Yield the unit vectors of `texts` request by request, with their indices, in any order.

    OpenAI's limits apply to every model except the local one, which has none, and returns a vector of zeros for a text
    without words. Texts whose vectors are not finite or all zeros are sent again; a vector that is zero each time stays
    zero.

    Args:
        model: Any LlamaIndex embedding.
        texts: Texts to embed, none of them empty.
        name: Name of the model, as in the settings.
        policy: Retry policy for failed calls.
        booking: Returns, for the tokens of a request, a context manager around each attempt that books its cost.

    Raises:
        InputError: A text is too long for the model; nothing was sent.
        ModelError: The model finally failed, did not return one vector per text, or returned vectors that are not
            finite.
    """
    if not texts:
        return
    counts = [0] * len(texts) if name == LOCAL else await asyncio.to_thread(tokens_of, texts)
    longest = max(counts)
    if longest > MAX_TOKENS_PER_INPUT:
        raise InputError(
            f"A chunk with its context has {longest} tokens, but an embedding model accepts at most"
            f" {MAX_TOKENS_PER_INPUT}: lower chunk_size.",
            value=longest,
        )
    policy = policy or RetryPolicy()
    length = getattr(model, "dimensions", None)
    lengths: set[int] = set()
    async with own_client(model) as connected:
        if connected is not model:
            sort_vectors(connected)
        for part in batches(texts, counts, max_inputs=min(model.embed_batch_size, MAX_INPUTS)):
            todo = list(range(part.start, part.stop))
            for attempt in range(1, TIMES + 1):
                tokens = sum(counts[at] for at in todo)
                send = partial(connected.aget_text_embedding_batch, [texts[at] for at in todo])
                rows = await one_request(send, name, policy, partial(booking, tokens))
                raw = await asyncio.to_thread(stacked, rows)
                lengths.update(raw.shape[1:])
                if len(raw) != len(todo) or raw.ndim != 2 or len(lengths) != 1:
                    raise ModelError(
                        f"{name!r} did not return one vector of the same length per text ({len(rows)} for"
                        f" {len(todo)}): run the same call again, or choose another embedding model.",
                        setting="embed_model",
                    )
                if isinstance(length, int) and lengths != {length}:
                    raise ModelError(
                        f"{name!r} returned vectors with {max(lengths)} dimensions instead of {length}: set the"
                        f" dimensions that the embedding model supports, or choose another one.",
                        setting="embed_model",
                    )
                usable = np.isfinite(raw).all(axis=1) & (raw.any(axis=1) | (name == LOCAL or attempt == TIMES))
                if usable.any():
                    places = [at for at, is_usable in zip(todo, usable, strict=True) if is_usable]
                    yield places, await asyncio.to_thread(unit_vectors, raw[usable])
                todo = [at for at, is_usable in zip(todo, usable, strict=True) if not is_usable]
                if not todo:
                    break
            else:
                raise ModelError(
                    f"{name!r} returned vectors that are not finite numbers {TIMES} times: run the same call"
                    f" again, or choose another embedding model.",
                    setting="embed_model",
                )


def stacked(rows: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    """Return vectors as the rows of a matrix, or an empty array if they are invalid or differ in length."""
    try:
        # Row by row, so that other threads can run in between. Numbers that are too large become infinite.
        with np.errstate(over="ignore"):
            return np.stack([np.array(row, dtype=np.float32) for row in rows])
    except (TypeError, ValueError):
        return np.zeros(0, dtype=np.float32)


def tokens_of(texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text as counted by OpenAI's embedding models."""
    return [embedding_tokens(text) for text in texts]


def embedding_tokens(text: str) -> int:
    """Return the number of tokens of a text as counted by OpenAI's embedding models."""
    # LlamaIndex's OpenAI class replaces line breaks by spaces, which changes the tokens.
    return count_tokens(text.replace("\n", " "), encoding=ENCODING)


def cut_to_input(text: str) -> str:
    """Return the text, cut to the length that an embedding model accepts as one input.

    OpenAI's limit applies to every model. The result stays a little below it, because the beginning of a text may have
    more tokens on its own than within the text.

    Example:
        >>> len(cut_to_input("pump " * 10_000).split())
        7999
    """
    # A token has at least one byte, and a character at most four.
    if 4 * len(text) <= _CUT_TOKENS or len(text.encode("utf-8", "replace")) <= _CUT_TOKENS:
        return text
    tokenizer = get_tokenizer(ENCODING)
    encoded = tokenizer.encode_ordinary(text.replace("\n", " "))
    if len(encoded) <= _CUT_TOKENS:
        return text
    return text[: len(tokenizer.decode(encoded[:_CUT_TOKENS], errors="ignore"))]


async def one_request(
    send: Callable[[], Awaitable[T]],
    name: str,
    policy: RetryPolicy,
    booking: Callable[[], AbstractAsyncContextManager[None]],
) -> T:
    """Return the answer to a request for embeddings.

    Args:
        send: Sends the request.
        name: Name of the model, as in the settings.
        policy: Retry policy.
        booking: Returns a context manager around each attempt that books its cost.

    Raises:
        ModelError: The model finally failed.
    """

    async def attempt() -> T:
        async with booking():
            return await send()

    try:
        return await acall(attempt, policy)
    except ContextualError:
        raise
    except Exception as error:  # any embedding class may raise anything
        raise ModelError(describe(error, setting="embed_model", model=name), setting="embed_model") from error


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows divided by their length; rows of zeros stay zero, NaN becomes zero."""
    if not np.isfinite(vectors).all():
        vectors = np.nan_to_num(vectors)
    # Scale first, because the squares of large numbers overflow and those of small ones underflow.
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    vectors = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: NDArray[np.float32] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return units
