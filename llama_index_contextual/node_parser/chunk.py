"""Cut segments into chunks that hold a limited number of tokens and overlap slightly.

`ChunkNodeParser` is the LlamaIndex component. It passes the text of each segment to a `ChunkCutter`, which fills one
chunk after another: `CutPoints` finds the last acceptable cut within a budget of tokens, `overlap_start` the beginning
of the overlap with the previous chunk. Both read the `Layout` of the text: its headings, paragraphs, sentences and
lines, and the code fences and tables that should stay whole.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual._utils.tokens import TokenMap, count_tokens
from llama_index_contextual.metadata import (
    CHUNK_INDEX,
    FACTS,
    FILE_KEYS,
    HEADINGS,
    METADATA_TEMPLATE,
    OCR_CONFIDENCE,
    PAGE_END,
    PAGE_LABEL,
    PAGE_START,
    PAGES,
    RESERVED_KEYS,
    SECTION,
    SECTION_SEPARATOR,
    SEGMENT_END,
    SEGMENT_INDEX,
    SEGMENT_START,
    SOURCE_LINE,
    TABLE_HEAD,
    TABLES,
    TEXT_TEMPLATE,
    TOKEN_COUNT,
    DocumentMap,
    Table,
    excluded_embed_keys,
    excluded_llm_keys,
    facts_line,
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
    table_spans,
    tables_of,
    text_of,
    tokens_of,
)
from llama_index_contextual.readers.boundaries import (
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

MAX_HEAD_TOKENS = 60
"""Tokens of the column head that a chunk carries in addition to its text."""


class ChunkNodeParser(SpanNodeParser):
    """Node parser that cuts segments into chunks of up to `chunk_size` tokens (o200k_base).

    The input can be the nodes of SegmentNodeParser, Documents, or the nodes of any other parser; each of the latter two
    is treated as one segment. Pass all segments of a document in one call, because chunks are numbered and linked
    within the call.

    A chunk is a slice of its document without white space at the ends: `node.text ==
    document.text[node.start_char_idx:node.end_char_idx]`. Between two chunks there is nothing but white space. The text
    is cut at headings, paragraphs, sentences or words. A word or grapheme cluster is divided only if it alone exceeds
    `chunk_size`. Markdown code fences, tables and table rows stay whole if they fit. A chunk that begins inside a table
    carries its column head as `table_head` in the metadata, to be embedded and read with the text. The offsets are None
    for a node of another parser that does not record its position in the document.

    Raises:
        ConfigurationError: A size is not positive, or the overlap is not smaller than the size. Pydantic raises it as a
            ValidationError, which is a ValueError too.
    """

    chunk_size: int = Field(
        default=800, description="Maximum number of tokens (o200k_base) of a chunk when it is encoded alone."
    )
    chunk_overlap: int = Field(
        default=80,
        description="Number of tokens that neighbouring chunks share; the actual number is half to one and a half "
        "times as large.",
    )

    name_facts: bool = Field(
        default=False,
        description="Whether your own metadata are embedded and read as one line with their names, such as "
        "'fund: Halpha, quarter: Q4 2024', instead of their values alone.",
    )

    @model_validator(mode="after")
    def _check(self) -> ChunkNodeParser:
        check_overlap(self.chunk_size, self.chunk_overlap, "chunk")
        return self

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the component in serialized pipelines."""
        return "ChunkNodeParser"

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        documents: dict[str, list[TextNode]] = {}
        named = self.name_facts and self.include_metadata
        for part in _parts(get_tqdm_iterable(nodes, show_progress, "Chunking segments"), name_facts=named):
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
        # Do not repeat the whole last chunk of the previous segment if it is short.
        floor = -1 if base is None or last_start is None else max(-1, last_start - base)
        layout = Layout.of(
            part.text,
            tokens,
            self.chunk_size,
            heading_offsets_in(part.map.headings, base),
            table_spans(part.text, part.map.tables, base or 0),
        )
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
                OCR_CONFIDENCE: part.map.ocr_confidence(start, end),
                SECTION: _section(part.map, core, end),
            }
        own |= {
            FACTS: part.facts or None,
            SEGMENT_INDEX: part.index,
            SEGMENT_START: part.segment[0],
            SEGMENT_END: part.segment[1],
            CHUNK_INDEX: number,
            TOKEN_COUNT: span.tokens,
            TABLE_HEAD: part.head(part.map.table(start)),  # the last one, so that it stands right above the text
        }
        metadata = inherited | {key: value for key, value in own.items() if value is not None}
        line = source_line(metadata)
        return {SOURCE_LINE: line, **{k: v for k, v in metadata.items() if k != SOURCE_LINE}} if line else metadata


