"""What the structure of a text says about cutting it into chunks."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual.metadata import (
    CHUNK_INDEX,
    FILE_KEYS,
    HEADINGS,
    METADATA_TEMPLATE,
    PAGE_END,
    PAGE_LABEL,
    PAGE_START,
    PAGES,
    RESERVED_KEYS,
    SECTION,
    SEGMENT_END,
    SEGMENT_INDEX,
    SEGMENT_START,
    SOURCE_LINE,
    TEXT_TEMPLATE,
    TOKEN_COUNT,
    DocumentMap,
    excluded_embed_keys,
    excluded_llm_keys,
    source_line,
    user_metadata,
)
from llama_index_contextual.node_parser.base import (
    SEGMENT_CORE,
    Origin,
    SpanNodeParser,
    check_overlap,
    heading_offsets_in,
    is_segment,
    link_neighbours,
    text_of,
    tokens_of,
)
from llama_index_contextual.node_parser.boundaries import (
    FENCE_MARKS,
    LAST_NON_WORD_CHARACTER,
    NON_WORD_CHARACTER,
    WORD_START,
    Rank,
    blocks,
    containing,
    grapheme_boundaries,
    grapheme_end,
    grapheme_floor,
    heading_offsets,
    in_word,
    is_grapheme_boundary,
    is_surrogate_pair,
    lines_of,
    skip_space,
    strip_end,
    structural_offsets,
)
from llama_index_contextual.node_parser.tokens import TokenMap


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


@dataclass(frozen=True)
class _Part:
    """A node that is to be chunked, as one segment of its document."""

    node: BaseNode
    text: str
    origin: Origin
    parent: RelatedNodeInfo
    map: DocumentMap
    index: int
    segment: tuple[int, int]
    core: int
    excluded_embed: list[str]
    excluded_llm: list[str]


class ChunkNodeParser(SpanNodeParser):
    """Cuts segments into chunks of up to `chunk_size` tokens (o200k_base) when encoded alone.

    It takes the nodes of SegmentNodeParser, Documents and the nodes of any other parser; the latter two count as one
    segment each. Pass all segments of a document in one call: chunks are numbered and linked within the call.

    A chunk is a slice of its document without white space at the ends, `node.text ==
    document.text[node.start_char_idx:node.end_char_idx]`; between two chunks there is white space only. Cuts stand at
    headings, paragraphs, sentences or words, never within a word or grapheme cluster unless a single one exceeds
    `chunk_size`; Markdown code fences, tables and table rows stay whole when they fit. Offsets are None where a foreign
    node does not tell its place in the document.

    Raises:
        ConfigurationError: A size is not positive, or the overlap is not smaller than the size (pydantic hands it on as
            a ValidationError, which is a ValueError too).
    """

    chunk_size: int = Field(default=800, description="Most tokens (o200k_base) of a chunk when it is encoded alone.")
    chunk_overlap: int = Field(
        default=80, description="Tokens that neighbouring chunks share; half to one and a half times as many."
    )

    @model_validator(mode="after")
    def _check(self) -> ChunkNodeParser:
        check_overlap(self.chunk_size, self.chunk_overlap, "chunk")
        return self

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex knows the component."""
        return "ChunkNodeParser"

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        documents: dict[str, list[TextNode]] = {}
        for part in _parts(get_tqdm_iterable(nodes, show_progress, "Chunking segments")):
            chunks = documents.setdefault(part.origin.source.node_id, [])
            for span in self._spans(part, chunks[-1].start_char_idx if chunks else None):
                chunks.append(self._node(part, span, len(chunks)))
        if self.include_prev_next_rel:
            for chunks in documents.values():
                link_neighbours(chunks)
        return [chunk for chunks in documents.values() for chunk in chunks]

    def _spans(self, part: _Part, last_start: int | None) -> Iterator[ChunkSpan]:
        tokens = tokens_of(part.node, part.text)
        base = part.origin.base
        # A short last chunk of the segment before is not to be repeated as a whole.
        floor = -1 if base is None or last_start is None else max(-1, last_start - base)
        layout = Layout.of(part.text, tokens, self.chunk_size, heading_offsets_in(part.map.headings, base))
        return ChunkCutter(tokens, layout, self.chunk_size, self.chunk_overlap).spans(part.core, floor)

    def _node(self, part: _Part, span: ChunkSpan, number: int) -> TextNode:
        parent, origin = part.node, part.origin
        text = part.text[span.start : span.end]
        return TextNode(
            id_=self._node_id(number, parent, lambda: origin.span_id("chunk", span.start, span.end, text)),
            text=text,
            start_char_idx=None if origin.base is None else origin.base + span.start,
            end_char_idx=None if origin.base is None else origin.base + span.end,
            metadata=self._metadata(part, span, number),
            excluded_embed_metadata_keys=part.excluded_embed,
            excluded_llm_metadata_keys=part.excluded_llm,
            metadata_template=METADATA_TEMPLATE,
            metadata_separator=parent.metadata_separator,
            text_template=TEXT_TEMPLATE,
            relationships={
                NodeRelationship.SOURCE: origin.source,
                NodeRelationship.PARENT: part.parent,
            },
        )

    def _metadata(self, part: _Part, span: ChunkSpan, number: int) -> dict[str, Any]:
        left_out = {*RESERVED_KEYS, SEGMENT_CORE}
        if not self.include_metadata:
            left_out |= {*user_metadata(part.node), *FILE_KEYS, SOURCE_LINE}
        inherited = {key: value for key, value in part.node.metadata.items() if key not in left_out}
        shift = part.origin.base or 0
        start, core, end = span.start + shift, span.core + shift, span.end + shift
        own: dict[str, Any] = {}
        if part.origin.base is not None:
            own = {
                PAGE_START: part.map.page(start),
                PAGE_END: part.map.page(end - 1),
                PAGE_LABEL: part.map.page_label(start),
                SECTION: _section(part.map, core, end),
            }
        own |= {
            SEGMENT_INDEX: part.index,
            SEGMENT_START: part.segment[0],
            SEGMENT_END: part.segment[1],
            CHUNK_INDEX: number,
            TOKEN_COUNT: span.tokens,
        }
        metadata = inherited | {key: value for key, value in own.items() if value is not None}
        line = source_line(metadata)
        return {SOURCE_LINE: line, **{k: v for k, v in metadata.items() if k != SOURCE_LINE}} if line else metadata


