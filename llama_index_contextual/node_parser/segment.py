"""Split documents into segments at cuts that depend on the content, so that an edit changes only the segments near it.

Each cut depends only on the previous one and on the text after it. In the last fifth of a segment, the best structural
rank is chosen, and among equals the offset whose neighbourhood has the lowest hash, as in content-defined chunking
(FastCDC: Xia et al., USENIX ATC 2016; AE: Zhang et al., INFOCOM 2015). After an edit, the cuts are the same again as
soon as the windows before and after the edit contain the same best offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xxhash
from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.schema import BaseNode, NodeRelationship, TextNode
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual._utils.tokens import TokenMap
from llama_index_contextual.metadata import (
    FILE_KEYS,
    METADATA_TEMPLATE,
    SEGMENT_END,
    SEGMENT_INDEX,
    SEGMENT_START,
    TABLES,
    TEXT_TEMPLATE,
    DocumentMap,
    excluded_embed_keys,
    excluded_llm_keys,
    user_metadata,
)
from llama_index_contextual.node_parser.base import (
    SEGMENT_CORE,
    Origin,
    SegmentNode,
    SpanNodeParser,
    check_overlap,
    heading_offsets_in,
    link_neighbours,
    table_spans,
    tables_of,
    text_of,
)
from llama_index_contextual.readers.boundaries import (
    NON_WORD_CHARACTER,
    WORD_START,
    Rank,
    blocks,
    containing,
    grapheme_boundaries,
    heading_offsets,
    in_word,
    is_grapheme_boundary,
    lines_of,
    skip_space,
    strip_end,
    structural_offsets,
)

_WINDOW = 0.2
_NEIGHBOURHOOD = 32
_MARGIN = 8


@dataclass(frozen=True)
class SegmentSpan:
    """A segment as offsets into its document.

    Attributes:
        start: The first character, overlap included.
        core: The first character that the previous segment does not hold; the cores tile the document.
        end: End of the segment (exclusive).
    """

    start: int
    core: int
    end: int


@dataclass(frozen=True)
class SegmentCutter:
    """Cutter of one document into segments of at most `size` tokens.

    Attributes:
        tokens: The document's text and tokens.
        size: Maximum number of tokens of a segment when it is encoded alone.
        overlap: Maximum number of tokens that a segment shares with the previous one.
        headings: Sorted offsets of headings.
        wholes: Sorted spans of code fences and tables; those of up to half a segment are not divided.
        rows: Sorted spans of the rows of tables that are known, the first one with the head; they are not divided.
    """

    tokens: TokenMap
    size: int
    overlap: int
    headings: Sequence[int]
    wholes: Sequence[tuple[int, int]]
    rows: Sequence[tuple[int, int]] = ()

    @classmethod
    def of(
        cls,
        text: str,
        *,
        size: int,
        overlap: int,
        headings: Iterable[int] | None = None,
        table_rows: Sequence[tuple[int, int]] = (),
    ) -> SegmentCutter:
        """Tokenise and scan `text`.

        Args:
            text: The text of a document.
            size: As in the attributes.
            overlap: As in the attributes.
            headings: Offsets that the reader has recorded, if any.
            table_rows: Spans of the rows of tables; those of more than half a segment may be divided.
        """
        tokens = TokenMap.of(text)
        rows = [row for row in table_rows if tokens.estimate(*row) <= size // 2]
        return cls(tokens, size, overlap, heading_offsets(text, headings), blocks(text), rows)

    def spans(self) -> Iterator[SegmentSpan]:
        """Yield the segments in the order of the text; none if it is all white space.

        A text that fits is one segment. Otherwise the cores cover all of the text except white space.
        """
        text = self.tokens.text
        core = skip_space(text, 0)
        tail = strip_end(text, core, len(text))
        if core < tail and len(self.tokens) <= self.size:
            yield SegmentSpan(0, 0, len(text))
            return
        start = core
        while core < tail:
            next_core = self._cut(core, self.size - (self.overlap if start < core else 0), tail)
            end = strip_end(text, core, next_core)
            yield SegmentSpan(self._fit(start, core, end), core, end)
            start, core = self._overlap_start(end, next_core, core), next_core

    def _cut(self, core: int, capacity: int, tail: int) -> int:
        tokens = self.tokens
        first = tokens.index(core)
        rest = tokens.index(tail) - first
        if rest <= capacity + _MARGIN and tokens.count(core, tail) <= capacity:
            return tail
        window = int(_WINDOW * capacity)
        # Each segment costs an LLM call, so the last one should not consist of a few words: leave a fifth for it.
        last = max(min(capacity - _MARGIN, rest - window), window + 1, 1)
        low = max(core + 1, tokens.offset(first + last - window))
        high = max(low, tokens.offset(first + last))
        cut = self._best(low, high, core)
        return self._forced(low, high, core) if cut is None else cut

    def _best(self, low: int, high: int, known: int) -> int | None:
        starts = [start for start, _ in self.wholes]
        whole = containing(self.wholes, starts, low)
        if whole and whole[1] > high:
            if whole[0] > known and self.tokens.estimate(*whole) <= self.size // 2:
                return whole[0]
            rows = [start for start, _ in lines_of(self.tokens.text, low, high) if self._line_start(start)]
            return self._lowest(self._undivided(rows[1:] if rows and rows[0] == low else rows), known)
        ranked = structural_offsets(self.tokens.text, low, high)
        ranked[Rank.HEADING] = [offset for offset in self.headings if low <= offset <= high]
        for rank in sorted(ranked, reverse=True):
            outside = (offset for offset in ranked[rank] if not containing(self.wholes, starts, offset))
            cut = self._lowest(self._undivided(outside), known)
            if cut is not None:
                return cut
        return None

    def _undivided(self, offsets: Iterable[int]) -> Iterator[int]:
        """Yield the offsets that are not within a row of a table."""
        return (offset for offset in offsets if not containing(self.rows, self._row_starts, offset))

    @cached_property
    def _row_starts(self) -> list[int]:
        return [start for start, _ in self.rows]

    def _line_start(self, offset: int) -> bool:
        text = self.tokens.text
        return offset > 0 and "\n" in text[strip_end(text, 0, offset) : offset]

    def _lowest(self, offsets: Iterable[int], known: int) -> int | None:
        """Return the offset with the lowest hash of its neighbourhood among those that divide no grapheme."""
        for offset in sorted(offsets, key=lambda o: (self._hash(o), o)):
            if self._is_clean(offset, known):
                return offset
        return None

    def _hash(self, offset: int) -> int:
        near = self.tokens.text[max(0, offset - _NEIGHBOURHOOD) : offset + _NEIGHBOURHOOD]
        return xxhash.xxh3_64_intdigest(near.encode("utf-8", "surrogatepass"))

    def _is_clean(self, offset: int, known: int) -> bool:
        text = self.tokens.text
        before = strip_end(text, known, offset)
        return is_grapheme_boundary(text, offset, known) and is_grapheme_boundary(text, before, known)

    def _forced(self, low: int, high: int, known: int) -> int:
        """Return a cut between words or, in a word that is longer than half a segment, between graphemes."""
        text = self.tokens.text
        half = known + max(1, (low - known) // 2)
        for first, last in ((low, high), (half, low)):
            words = [match.start() for match in WORD_START.finditer(text, first, last)]
            after = (match.end() for match in NON_WORD_CHARACTER.finditer(text, first, last))
            for offsets in (words, [o for o in after if o < last and not in_word(text, o)]):
                whole = grapheme_boundaries(text, offsets, known)
                if whole:
                    return skip_space(text, min(whole, key=self._hash))
        starts = grapheme_boundaries(text, range(low, high), known)
        return skip_space(text, min(starts, key=self._hash) if starts else max(high, known + 1))

    def _overlap_start(self, end: int, next_core: int, core: int) -> int:
        """Return where the next segment begins so that it shares 75 to 100 % of the overlap, or less if necessary."""
        tokens = self.tokens
        at = tokens.index(end)
        low = max(core + 1, tokens.offset(at - max(0, self.overlap - _MARGIN)))
        high = tokens.offset(at - int(0.75 * self.overlap))
        if not self.overlap or low > high:
            return next_core
        ranked = structural_offsets(tokens.text, low, high)
        for rank in sorted(ranked, reverse=True):
            for offset in ranked[rank]:
                if self._is_clean(offset, core):
                    return offset
        # A long word fills that range: begin at the first word after it.
        words = [match.start() for match in WORD_START.finditer(tokens.text, low, end)]
        return next(iter(grapheme_boundaries(tokens.text, words, core)), next_core)

    def _fit(self, start: int, core: int, end: int) -> int:
        """Move the start of the overlap forward until the segment fits when it is encoded alone."""
        while start < core and self.tokens.count(start, end) > self.size:
            match = WORD_START.search(self.tokens.text, start + 1, core)
            start = match.start() if match else core
        return start


class SegmentNodeParser(SpanNodeParser):
    """Node parser that splits Documents into segments of up to `segment_size` tokens (o200k_base).

    A document that fits is one segment. Otherwise neighbouring segments share about `segment_overlap` tokens. The text
    is cut at headings, paragraphs or sentences, which are chosen by the text around them, so that an edit changes only
    the segments near it. ChunkNodeParser puts the text that two segments share into chunks only once.

    `node.text == document.text[node.start_char_idx:node.end_char_idx]`; `segment_start` and `segment_end` in the
    metadata are the same offsets.

    Raises:
        ConfigurationError: A size is not positive, or the overlap is not smaller than the size. Pydantic raises it as a
            ValidationError, which is a ValueError too.
    """

    segment_size: int = Field(default=8_000, description="Maximum number of tokens (o200k_base) of a segment.")
    segment_overlap: int = Field(
        default=800,
        description="Maximum number of tokens that neighbouring segments share; they share at least three quarters "
        "of it.",
    )

    @model_validator(mode="after")
    def _check(self) -> SegmentNodeParser:
        check_overlap(self.segment_size, self.segment_overlap, "segment")
        return self

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the component in serialized pipelines."""
        return "SegmentNodeParser"

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        out: list[BaseNode] = []
        for node in get_tqdm_iterable(nodes, show_progress, "Segmenting documents"):
            segments = self._segments(node)
            if self.include_prev_next_rel:
                link_neighbours(segments)
            out.extend(segments)
        return out

    def _segments(self, node: BaseNode) -> list[TextNode]:
        text, origin = text_of(node), Origin.of(node)
        where = DocumentMap.from_metadata(node.metadata)
        tables = tables_of(node, text, origin.base)
        if tables is None:
            tables = list(where.tables)
        cutter = SegmentCutter.of(
            text,
            size=self.segment_size,
            overlap=self.segment_overlap,
            headings=heading_offsets_in(where.headings, origin.base),
            table_rows=table_spans(text, tables, origin.base or 0),
        )
        metadata = {key: value for key, value in node.metadata.items() if key != TABLES}
        metadata |= DocumentMap(tables=tables).to_metadata()
        return [
            self._node(node, origin, index, span, cutter.tokens, metadata) for index, span in enumerate(cutter.spans())
        ]

    def _node(
        self,
        parent: BaseNode,
        origin: Origin,
        index: int,
        span: SegmentSpan,
        tokens: TokenMap,
        inherited: dict[str, Any],
    ) -> TextNode:
        part, base = tokens.text[span.start : span.end], origin.base
        shift = base or 0
        metadata = dict(inherited)
        if not self.include_metadata:
            left_out = {*user_metadata(parent), *FILE_KEYS}
            metadata = {key: value for key, value in metadata.items() if key not in left_out}
        metadata |= {
            SEGMENT_INDEX: index,
            SEGMENT_START: span.start + shift,
            SEGMENT_END: span.end + shift,
            SEGMENT_CORE: span.core + shift,
        }
        return SegmentNode.with_tokens(
            tokens.widths(span.start, span.end),
            id_=self._node_id(index, parent, lambda: origin.span_id("segment", span.start, span.end, part)),
            text=part,
            start_char_idx=None if base is None else span.start + base,
            end_char_idx=None if base is None else span.end + base,
            metadata=metadata,
            excluded_embed_metadata_keys=[*excluded_embed_keys(parent.excluded_embed_metadata_keys), SEGMENT_CORE],
            excluded_llm_metadata_keys=[*excluded_llm_keys(parent.excluded_llm_metadata_keys), SEGMENT_CORE],
            metadata_template=METADATA_TEMPLATE,
            metadata_separator=parent.metadata_separator,
            text_template=TEXT_TEMPLATE,
            relationships={NodeRelationship.SOURCE: origin.source},
        )
