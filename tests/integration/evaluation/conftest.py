"""A project with two documents, made once and copied for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.documents import write_texts


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with the project "reports"."""
    folder = tmp_path_factory.mktemp("evaluation")
    project = ProjectManager(folder / "knowledge").create("reports", ProjectConfig.local())
    project.ingest([write_texts(folder / "reports")])
    return folder / "knowledge"


@pytest.fixture
def filled(template: Path, manager: ProjectManager) -> Project:
    """A copy of it."""
    shutil.copytree(template, manager.root)
    return manager.load("reports")
