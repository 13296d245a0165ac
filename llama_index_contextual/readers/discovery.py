"""Opens files so that nothing but an ordinary file is ever read."""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import count, groupby
from pathlib import Path, PurePath
from typing import BinaryIO

import xxhash

from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.readers.base import FileWarning, ReadLimits, SkippedFile

_PIECE = 1 << 20


def read_once(path: Path, *, max_bytes: int) -> tuple[bytes, str]:
    """Return the bytes of an ordinary file and their xxh3-128 in hexadecimal.

    The file is read a single time, so that text and hash never come from two states of it. At most one byte more than
    `max_bytes` is read.

    Raises:
        OSError: It cannot be opened, or is no ordinary file.
    """
    pieces: list[bytes] = []
    size = 0
    with open_file(path) as file:
        while size <= max_bytes and (piece := file.read(min(_PIECE, max_bytes + 1 - size))):
            pieces.append(piece)
            size += len(piece)
    data = b"".join(pieces)
    return data, xxhash.xxh3_128_hexdigest(data)


def open_file(path: Path) -> BinaryIO:
    """Open an ordinary file for reading, without waiting for a pipe that took its place.

    Raises:
        OSError: It cannot be opened, or is no ordinary file.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


# They join letters of Indic and Persian words and emoji sequences; every other format character is invisible or bidi.
_JOINERS = "\u200c\u200d"
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def _is_unsafe(char: str) -> bool:
    return unicodedata.category(char) in _UNSAFE and char not in _JOINERS


def printable(name: str) -> str:
    r"""Return a file name with control, bidi and invisible characters and lone surrogates written as escapes.

    No two names give the same result, since the backslash itself is doubled.

    Example:
        >>> printable("a\x1b[31m.txt")
        'a\\x1b[31m.txt'
    """
    if name.isascii() and name.isprintable() and "\\" not in name:
        return name
    return "".join(_escape(char) for char in name)


def _escape(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if not _is_unsafe(char):
        return char
    code = ord(char)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str, limit: int = 200) -> str:
    """Return a title as one line of at most `limit` characters, without control, bidi and invisible characters."""
    head = " ".join(text[: 4 * limit].split())
    if not head.isascii() or not head.isprintable():
        head = " ".join("".join(char for char in head if not _is_unsafe(char)).split())
    return head if len(head) <= limit else head[: limit - 1].rstrip() + "…"


MAX_DEPTH = 64
"""Folders below the given one that are entered."""

_MAGIC = frozenset("*?[")


@dataclass(frozen=True)
class FoundFile:
    """An ordinary file below the folder: its path from there, and what the system says about it."""

    parts: tuple[str, ...]
    status: os.stat_result


@dataclass(frozen=True)
class Refused:
    """Something below the folder that is not read, and why."""

    parts: tuple[str, ...]
    reason: str


class Pattern:
    """A glob, matched one path component at a time: `*`, `?`, `[…]`, and `**` for any number of folders.

    Extensions match in either case, since `*.pdf` is meant to find `A.PDF`.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        self._parts = tuple(parts)

    def start(self) -> frozenset[int]:
        """Return the state before the first component."""
        return self._closure({0})

    def step(self, state: frozenset[int], name: str) -> frozenset[int]:
        """Return the state after one more component; empty if nothing below it can match."""
        after = set()
        for at in state:
            if at == len(self._parts):
                continue
            if self._parts[at] == "**":
                after.add(at)
            elif _matches(name, self._parts[at]):
                after.add(at + 1)
        return self._closure(after)

    def accepts(self, state: frozenset[int]) -> bool:
        """Say whether a path that ends here matches."""
        return len(self._parts) in state

    def goes_on(self, state: frozenset[int]) -> bool:
        """Say whether a longer path can match."""
        return any(at < len(self._parts) for at in state)

    def _closure(self, state: set[int]) -> frozenset[int]:
        for at in sorted(state):
            while at < len(self._parts) and self._parts[at] == "**":
                at += 1
                state.add(at)
        return frozenset(state)


EVERYTHING = Pattern(["**"])


def has_magic(part: str) -> bool:
    """Say whether a path component is a glob."""
    return not _MAGIC.isdisjoint(part)


