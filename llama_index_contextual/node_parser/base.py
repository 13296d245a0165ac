"""Base of both node parsers: input nodes, ids, and links between the nodes of a document."""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import xxhash
from llama_index.core.bridge.pydantic import BeforeValidator, Field, PlainSerializer, PrivateAttr, WithJsonSchema
from llama_index.core.node_parser import NodeParser
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, ObjectType, RelatedNodeInfo, TextNode
from numpy.typing import NDArray

from llama_index_contextual._utils.tokens import TokenMap
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.metadata import PAGES, SEGMENT_END, SEGMENT_START, TABLES, Heading, Table, shape_fault
from llama_index_contextual.readers.boundaries import code_fences, lines_of
from llama_index_contextual.readers.tables import tables_in_text

SEGMENT_CORE = "_contextual_segment_core"
"""Metadata key: document offset at which a segment's own text begins, after the overlap with the previous segment."""

_CONTINUED_ROW = re.compile(r"\|[ \t]*\|[^\n]*[^|\s]")
_NAMESPACE = uuid.UUID("6f2c8a52-6d0b-5a53-9d58-0c7f4b8f2b6e")


def span_id(kind: str, document_id: str, start: int, end: int, text: str) -> str:
    """Return the UUIDv5 of a span; the same document, span and text give the same id in every run.

    Args:
        kind: "segment" or "chunk", because a chunk may have the same span as its segment.
        document_id: The id of the source document.
        start: Offset of the first character in the document.
        end: Offset of the end in the document (exclusive).
        text: The text of the span.
    """
    digest = xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
    return str(uuid.uuid5(_NAMESPACE, f"{kind}\n{start}:{end}\n{digest}\n{document_id}"))


def content_id_func(i: int, doc: BaseNode) -> str:
    """Return an id for the `i`-th part of `doc`.

    As the default `id_func`, it makes the parsers derive ids from document id, span and text instead, see `span_id`.
    """
    return span_id("part", doc.node_id, i, i, "")


def _restore_id_func(value: Any) -> Any:
    if value is None:
        return content_id_func
    if isinstance(value, dict):
        name = value.get("id_func_name")
        if name == content_id_func.__name__:
            return content_id_func
        raise ConfigurationError(
            f"The id_func {name!r} cannot be restored from its name; pass it again: from_dict(data, id_func=...).",
            setting="id_func",
        )
    return value


def _name_id_func(value: Callable[..., str]) -> dict[str, str]:
    return {"id_func_name": getattr(value, "__name__", type(value).__name__), "title": "id_func"}


IdFunc = Annotated[
    Callable[[int, BaseNode], str],
    BeforeValidator(_restore_id_func),
    PlainSerializer(_name_id_func),
    WithJsonSchema({"type": "object"}, mode="serialization"),
    WithJsonSchema({"type": "object"}, mode="validation"),
]


@dataclass(frozen=True)
class Origin:
    """Position of an input node in its document.

    Attributes:
        source: The document, with empty metadata.
        base: Offset of the node's first character in the document, or None if unknown.
        node_id: Id of the input node.
    """

    source: RelatedNodeInfo
    base: int | None
    node_id: str

    @classmethod
    def of(cls, node: BaseNode) -> Origin:
        """Read the SOURCE link and the offsets of `node`; a node without a link is its own document.

        Raises:
            InputError: The metadata of the node cannot be copied to its parts.
        """
        if fault := shape_fault(node.metadata):
            raise InputError(f"Node {node.node_id!r} cannot be parsed: {fault}.", value=node)
        source = node.source_node
        if source is None:
            info = RelatedNodeInfo(node_id=node.node_id, node_type=node.get_type(), hash=_hash(node))
            return cls(info, 0, node.node_id)
        info = RelatedNodeInfo(node_id=source.node_id, node_type=source.node_type, hash=source.hash)
        start, end = getattr(node, "start_char_idx", None), getattr(node, "end_char_idx", None)
        if start is None or end is None or end - start != len(text_of(node)):
            return cls(info, None, node.node_id)
        if SEGMENT_CORE in node.metadata and not is_segment(node):
            # A LlamaIndex parser has split a segment: its offsets count from the beginning of the segment.
            start += node.metadata[SEGMENT_START]
        return cls(info, start, node.node_id)

    def span_id(self, kind: str, start: int, end: int, text: str) -> str:
        """Return the id of a span; the offsets refer to the text of the input node."""
        if self.base is None:
            return span_id(kind, f"{self.source.node_id}\n{self.node_id}", start, end, text)
        return span_id(kind, self.source.node_id, self.base + start, self.base + end, text)


class SegmentNode(TextNode):
    """Segment that keeps the token widths of its text, so that both parsers tokenise a document only once.

    The widths are not a field: a segment that was stored and loaded, or whose text was changed, is tokenised again.
    """

    _widths: tuple[str, bytes] = PrivateAttr(default=("", b""))

    @classmethod
    def with_tokens(cls, widths: NDArray[np.uint8], **fields: Any) -> SegmentNode:
        """Return a segment with the given fields and the widths of its tokens, see `TokenMap.widths`."""
        node = cls(**fields)
        node._widths = node.text, widths.tobytes()
        return node


