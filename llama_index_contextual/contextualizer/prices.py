"""Tokens to dollars: the prices that come with `genai-prices`, what the settings override, and our discounts.

The price table is the one inside the installed package: nothing is looked up in the network. It knows no discounts;
OpenAI and Anthropic take half for a token of a batch, OpenAI half for `service_tier="flex"` (their price pages).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Literal

from llama_index_contextual.config import LOCAL, TokenPrice

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
