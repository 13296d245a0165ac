"""The judge behind the real client, in streams, conversations, and the cache."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from llama_index.llms.openai import OpenAI

from llama_index_contextual.answering.judge import FALLBACK, NOT_JUDGED, Judge
from llama_index_contextual.answering.query_engine import AnswerCache
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.project.project import Project
from tests.integration.answering.conftest import QUESTION, StallingLLM
from tests.support.faults import FaultKind
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider

GOOD = json.dumps({"unsupported": [], "relevant": True, "confidence": 0.9})
BAD = json.dumps({"unsupported": ["It flies."], "relevant": True, "confidence": 0.9})


async def test_an_asynchronous_stream_waits_for_the_judge(
    reports: Project, openai: OpenAI, provider: LoopbackProvider
) -> None:
    provider.enqueue("It flies.", BAD)
    stream: Any = await reports.as_query_engine(llm=openai, judge=Judge(openai), streaming=True).aquery(QUESTION)
    assert [piece async for piece in stream.async_response_gen()] == [FALLBACK]


@pytest.mark.parametrize("kind", ["hang", "invalid_key", "drop_in_body"])
def test_a_judge_that_hangs_or_fails_withholds_the_answer(
    reports: Project, openai: OpenAI, provider: LoopbackProvider, kind: FaultKind
) -> None:
    timeouts = Timeouts(first_token=0.3 if kind == "hang" else 30.0)
    engine = reports.as_query_engine(llm=openai, judge=Judge(openai, timeouts=timeouts))
    provider.enqueue("The pump runs dry.", GOOD)
    provider.fault(kind, match=lambda request: "<answer>" in request.text)
    response: Any = engine.query(QUESTION)
    assert str(response) == NOT_JUDGED
    assert response.verdict["error"]


def test_a_blocked_answer_is_not_cached(
    reports: Project, openai: OpenAI, provider: LoopbackProvider, cache: AnswerCache
) -> None:
    engine = reports.as_query_engine(llm=openai, judge=Judge(openai), cache=cache)
    provider.enqueue("It flies.", BAD, "It runs dry.", GOOD)
    assert [str(engine.query(QUESTION)) for _ in range(3)] == [FALLBACK, "It runs dry.", "It runs dry."]
    assert (len(cache), len(provider.calls())) == (1, 4)


def test_a_partial_answer_is_judged(reports: Project, openai: OpenAI, provider: LoopbackProvider) -> None:
    provider.enqueue("It flies over the hills and far away, as the manual says of every pump.", BAD)
    provider.fault("drop_in_body", match=lambda request: "<answer>" not in request.text)
    response: Any = reports.as_query_engine(llm=openai, judge=Judge(openai)).query(QUESTION)
    assert response.partial is not None
    assert str(response) == FALLBACK


async def test_an_answer_without_a_verdict_is_not_in_the_history_if_its_reader_is_cancelled(reports: Project) -> None:
    llm = StallingLLM()
    chat = reports.as_chat_engine(llm=llm, judge=Judge(ScriptedLLM()), min_confidence=0.0)
    stream = await chat.astream_chat(QUESTION)
    reading = asyncio.create_task(anext(stream.async_response_gen()))
    await llm.stalled.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert chat.chat_history == []


def test_if_the_reader_stops_after_the_verdict_the_answer_is_in_the_history(reports: Project) -> None:
    judge, llm = ScriptedLLM(default=BAD), ScriptedLLM(default="It flies.")
    chat = reports.as_chat_engine(llm=llm, judge=Judge(judge), min_confidence=0.0)
    stream: Any = chat.stream_chat(QUESTION)
    assert next(stream.chat_stream).delta == FALLBACK
    stream.chat_stream.close()
    assert [message.content for message in chat.chat_history] == [QUESTION, FALLBACK]
