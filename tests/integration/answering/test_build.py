"""Engines from keyword arguments: the effect of each option, and errors for wrong ones."""

from __future__ import annotations

import inspect
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document
from llama_index.core.llms import MockLLM

from llama_index_contextual._utils.keywords import options_of
from llama_index_contextual.answering.build import ChatEngineOptions, EngineOptions
from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.intent import IntentRetriever, SearchPlan
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.query_engine import AnswerCache, GroundedQueryEngine
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.config import DEFAULT_LLM, ProjectConfig
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.evaluation.compare import sweep_answers
from llama_index_contextual.ingestion.options import (
    FolderOptions,
    IngestOptions,
    ReadingOptions,
    SyncOptions,
    WritingOptions,
)
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.models import model_name
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.answering.conftest import QUESTION
from tests.support.models import ScriptedLLM


def grounded(project: Project, **options: Any) -> GroundedQueryEngine:
    engine = project.as_query_engine(llm=ScriptedLLM(), **options)
    assert isinstance(engine, GroundedQueryEngine)
    return engine


# ---- which engine ----------------------------------------------------------------------------------------------------


def defaults(function: Any) -> dict[str, Any]:
    """Return the keywords of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (Project.as_query_engine, [EngineOptions]),
        (Project.as_chat_engine, [EngineOptions, ChatEngineOptions]),
        (sweep_answers, [EngineOptions]),
        (Project.ingest, [ReadingOptions, WritingOptions, IngestOptions]),
        (Project.async_folders, [ReadingOptions, WritingOptions, SyncOptions, FolderOptions]),
        (Project.estimate, [ReadingOptions]),
    ],
)
def test_a_function_shows_its_options_with_defaults_and_descriptions(function: Any, options: list[type]) -> None:
    shown = defaults(function)
    for name, (_, option) in options_of(*options).items():
        assert option.description
        assert shown[name] == option.default
        text = " ".join((function.__doc__ or "").split())
        assert f"{name}: {option.description}" in text
    assert "**options" not in (function.__doc__ or "")


# ---- settings --------------------------------------------------------------------------------------------------------

ANSWERING: dict[str, Any] = {
    "style": "persona",
    "answer_tokens": 700,
    "min_confidence": 0.25,
    "intents": True,
    "guards": True,
    "judge": True,
    "reference_date": "2026-11-22",
    "first_token_timeout": 3.0,
    "between_tokens_timeout": 4.0,
    "call_timeout": 5.0,
}


def configured(project: Project, **settings: Any) -> Project:
    """Return the project with other settings, which are not stored."""
    return Project(ProjectState(project.directory, project.config.changed(**settings)))


@pytest.mark.parametrize("kind", ["query", "chat"])
def test_an_engine_follows_the_settings_of_the_project(reports: Project, kind: str) -> None:
    project = configured(reports, **ANSWERING)
    engine = grounded(project) if kind == "query" else project.as_chat_engine(llm=ScriptedLLM()).engine
    options = engine.options
    assert (options.style, options.answer_tokens) == ("persona", 700)
    assert (options.context, options.min_confidence) == (True, 0.25)
    assert engine.guards == Guards()
    assert isinstance(engine.judge, Judge)
    assert engine.answer_stream.timeouts == Timeouts(first_token=3.0, between_tokens=4.0, whole=5.0)
    assert engine.retriever.reference_date == date(2026, 11, 22)
    assert isinstance(engine.retriever.retriever, IntentRetriever)


def test_an_option_overrides_the_setting(reports: Project) -> None:
    options: dict[str, Any] = {"style": "instruction", "answer_tokens": 900, "context": True, "min_confidence": 0.0}
    project = configured(reports, **ANSWERING, answer_cache=True)
    engine = grounded(
        project, **options, intents=False, guards=False, judge=False, cache=False, timeouts=Timeouts(whole=9)
    )
    assert {name: getattr(engine.options, name) for name in options} == options
    assert (engine.guards, engine.judge, engine.cache) == (None, None, None)
    assert engine.answer_stream.timeouts == Timeouts(whole=9)
    assert not isinstance(engine.retriever.retriever, IntentRetriever)


def test_another_llm_can_answer_at_a_temperature_of_its_own(reports: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    assert model_name(configured(reports, llm=DEFAULT_LLM).state.answering_llm()) == DEFAULT_LLM
    for settings, temperature in (({}, 0.1), ({"answer_temperature": 0.7}, 0.7)):
        engine: Any = configured(reports, answer_llm="openai:gpt-4o", **settings).as_query_engine()
        llm = engine._llm
        assert (model_name(llm), llm.temperature) == ("openai:gpt-4o", temperature)


# ---- values ----------------------------------------------------------------------------------------------------------


def test_the_engines_of_a_project_share_its_cache(reports: Project) -> None:
    llm = ScriptedLLM(default="It means “the pump runs dry” [Source 1].")
    calls = [reports.as_query_engine(llm=llm, cache=True).query(QUESTION) for _ in range(2)]
    assert [answer.from_cache for answer in calls] == [False, True]  # type: ignore[union-attr]
    kept = AnswerCache.from_project(reports.directory)
    assert len(kept) == len(llm.history) == 1
    assert grounded(reports).cache is None
    assert isinstance(grounded(configured(reports, answer_cache=True)).cache, AnswerCache)
    kept.clear()


@pytest.mark.parametrize(
    "wrong",
    [
        {"guards": "yes"},
        {"cache": 5},
        {"judge": "gpt"},
        {"timeouts": 30},
        {"timeouts": True},
        {"intents": "yes"},
        {"intents": {"factual": 5}},
        {"intents": {"factul": SearchPlan(top_k=5)}},
    ],
)
def test_an_invalid_value_is_refused_before_any_call(reports: Project, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    for make in (reports.as_query_engine, reports.as_chat_engine):
        with pytest.raises(ConfigurationError, match=name) as raised:
            make(llm=MockLLM(), **wrong)  # type: ignore[operator]
        assert raised.value.setting == name
    if name == "intents":
        with pytest.raises(ConfigurationError, match=name):
            reports.as_retriever(**wrong)


# ---- the embedding model ---------------------------------------------------------------------------------------------


def test_a_project_without_a_semantic_index_answers_without_an_embedding_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    llm = ScriptedLLM(default="It runs dry [Source 1].")
    project = ProjectManager(tmp_path).create("p", ProjectConfig(indexes="lexical", context="none"), llm=llm)
    chat = project.as_chat_engine()  # before anything is there to be asked
    project.ingest([Document(id_="d", text="Error TS-999 means that the pump runs dry.")])
    assert str(project.as_query_engine().query(QUESTION)) == "It runs dry [Source 1]."
    for question in (QUESTION, "And why?"):
        assert str(chat.chat(question)) == "It runs dry [Source 1]."
