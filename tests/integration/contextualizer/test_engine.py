"""The engine against a real server: order, concurrency, failures, and no context paid for twice."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from pathlib import Path

import pytest
from llama_index.core.schema import BaseNode
from llama_index.llms.openai import OpenAI
from openai import AsyncOpenAI

from llama_index_contextual._utils.calls import ProviderError, RetryPolicy
from llama_index_contextual.contextualizer import Contextualized, LLMContextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.prompts import ContextRequest
from llama_index_contextual.contextualizer.tokens import TokenCounter, count_segment
from llama_index_contextual.errors import BudgetExceededError, ModelError
from llama_index_contextual.index.ledger import Ledger, LedgerEntry
from llama_index_contextual.index.ledger_lines import write_ledger
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import Prices
from llama_index_contextual.money.tokens import Tokens
from tests.integration.contextualizer.samples import chunks, loose
from tests.integration.contextualizer.segments_of import by_segment, corpus, independent_totals, planned
from tests.support.faults import FaultKind
from tests.support.nodes import written
from tests.support.recorder import PATIENCE
from tests.support.server import LoopbackProvider

MODEL = "openai:gpt-4o-mini"
QUICK = RetryPolicy(attempts=10, base_delay=0.001, max_delay=0.004)


def run(nodes: list[BaseNode], account: Account | None = None, **options: object) -> Contextualized:
    async def contextualized() -> Contextualized:
        contextualizer = LLMContextualizer(**{"model": MODEL, "retry": QUICK, **options})  # type: ignore[arg-type]
        async with contextualizer.session(account=account) as session:
            return await session.acontextualize(nodes)

    return asyncio.run(contextualized())


def is_complete(done: Contextualized) -> bool:
    return done.failures == [] and {node.metadata["context_source"] for node in done.nodes} == {"llm"}


# ---- the order of calls ----------------------------------------------------------------------------------------------


def test_the_first_call_of_a_segment_is_sent_alone_and_the_others_use_the_cache(
    provider: LoopbackProvider, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as thread:
        with provider.hold():
            running = thread.submit(run, corpus(4, 5), num_workers=16)
            provider.wait_in_flight(4)
        assert is_complete(running.result())
    segments = by_segment(provider)
    assert [len(calls) for calls in segments.values()] == [5] * 4
    for first, *others in segments.values():
        assert first.completed is not None
        assert all(first.completed <= other.arrived for other in others)
        assert len({call.body["prompt_cache_key"] for call in (first, *others)}) == 1
        assert first.cached_tokens == 0
        assert all(call.cached_tokens >= 1024 for call in others)
    totals = independent_totals(provider, tmp_path)
    assert (totals["mismatches"], totals["repeated_prompts"], totals["calls"]) == (0, 0, 20)
    assert totals["cached_tokens"] == provider.totals()["cached_tokens"]


def test_a_prefix_too_short_for_the_cache_delays_no_call(provider: LoopbackProvider) -> None:
    with ThreadPoolExecutor(1) as thread:
        with provider.hold():
            running = thread.submit(run, corpus(1, 6, words=20), num_workers=16)
            provider.wait_in_flight(6)
        assert is_complete(running.result())


def test_if_the_first_call_fails_the_next_one_warms_the_cache(provider: LoopbackProvider) -> None:
    provider.fault("content_filter_error", match=lambda request: "Part 0 of" in request.chunk)
    done = run(corpus(1, 5), num_workers=16)
    assert [failure.node_id for failure in done.failures] == ["doc-0-0"]
    refused, warming, *others = provider.chat_calls
    assert (refused.status, warming.cached_tokens) == (400, 0)
    assert refused.completed is not None
    assert warming.completed is not None
    assert refused.completed <= warming.arrived
    assert all(warming.completed <= other.arrived for other in others)
    assert all(other.cached_tokens >= 1024 for other in others)


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_with_a_third_of_calls_failing_every_context_is_written_once(
    seed: int, provider: LoopbackProvider, ledger: Ledger, tmp_path: Path
) -> None:
    provider.fail_randomly(
        0.3, seed=seed, kinds=["server_error", "unavailable", "rate_limit", "drop", "drop_in_body", "malformed_json"]
    )
    done = run(corpus(6, 5), num_workers=8, ledger=ledger)
    assert is_complete(done), f"seed {seed}"
    totals = independent_totals(provider, tmp_path)
    assert totals["calls"] > 30
    assert (totals["repeated_prompts"], totals["repeated_chunks"], totals["mismatches"]) == (0, 0, 0)
    assert ledger.info().contexts == 30


def test_after_a_rate_limit_no_call_is_sent_before_the_requested_time(provider: LoopbackProvider) -> None:
    provider.fault("rate_limit", retry_after=0.25, after=3)
    # One at a time: of several calls, some may be on their way already.
    assert is_complete(run(corpus(3, 3, words=20), num_workers=1))
    limited, after = provider.chat_calls[3:5]
    assert (limited.status, after.status) == (429, 200)
    assert limited.completed is not None
    assert after.arrived >= limited.completed + 0.25


def test_a_rate_limit_of_the_provider_loses_no_context(provider: LoopbackProvider) -> None:
    provider.rpm, provider.rate_window = 6, 0.6
    done = run(corpus(4, 5, words=20), num_workers=4)
    assert is_complete(done)
    assert len([call for call in provider.chat_calls if call.status == 200]) == 20


def test_an_unreachable_provider_stops_the_run_and_contexts_are_kept(
    provider: LoopbackProvider, ledger: Ledger
) -> None:
    fault = provider.fault("drop", times=None, after=8)
    nodes = corpus(10, 6, words=20)
    with pytest.raises(ModelError, match=r"cannot be reached.* after 10 failures in a row\."):
        run(nodes, num_workers=4, ledger=ledger)
    assert ledger.info().contexts == 8
    assert len(provider.chat_calls) <= 8 + 2 * 4 * QUICK.attempts, "and not ten times each of 52"
    fault.times = 0
    provider.clear_history()
    done = run(nodes, num_workers=4, ledger=ledger)
    assert (is_complete(done), done.paid, len(provider.chat_calls)) == (True, 52, 52)


def test_a_fatal_error_lets_calls_in_flight_finish(provider: LoopbackProvider, ledger: Ledger) -> None:
    provider.fault("insufficient_quota", match=lambda request: "Part 3 of" in request.chunk)
    with ThreadPoolExecutor(1) as thread:
        with provider.hold():
            running = thread.submit(run, corpus(1, 9, words=20), num_workers=4, ledger=ledger)
            provider.wait_in_flight(4)
        with pytest.raises(ModelError, match="no quota left"):
            running.result()
    assert ledger.info().contexts == len([call for call in provider.chat_calls if call.status == 200]) >= 3
    assert len(provider.chat_calls) < 9


# ---- the budget ------------------------------------------------------------------------------------------------------


def test_the_budget_approves_each_call_and_books_its_cost(provider: LoopbackProvider) -> None:
    provider.fault("server_error")
    account = Account(Prices(), max_cost=1.0)
    assert is_complete(run(corpus(2, 3, words=20), account=account))
    assert len(provider.chat_calls) == 7
    totals, booked = provider.totals(), account.actual.contexts
    assert (booked.calls, account.actual.unsettled_calls, account.calls_in_flight) == (6, 0, 0)
    assert (booked.input_tokens, booked.output_tokens) == (totals["prompt_tokens"], totals["completion_tokens"])


@pytest.mark.parametrize(
    ("kind", "unsettled"),
    [
        ("rate_limit", 0),
        ("server_error", 0),
        ("invalid_key", 0),
        ("drop", 1),
        ("drop_in_body", 1),
        ("malformed_json", 1),
    ],
)
def test_a_call_counts_as_refused_only_where_the_provider_says_so(
    provider: LoopbackProvider, kind: FaultKind, unsettled: int
) -> None:
    provider.fault(kind)
    account = Account(Prices())
    if kind == "invalid_key":
        with pytest.raises(ModelError):
            run(corpus(1, 3, words=20), account=account, num_workers=1)
    else:
        assert is_complete(run(corpus(1, 3, words=20), account=account))
        assert account.actual.contexts.calls == 3
    assert (account.actual.unsettled_calls, account.calls_in_flight) == (unsettled, 0)


def test_an_exhausted_budget_stops_the_run_and_keeps_paid_contexts(provider: LoopbackProvider, ledger: Ledger) -> None:
    account = Account(Prices(), max_cost=0.0015)
    with pytest.raises(BudgetExceededError, match="cost limit"):
        run(corpus(3, 4), account=account, ledger=ledger, num_workers=4)
    assert 0 < len(provider.chat_calls) == ledger.info().contexts < 12
    assert (account.actual.dollars or 0.0) <= 0.0015


# ---- never twice -----------------------------------------------------------------------------------------------------


def test_a_segment_that_occurs_twice_is_requested_once(provider: LoopbackProvider, ledger: Ledger) -> None:
    twice = [*loose("One.", "Two.", doc_id="a"), *loose("One.", "Two.", doc_id="b")]
    for options in ({"ledger": ledger}, {}):
        provider.clear_history()
        done = run(twice, **options)
        assert is_complete(done)
        assert (done.paid, len(provider.chat_calls)) == (2, 2)
        assert done.nodes[0].metadata["context"] == done.nodes[2].metadata["context"]


_is_slow: ContextVar[bool] = ContextVar("_is_slow", default=False)


class _SlowRead(Ledger):
    """Answers what a slow task asks only when it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_answer = threading.Event()

    def contexts(self, keys: Sequence[str]) -> dict[str, str]:
        result = super().contexts(keys)
        if _is_slow.get():
            assert self.may_answer.wait(PATIENCE)
        return result


