"""Token counts, offline and cheap for prompts that share long prefixes, and the prefix cache of the provider.

A prompt is serialized as the chat format does it: for each message a start mark, the role, a separator, the content and
an end mark, and at the end the opening of the answer. Tools go before the messages, as text. Tool calls of earlier
turns follow the content.

Rules of the cache: a request gets the longest prefix it shares with an earlier request of the same model whose answer,
a 200, was complete when the request arrived; at least 1,024 tokens and in steps of 128. `prompt_cache_key`, when given,
separates the caches. (The real service uses it as a hint for routing; separate caches are the strict reading of it.)
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b

from llama_index_contextual._utils.tokens import get_tokenizer
from tests.support.records import Request, message_text

DEFAULT_ENCODING = "o200k_base"
TOKEN_BYTES = array("I").itemsize
MINIMUM, STEP = 1024, 128

# No pattern of the OpenAI encodings crosses from a letter to a space, so texts cut there
# encode to the same tokens as the whole text does.
_CUT = re.compile(r"(?<=[A-Za-z])(?= )")
_PIECE = 2_000
# The tokenizer raises on about a million characters without a break.
_LONGEST = 100_000

_START, _END, _SEPARATOR = (array("I", [mark]).tobytes() for mark in (200264, 200265, 200266))


def pieces(text: str) -> Iterator[str]:
    """Cut a text at places that leave its tokens unchanged.

    The cuts depend only on the text before them, so texts with a common prefix have
    common pieces. Only a run of 100,000 characters without such a place is cut anywhere.
    """
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + _PIECE, start + _LONGEST)
        end = cut.start() if cut else min(start + _LONGEST, len(text))
        yield text[start:end]
        start = end


@lru_cache(maxsize=20_000)
def _encode_piece(piece: str, name: str) -> bytes:
    return array("I", get_tokenizer(name).encode(piece, disallowed_special=())).tobytes()


def encode(text: str, name: str = DEFAULT_ENCODING) -> bytes:
    """Return the tokens of a text as packed unsigned integers."""
    return b"".join(_encode_piece(piece, name) for piece in pieces(text))


def count(text: str, name: str = DEFAULT_ENCODING) -> int:
    """Return the number of tokens of a text."""
    return len(encode(text, name)) // TOKEN_BYTES


def cut(text: str, limit: int, name: str = DEFAULT_ENCODING) -> str:
    """Return the first `limit` tokens of a text, without a broken last character."""
    tokens = array("I", encode(text, name))
    return text if len(tokens) <= limit else get_tokenizer(name).decode(tokens[:limit].tolist()).rstrip("\ufffd")


def serialize_prompt(request: Request) -> bytes:
    """Return the tokens of the whole prompt of a chat request."""
    tools = request.fields.get("tools")
    parts = [encode(json.dumps(tools, ensure_ascii=False))] if tools else []
    for message in request.messages:
        calls = message.get("tool_calls")
        content = message_text(message) + (json.dumps(calls, ensure_ascii=False) if calls else "")
        parts += [_START, encode(str(message.get("role", "user"))), _SEPARATOR, encode(content), _END]
    return b"".join([*parts, _START, encode("assistant"), _SEPARATOR])


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

    @staticmethod
    def _keys(request: Request, prompt: bytes) -> Iterator[tuple[int, tuple[str, str | None, bytes]]]:
        routing = request.fields.get("prompt_cache_key")
        digest, done = blake2b(digest_size=16), 0
        for size in range(MINIMUM, len(prompt) // TOKEN_BYTES + 1, STEP):
            digest.update(prompt[done * TOKEN_BYTES : size * TOKEN_BYTES])
            done = size
            yield size, (request.model, routing, digest.digest())
