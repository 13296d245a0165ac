"""A folder with three documents that a project "a" is in step with, and the changes that `sync` finds in it."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from llama_index_contextual.cli.documents import Watch
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.trees import write

CHANGED = {"files/uno.md", "files/three.md", "files/four.md"}
"""The documents after `change`."""

REFILLED = {"files/one.md", "files/two.md", "files/three.md", "files/new.md"}
"""The documents after `refill`, as long as their removal is not confirmed."""


def write_folder(folder: Path) -> Path:
    """Write three documents into a folder and return it."""
    for name in ("one", "two", "three"):
        write(folder / f"{name}.md", f"# Document {name}\n\nThe text of {name}.")
    return folder


def synced_project(root: Path, folder: Path) -> Project:
    """Create project "a" in step with a folder."""
    project = ProjectManager(root).create("a", ProjectConfig.local())
    project.sync_folders([folder])
    return project


def change(folder: Path) -> None:
    """Rename, remove, change, and add a document."""
    (folder / "one.md").rename(folder / "uno.md")
    (folder / "two.md").unlink()
    write(folder / "three.md", "# Changed\n\nAnother text.")
    write(folder / "four.md", "# Four\n\nA new one.")


def refill(folder: Path) -> None:
    """Replace a folder by one with one of its files and a new one."""
    other = folder.with_name("other")
    write(other / "one.md", (folder / "one.md").read_bytes())
    write(other / "new.md", "# New\n\nA new file.")
    folder.rename(folder.with_name("deleted"))
    other.rename(folder)
    shutil.rmtree(folder.with_name("deleted"))


def ids(project: Project) -> set[str]:
    """Return the ids of the documents of a project."""
    return {record.doc_id for record in project.documents()}


def watch_of(project: Project, folder: Path, *, allow_many: bool = False, **options: Any) -> Watch:
    """Return what `sync --watch` does after each change."""
    work = partial(project.sync_folders, [str(folder)], allow_many=allow_many)
    return Watch(project, [str(folder)], work, **{"settle": 0.0} | options)
