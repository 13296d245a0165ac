"""A place beside a project for what is built and thrown away: it holds text of the documents too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from llama_index_contextual.storage import files
from llama_index_contextual.storage.lock import LOCK_FILE, locked

_WINDOWS = os.name == "nt"


@contextlib.contextmanager
def scratch(project_dir: Path) -> Iterator[Path]:
    """Give an empty directory that no other process uses, and remove it at the end.

    Raises:
        ProjectLockedError: Another process uses it.
    """
    directory = scratch_directory(project_dir)
    files.make_directory(directory)
    try:
        with locked(directory, name=project_dir.name, busy="comparing variants of project"):
            _clear(directory)
            try:
                yield directory
            finally:
                _clear(directory)
                if not _WINDOWS:
                    # While it is held, because afterwards it may be another one's.
                    files.remove(directory / LOCK_FILE)
        if _WINDOWS:
            files.remove(directory / LOCK_FILE)
    finally:
        files.remove_if_empty(directory)


def remove_scratch(project_dir: Path) -> None:
    """Remove what an interrupted process has left there, so that it does not come back after a power cut either.

    Raises:
        ProjectLockedError: A process uses it now.
    """
    if scratch_directory(project_dir).exists():
        with scratch(project_dir):
            pass
    files.sync_directory(project_dir.parent)


def scratch_directory(project_dir: Path) -> Path:
    """Return where that place is; it is there while a process uses it, or was killed when it did."""
    return project_dir.with_name(f".{project_dir.name}.compare")


def _clear(directory: Path) -> None:
    for path in sorted(directory.iterdir()):
        if path.name != LOCK_FILE:
            (files.remove_tree if path.is_dir() else files.remove)(path)
