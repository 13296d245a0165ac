"""Settings from the environment and from files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llama_index_contextual.cli.common import read_object
from llama_index_contextual.config import ADDRESSES, KEYS, ProjectConfig, environment_settings, read_dotenv
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.models import PROVIDERS


def test_any_setting_can_be_set_in_the_environment() -> None:
    environment = {
        "LLAMA_INDEX_CONTEXTUAL_CHUNK_SIZE": "256",
        "LLAMA_INDEX_CONTEXTUAL_INDEXES": "lexical",
        "LLAMA_INDEX_CONTEXTUAL_EMBED_MODEL": "ollama:all-minilm",
        "LLAMA_INDEX_CONTEXTUAL_TOP_K": "",
        "LLAMA_INDEX_CONTEXTUAL_ROOT": "elsewhere",
        "CHUNK_OVERLAP": "1",
    }
    assert environment_settings(environment) == {
        "chunk_size": 256,
        "indexes": "lexical",
        "embed_model": "ollama:all-minilm",
    }


@pytest.mark.parametrize("content", ["", "[1]", "top_k: 5", "3"])
def test_a_settings_file_without_settings_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"c\.json"):
        read_object(tmp_path / "c.json", "write settings")


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
    read_dotenv(tmp_path / "none", environment)
    assert len(environment) == 6


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
    config = ProjectConfig.from_env(chunk_overlap=11)
    assert (config.top_k, config.judge, config.chunk_overlap, config.style) == (7, True, 11, "persona")
    assert os.environ["OPENAI_API_KEY"] == "k"
    assert ProjectConfig().top_k == 20
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_TOP_K", "many")
    with pytest.raises(ConfigurationError, match="'top_k' cannot be 'many'"):
        ProjectConfig.from_env()
