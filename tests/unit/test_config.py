"""Settings: defaults, and a message for each invalid value."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from llama_index_contextual.config import DEFAULT_LLM, RETRIEVAL_FIELDS, ProjectConfig
from llama_index_contextual.errors import ConfigurationError


def test_the_defaults_are_the_published_ones() -> None:
    published = {
        "embed_model": "openai:text-embedding-3-small",
        "llm": "openai:gpt-6-luna",
        "context": "llm",
        "segment_size": 8000,
        "chunk_size": 800,
        "chunk_overlap": 80,
        "mode": "hybrid",
        "top_k": 20,
        "fusion": "score",
        "semantic_weight": 0.35,
        "document_weight": 0.15,
        "rrf_k": 10.0,
        "answer_tokens": 8000,
        "answer_temperature": None,
        "first_token_timeout": None,
        "between_tokens_timeout": None,
        "keep_versions": 3,
        "allow_private_addresses": False,
    }
    assert {name: getattr(ProjectConfig(), name) for name in published} == published
    assert (ProjectConfig.local().fusion, ProjectConfig.local().semantic_weight) == ("score", 0.35)


def test_local_settings_name_nothing_that_needs_a_key() -> None:
    local = ProjectConfig.local()
    assert (local.embed_model, local.context, local.llm) == ("local", "structural", None)
    assert ProjectConfig.local(llm="ollama:llama3.1").llm == "ollama:llama3.1"
    assert ProjectConfig.local(context="none", top_k=3).top_k == 3
    assert ProjectConfig.local(semantic_weight=0.9).semantic_weight == 0.9


def test_contexts_by_an_llm_use_the_default_llm_unless_one_is_named() -> None:
    assert ProjectConfig.local(context="llm").llm == ProjectConfig.local().changed(context="llm").llm == DEFAULT_LLM
    assert ProjectConfig(llm=None).llm == DEFAULT_LLM
    assert ProjectConfig.local(context="llm", llm="ollama:llama3.1").llm == "ollama:llama3.1"


def test_the_llm_of_a_project_without_contexts_is_changed_without_a_rebuild() -> None:
    local = ProjectConfig.local()
    assert local.changed(llm="ollama:llama3.1").rebuild_fields(local) == []
    written = local.changed(context="llm")
    assert written.changed(llm="ollama:llama3.1").rebuild_fields(written) == ["llm"]


def test_every_field_has_a_description() -> None:
    for name, field in ProjectConfig.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


BAD: list[tuple[dict[str, Any], str | None, str]] = [
    (
        {"style": "breif"},
        "style",
        "cannot be 'breif': must be instruction, persona, chain_of_thought, or a description in several words",
    ),
    ({"reference_date": "soon"}, "reference_date", "cannot be 'soon': must be `today`, or a date such as 2026-11-22"),
    ({"min_confidence": 2}, "min_confidence", "'min_confidence' cannot be 2: "),
    ({"first_token_timeout": 0}, "first_token_timeout", "'first_token_timeout' cannot be 0: "),
    ({"intents": "maybe"}, "intents", "'intents' cannot be 'maybe': "),
    (
        {"indexes": "none"},
        "indexes",
        "Setting 'indexes' cannot be 'none': it must be ",
    ),
    ({"segment_size": 0}, "segment_size", "Setting 'segment_size' cannot be 0: "),
    ({"chunk_size": -5}, "chunk_size", "Setting 'chunk_size' cannot be -5: it must be greater than or equal to 1"),
    ({"chunk_overlap": -1}, "chunk_overlap", "Setting 'chunk_overlap' cannot be -1: "),
    ({"chunk_overlap": 800}, None, r"chunk_overlap \(800\) must be smaller than chunk_size \(800\)"),
    ({"chunk_size": 50}, None, r"chunk_overlap \(80\) must be smaller than chunk_size \(50\)"),
    ({"chunk_size": 9000}, None, r"chunk_size \(9000\) must not exceed segment_size \(8000\)"),
    ({"semantic_weight": 1.1}, "semantic_weight", "Setting 'semantic_weight' cannot be 1.1: "),
    ({"semantic_weight": math.nan}, "semantic_weight", "Setting 'semantic_weight' cannot be nan: "),
    ({"document_weight": -1}, "document_weight", "Setting 'document_weight' cannot be -1: "),
    ({"document_weight": math.inf}, "document_weight", "must be a finite number"),
    ({"rrf_k": 0}, "rrf_k", "Setting 'rrf_k' cannot be 0: "),
    ({"rrf_k": math.inf}, "rrf_k", "must be a finite number"),
    ({"top_k": 0}, "top_k", "Setting 'top_k' cannot be 0: "),
    ({"top_k": "many"}, "top_k", "Setting 'top_k' cannot be 'many': it must be a valid integer"),
    ({"answer_tokens": 0}, "answer_tokens", "Setting 'answer_tokens' cannot be 0: "),
    ({"llm_concurrency": 0}, "llm_concurrency", "Setting 'llm_concurrency' cannot be 0: "),
    ({"requests_per_minute": 0}, "requests_per_minute", "Setting 'requests_per_minute' cannot be 0: "),
    ({"tokens_per_minute": 0}, "tokens_per_minute", "Setting 'tokens_per_minute' cannot be 0: "),
    ({"service_tier": "slow"}, "service_tier", "Setting 'service_tier' cannot be 'slow': it must be 'flex'"),
    ({"context_prompt": "{segment}"}, "context_prompt", r"cannot be used: it needs both \{segment\} and \{chunk\}"),
    ({"context_prompt": "{segment} {chunk} {x}"}, "context_prompt", r"cannot be used: \{x\} is not a variable: use"),
    ({"keep_versions": 1}, "keep_versions", "Setting 'keep_versions' cannot be 1: "),
    (
        {"mode": "vector"},
        "mode",
        "Setting 'mode' cannot be 'vector': it must be 'semantic', 'lexical' or 'hybrid'",
    ),
    ({"prices": {"openai:x": {"input": -1}}}, "prices", "Setting 'prices' cannot be -1: "),
    ({"prices": {"openai:x": {"output": 1}}}, "prices", "Field required"),
    ({"prices": {"x": {"input": 1}}}, "prices", "'x' is not provider:name"),
    ({"context": "gpt"}, "context", "it must be 'llm', 'structural' or 'none'"),
    ({"fusion": "max"}, "fusion", "it must be 'rrf' or 'score'"),
    ({"language": "klingon"}, "language", "Setting 'language' cannot be 'klingon': must be one of auto, arabic, "),
    ({"embed_model": None}, "embed_model", "Setting 'embed_model' cannot be None: "),
    (
        {"chunk_sise": 1},
        "chunk_sise",
        "Unknown setting 'chunk_sise'. Did you mean 'chunk_size'[?]",
    ),
]


@pytest.mark.parametrize(("values", "setting", "message"), BAD, ids=lambda value: str(value)[:40])
def test_an_invalid_value_is_an_error_of_one_sentence(
    values: dict[str, Any], setting: str | None, message: str
) -> None:
    for make in (ProjectConfig, ProjectConfig.local, ProjectConfig().changed):
        with pytest.raises(ConfigurationError, match=message) as raised:
            make(**values)
        assert raised.value.setting == setting
        assert "\n" not in str(raised.value)
        assert str(raised.value).endswith((".", "?"))
        assert raised.value.__suppress_context__ or raised.value.__context__ is None, "without pydantic's own report"


def test_settings_are_frozen_and_changed_by_a_copy() -> None:
    config = ProjectConfig()
    with pytest.raises(ValidationError):
        config.top_k = 5  # type: ignore[misc]
    changed = config.changed(top_k=5)
    assert (config.top_k, changed.top_k) == (20, 5)
    assert changed.changed(top_k=20) == config


def test_settings_survive_as_json() -> None:
    config = ProjectConfig.local(language="german", rrf_k=60, context_prompt="{segment} {chunk}")
    assert ProjectConfig(**json.loads(json.dumps(config.model_dump()))) == config


def test_changes_that_need_a_rebuild_are_identified() -> None:
    config = ProjectConfig()
    assert config.rebuild_fields(config) == []
    assert config.rebuild_fields(config.changed(chunk_size=500, top_k=3, language="none")) == ["chunk_size", "language"]
    of_queries = {
        "fusion": "rrf",
        "rerank": "llm",
        "style": "persona",
        "prices": {"local": {"input": 1.0}},
        "judge": True,
    }
    assert config.rebuild_fields(config.changed(**of_queries)) == []
    assert set(ProjectConfig.model_fields) >= RETRIEVAL_FIELDS


@given(
    size=st.integers(-3, 3000),
    overlap=st.integers(-3, 3000),
    segment=st.integers(-3, 3000),
    weight=st.floats(),
)
def test_settings_are_either_consistent_or_refused(size: int, overlap: int, segment: int, weight: float) -> None:
    values = {
        "chunk_size": size,
        "chunk_overlap": overlap,
        "segment_size": segment,
        "semantic_weight": weight,
    }
    usable = 0 <= overlap < size <= segment and 0 <= weight <= 1
    if usable:
        assert ProjectConfig(**values).chunk_size == size
    else:
        with pytest.raises(ConfigurationError):
            ProjectConfig(**values)
