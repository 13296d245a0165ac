"""Schedule calls for contexts: concurrency, rate limits, retries and budget.

The `Scheduler` decides when a request is sent, whether it is sent again, and when the run is stopped. `LiveSender`
sends it to a LlamaIndex LLM; each attempt is a span of LlamaIndex's instrumentation.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from llama_index.core.base.llms.types import CacheControl, CachePoint, TextBlock
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]  # not in its __all__
from llama_index.core.llms import LLM, ChatMessage

from llama_index_contextual._utils.calls import (
    RetryPolicy,
    awithout_secrets,
    cancellations,
    describe,
    is_connection_error,
    is_retryable,
)
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual._utils.redaction import get_logger, scrub
from llama_index_contextual.contextualizer.cost import CallForm, CallStatistics, PriceTable, Spending
from llama_index_contextual.contextualizer.prompts import ContextRequest, Reply, reply_of
from llama_index_contextual.errors import (
    BudgetExceededError,
    ConfigurationError,
    ContextualError,
    ModelError,
    ProjectError,
    Remedy,
)
from llama_index_contextual.models import HIDDEN_TOKENS, Provider, load_llm, model_name, provider_of

if TYPE_CHECKING:
    from llama_index_contextual.contextualizer.llm import LLMContextualizer

dispatcher = get_dispatcher(__name__)
logger = get_logger(__name__)


# ---- Sending ---------------------------------------------------------------------------------------------------------

ServiceTier = Literal["flex"]

FLEX_TIMEOUT = 900.0
"""Timeout in seconds for calls in the flex tier, which are slower."""


@runtime_checkable
class Sender(Protocol):
    """Protocol for objects that send a single request; errors are raised unchanged, and nothing is retried."""

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        ...


class LiveSender:
    """Send requests to a LlamaIndex LLM so that its provider can cache their common prefix.

    Args:
        llm: Any LlamaIndex LLM.
        service_tier: "flex" for half the price but slower responses, if the provider offers it.

    Raises:
        ConfigurationError: The provider does not offer this tier.
    """

    def __init__(self, llm: LLM, *, service_tier: ServiceTier | None = None) -> None:
        self._llm = llm
        self._provider = provider_of(model_name(llm)) or Provider(pip="")
        if service_tier is not None and service_tier not in self._provider.service_tiers:
            raise ConfigurationError(
                f"{model_name(llm)!r} has no service tier {service_tier!r}",
                setting="service_tier",
                remedy=Remedy(
                    "set service_tier to None",
                    "remove it with `llama-index-contextual configure {project} service_tier=null`",
                ),
            )
        self._service_tier = service_tier
        self._form = CallForm.of(model_name(llm), llm)

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        try:
            response = await self._llm.achat([self._message(request)], **self._options(request))
        except Exception as error:
            if self._form.effort is None or not _refuses_effort(error):
                raise
            # The model does not accept the effort that its name implies; the refused call is not charged.
            self._form = replace(self._form, effort=None, hidden_tokens=HIDDEN_TOKENS[None])
            response = await self._llm.achat([self._message(request)], **self._options(request))
        reply = reply_of(response.raw)
        return Reply(scrub(response.message.content or ""), reply.usage, reply.finish_reason)

    def _message(self, request: ContextRequest) -> ChatMessage:
        if self._provider.cache != "point" or request.prefix.tokens < self._provider.min_cached_tokens:
            return ChatMessage(role="user", content=request.prompt)
        point = CachePoint(cache_control=CacheControl(type="ephemeral"))
        return ChatMessage(
            role="user", blocks=[TextBlock(text=request.prefix.text), point, TextBlock(text=request.suffix)]
        )

    def _options(self, request: ContextRequest) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._provider.takes_cache_key:
            options["prompt_cache_key"] = request.prefix.cache_key
        if self._provider.takes_json_schema and request.response_format is not None:
            options["response_format"] = request.response_format
        if self._form.sends_limit:
            options["max_tokens"] = self._form.max_tokens(request)
        if self._form.effort is not None:
            options["reasoning_effort"] = self._form.effort
        if self._service_tier is not None:
            options |= {"service_tier": self._service_tier, "timeout": FLEX_TIMEOUT}
        return options


def _refuses_effort(error: Exception) -> bool:
    return getattr(error, "status_code", None) == 400 and "reasoning" in str(error)


# ---- Limits ----------------------------------------------------------------------------------------------------------


_ROUNDS_BEFORE_PAUSE = 3

STOPPING = (BudgetExceededError, ConfigurationError, ProjectError)
"""Errors after which no further call is sent."""

_FATAL_STATUS = frozenset({401, 403, 404})
_FATAL_CODES = frozenset({"insufficient_quota", "model_not_found", "invalid_api_key"})


class CircuitBreaker:
    """Circuit breaker for a provider that keeps failing.

    Failures are counted in rounds, each twice as long as the one before. All failures within a round count as one, so a
    short outage is a single failure, regardless of the number of calls that it affects.

    Args:
        retry: Number and length of the consecutive rounds after which the run stops.

    Attributes:
        answers: Number of answers.
        rounds: Number of consecutive rounds with failures and no answer.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._was_reached = False
        self._round_ends = -math.inf
        self._requests: set[str] = set()
        self.answers = self.rounds = 0

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
            length = min(self._retry.max_delay, self._retry.base_delay * 2 ** (self.rounds - 1))
            self._round_ends = max(now + length, math.nextafter(now, math.inf))
        self._requests.add(request.keys[0])
        alone = len(self._requests) == 1 and (self._was_reached or not is_connection_error(error))
        return self.rounds >= self._retry.attempts and not alone

    def rest(self, *, now: float) -> float:
        """Return the seconds until the current round ends; a failure before that would not count."""
        return max(0.0, self._round_ends - now)


