"""LlamaIndex instrumentation: what happens to each call for contexts."""

from __future__ import annotations

import asyncio
import sqlite3
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
from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual.contextualizer.cost import AnswerLimit
from llama_index_contextual.contextualizer.limits import Health, Limiter, Slots, is_fatal, is_rate_limit
from llama_index_contextual.contextualizer.prompts import ContextRequest, Usage
from llama_index_contextual.errors import (
    BudgetExceededError,
    ConfigurationError,
    ContextualError,
    LedgerBusyError,
    ModelError,
)
from llama_index_contextual.models import HIDDEN_TOKENS, Provider, model_name, provider_of
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry
from llama_index_contextual.storage.storable import storable_text


class ContextCallEvent(BaseEvent):
    """One attempt of a call for contexts has ended.

    Attributes:
        doc_id: Id of the document.
        node_ids: Ids of the chunks whose contexts were asked for.
        model: Name of the LLM.
        attempt: Which attempt, from 1.
        seconds: How long it took.
        input_tokens: Tokens of the prompt by the provider's count, or None.
        cached_tokens: Those of them that came from its cache, or None.
        output_tokens: Tokens of the answer, or None.
        error: Why it failed, or None.
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


_OF_A_ROW = (ValueError, TypeError, OverflowError, sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)
"""What a single row can raise; what concerns the file is raised for every row."""

_Refused = Mapping[str, Exception]


class ContextWriter:
    """Commits contexts in a thread; those that arrive while one commit is under way go into the next one together.

    So one context alone is committed at once, and under load a commit costs each of them a part only: none waits for
    more than the commit before its own. A row that cannot be stored does not keep the others from being stored.

    Args:
        ledger: Where they go.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[tuple[Sequence[LedgerEntry], asyncio.Future[_Refused]]] = []
        self._kept_back: list[LedgerEntry] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, entries: Sequence[LedgerEntry]) -> _Refused:
        """Commit contexts; they are on the disk when this returns, and will be if it is cancelled.

        Returns:
            The keys of those that cannot be stored, with the reason.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        done: asyncio.Future[_Refused] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, done))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        return await done

    async def close(self) -> None:
        """Wait until everything is committed; what another program kept from the ledger is tried a last time.

        Raises:
            LedgerBusyError: It still holds the ledger.
        """
        if self._task is not None:
            await asyncio.shield(self._task)
        if self._kept_back:
            await asyncio.shield(asyncio.to_thread(self._store, self._kept_back))
            self._kept_back = []

    async def _commit(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            rows = [entry for entries, _ in group for entry in entries]
            try:
                refused = await asyncio.to_thread(self._store, rows)
            except LedgerBusyError as error:
                self._kept_back += rows
                _finish(group, error)
            except Exception as error:  # noqa: BLE001 - raised by those who wait; the task itself goes on
                _finish(group, error)
            else:
                _finish(group, refused)
        self._task = None

    def _store(self, rows: Sequence[LedgerEntry]) -> _Refused:
        try:
            self._ledger.add_contexts(rows)
        except _OF_A_ROW:
            return self._store_one_by_one(rows)
        return {}

    def _store_one_by_one(self, rows: Sequence[LedgerEntry]) -> _Refused:
        refused: dict[str, Exception] = {}
        for row in rows:
            try:
                self._ledger.add_contexts([row])
            except _OF_A_ROW as error:
                refused[row.key] = error
        return refused


def _finish(
    group: Sequence[tuple[Sequence[LedgerEntry], asyncio.Future[_Refused]]], result: _Refused | Exception
) -> None:
    for entries, done in group:
        if done.done():
            continue  # who added it was cancelled meanwhile
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result({entry.key: result[entry.key] for entry in entries if entry.key in result})


ServiceTier = Literal["flex"]

FLEX_TIMEOUT = 900.0
"""Seconds: what is cheaper may take its time."""

_MOST_TOKENS = 2**31
"""No call has more; a larger count is nonsense, which SQLite may not be able to keep."""

_FINISHED = {"max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}


@dataclass(frozen=True)
class Reply:
    """What a model answered.

    Attributes:
        text: Its text.
        usage: Tokens by its provider's count.
        finish_reason: Why it stopped: "stop", "length", "content_filter", "refusal", another word of the provider's,
            or None where it gave none.
        attempts: Calls that it took.
        seconds: How long the last of them took.
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    attempts: int = 1
    seconds: float = 0.0


@runtime_checkable
class Sender(Protocol):
    """Sends one request and waits for its answer; a failure is raised as it comes, and nothing is sent again."""

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        ...


class LiveSender:
    """Sends requests to a LlamaIndex LLM, in the way in which its provider caches what they share.

    Args:
        llm: Any LlamaIndex LLM.
        service_tier: "flex" for half the price of live calls and longer waits, where the provider has it.

    Raises:
        ConfigurationError: The provider has no such tier.
    """

    def __init__(self, llm: LLM, *, service_tier: ServiceTier | None = None) -> None:
        self._llm = llm
        self._provider = provider_of(model_name(llm)) or Provider(pip="")
        if service_tier is not None and service_tier not in self._provider.service_tiers:
            raise ConfigurationError(
                f"{model_name(llm)!r} has no service tier {service_tier!r}: set service_tier to None.",
                setting="service_tier",
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
            # A model that takes another effort than its name lets expect; what it has refused is not charged.
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
        if self._limit.sent:
            options["max_tokens"] = self._limit.most(request)
        if self._limit.effort is not None:
            options["reasoning_effort"] = self._limit.effort
        if self._service_tier is not None:
            options |= {"service_tier": self._service_tier, "timeout": FLEX_TIMEOUT}
        return options


def _refuses_effort(error: Exception) -> bool:
    return getattr(error, "status_code", None) == 400 and "reasoning" in str(error)


def reply_of(raw: Any) -> Reply:
    """Return what a provider's own answer says, as an object of its client or as the JSON it was made of.

    OpenAI's, Anthropic's and Ollama's forms are known; of others, only the form is taken that agrees with these.
    """
    choices = _get(raw, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = _get(choice, "message") or _get(raw, "message")
    text = _get(message, "content")
    reason = _get(choice, "finish_reason") or _get(raw, "stop_reason") or _get(raw, "done_reason")
    if _get(message, "refusal"):
        reason = "refusal"
    known = _FINISHED.get(reason, reason) if isinstance(reason, str) else None
    known = None if known is None else storable_text(known)
    return Reply(scrub(text) if isinstance(text, str) else "", usage_of(_get(raw, "usage")), known)


def usage_of(usage: Any) -> Usage:
    """Return a provider's count of tokens; what it does not give is None.

    Anthropic counts what it reads from and writes into its cache beside the input; here it is a part of it.
    """
    count = _counts(usage)
    if (given := count("prompt_tokens")) is not None:
        details = _counts(_get(usage, "prompt_tokens_details"))
        return Usage(given, details("cached_tokens"), count("completion_tokens"), details("cache_write_tokens"))
    if (given := count("input_tokens")) is not None:
        read = count("cache_read_input_tokens")
        written = count("cache_creation_input_tokens")
        return Usage(given + (read or 0) + (written or 0), read, count("output_tokens"), written)
    return Usage()


def _counts(holder: Any) -> Callable[[str], int | None]:
    def count(name: str) -> int | None:
        found = _get(holder, name)
        return found if type(found) is int and 0 <= found <= _MOST_TOKENS else None

    return count


def _get(holder: Any, name: str) -> Any:
    return cast(Any, holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None))


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
