"""Open files that may have been replaced by something else, such as a pipe, and explain limits on open files."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from llama_index_contextual.errors import OpenFilesError

T = TypeVar("T")

READING = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Flags for `os.open`, which returns at once even if the file is a pipe without a writer."""

NOT_A_FILE = errno.EINVAL
"""Number of the error for something that is not a file, such as a pipe or a device."""


TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def explained_limit() -> Iterator[None]:
    """Convert an OSError within the context to OpenFilesError if too many files are open."""
    try:
        yield
    except OSError as error:
        if error.errno not in TOO_MANY_FILES:
            raise
        raise OpenFilesError from error


def require_open_files() -> None:
    """Check that a file can be opened, after a library has failed to open one without saying why.

    Raises:
        OpenFilesError: Too many files are open.
    """
    with explained_limit():
        os.close(os.open(os.devnull, os.O_RDONLY))


def explains_limit(cls: type[T]) -> type[T]:
    """Decorate a class so that its public methods raise OpenFilesError if too many files are open."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(cls, name, _explaining(member))
    return cls


def _explaining(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with explained_limit():
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        with explained_limit():
            return await function(*args, **kwargs)

    return arun if inspect.iscoroutinefunction(function) else run


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading, without blocking if a pipe has replaced it.

    Raises:
        OSError: The file cannot be opened or is not a regular file.
    """
    descriptor = os.open(path, READING)
    try:
        require_regular(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def require_regular(path: Path, status: os.stat_result) -> None:
    """Check the status of a file.

    Raises:
        OSError: It is not a regular file.
    """
    if not stat.S_ISREG(status.st_mode):
        raise OSError(NOT_A_FILE, "it is not a regular file", str(path))


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: The file cannot be read, is not a regular file, or has more bytes than `max_bytes`.
    """
    with open_file(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > max_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {max_bytes:,}", str(path))
        return file.read(max_bytes)
