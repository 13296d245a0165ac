"""Nodes as a LlamaIndex document store: those of a published version, or those of a file of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from llama_index.core.schema import BaseNode
from llama_index.core.storage.docstore.keyval_docstore import KVDocumentStore
from llama_index.core.storage.docstore.types import DEFAULT_PERSIST_PATH, RefDocInfo
from llama_index.core.storage.kvstore.types import DEFAULT_BATCH_SIZE, DEFAULT_COLLECTION, BaseKVStore

from llama_index_contextual.errors import InputError
from llama_index_contextual.index.kvstore import Access, Database, refuse_write
from llama_index_contextual.index.nodes import Nodes, NodeTable


class IndexDocumentStore(KVDocumentStore):
    """The nodes of a published version, which cannot be changed.

    Args:
        nodes: The nodes.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        super().__init__(_Hashes(nodes.database if isinstance(nodes, NodeTable) else None))

    def __len__(self) -> int:
        return len(self.nodes)

    def __bool__(self) -> bool:
        # LlamaIndex uses `docstore or SimpleDocumentStore()`, which must not replace an empty store.
        return True

    @property
    def docs(self) -> dict[str, BaseNode]:
        """All nodes by id, sorted by position."""
        return {node.node_id: node for node in self.nodes.iterate()}

    def iterate(self, *, doc_id: str | None = None) -> Iterator[BaseNode]:
        """Yield the nodes, or those of one document, without reading all of them at once."""
        return self.nodes.iterate(doc_id=doc_id)

    def get_document(self, doc_id: str, raise_error: bool = True) -> BaseNode | None:
        """Return one node.

        Raises:
            ValueError: The node does not exist and `raise_error` is True.
        """
        nodes = self.nodes.get_nodes([doc_id], raise_error=raise_error)
        return nodes[0] if nodes else None

    async def aget_document(self, doc_id: str, raise_error: bool = True) -> BaseNode | None:
        """Return one node."""
        return self.get_document(doc_id, raise_error)

    def get_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
        """Return nodes in the order of `node_ids`, with one query; a parent of stored nodes is assembled from them."""
        return self.nodes.get_nodes(node_ids, raise_error)

    async def aget_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
        """Return nodes in the order of `node_ids`."""
        return self.nodes.get_nodes(node_ids, raise_error)

    def document_exists(self, doc_id: str) -> bool:
        """Return whether `get_document` returns a node for this id."""
        return bool(self.nodes.known([doc_id])) or doc_id in self.nodes.documents_of_parents()

    async def adocument_exists(self, doc_id: str) -> bool:
        """Return whether `get_document` returns a node for this id."""
        return self.document_exists(doc_id)

    def get_ref_doc_info(self, ref_doc_id: str) -> RefDocInfo | None:
        """Return the ids of a document's nodes in the order of the text, or None if it has none."""
        ids = self.nodes.ids_of_document(ref_doc_id)
        return RefDocInfo(node_ids=ids) if ids else None

    async def aget_ref_doc_info(self, ref_doc_id: str) -> RefDocInfo | None:
        """Return the ids of a document's nodes."""
        return self.get_ref_doc_info(ref_doc_id)

    def get_all_ref_doc_info(self) -> dict[str, RefDocInfo]:
        """Return the node ids of every document."""
        return {doc_id: RefDocInfo(node_ids=ids) for doc_id, ids in self.nodes.ids_by_document().items()}

    async def aget_all_ref_doc_info(self) -> dict[str, RefDocInfo]:
        """Return the node ids of every document."""
        return self.get_all_ref_doc_info()

    def add_documents(
        self,
        docs: Sequence[BaseNode],
        allow_update: bool = True,
        batch_size: int | None = None,
        store_text: bool = True,
    ) -> None:
        """Refuse, as a published version cannot be changed.

        Raises:
            ReadOnlyVersionError: Always.
        """
        refuse_write()

    async def async_add_documents(
        self,
        docs: Sequence[BaseNode],
        allow_update: bool = True,
        batch_size: int | None = None,
        store_text: bool = True,
    ) -> None:
        """Add nodes like `add_documents`."""
        self.add_documents(docs, allow_update, store_text=store_text)

    def delete_document(self, doc_id: str, raise_error: bool = True) -> None:
        """Refuse, as a published version cannot be changed."""
        refuse_write()

    async def adelete_document(self, doc_id: str, raise_error: bool = True) -> None:
        """Remove one node like `delete_document`."""
        self.delete_document(doc_id, raise_error)

    def delete_ref_doc(self, ref_doc_id: str, raise_error: bool = True) -> None:
        """Refuse, as a published version cannot be changed."""
        refuse_write()

    async def adelete_ref_doc(self, ref_doc_id: str, raise_error: bool = True) -> None:
        """Remove the nodes of a document like `delete_ref_doc`."""
        self.delete_ref_doc(ref_doc_id, raise_error)

    def persist(self, persist_path: str = DEFAULT_PERSIST_PATH, fs: AbstractFileSystem | None = None) -> None:
        """Write the nodes to a file and sync it; if it is the store's own file, only sync it."""
        self.nodes.save(Path(persist_path))


