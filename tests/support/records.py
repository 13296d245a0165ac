"""Shapes of requests, answers, errors and history records."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

CHAT_PATH = "/v1/chat/completions"
EMBEDDINGS_PATH = "/v1/embeddings"
CONTEXTUAL_PATH = "/v1/contextualizedembeddings"
MODEL_PATHS = frozenset({CHAT_PATH, EMBEDDINGS_PATH, CONTEXTUAL_PATH})

_CHUNK = re.compile(r"<chunk\b[^>]*>(.*?)</chunk>", re.DOTALL | re.IGNORECASE)
_SECRET_HEADERS = frozenset({"authorization", "api-key"})
_NOT_LOGGED = frozenset({"raw", "query", "worked"})


def message_text(message: dict[str, Any]) -> str:
    """Return the text of a chat message, its text parts joined."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


@dataclass(eq=False)
class Request:
    """One HTTP request, or one line of a batch, as the handlers see it."""

    id: int
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: Any
    connection_id: int
    arrived: float
    batch_id: str | None = None
    query: dict[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON body when it is an object, else an empty one."""
        return self.body if isinstance(self.body, dict) else {}

    @property
    def model(self) -> str:
        """The model asked for, or an empty string."""
        return str(self.fields.get("model") or "")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The chat messages that are objects."""
        return [message for message in self.fields.get("messages") or [] if isinstance(message, dict)]

    @property
    def inputs(self) -> list[Any]:
        """The embedding inputs, a single text wrapped in a list, or the texts of all lists."""
        if isinstance(lists := self.fields.get("inputs"), list):
            return [text for texts in lists if isinstance(texts, list) for text in texts]
        original = self.fields.get("input")
        return original if isinstance(original, list) else [original] if isinstance(original, str) else []

    @property
    def text(self) -> str:
        """All message texts, or all embedding inputs, one after another."""
        parts = [message_text(message) for message in self.messages]
        return "\n".join(parts + [item for item in self.inputs if isinstance(item, str)])

    @property
    def chunk(self) -> str:
        """The last `<chunk>...</chunk>` of the prompt, or the text of the last message."""
        marked = _CHUNK.findall(self.text)
        if marked:
            return str(marked[-1]).strip()
        return message_text(self.messages[-1]) if self.messages else self.text


@dataclass(eq=False)
class Record(Request):
    """What is remembered of one request; times are seconds of `time.perf_counter`.

    Attributes:
        status: HTTP status sent; 0 when no answer was sent (dropped, hung, stopped, client gone).
        completed: Set just before the answer is written, so that whatever a client sends after
            having read the answer arrives later than this.
        usage: What the call used, also when a fault kept it out of the answer.
        cached_tokens: Prompt tokens served by the prefix cache.
        fault: Kind of the scripted or random fault applied, if any.
        reply: What the model wrote: text, refusal or arguments of tool calls.
        batch_id: The batch the call was a line of, if it was one.
        worked: What the model used, also where nobody has waited for its answer; a provider may charge it.
    """

    completed: float | None = None
    status: int | None = None
    usage: dict[str, Any] | None = None
    cached_tokens: int = 0
    finish_reason: str | None = None
    fault: str | None = None
    reply: str | None = None
    worked: dict[str, Any] | None = None

    @classmethod
    def of(cls, request: Request) -> Record:
        """Start the record of a request, without the values of secret headers."""
        headers = {k: "<redacted>" if k in _SECRET_HEADERS else v for k, v in request.headers.items()}
        return cls(**(vars(request) | {"headers": headers}))

    @property
    def paid(self) -> bool:
        """Whether a model ran: a 200 from the chat or an embeddings endpoint."""
        return self.status == 200 and self.path in MODEL_PATHS

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a JSON-ready dictionary."""
        return {name: value for name, value in vars(self).items() if name not in _NOT_LOGGED}


@dataclass(eq=False)
class Answer:
    """An answer ready to be sent.

    Attributes:
        payload: JSON value of the body; unused when `content` or `events` is given.
        content: Raw bytes of the body (file contents).
        events: Events of a streamed answer, each sent as `frame` says.
        frame: Form of an event: server-sent events, or the lines that Ollama sends.
        prompt: Serialized prompt, kept to fill the prefix cache once the answer is complete.
    """

    status: int = 200
    payload: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None
    events: list[str] | None = None
    frame: str = "data: {}\n\n"
    usage: dict[str, Any] | None = None
    cached_tokens: int = 0
    finish_reason: str | None = None
    reply: str | None = None
    prompt: bytes = b""


class ApiError(Exception):
    """An error answer of the API; reply functions may raise it too."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": type, "param": param, "code": code}
        self.headers = headers or {}

    def answer(self) -> Answer:
        """Return the error as an answer."""
        return Answer(status=self.status, payload={"error": self.error}, headers=dict(self.headers))
