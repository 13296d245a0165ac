"""Embedding models behind an OpenAI-compatible server, with the prefixes that were used to train them."""

from __future__ import annotations

from llama_index.embeddings.openai_like import OpenAILikeEmbedding


class PrefixedEmbedding(OpenAILikeEmbedding):
    """LlamaIndex's `OpenAILikeEmbedding` with a prefix for questions and one for passages.

    Servers such as vLLM, llama.cpp and LM Studio embed a text as it is, whereas models such as E5 were trained with
    prefixes. The names of the fields are those of LlamaIndex's other embedding classes.

    Requires the package `llama-index-embeddings-openai-like`.

    Args:
        query_instruction: Prefix of a question.
        text_instruction: Prefix of a passage.
    """

    query_instruction: str = ""
    text_instruction: str = ""

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the parent class, because the same models are called."""
        return "OpenAILikeEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return super()._get_query_embedding(self.query_instruction + query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await super()._aget_query_embedding(self.query_instruction + query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return super()._get_text_embedding(self.text_instruction + text)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await super()._aget_text_embedding(self.text_instruction + text)

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return super()._get_text_embeddings([self.text_instruction + text for text in texts])

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await super()._aget_text_embeddings([self.text_instruction + text for text in texts])
