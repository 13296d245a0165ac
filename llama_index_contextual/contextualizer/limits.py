"""Places among calls in flight, given to those who wait in the order of a rank."""

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
    """So many places; who waits gets one in the order of a rank, the smallest first.

    Args:
        count: Number of places.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[tuple[int, ...], int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def acquire(self, *rank: int) -> None:
        """Wait for a place; `release` gives it back."""
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
        """Give a place to the next one who waits."""
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
    """Whether the provider is there, by its failures in a row.

    They are counted in rounds, each twice as long as the one before: what fails within a round counts once, so a short
    disturbance is a single failure, however many calls it meets.

    Args:
        retry: When a failed call is sent again: so many rounds in a row, of such lengths, and the provider is gone.

    Attributes:
        answers: Number of answers.
        rounds: Rounds of failures in a row, with no answer in between.
        begun: Rounds in all.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._ever = False
        self._round_ends = -math.inf
        self._requests: set[str] = set()
        self.answers = self.rounds = self.begun = 0

    def answered(self) -> None:
        """Note an answer."""
        self.answers += 1
        self.refused()

    def refused(self) -> None:
        """Note that the provider is there, if only to refuse a call."""
        self._ever = True
        self.rounds, self._round_ends = 0, -math.inf
        self._requests.clear()

    def failed(self, request: ContextRequest, error: Exception, sent: float, *, now: float) -> bool:
        """Note a failure, and return whether the provider must be taken to be gone.

        A single call that fails again and again, where others were answered, is that call's own trouble.
        """
        if sent >= self._round_ends:
            self.rounds += 1
            self.begun += 1
            length = min(self._retry.max_delay, self._retry.base_delay * 2 ** (self.rounds - 1))
            self._round_ends = max(now + length, math.nextafter(now, math.inf))
        self._requests.add(request.keys[0])
        alone = len(self._requests) == 1 and (self._ever or not is_connection_error(error))
        return self.rounds >= self._retry.attempts and not alone

    def rest(self, *, now: float) -> float:
        """Return the seconds until the round ends: a call that failed in it and is sent before counts for nothing."""
        return max(0.0, self._round_ends - now)

    def pause(self, *, now: float) -> float:
        """Return the seconds for which no call should be sent: the rest of the round, if it is not among the first."""
        return self.rest(now=now) if self.rounds >= _ROUNDS_BEFORE_PAUSE else 0.0


def is_fatal(error: Exception) -> bool:
    """Return whether no call can succeed: no such model, a refused key, an empty account."""
    return (
        getattr(error, "status_code", None) in _FATAL_STATUS
        or getattr(error, "code", None) in _FATAL_CODES
        or (isinstance(error, ValueError) and "nknown model" in str(error))
    )


def is_rate_limit(error: Exception) -> bool:
    """Return whether the provider is only busy."""
    return getattr(error, "status_code", None) == 429


_PART = re.compile(r"([\d.]+)(ms|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_MINUTE = 60.0
_BURST = 0.1
_SHORTEST_WAIT = 0.001


@dataclass
class Bucket:
    """A store that fills up evenly; every request takes an amount out of it.

    Attributes:
        capacity: What it holds, at most; infinite means no limit.
        rate: What comes in per second.
        level: What it holds; below zero while what was taken has yet to come in.
        updated: When it held that.
    """

    capacity: float = math.inf
    rate: float = math.inf
    level: float = math.inf
    updated: float = 0.0

    @classmethod
    def per_minute(cls, limit: float | None) -> Bucket:
        """Return a bucket that lets no more than `limit` pass in any minute, or everything.

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
        """Return the seconds until an amount can be taken; one that is too large waits for a full bucket."""
        self._fill(now)
        missing = min(amount, self.capacity) - self.level
        return max(0.0, missing / self.rate) if missing > 0 else 0.0

    def take(self, amount: float, *, now: float) -> None:
        """Take an amount."""
        self._fill(now)
        self.level -= amount

    def follow(self, limit: float, remaining: float, reset: float, *, in_flight: float, now: float) -> None:
        """Take over what the provider says.

        Args:
            limit: The provider's capacity.
            remaining: What it holds.
            reset: Seconds until it is full.
            in_flight: What was taken by requests that the provider may not have counted yet.
            now: The time.
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
    """Lets requests pass one after the other, as fast as the settings and the provider allow.

    Args:
        requests_per_minute: None for what the provider allows.
        tokens_per_minute: Tokens of prompts; None for what the provider allows.
    """

    def __init__(self, *, requests_per_minute: int | None = None, tokens_per_minute: int | None = None) -> None:
        self._set = {
            "requests": Bucket.per_minute(requests_per_minute),
            "tokens": Bucket.per_minute(tokens_per_minute),
        }
        self._told = {"requests": Bucket(), "tokens": Bucket()}
        self._in_flight = {"requests": 0.0, "tokens": 0.0}
        self._not_before = 0.0
        self._order = asyncio.Lock()
        self._stopped = asyncio.Event()

    @asynccontextmanager
    async def passing(self, tokens: int | None) -> AsyncIterator[None]:
        """Wait until a request with so many tokens may be sent, which is over when the block ends; None is not sent."""
        if tokens is None:
            yield
            return
        await self.enter(tokens)
        try:
            yield
        finally:
            self.leave(tokens)

    async def enter(self, tokens: int) -> None:
        """Wait until a request with so many tokens may be sent; `leave` follows when it is over."""
        amounts = {"requests": 1.0, "tokens": float(tokens)}
        async with self._order:
            while (seconds := self._seconds(amounts)) > 0 and not self._stopped.is_set():
                await self.sleep(max(seconds, _SHORTEST_WAIT))
        now = _now()
        for unit, amount in amounts.items():
            self._set[unit].take(amount, now=now)
            self._told[unit].take(amount, now=now)
            self._in_flight[unit] += amount

    def leave(self, tokens: int) -> None:
        """Say that a request is over."""
        self._in_flight["requests"] -= 1
        self._in_flight["tokens"] -= tokens

    def pause(self, seconds: float) -> None:
        """Let nothing pass for so many seconds."""
        self._not_before = max(self._not_before, _now() + seconds)

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds, or until `stop`."""
        waiter = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            waiter.cancel()

    def stop(self) -> None:
        """Let nobody wait any longer."""
        self._stopped.set()

    def on_headers(self, headers: Mapping[str, str]) -> None:
        """Follow the rate-limit headers of an answer, where it has any."""
        for unit, bucket in self._told.items():
            limit, remaining = (_number(headers.get(f"x-ratelimit-{what}-{unit}")) for what in ("limit", "remaining"))
            reset = seconds_of(headers.get(f"x-ratelimit-reset-{unit}"))
            if limit and remaining is not None and reset is not None:
                bucket.follow(limit, remaining, reset, in_flight=self._in_flight[unit], now=_now())

    def _seconds(self, amounts: Mapping[str, float]) -> float:
        now = _now()
        waits = [buckets[unit].wait(n, now=now) for buckets in (self._set, self._told) for unit, n in amounts.items()]
        return max(self._not_before - now, *waits)


def seconds_of(text: str | None) -> float | None:
    """Return the seconds of a duration as OpenAI writes it, or None.

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
