"""Embeddings of questions: each is asked for once, from any thread and event loop, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.calls import RetryPolicy, acall, call, describe
from llama_index_contextual.clients import PerLoop
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import model_name
from llama_index_contextual.retrievers.cache import LRUCache

_RETRY = RetryPolicy(attempts=3)
_KNOWN = 512
_IN_FLIGHT = 8


class QueryEmbedder:
    """Embeds questions and remembers the last ones; a question is one or several texts, whose mean counts.

    Args:
        model: The embedding model.
    """

    def __init__(self, model: BaseEmbedding) -> None:
        self._given = model
        self._known: LRUCache[tuple[str, ...], list[float]] = LRUCache(_KNOWN)
        # Without `self`: a cycle would keep what holds this until the garbage is collected.
        self._model: PerLoop[BaseEmbedding] = PerLoop(lambda: model)

    def embed(self, texts: Sequence[str]) -> list[float]:
        """Return the embedding of a question.

        Raises:
            ModelError: The model cannot be reached.
        """
        key = tuple(texts)
        if (known := self._known.get(key)) is not None:
            return known
        try:
            model = self._model.sync()
            embedding = call(lambda: _embedded(model, key), _RETRY)
        except Exception as error:  # any embedding class may raise anything; it is told in a sentence
            raise self._explained(error) from error
        self._known.put(key, embedding)
        return embedding

    async def aembed(self, texts: Sequence[str]) -> list[float]:
        """Do as `embed` does, without blocking the event loop."""
        key = tuple(texts)
        if (known := self._known.get(key)) is not None:
            return known
        try:
            model = await self._model.running()
            embedding = await acall(lambda: _aembedded(model, key), _RETRY)
        except Exception as error:  # any embedding class may raise anything; it is told in a sentence
            raise self._explained(error) from error
        self._known.put(key, embedding)
        return embedding

    def embed_many(self, questions: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the embeddings of several questions; LlamaIndex has no call for them, so their requests overlap."""
        keys = [tuple(texts) for texts in questions]
        missing = [key for key in dict.fromkeys(keys) if self._known.get(key) is None]
        with ThreadPoolExecutor(min(_IN_FLIGHT, len(missing)) or 1) as threads:
            found = dict(zip(missing, threads.map(self.embed, missing), strict=True))
        return [found.get(key) or self.embed(key) for key in keys]

    async def aembed_many(self, questions: Sequence[Sequence[str]]) -> list[list[float]]:
        """Do as `embed_many` does, without blocking the event loop."""
        keys = [tuple(texts) for texts in questions]
        different = list(dict.fromkeys(keys))
        found = dict(zip(different, await asyncio.gather(*map(self.aembed, different)), strict=True))
        return [found[key] for key in keys]

    def _explained(self, error: Exception) -> ModelError:
        if isinstance(error, ModelError):
            return ModelError(str(error), setting=error.setting)
        message = describe(error, setting="embed_model", model=model_name(self._given))
        return ModelError(message, setting="embed_model")


def _embedded(model: BaseEmbedding, texts: tuple[str, ...]) -> list[float]:
    # Of one text it is the mean already, and LlamaIndex takes as long to find that out as to search.
    if len(texts) == 1:
        return model.get_query_embedding(texts[0])
    return model.get_agg_embedding_from_queries(list(texts))


async def _aembedded(model: BaseEmbedding, texts: tuple[str, ...]) -> list[float]:
    if len(texts) == 1:
        return await model.aget_query_embedding(texts[0])
    return await model.aget_agg_embedding_from_queries(list(texts))
