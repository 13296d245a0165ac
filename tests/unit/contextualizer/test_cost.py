"""Prices of tokens, and expected token counts, which equal the provider's."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from llama_index_contextual.config import TokenPrice
from llama_index_contextual.contextualizer.cost import (
    FACTORS,
    CacheRules,
    CallForm,
    PriceTable,
    Tokens,
    count_segment,
    output_tokens,
    rounds,
)
from tests.integration.contextualizer.segments_of import planned

MODEL = "openai:gpt-4.1"
OPENAI = CallForm.of(MODEL)

# ---- Prices ----------------------------------------------------------------------------------------------------------


def test_the_table_knows_the_list_prices_of_the_default_models() -> None:
    assert PriceTable().price("openai:gpt-4.1") == TokenPrice(input=2.0, cached=0.5, output=8.0)
    assert PriceTable().price("openai:gpt-4.1-mini") == TokenPrice(input=0.4, cached=0.1, output=1.6)
    embedding = PriceTable().price("openai:text-embedding-3-small")
    assert embedding is not None
    assert embedding.input == 0.02
    claude = PriceTable().price("anthropic:claude-haiku-4-5")
    assert claude == TokenPrice(input=1.0, cached=0.1, output=5.0, written=1.25)


def test_cached_tokens_are_part_of_the_input_tokens() -> None:
    # 1,000 fresh at $2, 8,000 cached at $0.50, 100 answered at $8, each per million.
    dollars = PriceTable().dollars("openai:gpt-4.1", Tokens(1, 9_000, 8_000, 100))
    assert dollars == pytest.approx(0.002 + 0.004 + 0.0008)


def test_flex_and_batch_cost_half() -> None:
    table = PriceTable()
    costs = {s: table.dollars("openai:gpt-4.1", Tokens(input_tokens=1_000_000), sender=s) for s in FACTORS}
    assert costs == {"live": 2.0, "flex": 1.0, "batch": 1.0}


def test_many_short_prompts_do_not_cost_as_much_as_a_long_one() -> None:
    # This model costs twice as much for a prompt above 200,000 tokens; the sum of many prompts does not count.
    dollars = PriceTable().dollars("anthropic:claude-sonnet-4-5", Tokens(input_tokens=10_000_000))
    assert dollars == pytest.approx(30.0)


@pytest.mark.parametrize(
    "model", ["openai:no-such", "ollama:llama3", "openai-like:gpt-4.1", "ScriptedLLM:x", "openai:"]
)
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert PriceTable().price(model) is None
    assert PriceTable().dollars(model, Tokens(input_tokens=5)) is None


def test_prices_in_the_settings_take_precedence_and_are_named() -> None:
    table = PriceTable({"openai:gpt-4.1": TokenPrice(input=1.0, output=4.0)})
    assert table.dollars("openai:gpt-4.1", Tokens(input_tokens=1_000_000, cached_tokens=500_000)) == 1.0
    assert table.version == f"genai-prices {version('genai-prices')} and custom prices for openai:gpt-4.1"
    assert PriceTable().version == f"genai-prices {version('genai-prices')}"


# ---- Tokens ----------------------------------------------------------------------------------------------------------


def test_the_first_call_of_a_segment_reads_nothing_from_the_cache() -> None:
    (requests, *_) = planned(1)
    assert count_segment(requests[:1], OPENAI).cached_tokens == 0
    assert count_segment(requests, CallForm()).cached_tokens == 0
    two = count_segment(requests[:2], OPENAI)
    assert two.cached_tokens % 128 == 0
    assert requests[0].prefix_tokens - 128 <= two.cached_tokens <= requests[0].prefix_tokens + 128


@pytest.mark.parametrize(("prefix", "cached"), [(0, 0), (1023, 0), (1024, 1024), (1151, 1024), (1152, 1152)])
def test_cached_prefixes_grow_in_steps(prefix: int, cached: int) -> None:
    assert CacheRules(1024, 128).cached(prefix) == cached


def test_answers_grow_with_the_number_of_chunks_per_call() -> None:
    one, several = planned(1)[0][0], planned("all")[0][0]
    assert output_tokens(one) == 100
    assert output_tokens(one, 40) == 40
    assert output_tokens(several) == len(several.keys) * 111 + 5
    assert OPENAI.input_tokens(several) > CallForm().input_tokens(several) > several.input_tokens


def test_the_form_of_calls_follows_the_provider() -> None:
    assert CallForm.of("openai:gpt-4.1") == CallForm(CacheRules(1024, 128), sends_schema=True)
    assert CallForm.of("anthropic:claude-sonnet-4-5").cache == CacheRules(1024, 1)
    assert CallForm.of("ollama:llama3") == CallForm.of("ScriptedLLM:x") == CallForm()


@pytest.mark.parametrize(
    ("calls", "concurrency", "expected"),
    [([], 4, 0), ([1], 4, 1), ([11], 4, 4), ([11], 100, 2), ([3, 3], 1, 6), ([1, 1, 1], 2, 2), ([11] * 40, 16, 28)],
)
def test_schedules_computed_by_hand(calls: list[int], concurrency: int, expected: int) -> None:
    assert rounds(calls, concurrency) == expected


def test_uncached_tokens_are_written_to_a_prefix_cache_in_steps() -> None:
    (requests, *_) = planned(1)
    first, *others = requests
    whole, cached = OPENAI.input_tokens(first), OPENAI.cached_tokens(first, others[0])
    assert OPENAI.written_tokens(first, 0) == whole // 128 * 128
    assert OPENAI.written_tokens(others[0], cached) == OPENAI.input_tokens(others[0]) // 128 * 128 - cached
    assert CallForm().written_tokens(first, 0) == 0
