"""Document store in SQLite, which fetches the nodes of a result with one query and evaluates filters in SQL.

The order of the nodes' positions is the order of the rows in the FAISS and BM25 indexes. Segments, the parents of
chunks, are not stored: they are assembled from their chunks on demand, with links to them, for `AutoMergingRetriever`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fsspec import AbstractFileSystem
from llama_index.core.schema import BaseNode, NodeRelationship, ObjectType, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore.keyval_docstore import KVDocumentStore
from llama_index.core.storage.docstore.types import DEFAULT_PERSIST_PATH, RefDocInfo
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.forks import new_lock
from llama_index_contextual.errors import InputError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.filters import to_sql
from llama_index_contextual.storage.kvstore import Access, SQLiteKVStore, refuse_write
from llama_index_contextual.storage.node_rows import COLUMNS, StoredText, node_of, packer, row_of, unpacker
from llama_index_contextual.storage.storable import require_storable

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS shapes (shape INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS nodes (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, doc_id TEXT,"
    " start_char INTEGER, end_char INTEGER, shape INTEGER NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL,"
    " body TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS nodes_of_document ON nodes (doc_id, start_char)",
)
_INSERT = (
    "INSERT INTO nodes (id, doc_id, start_char, end_char, shape, text, metadata, body)"
    " VALUES (:id, :doc_id, :start, :end, :shape, :text, :metadata, :body)"
    " ON CONFLICT (id) DO UPDATE SET doc_id = excluded.doc_id, start_char = excluded.start_char,"
    " end_char = excluded.end_char, shape = excluded.shape, text = excluded.text, metadata = excluded.metadata,"
    " body = excluded.body"
)
_COLUMNS = ", ".join(COLUMNS)
_PARENT = f"json_extract(body, '$.relationships.\"{NodeRelationship.PARENT.value}\".node_id')"
_OF_ONE_CHUNK = frozenset(
    {keys.CONTEXT, keys.CONTEXT_SOURCE, keys.CONTEXT_GIVEN, keys.CONTEXT_WRITTEN_AT, keys.CHUNK_INDEX}
    | {keys.TOKEN_COUNT, keys.TABLE_HEAD, keys.SOURCE_LINE, keys.PAGE_END}
)
FRAMES = "contextual/documents"
"""Collection of the data that no chunk contains; see `DocumentFrame`."""
_MAX_VARIABLES = 900


class SQLiteDocumentStore(KVDocumentStore):
    """LlamaIndex document store in one SQLite file, or in memory.

    Adding takes time linear in the number of nodes, in one transaction per call. Nodes are returned equal to those that
    were added.

    Args:
        path: The file; None keeps everything in memory.
        access: How the file is opened. With `read`, every change raises `ReadOnlyVersionError`.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> store = SQLiteDocumentStore()
        >>> store.add_documents([TextNode(id_="a", text="Revenue grew by 3 %.")])
        >>> store.get_node("a").text
        'Revenue grew by 3 %.'
    """

    def __init__(self, path: Path | None = None, *, access: Access = "build") -> None:
        self._kv = SQLiteKVStore(path, access=access)
        super().__init__(self._kv)
        self._lock = new_lock()
        self._ids: list[str] | None = None
        self._rows: dict[str, int] | None = None
        self._parents: dict[str, str | None] | None = None
        self._shapes: dict[int, dict[str, Any]] = {}
        if access != "read":
            for statement in _SCHEMA:
                self._kv.execute(statement)

    @property
    def read_only(self) -> bool:
        """Whether changes raise `ReadOnlyVersionError`."""
        return self._kv.access == "read"

    @property
    def path(self) -> Path | None:
        """The file; None if the store is in memory."""
        return self._kv.path

    # ---- writing -------------------------------------------------------------------------------------------------

    def add_documents(
        self,
        docs: Sequence[BaseNode],
        allow_update: bool = True,
        batch_size: int | None = None,
        store_text: bool = True,
    ) -> None:
        """Add nodes in one transaction; a node that is replaced keeps its position.

        Args:
            docs: The nodes.
            allow_update: Whether existing nodes may be replaced.
            batch_size: Ignored.
            store_text: If False, nothing is stored.

        Raises:
            InputError: A node exists and `allow_update` is False, or a node cannot be stored.
            ReadOnlyVersionError: The store is a published version.
        """
        if self.read_only:
            refuse_write()
        require_storable(docs)
        if not allow_update and (known := self.known([node.node_id for node in docs])):
            raise InputError(f"Node {known[0]!r} is in the store already: pass allow_update=True to replace it.")
        with self._lock, self._kv.transaction() as connection:
            self._ids = self._rows = self._parents = None
            numbers: dict[str, int] = {}
            pack = packer()
            for shape, row in (row_of(node, pack) for node in docs) if store_text else ():
                if shape not in numbers:
                    numbers[shape] = _shape_number(connection, shape)
                connection.execute(_INSERT, {**row, "shape": numbers[shape]})

    async def async_add_documents(
        self,
        docs: Sequence[BaseNode],
        allow_update: bool = True,
        batch_size: int | None = None,
        store_text: bool = True,
    ) -> None:
        """Add nodes in one transaction."""
        self.add_documents(docs, allow_update, store_text=store_text)

    def delete_document(self, doc_id: str, raise_error: bool = True) -> None:
        """Remove one node."""
        self._delete("id = ?", doc_id, raise_error=raise_error)
        self._kv.delete(doc_id, self._metadata_collection)

    async def adelete_document(self, doc_id: str, raise_error: bool = True) -> None:
        """Remove one node."""
        self.delete_document(doc_id, raise_error)

    def delete_ref_doc(self, ref_doc_id: str, raise_error: bool = True) -> None:
        """Remove all nodes of a document and their metadata."""
        info = self.get_ref_doc_info(ref_doc_id)
        self._delete("doc_id = ?", ref_doc_id, raise_error=raise_error)
        for node_id in [ref_doc_id, *(info.node_ids if info else ())]:
            self._kv.delete(node_id, self._metadata_collection)

    async def adelete_ref_doc(self, ref_doc_id: str, raise_error: bool = True) -> None:
        """Remove all nodes of a document."""
        self.delete_ref_doc(ref_doc_id, raise_error)

    def _delete(self, condition: str, value: str, *, raise_error: bool) -> None:
        with self._lock:
            self._ids = self._rows = self._parents = None
            if not self._kv.execute(f"DELETE FROM nodes WHERE {condition}", (value,)) and raise_error:
                raise ValueError(f"doc_id {value} not found.")

    def persist(self, persist_path: str = DEFAULT_PERSIST_PATH, fs: AbstractFileSystem | None = None) -> None:
        """Write the store to a file and sync it; if it is the store's own file, only sync it."""
        path = Path(persist_path)
        if self._kv.path is not None and self._kv.path.resolve() == path.resolve():
            if not self.read_only:  # a published file is synced already
                files.sync_file(path)
            return
        files.make_directory(path.parent)
        temporary = path.with_name(f"{path.name}.new")
        files.remove(temporary)
        files.let_write(temporary, lambda: self._kv.save_to(temporary))
        files.sync_file(temporary)
        files.rename(temporary, path)

    @classmethod
    def from_persist_path(cls, persist_path: str) -> SQLiteDocumentStore:
        """Load a store from a file into memory; changes do not affect the file.

        Raises:
            InputError: The file does not exist.
        """
        path = Path(persist_path)
        if not path.is_file():
            raise InputError(f"{path} does not exist: name a file that `persist` wrote.", value=persist_path)
        store = cls()
        store._kv.load_from(path)
        return store

    def put_extra(self, collection: str, key: str, value: dict[str, Any]) -> None:
        """Store a JSON object next to the nodes."""
        self._kv.put(key, value, collection)

    def get_extra(self, collection: str, key: str) -> dict[str, Any] | None:
        """Return a JSON object that was stored with `put_extra`, or None."""
        return self._kv.get(key, collection)

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        self._kv.close()

    # ---- reading: LlamaIndex's interface ---------------------------------------------------------------------------

    @property
    def docs(self) -> dict[str, BaseNode]:
        """All nodes by id, sorted by position."""
        return {node.node_id: node for node in self.iterate()}

    def get_document(self, doc_id: str, raise_error: bool = True) -> BaseNode | None:
        """Return one node.

        Raises:
            ValueError: The node does not exist and `raise_error` is True.
        """
        nodes = self.get_nodes([doc_id], raise_error=raise_error)
        return nodes[0] if nodes else None

    async def aget_document(self, doc_id: str, raise_error: bool = True) -> BaseNode | None:
        """Return one node."""
        return self.get_document(doc_id, raise_error)

    def get_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
        """Return nodes in the order of `node_ids`, with one query; a parent of stored nodes is assembled from them."""
        unpack = unpacker()
        nodes = {row[0]: self._node(row, unpack) for row in self._fetch(_COLUMNS, node_ids)}
        for node_id in dict.fromkeys(node_ids):
            if node_id in nodes:
                continue
            if (parent := self._assemble(node_id)) is not None:
                nodes[node_id] = parent
            elif raise_error:
                raise ValueError(f"doc_id {node_id} not found.")
        return [nodes[node_id] for node_id in node_ids if node_id in nodes]

    async def aget_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
        """Return nodes in the order of `node_ids`."""
        return self.get_nodes(node_ids, raise_error)

    def document_exists(self, doc_id: str) -> bool:
        """Return whether `get_document` returns a node for this id."""
        return bool(self.known([doc_id])) or doc_id in self._documents_of_parents()

    async def adocument_exists(self, doc_id: str) -> bool:
        """Return whether `get_document` returns a node for this id."""
        return self.document_exists(doc_id)

    def get_ref_doc_info(self, ref_doc_id: str) -> RefDocInfo | None:
        """Return the ids of a document's nodes in the order of the text, or None if it has none."""
        rows = self._kv.query("SELECT id FROM nodes WHERE doc_id = ? ORDER BY start_char, position", (ref_doc_id,))
        return RefDocInfo(node_ids=[row[0] for row in rows]) if rows else None

    async def aget_ref_doc_info(self, ref_doc_id: str) -> RefDocInfo | None:
        """Return the ids of a document's nodes."""
        return self.get_ref_doc_info(ref_doc_id)

    def get_all_ref_doc_info(self) -> dict[str, RefDocInfo]:
        """Return the node ids of every document."""
        infos: dict[str, RefDocInfo] = {}
        rows = self._kv.query("SELECT doc_id, id FROM nodes WHERE doc_id IS NOT NULL ORDER BY position")
        for doc_id, node_id in rows:
            infos.setdefault(doc_id, RefDocInfo()).node_ids.append(node_id)
        return infos

    async def aget_all_ref_doc_info(self) -> dict[str, RefDocInfo]:
        """Return the node ids of every document."""
        return self.get_all_ref_doc_info()

    # ---- reading: for the retrievers -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.ids)

    def __bool__(self) -> bool:
        # LlamaIndex uses `docstore or SimpleDocumentStore()`, which must not replace an empty store.
        return True

    @property
    def ids(self) -> list[str]:
        """Node ids sorted by position; read once."""
        with self._lock:
            if self._ids is None:
                # Sorted here, because SQLite would read every node to sort them, instead of the index on ids alone.
                rows = self._kv.query("SELECT position, id FROM nodes")
                self._ids = [node_id for _, node_id in sorted(rows)]
            return self._ids

    def rows(self, node_ids: Sequence[str]) -> list[int]:
        """Return the rows of nodes in the indexes."""
        ids = self.ids
        if self._rows is None or len(self._rows) != len(ids):
            self._rows = {node_id: row for row, node_id in enumerate(ids)}
        return [self._rows[node_id] for node_id in node_ids]

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Return a mask of the nodes that pass the filters, sorted by position, or None without filters."""
        condition = to_sql(filters)
        if condition is None:
            return None
        sql, parameters = condition
        rows = self._kv.query(f"SELECT {sql} FROM nodes ORDER BY position", parameters)
        return np.fromiter((row[0] for row in rows), dtype=np.bool_, count=len(rows))

    def iterate(
        self, *, doc_id: str | None = None, span: tuple[int, int] | None = None, batch: int = 512
    ) -> Iterator[BaseNode]:
        """Yield nodes sorted by position.

        Args:
            doc_id: Only yield nodes of this document.
            span: Only yield nodes with text between two character offsets, and nodes without offsets.
            batch: Number of nodes to fetch at once.
        """
        condition = ""
        parameters: list[str | int] = []
        if doc_id is not None:
            condition, parameters = " AND doc_id = ?", [doc_id]
        if span is not None:
            condition += " AND (start_char IS NULL OR start_char < ? AND (end_char IS NULL OR end_char > ?))"
            parameters += [span[1], span[0]]
        last, unpack = -1, unpacker()
        while rows := self._kv.query(
            f"SELECT {_COLUMNS}, position FROM nodes WHERE position > ?{condition} ORDER BY position LIMIT {batch}",
            [last, *parameters],
        ):
            yield from (self._node(row, unpack) for row in rows)
            last = rows[-1][-1]

    def document_ids(self, filters: MetadataFilters | None) -> set[str]:
        """Return the ids of the documents of which at least one node passes the filters."""
        sql, parameters = to_sql(filters) or ("1", [])
        rows = self._kv.query(f"SELECT DISTINCT doc_id FROM nodes WHERE doc_id IS NOT NULL AND ({sql})", parameters)
        return {row[0] for row in rows}

    def metadata_values(self, *, skip: Sequence[str]) -> dict[str, list[str | int | float]]:
        """Return the distinct texts and numbers of each metadata key, sorted, except the keys in `skip`."""
        rows = self._kv.query(
            "SELECT DISTINCT field.key, field.atom FROM nodes, json_each(nodes.metadata) AS field"
            f" WHERE field.type IN ('text', 'integer', 'real') AND field.key NOT IN ({', '.join('?' * len(skip))})"
            " ORDER BY 1, 2",
            list(skip),
        )
        values: dict[str, list[str | int | float]] = {}
        for key, value in rows:
            values.setdefault(key, []).append(value)
        return values

    def read_span(self, doc_id: str | None, start: int, end: int) -> str | None:
        """Return a span of a document's text, from its nodes and the text between them; None without offsets."""
        text = [" "] * max(0, end - start)
        frame = None if doc_id is None else self.get_extra(FRAMES, doc_id)
        pieces: list[tuple[int, str]] = []
        for node in self.iterate(doc_id=doc_id, span=(start, end)):
            at = node.start_char_idx if isinstance(node, TextNode) else None
            if at is None:
                return None
            pieces.append((at, node.get_content()))
        for at, piece in (*pieces, *(frame["gaps"] if frame else ())):
            first, last = max(at, start), min(at + len(piece), end)
            if first < last:
                text[first - start : last - start] = piece[first - at : last - at]
        return "".join(text)

    def _documents_of_parents(self) -> dict[str, str | None]:
        """Return the document of every parent of a node; read once, as it takes a scan of all nodes."""
        with self._lock:
            if self._parents is None:
                self._parents = dict(
                    self._kv.query(f"SELECT DISTINCT {_PARENT}, doc_id FROM nodes WHERE {_PARENT} > ''")
                )
            return self._parents

    def _assemble(self, node_id: str) -> TextNode | None:
        """Return the parent of stored nodes with their text, or None if no node has this parent."""
        parents = self._documents_of_parents()
        if node_id not in parents:
            return None
        unpack, doc_id = unpacker(), parents[node_id]
        rows = self._kv.query(
            f"SELECT {_COLUMNS} FROM nodes WHERE doc_id IS ? AND {_PARENT} = ? ORDER BY start_char, position",
            (doc_id, node_id),
        )
        children = [node for row in rows if isinstance(node := self._node(row, unpack), TextNode)]
        if not children:
            return None
        first, last, span = children[0], children[-1], _span_of_all(children)
        text = None if span is None or doc_id is None else self.read_span(doc_id, *span)
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
        shape = row[1]
        if shape not in self._shapes:
            ((body,),) = self._kv.query("SELECT body FROM shapes WHERE shape = ?", (shape,))
            self._shapes[shape] = json.loads(body)
        return node_of(self._shapes[shape], row, unpack)


def _span_of_all(children: Sequence[TextNode]) -> tuple[int, int] | None:
    """Return the span of the segment that nodes were cut from, or else from the first to the last of them."""
    starts = [child.start_char_idx for child in children if child.start_char_idx is not None]
    if len(starts) < len(children):
        return None
    start, end = min(starts), max(at + len(child.text) for at, child in zip(starts, children, strict=True))
    segment = (children[0].metadata.get(keys.SEGMENT_START), children[0].metadata.get(keys.SEGMENT_END))
    if isinstance(segment[0], int) and isinstance(segment[1], int) and segment[0] <= start and end <= segment[1]:
        return segment[0], segment[1]
    return start, end


def _shape_number(connection: sqlite3.Connection, shape: str) -> int:
    connection.execute("INSERT OR IGNORE INTO shapes (body) VALUES (?)", (shape,))
    (number,) = connection.execute("SELECT shape FROM shapes WHERE body = ?", (shape,)).fetchone()
    return int(number)
