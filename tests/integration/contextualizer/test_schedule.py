"""Duration of runs, measured by a simulated clock: exact, and independent of the machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.schema import BaseNode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer import Contextualized, LLMContextualizer
from llama_index_contextual.contextualizer.batch import BatchReplies
from llama_index_contextual.contextualizer.cost import PriceTable, rounds
from llama_index_contextual.contextualizer.prompts import ContextRequest, Usage
from llama_index_contextual.contextualizer.scheduler import Reply
from llama_index_contextual.contextualizer.spending import Spending
from llama_index_contextual.ingestion.pipeline import make_stages, paid_stages
from llama_index_contextual.storage.batches import BatchReply
from llama_index_contextual.storage.ledger import Ledger
from tests.integration.contextualizer.segments_of import corpus

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
        self.cold += request.prefix not in self._answered
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self._chance.random() < self._rate:
                raise ConnectionError("connection lost")
            await asyncio.sleep(LATENCY)
        finally:
            self.running -= 1
        self._answered.add(request.prefix)
        return Reply("A context of the passage in its text, as long as it has to be here.", Usage(9, 0, 3), "stop")


def run(nodes: list[BaseNode], sender: Timed, workers: int, **options: object) -> tuple[float, Contextualized]:
    """Return the simulated duration of a run in seconds, and its result."""
    contextualizer = LLMContextualizer(model=MODEL, sender=sender, num_workers=workers, **options)  # type: ignore[arg-type]
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        done = runner.run(contextualizer.acontextualize(nodes))
        return runner.get_loop().time(), done


@pytest.mark.parametrize(
    ("segments", "chunks", "workers"), [(40, 11, 16), (5, 11, 16), (1, 11, 16), (30, 2, 8), (12, 6, 1), (3, 8, 100)]
)
def test_a_run_takes_as_long_as_the_shortest_schedule(segments: int, chunks: int, workers: int) -> None:
    sender = Timed()
    seconds, done = run(corpus(segments, chunks, words=max(300, 2400 // chunks)), sender, workers)
    assert done.failures == []
    assert sender.calls == segments * chunks
    assert sender.cold == segments, "all other calls read the prefix from the cache"
    assert sender.most <= workers
    assert seconds <= 1.05 * LATENCY * rounds([chunks] * segments, workers)


@pytest.mark.parametrize("seed", range(3))
def test_with_30_percent_of_failures_a_run_takes_less_than_twice_as_long(seed: int) -> None:
    random.seed(seed)  # the delays between attempts are random as well
    nodes = corpus(40, 11)
    whole, _ = run(nodes, Timed(), 16)
    sender = Timed(0.3, seed)
    seconds, done = run(nodes, sender, 16)
    assert done.failures == []
    # Each segment needs 1 / 0.7 first calls on average; 4 standard deviations, sqrt(40 * 0.3) / 0.7, above their sum.
    assert sender.cold < 40 / 0.7 + 4 * (40 * 0.3) ** 0.5 / 0.7, "a failed first call is sent again before the others"
    assert seconds <= 2 * whole, f"seed {seed}"


def test_a_rate_limit_is_used_and_respected() -> None:
    sender = Timed()
    seconds, done = run(corpus(6, 20, words=20), sender, 16, requests_per_minute=60)
    assert done.failures == []
    assert 110 <= seconds <= 140, "120 requests at 60 a minute"


def test_replies_of_batches_do_not_wait_for_the_rate_limit_and_live_calls_do() -> None:
    nodes, ledger = corpus(6, 20, words=20), Ledger(None)
    replies = BatchReplies(ledger.batches, MODEL)
    writer = LLMContextualizer(model=MODEL)
    calls = [
        request for segment, chunks, _ in writer.missing(nodes[:60]) for request in writer.requests(segment, chunks)
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


def test_replies_of_batches_do_not_change_the_rate_limits() -> None:
    config, ledger = ProjectConfig(requests_per_minute=7, tokens_per_minute=900), Ledger(None)
    stages = make_stages(config, ledger=ledger, llm=None, embed_model=None)
    replies = BatchReplies(ledger.batches, config.llm)
    paid = paid_stages(stages, Spending(PriceTable()), replies)
    assert isinstance(paid.contextualizer, LLMContextualizer)
    assert (paid.contextualizer.requests_per_minute, paid.contextualizer.tokens_per_minute) == (7, 900)
    assert paid.contextualizer.replies is replies
