"""The judge: answers that pass, answers that are blocked, and errors of the judge."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen
from llama_index.llms.openai import OpenAI
from pydantic import PrivateAttr

from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.answering.judge import FALLBACK, NOT_JUDGED, Judge
from llama_index_contextual.answering.prompts import NOT_FOUND
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.answering.streaming import AnswerStream, Completion, Timeouts
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.project.project import Project
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.faults import FaultKind
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"
GOOD = {"unsupported": [], "relevant": True, "confidence": 0.9}
BAD = {**GOOD, "unsupported": ["It flies."]}


def judged(reply: Any, *, streaming: bool = False, **options: Any) -> tuple[Any, ScriptedLLM]:
    llm = ScriptedLLM()
    llm.enqueue(reply if isinstance(reply, (str, BaseException)) else f"```json\n{json.dumps(reply)}\n```")
    engine = GroundedQueryEngine(
        FixedRetriever(hits(a=1.0)),
        ScriptedLLM(default="So it is [Source 1]."),
        judge=Judge(llm, **options),
        streaming=streaming,
    )
    response: Any = engine.query("Is it so?")
    return response, llm


def test_a_passing_answer_is_shown_with_its_verdict() -> None:
    response, llm = judged(GOOD)
    assert str(response) == "So it is [Source 1]."
    assert response.verdict == GOOD
    assert response.metadata["verdict"] == GOOD
    assert "<answer>\nSo it is [Source 1].\n</answer>" in llm.history[0]
    assert "[Source 1]" in llm.history[0].partition("Question: Is it so?")[0]


def test_the_judge_reads_the_cited_passages_only_or_all_if_none_is_cited() -> None:
    for answer, read in (("So it is [Source 2].", [2]), ("So it is.", [1, 2, 3])):
        llm = ScriptedLLM(default=json.dumps(GOOD))
        retriever = FixedRetriever(hits(a=1.0, b=0.9, c=0.8))
        GroundedQueryEngine(retriever, ScriptedLLM(default=answer), judge=Judge(llm)).query("Is it so?")
        passages = llm.history[0].partition("Question:")[0]
        assert [number for number in (1, 2, 3) if f"[Source {number}]" in passages] == read


def test_the_judge_is_asked_for_the_evidence_before_the_verdict(
    reports: Project, openai: OpenAI, provider: LoopbackProvider
) -> None:
    provider.enqueue("The pump runs dry.", json.dumps(GOOD))
    assert str(reports.as_query_engine(llm=openai, judge=True).query(QUESTION)) == "The pump runs dry."
    answering, judging = (call.body for call in provider.calls())
    assert "response_format" not in answering
    schema = judging["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == schema["required"] == ["unsupported", "relevant", "confidence"]
    assert judging["messages"][-1]["content"].endswith(json.dumps(schema)), (
        "models without schemas read it in the prompt"
    )


def test_a_model_that_refuses_a_schema_is_asked_without_it(
    reports: Project, openai: OpenAI, provider: LoopbackProvider
) -> None:
    provider.enqueue("The pump runs dry.", json.dumps(GOOD))
    provider.fault("schema_refused", match=lambda request: "response_format" in request.fields)
    response: Any = reports.as_query_engine(llm=openai, judge=True).query(QUESTION)
    assert (str(response), response.verdict) == ("The pump runs dry.", GOOD)


def test_placeholders_in_passages_and_answers_are_not_filled_in() -> None:
    llm, nodes = ScriptedLLM(default=json.dumps(GOOD)), hits(a=1.0)
    nodes[0].node.set_content("Dear {question}, we say {answer}.")  # type: ignore[attr-defined]
    answering = ScriptedLLM(default="It says {question} [Source 1].")
    GroundedQueryEngine(FixedRetriever(nodes), answering, judge=Judge(llm)).query("What of {passages}?")
    assert "Dear {question}, we say {answer}." in llm.history[0]
    assert "Question: What of {passages}?\n\n<answer>\nIt says {question} [Source 1].\n</answer>" in llm.history[0]


@pytest.mark.parametrize("fault", [{"unsupported": ["So it is."]}, {"relevant": False}], ids=str)
def test_a_failing_answer_is_replaced_and_kept_as_original(fault: dict[str, Any]) -> None:
    response, _ = judged({**GOOD, **fault})
    assert (str(response), response.found) == (FALLBACK, False)
    assert response.original == response.metadata["original"] == "So it is [Source 1]."
    assert response.citations is None


@pytest.mark.parametrize("confidence", [0.0, 0.3, 0.4, 1.0])
@pytest.mark.parametrize("fault", [{"unsupported": ["So it is."]}, {"relevant": False}], ids=str)
def test_a_failing_answer_is_blocked_whatever_the_confidence(fault: dict[str, Any], confidence: float) -> None:
    for least in (0.0, 0.4, 1.0):
        response, _ = judged({**GOOD, **fault, "confidence": confidence}, min_confidence=least)
        assert str(response) == FALLBACK


def test_an_unsure_judge_blocks_the_answer() -> None:
    assert str(judged({**GOOD, "confidence": 0.3})[0]) == FALLBACK
    assert str(judged({**GOOD, "confidence": 0.3}, min_confidence=0.3)[0]) == "So it is [Source 1]."


UNREADABLE = ("I think so.", "{}", '{"unsupported": "maybe"}', "[1]", '{"unsupported": [], "rel', ValueError("down"))


@pytest.mark.parametrize("reply", UNREADABLE, ids=str)
@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_that_could_not_be_judged_is_withheld_and_says_so(reply: Any, streaming: bool) -> None:
    response, _ = judged(reply, streaming=streaming)
    response = response.get_response() if streaming else response
    assert (str(response), response.found) == (NOT_JUDGED, False)
    assert response.verdict["error"] == response.metadata["verdict"]["error"] != ""
    assert response.original == "So it is [Source 1]."


@pytest.mark.parametrize("reply", UNREADABLE, ids=str)
def test_with_on_failure_show_the_answer_is_shown_with_the_error(reply: Any) -> None:
    response, _ = judged(reply, on_failure="show")
    assert (str(response), response.found) == ("So it is [Source 1].", True)
    assert response.verdict["error"]


def test_of_several_verdicts_in_a_reply_the_last_one_counts() -> None:
    reply = f"The answer claims {json.dumps(GOOD)}, but {{no}} source says so.\n{json.dumps(BAD)}\nThat is {{all}}."
    assert str(judged(reply)[0]) == FALLBACK
    assert str(judged(f"<think>{{a}} {json.dumps(BAD)}?</think>{json.dumps(GOOD)}")[0]) == "So it is [Source 1]."


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        (NOT_FOUND, 0),
        (f"**{NOT_FOUND.rstrip('.')}**", 0),
        (f"{NOT_FOUND} However, it flies [Source 1].", 1),
    ],
)
def test_only_an_answer_that_claims_nothing_is_shown_unjudged(answer: str, calls: int) -> None:
    llm = ScriptedLLM(default=json.dumps(BAD))
    engine = GroundedQueryEngine(FixedRetriever(hits(a=1.0)), ScriptedLLM(default=answer), judge=Judge(llm))
    assert str(engine.query("Is it so?")) == (FALLBACK if calls else answer)
    assert len(llm.history) == calls


@pytest.mark.parametrize("wrong", [{"min_confidence": 1.5}, {"on_failure": "ignore"}], ids=str)
def test_an_invalid_option_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Judge: "):
        Judge(ScriptedLLM(), **wrong)


def test_a_stream_waits_for_the_judge() -> None:
    stream, llm = judged(BAD, streaming=True)
    assert list(stream.response_gen) == [FALLBACK]
    assert str(stream.get_response()) == FALLBACK
    assert len(llm.history) == 1


async def test_an_asynchronous_stream_waits_for_the_judge(
    reports: Project, openai: OpenAI, provider: LoopbackProvider
) -> None:
    provider.enqueue("It flies.", json.dumps(BAD))
    stream: Any = await reports.as_query_engine(llm=openai, judge=Judge(openai), streaming=True).aquery(QUESTION)
    assert [piece async for piece in stream.async_response_gen()] == [FALLBACK]


def test_a_not_found_answer_is_not_judged() -> None:
    llm = ScriptedLLM()
    GroundedQueryEngine(FixedRetriever([]), ScriptedLLM(), judge=Judge(llm)).query("Is it so?")
    assert llm.history == []


@pytest.mark.parametrize("kind", ["hang", "invalid_key", "drop_in_body"])
def test_a_judge_that_hangs_or_fails_behind_the_real_client_withholds_the_answer(
    reports: Project, openai: OpenAI, provider: LoopbackProvider, kind: FaultKind
) -> None:
    timeouts = Timeouts(first_token=0.3 if kind == "hang" else 30.0)
    engine = reports.as_query_engine(llm=openai, judge=Judge(openai, timeouts=timeouts))
    provider.enqueue("The pump runs dry.", json.dumps(GOOD))
    provider.fault(kind, match=lambda request: "<answer>" in request.text)
    response: Any = engine.query(QUESTION)
    assert str(response) == NOT_JUDGED
    assert response.verdict["error"]


def test_a_blocked_answer_is_not_cached(
    reports: Project, openai: OpenAI, provider: LoopbackProvider, cache: AnswerCache
) -> None:
    engine = reports.as_query_engine(llm=openai, judge=Judge(openai), cache=cache)
    provider.enqueue("It flies.", json.dumps(BAD), "It runs dry.", json.dumps(GOOD))
    assert [str(engine.query(QUESTION)) for _ in range(3)] == [FALLBACK, "It runs dry.", "It runs dry."]
    assert (len(cache), len(provider.calls())) == (1, 4)


def test_the_metadata_of_a_blocked_answer_says_not_found() -> None:
    response, _ = judged(BAD)
    assert response.metadata["answer"]["found"] is False
    assert response.metadata["answer"]["citations"] is None
    assert response.metadata["answer"]["verdict"] == BAD


def test_a_partial_answer_is_judged(reports: Project, openai: OpenAI, provider: LoopbackProvider) -> None:
    provider.enqueue("It flies over the hills and far away, as the manual says of every pump.", json.dumps(BAD))
    provider.fault("drop_in_body", match=lambda request: "<answer>" not in request.text)
    response: Any = reports.as_query_engine(llm=openai, judge=Judge(openai)).query(QUESTION)
    assert response.partial is not None
    assert str(response) == FALLBACK


class _Stalling(ScriptedLLM):
    """A model that sends a few words, sets an event, and then sends nothing."""

    _said: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    async def astream_chat(self, messages: Any, **kwargs: Any) -> ChatResponseAsyncGen:
        async def pieces() -> ChatResponseAsyncGen:
            for word in ("It ", "flies."):
                yield ChatResponse(message=ChatMessage(role="assistant", content=word), delta=word)
            self._said.set()
            await asyncio.Event().wait()

        return pieces()


async def test_an_answer_without_a_verdict_is_not_in_the_history_if_its_reader_is_cancelled(reports: Project) -> None:
    llm = _Stalling()
    chat = reports.as_chat_engine(llm=llm, judge=Judge(ScriptedLLM()), min_confidence=0.0)
    stream = await chat.astream_chat(QUESTION)
    reading = asyncio.create_task(anext(stream.async_response_gen()))
    await llm._said.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert chat.chat_history == []


def test_if_the_reader_stops_after_the_verdict_the_answer_is_in_the_history(reports: Project) -> None:
    judge, llm = ScriptedLLM(default=json.dumps(BAD)), ScriptedLLM(default="It flies.")
    chat = reports.as_chat_engine(llm=llm, judge=Judge(judge), min_confidence=0.0)
    stream: Any = chat.stream_chat(QUESTION)
    assert next(stream.chat_stream).delta == FALLBACK
    stream.chat_stream.close()
    assert [message.content for message in chat.chat_history] == [QUESTION, FALLBACK]


def test_a_verdict_that_breaks_off_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = f'The answer claims {json.dumps(GOOD)}. My verdict: {{"unsupported": ["It'
    complete = AnswerStream.acomplete

    async def breaks_off(self: AnswerStream, messages: list[ChatMessage], **options: Any) -> Completion:
        completion = await complete(self, messages, **options)
        return replace(completion, problem="It was too long.") if completion.text == reply else completion

    monkeypatch.setattr(AnswerStream, "acomplete", breaks_off)
    response, _ = judged(reply)
    assert str(response) == NOT_JUDGED
