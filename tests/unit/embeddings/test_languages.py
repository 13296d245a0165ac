"""The languages that embedding models know, and the weight of their ranking."""

from __future__ import annotations

import pytest

from llama_index_contextual.embeddings.languages import MULTILINGUAL, knows_language, unknown_languages
from llama_index_contextual.search.rank import FOREIGN_WEIGHT, FusionSettings

ENGLISH = (
    "local",
    "huggingface:BAAI/bge-small-en-v1.5",
    "fastembed:sentence-transformers/all-MiniLM-L6-v2",
    "huggingface:intfloat/e5-base-v2",
    "ollama:nomic-embed-text",
    "ollama:mxbai-embed-large",
)
SEVERAL = (
    MULTILINGUAL,
    "openai:text-embedding-3-small",
    "huggingface:intfloat/multilingual-e5-small",
    "ollama:bge-m3",
    "ollama:snowflake-arctic-embed2",
    "huggingface:nomic-ai/nomic-embed-text-v2-moe",
    "voyage:voyage-4",
    "huggingface:mixedbread-ai/deepset-mxbai-embed-de-large-v1",
)


@pytest.mark.parametrize("model", ENGLISH)
def test_these_models_know_only_english(model: str) -> None:
    assert knows_language(model, "english")
    assert not knows_language(model, "german")


@pytest.mark.parametrize("model", SEVERAL)
def test_these_models_are_not_reported_for_german(model: str) -> None:
    assert knows_language(model, "german")


def test_languages_of_a_few_chunks_are_not_reported() -> None:
    assert unknown_languages("local", {"english": 95, "german": 5}) is None
    assert unknown_languages(None, {"german": 5}) is None
    assert unknown_languages("local", {"": 5, "none": 5}) is None
    message = unknown_languages("local", {"german": 5, "english": 5, "dutch": 2})
    assert message == "The embedding model 'local' does not know German and Dutch (7 of 12 chunks)"


def test_the_default_weight_of_an_embedding_is_halved_in_a_language_that_it_does_not_know() -> None:
    settings = FusionSettings()
    semantic, lexical = settings.weights
    assert settings.for_language("local", "german").weights == (semantic / 2, lexical + semantic / 2)
    for model, language in (("local", "english"), ("local", ""), (MULTILINGUAL, "german")):
        assert settings.for_language(model, language) is settings
    chosen = FusionSettings(weights=(0.5, 0.5))
    assert chosen.for_language("local", "german") is chosen
    assert chosen.for_language(MULTILINGUAL, "english", "german") is chosen


def test_the_default_weight_of_an_embedding_is_high_for_questions_in_another_language_that_it_knows() -> None:
    settings = FusionSettings()
    assert settings.for_language(MULTILINGUAL, "english", "german").weights == (FOREIGN_WEIGHT, 1 - FOREIGN_WEIGHT)
    assert settings.for_language("local", "english", "german") is settings
    semantic = settings.weights[0]
    assert settings.for_language("local", "german", "english").weights[0] == semantic / 2
