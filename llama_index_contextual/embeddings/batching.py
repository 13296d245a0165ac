"""Batch texts within providers' limits, and scale vectors, without importing LlamaIndex."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.tokens import count_tokens, get_tokenizer

T = TypeVar("T")

_CUT_TOKENS = 8_000
# OpenAI's embedding models use an older encoding, which needs up to seven times as many tokens in some scripts.
EMBEDDING_ENCODING = "cl100k_base"


def pack(items: Iterable[T], weigh: Callable[[T], tuple[int, ...]], limits: tuple[int, ...]) -> Iterator[list[T]]:
    """Group consecutive items into lists whose total weights do not exceed the limits.

    An item that exceeds a limit is put in a list of its own.

    Args:
        items: The items, which are read lazily.
        weigh: Function that returns the weights of an item, one for each limit.
        limits: Maximum sum of each weight.

    Example:
        >>> list(pack([3, 4, 9, 1], lambda number: (number, 1), (8, 2)))
        [[3, 4], [9], [1]]
    """
    batch: list[T] = []
    sums = [0] * len(limits)
    for item in items:
        weights = weigh(item)
        sums = [total + weight for total, weight in zip(sums, weights, strict=True)]
        if batch and any(total > limit for total, limit in zip(sums, limits, strict=True)):
            yield batch
            batch, sums = [], list(weights)
        batch.append(item)
    if batch:
        yield batch


MAX_LENGTH = 1e6
"""Maximum length of a usable vector; the vectors of embedding models have a length of about 1, and rarely of 1,000."""


def as_row(vector: Sequence[float] | NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a vector as an array, which is empty if the vector is invalid; numbers that are too large are infinite."""
    try:
        with np.errstate(over="ignore"):
            row = np.array(vector, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        return np.zeros(0, dtype=np.float32)
    return row if row.ndim == 1 else np.zeros(0, dtype=np.float32)


def as_matrix(rows: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    """Return vectors as the rows of a matrix, or an empty array if a vector is invalid or the lengths differ."""
    # Rows are converted one at a time, so that other threads can run in between.
    arrays = [as_row(row) for row in rows]
    if not arrays or {len(array) for array in arrays} != {len(arrays[0])} or not len(arrays[0]):
        return np.zeros(0, dtype=np.float32)
    return np.stack(arrays)


def fault_of(row: NDArray[np.float32], *, allows_zero: bool = False) -> str | None:
    """Return what is wrong with a vector, or None if it can be compared with other vectors.

    Args:
        row: The vector, which is empty if it is invalid.
        allows_zero: Whether the vector may be zero, as those of bags of words may.

    Example:
        >>> fault_of(np.array([3.0, np.nan], dtype=np.float32))
        'contains values that are not finite numbers'
        >>> fault_of(np.array([3.0, 4.0], dtype=np.float32)) is None
        True
    """
    if not row.size:
        return "is not a list of numbers"
    if not np.isfinite(row).all():
        return "contains values that are not finite numbers"
    length = float(np.linalg.norm(row.astype(np.float64)))
    if length > MAX_LENGTH:
        return f"has the length {length:.1g}"
    return None if length or allows_zero else "is zero"


def embedding_tokens(text: str) -> int:
    """Count the tokens in a text with the tokenizer of OpenAI's embedding models."""
    # LlamaIndex's OpenAI class replaces line breaks with spaces, which changes the tokens.
    return count_tokens(text.replace("\n", " "), encoding=EMBEDDING_ENCODING)


def cut_to_input(text: str) -> str:
    """Cut a text to the length that an embedding model accepts as a single input.

    OpenAI's limit is used for every model. The result is slightly shorter than the limit, because the beginning of a
    text may have more tokens on its own than as a part of the text.

    Example:
        >>> len(cut_to_input("pump " * 10_000).split())
        7999
    """
    # A token has at least one byte, and a character has at most four bytes.
    if 4 * len(text) <= _CUT_TOKENS or len(text.encode("utf-8", "replace")) <= _CUT_TOKENS:
        return text
    tokenizer = get_tokenizer(EMBEDDING_ENCODING)
    encoded = tokenizer.encode_ordinary(text.replace("\n", " "))
    if len(encoded) <= _CUT_TOKENS:
        return text
    return text[: len(tokenizer.decode(encoded[:_CUT_TOKENS], errors="ignore"))]


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale each row to length 1; rows of zeros are not changed, and NaN is replaced with 0."""
    if not np.isfinite(vectors).all():
        vectors = np.nan_to_num(vectors)
    # Divide by the largest value first, because squares of large numbers overflow and squares of small numbers
    # underflow.
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    vectors = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: NDArray[np.float32] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return units
