"""The engine against a real server: order, concurrency, failures, and no context paid for twice."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llama_index.core.schema import BaseNode

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.contextualizer import Contextualized, LLMContextualizer
from llama_index_contextual.contextualizer.prompts import ContextRequest
from llama_index_contextual.contextualizer.scheduler import Reply
from llama_index_contextual.errors import BudgetExceededError, ModelError
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry
from tests.integration.contextualizer.samples import loose
from tests.integration.contextualizer.segments_of import by_segment, corpus, independent_totals
from tests.support.faults import FaultKind
from tests.support.recorder import PATIENCE
from tests.support.records import Request
from tests.support.server import LoopbackProvider

MODEL = "openai:gpt-4o-mini"
QUICK = RetryPolicy(attempts=10, base_delay=0.001, max_delay=0.004)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(context_tokens=20) as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def run(nodes: list[BaseNode], **options: object) -> Contextualized:
    return LLMContextualizer(**{"model": MODEL, "retry": QUICK, **options}).contextualize(nodes)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("workers", [1, 3])
def test_the_concurrency_limit_is_used_and_not_exceeded(
    workers: int, provider: LoopbackProvider, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as thread:
        with provider.hold():
            running = thread.submit(run, corpus(5, 4), num_workers=workers)
            provider.wait_in_flight(workers)
        assert is_complete(running.result())
    assert independent_totals(provider, tmp_path)["in_flight_max"] == workers


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


def test_segments_wait_for_slots(provider: LoopbackProvider) -> None:
    with ThreadPoolExecutor(1) as thread:
        with provider.hold():
            running = thread.submit(run, corpus(12, 2), num_workers=2)
            provider.wait_in_flight(2)
        assert is_complete(running.result())
    firsts = sorted(calls[0].arrived for calls in by_segment(provider).values())
    done = sorted(calls[-1].completed or 0.0 for calls in by_segment(provider).values())
    # Two are begun at once; each further one waits until another is done.
    assert all(started >= end for started, end in zip(firsts[2:], done, strict=False))


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


def test_the_rate_limit_headers_of_answers_are_followed(provider: LoopbackProvider) -> None:
    provider.rpm, provider.rate_window = 6, 0.6
    done = run(corpus(4, 5, words=20), num_workers=4)
    assert is_complete(done)
    refused = [call for call in provider.chat_calls if call.status == 429]
    assert len(refused) <= 4, "only while no header was seen yet"
    assert len(provider.chat_calls) == 20 + len(refused)


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


class Purse:
    """Lets so many calls pass, and notes how each of them ended."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.replies: list[Reply] = []
        self.released = self.forfeited = 0

    async def may_send(self, request: ContextRequest) -> Purse:
        """Take one call out."""
        if not self.left:
            raise BudgetExceededError("The purse is empty.", spent=1.0, max_cost=1.0)
        self.left -= 1
        return self

    def settle(self, reply: Reply) -> None:
        """Note an answer."""
        self.replies.append(reply)

    def release(self) -> None:
        """Note a call that was refused."""
        self.released += 1

    def forfeit(self) -> None:
        """Note a call of which nobody knows whether it is charged."""
        self.forfeited += 1


def test_the_budget_approves_each_call_and_books_its_cost(provider: LoopbackProvider) -> None:
    provider.fault("server_error")
    purse = Purse(7)
    assert is_complete(run(corpus(2, 3, words=20), budget=purse))
    assert len(provider.chat_calls) == len(purse.replies) + purse.released == 7
    assert (purse.released, purse.forfeited) == (1, 0)
    used = [reply.usage for reply in purse.replies]
    assert sum(usage.input_tokens or 0 for usage in used) == provider.totals()["prompt_tokens"]
    assert sum(usage.output_tokens or 0 for usage in used) == provider.totals()["completion_tokens"]


