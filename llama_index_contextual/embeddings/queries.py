"""Embed questions, with retries and a cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from numpy.typing import NDArray

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.calls import RetryPolicy, call, describe
from llama_index_contextual._utils.clients import unconnected
from llama_index_contextual._utils.events import has_listener
from llama_index_contextual.embeddings.batching import as_row, cut_to_input, fault_of, unit_vectors
from llama_index_contextual.embeddings.replies import check_replies
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
from llama_index_contextual.embeddings.words import embedded
from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.analysis import cut_query
from llama_index_contextual.models import model_name, provider_of

_RETRY = RetryPolicy(attempts=3)
_CACHE_SIZE = 512
_CONCURRENT_CALLS = 8
_dispatcher = get_dispatcher("llama_index.core.base.embeddings.base")


class QueryEmbedder:
    """Thread-safe embedder for questions, with retries and a cache of the last 512 embeddings.

    Asynchronous callers embed in the thread in which they search. The blocking client keeps its connections for all
    threads and event loops, whereas an asynchronous client would need new connections in each event loop.

    A question consists of one or more texts; its embedding is the mean of their embeddings. If a text is too long for
    the model, only the beginning of the text is embedded.

    Args:
        model: The embedding model.

    Attributes:
        name: Name of the model.
    """

    def __init__(self, model: BaseEmbedding) -> None:
        self.model = model
        self.name = model_name(model)
        self._cache: LRUCache[bytes, tuple[list[float] | NDArray[np.float32], NDArray[np.float32]]] = LRUCache(
            _CACHE_SIZE
        )
        self._clients: dict[int, BaseEmbedding] = {}  # by process id; forked children must not share connections

    def embed(self, texts: Sequence[str]) -> list[float]:
        """Return the embedding of a question.

        Raises:
            ModelError: The model cannot be reached, or its answer is not an embedding.
        """
        embedding = self._embed(texts)[0]
        return embedding if isinstance(embedding, list) else embedding.tolist()

    def unit(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the embedding of a question, scaled to length 1 unless it is zero; shape (dimensions,)."""
        return self._embed(texts)[1]

    def _embed(self, texts: Sequence[str]) -> tuple[list[float] | NDArray[np.float32], NDArray[np.float32]]:
        question = [cut_to_input(cut_query(text)) for text in texts]
        key = hashlib.sha256(json.dumps(question).encode()).digest()  # hashed, because the texts may be long
        if (vectors := self._cache.get(key)) is not None:
            return vectors
        try:
            model = self._client()
            # A single text needs no mean; computing it in LlamaIndex would take as long as a search.
            if len(question) == 1 and _is_silent(model):
                vector = embedded(question)[0]
                self._cache.put(key, (vector, vector))
                return vector, vector
            if len(question) == 1:
                embedding = call(lambda: model.get_query_embedding(question[0]), _RETRY)
            else:
                embedding = call(lambda: model.get_agg_embedding_from_queries(question), _RETRY)
        except ModelError:
            raise
        except Exception as error:  # embedding classes may raise any error; users need a message
            raise ModelError(describe(error, setting="embed_model", model=self.name), setting="embed_model") from error
        return self._store(key, embedding)

    def _client(self) -> BaseEmbedding:
        process = os.getpid()
        if process not in self._clients:
            self._clients[process] = check_replies(unconnected(self.model), self.name, synchronous=True)
        return self._clients[process]

    def _store(
        self, key: bytes, embedding: Sequence[float] | NDArray[np.float32]
    ) -> tuple[list[float] | NDArray[np.float32], NDArray[np.float32]]:
        """Check and cache an embedding from the model; return it unchanged and as the unit vector used for searching.

        Raises:
            ModelError: The embedding cannot be compared with other vectors.
        """
        row = as_row(embedding)
        # The local model and models of the user may count words, and a question may have none that they know.
        if (fault := fault_of(row, allows_zero=provider_of(self.name) is None)) is not None:
            raise ModelError(
                f"{self.name!r} returned an embedding of the query that {fault}: run the same query again, or choose"
                f" another embedding model.",
                setting="embed_model",
            )
        vectors = embedding if isinstance(embedding, list) else row.tolist(), unit_vectors(row[np.newaxis])[0]
        self._cache.put(key, vectors)
        return vectors

    def embed_many(self, questions: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the embeddings of several questions.

        The calls are made concurrently, because LlamaIndex cannot embed questions in batches.
        """
        distinct = list(dict.fromkeys(map(tuple, questions)))
        with ThreadPoolExecutor(_CONCURRENT_CALLS) as threads:
            embeddings = dict(zip(distinct, threads.map(self.embed, distinct), strict=True))
        return [embeddings[tuple(texts)] for texts in questions]


def _is_silent(model: BaseEmbedding) -> bool:
    """Return whether a model runs in this process, without a cache, a limit of its rate and listeners to its events.

    LlamaIndex's events would take longer than the embedding.
    """
    return (
        type(model) is WordLlamaEmbedding
        and model.embeddings_cache is None
        and model.rate_limiter is None
        and not model.callback_manager.handlers
        and not has_listener(_dispatcher)
    )