async def test_a_context_that_arrives_while_the_ledger_is_read_is_not_requested_again(
    provider: LoopbackProvider, tmp_path: Path
) -> None:
    ledger = _SlowRead(tmp_path / "ledger.sqlite")
    nodes = loose("One.", "Two.")
    async with LLMContextualizer(model=MODEL, retry=QUICK, ledger=ledger).session() as contextualizer:
        slow = copy_context()
        slow.run(_is_slow.set, True)
        first = asyncio.create_task(contextualizer.acontextualize(nodes))
        second = asyncio.create_task(contextualizer.acontextualize(nodes), context=slow)
        done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        ledger.may_answer.set()
        await asyncio.gather(first, second)
    assert len(done) == 1
    assert len(provider.chat_calls) == 2


class _FullDisk(Ledger):
    def add_contexts(self, entries: Iterable[LedgerEntry]) -> None:
        raise sqlite3.OperationalError("database or disk is full")


def test_an_error_unrelated_to_a_call_is_raised_unchanged(provider: LoopbackProvider) -> None:
    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        run(loose("Revenue grew."), ledger=_FullDisk(None))


def test_a_text_in_two_sections_gets_a_context_for_each(provider: LoopbackProvider, ledger: Ledger) -> None:
    nodes = loose(*["Limit: 5 bar."] * 3)
    for node, section in zip(nodes, ("Pump A", "Pump B", "Pump A"), strict=True):
        node.metadata["section"] = section
    assert is_complete(run(nodes, ledger=ledger))
    assert len(provider.calls()) == 2
    assert is_complete(run(nodes, ledger=ledger))
    assert len(provider.calls()) == 2, "known by then"


