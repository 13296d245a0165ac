"""Tokens and characters of one text: where a token budget ends, and how many tokens a slice has on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.node_parser.tokenizer import (
    PIECE_SIZE,
    SAFE_BREAK,
    count_tokens,
    get_tokenizer,
    replace_surrogates,
    token_widths,
)


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
