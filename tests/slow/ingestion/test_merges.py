"""Merges of parts that are interrupted: nothing is lost, and the next ingest merges them."""

from __future__ import annotations

import shutil
from pathlib import Path

from llama_index_contextual.index import writer
from llama_index_contextual.index.versions import current_name, leftovers
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.slow.faults.system import Crash, FaultySystem, installed
from tests.slow.ingestion.test_parts import create, document
from tests.support.models import CountingEmbedding

PARTS = writer.MAX_SMALL_PARTS + 1
"""Number of parts that the next ingest merges."""

STRIDE = 13
"""Every so many operations a merge is killed."""


def before_a_merge(root: Path) -> Project:
    project = create(root, "p")
    for number in range(PARTS - 1):
        project.ingest([document(number)])
    project.ingest([document(20), document(21)])
    return project


def interrupt(project: Project, at: int) -> bool:
    """Add document 50, and stop at an operation on files as a killed process does; return whether it stopped."""
    system = FaultySystem(at, "exit", after=True)
    with installed(system):
        try:
            project.ingest([document(50)])
        except Crash:
            return True
    return False


def test_after_a_merge_that_is_killed_at_any_step_the_next_ingest_loses_nothing(tmp_path: Path) -> None:
    template = before_a_merge(tmp_path)
    expected = [f"doc{number:03d}" for number in (*range(PARTS - 1), 20, 21, 50)]
    unfinished: list[bool] = []
    for at in range(0, 10_000, STRIDE):
        root = tmp_path / f"copy{at}"
        shutil.copytree(template.directory, root / "p")
        project = ProjectManager(root).load("p", embed_model=CountingEmbedding())
        was_interrupted = interrupt(project, at)
        unfinished.append(current_name(project.directory) == f"v{PARTS:06d}")
        again = ProjectManager(root).load("p", embed_model=CountingEmbedding())
        again.ingest([document(50)])
        assert sorted(record.doc_id for record in again.documents()) == expected
        assert again.read("doc003") == document(3).text
        assert again.verify().sound
        again.ingest([document(51)])
        assert leftovers(again.directory) == []
        shutil.rmtree(root)
        if not was_interrupted:
            break
    assert unfinished.count(True) > 2
