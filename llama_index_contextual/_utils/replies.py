"""Check the responses of models' servers before LlamaIndex reads them.

A sign-in page, a proxy or a server with another interface may return a response that has the status of success but is
not a reply. LlamaIndex's classes then raise errors such as AttributeError, and a stream that ends early looks complete.
`check_replies` makes the client of a model raise a `ReplyError` instead.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from llama_index_contextual._utils.calls import ReplyError

_HEAD_BYTES = 4_000
_TAIL_BYTES = 64
_END_MARK = b"[DONE]"


def check_replies(model: Any) -> None:
    """Check the responses of a model with an OpenAI or Anthropic client, which the model must not share with others."""
    client = getattr(model, "_aclient", None)
    if client is None and hasattr(model, "_get_aclient"):
        client = model._get_aclient()
    for resource in (getattr(getattr(client, "chat", None), "completions", None), getattr(client, "messages", None)):
        if hasattr(resource, "create") and "create" not in vars(resource):  # otherwise it is already checked
            resource.create = _checked(resource.create)  # type: ignore[union-attr]


def _checked(create: Any) -> Any:
    @functools.wraps(create)
    async def checked(**options: Any) -> Any:
        answer = await create(**options)
        if hasattr(answer, "response") and hasattr(answer, "__aiter__"):
            return _stream(answer)
        return _reply(answer)

    return checked


def _reply(answer: Any) -> Any:
    """Return a complete reply, with text parts joined.

    Raises:
        ReplyError: The response is not a reply.
    """
    if isinstance(answer, str):
        raise ReplyError.of_body(answer)
    if isinstance(getattr(answer, "content", None), list):  # Anthropic's format
        return answer
    choices = getattr(answer, "choices", None)
    message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
    if message is None or not hasattr(message, "content"):
        raise ReplyError.of_body({**getattr(answer, "__dict__", {}), **(getattr(answer, "model_extra", None) or {})})
    message.content = text_of(message.content)
    return answer


async def _stream(answer: Any) -> AsyncIterator[Any]:
    """Yield the pieces of a streamed reply, with text parts joined.

    Raises:
        ReplyError: The response is not a reply, or ends before the reply is complete.
    """
    read_bytes, head, tail = answer.response.aiter_bytes, b"", b""

    async def aiter_bytes(*args: Any, **options: Any) -> AsyncIterator[bytes]:
        nonlocal head, tail
        async for part in read_bytes(*args, **options):
            head += part[: _HEAD_BYTES - len(head)]
            tail = (tail + part)[-_TAIL_BYTES:]
            yield part

    answer.response.aiter_bytes = aiter_bytes
    is_begun = is_finished = False
    async for piece in answer:
        is_begun = True
        if (choices := getattr(piece, "choices", None)) is None:
            is_finished = is_finished or _is_end(piece)
        else:
            delta = getattr(choices[0], "delta", None) if choices else None
            if delta is not None:
                delta.content = text_of(delta.content)
            is_finished = is_finished or any(getattr(choice, "finish_reason", None) for choice in choices)
        yield piece
    if not is_begun and head.strip():
        text = head.decode(errors="replace")
        try:
            raise ReplyError.of_body(json.loads(text))
        except ValueError:
            raise ReplyError.of_body(text) from None
    if not is_finished and _END_MARK not in tail:
        raise ReplyError("no_end")


def _is_end(piece: Any) -> bool:
    """Return whether a piece without choices ends a reply of Anthropic; in another format, the end is not known."""
    kind = getattr(piece, "type", None)
    if not isinstance(kind, str) or hasattr(piece, "choices"):
        return not hasattr(piece, "choices")
    return kind == "message_stop" or getattr(getattr(piece, "delta", None), "stop_reason", None) is not None


def text_of(content: Any) -> str | None:
    """Return the content of a message as text, without parts that are not text, such as reasoning.

    Raises:
        ReplyError: The content is not text.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ReplyError("no_text")
    texts = []
    for part in content:
        kind, text = _field(part, "type"), _field(part, "text")
        if isinstance(part, str):
            texts.append(part)
        elif kind in (None, "text", "output_text") and isinstance(text, str):
            texts.append(text)
    return "".join(texts)


def _field(part: Any, name: str) -> Any:
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
