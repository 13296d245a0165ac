"""What a run has spent and may spend: every call is reserved before it is sent, and settled by the provider's count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llama_index_contextual.contextualizer.batch_sender import BatchReplies
from llama_index_contextual.contextualizer.cost import (
    CONTEXT_TOKENS,
    CallForm,
    Tokens,
    most_output_tokens,
    output_tokens,
)
from llama_index_contextual.contextualizer.prices import PriceTable, SenderKind, money
from llama_index_contextual.contextualizer.requests import ContextRequest, Usage
from llama_index_contextual.errors import BudgetExceededError, ConfigurationError


@dataclass(frozen=True)
class Bill:
    """Calls, tokens and money.

    Attributes:
        contexts: Calls and tokens for contexts.
        embedding_tokens: Tokens of the texts that were embedded.
        dollars: What all of it costs at list prices, discounts included; None where a price is not known.
    """

    contexts: Tokens = field(default_factory=Tokens)
    embedding_tokens: int = 0
    dollars: float | None = 0.0

    def with_contexts(self, tokens: Tokens, dollars: float | None) -> Bill:
        """Return the bill with further calls for contexts."""
        return Bill(self.contexts + tokens, self.embedding_tokens, plus(self.dollars, dollars))

    def with_embeddings(self, tokens: int, dollars: float | None) -> Bill:
        """Return the bill with further embeddings."""
        return Bill(self.contexts, self.embedding_tokens + tokens, plus(self.dollars, dollars))


def plus(one: float | None, other: float | None) -> float | None:
    """Return the sum; None where one of both is not known."""
    return None if one is None or other is None else one + other


class Spending:
    """The money of one run.

    Args:
        prices: What models cost.
        max_cost: Dollars that must not be passed; None for no limit.
        context_tokens: Tokens that a context is expected to have.

    Attributes:
        estimated: What was to be expected of the calls that were planned.
        actual: What was paid.

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
        self, prices: PriceTable, *, max_cost: float | None = None, context_tokens: float = CONTEXT_TOKENS
    ) -> None:
        if max_cost is not None and not max_cost >= 0:
            raise ConfigurationError(f"max_cost must be an amount of dollars, not {max_cost!r}.", setting="max_cost")
        self.prices = prices
        self.max_cost = max_cost
        self.context_tokens = context_tokens
        self.estimated = Bill()
        self.actual = Bill()
        self._reserved = 0.0

    def require_price(self, model: str) -> None:
        """Refuse a limit in dollars where nobody knows the price of a model.

        Raises:
            ConfigurationError: There is a limit and no price.
        """
        if self.max_cost is not None and self.prices.price(model) is None:
            raise ConfigurationError(
                f"max_cost cannot be kept: the price of {model!r} is not known ({self.prices.version}). Give it in the"
                f' setting \'prices\', as {{"{model}": {{"input": ..., "cached": ..., "output": ...}}}} in dollars per'
                f" million tokens, or leave max_cost out.",
                setting="prices",
            )

    def expect(self, model: str, tokens: Tokens, *, sender: SenderKind = "live") -> None:
        """Add calls for contexts to what is expected."""
        self.estimated = self.estimated.with_contexts(tokens, self._dollars(model, tokens, sender))

    def expect_embeddings(self, model: str, tokens: int) -> None:
        """Add embeddings to what is expected."""
        self.estimated = self.estimated.with_embeddings(tokens, self.prices.dollars(model, input_tokens=tokens))

    def reserve(self, model: str, *, input_tokens: int, output_tokens: int, sender: SenderKind = "live") -> Reservation:
        """Put the most that a call can cost aside: all of its tokens written into the cache, the longest answer.

        Args:
            model: Name of the model, as in the settings.
            input_tokens: Tokens of the prompt.
            output_tokens: Tokens of the answer, at most.
            sender: How it is sent.

        Raises:
            BudgetExceededError: With all calls in flight, it could pass the limit.
            ConfigurationError: There is a limit, and the price is not known.
        """
        self.require_price(model)
        most = Tokens(1, input_tokens, 0, output_tokens, written_tokens=input_tokens)
        bound = self._dollars(model, most, sender) or 0.0
        spent = self.actual.dollars or 0.0
        if self.max_cost is not None and spent + self._reserved + bound > self.max_cost:
            raise BudgetExceededError(
                f"max_cost of {money(self.max_cost)} is reached: {money(spent)} are spent and the next call could pass"
                f" it. Nothing is published; the ledger keeps what was paid for. Run the same call again with a higher"
                f" max_cost, or without, to go on from there.",
                spent=spent,
                max_cost=self.max_cost,
            )
        self._reserved += bound
        return Reservation(self, model, sender, bound)

    def book(self, model: str, tokens: Tokens, *, sender: SenderKind = "live") -> None:
        """Add calls for contexts to what was paid."""
        self.actual = self.actual.with_contexts(tokens, self._dollars(model, tokens, sender))

    def _dollars(self, model: str, tokens: Tokens, sender: SenderKind) -> float | None:
        return self.prices.dollars(
            model,
            input_tokens=tokens.input_tokens,
            cached_tokens=tokens.cached_tokens,
            output_tokens=tokens.output_tokens,
            written_tokens=tokens.written_tokens,
            sender=sender,
        )

    def _close(self, bound: float) -> None:
        self._reserved -= bound


