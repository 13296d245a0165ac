"""Lock of a directory that only one process at a time may change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from llama_index_contextual.errors import ProjectError, ProjectLockedError, ProjectNotFoundError

LOCK_FILE = ".lock"


@contextlib.contextmanager
def directory_lock(directory: Path, *, name: str, busy: str) -> Iterator[None]:
    """Lock a directory; the operating system releases the lock if the process dies.

    Args:
        directory: The directory.
        name: Name of the project, for error messages.
        busy: Activity of a process that holds the lock, such as "writing to project".

    Raises:
        ProjectLockedError: Another process or thread holds the lock.
        ProjectNotFoundError: The directory does not exist.
        ProjectError: The lock file cannot be written.
    """
    if not directory.is_dir():
        # FileLock would create the directory.
        raise _not_found(name)
    lock = FileLock(directory / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise ProjectLockedError(
            f"Another process is {busy} {name!r}: wait until it has finished.", name=name
        ) from error
    except OSError as error:
        raise ProjectError(
            f"Project {name!r} cannot be changed ({error.strerror or error}): make its folder writable for this user.",
            name=name,
        ) from error
    try:
        if not (directory / LOCK_FILE).exists():
            raise _not_found(name)  # deleted while this process was acquiring the lock
        yield
    finally:
        lock.release()


def _not_found(name: str) -> ProjectNotFoundError:
    return ProjectNotFoundError(f"Project {name!r} no longer exists: it was deleted or moved.", name=name)
