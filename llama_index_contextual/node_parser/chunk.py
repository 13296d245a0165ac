"""Split segments into chunks that have a limited number of tokens and overlap slightly.

`ChunkNodeParser` is the LlamaIndex component. It passes the text of each segment to a `ChunkCutter`, which fills one
chunk after another up to the last acceptable cut within a token budget. The `Layout` of the text contains the possible
cuts at headings, paragraphs, sentences and lines, and the code fences and tables that should not be divided.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.tokens import TokenMap, count_tokens
from llama_index_contextual.config import default
from llama_index_contextual.figures import figures_json
from llama_index_contextual.metadata import DocumentMap, Table
from llama_index_contextual.node_parser.segment import Origin, PartSpan, SpanNodeParser, link_neighbours
from llama_index_contextual.readers import boundaries
from llama_index_contextual.readers.boundaries import Rank, Span

MAX_HEAD_TOKENS = 60
"""Maximum number of tokens in the column headers that are added to a chunk."""


class ChunkNodeParser(SpanNodeParser):
    """Node parser that splits segments into chunks of up to `chunk_size` tokens (o200k_base).

    The input can be nodes from SegmentNodeParser, Documents, or nodes from any other parser. Each Document, and each
    node from another parser, is treated as one segment. Pass all segments of a document in one call, because chunks are
    numbered and linked within the call.

    A chunk is a slice of its document without white space at the ends: `node.text ==
    document.text[node.start_char_idx:node.end_char_idx]`. Chunks leave out only white space. The text is split at
    headings, paragraphs, sentences or words. A word or grapheme cluster is divided only if it is longer than
    `chunk_size`. Markdown code fences, tables and table rows are not divided if they fit into a chunk. A chunk that
    begins inside a table has the column headers as `table_head` in its metadata, so that they are embedded with the
    text and shown to LLMs. The offsets are None if the input is a node of another parser that does not record its
    position in the document.

    Raises:
        ValueError: The size is not positive, or the overlap is negative or not smaller than the size.
    """

    chunk_size: int = Field(default=default("chunk_size"), gt=0)
    """Maximum number of tokens (o200k_base) of a chunk when it is encoded alone."""
    chunk_overlap: int = Field(default=default("chunk_overlap"), ge=0)
    """Number of tokens that neighbouring chunks share; the actual number is half to one and a half times as large."""

    @model_validator(mode="after")
    def _check(self) -> ChunkNodeParser:
        if self.chunk_overlap >= self.chunk_size:
            raise ValueError(f"chunk_overlap must be smaller than chunk_size ({self.chunk_size})")
        return self

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        documents: dict[str, list[TextNode]] = {}
        for part in _parts(get_tqdm_iterable(nodes, show_progress, "Chunking segments"), self.include_metadata):
            chunks = documents.setdefault(part.origin.source.node_id, [])
            for span in self._spans(part, chunks[-1].start_char_idx if chunks else None):
                chunks.append(self._node(part, span, len(chunks)))
        if self.include_prev_next_rel:
            for chunks in documents.values():
                link_neighbours(chunks)
        return [chunk for chunks in documents.values() for chunk in chunks]

    def _spans(self, part: _SegmentNode, last_start: int | None) -> Iterator[PartSpan]:
        text, base = part.origin.text, part.origin.base
        tokens = TokenMap.from_text(text)
        # Do not repeat the entire last chunk of the previous segment if it is short.
        floor = -1 if base is None or last_start is None else max(-1, last_start - base)
        layout = Layout.of(tokens, self.chunk_size, part.origin.headings(), part.origin.rows())
        return ChunkCutter(tokens, layout, self.chunk_size, self.chunk_overlap).spans(part.own_start, floor)

    def _node(self, part: _SegmentNode, span: PartSpan, number: int) -> TextNode:
        node = part.origin.node
        parent = RelatedNodeInfo(node_id=node.node_id, node_type=node.get_type())
        return part.origin.part(
            "chunk",
            span.start,
            span.end,
            metadata=self._metadata(part, span, number),
            excluded_embed_metadata_keys=part.excluded_embed,
            excluded_llm_metadata_keys=part.excluded_llm,
            relationships={NodeRelationship.SOURCE: part.origin.source, NodeRelationship.PARENT: parent},
        )

    def _metadata(self, part: _SegmentNode, span: PartSpan, number: int) -> dict[str, Any]:
        left_out = set(keys.INTERNAL_KEYS)
        if not self.include_metadata:
            left_out |= {*keys.user_metadata(part.origin.node), *keys.FILE_KEYS, keys.SOURCE_LINE}
        inherited = {key: value for key, value in part.origin.node.metadata.items() if key not in left_out}
        shift = part.origin.base or 0
        start, own_start, end = span.start + shift, span.own_start + shift, span.end + shift
        own: dict[str, Any] = {}
        if part.origin.base is not None:
            places, columns = part.origin.map.places(start, end), part.origin.map.columns(start, end)
            figures = part.origin.map.figure_index.of_chunk(part.origin.text[span.start : span.end], start)
            own = {
                keys.PAGE_START: part.origin.map.page(start),
                keys.PAGE_END: part.origin.map.page(end - 1),
                keys.PAGE_LABEL: part.origin.map.page_label(start),
                keys.OCR_CONFIDENCE: part.origin.map.ocr_confidence(start, end),
                keys.SECTION: _section(part.origin.map, own_start, end),
                keys.PLACES: json.dumps(places, ensure_ascii=False) if len(places) > 1 else None,
                keys.TABLE_COLUMNS: json.dumps(columns, ensure_ascii=False) if columns else None,
                keys.FIGURES: figures_json(figures) if figures else None,
            }
        own |= {
            keys.FACTS: part.facts or None,
            keys.SEGMENT_INDEX: part.index,
            keys.SEGMENT_START: part.segment[0],
            keys.SEGMENT_END: part.segment[1],
            keys.CHUNK_INDEX: number,
            keys.TOKEN_COUNT: span.tokens,
            # the last key, so that the headers are right above the text
            keys.TABLE_HEAD: _fitting_head(part.origin.map.table(start)),
        }
        metadata = inherited | {key: value for key, value in own.items() if value is not None}
        line = keys.source_line(metadata)
        first = {keys.SOURCE_LINE: line} if line else {}
        return first | metadata | first


@dataclass(frozen=True)
class _SegmentNode:
    """A node to split into chunks, treated as one segment of its document."""

    origin: Origin
    index: int
    segment: tuple[int, int]
    own_start: int
    excluded_embed: list[str]
    excluded_llm: list[str]
    facts: str


def _parts(nodes: Iterable[BaseNode], has_facts: bool) -> Iterator[_SegmentNode]:
    counts: Counter[str] = Counter()
    for node in nodes:
        origin = Origin.of(node)
        index, start, own_start = counts[origin.source.node_id], origin.base or 0, 0
        if origin.is_segment:
            index, start = node.metadata[keys.SEGMENT_INDEX], node.metadata[keys.SEGMENT_START]
            own_start = node.metadata[keys.SEGMENT_OWN_START] - start
        counts[origin.source.node_id] = max(counts[origin.source.node_id], index) + 1
        embed = keys.excluded_embed_keys(node.excluded_embed_metadata_keys)
        llm = keys.excluded_llm_keys(node.excluded_llm_metadata_keys)
        values = keys.user_metadata(node) if has_facts else {}
        facts = {name: value for name, value in values.items() if name not in {*embed, keys.SEGMENT_OWN_START}}
        if line := keys.facts_line(facts):  # replaces the values; for LLMs, only if no value is hidden from them
            is_read = not set(facts) & set(llm)
            embed, llm = [*embed, *facts], [*llm, *(facts if is_read else (keys.FACTS,))]
        yield _SegmentNode(origin, index, (start, start + len(origin.text)), own_start, embed, llm, line)


def _section(where: DocumentMap, start: int, end: int) -> str | None:
    """Return the section that contains most of a chunk's text, not counting the overlap with the previous chunk.

    Headings that were recognised by their appearance often outnumber the chunks. If a chunk contains several such
    headings, the result is the deepest section that contains half of the chunk, or otherwise the section that contains
    most of it.
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
        names = (where.section(a) or "").split(keys.SECTION_SEPARATOR)
        held.update({keys.SECTION_SEPARATOR.join(names[:depth]): b - a for depth in range(1, len(names) + 1)})
    holding = [path for path, length in held.items() if 2 * length >= end - start]
    return max(holding, key=len, default=max(held, key=held.__getitem__)) or None


