"""Nodes in SQLite, fetched with one query per result; filters are evaluated on columns.

The positions of the nodes have the same order as the rows in the FAISS and BM25 indexes. Segments, the parents of
chunks, are not stored: for `AutoMergingRetriever`, they are assembled on demand from their chunks, with links to them.

Fields that nodes of one kind have in common (templates, excluded keys) are stored once, as a shape. Text is compressed.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.kvstore import Access, Database, refuse_write
from llama_index_contextual.index.storable import require_storable

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, TextNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.filters import Column

_INSERT = (
    "INSERT INTO nodes (id, doc_id, start_char, end_char, shape, text, metadata, body, checksum)"
    " SELECT :id, :doc_id, :start, :end, shape, :text, :metadata, :body, :checksum FROM shapes WHERE body = :shape"
    " ON CONFLICT (id) DO UPDATE SET doc_id = excluded.doc_id, start_char = excluded.start_char,"
    " end_char = excluded.end_char, shape = excluded.shape, text = excluded.text, metadata = excluded.metadata,"
    " body = excluded.body, checksum = excluded.checksum"
)
_INSERT_SHAPE = "INSERT OR IGNORE INTO shapes (body) VALUES (?)"
_COPIED = "id, doc_id, start_char, end_char, text, metadata, nodes.body, checksum"
COLUMNS = ("id", "shape", "text", "metadata", "body")
"""Columns from which a node is restored, in this order."""

_COLUMNS = ", ".join(COLUMNS)
_SOURCE, _PARENT = "1", "4"
"""LlamaIndex's relationships of a node to its document and to its parent, in stored form."""

