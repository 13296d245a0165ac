"""Publish versions of a project.

Parts are built in directories of their own, synced and verified; then the manifest of the version is written, which
names them. The version becomes live when the file CURRENT is replaced.

parts/p000003                     parts, which never change
parts/p000003.building            part being built; if interrupted, it is removed by the next writer
versions/v000001, v000002, …      published versions, which never change
versions/v000003.building         version being written; likewise removed
versions/v000001.removed          version being removed; likewise
CURRENT                           name of the live version

A part that no version names is removed. Only a merged part that was finished before an interruption is kept until the
next version is published, because the next writer can use it instead of merging the same parts again.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import CorruptVersionError, FormatError, InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.check import check_files, check_headers, check_version, read_manifest
from llama_index_contextual.index.current import (
    BUILDING,
    current_name,
    live_if_sound,
    number,
    remove_unused_parts,
    remove_version,
    version_directory,
    version_names,
    write_current,
)
from llama_index_contextual.index.docstore import SQLiteDocumentStore
from llama_index_contextual.index.manifest import (
    DOCSTORE,
    MANIFEST,
    PART_MANIFEST,
    PARTS,
    Manifest,
    PartEntry,
    PartManifest,
    damage_error,
)


def next_part(project_dir: Path, version: str) -> Path:
    """Return the directory in which the next part for a version is built, and create it.

    The name of a part begins with the number of the version that it is written for, so that it is never reused.
    """
    parts = project_dir / PARTS
    first = f"p{version.removeprefix('v')}"
    names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    building = next(parts / f"{name}{BUILDING}" for name in names if not (parts / name).exists())
    files.make_directory(building)
    return building


def finish_part(
    building: Path, *, documents: int, chunks: int, dimensions: int | None, merged_from: str | None = None
) -> PartEntry:
    """Sync a part, write its manifest, verify and rename it; it is not used until a version names it.

    Args:
        building: Directory from `next_part` with the files of the part.
        documents: Number of its documents.
        chunks: Number of their chunks.
        dimensions: Length of the vectors, or None.
        merged_from: Checksum of the parts that it was merged from and of the settings; None if it was not merged.
    """
    name = building.name.removesuffix(BUILDING)
    described = _describe_files(building)
    manifest = PartManifest(
        part=name,
        documents=documents,
        chunks=chunks,
        dimensions=dimensions,
        merged_from=merged_from,
        files=described,
    )
    content = manifest.to_json()
    files.write(building / PART_MANIFEST, content)
    for directory in sorted({path.parent for path in files.walk(building)}):
        files.sync_directory(directory)
    _check_built(building, manifest)
    files.rename(building, building.with_name(name))
    return PartEntry(name=name, xxh3=files.xxh3_of(content))


def publish(project_dir: Path, manifest: Manifest, *, keep_versions: int) -> None:
    """Make a version live: write its manifest, rename its directory, replace CURRENT, remove old versions and parts.

    Args:
        project_dir: The project.
        manifest: Manifest of the version; its parts are finished.
        keep_versions: Number of versions to keep on disk.
    """
    directory = version_directory(project_dir, manifest.version)
    building = directory.with_name(f"{directory.name}{BUILDING}")
    files.make_directory(building)
    files.write(building / MANIFEST, manifest.to_json())
    files.sync_directory(building)
    before = live_if_sound(project_dir)
    files.rename(building, directory)  # complete, but not yet live
    write_current(project_dir, manifest.version)
    _prune(project_dir, keep_versions, before)


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
    check_version(version_directory(project_dir, target), "xxh3")
    write_current(project_dir, target)
    return target


def _describe_files(directory: Path) -> dict[str, dict[str, object]]:
    descriptions: dict[str, dict[str, object]] = {}
    for path in files.walk(directory):
        files.sync_file(path)
        descriptions[path.relative_to(directory).as_posix()] = files.describe(path)
    return descriptions


def _check_built(building: Path, manifest: PartManifest) -> None:
    check_files(building, manifest.files, "size")
    check_headers(building, manifest.files)
    docstore = SQLiteDocumentStore(building / DOCSTORE, access="read")
    try:
        if len(docstore) != manifest.chunks:
            raise damage_error(DOCSTORE, f"contains {pluralize(len(docstore), 'chunk')} instead of {manifest.chunks}")
    finally:
        docstore.close()


def _prune(project_dir: Path, keep: int, before: str | None) -> None:
    """Remove old versions, and parts without use.

    The newest automatic versions and the newest of the others are kept, as many of each, so that a program that watches
    folders does not push out the versions of a person. The live version, the previously live one, and those that a kept
    version names in its manifest are kept as well.
    """
    manifests = {name: _manifest(project_dir, name) for name in version_names(project_dir)}
    automatic = [name for name, manifest in manifests.items() if manifest is not None and manifest.automatic]
    others = [name for name in manifests if name not in automatic]
    newest = max(2, keep)
    retained = {current_name(project_dir), before, *automatic[-newest:], *others[-newest:]}
    retained |= {manifest.keeps for name, manifest in manifests.items() if name in retained and manifest is not None}
    for name in manifests:
        if name not in retained:
            remove_version(project_dir, name)
    remove_unused_parts(project_dir)


def _manifest(project_dir: Path, name: str) -> Manifest | None:
    """Return the manifest of a version, or None if it cannot be read."""
    try:
        return read_manifest(version_directory(project_dir, name))
    except (CorruptVersionError, FormatError):
        return None