def is_fatal(error: Exception) -> bool:
    """Return whether an error affects all calls, such as an unknown model, an invalid key or an exhausted quota."""
    return (
        getattr(error, "status_code", None) in _FATAL_STATUS
        or getattr(error, "code", None) in _FATAL_CODES
        or (isinstance(error, ValueError) and "nknown model" in str(error))
    )


def is_rate_limit(error: Exception) -> bool:
    """Return whether a call was refused because of a rate limit."""
    return getattr(error, "status_code", None) == 429


_MINUTE = 60.0
_BURST = 0.1
_SHORTEST_WAIT = 0.001


class Bucket:
    """Token bucket that allows at most a given amount in any minute, and a tenth of it immediately.

    Args:
        limit: Amount per minute; None for no limit.

    Example:
        >>> bucket = Bucket(600)
        >>> bucket.take(60, now=0.0)  # immediately, then 9 per second
        >>> round(bucket.wait(1, now=0.0), 3)
        0.111
    """

    def __init__(self, limit: float | None) -> None:
        limit = math.inf if limit is None else limit
        self._capacity = self._level = max(1.0, limit * _BURST)
        self._rate = limit * (1 - _BURST) / _MINUTE
        self._updated = 0.0

    def wait(self, amount: float, *, now: float) -> float:
        """Return the seconds until an amount can be taken; for more than the capacity, until the bucket is full."""
        self._fill(now)
        missing = min(amount, self._capacity) - self._level
        return missing / self._rate if missing > 0 else 0.0

    def take(self, amount: float, *, now: float) -> None:
        """Take an amount, even if the level becomes negative."""
        self._fill(now)
        self._level -= amount

    def _fill(self, now: float) -> None:
        if self._level < self._capacity:
            self._level = min(self._capacity, self._level + (now - self._updated) * self._rate)
        self._updated = now


