"""Expected token counts of calls, which equal the provider's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llama_index_contextual.contextualizer.tokens import CacheRules, TokenCounter, count_segment
from tests.integration.contextualizer.segments_of import planned

MODEL = "openai:gpt-4.1"
OPENAI = TokenCounter.for_model(MODEL)


def test_the_first_call_of_a_segment_reads_nothing_from_the_cache() -> None:
    (requests, *_) = planned()
    assert count_segment(requests[:1], OPENAI).cached_tokens == 0
    assert count_segment(requests, TokenCounter()).cached_tokens == 0
    two = count_segment(requests[:2], OPENAI)
    assert two.cached_tokens % 128 == 0
    assert requests[0].prefix.tokens - 128 <= two.cached_tokens <= requests[0].prefix.tokens + 128


@pytest.mark.parametrize(("prefix", "cached"), [(0, 0), (1023, 0), (1024, 1024), (1151, 1024), (1152, 1152)])
def test_cached_prefixes_grow_in_steps(prefix: int, cached: int) -> None:
    assert CacheRules(1024, 128).cached(prefix) == cached


def test_the_form_of_calls_follows_the_provider() -> None:
    assert TokenCounter.for_model("openai:gpt-4.1") == TokenCounter(CacheRules(1024, 128), sends_limit=True)
    assert TokenCounter.for_model("anthropic:claude-sonnet-4-5").cache == CacheRules(1024, 1)
    assert TokenCounter.for_model("ScriptedLLM:x") == TokenCounter()


@pytest.mark.parametrize("model", ["ollama:llama3", "openai-like:qwen"])
def test_a_model_that_may_reason_gets_a_limit_and_much_more_room_after_it(model: str) -> None:
    form = TokenCounter.for_model(model)
    assert (form.sends_limit, form.max_tokens, form.more_tokens) == (True, 400, 8_000)
    for name in ("max_tokens", "num_predict"):
        own = TokenCounter.for_model(model, SimpleNamespace(additional_kwargs={name: 150}))  # type: ignore[arg-type]
        assert (own.sends_limit, own.max_tokens, own.more_tokens) == (False, 150, None)


def test_uncached_tokens_are_written_to_a_prefix_cache_in_steps() -> None:
    (requests, *_) = planned()
    first, *others = requests
    whole, cached = OPENAI.input_tokens(first), OPENAI.cached_tokens(first, others[0])
    assert OPENAI.written_tokens(first, 0) == whole // 128 * 128
    assert OPENAI.written_tokens(others[0], cached) == OPENAI.input_tokens(others[0]) // 128 * 128 - cached
    assert TokenCounter().written_tokens(first, 0) == 0