@lru_cache(maxsize=64)  # long headers are tokenised many times, and consecutive chunks often share a table
def _fitting_head(table: Table | None) -> str | None:
    """Return the column headers of a table; if they are too long, return only the lower lines that fit."""
    if table is None:
        return None
    lines: list[str] = []
    for line in reversed(table.head.splitlines()):
        if count_tokens("\n".join([line, *lines])) > MAX_HEAD_TOKENS:
            break
        lines.insert(0, line)
    words = table.head.split("\n")[-1].split()
    fitting = bisect_right(range(len(words)), MAX_HEAD_TOKENS, key=lambda n: count_tokens(" ".join(words[: n + 1])))
    return "\n".join(lines) or " ".join(words[:fitting])


# Splitting text


# Minimum fill of a chunk before a cut of each rank. A heading justifies a half-empty chunk, but a line end does not.
_FILL = ((Rank.HEADING, 0.5), (Rank.PARAGRAPH, 0.6), (Rank.SENTENCE, 0.75), (Rank.LINE, 0.75))
_LEAST_FILL = 0.5
_LEAST_TAIL = 0.4
# Bounds of the overlap, relative to the desired overlap. For 10 % of the chunk, the bounds are about 5 and 15 %.
_LEAST_SHARED, _MOST_SHARED = 0.55, 1.45


