"""Costs of calls and embeddings: tokens, prices, and the account of a run, which enforces the cost limit.

Prices come from the table in the installed `genai-prices` package, without network access. The settings can override
them. The table contains no discounts. According to their price pages, OpenAI and Anthropic charge half the price for
batches, and OpenAI also does so for `service_tier="flex"`.

A `CallForm` counts the tokens of calls according to a provider's rules: tokens added by the chat format, tokens read
from and written to the cache, and the maximum length of an answer.

`Spending` is the account of a run. The maximum cost of a call is reserved before the call is sent; the actual cost,
computed from the provider's token counts, is recorded when the answer arrives. If a call was sent but not answered, its
full reserve is recorded as spent, because the provider may charge for it.
"""

from __future__ import annotations

import asyncio
import math
import operator
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any, Literal

from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual._utils.calls import may_be_charged, run_to_completion
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import TokenPrice
from llama_index_contextual.contextualizer.base import (
    MAX_CONTEXT_TOKENS,
    ChunkContext,
    Segment,
    StructuralContextualizer,
    with_context,
)
from llama_index_contextual.contextualizer.prompts import ContextRequest, Reply
from llama_index_contextual.embeddings.batching import embedding_tokens
from llama_index_contextual.embeddings.contextual import ContextualEmbedding, document_parts
from llama_index_contextual.embeddings.replies import EmbeddingUsage
from llama_index_contextual.errors import BudgetExceededError, ConfigurationError, ContextualError, Remedy
from llama_index_contextual.index.ledger import Ledger, document_keys, vector_key
from llama_index_contextual.index.receipts import Receipts, RunCost
from llama_index_contextual.models import HIDDEN_TOKENS, is_in_process, provider_of


@dataclass(frozen=True)
class Tokens:
    """Number of calls and their tokens.

    Attributes:
        calls: Number of calls.
        input_tokens: Tokens of the prompts, including cached tokens.
        cached_tokens: Prompt tokens read from the provider's cache.
        output_tokens: Tokens of the answers.
        written_tokens: Prompt tokens written to the provider's cache, if the provider reports them.
    """

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    written_tokens: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(*map(operator.add, astuple(self), astuple(other)))

    @classmethod
    def maximum(cls, input_tokens: int, output_tokens: int) -> Tokens:
        """Return the tokens to reserve for a call, assuming that its whole prompt is written to the cache."""
        return cls(1, input_tokens, 0, output_tokens, written_tokens=input_tokens)

    @property
    def cache_hit_rate(self) -> float:
        """Fraction of the input tokens that were read from the cache."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0


# ---- Prices ----------------------------------------------------------------------------------------------------------

SenderKind = Literal["live", "flex", "batch"]

FACTORS: Mapping[SenderKind, float] = {"live": 1.0, "flex": 0.5, "batch": 0.5}
"""Price of a call as a fraction of the list price."""

FREE = TokenPrice(input=0.0, cached=0.0, output=0.0)

_PACKAGE = "genai-prices"
_PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "voyage": "voyageai"}
_MILLION = 1_000_000


@dataclass(frozen=True)
class PriceTable:
    """Model prices.

    Args:
        overrides: Prices by model name, as in `ProjectConfig.prices`; they take precedence over the table.

    Example:
        >>> tokens = Tokens(input_tokens=9_000, cached_tokens=8_000, output_tokens=100)
        >>> round(PriceTable().dollars("openai:gpt-4.1", tokens), 4)
        0.0068
        >>> PriceTable().dollars("openai:no-such-model", tokens) is None
        True
    """

    overrides: Mapping[str, TokenPrice] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Name and release of the table, and the models whose prices come from the settings."""
        own = f" and custom prices for {', '.join(sorted(self.overrides))}" if self.overrides else ""
        return f"{_PACKAGE} {version(_PACKAGE)}{own}"

    def price(self, model: str) -> TokenPrice | None:
        """Return the list price of a model, or None if it is unknown.

        Args:
            model: Name as in the settings, such as "openai:gpt-4.1" or "local".
        """
        if model in self.overrides:
            return self.overrides[model]
        return FREE if is_in_process(model) else _list_price(model)

    def dollars(self, model: str, tokens: Tokens, *, sender: SenderKind = "live") -> float | None:
        """Return the price of tokens in dollars, or None if the price of the model is unknown.

        Args:
            model: Name as in the settings.
            tokens: Tokens of the calls or of the texts to embed.
            sender: How the calls are sent, which determines the discount.
        """
        price = self.price(model)
        if price is None:
            return None
        cached = price.input if price.cached is None else price.cached
        price_of_writing = price.input if price.written is None else price.written
        uncached = tokens.input_tokens - tokens.cached_tokens - tokens.written_tokens
        total = uncached * price.input + tokens.output_tokens * price.output
        total += tokens.cached_tokens * cached + tokens.written_tokens * price_of_writing
        return FACTORS[sender] * total / _MILLION


