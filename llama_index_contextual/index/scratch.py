"""Temporary directory next to a project, which may contain text of its documents."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from llama_index_contextual.index import files
from llama_index_contextual.index.lock import LOCK_FILE, directory_lock

_WINDOWS = os.name == "nt"


@contextlib.contextmanager
def scratch(project_dir: Path) -> Iterator[Path]:
    """Yield an empty directory that no other process uses, and remove it afterwards.

    Raises:
        ProjectLockedError: Another process is using it.
    """
    directory = scratch_directory(project_dir)
    files.make_directory(directory)
    try:
        with directory_lock(directory, name=project_dir.name, busy="comparing variants of project"):
            _clear(directory)
            try:
                yield directory
            finally:
                _clear(directory)
                if not _WINDOWS:
                    # Before the lock is released, because afterwards another process may hold it.
                    files.remove(directory / LOCK_FILE)
        if _WINDOWS:
            files.remove(directory / LOCK_FILE)
    finally:
        files.remove_if_empty(directory)


def remove_scratch(project_dir: Path) -> None:
    """Remove the directory if an interrupted process has left it, and sync the removal to disk.

    Raises:
        ProjectLockedError: A process is using it.
    """
    if scratch_directory(project_dir).exists():
        with scratch(project_dir):
            pass
    files.sync_directory(project_dir.parent)


def scratch_directory(project_dir: Path) -> Path:
    """Return the path of the directory, which exists while a process uses it or after it was killed."""
    return project_dir.with_name(f".{project_dir.name}.compare")


def _clear(directory: Path) -> None:
    for path in sorted(directory.iterdir()):
        if path.name != LOCK_FILE:
            (files.remove_tree if path.is_dir() else files.remove)(path)
