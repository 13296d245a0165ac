"""Cosine similarity over a version's FAISS index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
from llama_index_contextual.retrievers.base import RankingRetriever, as_bundle
from llama_index_contextual.retrievers.cache import LRUCache
from llama_index_contextual.retrievers.fusion import Hits
from llama_index_contextual.retrievers.trace import Trace
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore

_RETRY = RetryPolicy(attempts=3)
_KNOWN_QUERIES = 512
_IN_FLIGHT = 8


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
        # Without `self`: a cycle would keep the files of a version open until the garbage is collected.
        model = self._embed_model
        self._known: LRUCache[tuple[str, ...], list[float]] = LRUCache(_KNOWN_QUERIES)
        self._model: PerLoop[BaseEmbedding] = PerLoop(lambda: model)

    def trace(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Trace:
        """Rank the k best by cosine similarity."""
        bundle = as_bundle(query)
        embedding = bundle.embedding or self._known.get(_key(bundle)) or self._embed(bundle)
        hits = self._store.rank_rows(np.asarray(embedding, dtype=np.float32), k, filters or self._filters)
        return Trace(Hits(*hits), name="semantic")

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Return the query with its embedding."""
        if bundle.embedding is not None:
            return bundle
        embedding = self._known.get(_key(bundle))
        if embedding is None:
            try:
                model = await self._model.running()
                embedding = await acall(lambda: model.aget_agg_embedding_from_queries(bundle.embedding_strs), _RETRY)
            except Exception as error:
                raise self._explained(error) from error
            self._known.put(_key(bundle), embedding)
        return _with_embedding(bundle, embedding)

    def prepare_many(self, bundles: list[QueryBundle]) -> list[QueryBundle]:
        """Return the queries with their embeddings, several at a time."""
        different = {_key(bundle): bundle for bundle in bundles if bundle.embedding is None}
        found = {key: self._known.get(key) for key in different}
        missing = [key for key, embedding in found.items() if embedding is None]
        found |= dict(zip(missing, self._embed_many([different[key] for key in missing]), strict=True))
        embeddings = [found.get(_key(bundle)) for bundle in bundles]
        return [
            bundle if bundle.embedding is not None or embedding is None else _with_embedding(bundle, embedding)
            for bundle, embedding in zip(bundles, embeddings, strict=True)
        ]

    @property
    def docstore(self) -> SQLiteDocumentStore:
        """Where the nodes are."""
        return self._store.docstore

    def _embed(self, bundle: QueryBundle) -> list[float]:
        try:
            model = self._model.sync()
            embedding = call(lambda: model.get_agg_embedding_from_queries(bundle.embedding_strs), _RETRY)
        except Exception as error:
            raise self._explained(error) from error
        self._known.put(_key(bundle), embedding)
        return embedding

    def _embed_many(self, bundles: Sequence[QueryBundle]) -> list[list[float]]:
        # LlamaIndex has no call for several queries; their requests overlap instead.
        if not bundles:
            return []
        with ThreadPoolExecutor(min(_IN_FLIGHT, len(bundles))) as threads:
            return list(threads.map(self._embed, bundles))

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, ModelError):
            return error
        message = describe(error, setting="embed_model", model=model_name(self._embed_model))
        return ModelError(message, setting="embed_model")

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.search(query_bundle, self._similarity_top_k)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, await self.aprepare(query_bundle))


def _key(bundle: QueryBundle) -> tuple[str, ...]:
    return tuple(bundle.embedding_strs)


def _with_embedding(bundle: QueryBundle, embedding: list[float]) -> QueryBundle:
    prepared = copy(bundle)  # of its own class, with whatever that class carries
    prepared.embedding = embedding
    return prepared
