"""The part of Ollama's API that the models of LlamaIndex use, as answers of the provider."""

from __future__ import annotations

import json
from typing import Any

from tests.support.embeddings import embed
from tests.support.records import Answer, Request
from tests.support.replies import Reply, limited

SHOW, EMBED, CHAT = "/api/show", "/api/embed", "/api/chat"
DIMENSIONS = 64
_ABOUT = {"model_info": {"llama.context_length": 8192}, "details": {}, "capabilities": ["completion"]}


def show_answer() -> Answer:
    """Describe a model."""
    return Answer(payload=_ABOUT)


def embed_answer(request: Request, tokens: int) -> Answer:
    """Embed the texts of a request, which have a number of tokens."""
    vectors = [embed(text, DIMENSIONS) for text in request.inputs]
    payload = {"model": request.model, "embeddings": vectors, "prompt_eval_count": tokens}
    return Answer(payload=payload, usage={"prompt_tokens": tokens})


def ollama_chat_answer(request: Request, reply: Reply) -> Answer:
    """Build the answer to a chat request: one object, or a line for each word."""
    reply = limited(reply, (request.fields.get("options") or {}).get("num_predict"))
    words = (reply.text or "").split(" ")
    pieces = [f" {word}" if at else word for at, word in enumerate(words)]

    def line(piece: str, **more: Any) -> dict[str, Any]:
        created = {"model": request.model, "created_at": "2026-01-01T00:00:00Z", "done": False}
        return {**created, "message": {"role": "assistant", "content": piece}, **more}

    end = {"done": True, "done_reason": reply.finish_reason, "prompt_eval_count": 9, "eval_count": len(words)}
    if not request.fields.get("stream"):
        return Answer(payload=line("".join(pieces), **end))
    events = [json.dumps(line(piece)) for piece in pieces] + [json.dumps(line("", **end))]
    return Answer(events=events, frame="{}\n")
