"""Prices of tokens: arithmetic, discounts, and unknown prices."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from llama_index_contextual.config import TokenPrice
from llama_index_contextual.contextualizer.cost import FACTORS, PriceTable


def test_the_price_table_has_the_list_prices_of_the_default_models() -> None:
    assert PriceTable().price("openai:gpt-4.1") == TokenPrice(input=2.0, cached=0.5, output=8.0)
    assert PriceTable().price("openai:gpt-4.1-mini") == TokenPrice(input=0.4, cached=0.1, output=1.6)
    embedding = PriceTable().price("openai:text-embedding-3-small")
    assert embedding is not None
    assert embedding.input == 0.02
    claude = PriceTable().price("anthropic:claude-haiku-4-5")
    assert claude == TokenPrice(input=1.0, cached=0.1, output=5.0, written=1.25)


def test_cached_tokens_are_part_of_the_input_tokens() -> None:
    # 1,000 fresh at $2, 8,000 cached at $0.50, 100 answered at $8, each per million.
    dollars = PriceTable().dollars("openai:gpt-4.1", input_tokens=9_000, cached_tokens=8_000, output_tokens=100)
    assert dollars == pytest.approx(0.002 + 0.004 + 0.0008)


def test_flex_and_batch_cost_half() -> None:
    table = PriceTable()
    costs = {s: table.dollars("openai:gpt-4.1", input_tokens=1_000_000, sender=s) for s in FACTORS}
    assert costs == {"live": 2.0, "flex": 1.0, "batch": 1.0}


def test_many_small_calls_are_not_priced_as_a_long_prompt() -> None:
    # This model costs twice as much for a prompt above 200,000 tokens: the sum of many prompts is none.
    dollars = PriceTable().dollars("anthropic:claude-sonnet-4-5", input_tokens=10_000_000)
    assert dollars == pytest.approx(30.0)


@pytest.mark.parametrize(
    "model", ["openai:no-such", "ollama:llama3", "openai-like:gpt-4.1", "ScriptedLLM:x", "openai:"]
)
def test_an_unknown_model_has_tokens_but_no_price(model: str) -> None:
    assert PriceTable().price(model) is None
    assert PriceTable().dollars(model, input_tokens=5) is None


def test_the_local_embedding_is_free() -> None:
    assert PriceTable().dollars("local", input_tokens=1_000_000) == 0.0


def test_own_prices_precede_the_table_and_are_named() -> None:
    table = PriceTable({"openai:gpt-4.1": TokenPrice(input=1.0, output=4.0)})
    assert table.dollars("openai:gpt-4.1", input_tokens=1_000_000, cached_tokens=500_000) == 1.0
    assert table.version == f"genai-prices {version('genai-prices')} and own prices for openai:gpt-4.1"
    assert PriceTable().version == f"genai-prices {version('genai-prices')}"
