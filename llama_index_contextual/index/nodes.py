"""Store nodes in SQLite and apply metadata filters to them.

The nodes are in the same order as the rows of the FAISS and BM25 indexes. Segments, the parents of chunks, are not
stored. If `AutoMergingRetriever` requests a segment, the segment is assembled from its chunks, with links to them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard
from numpy.typing import NDArray
from pydantic_core import from_json

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.kvstore import Access, Database, refuse_write
from llama_index_contextual.metadata import has_surrogate, require_storable

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, TextNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.filters import Column

_COPIED = "id, doc_id, start_char, end_char, parent, metadata, body"
_INSERT = f"INSERT INTO nodes ({_COPIED}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = "id, metadata, body"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS nodes (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, doc_id TEXT,"
    " start_char INTEGER, end_char INTEGER, parent TEXT, metadata TEXT NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS nodes_of_document ON nodes (doc_id, start_char)",
    "CREATE INDEX IF NOT EXISTS nodes_of_parent ON nodes (parent)",
)
FRAMES = "contextual/documents"
"""Name of the collection for document data that is not in any chunk; see `DocumentFrame`."""
_MAX_VARIABLES = 900
_KEPT_COLUMNS = 8


class Nodes(ABC):
    """Base class for reading the nodes of one file or of a whole version."""

    @abstractmethod
    def find_nodes(self, node_ids: Sequence[str]) -> Iterator[BaseNode]:
        """Yield the nodes with the given ids, skipping ids that do not exist."""

    @abstractmethod
    def iterate(self, *, doc_id: str | None = None, span: tuple[int, int] | None = None) -> Iterator[BaseNode]:
        """Yield nodes sorted by position.

        Args:
            doc_id: Only yield nodes of this document.
            span: Only yield nodes whose text overlaps this span of character offsets, and nodes without offsets.
        """

    @abstractmethod
    def get_extra(self, collection: str, key: str) -> dict[str, Any] | None:
        """Return the JSON object stored under a key of a collection, or None if there is none."""

    @abstractmethod
    def children(self, parent_id: str) -> list[BaseNode]:
        """Return the child nodes of a parent, in text order."""

    def __bool__(self) -> bool:
        return True

    def get_nodes(self, node_ids: Sequence[str], raise_error: bool = True) -> list[BaseNode]:
        """Return nodes in the order of `node_ids`.

        Parent nodes, which are not stored, are assembled from their children.

        Raises:
            ValueError: A node does not exist and `raise_error` is True.
        """
        nodes = {node.node_id: node for node in self.find_nodes(node_ids)}
        for node_id in dict.fromkeys(node_ids):
            if node_id in nodes:
                continue
            if (parent := self.assemble(node_id)) is not None:
                nodes[node_id] = parent
            elif raise_error:
                raise ValueError(f"doc_id {node_id} not found.")
        return [nodes[node_id] for node_id in node_ids if node_id in nodes]

    def assemble(self, node_id: str) -> TextNode | None:
        """Assemble a parent node from its stored children; return None if no stored node has this parent."""
        from llama_index.core.schema import NodeRelationship, ObjectType, RelatedNodeInfo, TextNode

        children = [node for node in self.children(node_id) if isinstance(node, TextNode)]
        if not children:
            return None
        first, last, span = children[0], children[-1], _span_of_all(children)
        text = None if span is None else self.read_span(first.ref_doc_id, *span)
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
        return first.model_copy(
            update={
                "id_": node_id,
                "text": text,
                "start_char_idx": None if span is None else span[0],
                "end_char_idx": None if span is None else span[1],
                "metadata": {keys.SOURCE_LINE: line, **metadata} if line else metadata,
                "relationships": {
                    NodeRelationship.CHILD: links,
                    **({} if source is None else {NodeRelationship.SOURCE: source}),
                },
            }
        )

    def read_span(self, doc_id: str | None, start: int, end: int) -> str | None:
        """Return a span of a document's text, assembled from its nodes and gaps, or None if a node has no offset."""
        text = [" "] * max(0, end - start)
        frame = None if doc_id is None else self.get_extra(FRAMES, doc_id)
        pieces: list[tuple[int, str]] = []
        for node in self.iterate(doc_id=doc_id, span=(start, end)):
            at = getattr(node, "start_char_idx", None)
            if at is None:
                return None
            pieces.append((at, node.get_content()))
        for at, piece in (*pieces, *(frame["gaps"] if frame else ())):
            first, last = max(at, start), min(at + len(piece), end)
            if first < last:
                text[first - start : last - start] = piece[first - at : last - at]
        return "".join(text)


