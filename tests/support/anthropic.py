"""The part of Anthropic's API that the model of LlamaIndex uses, as answers of the provider."""

from __future__ import annotations

import json
from typing import Any

from tests.support.records import Answer, Request
from tests.support.replies import Reply
from tests.support.tokens import count

MESSAGES = "/v1/messages"


def messages_answer(request: Request, reply: Reply) -> Answer:
    """Build the answer to a request: one message, or its events, of which one contains the text."""
    text, usage = reply.text or "", {"input_tokens": count(request.text), "output_tokens": count(reply.text or "")}
    head = {"id": f"msg_{request.id}", "type": "message", "role": "assistant", "model": request.model}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    if not request.fields.get("stream"):
        return Answer(payload={**head, **end, "content": [{"type": "text", "text": text}], "usage": usage})
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": usage["output_tokens"]}},
        {"type": "message_stop"},
    ]
    return Answer(events=[f"event: {event['type']}\ndata: {json.dumps(event)}" for event in events], frame="{}\n\n")
