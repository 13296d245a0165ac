"""Embeddings of questions: each is asked for once, from any thread and event loop, with retries."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.calls import RetryPolicy, acall, call, describe
from llama_index_contextual.clients import PerLoop
from llama_index_contextual.embeddings.batching import cut_to_input
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import model_name
from llama_index_contextual.retrievers.cache import LRUCache
from llama_index_contextual.retrievers.queries import shortened

_RETRY = RetryPolicy(attempts=3)
_KNOWN = 512
_IN_FLIGHT = 8


class QueryEmbedder:
    """Embeds questions and remembers the last ones; a question is one or several texts, whose mean counts.

    Of a text that is longer than the model takes, the beginning is embedded.

    Args:
        model: The embedding model.
    """

    def __init__(self, model: BaseEmbedding) -> None:
        self._given = model
        self._known: LRUCache[bytes, list[float]] = LRUCache(_KNOWN)
        # Without `self`: a cycle would keep what holds this until the garbage is collected.
        self._model: PerLoop[BaseEmbedding] = PerLoop(lambda: model)

    def embed(self, texts: Sequence[str]) -> list[float]:
        """Return the embedding of a question.

        Raises:
            ModelError: The model cannot be reached, or its answer is not an embedding.
        """
        asked = _asked(texts)
        key = _key(asked)
        if (known := self._known.get(key)) is not None:
            return known
        try:
            model = self._model.sync()
            embedding = call(lambda: _embedded(model, asked), _RETRY)
        except Exception as error:  # any embedding class may raise anything; it is told in a sentence
            raise self._explained(error) from error
        self._known.put(key, self._checked(embedding))
        return embedding

    async def aembed(self, texts: Sequence[str]) -> list[float]:
        """Do as `embed` does, without blocking the event loop."""
        asked = _asked(texts)
        key = _key(asked)
        if (known := self._known.get(key)) is not None:
            return known
        try:
            model = await self._model.running()
            embedding = await acall(lambda: _aembedded(model, asked), _RETRY)
        except Exception as error:  # any embedding class may raise anything; it is told in a sentence
            raise self._explained(error) from error
        self._known.put(key, self._checked(embedding))
        return embedding

    def embed_many(self, questions: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the embeddings of several questions; LlamaIndex has no call for them, so their requests overlap."""
        asked = [_asked(texts) for texts in questions]
        missing = [texts for texts in dict.fromkeys(asked) if self._known.get(_key(texts)) is None]
        with ThreadPoolExecutor(min(_IN_FLIGHT, len(missing)) or 1) as threads:
            embedded = dict(zip(missing, threads.map(self.embed, missing), strict=True))
        return [embedded.get(texts) or self.embed(texts) for texts in asked]

    async def aembed_many(self, questions: Sequence[Sequence[str]]) -> list[list[float]]:
        """Do as `embed_many` does, without blocking the event loop."""
        asked = [_asked(texts) for texts in questions]
        different = list(dict.fromkeys(asked))
        embedded = dict(zip(different, await asyncio.gather(*map(self.aembed, different)), strict=True))
        return [embedded[texts] for texts in asked]

    def _checked(self, embedding: object) -> list[float]:
        """Return an embedding that a model has made.

        Raises:
            ModelError: It is empty, or holds something else than finite numbers.
        """
        try:
            numbers = np.asarray(embedding, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.zeros(0)
        if numbers.ndim == 1 and len(numbers) and np.isfinite(numbers).all():
            return embedding if isinstance(embedding, list) else numbers.tolist()
        name, size = model_name(self._given), f"{numbers.size} dimensions" if numbers.ndim == 1 else "no embedding"
        raise ModelError(
            f"The embedding model {name!r} did not answer with finite numbers ({size}): ask again, or choose another"
            f" model.",
            setting="embed_model",
        )

    def _explained(self, error: Exception) -> ModelError:
        if isinstance(error, ModelError):
            return ModelError(str(error), setting=error.setting)
        message = describe(error, setting="embed_model", model=model_name(self._given))
        return ModelError(message, setting="embed_model")


def _asked(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(cut_to_input(shortened(text)) for text in texts)


def _key(texts: tuple[str, ...]) -> bytes:
    """Return under what a question is remembered: not its texts, which may be long."""
    digest = hashlib.sha256()
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(raw) + raw)
    return digest.digest()


def _embedded(model: BaseEmbedding, texts: tuple[str, ...]) -> list[float]:
    # Of one text it is the mean already, and LlamaIndex takes as long to find that out as to search.
    if len(texts) == 1:
        return model.get_query_embedding(texts[0])
    return model.get_agg_embedding_from_queries(list(texts))


async def _aembedded(model: BaseEmbedding, texts: tuple[str, ...]) -> list[float]:
    if len(texts) == 1:
        return await model.aget_query_embedding(texts[0])
    return await model.aget_agg_embedding_from_queries(list(texts))
