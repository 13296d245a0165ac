"""Conversion of nodes to rows of a table and back, without loss.

Fields that nodes of one kind have in common (templates, excluded keys) are stored once, as a shape. Texts are
compressed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import xxhash
import zstandard
from llama_index.core.schema import BaseNode, NodeRelationship, TextNode
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc

COLUMNS = ("id", "shape", "text", "metadata", "body")
"""Columns from which a node is restored, in this order."""

_OWN_COLUMNS = ("id_", "text", "metadata")
_PER_NODE = ("relationships", "start_char_idx", "end_char_idx", "embedding", "text_resource", "class_name")
_TEXT_NODE = TextNode.get_type()
_decode = json.JSONDecoder().raw_decode


StoredText = str | bytes
"""A stored text: plain, or compressed if that makes it smaller."""


def row_of(node: BaseNode, pack: Callable[[str], StoredText]) -> tuple[str, dict[str, Any]]:
    """Return the shape of a node, as JSON, and its row, with the text compressed by `pack`."""
    raw = doc_to_json(node)
    data = raw["__data__"]
    own = {key: data[key] for key in _PER_NODE if data.get(key) is not None}
    shared = {key: value for key, value in data.items() if key not in _PER_NODE and key not in _OWN_COLUMNS}
    shape = {"type": raw["__type__"], "has_text": "text" in data, "data": shared}
    source = node.relationships.get(NodeRelationship.SOURCE)
    text, start = data.get("text", ""), data.get("start_char_idx")
    row = {
        "id": node.node_id,
        "doc_id": None if source is None or isinstance(source, list) else source.node_id,
        "start": start,
        # Not the node's own value, which may be wrong in chunks made elsewhere.
        "end": None if start is None else start + len(text),
        "text": pack(text),
        "metadata": _dump(node.metadata),
        "body": _dump(own),
    }
    shared_fields = json.dumps(shape, sort_keys=True)
    return shared_fields, {**row, "checksum": row_checksum(shared_fields, *row.values())}


def row_checksum(shape: str, *values: StoredText | int | None) -> int:
    """Return the xxh3 of a row, by which a repair recognizes that it is sound, as a signed number.

    Args:
        shape: The shape of the node, as JSON.
        *values: The id, the document, both offsets, the text, the metadata and the other fields.
    """
    data = b"\0".join(value if isinstance(value, bytes) else str(value).encode() for value in (shape, *values))
    return xxhash.xxh3_64_intdigest(data) - 2**63


def node_of(shape: Mapping[str, Any], row: Sequence[Any], unpack: Callable[[StoredText], str]) -> BaseNode:
    """Return a node from its shape and its row, which begins with `COLUMNS`."""
    node_id, _, text, metadata, body = row[: len(COLUMNS)]
    data = {**shape["data"], **_load(body), "id_": node_id, "metadata": _load(metadata)}
    if shape["has_text"]:
        data["text"] = unpack(text)
    if shape["type"] == _TEXT_NODE:  # the usual type; json_to_doc takes longer to find it than to create the node
        data.pop("class_name", None)
        return TextNode(**data)
    return json_to_doc({"__type__": shape["type"], "__data__": data})


def packer() -> Callable[[str], StoredText]:
    """Return a function that compresses texts; reuse it, but only in one thread."""
    compress = zstandard.ZstdCompressor(level=1).compress

    def pack(text: str) -> StoredText:
        plain = text.encode()
        packed = compress(plain)
        return packed if len(packed) < len(plain) else text

    return pack


def unpacker() -> Callable[[StoredText], str]:
    """Return a function that decompresses texts; use it only in one thread."""
    decompress = zstandard.ZstdDecompressor().decompress

    def unpack(stored: StoredText) -> str:
        return stored if isinstance(stored, str) else decompress(stored).decode()

    return unpack


def _load(text: str) -> Any:
    """Parse JSON that `_dump` wrote; unlike `json.loads`, do not search for white space around it."""
    return _decode(text)[0]


def _dump(value: Iterable[Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