class NodeTable(Nodes):
    """Nodes in one SQLite file, or in memory.

    Adding nodes takes linear time and one transaction per call. A node read from the table equals the node that was
    added.

    Args:
        path: The file; None keeps everything in memory.
        access: Mode in which the file is opened. In `read` mode, every change raises `ReadOnlyVersionError`.
    """

    def __init__(self, path: Path | None = None, *, access: Access = "build") -> None:
        self._kv = Database(path, access=access)
        self._lock = Lock()
        self._ids: list[str] | None = None
        self._columns: LRUCache[str, Column] = LRUCache(_KEPT_COLUMNS)
        if access != "read":
            for statement in _SCHEMA:
                self._kv.execute(statement)

    # ---- writing -------------------------------------------------------------------------------------------------

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Add nodes in one transaction.

        Raises:
            InputError: A node cannot be stored.
            ReadOnlyVersionError: The file belongs to a published version.
        """
        if self._kv.access == "read":
            refuse_write()
        require_storable(nodes)
        with self._lock, self._kv.transaction() as connection:
            self._forget()
            connection.executemany(_INSERT, map(_row_of, nodes))

    def _forget(self) -> None:
        """Clear cached data before the nodes are changed."""
        self._ids = None
        self._columns.clear()

    def put_extra(self, collection: str, key: str, value: dict[str, Any]) -> None:
        """Store a JSON object under a key of a collection."""
        self._kv.put(key, value, collection)

    def get_extra(self, collection: str, key: str) -> dict[str, Any] | None:
        """Return the JSON object stored with `put_extra`, or None if there is none."""
        return self._kv.get(key, collection)

    def copy_from(self, source: NodeTable, is_kept: NDArray[np.bool_], doc_ids: set[str]) -> None:
        """Append nodes and document data from another table without parsing them.

        Args:
            source: The other table.
            is_kept: For each node of `source`, whether it is copied; shape (nodes,).
            doc_ids: Ids of the documents whose data is copied.
        """
        with self._lock, self._kv.transaction() as connection:
            self._forget()
            for block in source._blocks(_COPIED):
                connection.executemany(_INSERT, (row[:-1] for row in block if is_kept[row[-1] - 1]))
            frames = source._kv.query("SELECT key, value FROM kv WHERE collection = ?", (FRAMES,))
            kept_frames = ((FRAMES, key, value) for key, value in frames if key in doc_ids)
            connection.executemany("INSERT INTO kv VALUES (?, ?, ?)", kept_frames)

    def copy(self, is_kept: NDArray[np.bool_], doc_ids: set[str]) -> NodeTable:
        """Return a read-only copy of some nodes and document data in memory; see `copy_from`."""
        table = NodeTable()
        table.copy_from(self, is_kept, doc_ids)
        table.index_metadata()
        table._kv.access = "read"
        return table

    def index_metadata(self) -> None:
        """Build an index of the metadata values, so that filters need not read every node."""
        with self._lock, self._kv.transaction() as connection:
            connection.execute("CREATE TABLE fields (key TEXT NOT NULL, value TEXT NOT NULL, rows BLOB NOT NULL)")
            connection.execute("CREATE INDEX fields_of_key ON fields (key)")
            values = ((key, value, rows.tobytes()) for key, value, rows in self._scanned_fields())
            connection.executemany("INSERT INTO fields VALUES (?, ?, ?)", values)

    def close(self) -> None:
        """Close the file. The table cannot be used afterwards."""
        self._kv.close()

    # ---- rows --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def ids(self) -> list[str]:
        """Node ids, sorted by position and cached on first use."""
        with self._lock:
            if self._ids is None:
                # Sorted here, because to sort the ids, SQLite would read every node instead of only the id index.
                rows = self._kv.query("SELECT position, id FROM nodes")
                self._ids = [node_id for _, node_id in sorted(rows)]
            return self._ids

    def positions(self, node_ids: Sequence[str]) -> dict[str, int]:
        """Return the positions of the nodes with the given ids, omitting ids that do not exist."""
        return dict(self._fetch("id, position", node_ids))

    def existing_ids(self, node_ids: Sequence[str]) -> list[str]:
        """Return the subset of the given node ids that the table contains."""
        return list(self.positions(node_ids))

    def ids_of_document(self, doc_id: str) -> list[str]:
        """Return the ids of a document's nodes in text order."""
        rows = self._kv.query("SELECT id FROM nodes WHERE doc_id = ? ORDER BY start_char, position", (doc_id,))
        return [row[0] for row in rows]

    def ids_by_document(self) -> dict[str, list[str]]:
        """Return a mapping of document ids to the ids of their nodes."""
        ids: dict[str, list[str]] = {}
        for doc_id, node_id in self._kv.query(
            "SELECT doc_id, id FROM nodes WHERE doc_id IS NOT NULL ORDER BY position"
        ):
            ids.setdefault(doc_id, []).append(node_id)
        return ids

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Return a mask that selects the nodes that pass the filters, or None if there are no filters.

        The mask has one value per node, in order of position.
        """
        if filters is None:
            return None
        from llama_index_contextual.index.filters import row_mask, valid_filters

        if (valid := valid_filters(filters)) is None:
            return None
        return row_mask(valid, len(self), lambda test: test.mask(self.column(test.key)))

    def column(self, key: str) -> Column:
        """Return the column with the values of a metadata key; the most recently used columns are cached."""
        from llama_index_contextual.index.filters import Column

        column = self._columns.get(key)
        if column is None:
            fields = [(value, rows) for name, value, rows in self._fields(key) if name == key]
            codes = np.full(len(self), len(fields), dtype=np.min_scalar_type(len(fields)))
            for code, (_, rows) in enumerate(fields):
                codes[np.frombuffer(rows, dtype=np.int32)] = code
            column = Column([json.loads(value) for value, _ in fields], codes)
            self._columns.put(key, column)
        return column

    def distinct_metadata(self) -> list[tuple[str, str | int | float | None]]:
        """Return the distinct pairs of a metadata key and a value.

        A value that is neither a string nor a number is returned as None.
        """
        pairs = ((key, json.loads(value)) for key, value, _ in self._fields())
        return [
            (key, value if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None)
            for key, value in pairs
        ]

    def metadata_keys(self) -> list[str]:
        """Return the sorted metadata keys of all nodes, for use in filters."""
        return sorted({key for key, _, _ in self._fields()})

    def _fields(self, key: str | None = None) -> Sequence[tuple[str, str, Any]]:
        """Return the distinct pairs of a metadata key and a JSON value, each with the rows that contain the pair.

        In a published version, the pairs are read from an index; otherwise, all nodes are read.
        """
        if self._kv.access != "read":
            return self._scanned_fields()
        if key is None:
            return self._kv.query("SELECT key, value, rows FROM fields")
        if has_surrogate(key):  # SQLite cannot bind surrogates
            return []
        return self._kv.query("SELECT key, value, rows FROM fields WHERE key = ?", (key,))

    def _scanned_fields(self) -> list[tuple[str, str, array[int]]]:
        fields: dict[tuple[str, str], array[int]] = {}
        for block in self._blocks("metadata"):
            for metadata, position in block:
                for key, value in json.loads(metadata).items():
                    fields.setdefault((key, _dump(value)), array("i")).append(position - 1)
        return [(key, value, rows) for (key, value), rows in fields.items()]

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def iterate(self, *, doc_id: str | None = None, span: tuple[int, int] | None = None) -> Iterator[BaseNode]:
        """Yield nodes sorted by position; see `Nodes.iterate`."""
        condition = ""
        parameters: list[str | int] = []
        if doc_id is not None:
            condition, parameters = " AND doc_id = ?", [doc_id]
        if span is not None:
            condition += " AND (start_char IS NULL OR start_char < ? AND (end_char IS NULL OR end_char > ?))"
            parameters += [span[1], span[0]]
        for block in self._blocks(_COLUMNS, condition, parameters):
            yield from starmap(_node_of, _parsed(block))

    def _blocks(self, columns: str, condition: str = "", parameters: Sequence[Any] = ()) -> Iterator[list[Any]]:
        """Yield the rows of the table in blocks, sorted by position.

        Each row contains the given columns, followed by the position.
        """
        last = -1
        while rows := self._kv.query(
            f"SELECT {columns}, position FROM nodes WHERE position > ?{condition} ORDER BY position LIMIT 512",
            [last, *parameters],
        ):
            yield rows
            last = rows[-1][-1]

    def find_nodes(self, node_ids: Sequence[str]) -> Iterator[BaseNode]:
        """Yield the nodes with the given ids, skipping ids that do not exist."""
        return starmap(_node_of, _parsed(self._fetch(_COLUMNS, node_ids)))

    def at(self, rows: Sequence[int]) -> Iterator[Chunk]:
        """Yield the chunks of the given rows, which must be in ascending order."""
        for start in range(0, len(rows), _MAX_VARIABLES):
            positions = [row + 1 for row in rows[start : start + _MAX_VARIABLES]]
            marks = ", ".join("?" * len(positions))
            sql = f"SELECT {_COLUMNS} FROM nodes WHERE position IN ({marks}) ORDER BY position"
            yield from starmap(_chunk_of, _parsed(self._kv.query(sql, positions)))

    def children(self, parent_id: str) -> list[BaseNode]:
        """Return the child nodes of a parent, in text order."""
        sql = f"SELECT {_COLUMNS} FROM nodes WHERE parent = ? ORDER BY start_char, position"
        return list(starmap(_node_of, _parsed(self._kv.query(sql, (parent_id,)))))

    def _fetch(self, columns: str, node_ids: Sequence[str]) -> Iterator[Any]:
        for at in range(0, len(node_ids), _MAX_VARIABLES):
            part = node_ids[at : at + _MAX_VARIABLES]
            yield from self._kv.query(f"SELECT {columns} FROM nodes WHERE id IN ({', '.join('?' * len(part))})", part)


# ---- nodes as rows ---------------------------------------------------------------------------------------------------

_OF_ONE_CHUNK = frozenset(
    {keys.CONTEXT, keys.CONTEXT_SOURCE, keys.CONTEXT_GIVEN, keys.CONTEXT_WRITTEN_AT, keys.CHUNK_INDEX}
    | {keys.TOKEN_COUNT, keys.TABLE_HEAD, keys.SOURCE_LINE, keys.PAGE_END}
)
_SOURCE, _PARENT = "1", "4"
"""Keys under which LlamaIndex stores the relationships of a node to its document and to its parent."""
_TEXT_NODE = "1"


def _row_of(node: BaseNode) -> tuple[Any, ...]:
    """Return the table row for a node. All fields except the id and the metadata are compressed together."""
    from llama_index.core.storage.docstore.utils import doc_to_json

    raw = doc_to_json(node)
    data = {key: value for key, value in raw["__data__"].items() if key not in ("id_", "metadata")}
    start = data.get("start_char_idx")
    # The node's own end offset is ignored, because it may be wrong in chunks created by other programs.
    end = None if start is None else start + len(data.get("text", ""))
    body = zstandard.compress(_dump([raw["__type__"], data]).encode(), 1)
    return node.node_id, _related(data, _SOURCE), start, end, _related(data, _PARENT), _dump(node.metadata), body


def _related(data: dict[str, Any], relationship: str) -> str | None:
    related = data.get("relationships", {}).get(relationship)
    return related["node_id"] if isinstance(related, dict) else None


def _parsed(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:
    """Yield the id, the metadata, the type and the other fields of the node in each row of the table.

    The rows begin with `_COLUMNS`.
    """
    decompress = zstandard.ZstdDecompressor().decompress  # creating the object takes longer than using it
    for node_id, metadata, body, *_ in rows:
        kind, data = from_json(decompress(body))  # faster than `json.loads`
        yield node_id, json.loads(metadata), kind, data


def _chunk_of(node_id: str, metadata: dict[str, Any], kind: str, data: dict[str, Any]) -> Chunk:
    if "text" not in data:  # another LlamaIndex class, which stores its text elsewhere
        return Chunk.from_node(_node_of(node_id, metadata, kind, data))
    return Chunk(
        node_id=node_id,
        text=data["text"],
        metadata=metadata,
        doc_id=_related(data, _SOURCE),
        start=data.get("start_char_idx"),
        end=data.get("end_char_idx"),
        make_node=partial(_node_of, node_id, metadata, kind, data),
    )


def _node_of(node_id: str, metadata: dict[str, Any], kind: str, data: dict[str, Any]) -> BaseNode:
    from llama_index.core.schema import TextNode
    from llama_index.core.storage.docstore.utils import json_to_doc

    data = {**data, "id_": node_id, "metadata": metadata}
    if kind == _TEXT_NODE:  # the usual type; json_to_doc takes longer to look up the class than to create the node
        data.pop("class_name", None)
        return TextNode(**data)
    return json_to_doc({"__type__": kind, "__data__": data})


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _span_of_all(children: Sequence[TextNode]) -> tuple[int, int] | None:
    """Return the span of the segment that contains the child nodes or, if it is unknown, the span that they cover.

    The result is None if any of the nodes has no offset.
    """
    starts = [child.start_char_idx for child in children if child.start_char_idx is not None]
    if len(starts) < len(children):
        return None
    start, end = min(starts), max(at + len(child.text) for at, child in zip(starts, children, strict=True))
    segment = (children[0].metadata.get(keys.SEGMENT_START), children[0].metadata.get(keys.SEGMENT_END))
    if isinstance(segment[0], int) and isinstance(segment[1], int) and segment[0] <= start and end <= segment[1]:
        return segment[0], segment[1]
    return start, end
