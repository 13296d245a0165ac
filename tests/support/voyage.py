"""Voyage's endpoint for contextual embeddings: vectors that depend on the neighbours, within the limits of the service.

The format follows https://docs.voyageai.com/reference/contextualized-embeddings-api.
"""

from __future__ import annotations

import math

from tests.support.embeddings import embed, packed, refuse_if
from tests.support.records import Answer, Request
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


def check_contextual(request: Request, encoding: str) -> int:
    """Return the tokens of a request, or refuse it."""
    fields = request.fields
    inputs, kind, size = fields.get("inputs"), fields.get("input_type"), fields.get("output_dimension")
    lists = inputs if isinstance(inputs, list) and all(isinstance(texts, list) for texts in inputs) else []
    refuse_if(
        (bool(fields.keys() - _ACCEPTED), f"Argument '{fields.keys() - _ACCEPTED}' is not supported by our API."),
        ("context" not in request.model, f"Model {request.model} is not supported."),
        (not lists or not all(lists), "The inputs must be a list of lists of strings."),
        (not all(isinstance(text, str) and text for text in request.inputs), "The inputs must not be empty strings."),
        (kind not in (None, "query", "document"), f"Value '{kind}' of input_type is not supported."),
        (kind == "query" and any(len(texts) != 1 for texts in lists), "Each inner list must contain a single query."),
        (size not in (None, *DIMENSIONS), f"Value '{size}' of output_dimension is not supported."),
        (len(lists) > MAX_LISTS or len(request.inputs) > MAX_CHUNKS, "The inputs contain too many lists or chunks."),
    )
    sizes = [sum(count(text, encoding) for text in texts) for texts in lists]
    too_long = max(sizes) > MAX_LIST_TOKENS or sum(sizes) > MAX_REQUEST_TOKENS
    refuse_if((too_long, f"Request failed. The max allowed tokens is {MAX_LIST_TOKENS}."))
    return sum(sizes)


def contextual_answer(request: Request, tokens: int, dimensions: int) -> Answer:
    """Build the answer to a checked request."""
    size = request.fields.get("output_dimension") or dimensions
    data = []
    for index, texts in enumerate(request.fields["inputs"]):
        rows = enumerate(contextual_vectors(texts, size))
        items = [{"object": "embedding", "embedding": packed(row, request), "index": at} for at, row in rows]
        data.append({"object": "list", "data": items, "index": index})
    usage = {"total_tokens": tokens}
    return Answer(payload={"object": "list", "data": data, "model": request.model, "usage": usage}, usage=usage)