# ---- the LLM contextualizer through LlamaIndex's own OpenAI class, against a real server on the loopback interface ---


THREE = RetryPolicy(attempts=3, base_delay=0.001)
TEXTS = ("Alpha pumps water.", "Beta pumps oil.", "Gamma pumps steam.")


def contextualizer(**options: object) -> LLMContextualizer:
    return LLMContextualizer(**{"model": MODEL, "retry": THREE, **options})  # type: ignore[arg-type]


def run_texts(**options: object) -> Contextualized:
    return contextualizer(**options).contextualize(loose(*TEXTS))


def sources(done: Contextualized) -> list[str]:
    return [node.metadata["context_source"] for node in done.nodes]


def prompts(provider: LoopbackProvider) -> list[str]:
    return [record.body["messages"][0]["content"] for record in provider.chat_calls]


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_each_chunk_gets_the_answer_of_its_own_call(provider: LoopbackProvider) -> None:
    nodes = chunks()
    done = contextualizer().contextualize(nodes)
    assert (done.failures, done.paid) == ([], len(nodes))
    answers = {record.body["messages"][0]["content"].split("<chunk>\n")[1]: record.reply for record in provider.history}
    assert len(answers) == len(provider.chat_calls) == len(nodes)
    for node in done.nodes:
        (answer,) = [reply for calls, reply in answers.items() if node.get_content().strip() in calls]
        assert written(node) == answer
    assert {record.body["model"] for record in provider.chat_calls} == {"gpt-4o-mini"}
    assert {record.body["temperature"] for record in provider.chat_calls} == {0.0}


