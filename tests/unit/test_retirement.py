"""Models whose providers have announced their end."""

from __future__ import annotations

from datetime import date

import pytest
from llama_index.llms.openai.utils import ALL_AVAILABLE_MODELS

from llama_index_contextual.config import DEFAULT_LLM, ProjectConfig
from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.contextualizer.cost import PriceTable
from llama_index_contextual.retirement import retirement_of


@pytest.mark.parametrize(
    ("model", "ends"),
    [
        ("openai:gpt-4.1-2025-04-14", date(2027, 1, 14)),
        ("openai:gpt-4o-mini", date(2027, 1, 14)),
        ("openai:ft:gpt-4.1-mini-2025-04-14:me::id", date(2027, 1, 14)),
        ("openai:gpt-5-nano", date(2026, 12, 11)),
        ("openai:gpt-5.1", date(2027, 4, 1)),
        ("openai:gpt-5.2", None),
        ("openai:gpt-6-luna", None),
        ("openai-like:gpt-4.1", None),
        ("openai:gpt-4.1x", None),
    ],
)
def test_snapshots_and_fine_tuned_models_retire_with_their_base_model(model: str, ends: date | None) -> None:
    result = retirement_of(model)
    assert (None if result is None else result.ends) == ends


@pytest.mark.parametrize("day", [date(2026, 6, 1), date(2027, 1, 14), date(2035, 1, 1)])
def test_the_default_llm_does_not_depend_on_the_date(day: date, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_index_contextual.retirement.today", lambda: day)
    assert ProjectConfig().llm == LLMContextualizer().model == DEFAULT_LLM
    assert ProjectConfig(llm="openai:gpt-4.1").llm == "openai:gpt-4.1"


def test_the_default_llm_is_priced_known_to_the_client_and_not_retired() -> None:
    assert retirement_of(DEFAULT_LLM) is None
    assert PriceTable().price(DEFAULT_LLM) is not None
    assert DEFAULT_LLM.removeprefix("openai:") in ALL_AVAILABLE_MODELS
