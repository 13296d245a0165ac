"""Cache of answers, with the whole prompt, the model and the version as its key."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import ChatMessage

from llama_index_contextual._version import __version__
from llama_index_contextual.index.answers import ANSWERS_FILE, AnswerFile
from llama_index_contextual.index.versions import live_if_sound


@dataclass(frozen=True)
class WrittenAnswer:
    """The text of a model, cleaned by the guards; its citations are checked whenever it is shown.

    Attributes:
        text: The answer.
        original: All that the model wrote, with personal data masked if it is masked in answers.
        reasoning: The reasoning before the answer, likewise.
        verdict: The verdict of the judge, or None.
    """

    text: str
    original: str
    reasoning: str | None = None
    verdict: dict[str, Any] | None = None


class AnswerCache:
    """Cache of answers on disk.

    The key covers the whole prompt, so an answer is never used for another version, other filters, another style or
    another conversation; questions that differ only in white space or in their Unicode form are the same. Only complete
    answers are cached, and only if the documents answer the question. A project has its own, `AnswerCache.of`.

    Args:
        path: The file, which only its owner can read; it can be deleted at any time.
        max_entries: Maximum number of answers; the oldest one is dropped first.
        current: Returns the name of the version whose answers may be added; None for any version.

    Example:
        >>> engine = GroundedQueryEngine(retriever, llm, cache=AnswerCache("answers.sqlite"))  # doctest: +SKIP
    """

    def __init__(
        self, path: str | Path, *, max_entries: int = 1000, current: Callable[[], str | None] | None = None
    ) -> None:
        self._file = AnswerFile(Path(path), max_entries=max_entries)
        self._current = current

    @classmethod
    def of(cls, project_dir: Path) -> AnswerCache:
        """Return the cache in a project's directory, to which only answers from its live version are added."""
        return cls(project_dir / ANSWERS_FILE, current=lambda: live_if_sound(project_dir))

    def __len__(self) -> int:
        return len(self._file)

    def get(self, key: str) -> WrittenAnswer | None:
        """Return the cached answer, or None."""
        content = self._file.get(key)
        return None if content is None else WrittenAnswer(**json.loads(content))

    def put(self, key: str, answer: WrittenAnswer, *, version: str | None) -> None:
        """Add an answer that was written from a version of the project."""
        content = json.dumps(asdict(answer)).encode()
        current = self._current
        self._file.put(key, content, is_current=lambda: current is None or current() == version)

    def clear(self) -> None:
        """Remove all answers."""
        self._file.clear()


def cache_key(messages: Sequence[ChatMessage], *, model: str, version: str | None, settings: str = "") -> str:
    """Return the cache key of an answer.

    Args:
        messages: The whole prompt: rules, conversation, passages, question.
        model: Name of the model.
        version: Version of the project.
        settings: Other settings on which the shown answer depends.
    """
    rows = [__version__, model, version, settings, *([message.role.value, message.content] for message in messages)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def normalised(question: str) -> str:
    """Return a question with single spaces, in Unicode's composed form (NFC).

    Example:
        >>> normalised("  Wie lange  ha\\u0308lt es? ") == "Wie lange hält es?"
        True
    """
    return " ".join(unicodedata.normalize("NFC", question).split())
