"""Scheduling of calls for contexts: concurrency, retries, budget, events, and storage of the results.

A `Sender` sends one request and returns a `Reply`; `LiveSender` does so with a LlamaIndex LLM. The `Scheduler` decides
when a request is sent, whether it is sent again, and when the run is stopped; each attempt is reported as a
`ContextCallEvent`. The `ContextWriter` commits contexts to the ledger.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NoReturn, Protocol, cast, runtime_checkable
from weakref import WeakValueDictionary

from llama_index.core.base.llms.types import CacheControl, CachePoint, TextBlock
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]  # not in its __all__
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.llms import LLM, ChatMessage

from llama_index_contextual._utils.calls import (
    RetryPolicy,
    awithout_secrets,
    cancellations,
    describe,
    is_retryable,
    may_be_charged,
)
from llama_index_contextual._utils.redaction import get_logger, scrub
from llama_index_contextual.contextualizer.cost import AnswerLimit
from llama_index_contextual.contextualizer.limits import Health, Limiter, Slots, is_fatal, is_rate_limit
from llama_index_contextual.contextualizer.prompts import ContextRequest, Usage
from llama_index_contextual.errors import (
    BudgetExceededError,
    ConfigurationError,
    ContextualError,
    LedgerBusyError,
    ModelError,
    Remedy,
)
from llama_index_contextual.index.ledger import Ledger, LedgerEntry
from llama_index_contextual.index.storable import storable_text
from llama_index_contextual.models import HIDDEN_TOKENS, Provider, model_name, provider_of


class ContextCallEvent(BaseEvent):
    """Event of LlamaIndex's instrumentation at the end of each attempt of a call for contexts.

    Attributes:
        doc_id: Id of the document.
        node_ids: Ids of the chunks whose contexts were requested.
        model: Name of the LLM.
        attempt: Number of the attempt, from 1.
        seconds: Duration of the attempt.
        input_tokens: Tokens of the prompt as counted by the provider, or None.
        cached_tokens: Tokens of the prompt read from the provider's cache, or None.
        output_tokens: Tokens of the answer, or None.
        error: Error message, or None.
    """

    doc_id: str
    node_ids: list[str]
    model: str
    attempt: int
    seconds: float
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "ContextCallEvent"


# ---- Storage ---------------------------------------------------------------------------------------------------------

_ROW_ERRORS = (ValueError, TypeError, OverflowError, sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)
"""Errors that concern a single row; other errors concern the file."""

_Refused = Mapping[str, Exception]


class ContextWriter:
    """Commit contexts to the ledger in a thread; those that arrive during a commit share the next one.

    A single context is thus committed immediately, while under load many share the cost of one commit, and none waits
    for more than the commit in progress. A row that cannot be stored does not affect the others.

    Args:
        ledger: The ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[tuple[Sequence[LedgerEntry], asyncio.Future[_Refused]]] = []
        self._delayed: list[LedgerEntry] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, entries: Sequence[LedgerEntry]) -> _Refused:
        """Commit contexts; they are on disk when this returns, and are still committed if it is cancelled.

        Returns:
            The errors of those that cannot be stored, by key.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        done: asyncio.Future[_Refused] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, done))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        return await done

    async def close(self) -> None:
        """Wait until everything is committed; retry rows that could not be written because the ledger was locked.

        Raises:
            LedgerBusyError: The ledger is still locked by another program.
        """
        if self._task is not None:
            await asyncio.shield(self._task)
        if self._delayed:
            await asyncio.shield(asyncio.to_thread(self._store, self._delayed))
            self._delayed = []

    async def _commit(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            rows = [entry for entries, _ in group for entry in entries]
            try:
                refused = await asyncio.to_thread(self._store, rows)
            except LedgerBusyError as error:
                self._delayed += rows
                _finish(group, error)
            except Exception as error:  # noqa: BLE001 - raised in the waiting callers; this task continues
                _finish(group, error)
            else:
                _finish(group, refused)
        self._task = None

    def _store(self, rows: Sequence[LedgerEntry]) -> _Refused:
        try:
            self._ledger.add_contexts(rows)
        except _ROW_ERRORS:
            return self._store_one_by_one(rows)
        return {}

    def _store_one_by_one(self, rows: Sequence[LedgerEntry]) -> _Refused:
        refused: dict[str, Exception] = {}
        for row in rows:
            try:
                self._ledger.add_contexts([row])
            except _ROW_ERRORS as error:
                refused[row.key] = error
        return refused


def _finish(
    group: Sequence[tuple[Sequence[LedgerEntry], asyncio.Future[_Refused]]], result: _Refused | Exception
) -> None:
    for entries, done in group:
        if done.done():
            continue  # the caller was cancelled
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result({entry.key: result[entry.key] for entry in entries if entry.key in result})


# ---- Sending ---------------------------------------------------------------------------------------------------------

ServiceTier = Literal["flex"]

FLEX_TIMEOUT = 900.0
"""Timeout in seconds of calls in the flex tier, which are slower."""

_MOST_TOKENS = 2**31
"""Upper limit of a plausible token count; SQLite may be unable to store a larger one."""

_FINISHED = {"max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}


@dataclass(frozen=True)
class Reply:
    """Answer of a model.

    Attributes:
        text: Text of the answer.
        usage: Tokens as counted by the provider.
        finish_reason: Reason why the model stopped: "stop", "length", "content_filter", "refusal", another value of
            the provider, or None without one.
        attempts: Number of attempts.
        seconds: Duration of the last attempt.
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    attempts: int = 1
    seconds: float = 0.0


