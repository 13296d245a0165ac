"""FAISS vector stores with cosine similarity and filters, which return whole nodes.

Vectors are normalised to unit length and compared by inner product, so a larger score is always better. Row i of the
index is the i-th node of the document store. The store of a published version searches the index of each of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

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
from llama_index_contextual.index import compact, files
from llama_index_contextual.index.check import read_manifest
from llama_index_contextual.index.docstore import SQLiteDocumentStore
from llama_index_contextual.index.faiss_file import read_index, write_index
from llama_index_contextual.index.kvstore import refuse_write
from llama_index_contextual.index.part import Part, open_parts
from llama_index_contextual.index.scan import inner_products, top
from llama_index_contextual.index.storable import require_storable
from llama_index_contextual.index.version_docstore import VersionDocumentStore, first_rows

_BLOCK = 1_000  # number of vectors that are copied at once

Ranking = list[tuple[str, float]]
"""(node id, score), best first."""


class Rows(NamedTuple):
    """A ranking of rows, best first.

    Attributes:
        rows: The rows; shape (n,).
        scores: Their cosine similarities, -1 to 1; shape (n,).
        everything: Similarities of all rows, in the order of the rows; None if not all of them were computed.
        moments: Mean and standard deviation of the similarities of all rows, if the store estimates them.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]
    everything: NDArray[np.float32] | None = None
    moments: tuple[float, float] | None = None


