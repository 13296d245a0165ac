"""How far a chunk reaches back into the one before."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from llama_index_contextual.node_parser.boundaries import Rank
from llama_index_contextual.node_parser.graphemes import (
    NON_WORD_CHARACTER,
    WORD_START,
    grapheme_boundaries,
    in_word,
)
from llama_index_contextual.node_parser.layout import Layout
from llama_index_contextual.node_parser.spans import TokenMap

LEAST, MOST = 0.55, 1.45
"""Shares of the wanted overlap: with a tenth of the chunk wanted, 5 to 15 % of it are shared."""


def overlap_start(tokens: TokenMap, layout: Layout, wanted: int, *, core: int, end: int, floor: int) -> int:
    """Return where a chunk begins: at a sentence, else a line, else a word in the chunk before.

    Args:
        tokens: The text and its tokens.
        layout: Its structure.
        wanted: Tokens of overlap.
        core: The first character of the chunk's own.
        end: The end of the chunk before.
        floor: The chunk begins behind it.

    Returns:
        An offset before `core`, the nearest to the wanted one that shares 0.55 to 1.45 times as many tokens, or `core`
        if nothing begins there.
    """
    if not wanted or end <= 0 or core >= len(tokens.text):
        return core
    least, most = math.ceil(LEAST * wanted), int(MOST * wanted)
    at = tokens.index(end)
    low, high = max(floor + 1, tokens.offset(at - most), 1), tokens.offset(at - least)
    ideal = tokens.offset(at - wanted)
    for near in _tiers(tokens.text, layout, low, high):
        whole = grapheme_boundaries(tokens.text, sorted(near), max(0, floor))
        for offset in sorted(whole, key=lambda offset: abs(offset - ideal)):
            if low <= offset <= high and least <= tokens.count(offset, end) <= most:
                return offset
    return core


def _tiers(text: str, layout: Layout, low: int, high: int) -> Iterator[Iterable[int]]:
    rows = _between(layout.rows, low, high)
    for rank in (Rank.SENTENCE, Rank.LINE):
        yield [*_between(layout.at_least[rank], low, high), *rows]
    words = (match.start() for match in WORD_START.finditer(text, low, high + 1))
    yield (offset for offset in words if not layout.whole_at(offset))
    behind = (match.end() for match in NON_WORD_CHARACTER.finditer(text, low, high))
    yield (o for o in behind if not (layout.whole_at(o) or in_word(text, o) or text[o].isspace()))


def _between(offsets: Sequence[int], low: int, high: int) -> Sequence[int]:
    return offsets[bisect_left(offsets, low) : bisect_right(offsets, high)]
