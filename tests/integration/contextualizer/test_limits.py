"""Rate limits: waiting times of token buckets, headers of the provider, and the end of all waiting."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.contextualizer import limits
from llama_index_contextual.contextualizer.limits import Bucket, Limiter, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("1h2m3.5s", 3723.5),
        ("120ms", 0.12),
        ("0s", 0),
        ("", None),
        (None, None),
        ("soon", None),
        ("1s later", None),
        ("1.2.3s", None),
    ],
)
def test_durations_are_read_as_openai_writes_them(text: str | None, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def test_without_a_limit_no_call_waits() -> None:
    bucket = Bucket.per_minute(None)
    bucket.take(1e12, now=0.0)
    assert bucket.wait(1e12, now=0.0) == 0


@given(limit=st.integers(1, 10_000), amounts=st.lists(st.floats(0.01, 1), min_size=1, max_size=60))
def test_the_limit_per_minute_is_exceeded_by_one_request_at_most(limit: int, amounts: list[float]) -> None:
    bucket, now = Bucket.per_minute(limit), 0.0
    sent: list[tuple[float, float]] = []
    for share in amounts:
        amount = share * limit
        now += bucket.wait(amount, now=now)
        bucket.take(amount, now=now)
        sent.append((now, amount))
    for start, _ in sent:
        inside = [amount for at, amount in sent if start <= at < start + 60]
        assert sum(inside) <= limit * (1 + 1e-6) + max(inside) + 1


def test_an_amount_above_the_capacity_waits_for_a_full_bucket() -> None:
    bucket = Bucket(capacity=10, rate=1, level=4, updated=0)
    assert bucket.wait(25, now=0.0) == 6
    bucket.take(25, now=6.0)
    assert bucket.wait(1, now=6.0) == 16


def test_headers_set_capacity_rate_and_level() -> None:
    bucket = Bucket()
    bucket.follow(60, 20, 20.0, in_flight=5, now=100.0)
    assert (bucket.capacity, bucket.rate, bucket.level) == (60, 2.0, 15)
    assert bucket.wait(16, now=100.0) == 0.5
    assert bucket.wait(16, now=101.0) == 0
    bucket.follow(60, 60, 0.0, in_flight=0, now=200.0)
    assert bucket.rate == 1.0, "a full bucket does not tell its rate"


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass."""
    monkeypatch.setattr(limits, "_now", lambda: 1000.0)


@pytest.mark.usefixtures("standing")
def test_incomplete_rate_limit_headers_are_ignored() -> None:
    limiter = Limiter()
    for headers in (
        {},
        {"x-ratelimit-limit-requests": "5", "x-ratelimit-remaining-requests": "0"},
        {
            "x-ratelimit-limit-requests": "few",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "9s",
        },
        {"x-ratelimit-limit-tokens": "5", "x-ratelimit-remaining-tokens": "nan", "x-ratelimit-reset-tokens": "9s"},
    ):
        limiter.on_headers(headers)
        assert limiter._seconds({"requests": 1.0, "tokens": 1e9}) <= 0
    limiter.on_headers(
        {"x-ratelimit-limit-tokens": "90", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "90s"}
    )
    assert limiter._seconds({"requests": 1.0, "tokens": 9.0}) == pytest.approx(9)


@pytest.mark.usefixtures("standing")
def test_a_pause_counts_for_all_and_the_longest_one_wins() -> None:
    limiter = Limiter()
    limiter.pause(50)
    limiter.pause(5)
    assert limiter._seconds({"requests": 1.0, "tokens": 1.0}) == 50


async def test_a_stop_ends_all_waiting() -> None:
    limiter = Limiter()
    limiter.pause(math.inf)
    waiting = [asyncio.create_task(limiter.enter(1)) for _ in range(3)]
    sleeping = asyncio.create_task(limiter.sleep(3600))
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    limiter.stop()
    await asyncio.gather(*waiting, sleeping)


async def test_waiting_calls_are_served_in_order_of_arrival() -> None:
    limiter = Limiter(requests_per_minute=6_000)
    order: list[int] = []

    async def enter(number: int, tokens: int) -> None:
        await limiter.enter(tokens)
        order.append(number)

    await asyncio.gather(*(enter(number, 1) for number in range(20)))
    assert order == list(range(20))
