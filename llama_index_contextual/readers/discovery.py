"""Find the files that paths, folders and globs refer to, give each document an id, and open only regular files.

`discover` looks up each input and collects the files, and the reasons for skipping others. `walk` searches a folder
with a glob. `open_file` and `read_once` read a file. `printable` and `one_line` make names safe to display.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from io import BufferedReader
from itertools import count, groupby, pairwise, takewhile
from pathlib import Path, PurePath

import xxhash

from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.readers.base import SPLIT, FileWarning, ReadLimits, SkippedFile

TEXT_SUFFIXES = (".txt", ".text")
MARKDOWN_SUFFIXES = (".md", ".markdown")
PDF_SUFFIXES = (".pdf",)
_PACKAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((".docx", ".docm"), ("mammoth", "lxml")),
    **dict.fromkeys((".pptx", ".pptm"), ("pptx", "lxml")),
    **dict.fromkeys((".xlsx", ".xlsm"), ("openpyxl", "lxml")),
    **dict.fromkeys((".html", ".htm", ".xhtml"), ("lxml",)),
    **dict.fromkeys((".csv", ".tsv", ".eml"), ()),
}
OFFICE_SUFFIXES = tuple(_PACKAGES)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
SUFFIXES = (*PDF_SUFFIXES, *TEXT_SUFFIXES, *MARKDOWN_SUFFIXES, *OFFICE_SUFFIXES, *IMAGE_SUFFIXES)
_INSTALL = 'pip install "llama-index-contextual[office]"'
CONVERT = "convert it to PDF, HTML or text"
_TRANSCRIBE = "transcribe it and add the transcript as .txt"
_REMEDIES = {
    **dict.fromkeys((".doc", ".dot", ".odt", ".rtf"), "open it in Word or LibreOffice and save it as .docx"),
    **dict.fromkeys((".ppt", ".pps", ".ppsx", ".odp"), "open it in PowerPoint or LibreOffice and save it as .pptx"),
    **dict.fromkeys((".xls", ".xlsb", ".ods"), "open it in Excel or LibreOffice and save it as .xlsx"),
    **dict.fromkeys((".msg", ".mbox"), "save its mails from the mail program as .eml"),
    **dict.fromkeys((".mht", ".mhtml"), "open it in a browser and save it as .html"),
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".bz2", ".xz"), "unpack it"),
    **dict.fromkeys((".mp3", ".m4a", ".wav", ".flac", ".ogg", ".opus", ".aac", ".wma"), _TRANSCRIBE),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".wmv", ".mpg", ".mpeg"), _TRANSCRIBE),
    **dict.fromkeys((".gif", ".bmp", ".webp", ".heic", ".heif", ".avif"), "save it as .png or .jpg"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".parquet", ".feather"), "export its tables as .csv"),
}


@dataclass(frozen=True)
class FileRef:
    """A file to read.

    Attributes:
        path: Path of the file, as it was passed.
        doc_id: Id of the document: the path relative to the parent of the folder that was passed, or the file name.
            It is longer if another file of the same call has that id.
        size: Size on disk, in bytes.
        shown: `path`, safe to print.
        identity: Device and inode, to detect that the file was replaced before it is read.
        given: The input that the file belongs to, safe to print.
        names: Components of the absolute path, safe to print.
        depth: Number of components in the shortest id.
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
        """The id that the document gets if no other document has it."""
        return "/".join(self.names[-self.depth :]) or self.doc_id

    def ids(self) -> Iterator[str]:
        """Yield the possible ids of the document: the shortest first, then each with one more parent folder."""
        for length in range(self.depth, len(self.names) + 1):
            yield "/".join(self.names[-length:])

    def free_id(self, taken: Container[str]) -> str:
        """Return the shortest id that is not taken, or the longest id plus a number if all are taken."""
        longest = self.doc_id
        for longest in self.ids():
            if longest not in taken:
                return longest
        path = PurePath(longest)
        numbered = (path.with_stem(f"{path.stem} ({number})").as_posix() for number in count(2))
        return next(doc_id for doc_id in numbered if doc_id not in taken)


@dataclass(frozen=True)
class Discovery:
    """Result of `discover`.

    Attributes:
        files: The files to read, in the order of the inputs; files in a folder are sorted by name.
        skipped: The inputs and files that are not read, with the reasons.
    """

    files: tuple[FileRef, ...]
    skipped: tuple[SkippedFile, ...]


