"""The settings of a project on disk: `project.json`, and how its single writer begins."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    FormatError,
    ProjectError,
    ProjectLockedError,
)
from llama_index_contextual.storage import files
from llama_index_contextual.storage.current import remove_leftovers
from llama_index_contextual.storage.lock import locked
from llama_index_contextual.storage.manifest import checksum
from llama_index_contextual.storage.scratch import remove_scratch, scratch_directory

PROJECT_FILE = "project.json"
FORMAT_VERSION = 1

_CHECKSUM = "xxh3"


def is_project(project_dir: Path) -> bool:
    """Return whether a directory is that of a project."""
    return (project_dir / PROJECT_FILE).is_file()


def write_config(project_dir: Path, config: ProjectConfig) -> None:
    """Write the settings of a project: the former ones stay until the new ones are on the disk."""
    content: dict[str, Any] = {"format_version": FORMAT_VERSION, "config": config.model_dump()}
    content[_CHECKSUM] = checksum(content)
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
        # Without a checksum the file was written by hand, which is fine: what it does not name has the default.
        given = raw.pop(_CHECKSUM, None)
        if given is not None and given != checksum(raw):
            raise ProjectError(
                f"{name}/{PROJECT_FILE} has another content than when it was written: if it was changed by hand, remove"
                f" its {_CHECKSUM!r}, otherwise restore the file.",
                name=name,
            )
        if set(raw) != {"format_version", "config"}:
            raise KeyError("format_version, config")
        return ProjectConfig(**raw["config"]) if given is None else ProjectConfig.recorded(raw["config"])
    except ConfigurationError as error:
        raise ProjectError(f"{name}/{PROJECT_FILE}: {error}", name=name) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProjectError(
            f"{name}/{PROJECT_FILE} is damaged ({type(error).__name__}): restore it, or delete it and create the"
            f" project again; contexts in its ledger are not paid for twice.",
            name=name,
        ) from error


@contextlib.contextmanager
def write_lock(project_dir: Path) -> Iterator[None]:
    """Be the only writer of a project, and clear away what an interrupted one, or an interrupted comparison, left.

    Raises:
        ProjectLockedError: Another process, or thread, is writing.
        ProjectNotFoundError: The project's directory is gone.
    """
    with locked(project_dir, name=project_dir.name, busy="writing to project"):
        remove_leftovers(project_dir)
        with contextlib.suppress(ProjectLockedError):  # a comparison that goes on has nothing left behind
            if scratch_directory(project_dir).exists():
                remove_scratch(project_dir)
        yield
