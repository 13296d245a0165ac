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
    token_ends,
)


@dataclass(frozen=True)
class TokenMap:
    """One tokenisation of a text, read in both directions.

    A slice that is encoded alone may have a token or two more than the text has in that place, as its first and last
    words are joined differently. `estimate` counts the tokens of the whole text, `count` is exact.
    """

    text: str
    ends: NDArray[np.integer[Any]]
    begin: int
    has_surrogates: bool

    @classmethod
    def of(cls, text: str, *, since: int = 0, piece_size: int = PIECE_SIZE) -> TokenMap:
        """Tokenise `text` once.

        Args:
            text: Any string.
            since: Nothing much before this offset will be asked for.
            piece_size: Characters that are given to the tokenizer at once.
        """
        begin = max((match.end() for match in SAFE_BREAK.finditer(text, max(0, since - 200), since)), default=0)
        clean = replace_surrogates(text)
        ends = token_ends(clean[begin:] if begin else clean, piece_size=piece_size)
        return cls(text, ends, begin, clean is not text)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.ends)

    def index(self, offset: int) -> int:
        """Return how many tokens end at or before the character at `offset`."""
        # A scalar of another type would make NumPy convert the whole array at each call.
        return int(self.ends.searchsorted(self.ends.dtype.type(max(0, offset - self.begin)), side="right"))

    def offset(self, index: int) -> int:
        """Return the character at which token `index` begins; the first and the length where it is out of range."""
        if index <= 0 or not len(self.ends):
            return self.begin
        return self.begin + int(self.ends[min(index, len(self.ends)) - 1])

    def estimate(self, start: int, end: int) -> int:
        """Return the tokens that the whole text has between two offsets."""
        return self.index(end) - self.index(start)

    def count(self, start: int, end: int) -> int:
        """Return the exact number of tokens of the slice when it is encoded alone.

        Between the first and the last place where a token ends in any case the tokens are those of the whole text, so
        that only a few characters on either side are encoded again.
        """
        text = self.text
        head = None if self.has_surrogates else SAFE_BREAK.search(text, start, end)
        if head is None:
            return count_tokens(text[start:end])
        first = head.end()
        last = self._last_safe_break(first, end)
        return _count(text[start:first]) + self.estimate(first, last) + _count(text[last:end])

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
