"""The end of streamed replies, as OpenAI and Anthropic mark it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from llama_index_contextual._utils.calls import ReplyError
from llama_index_contextual._utils.replies import check_replies


def piece(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**fields)


TEXT = piece(type="content_block_delta", delta=piece(type="text_delta", text="It runs"))
STOP_REASON = piece(type="message_delta", delta=piece(stop_reason="end_turn"))
OPENAI_TEXT = piece(choices=[piece(delta=piece(content="It runs"), finish_reason=None)])
OPENAI_END = piece(choices=[piece(delta=piece(content=None), finish_reason="stop")])


class Stream:
    """A streamed response of a client."""

    def __init__(self, pieces: Sequence[Any]) -> None:
        self._pieces = pieces
        self.response = SimpleNamespace(aiter_bytes=None)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for each in self._pieces:
            yield each


@pytest.mark.parametrize(
    ("pieces", "is_complete"),
    [
        ([TEXT, STOP_REASON], True),
        ([TEXT, piece(type="message_stop")], True),
        ([TEXT], False),
        ([piece(type="message_start"), TEXT, piece(type="content_block_stop")], False),
        ([OPENAI_TEXT, OPENAI_END], True),
        ([OPENAI_TEXT], False),
        ([piece(text="a format without a mark at its end")], True),
    ],
)
async def test_a_stream_without_the_mark_at_its_end_is_broken_off(pieces: Sequence[Any], is_complete: bool) -> None:
    class Messages:
        async def create(self, **_: Any) -> Stream:
            return Stream(pieces)

    messages = Messages()
    check_replies(SimpleNamespace(_aclient=SimpleNamespace(messages=messages)))
    received = []

    async def read() -> None:
        async for each in await messages.create():
            received.append(each)

    if is_complete:
        await read()
    else:
        with pytest.raises(ReplyError) as raised:
            await read()
        assert raised.value.fault == "no_end"
    assert received == list(pieces)
