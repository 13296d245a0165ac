"""Order of calls, the circuit breaker for a failing provider, rate limits, and the duration of runs."""

from __future__ import annotations

import asyncio
import contextlib
import math
import pickle
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.schema import BaseNode

from llama_index_contextual._utils.calls import ProviderError, RetryPolicy
from llama_index_contextual.contextualizer import Contextualized, LLMContextualizer
from llama_index_contextual.contextualizer import llm as scheduling
from llama_index_contextual.contextualizer.base import segments
from llama_index_contextual.contextualizer.llm import Limiter, Scheduler
from llama_index_contextual.contextualizer.prompts import ContextRequest, Reply
from llama_index_contextual.contextualizer.sending import BatchReplies
from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.ledger import BatchReply, Ledger
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import Prices
from llama_index_contextual.money.tokens import Usage
from tests.integration.contextualizer.segments_of import corpus

QUICK = RetryPolicy(attempts=3, base_delay=0.001)


def requests(chunks: int, *, words: int = 5) -> list[ContextRequest]:
    (segment,) = segments(corpus(1, chunks, words=words), segment_size=8000)
    return LLMContextualizer(model="m").requests(segment, segment.chunks)


class Scripted:
    """Raises what is scripted for a chunk, in order, then answers; remembers the order of calls."""

    def __init__(self, **errors: list[Exception]) -> None:
        self.errors = errors
        self.sent: list[str] = []

    async def send(self, request: ContextRequest) -> Reply:
        """Answer, or fail."""
        name = request.chunk.node_id.rpartition("-")[2]
        self.sent.append(name)
        await asyncio.sleep(0)
        if self.errors.get(f"chunk_{name}"):
            raise self.errors[f"chunk_{name}"].pop(0)
        return Reply("A context of the passage in its text, as long as it has to be here.", Usage(9, 0, 3), "stop")


def scheduler(sender: Scripted, *, concurrency: int = 8, retry: RetryPolicy = QUICK) -> Scheduler:
    settings = LLMContextualizer(model="m", num_workers=concurrency, retry=retry)
    return Scheduler(settings, contextlib.AsyncExitStack(), sender=sender)


async def answered(engine: Scheduler, request: ContextRequest) -> Reply:
    """The answer to a request, with nothing to commit."""
    async with engine.call(request) as reply:
        return reply


# ---- the order of calls ----------------------------------------------------------------------------------------------


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
    await asyncio.gather(*(answered(engine, request) for request in requests(6)))
    assert sorted(sender.sent) == sorted("012345" * 2)


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


# ---- duration of runs, measured by a simulated clock: exact, and independent of the machine --------------------------


LATENCY = 0.3
MODEL = "openai:gpt-4o-mini"


