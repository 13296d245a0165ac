"""Where a text can be cut: the last heading, paragraph, sentence, line or word that leaves everything whole."""

from __future__ import annotations

from dataclasses import dataclass

from llama_index_contextual.node_parser.boundaries import Rank
from llama_index_contextual.node_parser.graphemes import (
    LAST_NON_WORD_CHARACTER,
    NON_WORD_CHARACTER,
    grapheme_floor,
    in_word,
    is_grapheme_boundary,
    skip_space,
    strip_end,
)
from llama_index_contextual.node_parser.layout import Layout

# A text whose words all begin with a combining mark must not cost a search for each of them.
_MOST_TRIES = 64


@dataclass(frozen=True)
class CutPoints:
    """Finds the last possible cut of a kind.

    A cut is the offset of the first character behind it; white space before it belongs to neither side. `known` is an
    earlier offset at which a grapheme begins.

    Attributes:
        text: The text that is cut.
        layout: Its structure.
    """

    text: str
    layout: Layout

    def last_of(self, rank: Rank, low: int, high: int, known: int) -> int | None:
        """Return the last cut of this rank or better."""
        offset = self.layout.last(rank, low, high)
        while offset is not None and not self.is_clean(offset, known):
            offset = self.layout.last(rank, low, offset - 1)
        return offset

    def is_clean(self, offset: int, known: int) -> bool:
        """Return whether a cut leaves graphemes whole on both sides of the white space before `offset`."""
        text = self.text
        if not is_grapheme_boundary(text, offset, known):
            return False
        return not text[offset - 1].isspace() or is_grapheme_boundary(text, strip_end(text, known, offset), known)

    def last_word_start(self, low: int, high: int, known: int) -> int | None:
        """Return the last cut behind white space."""
        text = self.text
        offset = _word_start(text, low, high)
        for _ in range(_MOST_TRIES):
            if offset is None:
                break
            whole = self.layout.whole_at(offset)
            if whole:
                offset = whole[0]
                if offset < low:
                    return None
            if text[offset - 1].isspace() and self.is_clean(offset, known):
                return offset
            offset = _word_start(text, low, offset - 1)
        return None

    def last_word_end(self, low: int, high: int, known: int) -> int | None:
        """Return the last cut behind a character that is no part of a word, such as a comma without a space."""
        text = self.text
        while high >= low:
            found = LAST_NON_WORD_CHARACTER.search(text, low - 1, high)
            if not found:
                return None
            offset = grapheme_floor(text, found.end(), known)
            whole = self.layout.whole_at(offset)
            if not whole and offset >= low and not in_word(text, offset) and self.is_clean(offset, known):
                return skip_space(text, offset)
            high = min(whole[0] if whole else offset, found.start())
        return None

    def last_divided_word_start(self, low: int, high: int) -> int | None:
        """Return the last cut behind white space even if a mark behind it forms a grapheme with that white space."""
        offset = _word_start(self.text, low, high)
        return None if offset is None or self.layout.whole_at(offset) else offset

    def word_end(self, start: int, stop: int) -> int:
        """Return where the word that begins at `start` ends, or `stop` if it is longer."""
        found = NON_WORD_CHARACTER.search(self.text, start + 1, stop)
        return int(found.start()) if found else stop


def _word_start(text: str, low: int, high: int) -> int | None:
    """Return the last offset between `low` and `high` that has white space before and none behind it."""
    if low > high:
        return None
    if high < len(text) and text[high - 1].isspace() and not text[high].isspace():
        return high
    head = text[low - 1 : high].rstrip()
    words = head.rsplit(None, 1)
    if not words or len(words[-1]) == len(head):
        return None
    return low - 1 + len(head) - len(words[-1])