def discover(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    limits: ReadLimits = ReadLimits(),  # noqa: B008
) -> Discovery:
    """Find the files that the inputs refer to, without opening them.

    Folders are searched recursively. Links, hidden files, hard links to files elsewhere, devices and pipes in a folder
    are reported but not read. A file or link that is passed directly is read.

    If two files would have the same document id, the id of the second contains more of its path.

    Args:
        inputs: Files, folders and globs ("contracts/**/*.pdf").
        limits: Limits for each file; only `max_bytes` is checked here.

    Raises:
        InputError: An input is not a path.
    """
    collector = _Collector(limits)
    for item in [inputs] if isinstance(inputs, str | os.PathLike) else inputs:
        _look_up(item, collector)
    return Discovery(tuple(collector.files), tuple(collector.skipped))


def _look_up(item: object, collector: _Collector) -> None:
    name = os.fspath(item) if isinstance(item, str | os.PathLike) else None
    if not isinstance(name, str):
        raise InputError(f"An input must be a path in text form, got {type(item).__name__}.", value=item)
    if not name.strip() or "\0" in name:
        collector.skip(name, "is not a path: it is empty or contains a NUL character", absent=True)
        return
    path = Path(name)
    try:
        status = os.stat(path)
    except OSError as error:
        _look_up_missing(name, path, error, collector)
        return
    if stat.S_ISDIR(status.st_mode):
        if not _take_folder(path, ["**"], name, collector):
            collector.skip(name, "contains no file")
    elif reason := special_reason(status.st_mode):
        collector.skip(name, reason)
    else:
        names = names_of(Path(os.path.realpath(path.parent)) / path.name)
        collector.take(_file_ref(path, status, name, names))


def _look_up_missing(name: str, path: Path, error: OSError, collector: _Collector) -> None:
    if "://" in name:
        reason = "is a web address: save the page as HTML or PDF, and name that file"
        collector.skip(name, reason, absent=True)
    elif any(map(has_magic, path.parts)):
        root, pattern = split_glob(path)
        if not _take_folder(root, pattern, name, collector):
            reason = "matches no file" if os.path.isdir(root) else "matches no file: its folder does not exist"
            collector.skip(name, reason, absent=True)
    elif isinstance(error, FileNotFoundError):
        reason = "is a link to a file that does not exist" if os.path.islink(path) else "does not exist"
        collector.skip(name, reason, absent=True)
    else:
        collector.skip(name, f"cannot be accessed: {error.strerror}", absent=not isinstance(error, PermissionError))


def _take_folder(root: Path, pattern: Sequence[str], name: str, collector: _Collector) -> bool:
    """Collect the entries below a folder that match a pattern, and return whether there are any."""
    entries = list(walk(root, pattern)) if os.path.isdir(root) else []
    names_here = Counter(_identity(found) for _, found in entries if not isinstance(found, str))
    is_unnamed = root.name in ("", "..")
    folder = Path(os.path.realpath(root)) if is_unnamed else Path(os.path.realpath(root.parent)) / root.name
    for parts, found in entries:
        path = root.joinpath(*parts)
        if isinstance(found, str):
            collector.skip(str(path), found)
        elif found.st_nlink > names_here[_identity(found)]:
            collector.skip(str(path), "has a hard link outside the folder: name it directly to read it")
        else:
            names, depth = names_of(folder.joinpath(*parts)), len(parts) + bool(folder.name)
            collector.take(_file_ref(path, found, name, names, depth))
    return bool(entries)


def _file_ref(path: Path, status: os.stat_result, given: str, names: tuple[str, ...], depth: int = 1) -> FileRef:
    return FileRef(path, "", status.st_size, printable(str(path)), _identity(status), printable(given), names, depth)


class _Collector:
    """Collection of files without duplicates, in which every document has its own id."""

    def __init__(self, limits: ReadLimits) -> None:
        self.files: list[FileRef] = []
        self.skipped: list[SkippedFile] = []
        self._limits = limits
        self._by_identity: dict[tuple[int, int] | None, FileRef] = {}
        self._ids: set[str] = set()

    def skip(self, name: str, reason: str, *, absent: bool = False) -> None:
        self.skipped.append(SkippedFile(printable(name), reason, absent))

    def take(self, ref: FileRef) -> None:
        """Add a file under an id of its own, unless it must be skipped."""
        suffix = ref.path.suffix.lower()
        if reason := suffix_reason(suffix) if suffix not in SUFFIXES else size_reason(ref.size, self._limits):
            self.skip(str(ref.path), reason)
        elif first := self._by_identity.get(ref.identity):
            self.skip(str(ref.path), f"is the same file as {first.shown}, which is read once")
        else:
            ref = replace(ref, doc_id=ref.free_id(self._ids))
            self._ids.add(ref.doc_id)
            self._by_identity[ref.identity] = ref
            self.files.append(ref)


