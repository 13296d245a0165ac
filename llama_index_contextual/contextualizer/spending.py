"""Account of the money that a run spends, and its limit.

Before a call is sent, its maximum cost is reserved; after the answer, its actual cost is booked by the provider's token
count. A call that was sent but never answered stays booked at its reserve, because the provider may charge for it.

`Spending` is the account of a run, whose sums are `Bill`s. A `Reservation` is the money reserved for one call.
`CallBudget` connects the account to the scheduler of the calls for contexts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from llama_index.core.llms import LLM

from llama_index_contextual._utils.calls import may_be_charged, run_to_completion
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.contextualizer.cost import (
    CONTEXT_TOKENS,
    MARGIN,
    AnswerLimit,
    CallForm,
    PriceTable,
    SenderKind,
    Tokens,
    money,
    round_up,
)
from llama_index_contextual.contextualizer.prompts import ContextRequest
from llama_index_contextual.contextualizer.scheduler import Reply
from llama_index_contextual.errors import BudgetExceededError, ConfigurationError, ContextualError, Remedy
from llama_index_contextual.index.receipts import Receipts, RunCost

if TYPE_CHECKING:
    from llama_index_contextual.contextualizer.batch import BatchReplies

_CALLS_BETWEEN_WRITES = 8
_ROUNDING = 1e-12
_UNSETTLED = "timed out, interrupted or not read from a batch"

ExpectedTokens = Callable[[], Tokens | None]


@dataclass(frozen=True)
class Bill:
    """Calls, tokens and money.

    Attributes:
        contexts: Calls and tokens for contexts.
        embedding_tokens: Tokens of embedded texts.
        dollars: Total cost at list prices, including discounts; None if a price is unknown.
        unsettled_calls: Calls that timed out, were cut off or whose reply in a batch is not read: they may be charged,
            and their cost is unknown.
        unsettled_dollars: Part of `dollars` booked for these calls: their maximum cost.
    """

    contexts: Tokens = field(default_factory=Tokens)
    embedding_tokens: int = 0
    dollars: float | None = 0.0
    unsettled_calls: int = 0
    unsettled_dollars: float = 0.0

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            self.contexts + other.contexts,
            self.embedding_tokens + other.embedding_tokens,
            None if self.dollars is None or other.dollars is None else self.dollars + other.dollars,
            self.unsettled_calls + other.unsettled_calls,
            self.unsettled_dollars + other.unsettled_dollars,
        )

    def describe_unsettled(self) -> str:
        """Describe the part of the bill that is booked for calls of unknown cost; empty if there are none."""
        if not self.unsettled_calls:
            return ""
        calls = pluralize(self.unsettled_calls, "call")
        if self.dollars is None:
            return f"{calls} more {_UNSETTLED}"
        return f"of which {money(self.unsettled_dollars)} for {calls} of unknown cost ({_UNSETTLED})"


class Spending:
    """Account of one run.

    Args:
        prices: Prices of the models.
        max_cost: Limit in dollars; None for no limit.
        context_tokens: Expected tokens of a context.
        receipts: Store of receipts, or None.
        receipt: Facts about the run for its receipt.

    Attributes:
        estimated: Expected cost of the planned calls.
        actual: Amount paid, including the reserves booked for calls whose cost is unknown.
        planned_share: Returns the share of the run's documents that `estimated` includes.
        held_back: Maximum cost of the requests that this run did not send because the LLM refused them before, or
            because their reply in a batch may be charged.

    Raises:
        ConfigurationError: The limit is negative.

    Example:
        >>> spending = Spending(PriceTable(), max_cost=1.0)
        >>> call = spending.reserve("openai:gpt-4.1", input_tokens=9_000, output_tokens=200)
        >>> call.settle(Tokens(1, 9_000, 8_960, 98))
        >>> round(spending.actual.dollars, 6)
        0.005344
    """

    def __init__(
        self,
        prices: PriceTable,
        *,
        max_cost: float | None = None,
        context_tokens: float = CONTEXT_TOKENS,
        receipts: Receipts | None = None,
        receipt: RunCost | None = None,
    ) -> None:
        if max_cost is not None and not max_cost >= 0:
            raise ConfigurationError(
                f"The cost limit must be an amount of dollars, not {max_cost!r}.", setting="max_cost"
            )
        self.prices = prices
        self.max_cost = max_cost
        self.context_tokens = context_tokens
        self.estimated = Bill()
        self.actual = Bill()
        self.planned_share: Callable[[], float] = float
        self.held_back = Bill()
        self._receipts, self._receipt = receipts, receipt or RunCost()
        self._calls_in_flight = 0
        self._in_flight = 0.0
        self._batches: dict[str, Bill] = {}
        self._stopped: ContextualError | None = None
        self._factor = 1.0
        self._is_exceeded = False
        self._needed = 0.0
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._written: float | None = None

    def require_price(self, model: str) -> None:
        """Require a known price for a model if there is a limit.

        Raises:
            ConfigurationError: There is a limit, and the price is unknown.
        """
        if self.max_cost is not None and self.prices.price(model) is None:
            raise ConfigurationError(
                f"The cost limit cannot be enforced: the price of {model!r} is unknown ({self.prices.version}). Set it"
                f' in the setting \'prices\' as {{"{model}": {{"input": ..., "cached": ..., "output": ...}}}},'
                f" in dollars per million tokens",
                setting="prices",
                remedy=Remedy("or leave out max_cost", "or omit --max-cost"),
            )

    @property
    def calls_in_flight(self) -> int:
        """Number of calls that were sent and are not answered yet."""
        return self._calls_in_flight

    def stop(self, error: ContextualError) -> None:
        """Send no further calls: reservations raise this error from now on."""
        self._stopped = error
        self._wake()

    def bill(self, model: str, tokens: Tokens, *, sender: SenderKind = "live") -> Bill:
        """Return the bill for calls for contexts."""
        return Bill(contexts=tokens, dollars=self.prices.dollars(model, tokens, sender=sender))

    def embedding_bill(self, model: str, tokens: int) -> Bill:
        """Return the bill for embeddings."""
        return Bill(embedding_tokens=tokens, dollars=self.prices.dollars(model, Tokens(input_tokens=tokens)))

    # ---- Before a call ---------------------------------------------------------------------------------------------

    def reserve(
        self,
        model: str,
        *,
        input_tokens: int,
        output_tokens: int,
        sender: SenderKind = "live",
        expected_tokens: ExpectedTokens | None = None,
    ) -> Reservation:
        """Reserve the maximum cost of a call, with the whole prompt written to the cache and the longest answer.

        Args:
            model: Name of the model, as in the settings.
            input_tokens: Tokens of the prompt.
            output_tokens: Maximum number of tokens of the answer.
            sender: How the call is sent.
            expected_tokens: Returns the expected tokens of the call, judging by previous answers, or None. If no other
                call is in flight, the limit must only cover their cost.

        Raises:
            BudgetExceededError: Together with the calls in flight, it could exceed the limit.
            ConfigurationError: There is a limit, and the price is unknown.
        """
        call = self._try_reserve(model, input_tokens, output_tokens, sender, expected_tokens)
        if call is None:
            raise self.limit_error()
        return call

    async def areserve(
        self,
        model: str,
        *,
        input_tokens: int,
        output_tokens: int,
        sender: SenderKind = "live",
        expected_tokens: ExpectedTokens | None = None,
    ) -> Reservation:
        """Reserve as `reserve` does, but wait for calls in flight, which usually cost less than their reserves.

        When this returns, the reserve is included in the run's receipt on disk.
        """
        while (call := self._try_reserve(model, input_tokens, output_tokens, sender, expected_tokens)) is None:
            if not self._calls_in_flight:
                raise self.limit_error()
            await self._changed.wait()
        try:
            await self._write_ahead(call.bound)
        except BaseException:
            call.release()
            raise
        return call

    def _try_reserve(
        self,
        model: str,
        input_tokens: int,
        output_tokens: int,
        sender: SenderKind,
        expected_tokens: ExpectedTokens | None,
    ) -> Reservation | None:
        if self._stopped is not None:
            raise self._stopped
        self.require_price(model)

        bound = (self.bound(model, input_tokens, output_tokens, sender=sender) or 0.0) * self._factor
        if self.max_cost is not None:
            room = self.max_cost + _ROUNDING - self._committed
            needed = bound
            if bound > room and expected_tokens is not None and not self._calls_in_flight:
                expected = expected_tokens()
                if expected is not None:
                    needed = (self.prices.dollars(model, expected, sender=sender) or 0.0) * self._factor
            if self._is_exceeded or needed > room:
                self._needed = max(self._needed, bound)
                return None
        self._calls_in_flight += 1
        self._in_flight += bound
        return Reservation(self, model, sender, bound, factor=self._factor)

    def bound(self, model: str, input_tokens: int, output_tokens: int, *, sender: SenderKind) -> float | None:
        """Return the maximum list price of a call: its whole prompt is written to the cache."""
        tokens = Tokens(1, input_tokens, 0, output_tokens, written_tokens=input_tokens)
        return self.prices.dollars(model, tokens, sender=sender)

    @property
    def booked(self) -> Bill:
        """Amount paid, and the reserves of the batches of this run whose replies are not read."""
        return sum(self._batches.values(), self.actual)

    @property
    def _committed(self) -> float:
        batches = sum(batch.unsettled_dollars for batch in self._batches.values())
        return (self.actual.dollars or 0.0) + self._in_flight + batches

    def limit_error(self) -> BudgetExceededError:
        """Return the error for a run that has reached its limit, and refuse all further reservations."""
        self._is_exceeded = True
        self._wake()
        limit, spent = self.max_cost or 0.0, self._committed
        unsettled = self.booked.describe_unsettled()
        enough = self._sufficient_limit()
        if enough is None:
            python, command_line = (
                "a higher max_cost (`estimate` names one)",
                "a higher --max-cost (`estimate` names one)",
            )
        else:
            python, command_line = f"max_cost={enough}", f"--max-cost {enough}"
        return BudgetExceededError(
            f"The cost limit of {money(limit)} is reached: {money(spent)} is spent"
            f"{f', {unsettled},' if unsettled else ''} and the next call could exceed the limit. Nothing is published;"
            f" the ledger keeps the contexts that were paid for.",
            spent=spent,
            max_cost=limit,
            remedy=Remedy(
                f"To continue, run the same call again with {python}, or without one",
                f"To continue, run the command again with {command_line}, or without it",
            ),
        )

    def _sufficient_limit(self) -> float | None:
        """Return a limit with which the next run should complete, or None if its calls were not estimated."""
        planned, paid = self.estimated, self.actual
        share = self.planned_share()
        if not share or not planned.contexts.calls or planned.dollars is None or paid.dollars is None:
            return None
        per_call = planned.dollars / planned.contexts.calls
        if paid.contexts.calls:
            per_call = max(per_call, (paid.dollars - paid.unsettled_dollars) / paid.contexts.calls)
        missing = max(1.0, planned.contexts.calls / share - paid.contexts.calls)
        return round_up(MARGIN * per_call * missing + self._needed)

    # ---- After a call ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def embedding(self, model: str, tokens: int) -> AsyncIterator[None]:
        """Reserve the cost of a request for embeddings, and book it when the block ends.

        Raises:
            BudgetExceededError: The request could exceed the limit.
        """
        call = await self.areserve(model, input_tokens=tokens, output_tokens=0)
        try:
            yield
        except Exception as error:
            (call.forfeit if may_be_charged(error) else call.release)()
            raise
        except BaseException:
            call.forfeit()
            raise
        call.settle_embeddings(tokens)

    @asynccontextmanager
    async def free_call(self, _tokens: int) -> AsyncIterator[None]:
        """Allow a request that costs nothing, unless the run was stopped."""
        if self._stopped is not None:
            raise self._stopped
        yield

    def close_call(self, bound: float, *, factor: float = 1.0) -> None:
        """Return the reserve of a call.

        Args:
            bound: The reserve.
            factor: Actual cost divided by the maximum that its tokens allowed; further reserves are raised by it.
        """
        self._calls_in_flight -= 1
        self._in_flight = self._in_flight - bound if self._calls_in_flight else 0.0
        self._factor = max(self._factor, factor)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- Batches ---------------------------------------------------------------------------------------------------

    def reserve_batch(self, file_id: str, calls: Sequence[Reservation]) -> None:
        """Keep the reserves of a batch until its replies are read, even after the end of this run."""
        self._batches[file_id] = sum((call.unsettled() for call in calls), Bill())
        for call in calls:
            call.release()
        self.write()

    def close_batch(self, file_id: str, *, unread: int = 0) -> None:
        """Remove the reserve of a batch whose replies are booked, here and in the receipt of the run that sent it.

        Args:
            file_id: The provider's id of the upload.
            unread: Number of requests that are given up although they may be charged; their reserve stays booked.
        """
        self._batches.pop(file_id, None)
        self.write()
        if self._receipts is not None:
            self._receipts.close_batch(file_id, unread=unread)

    def read_batch(self, file_id: str, *, paid: float, unread: int, requests: int) -> None:
        """Reduce the reserve of a batch to that of the requests that may be charged although their reply is not read.

        No request costs more than its reserve, so the unread ones cost at most what is left of it; if the others cost
        more nevertheless, the unread ones keep their share.

        Args:
            file_id: The provider's id of the upload.
            paid: Dollars booked for the replies just read.
            unread: Number of requests that may be charged.
            requests: Number of requests for which the reserve is booked.
        """

        def rest(booked: float) -> float:
            return max(booked - paid, booked * unread / requests)

        if (batch := self._batches.get(file_id)) is not None:
            dollars = rest(batch.unsettled_dollars)
            known = None if batch.dollars is None else dollars
            self._batches[file_id] = Bill(dollars=known, unsettled_calls=unread, unsettled_dollars=dollars)
            self.write()
        elif self._receipts is not None:
            self._receipts.read_batch(file_id, rest)

    # ---- Receipt -----------------------------------------------------------------------------------------------

    @contextmanager
    def receipted(self) -> Iterator[Spending]:
        """Write the receipt when the block ends, even with an error; an error at the limit states the final amount.

        Raises:
            BudgetExceededError: The run has reached its limit.
        """
        try:
            yield self
        except BudgetExceededError as error:
            raise self.limit_error() from error.__cause__
        finally:
            if self._written is not None or self.actual != Bill():
                self.write(ended=time.time())

    def write(self, *, ahead: float = 0.0, ended: float | None = None) -> None:
        """Commit the receipt in its current state.

        Args:
            ahead: Dollars that may be reserved in addition before the receipt must be written again.
            ended: Time of the end of the run, or None.
        """
        if self._receipts is None:
            return
        bill = self.actual
        receipt = replace(
            self._receipt,
            started=self._receipt.started or time.time(),
            ended=ended,
            calls=bill.contexts.calls,
            input_tokens=bill.contexts.input_tokens,
            cached_tokens=bill.contexts.cached_tokens,
            output_tokens=bill.contexts.output_tokens,
            embedding_tokens=bill.embedding_tokens,
            paid=None if bill.dollars is None else bill.dollars - bill.unsettled_dollars,
            unsettled_calls=bill.unsettled_calls,
            unsettled=bill.unsettled_dollars,
            in_flight=0.0 if ended else self._in_flight + ahead,
            batches={file_id: batch.unsettled_dollars for file_id, batch in self._batches.items()},
            prices=self.prices.version,
        )
        covered = self._committed + ahead
        self._receipt = self._receipts.write(receipt)
        self._written = covered

    async def _write_ahead(self, bound: float) -> None:
        """Ensure that the receipt on disk covers the calls in flight; several calls share one write."""
        if self._receipts is None:
            return
        async with self._writing:
            if self._written is None or self._committed > self._written:
                await run_to_completion(partial(self.write, ahead=_CALLS_BETWEEN_WRITES * bound))


class Reservation:
    """Money reserved for one call; exactly one of `settle`, `release` and `forfeit` is called, once.

    Args:
        spending: Account of the run.
        model: Name of the model.
        sender: How the call is sent.
        bound: Maximum cost in dollars.
        factor: Factor by which `bound` exceeds the maximum price of the call's tokens.

    Attributes:
        bound: Maximum cost in dollars.
    """

    def __init__(
        self, spending: Spending, model: str, sender: SenderKind, bound: float, *, factor: float = 1.0
    ) -> None:
        self._spending, self._model, self._sender, self.bound = spending, model, sender, bound
        self._factor = factor

    def settle(self, tokens: Tokens) -> None:
        """Book the cost of the call."""
        self._book(self._spending.bill(self._model, tokens, sender=self._sender))

    def settle_embeddings(self, tokens: int) -> None:
        """Book the cost of embeddings."""
        self._book(self._spending.embedding_bill(self._model, tokens))

    def _book(self, bill: Bill) -> None:
        self._spending.actual += bill
        factor = (bill.dollars or 0.0) / self.bound * self._factor if self.bound else 1.0
        self._spending.close_call(self.bound, factor=factor)

    def release(self) -> None:
        """Return the money: the provider refused the call, or it was not sent."""
        self._spending.close_call(self.bound)

    def forfeit(self) -> None:
        """Book the reserve: the call was sent, but it is unknown whether it is charged."""
        self._spending.actual += self.unsettled()
        self._spending.close_call(self.bound)

    def unsettled(self) -> Bill:
        """Return the bill for the call while its cost is unknown."""
        is_priced = self._spending.prices.price(self._model) is not None
        return Bill(
            dollars=self.bound if is_priced else None,
            unsettled_calls=1,
            unsettled_dollars=self.bound if is_priced else 0.0,
        )


class CallBudget:
    """Budget for calls for contexts: approves each call for the scheduler, and books it.

    A reply that has arrived in a batch is already paid for: it is never refused, and is booked once.

    Args:
        spending: Account of the run.
        model: Name of the LLM, as in the settings.
        llm: The LLM if it was passed as an object, because limits set on it apply.
        sender: How calls are sent.
        replies: Replies that have arrived in batches, or None.
    """

    def __init__(
        self,
        spending: Spending,
        model: str,
        *,
        llm: LLM | None = None,
        sender: SenderKind = "live",
        replies: BatchReplies | None = None,
    ) -> None:
        self._spending, self._model, self._sender, self._replies = spending, model, sender, replies
        self._form = CallForm.of(model)
        self._limit = AnswerLimit.of(model, llm)
        self._cached_tokens: dict[str, int] = {}
        self._has_cache_hits = False
        self._output_tokens = self._contexts = 0

    async def may_send(self, request: ContextRequest) -> ContextCharge:
        """Return the charge for a call; waits for calls in flight if the limit leaves no room for another one.

        Raises:
            BudgetExceededError: The call could exceed the limit.
        """
        if self._replies is not None and self._replies.has(request):
            return ContextCharge(self, request, None, is_booked=self._replies.is_booked(request))
        input_tokens = self._form.input_tokens(request)
        call = await self._spending.areserve(
            self._model,
            input_tokens=input_tokens,
            output_tokens=self._limit.max_tokens(request),
            sender=self._sender,
            expected_tokens=partial(self._expected_tokens, request, input_tokens),
        )
        return ContextCharge(self, request, call)

    def bound(self, request: ContextRequest) -> float | None:
        """Return the maximum cost of a call in dollars, or None if the price is unknown."""
        tokens = self._form.input_tokens(request), self._limit.max_tokens(request)
        return self._spending.bound(self._model, *tokens, sender=self._sender)

    def reserve(self, request: ContextRequest) -> Reservation:
        """Reserve the maximum cost of a call.

        Raises:
            BudgetExceededError: The call could exceed the limit.
        """
        return self._spending.reserve(
            self._model,
            input_tokens=self._form.input_tokens(request),
            output_tokens=self._limit.max_tokens(request),
            sender=self._sender,
        )

    def _expected_tokens(self, request: ContextRequest, input_tokens: int) -> Tokens | None:
        """Return the tokens of a call if it resembles the previous ones: prefix cached, answer of mean length."""
        if not self._contexts:
            return None
        cached = self._cached_tokens.get(request.cache_key)
        if cached == 0 and self._form.cache is not None and self._has_cache_hits:
            cached = self._form.cache.cached(request.prefix_tokens)  # cached by the first call of the segment
        cached = min(cached or 0, input_tokens)
        written = self._form.written_tokens(request, cached)
        output_tokens = round(self._output_tokens / self._contexts * len(request.keys))
        return Tokens(1, input_tokens, cached, output_tokens, min(written, input_tokens - cached))

    def settle(self, request: ContextRequest, reply: Reply, call: Reservation | None) -> None:
        """Book an answer by the provider's token count, and update the statistics for the next calls."""
        tokens = self._tokens(request, reply)
        self._output_tokens += tokens.output_tokens
        self._contexts += len(request.keys)
        self._cached_tokens[request.cache_key] = tokens.cached_tokens
        self._has_cache_hits |= tokens.cached_tokens > 0
        if call is None:
            self._spending.actual += self._spending.bill(self._model, tokens, sender="batch")
        else:
            call.settle(tokens)

    def _tokens(self, request: ContextRequest, reply: Reply) -> Tokens:
        """Return the provider's token counts, or our own for missing ones."""
        input_tokens, output_tokens = reply.usage.input_tokens, reply.usage.output_tokens
        if output_tokens is None:
            output_tokens = count_tokens(reply.text) + self._limit.hidden_tokens
        return Tokens(
            calls=1,
            input_tokens=self._form.input_tokens(request) if input_tokens is None else input_tokens,
            cached_tokens=reply.usage.cached_tokens or 0,
            output_tokens=output_tokens,
            written_tokens=reply.usage.written_tokens or 0,
        )


class ContextCharge:
    """Charge for one call for contexts; exactly one of `settle`, `release` and `forfeit` is called, once.

    Args:
        budget: Budget that books the call.
        request: The request.
        call: Money reserved for the call, or None if the reply has arrived in a batch.
        is_booked: Whether such a reply is already booked.
    """

    def __init__(
        self, budget: CallBudget, request: ContextRequest, call: Reservation | None, *, is_booked: bool = False
    ) -> None:
        self._budget, self._request, self._call, self._is_booked = budget, request, call, is_booked

    def settle(self, reply: Reply) -> None:
        """Book the cost of the answer."""
        if not self._is_booked:
            self._budget.settle(self._request, reply, self._call)

    def release(self) -> None:
        """Book nothing: the provider refused the call, or it was not sent."""
        if self._call is not None:
            self._call.release()

    def forfeit(self) -> None:
        """Book the reserve: the call was sent, but it is unknown whether it is charged."""
        if self._call is not None:
            self._call.forfeit()