@runtime_checkable
class Sender(Protocol):
    """Protocol of objects that send one request; errors are raised unchanged, and nothing is retried."""

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        ...


class LiveSender:
    """Send requests to a LlamaIndex LLM so that its provider can cache their common prefix.

    Args:
        llm: Any LlamaIndex LLM.
        service_tier: "flex" for half the price and longer response times, if the provider offers it.

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
        self._limit = AnswerLimit.of(model_name(llm), llm)

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        try:
            response = await self._llm.achat([self._message(request)], **self._options(request))
        except Exception as error:
            if self._limit.effort is None or not _refuses_effort(error):
                raise
            # The model does not accept the effort that its name suggests; the refused call is not charged.
            self._limit = replace(self._limit, effort=None, hidden_tokens=HIDDEN_TOKENS[None])
            response = await self._llm.achat([self._message(request)], **self._options(request))
        reply = reply_of(response.raw)
        return Reply(scrub(response.message.content or ""), reply.usage, reply.finish_reason)

    def _message(self, request: ContextRequest) -> ChatMessage:
        if self._provider.cache != "point" or request.prefix_tokens < self._provider.min_cached_tokens:
            return ChatMessage(role="user", content=request.prompt)
        point = CachePoint(cache_control=CacheControl(type="ephemeral"))
        return ChatMessage(role="user", blocks=[TextBlock(text=request.prefix), point, TextBlock(text=request.suffix)])

    def _options(self, request: ContextRequest) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._provider.takes_cache_key:
            options["prompt_cache_key"] = request.cache_key
        if self._provider.takes_json_schema and request.response_format is not None:
            options["response_format"] = request.response_format
        if self._limit.is_sent:
            options["max_tokens"] = self._limit.max_tokens(request)
        if self._limit.effort is not None:
            options["reasoning_effort"] = self._limit.effort
        if self._service_tier is not None:
            options |= {"service_tier": self._service_tier, "timeout": FLEX_TIMEOUT}
        return options


def _refuses_effort(error: Exception) -> bool:
    return getattr(error, "status_code", None) == 400 and "reasoning" in str(error)


def reply_of(raw: Any) -> Reply:
    """Return the content of a provider's own answer, given as an object of its client or as parsed JSON.

    The formats of OpenAI, Anthropic and Ollama are known. Of other formats, only fields that agree with these are read.
    """
    choices = _get(raw, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = _get(choice, "message") or _get(raw, "message")
    text = _get(message, "content")
    reason = _get(choice, "finish_reason") or _get(raw, "stop_reason") or _get(raw, "done_reason")
    if _get(message, "refusal"):
        reason = "refusal"
    finish_reason = storable_text(_FINISHED.get(reason, reason)) if isinstance(reason, str) else None
    return Reply(scrub(text) if isinstance(text, str) else "", usage_of(_get(raw, "usage")), finish_reason)


def usage_of(usage: Any) -> Usage:
    """Return a provider's token counts; missing ones are None.

    Anthropic counts tokens read from and written to the cache separately from the input; here they are part of it.
    """
    if (prompt := _count(usage, "prompt_tokens")) is not None:
        details = _get(usage, "prompt_tokens_details")
        cached, written = _count(details, "cached_tokens"), _count(details, "cache_write_tokens")
        return Usage(prompt, cached, _count(usage, "completion_tokens"), written)
    if (uncached := _count(usage, "input_tokens")) is not None:
        cached, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
        return Usage(uncached + (cached or 0) + (written or 0), cached, _count(usage, "output_tokens"), written)
    return Usage()


def _count(holder: Any, name: str) -> int | None:
    value = _get(holder, name)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _get(holder: Any, name: str) -> Any:
    return cast(Any, holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None))


# ---- Scheduling ------------------------------------------------------------------------------------------------------

dispatcher = get_dispatcher(__name__)
logger = get_logger(__name__)

_NOTABLE_WAIT = 5.0
"""Seconds without an answer after which a rate limit is logged."""

_BETWEEN_NOTICES = 30.0


@runtime_checkable
class Charge(Protocol):
    """Protocol of the charge for one call; exactly one of its methods is called, once."""

    def settle(self, reply: Reply) -> None:
        """Book the cost of the answer."""
        ...

    def release(self) -> None:
        """Book nothing: the provider refused the call, or it was not sent."""
        ...

    def forfeit(self) -> None:
        """Book the maximum cost: the call was sent, but it is unknown whether it is charged."""
        ...


@runtime_checkable
class Budget(Protocol):
    """Protocol of objects that approve each call before it is sent."""

    async def may_send(self, request: ContextRequest) -> Charge:
        """Return the charge for a call; may wait until other calls have ended.

        Raises:
            BudgetExceededError: The call exceeds the budget; the run is stopped.
        """
        ...


class _Prefix:
    """State of a prefix in the provider's cache; the first call keeps the lock until the prefix is cached."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.warm = False


