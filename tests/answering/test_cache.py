"""The answer cache: hits, misses, and answers that are not cached."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.openai import OpenAI

from llama_index_contextual.answering.cache import AnswerCache, cache_key
from llama_index_contextual.answering.judge import FALLBACK, NOT_JUDGED, Judge
from llama_index_contextual.answering.prompts import NOT_FOUND
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.project.project import Project
from tests.answering.test_judge import GOOD
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"


def test_the_same_question_is_asked_once(reports: Project, openai: OpenAI, provider: LoopbackProvider) -> None:
    engine = reports.as_query_engine(llm=openai, cache=AnswerCache())
    provider.enqueue("The pump runs dry [Source 1].")
    first: Any = engine.query(QUESTION)
    second: Any = engine.query(QUESTION)
    assert len(provider.calls()) == 1
    assert (str(second), first.from_cache, second.from_cache) == (str(first), False, True)
    assert second.metadata["answer"]["from_cache"]


def test_a_cached_answer_streams_in_one_piece(reports: Project, openai: OpenAI, provider: LoopbackProvider) -> None:
    cache = AnswerCache()
    provider.enqueue("The pump runs dry as the manual says.")
    reports.as_query_engine(llm=openai, cache=cache).query(QUESTION)
    stream: Any = reports.as_query_engine(llm=openai, cache=cache, streaming=True).query(QUESTION)
    assert list(stream.response_gen) == ["The pump runs dry as the manual says."]
    assert len(provider.calls()) == 1


@pytest.mark.parametrize(
    "options", [{"style": "persona"}, {"max_passages": 1}, {"mode": "lexical"}, {"context": False}], ids=str
)
def test_a_setting_that_changes_the_answer_misses_the_cache(
    reports: Project, openai: OpenAI, provider: LoopbackProvider, options: dict[str, Any]
) -> None:
    cache = AnswerCache()
    reports.as_query_engine(llm=openai, cache=cache).query(QUESTION)
    reports.as_query_engine(llm=openai, cache=cache, **options).query(QUESTION)
    assert len(provider.calls()) == 2


def test_the_conversation_is_part_of_the_key(reports: Project, openai: OpenAI, provider: LoopbackProvider) -> None:
    chat = reports.as_chat_engine(llm=openai, cache=AnswerCache())
    for _ in range(2):
        chat.reset()
        chat.chat(QUESTION)
    assert len(provider.calls()) == 1
    chat.chat(QUESTION)
    assert len(provider.calls()) == 2


@pytest.mark.parametrize("text", ["cut", "not found"])
def test_partial_and_not_found_answers_are_not_cached(
    reports: Project, openai: OpenAI, provider: LoopbackProvider, text: str
) -> None:
    cache = AnswerCache()
    if text == "cut":
        provider.enqueue("one two three four five six seven eight nine ten eleven twelve thirteen")
        provider.fault("drop_in_body")
    else:
        provider.enqueue(NOT_FOUND)
    reports.as_query_engine(llm=openai, cache=cache).query(QUESTION)
    assert len(cache) == 0


def test_model_and_version_are_part_of_the_key() -> None:
    messages = [ChatMessage(role="user", content="Why?")]
    keys = {cache_key(messages, model=model, version=version) for model in "ab" for version in ("v1", "v2", None)}
    assert len(keys) == 6


def test_the_least_recently_used_answer_is_dropped_first() -> None:
    cache, answer = AnswerCache(max_entries=2), GroundedResponse("yes")
    cache.put("a", answer)
    cache.put("b", answer)
    cache.get("a")
    cache.put("c", replace(answer))
    assert (cache.get("a"), cache.get("b")) == (answer, None)
    cache.clear()
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [({**GOOD, "unsupported": ["It runs."]}, FALLBACK), (GOOD, "The pump runs dry."), (ValueError("down"), NOT_JUDGED)],
    ids=["blocked", "passed", "failed"],
)
def test_an_engine_with_a_judge_does_not_use_answers_without_a_verdict(
    reports: Project, verdict: Any, shown: str
) -> None:
    cache, judge = AnswerCache(), ScriptedLLM(model_name="judge")
    llm = ScriptedLLM(default="The pump runs dry.")
    reports.as_query_engine(llm=llm, cache=cache).query(QUESTION)
    for _ in range(2):
        judge.enqueue(verdict if isinstance(verdict, Exception) else json.dumps(verdict))
    engine = reports.as_query_engine(llm=llm, cache=cache, judge=Judge(judge))
    assert [str(engine.query(QUESTION)) for _ in range(2)] == [shown] * 2
    assert len(judge.history) == (1 if verdict is GOOD else 2), "what did not pass is judged again"