def money(dollars: float | None, *, is_estimated: bool = False) -> str:
    """Format an amount with cents, or with two significant digits if it is less than ten cents.

    Args:
        dollars: The amount, or None if it is unknown.
        is_estimated: Whether tokens in it were counted locally, because the provider did not report them.

    Example:
        >>> money(1234.5), money(0.0123), money(0.0), money(None)
        ('$1,234.50', '$0.012', '$0.00', 'an unknown price')
        >>> money(1.5, is_estimated=True)
        'about $1.50'
    """
    if dollars is None:
        return "an unknown price"
    about = "about " if is_estimated else ""
    if dollars >= 0.1 or not dollars:
        return f"{about}${dollars:,.2f}"
    return f"{about}${float(f'{dollars:.2g}'):.10f}".rstrip("0")


MARGIN = 1.5
"""Ratio of a suggested limit to the estimate.

The margin allows for longer answers, prefixes evicted from the cache, and repeated requests for unusable answers.
"""


def round_up(dollars: float) -> float:
    """Round an amount up to the number of digits that `money` shows.

    Example:
        >>> round_up(0.01231), round_up(1.231)
        (0.013, 1.24)
    """
    digits = 2 if dollars >= 0.1 or not dollars else 1 - math.floor(math.log10(dollars))
    scale = float(10**digits)
    return math.ceil(round(dollars * scale, 6)) / scale


@lru_cache(maxsize=64)
def _list_price(model: str) -> TokenPrice | None:
    """Return the list price of a model for short prompts, or None if it is unknown.

    Some models cost more per token for very long prompts.
    """
    provider, _, name = model.partition(":")
    if provider not in _PROVIDERS or not name:
        return None
    from genai_prices import Usage, calc_price
    from genai_prices.types import TieredPrices

    try:
        prices = calc_price(Usage(), model_ref=name, provider_id=_PROVIDERS[provider]).model_price
    except LookupError:
        return None
    rates = (prices.input_mtok, prices.cache_read_mtok, prices.output_mtok, prices.cache_write_mtok)
    base = (rate.base if isinstance(rate, TieredPrices) else rate for rate in rates)
    read, cached, output, written = (None if rate is None else float(rate) for rate in base)
    return TokenPrice(input=read or 0.0, cached=cached, output=output or 0.0, written=written)


# ---- LLM calls that generate contexts --------------------------------------------------------------------------------

CONTEXT_TOKENS = 100
"""Expected number of tokens in a context, without reasoning, if the ledger does not provide a mean yet."""

# According to OpenAI: 3 tokens per message, 3 before the answer, and 1 for the name of the role.
_BEFORE_TEXT = 3
_CHAT_TOKENS = 7


# For another answer after one that reached its limit; the last one for a model that may reason in the text.
_MORE = 4
_SPACIOUS = 2_000
_ROOM_TO_REASON = 8_000


