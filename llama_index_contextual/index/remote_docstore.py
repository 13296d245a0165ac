"""Document store of a part whose chunks an engine keeps: only their ids, places and metadata values are in the file.

It has the tables of an ordinary document store, without the texts, and with the version that each chunk was added by.
The table `facets` has the different values of each metadata key and the documents that have them. Values that are too
long, such as contexts, are left out; their key then has a row without a value.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.index.collection import Engine, Key
from llama_index_contextual.index.facets import MAX_LENGTH, facet
from llama_index_contextual.index.filters import Column, FieldTest
from llama_index_contextual.index.kvstore import Access
from llama_index_contextual.index.nodes import FRAMES, PARENT_SQL, NodeTable

MAX_FACETS = 50_000
"""Maximum number of different values that pass a single filter."""

Value = tuple[str, str | None]
"""A metadata key and one of its values as JSON; None stands for the values that are too long."""

_COLUMNS = "id, doc_id, start_char, end_char, body, born"
_PAGE = 512


class RemoteDocumentStore(NodeTable):
    """The chunks of a part, which an engine keeps.

    Args:
        path: The file.
        engine: The engine.
        access: How the file is opened.
    """

    def __init__(self, path: Path, engine: Engine, *, access: Access = "read") -> None:
        super().__init__(path, access=access)
        self._engine = engine
        self._values: dict[Value, list[NDArray[np.int32]]] = {}
        if access != "read":
            self._kv.execute("ALTER TABLE nodes ADD COLUMN born INTEGER NOT NULL DEFAULT 0")

    # ---- writing -----------------------------------------------------------------------------------------------------

    def add_places(self, nodes: Sequence[BaseNode], born: int) -> None:
        """Add the ids and places of the chunks of a document."""
        with self._lock, self._kv.transaction() as connection:
            self._ids = self._rows = self._parents = None
            connection.executemany(
                f"INSERT INTO nodes ({_COLUMNS}, shape, text, metadata) VALUES (?, ?, ?, ?, ?, ?, 0, '', '{{}}')",
                (_place(node, born) for node in nodes),
            )

    def add_values(self, nodes: Iterable[BaseNode], document_of: NDArray[np.int32]) -> list[list[int]]:
        """Add the metadata values of chunks, and return the facets of each of them.

        Args:
            nodes: The chunks.
            document_of: The number of the document of each of them.
        """
        facets: list[list[int]] = []
        documents: dict[Value, dict[int, None]] = {}
        for node, document in zip(nodes, document_of.tolist(), strict=True):
            values = [(key, _value(key, value)) for key, value in node.metadata.items()]
            facets.append([facet(key, value) for key, value in values if value is not None])
            for one in values:
                documents.setdefault(one, {})[document] = None
        for one, numbers in documents.items():
            self._values.setdefault(one, []).append(np.fromiter(numbers, dtype=np.int32))
        return facets

    def copy_places(
        self, source: RemoteDocumentStore, live: NDArray[np.bool_] | None, documents: NDArray[np.int32]
    ) -> None:
        """Append chunks, frames and metadata values of another part.

        Args:
            source: The document store of that part.
            live: Which of its chunks to copy; None for all.
            documents: The new number of each of its documents, -1 for those that are gone.
        """
        records = source.records()
        kept = {
            str(record["doc_id"]) for record, number in zip(records, documents.tolist(), strict=True) if number >= 0
        }
        with self._lock, self._kv.transaction() as connection:
            self._ids = self._rows = self._parents = None
            rows = source._kv.query(f"SELECT {_COLUMNS}, position FROM nodes ORDER BY position")
            connection.executemany(
                f"INSERT INTO nodes ({_COLUMNS}, shape, text, metadata) VALUES (?, ?, ?, ?, ?, ?, 0, '', '{{}}')",
                (row[:-1] for row in rows if live is None or live[row[-1] - 1]),
            )
            frames = source._kv.query("SELECT key, value FROM kv WHERE collection = ?", (FRAMES,))
            kept_frames = ((FRAMES, key, value) for key, value in frames if key in kept)
            connection.executemany("INSERT INTO kv VALUES (?, ?, ?)", kept_frames)
        for value, holders in source._all_values():
            numbers = documents[holders].astype(np.int32)
            if (numbers >= 0).any():
                self._values.setdefault(value, []).append(numbers[numbers >= 0])

    def write_values(self) -> None:
        """Store the metadata values that were added."""
        with self._lock, self._kv.transaction() as connection:
            connection.execute("CREATE TABLE facets (key TEXT NOT NULL, value TEXT, documents BLOB NOT NULL)")
            connection.execute("CREATE INDEX facets_of_key ON facets (key)")
            connection.executemany(
                "INSERT INTO facets VALUES (?, ?, ?)",
                ((*value, np.concatenate(numbers).tobytes()) for value, numbers in self._values.items()),
            )

    # ---- chunks ------------------------------------------------------------------------------------------------------

    def keys(self, node_ids: Sequence[str]) -> Iterator[tuple[int, Key]]:
        """Yield the positions and keys of the chunks among `node_ids` that the part contains."""
        for node_id, position, born in self._fetch("id, position, born", node_ids):
            yield position, (node_id, born)

    def keys_of_rows(self, rows: NDArray[np.int64]) -> list[Key]:
        """Return the keys of some rows."""
        return self._of_rows("id, born", rows)

    def places_of_rows(self, rows: NDArray[np.int64]) -> list[tuple[str, str | None]]:
        """Return the ids of some rows, and the ids of their documents."""
        return self._of_rows("id, doc_id", rows)

    def _of_rows(self, columns: str, rows: NDArray[np.int64]) -> list[Any]:
        values = {}
        for start in range(0, len(rows), _PAGE):
            positions = (rows[start : start + _PAGE] + 1).tolist()
            sql = f"SELECT position, {columns} FROM nodes WHERE position IN ({', '.join('?' * len(positions))})"
            values.update({position: tuple(value) for position, *value in self._kv.query(sql, positions)})
        return [values[row + 1] for row in rows.tolist()]

    def nodes_at(self, node_ids: Sequence[str]) -> Iterator[tuple[int, BaseNode]]:
        """Yield the nodes among `node_ids` that the part contains, with their positions."""
        yield from fetched(self._engine, list(self.keys(node_ids)))

    def iterate_positions(
        self, *, doc_id: str | None = None, span: tuple[int, int] | None = None, batch: int = 512
    ) -> Iterator[tuple[int, BaseNode]]:
        """Yield nodes with their positions; see `iterate`."""
        condition, parameters = "", list[str | int]()
        if doc_id is not None:
            condition, parameters = " AND doc_id = ?", [doc_id]
        if span is not None:
            condition += " AND (start_char IS NULL OR start_char < ? AND (end_char IS NULL OR end_char > ?))"
            parameters += [span[1], span[0]]
        last = -1
        while rows := self._kv.query(
            f"SELECT position, id, born FROM nodes WHERE position > ?{condition} ORDER BY position LIMIT {batch}",
            [last, *parameters],
        ):
            yield from fetched(self._engine, [(position, (node_id, born)) for position, node_id, born in rows])
            last = rows[-1][0]

    def _children(self, doc_id: str | None, parent_id: str) -> list[BaseNode]:
        rows = self._kv.query(
            f"SELECT position, id, born FROM nodes WHERE doc_id IS ? AND {PARENT_SQL} = ?"
            " ORDER BY start_char, position",
            (doc_id, parent_id),
        )
        return [node for _, node in fetched(self._engine, [(place, (name, born)) for place, name, born in rows])]

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def passing(self, test: FieldTest) -> Collection[int]:
        """Return the facets of the values that pass a test.

        Raises:
            InputError: The key has values that are too long, or too many values pass.
        """
        rows = self._kv.query("SELECT value FROM facets WHERE key = ?", (test.key,))
        known = [value for (value,) in rows if value is not None]
        if len(known) < len(rows):
            raise InputError(
                f"Filter {test.key!r}: this key has values of more than {MAX_LENGTH} characters, which the backend of"
                f" this project cannot filter by: use another key, or set backend to 'files' and rebuild.",
                value=test.key,
            )
        column = Column([json.loads(value) for value in known], np.zeros(0, dtype=np.int32))
        codes = set(test.matches(column))
        if len(codes) > MAX_FACETS:
            raise InputError(
                f"Filter {test.key!r}: more than {MAX_FACETS:,} different values pass, which is too many for the"
                f" backend of this project: use a narrower filter, or a key with fewer different values.",
                value=test.key,
            )
        return {facet(test.key, known[code]) for code in codes}

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Raise an error, because only the store of a version can ask the engine."""
        raise NotImplementedError("Filters are evaluated for a whole version: use its document store.")

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of all nodes, sorted; filters can refer to them."""
        return [row[0] for row in self._kv.query("SELECT DISTINCT key FROM facets ORDER BY key")]

    def distinct_metadata(self) -> list[tuple[str, str | int | float | None, str | None]]:
        """Return the distinct (key, value, id of the document), sorted; None stands for other than text and numbers."""
        ids = [str(record["doc_id"]) for record in self.records()]
        distinct = [
            (key, _scalar(value), ids[number])
            for (key, value), numbers in self._all_values()
            for number in numbers.tolist()
        ]
        return sorted(dict.fromkeys(distinct), key=lambda one: (one[0], _order(one[1])))

    def _all_values(self) -> Iterator[tuple[Value, NDArray[np.int32]]]:
        for key, value, documents in self._kv.query("SELECT key, value, documents FROM facets"):
            yield (key, value), np.frombuffer(documents, dtype=np.int32)


def _value(key: str, value: Any) -> str | None:
    """Return a metadata value as JSON, or None if it is a value of a key of this package that is too long."""
    if key in keys.OWN_KEYS and isinstance(value, str) and len(value) > MAX_LENGTH:
        return None
    return json.dumps(value, sort_keys=True)


def _scalar(value: str | None) -> str | int | float | None:
    """Return a text or number from its JSON, and None for other values."""
    parsed = None if value is None else json.loads(value)
    return parsed if isinstance(parsed, str | int | float) and not isinstance(parsed, bool) else None


def _order(value: str | int | float | None) -> tuple[int, Any]:
    """Return the place of a value in the order of SQLite: nothing, numbers, texts."""
    return (0, 0) if value is None else (2, value) if isinstance(value, str) else (1, value)


def fetched(engine: Engine, places: Sequence[tuple[int, Key]]) -> Iterator[tuple[int, BaseNode]]:
    """Yield chunks that the engine keeps, with their positions.

    Raises:
        CorruptVersionError: The engine lacks one of them.
    """
    nodes: Mapping[str, BaseNode] = engine.nodes([key for _, key in places]) if places else {}
    for position, (node_id, _) in places:
        if node_id not in nodes:
            raise missing(node_id)
        yield position, nodes[node_id]


def missing(node_id: str) -> CorruptVersionError:
    """Return the error for a chunk that is in the records of a part, but not in the engine."""
    return CorruptVersionError(
        f"The collection of the project lacks the chunk {node_id!r}: run `verify`, which names the documents to ingest"
        f" again."
    )


def _place(node: BaseNode, born: int) -> tuple[Any, ...]:
    """Return the row of a chunk; its body keeps only the id of its parent."""
    start = getattr(node, "start_char_idx", None)
    source, parent = node.relationships.get(NodeRelationship.SOURCE), node.relationships.get(NodeRelationship.PARENT)
    body = {}
    if isinstance(parent, RelatedNodeInfo):
        body = {"relationships": {NodeRelationship.PARENT.value: {"node_id": parent.node_id}}}
    return (
        node.node_id,
        source.node_id if isinstance(source, RelatedNodeInfo) else None,
        start,
        None if start is None else start + len(node.get_content()),
        json.dumps(body, separators=(",", ":")),
        born,
    )
