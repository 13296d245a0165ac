"""Retrieval by meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import itemgetter

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.vector_stores.faiss import FaissVectorStore

from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.retrievers.base import CheckedRetriever, query_of, search_nodes
from llama_index_contextual.search.filters import Filters, to_filters
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.search.search import SearchSettings, number_of_results
from llama_index_contextual.stores import IndexVectorStore

_L2 = 1  # faiss.METRIC_L2, without the import, which is slow


class SemanticRetriever(VectorIndexRetriever, CheckedRetriever):
    """Rank chunks by the cosine similarity of their contextualised embeddings to the query's embedding.

    Any other LlamaIndex index is searched by its vector store, whose scores are returned. Distances, which a FAISS
    index with the L2 metric returns, are negated, so that the highest score is the best.

    Args:
        index: The index of a project, `project.index`, or any other VectorStoreIndex.
        similarity_top_k: Number of results that `retrieve` returns; None for the default of the `top_k` setting.
        top_k: The same as `similarity_top_k`.
        filters: Filters in any form; see `to_filters`. Only nodes that pass them are ranked.
        spotlight: Whether the first nodes are reranked by their best sentence or table row, if the index belongs to a
            project. For other indexes, use `SpotlightRerank`.
        embed_model: Model that embeds the query; None uses the model of the index.
        callback_manager: Manager that receives LlamaIndex's events.

    Raises:
        InputError: `index` is not a LlamaIndex index.

    Attributes:
        chunk_index: The index, if it belongs to a project; otherwise None.
        embedder: Embeds the queries.
    """

    def __init__(
        self,
        index: VectorStoreIndex,
        *,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: Filters | None = None,
        spotlight: bool = SearchSettings.spotlight,
        embed_model: BaseEmbedding | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        if not isinstance(index, VectorStoreIndex):
            raise InputError(
                "SemanticRetriever needs a LlamaIndex index: `project.index`, or any VectorStoreIndex; for a vector"
                " store, pass VectorStoreIndex.from_vector_store(...).",
                value=index,
            )
        super().__init__(
            index,
            similarity_top_k=number_of_results(similarity_top_k, top_k, SearchSettings.k),
            filters=to_filters(filters),
            embed_model=embed_model,
            callback_manager=callback_manager,
        )
        self.spotlight = spotlight
        store = self._vector_store
        self.chunk_index: ChunkIndex | None = store.client if isinstance(store, IndexVectorStore) else None
        self.embedder = QueryEmbedder(self._embed_model)

    @property
    def settings(self) -> SearchSettings:
        """The settings of a search in the index of a project."""
        return SearchSettings(mode="semantic", k=self.similarity_top_k, filters=self._filters, spotlight=self.spotlight)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.chunk_index is not None:
            return search_nodes(query_bundle, self.chunk_index, self.settings, self.embedder)
        return self._results(self._get_nodes_with_embeddings(self._embedded(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.chunk_index is not None:
            return await asyncio.to_thread(self._retrieve, query_bundle)
        bundle = await asyncio.to_thread(self._embedded, query_bundle)
        return self._results(await self._aget_nodes_with_embeddings(bundle))

    def _embedded(self, bundle: QueryBundle) -> QueryBundle:
        """Return a query with its embedding, if the vector store needs one."""
        question = query_of(bundle)
        embedding = bundle.embedding
        if embedding is None and self._needs_embedding():
            embedding = self.embedder.embed(question.embedded)
        return QueryBundle(question.text, embedding=embedding)

    def _results(self, hits: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        return [
            RetrievedChunk.of(rank, NodeWithScore(node=hit.node, score=score))
            for rank, (hit, score) in enumerate(similarities(hits, self._vector_store), start=1)
        ]


def similarities(hits: Sequence[NodeWithScore], store: object) -> list[tuple[NodeWithScore, float]]:
    """Return hits with their scores, best first.

    Args:
        hits: The hits.
        store: The vector store that returned them. With the L2 metric, FAISS returns distances, which are negated.
    """
    has_distances = isinstance(store, FaissVectorStore) and store.client.metric_type == _L2
    pairs = [(hit, -(hit.score or 0.0) if has_distances else hit.score or 0.0) for hit in hits]
    return sorted(pairs, key=itemgetter(1), reverse=True)
