"""The embeddings endpoint: hashed bags of words within the limits of the real service."""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import Counter
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from tests.support.records import Answer, ApiError, Request
from tests.support.tokens import count, decode

MAX_INPUTS = 2_048
MAX_INPUT_TOKENS = 8_192
MAX_REQUEST_TOKENS = 300_000

_WORD = re.compile(r"\w+")


@lru_cache(maxsize=100_000)
def _slot(word: str) -> tuple[int, float]:
    """Return the hash and the sign of a word."""
    digest = blake2b(word.encode("utf-8", "replace"), digest_size=9).digest()
    return int.from_bytes(digest[:8], "big"), 1.0 if digest[8] & 1 else -1.0


def embed(text: str, dimensions: int) -> list[float]:
    """Return a unit vector for a text: its words, damped by frequency, at hashed places.

    Texts with words in common are similar; word order and case do not count.
    """
    words = Counter(_WORD.findall(text.lower())) or Counter([text])
    vector = [0.0] * dimensions
    for word, times in words.items():
        place, sign = _slot(word)
        vector[place % dimensions] += sign * (1.0 + math.log(times))
    norm = math.sqrt(math.fsum(value * value for value in vector))
    if norm == 0.0:
        # Words of opposite sign at one place cancel out in tiny vectors.
        vector[_slot(text)[0] % dimensions] = norm = 1.0
    return [value / norm for value in vector]


def _checked(item: Any, encoding: str) -> str:
    """Return an input as text, or refuse it."""
    if isinstance(item, list) and all(isinstance(token, int) for token in item):
        item = decode(item, encoding)
    if not isinstance(item, str):
        message = (
            "'$.input' is invalid. Please check the API reference: https://platform.openai.com/docs/api-reference."
        )
        raise ApiError(400, message)
    if not item:
        raise ApiError(400, "Invalid 'input': input cannot be an empty string.", param="input")
    return item


def _check_size(sizes: list[int]) -> None:
    largest, total = max(sizes), sum(sizes)
    if largest > MAX_INPUT_TOKENS:
        message = (
            f"This model's maximum context length is {MAX_INPUT_TOKENS} tokens, however you requested {largest} tokens "
            f"({largest} in your prompt; 0 for the completion). Please reduce your prompt; or completion length."
        )
        raise ApiError(400, message)
    if total > MAX_REQUEST_TOKENS:
        message = f"Requested {total} tokens, max {MAX_REQUEST_TOKENS} tokens per request"
        raise ApiError(400, message, type="max_tokens_per_request", code="max_tokens_per_request")


def check_embeddings(request: Request, encoding: str) -> tuple[list[str], int]:
    """Return the input texts and their tokens.

    Raises:
        ApiError: With status 400 for what the real service refuses.
    """
    inputs = request.inputs
    if not inputs:
        raise ApiError(400, "Invalid 'input': input cannot be empty.", param="input", code="invalid_value")
    if len(inputs) > MAX_INPUTS:
        message = (
            "Invalid 'input': array too long. Expected an array with maximum length "
            f"{MAX_INPUTS}, but got an array with length {len(inputs)} instead."
        )
        raise ApiError(400, message, param="input", code="array_above_max_length")
    texts = [_checked(item, encoding) for item in inputs]
    sizes = [count(text, encoding) for text in texts]
    _check_size(sizes)
    return texts, sum(sizes)


def _dimensions(request: Request, full: int) -> int:
    expected = request.fields.get("dimensions")
    if expected is None:
        return full
    if not isinstance(expected, int) or not 1 <= expected <= full:
        message = f"Invalid value for 'dimensions' = {expected}. Must be between 1 and {full}."
        raise ApiError(400, message, param="dimensions", code="invalid_value")
    return expected


def embeddings_answer(
    request: Request, texts: list[str], tokens: int, dimensions: int, *, hide_usage: bool = False
) -> Answer:
    """Build the answer to a checked embeddings request, as floats or as base64."""
    size = _dimensions(request, dimensions)
    packed = request.fields.get("encoding_format") == "base64"
    data = []
    for index, text in enumerate(texts):
        vector: list[float] | str = embed(text, size)
        if packed:
            vector = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    payload: dict[str, Any] = {"object": "list", "data": data, "model": request.model}
    if not hide_usage:
        payload["usage"] = usage
    return Answer(payload=payload, usage=usage)
