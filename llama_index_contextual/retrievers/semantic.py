"""Semantic retrieval: rank chunks by the cosine similarity of their embeddings to the query's embedding."""

from __future__ import annotations

import asyncio
import functools
import hashlib
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
from numpy.typing import NDArray

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.calls import RetryPolicy, acall, call, describe
from llama_index_contextual._utils.clients import PerLoop
from llama_index_contextual.embeddings.batching import cut_to_input
from llama_index_contextual.errors import InputError, ModelError
from llama_index_contextual.index.analysis import shortened
from llama_index_contextual.index.docstore import SQLiteDocumentStore
from llama_index_contextual.index.faiss_store import Rows, UnitFaissVectorStore
from llama_index_contextual.index.scan import products
from llama_index_contextual.models import model_name
from llama_index_contextual.retrievers.base import Ranking, RankingRetriever
from llama_index_contextual.search.fusion import Hits, Scale
from llama_index_contextual.search.queries import as_bundle, number_of_results, require_positive

_RETRY = RetryPolicy(attempts=3)
_CACHE_SIZE = 512
_CONCURRENT_CALLS = 8

_SAMPLE = 1_024
"""Number of vectors from which mean and deviation of the similarities are estimated if not all vectors are compared;
the deviation is accurate to about 2 %."""


