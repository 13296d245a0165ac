"""Prices of tokens: the table, the settings and the discounts."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from llama_index_contextual.money.price import FACTORS, Price, Prices
from llama_index_contextual.money.tokens import Tokens


def test_the_table_knows_the_list_prices_of_the_default_models() -> None:
    assert Prices().price("openai:gpt-4.1") == Price(input=2.0, cached=0.5, output=8.0)
    assert Prices().price("openai:gpt-4.1-mini") == Price(input=0.4, cached=0.1, output=1.6)
    embedding = Prices().price("openai:text-embedding-3-small")
    assert embedding is not None
    assert embedding.input == 0.02
    claude = Prices().price("anthropic:claude-haiku-4-5")
    assert claude == Price(input=1.0, cached=0.1, output=5.0, written=1.25)


def test_cached_tokens_are_part_of_the_input_tokens() -> None:
    # 1,000 fresh at $2, 8,000 cached at $0.50, 100 answered at $8, each per million.
    dollars = Prices().dollars("openai:gpt-4.1", Tokens(1, 9_000, 8_000, 100))
    assert dollars == pytest.approx(0.002 + 0.004 + 0.0008)


def test_flex_and_batch_cost_half() -> None:
    table = Prices()
    costs = {s: table.dollars("openai:gpt-4.1", Tokens(input_tokens=1_000_000), sender=s) for s in FACTORS}
    assert costs == {"live": 2.0, "flex": 1.0, "batch": 1.0}


def test_many_short_prompts_do_not_cost_as_much_as_a_long_one() -> None:
    # This model costs twice as much for a prompt above 200,000 tokens; the sum of many prompts does not count.
    dollars = Prices().dollars("anthropic:claude-sonnet-4-5", Tokens(input_tokens=10_000_000))
    assert dollars == pytest.approx(30.0)


@pytest.mark.parametrize(
    "model", ["openai:no-such", "openai-like:llama3", "openai-like:gpt-4.1", "ScriptedLLM:x", "openai:"]
)
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert Prices().price(model) is None
    assert Prices().dollars(model, Tokens(input_tokens=5)) is None


@pytest.mark.parametrize("model", ["local", "huggingface:any", "fastembed:any", "ollama:llama3.1"])
def test_a_model_of_this_process_or_of_ollama_costs_nothing_unless_a_price_is_set(model: str) -> None:
    assert Prices().dollars(model, Tokens(input_tokens=1_000_000, output_tokens=5)) == 0.0
    assert Prices({model: Price(input=2.0)}).dollars(model, Tokens(input_tokens=1_000_000)) == 2.0


def test_prices_in_the_settings_take_precedence_and_are_named() -> None:
    table = Prices({"openai:gpt-4.1": Price(input=1.0, output=4.0)})
    assert table.dollars("openai:gpt-4.1", Tokens(input_tokens=1_000_000, cached_tokens=500_000)) == 1.0
    assert table.version == f"genai-prices {version('genai-prices')} and custom prices for openai:gpt-4.1"
    assert Prices().version == f"genai-prices {version('genai-prices')}"
