"""Projects of the commands: one is built for all tests, and copied for each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llama_index_contextual.cli import common
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import lines_of, run
from tests.support.documents import write_texts
from tests.support.server import LoopbackProvider


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root folder, known to every command by the environment."""
    path = tmp_path / "knowledge"
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(path))
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project with one version of two documents, which no test changes."""
    folder = write_texts(tmp_path_factory.mktemp("built") / "reports")
    project = ProjectManager(folder.parent / "knowledge").create("a", ProjectConfig.local())
    project.ingest([folder])
    return folder.parent


@pytest.fixture
def ingested(root: Path, _built: Path) -> Project:
    """Project "a" with one version of two documents, whose files are in another folder than `text_folder`."""
    shutil.copytree(_built / "knowledge", root)
    return ProjectManager(root).load("a")


@pytest.fixture
def reading_only(_built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root folder of a project "a" that all tests share, known to every command by the environment."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(_built / "knowledge"))
    return _built / "knowledge"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    """The provider on the loopback interface, as the environment names it."""
    with LoopbackProvider() as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run a command as on a terminal of so many columns and 24 lines, and return the lines that it shows."""

    def shown(columns: int, *arguments: object) -> list[str]:
        with monkeypatch.context() as patch:
            for name, value in {"_force_terminal": True, "_width": columns, "_height": 24}.items():
                patch.setattr(common.out, name, value)
            result = run(*arguments)
        assert result.code == 0, result.err
        return lines_of(result.out)

    return shown