_PARENT_SQL = f"json_extract(body, '$.relationships.\"{_PARENT}\".node_id')"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS shapes (shape INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS nodes (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, doc_id TEXT,"
    " start_char INTEGER, end_char INTEGER, shape INTEGER NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL,"
    " body TEXT NOT NULL, checksum INTEGER)",
    "CREATE INDEX IF NOT EXISTS nodes_of_document ON nodes (doc_id, start_char)",
    f"CREATE INDEX IF NOT EXISTS nodes_of_parent ON nodes ({_PARENT_SQL})",
)
FRAMES = "contextual/documents"
"""Collection for the data of documents that is not in any chunk; see `DocumentFrame`."""
_MAX_VARIABLES = 900
_ALWAYS_INDEXED = 100_000  # total length of the distinct values of a key up to which they are always indexed
_INDEXED_PER_NODE = 32  # the same per node, which is the limit for a large number of nodes
_KEPT_COLUMNS = 8


class Nodes(ABC):
    """Nodes that can be read one by one: those of one file, or those of a version."""

    @abstractmethod
    def existing(self, node_ids: Sequence[str]) -> Iterator[BaseNode]:
        """Yield the nodes among `node_ids` that exist."""

    @abstractmethod
    def iterate(self, *, doc_id: str | None = None, span: tuple[int, int] | None = None) -> Iterator[BaseNode]:
        """Yield nodes sorted by position.

        Args:
            doc_id: Only yield nodes of this document.
            span: Only yield nodes with text between two character offsets, and nodes without offsets.
        """

    @abstractmethod
    def get_extra(self, collection: str, key: str) -> dict[str, Any] | None:
        """Return a JSON object that was stored next to the nodes, or None."""

    @abstractmethod
    def children(self, parent_id: str) -> list[BaseNode]:
        """Return the child nodes of a parent, in text order."""

    def __bool__(self) -> bool:
        return True

    def get_nodes(self, node_ids: Sequence[str], raise_error: bool = True) -> list[BaseNode]:
        """Return nodes in the order of `node_ids`, with one query; parents of stored nodes are assembled from them.

        Raises:
            ValueError: A node does not exist and `raise_error` is True.
        """
        nodes = {node.node_id: node for node in self.existing(node_ids)}
        for node_id in dict.fromkeys(node_ids):
            if node_id in nodes:
                continue
            if (parent := self.assemble(node_id)) is not None:
                nodes[node_id] = parent
            elif raise_error:
                raise ValueError(f"doc_id {node_id} not found.")
        return [nodes[node_id] for node_id in node_ids if node_id in nodes]

    def assemble(self, node_id: str) -> TextNode | None:
        """Return the parent of stored nodes, with their text, or None if no node has this parent."""
        from llama_index_contextual.index.llama_nodes import parent_of

        children = self.children(node_id)
        return parent_of(node_id, children[0].ref_doc_id, children, self.read_span) if children else None

    def read_span(self, doc_id: str | None, start: int, end: int) -> str | None:
        """Return a span of a document's text from its nodes and the text between them; None if there are no offsets."""
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

    Adding nodes takes linear time and one transaction per call. The nodes that are read are equal to those that were
    added.

    Args:
        path: The file; None keeps everything in memory.
        access: How the file is opened. With `read`, every change raises `ReadOnlyVersionError`.
    """

    def __init__(self, path: Path | None = None, *, access: Access = "build") -> None:
        self._kv = Database(path, access=access)
        self._lock = threading.Lock()
        self._size: int | None = None
        self._ids: list[str] | None = None
        self._shapes: dict[int, dict[str, Any]] = {}
        if access != "read":
            for statement in _SCHEMA:
                self._kv.execute(statement)

    @property
    def database(self) -> Database:
        """The database."""
        return self._kv

    @property
    def read_only(self) -> bool:
        """Whether changes raise `ReadOnlyVersionError`."""
        return self._kv.access == "read"

    # ---- writing -------------------------------------------------------------------------------------------------

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Add nodes in one transaction; a node that is replaced keeps its position.

        Raises:
            InputError: A node cannot be stored.
            ReadOnlyVersionError: The file is that of a published version.
        """
        if self.read_only:
            refuse_write()
        require_storable(nodes)
        with self._lock, self._kv.transaction() as connection:
            self._forget()
            pack = packer()
            for shape, row in (row_of(node, pack) for node in nodes):
                connection.execute(_INSERT_SHAPE, (shape,))
                connection.execute(_INSERT, {**row, "shape": shape})

    def _forget(self) -> None:
        """Clear cached data before the nodes are changed."""
        self._size = self._ids = None

    def put_extra(self, collection: str, key: str, value: dict[str, Any]) -> None:
        """Store a JSON object next to the nodes."""
        self._kv.put(key, value, collection)

    def get_extra(self, collection: str, key: str) -> dict[str, Any] | None:
        """Return a JSON object that was stored with `put_extra`, or None."""
        return self._kv.get(key, collection)

    def copy_from(self, source: NodeTable, is_kept: NDArray[np.bool_], doc_ids: set[str]) -> None:
        """Append nodes of another store, and the data of their documents, without parsing them.

        Args:
            source: The other store.
            is_kept: Whether to copy each of its nodes; shape (nodes,).
            doc_ids: Ids of the documents whose data to copy.
        """
        with self._lock, self._kv.transaction() as connection:
            self._forget()
            last = 0
            while rows := source._kv.query(
                f"SELECT {_COPIED}, shapes.body, position FROM nodes JOIN shapes USING (shape)"
                " WHERE position > ? ORDER BY position LIMIT 512",
                (last,),
            ):
                last = rows[-1][-1]
                copied = [row[:-1] for row in rows if is_kept[row[-1] - 1]]
                # Only the shapes of these nodes, because a shape can contain data of its node, such as an image.
                connection.executemany(_INSERT_SHAPE, ((row[-1],) for row in copied))
                connection.executemany(
                    "INSERT INTO nodes (id, doc_id, start_char, end_char, text, metadata, body, checksum, shape)"
                    " SELECT ?, ?, ?, ?, ?, ?, ?, ?, shape FROM shapes WHERE body = ?",
                    copied,
                )
            frames = source._kv.query("SELECT key, value FROM kv WHERE collection = ?", (FRAMES,))
            kept_frames = ((FRAMES, key, value) for key, value in frames if key in doc_ids)
            connection.executemany("INSERT INTO kv VALUES (?, ?, ?)", kept_frames)

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        self._kv.close()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def ids_of_document(self, doc_id: str) -> list[str]:
        """Return the ids of a document's nodes in text order."""
        rows = self._kv.query("SELECT id FROM nodes WHERE doc_id = ? ORDER BY start_char, position", (doc_id,))
        return [row[0] for row in rows]

    def ids_by_document(self) -> dict[str, list[str]]:
        """Return the node ids of every document."""
        ids: dict[str, list[str]] = {}
        for doc_id, node_id in self._kv.query(
            "SELECT doc_id, id FROM nodes WHERE doc_id IS NOT NULL ORDER BY position"
        ):
            ids.setdefault(doc_id, []).append(node_id)
        return ids

    @property
    def ids(self) -> list[str]:
        """Node ids sorted by position; read once."""
        with self._lock:
            if self._ids is None:
                # Sorted here, because to sort them, SQLite would read every node instead of only the index on ids.
                rows = self._kv.query("SELECT position, id FROM nodes")
                self._ids = [node_id for _, node_id in sorted(rows)]
            return self._ids

    def rows(self, node_ids: Sequence[str]) -> list[int]:
        """Return the rows of nodes in the indexes."""
        positions = self.positions(node_ids)
        return [positions[node_id] - 1 for node_id in node_ids]

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Return a mask of the nodes that pass the filters, sorted by position, or None without filters.

        A published store caches the most recently used columns.
        """
        if filters is None:
            return None
        from llama_index_contextual.index.filters import evaluate, valid_filters

        if (valid := valid_filters(filters)) is None:
            return None
        return evaluate(valid, len(self), lambda test: test.mask(self.column(test.key)))

    def column(self, key: str) -> Column:
        """Return the values of a metadata key, from the index of a published store if possible, or from the nodes."""
        if not self._indexed_keys.get(key, bool(self._indexed_keys)):
            return self._scanned_column(key)
        column = self._columns.get(key)
        if column is None:
            column = self._indexed_column(key)
            self._columns.put(key, column)
        return column

    def _scanned_column(self, key: str) -> Column:
        from llama_index_contextual.index.filters import Column

        values, rows = [], []
        for row, block in self._metadata_blocks():
            for at, metadata in enumerate(block, row):
                if key in metadata:
                    values.append(metadata[key])
                    rows.append(at)
        codes = np.full(len(self), len(values))
        codes[rows] = np.arange(len(values))
        return Column(values, codes)

    def _indexed_column(self, key: str) -> Column:
        from llama_index_contextual.index.filters import Column

        is_known = key in self._indexed_keys
        fields = self._kv.query("SELECT value, rows FROM fields WHERE key = ?", (key,)) if is_known else []
        values = [_load(value) for value, _ in fields]
        codes = np.full(len(self), len(values), dtype=np.min_scalar_type(len(values)))
        for code, (_, rows) in enumerate(fields):
            codes[np.frombuffer(rows, dtype=np.int32)] = code
        return Column(values, codes)

    def _metadata_blocks(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield blocks of metadata of nodes sorted by position, each with the row of its first node."""
        row, last = 0, -1
        while nodes := self._kv.query(
            "SELECT metadata, position FROM nodes WHERE position > ? ORDER BY position LIMIT 1024", (last,)
        ):
            yield row, [json.loads(metadata) for metadata, _ in nodes]
            row, last = row + len(nodes), nodes[-1][-1]

    @cached_property
    def _columns(self) -> LRUCache[str, Column]:
        return LRUCache(_KEPT_COLUMNS)

    @cached_property
    def _indexed_keys(self) -> dict[str, bool]:
        """The metadata keys of a published store, and whether their values are indexed; empty without an index."""
        if not self.read_only or not self._kv.query("SELECT 1 FROM sqlite_master WHERE name = 'fields'"):
            return {}
        return dict(self._kv.query("SELECT key, max(value IS NOT NULL) FROM fields GROUP BY key"))

    def __len__(self) -> int:
        if self._size is None:
            ((self._size,),) = self._kv.query("SELECT count(*) FROM nodes")
        return self._size

    def index_metadata(self) -> None:
        """Index the values of the metadata keys, so that filters need not read every node.

        Keys with long values that differ for most nodes are not indexed, because such an index would be as large as the
        nodes.
        """
        room = max(_ALWAYS_INDEXED, len(self) * _INDEXED_PER_NODE)
        left: dict[str, int] = {}
        indexed: dict[str, dict[str, array[int]]] = {}
        for row, block in self._metadata_blocks():
            for at, metadata in enumerate(block, row):
                for key, value in metadata.items():
                    if left.setdefault(key, room) < 0:
                        continue
                    rows, text = indexed.setdefault(key, {}), _dump(value)
                    if text not in rows:
                        rows[text] = array("i")
                        left[key] -= len(text)
                    rows[text].append(at)
                    if left[key] < 0:
                        indexed[key] = {}
        with self._lock, self._kv.transaction() as connection:
            connection.execute("CREATE TABLE fields (key TEXT NOT NULL, value TEXT, rows BLOB)")
            connection.execute("CREATE INDEX fields_of_key ON fields (key)")
            connection.executemany(
                "INSERT INTO fields VALUES (?, ?, ?)",
                ((key, text, rows.tobytes()) for key in indexed for text, rows in indexed[key].items()),
            )
            connection.executemany("INSERT INTO fields (key) VALUES (?)", ((key,) for key in left if left[key] < 0))

    def iterate(self, *, doc_id: str | None = None, span: tuple[int, int] | None = None) -> Iterator[BaseNode]:
        """Yield nodes sorted by position; see `Nodes.iterate`."""
        condition = ""
        parameters: list[str | int] = []
        if doc_id is not None:
            condition, parameters = " AND doc_id = ?", [doc_id]
        if span is not None:
            condition += " AND (start_char IS NULL OR start_char < ? AND (end_char IS NULL OR end_char > ?))"
            parameters += [span[1], span[0]]
        last, unpack = -1, unpacker()
        while rows := self._kv.query(
            f"SELECT {_COLUMNS}, position FROM nodes WHERE position > ?{condition} ORDER BY position LIMIT 512",
            [last, *parameters],
        ):
            yield from (self._node(row, unpack) for row in rows)
            last = rows[-1][-1]

    def positions(self, node_ids: Sequence[str]) -> dict[str, int]:
        """Return the positions of the nodes among `node_ids` that exist."""
        return dict(self._fetch("id, position", node_ids))

    def existing(self, node_ids: Sequence[str]) -> Iterator[BaseNode]:
        """Yield the nodes among `node_ids` that exist."""
        unpack = unpacker()
        for row in self._fetch(_COLUMNS, node_ids):
            yield self._node(row, unpack)

    def at(self, rows: Sequence[int]) -> Iterator[Chunk]:
        """Yield the chunks of some rows, given in ascending order."""
        unpack = unpacker()
        for start in range(0, len(rows), _MAX_VARIABLES):
            part = [row + 1 for row in rows[start : start + _MAX_VARIABLES]]
            marks = ", ".join("?" * len(part))
            for row in self._kv.query(
                f"SELECT {_COLUMNS} FROM nodes WHERE position IN ({marks}) ORDER BY position", part
            ):
                yield self._chunk(row, unpack)

    def distinct_metadata(self) -> list[tuple[str, str | int | float | None]]:
        """Return the distinct pairs of key and value, sorted; values other than strings and numbers are None."""
        return self._kv.query(
            "SELECT DISTINCT field.key, CASE WHEN field.type IN ('text', 'integer', 'real') THEN field.atom END"
            " FROM nodes, json_each(nodes.metadata) AS field ORDER BY 1, 2"
        )

    def children(self, parent_id: str) -> list[BaseNode]:
        """Return the child nodes of a parent, in text order."""
        unpack = unpacker()
        rows = self._kv.query(
            f"SELECT {_COLUMNS} FROM nodes WHERE {_PARENT_SQL} = ? ORDER BY start_char, position", (parent_id,)
        )
        return [self._node(row, unpack) for row in rows]

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of all nodes, sorted; filters can refer to them."""
        rows = self._kv.query("SELECT DISTINCT field.key FROM nodes, json_each(nodes.metadata) AS field ORDER BY 1")
        return [row[0] for row in rows]

    def known(self, node_ids: Sequence[str]) -> list[str]:
        """Return the ids of existing nodes among `node_ids`."""
        return [row[0] for row in self._fetch("id", node_ids)]

    def _fetch(self, columns: str, node_ids: Sequence[str]) -> Iterator[Any]:
        for at in range(0, len(node_ids), _MAX_VARIABLES):
            part = node_ids[at : at + _MAX_VARIABLES]
            yield from self._kv.query(f"SELECT {columns} FROM nodes WHERE id IN ({', '.join('?' * len(part))})", part)

    def _node(self, row: Sequence[Any], unpack: Callable[[StoredText], str]) -> BaseNode:
        return node_of(self._shape(row[1]), row, unpack)

    def _chunk(self, row: Sequence[Any], unpack: Callable[[StoredText], str]) -> Chunk:
        return chunk_of(self._shape(row[1]), row, unpack)

    def _shape(self, number: int) -> dict[str, Any]:
        if number not in self._shapes:
            ((body,),) = self._kv.query("SELECT body FROM shapes WHERE shape = ?", (number,))
            self._shapes[number] = json.loads(body)
        return self._shapes[number]


# ---- chunks as rows --------------------------------------------------------------------------------------------------

_decode = json.JSONDecoder().raw_decode


_OWN_COLUMNS = ("id_", "text", "metadata")
_PER_NODE = ("relationships", "start_char_idx", "end_char_idx", "embedding", "text_resource", "class_name")

StoredText = str | bytes
"""A stored text: plain, or compressed if that makes it smaller."""


def row_of(node: BaseNode, pack: Callable[[str], StoredText]) -> tuple[str, dict[str, Any]]:
    """Return the shape of a node as JSON, and its row with the text compressed by `pack`."""
    from llama_index_contextual.index.llama_nodes import fields_of

    kind, data, doc_id = fields_of(node)
    own = {key: data[key] for key in _PER_NODE if data.get(key) is not None}
    shared = {key: value for key, value in data.items() if key not in _PER_NODE and key not in _OWN_COLUMNS}
    shape = {"type": kind, "has_text": "text" in data, "data": shared}
    text, start = data.get("text", ""), data.get("start_char_idx")
    row = {
        "id": node.node_id,
        "doc_id": doc_id,
        "start": start,
        # Not the node's own value, which may be wrong in chunks created by other programs.
        "end": None if start is None else start + len(text),
        "text": pack(text),
        "metadata": _dump(node.metadata),
        "body": _dump(own),
    }
    shared_fields = json.dumps(shape, sort_keys=True)
    return shared_fields, {**row, "checksum": row_checksum(shared_fields, *row.values())}


def row_checksum(shape: str, *values: StoredText | int | None) -> int:
    """Return the xxh3 of a row as a signed number; a repair uses it to find undamaged rows.

    Args:
        shape: The shape of the node, as JSON.
        *values: The id, the document, both offsets, the text, the metadata and the other fields.
    """
    data = b"\0".join(value if isinstance(value, bytes) else str(value).encode() for value in (shape, *values))
    return xxhash.xxh3_64_intdigest(data) - 2**63


def chunk_of(shape: Mapping[str, Any], row: Sequence[Any], unpack: Callable[[StoredText], str]) -> Chunk:
    """Return a chunk from its shape and its row, which begins with `COLUMNS`."""
    if not shape["has_text"]:  # another LlamaIndex class, which stores its text elsewhere
        return Chunk.of(node_of(shape, row, unpack))
    own, body = _own_fields(shape, row, unpack), _load(row[4])
    source = body.get("relationships", {}).get(_SOURCE)
    return Chunk(
        node_id=own["id_"],
        text=own["text"],
        metadata=own["metadata"],
        doc_id=source["node_id"] if isinstance(source, dict) else None,
        start=body.get("start_char_idx"),
        end=body.get("end_char_idx"),
        # The body is parsed again, because keeping its fields would make the garbage collector run more often.
        make_node=partial(_node, shape, own, row[4]),
    )


def node_of(shape: Mapping[str, Any], row: Sequence[Any], unpack: Callable[[StoredText], str]) -> BaseNode:
    """Return a node from its shape and its row, which begins with `COLUMNS`."""
    return _node(shape, _own_fields(shape, row, unpack), row[4])


def _own_fields(shape: Mapping[str, Any], row: Sequence[Any], unpack: Callable[[StoredText], str]) -> dict[str, Any]:
    node_id, _, text, metadata = row[:4]
    own = {"id_": node_id, "metadata": _load(metadata)}
    return {**own, "text": unpack(text)} if shape["has_text"] else own


def _node(shape: Mapping[str, Any], own: Mapping[str, Any], body: str) -> BaseNode:
    from llama_index_contextual.index import llama_nodes

    return llama_nodes.node_of(shape["type"], {**shape["data"], **_load(body), **own})


def packer() -> Callable[[str], StoredText]:
    """Return a function that compresses text; reuse it, but only in one thread."""
    compress = zstandard.ZstdCompressor(level=1).compress

    def pack(text: str) -> StoredText:
        plain = text.encode()
        packed = compress(plain)
        return packed if len(packed) < len(plain) else text

    return pack


def unpacker() -> Callable[[StoredText], str]:
    """Return a function that decompresses text; use it only in one thread."""
    decompress = zstandard.ZstdDecompressor().decompress

    def unpack(stored: StoredText) -> str:
        return stored if isinstance(stored, str) else decompress(stored).decode()

    return unpack


def _load(text: str) -> Any:
    """Parse JSON that `_dump` wrote; unlike `json.loads`, do not search for white space around it."""
    return _decode(text)[0]


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
