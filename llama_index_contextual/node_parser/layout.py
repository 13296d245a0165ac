"""What the structure of a text says about cutting it into chunks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from llama_index_contextual.node_parser.boundaries import (
    FENCE_MARKS,
    Rank,
    blocks,
    containing,
    heading_offsets,
    lines_of,
    structural_offsets,
)
from llama_index_contextual.node_parser.spans import TokenMap


@dataclass(frozen=True)
class Layout:
    """What the structure of one text says about cuts.

    Attributes:
        offsets: For each rank the sorted offsets at which something of it begins.
        wholes: Spans that are never cut: code fences and tables that fit a chunk, else their lines that fit.
        rows: First offsets of the rows of tables that fit a chunk. An overlap may begin there, as the chunk before has
            the whole table; it may not begin in a code fence, whose closing mark would then seem to open one.
    """

    offsets: Mapping[Rank, Sequence[int]]
    wholes: Sequence[tuple[int, int]]
    rows: Sequence[int]

    @classmethod
    def of(cls, text: str, tokens: TokenMap, size: int, headings: Iterable[int] | None = None) -> Layout:
        """Scan `text` once; `headings` are the offsets known from the reader, or None."""
        wholes, rows = _wholes(text, tokens, size)
        offsets = structural_offsets(text)
        offsets[Rank.LINE] = sorted([*offsets[Rank.LINE], *(start for start, _ in wholes)])
        offsets[Rank.HEADING] = heading_offsets(text, headings)
        return cls(offsets, wholes, rows)

    @cached_property
    def _whole_starts(self) -> list[int]:
        return [start for start, _ in self.wholes]

    def whole_at(self, offset: int) -> tuple[int, int] | None:
        """Return the whole that a cut at `offset` would divide, or None."""
        return containing(self.wholes, self._whole_starts, offset) if self.wholes else None

    def last(self, rank: Rank, low: int, high: int) -> int | None:
        """Return the last offset of this rank or better from `low` to `high` that divides no whole."""
        while True:
            best = -1
            for offsets in self._at_least(rank):
                at = bisect_right(offsets, high) - 1
                if at >= 0 and offsets[at] > best:
                    best = offsets[at]
            if best < low:
                return None
            whole = self.whole_at(best)
            if not whole:
                return best
            high = whole[0]

    def between(self, rank: Rank, low: int, high: int) -> list[int]:
        """Return the offsets of this rank or better from `low` to `high` where an overlap may begin."""
        found = [o for offsets in self._at_least(rank) for o in within(offsets, low, high) if not self.whole_at(o)]
        return sorted({*found, *within(self.rows, low, high)})

    def _at_least(self, rank: Rank) -> Sequence[Sequence[int]]:
        return self._by_least_rank[rank]

    @cached_property
    def _by_least_rank(self) -> dict[Rank, list[Sequence[int]]]:
        return {rank: [self.offsets[other] for other in Rank if other >= rank] for rank in Rank}


def within(offsets: Sequence[int], low: int, high: int) -> Sequence[int]:
    """Return those of the sorted `offsets` that are from `low` to `high`."""
    return offsets[bisect_left(offsets, low) : bisect_right(offsets, high)]


def _wholes(text: str, tokens: TokenMap, size: int) -> tuple[list[tuple[int, int]], list[int]]:
    wholes: list[tuple[int, int]] = []
    rows: list[int] = []
    for start, end in blocks(text):
        lines = lines_of(text, start, end)
        if not _fits(tokens, start, end, size):
            wholes.extend(line for line in lines if _fits(tokens, *line, size))
            continue
        wholes.append((start, end))
        if not text.startswith(FENCE_MARKS, start):
            rows.extend(line[0] for line in lines)
    return wholes, rows


def _fits(tokens: TokenMap, start: int, end: int, size: int) -> bool:
    if end - start <= size // 4:  # A character has at most four bytes, a byte at most one token.
        return True
    slack = tokens.estimate(start, end) - size
    return tokens.count(start, end) <= size if abs(slack) < 8 else slack < 0
