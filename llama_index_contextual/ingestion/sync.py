"""Keep documents in sync with folders: find files that are still being written, and documents whose file is gone.

A file that cannot be accessed has not necessarily been deleted. A document is therefore removed only if its folder can
be listed and the operating system reports that the file does not exist. A folder that is missing, or in which no file
can be read any more, is reported as an error, because it may be on a drive that is not mounted.

When folders are watched, small files do not wait for large ones. They are published first, and if files change while a
large file is being read, the large file is abandoned and read again later; see `until_others_change`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import (
    InputError,
    LargeRemovalError,
    PathNotFoundError,
    Remedy,
)
from llama_index_contextual.readers import FileRef, ReadLimits, content_hash
from llama_index_contextual.readers.files import discover, printable

UNSETTLED = "is being written: it is read as soon as it no longer changes"
CHANGED_MEANWHILE = "changed while it was read: it is read by the next sync"
POSTPONED = "is large: it is read as soon as the smaller files are published"
FOR_LATER = (UNSETTLED, CHANGED_MEANWHILE, POSTPONED)
"""Reasons for leaving a file for the next sync."""

BATCH_BYTES = 20_000_000
"""Total size of the files that a watching sync reads at a time, smallest first; a larger file is read alone."""

GIVES_WAY = 600.0
"""Seconds during which a large file may be abandoned, possibly several times, because other files have changed."""

LOOK = 1.0
"""Seconds between two checks of the other files while a large file is read."""

Status = tuple[int, ...]
"""Size, times and identity of a file."""

_BYTES_PER_SECOND = 10_000_000  # a file that was written this slowly, or faster, is probably still being written
_MOST_NAMED = 3
_RECENT = 2 * 10**9  # nanoseconds; some file systems store times in steps of two seconds


class FolderMemory:
    """Information that a process keeps about the files in its folders between syncs.

    Attributes:
        gave_way: Time when a large file was first abandoned in favour of other files, by document id.
    """

    def __init__(self) -> None:
        self.gave_way: dict[str, float] = {}
        self._digests: dict[str, tuple[Status, str]] = {}

    def hash(self, path: Path) -> str:
        """Return the content hash of a file; the file is not read if its status has not changed since the last time.

        The hash of a file that was changed very recently is not kept, because another change within the same tick of
        the file system's clock would go unnoticed.

        Raises:
            ReadError: The file cannot be opened.
        """
        name, status = os.path.abspath(path), status_of(path)
        known = self._digests.get(name)
        if known is not None and known[0] == status:
            return known[1]
        started = time.time_ns()
        digest = content_hash(path)
        if status is not None and status == status_of(path) and max(status[1], status[2]) < started - _RECENT:
            self._digests[name] = status, digest
        else:
            self.forget(path)
        return digest

    def note_interruptions(self, doc_ids: Iterable[str]) -> None:
        """Record that documents were abandoned, if this is the first time."""
        for doc_id in doc_ids:
            self.gave_way.setdefault(doc_id, time.monotonic())

    def forget_interruptions(self, doc_ids: Iterable[str]) -> None:
        """Forget that documents were abandoned, once they are published."""
        for doc_id in doc_ids:
            self.gave_way.pop(doc_id, None)

    def forget(self, path: Path) -> None:
        """Forget the hash of a file, so that it is computed again the next time."""
        self._digests.pop(os.path.abspath(path), None)


@dataclass(frozen=True, kw_only=True)
class SyncOptions:
    """Options of a run that synchronises documents with folders.

    Attributes:
        removable: Ids of the documents that may be removed; None for all.
        allow_empty: Whether all documents of a folder may be removed.
        allow_many: Whether more than a tenth of the documents of a folder may be removed in one run.
        settle: Number of seconds for which a file must not change before it is read.
        watching: Whether the caller watches the folders and calls again, so that files can be left for later.
        memory: Information about the files from earlier runs.
    """

    removable: Collection[str] | None = None
    allow_empty: bool = False
    allow_many: bool = False
    settle: float = 0.0
    watching: bool = False
    memory: FolderMemory = field(default_factory=FolderMemory)

    def may_remove(self, doc_id: str) -> bool:
        """Return whether a document may be removed."""
        return self.removable is None or doc_id in self.removable

    def postponed(self, sizes: Mapping[str, int], *, has_others: bool) -> list[str]:
        """Return the ids of the documents to leave for the next call, so that small files do not wait for large ones.

        Args:
            sizes: Sizes of the files to read, by document id.
            has_others: Whether the run also publishes changes that do not require reading a file.
        """
        if not self.watching:
            return []
        smallest_first = sorted(sizes, key=sizes.__getitem__)
        totals = itertools.accumulate(sizes[doc_id] for doc_id in smallest_first)
        later = [doc_id for doc_id, total in zip(smallest_first, totals, strict=True) if total > BATCH_BYTES]
        return later if has_others or len(later) < len(sizes) else later[1:]

    def gives_way(self, sizes: Mapping[str, int]) -> bool:
        """Return whether these files are abandoned as soon as other files have changed.

        This applies to large files, but only for ten minutes after the first time, so that a large file is read
        eventually even if other files change all the time.

        Args:
            sizes: Sizes of the files that are read, by document id.
        """
        now, gave_way = time.monotonic(), self.memory.gave_way
        first = min((gave_way[doc_id] for doc_id in sizes if doc_id in gave_way), default=now)
        return self.watching and sum(sizes.values()) > BATCH_BYTES and now - first < GIVES_WAY


class SyncedFolders:
    """The folders of a sync, which must exist, be readable and not be replaced during the search.

    Args:
        paths: The folders.

    Raises:
        InputError: A path is not a folder, or the folder cannot be opened.
        PathNotFoundError: A folder does not exist.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._folders = {os.path.realpath(path): _identity_of_folder(path) for path in paths}

    def require_same(self) -> None:
        """Check that the folders have not been replaced in the meantime, for example by unmounting a drive.

        Raises:
            InputError: There is now another folder at the same path.
            PathNotFoundError: A folder no longer exists.
        """
        for path, identity in self._folders.items():
            if _identity_of_folder(path) != identity:
                raise InputError(f"{printable(path)} was replaced while it was searched: run the sync again.")

    def check_removals(
        self, removed: Mapping[str, str], *, kept: Iterable[Path], files: Iterable[Path], options: SyncOptions
    ) -> bool:
        """Return whether many documents of a folder are removed, that is, more than one and more than a tenth of them.

        Args:
            removed: Former paths of the documents that would be removed, by document id.
            kept: Files of the documents that are kept.
            files: All files that were found.
            options: Options of the sync.

        Raises:
            InputError: All documents of a folder would be removed because there is no file in it.
            LargeRemovalError: Many documents would be removed.
        """
        if not removed:
            return False
        kept_paths, paths = (list(map(os.path.realpath, group)) for group in (kept, files))
        many: dict[str, tuple[int, int]] = {}
        refused: dict[str, tuple[int, int]] = {}
        for folder in self._folders:
            lost = [doc_id for doc_id, path in removed.items() if _is_below(path, folder)]
            has_file = any(_is_below(path, folder) for path in paths)
            if lost and not has_file and not options.allow_empty:
                raise _empty_folder(folder, lost)
            total = len(lost) + sum(_is_below(path, folder) for path in kept_paths)
            if len(lost) > max(1, total // 10):
                many[folder] = len(lost), total
                if has_file and not options.allow_many:
                    refused[folder] = many[folder]
        if refused:
            raise _large_removal(refused, removed)
        return bool(many)


def _empty_folder(folder: str, lost: Sequence[str]) -> InputError:
    return InputError(
        f"{printable(folder)} contains no file that can be read, but {pluralize(len(lost), 'document')} came from it,"
        f" such as {lost[0]!r}. If a drive or share is not mounted, mount it and run the sync again.",
        value=folder,
        remedy=Remedy(
            "if the files were deleted on purpose, pass `allow_empty=True`",
            "if the files were deleted on purpose, add --allow-empty",
        ),
    )


def _large_removal(numbers: Mapping[str, tuple[int, int]], doc_ids: Collection[str]) -> LargeRemovalError:
    """Return the error for a sync that would remove many documents.

    Args:
        numbers: Numbers of the removed documents and of all documents, by folder.
        doc_ids: Ids of the documents that would be removed.
    """
    folders = ", ".join(f"{lost:,} of {pluralize(total, 'document')}" for lost, total in numbers.values())
    named = ", ".join(map(repr, sorted(doc_ids)[:_MOST_NAMED]))
    more = f" and {len(doc_ids) - _MOST_NAMED:,} more" if len(doc_ids) > _MOST_NAMED else ""
    return LargeRemovalError(
        f"{folders} from {printable(', '.join(numbers))} would be removed at once, because their files are gone:"
        f" {named}{more}. If the folder is being restored, or a drive or share is not completely mounted, run the sync"
        f" again afterwards.",
        documents=sorted(doc_ids),
        remedy=Remedy(
            "if the files were deleted on purpose, pass these ids as `remove`, or `allow_many=True`",
            "if the files were deleted on purpose, add --allow-many",
        ),
    )


def unsettled(files: Sequence[FileRef], seconds: float) -> set[FileRef]:
    """Wait, then return the files that are probably still being written.

    These are files that changed in the meantime, and large files that changed recently, because a program may pause
    while it is writing a large file.
    """
    if not seconds:
        return set()
    before = [status_of(ref.path) for ref in files]
    time.sleep(seconds)
    after = [status_of(ref.path) for ref in files]
    return {ref for ref, old, new in zip(files, before, after, strict=True) if old != new or _is_in_pause(new)}


async def until_others_change(
    paths: Sequence[str | os.PathLike[str]],
    known: Mapping[Path, Status | None],
    *,
    reading: Collection[Path],
    limits: ReadLimits,
) -> None:
    """Wait until small files in the folders have changed and are no longer being written.

    Args:
        paths: The folders.
        known: Status of each file when the run started; None if it was being written.
        reading: Files that are being read; changes to them are ignored.
        limits: Limits for reading a file.
    """

    def look() -> dict[Path, Status | None]:
        return {ref.path: status_of(ref.path) for ref in discover(paths, limits=limits).files}

    former: set[tuple[Path, Status | None]] = set()
    seconds = 0.0
    while True:
        await asyncio.sleep(max(LOOK, 2 * seconds))
        started = time.monotonic()
        now = await asyncio.to_thread(look)
        seconds = time.monotonic() - started
        changed = {(path, now.get(path)) for path in {*known, *now}.difference(reading)}
        changed = {(path, status) for path, status in changed if status != known.get(path)}
        # A file that is the same in two consecutive checks is complete.
        complete = (status for _, status in changed & former if not _is_in_pause(status))
        if any(status is None or status[0] <= BATCH_BYTES for status in complete):
            return
        former = changed


def _is_in_pause(status: Status | None) -> bool:
    """Return whether the last change is less than a second ago per 10 MB of file size; False if clocks disagree."""
    return status is not None and 0 <= time.time() - status[1] / 1e9 < status[0] / _BYTES_PER_SECOND - 1


def is_gone(path: str) -> bool:
    """Return whether a file is known to no longer exist; after an error such as a missing permission, it is not."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def status_of(path: Path) -> Status | None:
    """Return the size, times and identity of a file, or None if it cannot be accessed."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino


def _identity_of_folder(path: str | os.PathLike[str]) -> tuple[int, int]:
    name = printable(os.fspath(path))
    advice = "if it is on a drive or share that is not mounted, mount it; no document was changed"
    try:
        status = os.stat(path)
        if is_folder := stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                next(entries, None)
    except FileNotFoundError as error:
        raise PathNotFoundError(f"The folder {name} does not exist: {advice}.", value=[os.fspath(path)]) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"The folder {name} cannot be opened ({reason}): {advice}.", value=path) from error
    if not is_folder:
        raise InputError(f"{name} is not a folder: name the folder that contains it.", value=path)
    return status.st_dev, status.st_ino


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))