def suffix_reason(suffix: str) -> str:
    """Return the reason why files with this extension are not read, and what to do."""
    if remedy := _REMEDIES.get(suffix):
        return f"has the type {suffix} and is not read: {remedy}"
    kind = f"has the type {printable(suffix)}" if suffix else "has no file extension"
    return f"{kind} and is not read: {CONVERT}"


def missing_extra(suffix: str) -> str | None:
    """Return the reason why files with this extension cannot be read in this installation, or None if they can."""
    if all(find_spec(package) for package in _PACKAGES.get(suffix, ())):
        return None
    return f"needs further packages: {_INSTALL}"


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def size_reason(size: int, limits: ReadLimits) -> str | None:
    """Return the reason why a file of this size is not read, or None if it is within the limit."""
    if size <= limits.max_bytes:
        return None
    return f"has {size:,} bytes, more than the limit of {limits.max_bytes:,}: {SPLIT}"


def notes_on_ids(refs: Iterable[FileRef], *, hint: str = "") -> list[FileWarning]:
    """Return a warning for each input whose documents get longer ids because the usual ids are taken.

    Args:
        refs: The files, with the ids of their documents.
        hint: Advice to append to each warning.
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
    """Return the components of an absolute path, safe to print; a Windows drive or share is also a component.

    Example:
        >>> from pathlib import PureWindowsPath
        >>> names_of(PureWindowsPath("C:/reports/annual.md"))
        ('C', 'reports', 'annual.md')
    """
    drive = [part for part in re.split(r"[\\/:]+", path.drive) if part]
    return tuple(map(printable, (*drive, *(path.parts[1:] if path.anchor else path.parts))))


# Search of a folder

MAX_DEPTH = 64
"""Number of nested folder levels that are searched."""
_MAGIC = frozenset("*?[")


def _accepts(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a path matches a glob: `*`, `?`, `[…]`, and `**` for any number of folders.

    Extensions match regardless of case: `*.pdf` matches `A.PDF`.
    """
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _accepts(pattern[1:], names) or _accepts(pattern, names[1:])
    return _matches(names[0], pattern[0]) and _accepts(pattern[1:], names[1:])


