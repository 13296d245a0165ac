"""Contract of the loopback provider with the real client: what it counts, caches and breaks is what it says."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support import log_check, server
from tests.support.server import LoopbackProvider

MODEL = "gpt-4o-mini"


@pytest.fixture
def provider() -> Iterator[LoopbackProvider]:
    with LoopbackProvider() as running:
        yield running


@pytest.fixture
def client(provider: LoopbackProvider) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.api_base, api_key="sk-test", max_retries=0) as opened:
        yield opened


def ask(client: openai.OpenAI, text: str, **options: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **options)


def test_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(server) == (0, 7)


def test_usage_is_honest_and_recorded_without_the_key(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.enqueue("alpha beta")
    usage = ask(client, "Hello").usage
    # Start, "user", separator, "Hello", end; start, "assistant", separator.
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (8, 2, 10)
    (record,) = provider.history
    assert (record.status, record.reply, record.usage) == (200, "alpha beta", usage.to_dict())
    assert "sk-test" not in str(record.as_dict())


@pytest.mark.parametrize(("tokens", "expected"), [(1023, 0), (1024, 1024), (1151, 1024), (1152, 1152)])
def test_repeated_prompts_are_cached_in_steps(client: openai.OpenAI, tokens: int, expected: int) -> None:
    text = "a" + " a" * (tokens - 8)
    usages = [ask(client, text, prompt_cache_key=key).usage for key in ("k", "k", "other")]
    assert [usage.prompt_tokens for usage in usages] == [tokens] * 3
    assert [usage.prompt_tokens_details.cached_tokens for usage in usages] == [0, expected, 0]


def test_calls_given_up_are_not_paid_but_charged(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.latency = 3600
    with pytest.raises(openai.APITimeoutError):
        ask(client, "Hello", timeout=0.05)
    # The client may have given up before the call arrived.
    provider.wait_until(lambda: [record.paid for record in provider.history if record.completed] == [False])
    assert len(provider.charged()) == 1


def test_log_check_agrees_on_a_mixed_log(provider: LoopbackProvider, client: openai.OpenAI, tmp_path: Path) -> None:
    system = "été\n\t  12345 <|endoftext|> " + "The report says it's 3.5% up.  " * 200
    provider.fail_randomly(0.2, seed=3, kinds=["server_error", "length", "refusal", "missing_usage", "empty"])
    for number in [*range(12), 3, 4]:
        try:
            ask(client, f"{system}<chunk>part {number}</chunk>")
        except openai.InternalServerError:
            continue
    client.embeddings.create(model="text-embedding-3-small", input=["cash", "tax " * 50])
    checked = log_check.check(provider.write_log(tmp_path / "log.jsonl"))
    assert {name: checked[name] for name in provider.totals()} == provider.totals()
    assert checked["mismatches"] == 0
    assert checked["cached_tokens"] > 0
    assert checked["repeated_prompts"] == checked["repeated_chunks"] == 2
    assert checked["calls"] > checked["paid_calls"]
