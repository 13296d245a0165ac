"""Commands with URLs: `sync`, `sync --watch`, `open`, and copies of projects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from llama_index_contextual.cli import documents
from llama_index_contextual.cli.documents import Watch
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.project.manager import ProjectManager
from tests.support.cli import run


@pytest.fixture
def store() -> Iterator[Any]:
    """An in-memory store in which other tests have no files; its root is `store.root`."""
    store = fsspec.filesystem("memory", skip_instance_cache=True)
    store.root = f"/{uuid4().hex}"
    for name in ("one", "two"):
        store.pipe_file(f"{store.root}/docs/{name}.md", f"# Document {name}\n\nThe text of {name}.".encode())
    yield store
    for path in store.find(store.root):
        store.rm_file(path)


def test_a_source_is_synced_after_its_removals_are_confirmed(root: Path, store: Any) -> None:
    url = f"memory:/{store.root}/docs"
    assert run("create", "a", "--local", "--root", root).code == 0
    assert "2 added" in run("sync", "a", url, "--root", root).out
    store.rm(f"{store.root}/docs/two.md")
    store.pipe_file(f"{store.root}/docs/three.md", b"# Three\n\nThe text of three.")
    shown = run("sync", "a", url, "--dry-run", "--root", root).out
    assert "docs/three.md" in shown
    assert "docs/two.md" in shown
    assert run("sync", "a", url, "--yes", "--root", root).code == 0
    assert [record["doc_id"] for record in run("documents", "a", "--root", root, "--json").json] == [
        "docs/one.md",
        "docs/three.md",
    ]
    assert "are missing in" not in run("doctor", "a", "--root", root).out


def test_a_watched_source_is_listed_again(root: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "POLL", 0.0)
    monkeypatch.setattr(documents, "_TICK", 1)
    project = ProjectManager(root).create("a", ProjectConfig.local())
    url = f"memory:/{store.root}/docs"
    reports: list[IngestReport] = []

    def work(**options: Any) -> IngestReport:
        reports.append(project.sync_folders(url, **options))
        store.pipe_file(f"{store.root}/docs/{len(reports)}.md", f"# Number {len(reports)}\n\nText.".encode())
        if len(reports) == 3:
            watch.stop.set()
        return reports[-1]

    watch = Watch(project, [url], work, settle=0.0)
    watch.start()
    assert [report.added for report in reports] == [("docs/one.md", "docs/two.md"), ("docs/1.md",), ("docs/2.md",)]


def test_a_source_is_opened_as_a_project_of_its_name(root: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_index_contextual.ui.app", None)  # the Workbench would run until it is ended
    url = f"memory:/{store.root}/docs"
    first = run("open", url, "--root", root)
    assert first.code == 0, first.err
    assert f"The project is docs in {root}." in first.out
    store.pipe_file(f"{store.root}/docs/three.md", b"# Three\n\nThe text of three.")
    assert "1 added" in run("open", url, "--root", root).out
    assert len(ProjectManager(root).load("docs").documents()) == 3


def test_a_project_is_copied_to_another_root(root: Path, store: Any, tmp_path: Path) -> None:
    project = ProjectManager(root).create("a", ProjectConfig.local())
    project.ingest(f"memory:/{store.root}/docs")
    url = f"memory:/{store.root}/a.zip"
    assert "Exported v000001 with 2 documents" in run("project", "export", "a", url, "--root", root).out
    other = ["--name", "b", "--root", tmp_path / "other"]
    assert run("project", "import", url, *other).out == "v000001 of b with 2 documents is live.\n"
    assert run("project", "import", url, *other).out == "v000001 of b with 2 documents was live already.\n"
    failed = run("project", "import", tmp_path / "nowhere.zip", *other)
    assert failed.code == 2
    assert "does not exist: name a file that was exported" in failed.err
