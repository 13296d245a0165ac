"""What of a conversation fits into a prompt: the newest text, and no more than the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ChatMessage

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.answering.chat_engine import GroundedChatEngine, end_of
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from tests.integration.retrievers.corpus import FixedRetriever
from tests.support.models import ScriptedLLM


@given(
    st.lists(st.text(st.sampled_from("ab .\n。字😀\u0301"), max_size=300), min_size=1, max_size=7),
    st.integers(0, 60),
)
def test_the_history_fits_its_budget_and_ends_with_the_newest_text(contents: list[str], budget: int) -> None:
    roles = ("user", "assistant")
    recent = [ChatMessage(role=roles[at % 2], content=content) for at, content in enumerate(contents)]
    engine = GroundedChatEngine(GroundedQueryEngine(FixedRetriever([]), ScriptedLLM()), history_tokens=budget)
    kept = engine._within_budget(recent)
    assert sum(count_tokens(message.content or "") for message in kept) <= budget
    assert [message.role.value for message in kept[:1]] in ([], ["user"])
    for message, original in zip(reversed(kept), reversed(recent), strict=False):
        if message.role == original.role:
            assert (original.content or "").rstrip().endswith((message.content or "").removeprefix("… ").rstrip())


@pytest.mark.parametrize(
    "text", ["word " * 50_000, "字" * 20_000, "x" * 100_000, " " * 5_000 + "end", "a\n\n" * 20_000]
)
@pytest.mark.parametrize("limit", [1, 3, 50, 1000])
def test_the_end_of_any_text_fits_and_is_not_cut_shorter_than_needed(text: str, limit: int) -> None:
    end = end_of(text, limit)
    assert count_tokens(end) <= limit
    assert text.rstrip().endswith(end.removeprefix("… "))
    assert count_tokens(end) >= limit // 2 - 2 or end == text or end.removeprefix("… ") == text.strip()
