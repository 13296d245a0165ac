"""Token counts, offline and cheap for prompts that share long prefixes."""

from __future__ import annotations

import os
import re
import threading
from array import array
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

import tiktoken

DEFAULT_ENCODING = "o200k_base"
TOKEN_BYTES = array("I").itemsize

# No pattern of the OpenAI encodings crosses from a letter to a space, so texts cut there
# encode to the same tokens as the whole text does.
_CUT = re.compile(r"(?<=[A-Za-z])(?= )")
_PIECE = 2_000
# The tokenizer raises on about a million characters without a break.
_LONGEST = 100_000

_environment = threading.Lock()


@cache
def encoding(name: str = DEFAULT_ENCODING) -> tiktoken.Encoding:
    """Load an encoding from the files that llama-index-core ships, without a network."""
    spec = find_spec("llama_index.core")
    if spec is None or spec.origin is None:
        raise RuntimeError("llama-index-core is not installed")
    folder = Path(spec.origin).parent / "_static" / "tiktoken_cache"
    with _environment:
        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
        try:
            return tiktoken.get_encoding(name)
        finally:
            if before is None:
                del os.environ["TIKTOKEN_CACHE_DIR"]
            else:
                os.environ["TIKTOKEN_CACHE_DIR"] = before


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
    return array("I", encoding(name).encode(piece, disallowed_special=())).tobytes()


def encode(text: str, name: str = DEFAULT_ENCODING) -> bytes:
    """Return the tokens of a text as packed unsigned integers."""
    return b"".join(_encode_piece(piece, name) for piece in pieces(text))


def count(text: str, name: str = DEFAULT_ENCODING) -> int:
    """Return the number of tokens of a text."""
    return len(encode(text, name)) // TOKEN_BYTES


def decode(tokens: list[int], name: str = DEFAULT_ENCODING) -> str:
    """Return the text of a list of tokens."""
    return encoding(name).decode(tokens)


def cut(text: str, limit: int, name: str = DEFAULT_ENCODING) -> str:
    """Return the first `limit` tokens of a text, without a broken last character."""
    tokens = array("I", encode(text, name))
    return text if len(tokens) <= limit else decode(tokens[:limit].tolist(), name).rstrip("\ufffd")