@dataclass(frozen=True)
class _Part:
    """A node to cut into chunks, treated as one segment of its document."""

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
    facts: str
    head: Callable[[Table | None], str | None]


def _parts(nodes: Iterable[BaseNode], *, name_facts: bool) -> Iterator[_Part]:
    maps: dict[tuple[str | None, ...], DocumentMap] = {}
    counts: dict[str, int] = {}
    head = cache(_head)  # a long one is tokenised many times, and most chunks are of the same table
    for node in nodes:
        text, origin = text_of(node), Origin.of(node)
        # All segments of a document carry the same strings: parse them once.
        key = tuple(node.metadata.get(name) for name in (PAGES, HEADINGS, TABLES))
        if key not in maps:
            maps[key] = DocumentMap.from_metadata(node.metadata)
        where = maps[key]
        if not is_segment(node) and (tables := tables_of(node, text, origin.base)) is not None:
            where = replace(where, tables=tables)
        number = counts.get(origin.source.node_id, 0)
        index, start, end = _segment(node, origin, text, number)
        counts[origin.source.node_id] = max(number, index) + 1
        embed = excluded_embed_keys(key for key in node.excluded_embed_metadata_keys if key != SEGMENT_CORE)
        llm = excluded_llm_keys(key for key in node.excluded_llm_metadata_keys if key != SEGMENT_CORE)
        values = user_metadata(node) if name_facts else {}
        facts = {name: value for name, value in values.items() if name not in {*embed, SEGMENT_CORE}}
        if line := facts_line(facts):  # it stands for the single values, also for an LLM that may read them
            is_read = not set(facts) & set(llm)
            embed, llm = [*embed, *facts], [*llm, *(facts if is_read else (FACTS,))]
        parent = RelatedNodeInfo(node_id=node.node_id, node_type=node.get_type())
        core = node.metadata[SEGMENT_CORE] - start if is_segment(node) else 0
        yield _Part(node, text, origin, parent, where, index, (start, end), core, embed, llm, line, head)


def _segment(node: BaseNode, origin: Origin, text: str, number: int) -> tuple[int, int, int]:
    """Return index, start and end of the segment that a node is or lies in; any other node is its own segment."""
    base = origin.base or 0
    values = (node.metadata.get(key) for key in (SEGMENT_INDEX, SEGMENT_START, SEGMENT_END))
    given = [value for value in values if isinstance(value, int)]
    if len(given) == 3:
        index, start, end = given
        if start <= base and base + len(text) <= end:
            return index, start, end
    return number, base, base + len(text)


def _section(where: DocumentMap, start: int, end: int) -> str | None:
    """Return the section that holds most of a chunk's own text; the overlap often belongs to the previous section.

    Headings that were recognised by their appearance are often more numerous than chunks. Of a chunk with several, the
    deepest section that holds half of it is returned, or else the section that holds most of it.
    """
    first = bisect_right(where.headings, start, key=lambda heading: heading.start)
    last = bisect_left(where.headings, end, lo=first, key=lambda heading: heading.start)
    bounds = [start, *(heading.start for heading in where.headings[first:last]), end]
    longest = max(range(len(bounds) - 1), key=lambda number: bounds[number + 1] - bounds[number])
    section = where.section(bounds[longest])
    if all(heading.is_marked for heading in where.headings[first:last]):
        return section
    held: Counter[str] = Counter()
    for a, b in pairwise(bounds):
        names = (where.section(a) or "").split(SECTION_SEPARATOR)
        held.update({SECTION_SEPARATOR.join(names[:depth]): b - a for depth in range(1, len(names) + 1)})
    del held[""]
    holding = [path for path, length in held.items() if 2 * length >= end - start]
    return max(holding, key=len, default=max(held, key=held.__getitem__, default=section))


def _head(table: Table | None) -> str | None:
    """Return the column head of a table; of a long one, the lower lines that fit."""
    if table is None:
        return None
    lines: list[str] = []
    for line in reversed(table.head.splitlines()):
        if count_tokens("\n".join([line, *lines])) > MAX_HEAD_TOKENS:
            break
        lines.insert(0, line)
    return "\n".join(lines) or " ".join(_words_that_fit(table.head.splitlines()[-1:]))


def _words_that_fit(lines: Sequence[str]) -> list[str]:
    words = " ".join(lines).split()
    fitting = bisect_right(range(len(words)), MAX_HEAD_TOKENS, key=lambda n: count_tokens(" ".join(words[: n + 1])))
    return words[:fitting]


# Cutting one text


