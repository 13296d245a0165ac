"""FAISS with cosine similarity, whole nodes, and filters.

Vectors are made unit length and compared by inner product, so a larger score is always a better one. Row i of the
index is the i-th node of the document store.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from fsspec import AbstractFileSystem
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
from llama_index.vector_stores.faiss import FaissVectorStore
from llama_index.vector_stores.faiss.base import DEFAULT_PERSIST_PATH
from numpy.typing import NDArray
from pydantic import PrivateAttr

from llama_index_contextual.config import FaissIndex
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.storage import compact, files
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.faiss_file import read_index, write_index
from llama_index_contextual.storage.kvstore import refuse_write
from llama_index_contextual.storage.scan import inner_products, top
from llama_index_contextual.storage.storable import require_storable

Ranking = list[tuple[str, float]]
"""(node id, score), best first."""


class Rows(NamedTuple):
    """A ranking of rows, best first.

    Attributes:
        rows: Shape (n,).
        scores: Their similarities, -1 to 1; shape (n,).
        everything: Similarity of every row, in the order of the rows; None where not all were compared.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]
    everything: NDArray[np.float32] | None = None


class UnitFaissVectorStore(FaissVectorStore):
    """A FAISS vector store for unit vectors that hands out nodes itself.

    Args:
        faiss_index: An inner-product index; None makes an exact one at the first `add`.
        docstore: Where the nodes are kept. Share the one of the StorageContext, or leave it out: then the nodes are
            kept beside the vectors, also on disk.

    Raises:
        InputError: The index does not compare by inner product.
        CorruptVersionError: Index and document store do not belong together.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> store = UnitFaissVectorStore()
        >>> store.add([TextNode(id_="a", text="x", embedding=[3.0, 4.0])])
        ['a']
        >>> store.rank(np.array([3.0, 4.0]), 1)
        [('a', 1.0)]
    """

    stores_text: bool = True

    _docstore: SQLiteDocumentStore = PrivateAttr()
    _owns_docstore: bool = PrivateAttr()

    def __init__(self, faiss_index: Any = None, *, docstore: SQLiteDocumentStore | None = None) -> None:
        super().__init__(faiss_index=faiss_index)
        if faiss_index is not None and faiss_index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InputError(
                "UnitFaissVectorStore needs an inner-product index, such as faiss.IndexFlatIP(dimensions)."
            )
        self._owns_docstore = docstore is None
        self._docstore = docstore if docstore is not None else SQLiteDocumentStore()
        if faiss_index is not None:
            self._ids()

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "UnitFaissVectorStore"

    @property
    def dimensions(self) -> int | None:
        """Length of the vectors; None before the first `add`."""
        return None if self._faiss_index is None else int(self._faiss_index.d)

    @property
    def docstore(self) -> SQLiteDocumentStore:
        """Where the nodes are."""
        return self._docstore

    def __len__(self) -> int:
        return 0 if self._faiss_index is None else int(self._faiss_index.ntotal)

    def _ids(self) -> list[str]:
        """Return the node ids in the order of the rows."""
        ids = self._docstore.ids
        if len(ids) != len(self):
            raise CorruptVersionError(
                f"The FAISS index holds {len(self)} vectors, the document store {len(ids)} nodes: they are of different"
                f" versions, or something else adds nodes to the document store; give the vector store its own then."
            )
        return ids

    def __bool__(self) -> bool:
        # LlamaIndex writes `vector_store or SimpleVectorStore()`: an empty store must not be taken for none.
        return True

    # ---- writing -------------------------------------------------------------------------------------------------

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: Any) -> list[str]:
        """Add nodes with their embeddings; a node that is there already is replaced.

        Raises:
            InputError: A node has no embedding, or one of another length than those in the index.
            ReadOnlyVersionError: The store is a published version.
        """
        if self._docstore.read_only:
            refuse_write()
        # Of two nodes with one id the last one counts, as in a dict: the index must hold one row for each id.
        last = list({node.node_id: node for node in nodes}.values())
        if last:
            self.add_vectors(last, unit_vectors(_embeddings(last)))
        return [node.node_id for node in nodes]

    def add_vectors(self, nodes: Sequence[BaseNode], vectors: NDArray[np.float32]) -> None:
        """Add nodes of different ids with their unit vectors, one row each, whatever embeddings the nodes have."""
        if self._docstore.read_only:
            refuse_write()
        if vectors.shape[1] != (self.dimensions or vectors.shape[1]):
            raise InputError(
                f"An embedding has {vectors.shape[1]} dimensions, the index {self.dimensions}: it was built with"
                f" another embedding model."
            )
        if known := self._docstore.known([node.node_id for node in nodes]):
            require_storable(nodes)  # before anything is removed
            self._remove(known)
        self._docstore.add_documents([_without_embedding(node) for node in nodes])
        if self._faiss_index is None:
            self._faiss_index = faiss.IndexFlatIP(vectors.shape[1])
        self._faiss_index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Remove all nodes of a document; one that is not there is fine."""
        if self._docstore.read_only:
            refuse_write()
        info = self._docstore.get_ref_doc_info(ref_doc_id)
        self.delete_nodes(info.node_ids if info else [])

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Remove the nodes that are named and pass the filters."""
        if self._docstore.read_only:
            refuse_write()
        mask = self._mask(VectorStoreQuery(node_ids=node_ids, filters=filters)) if node_ids or filters else None
        if mask is not None:
            ids = self._ids()
            self._remove([ids[row] for row in np.flatnonzero(mask)])

    def _remove(self, node_ids: list[str]) -> None:
        # A document store that is shared may hold the nodes before their vectors come.
        if node_ids and len(self):
            kind = type(self._faiss_index)
            if not issubclass(kind, faiss.IndexFlat):
                raise InputError(f"Nodes of a {kind.__name__} cannot be removed or replaced: build a new one.")
            self._ids()
            self._faiss_index.remove_ids(np.asarray(self._docstore.rows(node_ids), dtype=np.int64))
        for node_id in node_ids:
            self._docstore.delete_document(node_id)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def rank(self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Return the k nodes with the largest cosine similarity to `vector`, without touching a node.

        Args:
            vector: The query's embedding, of any length but zero; a vector of zeros finds nothing.
            k: Nodes, at most.
            filters: Only nodes that pass count.
        """
        hits = self.rank_rows(vector, k, filters)
        ids = self._ids()
        return [(ids[row], score) for row, score in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]

    def rank_rows(self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None) -> Rows:
        """Do as `rank` does, with rows for ids."""
        return self._rank(vector, k, self._docstore.mask(filters))

    def _rank(self, vector: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None) -> Rows:
        query = unit_vectors(np.asarray(vector, dtype=np.float32).reshape(1, -1))
        if len(self) == 0 or not query.any() or (mask is not None and not mask.any()):
            return Rows(np.zeros(0, dtype=np.int64), np.zeros(0))
        if query.shape[1] != self.dimensions:
            raise InputError(
                f"The query's embedding has {query.shape[1]} dimensions, the index {self.dimensions}:"
                f" search with the embedding model that built the index."
            )
        scores, rows, everything = self._search(query, max(0, min(k, len(self._ids()))), mask)
        # Rounding may carry the product of two unit vectors past 1.
        return Rows(rows.astype(np.int64), np.clip(scores.astype(np.float64), -1.0, 1.0), everything)

    def _search(
        self, query: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32] | None]:
        index = self._faiss_index
        if isinstance(index, faiss.IndexFlat):
            (everything,) = inner_products(index.get_xb(), (index.ntotal, index.d), query)
            scores, rows = top(everything if mask is None else np.where(mask, everything, -np.inf), k)
            return scores, rows, everything
        if isinstance(index, faiss.IndexRefine):
            return *compact.search(index, query, k, mask), None
        parameters = None
        if mask is not None:
            inverted = isinstance(index, faiss.IndexIVF)
            kind = faiss.SearchParametersIVF if inverted else faiss.SearchParameters
            parameters = kind(sel=faiss.IDSelectorBatch(np.flatnonzero(mask)))  # type: ignore[call-arg]
        scores, rows = index.search(query, k, params=parameters)
        found = rows[0] >= 0
        return scores[0][found], rows[0][found], None

    def vectors(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """Return the stored vectors of some rows."""
        if len(rows) == 0:
            return np.zeros((0, self.dimensions or 0), dtype=np.float32)
        found: NDArray[np.float32] = self._faiss_index.reconstruct_batch(np.asarray(rows, dtype=np.int64))
        return found

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Answer a LlamaIndex query with nodes, their similarities (cosine, -1 to 1) and their ids."""
        if query.query_embedding is None:
            raise InputError("The query has no embedding: give the retriever an embed_model.")
        vector = np.asarray(query.query_embedding, dtype=np.float32)
        hits = self._rank(vector, query.similarity_top_k, self._mask(query))
        known = self._ids()
        ids = [known[row] for row in hits.rows.tolist()]
        return VectorStoreQueryResult(nodes=self._docstore.get_nodes(ids), similarities=hits.scores.tolist(), ids=ids)

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return the nodes that are named and pass the filters, in the order of their positions."""
        mask = self._mask(VectorStoreQuery(node_ids=node_ids, filters=filters))
        ids = self._ids()
        return self._docstore.get_nodes(ids if mask is None else [ids[row] for row in np.flatnonzero(mask)])

    def _mask(self, query: VectorStoreQuery) -> NDArray[np.bool_] | None:
        """Return which rows a query allows; empty lists, which VectorStoreIndex passes, restrict nothing."""
        masks = [self._docstore.mask(query.filters)]
        if query.node_ids:
            masks.append(np.isin(np.asarray(self._docstore.ids), query.node_ids))
        if query.doc_ids:
            infos = [self._docstore.get_ref_doc_info(doc_id) for doc_id in query.doc_ids]
            of_documents = [node_id for info in infos if info for node_id in info.node_ids]
            masks.append(np.isin(np.asarray(self._docstore.ids), of_documents))
        given = [mask for mask in masks if mask is not None]
        return np.logical_and.reduce(given) if given else None

    def compact(self, wanted: FaissIndex) -> None:
        """Take the compact form of the index where it is wanted and near enough to the exact one; see `compact.py`."""
        if isinstance(self._faiss_index, faiss.IndexFlat):
            self._faiss_index = compact.compacted(self._faiss_index, wanted)

    # ---- files -----------------------------------------------------------------------------------------------------

    def persist(self, persist_path: str = DEFAULT_PERSIST_PATH, fs: AbstractFileSystem | None = None) -> None:
        """Write the index to a file, and the nodes beside it unless a StorageContext keeps them."""
        if self._faiss_index is None:
            raise InputError("The vector store is empty: add nodes before it is persisted.")
        path = Path(persist_path)
        files.make_directory(path.parent)
        write_index(self._faiss_index, path)
        if self._owns_docstore:
            self._docstore.persist(str(_nodes_beside(path)))

    def to_stock(self) -> FaissVectorStore:
        """Return the index as LlamaIndex's own vector store, which knows rows instead of nodes."""
        return FaissVectorStore(faiss_index=self._faiss_index)

    @classmethod
    def from_persist_path(
        cls,
        persist_path: str,
        fs: AbstractFileSystem | None = None,
        *,
        docstore: SQLiteDocumentStore | None = None,
    ) -> UnitFaissVectorStore:
        """Read an index; without `docstore`, the nodes are read from beside it and can be changed in memory.

        Raises:
            InputError: The index or the nodes beside it are not there.
            CorruptVersionError: Index and document store do not belong together.
        """
        path = Path(persist_path)
        if not path.is_file():
            raise InputError(f"{path} is not there: name a file that `persist` wrote.", value=persist_path)
        nodes = docstore or SQLiteDocumentStore.from_persist_path(str(_nodes_beside(path)))
        index = read_index(path, mapped=nodes.read_only)  # which nobody changes
        store = cls(index, docstore=nodes)
        store._owns_docstore = docstore is None
        return store


def _embeddings(nodes: Sequence[BaseNode]) -> NDArray[np.float32]:
    if missing := next((node.node_id for node in nodes if node.embedding is None), None):
        raise InputError(f"Node {missing!r} has no embedding: let an embedding model run before the store.")
    lengths = sorted({len(node.get_embedding()) for node in nodes})
    if len(lengths) > 1:
        raise InputError(f"The embeddings have {lengths} dimensions: all must come from one embedding model.")
    return np.asarray([node.get_embedding() for node in nodes], dtype=np.float32)


def _without_embedding(node: BaseNode) -> BaseNode:
    return node if node.embedding is None else node.model_copy(update={"embedding": None})


def _nodes_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.nodes.sqlite")
