"""Semantic retrieval: rank chunks by the cosine similarity of their embeddings to the query's embedding."""

from __future__ import annotations

from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.retrievers.base import RankingRetriever
from llama_index_contextual.retrievers.queries import with_embedding
from llama_index_contextual.search.rank import Leg, semantic_leg
from llama_index_contextual.search.search import number_of_results, require_positive
from llama_index_contextual.stores.faiss import UnitFaissVectorStore
from llama_index_contextual.stores.store_index import StoreIndex
from llama_index_contextual.stores.vector_store import IndexVectorStore


class SemanticRetriever(VectorIndexRetriever, RankingRetriever):
    """Rank chunks by the cosine similarity of their contextualised embedding to the query's embedding.

    Args:
        index: A VectorStoreIndex over a `UnitFaissVectorStore`, or that of a project.
        similarity_top_k: Number of results of `retrieve`, 20 by default.
        top_k: The same.
        filters: Only nodes that pass are ranked.
        embed_model: Embeds the query; None for the model of the index.
        embedder: The same with a cache, which other retrievers may share; None for a cache of its own.

    Raises:
        InputError: The index has another kind of vector store.
    """

    def __init__(
        self,
        index: VectorStoreIndex,
        *,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        embed_model: BaseEmbedding | None = None,
        embedder: QueryEmbedder | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            index,
            similarity_top_k=number_of_results(similarity_top_k, top_k, 20),
            filters=filters,
            embed_model=embed_model,
            callback_manager=callback_manager,
            object_map=object_map,
            verbose=verbose,
        )
        self._chunk_index = _chunk_index(index)
        self._embedder = embedder or QueryEmbedder(self._embed_model)

    @classmethod
    def over(
        cls,
        index: ChunkIndex,
        embed_model: BaseEmbedding,
        *,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> Self:
        """Return a retriever over any index with vectors, such as that of a project's version.

        Args:
            index: The index.
            embed_model: The model that embedded its chunks.
            similarity_top_k: Number of results of `retrieve`, 20 by default.
            top_k: The same.
            filters: Only nodes that pass are ranked.
            callback_manager: Receives LlamaIndex's events.

        Raises:
            InputError: The index has no vectors.
        """
        if index.dimensions is None:
            raise InputError("The index has no vectors: create the project with the setting faiss.")
        retriever = cls.__new__(cls)
        # VectorIndexRetriever.__init__ would need a vector store.
        BaseRetriever.__init__(retriever, callback_manager=callback_manager)
        retriever._chunk_index, retriever._embed_model = index, embed_model
        retriever._embedder = QueryEmbedder(embed_model)
        retriever.similarity_top_k = number_of_results(similarity_top_k, top_k, 20)
        retriever._filters = filters
        return retriever

    @property
    def chunk_index(self) -> ChunkIndex:
        """The index."""
        return self._chunk_index

    def leg(self, query: QueryBundle, k: int, filters: MetadataFilters | None = None) -> Leg:
        """Rank the k best chunks by cosine similarity; an embedding of zeros has no hits.

        Raises:
            InputError: k is not positive, or the query's embedding does not fit the index.
            ModelError: The embedding model cannot be reached.
        """
        k, embedding = require_positive(k), self.prepare(query).embedding
        return semantic_leg(self._chunk_index, embedding, k, filters or self._filters, model=self._embedder.name)

    def prepare(self, bundle: QueryBundle) -> QueryBundle:
        """Return the query with its embedding."""
        if bundle.embedding is not None:
            return bundle
        return with_embedding(bundle, self._embedder.embed(bundle.embedding_strs))

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Return the query with its embedding."""
        if bundle.embedding is not None:
            return bundle
        return with_embedding(bundle, await self._embedder.aembed(bundle.embedding_strs))

    # VectorIndexRetriever comes first in the order of the base classes.
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return super(VectorIndexRetriever, self)._retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await super(VectorIndexRetriever, self)._aretrieve(query_bundle)


def _chunk_index(index: VectorStoreIndex) -> ChunkIndex:
    store = index.vector_store
    if isinstance(store, IndexVectorStore):
        return store.chunk_index
    if isinstance(store, UnitFaissVectorStore):
        return StoreIndex(store.docstore, vector_store=store)
    raise InputError("SemanticRetriever needs an index over UnitFaissVectorStore; for others use index.as_retriever().")
