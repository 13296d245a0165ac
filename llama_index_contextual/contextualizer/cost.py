"""Tokens to dollars: the prices that come with `genai-prices`, what the settings override, and our discounts.

The price table is the one inside the installed package: nothing is looked up in the network. It knows no discounts;
OpenAI and Anthropic take half for a token of a batch, OpenAI half for `service_tier="flex"` (their price pages).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Literal

from llama_index.core.llms import LLM

from llama_index_contextual.config import LOCAL, TokenPrice
from llama_index_contextual.contextualizer.prompts import MAX_CONTEXT_TOKENS, RESPONSE_FORMAT, ContextRequest
from llama_index_contextual.models import HIDDEN_TOKENS, Reasoning, provider_of
from llama_index_contextual.node_parser.tokens import count_tokens

SenderKind = Literal["live", "flex", "batch"]

FACTORS: Mapping[SenderKind, float] = {"live": 1.0, "flex": 0.5, "batch": 0.5}
"""What a call costs in proportion to the list price."""

FREE = TokenPrice(input=0.0, cached=0.0, output=0.0)

_PACKAGE = "genai-prices"
_PROVIDERS = frozenset({"openai", "anthropic"})
_MILLION = 1_000_000
# Below every tier: some models cost more where a single prompt is very long.
_SAMPLE = 1_000


@dataclass(frozen=True)
class PriceTable:
    """What models cost.

    Args:
        overrides: Prices by name of the model, as in `ProjectConfig.prices`; they precede the table.

    Example:
        >>> table = PriceTable()
        >>> round(table.dollars("openai:gpt-4.1", input_tokens=9_000, cached_tokens=8_000, output_tokens=100), 4)
        0.0068
        >>> table.dollars("openai:no-such-model", input_tokens=9_000) is None
        True
    """

    overrides: Mapping[str, TokenPrice] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Name and release of the table; the models whose price the settings give are named too."""
        own = f" and own prices for {', '.join(sorted(self.overrides))}" if self.overrides else ""
        return f"{_PACKAGE} {version(_PACKAGE)}{own}"

    def price(self, model: str) -> TokenPrice | None:
        """Return the list price of a model, or None where nobody knows it.

        Args:
            model: Name as in the settings, such as "openai:gpt-4.1" or "local".
        """
        if model in self.overrides:
            return self.overrides[model]
        return FREE if model == LOCAL else _listed(model)

    def dollars(
        self,
        model: str,
        *,
        input_tokens: int,
        cached_tokens: int = 0,
        output_tokens: int = 0,
        written_tokens: int = 0,
        sender: SenderKind = "live",
    ) -> float | None:
        """Return what tokens cost, or None where the price is not known.

        Args:
            model: Name as in the settings.
            input_tokens: Tokens of the prompts, the cached ones included.
            cached_tokens: Those of them that the provider took from its cache.
            output_tokens: Tokens of the answers.
            written_tokens: Tokens of the prompts that the provider put into its cache.
            sender: How they are sent: the discount.
        """
        price = self.price(model)
        if price is None:
            return None
        cached = price.input if price.cached is None else price.cached
        written = price.input if price.written is None else price.written
        total = (input_tokens - cached_tokens - written_tokens) * price.input + output_tokens * price.output
        total += cached_tokens * cached + written_tokens * written
        return FACTORS[sender] * total / _MILLION


def money(dollars: float | None) -> str:
    """Return an amount for a reader: in cents, or with two digits where it is less than ten.

    Example:
        >>> money(1234.5), money(0.0123), money(0.0), money(None)
        ('$1,234.50', '$0.012', '$0.00', 'an unknown price')
    """
    if dollars is None:
        return "an unknown price"
    if dollars >= 0.1 or not dollars:
        return f"${dollars:,.2f}"
    return f"${float(f'{dollars:.2g}'):.10f}".rstrip("0")


@lru_cache(maxsize=64)
def _listed(model: str) -> TokenPrice | None:
    provider, _, name = model.partition(":")
    if provider not in _PROVIDERS or not name:
        return None
    from genai_prices import Usage, calc_price

    def per_million(**tokens: int) -> float:
        found = calc_price(Usage(**tokens), model_ref=name, provider_id=provider)
        return float(found.total_price) * _MILLION / _SAMPLE

    try:
        list_price = per_million(input_tokens=_SAMPLE)
        return TokenPrice(
            input=list_price,
            cached=per_million(input_tokens=_SAMPLE, cache_read_tokens=_SAMPLE),
            output=per_million(output_tokens=_SAMPLE),
            written=_unless(list_price, per_million(input_tokens=_SAMPLE, cache_write_tokens=_SAMPLE)),
        )
    except LookupError:
        return None


