"""Chat completions of the provider: what the model says by default, and the answer in the format of the service."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from tests.support.records import Answer, ApiError, Request
from tests.support.tokens import TOKEN_BYTES, count, cut


@dataclass
class Reply:
    """A chat reply in full, for replies that are more than a text."""

    text: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"

    @property
    def written(self) -> str:
        """All the model wrote: text, refusal and arguments of tool calls."""
        return (
            (self.text or "")
            + (self.refusal or "")
            + "".join(call["function"]["arguments"] for call in self.tool_calls)
        )


ReplyFunction = Callable[[Request], "str | Reply"]

_FILLER = ("section", "document", "overview", "details", "subject", "context", "report", "summary")
_STREAM_PIECE = re.compile(r"(?:\S+\s*|\s+){1,4}")


# ---- what the model says ---------------------------------------------------------------------------------------------


def context_for(text: str, size: int) -> str:
    """Return a context of about `size` tokens made of the words of a text.

    The same text gives the same context and different texts give different ones.
    """
    words = sorted(set(re.findall(r"\w{3,}", text.lower()))) or list(_FILLER)
    rng = random.Random(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())
    parts, tokens = ["This passage is about"], 4
    while tokens < size or len(parts) < 12:  # with the first four words, not too short to be accepted
        word = rng.choice(words)
        parts.append(word)
        tokens += count(" " + word)
    return " ".join(parts) + "."


def default_reply(request: Request, size: int) -> Reply:
    """Answer with a context for the chunk of the prompt."""
    return Reply(context_for(request.chunk, size))


# ---- the answer of the service ---------------------------------------------------------------------------------------


def check_chat(request: Request) -> None:
    """Refuse a chat request that the real service would refuse.

    Raises:
        ApiError: With status 400.
    """
    inputs = request.fields.get("messages")
    if not isinstance(inputs, list) or not inputs or not all("role" in message for message in inputs):
        raise ApiError(400, "Missing or invalid parameter: 'messages'.", param="messages", code="invalid_type")


def output_limit(fields: dict[str, Any]) -> int | None:
    """Return the most tokens the answer may have, if the request says so."""
    return fields.get("max_completion_tokens") or fields.get("max_tokens")


def limited(reply: Reply, limit: int | None) -> Reply:
    """Return a reply that is cut at a number of tokens."""
    if limit is None or not reply.text or count(reply.text) <= limit:
        return reply
    return Reply(cut(reply.text, limit), finish_reason="length")


def chat_answer(
    request: Request,
    reply: Reply,
    *,
    prompt: bytes,
    cached: int,
    distort: Callable[[Reply], Reply],
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
        reasoning: Tokens that are charged and not shown; the limit of output tokens holds for all together.
        factor: How many times the tokens are reported that it took.
    """
    limit = output_limit(request.fields)
    hidden = reasoning if limit is None else min(reasoning, limit)
    reply = distort(limited(reply, None if limit is None else limit - hidden))
    sent, received = factor * len(prompt) // TOKEN_BYTES, factor * (count(reply.written) + hidden)
    usage = {
        "prompt_tokens": sent,
        "completion_tokens": received,
        "total_tokens": sent + received,
        "prompt_tokens_details": {"cached_tokens": factor * cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": hidden, "audio_tokens": 0},
    }
    head = {"id": f"chatcmpl-{request.id}", "created": int(time.time()), "model": request.model}
    answer = Answer(
        usage=usage, cached_tokens=cached, finish_reason=reply.finish_reason, reply=reply.written, prompt=prompt
    )
    if request.fields.get("stream"):
        wants_usage = bool((request.fields.get("stream_options") or {}).get("include_usage"))
        answer.events = _events(head, reply, usage if wants_usage else None)
        return answer
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": reply.refusal}
    if reply.tool_calls:
        message["tool_calls"] = reply.tool_calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}
    answer.payload = head | {"object": "chat.completion", "choices": [choice], "usage": usage}
    return answer


def _events(head: dict[str, Any], reply: Reply, usage: dict[str, Any] | None) -> list[str]:
    """Write a reply as server-sent events of four words each."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if reply.text is None else ""}]
    deltas += [{"content": piece} for piece in _STREAM_PIECE.findall(reply.text or "")]
    deltas += [{"refusal": reply.refusal}] if reply.refusal else []
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(reply.tool_calls)]
    ends = [None] * len(deltas) + [reply.finish_reason]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]}
        for delta, end in zip([*deltas, {}], ends, strict=True)
    ]
    if usage is not None:
        chunks = [chunk | {"usage": None} for chunk in chunks] + [{"choices": [], "usage": usage}]
    return [json.dumps(head | {"object": "chat.completion.chunk"} | chunk) for chunk in chunks] + ["[DONE]"]
