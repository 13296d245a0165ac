"""The account of a run, which enforces the cost limit.

The maximum cost of a call is reserved before the call is sent; the actual cost, computed from the provider's token
counts, is recorded when the answer arrives. If a call was sent but not answered, its full reserve is recorded as spent,
because the provider may charge for it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from llama_index_contextual._utils.calls import may_be_charged, run_to_completion
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.errors import BudgetExceededError, ConfigurationError, ContextualError, Remedy
from llama_index_contextual.money.price import MARGIN, Prices, SenderKind, is_in_process, money, round_up
from llama_index_contextual.money.receipt import Receipt, Receipts
from llama_index_contextual.money.tokens import EmbeddingUsage, Tokens

Expected = Callable[[], Tokens | None]

_CALLS_BETWEEN_WRITES = 8
_ROUNDING = 1e-12


class Account:
    """Account of the costs of one run.

    Args:
        prices: Model prices.
        max_cost: Limit in dollars; None for no limit.
        receipts: Store of receipts, or None.
        receipt: Information about the run for its receipt.

    Attributes:
        estimated: Expected cost of the planned calls.
        actual: Amount paid, including the reserves of calls whose cost is unknown.
        planned_share: Function that returns the fraction of the run's documents included in `estimated`.
        calls_in_flight: Number of calls that have been sent but not answered yet.

    Raises:
        ConfigurationError: The limit is negative.

    Example:
        >>> account = Account(Prices(), max_cost=1.0)
        >>> call = account.reserve("openai:gpt-4.1", Tokens.maximum(9_000, 200))
        >>> call.settle(Tokens(1, 9_000, 8_960, 98))
        >>> round(account.actual.dollars, 6)
        0.005344
    """

    def __init__(
        self,
        prices: Prices,
        *,
        max_cost: float | None = None,
        receipts: Receipts | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        if max_cost is not None and not (isinstance(max_cost, int | float) and max_cost >= 0):
            raise ConfigurationError(
                f"The cost limit must be an amount of dollars, not {max_cost!r}.", setting="max_cost"
            )
        self.prices = prices
        self.max_cost = max_cost
        self.estimated = Receipt()
        self.actual = Receipt()
        self.planned_share: Callable[[], float] = float
        self._receipts, self._heading = receipts, receipt or Receipt()
        self.calls_in_flight = 0
        self._in_flight = 0.0
        self._batches: dict[str, Receipt] = {}
        self._stopped: ContextualError | None = None
        self._factors: defaultdict[str, float] = defaultdict(lambda: 1.0)
        self._uncertain: defaultdict[str, Receipt] = defaultdict(Receipt)
        self._is_exceeded = False
        self._needed = 0.0
        self._contexts = 0
        self._changed = asyncio.Event()
        self._writing, self._write_lock = asyncio.Lock(), Lock()
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

    def stop(self, error: ContextualError) -> None:
        """Stop sending calls; from now on, reservations raise this error."""
        self._stopped = self._stopped or error
        self._notify()

    def receipt(self, model: str, tokens: Tokens, *, sender: SenderKind = "live") -> Receipt:
        """Return the receipt of LLM calls that generate contexts."""
        return Receipt.for_calls(tokens, paid=self.prices.dollars(model, tokens, sender=sender))

    def embedding_receipt(self, model: str, tokens: int) -> Receipt:
        """Return the receipt of embeddings."""
        return Receipt(embedding_tokens=tokens, paid=self.prices.dollars(model, Tokens(input_tokens=tokens)))

    # ---- Calls -----------------------------------------------------------------------------------------------------

    def reserve(self, model: str, maximum: Tokens, *, sender: SenderKind = "live") -> Reservation:
        """Reserve the maximum cost of a call.

        Args:
            model: Name of the model, as in the settings.
            maximum: Maximum tokens of the call; see `Tokens.maximum`.
            sender: How the call is sent.

        Raises:
            BudgetExceededError: Together with the calls in flight, the call could exceed the limit.
            ConfigurationError: There is a limit, and the price is unknown.
        """
        call = self._try_reserve(model, maximum, sender)
        if call is None:
            raise self.limit_error()
        return call

    async def areserve(
        self, model: str, maximum: Tokens, *, sender: SenderKind = "live", expected: Expected | None = None
    ) -> Reservation:
        """Reserve the maximum cost of a call. If it could exceed the limit, wait for calls in flight first.

        Calls in flight usually cost less than their reserves. On return, the run's receipt on disk includes the
        reserve.

        Args:
            model: Name of the model, as in the settings.
            maximum: Maximum tokens of the call.
            sender: How the call is sent.
            expected: Function that returns the expected tokens of the call, based on previous answers, or None. If no
                other call is in flight, the limit only has to cover the expected cost.
        """
        while (call := self._try_reserve(model, maximum, sender, expected)) is None:
            if not self.calls_in_flight:
                raise self.limit_error()
            await self._changed.wait()
        try:
            await self._write_ahead(call.bound)
            if self._stopped is not None:
                raise self._stopped
        except BaseException:
            call.release()
            raise
        return call

    def _try_reserve(
        self, model: str, maximum: Tokens, sender: SenderKind, expected: Expected | None = None
    ) -> Reservation | None:
        if self._stopped is not None:
            raise self._stopped
        self.require_price(model)
        list_price = self.prices.dollars(model, maximum, sender=sender)
        dollars = bound = (list_price or 0.0) * self._factors[model]
        self._needed = max(self._needed, bound)
        if self.max_cost is not None:
            room = self.max_cost + _ROUNDING - self._committed
            if bound > room and expected is not None and not self.calls_in_flight and (tokens := expected()):
                dollars = (self.prices.dollars(model, tokens, sender=sender) or 0.0) * self._factors[model]
            if self._is_exceeded or dollars > room:
                return None
        self.calls_in_flight += 1
        self._in_flight += bound
        return Reservation(self, model, sender, list_price, bound)

    @asynccontextmanager
    async def call(
        self, model: str, maximum: Tokens, *, sender: SenderKind = "live", expected: Expected | None = None
    ) -> AsyncIterator[Reservation]:
        """Reserve the maximum cost of a call that is sent and settled in the block; for the arguments, see `areserve`.

        If the block fails, the reserve is released, or recorded as spent if the provider may charge for the call.
        """
        call = await self.areserve(model, maximum, sender=sender, expected=expected)
        try:
            yield call
        except BaseException as error:
            (call.forfeit if may_be_charged(error) else call.release)()
            raise

    @asynccontextmanager
    async def embedding(self, model: str, tokens: int) -> AsyncIterator[EmbeddingUsage]:
        """Reserve the cost of an embedding request, and record its actual cost when the block ends.

        The block reports the provider's token count to the object that is provided. If the provider reports no count,
        the tokens are estimated. The requests of a model that runs in this process are free and not recorded.

        Args:
            model: Name of the model, as in the settings.
            tokens: Number of tokens in the request, counted locally.

        Raises:
            BudgetExceededError: The request could exceed the limit.
            ContextualError: The run has been stopped.
        """
        if is_in_process(model):
            if self._stopped is not None:
                raise self._stopped
            yield EmbeddingUsage()
            return
        call, usage = await self.areserve(model, Tokens.maximum(tokens, 0)), EmbeddingUsage()
        try:
            yield usage
        except BaseException as error:
            if usage.is_answered:  # the answer was rejected, but is charged
                self._record_embedding(call, tokens, usage)
                await self.acommit()
            else:
                (call.forfeit if may_be_charged(error) else call.release)()
                self.actual += self.embedding_receipt(model, usage.reported)
            raise
        self._record_embedding(call, tokens, usage)
        await self.acommit()

    def _record_embedding(self, call: Reservation, tokens: int, usage: EmbeddingUsage) -> None:
        model, count = call.model, usage.tokens
        if count is not None:
            self._raise_factor(model, count / tokens if tokens else 1.0)
            call.record(self.embedding_receipt(model, count))
            return
        estimate = max(math.ceil(tokens * self._factors[model]), usage.reported)
        receipt = replace(self.embedding_receipt(model, estimate), estimated_embedding_tokens=estimate)
        self._uncertain[model] += receipt
        call.record(receipt)

    def forfeit(self, model: str, receipt: Receipt) -> None:
        """Record the maximum cost of a call whose actual cost is unknown."""
        self._uncertain[model] += receipt
        self.actual += receipt

    def close_call(self, model: str, bound: float, *, factor: float = 1.0) -> None:
        """Release the reserve of a call.

        Args:
            model: Name of the model.
            bound: The reserved amount in dollars.
            factor: Actual cost divided by the maximum cost of its tokens; later reserves for the same model are
                multiplied by it.
        """
        self.calls_in_flight -= 1
        self._in_flight = self._in_flight - bound if self.calls_in_flight else 0.0
        self._raise_factor(model, factor)
        self._notify()

    def _raise_factor(self, model: str, factor: float) -> None:
        """Multiply reserves for a model by a factor, and also the amounts recorded for calls of unknown cost."""
        growth = factor / self._factors[model] - 1.0
        if growth <= 0:
            return
        self._factors[model] = factor
        uncertain = self._uncertain[model]
        more = Receipt(
            embedding_tokens=math.ceil(growth * uncertain.embedding_tokens),
            paid=None if uncertain.paid is None else growth * uncertain.paid,
            unsettled=growth * uncertain.unsettled,
            estimated_embedding_tokens=math.ceil(growth * uncertain.estimated_embedding_tokens),
        )
        self._uncertain[model] += more
        self.actual += more

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- Limit -----------------------------------------------------------------------------------------------------

    @property
    def total(self) -> Receipt:
        """Receipt of the run, with the reserves of its batches whose replies have not been read."""
        return sum(self._batches.values(), self._heading + self.actual)

    @property
    def _committed(self) -> float:
        batches = sum(batch.unsettled for batch in self._batches.values())
        return (self.actual.dollars or 0.0) + self._in_flight + batches

    def limit_error(self) -> BudgetExceededError:
        """Refuse all further reservations and return the error for a run that has reached its limit."""
        self._is_exceeded = True
        self._notify()
        limit, committed = self.max_cost or 0.0, self._committed
        amount, unsettled = money(committed, is_estimated=self.actual.is_estimated), self.total.describe_unsettled()
        enough, higher = self._sufficient_limit(), "(`estimate` names one)"
        if (factor := max(self._factors.values(), default=1.0)) > MARGIN:
            times = f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}"
            higher = f"(about {times} times what `estimate` names, because the provider counts more tokens)"
        python = f"max_cost={enough}" if enough else f"a higher max_cost {higher}"
        command_line = f"--max-cost {enough}" if enough else f"a higher --max-cost {higher}"
        return BudgetExceededError(
            f"The cost limit of {money(limit)} is reached: {amount} is spent"
            f"{f', {unsettled},' if unsettled else ''} and the next call could exceed the limit. Nothing is published;"
            f" the ledger keeps the contexts that were paid for.",
            spent=committed,
            max_cost=limit,
            remedy=Remedy(
                f"To continue, run the same call again with {python}, or without one",
                f"To continue, run the command again with {command_line}, or without it",
            ),
        )

    def _sufficient_limit(self) -> float | None:
        """Return a limit that should be sufficient for the next run, or None if this run's calls were not estimated."""
        estimate, actual, share = self.estimated, self.actual, self.planned_share()
        if not share or not estimate.calls or estimate.dollars is None or actual.paid is None:
            return None
        embedding_dollars, to_embed = self._embedding_dollars(actual), self._embedding_dollars(estimate)
        per_call = (estimate.dollars - to_embed) / estimate.calls
        if actual.calls:
            per_call = max(per_call, (actual.paid - embedding_dollars) / actual.calls)
        # A chunk takes a second call if the first answer is unusable, and the calls without a context are made again.
        calls_per_context = min(2.0, max(1.0, actual.calls / max(1, self._contexts)))
        missing = per_call * calls_per_context * max(1.0, estimate.calls / share - self._contexts)
        missing += max(0.0, to_embed / share * self._factors[self._heading.embed_model or ""] - embedding_dollars)
        return round_up(MARGIN * missing + self._needed)

    def note_context(self) -> None:
        """Note that a call has returned a context or a refusal, so that it need not be made again."""
        self._contexts += 1

    def _embedding_dollars(self, receipt: Receipt) -> float:
        model = self._heading.embed_model
        return 0.0 if model is None else self.embedding_receipt(model, receipt.embedding_tokens).dollars or 0.0

    # ---- Batches ---------------------------------------------------------------------------------------------------

    def reserve_batch(self, file_id: str, calls: Sequence[Reservation]) -> None:
        """Keep the reserves of a batch until its replies are read, even if this run ends earlier."""
        self._batches[file_id] = sum((call.unsettled() for call in calls), Receipt())
        for call in calls:
            call.release()
        self.write()

    def close_batch(self, file_id: str, *, unread: int = 0) -> None:
        """Remove the reserve of a batch whose replies were read, both here and in the receipt of the run that sent it.

        Args:
            file_id: The provider's id for the upload.
            unread: Number of requests that may be charged although their replies will not be read; their reserve still
                counts as spent.
        """
        self._batches.pop(file_id, None)
        self.write()
        if self._receipts is not None:
            self._receipts.close_batch(file_id, unread=unread)

    def read_batch(self, file_id: str, *, paid: float, unread: int, requests: int) -> None:
        """Reduce the reserve of a batch to the amount for requests that may be charged although no reply was read.

        A request should not cost more than its reserve, so the remainder covers the unread requests. The unread
        requests always keep at least their proportional share, in case the other requests did cost more.

        Args:
            file_id: The provider's id for the upload.
            paid: Cost in dollars of the replies that have just been read.
            unread: Number of requests that may be charged.
            requests: Number of requests that the reserve covers.
        """

        def rest(booked: float) -> float:
            return max(booked - paid, booked * unread / requests)

        if (batch := self._batches.get(file_id)) is not None:
            unsettled = rest(batch.unsettled)
            self._batches[file_id] = Receipt(paid=batch.paid, unsettled_calls=unread, unsettled=unsettled)
            self.write()
        elif self._receipts is not None:
            self._receipts.read_batch(file_id, rest)

    # ---- Receipt -----------------------------------------------------------------------------------------------

    @contextmanager
    def receipted(self) -> Iterator[Account]:
        """Write the receipt when the block ends, even after an error, and add the final amount to a limit error.

        Raises:
            BudgetExceededError: The run has reached its limit.
        """
        try:
            yield self
        except BudgetExceededError as error:
            raise self.limit_error() from error.__cause__
        finally:
            if self._written is not None or self.actual != Receipt():
                self.write(ended=time.time())

    def write(self, *, ahead: float = 0.0, ended: float | None = None) -> None:
        """Commit the receipt in its current state.

        Args:
            ahead: Additional amount in dollars that may be reserved before the receipt must be written again.
            ended: Time at which the run ended, or None.
        """
        if self._receipts is None:
            return
        with self._write_lock:  # otherwise, an older state could replace a newer one
            self._write(self._receipts, ahead, ended)

    def _write(self, receipts: Receipts, ahead: float, ended: float | None) -> None:
        committed, started = self._committed + ahead, self._heading.started or time.time()
        heading = replace(self._heading, started=started, ended=ended, prices=self.prices.version)
        receipt = replace(
            heading + self.actual,
            in_flight=0.0 if ended else self._in_flight + ahead,
            batches={file_id: batch.unsettled for file_id, batch in self._batches.items()},
        )
        self._heading = replace(heading, run=receipts.write(receipt).run)
        self._written = committed

    async def acommit(self) -> None:
        """Ensure that the receipt on disk covers a call that has just been settled and cost more than its reserve."""
        await self._write_ahead(0.0)

    async def _write_ahead(self, bound: float) -> None:
        """Ensure that the receipt on disk covers the calls in flight, but write it only once for several calls."""
        if self._receipts is None:
            return
        async with self._writing:
            if self._written is None or self._committed > self._written + _ROUNDING:
                await run_to_completion(partial(self.write, ahead=_CALLS_BETWEEN_WRITES * bound))