class Reservation:
    """Money put aside for one call; `settle` or `release` it once.

    Args:
        spending: Of which run.
        model: Name of the model.
        sender: How the call is sent.
        bound: Dollars, at most.
    """

    def __init__(self, spending: Spending, model: str, sender: SenderKind, bound: float) -> None:
        self._spending, self._model, self._sender, self._bound = spending, model, sender, bound

    def settle(self, tokens: Tokens) -> None:
        """Book what the call has cost."""
        self._spending._close(self._bound)
        self._spending.book(self._model, tokens, sender=self._sender)

    def settle_embeddings(self, tokens: int) -> None:
        """Book what embeddings have cost."""
        spending = self._spending
        spending._close(self._bound)
        dollars = spending.prices.dollars(self._model, input_tokens=tokens)
        spending.actual = spending.actual.with_embeddings(tokens, dollars)

    def release(self) -> None:
        """Put the money back: the call was refused, so it is not paid."""
        self._spending._close(self._bound)


class CallBudget:
    """Tells the scheduler before each call for contexts whether it may be sent, and books it.

    A reply that has come in a batch is paid for already: it is never refused, and booked once.

    Args:
        spending: Of which run.
        model: Name of the LLM, as in the settings.
        sender: How calls are sent.
        replies: What has come in batches, or None.
    """

    def __init__(
        self,
        spending: Spending,
        model: str,
        *,
        sender: SenderKind = "live",
        replies: BatchReplies | None = None,
    ) -> None:
        self._spending, self._model, self._sender, self._replies = spending, model, sender, replies
        self._form = CallForm.of(model)

    def may_send(self, request: ContextRequest) -> Callable[[Usage | None], None]:
        """Return what is to be told how the call ended; without an answer it counts as not paid.

        Raises:
            BudgetExceededError: It could pass the limit.
        """
        if self._replies is not None and self._replies.has(request):
            return self._book_reply(request, is_booked=self._replies.is_booked(request))
        call = self.reserve(request)

        def settle(usage: Usage | None) -> None:
            if usage is None:
                call.release()
            else:
                call.settle(self._tokens(request, usage))

        return settle

    def reserve(self, request: ContextRequest) -> Reservation:
        """Put aside the most that a call can cost.

        Raises:
            BudgetExceededError: It could pass the limit.
        """
        return self._spending.reserve(
            self._model,
            input_tokens=self._form.input_tokens(request),
            output_tokens=most_output_tokens(request),
            sender=self._sender,
        )

    def _book_reply(self, request: ContextRequest, *, is_booked: bool) -> Callable[[Usage | None], None]:
        def settle(usage: Usage | None) -> None:
            if usage is not None and not is_booked:
                self._spending.book(self._model, self._tokens(request, usage), sender="batch")

        return settle

    def _tokens(self, request: ContextRequest, usage: Usage) -> Tokens:
        """Return the provider's count, or our own where it gave none."""
        given, answered = usage.input_tokens, usage.output_tokens
        return Tokens(
            calls=1,
            input_tokens=self._form.input_tokens(request) if given is None else given,
            cached_tokens=usage.cached_tokens or 0,
            output_tokens=output_tokens(request) if answered is None else answered,
            written_tokens=usage.written_tokens or 0,
        )
