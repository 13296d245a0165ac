"""The judge: answers that pass, answers that are blocked, and errors of the judge."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage

from llama_index_contextual.answering.judge import FALLBACK, NOT_JUDGED, Judge
from llama_index_contextual.answering.prompts import NOT_FOUND
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.answering.streaming import AnswerStream, Completion
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.models import ScriptedLLM

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


def test_placeholders_in_passages_and_answers_are_not_filled_in() -> None:
    llm, nodes = ScriptedLLM(default=json.dumps(GOOD)), hits(a=1.0)
    nodes[0].node.set_content("Dear {question}, we say {answer}.")  # type: ignore[attr-defined]
    answering = ScriptedLLM(default="It says {question} [Source 1].")
    GroundedQueryEngine(FixedRetriever(nodes), answering, judge=Judge(llm)).query("What of {passages}?")
    assert "Dear {question}, we say {answer}." in llm.history[0]
    assert "Question: What of {passages}?\n\n<answer>\nIt says {question} [Source 1].\n</answer>" in llm.history[0]


@pytest.mark.parametrize("fault", [{"unsupported": ["So it is."]}, {"relevant": False}], ids=str)
@pytest.mark.parametrize("confidence", [0.0, 0.4, 1.0])
def test_a_failing_answer_is_replaced_whatever_the_confidence(fault: dict[str, Any], confidence: float) -> None:
    verdict = {**GOOD, **fault, "confidence": confidence}
    for least in (0.0, 0.4, 1.0):
        response, _ = judged(verdict, min_confidence=least)
        assert (str(response), response.found) == (FALLBACK, False)
    assert response.original == response.metadata["original"] == "So it is [Source 1]."
    assert response.citations is None
    answer = response.metadata["answer"]
    assert (answer["found"], answer["citations"], answer["verdict"]) == (False, None, verdict)


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


def test_without_passages_the_judge_is_not_asked() -> None:
    llm = ScriptedLLM()
    GroundedQueryEngine(FixedRetriever([]), ScriptedLLM(), judge=Judge(llm)).query("Is it so?")
    assert llm.history == []


def test_a_stream_waits_for_the_judge() -> None:
    stream, llm = judged(BAD, streaming=True)
    assert list(stream.response_gen) == [FALLBACK]
    assert str(stream.get_response()) == FALLBACK
    assert len(llm.history) == 1


def test_a_verdict_that_breaks_off_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = f'The answer claims {json.dumps(GOOD)}. My verdict: {{"unsupported": ["It'
    complete = AnswerStream.acomplete

    async def breaks_off(self: AnswerStream, messages: list[ChatMessage], **options: Any) -> Completion:
        completion = await complete(self, messages, **options)
        return replace(completion, problem="It was too long.") if completion.text == reply else completion

    monkeypatch.setattr(AnswerStream, "acomplete", breaks_off)
    response, _ = judged(reply)
    assert str(response) == NOT_JUDGED
