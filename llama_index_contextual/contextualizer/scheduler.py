"""When each call is sent: many at a time, the first of a segment alone, and no longer than there is hope.

The first call of a segment makes the provider keep the prefix that the others share, so they wait for its answer. A
failed call waits without holding a place among those in flight. What no call can survive stops all: calls in flight
are waited for, because they are paid for, and nothing more is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import NoReturn, Protocol, runtime_checkable
from weakref import WeakValueDictionary

from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]  # not in its __all__

from llama_index_contextual.calls import (
    RetryPolicy,
    awithout_secrets,
    cancellations,
    describe,
    is_retryable,
    may_be_charged,
)
from llama_index_contextual.contextualizer.events import ContextCallEvent
from llama_index_contextual.contextualizer.health import Health, is_fatal, is_rate_limit
from llama_index_contextual.contextualizer.limits import Limiter
from llama_index_contextual.contextualizer.requests import ContextRequest, Usage
from llama_index_contextual.contextualizer.senders import Reply, Sender
from llama_index_contextual.contextualizer.slots import Slots
from llama_index_contextual.errors import BudgetExceededError, ConfigurationError, ContextualError, ModelError
from llama_index_contextual.models import Provider

dispatcher = get_dispatcher(__name__)


@runtime_checkable
class Charge(Protocol):
    """One call in an account; one of the three is called, once."""

    def settle(self, reply: Reply) -> None:
        """Book the answer."""
        ...

    def release(self) -> None:
        """Book nothing: the provider has refused the call, or it was not sent."""
        ...

    def forfeit(self) -> None:
        """Book the most that it can cost: it was sent, and whether it is charged is not known."""
        ...


@runtime_checkable
class Budget(Protocol):
    """Says before each call whether it may be sent."""

    async def may_send(self, request: ContextRequest) -> Charge:
        """Return what books the call; may wait until others are over.

        Raises:
            BudgetExceededError: It may not be sent; the run is stopped.
        """
        ...


class _Prefix:
    """Whether a provider holds a prefix; the lock is held by the call that brings it there."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.warm = False