class JumpingLoop(asyncio.SelectorEventLoop):
    """Event loop with a simulated clock, which jumps to the next timer when there is nothing to do.

    Work in threads takes no time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._in_threads = 0
        look: Callable[[float | None], list[object]] = self._selector.select  # type: ignore[attr-defined]

        def select(timeout: float | None) -> list[object]:
            result = look(None if timeout is None or (timeout and self._in_threads) else 0)
            if not result and timeout:
                self._now += timeout
            return result

        self._selector.select = select  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *given: Any) -> asyncio.Future[Any]:
        """Run a function in a thread."""
        working = super().run_in_executor(executor, func, *given)
        self._in_threads += 1
        working.add_done_callback(self._is_done)
        return working

    def _is_done(self, _working: asyncio.Future[Any]) -> None:
        self._in_threads -= 1

    def time(self) -> float:
        """Return the simulated time."""
        return self._now


class Timed:
    """Sender that answers after a delay and fails at random; counts concurrent calls and uncached prefixes."""

    def __init__(self, rate: float = 0.0, seed: int = 0) -> None:
        self._rate, self._chance = rate, random.Random(seed)
        self._answered: set[str] = set()
        self.running = self.most = self.calls = self.cold = 0

    async def send(self, request: ContextRequest) -> Reply:
        """Wait, then answer or fail."""
        self.calls += 1
        self.cold += request.prefix.text not in self._answered
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self._chance.random() < self._rate:
                raise ConnectionError("connection lost")
            await asyncio.sleep(LATENCY)
        finally:
            self.running -= 1
        self._answered.add(request.prefix.text)
        return Reply("A context of the passage in its text, as long as it has to be here.", Usage(9, 0, 3), "stop")


def run(
    nodes: list[BaseNode], sender: Timed, workers: int, replies: BatchReplies | None = None, **options: object
) -> tuple[float, Contextualized]:
    """Return the simulated duration of a run in seconds, and its result."""
    contextualizer = LLMContextualizer(model=MODEL, num_workers=workers, **options)  # type: ignore[arg-type]

    async def contextualized() -> Contextualized:
        async with contextualizer.session(replies=replies, sender=sender) as session:
            return await session.acontextualize(nodes)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        done = runner.run(contextualized())
        return runner.get_loop().time(), done


@pytest.mark.parametrize(
    ("segments", "chunks", "workers", "rounds"),
    [(40, 11, 16, 28), (5, 11, 16, 5), (1, 11, 16, 2), (30, 2, 8, 8), (12, 6, 1, 72), (3, 8, 100, 2)],
)
def test_a_run_takes_as_long_as_the_shortest_schedule(segments: int, chunks: int, workers: int, rounds: int) -> None:
    sender = Timed()
    seconds, done = run(corpus(segments, chunks, words=max(300, 2400 // chunks)), sender, workers)
    assert done.failures == []
    assert sender.calls == segments * chunks
    assert sender.cold == segments, "all other calls read the prefix from the cache"
    assert sender.most <= workers
    assert seconds <= 1.05 * LATENCY * rounds


def test_with_30_percent_of_failures_a_run_takes_less_than_twice_as_long() -> None:
    random.seed(0)  # the delays between attempts are random as well
    nodes = corpus(20, 11)
    whole, _ = run(nodes, Timed(), 16)
    sender = Timed(0.3, seed=0)
    seconds, done = run(nodes, sender, 16)
    assert done.failures == []
    # Each segment needs 1 / 0.7 first calls on average; 4 standard deviations, sqrt(20 * 0.3) / 0.7, above their sum.
    assert sender.cold < 20 / 0.7 + 4 * (20 * 0.3) ** 0.5 / 0.7, "a failed first call is sent again before the others"
    assert seconds <= 2 * whole


def test_a_rate_limit_is_used_and_respected() -> None:
    sender = Timed()
    seconds, done = run(corpus(6, 20, words=20), sender, 16, requests_per_minute=60)
    assert done.failures == []
    assert 110 <= seconds <= 140, "120 requests at 60 a minute"


def test_replies_of_batches_do_not_wait_for_the_rate_limit_and_live_calls_do() -> None:
    nodes, ledger = corpus(6, 20, words=20), Ledger(None)
    replies = BatchReplies(ledger.batches, MODEL, Account(Prices()))
    writer = LLMContextualizer(model=MODEL)
    calls = [
        request
        for segment, chunks, *_ in writer.missing(nodes[:60], ledger)
        for request in writer.requests(segment, chunks)
    ]
    ledger.batches.closed(
        "file",
        [
            BatchReply(
                custom_id=replies.id_of(r),
                text="A context of the passage from a batch, as long as it has to be to be kept here.",
            )
            for r in calls
        ],
    )
    sender = Timed()
    seconds, done = run(nodes, sender, 16, requests_per_minute=60, replies=replies)
    assert done.failures == []
    assert sender.calls == 60
    assert 55 <= seconds <= 70, "60 requests at 60 a minute"


async def test_a_session_holds_the_state_of_a_run_and_leaves_the_settings_alone() -> None:
    writer, ledger, sender = LLMContextualizer(model=MODEL, requests_per_minute=700), Ledger(None), Scripted()
    former, account = pickle.dumps(writer), Account(Prices())
    replies = BatchReplies(ledger.batches, MODEL, account)
    for calls in (3, 0):  # the second session finds the contexts in the ledger
        sender.sent.clear()
        async with writer.session(ledger, account, replies=replies, sender=sender) as session:
            done = await session.acontextualize(corpus(1, 3, words=5))
        assert (done.paid, len(sender.sent), account.actual.calls) == (calls, calls, 3)
        assert pickle.dumps(writer) == former
    ledger.close()


# ---- rate limits: spaces between calls, pauses, and the end of all waiting ------------------


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [({"requests_per_minute": 60}, [0, 1, 2]), ({"tokens_per_minute": 1200}, [0, 5, 10])],
    ids=["requests", "tokens"],
)
def test_calls_are_spaced_evenly_so_that_no_minute_exceeds_a_limit(
    limits: dict[str, int], seconds: list[float]
) -> None:
    async def sent() -> list[float]:
        limiter, loop = Limiter(**limits), asyncio.get_running_loop()
        times = []
        for _ in seconds:
            await limiter.enter(100)
            times.append(loop.time())
        return times

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        assert runner.run(sent()) == pytest.approx(seconds, abs=0.01)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass."""
    monkeypatch.setattr(scheduling, "_now", lambda: 1000.0)


@pytest.mark.usefixtures("standing")
def test_a_pause_counts_for_all_and_the_longest_one_wins() -> None:
    limiter = Limiter()
    limiter.pause(50)
    limiter.pause(5)
    assert limiter._next == 1050


async def test_a_stop_ends_all_waiting() -> None:
    limiter = Limiter()
    limiter.pause(math.inf)
    waiting = [asyncio.create_task(limiter.enter(1)) for _ in range(3)]
    sleeping = asyncio.create_task(limiter.sleep(3600))
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    limiter.stop()
    await asyncio.gather(*waiting, sleeping)
