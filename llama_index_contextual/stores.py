"""Provide a published version as read-only LlamaIndex stores, and export it to files.

The exported files can be loaded by LlamaIndex's own classes:

docstore.json, index_store.json, graph_store.json     SimpleDocumentStore, SimpleIndexStore, SimpleGraphStore
default__vector_store.json                            FaissVectorStore (inner product)
bm25/                                                 BM25Retriever
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from fsspec import AbstractFileSystem
from llama_index.core.data_structs.data_structs import IndexDict
from llama_index.core.graph_stores.simple import SimpleGraphStore
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.storage.docstore.keyval_docstore import (
    DEFAULT_COLLECTION_DATA_SUFFIX,
    DEFAULT_NAMESPACE,
    DEFAULT_REF_DOC_COLLECTION_SUFFIX,
    KVDocumentStore,
)
from llama_index.core.storage.docstore.simple_docstore import SimpleDocumentStore
from llama_index.core.storage.docstore.types import DEFAULT_PERSIST_PATH
from llama_index.core.storage.docstore.utils import doc_to_json
from llama_index.core.storage.index_store.simple_index_store import SimpleIndexStore
from llama_index.core.storage.kvstore.simple_kvstore import SimpleKVStore
from llama_index.core.storage.kvstore.types import DEFAULT_BATCH_SIZE, DEFAULT_COLLECTION
from llama_index.core.storage.storage_context import DEFAULT_PERSIST_DIR, StorageContext
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE, SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from llama_index_contextual.config import default
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.analysis import stop_word_list
from llama_index_contextual.index.kvstore import refuse_write
from llama_index_contextual.index.manifest import BM25_DIRECTORY, MANIFEST
from llama_index_contextual.index.version import OpenVersion, VersionIndex
from llama_index_contextual.index.version_nodes import VersionNodes
from llama_index_contextual.index.versions import VERSIONS
from llama_index_contextual.metadata import has_surrogate

if TYPE_CHECKING:
    from llama_index.retrievers.bm25 import BM25Retriever
    from llama_index.vector_stores.faiss import FaissVectorStore

INDEX_ID = "contextual"

_STOCK_WORD = re.compile(r"\b\w\w+\b")  # the token pattern of LlamaIndex's BM25Retriever

_UNFINISHED = ".unfinished-export"
_NODES = f"{DEFAULT_NAMESPACE}{DEFAULT_COLLECTION_DATA_SUFFIX}"
_DOCUMENTS = f"{DEFAULT_NAMESPACE}{DEFAULT_REF_DOC_COLLECTION_SUFFIX}"


# ---- nodes -----------------------------------------------------------------------------------------------------------


class IndexDocumentStore(KVDocumentStore):
    """Read-only document store with the nodes of a published version.

    Every attempt to change the store raises `ReadOnlyVersionError`.

    Args:
        nodes: The nodes.
    """

    def __init__(self, nodes: VersionNodes) -> None:
        self.nodes = nodes
        super().__init__(_KeyValues(nodes))

    def __len__(self) -> int:
        return len(self.nodes)

    def __bool__(self) -> bool:
        # LlamaIndex evaluates `docstore or SimpleDocumentStore()`, which must not replace an empty store.
        return True

    def get_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
        """Return nodes in the order of `node_ids`.

        Stored nodes are read with one query. Parent nodes are assembled from their stored children.
        """
        return self.nodes.get_nodes(node_ids, raise_error)

    async def aget_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
        """Asynchronous version of `get_nodes`."""
        return self.nodes.get_nodes(node_ids, raise_error)

    def persist(self, persist_path: str = DEFAULT_PERSIST_PATH, fs: AbstractFileSystem | None = None) -> None:
        """Write the nodes to a file that `SimpleDocumentStore` can load."""
        self.to_stock().persist(persist_path, fs)

    def to_stock(self) -> SimpleDocumentStore:
        """Return a copy of the nodes in LlamaIndex's own document store."""
        stock = SimpleDocumentStore()
        stock.add_documents(list(self.nodes.iterate()))
        return stock


