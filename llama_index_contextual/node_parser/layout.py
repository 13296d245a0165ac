"""What the structure of a text says about cutting it into chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        at_least: For each rank the sorted offsets of that rank or better, none of them inside a whole.
        wholes: Spans that are never cut: code fences and tables that fit a chunk, else their lines that fit.
        rows: First offsets of the rows of tables that fit a chunk. An overlap may begin there, as the chunk before has
            the whole table; it may not begin in a code fence, whose closing mark would then seem to open one.
    """

    at_least: dict[Rank, list[int]]
    wholes: Sequence[tuple[int, int]]
    rows: Sequence[int]

    @cached_property
    def whole_starts(self) -> list[int]:
        """The first offsets of `wholes`."""
        return [start for start, _ in self.wholes]

    def whole_at(self, offset: int) -> tuple[int, int] | None:
        """Return the whole that a cut at `offset` would divide, or None."""
        return containing(self.wholes, self.whole_starts, offset)

    @classmethod
    def of(cls, text: str, tokens: TokenMap, size: int, headings: Iterable[int] | None = None) -> Layout:
        """Scan `text` once; `headings` are the offsets known from the reader, or None."""
        wholes, rows = _wholes(text, tokens, size)
        starts = [start for start, _ in wholes]
        by_rank = structural_offsets(text)
        by_rank[Rank.LINE] += starts
        by_rank[Rank.HEADING] = heading_offsets(text, headings)
        at_least: dict[Rank, list[int]] = {}
        better: list[int] = []
        for rank in sorted(Rank, reverse=True):
            better = sorted({*better, *by_rank[rank]})
            if wholes:
                better = [offset for offset in better if not containing(wholes, starts, offset)]
            at_least[rank] = better
        return cls(at_least, wholes, rows)


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