def test_the_shared_prefix_is_read_from_the_providers_cache(provider: LoopbackProvider, tmp_path: Path) -> None:
    long = [f"{text} " * 130 for text in TEXTS]
    ledger = Ledger(tmp_path / "ledger.sqlite")
    contextualizer(num_workers=1, ledger=ledger)(loose(*long))
    write_ledger(ledger, tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert sorted(row["cached_tokens"] > 1024 for row in rows) == [False, True, True]
    assert sum(row["input_tokens"] for row in rows) == provider.totals()["prompt_tokens"]
    assert sum(row["cached_tokens"] for row in rows) == provider.totals()["cached_tokens"]
    assert sum(row["output_tokens"] for row in rows) == provider.totals()["completion_tokens"]


def test_a_second_run_sends_nothing(provider: LoopbackProvider, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    first = run_texts(ledger=ledger)
    sent = len(provider.chat_calls)
    second = run_texts(ledger=Ledger(tmp_path / "ledger.sqlite"))
    assert len(provider.chat_calls) == sent == len(TEXTS)
    assert (second.nodes, second.paid) == (first.nodes, 0)


def test_usage_that_the_server_leaves_out_is_unknown(provider: LoopbackProvider, tmp_path: Path) -> None:
    provider.fault("missing_usage", times=None)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert run_texts(ledger=ledger).failures == []
    assert (ledger.info().contexts, ledger.info().input_tokens) == (len(TEXTS), 0)


# ---- what may succeed later ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry_after", [0.001, "0", None])
def test_a_rate_limit_waits_as_long_as_the_provider_requests(
    retry_after: float | str | None, provider: LoopbackProvider
) -> None:
    provider.fault("rate_limit", times=2, retry_after=retry_after, match="Beta pumps oil.\n</chunk>")
    # Without Retry-After the policy's own delay counts; with it, it must not: the delay would be an hour.
    policy = THREE if retry_after is None else RetryPolicy(attempts=3, base_delay=3600, max_delay=3600)
    done = run_texts(retry=policy)
    assert (done.failures, sources(done)) == ([], ["llm"] * 3)
    assert len(provider.chat_calls) == len(TEXTS) + 2


# ---- what fails for one chunk ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "calls", "sentence"),
    [
        ("server_error", 3, "keeps returning 500 (server error): run the same call again later"),
        ("drop", 3, "cannot be reached: check the address and the network, then try again"),
        ("content_filter_error", 1, "refused the request (400): The response was filtered"),
        ("empty", 1, "answered with an empty context"),
        ("refusal", 1, "refused to write a context"),
        ("content_filter", 1, "refused to write a context"),
    ],
)
def test_a_chunk_that_fails_for_good_gets_the_structural_context(
    kind: FaultKind, calls: int, sentence: str, provider: LoopbackProvider
) -> None:
    provider.fault(kind, times=None, match="Beta pumps oil.\n</chunk>")
    nodes = loose(*TEXTS, title="Pumps")
    done = contextualizer().contextualize(nodes)
    assert sources(done) == ["llm", "structural", "llm"]
    (failure,) = done.failures
    assert (failure.node_id, failure.doc_id) == (nodes[1].node_id, "loose")
    assert sentence in failure.error
    assert MODEL in failure.error
    assert done.nodes[1].metadata["context"] == StructuralContextualizer()(nodes)[1].metadata["context"]
    assert sum("Beta pumps oil.\n</chunk>" in prompt for prompt in prompts(provider)) == calls
    assert done.paid == 2


# ---- what fails for all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("invalid_key", "The provider of 'openai:gpt-4o-mini' refused the API key: check the key in the environment."),
        (
            "model_not_found",
            "The provider does not offer the model 'openai:gpt-4o-mini': change the setting 'llm' to one that it"
            " offers.",
        ),
        (
            "insufficient_quota",
            "The account behind 'openai:gpt-4o-mini' has no quota left: top it up, then run the same call again.",
        ),
    ],
)
def test_an_error_that_concerns_all_chunks_stops_the_run_with_a_message(
    kind: FaultKind, sentence: str, provider: LoopbackProvider
) -> None:
    provider.fault(kind, times=None)
    with pytest.raises(ModelError) as raised:
        run_texts(num_workers=1)
    assert str(raised.value) == sentence
    assert raised.value.setting == "llm"
    assert isinstance(raised.value.__cause__, ProviderError)
    assert raised.value.__cause__.status_code in (401, 404, 429)
    assert len(provider.chat_calls) == 1, "neither is the call repeated nor the next chunk sent"