@dataclass(frozen=True)
class CacheRules:
    """Rules for a provider's prompt cache.

    Attributes:
        minimum: Number of tokens in the shortest prefix that is cached.
        step: Increment of the length of a cached prefix, in tokens.
    """

    minimum: int
    step: int = 1

    def cached(self, prefix: int) -> int:
        """Return how many tokens come from the cache if the common prefix has `prefix` tokens.

        Example:
            >>> CacheRules(1024, 128).cached(1_300), CacheRules(1024, 128).cached(1_023)
            (1280, 0)
        """
        if prefix < self.minimum:
            return 0
        return self.minimum + (prefix - self.minimum) // self.step * self.step


@dataclass(frozen=True)
class CallForm:
    """Properties of calls to a model that determine their token counts.

    Attributes:
        cache: Rules for the provider's cache, or None if no cache affects the cost.
        sends_limit: Whether the maximum length of the answer is sent.
        effort: Value of `reasoning_effort` that is sent, or None.
        hidden_tokens: Maximum number of reasoning tokens in an answer, which are charged but not visible.
        user_limit: Maximum length of an answer set on the LLM by the user, or None.
        may_reason: Whether the model may reason in the text of its answers, as many local models do.
    """

    cache: CacheRules | None = None
    sends_limit: bool = False
    effort: str | None = None
    hidden_tokens: int = 0
    user_limit: int | None = None
    may_reason: bool = False

    @classmethod
    def of(cls, model: str, llm: LLM | None = None) -> CallForm:
        """Determine the properties of calls to a model.

        Args:
            model: Name as in the settings, such as "openai:gpt-4.1".
            llm: LLM passed by the user, or None; values set on the LLM are never overridden.
        """
        provider = provider_of(model)
        extra: dict[str, Any] = getattr(llm, "additional_kwargs", None) or {}
        names = ("max_completion_tokens", "max_tokens", "num_predict")
        limit = next((extra[name] for name in names if extra.get(name)), getattr(llm, "max_tokens", None))
        limit = limit if isinstance(limit, int) and limit > 0 else None
        if provider is None:
            return cls(user_limit=limit)
        step = {"prefix": 128, "point": 1}.get(provider.cache or "")
        cache = None if step is None else CacheRules(provider.min_cached_tokens, step)
        form = cls(cache, user_limit=limit)
        name = model.partition(":")[2]
        if getattr(llm, "thinking_dict", None):
            return form
        if provider.plain_models is None:
            return replace(form, sends_limit=limit is None, may_reason=True)
        # For Anthropic, the limit may not have been set by the user: LlamaIndex's class has a default of 512.
        if limit is None or provider.cache != "prefix":
            form = replace(form, sends_limit=True, user_limit=None)
        if provider.is_plain(name):
            return form
        effort = getattr(llm, "reasoning_effort", None) or extra.get("reasoning_effort")
        if effort is not None:
            return replace(form, hidden_tokens=HIDDEN_TOKENS.get(effort, HIDDEN_TOKENS[None]))
        lowest = provider.lowest_effort(name)
        return replace(form, effort=lowest, hidden_tokens=HIDDEN_TOKENS[lowest])

    def input_tokens(self, request: ContextRequest) -> int:
        """Return the number of input tokens of a call as the provider counts them."""
        return _CHAT_TOKENS + request.input_tokens

    def cached_tokens(self, first: ContextRequest, other: ContextRequest) -> int:
        """Return how many tokens `other` reads from the cache.

        Assumes that `first`, a call for the same segment, has completed before `other` is sent.
        """
        if self.cache is None or first.prefix != other.prefix:
            return 0
        ends = (at for at, (a, b) in enumerate(zip(first.suffix, other.suffix, strict=False)) if a != b)
        common = first.suffix[: next(ends, len(first.suffix))] if self.cache.step > 1 else ""
        # The last common characters may belong to a token that differs between the two prompts.
        common_tokens = max(0, count_tokens(common) - 1)
        return self.cache.cached(_BEFORE_TEXT + other.prefix.tokens + common_tokens)

    def written_tokens(self, request: ContextRequest, cached: int) -> int:
        """Return how many tokens a call writes to the cache.

        Depending on the provider, the prompt is cached completely or up to the cache point.

        Args:
            request: The call.
            cached: Number of tokens that the call reads from the cache.
        """
        if self.cache is None:
            return 0
        point = _BEFORE_TEXT + request.prefix.tokens
        length = point if self.cache.step == 1 else self.input_tokens(request)
        return max(0, self.cache.cached(length) - cached)

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens in an answer.

        This is the user's limit or, if there is none, twice the maximum length of a context plus the reasoning tokens.
        """
        return 2 * MAX_CONTEXT_TOKENS + self.hidden_tokens if self.user_limit is None else self.user_limit

    def maximum(self, request: ContextRequest) -> Tokens:
        """Return the maximum token counts of a call, whose whole prompt is assumed to be written to the cache."""
        return Tokens.maximum(self.input_tokens(request), request.answer_tokens or self.max_tokens)

    @property
    def more_tokens(self) -> int | None:
        """Maximum number of tokens for another answer after one that was too short; None if the user sets the limit."""
        spacious = _ROOM_TO_REASON if self.may_reason else _SPACIOUS
        return max(_MORE * self.max_tokens, spacious) if self.user_limit is None else None

    def tokens_of(self, request: ContextRequest, reply: Reply) -> Tokens:
        """Return the token counts reported for an answered call.

        Missing counts are computed locally, assuming that nothing was read from the cache.
        """
        usage, output = reply.usage, reply.output_tokens
        if output is None:
            output = count_tokens(reply.text) + self.hidden_tokens
        if usage.input_tokens is None:
            return Tokens.maximum(self.input_tokens(request), output)
        return Tokens(1, usage.input_tokens, usage.cached_tokens or 0, output, usage.written_tokens or 0)


def expected_context_tokens(model: str, llm: LLM | None, ledger: Ledger) -> float:
    """Return the expected number of tokens per context: the mean in the ledger or, if there is none, a default.

    The default includes reasoning tokens.

    Args:
        model: Name as in the settings.
        llm: LLM passed by the user, or None.
        ledger: Store of contexts that have already been paid for.
    """
    mean = ledger.mean_context_tokens(model)
    return mean or CONTEXT_TOKENS + CallForm.of(model, llm).hidden_tokens // 8


def count_segment(
    requests: Sequence[ContextRequest], form: CallForm, *, context_tokens: float = CONTEXT_TOKENS
) -> Tokens:
    """Return the number of calls and tokens for a segment, whose first call is answered before the others are sent.

    Args:
        requests: All calls for the segment, in the order in which they are sent.
        form: Properties of the calls.
        context_tokens: Expected number of tokens in a context.
    """
    cached = [form.cached_tokens(requests[0], request) if at else 0 for at, request in enumerate(requests)]
    return Tokens(
        calls=len(requests),
        input_tokens=sum(map(form.input_tokens, requests)),
        cached_tokens=sum(cached),
        output_tokens=len(requests) * round(context_tokens),
        written_tokens=sum(map(form.written_tokens, requests, cached)),
    )


# ---- Run account -----------------------------------------------------------------------------------------------------

Expected = Callable[[], Tokens | None]

_CALLS_BETWEEN_WRITES = 8
_ROUNDING = 1e-12
_UNSETTLED = "timed out, interrupted or not read from a batch"


@dataclass(frozen=True)
class Bill:
    """Calls and tokens, with their cost.

    Attributes:
        contexts: LLM calls that generate contexts, and their tokens.
        embedding_tokens: Tokens of embedded texts.
        dollars: Total cost at list prices, including discounts; None if a price is unknown.
        unsettled_calls: Number of calls that may be charged but whose cost is unknown, because they timed out or were
            interrupted, or because their reply in a batch was not read.
        unsettled_dollars: Maximum cost of these calls, which is included in `dollars`.
        estimated_calls: Number of calls in `contexts` whose tokens were counted locally, because the provider did not
            report them.
        estimated_embedding_tokens: Number of embedded tokens that were counted locally for the same reason.
    """

    contexts: Tokens = field(default_factory=Tokens)
    embedding_tokens: int = 0
    dollars: float | None = 0.0
    unsettled_calls: int = 0
    unsettled_dollars: float = 0.0
    estimated_calls: int = 0
    estimated_embedding_tokens: int = 0

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            self.contexts + other.contexts,
            self.embedding_tokens + other.embedding_tokens,
            None if self.dollars is None or other.dollars is None else self.dollars + other.dollars,
            self.unsettled_calls + other.unsettled_calls,
            self.unsettled_dollars + other.unsettled_dollars,
            self.estimated_calls + other.estimated_calls,
            self.estimated_embedding_tokens + other.estimated_embedding_tokens,
        )

    @property
    def is_estimated(self) -> bool:
        """Whether some tokens were counted locally, because the provider did not report them."""
        return bool(self.estimated_calls or self.estimated_embedding_tokens)

    def describe_estimated(self) -> str:
        """Describe the tokens that were counted locally; return an empty string if there are none."""
        parts = []
        if self.estimated_calls:
            parts.append(f"the tokens of {pluralize(self.estimated_calls, 'call')}")
        if self.estimated_embedding_tokens:
            parts.append(pluralize(self.estimated_embedding_tokens, "embedded token"))
        return f"estimated: the provider did not report {' and '.join(parts)}" if parts else ""

    def describe_unsettled(self) -> str:
        """Describe the calls whose cost is unknown; return an empty string if there are none."""
        if not self.unsettled_calls:
            return ""
        calls = pluralize(self.unsettled_calls, "call")
        if self.dollars is None:
            return f"{calls} more {_UNSETTLED}"
        return f"of which {money(self.unsettled_dollars)} for {calls} of unknown cost ({_UNSETTLED})"


class Spending:
    """Account of the costs of one run.

    Args:
        prices: Model prices.
        max_cost: Limit in dollars; None for no limit.
        context_tokens: Expected number of tokens in a context.
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
        >>> spending = Spending(PriceTable(), max_cost=1.0)
        >>> call = spending.reserve("openai:gpt-4.1", Tokens.maximum(9_000, 200))
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
        if max_cost is not None and not (isinstance(max_cost, int | float) and max_cost >= 0):
            raise ConfigurationError(
                f"The cost limit must be an amount of dollars, not {max_cost!r}.", setting="max_cost"
            )
        self.prices = prices
        self.max_cost = max_cost
        self.context_tokens = context_tokens
        self.estimated = Bill()
        self.actual = Bill()
        self.planned_share: Callable[[], float] = float
        self._receipts, self._receipt = receipts, receipt or RunCost()
        self.calls_in_flight = 0
        self._in_flight = 0.0
        self._batches: dict[str, Bill] = {}
        self._stopped: ContextualError | None = None
        self._factors: defaultdict[str, float] = defaultdict(lambda: 1.0)
        self._uncertain: defaultdict[str, Bill] = defaultdict(Bill)
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

    def bill(self, model: str, tokens: Tokens, *, sender: SenderKind = "live") -> Bill:
        """Return the cost of the LLM calls that generate contexts."""
        return Bill(contexts=tokens, dollars=self.prices.dollars(model, tokens, sender=sender))

    def embedding_bill(self, model: str, tokens: int) -> Bill:
        """Return the cost of the embeddings."""
        return Bill(embedding_tokens=tokens, dollars=self.prices.dollars(model, Tokens(input_tokens=tokens)))

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
        needed = bound = (list_price or 0.0) * self._factors[model]
        self._needed = max(self._needed, bound)
        if self.max_cost is not None:
            room = self.max_cost + _ROUNDING - self._committed
            if bound > room and expected is not None and not self.calls_in_flight and (tokens := expected()):
                needed = (self.prices.dollars(model, tokens, sender=sender) or 0.0) * self._factors[model]
            if self._is_exceeded or needed > room:
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
        the tokens are estimated.

        Args:
            model: Name of the model, as in the settings.
            tokens: Number of tokens in the request, counted locally.

        Raises:
            BudgetExceededError: The request could exceed the limit.
        """
        call, usage = await self.areserve(model, Tokens.maximum(tokens, 0)), EmbeddingUsage()
        try:
            yield usage
        except BaseException as error:
            if usage.is_answered:  # the answer was rejected, but is charged
                self._book_embedding(call, tokens, usage)
                await self.acommit()
            else:
                (call.forfeit if may_be_charged(error) else call.release)()
                self.actual += self.embedding_bill(model, usage.reported)
            raise
        self._book_embedding(call, tokens, usage)
        await self.acommit()

    def _book_embedding(self, call: Reservation, tokens: int, usage: EmbeddingUsage) -> None:
        model, reported = call.model, usage.tokens
        if reported is not None:
            self._raise_factor(model, reported / tokens if tokens else 1.0)
            call.book(self.embedding_bill(model, reported))
            return
        estimate = max(math.ceil(tokens * self._factors[model]), usage.reported)
        bill = replace(self.embedding_bill(model, estimate), estimated_embedding_tokens=estimate)
        self._uncertain[model] += bill
        call.book(bill)

    @asynccontextmanager
    async def free_call(self, _tokens: int) -> AsyncIterator[EmbeddingUsage]:
        """Allow a free request, unless the run has been stopped; in that case, raise the error that stopped it."""
        if self._stopped is not None:
            raise self._stopped
        yield EmbeddingUsage()

    def forfeit(self, model: str, bill: Bill) -> None:
        """Record the maximum cost of a call whose actual cost is unknown."""
        self._uncertain[model] += bill
        self.actual += bill

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
        more = Bill(
            embedding_tokens=math.ceil(growth * uncertain.embedding_tokens),
            dollars=None if uncertain.dollars is None else growth * uncertain.dollars,
            unsettled_dollars=growth * uncertain.unsettled_dollars,
            estimated_embedding_tokens=math.ceil(growth * uncertain.estimated_embedding_tokens),
        )
        self._uncertain[model] += more
        self.actual += more

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- Limit -----------------------------------------------------------------------------------------------------

    @property
    def booked(self) -> Bill:
        """Amount paid, plus the reserves of this run's batches whose replies have not been read."""
        return sum(self._batches.values(), self.actual)

    @property
    def _committed(self) -> float:
        batches = sum(batch.unsettled_dollars for batch in self._batches.values())
        return (self.actual.dollars or 0.0) + self._in_flight + batches

    def limit_error(self) -> BudgetExceededError:
        """Refuse all further reservations and return the error for a run that has reached its limit."""
        self._is_exceeded = True
        self._notify()
        limit, spent = self.max_cost or 0.0, self._committed
        total, unsettled = money(spent, is_estimated=self.actual.is_estimated), self.booked.describe_unsettled()
        enough, higher = self._sufficient_limit(), "(`estimate` names one)"
        if (factor := max(self._factors.values(), default=1.0)) > MARGIN:
            times = f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}"
            higher = f"(about {times} times what `estimate` names, because the provider counts more tokens)"
        python = f"max_cost={enough}" if enough else f"a higher max_cost {higher}"
        command_line = f"--max-cost {enough}" if enough else f"a higher --max-cost {higher}"
        return BudgetExceededError(
            f"The cost limit of {money(limit)} is reached: {total} is spent"
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
        """Return a limit that should be sufficient for the next run, or None if this run's calls were not estimated."""
        planned, paid, share = self.estimated, self.actual, self.planned_share()
        if not share or not planned.contexts.calls or planned.dollars is None or paid.dollars is None:
            return None
        embedded, to_embed = self._embedding_dollars(paid), self._embedding_dollars(planned)
        per_call = (planned.dollars - to_embed) / planned.contexts.calls
        if paid.contexts.calls:
            per_call = max(per_call, (paid.dollars - embedded - paid.unsettled_dollars) / paid.contexts.calls)
        # A chunk takes a second call if the first answer is unusable, and the calls without a context are made again.
        calls_per_context = min(2.0, max(1.0, paid.contexts.calls / max(1, self._contexts)))
        missing = per_call * calls_per_context * max(1.0, planned.contexts.calls / share - self._contexts)
        missing += max(0.0, to_embed / share * self._factors[self._receipt.embed_model or ""] - embedded)
        return round_up(MARGIN * missing + self._needed)

    def note_context(self) -> None:
        """Note that a call has returned a context or a refusal, so that it need not be made again."""
        self._contexts += 1

    def _embedding_dollars(self, bill: Bill) -> float:
        model = self._receipt.embed_model
        return 0.0 if model is None else self.embedding_bill(model, bill.embedding_tokens).dollars or 0.0

    # ---- Batches ---------------------------------------------------------------------------------------------------

    def reserve_batch(self, file_id: str, calls: Sequence[Reservation]) -> None:
        """Keep the reserves of a batch until its replies are read, even if this run ends earlier."""
        self._batches[file_id] = sum((call.unsettled() for call in calls), Bill())
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
            dollars = rest(batch.unsettled_dollars)
            known = None if batch.dollars is None else dollars
            self._batches[file_id] = Bill(dollars=known, unsettled_calls=unread, unsettled_dollars=dollars)
            self.write()
        elif self._receipts is not None:
            self._receipts.read_batch(file_id, rest)

    # ---- Receipt -----------------------------------------------------------------------------------------------

    @contextmanager
    def receipted(self) -> Iterator[Spending]:
        """Write the receipt when the block ends, even after an error, and add the final amount to a limit error.

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
            ahead: Additional amount in dollars that may be reserved before the receipt must be written again.
            ended: Time at which the run ended, or None.
        """
        if self._receipts is None:
            return
        with self._write_lock:  # otherwise, an older state could replace a newer one
            self._write(self._receipts, ahead, ended)

    def _write(self, receipts: Receipts, ahead: float, ended: float | None) -> None:
        covered, bill = self._committed + ahead, self.actual
        receipt = replace(
            self._receipt,
            started=self._receipt.started or time.time(),
            ended=ended,
            calls=bill.contexts.calls,
            input_tokens=bill.contexts.input_tokens,
            cached_tokens=bill.contexts.cached_tokens,
            output_tokens=bill.contexts.output_tokens,
            embedding_tokens=bill.embedding_tokens,
            estimated_calls=bill.estimated_calls,
            estimated_embedding_tokens=bill.estimated_embedding_tokens,
            paid=None if bill.dollars is None else bill.dollars - bill.unsettled_dollars,
            unsettled_calls=bill.unsettled_calls,
            unsettled=bill.unsettled_dollars,
            in_flight=0.0 if ended else self._in_flight + ahead,
            batches={file_id: batch.unsettled_dollars for file_id, batch in self._batches.items()},
            prices=self.prices.version,
        )
        self._receipt = receipts.write(receipt)
        self._written = covered

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
    """Amount reserved for one call. Call exactly one of `settle`, `book`, `release` and `forfeit`, and only once.

    Attributes:
        spending: Account of the run.
        model: Name of the model.
        sender: How the call is sent.
        list_price: List price of the call's maximum tokens, or None if it is unknown.
        bound: Reserved amount in dollars, which is higher than the list price if earlier calls cost more than expected.
    """

    spending: Spending
    model: str
    sender: SenderKind
    list_price: float | None
    bound: float

    def settle(self, tokens: Tokens, *, is_estimated: bool = False) -> None:
        """Record the actual cost of an LLM call that generated a context.

        Args:
            tokens: Token counts of the call.
            is_estimated: Whether some of them were counted locally.
        """
        bill = self.spending.bill(self.model, tokens, sender=self.sender)
        self.book(replace(bill, estimated_calls=1) if is_estimated else bill)

    def book(self, bill: Bill) -> None:
        """Record the actual cost of the call."""
        self.spending.actual += bill
        factor = (bill.dollars or 0.0) / self.list_price if self.list_price else 1.0
        self.spending.close_call(self.model, self.bound, factor=factor)

    def release(self) -> None:
        """Release the reserve because the call was rejected by the provider or was not sent."""
        self.spending.close_call(self.model, self.bound)

    def forfeit(self) -> None:
        """Record the reserve as spent, because the call was sent and may be charged."""
        self.spending.forfeit(self.model, self.unsettled())
        self.release()

    def unsettled(self) -> Bill:
        """Return the call's maximum cost as a bill, for use while its actual cost is unknown."""
        dollars = None if self.list_price is None else self.bound
        return Bill(dollars=dollars, unsettled_calls=1, unsettled_dollars=self.bound)


# ---- Embeddings ------------------------------------------------------------------------------------------------------


@dataclass
class EmbeddingCount:
    """Counter of the tokens to embed.

    Attributes:
        model: Name of the embedding model, or None if there is none.
        dimensions: Requested length of the vectors, or None for the model's default.
        ledger: Store of vectors that have already been paid for, or None.
        contextual: The embedding model if it embeds the chunks of a document together, or None.
        tokens: Number of tokens in the texts to embed.
    """

    model: str | None
    dimensions: int | None
    ledger: Ledger | None
    contextual: ContextualEmbedding | None = None
    tokens: int = 0
    _document: list[tuple[BaseNode, float]] = field(default_factory=list)

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Add a document's chunks, which already contain their contexts."""
        self._document += [(node, 0.0) for node in nodes]

    def add_segment(
        self,
        segment: Segment,
        chunks: Sequence[BaseNode],
        contexts: Mapping[str, str],
        context_tokens: float,
        *,
        structural: StructuralContextualizer | None = None,
    ) -> None:
        """Add the chunks of a segment.

        Args:
            segment: The segment.
            chunks: Chunks of the segment whose contexts have not been written yet.
            contexts: Contexts from the ledger, by node id.
            context_tokens: Expected number of tokens in a context.
            structural: Contextualizer for the structural lines before the contexts, or None if there are no such lines.
        """
        if self.model is None:
            return
        missing = {chunk.node_id for chunk in chunks}
        of_llm = [chunk for chunk in segment.chunks if chunk.node_id in missing or chunk.node_id in contexts]
        written = [ChunkContext(contexts.get(chunk.node_id, ""), "llm") for chunk in of_llm]
        if structural is not None:
            written = structural.add_structure(segment, of_llm, written)
        by_id = {chunk.node_id: context for chunk, context in zip(of_llm, written, strict=True)}
        self._document += [
            (with_context(node, by_id.get(node.node_id)), context_tokens if node.node_id in missing else 0.0)
            for node in segment.chunks
        ]

    def end_document(self) -> None:
        """Count the chunks added since the previous document, except those whose vectors are in the ledger.

        If chunks are embedded together and any of their vectors is missing, all of them are counted.
        """
        document, self._document = self._document, []
        if self.model is None:
            return
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node, _ in document]
        if self.contextual is None:
            parts = [[at] for at in range(len(document))]
            keys = [[vector_key(text, self.model, self.dimensions)] for text in texts]
        else:
            parts = document_parts(self.contextual, [node for node, _ in document], texts)
            keys = [document_keys([texts[at] for at in part], self.model, self.contextual.dimensions) for part in parts]
        known = {} if self.ledger is None else self.ledger.vectors([key for of_part in keys for key in of_part])
        for part, of_part in zip(parts, keys, strict=True):
            expected = sum(document[at][1] for at in part)
            if expected or not known.keys() >= {*of_part}:
                self.tokens += sum(embedding_tokens(texts[at]) for at in part) + round(expected)
