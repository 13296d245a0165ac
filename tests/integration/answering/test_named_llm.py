"""The LLM that answers is one that somebody has named, and an LLM that is passed over is mentioned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Settings
from llama_index.core.llms import LLM
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ModelError, SettingWarning
from llama_index_contextual.models import model_name
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.answering.conftest import QUESTION
from tests.support.cli import run
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.server import LoopbackProvider

GOOD = "It means that “the pump runs dry” [Source 1]."


@pytest.fixture(autouse=True)
def _unassigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.setattr(Settings, "_embed_model", None)


@pytest.fixture
def key(provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch) -> LoopbackProvider:
    """A provider whose key and address are in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any-key-0000")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
    return provider


@pytest.fixture
def silent() -> Iterator[None]:
    """Turn warnings about settings into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", SettingWarning)
        yield


def made(manager: ProjectManager, folder: Path, config: ProjectConfig, **models: Any) -> Project:
    project = manager.create("p", config, **models)
    project.ingest([folder])
    return project


def reranked(project: Project) -> Any:
    project.update_config(rerank="llm")
    return project.retrieve(QUESTION)


def answering(project: Project) -> str:
    engine: Any = project.as_query_engine()
    return str(engine.answer_stream.name)


# ---- projects that send nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda project: project.as_query_engine(),
        lambda project: project.as_chat_engine(),
        lambda project: project.as_query_engine(judge=True),
        lambda project: project.as_retriever(intents="llm"),
        lambda project: reranked(project),
    ],
)
def test_a_local_project_sends_no_passage_to_a_provider_that_nobody_named(
    manager: ProjectManager, text_folder: Path, key: LoopbackProvider, use: Callable[[Project], Any]
) -> None:
    made(manager, text_folder, ProjectConfig.local())
    with pytest.raises(ModelError, match="'p' has no LLM, because its settings name none: name one, as in") as raised:
        use(manager.load("p"))
    assert raised.value.setting == "answer_llm"
    assert key.calls() == []


def test_ask_shows_the_passages_of_a_local_project_and_says_how_to_name_an_llm(
    manager: ProjectManager, text_folder: Path, key: LoopbackProvider
) -> None:
    made(manager, text_folder, ProjectConfig.local())
    shown = run("ask", "p", QUESTION, "--root", manager.root)
    assert shown.code == 0
    assert "the pump runs dry" in shown.out
    assert "name one with --llm, such as ollama:llama3.1" in shown.err
    assert key.calls() == []
    key.enqueue(GOOD)
    assert GOOD in run("ask", "p", QUESTION, "--llm", "openai:gpt-4o-mini", "--root", manager.root).out


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("openai:gpt-4o-mini", {"llm": "openai:gpt-4o-mini"}),
        ("openai:gpt-4.1", {"answer_llm": "openai:gpt-4.1"}),
        ("openai:gpt-4.1", {"answer_llm": "openai:gpt-4.1", "llm": "openai:gpt-4o-mini"}),
        ("openai:gpt-6-luna", {"context": "llm"}),
    ],
)
@pytest.mark.usefixtures("key")
def test_a_local_project_answers_with_the_llm_that_it_names(
    manager: ProjectManager, name: str, settings: dict[str, Any]
) -> None:
    assert answering(manager.create("p", ProjectConfig.local(**settings))) == name


# ---- models that are passed over -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("key")
def test_an_assigned_llm_that_is_not_used_is_mentioned_once(manager: ProjectManager) -> None:
    Settings.llm = ScriptedLLM()
    project = manager.create("p", ProjectConfig(context="structural"))
    message = (
        r"Settings.llm of LlamaIndex \(ScriptedLLM:scripted\) is not used: project 'p' uses 'openai:gpt-6-luna'."
        r" To use yours, pass llm=Settings.llm .*, or set answer_llm='openai:gpt-6-luna' to keep this one\."
    )
    with pytest.warns(SettingWarning, match=message):
        assert answering(project) == "openai:gpt-6-luna"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answering(project) == "openai:gpt-6-luna"
    project.update_config(answer_llm="openai:gpt-6-luna")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answering(manager.load("p")) == "openai:gpt-6-luna"
        assert answering(manager.load("p", llm=Settings.llm)) == "ScriptedLLM:scripted"


@pytest.mark.usefixtures("silent")
def test_an_assigned_llm_is_used_where_none_is_named_or_the_named_one_has_no_key(manager: ProjectManager) -> None:
    Settings.llm = ScriptedLLM()
    assert answering(manager.create("p", ProjectConfig.local())) == "ScriptedLLM:scripted"
    assert answering(manager.create("q", ProjectConfig(indexes="lexical"))) == "ScriptedLLM:scripted"


@pytest.mark.usefixtures("silent", "key")
@pytest.mark.parametrize(
    "assign",
    [
        lambda: OpenAI(model="gpt-6-luna"),  # the model that is used
        lambda: Settings.llm,  # LlamaIndex's default, which is created when it is read
    ],
)
def test_nothing_is_mentioned_if_the_same_llm_or_none_is_assigned(
    manager: ProjectManager, assign: Callable[[], LLM]
) -> None:
    Settings.llm = assign()
    assert answering(manager.create("p", ProjectConfig(context="structural"))) == "openai:gpt-6-luna"


@pytest.mark.usefixtures("key")
def test_an_assigned_llm_that_does_not_write_the_contexts_is_mentioned(
    manager: ProjectManager, text_folder: Path
) -> None:
    Settings.llm = ScriptedLLM()
    project = manager.create("p", ProjectConfig(embed_model="local", llm="openai:gpt-4o-mini"))
    with pytest.warns(SettingWarning, match="project 'p' uses 'openai:gpt-4o-mini'"):
        project.ingest([text_folder])


@pytest.mark.usefixtures("key")
def test_an_assigned_embedding_model_that_is_not_used_is_mentioned(manager: ProjectManager, text_folder: Path) -> None:
    Settings.embed_model = CountingEmbedding()
    project = manager.create("p", ProjectConfig.local())
    message = (
        r"Settings.embed_model of LlamaIndex \(CountingEmbedding:counting\) is not used: project 'p' uses 'local'\. To"
        r" use yours, pass embed_model=Settings.embed_model when you create and load the project\.$"
    )
    with pytest.warns(SettingWarning, match=message):
        project.ingest([text_folder])
    with warnings.catch_warnings():
        warnings.simplefilter("error", SettingWarning)
        project.retrieve(QUESTION)  # mentioned once
        passed = manager.create("q", ProjectConfig.local(), embed_model=Settings.embed_model)
        passed.ingest([text_folder])
        Settings.embed_model = OpenAIEmbedding()  # as LlamaIndex creates it
        manager.load("p").retrieve(QUESTION)


# ---- settings without effect -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("key")
def test_a_temperature_that_the_answering_model_cannot_take_is_mentioned_where_it_is_set(
    manager: ProjectManager,
) -> None:
    message = "answer_temperature=0.3 has no effect: the temperature of 'openai:gpt-6-luna' cannot be set"
    config = ProjectConfig(context="structural", answer_temperature=0.3)
    with pytest.warns(SettingWarning, match=message):
        project = manager.create("p", config)
    with pytest.warns(SettingWarning, match=message):
        answering(manager.load("p"))
    project.update_config(answer_temperature=None)
    with pytest.warns(SettingWarning, match=message):
        manager.load("p").update_config(answer_temperature=0.3)
    note = run("create", "q", "--set", "answer_temperature=0.3", "--set", "context=structural", "--root", manager.root)
    assert message in " ".join(note.err.split())
    shown = run("doctor", "q", "--json", "--root", manager.root).json["checks"]
    assert [check["harmless"] for check in shown if message in check["message"]] == [True]


def test_a_temperature_for_an_object_and_a_limit_without_room_for_reasoning_are_mentioned(
    manager: ProjectManager,
) -> None:
    llm = OpenAI(model="gpt-6-luna", api_key="any", max_tokens=200)
    project = manager.create("p", ProjectConfig.local(answer_temperature=0.3), llm=llm)
    with pytest.warns(SettingWarning) as shown:
        answering(project)
    first, second = sorted(str(one.message) for one in shown)
    assert first.startswith("answer_temperature=0.3 has no effect on an LLM that is passed as an object")
    assert second.startswith("max_tokens=200 of 'openai:gpt-6-luna' also counts the tokens of its reasoning")


# ---- one object ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("key")
def test_the_llm_of_a_project_is_loaded_once_until_something_changes(
    manager: ProjectManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = manager.create("p", ProjectConfig(context="structural", answer_llm="openai:gpt-4o-mini"))
    llm = project.state.answering_llm()
    assert project.state.answering_llm() is llm
    project.update_config(first_token_timeout=90)
    slower: Any = project.state.answering_llm()
    assert slower is not llm
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another-key-0000")
    assert project.state.answering_llm().api_key == "sk-another-key-0000"  # type: ignore[attr-defined]
    assert model_name(slower) == "openai:gpt-4o-mini"


@pytest.mark.parametrize(("first", "call", "client"), [(None, None, 600.0), (700.0, None, 700.0), (None, 9.0, 9.0)])
@pytest.mark.usefixtures("key")
def test_the_client_waits_as_long_as_the_longest_timeout_of_an_answer(
    manager: ProjectManager, first: float | None, call: float | None, client: float
) -> None:
    config = ProjectConfig(context="structural", first_token_timeout=first, call_timeout=call)
    project = manager.create("p", config)
    engine: Any = project.as_query_engine()
    timeouts = engine.answer_stream.timeouts
    assert (timeouts.first_token, timeouts.between_tokens) == (first or 300.0, 60.0)
    assert timeouts.whole == (call or 600.0)
    assert engine._llm.timeout == client
