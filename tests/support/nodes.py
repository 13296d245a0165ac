"""Nodes for tests."""

from __future__ import annotations

from typing import Any

from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.metadata import context_parts


def chunk(node_id: str, text: str = "", *, doc_id: str | None = None, **fields: Any) -> TextNode:
    """Return a node, of a document if one is named."""
    relationships = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)} if doc_id else {}
    return TextNode(id_=node_id, text=text or f"Text of {node_id}.", relationships=relationships, **fields)


def written(node: BaseNode) -> str:
    """Return the part of a node's context that an LLM or a person wrote."""
    return context_parts(node.metadata)[1]