def test_a_key_that_the_provider_refuses_is_not_shown(
    provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.require_key = "sk-right"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-0123456789")
    with pytest.raises(ModelError, match="refused the API key") as raised:
        run_texts()
    assert "0123456789" not in str(raised.value)


def test_an_unknown_model_name_is_an_error_with_a_message(provider: LoopbackProvider) -> None:
    with pytest.raises(ModelError, match="does not offer the model 'openai:gpt-nonsense': change the setting 'llm'"):
        run_texts(model="openai:gpt-nonsense")
    assert provider.history == []


# ---- event loops -----------------------------------------------------------------------------------------------------


async def test_a_cancelled_run_leaves_neither_task_nor_call(provider: LoopbackProvider) -> None:
    with provider.hold():
        task = asyncio.create_task(contextualizer(num_workers=2).acontextualize(loose(*TEXTS)))
        await asyncio.to_thread(provider.wait_in_flight, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(provider.wait_until, lambda: provider.in_flight == 0)
    assert len(provider.chat_calls) == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


def kept(provider: LoopbackProvider) -> OpenAI:
    """Return the stock class with its default: one client for all calls."""
    return OpenAI(model="gpt-4o-mini", api_base=provider.api_base, api_key="k", max_retries=0)


@pytest.mark.usefixtures("lasting_connections")
@pytest.mark.parametrize("given", ["by name", "as an object"])
def test_one_contextualizer_serves_several_event_loops_and_pays_once(
    given: str, provider: LoopbackProvider, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what others have left open
    caplog.clear()
    ours = contextualizer(num_workers=2, **({"llm": kept(provider)} if given == "as an object" else {}))
    for _ in range(2):
        assert sources(Contextualized(asyncio.run(ours.acall(loose(*TEXTS))), [], 0)) == ["llm"] * 3
        assert sources(ours.contextualize(loose(*TEXTS))) == ["llm"] * 3
    assert len(provider.chat_calls) == 4 * len(TEXTS)
    connections = {record.connection_id for record in provider.chat_calls}
    assert len(connections) <= 4 * 2, "a connection for each worker and loop, not for each call"
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == [], "clients are closed in their loop"


# ---- spans of calls, as received by OpenInference --------------------------------------------------------------------


async def send(provider: LoopbackProvider, request: ContextRequest) -> Tokens:
    async with AsyncOpenAI(api_key="any", base_url=provider.api_base) as client:
        answer = await client.chat.completions.create(
            model="gpt-4.1", messages=[{"role": "user", "content": request.prompt}]
        )
    return Tokens(1, answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens)


async def test_token_counts_equal_those_of_the_provider(provider: LoopbackProvider) -> None:
    plan = planned()
    assert len(plan) > 1
    for requests in plan:
        first = await send(provider, requests[0])
        sent = [first, *await asyncio.gather(*(send(provider, request) for request in requests[1:]))]
        actual = sum(sent, Tokens())
        counted = count_segment(requests, TokenCounter.for_model("openai:gpt-4.1"))
        assert counted.calls == actual.calls == len(requests)
        # A word at the seam of prefix and suffix may be one token more or less.
        assert counted.input_tokens == pytest.approx(actual.input_tokens, abs=2 * len(requests))
        assert counted.cached_tokens == actual.cached_tokens
        assert (counted.cached_tokens > 0) == (len(requests) > 1)
