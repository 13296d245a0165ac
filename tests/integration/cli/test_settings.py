"""Precedence on the command line: option, settings file, environment, project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llama_index_contextual.cli import common
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run
from tests.support.documents import write_texts
from tests.support.server import LoopbackProvider


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


BUILDING = [("ingest", "a", "reports"), ("sync", "a", "reports"), ("rebuild", "a"), ("retry", "a")]
OTHERS = [("estimate", "a"), ("sync", "a", "reports", "--dry-run"), ("evaluate", "a", "questions.jsonl")]


def write_evidence(folder: Path) -> None:
    write_texts(folder / "reports")
    row = {"question": "pump", "file": "manual.txt", "evidence": ["the pump runs dry"]}
    (folder / "questions.jsonl").write_text(json.dumps(row))


@pytest.mark.parametrize("command", BUILDING, ids=lambda command: command[0])
def test_commands_that_build_store_the_settings_of_their_options(
    ingested: Project, tmp_path: Path, command: tuple[str, ...]
) -> None:
    write_evidence(tmp_path)
    result = run(*command, "--set", "chunk_size=500", "--set", "top_k=4", "--yes")
    assert result.code == 0, result.err
    assert "note Stored in the settings of the project: chunk_size, top_k." in result.err
    stored = ProjectManager(ingested.directory.parent).load("a").config
    assert (stored.chunk_size, stored.top_k) == (500, 4)


@pytest.mark.parametrize("command", BUILDING, ids=lambda command: command[0])
def test_commands_that_build_write_contexts_with_the_given_llm(
    ingested: Project, tmp_path: Path, provider: LoopbackProvider, command: tuple[str, ...]
) -> None:
    write_evidence(tmp_path)
    assert run(*command, "--llm", "openai:gpt-4o-mini", "--yes").code == 0
    stored = ProjectManager(ingested.directory.parent).load("a").config
    assert (stored.context, stored.llm) == ("llm", "openai:gpt-4o-mini")


@pytest.mark.parametrize("command", OTHERS, ids=lambda command: command[0])
def test_other_commands_use_the_settings_of_their_options_once(
    ingested: Project, tmp_path: Path, provider: LoopbackProvider, command: tuple[str, ...]
) -> None:
    write_evidence(tmp_path)
    result = run(*command, "--llm", "openai:gpt-4o-mini", "--set", "chunk_size=500")
    assert result.code == 0, result.err
    assert ProjectManager(ingested.directory.parent).load("a").config == ProjectConfig.local()
    if command[0] == "estimate":
        assert "gpt-4o-mini" in result.out


@pytest.mark.parametrize("command", [*BUILDING, *OTHERS, ("ask", "a", "pump")], ids=lambda command: command[0])
def test_a_name_that_is_no_llm_is_an_error_of_the_option(
    ingested: Project, tmp_path: Path, command: tuple[str, ...]
) -> None:
    write_evidence(tmp_path)
    result = run(*command, "--llm", "gpt")
    assert (result.code, "--llm" in result.err) == (1, True)
    assert ProjectManager(ingested.directory.parent).load("a").config == ProjectConfig.local()


def test_a_paid_rebuild_is_confirmed_on_a_terminal(
    ingested: Project, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "has_terminal", lambda: True)
    ingested.update_config(context="llm", llm="openai:gpt-4o-mini")
    stopped = run("rebuild", "a")
    assert (stopped.code, "Request the contexts?" in stopped.err) == (1, True)
    assert ingested.info().version == "v000001"
    for options in (("--yes",), ("--max-cost", "1")):
        assert "Request" not in run("rebuild", "a", *options).err


def test_a_paid_ingest_is_confirmed_on_a_terminal(
    ingested: Project, tmp_path: Path, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "has_terminal", lambda: True)
    ingested.update_config(context="llm", llm="openai:gpt-4o-mini")
    files = [tmp_path / f"{name}.md" for name in ("yes", "limited", "quiet")]
    for file in files:
        file.write_text(f"# {file.stem}\n\nThe {file.stem} pump stops at noon.\n", encoding="utf-8")
    stopped = run("ingest", "a", *files)
    assert (stopped.code, "Request the contexts?" in stopped.err, len(provider.chat_calls)) == (1, True, 0)
    assert stopped.err.startswith("5 documents, 5 chunks: 5 calls for contexts, $0.00")
    for file, option in zip(files, (["--yes"], ["--max-cost", "1"], ["--quiet"]), strict=True):
        result = run("ingest", "a", file, *option)
        assert (result.code, "Request" in result.err) == (0, False)
    assert len(provider.chat_calls) == 5  # of the new files, and of the two that the project had
