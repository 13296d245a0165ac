"""Files that users add to a project: how they are received, confirmed, removed and restored.

A file is received completely, under a temporary name that no ingestion reads, before it gets its own name. The folder
`inbox` then contains exactly the files that should be documents, so that an interrupted ingestion only has to be run
again. Removed files are kept, so that they can be restored.

inbox/               files that are, or will become, documents; `open` uses its own folder instead
waiting/             files that become documents only after their price has been confirmed
removed/             files that users have removed
changes.jsonl        log of the changes: who added or removed which files, and when
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path, PurePath
from typing import IO, Any, Literal

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.errors import InputError, NoSpaceError, ProjectError
from llama_index_contextual.index import files
from llama_index_contextual.index.project_file import WINDOWS_NAMES
from llama_index_contextual.readers.files import SUFFIXES, content_hash, is_clutter, suffix_reason

INBOX, WAITING, REMOVED = "inbox", "waiting", "removed"
LOG_FILE = "changes.jsonl"

MAX_DEPTH = 16
"""Maximum number of folders above a file in a folder that is added."""
MAX_NAME_BYTES = 200
"""Maximum length of a name in UTF-8; longer names are cut."""
MAX_PATH = 1_000
"""Maximum number of characters in the name of a file with its folders."""
FREE_BYTES = 200_000_000
"""Space that must remain free on the disk."""

_INVALID = re.compile(r'[<>:"|?*\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]')
_PART = ".part"


def safe_path(name: str) -> PurePath:
    r"""Return the relative path under which a file is stored; it is valid on every system.

    Args:
        name: Name of the file as the client sent it, with "/" or "\\" between the folders of a path.

    Raises:
        InputError: The name leads out of the folder, is too long or nested too deeply, or the type is not read.

    Example:
        >>> safe_path("Reports\\Q1: sales?.pdf").as_posix(), safe_path("aux.txt").as_posix()
        ('Reports/Q1_ sales_.pdf', '_aux.txt')
    """
    parts = [part for part in unicodedata.normalize("NFC", name[: MAX_PATH + 1]).replace("\\", "/").split("/") if part]
    if len(name) > MAX_PATH:
        raise InputError(f"has a name of {len(name):,} characters: shorten it to at most {MAX_PATH:,}", value=name[:99])
    if any(part.strip() in (".", "..") for part in parts):
        raise InputError("has a name that leads out of its folder: rename it", value=name)
    if len(parts) > MAX_DEPTH:
        raise InputError(f"is in more than {MAX_DEPTH} nested folders: add a folder further down", value=name)
    if not parts or is_clutter(parts[-1]) or parts[-1].startswith("."):
        raise InputError("is hidden or temporary: rename it, if it is a document", value=name)
    suffix = PurePath(parts[-1]).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(suffix_reason(suffix), value=name)
    return PurePath(*map(_safe_name, parts))


def _safe_name(name: str) -> str:
    stem, suffix = os.path.splitext(_INVALID.sub("_", name).strip().rstrip(". "))
    while len((stem + suffix).encode()) > MAX_NAME_BYTES:
        stem, suffix = (stem[:-1], suffix) if stem else (stem, suffix[:-1])
    stem = stem.rstrip() or "_"
    if stem.startswith(".") or stem.split(".")[0].strip().casefold() in WINDOWS_NAMES:
        stem = f"_{stem}"
    return f"{stem}{suffix}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of one user, as recorded in the log.

    Attributes:
        at: Time (UTC, ISO 8601).
        user: Name of the user, or "".
        action: "add" or "remove".
        files: Paths of the files in the inbox, and, if they were removed, where they are kept below `removed`.
        facts: Metadata of the added documents.
        id: Random name of the change.
    """

    at: str
    user: str
    action: Literal["add", "remove"]
    files: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True)
class AddedFile:
    """The last state of a file that was added.

    Attributes:
        path: Path relative to the inbox.
        change: The change that brought it into this state.
        is_present: Whether it was added, and not removed.
    """

    path: str
    change: Change
    is_present: bool


