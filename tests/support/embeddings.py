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
from tests.support.tokens import count

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


def packed(vector: list[float], request: Request) -> list[float] | str:
    """Return a vector in the form the request asks for: numbers or base64."""
    if request.fields.get("encoding_format") != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def refuse_if(*rules: tuple[bool, str]) -> None:
    """Refuse a request by the message of the first rule that holds.

    Raises:
        ApiError: With status 400, as the real service has it.
    """
    for holds, message in rules:
        if holds:
            raise ApiError(400, message, param="input")


def check_embeddings(request: Request, encoding: str) -> int:
    """Return the tokens of the input texts, or refuse the request."""
    inputs = request.inputs
    refuse_if(
        (not inputs, "Invalid 'input': input cannot be empty."),
        (not all(isinstance(text, str) for text in inputs), "'$.input' is invalid."),
        ("" in inputs, "Invalid 'input': input cannot be an empty string."),
        (len(inputs) > MAX_INPUTS, f"Invalid 'input': array too long. Expected at most {MAX_INPUTS}."),
    )
    sizes = [count(text, encoding) for text in inputs]
    total = sum(sizes)
    refuse_if(
        (
            max(sizes) > MAX_INPUT_TOKENS,
            f"This model's maximum context length is {MAX_INPUT_TOKENS} tokens, however you requested {max(sizes)} "
            f"tokens ({max(sizes)} in your prompt; 0 for the completion). Please reduce your prompt.",
        ),
        (
            sum(sizes) > MAX_REQUEST_TOKENS,
            f"Requested {sum(sizes)} tokens, max {MAX_REQUEST_TOKENS} tokens per request",
        ),
    )
    return total


def embeddings_answer(request: Request, tokens: int, dimensions: int) -> Answer:
    """Build the answer to a checked embeddings request."""
    size = request.fields.get("dimensions") or dimensions
    data = [
        {"object": "embedding", "index": index, "embedding": packed(embed(text, size), request)}
        for index, text in enumerate(request.inputs)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    payload: dict[str, Any] = {"object": "list", "data": data, "model": request.model, "usage": usage}
    return Answer(payload=payload, usage=usage)
