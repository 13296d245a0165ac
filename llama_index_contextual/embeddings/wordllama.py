"""LlamaIndex embedding class for WordLlama, a model with 256 dimensions that needs no key, network or PyTorch."""

from __future__ import annotations

from pydantic import Field

from llama_index_contextual.embeddings.contextual import BatchEmbedding
from llama_index_contextual.embeddings.words import embedded


class WordLlamaEmbedding(BatchEmbedding):
    """Embedding model that computes unit vectors with 256 dimensions from static word embeddings.

    The model treats a text as a bag of subwords. It is fast (thousands of chunks per second on one core) and good at
    matching words, but weaker than a transformer at matching paraphrases. A text without any known token, such as an
    empty string, gets a zero vector, which is not similar to any other vector.

    Requires the `local` extra (`pip install "llama-index-contextual[local]"`).

    Source: https://github.com/dleemiller/WordLlama

    Example:
        >>> len(WordLlamaEmbedding().get_text_embedding("revenue grew by 3 %"))
        256
    """

    model_name: str = "wordllama-l2-supercat-256"
    embed_batch_size: int = Field(default=256, gt=0, le=2048)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "WordLlamaEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        rows: list[list[float]] = embedded(texts).tolist()
        return rows

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]
