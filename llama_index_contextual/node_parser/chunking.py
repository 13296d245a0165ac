"""Chunk spans: where a text is cut into pieces that fit a token budget, and how far they overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from llama_index_contextual.node_parser.boundaries import Rank
from llama_index_contextual.node_parser.cut_points import CutPoints
from llama_index_contextual.node_parser.graphemes import (
    grapheme_end,
    grapheme_floor,
    is_grapheme_boundary,
    is_surrogate_pair,
    skip_space,
    strip_end,
)
from llama_index_contextual.node_parser.layout import Layout
from llama_index_contextual.node_parser.overlap import overlap_start
from llama_index_contextual.node_parser.spans import TokenMap

# How full a chunk must be before a cut of this rank is taken: a heading is worth a half-empty chunk, a line end is not.
_FILL = ((Rank.HEADING, 0.5), (Rank.PARAGRAPH, 0.6), (Rank.SENTENCE, 0.75), (Rank.LINE, 0.75))
_LEAST_FILL = 0.5
_LEAST_TAIL = 0.4
# Characters for each token of a chunk; what is longer is taken for too long without reading on.
_LONGEST_GRAPHEME = 8
_LONGEST_WORD = 64


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
        overlap: Wanted tokens of overlap, see `overlap_start`.
    """

    tokens: TokenMap
    layout: Layout
    size: int
    overlap: int

    @cached_property
    def _points(self) -> CutPoints:
        return CutPoints(self.tokens.text, self.layout)

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
            found = self._points.last_of(rank, low, limit, core)
            if found is not None:
                return found
        found = self._points.last_word_start(least, limit, core)
        if found is None:
            found = self._points.last_word_end(least, limit, core)
        return self._choose_early(core, limit) if found is None else found

    def _choose_early(self, core: int, limit: int) -> int | None:
        """Return a cut that leaves the chunk less than half full."""
        points = self._points
        early = points.last_word_start(core + 1, limit, core), points.last_word_end(core + 1, limit, core)
        found = max((offset for offset in early if offset is not None), default=None)
        if found is None:
            # Rather a mark is divided from the white space before it, with which it forms a grapheme, than a word.
            return points.last_divided_word_start(core + 1, limit)
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

    def _oversized_word(self, offset: int) -> bool:
        end = self._word_end(offset, len(self.tokens.text))
        return end - offset > self.size and self.tokens.estimate(offset, end) > self.size

    def _word_end(self, start: int, tail: int) -> int:
        return self._points.word_end(start, min(tail, start + _LONGEST_WORD * self.size))

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
        return overlap_start(self.tokens, self.layout, self.overlap, core=core, end=end, floor=floor)