def _section(where: DocumentMap, start: int, end: int) -> str | None:
    """Return the section in which most of a chunk's own text stands; the overlap often belongs to the one before."""
    first = bisect_right(where.headings, start, key=lambda heading: heading.start)
    last = bisect_left(where.headings, end, lo=first, key=lambda heading: heading.start)
    bounds = [start, *(heading.start for heading in where.headings[first:last]), end]
    longest = max(range(len(bounds) - 1), key=lambda number: bounds[number + 1] - bounds[number])
    return where.section(bounds[longest])


def _parts(nodes: Iterable[BaseNode]) -> Iterator[_Part]:
    maps: dict[tuple[str | None, str | None], DocumentMap] = {}
    counts: dict[str, int] = {}
    for node in nodes:
        text, origin = text_of(node), Origin.of(node)
        # All segments of a document carry the same two strings: read them once.
        key = node.metadata.get(PAGES), node.metadata.get(HEADINGS)
        if key not in maps:
            maps[key] = DocumentMap.from_metadata(node.metadata)
        number = counts.get(origin.source.node_id, 0)
        index, start, end = _segment(node, origin, text, number)
        counts[origin.source.node_id] = max(number, index) + 1
        embed = excluded_embed_keys(key for key in node.excluded_embed_metadata_keys if key != SEGMENT_CORE)
        llm = excluded_llm_keys(key for key in node.excluded_llm_metadata_keys if key != SEGMENT_CORE)
        parent = RelatedNodeInfo(node_id=node.node_id, node_type=node.get_type())
        core = node.metadata[SEGMENT_CORE] - start if is_segment(node) else 0
        yield _Part(node, text, origin, parent, maps[key], index, (start, end), core, embed, llm)


def _segment(node: BaseNode, origin: Origin, text: str, number: int) -> tuple[int, int, int]:
    """Return index, start and end of the segment that a node is or lies in; a foreign node is one by itself."""
    base = origin.base or 0
    values = (node.metadata.get(key) for key in (SEGMENT_INDEX, SEGMENT_START, SEGMENT_END))
    given = [value for value in values if isinstance(value, int)]
    if len(given) == 3:
        index, start, end = given
        if start <= base and base + len(text) <= end:
            return index, start, end
    return number, base, base + len(text)
