"""Tokens and prices of answers: in the response, in its JSON, and in the costs of the project."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.llms.openai import OpenAI

from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.config import ProjectConfig, TokenPrice
from llama_index_contextual.contextualizer.cost import PriceTable
from llama_index_contextual.node_parser.tokens import count_tokens
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.ledger import LEDGER_FILE
from llama_index_contextual.storage.receipts import RunCost
from tests.support.documents import write_texts
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"
GOOD = "The pump runs dry [Source 1]."
VERDICT = '{"grounded": true, "hallucinated": false, "relevant": true, "confidence": 0.9, "cited_sources": [1]}'


@pytest.fixture
def reports(manager: ProjectManager, tmp_path: Path) -> Project:
    """A project with the tiny corpus and a price for the scripted model."""
    prices = {"ScriptedLLM:scripted": TokenPrice(input=1.0, output=10.0)}
    project = manager.create("reports", ProjectConfig.local(prices=prices))
    project.ingest([write_texts(tmp_path / "reports")])
    return project


def answers_of(project: Project) -> list[RunCost]:
    return [run for run in project.cost().runs if run.purpose == "answers"]


def billed(provider: LoopbackProvider) -> tuple[int, int]:
    """Return the tokens of all calls as the provider counts them."""
    usages: list[Any] = [call.usage for call in provider.calls()]
    return sum(usage["prompt_tokens"] for usage in usages), sum(usage["completion_tokens"] for usage in usages)


@pytest.mark.parametrize("streaming", [False, True])
def test_tokens_of_an_answer_are_those_that_the_provider_reports(
    reports: Project, provider: LoopbackProvider, openai: OpenAI, streaming: bool
) -> None:
    provider.enqueue(GOOD)
    response: Any = reports.as_query_engine(llm=openai, streaming=streaming).query(QUESTION)
    usage = (response.get_response() if streaming else response).usage
    assert (usage.input_tokens, usage.output_tokens) == billed(provider)
    assert (usage.models, usage.calls, usage.is_estimated) == (("openai:gpt-4o-mini",), 1, False)
    price = PriceTable().price("openai:gpt-4o-mini")
    assert price is not None
    assert usage.dollars == pytest.approx((usage.input_tokens * price.input + usage.output_tokens * price.output) / 1e6)


async def test_tokens_of_an_asynchronous_stream_are_those_that_the_provider_reports(
    reports: Project, provider: LoopbackProvider, openai: OpenAI
) -> None:
    provider.enqueue(GOOD)
    stream: Any = await reports.as_query_engine(llm=openai, streaming=True).aquery(QUESTION)
    usage = (await stream.aget_response()).usage
    assert (usage.input_tokens, usage.output_tokens, usage.is_estimated) == (*billed(provider), False)


def test_tokens_that_no_provider_reports_are_counted_and_marked_as_estimated(reports: Project) -> None:
    llm = ScriptedLLM(default=GOOD)
    response = cast(GroundedResponse, reports.as_query_engine(llm=llm).query(QUESTION))
    usage = response.usage
    assert usage is not None
    assert usage.is_estimated
    assert usage.output_tokens == count_tokens(GOOD)
    assert usage.input_tokens == pytest.approx(count_tokens(llm.history[0]), abs=10)
    assert usage.dollars == pytest.approx((usage.input_tokens + 10 * usage.output_tokens) / 1e6)
    assert str(usage).startswith(f"ScriptedLLM:scripted: about {usage.input_tokens:,} tokens in")


def test_an_answer_in_json_has_its_tokens_and_dollars(reports: Project) -> None:
    response = cast(GroundedResponse, reports.as_query_engine(llm=ScriptedLLM(default=GOOD)).query(QUESTION))
    usage = json.loads(json.dumps(response.to_dict()))["usage"]
    assert response.usage is not None
    assert (usage["calls"], usage["dollars"], usage["is_estimated"]) == (1, response.usage.dollars, True)


def test_the_costs_of_a_project_include_its_answers(reports: Project) -> None:
    before = reports.cost()
    engine = reports.as_query_engine(llm=ScriptedLLM(default=GOOD))
    usages = [cast(GroundedResponse, engine.query(QUESTION)).usage for _ in range(3)]
    (run,) = answers_of(reports)
    assert (run.llm, run.calls, run.estimated_calls) == ("ScriptedLLM:scripted", 3, 3)
    assert run.input_tokens == sum(usage.input_tokens for usage in usages if usage)
    spent = sum(usage.dollars or 0 for usage in usages if usage)
    assert reports.cost().answers == pytest.approx(spent)
    assert reports.cost().dollars == pytest.approx(before.dollars + spent)


def test_concurrent_answers_are_all_recorded(reports: Project) -> None:
    engine = reports.as_query_engine(llm=ScriptedLLM(default=GOOD))

    async def ask_all() -> None:
        await asyncio.gather(*(engine.aquery(QUESTION) for _ in range(12)))

    asyncio.run(ask_all())
    assert [run.calls for run in answers_of(reports)] == [12]


def test_an_answer_of_unknown_price_is_recorded_without_one(manager: ProjectManager, tmp_path: Path) -> None:
    project = manager.create("unpriced", ProjectConfig.local())
    project.ingest([write_texts(tmp_path / "reports")])
    project.as_query_engine(llm=ScriptedLLM(default=GOOD)).query(QUESTION)
    assert [(run.calls, run.dollars) for run in answers_of(project)] == [(1, None)]
    assert project.cost().without_price == 1


def test_all_calls_for_an_answer_are_counted(reports: Project) -> None:
    llm = ScriptedLLM()
    llm.enqueue(GOOD, VERDICT)
    response = cast(GroundedResponse, reports.as_query_engine(llm=llm, judge=True).query(QUESTION))
    assert response.usage is not None
    assert response.usage.calls == len(llm.history) == 2
    assert answers_of(reports)[0].calls == 2


def test_the_call_that_rewrites_a_follow_up_question_is_counted(reports: Project) -> None:
    llm = ScriptedLLM()
    llm.enqueue(GOOD, "What does error TS-104 mean?", "The sensor is not calibrated [Source 1].")
    chat = reports.as_chat_engine(llm=llm, mode="condense")
    first, second = (cast(Any, chat.chat(message)).grounded.usage.calls for message in (QUESTION, "And TS-104?"))
    assert (first, second) == (1, 2)
    assert answers_of(reports)[0].calls == 3


@pytest.mark.parametrize("reads", [0, 1])
def test_a_stream_that_is_not_read_to_its_end_is_recorded(reports: Project, reads: int) -> None:
    stream = reports.as_chat_engine(llm=ScriptedLLM(default=GOOD)).stream_chat(QUESTION)
    pieces = stream.response_gen
    for _ in range(reads):
        next(pieces)
    cast(Any, stream.chat_stream).close()
    assert sum(run.calls for run in answers_of(reports)) == reads  # an unread stream has called no model


def test_an_answer_without_a_call_costs_nothing(reports: Project) -> None:
    engine = reports.as_query_engine(llm=ScriptedLLM(default=GOOD), cache=True)
    first, again = (cast(GroundedResponse, engine.query(QUESTION)) for _ in range(2))
    assert first.usage is not None
    assert (again.from_cache, again.usage) == (True, None)
    assert answers_of(reports)[0].calls == 1


def test_an_answer_whose_cost_cannot_be_recorded_is_returned_with_the_reason(reports: Project) -> None:
    engine = reports.as_query_engine(llm=ScriptedLLM(default=GOOD))
    engine.query(QUESTION)  # creates the ledger
    ledger = reports.directory / LEDGER_FILE
    kept = ledger.rename(ledger.with_name("kept"))
    response = cast(GroundedResponse, engine.query(QUESTION))
    kept.rename(ledger)
    assert str(response) == GOOD
    assert response.usage is not None
    assert response.usage.problem == f"The cost of the answer was not recorded: {LEDGER_FILE} does not exist."


class EventsLLM(ScriptedLLM):
    """A model that streams events in Anthropic's format."""

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        """Return the events: the prompt's tokens at the beginning, the reply's at the end."""
        events: list[tuple[str, dict[str, Any]]] = [
            (
                "",
                {
                    "type": "message_start",
                    "message": {"usage": {"input_tokens": 70, "cache_read_input_tokens": 30, "output_tokens": 1}},
                },
            ),
            (GOOD, {"type": "content_block_delta"}),
            ("", {"type": "message_delta", "usage": {"output_tokens": 9}}),
        ]

        async def pieces() -> Any:
            for delta, raw in events:
                yield ChatResponse(message=ChatMessage(role="assistant", content=delta), delta=delta, raw=raw)

        return pieces()