def _can_continue(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a path below this one can match."""
    fixed = list(takewhile(lambda part: part != "**", pattern))
    is_longer = len(fixed) < len(pattern) or len(names) < len(fixed)
    return is_longer and all(map(_matches, names, fixed))


def has_magic(part: str) -> bool:
    """Return whether a path component contains glob characters."""
    return not _MAGIC.isdisjoint(part)


def split_glob(path: Path) -> tuple[Path, Sequence[str]]:
    """Split a glob into its fixed folder and the pattern below it."""
    parts = path.parts
    fixed = next(index for index, part in enumerate(parts) if has_magic(part))
    return Path(*parts[:fixed]), parts[fixed:]


def walk(root: Path, pattern: Sequence[str]) -> Iterator[tuple[tuple[str, ...], os.stat_result | str]]:
    """Yield the entries below `root` that match a glob (given as its components), sorted by name.

    Yields:
        The path of each entry relative to `root`, with the status of a regular file or the reason why the entry is not
        read. Links, hidden files, hidden folders and devices are not read.
    """
    pattern = [part for part, after in pairwise([*pattern, ""]) if not part == after == "**"]
    stack: list[tuple[str, ...]] = [()]
    while stack:
        parts = stack.pop()
        path = root.joinpath(*parts)
        continues = _can_continue(pattern, parts)
        if parts:
            if not (continues and os.path.isdir(path)) and not _accepts(pattern, parts):
                continue
            if (found := _visit(path, parts, continues)) is not None:
                yield parts, found
                continue
        try:
            stack += [(*parts, name) for name in sorted(os.listdir(path), reverse=True)]
        except OSError as error:
            yield parts, f"the folder cannot be opened: {error.strerror}"


def _visit(path: Path, parts: tuple[str, ...], continues: bool) -> os.stat_result | str | None:
    """Return the status of a regular file, the reason why an entry is not read, or None for a folder to search."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"cannot be accessed: {error.strerror}"
    is_folder = stat.S_ISDIR(status.st_mode)
    if parts[-1].startswith("."):
        return f"is a hidden {'folder' if is_folder else 'file'}: name it directly to read it"
    if stat.S_ISLNK(status.st_mode) or _is_junction(path):
        return "is a link, and links in a folder are not followed: name its target to read it"
    if not is_folder:
        return special_reason(status.st_mode) or status
    if not continues:
        return "is a folder: end the pattern with /** to read the files in it"
    if len(parts) >= MAX_DEPTH:
        return f"lies {MAX_DEPTH} folders deep: name it directly to read the files in it"
    return None


def special_reason(mode: int) -> str | None:
    """Return the reason why a special file is not read, or None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))
    kind = next((name for test, name in kinds if test(mode)), "a device")
    return f"is {kind}: only regular files are read"


def _matches(name: str, pattern: str) -> bool:
    stem, suffix = os.path.splitext(name)
    return fnmatchcase(name, pattern) or fnmatchcase(stem + suffix.lower(), pattern)


def _is_junction(path: Path) -> bool:
    # Python 3.11 cannot distinguish a Windows junction from a folder.
    return hasattr(os.path, "isjunction") and bool(os.path.isjunction(path))


# Reading a file


def content_hash(path: str | os.PathLike[str]) -> str:
    """Return the xxh3-128 of a file's bytes as 32 hexadecimal digits.

    Raises:
        ReadError: The file cannot be opened.
    """
    try:
        with open_file(Path(path)) as file:
            return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
    except OSError as error:
        raise ReadError(printable(os.fspath(path)), f"cannot be opened: {error.strerror}") from error


def read_once(path: Path, *, max_bytes: int) -> tuple[bytes, str]:
    """Return the bytes of a regular file and their hexadecimal xxh3-128.

    The file is read only once, so that the hash always matches the bytes. At most `max_bytes` + 1 bytes are read.

    Raises:
        OSError: The file cannot be opened or is not a regular file.
    """
    with open_file(path) as file:
        data = file.read(min(max_bytes, os.fstat(file.fileno()).st_size) + 1)
    return data, xxhash.xxh3_128_hexdigest(data)


def read_limited(path: Path, limits: ReadLimits) -> tuple[bytes, str]:
    """Return the bytes and hash of a file, as `read_once` does.

    Raises:
        ReadError: The file cannot be opened, is not a regular file, or has more bytes than the limit.
    """
    try:
        data, digest = read_once(path, max_bytes=limits.max_bytes)
    except OSError as error:
        raise ReadError(str(path), f"cannot be read: {error.strerror}") from error
    if len(data) > limits.max_bytes:
        raise ReadError(str(path), f"has more than {limits.max_bytes:,} bytes: {SPLIT}")
    return data, digest


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading, without blocking if a pipe has replaced it.

    Raises:
        OSError: The file cannot be opened or is not a regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


# Printable names

# Joiners are part of Indic and Persian words and of emoji sequences. Other format characters are invisible or control
# text direction.
_JOINERS = "\u200c\u200d"
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ESCAPED = re.compile(r"\\(\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


def _is_unsafe(char: str) -> bool:
    return unicodedata.category(char) in _UNSAFE and char not in _JOINERS


def printable(name: str) -> str:
    r"""Escape control, bidi and invisible characters and lone surrogates in a file name.

    Backslashes are doubled, so that different names always give different results.

    Example:
        >>> printable("a\x1b[31m.txt")
        'a\\x1b[31m.txt'
    """
    if name.isascii() and name.isprintable() and "\\" not in name:
        return name
    return "".join(_escape(char) for char in name)


def unescaped(name: str) -> str:
    r"""Return the original of a name that was escaped with `printable`.

    Example:
        >>> unescaped(printable("a\x1b\\b.txt")) == "a\x1b\\b.txt"
        True
    """
    return _ESCAPED.sub(lambda match: "\\" if match[1] == "\\" else chr(int(match[1][1:], 16)), name)


def _escape(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if not _is_unsafe(char):
        return char
    return f"\\x{ord(char):02x}" if char.isascii() else char.encode("ascii", "backslashreplace").decode()


def one_line(text: str, limit: int = 200) -> str:
    """Return the text as one line of at most `limit` characters, without control, bidi and invisible characters."""
    head = " ".join(text[: 4 * limit].split())
    if not head.isascii() or not head.isprintable():
        head = " ".join("".join(char for char in head if not _is_unsafe(char)).split())
    return head if len(head) <= limit else head[: limit - 1].rstrip() + "…"
