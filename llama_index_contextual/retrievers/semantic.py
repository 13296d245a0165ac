"""Cosine similarity over a version's FAISS index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.calls import RetryPolicy, acall, call, describe
from llama_index_contextual.clients import PerLoop
from llama_index_contextual.errors import InputError, ModelError
from llama_index_contextual.models import model_name
from llama_index_contextual.results import LegScore
from llama_index_contextual.retrievers.base import Ranking, RankingRetriever, as_bundle, leg_evidence
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore

_RETRY = RetryPolicy(attempts=3)


class SemanticRetriever(VectorIndexRetriever, RankingRetriever):
    """Ranks chunks by the cosine similarity of their contextualised embedding to the query's.

    Args:
        index: A VectorStoreIndex over a `UnitFaissVectorStore`.
        similarity_top_k: Results of `retrieve`.
        filters: Only nodes that pass count.
        embed_model: Embeds the query; None takes the index's.

    Raises:
        InputError: The index is over another kind of vector store.
    """

    def __init__(
        self,
        index: VectorStoreIndex,
        *,
        similarity_top_k: int = 20,
        filters: MetadataFilters | None = None,
        embed_model: BaseEmbedding | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        if not isinstance(index.vector_store, UnitFaissVectorStore):
            raise InputError(
                "SemanticRetriever needs an index over UnitFaissVectorStore; for others use index.as_retriever()."
            )
        super().__init__(
            index,
            similarity_top_k=similarity_top_k,
            filters=filters,
            embed_model=embed_model,
            callback_manager=callback_manager,
            object_map=object_map,
            verbose=verbose,
        )
        self._store: UnitFaissVectorStore = index.vector_store
        self._model: PerLoop[BaseEmbedding] = PerLoop(lambda: self._embed_model)

    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Return the k most similar (node id, cosine), best first."""
        bundle = as_bundle(query)
        embedding = bundle.embedding or self._embed(bundle)
        return self._store.rank(np.asarray(embedding, dtype=np.float32), k, filters or self._filters)

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Return the query with its embedding."""
        if bundle.embedding is not None:
            return bundle
        try:
            model = await self._model.running()
            embedding = await acall(lambda: model.aget_agg_embedding_from_queries(bundle.embedding_strs), _RETRY)
        except Exception as error:
            raise self._explained(error) from error
        prepared = copy(bundle)  # of its own class, with whatever that class carries
        prepared.embedding = embedding
        return prepared

    @property
    def docstore(self) -> SQLiteDocumentStore:
        """Where the nodes are."""
        return self._store.docstore

    def evidence(
        self, query: QueryType, ranking: Ranking, chosen: Sequence[str], filters: MetadataFilters | None = None
    ) -> dict[str, dict[str, LegScore]]:
        """Return cosine and rank of the chosen ids."""
        return leg_evidence("semantic", ranking, chosen)

    def _embed(self, bundle: QueryBundle) -> list[float]:
        try:
            model = self._model.sync()
            return call(lambda: model.get_agg_embedding_from_queries(bundle.embedding_strs), _RETRY)
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, ModelError):
            return error
        message = describe(error, setting="embed_model", model=model_name(self._embed_model))
        return ModelError(message, setting="embed_model")

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.search(query_bundle, self._similarity_top_k)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, await self.aprepare(query_bundle))