@dataclass(frozen=True)
class ChunkCutter:
    """Split the text of a segment into chunks of at most `size` tokens that overlap by about `overlap` tokens.

    Attributes:
        tokens: The text and its tokens.
        layout: The structure of the text.
        size: Maximum number of tokens in a chunk when it is encoded alone.
        overlap: Desired number of shared tokens; see `_overlap_start`.
    """

    tokens: TokenMap
    layout: Layout
    size: int
    overlap: int

    def spans(self, core_start: int = 0, floor: int = -1) -> Iterator[PartSpan]:
        """Yield the chunks of the text in order.

        Args:
            core_start: Offset at which the chunks' own text begins; the text before it is used only as overlap.
            floor: Offset after which the first chunk must begin.
        """
        text = self.tokens.text
        tail = boundaries.strip_end(text, core_start, len(text))
        own_start = boundaries.skip_space(text, core_start)
        end = boundaries.strip_end(text, 0, own_start)
        start = self._overlap_start(own_start, end, floor)
        while own_start < tail:
            cut = self._cut(start, own_start, tail)
            if cut is None:  # a code fence, table row or word may fit into the chunk with less overlap
                start = self._overlap_start(own_start, end, start)
                continue
            next_own_start, end, count = cut
            yield PartSpan(start, own_start, end, count)
            own_start, start = next_own_start, self._overlap_start(next_own_start, end, start)

    def _cut(self, start: int, own_start: int, tail: int) -> tuple[int, int, int] | None:
        """Cut a chunk, and return the own start of the next chunk, the end of this chunk, and its number of tokens.

        Return None if nothing fits after this overlap.
        """
        rest = self.tokens.estimate(start, tail)
        if rest <= self.size + 8:
            count = self.tokens.count(start, tail)
            if count <= self.size:
                return len(self.tokens.text), tail, count
        # Limit the number of tokens so that the last chunk is not tiny.
        least = int(_LEAST_TAIL * self.size)
        balanced = min(self.size, max(rest - least, self.size - least))
        for budget in dict.fromkeys((balanced, self.size)):
            if cut := self._fitting_cut(start, own_start, budget):
                return cut
        return self._forced_cut(own_start, tail) if start == own_start else None

    def _fitting_cut(self, start: int, own_start: int, budget: int) -> tuple[int, int, int] | None:
        text = self.tokens.text
        while budget > 0:
            next_own_start = self._choose(start, own_start, budget)
            if next_own_start is None:
                return None
            end = boundaries.strip_end(text, start, next_own_start)
            count = self.tokens.count(start, end)
            if count <= self.size:
                return next_own_start, end, count
            # Encoded alone, the slice may have a token or two more than estimated; one correction is usually enough.
            budget = min(budget, self.tokens.estimate(start, end)) - max(1, count - self.size)
        return None

    def _choose(self, start: int, own_start: int, budget: int) -> int | None:
        text, first = self.tokens.text, self.tokens.index(start)
        limit = self.tokens.offset(first + budget)
        if limit < len(text) and (text[limit].isspace() or text[limit - 1].isspace()):
            limit = boundaries.skip_space(text, limit)
        for rank, fill in _FILL:
            low = max(own_start + 1, self.tokens.offset(first + int(fill * budget)))
            if (offset := self.layout.last(rank, low, limit)) is not None:
                return offset
        least = max(own_start + 1, self.tokens.offset(first + int(_LEAST_FILL * budget)))
        for low in (least, own_start + 1):
            for offsets in (boundaries.word_starts(text, low, limit + 1), self._word_ends(low, limit, own_start)):
                if whole := [offset for offset in offsets if not self.layout.whole_at(offset)]:
                    return boundaries.skip_space(text, whole[-1])
        return None

    def _word_ends(self, low: int, high: int, known: int) -> list[int]:
        """Return the offsets after non-word characters, such as a comma that is not followed by a space."""
        ends = boundaries.word_ends(self.tokens.text, low - 1, high)
        return boundaries.grapheme_boundaries(self.tokens.text, ends, known)

    def _forced_cut(self, own_start: int, tail: int) -> tuple[int, int, int]:
        """Divide a word that is too long for a chunk between graphemes, and a long grapheme between characters."""
        text, tokens = self.tokens.text, self.tokens
        # A word or grapheme with twice as many tokens does not fit and is not read to the end.
        stop = min(tail, tokens.offset(tokens.index(own_start) + 2 * self.size + 8))
        whole = self.layout.whole_at(own_start + 1)
        word = boundaries.NON_WORD_CHARACTER.search(text, own_start + 1, stop)
        unit = whole[1] if whole and whole[0] == own_start else word.start() if word else stop
        end = unit if boundaries.grapheme_floor(text, unit, own_start) == unit else stop
        budget = self.size
        while (count := tokens.count(own_start, end)) > self.size and end > own_start + 1:
            limit = max(own_start + 1, tokens.offset(tokens.index(own_start) + budget))
            end = boundaries.grapheme_floor(text, limit, own_start)
            if end == own_start:
                end = boundaries.GRAPHEME.match(text, own_start, stop).end() if budget == self.size else limit
            budget -= 1
        return boundaries.skip_space(text, end), end, count

    def _overlap_start(self, own_start: int, end: int, floor: int) -> int:
        """Return the offset at which a chunk should begin to overlap the previous chunk.

        The best place is the start of a sentence in the previous chunk, then the start of a line, and then the start of
        a word.

        Args:
            own_start: Offset of the first character that is not in the previous chunk.
            end: End of the previous chunk.
            floor: Offset after which the chunk must begin.

        Returns:
            The offset closest to the desired overlap, if the actual overlap is 0.55 to 1.45 times as large; otherwise
            `own_start`.
        """
        tokens, wanted = self.tokens, self.overlap
        if not wanted or end <= 0 or own_start >= len(tokens.text):
            return own_start
        least, most = math.ceil(_LEAST_SHARED * wanted), int(_MOST_SHARED * wanted)
        at = tokens.index(end)
        low, high = max(floor + 1, tokens.offset(at - most), 1), tokens.offset(at - least)
        ideal = tokens.offset(at - wanted)
        for near in self._beginnings(low, high, max(0, floor)):
            for offset in sorted(near, key=lambda offset: abs(offset - ideal)):
                if low <= offset <= high and least <= tokens.count(offset, end) <= most:
                    return offset
        return own_start

    def _beginnings(self, low: int, high: int, known: int) -> Iterator[Iterable[int]]:
        """Yield groups of possible overlap starts: at sentences, at lines, at words, and after non-word characters."""
        yield self.layout.beginnings(Rank.SENTENCE, low, high)
        yield self.layout.beginnings(Rank.LINE, low, high)
        for offsets in (boundaries.word_starts(self.tokens.text, low, high + 1), self._word_ends(low + 1, high, known)):
            yield (o for o in offsets if not (self.layout.whole_at(o) or self.tokens.text[o].isspace()))


