"""Texts in batches that a provider accepts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

from llama_index_contextual.calls import RetryPolicy, acall, describe
from llama_index_contextual.clients import own_client, put_in_order
from llama_index_contextual.config import LOCAL
from llama_index_contextual.errors import InputError, ModelError
from llama_index_contextual.node_parser.tokenizer import count_tokens

MAX_INPUTS = 2_048
MAX_TOKENS_PER_REQUEST = 300_000
MAX_TOKENS_PER_INPUT = 8_192
# OpenAI's embedding models count in the older encoding: up to seven times the tokens of the newer one in some scripts.
ENCODING = "cl100k_base"


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
    async for part in aembed_parts(model, texts, name=name, policy=policy):
        rows.update(zip(part.places, part.vectors, strict=True))
    return np.stack([rows[at] for at in range(len(texts))]) if rows else np.zeros((0, 0), dtype=np.float32)


TIMES = 3
"""How often a text is sent whose vector is none: not a number, infinite, or all zeros."""


class Embedded(NamedTuple):
    """What one request brought.

    Attributes:
        places: Which of the texts have their vectors now.
        vectors: Their unit vectors, one row each.
        tokens: Tokens of all texts of the request, as OpenAI's models count them; 0 for the local one.
    """

    places: list[int]
    vectors: NDArray[np.float32]
    tokens: int


async def aembed_parts(
    model: BaseEmbedding,
    texts: Sequence[str],
    *,
    name: str,
    policy: RetryPolicy | None = None,
) -> AsyncGenerator[Embedded, None]:
    """Yield the unit vectors of `texts` request by request, in no certain order.

    OpenAI's limits are kept for every model but the local one, which has none. Texts whose vectors are not finite or
    all zeros are sent again; a vector that is zero each time stays zero.

    Args:
        model: Any LlamaIndex embedding.
        texts: What is to be embedded, none of them empty.
        name: Name of the model, as in the settings.
        policy: When to send a failed call again.

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
    lengths: set[int] = set()
    async with own_client(model) as connected:
        if connected is not model:
            put_in_order(connected)
        for part in batches(texts, counts, max_inputs=min(model.embed_batch_size, MAX_INPUTS)):
            todo = list(range(part.start, part.stop))
            for attempt in range(1, TIMES + 1):
                rows = await _one_request(connected, [texts[at] for at in todo], name, policy)
                raw = await asyncio.to_thread(_stacked, rows)
                lengths.update(raw.shape[1:])
                if len(raw) != len(todo) or raw.ndim != 2 or len(lengths) != 1:
                    raise ModelError(
                        f"{name!r} did not answer with one vector of the same length per text ({len(rows)} for"
                        f" {len(todo)}): run the same call again, or choose another embedding model.",
                        setting="embed_model",
                    )
                usable = np.isfinite(raw).all(axis=1) & (raw.any(axis=1) | (name == LOCAL or attempt == TIMES))
                places = [at for at, good in zip(todo, usable, strict=True) if good]
                yield Embedded(
                    places, await asyncio.to_thread(unit_vectors, raw[usable]), sum(counts[at] for at in todo)
                )
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
        # Row by row, so that other threads have their turn in between.
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


async def _one_request(model: BaseEmbedding, texts: list[str], name: str, policy: RetryPolicy) -> list[list[float]]:
    try:
        return await acall(lambda: model.aget_text_embedding_batch(texts), policy)
    except ModelError:
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
