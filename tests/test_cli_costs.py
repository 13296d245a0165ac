"""What a command will cost, what it may cost, and what it has cost, on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llama_index_contextual import cli
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.manager import ProjectManager
from llama_index_contextual.project import Project
from tests.support.server import LoopbackProvider
from tests.test_cli import at_a_terminal


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider() as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    root = tmp_path / "knowledge"
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(root))
    return ProjectManager(root).create("a", ProjectConfig())


def run(*arguments: object) -> tuple[int, str, str]:
    found = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.stdout, found.stderr


def test_an_estimate_is_a_table_with_the_chosen_row_marked(project: Project, text_folder: Path) -> None:
    code, out, err = run("estimate", "a", text_folder)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("2 documents, 2 chunks, ")
    assert lines[1].split() == ["chunks/call", "sender", "calls", "input", "cached", "output", "time", "price"]
    assert [line.split()[:3] for line in lines if line.startswith("→")] == [["→", "1", "live"]]
    assert "in all, as set: $" in out
    batched = run("estimate", "a", text_folder, "--batch")[1].splitlines()
    assert [line.split()[2] for line in batched if line.startswith("→")] == ["batch"]


def test_what_was_paid_stands_under_the_result_beside_what_was_estimated(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    estimated = json.loads(run("estimate", "a", text_folder, "--json")[1])
    code, out, _ = run("ingest", "a", text_folder, "--quiet")
    assert code == 0
    calls = len(provider.chat_calls)
    assert f"{calls} calls (estimated {estimated['chosen']['calls']})" in out
    assert "by genai-prices" in out


def test_a_limit_that_is_reached_is_one_line_and_says_how_to_go_on(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    code, out, err = run("ingest", "a", text_folder, "--quiet", "--max-cost", "0.0001")
    assert (code, out) == (1, "")
    assert err.startswith("Error: max_cost of $0.0001 is reached: ")
    assert err.count("\n") == 1
    assert "higher max_cost" in err
    assert provider.calls() == []


def test_batches_of_a_project_without_llm_are_one_line(tmp_path: Path, project: Project, text_folder: Path) -> None:
    ProjectManager(tmp_path / "knowledge").create("b", ProjectConfig.local())
    code, _, err = run("ingest", "b", text_folder, "--quiet", "--batch")
    assert code == 1
    assert err == "Error: Batches are for contexts that an LLM writes: set context to 'llm', or leave batch out.\n"


def test_one_of_a_thing_is_called_by_its_singular(
    provider: LoopbackProvider, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch)
    file, questions = tmp_path / "note.txt", tmp_path / "questions.jsonl"
    file.write_text("The pump runs dry.")
    questions.write_text(json.dumps({"question": "What runs dry?", "evidence": ["The pump runs dry."]}))
    project.update_config(llm_concurrency=1)
    told = [run("estimate", "a", file), run("ingest", "a", file)]
    file.write_text("The pump runs.")
    told += [run("ingest", "a", file), run("rollback", "a"), run("verify", "a")]
    for command in (
        "info",
        "versions",
        "documents",
        "search a pump",
        f"evaluate a {questions} --k 1",
        "forget a --yes",
    ):
        name, *arguments = command.split()
        told.append(run(name, *(arguments or ["a"])))
    told += [run("ledger", "export", "a", tmp_path / "contexts.jsonl"), run("delete", "a")]
    assert [code for code, _, _ in told] == [0] * (len(told) - 1) + [1]  # nobody says yes
    said = " ".join(f"{out} {err}" for _, out, err in told)
    for noun in ("document", "chunk", "context", "embedding", "version", "call", "question", "result", "paid context"):
        assert f"1 {noun}" in said, noun
    assert re.findall(r"(?<![\d.,/v])1 (?:[a-z]+ )?[a-z]+s\b.{20}", said) == []
