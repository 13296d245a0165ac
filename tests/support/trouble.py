"""Replies with which a run cannot succeed, as servers send them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.records import Answer, ApiError, Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider

Script = Callable[[LoopbackProvider], None]
_KEY = "sk-or-0123456789abcdef"
_PAGE = "<!DOCTYPE html><html><head><title>Sign in to Lindfell Net</title></head><body>Password</body></html>"


def body(content: Any, kind: str = "application/json") -> Script:
    """Return a script that replaces the body of each reply, with the status of success."""

    def tamper(_: Request, answer: Answer) -> None:
        answer.events, answer.headers["content-type"] = None, kind
        answer.content = (content if isinstance(content, str) else json.dumps(content)).encode()

    return lambda provider: setattr(provider, "tamper", tamper)


def message(**fields: Any) -> Script:
    """Return a script for replies whose message and finish reason are given."""
    reason = fields.pop("finish_reason", "stop")
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **fields}, "finish_reason": reason}
    usage = {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}
    return body(
        {"id": "1", "object": "chat.completion", "model": "m", "created": 1, "choices": [choice], "usage": usage}
    )


def reply(answer: Reply | str) -> Script:
    """Return a script for what the model says."""
    return lambda provider: setattr(provider, "reply", lambda _: answer)


def error(status: int, text: str, **fields: Any) -> Script:
    """Return a script for an error of the provider."""

    def refuse(_: Request) -> Reply:
        raise ApiError(status, text, **fields)

    return lambda provider: setattr(provider, "reply", refuse)


_CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}

FATAL: Mapping[str, tuple[Script, str]] = {
    "HTML page": (body(_PAGE, "text/html"), "returned a web page (“Sign in to Lindfell Net”) instead of a reply"),
    "HTML page as JSON": (body(_PAGE), "returned a web page"),
    "plain text": (body("upstream connect error", "text/plain"), "returned text that is not a reply"),
    "error body": (
        body({"error": {"message": "No GPU is free", "code": 1}}),
        "an error instead of a reply: No GPU is free",
    ),
    "error text": (body({"error": "model is not loaded"}), "an error instead of a reply: model is not loaded"),
    "detail body": (body({"detail": "Not found"}), "returned a reply without an answer"),
    "no choices": (body({"id": "1", "object": "chat.completion", "choices": []}), "a reply without an answer"),
    "choices are null": (body({"id": "1", "choices": None}), "a reply without an answer"),
    "empty object": (body({}), "a reply without an answer"),
    "no message": (body({"id": "1", "choices": [{"index": 0, "text": "Hm."}]}), "a reply without an answer"),
    "context length": (
        error(400, "This model's maximum context length is 128 tokens.", code="context_length_exceeded"),
        "The prompt is longer than the context window",
    ),
    "wrong key": (error(401, f"Incorrect API key provided: {_KEY}", code="invalid_api_key"), "refused the API key"),
    "no access": (error(403, "Country not supported"), "refused access"),
    "no credit": (error(402, "Insufficient credits"), "has no quota left"),
    "other parameter": (
        error(400, "Unsupported value: 'n' does not support 3.", param="n"),
        "refused the request (400)",
    ),
}
"""Scripts that stop a run, with a part of the sentence."""

_NO_JSON = "keeps returning nothing, or text that is not valid JSON"
UNREADABLE: Mapping[str, tuple[Script, str]] = {
    "no body": (body(""), _NO_JSON),
    "cut JSON": (body('{"id": "1", "choi'), _NO_JSON),
}
"""Scripts that stop a run, with a part of the sentence, for replies that may have been cut off."""

UNUSABLE: Mapping[str, tuple[Script, str, int]] = {
    "empty": (reply(""), "answered with an empty context", 1),
    "null": (message(), "answered with an empty context", 1),
    "tool call": (
        message(tool_calls=[_CALL], finish_reason="tool_calls"),
        "called a tool instead of writing a context",
        1,
    ),
    "reasoning field": (message(reasoning_content="Hm."), "wrote its reasoning, but no context", 2),
    "cut": (reply(Reply("This is", finish_reason="length")), "reached its token limit before the end of a sentence", 2),
    "cut and empty": (reply(Reply("", finish_reason="length")), "reached its token limit before it wrote anything", 2),
    "only reasoning": (reply("<think>Hm.</think>"), "wrote its reasoning, but no context", 2),
}
"""Scripts for answers without a context, with a part of the sentence and the number of calls for each chunk."""