class _Sample(NamedTuple):
    """The rows of a part with the smallest hashes of their ids.

    Attributes:
        rows: The rows; shape (n,).
        hashes: Their hashes, in ascending order; shape (n,).
        vectors: Their vectors; shape (n, dimensions).
        limit: All rows with hashes up to this one are in the sample.
    """

    rows: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    vectors: NDArray[np.float32]
    limit: int


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

    def __len__(self) -> int:
        return 0 if self._faiss_index is None else int(self._faiss_index.ntotal)

    def _ids(self) -> list[str]:
        """Return the node ids in the order of the rows."""
        ids = self._docstore.ids
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
        if self._docstore.read_only:
            refuse_write()
        # If two nodes have the same id, keep the last one, because the index must have one row per id.
        last = list({node.node_id: node for node in nodes}.values())
        if last:
            self.add_vectors(last, unit_vectors(_embeddings(last)))
        return [node.node_id for node in nodes]

    def add_vectors(self, nodes: Sequence[BaseNode], vectors: NDArray[np.float32]) -> None:
        """Add nodes with different ids and their unit vectors, one row each; embeddings of the nodes are ignored."""
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
        self.add_to_index(vectors)

    def add_to_index(self, vectors: NDArray[np.float32]) -> None:
        """Append unit vectors of nodes that the document store contains already."""
        self._file = None
        if self._faiss_index is None:
            self._faiss_index = faiss.IndexFlatIP(vectors.shape[1])
        self._faiss_index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Remove all nodes of a document, if there are any."""
        if self._docstore.read_only:
            refuse_write()
        info = self._docstore.get_ref_doc_info(ref_doc_id)
        self.delete_nodes(info.node_ids if info else [])

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Remove the nodes with these ids that pass the filters."""
        if self._docstore.read_only:
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
            self._faiss_index.remove_ids(np.asarray(self._docstore.rows(node_ids), dtype=np.int64))
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
        hits = self.rank_rows(vector, k, filters)
        ids = self._ids()
        return [(ids[row], score) for row, score in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]

    def rank_rows(self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None) -> Rows:
        """Rank like `rank`, but return rows instead of ids."""
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
        # Because of rounding, the product of two unit vectors may exceed 1.
        return Rows(rows.astype(np.int64), np.clip(scores.astype(np.float64), -1.0, 1.0), everything)

    def _search(
        self, query: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32] | None]:
        return search_index(self._faiss_index, query, k, mask)

    def vectors(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the stored vectors of some rows."""
        if len(rows) == 0:
            return np.zeros((0, self.dimensions or 0), dtype=np.float32)
        return reconstructed(self._faiss_index, np.asarray(rows, dtype=np.int64))

    def sampled_vectors(self, size: int) -> NDArray[np.float32]:
        """Return the vectors of at most `size` nodes, chosen by the hashes of their ids."""
        return self.vectors(compact.sampled(self._ids(), size)[0])

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Answer a LlamaIndex query with nodes, their cosine similarities (-1 to 1) and their ids."""
        if query.query_embedding is None:
            raise InputError("The query has no embedding: pass an embed_model to the retriever.")
        vector = np.asarray(query.query_embedding, dtype=np.float32)
        hits = self._rank(vector, query.similarity_top_k, self._mask(query))
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
        masks = [self._docstore.mask(query.filters)]
        if query.node_ids:
            masks.append(np.isin(np.asarray(self._docstore.ids), query.node_ids))
        if query.doc_ids:
            infos = [self._docstore.get_ref_doc_info(doc_id) for doc_id in query.doc_ids]
            of_documents = [node_id for info in infos if info for node_id in info.node_ids]
            masks.append(np.isin(np.asarray(self._docstore.ids), of_documents))
        present = [mask for mask in masks if mask is not None]
        return np.logical_and.reduce(present) if present else None

    def compact(self, kind: FaissIndex) -> None:
        """Replace an exact index by a compact one if `kind` allows it and it is accurate enough; see `compact.py`."""
        if isinstance(self._faiss_index, faiss.IndexFlat):
            self._file = None
            ids = self._ids() if kind == "auto" else []
            self._faiss_index = compact.compress(self._faiss_index, kind, ids)

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
        shared = None if self._owns_docstore else self._docstore.path
        if self._file is not None and (self._owns_docstore or shared is not None):
            data |= {"persist_path": str(self._file), "docstore_path": None if shared is None else str(shared)}
        return {**data, "vectors": len(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Open the store that `to_dict` describes.

        Raises:
            InputError: The store was not empty, and it had not been persisted since its last change.
        """
        if "version_directory" in data:
            return VersionVectorStore.from_dict(data)  # type: ignore[return-value]
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
        """Return the index as LlamaIndex's own vector store, which identifies nodes by row.

        The vectors of a version that are not in a single file are copied to an exact index in memory.
        """
        index = self._faiss_index
        if index is None and self.dimensions:
            index = faiss.IndexFlatIP(self.dimensions)
            for start in range(0, len(self), _BLOCK):
                index.add(self.vectors(range(start, min(start + _BLOCK, len(self)))))
        return FaissVectorStore(faiss_index=index)

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
        index = read_index(path, mapped=nodes.read_only)  # a published file never changes
        store = cls(index, docstore=nodes)
        store._owns_docstore = docstore is None
        store._file = path
        return store


class VersionVectorStore(UnitFaissVectorStore):
    """The vectors of a published version, which cannot be changed.

    Args:
        docstore: The chunks of the version.
        directory: Directory of the version.
        dimensions: Length of the vectors.
    """

    _directory: Path = PrivateAttr()
    _dimensions: int = PrivateAttr()

    def __init__(self, docstore: VersionDocumentStore, *, directory: Path, dimensions: int) -> None:
        parts = docstore.parts
        super().__init__(docstore=docstore)
        self._directory, self._dimensions = directory, dimensions
        if len(parts) == 1 and parts[0].rows is None and parts[0].has_semantic:
            self._faiss_index = parts[0].index

    @property
    def dimensions(self) -> int:
        """Length of the vectors."""
        return self._dimensions

    def __len__(self) -> int:
        return len(self._docstore)

    def _parts(self) -> Iterator[tuple[int, Part]]:
        """Yield the parts with vectors, each with its first row."""
        docstore: Any = self._docstore
        parts = docstore.parts
        return ((start, part) for start, part in zip(first_rows(parts).tolist(), parts, strict=False) if part.size)

    def _search(
        self, query: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32] | None]:
        scores, rows, everything = [np.zeros(0, dtype=np.float32)], [np.zeros(0, dtype=np.int64)], []
        for start, part in self._parts():
            allowed = None if mask is None else mask[start : start + part.size]
            if part.rows is not None:
                passing, allowed = allowed, np.zeros(part.index.ntotal, dtype=np.bool_)
                allowed[part.rows] = True if passing is None else passing
            best, hits, of_part = search_index(part.index, query, k, allowed)
            if part.rows is not None:
                hits = np.searchsorted(part.rows, hits)
                of_part = None if of_part is None else of_part[part.rows]
            scores.append(best)
            rows.append(hits + start)
            everything.append(of_part)
        merged_scores, merged_rows = np.concatenate(scores), np.concatenate(rows)
        best, places = top(merged_scores, k)  # ties are in the order of the rows
        known = [of_part for of_part in everything if of_part is not None]
        return best, merged_rows[places], np.concatenate(known) if known and len(known) == len(everything) else None

    def vectors(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the stored vectors of some rows."""
        wanted = np.asarray(rows, dtype=np.int64)
        vectors = np.zeros((len(wanted), self._dimensions), dtype=np.float32)
        for start, part in self._parts():
            places = np.flatnonzero((wanted >= start) & (wanted < start + part.size))
            if len(places):
                of_part = wanted[places] - start
                of_part = of_part if part.rows is None else part.rows[of_part]
                vectors[places] = reconstructed(part.index, of_part)
        return vectors

    def sampled_vectors(self, size: int) -> NDArray[np.float32]:
        """Return the vectors of at most `size` nodes, chosen by the hashes of their ids.

        The sample does not depend on how the nodes are distributed over parts, except that it may be a little smaller
        where some of them are gone. Versions share the samples of their parts.
        """
        drawn = [(part, part.shared(f"sample-{size}", partial(_draw, part, size))) for _, part in self._parts()]
        limit = min((sample.limit for _, sample in drawn), default=0)
        hashes, vectors = [np.zeros(0, dtype=np.uint64)], [np.zeros((0, self._dimensions), dtype=np.float32)]
        for part, sample in drawn:
            chosen = sample.hashes <= limit
            if part.live is not None:
                chosen &= part.live[sample.rows]
            hashes.append(sample.hashes[chosen])
            vectors.append(sample.vectors[chosen])
        order = np.argsort(np.concatenate(hashes), kind="stable")[:size]
        return np.asarray(np.concatenate(vectors)[order])

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the directory of the version, with which `open_storage_context` opens it again."""
        return {"class_name": self.class_name(), "version_directory": str(self._directory)}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Open the vectors of the version that `to_dict` names.

        Raises:
            CorruptVersionError: The version is damaged or was removed.
        """
        directory = Path(data["version_directory"])
        manifest = read_manifest(directory)
        docstore = VersionDocumentStore(open_parts(directory, manifest, "xxh3"))
        return cls(docstore, directory=directory, dimensions=manifest.dimensions or 0)


def reconstructed(index: Any, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the vectors of some rows of an index; shape (rows, dimensions).

    For more than 1,000 of them, FAISS would start threads that a forked child does not have and would wait for.
    """
    vectors = np.empty((len(rows), index.d), dtype=np.float32)
    for start in range(0, len(rows), _BLOCK):
        index.reconstruct_batch(rows[start : start + _BLOCK], vectors[start : start + _BLOCK])
    return vectors


def search_index(
    index: Any, query: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32] | None]:
    """Return scores and rows of the k best hits, best first, and the scores of all rows if they were computed.

    Args:
        index: An inner-product index.
        query: A unit vector; shape (1, dimensions).
        k: Maximum number of hits.
        mask: Rows that may be hits; None for all.
    """
    if isinstance(index, faiss.IndexFlat):
        (everything,) = inner_products(index.get_xb(), (index.ntotal, index.d), query)
        if mask is None:
            return *top(everything, k), everything
        allowed = np.flatnonzero(mask)
        scores, places = top(everything[allowed], k)
        return scores, allowed[places], everything
    if isinstance(index, faiss.IndexRefine):
        return *compact.search(index, query, k, mask), None
    parameters = None
    if mask is not None:
        inverted = isinstance(index, faiss.IndexIVF)
        kind = faiss.SearchParametersIVF if inverted else faiss.SearchParameters
        parameters = kind(sel=faiss.IDSelectorBatch(np.flatnonzero(mask)))  # type: ignore[call-arg]
    scores, rows = index.search(query, k, params=parameters)
    is_hit = rows[0] >= 0
    return scores[0][is_hit], rows[0][is_hit], None


def _draw(part: Part, size: int) -> _Sample:
    rows, hashes = compact.sampled(part.docstore.ids, size)
    limit = np.iinfo(np.uint64).max if len(rows) == part.index.ntotal else hashes[-1]
    return _Sample(rows, hashes, reconstructed(part.index, rows), int(limit))


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
