"""The prompt as the model sees it, and the prefix cache over it.

A prompt is serialized as the chat format does it: for each message a start mark, the role,
a separator, the content and an end mark, and at the end the opening of the answer. That is
3 tokens a message and 3 more at the end beside roles and contents. Tools and a JSON schema
go before the messages, as text. Tool calls of earlier turns follow the content.

Rules of the cache: a request gets the longest prefix it shares with an earlier request of
the same model whose answer, a 200, was complete when the request arrived; at least 1,024
tokens and in steps of 128. `prompt_cache_key`, when given, separates the caches: requests
with different keys, or with and without one, never share a prefix. (The real service uses it
as a hint for routing; separate caches are the strict reading of it.) Entries do not expire,
and no traffic overflows to a machine with an empty cache.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from tests.support.records import Request, message_text
from tests.support.tokens import TOKEN_BYTES, encode

MINIMUM = 1024
STEP = 128

_START, _END, _SEPARATOR = (array("I", [mark]).tobytes() for mark in (200264, 200265, 200266))


def _preamble(fields: dict[str, Any]) -> bytes:
    """Serialize the tools and the JSON schema."""
    schema = (fields.get("response_format") or {}).get("json_schema")
    parts = [part for part in (fields.get("tools"), schema) if part]
    return b"".join(encode(json.dumps(part, ensure_ascii=False)) for part in parts)


def _message(message: dict[str, Any]) -> bytes:
    calls = message.get("tool_calls")
    content = message_text(message) + (json.dumps(calls, ensure_ascii=False) if calls else "")
    return _START + encode(str(message.get("role", "user"))) + _SEPARATOR + encode(content) + _END


def serialize_prompt(request: Request) -> bytes:
    """Return the tokens of the whole prompt of a chat request."""
    messages = b"".join(_message(message) for message in request.messages)
    return _preamble(request.fields) + messages + _START + encode("assistant") + _SEPARATOR


class PrefixCache:
    """Prefixes of complete requests, each kept as one hash per step."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str | None, bytes]] = set()

    def lookup(self, request: Request, prompt: bytes) -> int:
        """Return how many tokens of the prompt are cached."""
        cached = 0
        for size, key in self._keys(request, prompt):
            if key not in self._known:
                break
            cached = size
        return cached

    def add(self, request: Request, prompt: bytes) -> None:
        """Remember the prefixes of a prompt whose answer is complete."""
        self._known.update(key for _, key in self._keys(request, prompt))

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    @staticmethod
    def _keys(request: Request, prompt: bytes) -> Iterator[tuple[int, tuple[str, str | None, bytes]]]:
        routing = request.fields.get("prompt_cache_key")
        digest, done = blake2b(digest_size=16), 0
        for size in range(MINIMUM, len(prompt) // TOKEN_BYTES + 1, STEP):
            digest.update(prompt[done * TOKEN_BYTES : size * TOKEN_BYTES])
            done = size
            yield size, (request.model, routing, digest.digest())
