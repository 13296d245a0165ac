"""Versions of a project: built aside, synced, verified, and published by replacing one small file.

versions/v000001, v000002, …      immutable
versions/v000003.building         removed by the next writer if it was interrupted
CURRENT                           the name of the live version
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from llama_index.core.storage.storage_context import StorageContext

from llama_index_contextual.errors import InputError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.manifest import DOCSTORE, MANIFEST, VECTOR_STORE, Manifest, damaged
from llama_index_contextual.storage.version import check_files

CURRENT = "CURRENT"
VERSIONS = "versions"
BUILDING = ".building"

_NAME = re.compile(r"v\d{6,}")


def current_name(project_dir: Path) -> str | None:
    """Return the name of the live version, or None before the first is published.

    Raises:
        CorruptVersionError: The file does not hold a version's name.
    """
    try:
        name = files.read(project_dir / CURRENT).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if not _NAME.fullmatch(name):
        raise damaged(CURRENT, "does not hold the name of a version")
    return name


def version_names(project_dir: Path) -> list[str]:
    """Return the names of all published versions, oldest first."""
    directory = project_dir / VERSIONS
    if not directory.is_dir():
        return []
    return sorted((p.name for p in directory.iterdir() if _NAME.fullmatch(p.name)), key=_number)


def version_directory(project_dir: Path, name: str) -> Path:
    """Return where a version is."""
    return project_dir / VERSIONS / name


def _number(name: str) -> int:
    return int(name[1:])


def leftovers(project_dir: Path) -> list[Path]:
    """Return what interrupted writers left behind."""
    return sorted([*(project_dir / VERSIONS).glob(f"*{BUILDING}"), *project_dir.glob("*.new")])


def start_building(project_dir: Path) -> Path:
    """Return an empty directory for the next version; what an interrupted writer left is removed."""
    for leftover in leftovers(project_dir):
        (files.remove_tree if leftover.is_dir() else files.remove)(leftover)
    names = version_names(project_dir)
    number = _number(names[-1]) + 1 if names else 1
    directory = version_directory(project_dir, f"v{number:06d}{BUILDING}")
    files.make_directory(directory)
    return directory


def persist(storage_context: StorageContext, directory: Path) -> None:
    """Write a StorageContext into the directory of a version, by its own `persist`."""
    storage_context.persist(directory, docstore_fname=DOCSTORE, vector_store_fname=VECTOR_STORE)


def publish(
    project_dir: Path,
    building: Path,
    *,
    make_manifest: Callable[[str, str], Manifest],
    keep_versions: int,
) -> Manifest:
    """Make a built version the live one: sync, write the manifest, verify, rename, replace CURRENT, remove old ones.

    Args:
        project_dir: The project.
        building: What `start_building` returned, filled.
        make_manifest: (name, time) -> the manifest, without its files.
        keep_versions: Versions that stay on disk.
    """
    name = building.name.removesuffix(BUILDING)
    manifest = make_manifest(name, datetime.now(UTC).isoformat(timespec="seconds"))
    manifest = replace(manifest, files=_describe_files(building))
    files.write(building / MANIFEST, manifest.to_json())
    for directory in sorted({path.parent for path in files.walk(building)}):
        files.sync_directory(directory)
    _check_built(building, manifest)
    files.rename(building, version_directory(project_dir, name))
    make_live(project_dir, name)
    _prune(project_dir, keep_versions)
    return manifest


def make_live(project_dir: Path, name: str) -> None:
    """Make a published version the live one."""
    files.replace(project_dir / CURRENT, f"{name}\n".encode())


def rollback(project_dir: Path, to: str | None = None) -> str:
    """Make an earlier version the live one and return its name.

    Args:
        project_dir: The project.
        to: Name of the version; None takes the one before the live one.

    Raises:
        InputError: There is no such version.
    """
    names, live = version_names(project_dir), current_name(project_dir)
    older = [name for name in names if live is None or _number(name) < _number(live)]
    target = to if to is not None else (older[-1] if older else None)
    if target not in names:
        known = ", ".join(names) or "none"
        raise InputError(f"There is no version {target or 'before the live one'}; versions: {known}.", value=to)
    make_live(project_dir, target)
    return target


def _describe_files(directory: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for path in files.walk(directory):
        files.sync_file(path)
        found[path.relative_to(directory).as_posix()] = {
            "bytes": path.stat().st_size,
            "xxh3": files.xxh3(path),
            "sha256": files.sha256(path),
        }
    return found


def _check_built(building: Path, manifest: Manifest) -> None:
    check_files(building, manifest, "size")
    docstore = SQLiteDocumentStore(building / DOCSTORE, access="read")
    try:
        if len(docstore) != manifest.chunks:
            raise damaged(DOCSTORE, f"holds {len(docstore)} chunks instead of {manifest.chunks}")
    finally:
        docstore.close()


def _prune(project_dir: Path, keep: int) -> None:
    """Remove all but the newest versions; never the live one nor its predecessor."""
    live = current_name(project_dir)
    names = version_names(project_dir)
    kept = {live, *names[-max(2, keep) :]}
    if live in names and names.index(live) > 0:
        kept.add(names[names.index(live) - 1])
    for name in names:
        if name not in kept:
            files.remove_tree(version_directory(project_dir, name))
