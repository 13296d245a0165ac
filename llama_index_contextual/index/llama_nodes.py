"""Chunks as nodes of LlamaIndex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.schema import BaseNode, NodeRelationship, ObjectType, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc

from llama_index_contextual import metadata as keys

_OF_ONE_CHUNK = frozenset(
    {keys.CONTEXT, keys.CONTEXT_SOURCE, keys.CONTEXT_GIVEN, keys.CONTEXT_WRITTEN_AT, keys.CHUNK_INDEX}
    | {keys.TOKEN_COUNT, keys.TABLE_HEAD, keys.SOURCE_LINE, keys.PAGE_END}
)
_TEXT_NODE = TextNode.get_type()


def fields_of(node: BaseNode) -> tuple[str, dict[str, Any], str | None]:
    """Return the name of the type of a node, its fields, and the id of its document."""
    raw = doc_to_json(node)
    source = node.relationships.get(NodeRelationship.SOURCE)
    return raw["__type__"], raw["__data__"], None if source is None or isinstance(source, list) else source.node_id


def node_of(kind: str, data: dict[str, Any]) -> BaseNode:
    """Return a node from the name of its type and its fields."""
    if kind == _TEXT_NODE:  # the usual type; json_to_doc takes longer to find it than to create the node
        data.pop("class_name", None)
        return TextNode(**data)
    return json_to_doc({"__type__": kind, "__data__": data})


def parent_of(
    node_id: str,
    doc_id: str | None,
    stored: Sequence[BaseNode],
    read_span: Callable[[str, int, int], str | None],
) -> TextNode | None:
    """Return the parent of chunks, with its text assembled from them; None if there are no chunks.

    Args:
        node_id: Id of the parent.
        doc_id: Id of its document.
        stored: The chunks, in the order of the text.
        read_span: Returns the text of the document between two offsets.
    """
    children = [node for node in stored if isinstance(node, TextNode)]
    if not children:
        return None
    first, last, span = children[0], children[-1], _span_of_all(children)
    text = None if span is None or doc_id is None else read_span(doc_id, *span)
    if text is None:
        span, text = None, "\n\n".join(child.text for child in children)
    shared = {
        key: value
        for key, value in first.metadata.items()
        if key not in _OF_ONE_CHUNK and all(child.metadata.get(key) == value for child in children)
    }
    places = {keys.PAGE_START: first.metadata.get(keys.PAGE_START), keys.PAGE_END: last.metadata.get(keys.PAGE_END)}
    metadata = {**shared, **{key: value for key, value in places.items() if value is not None}}
    line = keys.source_line(metadata)
    links = [RelatedNodeInfo(node_id=child.node_id, node_type=ObjectType.TEXT) for child in children]
    source = first.relationships.get(NodeRelationship.SOURCE)
    return TextNode(
        id_=node_id,
        text=text,
        start_char_idx=None if span is None else span[0],
        end_char_idx=None if span is None else span[1],
        metadata={keys.SOURCE_LINE: line, **metadata} if line else metadata,
        excluded_embed_metadata_keys=first.excluded_embed_metadata_keys,
        excluded_llm_metadata_keys=first.excluded_llm_metadata_keys,
        metadata_template=first.metadata_template,
        metadata_separator=first.metadata_separator,
        text_template=first.text_template,
        relationships={
            NodeRelationship.CHILD: links,
            **({} if source is None else {NodeRelationship.SOURCE: source}),
        },
    )


def _span_of_all(children: Sequence[TextNode]) -> tuple[int, int] | None:
    """Return the span of the segment that the nodes were cut from, or the span from the first to the last node."""
    starts = [child.start_char_idx for child in children if child.start_char_idx is not None]
    if len(starts) < len(children):
        return None
    start, end = min(starts), max(at + len(child.text) for at, child in zip(starts, children, strict=True))
    segment = (children[0].metadata.get(keys.SEGMENT_START), children[0].metadata.get(keys.SEGMENT_END))
    if isinstance(segment[0], int) and isinstance(segment[1], int) and segment[0] <= start and end <= segment[1]:
        return segment[0], segment[1]
    return start, end