def tokens_of(node: BaseNode, text: str) -> TokenMap:
    """Tokenise the text of a node, reusing the widths that a `SegmentNode` keeps."""
    kept, widths = node._widths if isinstance(node, SegmentNode) else ("", b"")
    return TokenMap.of(text, np.frombuffer(widths, dtype=np.uint8) if kept == text else None)


def is_segment(node: BaseNode) -> bool:
    """Return whether a node is a segment itself; a node made from one has the same metadata keys."""
    if SEGMENT_CORE not in node.metadata:
        return False
    start, end = node.metadata[SEGMENT_START], node.metadata[SEGMENT_END]
    return len(text_of(node)) == end - start and getattr(node, "start_char_idx", None) in (None, start)


def text_of(node: BaseNode) -> str:
    """Return the text of a node without metadata."""
    return node.get_content(metadata_mode=MetadataMode.NONE)


def link_neighbours(nodes: Sequence[BaseNode]) -> None:
    """Set the PREVIOUS and NEXT links of consecutive nodes, without metadata."""
    links = [RelatedNodeInfo(node_id=node.node_id, node_type=ObjectType.TEXT) for node in nodes]
    for number in range(1, len(nodes)):
        nodes[number - 1].relationships[NodeRelationship.NEXT] = links[number]
        nodes[number].relationships[NodeRelationship.PREVIOUS] = links[number - 1]


def _hash(node: BaseNode) -> str:
    try:
        return node.hash
    except UnicodeEncodeError:  # Document.hash fails on lone surrogates.
        content = text_of(node) + str(node.metadata)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def heading_offsets_in(headings: Sequence[Heading], base: int | None) -> list[int] | None:
    """Return the offsets of headings in the part of their document that begins at `base`, or None if unknown.

    Headings that were recognised by their appearance name sections, but are not used to cut: they are numerous and not
    always certain, and half-empty chunks lower the recall.
    """
    marked = [heading.start - base for heading in headings if heading.is_marked] if base is not None else []
    return marked or None


def tables_of(node: BaseNode, text: str, base: int | None) -> list[Table] | None:
    """Return the tables of a node that no reader has looked for, or None if the recorded ones apply.

    The offsets count from the beginning of the document, or of the node if its position is unknown.
    """
    if base is not None and (PAGES in node.metadata or TABLES in node.metadata):
        return None
    shift = base or 0
    return [
        table._replace(start=table.start + shift, body=table.body + shift, end=table.end + shift)
        for table in tables_in_text(text, code_fences(text))
    ]


def table_spans(text: str, tables: Sequence[Table], base: int) -> list[tuple[int, int]]:
    """Return the spans of the rows of tables in the part of their document that begins at `base`.

    The first row is one span with the head. A row whose first cell is blank belongs to the row above it.
    """
    first = bisect_right(tables, base, key=lambda table: table.end)
    spans: list[tuple[int, int]] = []
    for table in tables[first:]:
        if table.start >= base + len(text):
            break
        own: list[tuple[int, int]] = []
        for start, end in lines_of(text, max(0, table.start - base), min(len(text), table.end - base)):
            is_first = own and own[0][0] + base == table.start and start + base <= table.body
            if own and (is_first or _CONTINUED_ROW.match(text, start)):
                own[-1] = own[-1][0], end
            else:
                own.append((start, end))
        spans += own
    return spans


class SpanNodeParser(NodeParser):
    """Base class of both parsers, which set spans, ids and links while they parse."""

    id_func: IdFunc = Field(
        default=content_id_func,
        validate_default=True,
        description="Function that returns an id, called with a running number and the node that is split. "
        "By default, ids are derived from document id, span and text.",
    )

    def _postprocess_parsed_nodes(self, nodes: list[BaseNode], parent_doc_map: dict[str, Any]) -> list[BaseNode]:
        # The inherited version would overwrite what is set already: it searches for each text from the beginning of
        # the document, links nodes by SOURCE only, and drops PARENT.
        return nodes

    async def _aparse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        return await asyncio.to_thread(self._parse_nodes, nodes, show_progress=show_progress, **kwargs)

    def _node_id(self, number: int, node: BaseNode, default: Callable[[], str]) -> str:
        return default() if self.id_func is content_id_func else self.id_func(number, node)


def check_overlap(size: int, overlap: int, prefix: str) -> None:
    """Raise ConfigurationError unless 0 <= overlap < size and size > 0, both in tokens."""
    if size <= 0:
        raise ConfigurationError(f"{prefix}_size is {size}, but it must be at least 1 token.", setting=f"{prefix}_size")
    if overlap < 0:
        raise ConfigurationError(
            f"{prefix}_overlap is {overlap}, but it cannot be negative; use 0 for no overlap.",
            setting=f"{prefix}_overlap",
        )
    if overlap >= size:
        raise ConfigurationError(
            f"{prefix}_overlap ({overlap}) must be smaller than {prefix}_size ({size}): "
            f"lower {prefix}_overlap or raise {prefix}_size.",
            setting=f"{prefix}_overlap",
        )