class Upload:
    """A file that is being received. It has a temporary name until it is moved to its place.

    Args:
        folder: Folder for the temporary file.
        name: Path under which the file will be stored.
        max_bytes: Maximum size of the file.

    Attributes:
        name: As above.
        size: Number of bytes received so far.
        path: The temporary file.

    Raises:
        NoSpaceError: The disk is full.
        ProjectError: The folder cannot be written to.
    """

    def __init__(self, folder: Path, name: PurePath, max_bytes: int) -> None:
        self.name, self.size, self._max_bytes = name, 0, max_bytes
        self.path = folder / f".{secrets.token_hex(8)}{_PART}"
        try:
            files.make_directory(folder)
            with files.needs_space(self.path):
                self._file: IO[bytes] = open(self.path, "xb")  # noqa: SIM115 - closed by `close` and `discard`
        except PermissionError as error:
            raise ProjectError(
                f"{folder.name} cannot be changed: make it writable for the user of this server."
            ) from error

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            InputError: The file is larger than allowed.
            NoSpaceError: The disk is full.
        """
        self.size += len(data)
        if self.size > self._max_bytes:
            raise InputError(f"has more than {self._max_bytes:,} bytes: split it into smaller files")
        with files.needs_space(self.path):
            self._file.write(data)

    def close(self) -> None:
        """Sync the complete file to disk.

        Raises:
            InputError: The file is empty.
            NoSpaceError: The disk is full.
        """
        if not self.size:
            raise InputError("is empty")
        with files.needs_space(self.path):
            self._file.close()
            files.sync_file(self.path)

    def discard(self) -> None:
        """Remove the temporary file."""
        with suppress(OSError):  # a full disk may also fail to take the buffered rest
            self._file.close()
        files.remove(self.path)


class Inbox:
    """The added files of a project. It is thread-safe; only one process may add files to a project.

    Args:
        project_dir: Directory of the project.
        folder: Folder for the files instead of the project's own `inbox`.
    """

    def __init__(self, project_dir: Path, folder: Path | None = None) -> None:
        self.folder = Path(os.path.realpath(folder or project_dir / INBOX))
        self._project_dir = project_dir
        self._lock = Lock()
        self._read_to, self._changes = 0, list[Change]()

    # ---- receiving ----

    def require_space(self, size: int) -> None:
        """Check that there is space for a request.

        Raises:
            NoSpaceError: The disk would have less than `FREE_BYTES` left.
        """
        if files.free_bytes(self._project_dir) - size < FREE_BYTES:
            raise NoSpaceError(str(self.folder), f"its disk has no space for {size:,} more bytes")

    def receive(self, name: str, *, waits: str | None, max_bytes: int) -> Upload:
        """Begin to receive a file.

        Args:
            name: Name of the file as the client sent it.
            waits: Name of the user whose files wait for a confirmation, or None if the file needs none.
            max_bytes: Maximum size.

        Raises:
            InputError: The name is not allowed, or the type is not read.
            NoSpaceError: The disk is full.
        """
        path = safe_path(name)
        return Upload(self.folder if waits is None else self.waiting_folder(waits), path, max_bytes)

    def waiting_folder(self, user: str) -> Path:
        """Return the folder of a user's files that wait for a confirmation."""
        return self._project_dir / WAITING / (user or "_")

    def hold(self, upload: Upload, user: str) -> str:
        """Give a received file its name among the files that wait, and return this name."""
        folder = self.waiting_folder(user)
        with self._lock:
            free = self._free(folder, upload.name, upload.path)
            self._place(upload.path, folder, free)
        return (free or upload.name).as_posix()

    def waiting(self, user: str) -> list[tuple[str, int]]:
        """Return the paths and sizes of a user's files that wait for a confirmation."""
        folder = self.waiting_folder(user)
        paths = (path for path in files.walk(folder) if path.suffix != _PART) if folder.is_dir() else ()
        return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths]

    def stamp(self, user: str) -> str:
        """Return a text that changes with the files that wait for a user's confirmation."""
        return hashlib.sha256(json.dumps(self.waiting(user)).encode()).hexdigest()[:16]

    def confirm(self, user: str, facts: Mapping[str, Any], stamp: str) -> list[str]:
        """Move a user's waiting files to the inbox, and return their paths there.

        Args:
            user: Name of the user.
            facts: Metadata of the documents.
            stamp: Result of `stamp` when the price was calculated.

        Raises:
            InputError: The waiting files have changed since then.
        """
        folder, moves = self.waiting_folder(user), []
        with self._lock:
            if stamp != self.stamp(user):
                raise InputError("The files have changed since the price was calculated: confirm the new price.")
            for name, _ in self.waiting(user):
                moves.append((folder / name, PurePath(name)))
            return self._add(moves, user, facts)

    def discard_waiting(self, user: str) -> None:
        """Remove a user's files that wait for a confirmation."""
        with self._lock:
            files.remove_tree(self.waiting_folder(user))

    def add(self, uploads: Sequence[Upload], user: str, facts: Mapping[str, Any]) -> list[str]:
        """Give received files their names in the inbox, and return their paths there.

        A file whose name is taken by a file with other content gets a number; if the content is the same, the received
        copy is removed.

        Args:
            uploads: The files, which are complete.
            user: Name of the user.
            facts: Metadata of the documents.
        """
        with self._lock:
            return self._add([(upload.path, PurePath(upload.name)) for upload in uploads], user, facts)

    def _add(self, moves: Sequence[tuple[Path, PurePath]], user: str, facts: Mapping[str, Any]) -> list[str]:
        added = []
        for source, name in moves:
            path = PurePath(user) / name
            free = self._free(self.folder, path, source)
            # The log comes first: a file must never be read without the metadata that hides it from others.
            if free is not None:
                self._log("add", user, {free.as_posix(): ""}, facts)
            self._place(source, self.folder, free)
            added.append((free or path).as_posix())
        return added

    def _free(self, folder: Path, name: PurePath, source: Path) -> PurePath | None:
        """Return a path that is not taken, or None if the file with this name has the content of the source.

        Raises:
            InputError: The path leads out of the folder by a link.
        """
        parent = folder / name.parent
        if not Path(os.path.realpath(parent)).is_relative_to(os.path.realpath(folder)):
            raise InputError(f"is in a folder that is a link out of {folder.name}: rename the folder", value=str(name))
        taken = {entry.name.casefold(): entry for entry in parent.iterdir()} if parent.is_dir() else {}
        numbered = (name.with_stem(f"{name.stem} ({number})") for number in count(2))
        free = name
        while (entry := taken.get(free.name.casefold())) is not None:
            if entry.is_file() and content_hash(entry) == content_hash(source):
                return None
            free = next(numbered)
        return free

    @staticmethod
    def _place(source: Path, folder: Path, free: PurePath | None) -> None:
        """Move a file to a path below a folder, or remove it if the path is None; see `_free`."""
        if free is None:
            files.remove(source)
            return
        target = folder / free
        files.make_directory(target.parent)
        if source.stat().st_dev == target.parent.stat().st_dev:
            files.rename(source, target)
        else:
            files.copy(source, target)
            files.remove(source)

    # ---- removing and restoring ----

    def remove(self, paths: Sequence[str], user: str) -> None:
        """Move files out of the inbox, so that the next ingestion removes their documents.

        Raises:
            InputError: A file was not added by this user, or is already removed.
        """
        with self._lock:
            present = {added.path: added for added in self.added(user) if added.is_present}
            for path in paths:
                if path not in present:
                    raise InputError(f"{path!r} is not among the files that you have added.", value=path)
                source = self.folder / path
                kept = f"{secrets.token_hex(4)}/{PurePath(path).name}"
                self._log("remove", user, {path: kept}, present[path].change.facts)
                if source.is_file():
                    self._place(source, self._project_dir / REMOVED, PurePath(kept))

    def undo(self, change_id: str, user: str) -> None:
        """Reverse a change of a user: remove the files that it added, or restore the files that it removed.

        Raises:
            InputError: There is no such change, or it has been reversed already.
        """
        change = next((one for one in self.changes(user) if one.id == change_id), None)
        current = {added.path: added.change.id for added in self.added(user)}
        if change is None or not any(current.get(path) == change_id for path in change.files):
            raise InputError("This change cannot be undone: a later change has replaced it.", value=change_id)
        if change.action == "add":
            self.remove([path for path in change.files if current[path] == change_id], user)
            return
        with self._lock:
            for path, kept in change.files.items():
                source = self._project_dir / REMOVED / kept
                if source.is_file():
                    free = self._free(self.folder, PurePath(path), source)
                    self._log("add", user, {(free or PurePath(path)).as_posix(): ""}, change.facts)
                    self._place(source, self.folder, free)

    # ---- the log ----

    def changes(self, user: str | None = None) -> list[Change]:
        """Return the changes of a user, or of all users, oldest first."""
        return [change for change in self._read_log() if user is None or change.user == user]

    def added(self, user: str | None) -> list[AddedFile]:
        """Return the last state of each file that a user, or any user, has added, in the order of the changes."""
        states: dict[str, AddedFile] = {}
        for change in self.changes(user):
            for path in change.files:
                states.pop(path, None)
                states[path] = AddedFile(path, change, change.action == "add")
        return list(states.values())

    def facts(self) -> dict[str, Mapping[str, Any]]:
        """Return the metadata of all added files, by their absolute paths."""
        return {str(self.folder / added.path): added.change.facts for added in self.added(None)}

    def removed_paths(self) -> set[str]:
        """Return the absolute paths of the files that users have removed and that are no longer there."""
        paths = (str(self.folder / added.path) for added in self.added(None) if not added.is_present)
        return {path for path in paths if not os.path.lexists(path)}

    def _log(self, action: Literal["add", "remove"], user: str, paths: Mapping[str, str], facts: Any) -> None:
        change = Change(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            user=user,
            action=action,
            files=paths,
            facts=dict(facts),
            id=secrets.token_hex(8),
        )
        files.append_line(self._project_dir / LOG_FILE, json.dumps(asdict(change)).encode())

    def _read_log(self) -> list[Change]:
        try:
            content = files.read(self._project_dir / LOG_FILE)
        except FileNotFoundError:
            return []
        if len(content) != self._read_to:
            self._changes, self._read_to = list(_parsed(content)), len(content)
        return self._changes

    # ---- after an interruption, and for `forget` ----

    def forget(self) -> None:
        """Delete the removed files, and their entries in the log."""
        with self._lock:
            files.remove_tree(self._project_dir / REMOVED)
            kept = {added.change.id for added in self.added(None) if added.is_present}
            changes = self.changes()
            if len(kept) < len(changes):
                lines = [json.dumps(asdict(change)) for change in changes if change.id in kept]
                files.replace(self._project_dir / LOG_FILE, "".join(f"{line}\n" for line in lines).encode())
                self._read_to = 0

    def clean(self) -> None:
        """Remove temporary files that an interrupted process left behind."""
        for folder in (self.folder, self._project_dir / WAITING):
            for path in folder.rglob(f".*{_PART}") if folder.is_dir() else ():
                if re.fullmatch(r"\.[0-9a-f]{16}\.part", path.name):
                    files.remove(path)


def _parsed(content: bytes) -> Iterator[Change]:
    """Yield the changes in a log; a line that was not written completely is left out."""
    for line in content.splitlines():
        try:
            yield Change(**parse_json(line))
        except (ValueError, TypeError):
            continue
