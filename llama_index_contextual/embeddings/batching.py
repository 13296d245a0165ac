"""Texts in batches that a provider accepts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

from llama_index_contextual._utils.calls import RetryPolicy, acall, describe
from llama_index_contextual._utils.clients import own_client, put_in_order
from llama_index_contextual.config import LOCAL
from llama_index_contextual.errors import ContextualError, InputError, ModelError
from llama_index_contextual.node_parser.tokens import count_tokens, get_tokenizer

MAX_INPUTS = 2_048
MAX_TOKENS_PER_REQUEST = 300_000
MAX_TOKENS_PER_INPUT = 8_192
_CUT_TOKENS = 8_000
# OpenAI's embedding models count in the older encoding: up to seven times the tokens of the newer one in some scripts.
ENCODING = "cl100k_base"

Paid = Callable[[int], AbstractAsyncContextManager[None]]


def unpaid(_tokens: int) -> AbstractAsyncContextManager[None]:
    """Book nothing."""
    return nullcontext()


def batches(texts: Sequence[str], token_counts: Sequence[int], *, max_inputs: int) -> Iterator[slice]:
    """Yield slices of `texts` that keep OpenAI's limits: inputs and tokens of one request.

    Args:
        texts: What is to be embedded.
        token_counts: Tokens of each text.
        max_inputs: Texts of one request, at most.
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
    """Return the unit vectors of `texts`, one row each; arguments and errors are those of `aembed_parts`."""
    rows: dict[int, NDArray[np.float32]] = {}
    async for places, vectors in aembed_parts(model, texts, name=name, policy=policy):
        rows.update(zip(places, vectors, strict=True))
    return np.stack([rows[at] for at in range(len(texts))]) if rows else np.zeros((0, 0), dtype=np.float32)


TIMES = 3
"""How often a text is sent whose vector is none: not a number, infinite, or all zeros."""


async def aembed_parts(
    model: BaseEmbedding,
    texts: Sequence[str],
    *,
    name: str,
    policy: RetryPolicy | None = None,
    paid: Paid = unpaid,
) -> AsyncGenerator[tuple[list[int], NDArray[np.float32]], None]:
    """Yield the unit vectors of `texts` request by request, with their places, in no certain order.

    OpenAI's limits are kept for every model but the local one, which has none, and gives a vector of zeros for a text
    without words. Texts whose vectors are not finite or all zeros are sent again; a vector that is zero each time stays
    zero.

    Args:
        model: Any LlamaIndex embedding.
        texts: What is to be embedded, none of them empty.
        name: Name of the model, as in the settings.
        policy: When to send a failed call again.
        paid: Opened with the tokens of a request around each attempt to send it; books what the attempt costs.

    Raises:
        InputError: A text is longer than the model takes; nothing has been sent then.
        ModelError: The model failed for good, did not answer with one vector per text, or with no finite ones.
    """
    if not texts:
        return
    counts = [0] * len(texts) if name == LOCAL else await asyncio.to_thread(tokens_of, texts)
    longest = max(counts)
    if longest > MAX_TOKENS_PER_INPUT:
        raise InputError(
            f"A chunk with its context has {longest} tokens, more than the {MAX_TOKENS_PER_INPUT} that an embedding"
            f" takes: lower chunk_size.",
            value=longest,
        )
    policy = policy or RetryPolicy()
    wanted = getattr(model, "dimensions", None)
    lengths: set[int] = set()
    async with own_client(model) as connected:
        if connected is not model:
            put_in_order(connected)
        for part in batches(texts, counts, max_inputs=min(model.embed_batch_size, MAX_INPUTS)):
            todo = list(range(part.start, part.stop))
            for attempt in range(1, TIMES + 1):
                tokens = sum(counts[at] for at in todo)
                rows = await _one_request(connected, [texts[at] for at in todo], name, policy, partial(paid, tokens))
                raw = await asyncio.to_thread(_stacked, rows)
                lengths.update(raw.shape[1:])
                if len(raw) != len(todo) or raw.ndim != 2 or len(lengths) != 1:
                    raise ModelError(
                        f"{name!r} did not answer with one vector of the same length per text ({len(rows)} for"
                        f" {len(todo)}): run the same call again, or choose another embedding model.",
                        setting="embed_model",
                    )
                if isinstance(wanted, int) and lengths != {wanted}:
                    raise ModelError(
                        f"{name!r} was asked for vectors of {wanted} numbers and answered with {max(lengths)}: give the"
                        f" embedding model the dimensions that it has, or choose another one.",
                        setting="embed_model",
                    )
                usable = np.isfinite(raw).all(axis=1) & (raw.any(axis=1) | (name == LOCAL or attempt == TIMES))
                if usable.any():
                    places = [at for at, good in zip(todo, usable, strict=True) if good]
                    yield places, await asyncio.to_thread(unit_vectors, raw[usable])
                todo = [at for at, good in zip(todo, usable, strict=True) if not good]
                if not todo:
                    break
            else:
                raise ModelError(
                    f"{name!r} answered {TIMES} times with vectors that are not finite numbers: run the same call"
                    f" again, or choose another embedding model.",
                    setting="embed_model",
                )


def _stacked(rows: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    """Return vectors as the rows of a matrix; nothing where they are none, or not all of one length."""
    try:
        # Row by row, so that other threads have their turn in between. Numbers that are too large become infinite.
        with np.errstate(over="ignore"):
            return np.stack([np.array(row, dtype=np.float32) for row in rows])
    except (TypeError, ValueError):
        return np.zeros(0, dtype=np.float32)


def tokens_of(texts: Sequence[str]) -> list[int]:
    """Return the tokens of each text as OpenAI's embedding models count them."""
    return [embedding_tokens(text) for text in texts]


def embedding_tokens(text: str) -> int:
    """Return the tokens of a text as OpenAI's embedding models count them."""
    # LlamaIndex's OpenAI class sends line breaks as spaces, which make other tokens.
    return count_tokens(text.replace("\n", " "), encoding=ENCODING)


def cut_to_input(text: str) -> str:
    """Return the beginning of a text that an embedding model takes as one input; a text that it takes, itself.

    OpenAI's limit is kept for every model. It is a little less than the limit, because the beginning of a text may have
    more tokens by itself.

    Example:
        >>> len(cut_to_input("pump " * 10_000).split())
        7999
    """
    # No token has less than one byte, and no character more than four.
    if 4 * len(text) <= _CUT_TOKENS or len(text.encode("utf-8", "replace")) <= _CUT_TOKENS:
        return text
    tokenizer = get_tokenizer(ENCODING)
    encoded = tokenizer.encode_ordinary(text.replace("\n", " "))
    if len(encoded) <= _CUT_TOKENS:
        return text
    return text[: len(tokenizer.decode(encoded[:_CUT_TOKENS], errors="ignore"))]


async def _one_request(
    model: BaseEmbedding,
    texts: list[str],
    name: str,
    policy: RetryPolicy,
    paid: Callable[[], AbstractAsyncContextManager[None]],
) -> list[list[float]]:
    async def send() -> list[list[float]]:
        async with paid():
            return await model.aget_text_embedding_batch(texts)

    try:
        return await acall(send, policy)
    except ContextualError:
        raise
    except Exception as error:  # any embedding class may raise anything
        raise ModelError(describe(error, setting="embed_model", model=name), setting="embed_model") from error


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows divided by their length; rows of zeros stay zero, NaN becomes zero."""
    if not np.isfinite(vectors).all():
        vectors = np.nan_to_num(vectors)
    # Scaled first: the squares of large numbers overflow, and those of small ones vanish.
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    vectors = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: NDArray[np.float32] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return units
