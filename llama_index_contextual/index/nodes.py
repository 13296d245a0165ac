"""Store nodes in SQLite and apply metadata filters to them.

The nodes are in the same order as the rows of the FAISS and BM25 indexes. Segments, the parents of chunks, are not
stored. If `AutoMergingRetriever` requests a segment, the segment is assembled from its chunks, with links to them.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray
from pydantic_core import from_json

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.kvstore import Access, Database, refuse_write
from llama_index_contextual.index.manifest import FIGURES_DIRECTORY
from llama_index_contextual.metadata import has_surrogate, require_storable

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, TextNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.filters import Column

_COPIED = "id, doc_id, start_char, end_char, parent, metadata, body"
_INSERT = f"INSERT INTO nodes ({_COPIED}, form) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_FORM = "INSERT OR IGNORE INTO forms VALUES (?, ?)"
_COLUMNS = "id, metadata, body"
_NO_FORM = 0  # the form of nodes of an earlier release, whose bodies contain all fields and the text
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS nodes (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, doc_id TEXT,"
    " start_char INTEGER, end_char INTEGER, parent TEXT, metadata TEXT NOT NULL, body BLOB NOT NULL,"
    " form INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS forms (id INTEGER PRIMARY KEY, fields TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS nodes_of_document ON nodes (doc_id, start_char)",
    "CREATE INDEX IF NOT EXISTS nodes_of_parent ON nodes (parent)",
)
FRAMES = "contextual/documents"
"""Name of the collection for document data that is not in any chunk; see `DocumentFrame`."""
_MAX_VARIABLES = 900
_KEPT_COLUMNS = 8
_KEPT_FORMS = 1_000
_CACHED_CHARACTERS = 4_000_000  # maximum number of characters in the cached nodes of a file


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
        places = {
            keys.PAGE_START: first.metadata.get(keys.PAGE_START),
            keys.PAGE_END: last.metadata.get(keys.PAGE_END),
            keys.PLACES: keys.joint_places((child.start_char_idx, child.metadata) for child in children),
        }
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

    Attributes:
        document_column: Function that returns the column of a field of the documents; see `index/fields.py`. None if
            the documents are unknown.
        figures_folder: Folder with the pictures of the figures, or None if they are unknown.
    """

    def __init__(self, path: Path | None = None, *, access: Access = "build") -> None:
        self._kv = Database(path, access=access)
        self.figures_folder = None if path is None else str(path.parent / FIGURES_DIRECTORY)
        self._lock = Lock()
        self._ids: list[str] | None = None
        self._columns: LRUCache[str, Column] = LRUCache(_KEPT_COLUMNS)
        self._stored_rows: LRUCache[int, _StoredNode] = LRUCache(_CACHED_CHARACTERS, _characters_of)
        self._forms: LRUCache[int, dict[str, Any]] = LRUCache(_KEPT_FORMS)
        self.document_column: Callable[[str], Column] | None = None
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
            for node in nodes:
                form, row = _row_of(node)
                connection.execute(_INSERT_FORM, form)
                connection.execute(_INSERT, row)

    def _forget(self) -> None:
        """Clear cached data before the nodes are changed."""
        self._ids = None
        self._columns.clear()
        self._stored_rows.clear()

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
            forms = dict(source._kv.query("SELECT id, fields FROM forms")) if source._has_forms else {_NO_FORM: "{}"}
            for block in source._blocks(source._with_form(_COPIED)):
                rows = [row[:-1] for row in block if is_kept[row[-1] - 1]]
                connection.executemany(_INSERT_FORM, ((form, forms[form]) for form in {row[-1] for row in rows}))
                connection.executemany(_INSERT, rows)
            frames = source._kv.query("SELECT key, value FROM kv WHERE collection = ?", (FRAMES,))
            kept_frames = ((FRAMES, key, value) for key, value in frames if key in doc_ids)
            connection.executemany("INSERT INTO kv VALUES (?, ?, ?)", kept_frames)

    def copy(self, is_kept: NDArray[np.bool_], doc_ids: set[str]) -> NodeTable:
        """Return a read-only copy of some nodes and document data in memory; see `copy_from`."""
        table = NodeTable()
        table.figures_folder = self.figures_folder
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
        from llama_index_contextual.index.fields import COLUMNS
        from llama_index_contextual.index.filters import Column

        column = self._columns.get(key)
        if column is None and key in COLUMNS and self.document_column is not None:
            column = self.document_column(key)
            self._columns.put(key, column)
        if column is None:
            fields = [(value, rows) for name, value, rows in self._fields(key) if name == key]
            codes = np.full(len(self), len(fields), dtype=np.min_scalar_type(len(fields)))
            for code, (_, rows) in enumerate(fields):
                codes[np.frombuffer(rows, dtype=np.int32)] = code
            column = Column([json.loads(value) for value, _ in fields], codes)
            self._columns.put(key, column)
        return column

    def distinct_metadata(self) -> list[tuple[str, str | int | float | None]]:
        """Return the distinct pairs of a metadata key and a value; each item of a list is a value.

        A value that is neither a string nor a number is returned as None.
        """
        pairs = ((key, json.loads(value)) for key, value, _ in self._fields())
        return [
            (key, item if isinstance(item, (str, int, float)) and not isinstance(item, bool) else None)
            for key, value in pairs
            for item in (value if isinstance(value, list) and value else [value])
        ]

    def values(self, key: str) -> list[Any]:
        """Return the distinct values of a metadata key."""
        return list(self.column(key).values)

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
        for block in self._blocks(self._with_form(_COLUMNS), condition, parameters):
            yield from map(_node_of, self._stored(block))

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
        return map(_node_of, self._stored(self._fetch(self._with_form(_COLUMNS), node_ids)))

    def at(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks of the given rows, in the same order; the most recently used ones are cached."""
        stored = self._stored_rows.get_all(rows)
        missing = [row for row, node in zip(rows, stored, strict=True) if node is None]
        if missing:
            new = dict(self._read(sorted(set(missing))))
            stored = [new[row] if node is None else node for row, node in zip(rows, stored, strict=True)]
        return [_chunk_of(node, self.figures_folder) for node in stored if node is not None]

    def _read(self, rows: Sequence[int]) -> Iterator[tuple[int, _StoredNode]]:
        """Read the nodes of the given rows, which must be in ascending order, and put them into the cache."""
        for start in range(0, len(rows), _MAX_VARIABLES):
            part = rows[start : start + _MAX_VARIABLES]
            marks = ", ".join("?" * len(part))
            sql = f"SELECT {self._with_form(_COLUMNS)} FROM nodes WHERE position IN ({marks}) ORDER BY position"
            stored = self._stored(self._kv.query(sql, [row + 1 for row in part]))
            nodes = [*zip(part, stored, strict=True)]
            self._stored_rows.put_all((row, node) for row, node in nodes if _is_flat(node.metadata))
            yield from nodes

    def children(self, parent_id: str) -> list[BaseNode]:
        """Return the child nodes of a parent, in text order."""
        sql = f"SELECT {self._with_form(_COLUMNS)} FROM nodes WHERE parent = ? ORDER BY start_char, position"
        return list(map(_node_of, self._stored(self._kv.query(sql, (parent_id,)))))

    def _stored(self, rows: Iterable[Sequence[Any]]) -> Iterator[_StoredNode]:
        """Parse rows of the table that begin with `_COLUMNS` and the form."""
        decompress = _OF_THREAD.decompress
        forms: dict[int, dict[str, Any]] = {}
        for node_id, metadata, body, number, *_ in rows:
            head, has_text, text = decompress(body).partition(b"\n")
            kind, fields = from_json(head)  # faster than `json.loads`
            form = forms.get(number) or forms.setdefault(number, self._form(number))
            own = text.decode() if has_text else fields.pop("text", None)
            yield _StoredNode(node_id, from_json(metadata), own, kind, fields, form)

    @cached_property
    def _has_forms(self) -> bool:
        """Whether common fields are stored once; an earlier release stored them with each node."""
        return any(name == "form" for _, name, *_ in self._kv.query("PRAGMA table_info(nodes)"))

    def _with_form(self, columns: str) -> str:
        """Return the names of some columns, followed by that of the number of the common fields."""
        return f"{columns}, {'form' if self._has_forms else _NO_FORM}"

    def _form(self, number: int) -> dict[str, Any]:
        if number == _NO_FORM:
            return {}
        form = self._forms.get(number)
        if form is None:
            [(fields,)] = self._kv.query("SELECT fields FROM forms WHERE id = ?", (number,))
            form = from_json(fields)
            self._forms.put(number, form)
        return form

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
_FORM = (
    *("excluded_embed_metadata_keys", "excluded_llm_metadata_keys"),
    *("metadata_template", "metadata_separator", "mimetype", "text_template", "class_name"),
)
"""Fields whose values are the same for many nodes, and are stored once."""

_CONTAINERS = frozenset({dict, list})  # types of JSON values that can be changed


class _Decompressor(threading.local):
    """One decompressor for each thread, because creating it takes longer than using it."""

    def __init__(self) -> None:
        self.decompress = zstandard.ZstdDecompressor().decompress


_OF_THREAD = _Decompressor()


class _StoredNode(NamedTuple):
    """A node as it is stored.

    Attributes:
        node_id: Id of the node.
        metadata: Metadata of the node.
        text: Text of the node; None if its class stores the text elsewhere.
        kind: LlamaIndex's name of the class.
        fields: The other fields of the node.
        form: Fields whose values are those of many nodes.
    """

    node_id: str
    metadata: dict[str, Any]
    text: str | None
    kind: str
    fields: dict[str, Any]
    form: dict[str, Any]


def _row_of(node: BaseNode) -> tuple[tuple[int, str], tuple[Any, ...]]:
    """Return the rows for a node: the number and the values of the fields that it shares with many others, and its own.

    The body consists of a line with the node's own fields in JSON, and the text.
    """
    from llama_index.core.storage.docstore.utils import doc_to_json

    raw = doc_to_json(node)
    data = {key: value for key, value in raw["__data__"].items() if key not in ("id_", "metadata")}
    start, text = data.get("start_char_idx"), data.pop("text", None)
    # The node's own end offset is ignored, because it may be wrong in chunks created by other programs.
    end = None if start is None else start + len(text or "")
    form = _dump({key: data.pop(key) for key in _FORM if key in data})
    if "relationships" in data:
        data["relationships"] = {
            name: [*map(_compact, related)] if isinstance(related, list) else _compact(related)
            for name, related in data["relationships"].items()
        }
    body = _dump([raw["__type__"], data]) + ("" if text is None else f"\n{text}")
    number = xxhash.xxh3_64_intdigest(form.encode()) >> 1  # SQLite's integers are signed
    return (number, form), (
        node.node_id,
        _related(data, _SOURCE),
        start,
        end,
        _related(data, _PARENT),
        _dump(node.metadata),
        zstandard.compress(body.encode(), 1),
        number,
    )


def _compact(related: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `RelatedNodeInfo` whose values are not the defaults."""
    return {name: value for name, value in related.items() if value not in (None, {}) and name != "class_name"}


def _related(data: dict[str, Any], relationship: str) -> str | None:
    related = data.get("relationships", {}).get(relationship)
    return related["node_id"] if isinstance(related, dict) else None


def _characters_of(stored: _StoredNode) -> int:
    """Return the number of characters of a node, with an allowance for the objects that hold its metadata."""
    return len(stored.text or "") + 1_000


def _is_flat(metadata: dict[str, Any]) -> bool:
    """Return whether no value can be changed, so that copies of the dict do not affect each other."""
    return _CONTAINERS.isdisjoint(map(type, metadata.values()))


def _chunk_of(stored: _StoredNode, figures_folder: str | None) -> Chunk:
    metadata = dict(stored.metadata)
    if stored.text is None:
        return replace(Chunk.from_node(_node_of(stored, metadata)), figures_folder=figures_folder)
    return Chunk(
        node_id=stored.node_id,
        text=stored.text,
        metadata=metadata,
        doc_id=_related(stored.fields, _SOURCE),
        start=stored.fields.get("start_char_idx"),
        end=stored.fields.get("end_char_idx"),
        make_node=partial(_node_of, stored, metadata),
        figures_folder=figures_folder,
    )


@cache
def _text_node_class() -> type[TextNode]:
    from llama_index.core.schema import TextNode  # an import statement for each node would take longer

    return TextNode


def _node_of(stored: _StoredNode, metadata: dict[str, Any] | None = None) -> BaseNode:
    """Return the node, with a copy of its metadata instead of the stored dict if one is passed."""
    metadata = stored.metadata if metadata is None else metadata
    data = {**stored.form, **stored.fields, "id_": stored.node_id, "metadata": metadata}
    if stored.text is not None:
        data["text"] = stored.text
    if stored.kind == _TEXT_NODE:  # the usual type; json_to_doc would look up the class for longer than it takes
        data.pop("class_name", None)
        return _text_node_class()(**data)
    from llama_index.core.storage.docstore.utils import json_to_doc

    return json_to_doc({"__type__": stored.kind, "__data__": data})


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
