"""FAISS vector stores with cosine similarity and filters, which return whole nodes.

Vectors are normalised to unit length and compared by inner product, so a larger score is always better. Row i of the
index is the i-th node of the document store.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
from fsspec import AbstractFileSystem
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
from llama_index.vector_stores.faiss import FaissVectorStore
from llama_index.vector_stores.faiss.base import DEFAULT_PERSIST_PATH
from numpy.typing import NDArray
from pydantic import PrivateAttr

from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.base import NO_HITS, NO_SCALE, Hits, Scale
from llama_index_contextual.index.kvstore import refuse_write
from llama_index_contextual.index.nodes import NodeTable
from llama_index_contextual.index.storable import require_storable
from llama_index_contextual.index.vectors import (
    SAMPLE,
    products,
    read_index,
    reconstructed,
    sampled,
    search_index,
    write_index,
)
from llama_index_contextual.stores.docstore import SQLiteDocumentStore

Ranking = list[tuple[str, float]]
"""(node id, score), best first."""


class UnitFaissVectorStore(FaissVectorStore):
    """FAISS vector store for unit vectors that returns nodes.

    Args:
        faiss_index: An inner-product index; None creates an exact one at the first `add`.
        docstore: Store of the nodes. Pass the one of the StorageContext to share it. Without it, the nodes are stored
            next to the vectors, also on disk.

    Raises:
        InputError: The index does not use the inner product.
        CorruptVersionError: Index and document store have different numbers of nodes.

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
    _file: Path | None = PrivateAttr(default=None)
    _sample: tuple[int, NDArray[np.float32] | None] | None = PrivateAttr(default=None)

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
        """Return the name of the class in serialized components."""
        return "UnitFaissVectorStore"

    @property
    def dimensions(self) -> int | None:
        """Length of the vectors; None before the first `add`."""
        return None if self._faiss_index is None else int(self._faiss_index.d)

    @property
    def docstore(self) -> SQLiteDocumentStore:
        """Store of the nodes."""
        return self._docstore

    @property
    def _nodes(self) -> NodeTable:
        return self._docstore.nodes

    def __len__(self) -> int:
        return 0 if self._faiss_index is None else int(self._faiss_index.ntotal)

    def _ids(self) -> list[str]:
        """Return the node ids in the order of the rows."""
        ids = self._nodes.ids
        if len(ids) != len(self):
            raise CorruptVersionError(
                f"The FAISS index contains {len(self)} vectors, the document store {len(ids)} nodes: they belong to"
                f" different versions, or nodes were added to the document store directly; in the latter case, give the"
                f" vector store its own document store."
            )
        return ids

    def __bool__(self) -> bool:
        # LlamaIndex uses `vector_store or SimpleVectorStore()`, which must not replace an empty store.
        return True

    # ---- writing -------------------------------------------------------------------------------------------------

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: Any) -> list[str]:
        """Add nodes with their embeddings; existing nodes are replaced.

        Raises:
            InputError: A node has no embedding, or its length differs from those in the index.
            ReadOnlyVersionError: The store is a published version.
        """
        if self._nodes.read_only:
            refuse_write()
        # If two nodes have the same id, keep the last one, because the index must have one row per id.
        last = list({node.node_id: node for node in nodes}.values())
        if last:
            self.add_vectors(last, unit_vectors(_embeddings(last)))
        return [node.node_id for node in nodes]

    def add_vectors(self, nodes: Sequence[BaseNode], vectors: NDArray[np.float32]) -> None:
        """Add nodes with different ids and their unit vectors, one row each; embeddings of the nodes are ignored."""
        if self._nodes.read_only:
            refuse_write()
        if vectors.shape[1] != (self.dimensions or vectors.shape[1]):
            raise InputError(
                f"An embedding has {vectors.shape[1]} dimensions, the index {self.dimensions}: it was built with"
                f" another embedding model."
            )
        if known := self._nodes.known([node.node_id for node in nodes]):
            require_storable(nodes)  # before anything is removed
            self._remove(known)
        self._docstore.add_documents([_without_embedding(node) for node in nodes])
        self._file = None
        if self._faiss_index is None:
            self._faiss_index = faiss.IndexFlatIP(vectors.shape[1])
        self._faiss_index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Remove all nodes of a document, if there are any."""
        if self._nodes.read_only:
            refuse_write()
        self.delete_nodes(self._nodes.ids_of_document(ref_doc_id))

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Remove the nodes with these ids that pass the filters."""
        if self._nodes.read_only:
            refuse_write()
        mask = self._mask(VectorStoreQuery(node_ids=node_ids, filters=filters)) if node_ids or filters else None
        if mask is not None:
            ids = self._ids()
            self._remove([ids[row] for row in np.flatnonzero(mask)])

    def _remove(self, node_ids: list[str]) -> None:
        # A shared document store may contain nodes whose vectors have not been added yet.
        if node_ids and len(self):
            kind = type(self._faiss_index)
            if not issubclass(kind, faiss.IndexFlat):
                raise InputError(f"Nodes of a {kind.__name__} cannot be removed or replaced: build a new one.")
            self._ids()
            self._file = None
            self._faiss_index.remove_ids(np.asarray(self._nodes.rows(node_ids), dtype=np.int64))
        for node_id in node_ids:
            self._docstore.delete_document(node_id)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def rank(self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Return the ids of the k nodes with the largest cosine similarity to `vector`, without loading nodes.

        Args:
            vector: The query's embedding, not necessarily of unit length; a zero vector has no hits.
            k: Maximum number of nodes.
            filters: Only rank nodes that pass these filters.
        """
        hits, _ = self.rank_rows(vector, k, self._nodes.mask(filters))
        ids = self._ids()
        return [(ids[row], score) for row, score in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]

    def rank_rows(
        self, vector: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None = None
    ) -> tuple[Hits, Scale]:
        """Rank like `rank`, but return rows, and mean and standard deviation of the similarities of all nodes.

        Args:
            vector: The query's embedding.
            k: Maximum number of nodes.
            mask: Rows to rank; None for all.
        """
        query = unit_vectors(np.asarray(vector, dtype=np.float32).reshape(1, -1))
        if len(self) == 0 or not query.any() or (mask is not None and not mask.any()):
            return NO_HITS, NO_SCALE
        if query.shape[1] != self.dimensions:
            raise InputError(
                f"The query's embedding has {query.shape[1]} dimensions, the index {self.dimensions}:"
                f" search with the embedding model that built the index."
            )
        scores, rows, similarities = search_index(self._faiss_index, query, max(0, min(k, len(self._ids()))), mask)
        if similarities is None:
            similarities = self._sampled_similarities(query[0], scores)
        # Because of rounding, the product of two unit vectors may exceed 1.
        hits = Hits(rows.astype(np.int64), np.clip(scores.astype(np.float64), -1.0, 1.0))
        return hits, Scale(float(similarities.mean()), float(similarities.std()))

    def _sampled_similarities(self, query: NDArray[np.float32], scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the similarities of a sample of the nodes; those of the hits if no sample can be drawn."""
        if self._sample is None or self._sample[0] != len(self):
            try:
                self._sample = len(self), self.vectors(sampled(self._ids(), SAMPLE)[0])
            except RuntimeError:  # an IVF index cannot reconstruct vectors; FAISS raises nothing narrower
                self._sample = len(self), None
        sample = self._sample[1]
        return scores if sample is None else products(sample, query)

    def vectors(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the stored vectors of some rows."""
        if len(rows) == 0:
            return np.zeros((0, self.dimensions or 0), dtype=np.float32)
        return reconstructed(self._faiss_index, np.asarray(rows, dtype=np.int64))

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Answer a LlamaIndex query with nodes, their cosine similarities (-1 to 1) and their ids."""
        if query.query_embedding is None:
            raise InputError("The query has no embedding: pass an embed_model to the retriever.")
        vector = np.asarray(query.query_embedding, dtype=np.float32)
        hits, _ = self.rank_rows(vector, query.similarity_top_k, self._mask(query))
        known = self._ids()
        ids = [known[row] for row in hits.rows.tolist()]
        return VectorStoreQueryResult(nodes=self._docstore.get_nodes(ids), similarities=hits.scores.tolist(), ids=ids)

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return the nodes with these ids that pass the filters, sorted by position."""
        mask = self._mask(VectorStoreQuery(node_ids=node_ids, filters=filters))
        ids = self._ids()
        return self._docstore.get_nodes(ids if mask is None else [ids[row] for row in np.flatnonzero(mask)])

    def _mask(self, query: VectorStoreQuery) -> NDArray[np.bool_] | None:
        """Return a mask of the rows that a query allows; empty lists, as VectorStoreIndex passes, have no effect."""
        masks = [self._nodes.mask(query.filters)]
        if query.node_ids:
            masks.append(np.isin(np.asarray(self._nodes.ids), query.node_ids))
        if query.doc_ids:
            of_documents = [node_id for doc_id in query.doc_ids for node_id in self._nodes.ids_of_document(doc_id)]
            masks.append(np.isin(np.asarray(self._nodes.ids), of_documents))
        present = [mask for mask in masks if mask is not None]
        return np.logical_and.reduce(present) if present else None

    # ---- files -----------------------------------------------------------------------------------------------------

    def persist(self, persist_path: str = DEFAULT_PERSIST_PATH, fs: AbstractFileSystem | None = None) -> None:
        """Write the index to a file, and the nodes next to it unless the document store is shared."""
        index = self.to_stock().client
        if index is None:
            raise InputError("The vector store is empty: add nodes before it is persisted.")
        path = Path(persist_path)
        files.make_directory(path.parent)
        write_index(index, path)
        if self._owns_docstore:
            self._docstore.persist(str(_nodes_beside(path)))
        self._file = path

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return what `from_dict` needs to open the store again: the files of index and nodes, not their content."""
        data: dict[str, Any] = super().to_dict(**kwargs)
        shared = None if self._owns_docstore else self._nodes.path
        if self._file is not None and (self._owns_docstore or shared is not None):
            data |= {"persist_path": str(self._file), "docstore_path": None if shared is None else str(shared)}
        return {**data, "vectors": len(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Open the store that `to_dict` describes.

        Raises:
            InputError: The store was not empty, and it had not been persisted since its last change.
        """
        values = {**data, **kwargs}
        if values.get("persist_path") is None:
            if values.get("vectors"):
                raise InputError(
                    f"The vector store had {values['vectors']} vectors that were in memory only: call `persist` after"
                    f" the last change and before `to_dict`, and persist a shared document store too."
                )
            return cls()
        nodes = values.get("docstore_path")
        docstore = None if nodes is None else SQLiteDocumentStore(Path(nodes), access="read")
        return cls.from_persist_path(values["persist_path"], docstore=docstore)

    def to_stock(self) -> FaissVectorStore:
        """Return the index as LlamaIndex's own vector store, which identifies nodes by row."""
        return FaissVectorStore(faiss_index=self._faiss_index)

    @classmethod
    def from_persist_path(
        cls,
        persist_path: str,
        fs: AbstractFileSystem | None = None,
        *,
        docstore: SQLiteDocumentStore | None = None,
    ) -> Self:
        """Load an index; without `docstore`, load the nodes next to it into memory, where they can be changed.

        Raises:
            InputError: The index or the nodes next to it do not exist.
            CorruptVersionError: Index and document store have different numbers of nodes.
        """
        path = Path(persist_path)
        if not path.is_file():
            raise InputError(f"{path} does not exist: name a file that `persist` wrote.", value=persist_path)
        nodes = docstore or SQLiteDocumentStore.from_persist_path(str(_nodes_beside(path)))
        index = read_index(path, mapped=nodes.nodes.read_only)  # a published file never changes
        store = cls(index, docstore=nodes)
        store._owns_docstore = docstore is None
        store._file = path
        return store


def _embeddings(nodes: Sequence[BaseNode]) -> NDArray[np.float32]:
    if missing := next((node.node_id for node in nodes if node.embedding is None), None):
        raise InputError(f"Node {missing!r} has no embedding: run an embedding model before adding it to the store.")
    lengths = sorted({len(node.get_embedding()) for node in nodes})
    if len(lengths) > 1:
        raise InputError(f"The embeddings have {lengths} dimensions: all must come from one embedding model.")
    return np.asarray([node.get_embedding() for node in nodes], dtype=np.float32)


def _without_embedding(node: BaseNode) -> BaseNode:
    return node if node.embedding is None else node.model_copy(update={"embedding": None})


def _nodes_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.nodes.sqlite")