def test_tokens_of_a_stream_of_events_are_read_from_its_beginning_and_end(reports: Project) -> None:
    usage = cast(GroundedResponse, reports.as_query_engine(llm=EventsLLM()).query(QUESTION)).usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.is_estimated) == (100, 30, 9, False)


def test_json_of_an_answer_has_labelled_excerpts_instead_of_whole_passages(
    manager: ProjectManager, tmp_path: Path
) -> None:
    filler = "The gauge is read in the morning and in the evening by the operator on duty. " * 60
    (tmp_path / "manual.md").write_text(
        f"# Pump\n\n{filler}\n\nError TS-999 means that the pump runs dry.\n\n{filler}", encoding="utf-8"
    )
    project = manager.create("long", ProjectConfig.local())
    project.ingest([tmp_path / "manual.md"])
    llm = ScriptedLLM(default="“the pump runs dry” [Source 1].")
    as_json = cast(GroundedResponse, project.as_query_engine(llm=llm).query(QUESTION)).to_dict()
    (source,) = as_json["sources"]
    assert (source["number"], source["label"], source["cited"]) == (1, "manual.md, section Pump", True)
    assert "the pump runs dry" in source["excerpt"]
    assert len(source["excerpt"]) <= 320
    assert len(json.dumps(as_json)) < len(filler)
    assert [set(result) & {"text", "context"} for result in as_json["retrieval"]["results"]] == [
        set() for _ in as_json["retrieval"]["results"]
    ]


@pytest.mark.parametrize("mode", ["refine", "accumulate"])
def test_a_response_mode_with_a_call_for_each_passage_warns_of_the_calls_and_their_price(
    reports: Project, mode: str
) -> None:
    words = r"Each question takes 20 calls, one for each passage: up to 16,000 tokens of passages, \$0\.016 without the"
    with pytest.warns(UserWarning, match=words):
        reports.as_query_engine(llm=ScriptedLLM(), response_mode=mode)


def test_a_response_mode_with_one_call_does_not_warn_of_calls(reports: Project) -> None:
    with pytest.warns(UserWarning, match="LlamaIndex's own engine") as warned:
        reports.as_query_engine(llm=ScriptedLLM(), response_mode="simple_summarize")
    assert "calls" not in str(warned[0].message)
