"""The directory of a project: settings in `project.json`, locks, and the scratch directory.

The scratch directory is next to the project's directory, and may contain document text.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import regex  # type: ignore[import-untyped]  # the package ships no types
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from llama_index_contextual._utils.files import require_open_files
from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    InputError,
    ProjectError,
    ProjectLockedError,
    ProjectNotFoundError,
    Remedy,
)
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.manifest import DAMAGE, FORMAT, checksum, require_format
from llama_index_contextual.index.versions import remove_leftovers
from llama_index_contextual.money.receipt import Receipt

logger = logging.getLogger(__name__)

PROJECT_FILE = "project.json"
_CHECKSUM = "xxh3"

LOCK_FILE = ".lock"
_WINDOWS = os.name == "nt"

MAX_NAME_LENGTH = 64
MAX_NAME_BYTES = 255

# Letters, digits and combining marks, except invisible characters (fillers, joiners, variation selectors).
_NAME = regex.compile(
    r"(?V1)[[\p{L}\p{N}]--\p{DI}] [[\p{L}\p{N}\p{M}_\-\ ]--\p{DI}]* (?:\.[[\p{L}\p{N}\p{M}_\-\ ]--\p{DI}]+)*",
    regex.VERBOSE,
)
WINDOWS_NAMES = frozenset({"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))})


class _Content(BaseModel):
    """Content of `project.json`, except the checksum.

    Attributes:
        format: Version number of the file format.
        config: The settings.
        embed_object: Description of an embedding model that was passed as an object.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int = FORMAT
    config: dict[str, Any]
    embed_object: dict[str, Any] | None = None


def is_project(project_dir: Path) -> bool:
    """Return whether a directory is a project."""
    return os.path.lexists(project_dir / PROJECT_FILE)


def check_name(name: str) -> str:
    """Check the name of a project and return it.

    Raises:
        InputError: The name is not a valid directory name on every system, or refers to a path outside the root folder.
    """
    if not isinstance(name, str) or not name:
        raise InputError("A project needs a name.", value=name)
    stem = name.split(".")[0].strip().casefold()
    fits = len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) and not name.endswith(" ")
    if fits and stem in WINDOWS_NAMES:
        raise InputError(f"{name!r} is reserved on Windows: choose another name.", value=name)
    if not fits or len(name.encode()) > MAX_NAME_BYTES or unicodedata.normalize("NFKC", name) != name:
        raise InputError(
            f"{name[:80]!r} is not a valid project name: use letters, digits, spaces, '-', '_' and single dots,"
            f" beginning with a letter or digit, at most {MAX_NAME_LENGTH} characters.",
            value=name,
        )
    return name


def no_link(directory: Path) -> Path:
    """Check that the directory of a project is not a symbolic link, and return it.

    Raises:
        InputError: The directory is a symbolic link.
    """
    if directory.is_symlink():
        raise InputError(
            f"{directory} is a symbolic link: a project is a directory in its root folder; open the project that the"
            f" link points to through its own root folder.",
            value=directory.name,
        )
    return directory


def project_names(root: Path) -> list[str]:
    """Return the sorted names of the projects in a root folder."""
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if is_project(path) and not path.is_symlink())


def existing_project(root: Path, name: str) -> Path:
    """Return the directory of a project.

    Raises:
        InputError: The name is invalid, or the directory is a link.
        ProjectNotFoundError: There is no project with this name.
    """
    directory = no_link(root / check_name(name))
    if not is_project(directory):
        names = project_names(root)
        known = f"projects there: {', '.join(names) or 'none yet'}"
        create = "create one with `llama-index-contextual create {project} --local`"
        raise ProjectNotFoundError(
            f"There is no project {name!r} in {root}{nearest(name, names)}",
            name=name,
            remedy=Remedy(known, known if names else create),
        )
    return directory


def write_config(project_dir: Path, config: ProjectConfig) -> None:
    """Replace the settings of a project atomically; the rest of the file is preserved if it can be read."""
    recorded = _read_or_none(project_dir) or _Content(config={})
    _write(project_dir, recorded, config=config.model_dump())


def _write(project_dir: Path, content: _Content, **changes: Any) -> None:
    values = {**dict(content), **changes}
    raw = {name: value for name, value in values.items() if value is not None}
    raw[_CHECKSUM] = checksum(raw)
    files.replace(project_dir / PROJECT_FILE, json.dumps(raw, ensure_ascii=False, indent=2).encode())


def embed_object(project_dir: Path) -> Mapping[str, Any] | None:
    """Return the recorded description of an embedding model that was passed as an object, or None."""
    content = _read_or_none(project_dir)
    return None if content is None else content.embed_object


def record_embed_object(project_dir: Path, described: Mapping[str, Any] | None) -> None:
    """Record the description of an embedding model object, or remove it if `described` is None.

    The write lock must be held.
    """
    if embed_object(project_dir) != described:
        _write(project_dir, _read(project_dir), embed_object=described)


def project_ledger(project_dir: Path) -> AbstractContextManager[Ledger]:
    """Return a context manager that opens the ledger of a project for writing.

    Raises:
        FormatError: The ledger was written by another release.
        CorruptVersionError: The ledger is damaged.
        LedgerError: The ledger cannot be opened, read or written.
    """
    return contextlib.closing(Ledger(project_dir / LEDGER_FILE))


def read_config(project_dir: Path) -> ProjectConfig:
    """Read the settings of a project.

    Raises:
        ProjectError: The file is damaged.
        FormatError: The file was written by a newer release, or before the first release.
    """
    content, name = _read(project_dir), project_dir.name
    try:
        return ProjectConfig(**content.config)
    except ConfigurationError as error:
        raise ProjectError(f"{name}/{PROJECT_FILE}: {error}", name=name) from error


