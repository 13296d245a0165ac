"""Count tokens offline, in texts of any length with any characters.

llama-index-core ships the encoding data files. tiktoken finds them only if the `TIKTOKEN_CACHE_DIR` environment
variable is set to their folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray

from llama_index_contextual._utils.locks import Lock

ENCODING = "o200k_base"
PIECE_SIZE = 100_000

_CHECK_SIZE = 1 << 20
_CACHE_VARIABLE = "TIKTOKEN_CACHE_DIR"
_environment = Lock()

# Positions at which a token always ends: the tokenizer first splits the text before a space, and before a line feed or
# a punctuation mark that follows a letter or digit. The apostrophe is excluded (it's, we'll).
SAFE_BREAK = re.compile(r"\S(?= )|[^\W_](?=[\n,.;:!?()，。、；：！？「」…])")
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_SURROGATE = re.compile("[\ud800-\udfff]")


@lru_cache(maxsize=4)
def get_tokenizer(encoding: str = ENCODING) -> tiktoken.Encoding:
    """Return an encoding, o200k_base or cl100k_base, without using the network.

    The environment variable is set only while tiktoken loads the encoding, and is restored afterwards.
    """
    core = find_spec("llama_index.core")  # located but not imported, because the import takes a second
    cache = str(Path(str(core and core.origin)).parent / "_static" / "tiktoken_cache")
    with _environment:
        before = os.environ.get(_CACHE_VARIABLE)
        os.environ[_CACHE_VARIABLE] = cache
        try:
            return tiktoken.get_encoding(encoding)
        finally:
            if before is None:
                del os.environ[_CACHE_VARIABLE]
            else:
                os.environ[_CACHE_VARIABLE] = before


def count_tokens(text: str, *, encoding: str = ENCODING) -> int:
    """Return the number of tokens in `text`.

    Special tokens such as "<|endoftext|>" are counted as plain text. A lone surrogate is counted as the replacement
    character U+FFFD.

    Args:
        text: Any string.
        encoding: Name of the encoding, o200k_base or cl100k_base.
    """
    # For the default encoding, pass no argument; otherwise, the cache would store the encoding twice.
    tokenizer = get_tokenizer() if encoding == ENCODING else get_tokenizer(encoding)
    encode = tokenizer.encode_ordinary
    return sum(len(encode(text[start:stop])) for start, stop in pieces(text))


def token_widths(text: str, *, piece_size: int = PIECE_SIZE) -> NDArray[np.uint8]:
    """Return the number of characters that begin in each token of `text`.

    A token that contains only continuation bytes of a character has width 0. The result does not depend on
    `piece_size`.

    Args:
        text: A string without surrogates; see `replace_surrogates`.
        piece_size: Number of characters to pass to the tokenizer at a time.

    Returns:
        An array with one entry per token; the sum is `len(text)`.
    """
    widths = _widths_of_tokens()
    encode = get_tokenizer().encode_to_numpy
    counts = [widths[encode(text[start:stop], disallowed_special=())] for start, stop in pieces(text, piece_size)]
    return np.concatenate(counts) if counts else np.zeros(0, dtype=np.uint8)


def pieces(text: str, size: int = PIECE_SIZE) -> Iterator[tuple[int, int]]:
    """Yield consecutive spans of at most 100,000 characters that cover `text` and end at safe breaks if possible.

    tiktoken raises an error on about a million white-space characters in a row, because its regular expressions keep a
    stack. A long stretch of text without a safe break (see `SAFE_BREAK`) is cut every 100,000 characters, so that the
    tokens are the same for every `size`.
    """
    size = min(size, PIECE_SIZE)
    start, length = 0, len(text)
    while start < length:
        stop = length if length - start <= size else _piece_end(text, start, start + size)
        yield start, stop
        start = stop


def _piece_end(text: str, start: int, target: int) -> int:
    if (last := _last_break(text, start, target, (200, 2_000, target - start))) is not None:
        return last
    hard = min(start + PIECE_SIZE, len(text))
    later = SAFE_BREAK.search(text, target - 1, hard)
    return later.end() if later else hard


def _last_break(text: str, start: int, end: int, widths: Sequence[int]) -> int | None:
    """Return the last safe break between two offsets, or None; the last few characters are searched first."""
    for width in widths:
        if ends := [match.end() for match in SAFE_BREAK.finditer(text, max(start, end - width), end)]:
            return ends[-1]
    return None


def replace_surrogates(text: str) -> str:
    """Replace surrogates, which UTF-8 cannot encode, with U+FFFD; if there are none, return `text` unchanged."""
    if text.isascii():
        return text
    try:
        for start in range(0, len(text), _CHECK_SIZE):
            text[start : start + _CHECK_SIZE].encode("utf-8")
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


@lru_cache(maxsize=1)
def _widths_of_tokens() -> NDArray[np.uint8]:
    """Return, for each token of the vocabulary, the number of characters that begin in it."""
    encoding = get_tokenizer()
    widths = np.zeros(encoding.n_vocab, dtype=np.uint8)
    for token in range(encoding.n_vocab):
        try:
            data = encoding.decode_single_token_bytes(token)
        except KeyError:
            continue
        widths[token] = len(data.translate(None, _CONTINUATION_BYTES))
    return widths


@dataclass(frozen=True)
class TokenMap:
    """Token boundaries of a text, for converting between character offsets and token indexes.

    A slice that is encoded on its own may have one or two more tokens than the same part of the text, because its first
    and last words are split differently. `estimate` ignores this difference; `count` is exact.

    Attributes:
        text: Any string.
        ends: Character offset at which each token ends; the last is `len(text)`. A character that is split between
            tokens counts as part of the token in which it begins.
        has_surrogates: Whether `text` contains surrogates, which the tokenizer cannot encode.
    """

    text: str
    ends: NDArray[np.integer[Any]]
    has_surrogates: bool

    @classmethod
    def from_text(cls, text: str, *, piece_size: int = PIECE_SIZE) -> TokenMap:
        """Tokenise `text`.

        Args:
            text: Any string.
            piece_size: Number of characters to pass to the tokenizer at a time.
        """
        clean = replace_surrogates(text)
        widths = token_widths(clean, piece_size=piece_size)
        # 32-bit integers halve the memory: a text of 200 MB has about 50 million tokens.
        ends: NDArray[np.integer[Any]] = np.cumsum(widths, dtype=np.int32 if len(text) < 2**31 else np.int64)
        return cls(text, ends, clean is not text)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.ends)

    def index(self, offset: int) -> int:
        """Return the number of tokens that end at or before `offset`."""
        # With a scalar of another type, NumPy would convert the whole array in each call.
        return int(self.ends.searchsorted(self.ends.dtype.type(offset), side="right"))

    def offset(self, index: int) -> int:
        """Return the offset at which token `index` begins, clipped to the text if `index` is out of range."""
        if index <= 0 or not len(self.ends):
            return 0
        return int(self.ends[min(index, len(self.ends)) - 1])

    def estimate(self, start: int, end: int) -> int:
        """Return the number of tokens between two offsets in the encoding of the whole text."""
        return self.index(end) - self.index(start)

    def count(self, start: int, end: int) -> int:
        """Return the exact number of tokens in a slice that is encoded on its own."""
        inner = self._inner(start, end)
        if inner is None:
            return count_tokens(self.text[start:end])
        first, last = inner
        return _count(self.text[start:first]) + self.estimate(first, last) + _count(self.text[last:end])

    def _inner(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last position in a slice at which a token always ends, or None if there is none.

        Between these positions, the tokens are the same as in the whole text, so only the few characters on either
        side have to be encoded again.
        """
        head = None if self.has_surrogates else SAFE_BREAK.search(self.text, start, end)
        if head is None:
            return None
        first = head.end()
        return first, _last_break(self.text, first, end, (24, 200, end - first)) or first


def _count(text: str) -> int:
    # The text is usually one or two words, which take less time to encode than to cut into pieces.
    return len(get_tokenizer().encode_ordinary(text)) if len(text) < PIECE_SIZE else count_tokens(text)
