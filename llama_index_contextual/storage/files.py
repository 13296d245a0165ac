"""Everything that touches files on behalf of a project: the one place.

`System` holds the operations that can fail or be interrupted, one method each; a test puts another one in its place to
interrupt every single one of them. The functions below are what the rest of the package uses. What must survive a power
cut is written, synced, renamed, and its directory synced, in this order.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import xxhash

from llama_index_contextual.errors import InputError

_BLOCK = 1 << 20


class System:
    """The operations on files that a project is made of."""

    def make_directory(self, path: Path) -> None:
        """Create one directory, in which not everybody may write; one that is there already is fine."""
        path.mkdir(mode=0o775, exist_ok=True)

    def write(self, path: Path, fill: Callable[[IO[bytes]], object]) -> None:
        """Create a file and fill it; one that is there is replaced and not emptied: it may be mapped by a reader."""
        path.unlink(missing_ok=True)
        with open(path, "xb") as file:
            fill(file)

    def let_write(self, path: Path, write: Callable[[], object]) -> None:
        """Let a library write `path`, a file or the files of a directory, by itself."""
        write()

    def sync(self, path: Path) -> None:
        """Make sure that a file's content is on the disk, and that not everybody may change it."""
        with open(path, "rb+") as file:
            if os.name != "nt" and (mode := os.fstat(file.fileno()).st_mode) & stat.S_IWOTH:
                os.fchmod(file.fileno(), stat.S_IMODE(mode) & ~stat.S_IWOTH)
            os.fsync(file.fileno())

    def sync_directory(self, path: Path) -> None:
        """Make sure that a directory's entries are on the disk, where the system offers it."""
        if os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory another name, in one step; a file of that name is replaced."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone already is fine."""
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all that is in it."""
        shutil.rmtree(path)


system = System()


def make_directory(path: Path) -> None:
    """Create a directory and its parents; what is there already is fine, and syncing is left to the caller."""
    for directory in (*(p for p in reversed(path.parents) if not p.exists()), path):
        system.make_directory(directory)


def write(path: Path, data: bytes) -> None:
    """Write a new file and sync it.

    Raises:
        OSError: It could not be written whole.
    """
    write_with(path, lambda file: file.write(data))
    if (size := path.stat().st_size) != len(data):
        raise OSError(errno.EIO, f"only {size} of {len(data)} bytes were written", str(path))


def write_with(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Write a new file by `fill(file)` and sync it."""
    system.write(path, fill)
    system.sync(path)


def require_folder(path: Path) -> None:
    """See that a file can be written where it is to be, before anything is done for it.

    Raises:
        InputError: Its folder is not there.
    """
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is no folder: make it, or name another one for {path.name}.", value=str(path))


def replace(path: Path, data: bytes) -> None:
    """Replace a file's content: a reader sees the old content or the new one, never a mixture.

    Raises:
        InputError: Its folder is not there.
    """
    require_folder(path)
    temporary = path.with_name(f"{path.name}.new")
    write(temporary, data)
    rename(temporary, path)


def copy(source: Path, target: Path) -> None:
    """Copy a file, and sync the copy and the directory it is in: it has its name when it is whole."""
    temporary = target.with_name(f"{target.name}.new")
    try:
        with open(source, "rb") as file:
            write_with(temporary, lambda into: shutil.copyfileobj(file, into, _BLOCK))
    except OSError:
        remove(temporary)
        raise
    rename(temporary, target)


def rename(source: Path, target: Path) -> None:
    """Rename a file or directory and sync the directory it is in."""
    system.rename(source, target)
    system.sync_directory(target.parent)


def let_write(path: Path, write: Callable[[], object]) -> None:
    """Let a library write `path`, a file or the files of a directory, by itself; syncing is left to the caller."""
    system.let_write(path, write)


def sync_file(path: Path) -> None:
    """Make sure that a file's content is on the disk."""
    system.sync(path)


def sync_directory(path: Path) -> None:
    """Make sure that a directory's entries are on the disk."""
    system.sync_directory(path)


def remove(path: Path) -> None:
    """Remove a file; one that is gone already is fine."""
    system.remove(path)


def remove_if_empty(path: Path) -> bool:
    """Remove a directory unless something is in it, and return whether it is gone."""
    try:
        system.remove_directory(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it; one that is gone already is fine."""
    if path.exists():
        system.remove_tree(path)


def read(path: Path) -> bytes:
    """Return a file's content."""
    return path.read_bytes()


def walk(directory: Path) -> Iterator[Path]:
    """Yield every file below a directory, sorted."""
    yield from sorted(path for path in directory.rglob("*") if path.is_file())


def xxh3(path: Path) -> str:
    """Return the xxh3 (128 bits) of a file's content, in hexadecimal: fast, for damage."""
    return _digest(path, xxhash.xxh3_128())


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal: slower, for proof."""
    return _digest(path, hashlib.sha256())


def _digest(path: Path, digest: Any) -> str:
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return str(digest.hexdigest())
