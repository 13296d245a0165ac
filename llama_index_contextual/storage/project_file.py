"""The settings of a project on disk: `project.json`, and the lock of its single writer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    FormatError,
    ProjectError,
    ProjectLockedError,
    ProjectNotFoundError,
)
from llama_index_contextual.storage import files

PROJECT_FILE = "project.json"
LOCK_FILE = ".lock"
FORMAT_VERSION = 1


def is_project(project_dir: Path) -> bool:
    """Return whether a directory is that of a project."""
    return (project_dir / PROJECT_FILE).is_file()


def write_config(project_dir: Path, config: ProjectConfig) -> None:
    """Write the settings of a project: the former ones stay until the new ones are on the disk."""
    content = {"format_version": FORMAT_VERSION, "config": config.model_dump()}
    files.replace(project_dir / PROJECT_FILE, json.dumps(content, ensure_ascii=False, indent=2).encode())


def read_config(project_dir: Path) -> ProjectConfig:
    """Read the settings of a project.

    Raises:
        ProjectError: The file is damaged.
        FormatError: A newer release wrote it.
    """
    name = project_dir.name
    try:
        raw = json.loads(files.read(project_dir / PROJECT_FILE))
        if raw["format_version"] > FORMAT_VERSION:
            raise FormatError(
                f"Project {name!r} has format {raw['format_version']}, this release reads up to {FORMAT_VERSION}:"
                f" upgrade llama-index-contextual.",
                name=name,
            )
        return ProjectConfig(**raw["config"])
    except ConfigurationError as error:
        raise ProjectError(f"{name}/{PROJECT_FILE}: {error}", name=name) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProjectError(
            f"{name}/{PROJECT_FILE} is damaged ({type(error).__name__}): restore it, or delete it and create the"
            f" project again; contexts in its ledger are not paid for twice.",
            name=name,
        ) from error


@contextlib.contextmanager
def write_lock(project_dir: Path) -> Iterator[None]:
    """Be the only writer of a project; the system frees the lock of a process that has died.

    Raises:
        ProjectLockedError: Another process, or thread, is writing.
        ProjectNotFoundError: The project's directory is gone.
    """
    if not project_dir.is_dir():
        # The lock would bring the directory back, empty.
        name = project_dir.name
        raise ProjectNotFoundError(f"Project {name!r} is not there any more: it was deleted or moved.", name=name)
    lock = FileLock(project_dir / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        name = project_dir.name
        raise ProjectLockedError(
            f"Another process is writing to project {name!r}: wait until it has finished.", name=name
        ) from error
    try:
        yield
    finally:
        lock.release()