@dataclass(frozen=True)
class ChunkSpan:
    """A chunk as offsets into its text.

    Attributes:
        start: The first character, overlap included.
        core: The first character that the previous chunk does not hold.
        end: End of the chunk (exclusive).
        tokens: Number of tokens of the slice when it is encoded alone.
    """

    start: int
    core: int
    end: int
    tokens: int


# Minimum fill of a chunk for a cut of each rank: a heading justifies a half-empty chunk, the end of a line does not.
_FILL = ((Rank.HEADING, 0.5), (Rank.PARAGRAPH, 0.6), (Rank.SENTENCE, 0.75), (Rank.LINE, 0.75))
_LEAST_FILL = 0.5
_LEAST_TAIL = 0.4
# Characters per token of a chunk. Longer graphemes and words are treated as too long without reading further.
_LONGEST_GRAPHEME = 8
_LONGEST_WORD = 64


@dataclass(frozen=True)
class ChunkCutter:
    """Cutter of one text into chunks of at most `size` tokens that overlap by about `overlap` tokens.

    Attributes:
        tokens: The text and its tokens.
        layout: Its structure.
        size: Maximum number of tokens of a chunk when it is encoded alone.
        overlap: Number of tokens to share, see `overlap_start`.
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
            core_start: Where the chunks' own text begins; the text before it only serves as overlap.
            floor: Offset after which the first chunk begins.
        """
        text = self.tokens.text
        tail = strip_end(text, core_start, len(text))
        core = skip_space(text, core_start)
        end = strip_end(text, 0, core)
        start = self._overlap_start(core, end, floor)
        while core < tail:
            cut = self._cut(start, core, tail)
            if cut is None:
                # A code fence, table row or word would fit into the chunk with less overlap.
                start = self._overlap_start(core, end, start)
                continue
            next_core, end, count = cut
            yield ChunkSpan(start, core, end, count)
            core, start = next_core, self._overlap_start(next_core, end, start)

    def _cut(self, start: int, core: int, tail: int) -> tuple[int, int, int] | None:
        """Return (core of the next chunk, end, tokens), or None if nothing fits after this overlap."""
        rest = self.tokens.estimate(start, tail)
        if rest <= self.size + 8:
            count = self.tokens.count(start, tail)
            if count <= self.size:
                return len(self.tokens.text), tail, count
        for budget in dict.fromkeys((self._balanced(rest), self.size)):
            cut = self._fitting_cut(start, core, budget)
            if cut:
                return cut
        if start < core and self._unit_fits(core, tail):
            return None
        return self._forced_cut(start, core, tail)

    def _balanced(self, rest: int) -> int:
        """Return a number of tokens that does not leave a tiny last chunk."""
        least = int(_LEAST_TAIL * self.size)
        return min(self.size, max(rest - least, self.size - least))

    def _fitting_cut(self, start: int, core: int, budget: int) -> tuple[int, int, int] | None:
        text = self.tokens.text
        while budget > 0:
            next_core = self._choose(start, core, budget)
            if next_core is None:
                return None
            end = strip_end(text, start, next_core)
            count = self.tokens.count(start, end)
            if count <= self.size:
                return next_core, end, count
            # The slice encoded alone has a token or two more than estimated; one step is usually enough.
            budget = min(budget, self.tokens.estimate(start, end)) - max(1, count - self.size)
        return None

    def _choose(self, start: int, core: int, budget: int) -> int | None:
        first = self.tokens.index(start)
        limit = self._limit(start, core, self.tokens.offset(first + budget))
        least = max(core + 1, self.tokens.offset(first + int(_LEAST_FILL * budget)))
        for rank, fill in _FILL:
            low = max(core + 1, self.tokens.offset(first + int(fill * budget)))
            offset = self._points.last_of(rank, low, limit, core)
            if offset is not None:
                return offset
        offset = self._points.last_word_start(least, limit, core)
        if offset is None:
            offset = self._points.last_word_end(least, limit, core)
        return self._choose_early(core, limit) if offset is None else offset

    def _choose_early(self, core: int, limit: int) -> int | None:
        """Return a cut that leaves the chunk less than half full."""
        points = self._points
        early = points.last_word_start(core + 1, limit, core), points.last_word_end(core + 1, limit, core)
        offset = max((offset for offset in early if offset is not None), default=None)
        if offset is None:
            # Separating a combining mark from the white space that it joins is better than dividing a word.
            return points.last_divided_word_start(core + 1, limit)
        if self._oversized_word(offset):
            # The word must be divided anyway, so fill the chunk with its beginning.
            return max(offset, grapheme_floor(self.tokens.text, limit, offset))
        return offset

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
        """Return whether the word, code fence or table row at `core` fits into a chunk without overlap."""
        whole = self.layout.whole_at(core + 1)
        if whole and whole[0] == core:
            return True
        end = self._word_end(core, tail)
        return self.tokens.estimate(core, end) <= self.size + 16 and self.tokens.count(core, end) <= self.size

    def _forced_cut(self, start: int, core: int, tail: int) -> tuple[int, int, int] | None:
        """Divide a word that exceeds a chunk between graphemes, and a grapheme that exceeds one between characters."""
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


