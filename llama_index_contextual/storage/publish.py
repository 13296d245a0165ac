"""Publish versions of a project.

A version is built in a directory of its own, synced and verified. It becomes live when the file CURRENT is replaced.

versions/v000001, v000002, …      published versions, which never change
versions/v000003.building         version being built; if interrupted, it is removed by the next writer
versions/v000001.removed          version being removed; likewise
CURRENT                           name of the live version
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from llama_index.core.storage.storage_context import StorageContext

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.check import check_files, check_headers, read_manifest
from llama_index_contextual.storage.current import (
    BUILDING,
    current_name,
    live_if_sound,
    next_name,
    number,
    remove_leftovers,
    remove_version,
    version_directory,
    version_names,
    write_current,
)
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.manifest import DOCSTORE, MANIFEST, VECTOR_STORE, Manifest, damage_error


def start_building(project_dir: Path) -> Path:
    """Remove leftovers of interrupted writers, and return an empty directory for the next version."""
    remove_leftovers(project_dir)
    directory = version_directory(project_dir, f"{next_name(project_dir)}{BUILDING}")
    files.make_directory(directory)
    return directory


def persist(storage_context: StorageContext, directory: Path) -> None:
    """Write a StorageContext into the directory of a version."""
    files.let_write(
        directory,
        lambda: storage_context.persist(directory, docstore_fname=DOCSTORE, vector_store_fname=VECTOR_STORE),
    )


def publish(
    project_dir: Path,
    building: Path,
    *,
    make_manifest: Callable[[str, str], Manifest],
    keep_versions: int,
) -> Manifest:
    """Make a version live: sync it, write its manifest, verify it, rename it, replace CURRENT, remove old versions.

    Args:
        project_dir: The project.
        building: Directory from `start_building` with the files of the version.
        make_manifest: Function that returns the manifest without `files`, called with name and time.
        keep_versions: Number of versions to keep on disk.
    """
    name = building.name.removesuffix(BUILDING)
    manifest = make_manifest(name, datetime.now(UTC).isoformat(timespec="seconds"))
    manifest = replace(manifest, files=_describe_files(building))
    files.write(building / MANIFEST, manifest.to_json())
    for directory in sorted({path.parent for path in files.walk(building)}):
        files.sync_directory(directory)
    _check_built(building, manifest)
    before = live_if_sound(project_dir)
    files.rename(building, version_directory(project_dir, name))  # complete, but not yet live
    write_current(project_dir, name)
    _prune(project_dir, keep_versions, before)
    return manifest


def rollback(project_dir: Path, to: str | None = None) -> str:
    """Make an earlier version the live one and return its name.

    Args:
        project_dir: The project.
        to: Name of the version; None selects the one before the live version.

    Raises:
        InputError: There is no such version.
        CorruptVersionError: The version is damaged; the live version does not change.
    """
    names = version_names(project_dir)
    # If a name is given, do not read CURRENT, because it may be damaged.
    live = current_name(project_dir) if to is None else None
    older = [name for name in names if live is None or number(name) < number(live)]
    target = to if to is not None else (older[-1] if older else None)
    if target not in names:
        known = ", ".join(names) or "none"
        raise InputError(f"There is no version {target or 'before the live one'}; versions: {known}.", value=to)
    directory = version_directory(project_dir, target)
    check_files(directory, read_manifest(directory), "xxh3")
    write_current(project_dir, target)
    return target


def _describe_files(directory: Path) -> dict[str, dict[str, object]]:
    descriptions: dict[str, dict[str, object]] = {}
    for path in files.walk(directory):
        files.sync_file(path)
        descriptions[path.relative_to(directory).as_posix()] = {
            "bytes": path.stat().st_size,
            "xxh3": files.xxh3(path),
            "sha256": files.sha256(path),
        }
    return descriptions


def _check_built(building: Path, manifest: Manifest) -> None:
    check_files(building, manifest, "size")
    check_headers(building, manifest)
    docstore = SQLiteDocumentStore(building / DOCSTORE, access="read")
    try:
        if len(docstore) != manifest.chunks:
            raise damage_error(DOCSTORE, f"contains {pluralize(len(docstore), 'chunk')} instead of {manifest.chunks}")
    finally:
        docstore.close()


def _prune(project_dir: Path, keep: int, before: str | None) -> None:
    """Remove all but the newest versions, the live version and the previously live one."""
    names = version_names(project_dir)
    retained = {current_name(project_dir), before, *names[-max(2, keep) :]}
    for name in names:
        if name not in retained:
            remove_version(project_dir, name)
