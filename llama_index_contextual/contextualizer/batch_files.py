"""The files of OpenAI's Batch API: requests as JSON lines in parts that one batch takes, replies read back. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llama_index_contextual.contextualizer.senders import reply_of
from llama_index_contextual.storage.batches import BatchReply
from llama_index_contextual.storage.storable import storable_text

ENDPOINT = "/v1/chat/completions"
MAX_REQUESTS = 50_000
MAX_BYTES = 200_000_000


def request_line(custom_id: str, body: Mapping[str, Any]) -> bytes:
    """Return one request as a line of the file that is uploaded."""
    line = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": dict(body)}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def split(
    lines: Iterable[tuple[str, bytes]], *, max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_BYTES
) -> Iterator[list[tuple[str, bytes]]]:
    """Yield requests in parts that one batch takes: at most so many requests, and so many bytes.

    Example:
        >>> [len(part) for part in split([("a", b"1234"), ("b", b"12"), ("c", b"12345")], max_bytes=6)]
        [2, 1]
    """
    part: list[tuple[str, bytes]] = []
    size = 0
    for custom_id, line in lines:
        if part and (len(part) >= max_requests or size + len(line) > max_bytes):
            yield part
            part, size = [], 0
        part.append((custom_id, line))
        size += len(line)
    if part:
        yield part


def parse_output(content: bytes) -> Iterator[BatchReply]:
    """Yield the replies of an output file, in its order; what is no reply of a model is left out."""
    for line in content.split(b"\n"):
        try:
            raw = json.loads(line)
            custom_id, body = raw["custom_id"], raw["response"]["body"]
            if not body["choices"] or not isinstance(custom_id, str) or storable_text(custom_id) != custom_id:
                continue
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # whatever has no reply is asked again
        reply = reply_of(body)
        yield BatchReply(
            custom_id=custom_id,
            text=storable_text(reply.text),
            finish_reason=reply.finish_reason,
            input_tokens=reply.usage.input_tokens,
            cached_tokens=reply.usage.cached_tokens,
            output_tokens=reply.usage.output_tokens,
        )
