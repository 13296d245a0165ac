"""Answers that were given before: the same model, the same rules, passages, conversation and question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from llama_index.core.base.llms.types import ChatMessage

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual.answering.response import GroundedResponse


class AnswerCache:
    """Keeps the last answers of one or several engines in memory.

    The key is all that a model reads, so an answer never outlives the version, the filters, the style or the
    conversation that it was written from. Only whole answers that were found are kept.

    Args:
        max_entries: Answers that are kept; the one that was not asked for longest goes first.
    """

    def __init__(self, max_entries: int = 256) -> None:
        self._answers: LRUCache[str, GroundedResponse] = LRUCache(max_entries)

    def get(self, key: str) -> GroundedResponse | None:
        """Return an answer that was kept."""
        return self._answers.get(key)

    def put(self, key: str, answer: GroundedResponse) -> None:
        """Keep an answer, unless it is partial, blocked or none, or its judge could not be asked."""
        if answer.partial is None and answer.found and "error" not in (answer.verdict or {}):
            self._answers.put(key, answer)

    def clear(self) -> None:
        """Forget all answers."""
        self._answers.clear()

    def __len__(self) -> int:
        return len(self._answers)


def cache_key(messages: Sequence[ChatMessage], *, model: str, version: str | None, settings: str = "") -> str:
    """Return the key of an answer.

    Args:
        messages: All that the model reads: rules, conversation, passages, question.
        model: Its name.
        version: Of the project.
        settings: What else decides what is shown.
    """
    rows = [model, version, settings, *([message.role.value, message.content] for message in messages)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