class Scheduler:
    """Sends requests when it is their turn, again where that may help, and stops where it cannot.

    Args:
        sender: Sends one request.
        model: Name of the LLM, as in the settings.
        provider: What is known about its provider, or None.
        concurrency: Calls in flight, at most.
        retry: When a failed call is sent again.
        limiter: How fast calls may be sent.
        budget: Says before each call whether it may be sent.
        is_answered: Says whether the answer to a request is here already, so that no limit concerns it.
        prepare: Makes what sends ready, before money is put aside for a call.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        model: str,
        provider: Provider | None,
        concurrency: int,
        retry: RetryPolicy,
        limiter: Limiter,
        budget: Budget | None = None,
        is_answered: Callable[[ContextRequest], bool] | None = None,
        prepare: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._prepare = prepare
        self._sender, self._model, self._retry = sender, model, retry
        self._limiter, self._budget, self._is_answered = limiter, budget, is_answered
        self._provider = provider or Provider(pip="")
        # A provider with one slot computes the prefix anew whenever another segment came between.
        one_by_one = self._provider.cache == "slot"
        self._calls = Slots(1 if one_by_one else concurrency)
        self.segments = Slots(1 if one_by_one else concurrency)
        self._health = Health(retry)
        self._prefixes: WeakValueDictionary[str, _Prefix] = WeakValueDictionary()
        self._error: ContextualError | None = None

    def stop(self, error: ContextualError) -> None:
        """Send nothing more; whoever waits gets the first error that was given."""
        self._error = self._error or error
        self._limiter.stop()

    def check(self) -> None:
        """Raise the error that has stopped the run, if one has."""
        if self._error is not None:
            raise self._error

    @asynccontextmanager
    async def call(self, request: ContextRequest) -> AsyncIterator[Reply]:
        """Give the answer to a request, which counts as in flight until the block ends.

        What a block commits is thus never more than the calls in flight behind what was paid for.

        Raises:
            ContextualError: The run was stopped: no call can succeed, or none may be sent.
            Exception: What the provider's client raised for this request in the end.
        """
        reply = await self._answer(request)
        try:
            yield reply
        finally:
            self._calls.release()

    async def _answer(self, request: ContextRequest) -> Reply:
        if self._provider.cache is None or request.prefix_tokens < self._provider.min_cached_tokens:
            return await self._persist(request, first=False)
        prefix = self._prefixes.setdefault(request.cache_key, _Prefix())
        async with prefix.lock:
            if not prefix.warm:
                reply = await self._persist(request, first=True)
                prefix.warm = True
                return reply
        return await self._persist(request, first=False)

    async def _persist(self, request: ContextRequest, *, first: bool) -> Reply:
        attempt, tries, begun, cancelled = 1, 0, 0, cancellations()
        while True:
            answered = self._health.answers
            try:
                reply = await self._in_turn(request, attempt, first=first)
            except Exception as error:  # any LLM class may raise anything: what cannot be sent again is raised
                self.check()
                if cancellations() > cancelled:
                    raise asyncio.CancelledError from error
                if is_rate_limit(error):
                    # A provider that is only busy answers others meanwhile: this call is not hopeless.
                    tries += self._health.answers == answered
                else:
                    # In a disturbance that meets all, the provider is given up, and not one call after the other.
                    tries += self._health.begun != begun
                    begun = self._health.begun
                delay = self._delay(error, max(1, tries))
                if delay is None:
                    raise
            else:
                return replace(reply, attempts=attempt)
            attempt += 1
            await self._limiter.sleep(delay)

    async def _in_turn(self, request: ContextRequest, attempt: int, *, first: bool) -> Reply:
        """Return the answer and keep the place among the calls in flight, or give the place back and raise."""
        # First calls go before others: each of them makes room for many.
        await self._calls.acquire(0 if first else 1)
        try:
            return await self.context_call(
                partial(self._attempt, request, attempt),
                doc_id=request.segment.doc_id,
                node_ids=[chunk.node_id for chunk in request.chunks],
                attempt=attempt,
            )
        except BaseException:  # a cancelled call gives its place back too
            self._calls.release()
            raise

    @dispatcher.span
    async def context_call(
        self, send: Callable[[], Awaitable[Reply]], *, doc_id: str, node_ids: list[str], attempt: int
    ) -> Reply:
        """Send a request once, inside a span of LlamaIndex's instrumentation, which shows what it is for."""
        return await send()

    def _delay(self, error: Exception, tries: int) -> float | None:
        """Return the seconds before a failed call is sent again, or None; all wait where all are concerned."""
        delay = self._retry.delay(tries, error)
        if is_rate_limit(error):
            if delay is not None:
                self._limiter.pause(delay)
            return delay
        now = _now()
        if (pause := self._health.pause(now=now)) > 0:
            self._limiter.pause(pause)
        return None if delay is None else max(delay, self._health.rest(now=now))

    async def _attempt(self, request: ContextRequest, attempt: int) -> Reply:
        self.check()
        answered = self._is_answered is not None and self._is_answered(request)
        if self._prepare is not None and not answered:
            await self._made_ready(self._prepare)
        async with self._limiter.passing(None if answered else request.input_tokens):
            self.check()
            return await self._sent(request, attempt)

    async def _made_ready(self, prepare: Callable[[], Awaitable[object]]) -> None:
        try:
            await prepare()
        except ConfigurationError as error:
            self.stop(error)
            raise

    async def _sent(self, request: ContextRequest, attempt: int) -> Reply:
        charge = await self._charge(request)
        started = _now()
        try:
            reply = await awithout_secrets(partial(self._sender.send, request))
        except Exception as error:  # reported as an event whatever it is, and raised
            is_ours = isinstance(error, ConfigurationError)
            if charge is not None:
                (charge.release if is_ours or not may_be_charged(error) else charge.forfeit)()
            if isinstance(error, ConfigurationError):
                self.stop(error)
                raise
            self._report(request, attempt, _now() - started, None, str(error)[:300])
            self._judge(request, error, started)
            raise
        except BaseException:
            if charge is not None:
                charge.forfeit()
            raise
        if charge is not None:
            charge.settle(reply)
        self._health.answered()
        self._report(request, attempt, _now() - started, reply.usage, None)
        return replace(reply, seconds=_now() - started)

    async def _charge(self, request: ContextRequest) -> Charge | None:
        """Put the money for a call aside, which may take until others are over."""
        if self._budget is None:
            return None
        try:
            charge = await self._budget.may_send(request)
        except (BudgetExceededError, ConfigurationError) as error:
            self.stop(error)
            raise
        try:
            self.check()
        except ContextualError:
            charge.release()
            raise
        return charge

    def _judge(self, request: ContextRequest, error: Exception, started: float) -> None:
        """Stop the run where no call can succeed."""
        if is_fatal(error):
            self._give_up(error, "")
        if not is_retryable(error) or is_rate_limit(error):
            self._health.refused()
        elif self._health.failed(request, error, started, now=_now()):
            self._give_up(error, f" The run was stopped after {self._health.rounds} failures in a row.")

    def _give_up(self, error: Exception, why: str) -> NoReturn:
        stopped = ModelError(describe(error, setting="llm", model=self._model) + why, setting="llm")
        stopped.__cause__ = error
        self.stop(stopped)
        raise stopped from error

    def _report(
        self, request: ContextRequest, attempt: int, seconds: float, usage: Usage | None, error: str | None
    ) -> None:
        counts = usage or Usage()
        dispatcher.event(
            ContextCallEvent(
                doc_id=request.segment.doc_id,
                node_ids=[chunk.node_id for chunk in request.chunks],
                model=self._model,
                attempt=attempt,
                seconds=seconds,
                input_tokens=counts.input_tokens,
                cached_tokens=counts.cached_tokens,
                output_tokens=counts.output_tokens,
                error=error,
                # Handlers that know LlamaIndex's own events only, as OpenInference's, warn of others inside a span.
                span_id=None,
            )
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