@dataclass(frozen=True)
class Reservation:
    """Amount reserved for one call. Call exactly one of `settle`, `record`, `release` and `forfeit`, and only once.

    Attributes:
        account: Account of the run.
        model: Name of the model.
        sender: How the call is sent.
        list_price: List price of the call's maximum tokens, or None if it is unknown.
        bound: Reserved amount in dollars, which is higher than the list price if earlier calls cost more than expected.
    """

    account: Account
    model: str
    sender: SenderKind
    list_price: float | None
    bound: float

    def settle(self, tokens: Tokens) -> None:
        """Record the actual cost of an LLM call that generated a context."""
        self.record(self.account.receipt(self.model, tokens, sender=self.sender))

    def record(self, receipt: Receipt) -> None:
        """Record the actual cost of the call."""
        self.account.actual += receipt
        factor = (receipt.dollars or 0.0) / self.list_price if self.list_price else 1.0
        self.account.close_call(self.model, self.bound, factor=factor)

    def release(self) -> None:
        """Release the reserve because the call was rejected by the provider or was not sent."""
        self.account.close_call(self.model, self.bound)

    def forfeit(self) -> None:
        """Record the reserve as spent, because the call was sent and may be charged."""
        self.account.forfeit(self.model, self.unsettled())
        self.release()

    def unsettled(self) -> Receipt:
        """Return the call's maximum cost, for use while its actual cost is unknown."""
        return Receipt(paid=None if self.list_price is None else 0.0, unsettled_calls=1, unsettled=self.bound)