# Overlap

LEAST, MOST = 0.55, 1.45
"""Bounds of the overlap as shares of the wanted one. If a tenth of the chunk is wanted, 5 to 15 % are shared."""
# The words at both ends of a slice may have a few tokens more or fewer when the slice is encoded alone.
_SLACK = 5


def overlap_start(tokens: TokenMap, layout: Layout, wanted: int, *, core: int, end: int, floor: int) -> int:
    """Return the offset at which a chunk begins so that it overlaps the previous one.

    Sentences of the previous chunk are preferred to lines, and lines to words.

    Args:
        tokens: The text and its tokens.
        layout: Its structure.
        wanted: Number of tokens to share.
        core: First character that the previous chunk does not hold.
        end: End of the previous chunk.
        floor: Offset after which the chunk must begin.

    Returns:
        The offset nearest to the wanted overlap that shares 0.55 to 1.45 times as many tokens, or `core` if there is
        none.
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
    """Return whether a slice has `least` to `most` tokens; count exactly only near the bounds."""
    if least + _SLACK <= tokens.estimate(start, end) <= most - _SLACK:
        return True
    return least <= tokens.count(start, end) <= most


def _tiers(text: str, layout: Layout, low: int, high: int) -> Iterator[Iterable[int]]:
    """Yield the possible beginnings of an overlap: sentences, lines, words, and ends of other characters."""
    for rank in (Rank.SENTENCE, Rank.LINE):
        yield layout.between(rank, low, high)
    words = (match.start() for match in WORD_START.finditer(text, low, high + 1))
    yield (offset for offset in words if not layout.whole_at(offset))
    after = (match.end() for match in NON_WORD_CHARACTER.finditer(text, low, high))
    yield (o for o in after if not (layout.whole_at(o) or in_word(text, o) or text[o].isspace()))


# Search for cuts

# Bounds the search in a text in which every word begins with a combining mark.
_MOST_TRIES = 64


@dataclass(frozen=True)
class CutPoints:
    """Search for the last possible cut of a given kind.

    A cut is the offset of the first character after it; the white space before it belongs to neither side. In all
    methods, `known` is an earlier offset at which a grapheme begins.

    Attributes:
        text: The text to cut.
        layout: Its structure.
    """

    text: str
    layout: Layout

    def last_of(self, rank: Rank, low: int, high: int, known: int) -> int | None:
        """Return the last cut of at least this rank."""
        offset = self.layout.last(rank, low, high)
        while offset is not None and not self.is_clean(offset, known):
            offset = self.layout.last(rank, low, offset - 1)
        return offset

    def is_clean(self, offset: int, known: int) -> bool:
        """Return whether no grapheme is divided, neither at `offset` nor before the white space that precedes it."""
        text = self.text
        if not is_grapheme_boundary(text, offset, known):
            return False
        return not text[offset - 1].isspace() or is_grapheme_boundary(text, strip_end(text, known, offset), known)

    def last_word_start(self, low: int, high: int, known: int) -> int | None:
        """Return the last cut that follows white space."""
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
        """Return the last cut after a character that does not belong to a word, such as a comma without a space."""
        text = self.text
        while high >= low:
            match = LAST_NON_WORD_CHARACTER.search(text, low - 1, high)
            if not match:
                return None
            offset = grapheme_floor(text, match.end(), known)
            whole = self.layout.whole_at(offset)
            if not whole and offset >= low and not in_word(text, offset) and self.is_clean(offset, known):
                return skip_space(text, offset)
            high = min(whole[0] if whole else offset, match.start())
        return None

    def last_divided_word_start(self, low: int, high: int) -> int | None:
        """Return the last cut that follows white space, even if a combining mark joins that white space."""
        offset = _word_start(self.text, low, high)
        return None if offset is None or self.layout.whole_at(offset) else offset

    def word_end(self, start: int, stop: int) -> int:
        """Return the end of the word that begins at `start`, or `stop` if the word goes on after it."""
        match = NON_WORD_CHARACTER.search(self.text, start + 1, stop)
        return int(match.start()) if match else stop


def _word_start(text: str, low: int, high: int) -> int | None:
    """Return the last offset from `low` to `high` that follows white space and is not white space itself."""
    if low > high:
        return None
    if high < len(text) and text[high - 1].isspace() and not text[high].isspace():
        return high
    head = text[low - 1 : high].rstrip()
    words = head.rsplit(None, 1)
    if not words or len(words[-1]) == len(head):
        return None
    return low - 1 + len(head) - len(words[-1])


# Structure of a text


@dataclass(frozen=True)
class Layout:
    """Structure of one text: possible cuts by rank, and spans that must not be divided.

    Attributes:
        offsets: Sorted offsets of the possible cuts, by rank.
        wholes: Spans that are never divided: code fences and tables that fit into a chunk. Of larger ones, the lines
            that fit.
        rows: Offsets of the rows of tables that fit into a chunk. An overlap may begin at a row, because the previous
            chunk holds the whole table. It may not begin inside a code fence, whose closing mark would then look like
            an opening one.
    """

    offsets: Mapping[Rank, Sequence[int]]
    wholes: Sequence[tuple[int, int]]
    rows: Sequence[int]

    @classmethod
    def of(
        cls,
        text: str,
        tokens: TokenMap,
        size: int,
        headings: Iterable[int] | None = None,
        table_rows: Iterable[tuple[int, int]] = (),
    ) -> Layout:
        """Scan a text.

        Args:
            text: The text.
            tokens: Its tokens.
            size: Maximum number of tokens of a chunk.
            headings: Offsets of the headings, if the reader has recorded them.
            table_rows: Spans of the rows of tables, in order; the first row of a table with its head.
        """
        wholes, rows = _wholes(text, tokens, size, table_rows)
        offsets = structural_offsets(text)
        offsets[Rank.LINE] = sorted([*offsets[Rank.LINE], *(start for start, _ in wholes)])
        offsets[Rank.HEADING] = heading_offsets(text, headings)
        return cls(offsets, wholes, rows)

    @cached_property
    def _whole_starts(self) -> list[int]:
        return [start for start, _ in self.wholes]

    def whole_at(self, offset: int) -> tuple[int, int] | None:
        """Return the undivided span that contains `offset`, or None."""
        return containing(self.wholes, self._whole_starts, offset) if self.wholes else None

    def last(self, rank: Rank, low: int, high: int) -> int | None:
        """Return the last cut of at least this rank from `low` to `high` that is not within an undivided span."""
        while True:
            best = -1
            for offsets in self._by_least_rank[rank]:
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
        """Return the offsets of at least this rank from `low` to `high` at which an overlap may begin."""
        ranked = (o for offsets in self._by_least_rank[rank] for o in within(offsets, low, high))
        return sorted({*(o for o in ranked if not self.whole_at(o)), *within(self.rows, low, high)})

    @cached_property
    def _by_least_rank(self) -> dict[Rank, list[Sequence[int]]]:
        return {rank: [self.offsets[other] for other in Rank if other >= rank] for rank in Rank}


def within(offsets: Sequence[int], low: int, high: int) -> Sequence[int]:
    """Return the part of the sorted `offsets` that lies from `low` to `high`, both included."""
    return offsets[bisect_left(offsets, low) : bisect_right(offsets, high)]


def _wholes(
    text: str, tokens: TokenMap, size: int, table_rows: Iterable[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the undivided spans and the rows of a text, see `Layout`."""
    wholes: list[tuple[int, int]] = []
    rows: list[int] = []
    recorded = sorted(table_rows)
    starts = [start for start, _ in recorded]
    for start, end in blocks(text):
        lines = lines_of(text, start, end)
        if not _fits(tokens, start, end, size):
            within_table = recorded[bisect_left(starts, start) : bisect_left(starts, end)]
            wholes.extend(part for part in within_table or lines if _fits(tokens, *part, size))
            continue
        wholes.append((start, end))
        if not text.startswith(FENCE_MARKS, start):
            rows.extend(line[0] for line in lines)
    at = 0
    merged: list[tuple[int, int]] = []
    for whole in sorted([*wholes, *(row for row in recorded if _fits(tokens, *row, size))], key=_widest_first):
        if whole[0] >= at:
            merged.append(whole)
            at = whole[1]
    return merged, rows


def _widest_first(span: tuple[int, int]) -> tuple[int, int]:
    return span[0], -span[1]


def _fits(tokens: TokenMap, start: int, end: int, size: int) -> bool:
    if end - start <= size // 4:  # A character has at most four bytes, a byte at most one token.
        return True
    slack = tokens.estimate(start, end) - size
    return tokens.count(start, end) <= size if abs(slack) < 8 else slack < 0
