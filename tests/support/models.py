"""Models with scripted answers, which record their calls."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.llms import CustomLLM
from pydantic import Field, PrivateAttr

_WORD = re.compile(r"\w+")


class CountingEmbedding(BaseEmbedding):
    """Deterministic bags of words that remember every text and query they embedded.

    Texts that share words are similar; a text without words becomes the zero vector.
    """

    model_name: str = Field(default="counting", description="Name kept with the vectors.")
    dimensions: int = Field(default=64, gt=0, description="Length of the vectors.")
    fail_on: str | None = Field(default=None, description="A text that holds this raises ValueError.")

    _texts: list[str] = PrivateAttr(default_factory=list)
    _queries: list[str] = PrivateAttr(default_factory=list)
    _batches: list[int] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "CountingEmbedding"

    @property
    def texts(self) -> list[str]:
        """Every text that was embedded, in order."""
        return self._texts

    @property
    def queries(self) -> list[str]:
        """Every query that was embedded, in order."""
        return self._queries

    @property
    def batches(self) -> list[int]:
        """Number of texts of each call."""
        return self._batches

    def vector(self, text: str) -> list[float]:
        """Return the embedding of a text without counting it."""
        row = np.zeros(self.dimensions)
        for word in _WORD.findall(text.lower()):
            row[zlib.crc32(word.encode()) % self.dimensions] += 1
        return [float(value) for value in row]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        if self.fail_on is not None and any(self.fail_on in text for text in texts):
            raise ValueError(f"this model takes no text with {self.fail_on!r}")
        self._batches.append(len(texts))
        self._texts.extend(texts)
        return [self.vector(text) for text in texts]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._get_text_embeddings(texts)

    def _get_query_embedding(self, query: str) -> list[float]:
        self._queries.append(query)
        return self.vector(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class ScriptedLLM(CustomLLM):
    """Answers what was enqueued, in order, then `default`; raises an enqueued exception.

    Example:
        >>> llm = ScriptedLLM()
        >>> llm.enqueue("first", ConnectionError("gone"))
        >>> llm.complete("What now?").text
        'first'
        >>> llm.history
        ['What now?']
    """

    model_name: str = Field(default="scripted", description="Name kept with the contexts.")
    default: str = Field(
        default="A context of the passage in its text, as long as it has to be here.",
        description="Answer once nothing is enqueued.",
    )

    _script: deque[str | BaseException] = PrivateAttr(default_factory=deque)
    _history: list[str] = PrivateAttr(default_factory=list)
    _running: int = PrivateAttr(default=0)
    _most_running: int = PrivateAttr(default=0)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "ScriptedLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex asks a model about itself."""
        return LLMMetadata(model_name=self.model_name, is_chat_model=True)

    @property
    def history(self) -> list[str]:
        """Every prompt, in order; the messages of a chat joined by line breaks."""
        return self._history

    @property
    def most_running(self) -> int:
        """The largest number of asynchronous calls that were in flight at the same time."""
        return self._most_running

    def enqueue(self, *answers: str | BaseException) -> None:
        """Append answers; an exception is raised when its turn comes."""
        self._script.extend(answers)

    def _answer(self, prompt: str) -> str:
        self._history.append(prompt)
        answer = self._script.popleft() if self._script else self.default
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Return the next answer."""
        return CompletionResponse(text=self._answer(prompt))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Return the next answer in one piece."""
        text = self._answer(prompt)
        return (CompletionResponse(text=piece, delta=piece) for piece in [text])

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Return the next answer."""
        text = self._answer(_joined(messages))
        return ChatResponse(message=ChatMessage(role="assistant", content=text))

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Return the next answer in one piece."""
        whole = self.chat(messages)
        return (ChatResponse(message=piece.message, delta=piece.message.content) for piece in [whole])

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Return the next answer after giving other calls a chance to start."""
        self._running += 1
        self._most_running = max(self._most_running, self._running)
        try:
            await asyncio.sleep(0)
            return self.chat(messages)
        finally:
            self._running -= 1

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Return the next answer in one piece."""
        whole = await self.achat(messages)

        async def pieces() -> ChatResponseAsyncGen:
            yield ChatResponse(message=whole.message, delta=whole.message.content)

        return pieces()


def _joined(messages: Sequence[ChatMessage]) -> str:
    return "\n".join(message.content or "" for message in messages)