def split_glob(path: Path) -> tuple[Path, Pattern]:
    """Split a glob into its fixed folder and the pattern below it."""
    parts = path.parts
    fixed = next(index for index, part in enumerate(parts) if has_magic(part))
    return Path(*parts[:fixed]), Pattern(parts[fixed:])


def walk(root: Path, pattern: Pattern) -> Iterator[FoundFile | Refused]:
    """Yield what matches below `root`, in the order of the names.

    Links are not followed, hidden names are not entered, devices are not opened; each of them is yielded as `Refused`.
    """
    stack: list[tuple[tuple[str, ...], frozenset[int]]] = [((), pattern.start())]
    while stack:
        parts, state = stack.pop()
        path = root.joinpath(*parts)
        if parts:
            if not pattern.accepts(state) and not (pattern.goes_on(state) and os.path.isdir(path)):
                continue
            verdict = _visit(path, parts, state, pattern)
            if verdict is not None:
                yield verdict
                continue
        try:
            names = sorted(os.listdir(path), reverse=True)
        except OSError as error:
            yield Refused(parts, f"the folder cannot be opened: {error.strerror}")
            continue
        children = ((name, pattern.step(state, name)) for name in names)
        stack.extend(((*parts, name), child) for name, child in children if child)


def _visit(path: Path, parts: tuple[str, ...], state: frozenset[int], pattern: Pattern) -> FoundFile | Refused | None:
    """Judge one entry; None is a folder to enter."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return Refused(parts, f"cannot be looked at: {error.strerror}")
    is_folder = stat.S_ISDIR(status.st_mode)
    if parts[-1].startswith("."):
        return Refused(parts, f"is a hidden {'folder' if is_folder else 'file'}: name it directly to read it")
    if stat.S_ISLNK(status.st_mode) or _is_junction(path):
        return Refused(parts, "is a link, and links in a folder are not followed: name its target to read it")
    if is_folder:
        return _visit_folder(parts, state, pattern)
    reason = special_reason(status.st_mode)
    return FoundFile(parts, status) if reason is None else Refused(parts, reason)


def _visit_folder(parts: tuple[str, ...], state: frozenset[int], pattern: Pattern) -> Refused | None:
    if not pattern.goes_on(state):
        return Refused(parts, "is a folder, and the pattern matches files: end it with /** to read what is in it")
    if len(parts) >= MAX_DEPTH:
        return Refused(parts, f"lies {MAX_DEPTH} folders deep: name it directly to read what is in it")
    return None


def special_reason(mode: int) -> str | None:
    """Return why something that is no ordinary file is not read, or None for an ordinary file."""
    if stat.S_ISREG(mode):
        return None
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))
    kind = next((name for test, name in kinds if test(mode)), "a device")
    return f"is {kind}: only ordinary files are read"


def _matches(name: str, pattern: str) -> bool:
    stem, suffix = os.path.splitext(name)
    return fnmatchcase(name, pattern) or fnmatchcase(stem + suffix.lower(), pattern)


def _is_junction(path: Path) -> bool:
    # Python 3.11 cannot tell a junction (Windows) from a folder.
    return hasattr(os.path, "isjunction") and bool(os.path.isjunction(path))


TEXT_SUFFIXES = (".txt", ".text")
MARKDOWN_SUFFIXES = (".md", ".markdown")
PDF_SUFFIXES = (".pdf",)
SUFFIXES = (*PDF_SUFFIXES, *TEXT_SUFFIXES, *MARKDOWN_SUFFIXES)


@dataclass(frozen=True)
class FileRef:
    """A file that can be read.

    Attributes:
        path: Where it is, as named in the call.
        doc_id: Id of its document: the path as seen from the parent of the folder that was given, or the file name;
            longer where another file of the call has that id.
        size: Bytes on disk.
        shown: `path`, safe to print.
        identity: Device and inode, so that a file that is exchanged before it is read is noticed.
        given: The input that it belongs to, safe to print.
        names: Its absolute path, name by name, safe to print.
        depth: How many of the names its shortest id has.
    """

    path: Path
    doc_id: str
    size: int
    shown: str
    identity: tuple[int, int] | None = field(default=None, repr=False, compare=False)
    given: str = field(default="", repr=False, compare=False)
    names: tuple[str, ...] = field(default=(), repr=False, compare=False)
    depth: int = field(default=1, repr=False, compare=False)

    @property
    def shortest_id(self) -> str:
        """The id of its document where no other has it."""
        return "/".join(self.names[-self.depth :]) or self.doc_id

    def ids(self) -> Iterator[str]:
        """Yield the ids that its document may have: the shortest, then each with one more folder before it."""
        for length in range(self.depth, len(self.names) + 1):
            yield "/".join(self.names[-length:])

    def free_id(self, taken: Container[str]) -> str:
        """Return the shortest id that is not taken; where all are, the longest with a number."""
        longest = self.doc_id
        for longest in self.ids():
            if longest not in taken:
                return longest
        path = PurePath(longest)
        numbered = (path.with_stem(f"{path.stem} ({number})").as_posix() for number in count(2))
        return next(doc_id for doc_id in numbered if doc_id not in taken)


@dataclass(frozen=True)
class Discovery:
    """What the inputs of a call stand for.

    Attributes:
        files: The files to read, in the order of the inputs, and of the names within a folder.
        skipped: What is not read, with the reason.
    """

    files: tuple[FileRef, ...]
    skipped: tuple[SkippedFile, ...]


def discover(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    limits: ReadLimits = ReadLimits(),  # noqa: B008
) -> Discovery:
    """Find the files that the inputs stand for; nothing is opened.

    Folders are searched recursively. Links, hidden names, hard links to files elsewhere, devices and pipes that lie in
    a folder are reported, not followed; a file or link that is named itself is read.

    Args:
        inputs: Files, folders and globs ("contracts/**/*.pdf").
        limits: `max_bytes` is kept here.

    Of two files that would have the same document id, the second gets the shortest longer path that differs.

    Raises:
        InputError: An input is not a path.
    """
    found = _Findings(limits)
    for item in [inputs] if isinstance(inputs, str | os.PathLike) else inputs:
        _look_up(item, found)
    return Discovery(tuple(found.files), tuple(found.skipped))


def content_hash(path: str | os.PathLike[str]) -> str:
    """Return the xxh3-128 of a file's bytes as 32 hex digits, read in pieces.

    Raises:
        ReadError: The file cannot be opened.
    """
    digest = xxhash.xxh3_128()
    try:
        with open_file(Path(path)) as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise ReadError(printable(os.fspath(path)), f"cannot be opened: {error.strerror}") from error
    return digest.hexdigest()


def size_reason(size: int, limits: ReadLimits) -> str | None:
    """Return why a file of this size is not read, or None."""
    if size <= limits.max_bytes:
        return None
    return f"has {size:,} bytes, more than the limit of {limits.max_bytes:,}: raise ReadLimits.max_bytes to read it"


def notes_on_ids(refs: Iterable[FileRef], *, hint: str = "") -> list[FileWarning]:
    """Return a sentence for each input whose files have longer ids than usual, because other files have those.

    Args:
        refs: The files, with the ids that their documents get.
        hint: What can be done about it.
    """
    notes = []
    longer = [ref for ref in refs if ref.doc_id != ref.shortest_id]
    for given, group in groupby(longer, key=lambda ref: ref.given):
        first, *more = group
        ids = f"id {first.doc_id!r}, because {first.shortest_id!r} is the id of another document"
        if more:
            notes.append(FileWarning(given, f"{len(more) + 1} of its files get longer ids, such as the {ids}{hint}"))
        else:
            notes.append(FileWarning(first.shown, f"its document gets the {ids}{hint}"))
    return notes


def names_of(path: PurePath) -> tuple[str, ...]:
    """Return the names of an absolute path, safe to print; a drive or a share of Windows is a name as well.

    Example:
        >>> from pathlib import PureWindowsPath
        >>> names_of(PureWindowsPath("C:/reports/annual.md"))
        ('C', 'reports', 'annual.md')
    """
    drive = [part for part in re.split(r"[\\/:]+", path.drive) if part]
    return tuple(map(printable, (*drive, *(path.parts[1:] if path.anchor else path.parts))))


def _look_up(item: object, found: _Findings) -> None:
    if not isinstance(item, str | os.PathLike):
        raise InputError(f"An input must be a path, got {type(item).__name__}.", value=item)
    name = os.fspath(item)
    if not isinstance(name, str):
        raise InputError(
            f"An input must be a path in text form, got {type(name).__name__}: use os.fsdecode.", value=item
        )
    if not name.strip() or "\0" in name:
        found.skip(name, "is no path: it is empty or contains a NUL character", absent=True)
        return
    path = Path(name)
    try:
        status = os.stat(path)
    except OSError as error:
        _look_up_missing(name, path, error, found)
        return
    if stat.S_ISDIR(status.st_mode):
        if not _take_folder(path, EVERYTHING, name, found):
            found.skip(name, "contains no file")
    elif reason := special_reason(status.st_mode):
        found.skip(name, reason)
    else:
        names = names_of(Path(os.path.realpath(path.parent)) / path.name)
        found.take(FileRef(path, "", status.st_size, printable(str(path)), _identity(status), printable(name), names))


def _look_up_missing(name: str, path: Path, error: OSError, found: _Findings) -> None:
    if "://" in name:
        reason = "is a web address: load it with any LlamaIndex reader and pass the Documents"
        found.skip(name, reason, absent=True)
    elif any(map(has_magic, path.parts)):
        root, pattern = split_glob(path)
        if not _take_folder(root, pattern, name, found):
            reason = "matches no file" if os.path.isdir(root) else "matches no file: its folder is not there"
            found.skip(name, reason, absent=True)
    elif isinstance(error, FileNotFoundError):
        reason = "is a link to a file that is not there" if os.path.islink(path) else "is not there"
        found.skip(name, reason, absent=True)
    else:
        found.skip(name, f"cannot be looked at: {error.strerror}", absent=not isinstance(error, PermissionError))


def _take_folder(root: Path, pattern: Pattern, name: str, found: _Findings) -> bool:
    """Take what matches below a folder; return whether there is anything."""
    entries = list(walk(root, pattern)) if os.path.isdir(root) else []
    names_here = Counter(_identity(entry.status) for entry in entries if isinstance(entry, FoundFile))
    is_unnamed = root.name in ("", "..")
    folder = Path(os.path.realpath(root)) if is_unnamed else Path(os.path.realpath(root.parent)) / root.name
    for entry in entries:
        path = root.joinpath(*entry.parts)
        if isinstance(entry, Refused):
            found.skip(str(path), entry.reason)
        elif entry.status.st_nlink > names_here[_identity(entry.status)]:
            found.skip(str(path), "has a second name outside of the folder (a hard link): name it directly to read it")
        else:
            found.take(
                FileRef(
                    path,
                    "",
                    entry.status.st_size,
                    printable(str(path)),
                    _identity(entry.status),
                    given=printable(name),
                    names=names_of(folder.joinpath(*entry.parts)),
                    depth=len(entry.parts) + bool(folder.name),
                )
            )
    return bool(entries)


class _Findings:
    """Collects files, and sees to it that each is taken once and each id is given once."""

    def __init__(self, limits: ReadLimits) -> None:
        self.files: list[FileRef] = []
        self.skipped: list[SkippedFile] = []
        self._limits = limits
        self._by_identity: dict[tuple[int, int] | None, FileRef] = {}
        self._ids: set[str] = set()

    def skip(self, name: str, reason: str, *, absent: bool = False) -> None:
        self.skipped.append(SkippedFile(printable(name), reason, absent))

    def take(self, ref: FileRef) -> None:
        """Take a file, and give it an id that no other has."""
        if reason := self._reason_to_skip(ref):
            self.skip(str(ref.path), reason)
        elif first := self._by_identity.get(ref.identity):
            self.skip(str(ref.path), f"is the same file as {first.shown}, and is read once")
        else:
            named = replace(ref, doc_id=ref.free_id(self._ids))
            self._ids.add(named.doc_id)
            self._by_identity[ref.identity] = named
            self.files.append(named)

    def _reason_to_skip(self, ref: FileRef) -> str | None:
        suffix = ref.path.suffix.lower()
        if suffix not in SUFFIXES:
            kind = f"has the type {printable(suffix)}" if suffix else "has no file extension"
            return (
                f"{kind}, and only {', '.join(SUFFIXES)} are read: "
                "load it with any LlamaIndex reader and pass the Documents"
            )
        return size_reason(ref.size, self._limits)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
