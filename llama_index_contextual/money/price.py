"""Prices of models, from the table in the installed `genai-prices` package, without network access.

The settings can override them. The table contains no discounts. According to their price pages, OpenAI and Anthropic
charge half the price for batches, and OpenAI also does so for `service_tier="flex"`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from llama_index_contextual.money.tokens import Tokens


class Price(BaseModel):
    """The price of a model, in dollars per million tokens.

    Example:
        >>> Price(input=2.0, cached=0.5, output=8.0).input
        2.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    input: float = Field(ge=0)
    """Prompt tokens."""
    cached: float | None = Field(default=None, ge=0)
    """Prompt tokens read from the provider's cache; None: the same as `input`."""
    output: float = Field(default=0.0, ge=0)
    """Completion tokens."""
    written: float | None = Field(default=None, ge=0)
    """Prompt tokens written to the provider's cache; None: the same as `input`."""


SenderKind = Literal["live", "flex", "batch"]

FACTORS: Mapping[SenderKind, float] = {"live": 1.0, "flex": 0.5, "batch": 0.5}
"""Price of a call as a fraction of the list price."""

FREE = Price(input=0.0, cached=0.0, output=0.0)

IN_PROCESS = frozenset({"local", "huggingface", "fastembed"})
"""Providers whose models run in this process. Such models are free, but may have to be downloaded."""

_OWN_SERVERS = frozenset({"ollama"})
"""Providers whose models run on a server of the user's, which charges nothing for tokens."""

_PACKAGE = "genai-prices"
_PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "voyage": "voyageai"}
_MILLION = 1_000_000


@dataclass(frozen=True)
class Prices:
    """Model prices.

    Args:
        overrides: Prices by model name, as in `ProjectConfig.prices`; they take precedence over the table.

    Example:
        >>> tokens = Tokens(input_tokens=9_000, cached_tokens=8_000, output_tokens=100)
        >>> round(Prices().dollars("openai:gpt-4.1", tokens), 4)
        0.0068
        >>> Prices().dollars("openai:no-such-model", tokens) is None
        True
    """

    overrides: Mapping[str, Price] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Name and release of the table, and the models whose prices come from the settings."""
        overrides = f" and custom prices for {', '.join(sorted(self.overrides))}" if self.overrides else ""
        return f"{_PACKAGE} {version(_PACKAGE)}{overrides}"

    def price(self, model: str) -> Price | None:
        """Return the list price of a model, or None if it is unknown.

        Args:
            model: Name as in the settings, such as "openai:gpt-4.1" or "local".
        """
        if model in self.overrides:
            return self.overrides[model]
        is_free = is_in_process(model) or model.partition(":")[0] in _OWN_SERVERS
        return FREE if is_free else _list_price(model)

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
def _list_price(model: str) -> Price | None:
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
    input_rate, cached_rate, output_rate, written_rate = (None if rate is None else float(rate) for rate in base)
    return Price(input=input_rate or 0.0, cached=cached_rate, output=output_rate or 0.0, written=written_rate)


def is_in_process(model: str) -> bool:
    """Return whether a model runs in this process and costs nothing.

    Args:
        model: Name as in the settings, such as "local" or "openai:gpt-4.1".
    """
    return model.partition(":")[0] in IN_PROCESS
