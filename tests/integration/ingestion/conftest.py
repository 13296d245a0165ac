"""A project whose embedding model counts its calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.current import leftovers, version_names
from tests.support.models import CountingEmbedding


@pytest.fixture
def model() -> CountingEmbedding:
    """An embedding model that remembers what it embedded."""
    return CountingEmbedding()


@pytest.fixture
def counted(manager: ProjectManager, model: CountingEmbedding) -> Project:
    """An empty project with that model, whose vectors are kept in the ledger like those of a provider."""
    return manager.create("counted", ProjectConfig.local(), embed_model=model)


@pytest.fixture(autouse=True)
def _every_project_is_sound_in_the_end(tmp_path: Path) -> object:
    """Whatever a test did: what is live opens, every checksum is right, and nothing unfinished lies about."""
    yield
    for file in tmp_path.glob("knowledge/*/project.json"):
        project = Project(file.parent, ProjectConfig.local())
        report = project.verify()
        assert report.sound, report
        assert leftovers(file.parent) == []
        assert [version.name for version in project.versions()] == version_names(file.parent)
