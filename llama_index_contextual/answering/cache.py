"""Cache of answers, with the whole prompt, the model and the version as its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from llama_index.core.base.llms.types import ChatMessage

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual.answering.response import GroundedResponse


class AnswerCache:
    """In-memory cache of the last answers of one or several engines.

    The key covers the whole prompt, so an answer is never used for another version, other filters, another style or
    another conversation. Only complete answers are cached, and only if the documents answer the question.

    Args:
        max_entries: Maximum number of answers; the least recently used one is dropped first.
    """

    def __init__(self, max_entries: int = 256) -> None:
        self._answers: LRUCache[str, GroundedResponse] = LRUCache(max_entries)

    def get(self, key: str) -> GroundedResponse | None:
        """Return the cached answer, or None."""
        return self._answers.get(key)

    def put(self, key: str, answer: GroundedResponse) -> None:
        """Add an answer, unless it is partial, blocked or not found, or its judge failed."""
        if answer.partial is None and answer.found and "error" not in (answer.verdict or {}):
            self._answers.put(key, answer)

    def clear(self) -> None:
        """Remove all answers."""
        self._answers.clear()

    def __len__(self) -> int:
        return len(self._answers)


def cache_key(messages: Sequence[ChatMessage], *, model: str, version: str | None, settings: str = "") -> str:
    """Return the cache key of an answer.

    Args:
        messages: The whole prompt: rules, conversation, passages, question.
        model: Name of the model.
        version: Version of the project.
        settings: Other settings on which the shown answer depends.
    """
    rows = [model, version, settings, *([message.role.value, message.content] for message in messages)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