class SemanticRetriever(VectorIndexRetriever, RankingRetriever):
    """Rank chunks by the cosine similarity of their contextualised embedding to the query's embedding.

    Args:
        index: A VectorStoreIndex over a `UnitFaissVectorStore`.
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
        if not isinstance(index.vector_store, UnitFaissVectorStore):
            raise InputError(
                "SemanticRetriever needs an index over UnitFaissVectorStore; for others use index.as_retriever()."
            )
        super().__init__(
            index,
            similarity_top_k=number_of_results(similarity_top_k, top_k, 20),
            filters=filters,
            embed_model=embed_model,
            callback_manager=callback_manager,
            object_map=object_map,
            verbose=verbose,
        )
        self._store: UnitFaissVectorStore = index.vector_store
        self._embedder = embedder or QueryEmbedder(self._embed_model)
        self._sample: tuple[int, NDArray[np.float32] | None] | None = None

    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Rank the k best chunks by cosine similarity; an embedding of zeros has no hits.

        Raises:
            InputError: k is not positive, or the query's embedding does not fit the index.
            ModelError: The embedding model cannot be reached.
        """
        bundle, k = as_bundle(query), require_positive(k)
        embedding = self._embedder.embed(bundle.embedding_strs) if bundle.embedding is None else bundle.embedding
        vector = self._checked(embedding)
        if not vector.any():
            return Ranking(
                Hits(np.zeros(0, dtype=np.int64), np.zeros(0)),
                name="semantic",
                scale=lambda: Scale(0.0, 0.0),
                warnings=(
                    f"The query's embedding by {model_name(self._embed_model)!r} is zero: the semantic index finds"
                    f" nothing for it; rephrase the query.",
                ),
            )
        ranked = self._store.rank_rows(vector, k, filters or self._filters)
        scale = functools.cache(lambda: self._scale(vector, ranked))  # used by fusion and by confidence
        return Ranking(Hits(ranked.rows, ranked.scores), self.docstore.ids, name="semantic", scale=scale)

    def _checked(self, embedding: object) -> NDArray[np.float32]:
        """Return a query's embedding as a vector of this index.

        Raises:
            InputError: The embedding has another length, or contains values that are not finite numbers.
        """
        name, dimensions = model_name(self._embed_model), self._store.dimensions
        try:
            with np.errstate(over="ignore"):  # numbers too large for 32 bits become infinite
                vector = np.asarray(embedding, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"The query's embedding is not a list of numbers: pass an embedding by {name!r}, or none.",
                value=embedding,
            ) from error
        if vector.ndim != 1 or len(vector) != (dimensions or len(vector)):
            raise InputError(
                f"The query's embedding has {' × '.join(map(str, vector.shape)) or 'no'} dimensions, the index"
                f" {dimensions}: search with the embedding model that built the index ({name!r} is set).",
                value=embedding,
            )
        if not np.isfinite(vector).all():
            raise InputError(
                f"The query's embedding ({len(vector)} dimensions, as many as the index has) contains NaN or infinity:"
                f" embed the query again with {name!r}.",
                value=embedding,
            )
        return vector

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Return the query with its embedding."""
        if bundle.embedding is not None:
            return bundle
        embedding = await self._embedder.aembed(bundle.embedding_strs)
        return _with_embedding(bundle, embedding)

    def prepare(self, bundle: QueryBundle) -> QueryBundle:
        """Return the query with its embedding."""
        if bundle.embedding is not None:
            return bundle
        return _with_embedding(bundle, self._embedder.embed(bundle.embedding_strs))

    def prepare_many(self, bundles: list[QueryBundle]) -> list[QueryBundle]:
        """Return the queries with their embeddings, computed concurrently."""
        missing = [bundle for bundle in bundles if bundle.embedding is None]
        embeddings = iter(self._embedder.embed_many([bundle.embedding_strs for bundle in missing]))
        return [
            bundle if bundle.embedding is not None else _with_embedding(bundle, next(embeddings)) for bundle in bundles
        ]

    @property
    def docstore(self) -> SQLiteDocumentStore:
        """The document store with the nodes."""
        return self._store.docstore

    def _scale(self, vector: NDArray[np.float32], ranked: Rows) -> Scale:
        """Return mean and standard deviation of the similarities to all chunks, or to a sample of them."""
        if len(ranked.rows) == 0:
            return Scale(0.0, 0.0)
        if ranked.moments is not None:
            return Scale(*ranked.moments)
        if ranked.everything is not None:
            similarities = ranked.everything
        elif (sample := self._sample_vectors()) is not None:
            similarities = products(sample, vector / np.linalg.norm(vector))
        else:
            similarities = ranked.scores.astype(np.float32)
        return Scale(float(similarities.mean()), float(similarities.std()))

    def _sample_vectors(self) -> NDArray[np.float32] | None:
        """Return a sample of the vectors; None if the index cannot reconstruct vectors, as an IVF index."""
        size = len(self._store)
        if self._sample is None or self._sample[0] != size:
            try:
                self._sample = size, self._store.sampled_vectors(_SAMPLE)
            except RuntimeError:  # FAISS raises nothing narrower; the hits are used as the sample instead
                self._sample = size, None
        return self._sample[1]

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        k = self._similarity_top_k
        return [*self.fetch(self.rank(query_bundle, k), k)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, await self.aprepare(query_bundle))


def _with_embedding(bundle: QueryBundle, embedding: list[float]) -> QueryBundle:
    prepared = copy(bundle)  # keeps the class and its fields
    prepared.embedding = embedding
    return prepared


class QueryEmbedder:
    """Embed questions, with retries, from any thread and event loop, and cache the last 512 embeddings.

    A question is one or several texts; its embedding is their mean. If a text is longer than the model accepts, its
    beginning is embedded.

    Args:
        model: The embedding model.
    """

    def __init__(self, model: BaseEmbedding) -> None:
        self.model = model
        self._cache: LRUCache[bytes, list[float]] = LRUCache(_CACHE_SIZE)
        # Without `self`: a reference cycle would keep the embedder alive until the next garbage collection.
        self._model: PerLoop[BaseEmbedding] = PerLoop(lambda: model)

    def embed(self, texts: Sequence[str]) -> list[float]:
        """Return the embedding of a question.

        Raises:
            ModelError: The model cannot be reached, or its answer is not an embedding.
        """
        question = _question(texts)
        key = _key(question)
        if (known := self._cache.get(key)) is not None:
            return known
        try:
            model = self._model.sync()
            embedding = call(lambda: _embed(model, question), _RETRY)
        except Exception as error:  # an embedding class may raise any error; the user gets a sentence
            raise self._model_error(error) from error
        self._cache.put(key, self._checked(embedding))
        return embedding

    async def aembed(self, texts: Sequence[str]) -> list[float]:
        """Asynchronous version of `embed`."""
        question = _question(texts)
        key = _key(question)
        if (known := self._cache.get(key)) is not None:
            return known
        try:
            model = await self._model.running()
            embedding = await acall(lambda: _aembed(model, question), _RETRY)
        except Exception as error:  # an embedding class may raise any error; the user gets a sentence
            raise self._model_error(error) from error
        self._cache.put(key, self._checked(embedding))
        return embedding

    def embed_many(self, questions: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the embeddings of several questions by concurrent calls: LlamaIndex has no call for several."""
        texts_of = [_question(texts) for texts in questions]
        missing = [question for question in dict.fromkeys(texts_of) if self._cache.get(_key(question)) is None]
        with ThreadPoolExecutor(min(_CONCURRENT_CALLS, len(missing)) or 1) as threads:
            embeddings = dict(zip(missing, threads.map(self.embed, missing), strict=True))
        return [embeddings.get(question) or self.embed(question) for question in texts_of]

    async def aembed_many(self, questions: Sequence[Sequence[str]]) -> list[list[float]]:
        """Asynchronous version of `embed_many`."""
        texts_of = [_question(texts) for texts in questions]
        distinct = list(dict.fromkeys(texts_of))
        embeddings = dict(zip(distinct, await asyncio.gather(*map(self.aembed, distinct)), strict=True))
        return [embeddings[question] for question in texts_of]

    def _checked(self, embedding: object) -> list[float]:
        """Return the embedding that a model returned, as a list.

        Raises:
            ModelError: The embedding is empty, or contains values that are not finite numbers.
        """
        try:
            numbers = np.asarray(embedding, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.zeros(0)
        if numbers.ndim == 1 and len(numbers) and np.isfinite(numbers).all():
            return embedding if isinstance(embedding, list) else numbers.tolist()
        name, size = model_name(self.model), f"{numbers.size} dimensions" if numbers.ndim == 1 else "no embedding"
        raise ModelError(
            f"The embedding model {name!r} did not return finite numbers ({size}): run the same query again,"
            f" or choose another model.",
            setting="embed_model",
        )

    def _model_error(self, error: Exception) -> ModelError:
        if isinstance(error, ModelError):
            return ModelError(str(error), setting=error.setting)
        message = describe(error, setting="embed_model", model=model_name(self.model))
        return ModelError(message, setting="embed_model")


def _question(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of a question as they are embedded."""
    return tuple(cut_to_input(shortened(text)) for text in texts)


def _key(texts: tuple[str, ...]) -> bytes:
    """Return the cache key of a question: a digest, because the texts may be long."""
    digest = hashlib.sha256()
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(raw) + raw)
    return digest.digest()


def _embed(model: BaseEmbedding, texts: tuple[str, ...]) -> list[float]:
    # A single text needs no mean, which LlamaIndex would take as long to compute as a search.
    if len(texts) == 1:
        return model.get_query_embedding(texts[0])
    return model.get_agg_embedding_from_queries(list(texts))


async def _aembed(model: BaseEmbedding, texts: tuple[str, ...]) -> list[float]:
    if len(texts) == 1:
        return await model.aget_query_embedding(texts[0])
    return await model.aget_agg_embedding_from_queries(list(texts))
