"""Comparison of versions and parts with their manifests, before any library parses one of their files.

The headers of FAISS and NumPy files are compared with the sizes of the files: FAISS allocates as much memory as a
header claims, so a damaged header can terminate the process.
"""

from __future__ import annotations

import errno
import struct
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.errors import CorruptVersionError, FormatError, Remedy
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import (
    MANIFEST,
    PART_MANIFEST,
    PARTS,
    Files,
    Manifest,
    PartEntry,
    PartManifest,
    damage_error,
)

_FLAT_IP = b"IxFI"
# fourcc, dimensions, vectors, two unused numbers, is_trained, metric, and the number of floats that follow.
_FLAT_HEADER = struct.Struct("<4siqqq?iQ")
_INNER_PRODUCT = 0
_FLOAT = 4
_MAX_HEADER = 10_000
_NPY_START = 10  # bytes of a NumPy file before its header: magic string, version, and length of the header

Check = Literal["size", "xxh3", "sha256"]
"""How to compare a file: by its size only, by a fast checksum, or by a cryptographic one."""

DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)
"""Errors of the operating system that mean damage; others, such as a missing permission, may be temporary."""
_TRY_AGAIN = Remedy(
    "Make the files of the project readable for this process, and try again",
    "Make the files of the project readable for this user, and try again",
)


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a version.

    Raises:
        CorruptVersionError: The manifest is missing, damaged, or belongs to another version.
        FormatError: The manifest was written by a newer release.
    """
    shown = _shown(directory, MANIFEST)
    manifest = Manifest.from_json(_content(directory / MANIFEST, shown), file=shown)
    if manifest.version != directory.name:
        raise damage_error(shown, f"belongs to version {manifest.version}")
    return manifest


def part_directory(version_directory: Path, name: str) -> Path:
    """Return the directory of a part of a version."""
    return version_directory.parent.parent / PARTS / name


def read_part(directory: Path, entry: PartEntry) -> PartManifest:
    """Read the manifest of a part.

    Args:
        directory: Directory of the part.
        entry: Its entry in the manifest of a version.

    Raises:
        CorruptVersionError: The manifest is missing or damaged, or is not the one that the version names.
        FormatError: The part was written by a newer release.
    """
    shown = _shown(directory, PART_MANIFEST)
    content = _content(directory / PART_MANIFEST, shown)
    is_published = files.xxh3_of(content) == entry.xxh3
    try:
        manifest = PartManifest.from_json(content, file=shown)
    except FormatError:
        if is_published:
            raise
        raise damage_error(shown, "has changed since it was published") from None
    if manifest.part != directory.name:
        raise damage_error(shown, f"belongs to part {manifest.part}")
    if not is_published:
        raise damage_error(shown, "is not the one that the version was published with")
    return manifest


def check_version(directory: Path, check: Check) -> Manifest:
    """Compare a version and its parts with their manifests, and return that of the version.

    Raises:
        CorruptVersionError: A file is missing or has changed.
        FormatError: A manifest was written by a newer release.
    """
    manifest = read_manifest(directory)
    for entry in manifest.parts:
        place = part_directory(directory, entry.name)
        check_contents(place, read_part(place, entry).files, check)
    return manifest


def check_contents(directory: Path, described: Files, check: Check) -> None:
    """Compare files with their description, and their headers with their sizes.

    Raises:
        CorruptVersionError: A file is missing, has changed or cannot be read.
    """
    check_files(directory, described, check)
    check_headers(directory, described)


def check_files(directory: Path, described: Files, check: Check) -> None:
    """Compare files with their description.

    Raises:
        CorruptVersionError: A file is missing, has changed or cannot be read.
    """
    for name, expected in described.items():
        path, shown = directory / name, _shown(directory, name)
        try:
            if not path.is_file():
                raise damage_error(shown, "is missing")
            if (size := path.stat().st_size) != expected["bytes"]:
                raise damage_error(shown, f"has {size} bytes instead of {expected['bytes']}")
            if check != "size" and getattr(files, check)(path) != expected[check]:
                raise damage_error(shown, "has changed since it was published")
        except OSError as error:
            raise _reading_error(shown, error) from error


def check_headers(directory: Path, described: Files) -> None:
    """Compare the headers of the indexes with the sizes of their files.

    Raises:
        CorruptVersionError: A header does not match the size of its file.
    """
    for name in described:
        if name.endswith(".faiss"):
            check_faiss(directory / name, shown=_shown(directory, name))
        elif name.endswith(".npy"):
            check_npy(directory / name, shown=_shown(directory, name))


def _content(path: Path, shown: str) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError as error:
        raise damage_error(shown, "is missing") from error
    except OSError as error:
        raise _reading_error(shown, error) from error


def is_damage(error: Exception) -> bool:
    """Return whether an error of a version means that it is damaged, and not only that it cannot be read now."""
    cause = error.__cause__
    is_readable = not isinstance(cause, OSError) or cause.errno in DAMAGE
    return isinstance(error, CorruptVersionError) and is_readable


def _reading_error(shown: str, error: OSError) -> CorruptVersionError:
    fault = f"cannot be read ({error.strerror or error})"
    if error.errno in DAMAGE:
        return damage_error(shown, fault)
    return CorruptVersionError(f"{shown} {fault}.", file=shown, remedy=_TRY_AGAIN)


def _shown(directory: Path, name: str) -> str:
    return f"{directory.parent.name}/{directory.name}/{name}"


def check_faiss(path: Path, *, shown: str | None = None) -> None:
    """Check that a flat FAISS index is as long as its header says. Indexes of other types are not checked.

    Raises:
        CorruptVersionError: The file is not a FAISS index, or its header does not match its size.
    """
    shown = shown or path.name
    with open(path, "rb") as file:
        head = file.read(_FLAT_HEADER.size)
    if not head.startswith(b"I"):
        raise damage_error(shown, "is not a FAISS index")
    if not head.startswith(_FLAT_IP):
        return
    if len(head) < _FLAT_HEADER.size:
        raise damage_error(shown, "ends inside its header")
    _, dimensions, vectors, _, _, _, metric, floats = _FLAT_HEADER.unpack(head)
    size = path.stat().st_size - _FLAT_HEADER.size
    if (
        dimensions <= 0
        or vectors < 0
        or metric != _INNER_PRODUCT
        or floats != dimensions * vectors
        or size != floats * _FLOAT
    ):
        raise damage_error(
            shown, f"claims to contain {vectors} vectors of {dimensions} numbers, but has a different size"
        )


def check_npy(path: Path, *, shown: str | None = None) -> None:
    """Check that a NumPy file is an array of numbers, and as long as its header says.

    Raises:
        CorruptVersionError: The file is not an array of numbers, or its header does not match its size.
    """
    shown = shown or path.name
    with open(path, "rb") as file:
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("unknown version")
            shape, _, kind = np.lib.format.read_array_header_1_0(file, max_header_size=_MAX_HEADER)
        except (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
            raise damage_error(shown, f"is not a NumPy array ({type(error).__name__})") from error
        start = file.tell()
    if kind.kind not in "iuf" or any(length < 0 for length in shape):
        raise damage_error(shown, f"is an array of {kind} instead of numbers")
    if path.stat().st_size != start + prod(shape) * kind.itemsize:
        raise damage_error(shown, f"claims to have the shape {shape}, but has a different size")


def mapped_integers(path: Path) -> NDArray[np.int32]:
    """Return the array in a NumPy file of 32-bit integers with one dimension, memory-mapped.

    Unlike `np.load`, it does not parse the header, which takes longer than opening a small file.
    """
    with open(path, "rb") as file:
        start = _NPY_START + int.from_bytes(file.read(_NPY_START)[-2:], "little")
    # Slicing a memory-mapped array is slow; slicing a view of the same memory is not.
    return np.asarray(np.memmap(path, np.int32, "r", start)).view(np.ndarray)
