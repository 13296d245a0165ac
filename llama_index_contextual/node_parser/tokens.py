"""The o200k_base tokenizer: offline, for texts of any length and any code points.

Its file ships inside llama-index-core; tiktoken finds it only while `TIKTOKEN_CACHE_DIR` names that folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray

from llama_index_contextual._utils.forks import new_lock

ENCODING = "o200k_base"
PIECE_SIZE = 100_000

_CHECK_SIZE = 1 << 20
_CACHE_VARIABLE = "TIKTOKEN_CACHE_DIR"
_environment = new_lock()

# Places where a token ends whatever stands before or behind: the tokenizer's own pre-splitting starts a new piece at a
# space, and at a line feed or a punctuation mark behind a letter or digit. The apostrophe is left out (it's, we'll).
SAFE_BREAK = re.compile(r"\S(?= )|[^\W_](?=[\n,.;:!?()，。、；：！？「」…])")
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_SURROGATE = re.compile("[\ud800-\udfff]")


@lru_cache(maxsize=4)
def get_tokenizer(encoding: str = ENCODING) -> tiktoken.Encoding:
    """Return an encoding without touching the network: o200k_base, or cl100k_base.

    The environment is changed only around tiktoken's own look-up, and put back.
    """
    cache = str(files("llama_index.core") / "_static" / "tiktoken_cache")
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
    """Return how many tokens (o200k_base unless said otherwise) `text` has when it is encoded on its own.

    Special tokens such as "<|endoftext|>" are counted as the text they are. A lone surrogate counts as the replacement
    character U+FFFD.
    """
    # The default is not passed on: the tokenizer is kept once for both ways of asking for it.
    tokenizer = get_tokenizer() if encoding == ENCODING else get_tokenizer(encoding)
    encode = tokenizer.encode_ordinary
    return sum(len(encode(text[start:stop])) for start, stop in pieces(text))


def token_widths(text: str, *, piece_size: int = PIECE_SIZE) -> NDArray[np.uint8]:
    """Return for each token of `text` the number of characters that begin in it.

    A token that holds the later bytes of a character only has the width 0. The result does not depend on `piece_size`.

    Args:
        text: A string without surrogates; see `replace_surrogates`.
        piece_size: Characters that are given to the tokenizer at once.

    Returns:
        An array with one entry per token; their sum is `len(text)`.
    """
    begun = _characters_begun()
    encode = get_tokenizer().encode_to_numpy
    counts = [begun[encode(text[start:stop], disallowed_special=())] for start, stop in pieces(text, piece_size)]
    return np.concatenate(counts) if counts else np.zeros(0, dtype=np.uint8)


def pieces(text: str, size: int = PIECE_SIZE) -> Iterator[tuple[int, int]]:
    """Yield spans that tile `text`, none longer than 100,000 characters, cut where a token ends in any case.

    tiktoken raises on about a million white-space characters in a row, as its regular expressions keep a stack. A
    stretch without a safe place is cut at fixed distances from its beginning, so that the tokens are the
    same for every `size`.
    """
    size = min(size, PIECE_SIZE)
    start, length = 0, len(text)
    while start < length:
        stop = length if length - start <= size else _piece_end(text, start, start + size)
        yield start, stop
        start = stop


def _piece_end(text: str, start: int, target: int) -> int:
    for width in (200, 2_000, target - start):
        ends = [match.end() for match in SAFE_BREAK.finditer(text, max(start, target - width), target)]
        if ends:
            return ends[-1]
    hard = min(start + PIECE_SIZE, len(text))
    later = SAFE_BREAK.search(text, target - 1, hard)
    return later.end() if later else hard


def replace_surrogates(text: str) -> str:
    """Return `text` with U+FFFD in place of each surrogate, which UTF-8 cannot express; itself if there is none."""
    if text.isascii():
        return text
    try:
        for start in range(0, len(text), _CHECK_SIZE):
            text[start : start + _CHECK_SIZE].encode("utf-8")
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


@lru_cache(maxsize=1)
def _characters_begun() -> NDArray[np.uint8]:
    encoding = get_tokenizer()
    begun = np.zeros(encoding.n_vocab, dtype=np.uint8)
    for token in range(encoding.n_vocab):
        try:
            data = encoding.decode_single_token_bytes(token)
        except KeyError:
            continue
        begun[token] = len(data.translate(None, _CONTINUATION_BYTES))
    return begun


@dataclass(frozen=True)
class TokenMap:
    """One tokenisation of a text, read in both directions.

    A slice that is encoded alone may have a token or two more than the text has in that place, as its first and last
    words are joined differently. `estimate` counts the tokens of the whole text, `count` and `widths` are exact.

    Attributes:
        text: Any string.
        ends: For each token the number of characters that have begun when it ends; the last is `len(text)`.
        has_surrogates: Whether `text` holds surrogates, which the tokenizer cannot read.
    """

    text: str
    ends: NDArray[np.integer[Any]]
    has_surrogates: bool

    @classmethod
    def of(cls, text: str, widths: NDArray[np.uint8] | None = None, *, piece_size: int = PIECE_SIZE) -> TokenMap:
        """Tokenise `text` once, or not at all where the widths of its tokens are known.

        Args:
            text: Any string.
            widths: What `widths` gave for this text.
            piece_size: Characters that are given to the tokenizer at once.
        """
        clean = replace_surrogates(text)
        if widths is None:
            widths = token_widths(clean, piece_size=piece_size)
        # Half the memory wherever the offsets allow it: a text of 200 MB has some 50 million tokens.
        ends: NDArray[np.integer[Any]] = np.cumsum(widths, dtype=np.int32 if len(text) < 2**31 else np.int64)
        return cls(text, ends, clean is not text)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.ends)

    def index(self, offset: int) -> int:
        """Return how many tokens end at or before the character at `offset`."""
        # A scalar of another type would make NumPy convert the whole array at each call.
        return int(self.ends.searchsorted(self.ends.dtype.type(offset), side="right"))

    def offset(self, index: int) -> int:
        """Return the character at which token `index` begins; the first and the length where it is out of range."""
        if index <= 0 or not len(self.ends):
            return 0
        return int(self.ends[min(index, len(self.ends)) - 1])

    def estimate(self, start: int, end: int) -> int:
        """Return the tokens that the whole text has between two offsets."""
        return self.index(end) - self.index(start)

    def count(self, start: int, end: int) -> int:
        """Return the exact number of tokens of the slice when it is encoded alone."""
        inner = self._inner(start, end)
        if inner is None:
            return count_tokens(self.text[start:end])
        first, last = inner
        return _count(self.text[start:first]) + self.estimate(first, last) + _count(self.text[last:end])

    def widths(self, start: int, end: int) -> NDArray[np.uint8]:
        """Return the number of characters that begin in each token of the slice when it is encoded alone."""
        inner = self._inner(start, end)
        if inner is None:
            return token_widths(replace_surrogates(self.text[start:end]))
        first, last = inner
        within = np.diff(self.ends[self.index(first) : self.index(last)], prepend=first).astype(np.uint8)
        return np.concatenate([token_widths(self.text[start:first]), within, token_widths(self.text[last:end])])

    def _inner(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last place of a slice where a token ends in any case, or None.

        Between them the tokens are those of the whole text: only a few characters on either side are encoded again.
        """
        head = None if self.has_surrogates else SAFE_BREAK.search(self.text, start, end)
        return None if head is None else (head.end(), self._last_safe_break(head.end(), end))

    def _last_safe_break(self, first: int, end: int) -> int:
        for width in (24, 200, end - first):
            begin = max(first, end - width)
            found = [match.end() for match in SAFE_BREAK.finditer(self.text, begin, end)]
            if found:
                return found[-1]
            if begin == first:
                break
        return first


def _count(text: str) -> int:
    # Most often a word or two, for which cutting into pieces would cost more than encoding.
    return len(get_tokenizer().encode_ordinary(text)) if len(text) < PIECE_SIZE else count_tokens(text)
