"""The account of a run: reserves before calls, receipts after them, and the limit."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.contextualizer.prompts import Reply
from llama_index_contextual.contextualizer.tokens import TokenCounter, count_segment
from llama_index_contextual.errors import BudgetExceededError, ConfigurationError
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import Price, Prices
from llama_index_contextual.money.receipt import Receipt
from llama_index_contextual.money.tokens import Tokens, Usage
from tests.integration.contextualizer.segments_of import planned

MODEL = "openai:gpt-4.1"
OPENAI = TokenCounter.for_model(MODEL)


def test_the_receipt_follows_the_token_counts_of_the_provider() -> None:
    account = Account(Prices())
    call = account.reserve(MODEL, Tokens.maximum(10_000, 1_000))
    call.settle(Tokens(1, 10_000, 8_000, 100))
    account.reserve(MODEL, Tokens.maximum(10_000, 1_000), sender="batch").settle(Tokens(1, 10_000, 0, 100))
    embedding = "openai:text-embedding-3-small"
    account.reserve(embedding, Tokens.maximum(900, 0)).record(account.embedding_receipt(embedding, 1_000))
    # (2,000 × $2 + 8,000 × $0.5 + 100 × $8) + half of (10,000 × $2 + 100 × $8) + 1,000 × $0.02, per million
    assert account.actual.dollars == pytest.approx((8_800 + 10_400 + 20) / 1e6)
    assert account.actual.contexts == Tokens(2, 20_000, 8_000, 200)
    assert account.actual.embedding_tokens == 1_000
    assert account.actual.contexts.cache_hit_rate == 0.4


def test_the_first_call_of_a_segment_pays_for_writing_to_the_cache() -> None:
    model = "anthropic:claude-sonnet-4-0"  # $3 for a million tokens, $3.75 written, $0.30 cached, $15 answered
    form, (requests, *_) = TokenCounter.for_model(model), planned()
    tokens = count_segment(requests, form)
    prefix = requests[0].prefix.tokens + 3
    assert (tokens.written_tokens, tokens.cached_tokens) == (prefix, prefix * (len(requests) - 1))
    fresh = tokens.input_tokens - tokens.written_tokens - tokens.cached_tokens
    expected = fresh * 3 + tokens.written_tokens * 3.75 + tokens.cached_tokens * 0.3 + tokens.output_tokens * 15
    account = Account(Prices())
    assert account.receipt(model, tokens).dollars == pytest.approx(expected / 1e6)
    reply = Reply("A context of the passage in its text, as long as it has to be here.", Usage(10_000, 0, 100, 9_000))
    account.reserve(model, form.maximum(requests[0])).settle(form.tokens_of(requests[0], reply))
    assert account.actual.dollars == pytest.approx((1_000 * 3 + 9_000 * 3.75 + 100 * 15) / 1e6)


def test_the_reserve_assumes_that_the_whole_prompt_is_written_to_the_cache() -> None:
    account = Account(Prices({MODEL: Price(input=2.0, written=2.5)}), max_cost=0.0249)
    with pytest.raises(BudgetExceededError):
        account.reserve(MODEL, Tokens.maximum(10_000, 0))


def test_calls_in_flight_count_with_their_maximum_cost() -> None:
    # A call may cost $0.02: two fit into $0.05, the third could exceed it.
    account = Account(Prices({MODEL: Price(input=2.0, output=0.0)}), max_cost=0.05)
    first = account.reserve(MODEL, Tokens.maximum(10_000, 0))
    second = account.reserve(MODEL, Tokens.maximum(10_000, 0))
    with pytest.raises(BudgetExceededError, match=r"cost limit of \$0\.05 is reached: \$0\.04 is spent") as raised:
        account.reserve(MODEL, Tokens.maximum(10_000, 0))
    assert (raised.value.spent, raised.value.max_cost) == (0.04, 0.05)
    first.settle(Tokens(1, 5_000, 0, 0))
    second.release()
    assert account.actual.dollars == pytest.approx(0.01)
    with pytest.raises(BudgetExceededError) as again:
        account.reserve(MODEL, Tokens.maximum(1, 0))
    assert again.value.spent == pytest.approx(0.01), "a run that has reached its limit sends nothing more"


async def test_a_call_waits_for_reserves_of_calls_in_flight_before_the_run_stops() -> None:
    # A call may cost $0.02 and costs $0.005: ten of them fit into $0.065, though only three at the same time.
    account = Account(Prices({MODEL: Price(input=2.0, cached=0.5, output=0.0)}), max_cost=0.065)
    most = 0

    async def call() -> None:
        nonlocal most
        reservation = await account.areserve(MODEL, Tokens.maximum(10_000, 0))
        most = max(most, account.calls_in_flight)
        for _ in range(5):
            await asyncio.sleep(0)
        reservation.settle(Tokens(1, 10_000, 10_000, 0))

    await asyncio.gather(*(call() for _ in range(10)))
    assert most == 3
    assert account.actual.dollars == pytest.approx(0.05)
    with pytest.raises(BudgetExceededError) as raised:
        await account.areserve(MODEL, Tokens.maximum(10_000, 0))
    assert raised.value.spent == pytest.approx(0.05)


async def test_all_waiting_calls_raise_when_the_limit_is_reached() -> None:
    account = Account(Prices({MODEL: Price(input=2.0)}), max_cost=0.02)
    first = await account.areserve(MODEL, Tokens.maximum(10_000, 0))
    waiting = [asyncio.create_task(account.areserve(MODEL, Tokens.maximum(9_000, 0))) for _ in range(5)]
    await asyncio.sleep(0)
    first.settle(Tokens(1, 10_000, 0, 0))
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert [type(error) for error in found] == [BudgetExceededError] * 5
    assert {error.spent for error in found if isinstance(error, BudgetExceededError)} == {0.02}


def test_a_call_that_may_have_been_charged_stays_booked_at_its_reserve() -> None:
    account = Account(Prices({MODEL: Price(input=2.0)}), max_cost=0.03)
    account.reserve(MODEL, Tokens.maximum(10_000, 0)).forfeit()
    assert account.actual == Receipt(unsettled_calls=1, unsettled=0.02)
    with pytest.raises(BudgetExceededError, match=r"\$0\.02 is spent, of which \$0\.02 for 1 call of unknown cost"):
        account.reserve(MODEL, Tokens.maximum(10_000, 0))
    free = Account(Prices())
    free.reserve("openai-like:llama3", Tokens.maximum(100, 10)).forfeit()
    assert (free.actual.unsettled_calls, free.actual.dollars) == (1, None)


def test_concurrent_calls_that_cost_more_than_their_reserves_raise_the_next_reserves_once() -> None:
    account = Account(Prices({MODEL: Price(input=2.0)}), max_cost=100.0)
    calls = [account.reserve(MODEL, Tokens.maximum(10_000, 0)) for _ in range(8)]
    for call in calls:
        call.settle(Tokens(1, 500_000, 0, 0))
    assert account.reserve(MODEL, Tokens.maximum(10_000, 0)).bound == pytest.approx(1.0)
    with pytest.raises(BudgetExceededError, match="about 50 times what `estimate` names"):
        account.reserve(MODEL, Tokens.maximum(1_000_000, 0))


async def test_the_last_call_is_sent_if_its_expected_cost_is_within_the_limit() -> None:
    account = Account(Prices({MODEL: Price(input=2.0, cached=0.5)}), max_cost=0.012)
    expected = Tokens(1, 10_000, 10_000, 0)
    call = await account.areserve(MODEL, Tokens.maximum(10_000, 0), expected=lambda: expected)
    waiting = asyncio.create_task(account.areserve(MODEL, Tokens.maximum(10_000, 0), expected=lambda: expected))
    await asyncio.sleep(0)
    assert not waiting.done(), "one at a time"
    call.settle(expected)
    (await waiting).settle(expected)
    with pytest.raises(BudgetExceededError):
        await account.areserve(MODEL, Tokens.maximum(10_000, 0), expected=lambda: expected)


def test_missing_token_counts_are_marked_and_the_most_expensive_cache_use_is_assumed() -> None:
    (requests, *_) = planned()
    text = "word " * 30
    for usage in (Usage(), Usage(None, 50, 9), Usage(900, 800, None), Usage(900, 800, 0)):
        assert not Reply(text, usage).is_counted
        tokens = OPENAI.tokens_of(requests[0], Reply(text, usage))
        if usage.input_tokens is None:
            assert tokens.cached_tokens == 0
            assert tokens.written_tokens == tokens.input_tokens == OPENAI.input_tokens(requests[0])
        assert tokens.output_tokens >= (9 if usage.output_tokens else 30)
    assert Reply(text, Usage(900, 0, 30)).is_counted
    assert Reply("", Usage(900, 0, 0)).is_counted
    account = Account(Prices())
    account.reserve(MODEL, OPENAI.maximum(requests[0])).settle(Tokens(1, 900, 0, 30, estimated_calls=1))
    account.reserve(MODEL, OPENAI.maximum(requests[0])).settle(Tokens(1, 900, 0, 30))
    assert (account.actual.contexts.calls, account.actual.estimated_calls) == (2, 1)
    assert account.actual.describe_estimated() == "estimated: the provider did not report the tokens of 1 call"


async def test_the_receipt_on_disk_covers_a_call_that_cost_more_than_its_reserve() -> None:
    with closing(Ledger(None)) as ledger:
        account = Account(Prices({MODEL: Price(input=2.0)}), receipts=ledger.receipts)
        async with account.call(MODEL, Tokens.maximum(1_000, 0)) as call:
            pass
        call.settle(Tokens(1, 500_000, 0, 0))
        await account.acommit()
        assert ledger.receipts.cost().dollars >= 1.0, "also if the process is killed now"
        async with account.embedding(MODEL, 1_000) as usage:
            usage.counts.append(10_000_000)
        assert ledger.receipts.cost().dollars >= 21.0


def test_a_ratio_that_is_learnt_later_raises_the_amounts_for_calls_of_unknown_cost() -> None:
    account = Account(Prices({MODEL: Price(input=2.0)}))
    account.reserve(MODEL, Tokens.maximum(10_000, 0)).forfeit()
    account.reserve("other", Tokens.maximum(10_000, 0)).release()
    account.reserve(MODEL, Tokens.maximum(10_000, 0)).settle(Tokens(1, 30_000, 0, 0))
    assert account.actual.unsettled == pytest.approx(0.06)
    assert account.actual.unsettled_calls == 1
    account.reserve(MODEL, Tokens.maximum(10_000, 0)).settle(Tokens(1, 60_000, 0, 0))
    assert account.actual.unsettled == pytest.approx(0.12)
    assert account.actual.dollars == pytest.approx(0.06 + 0.12 + 0.12)


@given(st.lists(st.tuples(st.integers(1, 9_000), st.floats(0, 1), st.booleans()), max_size=30))
def test_no_sequence_of_calls_exceeds_the_limit(calls: list[tuple[int, float, bool]]) -> None:
    account = Account(Prices({MODEL: Price(input=2.0, cached=0.5, output=8.0)}), max_cost=0.05)
    for tokens, share, paid in calls:
        try:
            call = account.reserve(MODEL, Tokens.maximum(tokens, 200))
        except BudgetExceededError:
            continue
        if paid:
            call.settle(Tokens(1, tokens, int(tokens * share), 200))
        else:
            call.release()
    assert account.actual.dollars is not None
    assert account.actual.dollars <= 0.05


def test_without_a_price_tokens_are_counted_and_a_limit_is_refused() -> None:
    account = Account(Prices())
    account.reserve("openai-like:llama3", Tokens.maximum(100, 10)).settle(Tokens(1, 100, 0, 10))
    assert account.actual == Receipt(calls=1, input_tokens=100, output_tokens=10, paid=None)
    with pytest.raises(ConfigurationError, match=r"the price of 'openai-like:llama3' is unknown .* in the setting"):
        Account(Prices(), max_cost=1.0).require_price("openai-like:llama3")
    Account(Prices(), max_cost=1.0).require_price(MODEL)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), "1"])
def test_an_invalid_limit_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="cost limit must be an amount of dollars"):
        Account(Prices(), max_cost=wrong)
