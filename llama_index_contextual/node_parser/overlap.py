"""How far a chunk reaches back into the one before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

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


# The first and the last word of a slice may be a few tokens more or less when it is encoded alone.
_SLACK = 5


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
            if low <= offset <= high and _is_within(tokens, offset, end, least, most):
                return offset
    return core


def _is_within(tokens: TokenMap, start: int, end: int, least: int, most: int) -> bool:
    """Return whether a slice has `least` to `most` tokens; only near the bounds it has to be counted exactly."""
    if least + _SLACK <= tokens.estimate(start, end) <= most - _SLACK:
        return True
    return least <= tokens.count(start, end) <= most


def _tiers(text: str, layout: Layout, low: int, high: int) -> Iterator[Iterable[int]]:
    for rank in (Rank.SENTENCE, Rank.LINE):
        yield layout.between(rank, low, high)
    words = (match.start() for match in WORD_START.finditer(text, low, high + 1))
    yield (offset for offset in words if not layout.whole_at(offset))
    behind = (match.end() for match in NON_WORD_CHARACTER.finditer(text, low, high))
    yield (o for o in behind if not (layout.whole_at(o) or in_word(text, o) or text[o].isspace()))
