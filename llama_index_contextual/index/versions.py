"""Versions of a project: the CURRENT file, publishing, rollback, and removal of unused files.

Each part is built in its own directory, synced and verified. Then the manifest of the version, which lists the parts,
is written. The version becomes live when the CURRENT file is replaced.

parts/p000003                     part, which never changes
parts/p000003.building            part being built; the next writer removes an unfinished part
versions/v000001, v000002, …      published versions, which never change
versions/v000003.building         version being written; the next writer removes an unfinished version
versions/v000001.removed          version being deleted; the next writer completes an interrupted deletion
CURRENT                           the live version, recorded in three lines:

v000003                           name of the live version, or `none`
newest v000005                    newest version that was ever live; newer directories are unfinished versions
xxh3 0123456789abcdef             checksum of the lines above, so that a flipped bit does not make another version live

Parts that are not listed in any version are removed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from llama_index_contextual._utils.files import READING, require_regular
from llama_index_contextual.errors import CorruptVersionError, FormatError, InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import (
    BUILDING,
    DAMAGE,
    MANIFEST,
    PARTS,
    Manifest,
    check_version,
    read_manifest,
)

CURRENT = "CURRENT"
VERSIONS = "versions"
REMOVED = ".removed"

_NAME = re.compile(r"v\d{6,}")
_PART = re.compile(r"p(\d{6,})(-\d+)?(\.building)?")  # begins with the number of the version that it was written for
_OPEN_ELSEWHERE = (errno.EBUSY, errno.ENOTEMPTY)  # network file systems keep a removed file while it is open
_WINDOWS = os.name == "nt"
_ATTEMPTS = 100  # to open CURRENT on Windows, 10 ms apart
_NONE = "none"
_MAX_BYTES = 1_000
_COARSEST = 2_000_000_000  # nanoseconds between two modification times, in file systems with the coarsest clock
_CONTENT = re.compile(
    rb"(?P<body>(?P<live>v\d{6,}|none)\nnewest (?P<newest>v\d{6,}|none)\n)xxh3 (?P<sum>[0-9a-f]{16})\n"
)


@dataclass(frozen=True)
class Current:
    """Content of CURRENT.

    Attributes:
        live: Name of the live version, or None before the first version.
        newest: Name of the newest version that was ever live, or None if there was none.
    """

    live: str | None
    newest: str | None = None

    def was_live(self, name: str) -> bool:
        """Return whether a version was ever live.

        A version that is newer than `newest` was left by an interrupted writer.
        """
        return self.newest is not None and number(name) <= number(self.newest)


@dataclass(frozen=True)
class Stamp:
    """State of CURRENT, which changes whenever another version becomes live.

    Attributes:
        content: Content of the file, which is compared because a new file may have the same inode and modification
            time if the clock is coarse.
        file: Inode and modification time, which are compared because a project may have been deleted and recreated
            with the same content.
        is_settled: Whether the file was so old when it was read that a newer one has another modification time.
    """

    content: bytes
    file: tuple[int, int]
    is_settled: bool = field(default=False, compare=False)


def read_stamp(project_dir: Path, former: Stamp | None = None) -> Stamp | None:
    """Return the state of CURRENT, or None if it does not exist.

    Args:
        project_dir: Directory of the project.
        former: The state at an earlier time. If it is settled and the file is the same, its content is not read again.

    Raises:
        CorruptVersionError: The file cannot be read because the disk is damaged.
    """
    path = os.path.join(project_dir, CURRENT)  # called for every query; a Path would take several times as long
    try:
        if former is not None and former.is_settled and _identity(os.stat(path)) == former.file:
            return former
        file = _open_replaced(path)
        try:
            status = os.fstat(file)
            require_regular(project_dir / CURRENT, status)
            is_settled = time.time_ns() - status.st_mtime_ns > _COARSEST
            return Stamp(os.read(file, _MAX_BYTES), _identity(status), is_settled)
        finally:
            os.close(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in DAMAGE:
            raise
        raise _damage_error(project_dir, f"cannot be read ({error.strerror})") from error


def _open_replaced(path: str) -> int:
    """Open a file that may be replaced at this moment, which Windows then refuses to open."""
    for _ in range(_ATTEMPTS if _WINDOWS else 0):
        with contextlib.suppress(PermissionError):
            return os.open(path, READING)
        time.sleep(0.01)
    return os.open(path, READING)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def read_current(project_dir: Path) -> Current:
    """Read CURRENT.

    Raises:
        CorruptVersionError: CURRENT is damaged, or missing although there are versions.
    """
    return parse_current(project_dir, read_stamp(project_dir))


def parse_current(project_dir: Path, stamp: Stamp | None) -> Current:
    """Parse the result of `read_stamp`.

    Raises:
        CorruptVersionError: CURRENT is damaged, or missing although there are versions.
    """
    if stamp is None:
        if directories(project_dir):
            raise _damage_error(project_dir, "is missing")
        return Current(None)
    content = stamp.content
    match = _CONTENT.fullmatch(content)
    if match is None:
        raise _damage_error(project_dir, "does not contain the name of a version")
    if match["sum"].decode() != xxhash.xxh3_64_hexdigest(match["body"]):
        raise _damage_error(project_dir, "has changed since it was written")
    return Current(_decode_name(match["live"]), _decode_name(match["newest"]))


def write_current(project_dir: Path, live: str | None) -> None:
    """Make a version live atomically. If `live` is None, no version is live afterwards."""
    newest = max((name for name in (live, _newest(project_dir)) if name is not None), key=number, default=None)
    body = f"{live or _NONE}\nnewest {(newest if live else None) or _NONE}\n".encode()
    files.replace(project_dir / CURRENT, body + f"xxh3 {xxhash.xxh3_64_hexdigest(body)}\n".encode())


def current_name(project_dir: Path) -> str | None:
    """Return the name of the live version, or None before the first version is published.

    Raises:
        CorruptVersionError: CURRENT is damaged, or missing although there are versions.
    """
    return read_current(project_dir).live


def live_if_sound(project_dir: Path) -> str | None:
    """Return the name of the live version, or None if no version is live or CURRENT is damaged."""
    current = _read_if_sound(project_dir)
    return None if current is None else current.live


def version_directory(project_dir: Path, name: str) -> Path:
    """Return the directory of a version."""
    return project_dir / VERSIONS / name


def version_names(project_dir: Path) -> list[str]:
    """Return the names of published versions or, if CURRENT is damaged, of all versions on disk, oldest first."""
    current = _read_if_sound(project_dir)
    return [name for name in directories(project_dir) if current is None or current.was_live(name)]


def directories(project_dir: Path) -> list[str]:
    """Return the names of all version directories, including those of unfinished versions, oldest first."""
    directory = project_dir / VERSIONS
    if not directory.is_dir():
        return []
    return sorted((path.name for path in directory.iterdir() if _NAME.fullmatch(path.name)), key=number)


def leftovers(project_dir: Path) -> list[Path]:
    """Return the files and directories left by interrupted writers."""
    published = version_names(project_dir)
    return sorted(
        [
            *(version_directory(project_dir, name) for name in directories(project_dir) if name not in published),
            *(project_dir / VERSIONS).glob(f"*{BUILDING}"),
            *(project_dir / VERSIONS).glob(f"*{REMOVED}"),
            *unused_parts(project_dir),
            *project_dir.glob(f"*{files.NEW}"),
            *project_dir.glob(f"*{files.NEW}-journal"),  # left by an interrupted write to a ledger
        ]
    )


def unused_parts(project_dir: Path) -> list[Path]:
    """Return the directories of parts that are not listed in any published version.

    If a manifest cannot be read, the list is empty.
    """
    directory = project_dir / PARTS
    if not directory.is_dir():
        return []
    used: set[str] = set()
    for name in version_names(project_dir):
        try:
            used.update(entry.name for entry in read_manifest(version_directory(project_dir, name)).parts)
        except (CorruptVersionError, FormatError):
            if version_directory(project_dir, name).is_dir():
                return []
    return sorted(path for path in directory.iterdir() if _PART.fullmatch(path.name) and path.name not in used)


def remove_unused_parts(project_dir: Path, *, required: bool = False) -> None:
    """Remove the parts that are not listed in any published version.

    Args:
        project_dir: The project, whose write lock must be held.
        required: Whether to raise an error if a part cannot be removed because another process has it open; otherwise,
            a later writer removes it.
    """
    for path in unused_parts(project_dir):
        _remove(path, required=required)


def _remove(path: Path, *, required: bool = True) -> None:
    try:
        (files.remove_tree if path.is_dir() else files.remove)(path)
    except OSError as error:
        is_open = error.errno in _OPEN_ELSEWHERE or getattr(error, "winerror", None) is not None
        if required or not is_open:
            raise


def remove_leftovers(project_dir: Path) -> None:
    """Remove leftovers of interrupted writers.

    The caller must hold the project's write lock. If another process has a part open, a later writer removes the part.
    """
    for path in leftovers(project_dir):
        _remove(path, required=path.parent.name != PARTS)


def remove_version(project_dir: Path, name: str) -> None:
    """Remove a version, after renaming it so that an interruption never leaves an incomplete version."""
    directory = version_directory(project_dir, name)
    removed = directory.with_name(f"{name}{REMOVED}")
    files.rename(directory, removed)
    files.remove_tree(removed)


def next_name(project_dir: Path) -> str:
    """Return the name of the next version. The names of versions that were live are never reused."""
    names = (*directories(project_dir), _newest(project_dir) or "v0")
    return f"v{max(map(number, names)) + 1:06d}"


def number(name: str) -> int:
    """Return the number in the name of a version."""
    return int(name[1:])


def _newest(project_dir: Path) -> str | None:
    current = _read_if_sound(project_dir)
    if current is not None:
        return current.newest
    names = directories(project_dir)
    return names[-1] if names else None


def _read_if_sound(project_dir: Path) -> Current | None:
    try:
        return read_current(project_dir)
    except CorruptVersionError:
        return None


def _decode_name(raw: bytes) -> str | None:
    return None if raw.decode() == _NONE else raw.decode()


def _damage_error(project_dir: Path, fault: str) -> CorruptVersionError:
    known = ", ".join(directories(project_dir)) or "none"
    return CorruptVersionError(
        f"{CURRENT} {fault}. Choose the live version with `rollback --to`; versions on disk: {known}.",
        name=project_dir.name,
        file=CURRENT,
    )


def next_part(project_dir: Path, version: str) -> Path:
    """Create and return the directory in which the next part for a version is built.

    The name of a part begins with the number of the version that it is written for, so that names are never reused.
    """
    parts = project_dir / PARTS
    first = f"p{version.removeprefix('v')}"
    names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    building = next(parts / f"{name}{BUILDING}" for name in names if not (parts / name).exists())
    files.make_directory(building)
    return building


def publish_manifest(project_dir: Path, manifest: Manifest, *, keep_versions: int) -> None:
    """Make a version live: write its manifest, rename its directory, replace CURRENT, and prune old versions.

    Args:
        project_dir: The project.
        manifest: Manifest of the version, whose parts must be finished.
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
    """Make an earlier version live and return its name.

    Args:
        project_dir: The project.
        to: Name of the version; None selects the version before the live version.

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
    check_version(version_directory(project_dir, target))
    write_current(project_dir, target)
    return target


def _prune(project_dir: Path, keep: int, before: str | None) -> None:
    """Remove old versions and unused parts.

    The newest versions of each kind are kept, so that the versions of a program that watches folders displace neither
    those of a user nor its large removals. The live version, the previously live version, and any version named under
    `keeps` in the manifest of a kept version are also kept.
    """
    manifests = {name: _manifest(project_dir, name) for name in version_names(project_dir)}
    kinds: dict[str, list[str]] = {}
    for name, manifest in manifests.items():
        kinds.setdefault("manual" if manifest is None else manifest.kind, []).append(name)
    newest = max(2, keep)
    retained = {current_name(project_dir), before, *(name for names in kinds.values() for name in names[-newest:])}
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
