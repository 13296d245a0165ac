"""An answer that is missing is a sentence that says why, wherever it is shown, and a broken stream is partial."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core.tools import QueryEngineTool
from llama_index.llms.openai import OpenAI

from llama_index_contextual.answering.query_engine import AnswerCache
from llama_index_contextual.errors import ModelError
from llama_index_contextual.project.project import Project
from tests.integration.answering.conftest import QUESTION
from tests.support.records import Answer, Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider
from tests.support.trouble import FATAL

REFUSAL = "I'm sorry, I cannot help with that."
CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
MISSING = {
    "empty": (Reply(""), "The model returned an empty answer."),
    "null": (Reply(None), "The model returned an empty answer."),
    "refusal": (Reply(refusal=REFUSAL), f"The model refused to answer: “{REFUSAL}”"),
    "filter": (
        Reply("", finish_reason="content_filter"),
        "The content filter of the provider of 'openai:gpt-4o-mini' withheld the answer.",
    ),
    "limit": (Reply("", finish_reason="length"), "The answer reached the model's token limit before it began."),
    "tool call": (
        Reply(None, tool_calls=[CALL], finish_reason="tool_calls"),
        "The model called a tool instead of writing an answer.",
    ),
    "reasoning": (Reply("<think>Three days.</think>"), "The model wrote its reasoning, but no answer."),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_answer_is_a_sentence_everywhere(
    reports: Project, provider: LoopbackProvider, openai: OpenAI, cache: AnswerCache, name: str
) -> None:
    reply, sentence = MISSING[name]
    provider.reply = lambda _: reply
    engine = reports.as_query_engine(llm=openai, cache=cache)
    answer: Any = engine.query(QUESTION)
    assert (str(answer), answer.response, answer.partial, answer.found) == (sentence, sentence, sentence, False)
    assert (answer.is_missing, len(cache)) == (True, 0)
    assert str(QueryEngineTool.from_defaults(engine, name="ask").call(QUESTION).content) == sentence
    stream: Any = reports.as_query_engine(llm=openai, streaming=True).query(QUESTION)
    assert ("".join(stream.response_gen), str(stream.get_response())) == (sentence, sentence)
    chat = reports.as_chat_engine(llm=openai)
    assert str(chat.chat(QUESTION)) == "".join(chat.stream_chat(QUESTION).response_gen) == sentence
    assert chat.chat_history == []


@pytest.mark.parametrize("name", FATAL)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_response_that_is_no_reply_is_an_error_with_one_sentence(
    reports: Project, provider: LoopbackProvider, openai: OpenAI, name: str, streaming: bool
) -> None:
    script, sentence = FATAL[name]
    script(provider)
    with pytest.raises(ModelError) as raised:
        "".join(reports.as_query_engine(llm=openai, streaming=streaming).query(QUESTION).response_gen)  # type: ignore[union-attr]
    assert sentence in str(raised.value)
    assert "None" not in str(raised.value)
    assert "sk-or-" not in str(raised.value)


@pytest.mark.parametrize("end", ["no finish reason", "only [DONE]", "only a finish reason"])
def test_a_stream_without_an_end_is_partial_and_not_cached(
    reports: Project, provider: LoopbackProvider, openai: OpenAI, cache: AnswerCache, end: str
) -> None:
    def tamper(_: Request, answer: Answer) -> None:
        events = answer.events or []
        is_end = [event == "[DONE]" or '"finish_reason": "stop"' in event for event in events]
        kept = [event for event, ends in zip(events, is_end, strict=True) if not ends]
        usage = [event for event in kept if json.loads(event)["choices"] == []]
        answer.events = [event for event in kept if event not in usage]
        if end == "only [DONE]":
            answer.events.append("[DONE]")
        if end == "only a finish reason":
            answer.events += [event for event in events if '"finish_reason": "stop"' in event]

    provider.enqueue("The pump runs dry [Source 1].")
    provider.tamper = tamper
    answer: Any = reports.as_query_engine(llm=openai, cache=cache).query(QUESTION)
    assert str(answer) == "The pump runs dry [Source 1]."
    is_partial = end == "no finish reason"
    assert (answer.partial is not None, len(cache)) == (is_partial, 0 if is_partial else 1)
    if is_partial:
        assert answer.partial.startswith("The answer broke off. The connection to 'openai:gpt-4o-mini' ended")