# Structure of the text


@dataclass(frozen=True)
class Layout:
    """Structure of the text of a segment: possible cuts by rank, and spans that must not be divided.

    Attributes:
        cuts: For each rank, the sorted offsets of the possible cuts of at least this rank.
        blocks: Spans that are never divided: code fences and tables that fit into a chunk, and the lines of larger code
            fences and tables if the lines fit.
        rows: Offsets of the rows of tables that fit into a chunk. An overlap may begin at a row, because the previous
            chunk contains the whole table. It may not begin inside a code fence, whose closing marker would then look
            like an opening marker.
    """

    cuts: dict[Rank, list[int]]
    blocks: Sequence[Span]
    rows: Sequence[int]

    @classmethod
    def of(cls, tokens: TokenMap, size: int, headings: list[int], table_rows: Sequence[Span] = ()) -> Layout:
        """Determine the structure of the text.

        Args:
            tokens: The text and its tokens.
            size: Maximum number of tokens in a chunk.
            headings: Offsets of the headings.
            table_rows: Spans of table rows, in order; the first span of a table includes the column headers.
        """
        text = tokens.text
        blocks, rows = _blocks(tokens, size, table_rows)
        ranked = boundaries.structural_offsets(text)
        ranked[Rank.LINE] += [start for start, _ in blocks]
        ranked[Rank.HEADING] = headings
        cuts: dict[Rank, list[int]] = {}
        known: set[int] = set()
        for rank in sorted(Rank, reverse=True):
            known |= {o for o in ranked[rank] if not boundaries.containing(blocks, o) and boundaries.is_clean(text, o)}
            cuts[rank] = sorted(known)
        return cls(cuts, blocks, rows)

    def whole_at(self, offset: int) -> Span | None:
        """Return the undivided span that contains `offset`, or None."""
        return boundaries.containing(self.blocks, offset)

    def last(self, rank: Rank, low: int, high: int) -> int | None:
        """Return the last cut from `low` to `high` with at least this rank, or None."""
        return max(_offsets_between(self.cuts[rank], low, high), default=None)

    def beginnings(self, rank: Rank, low: int, high: int) -> list[int]:
        """Return the offsets from `low` to `high` where an overlap may begin: cuts of at least this rank, and rows."""
        return [*_offsets_between(self.cuts[rank], low, high), *_offsets_between(self.rows, low, high)]


