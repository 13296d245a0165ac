"""Comparison of versions and parts with their manifests, before any library parses one of their files."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Literal

from llama_index_contextual.errors import CorruptVersionError, FormatError, Remedy
from llama_index_contextual.index import files
from llama_index_contextual.index.headers import check_faiss, check_npy
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