class SQLiteDocumentStore(IndexDocumentStore):
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

    nodes: NodeTable

    def __init__(self, path: Path | None = None, *, access: Access = "build") -> None:
        super().__init__(NodeTable(path, access=access))

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
            ReadOnlyVersionError: The file is opened for reading.
        """
        if not allow_update and (known := self.nodes.known([node.node_id for node in docs])):
            raise InputError(f"Node {known[0]!r} is in the store already: pass allow_update=True to replace it.")
        self.nodes.add(docs if store_text else [])

    def delete_document(self, doc_id: str, raise_error: bool = True) -> None:
        """Remove one node."""
        if not self.nodes.remove(doc_id) and raise_error:
            raise ValueError(f"doc_id {doc_id} not found.")
        self._kvstore.delete(doc_id, self._metadata_collection)

    def delete_ref_doc(self, ref_doc_id: str, raise_error: bool = True) -> None:
        """Remove all nodes of a document and their metadata."""
        node_ids = self.nodes.ids_of_document(ref_doc_id)
        if not self.nodes.remove_document(ref_doc_id) and raise_error:
            raise ValueError(f"doc_id {ref_doc_id} not found.")
        for node_id in (ref_doc_id, *node_ids):
            self._kvstore.delete(node_id, self._metadata_collection)

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
        store.nodes.load(path)
        return store

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        self.nodes.close()


class _Hashes(BaseKVStore):
    """The hashes that LlamaIndex keeps of documents, in the database of the nodes; a version has none."""

    def __init__(self, database: Database | None) -> None:
        self._database = database

    def put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Store an object."""
        self.put_all([(key, val)], collection)

    def put_all(
        self,
        kv_pairs: list[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> None:
        """Store objects in one transaction; `batch_size` is ignored."""
        if self._database is None:
            refuse_write()
        self._database.put_all(kv_pairs, collection)

    def get(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Return an object, or None."""
        return None if self._database is None else self._database.get(key, collection)

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return all objects of a collection."""
        return {} if self._database is None else self._database.get_all(collection)

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Remove an object, and return whether it existed."""
        if self._database is None:
            refuse_write()
        return self._database.delete(key, collection)

    async def aput(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Store an object."""
        self.put(key, val, collection)

    async def aput_all(
        self,
        kv_pairs: list[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> None:
        """Store objects in one transaction."""
        self.put_all(kv_pairs, collection)

    async def aget(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Return an object, or None."""
        return self.get(key, collection)

    async def aget_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return all objects of a collection."""
        return self.get_all(collection)

    async def adelete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Remove an object, and return whether it existed."""
        return self.delete(key, collection)