class _KeyValues(SimpleKVStore):
    """Key-value store that provides the nodes and documents of a version to LlamaIndex's document store."""

    def __init__(self, nodes: VersionNodes) -> None:
        super().__init__()
        self._nodes = nodes

    def get(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Return a node or the ids of a document's nodes in text order, or None if the key is unknown."""
        if collection == _NODES:
            nodes = self._nodes.get_nodes([key], raise_error=False)
            return doc_to_json(nodes[0]) if nodes else None
        if collection == _DOCUMENTS:
            ids = self._nodes.ids_of_document(key)
            return {"node_ids": ids} if ids else None
        return None

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return all nodes by node id, or the node ids of all documents by document id."""
        if collection == _NODES:
            return {node.node_id: doc_to_json(node) for node in self._nodes.iterate()}
        if collection == _DOCUMENTS:
            return {doc_id: {"node_ids": ids} for doc_id, ids in self._nodes.ids_by_document().items()}
        return {}

    def put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Raise an error, because a published version cannot be changed."""
        refuse_write()

    def put_all(
        self,
        kv_pairs: list[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> None:
        """Raise an error, because a published version cannot be changed."""
        refuse_write()

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Raise an error, because a published version cannot be changed."""
        refuse_write()


# ---- vectors ---------------------------------------------------------------------------------------------------------


class IndexVectorStore(BasePydanticVectorStore):
    """Read-only vector store with the vectors of a published version.

    The vectors are in the FAISS indexes of several parts, or on a server; `to_stock` returns one `FaissVectorStore`.

    Args:
        index: The index of the version.
        version_directory: Directory of the version, used by `from_dict` to open it again; "" if the version is
            restricted to some documents.
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    version_directory: str = Field(description="Directory of the version.")

    _index: VersionIndex = PrivateAttr()

    def __init__(self, index: VersionIndex, *, version_directory: str) -> None:
        super().__init__(version_directory=version_directory)  # type: ignore[call-arg]
        self._index = index

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "IndexVectorStore"

    @property
    def client(self) -> VersionIndex:
        """The index; for a FAISS index, use `to_stock().client`."""
        return self._index

    def __len__(self) -> int:
        return len(self._index.ids)

    def __bool__(self) -> bool:
        # LlamaIndex evaluates `vector_store or SimpleVectorStore()`, which must not replace an empty store.
        return True

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Run a LlamaIndex query and return the nodes, their cosine similarities (-1 to 1) and their ids."""
        if query.query_embedding is None:
            raise InputError("The query has no embedding: pass an embed_model to the retriever.")
        embedding = np.asarray([query.query_embedding], dtype=np.float32)
        if not np.isfinite(embedding).all():
            raise InputError(
                "The query's embedding contains NaN or infinity: embed the query again.", value=query.query_embedding
            )
        vector = unit_vectors(embedding)[0]
        k = query.similarity_top_k
        if len(vector) != self._index.dimensions:
            raise InputError(
                f"The query's embedding has {len(vector)} dimensions, the index {self._index.dimensions}:"
                f" search with the embedding model that built the index."
            )
        if not vector.any():
            return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
        allowed = self._allowed(query.node_ids, query.doc_ids)
        hits, _ = self._index.rank_vectors(vector, k if allowed is None else len(self), query.filters)
        passing = slice(k) if allowed is None else np.flatnonzero(np.isin(hits.rows, allowed))[:k]
        rows = hits.rows[passing].tolist()
        return VectorStoreQueryResult(
            nodes=[chunk.node for chunk in self._index.fetch(rows)],
            similarities=hits.scores[passing].tolist(),
            ids=[self._index.ids[row] for row in rows],
        )

    def _allowed(self, node_ids: Sequence[str] | None, doc_ids: Sequence[str] | None) -> NDArray[np.int64] | None:
        """Return the rows of the nodes that a query is restricted to, or None if it is not restricted.

        Empty lists, which VectorStoreIndex passes, are ignored.
        """
        docstore = self._index.docstore
        sets = [docstore.rows(docstore.existing_ids(node_ids))] if node_ids else []
        if doc_ids:
            sets.append(docstore.rows([node_id for doc_id in doc_ids for node_id in docstore.ids_of_document(doc_id)]))
        if not sets:
            return None
        return np.asarray(sorted(set.intersection(*map(set, sets))), dtype=np.int64)

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: Any) -> list[str]:
        """Raise an error, because a published version cannot be changed.

        Raises:
            ReadOnlyVersionError: Always.
        """
        refuse_write()

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Raise an error, because a published version cannot be changed."""
        refuse_write()

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Raise an error, because a published version cannot be changed."""
        refuse_write()

    def clear(self) -> None:
        """Raise an error, because a published version cannot be changed."""
        refuse_write()

    def persist(self, persist_path: str, fs: AbstractFileSystem | None = None) -> None:
        """Write the vectors to a local file that `FaissVectorStore` can load."""
        self.to_stock().persist(os.path.abspath(persist_path), fs)

    def to_stock(self) -> FaissVectorStore:
        """Return a copy of the vectors in LlamaIndex's own vector store.

        The store contains an exact FAISS index, in which nodes are identified by row number.
        """
        # Imported here, because faiss is slow to import and not needed without vectors.
        import faiss
        from llama_index.vector_stores.faiss import FaissVectorStore

        from llama_index_contextual.index.faiss_index import BLOCK

        index = faiss.IndexFlatIP(self._index.dimensions or 0)
        for start in range(0, len(self), BLOCK):
            index.add(self._index.vectors(np.arange(start, min(start + BLOCK, len(self)))))
        return FaissVectorStore(faiss_index=index)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return a dict with the directory of the version, from which `from_dict` can reopen the version."""
        return {"class_name": self.class_name(), "version_directory": self.version_directory}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Open the vectors of the version, given the result of `to_dict`.

        Raises:
            CorruptVersionError: The version is damaged or was removed.
            InputError: The version was restricted to some documents.
        """
        if not data["version_directory"]:
            raise InputError("The vectors of a restricted project cannot be stored: use `project.only(...)` again.")
        directory = Path(data["version_directory"])
        return cls(OpenVersion(directory).index, version_directory=str(directory))


# ---- all stores ------------------------------------------------------------------------------------------------------


@dataclass
class VersionStorageContext(StorageContext):
    """Read-only stores of a published version.

    Attributes:
        has_lexical: Whether the version has a lexical index.
    """

    docstore: IndexDocumentStore
    has_lexical: bool = False

    @classmethod
    def from_defaults(cls, *args: Any, **kwargs: Any) -> Self:
        """Raise an error, because the stores of a version cannot be chosen.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "A VersionStorageContext is opened with open_storage_context(): use LlamaIndex's StorageContext for other"
            " stores, including those that `persist` has written."
        )

    @classmethod
    def from_dict(cls, *args: Any, **kwargs: Any) -> Self:
        """Raise an error, as `from_defaults` does."""
        return cls.from_defaults()

    def persist(  # type: ignore[override]  # LlamaIndex's parameters, without their names
        self,
        persist_dir: str | os.PathLike[str] = DEFAULT_PERSIST_DIR,
        *names: str,
        fs: AbstractFileSystem | None = None,
        **named: str,
    ) -> None:
        """Write all stores and the lexical index to files that LlamaIndex's own classes can load.

        Existing files with the same names are replaced. Images and property graphs are not written, because a
        version contains none.

        Args:
            persist_dir: Target directory.
            *names: File names, as for `StorageContext.persist`.
            fs: File system of the directory; None for local files.
            **named: File names as keyword arguments, such as `docstore_fname`.

        Raises:
            InputError: The directory is a published version, or its path is not valid UTF-8.

        Example:
            >>> project.storage_context.persist("stock")  # doctest: +SKIP
            >>> StorageContext.from_defaults(
            ...     persist_dir="stock", vector_store=FaissVectorStore.from_persist_dir("stock")
            ... )  # doctest: +SKIP
            >>> BM25Retriever.from_persist_dir("stock/bm25")  # doctest: +SKIP
        """
        if fs is not None:
            with tempfile.TemporaryDirectory() as temporary:
                self.persist(temporary, *names, **named)
                fs.makedirs(str(persist_dir), exist_ok=True)
                fs.put(f"{temporary}/", f"{persist_dir}/", recursive=True)
            return
        directory = Path(persist_dir).resolve()
        if (directory / MANIFEST).exists():
            raise InputError(f"{directory} is a published version: persist into another directory.", value=persist_dir)
        _require_text(directory)
        files.make_directory(directory)
        stock = self.to_stock()
        files.let_write(directory, lambda: stock.persist(directory, *names, **named))
        nodes = list(stock.docstore.docs.values())
        if self.has_lexical and (retriever := stock_bm25(nodes)) is not None:
            files.remove_tree(directory / BM25_DIRECTORY)
            write_bm25(retriever, directory / BM25_DIRECTORY)

    def to_stock(self) -> StorageContext:
        """Return a copy of the contents in LlamaIndex's own stores."""
        index_store, vectors = SimpleIndexStore(), self.vector_store
        stock = StorageContext(
            docstore=self.docstore.to_stock(), index_store=index_store, vector_stores={}, graph_store=SimpleGraphStore()
        )
        if isinstance(vectors, IndexVectorStore):
            rows = {str(row): node_id for row, node_id in enumerate(self.docstore.nodes.ids)}
            index_store.add_index_struct(IndexDict(index_id=INDEX_ID, nodes_dict=rows))
            stock.vector_stores[DEFAULT_VECTOR_STORE] = vectors.to_stock()
        return stock


def _require_text(directory: Path) -> None:
    """Check that LlamaIndex's stores can be written to a directory; FAISS needs a path that is valid UTF-8."""
    if has_surrogate(str(directory)):
        raise InputError(
            f"{directory} cannot contain LlamaIndex's stores, because its path is not valid UTF-8: choose another"
            f" directory.",
            value=directory,
        )


def stock_bm25(nodes: list[BaseNode], *, top_k: int = default("top_k")) -> BM25Retriever | None:
    """Return LlamaIndex's own retriever for nodes, which tokenises text differently from this package.

    Return None if no node contains a word that LlamaIndex's retriever indexes.
    """
    from llama_index.retrievers.bm25 import BM25Retriever

    stop_words = stop_word_list("STOPWORDS_EN")
    texts = (node.get_content(metadata_mode=MetadataMode.EMBED).lower() for node in nodes)
    if not any(word not in stop_words for text in texts for word in _STOCK_WORD.findall(text)):
        return None
    return BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=min(top_k, len(nodes)))


def write_bm25(retriever: BM25Retriever, directory: Path, encoding: str = "utf-8") -> None:
    """Write LlamaIndex's own retriever to a directory."""
    files.make_directory(directory)
    files.let_write(directory, lambda: retriever.persist(str(directory), encoding, show_progress=False))


def storage_context_of(version: OpenVersion) -> VersionStorageContext:
    """Return a version as a read-only LlamaIndex StorageContext.

    The index struct is kept in memory, because LlamaIndex writes to it when an index is loaded.
    """
    index_store = SimpleIndexStore()
    vector_store: BasePydanticVectorStore = SimpleVectorStore()
    if version.has_semantic:
        directory = "" if version.is_restricted else str(version.directory)
        vector_store = IndexVectorStore(version.index, version_directory=directory)
        index_store.add_index_struct(IndexDict(index_id=INDEX_ID))
    return VersionStorageContext(
        docstore=IndexDocumentStore(version.docstore),
        index_store=index_store,
        vector_stores={DEFAULT_VECTOR_STORE: vector_store},
        graph_store=SimpleGraphStore(),
        has_lexical=version.has_lexical,
    )


def open_storage_context(version_dir: str | Path) -> VersionStorageContext:
    """Open a version as a read-only LlamaIndex StorageContext.

    Args:
        version_dir: The `versions/<name>` directory of a project.

    Raises:
        InputError: The path is not a directory in `versions`.
        CorruptVersionError: A file is damaged or missing, or belongs to another version.
        FormatError: The version was written by another release.

    Example:
        >>> load_index_from_storage(open_storage_context(version_dir), embed_model=embed_model)  # doctest: +SKIP
    """
    directory = Path(version_dir)
    if not directory.is_dir() or directory.absolute().parent.name != VERSIONS:
        raise InputError(
            f"{directory} is not a version: pass the directory `versions/<name>` of a project, such as"
            f" `project.live_version.directory`.",
            value=version_dir,
        )
    return storage_context_of(OpenVersion(directory))


def export_version(context: VersionStorageContext, directory: Path) -> None:
    """Export a version to files for LlamaIndex's own stores.

    The target directory is created only when the export is complete.

    Args:
        context: The stores of the version.
        directory: Target directory, which must be empty or not exist.

    Raises:
        InputError: The directory is not empty, or its path is not valid UTF-8.
    """
    _require_text(directory)
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory} is not empty: export into a new directory.", value=directory)
    directory = directory.resolve()
    building = directory.with_name(f"{directory.name}{_UNFINISHED}")
    files.remove_tree(building)
    context.persist(building)
    for path in files.walk(building):
        files.sync_file(path)
    for below in sorted({path.parent for path in files.walk(building)}):
        files.sync_directory(below)
    if directory.exists():
        files.remove_if_empty(directory)
    files.rename(building, directory)
