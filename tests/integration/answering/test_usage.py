"""Tokens and prices of answers: in the response, in its JSON, and in the costs of the project."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.answering.response import GroundedResponse, record_call
from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.ledger import LEDGER_FILE
from llama_index_contextual.money.price import Prices
from llama_index_contextual.money.receipt import Receipt
from llama_index_contextual.money.tokens import Usage
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.answering.conftest import QUESTION
from tests.support.models import ScriptedLLM
from tests.support.records import ApiError, Request
from tests.support.server import LoopbackProvider

GOOD = "The pump runs dry [Source 1]."


@pytest.fixture
def project(manager: ProjectManager, text_folder: Path, reports: Project) -> Project:
    """A project without costs so far."""
    project = manager.create("reports", reports.config)
    project.ingest([text_folder])
    return project


def answers_of(project: Project) -> list[Receipt]:
    return [run for run in project.cost().runs if run.purpose == "answers"]


def ask(project: Project, llm: Any, **options: Any) -> GroundedResponse:
    return cast(GroundedResponse, project.as_query_engine(llm=llm, **options).query(QUESTION))


def billed(provider: LoopbackProvider) -> tuple[int, int]:
    """Return the tokens of all calls as the provider counts them."""
    usages: list[Any] = [call.usage for call in provider.calls()]
    return sum(usage["prompt_tokens"] for usage in usages), sum(usage["completion_tokens"] for usage in usages)


@pytest.mark.parametrize("way", ["whole", "stream", "async stream"])
async def test_tokens_of_an_answer_are_those_that_the_provider_reports(
    reports: Project, provider: LoopbackProvider, openai: OpenAI, way: str
) -> None:
    provider.enqueue(GOOD)
    engine: Any = reports.as_query_engine(llm=openai, streaming=way != "whole")
    response = await engine.aquery(QUESTION) if way == "async stream" else engine.query(QUESTION)
    if way != "whole":
        response = await response.get_response() if way == "async stream" else response.get_response()
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == billed(provider)
    assert (usage.models, usage.calls, usage.is_estimated) == (("openai:gpt-4o-mini",), 1, False)
    price = Prices().price("openai:gpt-4o-mini")
    assert price is not None
    assert usage.dollars == pytest.approx((usage.input_tokens * price.input + usage.output_tokens * price.output) / 1e6)


# ---- servers that use OpenAI's protocol ------------------------------------------------------------------------------


def openai_like(provider: LoopbackProvider) -> OpenAILike:
    return OpenAILike(model="qwen", is_chat_model=True, api_base=provider.api_base, api_key="any", max_retries=0)


class Gateway(OpenAI):
    """A user's subclass, for a server that uses OpenAI's protocol."""


@pytest.mark.parametrize("kind", ["OpenAILike", "Gateway"])
def test_a_server_with_the_protocol_of_openai_is_asked_for_its_tokens(
    reports: Project, provider: LoopbackProvider, kind: str
) -> None:
    options: Any = {"api_base": provider.api_base, "api_key": "any", "max_retries": 0}
    llm = openai_like(provider) if kind == "OpenAILike" else Gateway(model="gpt-4o-mini", **options)
    provider.enqueue(GOOD)
    usage: Any = ask(reports, llm).usage
    assert provider.calls()[0].fields["stream_options"] == {"include_usage": True}
    assert (usage.input_tokens, usage.output_tokens, usage.is_estimated) == (*billed(provider), False)


@pytest.mark.parametrize(
    "error",
    [
        ApiError(400, "Unrecognized request argument supplied: stream_options"),
        ApiError(422, "body.stream_options: Extra inputs are not permitted"),
        ApiError(400, "Unsupported parameter: include_usage"),
        ApiError(400, "Bad Request"),
    ],
)
def test_a_server_that_refuses_to_report_tokens_is_asked_only_once(
    reports: Project, provider: LoopbackProvider, error: ApiError
) -> None:
    def reply(request: Request) -> str:
        if "stream_options" in request.fields:
            raise error
        return GOOD

    provider.reply, llm = reply, openai_like(provider)
    engines = [reports.as_query_engine(llm=llm), reports.as_query_engine(llm=llm)]
    answers: list[Any] = [engine.query(QUESTION) for engine in (engines[0], *engines)]
    assert [str(answer) for answer in answers] == [GOOD] * 3
    assert [call.status for call in provider.calls()] == [error.status, 200, 200, 200]
    assert {answer.usage.is_estimated for answer in answers} == {True}
    assert "about" in str(answers[0].usage)


@pytest.mark.parametrize(
    ("error", "words", "calls"),
    [
        (ApiError(400, "This model's maximum context length is 8 tokens."), "longer than the context window", 1),
        (ApiError(400, "Bad Request"), "Bad Request", 2),
        (ApiError(401, "Incorrect API key provided."), "refused the API key", 1),
    ],
)
def test_another_error_is_not_taken_for_a_refusal_to_report_tokens(
    reports: Project, provider: LoopbackProvider, error: ApiError, words: str, calls: int
) -> None:
    llm = openai_like(provider)
    provider.enqueue(*[error] * calls, GOOD)
    with pytest.raises(ModelError, match=words):
        ask(reports, llm)
    assert len(provider.calls()) == calls
    usage: Any = ask(reports, llm).usage
    assert not usage.is_estimated


def test_tokens_that_no_provider_reports_are_counted_and_marked_as_estimated(reports: Project) -> None:
    llm = ScriptedLLM(default=GOOD)
    response = ask(reports, llm)
    usage: Any = response.usage
    assert usage.is_estimated
    assert usage.output_tokens == count_tokens(GOOD)
    assert usage.input_tokens == pytest.approx(count_tokens(llm.history[0]), abs=10)
    assert usage.dollars == pytest.approx((usage.input_tokens + 10 * usage.output_tokens) / 1e6)
    assert str(usage).startswith(f"ScriptedLLM:scripted: about {usage.input_tokens:,} tokens in")
    as_json = json.loads(json.dumps(response.to_dict()))["usage"]
    assert (as_json["calls"], as_json["dollars"], as_json["is_estimated"]) == (1, usage.dollars, True)


def test_the_costs_of_a_project_include_its_answers(project: Project) -> None:
    before = project.cost()
    usages: list[Any] = [ask(project, ScriptedLLM(default=GOOD)).usage for _ in range(3)]
    (run,) = answers_of(project)
    assert (run.llm, run.calls, run.estimated_calls) == ("ScriptedLLM:scripted", 3, 3)
    assert run.input_tokens == sum(usage.input_tokens for usage in usages)
    spent = sum(usage.dollars for usage in usages)
    assert project.cost().answers == pytest.approx(spent)
    assert project.cost().dollars == pytest.approx(before.dollars + spent)
    ask(project, ScriptedLLM(model_name="unknown", default=GOOD))
    assert [(run.calls, run.dollars is None) for run in answers_of(project)] == [(3, False), (1, True)]
    assert project.cost().without_price == 1


async def test_concurrent_answers_are_all_recorded(project: Project) -> None:
    engine = project.as_query_engine(llm=ScriptedLLM(default=GOOD))
    await asyncio.gather(*(engine.aquery(QUESTION) for _ in range(12)))
    assert [run.calls for run in answers_of(project)] == [12]


def test_all_calls_for_an_answer_are_counted_and_a_cached_one_costs_nothing(project: Project) -> None:
    llm = ScriptedLLM()
    llm.enqueue(GOOD, '{"unsupported": [], "relevant": true, "confidence": 0.9}')
    usage: Any = ask(project, llm, judge=True, cache=True).usage
    assert usage.calls == len(llm.history) == 2
    again = ask(project, llm, judge=True, cache=True)
    assert (again.from_cache, again.usage) == (True, None)
    llm.enqueue(GOOD, "What does error TS-104 mean?", "The sensor is not calibrated [Source 1].")
    chat: Any = project.as_chat_engine(llm=llm, mode="condense")
    assert [chat.chat(message).grounded.usage.calls for message in (QUESTION, "And TS-104?")] == [1, 2]
    assert answers_of(project)[0].calls == len(llm.history) == 5


@pytest.mark.parametrize("reads", [0, 1])
def test_a_stream_that_is_not_read_to_its_end_is_recorded(project: Project, reads: int) -> None:
    stream = project.as_chat_engine(llm=ScriptedLLM(default=GOOD)).stream_chat(QUESTION)
    pieces = stream.response_gen
    for _ in range(reads):
        next(pieces)
    cast(Any, stream.chat_stream).close()
    assert sum(run.calls for run in answers_of(project)) == reads  # an unread stream has called no model


def test_an_answer_whose_cost_cannot_be_recorded_is_returned_with_the_reason(project: Project) -> None:
    engine = project.as_query_engine(llm=ScriptedLLM(default=GOOD))
    engine.query(QUESTION)  # creates the ledger
    ledger = project.directory / LEDGER_FILE
    content = ledger.read_bytes()
    ledger.write_bytes(b"not a database" * 500)
    response = cast(GroundedResponse, engine.query(QUESTION))
    ledger.write_bytes(content)
    assert str(response) == GOOD
    assert response.usage is not None
    problem = f"The cost of the answer was not recorded: {LEDGER_FILE} is damaged"
    assert (response.usage.problem or "").startswith(problem)


class EventsLLM(ScriptedLLM):
    """A model that streams events in Anthropic's format: first the prompt's tokens, at the end the reply's."""

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        """Return the events."""
        prompt = {"input_tokens": 70, "cache_read_input_tokens": 30, "output_tokens": 1}
        events: list[tuple[str, dict[str, Any]]] = [
            ("", {"type": "message_start", "message": {"usage": prompt}}),
            (GOOD, {"type": "content_block_delta"}),
            ("", {"type": "message_delta", "usage": {"output_tokens": 9}}),
        ]

        async def pieces() -> Any:
            for delta, raw in events:
                yield ChatResponse(message=ChatMessage(role="assistant", content=delta), delta=delta, raw=raw)

        return pieces()


def test_tokens_of_a_stream_of_events_are_read_from_its_beginning_and_end(reports: Project) -> None:
    usage: Any = ask(reports, EventsLLM()).usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.is_estimated) == (100, 30, 9, False)


def test_a_response_mode_warns_of_a_call_for_each_passage_and_of_their_price(reports: Project) -> None:
    with pytest.warns(UserWarning, match=r"up to 20 for a question, \$0\.016 without the answers"):
        reports.as_query_engine(llm=ScriptedLLM(), response_mode="refine")


@pytest.mark.parametrize("count", [0, -5, 10**30, None, "many", True])
@pytest.mark.parametrize("names", [("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")])
def test_implausible_counts_of_an_answer_are_replaced_by_an_estimate(names: tuple[str, str], count: Any) -> None:
    reported = Usage().updated({"usage": dict.fromkeys(names, count)})
    usage = record_call("openai:gpt-4o-mini", [ChatMessage("Which pump?")], reported, GOOD)
    assert usage.is_estimated
    assert usage.input_tokens > 0
    assert usage.output_tokens == count_tokens(GOOD)
    assert "about $" in str(replace(usage, dollars=1.0))
