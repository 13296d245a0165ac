"""An LLM that replies with recorded contexts, so that their effect is measured in the real pipeline.

The document of a prompt is the recorded document that has the most words in common with it, and the chunk is the chunk
of this document that has the most words in common with the prompt's chunk. Chunks that are split differently from the
recorded ones therefore also get a context.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.llms import CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from pydantic import PrivateAttr

from tests.benchmarks.sets import RecordedContext, words

_PROMPT = re.compile(r"<document>\n(.*)\n</document>.*<chunk>\n(.*)\n</chunk>", re.DOTALL)


class ReplayingLLM(CustomLLM):
    """Answers a prompt for the context of a chunk with the recorded context.

    Args:
        contexts: The recorded contexts, at least one.
    """

    _documents: dict[str, Counter[str]] = PrivateAttr(default_factory=dict)
    _chunks: dict[str, list[tuple[Counter[str], str]]] = PrivateAttr(default_factory=dict)
    _known: dict[str, str] = PrivateAttr(default_factory=dict)  # all prompts of a segment have the same document

    def __init__(self, contexts: Iterable[RecordedContext], **values: Any) -> None:
        super().__init__(**values)
        for recorded in contexts:
            counts = Counter(words(recorded.text))
            self._chunks.setdefault(recorded.document, []).append((counts, recorded.context))
            self._documents.setdefault(recorded.document, Counter()).update(counts)

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex asks a model about itself."""
        return LLMMetadata(model_name="replay", is_chat_model=True)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Return the recorded context of the chunk in a prompt.

        Raises:
            ValueError: The prompt is not a default one.
        """
        parts = _PROMPT.search(prompt)
        if parts is None:
            raise ValueError("the prompt has no <document> and <chunk>: only the default prompts can be replayed")
        document, chunk = parts.groups()
        if document not in self._known:
            self._known[document] = _nearest(document, [(counts, name) for name, counts in self._documents.items()])
        return CompletionResponse(text=_nearest(chunk, self._chunks[self._known[document]]))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        """Refuse."""
        raise NotImplementedError

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Return the same as `complete`."""
        prompt = "\n".join(message.content or "" for message in messages)
        return ChatResponse(message=ChatMessage(role="assistant", content=self.complete(prompt).text))


def _nearest(text: str, known: Sequence[tuple[Counter[str], str]]) -> str:
    """Return the name of the counts that share most words with a text; of several, the shortest."""
    wanted = Counter(words(text))
    return max(known, key=lambda item: (sum(min(n, item[0][word]) for word, n in wanted.items()), -item[0].total()))[1]
