"""WordLlama as a LlamaIndex embedding: 256 dimensions, weights in the package, no key, no network, no PyTorch."""

from __future__ import annotations

import asyncio

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import Field

from llama_index_contextual.embeddings.words import embedded


class WordLlamaEmbedding(BaseEmbedding):
    """Embedding model with unit vectors of 256 dimensions from static word embeddings.

    The model treats a text as a bag of subwords. It is fast (thousands of chunks per second on one core) and good at
    matching words, but weaker than a transformer at matching paraphrases. A text without any known token, including the
    empty text, has a vector of zeros, which is similar to no other.

    Requires the extra `local` (`pip install "llama-index-contextual[local]"`).

    Source: https://github.com/dleemiller/WordLlama

    Example:
        >>> len(WordLlamaEmbedding().get_text_embedding("revenue grew by 3 %"))
        256
    """

    model_name: str = Field(default="wordllama-l2-supercat-256", description="Name stored with the vectors.")
    embed_batch_size: int = Field(default=256, gt=0, le=2048, description="Number of texts per batch.")

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "WordLlamaEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        rows: list[list[float]] = embedded(texts).tolist()
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
