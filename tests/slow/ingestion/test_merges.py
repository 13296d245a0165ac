"""Merges of parts that are interrupted: the work is done once, and a finished part is used only for its content."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_index_contextual.index import versions, writer
from llama_index_contextual.index.part import Part
from llama_index_contextual.index.versions import current_name, leftovers
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.test_parts import create, document
from tests.slow.faults.system import Crash, FaultySystem, installed
from tests.support.models import CountingEmbedding

PARTS = writer.MAX_SMALL_PARTS + 1
"""Number of parts that the next ingest merges."""

STRIDE = 13
"""Every so many operations a merge is killed."""


def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the name of every part is added that is copied from now on."""
    names: list[str] = []
    copy = writer.PartWriter.copy

    def counted(self: writer.PartWriter, source: Part) -> None:
        names.append(source.directory.name)
        copy(self, source)

    monkeypatch.setattr(writer.PartWriter, "copy", counted)
    return names


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


def test_a_merge_that_is_killed_at_any_step_is_not_repeated_once_its_part_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = before_a_merge(tmp_path)
    expected = [f"doc{number:03d}" for number in (*range(PARTS - 1), 20, 21, 50)]
    names = copies(monkeypatch)
    reused: list[bool] = []
    for at in range(0, 10_000, STRIDE):
        root = tmp_path / f"copy{at}"
        shutil.copytree(template.directory, root / "p")
        project = ProjectManager(root).load("p", embed_model=CountingEmbedding())
        was_interrupted = interrupt(project, at)
        unfinished = current_name(project.directory) == f"v{PARTS:06d}"
        names.clear()
        again = ProjectManager(root).load("p", embed_model=CountingEmbedding())
        again.ingest([document(50)])
        if was_interrupted and unfinished:
            reused.append(not names)
        assert sorted(record.doc_id for record in again.documents()) == expected
        assert again.read("doc003") == document(3).text
        assert again.verify().sound
        again.ingest([document(51)])
        assert leftovers(again.directory) == []
        shutil.rmtree(root)
        if not was_interrupted:
            break
    # Up to some operation the merge is repeated, from then on its part is used.
    assert reused == sorted(reused)
    assert reused.count(False) > 2
    assert reused.count(True) > 2


@pytest.mark.parametrize("change", ["document", "release", "damage"])
def test_a_finished_merge_of_other_content_or_a_damaged_one_is_not_used(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = before_a_merge(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(versions, "publish", raising(RuntimeError("killed")))
        patch.setattr(writer.VersionBuilder, "discard", lambda self: None)
        with pytest.raises(RuntimeError, match="killed"):
            project.ingest([document(50)])
    merged = project.directory / "parts" / f"p{PARTS + 1:06d}"
    assert merged in leftovers(project.directory)
    names = copies(monkeypatch)
    if change == "document":
        project.ingest([document(20, edition=2)])
    elif change == "release":
        monkeypatch.setattr(writer, "__version__", "999")
        project.ingest([document(50)])
    else:
        store = merged / "docstore.sqlite"
        store.write_bytes(store.read_bytes()[:-1] + b"?")
        project.ingest([document(50)])
    assert len(names) == PARTS
    assert leftovers(project.directory) == []
    assert project.verify().sound
    assert project.read("doc020") == document(20, edition=2 if change == "document" else 1).text


def raising(error: Exception) -> Callable[..., object]:
    def fail(*args: object, **options: object) -> object:
        raise error

    return fail


def test_the_work_on_new_documents_is_not_lost_to_an_interrupted_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = before_a_merge(tmp_path)
    model = CountingEmbedding()
    again = ProjectManager(tmp_path).load("p", embed_model=model)
    with monkeypatch.context() as patch:
        patch.setattr(writer.PartWriter, "copy", raising(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            again.ingest([document(50)])
    assert model.texts == []
    assert leftovers(project.directory) == []
