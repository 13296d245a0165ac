"""A project with one published version, created once and copied for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.documents import write_texts
from tests.support.models import CountingEmbedding


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    config = ProjectConfig.local(chunk_size=40, chunk_overlap=0, keep_versions=2)
    project = ProjectManager(folder / "knowledge").create("reports", config, embed_model=CountingEmbedding())
    project.ingest([write_texts(folder / "reports")])
    return folder / "knowledge"


@pytest.fixture
def published(_template: Path, tmp_path: Path) -> Project:
    """A project with one version of two documents in several chunks, free to be damaged."""
    shutil.copytree(_template, tmp_path / "knowledge")
    return ProjectManager(tmp_path / "knowledge").load("reports", embed_model=CountingEmbedding())


@pytest.fixture
def part(published: Project) -> Path:
    """The directory of the only part of its version."""
    return published.directory / "parts" / "p000001"


@pytest.fixture
def version(published: Project) -> Path:
    """The directory of its version."""
    return published.directory / "versions" / "v000001"
