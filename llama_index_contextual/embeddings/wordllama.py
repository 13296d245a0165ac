"""WordLlama as a LlamaIndex embedding: 256 dimensions, weights in the package, no key, no network, no PyTorch."""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import Field

from llama_index_contextual._utils.forks import new_lock
from llama_index_contextual.errors import ModelError

_LOAD_LOCK = new_lock()


class WordLlamaEmbedding(BaseEmbedding):
    """Unit vectors of 256 dimensions from static word embeddings.

    Text is a bag of subwords to this model: fast (thousands of chunks a second on one core), good with words, weaker
    with paraphrases than a transformer. Text without any known token, the empty text included, becomes the zero
    vector, which is similar to nothing.

    Needs the extra `local` (`pip install "llama-index-contextual[local]"`).

    Source: https://github.com/dleemiller/WordLlama

    Example:
        >>> len(WordLlamaEmbedding().get_text_embedding("revenue grew by 3 %"))
        256
    """

    model_name: str = Field(default="wordllama-l2-supercat-256", description="Name kept with the vectors.")
    embed_batch_size: int = Field(default=256, gt=0, le=2048, description="Texts of one batch.")

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "WordLlamaEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        with np.errstate(divide="ignore", invalid="ignore"):
            vectors = _model().embed([text or " " for text in texts], norm=True)
        rows: list[list[float]] = np.nan_to_num(np.asarray(vectors, dtype=np.float32)).tolist()
        return rows

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)


def _model() -> Any:
    with _LOAD_LOCK:
        return _load()


@cache
def _load() -> Any:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        import wordllama
    except ImportError as error:
        raise ModelError(
            'The embedding `local` needs WordLlama: pip install "llama-index-contextual[local]"', setting="embed_model"
        ) from error
    # Its import sets up the root logger, which belongs to the application.
    root.handlers[:], root.level = handlers, level
    # The loader looks for the tokenizer beside a cache folder: the package's own folder holds both files.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