class Limiter:
    """Rate limiter for calls, which are all paused when the provider refuses one because of its own limit.

    Args:
        requests_per_minute: Maximum number of requests, or None.
        tokens_per_minute: Maximum number of prompt tokens, or None.
    """

    def __init__(self, *, requests_per_minute: int | None = None, tokens_per_minute: int | None = None) -> None:
        self._requests, self._tokens = Bucket(requests_per_minute), Bucket(tokens_per_minute)
        self._not_before = 0.0
        self._order = asyncio.Lock()
        self._stopped = asyncio.Event()

    async def enter(self, tokens: int) -> None:
        """Wait until a request of this size may be sent."""
        async with self._order:
            while (seconds := self.wait(tokens)) > 0 and not self._stopped.is_set():
                await self.sleep(max(seconds, _SHORTEST_WAIT))
            self._requests.take(1, now=_now())
            self._tokens.take(tokens, now=_now())

    def wait(self, tokens: int) -> float:
        """Return the seconds until a request of this size may be sent."""
        now = _now()
        return max(self._not_before - now, self._requests.wait(1, now=now), self._tokens.wait(tokens, now=now))

    def pause(self, seconds: float) -> None:
        """Delay all further requests by at least this many seconds."""
        self._not_before = max(self._not_before, _now() + seconds)

    async def sleep(self, seconds: float) -> None:
        """Sleep for the given seconds, or until `stop` is called."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)

    def stop(self) -> None:
        """Wake up all waiting calls."""
        self._stopped.set()


# ---- Scheduling ------------------------------------------------------------------------------------------------------

_NOTABLE_WAIT = 5.0
"""Seconds without an answer after which a rate limit is logged."""

_BETWEEN_NOTICES = 30.0


class Scheduler:
    """Send requests within the limits, retry failed ones, and stop the run if no call can succeed.

    Args:
        settings: The LLM, its limits, and the account that approves and books each call.
        stack: Closes the LLM's client. The LLM is loaded for the first request, so a complete ledger needs no LLM.
    """

    def __init__(self, settings: LLMContextualizer, stack: AsyncExitStack) -> None:
        self._settings, self._stack = settings, stack
        self._sender = settings.sender
        self._connecting = asyncio.Lock()
        self._provider = provider_of(settings.model) or Provider(pip="")
        # A provider with a single cache slot recomputes the prefix whenever the segment changes.
        concurrency = 1 if self._provider.cache == "slot" else settings.num_workers
        self._slots, self.segments = asyncio.Semaphore(concurrency), asyncio.Semaphore(concurrency)
        self._limiter = Limiter(
            requests_per_minute=settings.requests_per_minute, tokens_per_minute=settings.tokens_per_minute
        )
        self._breaker = CircuitBreaker(settings.retry)
        self._prefix_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cached_prefixes: set[str] = set()
        self._spending = settings.spending or Spending(PriceTable())
        self._form = CallForm.of(settings.model, settings.llm)
        self._statistics = CallStatistics(self._form)
        self._error: ContextualError | None = None
        self._limited_since, self._next_notice = math.inf, 0.0

    def stop(self, error: ContextualError) -> None:
        """Send no further calls; calls that are waiting raise the first error passed to this method."""
        self._error = self._error or error
        self._limiter.stop()
        self._spending.stop(self._error)

    def check(self) -> None:
        """Raise the error that stopped the run, if any."""
        if self._error is not None:
            raise self._error

    @asynccontextmanager
    async def call(self, request: ContextRequest) -> AsyncIterator[Reply]:
        """Provide the answer to a request; the call occupies its slot until the block ends.

        The block should store the answer. Then only calls in flight can be paid for without being stored.

        Raises:
            ContextualError: The run was stopped: no call can succeed, or the budget is exhausted.
            Exception: The last error that the provider's client raised for this request.
        """
        reply = await self._answer(request)
        try:
            yield reply
        finally:
            self._slots.release()

    async def _answer(self, request: ContextRequest) -> Reply:
        """Return the answer; the first call of a segment is sent alone, so that the provider caches the prefix."""
        if self._provider.cache is None or request.prefix.tokens < self._provider.min_cached_tokens:
            return await self._call_with_retries(request)
        async with self._prefix_locks[request.prefix.cache_key]:
            if request.prefix.cache_key not in self._cached_prefixes:
                reply = await self._call_with_retries(request)
                self._cached_prefixes.add(request.prefix.cache_key)
                return reply
        return await self._call_with_retries(request)

    async def _call_with_retries(self, request: ContextRequest) -> Reply:
        """Return the answer and keep the slot, which is released here only after an error."""
        attempt, tries, cancelled = 0, 0, cancellations()
        while True:
            attempt += 1
            answers = self._breaker.answers
            await self._slots.acquire()
            try:
                return await self.context_call(
                    partial(self._attempt, request),
                    doc_id=request.segment.doc_id,
                    node_ids=[chunk.node_id for chunk in request.chunks],
                    attempt=attempt,
                )
            except BaseException as error:  # any LLM class may raise anything; raised again unless it can be retried
                self._slots.release()
                if not isinstance(error, Exception):
                    raise
                if isinstance(error, STOPPING):
                    self.stop(error)
                self.check()
                if cancellations() > cancelled:
                    raise asyncio.CancelledError from error
                # A rate limit does not count as a failed attempt while the provider answers other calls.
                tries += not is_rate_limit(error) or self._breaker.answers == answers
                delay = self._delay(error, max(1, tries))
                if delay is None:
                    raise
            await self._limiter.sleep(delay)

    @dispatcher.span
    async def context_call(
        self, send: Callable[[], Awaitable[Reply]], *, doc_id: str, node_ids: list[str], attempt: int
    ) -> Reply:
        """Send a request once, in a span of LlamaIndex's instrumentation that records the keyword arguments."""
        return await send()

    def _delay(self, error: Exception, tries: int) -> float | None:
        """Return the seconds before a failed call is retried, or None; pause all calls if all of them are affected."""
        delay = self._settings.retry.delay(tries, error)
        if is_rate_limit(error):
            if delay is not None:
                self._limiter.pause(delay)
                self._note_rate_limit(delay)
            return delay
        rest = self._breaker.rest(now=_now())
        if self._breaker.rounds >= _ROUNDS_BEFORE_PAUSE:
            self._limiter.pause(rest)
        return None if delay is None else max(delay, rest)

    def _note_rate_limit(self, delay: float) -> None:
        """Log how long the provider's rate limit delays the calls, unless the delay is short."""
        now = _now()
        self._limited_since = min(self._limited_since, now)
        if now + delay - self._limited_since < _NOTABLE_WAIT or now < self._next_notice:
            return
        self._next_notice = now + _BETWEEN_NOTICES
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + delay))
        logger.warning(
            "The provider of %r limits the rate of calls (429): waiting until %s.", self._settings.model, until
        )

    async def _attempt(self, request: ContextRequest) -> Reply:
        self.check()
        sender, settings = await self._connected(), self._settings
        sent = _now()
        try:
            await self._limiter.enter(request.input_tokens)
            async with self._spending.call(
                settings.model,
                self._form.maximum(request),
                sender=settings.service_tier or "live",
                expected=partial(self._statistics.expected, request),
            ) as call:
                sent = _now()
                reply = await awithout_secrets(partial(sender.send, request))
        except STOPPING:
            raise
        except Exception as error:  # any LLM class may raise anything; raised again below
            self._note_failure(request, error, sent)
            raise
        tokens = self._form.tokens_of(request, reply)
        call.settle(tokens)
        self._statistics.add(request, tokens)
        self._breaker.answered()
        self._limited_since = math.inf
        return reply

    async def _connected(self) -> Sender:
        """Return the sender; load and connect the LLM before the cost of the first call is reserved."""
        async with self._connecting:
            if self._sender is None:
                settings = self._settings
                load = partial(load_llm, settings.model, timeout=settings.call_timeout)
                llm = await asyncio.to_thread(load) if settings.llm is None else settings.llm
                connected = await self._stack.enter_async_context(own_client(llm))
                self._sender = LiveSender(connected, service_tier=settings.service_tier)
            return self._sender

    def _note_failure(self, request: ContextRequest, error: Exception, sent: float) -> None:
        """Record a failed call, and stop the run if no call can succeed."""
        reason = ""
        if not is_retryable(error) or is_rate_limit(error):
            self._breaker.refused()
        elif self._breaker.failed(request, error, sent, now=_now()):
            reason = f" The run was stopped after {self._breaker.rounds} failures in a row."
        if reason or is_fatal(error):
            message = describe(error, setting="llm", model=self._settings.model)
            raise ModelError(message + reason, setting="llm") from error


def _now() -> float:
    return asyncio.get_running_loop().time()
