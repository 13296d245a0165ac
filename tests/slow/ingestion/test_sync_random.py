"""Long histories of a synced folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.changes import RandomChanges, differences


@pytest.mark.parametrize("seed", [3, 4, 9, 10])
def test_after_200_random_changes_the_documents_are_those_of_a_fresh_ingest(
    seed: int, manager: ProjectManager, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    project = manager.create("synced", ProjectConfig.local())
    changes = RandomChanges(folder, seed)
    for batch in range(10):
        for _ in range(20):
            changes.change()
        if batch == 9:
            changes.finish()
        project.sync_folders([folder], allow_many=True)
    fresh = manager.create("fresh", ProjectConfig.local())
    fresh.ingest([folder])
    assert len(fresh.documents()) > 5
    assert differences(project, fresh) == [], f"seed {seed}: {changes.log}"
    version = project.sync_folders([folder]).version
    assert version == project.sync_folders([folder]).version, "a sync without changes publishes nothing"
