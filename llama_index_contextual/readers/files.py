"""Opens files so that nothing but an ordinary file is ever read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

import xxhash

_PIECE = 1 << 20


def read_once(path: Path, *, max_bytes: int) -> tuple[bytes, str]:
    """Return the bytes of an ordinary file and their xxh3-128 in hexadecimal.

    The file is read a single time, so that text and hash never come from two states of it. At most one byte more than
    `max_bytes` is read.

    Raises:
        OSError: It cannot be opened, or is no ordinary file.
    """
    pieces: list[bytes] = []
    size = 0
    with open_file(path) as file:
        while size <= max_bytes and (piece := file.read(min(_PIECE, max_bytes + 1 - size))):
            pieces.append(piece)
            size += len(piece)
    data = b"".join(pieces)
    return data, xxhash.xxh3_128_hexdigest(data)


def open_file(path: Path) -> BinaryIO:
    """Open an ordinary file for reading, without waiting for a pipe that took its place.

    Raises:
        OSError: It cannot be opened, or is no ordinary file.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise
