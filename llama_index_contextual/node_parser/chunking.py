"""Chunk spans: where a text is cut into pieces that fit a token budget, and how far they overlap."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from llama_index_contextual.node_parser.boundaries import Rank
from llama_index_contextual.node_parser.graphemes import (
    LAST_NON_WORD_CHARACTER,
    NON_WORD_CHARACTER,
    WORD_START,
    grapheme_boundaries,
    grapheme_end,
    grapheme_floor,
    in_word,
    is_grapheme_boundary,
    is_surrogate_pair,
    skip_space,
    strip_end,
)
from llama_index_contextual.node_parser.layout import Layout
from llama_index_contextual.node_parser.spans import TokenMap

# How full a chunk must be before a cut of this rank is taken: a heading is worth a half-empty chunk, a line end is not.
_FILL = ((Rank.HEADING, 0.5), (Rank.PARAGRAPH, 0.6), (Rank.SENTENCE, 0.75), (Rank.LINE, 0.75))
_LONGEST_GRAPHEME = 8
_MOST_TRIES = 64
_LEAST_FILL = 0.5
_LEAST_TAIL = 0.4
_OVERLAP_RANGE = (0.55, 1.45)


@dataclass(frozen=True)
class ChunkSpan:
    """A chunk as offsets into its text.

    Attributes:
        start: The first character, overlap included.
        core: The first character that the chunk before does not hold.
        end: Behind the last character.
        tokens: Tokens of the slice when it is encoded alone.
    """

    start: int
    core: int
    end: int
    tokens: int


@dataclass(frozen=True)
class ChunkCutter:
    """Cuts one text into chunks of at most `size` tokens that overlap by about `overlap` tokens.

    Attributes:
        tokens: The text and its tokens.
        layout: Its structure.
        size: Most tokens of a chunk when it is encoded alone.
        overlap: Wanted tokens of overlap; the overlap is within 0.5 and 1.5 times it, or nothing where no word or
            sentence begins there.
    """

    tokens: TokenMap
    layout: Layout
    size: int
    overlap: int

    def spans(self, core_start: int = 0, floor: int = -1) -> Iterator[ChunkSpan]:
        """Yield the chunks of the text in order.

        Args:
            core_start: The chunks hold the text from here on; what stands before serves as overlap only.
            floor: The first chunk begins behind this offset.
        """
        text = self.tokens.text
        tail = strip_end(text, core_start, len(text))
        core = skip_space(text, core_start)
        end = strip_end(text, 0, core)
        start = self._overlap_start(core, end, floor)
        while core < tail:
            cut = self._cut(start, core, tail)
            if cut is None:
                # A fence, row or word fits a chunk, but not behind this much overlap: take less.
                start = self._overlap_start(core, end, start)
                continue
            behind, end, count = cut
            yield ChunkSpan(start, core, end, count)
            core, start = behind, self._overlap_start(behind, end, start)

    def _cut(self, start: int, core: int, tail: int) -> tuple[int, int, int] | None:
        """Return (where the next core begins, end, tokens), or None if nothing fits behind this overlap."""
        rest = self.tokens.estimate(start, tail)
        if rest <= self.size + 8:
            count = self.tokens.count(start, tail)
            if count <= self.size:
                return len(self.tokens.text), tail, count
        for budget in dict.fromkeys((self._balanced(rest), self.size)):
            found = self._fitting_cut(start, core, budget)
            if found:
                return found
        if start < core and self._unit_fits(core, tail):
            return None
        return self._forced_cut(start, core, tail)

    def _balanced(self, rest: int) -> int:
        """Return a budget that leaves no tiny chunk at the end."""
        least = int(_LEAST_TAIL * self.size)
        return min(self.size, max(rest - least, self.size - least))

    def _fitting_cut(self, start: int, core: int, budget: int) -> tuple[int, int, int] | None:
        text = self.tokens.text
        while budget > 0:
            behind = self._choose(start, core, budget)
            if behind is None:
                return None
            end = strip_end(text, start, behind)
            count = self.tokens.count(start, end)
            if count <= self.size:
                return behind, end, count
            # One token too many is what joining the edges differently costs; most often one step is enough.
            budget = min(budget, self.tokens.estimate(start, end)) - max(1, count - self.size)
        return None

    def _choose(self, start: int, core: int, budget: int) -> int | None:
        first = self.tokens.index(start)
        limit = self._limit(start, core, self.tokens.offset(first + budget))
        least = max(core + 1, self.tokens.offset(first + int(_LEAST_FILL * budget)))
        for rank, fill in _FILL:
            low = max(core + 1, self.tokens.offset(first + int(fill * budget)))
            found = self._last_of(self.layout.at_least[rank], low, limit, core)
            if found is not None:
                return found
        found = self._last_word_start(least, limit, core)
        if found is None:
            found = self._last_word_end(least, limit, core)
        if found is not None:
            return found
        early = [self._last_word_start(core + 1, limit, core), self._last_word_end(core + 1, limit, core)]
        found = max((offset for offset in early if offset is not None), default=None)
        if found is None:
            # A mark behind white space forms a grapheme with it: rather that one is divided than a word.
            found = _word_start(self.tokens.text, core + 1, limit)
            return None if found is None or self.layout.whole_at(found) else found
        if self._oversized_word(found):
            # It has to be cut anyway: rather a full chunk than a scrap before it.
            return max(found, grapheme_floor(self.tokens.text, limit, found))
        return found

    def _limit(self, start: int, core: int, offset: int) -> int:
        text = self.tokens.text
        whole = self.layout.whole_at(core + 1) if start == core else None
        if whole and whole[0] == core:
            offset = max(offset, whole[1])
        if offset < len(text) and (text[offset].isspace() or text[offset - 1].isspace()):
            offset = skip_space(text, offset)
        return min(offset, len(text))

    def _last_of(self, offsets: list[int], low: int, high: int, known: int) -> int | None:
        at = bisect_right(offsets, high) - 1
        while at >= 0 and offsets[at] >= low:
            if self._is_clean(offsets[at], known):
                return offsets[at]
            at -= 1
        return None

    def _is_clean(self, offset: int, known: int) -> bool:
        """Return whether a cut leaves graphemes whole on both sides of the white space before `offset`."""
        text = self.tokens.text
        if not is_grapheme_boundary(text, offset, known):
            return False
        return not text[offset - 1].isspace() or is_grapheme_boundary(text, strip_end(text, known, offset), known)

    def _last_word_start(self, low: int, high: int, known: int) -> int | None:
        """Return the last offset behind white space at which a cut is clean."""
        text = self.tokens.text
        offset = _word_start(text, low, high)
        for _ in range(_MOST_TRIES):
            if offset is None:
                break
            whole = self.layout.whole_at(offset)
            if whole:
                offset = whole[0]
                if offset < low:
                    return None
            if text[offset - 1].isspace() and self._is_clean(offset, known):
                return offset
            offset = _word_start(text, low, offset - 1)
        return None

    def _last_word_end(self, low: int, high: int, known: int) -> int | None:
        """Return the last offset behind a character that is no part of a word, such as a comma without a space."""
        text = self.tokens.text
        while high >= low:
            found = LAST_NON_WORD_CHARACTER.search(text, low - 1, high)
            if not found:
                return None
            offset = grapheme_floor(text, found.end(), known)
            whole = self.layout.whole_at(offset)
            if not whole and offset >= low and not in_word(text, offset) and self._is_clean(offset, known):
                return skip_space(text, offset)
            high = min(whole[0] if whole else offset, found.start())
        return None

    def _oversized_word(self, offset: int) -> bool:
        found = NON_WORD_CHARACTER.search(self.tokens.text, offset + 1)
        end = found.start() if found else len(self.tokens.text)
        return end - offset > self.size and self.tokens.estimate(offset, end) > self.size

    def _word_end(self, core: int, tail: int) -> int:
        found = NON_WORD_CHARACTER.search(self.tokens.text, core + 1, tail)
        return found.start() if found else tail

    def _unit_fits(self, core: int, tail: int) -> bool:
        """Return whether the word, fence or table row that begins at `core` fits a chunk that has no overlap."""
        whole = self.layout.whole_at(core + 1)
        if whole and whole[0] == core:
            return True
        end = self._word_end(core, tail)
        return self.tokens.estimate(core, end) <= self.size + 16 and self.tokens.count(core, end) <= self.size

    def _forced_cut(self, start: int, core: int, tail: int) -> tuple[int, int, int] | None:
        """Cut a word that is longer than a chunk between graphemes, a grapheme that is longer between characters."""
        text, tokens = self.tokens.text, self.tokens
        if start == core and self._unit_fits(core, tail):
            offset = self._word_end(core, tail)
            if is_grapheme_boundary(text, offset, core):
                end = strip_end(text, core, offset)
                return skip_space(text, offset), end, tokens.count(core, end)
        budget = self.size
        while budget > 0:
            limit = min(tail, tokens.offset(tokens.index(start) + budget))
            offset = grapheme_floor(text, limit, core)
            if offset <= core:
                whole = grapheme_end(text, core, min(tail, core + _LONGEST_GRAPHEME * self.size))
                if tokens.count(start, whole) <= self.size:
                    offset = whole
                elif start < core or limit <= core:
                    break
                else:
                    offset = limit
            end = strip_end(text, core, offset)
            count = tokens.count(start, end)
            if count <= self.size:
                return skip_space(text, offset), end, count
            budget -= max(1, count - self.size)
        if start < core:
            return None
        offset = core + (2 if is_surrogate_pair(text, core) else 1)
        return skip_space(text, offset), offset, tokens.count(core, offset)

    def _overlap_start(self, core: int, end: int, floor: int) -> int:
        """Return where the chunk with the given core begins.

        Args:
            core: The first character of the chunk's own.
            end: The end of the chunk before.
            floor: The new chunk begins behind it, as it does behind the start of the one before.
        """
        tokens = self.tokens
        if not self.overlap or end <= 0 or core >= len(tokens.text):
            return core
        least, most = math.ceil(_OVERLAP_RANGE[0] * self.overlap), int(_OVERLAP_RANGE[1] * self.overlap)
        at = tokens.index(end)
        low = max(floor + 1, tokens.offset(at - most), 1)
        high = tokens.offset(at - least)
        for offset in self._overlap_candidates(low, high, tokens.offset(at - self.overlap), max(0, floor)):
            if low <= offset <= high and least <= tokens.count(offset, end) <= most:
                return offset
        return core

    def _overlap_candidates(self, low: int, high: int, wanted: int, known: int) -> Iterator[int]:
        for near in self._overlap_tiers(low, high):
            free = grapheme_boundaries(self.tokens.text, sorted(near), known)
            yield from sorted(free, key=lambda offset: abs(offset - wanted))

    def _overlap_tiers(self, low: int, high: int) -> Iterator[Iterable[int]]:
        text, layout = self.tokens.text, self.layout
        rows = _between(layout.rows, low, high)
        for rank in (Rank.SENTENCE, Rank.LINE):
            yield [*_between(layout.at_least[rank], low, high), *rows]
        words = (match.start() for match in WORD_START.finditer(text, low, high + 1))
        yield (offset for offset in words if not layout.whole_at(offset))
        behind = (match.end() for match in NON_WORD_CHARACTER.finditer(text, low, high))
        yield (o for o in behind if not (layout.whole_at(o) or in_word(text, o) or text[o].isspace()))


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


def _between(offsets: Sequence[int], low: int, high: int) -> Sequence[int]:
    return offsets[bisect_left(offsets, low) : bisect_right(offsets, high)]
