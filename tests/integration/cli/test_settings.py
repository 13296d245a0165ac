"""Precedence on the command line: option, settings file, environment, project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run


def set_variables(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"LLAMA_INDEX_CONTEXTUAL_{name}", value)


def test_options_override_the_file_and_the_file_the_environment(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, TOP_K="1", CHUNK_OVERLAP="11", RRF_K="21")
    (tmp_path / "c.json").write_text(json.dumps({"top_k": 2, "chunk_overlap": 12}))
    created = run("create", "a", "--local", "--config", tmp_path / "c.json", "--set", "top_k=3")
    assert created.code == 0
    config = ProjectManager(root).load("a").config
    assert (config.top_k, config.chunk_overlap, config.rrf_k) == (3, 12, 21)


def test_settings_without_rebuild_are_read_from_the_environment_for_queries(
    ingested: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results(*options: object) -> int:
        return len(run("search", "a", "pump valve", "--json", *options).json["results"])

    assert results() == 2
    set_variables(monkeypatch, TOP_K="1", CHUNK_SIZE="123", KEEP_VERSIONS="2")
    assert (results(), results("--top-k", 2)) == (1, 2)
    stored = run("info", "a", "--json").json["config"]
    built_or_kept = (stored["chunk_size"], stored["keep_versions"])
    assert (stored["top_k"], built_or_kept) == (1, (800, 3))
    changed = run("configure", "a", "top_k=7", "rerank_candidates=40")
    assert changed.out == "Changed; takes effect with the next query.\n"
    assert changed.err == "note LLAMA_INDEX_CONTEXTUAL_TOP_K is set and overrides it.\n"
    kept = ProjectManager(ingested.directory.parent).load("a").config
    assert kept == ProjectConfig.local(top_k=7, rerank_candidates=40)


def test_an_invalid_variable_is_named_and_does_not_stop_maintenance(
    ingested: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, TOP_K="many")
    result = run("search", "a", "pump")
    assert result.code == 1
    message = "Error: In the environment (LLAMA_INDEX_CONTEXTUAL_…): Setting 'top_k' cannot be 'many'"
    assert result.err.startswith(message)
    assert run("verify", "a").code == 0
    assert run("delete", "a", "--yes").code == 0


def test_a_local_project_ignores_models_of_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, EMBED_MODEL="openai:text-embedding-3-small", CONTEXT="llm", TOP_K="3")
    created = run("create", "a", "--local", "--json").json["config"]
    assert (created["embed_model"], created["context"], created["top_k"]) == ("local", "structural", 3)
