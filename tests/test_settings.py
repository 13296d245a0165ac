"""Settings from outside the command: which of them wins, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.manager import ProjectManager
from llama_index_contextual.settings import environment_settings, file_settings, read_dotenv
from tests.test_cli import run


def test_the_environment_names_any_setting_of_a_project() -> None:
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
def test_a_file_without_settings_is_refused_by_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"c\.json"):
        file_settings(tmp_path / "c.json")


def test_a_dotenv_file_gives_what_the_environment_does_not_have(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "# LLAMA_INDEX_CONTEXTUAL_TOP_K=1\nexport LLAMA_INDEX_CONTEXTUAL_STYLE='few words'\n"
        "LLAMA_INDEX_CONTEXTUAL_TOP_K=7  # seven\nLLAMA_INDEX_CONTEXTUAL_ROOT=there\nOPENAI_API_KEY=secret\nnonsense\n"
    )
    environment = {"LLAMA_INDEX_CONTEXTUAL_ROOT": "here"}
    read_dotenv(tmp_path / ".env", environment)
    assert environment == {
        "LLAMA_INDEX_CONTEXTUAL_ROOT": "here",
        "LLAMA_INDEX_CONTEXTUAL_STYLE": "few words",
        "LLAMA_INDEX_CONTEXTUAL_TOP_K": "7",
    }
    read_dotenv(tmp_path / "none", environment)
    assert len(environment) == 3


def test_an_option_wins_over_the_file_and_the_file_over_the_environment(
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


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    found = run("create", "a", "--config", tmp_path / "none.json", "--root", tmp_path)
    assert (found.code, found.err.count("\n")) == (1, 1)
