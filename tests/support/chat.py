"""The chat completions endpoint: checks, answers and streams."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from tests.support.records import Answer, ApiError, Request
from tests.support.replies import Reply
from tests.support.tokens import TOKEN_BYTES, count, cut

_STREAM_PIECE = re.compile(r"\S+\s*|\s+")
_WORDS_PER_EVENT = 4


def check_chat(request: Request) -> None:
    """Refuse a chat request that the real service would refuse.

    Raises:
        ApiError: With status 400.
    """
    fields = request.fields
    inputs = fields.get("messages")
    if not isinstance(inputs, list) or not inputs:
        raise ApiError(
            400, "Missing required parameter: 'messages'.", param="messages", code="missing_required_parameter"
        )
    if len(request.messages) != len(inputs) or not all("role" in message for message in request.messages):
        raise ApiError(400, "Invalid type for 'messages'.", param="messages", code="invalid_type")
    if fields.get("n") not in (None, 1):
        raise ApiError(400, "Only n=1 is supported here.", param="n", code="unsupported_value")
    expected = (fields.get("response_format") or {}).get("type")
    if expected == "json_object" and "json" not in request.text.lower():
        message = (
            "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
        )
        raise ApiError(400, message, param="messages")


def _usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def output_limit(fields: dict[str, Any]) -> int | None:
    """Return the most tokens the answer may have, if the request says so."""
    return fields.get("max_completion_tokens") or fields.get("max_tokens")


def _limited(reply: Reply, limit: int | None) -> Reply:
    if limit is None or not reply.text or count(reply.text) <= limit:
        return reply
    return Reply(cut(reply.text, limit), finish_reason="length")


def _said(reply: Reply) -> str:
    """Return all the model wrote: text, refusal and arguments of tool calls."""
    return (reply.text or "") + (reply.refusal or "") + "".join(c["function"]["arguments"] for c in reply.tool_calls)


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": reply.refusal}
    if reply.tool_calls:
        message["tool_calls"] = reply.tool_calls
    return message


def chat_answer(
    request: Request,
    reply: Reply,
    *,
    prompt: bytes,
    cached: int,
    distort: Callable[[Reply], Reply],
    hide_usage: bool = False,
    reasoning: int = 0,
    factor: int = 1,
) -> Answer:
    """Build the answer to a chat request.

    Args:
        request: The checked request.
        reply: What the model says.
        prompt: The serialized prompt.
        cached: How many of its tokens are cached.
        distort: The fault of the reply, applied after the limit of output tokens.
        hide_usage: Leave the usage out of the answer (not out of the record).
        reasoning: Tokens that are charged and not shown; the limit of output tokens holds for all together.
        factor: How many times the tokens are reported that it took.
    """
    limit = output_limit(request.fields)
    hidden = reasoning if limit is None else min(reasoning, limit)
    reply = distort(_limited(reply, None if limit is None else limit - hidden))
    message = _said(reply)
    usage = _usage(factor * len(prompt) // TOKEN_BYTES, factor * (count(message) + hidden), factor * cached)
    usage["completion_tokens_details"]["reasoning_tokens"] = hidden
    head = {"id": f"chatcmpl-{request.id}", "created": int(time.time()), "model": request.model}
    answer = Answer(usage=usage, cached_tokens=cached, finish_reason=reply.finish_reason, reply=message, prompt=prompt)
    if request.fields.get("stream"):
        wants_usage = bool((request.fields.get("stream_options") or {}).get("include_usage"))
        answer.events = _events(head, reply, usage if wants_usage else None, hide_usage)
        return answer
    choice = {"index": 0, "message": _message(reply), "logprobs": None, "finish_reason": reply.finish_reason}
    answer.payload = head | {"object": "chat.completion", "choices": [choice], "system_fingerprint": "fp_loopback"}
    if not hide_usage:
        answer.payload["usage"] = usage
    return answer


def _deltas(reply: Reply) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if reply.text is not None else None}]
    words = _STREAM_PIECE.findall(reply.text or "")
    for start in range(0, len(words), _WORDS_PER_EVENT):
        deltas.append({"content": "".join(words[start : start + _WORDS_PER_EVENT])})
    if reply.refusal:
        deltas.append({"refusal": reply.refusal})
    for index, call in enumerate(reply.tool_calls):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    return deltas


def _events(head: dict[str, Any], reply: Reply, usage: dict[str, Any] | None, hide_usage: bool) -> list[str]:
    """Write a reply as server-sent events."""
    base = head | {"object": "chat.completion.chunk", "system_fingerprint": "fp_loopback"}
    extra = {} if usage is None or hide_usage else {"usage": None}
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in _deltas(reply)
    ]
    choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": reply.finish_reason})
    chunks: list[dict[str, Any]] = [base | {"choices": [choice]} | extra for choice in choices]
    if usage is not None and not hide_usage:
        chunks.append(base | {"choices": [], "usage": usage})
    return [json.dumps(chunk) for chunk in chunks] + ["[DONE]"]
