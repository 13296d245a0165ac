"""Answers that were given before: the same model, the same rules, passages, conversation and question."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence

from llama_index.core.base.llms.types import ChatMessage

from llama_index_contextual.answering.responses import GroundedResponse


class AnswerCache:
    """Keeps the last answers of one or several engines in memory.

    The key is all that a model reads, so an answer never outlives the version, the filters, the style or the
    conversation that it was written from. Only whole answers that were found are kept.

    Args:
        max_entries: Answers that are kept; the one that was not asked for longest goes first.
    """

    def __init__(self, max_entries: int = 256) -> None:
        self._max_entries = max_entries
        self._answers: OrderedDict[str, GroundedResponse] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> GroundedResponse | None:
        """Return an answer that was kept."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def put(self, key: str, answer: GroundedResponse) -> None:
        """Keep an answer, unless it is partial, blocked or none, or its judge could not be asked."""
        if answer.partial is not None or not answer.found or "error" in (answer.verdict or {}):
            return
        with self._lock:
            self._answers[key] = answer
            self._answers.move_to_end(key)
            while len(self._answers) > self._max_entries:
                self._answers.popitem(last=False)

    def clear(self) -> None:
        """Forget all answers."""
        with self._lock:
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
