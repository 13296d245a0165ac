"""Comparison of a version with its manifest, before any library parses one of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from llama_index_contextual.storage import files
from llama_index_contextual.storage.headers import check_faiss, check_npy
from llama_index_contextual.storage.manifest import MANIFEST, Manifest, damage_error

Check = Literal["size", "xxh3", "sha256"]
"""How to compare a file: by its size only, by a fast checksum, or by a cryptographic one."""


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a version.

    Raises:
        CorruptVersionError: The manifest is missing, damaged, or belongs to another version.
        FormatError: The manifest was written by a newer release.
    """
    shown = _shown(directory, MANIFEST)
    try:
        manifest = Manifest.from_json(files.read(directory / MANIFEST), file=shown)
    except FileNotFoundError as error:
        raise damage_error(shown, "is missing") from error
    except OSError as error:
        raise damage_error(shown, f"cannot be read ({error.strerror})") from error
    if manifest.version != directory.name:
        raise damage_error(shown, f"belongs to version {manifest.version}")
    return manifest


def check_files(directory: Path, manifest: Manifest, check: Check) -> None:
    """Compare every file of a version with its manifest.

    Raises:
        CorruptVersionError: A file is missing or has changed.
    """
    for name, expected in manifest.files.items():
        path, shown = directory / name, _shown(directory, name)
        if not path.is_file():
            raise damage_error(shown, "is missing")
        if path.stat().st_size != expected["bytes"]:
            raise damage_error(shown, f"has {path.stat().st_size} bytes instead of {expected['bytes']}")
        if check != "size" and getattr(files, check)(path) != expected[check]:
            raise damage_error(shown, "has changed since it was published")


def check_headers(directory: Path, manifest: Manifest) -> None:
    """Compare the headers of the indexes with the sizes of their files.

    Raises:
        CorruptVersionError: A header does not match the size of its file.
    """
    for name in manifest.files:
        if name.endswith(".faiss"):
            check_faiss(directory / name, shown=_shown(directory, name))
        elif name.endswith(".npy"):
            check_npy(directory / name, shown=_shown(directory, name))


def _shown(directory: Path, name: str) -> str:
    return f"{directory.parent.name}/{directory.name}/{name}"