@pytest.mark.parametrize(
    ("kind", "released", "forfeited"),
    [("rate_limit", 1, 0), ("server_error", 1, 0), ("drop", 0, 1), ("drop_in_body", 0, 1), ("malformed_json", 0, 1)],
)
def test_a_call_counts_as_refused_only_where_the_provider_says_so(
    provider: LoopbackProvider, kind: FaultKind, released: int, forfeited: int
) -> None:
    provider.fault(kind)
    purse = Purse(9)
    assert is_complete(run(corpus(1, 3, words=20), budget=purse))
    assert (purse.released, purse.forfeited, len(purse.replies)) == (released, forfeited, 3)


def test_an_exhausted_budget_stops_the_run_and_keeps_paid_contexts(provider: LoopbackProvider, ledger: Ledger) -> None:
    with pytest.raises(BudgetExceededError, match="The purse is empty"):
        run(corpus(3, 4), budget=Purse(5), ledger=ledger, num_workers=4)
    assert len(provider.chat_calls) == ledger.info().contexts == 5


# ---- never twice -----------------------------------------------------------------------------------------------------


def test_a_segment_that_occurs_twice_is_requested_once(provider: LoopbackProvider, ledger: Ledger) -> None:
    twice = [*loose("One.", "Two.", doc_id="a"), *loose("One.", "Two.", doc_id="b")]
    for options in ({"ledger": ledger}, {}):
        provider.clear_history()
        done = run(twice, **options)
        assert is_complete(done)
        assert (done.paid, len(provider.chat_calls)) == (2, 2)
        assert done.nodes[0].metadata["context"] == done.nodes[2].metadata["context"]


class _SlowRead(Ledger):
    """Answers what it is asked second only when it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._reads, self.may_answer = itertools.count(1), threading.Event()

    def contexts(self, keys: Sequence[str]) -> dict[str, str]:
        number = next(self._reads)
        result = super().contexts(keys)
        if number == 2:
            assert self.may_answer.wait(PATIENCE)
        return result


async def test_a_context_that_arrives_while_the_ledger_is_read_is_not_requested_again(
    provider: LoopbackProvider, tmp_path: Path
) -> None:
    ledger = _SlowRead(tmp_path / "ledger.sqlite")
    nodes = loose("One.", "Two.")
    async with LLMContextualizer(model=MODEL, retry=QUICK, ledger=ledger).session() as contextualizer:
        first = asyncio.create_task(contextualizer.acontextualize(nodes))
        second = asyncio.create_task(contextualizer.acontextualize(nodes))
        done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        ledger.may_answer.set()
        await asyncio.gather(first, second)
    assert len(done) == 1
    assert len(provider.chat_calls) == 2


def test_a_chunk_that_occurs_twice_in_a_segment_is_requested_once(provider: LoopbackProvider) -> None:
    done = run(loose("Same.", "Other.", "Same."))
    assert is_complete(done)
    assert (done.paid, len(provider.chat_calls)) == (2, 2)


@pytest.mark.parametrize("sizes", [(1, "all"), ("all", 1), (2, 3)])
def test_a_change_of_chunks_per_call_requests_no_context_again(
    sizes: tuple[object, object], provider: LoopbackProvider, ledger: Ledger
) -> None:
    first = run(corpus(2, 4, words=20), chunks_per_call=sizes[0], ledger=ledger)
    sent = len(provider.chat_calls)
    second = run(corpus(2, 4, words=20), chunks_per_call=sizes[1], ledger=ledger)
    assert len(provider.chat_calls) == sent
    assert (second.nodes, second.paid) == (first.nodes, 0)


def refuse(_request: Request) -> str:
    raise AssertionError("nothing may be sent")


def test_a_complete_ledger_needs_no_provider(provider: LoopbackProvider, ledger: Ledger) -> None:
    nodes = corpus(3, 3, words=20)
    run(nodes, ledger=ledger)
    provider.reply = refuse
    assert run(nodes, ledger=ledger).paid == 0


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
