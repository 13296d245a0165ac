"""Functions that write and remove the files of a project.

`System` has one method for each operation that can fail or be interrupted; tests replace it to interrupt each
operation. The rest of the package uses the functions below. So that a file survives a power cut, it is written, synced
and renamed, and then its directory is synced.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from llama_index_contextual._utils.files import open_file, read_file
from llama_index_contextual.errors import InputError, NoSpaceError

try:
    import fcntl
except ImportError:  # Windows
    _FULL_SYNC = None
else:
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS

T = TypeVar("T", np.uint8, np.int32, np.float32)

_BLOCK = 1 << 20
_MAX_BYTES = 1 << 30
"""Maximum size of a file that is read as a whole; the records of a million documents take about half of it."""

NEW = ".new"
"""Suffix of a file that is being written and will replace another file."""

_OPEN_ELSEWHERE = (5, 32)
"""Numbers of the errors with which Windows refuses to rename a file while any program has it open."""
_PATIENCE = 10.0
"""Seconds for which such a rename is repeated; readers and virus scanners have a file open only for a moment."""


def _fsync(descriptor: int) -> None:
    """Sync an open file or directory to disk. On macOS, `os.fsync` alone leaves the data in the cache of the disk."""
    if _FULL_SYNC is not None:
        with contextlib.suppress(OSError):  # not all file systems support it
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


class System:
    """Operations on files that can fail or be interrupted."""

    def make_directory(self, path: Path) -> None:
        """Create a directory that is not world-writable, unless it already exists."""
        path.mkdir(mode=0o775, exist_ok=True)

    def write(self, path: Path, fill: Callable[[IO[bytes]], object]) -> None:
        """Create and fill a file. An existing file is replaced, not truncated, because a reader may have mapped it."""
        path.unlink(missing_ok=True)
        with open(path, "xb") as file:
            fill(file)

    def let_write(self, path: Path, write: Callable[[], object]) -> None:
        """Let a library write `path`, which is a file or a directory."""
        write()

    def sync(self, path: Path) -> None:
        """Sync a file to disk and make sure that it is not world-writable."""
        with open(path, "rb+") as file:
            if os.name != "nt" and (mode := os.fstat(file.fileno()).st_mode) & stat.S_IWOTH:
                os.fchmod(file.fileno(), stat.S_IMODE(mode) & ~stat.S_IWOTH)
            _fsync(file.fileno())

    def sync_directory(self, path: Path) -> None:
        """Sync a directory to disk, if the operating system supports it."""
        if os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory atomically, replacing an existing target file."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return os.replace(source, target)
            except PermissionError as error:
                if getattr(error, "winerror", None) not in _OPEN_ELSEWHERE or time.monotonic() >= until:
                    raise
            time.sleep(0.01)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its contents."""
        shutil.rmtree(path)


system = System()

_NO_SPACE = {
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "the quota of its disk is used up",
    errno.EFBIG: "a limit of file sizes is reached (`ulimit -f`)",
}


@contextlib.contextmanager
def needs_space(path: Path) -> Iterator[None]:
    """Convert an OSError within the context to NoSpaceError if there is no space for the file.

    Raises:
        NoSpaceError: The disk is full, or a disk quota or the file size limit has been reached.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise NoSpaceError(str(path), _NO_SPACE[error.errno]) from error


def make_directory(path: Path) -> None:
    """Create a directory and its parents if they do not exist, without syncing."""
    for directory in (*(p for p in reversed(path.parents) if not p.exists()), path):
        with needs_space(directory):
            system.make_directory(directory)


def write(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a new file and sync it.

    Args:
        path: The file.
        data: Its content.
        sync: Whether to sync the file; False if the caller syncs it together with other files.

    Raises:
        OSError: The file could not be written completely.
    """
    write_with(path, lambda file: file.write(data), sync=sync)
    if (size := path.stat().st_size) != len(data):
        raise OSError(errno.EIO, f"only {size} of {len(data)} bytes were written", str(path))


def write_with(path: Path, fill: Callable[[IO[bytes]], object], *, sync: bool = True) -> None:
    """Write a new file with `fill(file)` and sync it, unless `sync` is False.

    Raises:
        NoSpaceError: The disk is full, or a disk quota or the file size limit has been reached.
    """
    with needs_space(path):
        system.write(path, fill)
        if sync:
            system.sync(path)