class Scheduler:
    """Send requests within the limits, retry failed ones, and stop the run if no call can succeed.

    Args:
        sender: Sends one request.
        model: Name of the LLM, as in the settings.
        provider: Properties of its provider, or None if unknown.
        concurrency: Maximum number of concurrent calls.
        retry: Retry policy for failed calls.
        limiter: Limits the rate of calls.
        budget: Approves each call before it is sent.
        is_answered: Returns whether the answer to a request has already arrived in a batch; no limit applies to it.
        prepare: Prepares the sender before money is reserved for a call.
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
        # A provider with a single cache slot recomputes the prefix whenever the segment changes.
        one_by_one = self._provider.cache == "slot"
        self._calls = Slots(1 if one_by_one else concurrency)
        self.segments = Slots(1 if one_by_one else concurrency)
        self._health = Health(retry)
        self._prefixes: WeakValueDictionary[str, _Prefix] = WeakValueDictionary()
        self._error: ContextualError | None = None
        self._limited = (-1, 0.0)
        self._next_notice = 0.0

    def stop(self, error: ContextualError) -> None:
        """Send no further calls; waiting ones raise the first error passed to this method."""
        self._error = self._error or error
        self._limiter.stop()

    def check(self) -> None:
        """Raise the error that stopped the run, if any."""
        if self._error is not None:
            raise self._error

    @asynccontextmanager
    async def call(self, request: ContextRequest) -> AsyncIterator[Reply]:
        """Provide the answer to a request; the call occupies its slot until the block ends.

        If the block commits the answer, at most the answers to the calls in flight are paid for but not yet stored.

        Raises:
            ContextualError: The run was stopped: no call can succeed, or the budget is exhausted.
            Exception: The last error that the provider's client raised for this request.
        """
        reply = await self._answer(request)
        try:
            yield reply
        finally:
            self._calls.release()

    async def _answer(self, request: ContextRequest) -> Reply:
        if self._provider.cache is None or request.prefix_tokens < self._provider.min_cached_tokens:
            return await self._call_with_retries(request, first=False)
        prefix = self._prefixes.setdefault(request.cache_key, _Prefix())
        async with prefix.lock:
            if not prefix.warm:
                reply = await self._call_with_retries(request, first=True)
                prefix.warm = True
                return reply
        return await self._call_with_retries(request, first=False)

    async def _call_with_retries(self, request: ContextRequest, *, first: bool) -> Reply:
        attempt, tries, last_round, cancelled = 1, 0, 0, cancellations()
        while True:
            answers = self._health.answers
            try:
                reply = await self._call_in_slot(request, attempt, first=first)
            except Exception as error:  # any LLM class may raise anything; errors without a retry are raised
                self.check()
                if cancellations() > cancelled:
                    raise asyncio.CancelledError from error
                if is_rate_limit(error):
                    # While the provider answers other calls, a rate limit does not count as a failed try.
                    tries += self._health.answers == answers
                else:
                    # Count rounds, not failures: an outage concerns the provider, not single calls.
                    tries += self._health.total_rounds != last_round
                    last_round = self._health.total_rounds
                delay = self._delay(error, max(1, tries))
                if delay is None:
                    raise
            else:
                return replace(reply, attempts=attempt)
            attempt += 1
            await self._limiter.sleep(delay)

    async def _call_in_slot(self, request: ContextRequest, attempt: int, *, first: bool) -> Reply:
        """Wait for a slot and return the answer; the slot is released only on an error."""
        # First calls of segments take precedence: the other calls of their segments wait for them.
        await self._calls.acquire(0 if first else 1)
        try:
            return await self.context_call(
                partial(self._attempt, request, attempt),
                doc_id=request.segment.doc_id,
                node_ids=[chunk.node_id for chunk in request.chunks],
                attempt=attempt,
            )
        except BaseException:  # also when cancelled
            self._calls.release()
            raise

    @dispatcher.span
    async def context_call(
        self, send: Callable[[], Awaitable[Reply]], *, doc_id: str, node_ids: list[str], attempt: int
    ) -> Reply:
        """Send a request once, inside a span of LlamaIndex's instrumentation that shows the keyword arguments."""
        return await send()

    def _delay(self, error: Exception, tries: int) -> float | None:
        """Return the seconds before a failed call is retried, or None; pauses all calls if all are affected."""
        delay = self._retry.delay(tries, error)
        if is_rate_limit(error):
            if delay is not None:
                self._limiter.pause(delay)
                self._note_rate_limit(delay)
            return delay
        now = _now()
        if (pause := self._health.pause(now=now)) > 0:
            self._limiter.pause(pause)
        return None if delay is None else max(delay, self._health.rest(now=now))

    def _note_rate_limit(self, delay: float) -> None:
        """Log until when the provider's rate limit stops the calls, if it stops all of them for a while."""
        now, answers = _now(), self._health.answers
        if self._limited[0] != answers:
            self._limited = answers, now
        if now + delay - self._limited[1] < _NOTABLE_WAIT or now < self._next_notice:
            return
        self._next_notice = now + _BETWEEN_NOTICES
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + delay))
        logger.warning("The provider of %r limits the rate of calls (429): waiting until %s.", self._model, until)

    async def _attempt(self, request: ContextRequest, attempt: int) -> Reply:
        self.check()
        answered = self._is_answered is not None and self._is_answered(request)
        if self._prepare is not None and not answered:
            try:
                await self._prepare()
            except ConfigurationError as error:
                self.stop(error)
                raise
        async with self._limiter.passing(None if answered else request.input_tokens):
            self.check()
            return await self._send(request, attempt)

    async def _send(self, request: ContextRequest, attempt: int) -> Reply:
        charge = await self._charge(request)
        started = _now()
        try:
            reply = await awithout_secrets(partial(self._sender.send, request))
        except Exception as error:  # any error is reported as an event and raised again
            not_sent = isinstance(error, ConfigurationError)
            if charge is not None:
                (charge.release if not_sent or not may_be_charged(error) else charge.forfeit)()
            if isinstance(error, ConfigurationError):
                self.stop(error)
                raise
            self._report(request, attempt, _now() - started, None, str(error)[:300])
            self._note_failure(request, error, started)
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
        """Reserve the money for a call; may wait until other calls have ended."""
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

    def _note_failure(self, request: ContextRequest, error: Exception, started: float) -> None:
        """Record a failed call, and stop the run if no call can succeed."""
        if is_fatal(error):
            self._give_up(error, "")
        if not is_retryable(error) or is_rate_limit(error):
            self._health.refused()
        elif self._health.failed(request, error, started, now=_now()):
            self._give_up(error, f" The run was stopped after {self._health.rounds} failures in a row.")

    def _give_up(self, error: Exception, reason: str) -> NoReturn:
        fatal = ModelError(describe(error, setting="llm", model=self._model) + reason, setting="llm")
        fatal.__cause__ = error
        self.stop(fatal)
        raise fatal from error

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
                # Handlers that know only LlamaIndex's own events, such as OpenInference's, warn about others in a span.
                span_id=None,
            )
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