def _unless(usual: float, price: float) -> float | None:
    return None if price == usual else price


CONTEXT_TOKENS = 100
"""Tokens of a context, until the ledger knows better."""

# By OpenAI's own recipe: 3 tokens a message and 3 before the answer, beside the name of the role.
_BEFORE_TEXT = 3
_CHAT_TOKENS = 7
_JSON_TOKENS = 5
_JSON_TOKENS_PER_CONTEXT = 11


@dataclass(frozen=True)
class CacheRules:
    """When a provider takes tokens from its cache.

    Attributes:
        minimum: Tokens of the shortest prefix that it keeps.
        step: Longer ones are kept in steps of so many tokens.
    """

    minimum: int
    step: int = 1

    def cached(self, shared: int) -> int:
        """Return how many of so many shared tokens come from the cache.

        Example:
            >>> CacheRules(1024, 128).cached(1_300), CacheRules(1024, 128).cached(1_023)
            (1280, 0)
        """
        if shared < self.minimum:
            return 0
        return self.minimum + (shared - self.minimum) // self.step * self.step


@dataclass(frozen=True)
class CallForm:
    """How calls to a model look to its provider.

    Attributes:
        cache: Rules of its cache, or None where there is none that a bill would show.
        sends_schema: Whether the JSON schema of an answer with several contexts is sent, which counts as input.
    """

    cache: CacheRules | None = None
    sends_schema: bool = False

    @classmethod
    def of(cls, model: str) -> CallForm:
        """Return the form of calls to a model.

        Args:
            model: Name as in the settings, such as "openai:gpt-4.1".
        """
        provider = provider_of(model)
        if provider is None or provider.cache not in ("prefix", "point"):
            return cls(None, provider is not None and provider.takes_json_schema)
        step = 128 if provider.cache == "prefix" else 1
        return cls(CacheRules(provider.min_cached_tokens, step), provider.takes_json_schema)

    def overhead(self, request: ContextRequest) -> int:
        """Return the tokens of a call beside its text."""
        return _CHAT_TOKENS + (_schema_tokens() if self.sends_schema and request.response_format else 0)

    def input_tokens(self, request: ContextRequest) -> int:
        """Return the tokens of a call's prompt as a provider counts them."""
        return self.overhead(request) + request.input_tokens

    def cached_tokens(self, first: ContextRequest, other: ContextRequest) -> int:
        """Return the tokens that a call gets from the cache once another one of its segment was answered."""
        if self.cache is None or first.prefix != other.prefix:
            return 0
        ends = (at for at, (a, b) in enumerate(zip(first.suffix, other.suffix, strict=False)) if a != b)
        common = first.suffix[: next(ends, len(first.suffix))] if self.cache.step > 1 else ""
        # The last common characters may be part of a token that goes on differently.
        more = max(0, count_tokens(common) - 1)
        return self.cache.cached(self._to_mark(other) + more)

    def written_tokens(self, request: ContextRequest, cached: int) -> int:
        """Return the tokens that a call puts into the cache: to the mark, or all, as the provider keeps them.

        Args:
            request: The call.
            cached: The tokens that it gets from the cache.
        """
        if self.cache is None:
            return 0
        kept = self._to_mark(request) if self.cache.step == 1 else self.input_tokens(request)
        return max(0, self.cache.cached(kept) - cached)

    def _to_mark(self, request: ContextRequest) -> int:
        return self.overhead(request) - _CHAT_TOKENS + _BEFORE_TEXT + request.prefix_tokens


@dataclass(frozen=True)
class Tokens:
    """Calls and their tokens.

    Attributes:
        calls: Number of calls.
        input_tokens: Tokens of the prompts, the cached ones included.
        cached_tokens: Those of them from the provider's cache.
        output_tokens: Tokens of the answers.
        written_tokens: Tokens of the prompts that were put into the provider's cache, where it counts them.
    """

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    written_tokens: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.written_tokens + other.written_tokens,
        )

    @property
    def cache_hit_rate(self) -> float:
        """Share of the input tokens that came from the cache."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0


def output_tokens(request: ContextRequest, context_tokens: float = CONTEXT_TOKENS) -> int:
    """Return the tokens of a call's answer, if a context has so many."""
    tokens = len(request.keys) * context_tokens
    if request.ids:
        tokens += _JSON_TOKENS + _JSON_TOKENS_PER_CONTEXT * len(request.keys)
    return round(tokens)