def _read_or_none(project_dir: Path) -> _Content | None:
    """Return the content of project.json, or None if the file is missing, damaged or unreadable."""
    try:
        return _read(project_dir)
    except (ProjectError, OSError):
        return None


def _read(project_dir: Path) -> _Content:
    name = project_dir.name
    try:
        raw = parse_json(files.read(project_dir / PROJECT_FILE))
        require_format(raw, f"{name}/{PROJECT_FILE}", name=name)
        # A file written by hand may have no checksum. Defaults are used for missing settings.
        expected = raw.pop(_CHECKSUM, None)
        if expected not in (None, checksum(raw)):
            raise ProjectError(
                f"{name}/{PROJECT_FILE} does not match its checksum: if it was changed by hand, remove its"
                f" {_CHECKSUM!r}, otherwise restore the file.",
                name=name,
            )
        return _Content(**raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProjectError(
            f"{name}/{PROJECT_FILE} is damaged ({type(error).__name__}): restore it, or delete it and create the"
            f" project again; contexts in its ledger are not paid for twice.",
            name=name,
        ) from error
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError) and not is_project(project_dir)
        if is_missing or error.errno not in DAMAGE:
            raise
        raise ProjectError(
            f"{name}/{PROJECT_FILE} cannot be read ({error.strerror or error}): restore it, or delete it and create the"
            f" project again; contexts in its ledger are not paid for twice.",
            name=name,
        ) from error


def record_answers_of(project_dir: Path, cost: Receipt) -> None:
    """Add the cost of answers to the receipts of a project.

    Raises:
        LedgerError: The ledger cannot be opened or written.
    """
    with project_ledger(project_dir) as ledger:
        ledger.receipts.add_answers(cost)


# ---- locks -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def directory_lock(directory: Path, *, name: str, busy: str) -> Iterator[None]:
    """Lock a directory until the block ends or the process dies.

    Args:
        directory: The directory.
        name: Name of the project, for error messages.
        busy: Activity of the process that holds the lock, such as "writing to project", for error messages.

    Raises:
        ProjectLockedError: Another process or thread holds the lock.
        ProjectNotFoundError: The directory does not exist.
        ProjectError: The lock file cannot be written to.
    """
    if not directory.is_dir():
        raise deleted_error(name)  # FileLock would create the directory
    lock = FileLock(directory / LOCK_FILE, timeout=0)
    try:
        files.create_empty(directory / LOCK_FILE)  # FileLock would let everybody write to it if the umask is 000
        lock.acquire()
    except Timeout as error:
        raise ProjectLockedError(
            f"Another process is {busy} {name!r}",
            name=name,
            remedy=Remedy(
                "wait until it has finished; `ingest` and `sync_folders` do so with wait=SECONDS",
                "wait until it has finished; `ingest`, `sync` and `open` do so with --wait SECONDS",
            ),
        ) from error
    except OSError as error:
        require_open_files()
        raise ProjectError(
            f"Project {name!r} cannot be changed ({error.strerror or error}): make its folder writable for this user.",
            name=name,
        ) from error
    try:
        if not (directory / LOCK_FILE).exists():
            raise deleted_error(name)  # deleted while this process was acquiring the lock
        yield
    finally:
        lock.release()


def require_existing(project_dir: Path) -> Path:
    """Check that the directory of an open project still exists, and return it.

    Raises:
        ProjectNotFoundError: The project was deleted or moved.
    """
    if not project_dir.is_dir():
        raise deleted_error(project_dir.name)
    return project_dir


def deleted_error(name: str) -> ProjectNotFoundError:
    """Return the error for a project that was deleted or moved after it had been opened."""
    return ProjectNotFoundError(
        f"Project {name!r} no longer exists: it was deleted or moved; if it was renamed, load it by its new name.",
        name=name,
    )


@contextlib.contextmanager
def write_lock(project_dir: Path) -> Iterator[None]:
    """Hold the write lock of a project until the block ends.

    Leftovers of interrupted writers and comparisons are removed first.

    Raises:
        ProjectLockedError: Another process or thread is writing.
        ProjectNotFoundError: The project's directory does not exist.
    """
    with directory_lock(project_dir, name=project_dir.name, busy="writing to project"):
        remove_leftovers(project_dir)
        with contextlib.suppress(ProjectLockedError):  # a comparison is still running
            if scratch_directory(project_dir).exists():
                remove_scratch(project_dir)
        yield


# ---- scratch directory -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def scratch(project_dir: Path) -> Iterator[Path]:
    """Yield an empty directory that no other process uses, and remove it afterwards.

    Raises:
        ProjectLockedError: Another process is using the directory.
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
                    # Removed before the lock is released, because another process may hold the lock afterwards.
                    files.remove(directory / LOCK_FILE)
        if _WINDOWS:
            files.remove(directory / LOCK_FILE)
    finally:
        files.remove_if_empty(directory)


def remove_scratch(project_dir: Path) -> None:
    """Remove the scratch directory if an interrupted process left it behind, and sync the removal to disk.

    Raises:
        ProjectLockedError: A process is using the directory.
    """
    if scratch_directory(project_dir).exists():
        with scratch(project_dir):
            pass
    files.sync_directory(project_dir.parent)


def scratch_directory(project_dir: Path) -> Path:
    """Return the path of the scratch directory.

    The directory exists only while it is in use, or after the process that used it was killed.
    """
    return project_dir.with_name(f".{project_dir.name}.compare")


def _clear(directory: Path) -> None:
    for path in sorted(directory.iterdir()):
        if path.name != LOCK_FILE:
            (files.remove_tree if path.is_dir() else files.remove)(path)
