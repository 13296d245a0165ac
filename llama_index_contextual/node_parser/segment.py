"""Base class of both node parsers, and the parser that splits Documents into segments.

The cuts between segments depend on the content, so that an edit changes only the segments near it: each cut depends
only on the previous cut and on the text after it. A segment is cut in its last fifth, at the offset with the best
structural rank. Among offsets of equal rank, the offset whose surrounding text has the lowest hash is chosen, as in
content-defined chunking (FastCDC: Xia et al., USENIX ATC 2016; AE: Zhang et al., INFOCOM 2015). After an edit, the cuts
differ only until the first window in which the old and the new text have the same best offset.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import xxhash
from llama_index.core.bridge.pydantic import ConfigDict, Field, model_validator
from llama_index.core.node_parser import NodeParser
from llama_index.core.node_parser.interface import IdFuncCallable
from llama_index.core.node_parser.node_utils import default_id_func
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, ObjectType, RelatedNodeInfo, TextNode
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.tokens import TokenMap
from llama_index_contextual.config import default
from llama_index_contextual.errors import InputError
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers import boundaries
from llama_index_contextual.readers.boundaries import Rank, Span
from llama_index_contextual.readers.tables import tables_in_text

_CONTINUED_ROW = re.compile(r"\|[ \t]*\|[^\n]*[^|\s]")
_NAMESPACE = uuid.UUID("6f2c8a52-6d0b-5a53-9d58-0c7f4b8f2b6e")


@dataclass(frozen=True)
class Origin:
    """An input node and its position in its document.

    Attributes:
        node: The node.
        text: Text of the node, without metadata.
        source: Link to the document, without metadata.
        base: Offset of the text's first character in the document, or None if unknown.
        is_segment: Whether the node is a whole segment and not a part of a segment, which has the same metadata keys.
    """

    node: BaseNode
    text: str
    source: RelatedNodeInfo
    base: int | None
    is_segment: bool = False

    @classmethod
    def of(cls, node: BaseNode) -> Origin:
        """Read the SOURCE link and the offsets of `node`. A node without this link is treated as a document.

        Raises:
            InputError: The metadata of the node cannot be copied to its parts.
        """
        if fault := keys.shape_fault(node.metadata):
            raise InputError(f"Node {node.node_id!r} cannot be parsed: {fault}.", value=node)
        text, source = node.get_content(metadata_mode=MetadataMode.NONE), node.source_node
        if source is None:
            return cls(node, text, RelatedNodeInfo(node_id=node.node_id, node_type=node.get_type(), hash=node.hash), 0)
        info = RelatedNodeInfo(node_id=source.node_id, node_type=source.node_type, hash=source.hash)
        start, end = getattr(node, "start_char_idx", None), getattr(node, "end_char_idx", None)
        base = None if start is None or end is None or end - start != len(text) else start
        if keys.SEGMENT_OWN_START not in node.metadata:
            return cls(node, text, info, base)
        first, last = node.metadata[keys.SEGMENT_START], node.metadata[keys.SEGMENT_END]
        is_segment = len(text) == last - first and start in (None, first)
        if base is not None and not is_segment:
            # A LlamaIndex parser has split a segment; the offsets are relative to the beginning of the segment.
            base += first
        return cls(node, text, info, base, is_segment)

    def part(self, kind: str, start: int, end: int, **options: Any) -> TextNode:
        """Return the node for a slice of the text.

        Its id is a UUIDv5, which is the same in every run for the same document, span and text.

        Args:
            kind: "segment" or "chunk", because a chunk may have the same span as its segment.
            start: Offset of the first character in the text.
            end: Offset of the end in the text (exclusive).
            options: Additional fields of the node.
        """
        text, shift = self.text[start:end], self.base or 0
        span = None if self.base is None else (shift + start, shift + end)
        document_id = self.source.node_id if span else f"{self.source.node_id}\n{self.node.node_id}"
        digest = xxhash.xxh3_128_hexdigest(text.encode())
        return TextNode(
            id_=str(uuid.uuid5(_NAMESPACE, f"{kind}\n{shift + start}:{shift + end}\n{digest}\n{document_id}")),
            text=text,
            start_char_idx=span and span[0],
            end_char_idx=span and span[1],
            metadata_template=keys.METADATA_TEMPLATE,
            metadata_separator=self.node.metadata_separator,
            text_template=keys.TEXT_TEMPLATE,
            **options,
        )

    @cached_property
    def map(self) -> DocumentMap:
        """Pages, headings and tables of the document, which a reader recorded in the metadata of the node.

        If no reader has looked for tables, the tables in the text are added. Their offsets are relative to the
        beginning of the document, or of the node if its position is unknown.
        """
        metadata = self.node.metadata
        # All segments of a document have the same metadata strings, so parse the strings only once.
        where = _recorded(tuple((key, metadata[key]) for key in keys.RESERVED_KEYS if key in metadata))
        if self.is_segment or (self.base is not None and (keys.PAGES in metadata or keys.TABLES in metadata)):
            return where
        return replace(where, tables=[table.moved(self.base or 0) for table in tables_in_text(self.text)])

    def headings(self) -> list[int]:
        """Return the offsets of the headings in the text.

        Headings that were recognised by their appearance are used for section names but not as cuts: they are numerous
        and sometimes wrong, and half-empty chunks lower the recall.
        """
        base = self.base
        marked = [one.start - base for one in self.map.headings if one.is_marked] if base is not None else []
        return boundaries.heading_offsets(self.text, marked or None)

    def rows(self) -> list[Span]:
        """Return the spans of table rows in the text.

        The first row and the column headers form one span. A row whose first cell is blank belongs to the row above it.
        """
        base, spans = self.base or 0, []
        first = bisect_right(self.map.tables, base, key=lambda table: table.end)
        for table in (table.moved(-base) for table in self.map.tables[first:]):
            own: list[Span] = []
            for start, end in boundaries.lines_of(self.text, max(0, table.start), min(len(self.text), table.end)):
                is_first = own and own[0][0] == table.start and start <= table.body
                if own and (is_first or _CONTINUED_ROW.match(self.text, start)):
                    own[-1] = own[-1][0], end
                else:
                    own.append((start, end))
            spans += own
        return spans


@lru_cache(maxsize=8)
def _recorded(items: tuple[tuple[str, str], ...]) -> DocumentMap:
    return DocumentMap.from_metadata(dict(items))


def link_neighbours(nodes: Sequence[BaseNode]) -> None:
    """Set the PREVIOUS and NEXT links of consecutive nodes, without metadata."""
    links = [RelatedNodeInfo(node_id=node.node_id, node_type=ObjectType.TEXT) for node in nodes]
    for number in range(1, len(nodes)):
        nodes[number - 1].relationships[NodeRelationship.NEXT] = links[number]
        nodes[number].relationships[NodeRelationship.PREVIOUS] = links[number - 1]


class SpanNodeParser(NodeParser):
    """Base class of both parsers, which set spans, ids and links during parsing."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    id_func: IdFuncCallable = Field(default=default_id_func, exclude=True)
    """Not used: ids are derived from document id, span and text."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the component in serialized pipelines."""
        return cls.__name__

    def _postprocess_parsed_nodes(self, nodes: list[BaseNode], parent_doc_map: dict[str, Any]) -> list[BaseNode]:
        # The inherited version would overwrite these values: it searches for each text from the beginning of the
        # document, links nodes by SOURCE only, and drops PARENT.
        return nodes