def _offsets_between(offsets: Sequence[int], low: int, high: int) -> Sequence[int]:
    """Return the sorted `offsets` from `low` to `high`, both inclusive."""
    return offsets[bisect_left(offsets, low) : bisect_right(offsets, high)]


def _blocks(tokens: TokenMap, size: int, table_rows: Sequence[Span]) -> tuple[list[Span], list[int]]:
    """Return the undivided spans and the table rows; see `Layout`."""
    text = tokens.text
    blocks = [row for row in table_rows if _fits(tokens, *row, size)]
    rows: list[int] = []
    for start, end in boundaries.blocks(text):
        lines = boundaries.lines_of(text, start, end)
        if _fits(tokens, start, end, size):
            blocks.append((start, end))
            rows += [] if text.startswith(boundaries.FENCE_MARKS, start) else [line[0] for line in lines]
        elif boundaries.is_outside(table_rows, start, end):
            blocks += [line for line in lines if _fits(tokens, *line, size)]
    outer: list[Span] = []
    for start, end in sorted(blocks, key=lambda span: (span[0], -span[1])):
        if not outer or start >= outer[-1][1]:
            outer.append((start, end))
    return outer, rows


def _fits(tokens: TokenMap, start: int, end: int, size: int) -> bool:
    is_far_too_long = tokens.estimate(start, end) > size + 8
    return not is_far_too_long and tokens.count(start, end) <= size
