"""Limits for calls: a semaphore with priorities, a circuit breaker, and rate limits."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from llama_index_contextual._utils.calls import RetryPolicy, is_connection_error
from llama_index_contextual.contextualizer.prompts import ContextRequest


class Slots:
    """Semaphore that limits concurrent calls and admits waiting ones by rank, the smallest first.

    Args:
        count: Number of slots.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[tuple[int, ...], int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def acquire(self, *rank: int) -> None:
        """Wait for a slot, which must be returned by `release`."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Return a slot, and pass it on to the next waiting call."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


_ROUNDS_BEFORE_PAUSE = 3
_FATAL_STATUS = frozenset({401, 403, 404})
_FATAL_CODES = frozenset({"insufficient_quota", "model_not_found", "invalid_api_key"})


class Health:
    """Circuit breaker for a provider that keeps failing.

    Failures are counted in rounds, each twice as long as the one before. All failures within a round count as one, so a
    short outage is a single failure, regardless of the number of calls that it affects.

    Args:
        retry: Number and length of the consecutive rounds after which the run stops.

    Attributes:
        answers: Number of answers.
        rounds: Number of consecutive rounds of failures without an answer in between.
        total_rounds: Total number of rounds.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._was_reached = False
        self._round_ends = -math.inf
        self._requests: set[str] = set()
        self.answers = self.rounds = self.total_rounds = 0

    def answered(self) -> None:
        """Record an answer."""
        self.answers += 1
        self.refused()

    def refused(self) -> None:
        """Record that the provider was reached, even if it refused the call."""
        self._was_reached = True
        self.rounds, self._round_ends = 0, -math.inf
        self._requests.clear()

    def failed(self, request: ContextRequest, error: Exception, sent: float, *, now: float) -> bool:
        """Record a failure, and return whether the run should stop.

        A single call that keeps failing while others are answered does not stop the run.
        """
        if sent >= self._round_ends:
            self.rounds += 1
            self.total_rounds += 1
            length = min(self._retry.max_delay, self._retry.base_delay * 2 ** (self.rounds - 1))
            self._round_ends = max(now + length, math.nextafter(now, math.inf))
        self._requests.add(request.keys[0])
        alone = len(self._requests) == 1 and (self._was_reached or not is_connection_error(error))
        return self.rounds >= self._retry.attempts and not alone

    def rest(self, *, now: float) -> float:
        """Return the seconds until the current round ends; a retry before that would not count."""
        return max(0.0, self._round_ends - now)

    def pause(self, *, now: float) -> float:
        """Return the seconds for which no call should be sent: the rest of the round, except in the first rounds."""
        return self.rest(now=now) if self.rounds >= _ROUNDS_BEFORE_PAUSE else 0.0


def is_fatal(error: Exception) -> bool:
    """Return whether an error concerns all calls: unknown model, invalid key, exhausted quota."""
    return (
        getattr(error, "status_code", None) in _FATAL_STATUS
        or getattr(error, "code", None) in _FATAL_CODES
        or (isinstance(error, ValueError) and "nknown model" in str(error))
    )


def is_rate_limit(error: Exception) -> bool:
    """Return whether a call was refused because of a rate limit."""
    return getattr(error, "status_code", None) == 429


_PART = re.compile(r"([\d.]+)(ms|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_MINUTE = 60.0
_BURST = 0.1
_SHORTEST_WAIT = 0.001


@dataclass
class Bucket:
    """Token bucket: refills at a constant rate, and each request removes an amount.

    Attributes:
        capacity: Maximum level; infinite means no limit.
        rate: Amount added per second.
        level: Current level; negative after taking more than was available.
        updated: Time of the last change of the level.
    """

    capacity: float = math.inf
    rate: float = math.inf
    level: float = math.inf
    updated: float = 0.0

    @classmethod
    def per_minute(cls, limit: float | None) -> Bucket:
        """Return a bucket that allows at most `limit` in any minute, or an unlimited one for None.

        Example:
            >>> bucket = Bucket.per_minute(600)
            >>> bucket.take(60, now=0.0)  # at once; then 9 a second
            >>> round(bucket.wait(1, now=0.0), 3)
            0.111
        """
        if limit is None:
            return cls()
        return cls(max(1.0, limit * _BURST), limit * (1 - _BURST) / _MINUTE, max(1.0, limit * _BURST))

    def wait(self, amount: float, *, now: float) -> float:
        """Return the seconds until an amount can be taken; more than the capacity waits for a full bucket."""
        self._fill(now)
        missing = min(amount, self.capacity) - self.level
        return max(0.0, missing / self.rate) if missing > 0 else 0.0

    def take(self, amount: float, *, now: float) -> None:
        """Take an amount."""
        self._fill(now)
        self.level -= amount

    def follow(self, limit: float, remaining: float, reset: float, *, in_flight: float, now: float) -> None:
        """Adopt the state of the provider's own limit.

        Args:
            limit: Capacity of the limit.
            remaining: Remaining amount.
            reset: Seconds until the full capacity is available again.
            in_flight: Amount taken by requests that the provider may not have counted yet.
            now: Current time.
        """
        missing = limit - remaining
        self.capacity, self.updated = limit, now
        self.rate = missing / reset if missing > 0 and reset > 0 else limit / _MINUTE
        self.level = remaining - in_flight

    def _fill(self, now: float) -> None:
        if self.capacity < math.inf:
            self.level = min(self.capacity, self.level + (now - self.updated) * self.rate)
        self.updated = now


class Limiter:
    """Rate limiter that combines the limits of the settings with those reported by the provider.

    Args:
        requests_per_minute: Maximum number of requests; None relies on the provider alone.
        tokens_per_minute: Maximum number of prompt tokens; None relies on the provider alone.
    """

    def __init__(self, *, requests_per_minute: int | None = None, tokens_per_minute: int | None = None) -> None:
        self._own = {
            "requests": Bucket.per_minute(requests_per_minute),
            "tokens": Bucket.per_minute(tokens_per_minute),
        }
        self._reported = {"requests": Bucket(), "tokens": Bucket()}
        self._in_flight = {"requests": 0.0, "tokens": 0.0}
        self._not_before = 0.0
        self._order = asyncio.Lock()
        self._stopped = asyncio.Event()

    @asynccontextmanager
    async def passing(self, tokens: int | None) -> AsyncIterator[None]:
        """Wait until a request of this size may be sent; it ends with the block. With None, nothing is sent."""
        if tokens is None:
            yield
            return
        await self.enter(tokens)
        try:
            yield
        finally:
            self.leave(tokens)

    async def enter(self, tokens: int) -> None:
        """Wait until a request of this size may be sent; call `leave` at its end."""
        amounts = {"requests": 1.0, "tokens": float(tokens)}
        async with self._order:
            while (seconds := self._seconds(amounts)) > 0 and not self._stopped.is_set():
                await self.sleep(max(seconds, _SHORTEST_WAIT))
        now = _now()
        for unit, amount in amounts.items():
            self._own[unit].take(amount, now=now)
            self._reported[unit].take(amount, now=now)
            self._in_flight[unit] += amount

    def leave(self, tokens: int) -> None:
        """Record the end of a request."""
        self._in_flight["requests"] -= 1
        self._in_flight["tokens"] -= tokens

    def pause(self, seconds: float) -> None:
        """Delay all further requests by at least this many seconds."""
        self._not_before = max(self._not_before, _now() + seconds)

    async def sleep(self, seconds: float) -> None:
        """Sleep for the given seconds, or until `stop` is called."""
        waiter = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            waiter.cancel()

    def stop(self) -> None:
        """End all waiting."""
        self._stopped.set()

    def on_headers(self, headers: Mapping[str, str]) -> None:
        """Adopt the rate limits reported in the headers of an answer, if any."""
        for unit, bucket in self._reported.items():
            limit, remaining = (_number(headers.get(f"x-ratelimit-{name}-{unit}")) for name in ("limit", "remaining"))
            reset = seconds_of(headers.get(f"x-ratelimit-reset-{unit}"))
            if limit and remaining is not None and reset is not None:
                bucket.follow(limit, remaining, reset, in_flight=self._in_flight[unit], now=_now())

    def _seconds(self, amounts: Mapping[str, float]) -> float:
        now = _now()
        waits = [
            buckets[unit].wait(amount, now=now)
            for buckets in (self._own, self._reported)
            for unit, amount in amounts.items()
        ]
        return max(self._not_before - now, *waits)


def seconds_of(text: str | None) -> float | None:
    """Parse a duration in OpenAI's notation into seconds; None if it is invalid.

    Example:
        >>> seconds_of("6m0s"), seconds_of("1.5s"), seconds_of("120ms"), seconds_of("soon")
        (360.0, 1.5, 0.12, None)
    """
    parts = _PART.findall(text or "")
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    try:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < math.inf else None


def _now() -> float:
    return asyncio.get_running_loop().time()
