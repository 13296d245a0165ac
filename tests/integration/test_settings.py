"""Settings from the environment and files, and their precedence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.environment import ADDRESSES, KEYS, read_dotenv
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.models import PROVIDERS
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.settings import environment_settings, file_settings
from tests.integration.test_cli import run
from tests.support.documents import write_texts


def test_any_setting_can_be_set_in_the_environment() -> None:
    environment = {
        "LLAMA_INDEX_CONTEXTUAL_CHUNK_SIZE": "256",
        "LLAMA_INDEX_CONTEXTUAL_FAISS": "false",
        "LLAMA_INDEX_CONTEXTUAL_EMBED_MODEL": "ollama:all-minilm",
        "LLAMA_INDEX_CONTEXTUAL_TOP_K": "",
        "LLAMA_INDEX_CONTEXTUAL_ROOT": "elsewhere",
        "CHUNK_OVERLAP": "1",
    }
    assert environment_settings(environment) == {"chunk_size": 256, "faiss": False, "embed_model": "ollama:all-minilm"}


@pytest.mark.parametrize("content", ["", "[1]", "top_k: 5", "3"])
def test_a_settings_file_without_settings_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"c\.json"):
        file_settings(tmp_path / "c.json")


def test_a_dotenv_file_adds_missing_variables(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "\ufeff# LLAMA_INDEX_CONTEXTUAL_TOP_K=1\nexport LLAMA_INDEX_CONTEXTUAL_STYLE='few words'  # short\n"
        "LLAMA_INDEX_CONTEXTUAL_TOP_K=7  # seven\nLLAMA_INDEX_CONTEXTUAL_ROOT=there\nnonsense\n"
        'LLAMA_INDEX_CONTEXTUAL_LANGUAGE= # none\nPATH=/there\nOPENAI_API_KEY="s#cret"\nOLLAMA_HOST=http://there\n',
        encoding="utf-8",
    )
    environment = {"LLAMA_INDEX_CONTEXTUAL_ROOT": "here"}
    read_dotenv(tmp_path / ".env", environment)
    assert environment == {
        "LLAMA_INDEX_CONTEXTUAL_ROOT": "here",
        "LLAMA_INDEX_CONTEXTUAL_STYLE": "few words",
        "LLAMA_INDEX_CONTEXTUAL_TOP_K": "7",
        "LLAMA_INDEX_CONTEXTUAL_LANGUAGE": "",
        "OPENAI_API_KEY": "s#cret",
        "OLLAMA_HOST": "http://there",
    }
    before = dict(environment)
    read_dotenv(tmp_path / "none", environment)
    assert environment == before


def test_a_dotenv_file_cannot_send_a_key_of_the_environment_to_another_address(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=theirs\nOPENAI_BASE_URL=http://elsewhere.example\n")
    environment = {"OPENAI_API_KEY": "mine"}
    read_dotenv(tmp_path / ".env", environment)
    assert environment == {"OPENAI_API_KEY": "mine"}
    environment = {}
    read_dotenv(tmp_path / ".env", environment)
    assert environment == {"OPENAI_API_KEY": "theirs", "OPENAI_BASE_URL": "http://elsewhere.example"}


def test_the_keys_and_addresses_of_all_providers_can_be_in_a_dotenv_file() -> None:
    keys = {key for traits in PROVIDERS.values() for key in (traits.key, traits.optional_key) if key}
    addresses = {name for traits in PROVIDERS.values() for name in traits.address}
    assert keys == set(KEYS)
    assert addresses == {*ADDRESSES, *(name for names in KEYS.values() for name in names)}


def test_python_reads_settings_from_the_environment_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_TOP_K", "7")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_JUDGE", "true")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CANDIDATES", "9")
    # Set and removed, so that what `from_env` adds is removed after the test.
    for name in ("OPENAI_API_KEY", "LLAMA_INDEX_CONTEXTUAL_STYLE"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    (tmp_path / ".env").write_text("LLAMA_INDEX_CONTEXTUAL_STYLE=persona\nOPENAI_API_KEY=k\n")
    assert ProjectConfig.from_env(dotenv=None).style == "instruction"
    config = ProjectConfig.from_env(candidates=11)
    assert (config.top_k, config.judge, config.candidates, config.style) == (7, True, 11, "persona")
    assert os.environ["OPENAI_API_KEY"] == "k"
    assert ProjectConfig().top_k == 20
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_TOP_K", "many")
    with pytest.raises(ConfigurationError, match="'top_k' cannot be 'many'"):
        ProjectConfig.from_env()


def test_personal_data_stays_masked_under_the_former_name_of_the_variable() -> None:
    assert environment_settings({"LLAMA_INDEX_CONTEXTUAL_GUARD": "true"}) == {"guards": True}


def test_options_override_the_file_and_the_file_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TOP_K", "1"), ("CANDIDATES", "11"), ("RRF_K", "21")):
        monkeypatch.setenv(f"LLAMA_INDEX_CONTEXTUAL_{name}", value)
    (tmp_path / "c.json").write_text(json.dumps({"top_k": 2, "candidates": 12}))
    arguments = [
        "create",
        "a",
        "--local",
        "--config",
        tmp_path / "c.json",
        "--set",
        "top_k=3",
        "--root",
        tmp_path / "r",
    ]
    assert run(*arguments).code == 0
    config = ProjectManager(tmp_path / "r").load("a").config
    assert (config.top_k, config.candidates, config.rrf_k) == (3, 12, 21)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder, known by the environment, with project "a" of two documents."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(tmp_path / "knowledge"))
    config = ProjectConfig.local(faiss=False)
    ProjectManager(tmp_path / "knowledge").create("a", config).ingest([write_texts(tmp_path / "reports")])
    return tmp_path / "knowledge"


def test_settings_without_rebuild_are_read_from_the_environment_for_queries(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(run("search", "a", "pump valve", "--json").json["results"]) == 2
    for name, value in (("TOP_K", "1"), ("CHUNK_SIZE", "123"), ("KEEP_VERSIONS", "2")):
        monkeypatch.setenv(f"LLAMA_INDEX_CONTEXTUAL_{name}", value)
    assert len(run("search", "a", "pump valve", "--json").json["results"]) == 1
    assert len(run("search", "a", "pump valve", "--json", "--top-k", "2").json["results"]) == 2
    stored = run("info", "a", "--json").json["config"]
    assert (stored["top_k"], stored["chunk_size"], stored["keep_versions"]) == (1, 800, 3), (
        "not what was built, or is kept"
    )
    shown = run("settings", "a").out
    assert [line for line in shown.splitlines() if line.endswith("  environment")] == ["top_k=1  environment"]
    assert ProjectManager(root).load("a").config.top_k == 20, "the project itself is as it was"


def test_changing_a_setting_that_the_environment_overrides_gives_a_note(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_TOP_K", "1")
    result = run("configure", "a", "top_k=7", "candidates=50")
    assert result.out == "Changed; takes effect with the next query.\n"
    assert result.err == "LLAMA_INDEX_CONTEXTUAL_TOP_K is set and overrides it.\n"
    config = ProjectManager(root).load("a").config
    assert (config.top_k, config.candidates) == (7, 50)


def test_an_invalid_variable_is_named_and_does_not_stop_maintenance(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_TOP_K", "many")
    result = run("search", "a", "pump")
    assert result.code == 1
    assert result.err.startswith(
        "Error: In the environment (LLAMA_INDEX_CONTEXTUAL_…): Setting 'top_k' cannot be 'many'"
    )
    assert run("verify", "a").code == 0
    assert run("delete", "a", "--yes").code == 0


def test_a_missing_settings_file_is_a_one_line_error(tmp_path: Path) -> None:
    result = run("create", "a", "--config", tmp_path / "none.json", "--root", tmp_path)
    assert (result.code, result.err.count("\n")) == (1, 1)


def test_a_local_project_ignores_models_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("EMBED_MODEL", "openai:text-embedding-3-small"), ("CONTEXT", "llm"), ("TOP_K", "3")):
        monkeypatch.setenv(f"LLAMA_INDEX_CONTEXTUAL_{name}", value)
    created = run("create", "a", "--local", "--root", tmp_path, "--json").json["config"]
    assert (created["embed_model"], created["context"], created["top_k"]) == ("local", "structural", 3)
