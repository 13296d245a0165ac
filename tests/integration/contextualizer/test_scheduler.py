"""Order of waiting calls, and the circuit breaker for a failing provider."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import replace

import pytest

from llama_index_contextual._utils.calls import ProviderError, RetryPolicy
from llama_index_contextual._utils.templates import ContextPrompt
from llama_index_contextual.contextualizer.base import segments
from llama_index_contextual.contextualizer.limits import Limiter, Slots
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT, ContextRequest, Usage, plan_requests
from llama_index_contextual.contextualizer.scheduler import Reply, Scheduler
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import PROVIDERS, Provider
from tests.integration.contextualizer.segments_of import corpus

QUICK = RetryPolicy(attempts=3, base_delay=0.001)


def requests(chunks: int, *, words: int = 5) -> list[ContextRequest]:
    (segment,) = segments(corpus(1, chunks, words=words), segment_size=8000)
    return plan_requests(segment, segment.chunks, prompt=ContextPrompt(DEFAULT_PROMPT), model="m")


class Scripted:
    """Raises what is scripted for a chunk, in order, then answers; remembers the order of calls."""

    def __init__(self, **errors: list[Exception]) -> None:
        self.errors = errors
        self.sent: list[str] = []

    async def send(self, request: ContextRequest) -> Reply:
        """Answer, or fail."""
        name = request.chunks[0].node_id.rpartition("-")[2]
        self.sent.append(name)
        await asyncio.sleep(0)
        if self.errors.get(f"chunk_{name}"):
            raise self.errors[f"chunk_{name}"].pop(0)
        return Reply("A context of the passage in its text, as long as it has to be here.", Usage(9, 0, 3), "stop")


def scheduler(
    sender: Scripted, *, provider: Provider | None = None, concurrency: int = 8, retry: RetryPolicy = QUICK
) -> Scheduler:
    return Scheduler(sender, model="m", provider=provider, concurrency=concurrency, retry=retry, limiter=Limiter())


# ---- places ----------------------------------------------------------------------------------------------------------


async def test_slots_are_assigned_by_rank_and_then_in_order_of_arrival() -> None:
    slots = Slots(1)
    order: list[str] = []
    await slots.acquire(0)

    async def wait(name: str, rank: int) -> None:
        await slots.acquire(rank)
        order.append(name)
        slots.release()

    tasks = [asyncio.create_task(wait(name, rank)) for name, rank in (("a", 1), ("b", 0), ("c", 1), ("d", 0))]
    await asyncio.sleep(0)
    slots.release()
    await asyncio.gather(*tasks)
    assert order == ["b", "d", "a", "c"]


@pytest.mark.parametrize("given", [False, True])
async def test_a_cancelled_waiter_loses_no_slot(given: bool) -> None:
    slots = Slots(1)
    await slots.acquire(0)
    first, second = (asyncio.create_task(slots.acquire(0)) for _ in range(2))
    await asyncio.sleep(0)
    if given:
        slots.release()  # the place is the first one's, which is cancelled before it knows
    first.cancel()
    if not given:
        await asyncio.sleep(0)
        slots.release()
    await asyncio.wait_for(second, 60)
    with pytest.raises(asyncio.CancelledError):
        await first


async def answered(engine: Scheduler, request: ContextRequest) -> Reply:
    """The answer to a request, with nothing to commit."""
    async with engine.call(request) as reply:
        return reply


# ---- the order of calls ----------------------------------------------------------------------------------------------


async def test_after_a_failed_first_call_the_next_one_is_sent() -> None:
    sender = Scripted(chunk_0=[ValueError("refused")])
    engine = scheduler(sender, provider=replace(PROVIDERS["openai"], min_cached_tokens=0))
    result = await asyncio.gather(*(answered(engine, request) for request in requests(4)), return_exceptions=True)
    assert [type(item).__name__ for item in result] == ["ValueError", "Reply", "Reply", "Reply"]
    assert sender.sent == ["0", "1", "2", "3"]


async def test_a_call_is_in_flight_until_its_answer_is_processed() -> None:
    sender = Scripted()
    engine = scheduler(sender, concurrency=2)
    one, two, three = requests(3)
    async with engine.call(one):
        async with engine.call(two):
            waiting = asyncio.create_task(answered(engine, three))
            for _ in range(10):
                await asyncio.sleep(0)
            assert sender.sent == ["0", "1"]
        await waiting
    assert sender.sent == ["0", "1", "2"]


async def test_a_reply_counts_its_attempts() -> None:
    sender = Scripted(chunk_0=[TimeoutError(), ConnectionError()])
    (request, other) = requests(2)
    engine = scheduler(sender)
    assert ((await answered(engine, other)).attempts, (await answered(engine, request)).attempts) == (1, 3)


# ---- when to give up -------------------------------------------------------------------------------------------------


async def test_a_single_failing_call_does_not_stop_a_provider_that_answers_others() -> None:
    one, other = requests(2)
    engine = scheduler(Scripted(chunk_1=[ConnectionError("gone")] * 9))
    await answered(engine, one)
    with pytest.raises(ConnectionError):
        await answered(engine, other)
    engine.check()


@pytest.mark.parametrize("jitter", [0.5, 1.0])
async def test_several_consecutive_failures_stop_the_run(monkeypatch: pytest.MonkeyPatch, jitter: float) -> None:
    monkeypatch.setattr("random.uniform", lambda _least, _most: jitter)
    sender = Scripted(**{f"chunk_{n}": [ConnectionError("gone")] * 9 for n in range(8)})
    engine = scheduler(sender, concurrency=4, retry=RetryPolicy(attempts=3, base_delay=0.02))
    result = await asyncio.gather(*(answered(engine, request) for request in requests(8)), return_exceptions=True)
    assert {type(item) for item in result} == {ModelError}
    assert len({id(item) for item in result}) == 1, "one error for all"
    assert len(sender.sent) <= 2 * 8 * 3, "at most twice in a round"
    with pytest.raises(ModelError, match="after 3 failures in a row"):
        engine.check()


async def test_calls_that_were_in_flight_together_count_as_one_failure() -> None:
    sender = Scripted(**{f"chunk_{n}": [ConnectionError("blip")] for n in range(6)})
    engine = scheduler(sender, concurrency=6)
    result = await asyncio.gather(*(answered(engine, request) for request in requests(6)))
    assert [reply.attempts for reply in result] == [2] * 6


class TakesTheCancellation(Scripted):
    """Raises an error of its own when it is cancelled, as a client whose time is up that instant."""

    async def send(self, request: ContextRequest) -> Reply:
        """Wait to be cancelled, the first time."""
        if not self.sent:
            self.sent.append("first")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            raise TimeoutError
        return await super().send(request)


async def test_a_cancelled_call_is_not_sent_again_even_if_its_client_ignores_it() -> None:
    sender = TakesTheCancellation()
    waiting = asyncio.create_task(answered(scheduler(sender), requests(1)[0]))
    while not sender.sent:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sender.sent == ["first"]


async def test_after_a_stop_nothing_is_sent() -> None:
    sender = Scripted()
    engine = scheduler(sender)
    engine.stop(ModelError("enough"))
    engine.stop(ModelError("later"))
    with pytest.raises(ModelError, match="enough"):
        await answered(engine, requests(1)[0])
    assert sender.sent == []


# ---- rate limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "lines"), [(1.0, 0), (60.0, 1)], ids=["a short wait", "a long wait"])
async def test_a_wait_for_the_rate_limit_is_announced_once_if_it_is_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seconds: float, lines: int
) -> None:
    async def no_sleep(_self: Limiter, _seconds: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Limiter, "pause", lambda _self, _seconds: None)
    monkeypatch.setattr(Limiter, "sleep", no_sleep)
    limited = [ProviderError("Slow down.", status_code=429, retry_after=seconds) for _ in range(2)]
    engine = scheduler(Scripted(chunk_0=limited), retry=RetryPolicy(attempts=9))
    await answered(engine, requests(1)[0])
    notice = r"The provider of 'm' limits the rate of calls \(429\): waiting until \d\d:\d\d:\d\d\."
    assert len(re.findall(notice, caplog.text)) == lines
