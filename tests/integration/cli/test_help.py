"""The help of the commands: examples that run, and completion of names."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.main import get_command

from llama_index_contextual.cli import app as cli
from llama_index_contextual.cli.common import (
    EXAMPLES,
    Command,
    complete_project,
    complete_setting,
)
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.cli import at_a_terminal, commands, run
from tests.support.pdf_files import encrypted

# Servers, which do not end; a model that is not there; the demo, which has tests of its own.
NOT_RUN = (
    *("mcp", "open", "serve", "sync", "demo"),
    'ask contracts "Who may leave?" --llm',
    "ingest contracts FOLDER --ray",
)


@pytest.fixture(scope="module")
def _examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files and the project of the examples."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("FOLDER/2024/lease.md", "FOLDER/2023/lease.md", "FOLDER/lease.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"The notice period of {name} is three months.")
    for name in ("lease.pdf", "inbox/new.pdf"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(encrypted("secret"))
    question = {"question": "What is the notice period?", "evidence": [{"text": "is three months"}]}
    (folder / "q.jsonl").write_text(json.dumps(question))
    (folder / "paid.jsonl").write_text("")
    project = ProjectManager(folder / "knowledge").create("contracts", ProjectConfig.local(indexes="lexical"))
    project.ingest([folder / "FOLDER" / "lease.txt"])
    project.ingest([folder / "FOLDER"])
    return folder


@pytest.fixture
def contracts(_examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files and the project of the examples."""
    at_a_terminal(monkeypatch)
    monkeypatch.chdir(shutil.copytree(_examples, tmp_path / "work"))
    return tmp_path / "work"


@pytest.mark.parametrize(
    "line", sorted({line for lines in EXAMPLES.values() for line in lines if not line.startswith(NOT_RUN)})
)
def test_the_examples_run(contracts: Path, line: str) -> None:
    words = shlex.split(line.replace("2023/lease.pdf", "FOLDER/2023/lease.md").replace("2024/*", "FOLDER/2024/*"))
    words = [word.replace("*.pdf", "*.md") if "2024" in word else word for word in words]
    if words[0] == "create":
        words[1] = "another"
    result = run(*words, answer="secret\n" if "--password" in words else "y\n")
    skipped = "inbox" in line  # the only file in that folder needs a password
    assert result.code == (1 if skipped and result.err.startswith("Error: There is nothing") else 0), result.err


def test_every_example_fits_and_names_options_of_its_command() -> None:
    assert set(EXAMPLES) <= {"", *commands()}
    assert all(isinstance(command, Command) for command in commands().values()), "create its Typer with Commands()"
    for name, lines in EXAMPLES.items():
        for line in lines:
            assert len(line) <= 55, line
            command = commands().get(name)
            options = {option for parameter in command.params for option in parameter.opts} if command else set()
            used = {word for word in shlex.split(line) if word.startswith("-") and word != "-"}
            assert not command or used <= options, line


def test_projects_and_settings_are_completed(contracts: Path) -> None:
    context: Any = SimpleNamespace(params={"root": contracts / "knowledge", "name": "contracts"})
    assert complete_project(context, "con") == ["contracts"]
    assert complete_project(context, "x") == []
    assert [name for name, _ in complete_setting("chunk_s")] == ["chunk_size="]
    nothing: Any = SimpleNamespace(params={"root": contracts / "nowhere", "name": "contracts"})
    assert complete_project(nothing, "") == []
    assert isinstance(cli.app, typer.Typer)
    options = {option for parameter in get_command(cli.app).params for option in parameter.opts}
    assert {"--install-completion", "--show-completion"} <= options


def test_completion_does_not_wait_for_llama_index(contracts: Path) -> None:
    script = (
        "import sys\n"
        "from llama_index_contextual.cli.common import complete_project\n"
        "class Context: params = {'root': 'knowledge'}\n"
        "assert complete_project(Context, 'con')\n"
        "assert not {'llama_index', 'numpy', 'faiss'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=contracts)