def create_empty(path: Path) -> None:
    """Create an empty file that is not world-writable, unless there is something with this name."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o664))


def require_folder(path: Path) -> None:
    """Check that the folder for a new file exists.

    Raises:
        InputError: The folder does not exist.
    """
    if not path.parent.is_dir():
        raise InputError(
            f"{path.parent} is not a folder: create it, or choose another one for {path.name}.", value=str(path)
        )


def replace(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically.

    Raises:
        InputError: The folder does not exist, or the file is a folder.
    """
    replace_with(path, lambda file: file.write(data))


def replace_with(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Replace a file atomically with the content that `fill(file)` writes.

    Raises:
        InputError: The folder does not exist, or the file is a folder.
    """
    require_folder(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: remove it, or choose another file.", value=str(path))
    temporary = path.with_name(f"{path.name}{NEW}")
    try:
        write_with(temporary, fill)
    except OSError:
        remove(temporary)
        raise
    rename(temporary, path)


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file, which is created if necessary, and sync it. An unfinished last line is ended first.

    Raises:
        NoSpaceError: The disk is full.
    """
    with needs_space(path), open(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        is_unfinished = size > 0 and file.read(1) != b"\n"
        file.write((b"\n" if is_unfinished else b"") + line + b"\n")
        file.flush()
        _fsync(file.fileno())


def copy(source: Path, target: Path) -> None:
    """Copy a file and sync the copy and its directory. The target appears only when the copy is complete.

    Raises:
        NoSpaceError: The disk has no room for the copy.
    """
    with open_file(source) as file:
        if os.fstat(file.fileno()).st_size > free_bytes(target.parent):
            raise NoSpaceError(str(target), _NO_SPACE[errno.ENOSPC])
        replace_with(target, lambda into: shutil.copyfileobj(file, into, _BLOCK))


def rename(source: Path, target: Path) -> None:
    """Rename a file or directory, and sync its parent directory."""
    system.rename(source, target)
    system.sync_directory(target.parent)


def let_write(path: Path, write: Callable[[], object]) -> None:
    """Let a library write `path`, which is a file or a directory, without syncing."""
    with needs_space(path):
        system.let_write(path, write)


def sync_file(path: Path) -> None:
    """Sync a file to disk."""
    with needs_space(path):
        system.sync(path)


def sync_directory(path: Path) -> None:
    """Sync a directory to disk."""
    system.sync_directory(path)


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    system.remove(path)


def remove_if_empty(path: Path) -> None:
    """Remove a directory if it is empty."""
    try:
        system.remove_directory(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def remove_tree(path: Path) -> None:
    """Remove a directory and its contents, if it exists."""
    if path.exists():
        system.remove_tree(path)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write the numbers in an array, but not its shape or type, to a new file. The file is not synced."""
    write_with(path, lambda file: file.write(np.ascontiguousarray(array).data), sync=False)


def read(path: Path) -> bytes:
    """Return the content of a file that is read as a whole.

    Raises:
        OSError: The file cannot be read, is not a regular file, or is too large.
    """
    return read_file(path, _MAX_BYTES)


def mmap(path: Path, dtype: type[T]) -> NDArray[T]:
    """Return the numbers in a file, which must not be empty, as a memory-mapped, one-dimensional array."""
    # Slicing a memory-mapped array is slow; slicing a view of the same memory is not.
    return np.asarray(np.memmap(path, dtype, "r")).view(np.ndarray)


def free_bytes(path: Path) -> int:
    """Return the free space of the disk that contains a path, in bytes."""
    return shutil.disk_usage(path).free


def walk(directory: Path) -> Iterator[Path]:
    """Yield every file below a directory, in sorted order."""
    yield from sorted(path for path in directory.rglob("*") if path.is_file())


def xxh3(path: Path) -> str:
    """Return the 128-bit xxh3 checksum of a file in hexadecimal, which is used to detect damage quickly."""
    with open_file(path) as file:
        return str(hashlib.file_digest(file, xxhash.xxh3_128).hexdigest())


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, which is a cryptographic checksum."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
