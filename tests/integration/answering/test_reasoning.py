"""Reasoning in the text of a reply reaches no answer, stream, conversation, cache or citation."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from llama_index.llms.openai import OpenAI

from llama_index_contextual.answering.query_engine import AnswerCache
from llama_index_contextual.project.project import Project
from tests.integration.answering.conftest import QUESTION
from tests.support.reasoning import ANSWER, REPLIES, WITHOUT_ANSWER, marks_in, random_pieces, written
from tests.support.server import LoopbackProvider
from tests.support.streamed import PieceLLM

NO_ANSWER = "The model wrote its reasoning, but no answer."


def pieces_of(name: str, form: str) -> PieceLLM:
    return PieceLLM(pieces=random_pieces(written(form), random.Random(name)))


# The forms of all models are recognised by one filter, which has its own tests.
FORMS = (
    "think",
    "only closed",
    "after the answer, unclosed",
    "answer in tags",
    "two in a row",
    "channels",
    "sentences",
)


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_is_shown_cited_cached_and_remembered_without_reasoning(
    reports: Project, cache: AnswerCache, tmp_path: Path, name: str
) -> None:
    llm = pieces_of(name, REPLIES[name])
    answer: Any = reports.as_query_engine(llm=llm, cache=cache).query(QUESTION)
    assert (str(answer).strip(), answer.partial, answer.citations.cited) == (ANSWER, None, (1,))
    assert not marks_in(str(answer.to_dict()).replace("'reasoning': None", ""))
    assert len(cache) == 1
    assert not marks_in((tmp_path / "answers.sqlite").read_text("latin-1").replace('"reasoning": null', ""))
    stream: Any = reports.as_query_engine(llm=llm, streaming=True).query(QUESTION)
    shown = "".join(stream.response_gen)
    assert (shown.strip(), stream.get_response().response.strip()) == (ANSWER, ANSWER)
    chat = reports.as_chat_engine(llm=llm)
    assert str(chat.chat(QUESTION)).strip() == ANSWER
    assert "".join(chat.stream_chat(QUESTION).response_gen).strip() == ANSWER
    assert [message.content.strip() for message in chat.chat_history[1::2] if message.content] == [ANSWER, ANSWER]


@pytest.mark.parametrize("name", WITHOUT_ANSWER)
def test_a_reply_of_reasoning_only_is_no_answer(reports: Project, cache: AnswerCache, name: str) -> None:
    llm = pieces_of(name, WITHOUT_ANSWER[name])
    answer: Any = reports.as_query_engine(llm=llm, cache=cache).query(QUESTION)
    assert answer.partial in (NO_ANSWER, "The model returned an empty answer.")
    assert (str(answer), answer.found, answer.citations.cited, len(cache)) == (answer.partial, False, (), 0)
    stream: Any = reports.as_query_engine(llm=llm, streaming=True).query(QUESTION)
    assert "".join(stream.response_gen) == str(stream.get_response()) == answer.partial
    chat = reports.as_chat_engine(llm=llm)
    assert str(chat.chat(QUESTION)) == "".join(chat.stream_chat(QUESTION).response_gen) == answer.partial
    assert chat.chat_history == []


def test_reasoning_that_was_shown_before_its_mark_is_not_part_of_the_answer(reports: Project) -> None:
    opening = "Source 1 names a period in its first section, and Source 2 names none. " * 4
    llm = PieceLLM(pieces=random_pieces(f"{opening}</think>\n\n{ANSWER}", random.Random(1)))
    stream: Any = reports.as_query_engine(llm=llm, streaming=True).query(QUESTION)
    assert "".join(stream.response_gen).endswith(ANSWER)
    assert str(stream.get_response()).strip() == ANSWER
    assert str(reports.as_query_engine(llm=llm).query(QUESTION)).strip() == ANSWER


def test_the_tokens_of_the_reasoning_are_counted(reports: Project, provider: LoopbackProvider, openai: OpenAI) -> None:
    provider.enqueue(written(REPLIES["think"]))
    answer: Any = reports.as_query_engine(llm=openai).query(QUESTION)
    assert str(answer).strip() == ANSWER
    (call,) = provider.calls()
    assert answer.usage.output_tokens == (call.usage or {})["completion_tokens"]
    llm = PieceLLM(pieces=[written(REPLIES["think"])])
    estimated: Any = reports.as_query_engine(llm=llm).query(QUESTION)
    assert estimated.usage.output_tokens == pytest.approx(answer.usage.output_tokens, abs=3)
