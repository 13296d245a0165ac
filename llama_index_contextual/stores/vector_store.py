"""The vectors of an index as a LlamaIndex vector store, which cannot be changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.vector_stores.faiss import FaissVectorStore
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.base import VersionIndex
from llama_index_contextual.index.kvstore import refuse_write
from llama_index_contextual.index.vectors import BLOCK
from llama_index_contextual.index.version import OpenVersion


class IndexVectorStore(BasePydanticVectorStore):
    """The vectors of a published version, which cannot be changed.

    Args:
        index: The index of the version.
        version_directory: Directory of the version, with which `from_dict` opens it again.
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
        """Return the name of the class in serialized components."""
        return "IndexVectorStore"

    @property
    def chunk_index(self) -> VersionIndex:
        """The index."""
        return self._index

    @property
    def client(self) -> VersionIndex:
        """The index."""
        return self._index

    def __len__(self) -> int:
        return len(self._index.ids)

    def __bool__(self) -> bool:
        # LlamaIndex uses `vector_store or SimpleVectorStore()`, which must not replace an empty store.
        return True

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Answer a LlamaIndex query with nodes, their cosine similarities (-1 to 1) and their ids."""
        if query.query_embedding is None:
            raise InputError("The query has no embedding: pass an embed_model to the retriever.")
        vector = unit_vectors(np.asarray([query.query_embedding], dtype=np.float32))[0]
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

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return the nodes with these ids that pass the filters, sorted by position."""
        docstore = self._index.docstore
        mask = docstore.mask(filters)
        rows = np.arange(len(self)) if mask is None else np.flatnonzero(mask)
        if node_ids:
            rows = np.intersect1d(rows, docstore.rows(docstore.known(node_ids)))
        return [chunk.node for chunk in self._index.fetch(rows.tolist())]

    def _allowed(self, node_ids: Sequence[str] | None, doc_ids: Sequence[str] | None) -> NDArray[np.int64] | None:
        """Return the rows that a query names; None for all. Empty lists, as VectorStoreIndex passes, have no effect."""
        docstore = self._index.docstore
        sets = [docstore.rows(docstore.known(node_ids))] if node_ids else []
        if doc_ids:
            sets.append(docstore.rows([node_id for doc_id in doc_ids for node_id in docstore.ids_of_document(doc_id)]))
        if not sets:
            return None
        return np.asarray(sorted(set.intersection(*map(set, sets))), dtype=np.int64)

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: Any) -> list[str]:
        """Refuse, as a published version cannot be changed.

        Raises:
            ReadOnlyVersionError: Always.
        """
        refuse_write()

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Refuse, as a published version cannot be changed."""
        refuse_write()

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Refuse, as a published version cannot be changed."""
        refuse_write()

    def to_stock(self) -> FaissVectorStore:
        """Return the vectors as LlamaIndex's own vector store, in an exact index that identifies nodes by row."""
        index = faiss.IndexFlatIP(self._index.dimensions or 0)
        for start in range(0, len(self), BLOCK):
            index.add(self._index.vectors(np.arange(start, min(start + BLOCK, len(self)))))
        return FaissVectorStore(faiss_index=index)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the directory of the version, with which `from_dict` opens it again."""
        return {"class_name": self.class_name(), "version_directory": self.version_directory}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Open the vectors of the version that `to_dict` names.

        Raises:
            CorruptVersionError: The version is damaged or was removed.
        """
        directory = Path(data["version_directory"])
        return cls(OpenVersion(directory).index, version_directory=str(directory))