# Segments

_WINDOW = 0.2
_NEIGHBOURHOOD = 32
_MARGIN = 8


@dataclass(frozen=True)
class PartSpan:
    """Offsets of a segment in its document, or of a chunk in its segment.

    Attributes:
        start: Offset of the first character, including the overlap.
        core: Offset of the first character that is not in the previous part.
        end: End of the part (exclusive).
        tokens: Number of tokens in the slice when it is encoded alone; 0 if they were not counted.
    """

    start: int
    own_start: int
    end: int
    tokens: int = 0


@dataclass(frozen=True)
class SegmentCutter:
    """Split one document into segments of at most `size` tokens.

    Attributes:
        tokens: The document's text and tokens.
        size: Maximum number of tokens in a segment when it is encoded alone.
        overlap: Maximum number of tokens that a segment shares with the previous segment.
        headings: Sorted offsets of headings.
        blocks: Sorted spans of code fences and tables; spans of up to half the size of a segment are not divided.
        rows: Sorted spans of the rows of known tables, which are not divided. The first span of a table includes the
            column headers.
    """

    tokens: TokenMap
    size: int
    overlap: int
    headings: Sequence[int]
    blocks: Sequence[tuple[int, int]]
    rows: Sequence[tuple[int, int]] = ()

    def spans(self) -> Iterator[PartSpan]:
        """Yield the segments in the order of the text; yield nothing if the text is only white space.

        Text that fits into one segment is not split. Otherwise, the segments without their overlaps cover
        all of the text except white space.
        """
        text = self.tokens.text
        own_start = boundaries.skip_space(text, 0)
        tail = boundaries.strip_end(text, own_start, len(text))
        if own_start < tail and len(self.tokens) <= self.size:
            yield PartSpan(0, 0, len(text))
            return
        start = own_start
        while own_start < tail:
            next_own_start = self._cut(own_start, self.size - (self.overlap if start < own_start else 0), tail)
            end = boundaries.strip_end(text, own_start, next_own_start)
            yield PartSpan(self._fit(start, own_start, end), own_start, end)
            start, own_start = self._overlap_start(end, next_own_start, own_start), next_own_start

    def _cut(self, own_start: int, capacity: int, tail: int) -> int:
        tokens = self.tokens
        first = tokens.index(own_start)
        rest = tokens.index(tail) - first
        if rest <= capacity + _MARGIN and tokens.count(own_start, tail) <= capacity:
            return tail
        window = int(_WINDOW * capacity)
        # Each segment costs an LLM call, so the last segment should not be tiny: leave a fifth of a segment for it.
        last = max(min(capacity - _MARGIN, rest - window), window + 1, 1)
        low = max(own_start + 1, tokens.offset(first + last - window))
        high = max(low, tokens.offset(first + last))
        cut = self._best(low, high, own_start)
        return self._fallback_cut(low, high, own_start) if cut is None else cut

    def _best(self, low: int, high: int, known: int) -> int | None:
        text = self.tokens.text
        whole = boundaries.containing(self.blocks, low)
        if whole and whole[1] > high:
            if whole[0] > known and self.tokens.estimate(*whole) <= self.size // 2:
                return whole[0]
            starts = [start for start, _ in boundaries.lines_of(text, low, high) if start > low]
            lines = (start for start in starts if "\n" in text[boundaries.strip_end(text, 0, start) : start])
            return self._lowest(lines, known)
        ranked = boundaries.structural_offsets(text, low, high)
        ranked[Rank.HEADING] = [offset for offset in self.headings if low <= offset <= high]
        for rank in sorted(ranked, reverse=True):
            outside = (offset for offset in ranked[rank] if not boundaries.containing(self.blocks, offset))
            if (cut := self._lowest(outside, known)) is not None:
                return cut
        return None

    def _lowest(self, offsets: Iterable[int], known: int) -> int | None:
        """Return the offset whose surrounding text has the lowest hash, or None if there is no suitable offset.

        Offsets within a grapheme or a table row are not suitable.
        """
        text = self.tokens.text
        outside = (o for o in offsets if not boundaries.containing(self.rows, o))
        undivided = (o for o in outside if boundaries.is_clean(text, o, known))
        return min(undivided, key=lambda o: (self._hash(o), o), default=None)

    def _hash(self, offset: int) -> int:
        near = self.tokens.text[max(0, offset - _NEIGHBOURHOOD) : offset + _NEIGHBOURHOOD]
        return xxhash.xxh3_64_intdigest(near.encode())

    def _fallback_cut(self, low: int, high: int, known: int) -> int:
        """Return a cut between words or, in a word that is longer than half a segment, between graphemes."""
        text = self.tokens.text
        half = known + max(1, (low - known) // 2)
        for first, last in ((low, high), (half, low)):
            after = [offset for offset in boundaries.word_ends(text, first, last) if offset < last]
            for offsets in (boundaries.word_starts(text, first, last), after):
                if whole := boundaries.grapheme_boundaries(text, offsets, known):
                    return boundaries.skip_space(text, min(whole, key=self._hash))
        starts = boundaries.grapheme_boundaries(text, range(low, high), known)
        return boundaries.skip_space(text, min(starts, key=self._hash) if starts else max(high, known + 1))

    def _overlap_start(self, end: int, next_own_start: int, own_start: int) -> int:
        """Return the offset at which the next segment, including its overlap, starts.

        The overlap is 75 to 100 % of `overlap`, or less if necessary.
        """
        tokens = self.tokens
        at = tokens.index(end)
        low = max(own_start + 1, tokens.offset(at - max(0, self.overlap - _MARGIN)))
        high = tokens.offset(at - int(0.75 * self.overlap))
        if not self.overlap or low > high:
            return next_own_start
        ranked = boundaries.structural_offsets(tokens.text, low, high)
        for rank in sorted(ranked, reverse=True):
            if clean := [offset for offset in ranked[rank] if boundaries.is_clean(tokens.text, offset, own_start)]:
                return clean[0]
        # A long word fills this range: begin at the first word after it.
        words = boundaries.word_starts(tokens.text, low, end)
        return next(iter(boundaries.grapheme_boundaries(tokens.text, words, own_start)), next_own_start)

    def _fit(self, start: int, own_start: int, end: int) -> int:
        """Move the start of the overlap forward until the segment is within the limit, and return the new start."""
        while start < own_start and self.tokens.count(start, end) > self.size:
            start = next(iter(boundaries.word_starts(self.tokens.text, start + 1, own_start)), own_start)
        return start


class SegmentNodeParser(SpanNodeParser):
    """Node parser that splits Documents into segments of up to `segment_size` tokens (o200k_base).

    A document that fits into one segment is not split. Otherwise neighbouring segments share about `segment_overlap`
    tokens. The text is split at headings, paragraphs or sentences. Each cut depends on the text around it, so that an
    edit changes only the segments near the edit. If two segments share text, ChunkNodeParser adds it to chunks only
    once.

    `node.text == document.text[node.start_char_idx:node.end_char_idx]`. The metadata contains the same offsets as
    `segment_start` and `segment_end`.

    Raises:
        ValueError: The size is not positive, or the overlap is negative or not smaller than the size.
    """

    segment_size: int = Field(default=default("segment_size"), gt=0)
    """Maximum number of tokens (o200k_base) of a segment."""
    segment_overlap: int = Field(default=default("segment_size") // 10, ge=0)
    """Maximum number of tokens that neighbouring segments share; they share at least three quarters of it."""

    @model_validator(mode="after")
    def _check(self) -> SegmentNodeParser:
        if self.segment_overlap >= self.segment_size:
            raise ValueError(f"segment_overlap must be smaller than segment_size ({self.segment_size})")
        return self

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        out: list[BaseNode] = []
        for node in get_tqdm_iterable(nodes, show_progress, "Segmenting documents"):
            segments = self._segments(node)
            if self.include_prev_next_rel:
                link_neighbours(segments)
            out.extend(segments)
        return out

    def _segments(self, node: BaseNode) -> list[TextNode]:
        origin = Origin.of(node)
        text, base, where = origin.text, origin.base or 0, origin.map
        tokens = TokenMap.from_text(text)
        cutter = SegmentCutter(
            tokens,
            self.segment_size,
            self.segment_overlap,
            origin.headings(),
            boundaries.blocks(text),
            [row for row in origin.rows() if tokens.estimate(*row) <= self.segment_size // 2],
        )
        inherited = {key: value for key, value in node.metadata.items() if key != keys.TABLES}
        inherited |= DocumentMap(tables=where.tables).to_metadata()
        if not self.include_metadata:
            left_out = {*keys.user_metadata(node), *keys.FILE_KEYS}
            inherited = {key: value for key, value in inherited.items() if key not in left_out}
        embed, llm = node.excluded_embed_metadata_keys, node.excluded_llm_metadata_keys
        segments = []
        for index, span in enumerate(cutter.spans()):
            own = {keys.SEGMENT_START: span.start, keys.SEGMENT_END: span.end, keys.SEGMENT_OWN_START: span.own_start}
            segment = origin.part(
                "segment",
                span.start,
                span.end,
                metadata={**inherited, keys.SEGMENT_INDEX: index, **{key: at + base for key, at in own.items()}},
                excluded_embed_metadata_keys=[*keys.excluded_embed_keys(embed), keys.SEGMENT_OWN_START],
                excluded_llm_metadata_keys=[*keys.excluded_llm_keys(llm), keys.SEGMENT_OWN_START],
                relationships={NodeRelationship.SOURCE: origin.source},
            )
            segments.append(segment)
        return segments
