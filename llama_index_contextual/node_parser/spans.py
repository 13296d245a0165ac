"""Tokens and characters of one text: where a token budget ends, and how many tokens a slice has on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.node_parser.tokenizer import PIECE_SIZE, SAFE_BREAK, count_tokens, token_ends


@dataclass(frozen=True)
class TokenMap:
    """One tokenisation of a text, read in both directions.

    A slice that is encoded alone may have a token or two more than the text has in that place, as its first and last
    words are joined differently. `estimate` counts the tokens of the whole text, `count` is exact.
    """

    text: str
    ends: NDArray[np.integer[Any]]
    has_surrogates: bool

    @classmethod
    def of(cls, text: str, *, piece_size: int = PIECE_SIZE) -> TokenMap:
        """Tokenise `text` once."""
        has_surrogates = not text.isascii() and any("\ud800" <= c <= "\udfff" for c in set(text))
        return cls(text, token_ends(text, piece_size=piece_size), has_surrogates)

    def __len__(self) -> int:
        return len(self.ends)

    def index(self, offset: int) -> int:
        """Return how many tokens end at or before the character at `offset`."""
        # A scalar of another type would make NumPy convert the whole array at each call.
        return int(self.ends.searchsorted(self.ends.dtype.type(offset), side="right"))

    def offset(self, index: int) -> int:
        """Return the character at which token `index` begins; 0 and the length where it is out of range."""
        if index <= 0:
            return 0
        return int(self.ends[min(index, len(self.ends)) - 1]) if len(self.ends) else 0

    def estimate(self, start: int, end: int) -> int:
        """Return the tokens that the whole text has between two offsets."""
        return self.index(end) - self.index(start)

    def count(self, start: int, end: int) -> int:
        """Return the exact number of tokens of the slice when it is encoded alone.

        Between the first and the last place where a token ends in any case the tokens are those of the whole text, so
        that only a few characters on either side are encoded again.
        """
        text = self.text
        if self.has_surrogates:
            return count_tokens(text[start:end])
        head = SAFE_BREAK.search(text, start, end)
        if head is None:
            return count_tokens(text[start:end])
        first = head.end()
        last = self._last_safe_break(first, end)
        return count_tokens(text[start:first]) + self.estimate(first, last) + count_tokens(text[last:end])

    def _last_safe_break(self, first: int, end: int) -> int:
        for width in (48, 512, end - first):
            begin = max(first, end - width)
            found = [match.end() for match in SAFE_BREAK.finditer(self.text, begin, end)]
            if found:
                return found[-1]
            if begin == first:
                break
        return first
