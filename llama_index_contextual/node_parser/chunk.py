"""Segments → chunks: the units that are embedded, indexed and returned."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from llama_index_contextual.node_parser.chunking import ChunkCutter, ChunkSpan
from llama_index_contextual.node_parser.layout import Layout


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