@dataclass(frozen=True)
class AnswerLimit:
    """How many tokens an answer may have, by the limit that is sent or that the user has given the model.

    Attributes:
        sent: Whether a limit of ours is sent.
        effort: The `reasoning_effort` that is sent, or None.
        hidden_tokens: Tokens of reasoning in an answer, at most; they are charged and not shown.
        own: The limit that the user has given the model, or None.
    """

    sent: bool = False
    effort: str | None = None
    hidden_tokens: int = 0
    own: int | None = None

    @classmethod
    def of(cls, model: str, llm: LLM | None = None) -> AnswerLimit:
        """Return the limit of a model's answers.

        Args:
            model: Its name as in the settings.
            llm: The object that the user has given, or None: what is set on it is never overridden.
        """
        provider = provider_of(model)
        reasoning = None if provider is None else provider.reasoning(model.partition(":")[2])
        more: dict[str, Any] = getattr(llm, "additional_kwargs", None) or {}
        own = more.get("max_completion_tokens") or more.get("max_tokens") or getattr(llm, "max_tokens", None)
        own = own if isinstance(own, int) and own > 0 else None
        if provider is None or reasoning is None or getattr(llm, "thinking_dict", None):
            return cls(own=own)
        chosen = getattr(llm, "reasoning_effort", None) or more.get("reasoning_effort")
        if chosen is not None and reasoning != Reasoning(None, 0):
            reasoning = Reasoning(None, HIDDEN_TOKENS.get(chosen, HIDDEN_TOKENS[None]))
        # Anthropic's class has a limit of 512 where its user gives none.
        if own is not None and provider.cache == "prefix":
            return cls(effort=reasoning.effort, hidden_tokens=reasoning.hidden_tokens, own=own)
        return cls(sent=True, effort=reasoning.effort, hidden_tokens=reasoning.hidden_tokens)

    def most(self, request: ContextRequest) -> int:
        """Return the tokens of an answer, at most: twice the longest contexts that are kept, and the reasoning."""
        if self.own is not None:
            return self.own
        return output_tokens(request, 2 * MAX_CONTEXT_TOKENS) + self.hidden_tokens * (1 + len(request.keys) // 8)

    @property
    def expected_hidden_tokens(self) -> int:
        """Tokens of reasoning that a call is expected to take, until the ledger knows better."""
        return self.hidden_tokens // 8


def count_segment(
    requests: Sequence[ContextRequest], form: CallForm, *, context_tokens: float = CONTEXT_TOKENS
) -> Tokens:
    """Return calls and tokens for one segment, if its first call is answered before the others are sent.

    Args:
        requests: All calls of the segment, in the order of sending.
        form: How they look to the provider.
        context_tokens: Tokens of a context.
    """
    cached = [form.cached_tokens(requests[0], request) if at else 0 for at, request in enumerate(requests)]
    return Tokens(
        calls=len(requests),
        input_tokens=sum(map(form.input_tokens, requests)),
        cached_tokens=sum(cached),
        output_tokens=sum(output_tokens(request, context_tokens) for request in requests),
        written_tokens=sum(map(form.written_tokens, requests, cached)),
    )


def rounds(calls_by_segment: Sequence[int], concurrency: int) -> int:
    """Return how many calls, one after the other, the shortest schedule has in which first calls go out alone.

    The segments with the most calls begin first. All calls take the same time.

    Example:
        >>> rounds([11] * 40, 16)  # 440 calls on 16 places, none of them idle after the first round
        28
    """
    waiting = sorted((calls for calls in calls_by_segment if calls), reverse=True)
    ready = done = 0
    while waiting or ready:
        done += 1
        # A first call opens the way for many others; none is put off while there is a place.
        begun, waiting = waiting[:concurrency], waiting[concurrency:]
        ready = max(0, ready - (concurrency - len(begun))) + sum(begun) - len(begun)
    return done


@lru_cache(maxsize=1)
def _schema_tokens() -> int:
    return count_tokens(json.dumps(RESPONSE_FORMAT["json_schema"]))
