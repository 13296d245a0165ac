"""Open files that other programs may have replaced by something that cannot be read, such as a pipe."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

READING = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Flags for `os.open`, which returns at once even if the file is a pipe without a writer."""

NOT_A_FILE = errno.EINVAL
"""Number of the error for something that is not a file, such as a pipe or a device."""


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
