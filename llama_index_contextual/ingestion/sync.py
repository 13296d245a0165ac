"""Folders that stay in step with their documents: which files are settled, and which documents lost their file.

A file that cannot be seen is not a file that was deleted. A document is therefore removed only if its folder can be
listed and the operating system says that the file does not exist; a folder that is missing, or from which nothing can
be read any more, is reported as an error, because it may be a drive that is not mounted.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError, PathNotFoundError, Remedy
from llama_index_contextual.readers import FileRef, content_hash
from llama_index_contextual.readers.discovery import printable

UNSETTLED = "is being written: it is read as soon as it no longer changes"
CHANGED_MEANWHILE = "changed while it was read: it is read by the next sync"

_RECENT = 2 * 10**9  # nanoseconds; some file systems count time in steps of two seconds


class FileDigests:
    """Content hashes of files that were hashed earlier in this process, by their status.

    The hash of a file that had been changed just before is not kept: a further change within the same tick of the file
    system's clock would go unnoticed.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}

    def hash(self, path: Path) -> str:
        """Return the content hash of a file.

        Raises:
            ReadError: The file cannot be opened.
        """
        name, status = os.path.abspath(path), _fingerprint(path)
        known = self._known.get(name)
        if known is not None and known[0] == status:
            return known[1]
        started = time.time_ns()
        digest = content_hash(path)
        if status is not None and status == _fingerprint(path) and max(status[1], status[2]) < started - _RECENT:
            self._known[name] = status, digest
        else:
            self._known.pop(name, None)
        return digest

    def forget(self, path: Path) -> None:
        """Hash a file again the next time."""
        self._known.pop(os.path.abspath(path), None)


@dataclass(frozen=True, kw_only=True)
class SyncOptions:
    """Options of a run that keeps documents in step with folders.

    Attributes:
        removable: Ids of the documents that may be removed; None for all.
        allow_empty: Whether all documents of a folder may be removed.
        settle: Seconds in which a file must not change to be read.
        digests: Content hashes of earlier runs.
    """

    removable: Collection[str] | None = None
    allow_empty: bool = False
    settle: float = 0.0
    digests: FileDigests = field(default_factory=FileDigests)

    def may_remove(self, doc_id: str | None) -> bool:
        """Return whether a document may be removed."""
        return doc_id is not None and (self.removable is None or doc_id in self.removable)


class SyncedFolders:
    """The folders of a sync, which must exist, be readable, and stay the same during the search.

    Args:
        paths: The folders.

    Raises:
        InputError: A path is not a folder, or the folder cannot be opened.
        PathNotFoundError: A folder does not exist.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._folders = {os.path.realpath(path): _identity_of_folder(path) for path in paths}

    def require_same(self) -> None:
        """Check that the folders have not been replaced since, as when a drive is unmounted.

        Raises:
            InputError: Another folder is at the same path now.
            PathNotFoundError: A folder no longer exists.
        """
        for path, identity in self._folders.items():
            if _identity_of_folder(path) != identity:
                raise InputError(f"{printable(path)} was replaced while it was searched: run the sync again.")

    def require_not_empty(self, gone: Mapping[str, str], files: Iterable[FileRef]) -> None:
        """Check that no folder has lost all of its documents.

        Args:
            gone: Former path of each document that would be removed, by its id.
            files: All files that were found.

        Raises:
            InputError: All documents of a folder would be removed.
        """
        paths = [os.path.realpath(ref.path) for ref in files] if gone else []
        for folder in self._folders:
            lost = [doc_id for doc_id, path in gone.items() if _is_below(path, folder)]
            if lost and not any(_is_below(path, folder) for path in paths):
                raise InputError(
                    f"{printable(folder)} contains no file that can be read, but"
                    f" {pluralize(len(lost), 'document')} came from it, such as {lost[0]!r}. If a drive or share is not"
                    f" mounted, mount it and run the sync again.",
                    value=folder,
                    remedy=Remedy(
                        "if the files were deleted on purpose, pass `allow_empty=True`",
                        "if the files were deleted on purpose, add --allow-empty",
                    ),
                )


def unsettled(files: Sequence[FileRef], seconds: float) -> set[FileRef]:
    """Wait, and return the files that changed in the meantime."""
    if not seconds:
        return set()
    before = [_fingerprint(ref.path) for ref in files]
    time.sleep(seconds)
    return {ref for ref, status in zip(files, before, strict=True) if _fingerprint(ref.path) != status}


def is_gone(path: str) -> bool:
    """Return whether a file is known to no longer exist; an error such as a missing permission tells nothing."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _fingerprint(path: Path) -> tuple[int, ...] | None:
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
