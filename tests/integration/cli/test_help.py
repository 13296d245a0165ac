"""The classes of the commands, and completion of names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.main import get_command

from llama_index_contextual.cli import app as cli
from llama_index_contextual.cli.common import complete_project, complete_setting
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager


@pytest.fixture
def contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a project "contracts"."""
    ProjectManager(tmp_path / "knowledge").create("contracts", ProjectConfig.local(indexes="lexical"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
