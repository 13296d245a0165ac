"""Voyage's endpoint for contextual embeddings: vectors that depend on the neighbours, within the limits of the service.

The format follows https://docs.voyageai.com/reference/contextualized-embeddings-api.
"""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

from tests.support.embeddings import embed
from tests.support.records import Answer, ApiError, Request
from tests.support.tokens import count

MAX_LISTS = 1_000
MAX_CHUNKS = 16_000
MAX_REQUEST_TOKENS = 120_000
MAX_LIST_TOKENS = 32_000
DIMENSIONS = (256, 512, 1024, 2048)
NEIGHBOURS = 0.5
"""Weight of the whole list in the vector of a chunk."""

_ACCEPTED = frozenset({"inputs", "model", "input_type", "output_dimension", "output_dtype", "encoding_format"})


def contextual_vectors(texts: list[str], dimensions: int) -> list[list[float]]:
    """Return the vector of each chunk: its own words, and to a lesser degree those of all chunks of its list."""
    own = [embed(text, dimensions) for text in texts]
    if len(texts) == 1:
        return own
    whole = [math.fsum(column) / len(texts) for column in zip(*own, strict=True)]
    mixed = [[a + NEIGHBOURS * b + 1e-4 * at for a, b in zip(row, whole, strict=True)] for at, row in enumerate(own)]
    norms = [math.sqrt(math.fsum(value * value for value in row)) for row in mixed]
    return [[value / norm for value in row] for row, norm in zip(mixed, norms, strict=True)]


def _refuse(message: str) -> ApiError:
    return ApiError(400, message)


def check_contextual(request: Request, encoding: str) -> tuple[list[list[str]], int]:
    """Return the lists of a request and their tokens.

    Raises:
        ApiError: With status 400 for what the real service refuses.
    """
    fields = request.fields
    if unknown := fields.keys() - _ACCEPTED:
        raise _refuse(f"Argument '{min(unknown)}' is not supported by our API.")
    inputs, kind = fields.get("inputs"), fields.get("input_type")
    if "context" not in request.model:
        raise _refuse(f"Model {request.model} is not supported. Supported models are ['voyage-context-3'].")
    if not isinstance(inputs, list) or not inputs or not all(isinstance(texts, list) and texts for texts in inputs):
        raise _refuse("The inputs must be a list of lists of strings.")
    if not all(isinstance(text, str) and text for texts in inputs for text in texts):
        raise _refuse("The inputs must not contain empty strings.")
    if kind not in (None, "query", "document"):
        raise _refuse(f"Value '{kind}' of input_type is not supported.")
    if kind == "query" and any(len(texts) != 1 for texts in inputs):
        raise _refuse("Each inner list must contain a single query.")
    if fields.get("output_dimension") not in (None, *DIMENSIONS):
        raise _refuse(f"Value '{fields['output_dimension']}' of output_dimension is not supported.")
    sizes = [sum(count(text, encoding) for text in texts) for texts in inputs]
    if len(inputs) > MAX_LISTS or sum(map(len, inputs)) > MAX_CHUNKS:
        raise _refuse("The inputs contain too many lists or chunks.")
    if max(sizes) > MAX_LIST_TOKENS or sum(sizes) > MAX_REQUEST_TOKENS:
        raise _refuse(f"Request to model '{request.model}' failed. The max allowed tokens is {MAX_LIST_TOKENS}.")
    return inputs, sum(sizes)


def contextual_answer(request: Request, inputs: list[list[str]], tokens: int, dimensions: int) -> Answer:
    """Build the answer to a checked request."""
    size = request.fields.get("output_dimension") or dimensions
    packed = request.fields.get("encoding_format") == "base64"
    data = []
    for index, texts in enumerate(inputs):
        vectors: list[Any] = contextual_vectors(texts, size)
        if packed:
            vectors = [base64.b64encode(struct.pack(f"<{size}f", *vector)).decode() for vector in vectors]
        items = [{"object": "embedding", "embedding": vector, "index": at} for at, vector in enumerate(vectors)]
        data.append({"object": "list", "data": items, "index": index})
    usage = {"total_tokens": tokens}
    payload = {"object": "list", "data": data, "model": request.model, "usage": usage}
    return Answer(payload=payload, usage=usage)


def voyage_error(answer: Answer) -> Answer:
    """Return an error in Voyage's format."""
    if answer.status != 200:
        answer.payload = {"detail": answer.payload["error"]["message"]}
    return answer
