"""The help of the commands: layout, examples that run, and completion of names."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len
from rich.text import Text
from typer.core import TyperArgument
from typer.main import get_command

from llama_index_contextual.cli import app as cli
from llama_index_contextual.cli.commands import (
    EXAMPLES,
    Command,
    complete_document,
    complete_project,
    complete_setting,
)
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.test_cli import commands, run, show
from tests.support.pdf_files import encrypted

# Servers, which do not end; a model that is not there; the demo, which has tests of its own.
NOT_RUN = (
    *("mcp", "serve", "sync", "demo"),
    'ask contracts "Who may leave?" --llm',
    "ingest contracts FOLDER --ray",
)


@pytest.fixture
def contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files and the project of the examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLAMA_INDEX_CONTEXTUAL_ROOT", raising=False)
    monkeypatch.setattr("llama_index_contextual.cli.options.has_terminal", lambda: True)
    for name in ("FOLDER/2024/lease.pdf", "FOLDER/2023/lease.pdf", "FOLDER/lease.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"The notice period of {name} is three months.")
    for name in ("lease.pdf", "inbox/new.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encrypted("secret"))
    question = {"question": "What is the notice period?", "evidence": [{"text": "is three months"}]}
    (tmp_path / "q.jsonl").write_text(json.dumps(question))
    (tmp_path / "contexts.jsonl").write_text("")
    project = ProjectManager(tmp_path / "knowledge").create("contracts", ProjectConfig.local(faiss=False))
    for name in ("2024/lease.pdf", "2023/lease.pdf"):
        (tmp_path / "FOLDER" / name).rename(tmp_path / "FOLDER" / name.replace("pdf", "md"))
    project.ingest([tmp_path / "FOLDER" / "lease.txt"])
    project.ingest([tmp_path / "FOLDER"])
    return tmp_path


def runnable() -> list[str]:
    return [line for lines in EXAMPLES.values() for line in lines if not line.startswith(NOT_RUN)]


@pytest.mark.parametrize("line", sorted(set(runnable())))
def test_the_examples_run(contracts: Path, line: str) -> None:
    words = shlex.split(line.replace("2023/lease.pdf", "FOLDER/2023/lease.md").replace("2024/*", "FOLDER/2024/*"))
    words = [word.replace("*.pdf", "*.md") if "2024" in word else word for word in words]
    if words[0] == "create":
        words[1] = "another"
    result = run(*words, answer="secret\n" if "--password" in words else "y\n")
    skipped = "inbox" in line  # the only file in that folder needs a password
    assert result.code == (1 if skipped and result.err.startswith("Error: There is nothing") else 0), result.err


def test_every_command_has_an_example_that_fits_and_names_its_options() -> None:
    assert set(commands()) - {"serve", "sync"} <= set(EXAMPLES)
    for name, lines in EXAMPLES.items():
        for line in lines:
            assert len(line) <= 55, line
            command = commands().get(name)
            options = {option for parameter in command.params for option in parameter.opts} if command else set()
            used = {word for word in shlex.split(line) if word.startswith("-") and word != "-"}
            assert not command or used <= options, line


@pytest.mark.parametrize("name", ["", "ledger", *commands()])
def test_h_shows_the_help_with_usage_and_examples(name: str) -> None:
    short, long = run(*name.split(), "-h"), run(*name.split(), "--help")
    assert short.code == 0
    assert short.out == long.out
    lines = short.out.splitlines()
    assert lines[0].startswith("Usage: ")
    assert lines[2][0].isupper()
    assert any(line.startswith(("Example", "Examples")) for line in lines) or name in ("serve", "sync")
    assert all(line == line.rstrip() for line in lines)
    assert "<bool>" not in short.out


def test_every_option_with_a_value_names_what_it_takes() -> None:
    for name, command in commands().items():
        assert isinstance(command, Command), f"{name}: create its Typer with Commands()"
        for parameter in command.params:
            if not isinstance(parameter, TyperArgument) and not parameter.is_flag and name not in ("serve", "sync"):
                assert parameter.metavar, f"{name}: {parameter.name}"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_help_fits_the_terminal(columns: int) -> None:
    lines = show(columns, "ask", "-h").replace("\r", "").split("\n")
    plain = [Text.from_ansi(line).plain for line in lines]
    assert all(cell_len(line) <= columns for line in plain if "llama-index-contextual ask" not in line)


# ---- completion ----------------------------------------------------------------------------------------------------


class Context:
    """A Typer context with the values of the options so far."""

    def __init__(self, **params: Any) -> None:
        self.params = params


def test_projects_documents_and_settings_are_completed(contracts: Path) -> None:
    context: Any = Context(root=contracts / "knowledge", name="contracts")
    assert complete_project(context, "con") == ["contracts"]
    assert complete_project(context, "x") == []
    assert complete_document(context, "FOLDER/2") == ["FOLDER/2023/lease.md", "FOLDER/2024/lease.md"]
    assert [name for name, _ in complete_setting("chunk_s")] == ["chunk_size="]
    nothing: Any = Context(root=contracts / "nowhere", name="contracts")
    assert complete_project(nothing, "") == complete_document(nothing, "") == []


def test_completion_does_not_wait_for_llama_index(contracts: Path) -> None:
    script = (
        "import sys\n"
        "from llama_index_contextual.cli.commands import complete_document\n"
        "class Context: params = {'root': 'knowledge', 'name': 'contracts'}\n"
        "assert complete_document(Context, 'FOLDER')\n"
        "assert not {'llama_index', 'numpy', 'faiss'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=contracts)


def test_the_shell_can_ask_for_a_script() -> None:
    assert isinstance(cli.app, typer.Typer)
    options = {option for parameter in get_command(cli.app).params for option in parameter.opts}
    assert {"--install-completion", "--show-completion"} <= options
