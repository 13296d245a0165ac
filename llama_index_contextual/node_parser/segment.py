"""Documents → segments: stretches of a document that an LLM reads at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.schema import BaseNode, NodeRelationship, TextNode
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual.metadata import (
    FILE_KEYS,
    METADATA_TEMPLATE,
    SEGMENT_END,
    SEGMENT_INDEX,
    SEGMENT_START,
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
    text_of,
)
from llama_index_contextual.node_parser.segmenting import SegmentCutter, SegmentSpan
from llama_index_contextual.node_parser.spans import TokenMap


class SegmentNodeParser(SpanNodeParser):
    """Cuts Documents into segments of up to `segment_size` tokens (o200k_base).

    A document that fits is one segment. Else neighbours share about `segment_overlap` tokens, and the cuts stand at
    headings, paragraphs or sentences that are chosen by the text around them, so that an edit changes the segments near
    it and leaves the others as they were. Each part of the document belongs to exactly one segment: ChunkNodeParser
    chunks what two segments share once.

    `node.text == document.text[node.start_char_idx:node.end_char_idx]`; `segment_start` and `segment_end` in the
    metadata are the same offsets.

    Raises:
        ConfigurationError: A size is not positive, or the overlap is not smaller than the size (pydantic hands it on as
            a ValidationError, which is a ValueError too).
    """

    segment_size: int = Field(default=8_000, description="Most tokens (o200k_base) of a segment.")
    segment_overlap: int = Field(
        default=800, description="Tokens that neighbouring segments share at most; they share at least three quarters."
    )

    @model_validator(mode="after")
    def _check(self) -> SegmentNodeParser:
        check_overlap(self.segment_size, self.segment_overlap, "segment")
        return self

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex knows the component."""
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
        headings = DocumentMap.from_metadata(node.metadata).headings
        cutter = SegmentCutter.of(
            text,
            size=self.segment_size,
            overlap=self.segment_overlap,
            headings=heading_offsets_in(headings, origin.base),
        )
        return [self._node(node, origin, index, span, cutter.tokens) for index, span in enumerate(cutter.spans())]

    def _node(self, parent: BaseNode, origin: Origin, index: int, span: SegmentSpan, tokens: TokenMap) -> TextNode:
        part, base = tokens.text[span.start : span.end], origin.base
        shift = base or 0
        metadata = dict(parent.metadata)
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
