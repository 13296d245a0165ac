"""An LLM that replies with recorded contexts and orders, so that their effect is measured in the real pipeline.

The document of a prompt is the recorded document that has the most words in common with it, and the chunk is the chunk
of this document that has the most words in common with the prompt's chunk. Chunks that are split differently from the
recorded ones therefore also get a context.

Passages that the LLM is asked to sort are found by their source and text (see `passage_key`), because their numbers
depend on the ranking. Passages that were not recorded are left out of the reply and counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.llms import CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from pydantic import PrivateAttr

from tests.benchmarks.sets import RecordedContext, words

_PROMPT = re.compile(r"<document>\n(.*)\n</document>.*<chunk>\n(.*)\n</chunk>", re.DOTALL)
_QUESTION = re.compile(r"^The question, as a JSON string: (.*)$", re.MULTILINE)
_PASSAGE = re.compile(r'^\{"id": .*\}$', re.MULTILINE)


def load_orders(path: Path) -> dict[str, list[str]]:
    """Read the recorded orders of a set: keys of passages, the most useful first, by question.

    The file has JSON lines with a `question` and its `order`, a list of keys.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["question"]: row["order"] for row in rows}


def passage_key(source: str, text: str) -> str:
    """Return the key of a passage in recorded orders."""
    return sha256(json.dumps([source, text], ensure_ascii=False).encode()).hexdigest()[:12]


class ReplayingLLM(CustomLLM):
    """Answers a prompt for the context of a chunk with the recorded context, and a prompt to sort passages in order.

    Args:
        contexts: The recorded contexts, at least one.
        orders: The recorded orders (see `load_orders`).

    Attributes:
        unknown: Number of passages to sort that were not recorded.
    """

    orders: Mapping[str, Sequence[str]] = {}
    unknown: int = 0

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
        """Return the recorded context of the chunk in a prompt, or the recorded order of its passages.

        Raises:
            ValueError: The prompt is not a default one, or no order was recorded for the question.
        """
        if asked := _QUESTION.search(prompt):
            return CompletionResponse(text=self._sort(json.loads(asked[1]), _PASSAGE.findall(prompt)))
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

    def _sort(self, question: str, lines: Sequence[str]) -> str:
        """Return the ids of the passages in the recorded order, as JSON."""
        if question not in self.orders:
            raise ValueError(f"no order was recorded for {question!r}")
        passages = [json.loads(line) for line in lines]
        ids = {passage_key(passage["source"], passage["text"]): passage["id"] for passage in passages}
        known = [ids[key] for key in self.orders[question] if key in ids]
        self.unknown += len(passages) - len(known)
        return json.dumps(known)


def _nearest(text: str, known: Sequence[tuple[Counter[str], str]]) -> str:
    """Return the name of the counts that share most words with a text; of several, the shortest."""
    wanted = Counter(words(text))
    return max(known, key=lambda item: (sum(min(n, item[0][word]) for word, n in wanted.items()), -item[0].total()))[1]
