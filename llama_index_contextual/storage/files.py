"""Everything that touches files on behalf of a project: the one place.

Each function is one step that can fail or be interrupted, so that a test can interrupt every one of them. What must
survive a power cut is written, synced, renamed, and its directory synced, in this order.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import xxhash

_BLOCK = 1 << 20


def make_directory(path: Path) -> None:
    """Create a directory and its parents; one that is there already is fine."""
    path.mkdir(parents=True, exist_ok=True)


def write(path: Path, data: bytes) -> None:
    """Write a new file and sync it."""
    write_with(path, lambda file: file.write(data))


def write_with(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Write a new file by `fill(file)` and sync it."""
    with open(path, "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Replace a file's content: a reader sees the old content or the new one, never a mixture."""
    temporary = path.with_name(f"{path.name}.new")
    write(temporary, data)
    os.replace(temporary, path)
    sync_directory(path.parent)


def rename(source: Path, target: Path) -> None:
    """Rename a file or directory and sync the directory it is in."""
    os.replace(source, target)
    sync_directory(target.parent)


def sync_file(path: Path) -> None:
    """Make sure that a file's content is on the disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make sure that a directory's entries are on the disk, where the system offers it."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file; one that is gone already is fine."""
    path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it; one that is gone already is fine."""
    if path.exists():
        shutil.rmtree(path)


def copy(source: Path, target: Path) -> None:
    """Copy a file's content."""
    shutil.copyfile(source, target)


def read(path: Path) -> bytes:
    """Return a file's content."""
    return path.read_bytes()


def walk(directory: Path) -> Iterator[Path]:
    """Yield every file below a directory, sorted."""
    yield from sorted(path for path in directory.rglob("*") if path.is_file())


def xxh3(path: Path) -> str:
    """Return the xxh3 (128 bits) of a file's content, in hexadecimal: fast, for damage."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal: slower, for proof."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
