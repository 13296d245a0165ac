"""Find the files to read, assign document ids to them, and read their bytes.

`discover` collects the files to which the inputs refer, and the reasons for skipping other files. `matching_entries`
searches a folder with a glob. `FileSource.open` reads a file. `printable` and `one_line` make names safe to display.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain, count, takewhile
from mimetypes import guess_type
from pathlib import Path, PurePath
from typing import Any, Protocol, Self

import xxhash

from llama_index_contextual._utils.files import open_file
from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.metadata import DocumentMap

TEXT_SUFFIXES = (".txt", ".text")
MARKDOWN_SUFFIXES = (".md", ".markdown")
PDF_SUFFIXES = (".pdf",)
OFFICE_SUFFIXES = (
    ".docx",
    ".docm",
    ".pptx",
    ".pptm",
    ".xlsx",
    ".xlsm",
    ".html",
    ".htm",
    ".xhtml",
    ".csv",
    ".tsv",
    ".eml",
)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
SUFFIXES = (*PDF_SUFFIXES, *TEXT_SUFFIXES, *MARKDOWN_SUFFIXES, *OFFICE_SUFFIXES, *IMAGE_SUFFIXES)
SPLIT = "split it into smaller files"
"""Advice for files that exceed a limit."""
CONVERT = "convert it to PDF, HTML or text"
_SAVE_AS = {
    **dict.fromkeys((".doc", ".rtf", ".odt", ".fodt"), ".docx"),
    **dict.fromkeys((".ppt", ".odp"), ".pptx"),
    **dict.fromkeys((".xls", ".ods"), ".xlsx"),
    ".msg": ".eml",
}
_ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".bz2", ".xz")
_REPEATED = "something in it is repeated; save its text as .txt or .csv"


# Limits and results


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """Limits for each file; a file that exceeds a limit is skipped.

    Attributes:
        max_bytes: Size of the file on disk, in bytes.
        max_pages: Number of pages in a PDF, or in all PDFs attached to an email.
        max_seconds: Wall-clock time in seconds for parsing one file (except text and Markdown) or for reading one
            scanned page, after which the child process is killed. For splitting text into chunks, the limit applies to
            each 10 million characters.
        max_characters: Number of characters in the extracted text.
        max_unpacked_bytes: Unpacked size of an Office file, or of all Office files attached to an email, in bytes.
        niceness: How far other processes have precedence over those that parse files, as for the command `nice`; 0 to
            19, without effect on Windows.
    """

    max_bytes: int = 500_000_000
    max_pages: int = 10_000
    max_seconds: float = 300.0
    max_characters: int = 500_000_000
    max_unpacked_bytes: int = 1_000_000_000
    niceness: int = 0


class FileAccount:
    """Counter for the unpacked bytes, pages and characters of a file.

    An email and its attachments share one counter. In addition to `limits`, the counter limits growth relative to the
    file size: a few bytes for a merged cell, a number format or a reference to a slide can expand to any amount of
    text.

    Args:
        path: Path of the file, for error messages.
        size: Size of the file on disk, in bytes.
        limits: Limits for the file.

    Attributes:
        limits: Limits for the file.
    """

    MAX_GROWTH = 50
    """Maximum number of characters per byte of the file. Most documents have 1 to 3, but one workbook had 48."""
    MAX_UNPACKED = 200
    """Maximum number of unpacked bytes per byte of the file."""
    SMALL_TEXT = 3_000_000
    """Number of characters that are allowed in every file, regardless of its size."""
    SMALL_ARCHIVE = 50_000_000
    """Number of unpacked bytes that are allowed in every file, regardless of its size."""

    def __init__(self, path: Path, size: int, limits: ReadLimits) -> None:
        self.limits = limits
        self._path, self._size = path, size
        self._characters = self._unpacked = self._pages = 0

    def add_text(self, characters: int) -> None:
        """Count characters of text.

        Raises:
            ReadError: The total exceeds a limit; the other methods also raise this error.
        """
        self._characters += characters
        plausible = max(self.SMALL_TEXT, self.MAX_GROWTH * self._size)
        self._check(self._characters, "characters", self.limits.max_characters, plausible)

    def unpack(self, size: int) -> None:
        """Count the unpacked bytes of an archive."""
        self._unpacked += size
        plausible = max(self.SMALL_ARCHIVE, self.MAX_UNPACKED * self._size)
        self._check(self._unpacked, "unpacked bytes", self.limits.max_unpacked_bytes, plausible)

    def add_pages(self, pages: int) -> None:
        """Count pages of a PDF."""
        self._pages += pages
        self._check(self._pages, "pages", self.limits.max_pages, self._pages)

    def _check(self, count: int, unit: str, most: int, plausible: int) -> None:
        if count > most:
            raise ReadError(str(self._path), f"has more than {most:,} {unit}: {SPLIT}")
        if count > plausible:
            grown = f"becomes more than {plausible / 1e6:,.1f} million {unit} from {self._size:,} bytes"
            raise ReadError(str(self._path), f"{grown}: {_REPEATED}")


class PictureReader(Protocol):
    """Reader of the pictures in an Office file or an email, which it shares with its attachments."""

    def text(self, data: bytes, place: str) -> str | None:
        """Return the text of the picture at this place, or None if it is not a picture or is too small to have text."""

    def pdf_pages(self, data: bytes) -> dict[int, Mapping[str, Any]]:
        """Return the pages of an attached PDF that OCR has read."""

    def add_unread_pages(self, data: bytes, numbers: tuple[int, ...]) -> None:
        """Record pages of an attached PDF that OCR should read."""


@dataclass(frozen=True)
class FileSource:
    """The bytes of a file or an email attachment.

    Attributes:
        path: Path of the file, for its extension and for error messages.
        data: The bytes.
        account: Counter for the file; an email and its attachments share one counter.
        digest: Hexadecimal xxh3-128 hash of the bytes; empty for an attachment.
        depth: 1 for a file on disk, and 1 more for each level of attachment.
        pictures: Pictures of the file on disk, if OCR may read them.
        figures: Whether to keep the figures.
    """

    path: Path
    data: bytes
    account: FileAccount
    digest: str = ""
    depth: int = 1
    pictures: PictureReader | None = field(default=None, repr=False, compare=False)
    figures: bool = True

    @classmethod
    def open(cls, path: Path, limits: ReadLimits) -> Self:
        """Read a file once, so that the hash always matches the bytes.

        Raises:
            ReadError: The file cannot be opened, is not a regular file, or has more bytes than the limit.
        """
        try:
            with open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read(size + 1) if size <= limits.max_bytes else b""
        except OSError as error:
            raise ReadError(str(path), f"cannot be read: {error.strerror}") from error
        if reason := size_reason(max(size, len(data)), limits):
            raise ReadError(str(path), reason)
        return cls(path, data, FileAccount(path, len(data), limits), xxhash.xxh3_128_hexdigest(data))

    def error(self, reason: str) -> ReadError:
        """Return the error to raise if the file cannot be read."""
        return ReadError(str(self.path), reason)


def has_text(text: str) -> bool:
    """Return whether the text has any character other than white space, control and format characters."""
    return any(not char.isspace() and unicodedata.category(char) not in ("Cc", "Cf") for char in text)


@dataclass(frozen=True)
class ParsedFile:
    """The text of one file with its structure and metadata.

    Attributes:
        text: The whole text. All offsets in this package count characters (code points) of this string.
        map: Positions of the pages, headings and tables in `text`.
        title: Title of the document, or None if it has none.
        warnings: Problems such as "page 3 has no text: it needs OCR".
        metadata: Additional metadata, such as the front matter of Markdown or the running headers of a PDF; JSON
            scalars, and lists of them.
        digest: Hexadecimal xxh3-128 hash of the bytes that were parsed; empty if the reader does not compute it.
        scanned: Numbers of the pages that have content but no text, or of the pictures in an Office file or an email,
            which the caller should read with OCR.
        covered: Numbers of the pages that are mostly covered by a picture and have hardly any text, which the caller
            should read with OCR, too.
        pictures: The stored pictures of the figures, by their SHA-256 hash.
    """

    text: str
    map: DocumentMap = field(default_factory=DocumentMap)
    title: str | None = None
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    scanned: tuple[int, ...] = ()
    covered: tuple[int, ...] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class SkippedFile:
    """A file that was not read, or an empty Document.

    Attributes:
        path: Path of the file as it was passed, or the id of the Document.
        reason: The reason why the file was skipped, and what to do about it.
        absent: Whether there is no file at the path that was passed.
        content_hash: xxh3 hash of a file whose content cannot be read, or None for any other reason.
    """

    path: str
    reason: str
    absent: bool = False
    content_hash: str | None = None


@dataclass(frozen=True)
class FileWarning:
    """A problem in a file that was nevertheless read.

    Attributes:
        path: Path of the file as it was passed.
        message: Description of the problem.
    """

    path: str
    message: str


# Discovery


@dataclass(frozen=True)
class FileRef:
    """A file to read.

    Attributes:
        path: Path of the file, as it was passed; for a file at a URL, the path of its scratch file.
        doc_id: Id of the document: the path relative to the parent of the folder that was passed, or the file name.
            More parent folders are included if another file in the same call has this id.
        size: Size on disk, in bytes.
        shown: `path`, escaped so that it is safe to print.
        identity: Device and inode, to detect if the file is replaced before it is read.
        ids: Candidate ids of the document, shortest first; each has one parent folder more than the previous id.
        url: The URL of the file, or "".
        fingerprint: For a file at a URL, a text that changes with its content, or "" if it is unknown.
        fetch: For a file at a URL, the function that downloads it to `path`.
    """

    path: Path
    doc_id: str
    size: int
    shown: str
    identity: tuple[int, int] | None = field(default=None, repr=False, compare=False)
    ids: tuple[str, ...] = field(default=(), repr=False, compare=False)
    url: str = ""
    fingerprint: str = field(default="", repr=False, compare=False)
    fetch: Callable[[FileRef], object] | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The path or the URL, as it was passed."""
        return self.url or str(self.path)

    @property
    def location(self) -> str:
        """The path with links resolved, or the URL."""
        return location_of(self.name)

    def free_id(self, taken: Container[str]) -> str:
        """Return the shortest id that is not taken, or the longest id plus a number if all are taken."""
        longest = PurePath(self.ids[-1])
        numbered = (longest.with_stem(f"{longest.stem} ({number})").as_posix() for number in count(2))
        return next(doc_id for doc_id in chain(self.ids, numbered) if doc_id not in taken)


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(path: object) -> bool:
    """Return whether an input is a URL, such as "s3://bucket/folder".

    Example:
        >>> is_url("https://example.org"), is_url("C://folder"), is_url("notes.txt")
        (True, False, False)
    """
    return isinstance(path, str) and _URL.match(path) is not None


def location_of(path: str | os.PathLike[str]) -> str:
    """Return a path with links resolved, or a URL as it is."""
    return str(path) if is_url(path) else os.path.realpath(path)


def discover(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    limits: ReadLimits = ReadLimits(),
    find: Callable[[str], Iterable[FileRef | SkippedFile]] | None = None,
) -> Discovery:
    """Find the files that the inputs refer to, without opening them.

    Folders are searched recursively. Links, hidden files, hard links to files outside the folder, devices and pipes in
    a folder are reported but not read. A file or link that is passed directly is read.

    If two files would have the same document id, the id of the second file contains more of its path.

    Args:
        inputs: Files, folders and globs ("contracts/**/*.pdf").
        limits: Limits for each file; only `max_bytes` is checked here.
        find: Function that returns the files at a URL; without it, URLs are skipped.

    Raises:
        InputError: An input is not a path.
    """
    discovery = Discovery(limits, find)
    for item in [inputs] if isinstance(inputs, str | os.PathLike) else inputs:
        name = os.fspath(item) if isinstance(item, str | os.PathLike) else None
        if not isinstance(name, str):
            raise InputError(f"An input must be a path in text form, got {type(item).__name__}.", value=item)
        discovery.add(name)
    return discovery


class Discovery:
    """Files to read, without duplicates and with unique document ids.

    Args:
        limits: Limits for each file.
        find: As in `discover`.

    Attributes:
        files: The files, in the order of the inputs; files in a folder are sorted by name.
        skipped: The inputs and files that are not read, with the reasons.
    """

    def __init__(
        self, limits: ReadLimits, find: Callable[[str], Iterable[FileRef | SkippedFile]] | None = None
    ) -> None:
        self.files: list[FileRef] = []
        self.skipped: list[SkippedFile] = []
        self._limits, self._find = limits, find
        self._by_identity: dict[tuple[int, int] | str | None, FileRef] = {}
        self._ids: set[str] = set()
        self._names: dict[Path, Collection[str]] = {}

    def add(self, name: str) -> None:
        """Add the files that an input refers to."""
        if not name.strip() or "\0" in name:
            self._skip(name, "is not a path: it is empty or contains a NUL character", is_absent=True)
            return
        if is_url(name):
            self._add_url(name)
            return
        path = Path(name)
        try:
            status = os.stat(path)
        except OSError as error:
            root, pattern = split_glob(path)
            if not pattern:
                is_missing = isinstance(error, FileNotFoundError)
                reason = "does not exist" if is_missing else f"cannot be accessed: {error.strerror}"
                self._skip(name, reason, is_absent=not isinstance(error, PermissionError))
            elif not self._add_folder(root, pattern):
                self._skip(name, "matches no file", is_absent=True)
            return
        if not stat.S_ISDIR(status.st_mode):
            path = self._as_listed(path)
            self._add_file(path, status, Path(os.path.realpath(path.parent)) / path.name)
        elif not self._add_folder(path, ["**"]):
            self._skip(name, "contains no file")

    def _add_url(self, url: str) -> None:
        """Add the files at a URL. If they cannot be listed completely, none of them is added."""
        if self._find is None:
            self._skip(url, "is a URL, which only `ingest`, `sync_folders` and `estimate` read", is_absent=True)
            return
        items = list(self._find(url))
        for item in items:
            if isinstance(item, SkippedFile):
                self.skipped.append(item)
            elif first := self._by_identity.get(item.url):
                self._skip(item.url, f"is the same file as {first.shown}, which is read once")
            else:
                self._add(item, item.url)
        if not items:
            self._skip(url, "contains no file")

    def _add(self, ref: FileRef, identity: tuple[int, int] | str) -> None:
        """Add a file with a unique document id."""
        ref = replace(ref, doc_id=ref.free_id(self._ids))
        self._ids.add(ref.doc_id)
        self._by_identity[identity] = ref
        self.files.append(ref)

    def _add_folder(self, root: Path, pattern: Sequence[str]) -> bool:
        """Add the entries below a folder that match a pattern. Return False if no entry matches."""
        root = self._as_listed(root)
        entries = list(matching_entries(root, pattern)) if os.path.isdir(root) else []
        here = Counter(_identity(status) for _, status in entries if not isinstance(status, str))
        is_unnamed = root.name in ("", "..")
        folder = Path(os.path.realpath(root)) if is_unnamed else Path(os.path.realpath(root.parent)) / root.name
        for parts, status in entries:
            path = root.joinpath(*parts)
            if isinstance(status, str):
                self._skip(str(path), status)
            elif status.st_nlink > here[_identity(status)]:
                self._skip(str(path), "has a hard link outside the folder: name it directly to read it")
            else:
                self._add_file(path, status, folder.joinpath(*parts), len(parts) + bool(folder.name))
        return bool(entries)

    def _as_listed(self, path: Path) -> Path:
        """Return the path of a file or folder with its name as it is listed in the folder above.

        macOS and Windows also accept a name with other upper and lower case, and macOS one with its accents encoded
        differently. In any case, a document must have the same id.
        """
        if path.name in ("", "..") or not os.path.lexists(path.with_name(path.name.swapcase())):
            return path  # the second condition is true on systems that distinguish cases
        if path.parent not in self._names:
            with suppress(OSError):  # a folder that may be searched, but not listed
                self._names[path.parent] = frozenset(os.listdir(path.parent))
        names = self._names.get(path.parent, ())
        if path.name in names:
            return path
        folded = _folded(path.name)
        return next((path.with_name(name) for name in names if _folded(name) == folded), path)

    def _add_file(self, path: Path, status: os.stat_result, absolute: Path, depth: int = 1) -> None:
        """Add a file with a unique document id, or record the reason why it is skipped.

        The id consists of at least the last `depth` components of the path.
        """
        suffix, label, identity = path.suffix.lower(), printable_path(str(path)), _identity(status)
        if (reason := special_reason(status.st_mode)) or (
            reason := suffix_reason(suffix) if suffix not in SUFFIXES else size_reason(status.st_size, self._limits)
        ):
            self._skip(str(path), reason)
        elif first := self._by_identity.get(identity):
            self._skip(str(path), f"is the same file as {first.shown}, which is read once")
        else:
            names = [printable(part) for part in absolute.parts[1:]]
            ids = tuple("/".join(names[-length:]) for length in range(depth, len(names) + 1))
            self._add(FileRef(path, "", status.st_size, label, identity, ids), identity)

    def _skip(self, name: str, reason: str, *, is_absent: bool = False) -> None:
        self.skipped.append(SkippedFile(printable_path(name), reason, is_absent))


def suffix_reason(suffix: str) -> str:
    """Explain why files with this extension are not read, and what to do instead."""
    kind = f"has the type {printable(suffix)}" if suffix else "has no file extension"
    remedy = f"open it and save it as {_SAVE_AS[suffix]}" if suffix in _SAVE_AS else CONVERT
    if suffix in _ARCHIVES:
        remedy = "unpack it"
    elif (guess_type(f"file{suffix}")[0] or "").startswith(("audio/", "video/")):
        remedy = "transcribe it and add the transcript as .txt"
    return f"{kind} and is not read: {remedy}"


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def size_reason(size: int, limits: ReadLimits) -> str | None:
    """Explain why a file of this size is too large, or return None if the size is within the limit."""
    if size <= limits.max_bytes:
        return None
    return f"has more than {limits.max_bytes:,} bytes: {SPLIT}"


def special_reason(mode: int) -> str | None:
    """Explain why a special file, such as a device or a pipe, is not read. Return None for a regular file."""
    return None if stat.S_ISREG(mode) else "is not a regular file but, for example, a pipe, a socket or a device"


def notes_on_ids(refs: Iterable[FileRef], *, hint: str = "") -> list[FileWarning]:
    """Return a list with a warning if any documents have longer ids because the shortest ids are taken.

    Otherwise, the list is empty.

    Args:
        refs: The files, with the ids of their documents.
        hint: Advice to append to the warning.
    """
    longer = [ref for ref in refs if ref.doc_id != ref.ids[0]]
    if not longer:
        return []
    first = longer[0]
    more = f", and {len(longer) - 1} more have longer ids for this reason" if len(longer) > 1 else ""
    taken = f"because {first.ids[0]!r} is the id of another document{more}{hint}"
    return [FileWarning(first.shown, f"its document gets the id {first.doc_id!r}, {taken}")]


# Searching a folder

MAX_DEPTH = 64
"""Maximum number of nested folder levels that are searched."""
_MAGIC = frozenset("*?[")


def split_glob(path: Path) -> tuple[Path, list[str]]:
    """Split a glob into its fixed folder and the components of its pattern; a plain path has no pattern."""
    fixed = list(takewhile(_MAGIC.isdisjoint, path.parts))
    return Path(*fixed), list(path.parts[len(fixed) :])


def accepts_name(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a path matches a glob with `*`, `?`, `[…]`, and `**` for any number of folders.

    Extensions match regardless of case: `*.pdf` matches `A.PDF`.
    """
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return accepts_name(pattern[1:], names) or (pattern[1:2] != ["**"] and accepts_name(pattern, names[1:]))
    return _matches_name(names[0], pattern[0]) and accepts_name(pattern[1:], names[1:])


def _can_continue(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether the glob can match a path below the folder whose path is `names`."""
    fixed = list(takewhile(lambda part: part != "**", pattern))
    is_longer = len(fixed) < len(pattern) or len(names) < len(fixed)
    return is_longer and all(map(_matches_name, names, fixed))


def _matches_name(name: str, pattern: str) -> bool:
    stem, suffix = os.path.splitext(name)
    return fnmatchcase(name, pattern) or fnmatchcase(stem + suffix.lower(), pattern)


_CLUTTER = re.compile(
    r"~\$.*|\.~lock\..*#|\._.*|.*\.(?:tmp|crdownload|part|partial|opdownload|swp)|\.DS_Store|\.localized|Thumbs\.db"
    r"|ehthumbs\.db|desktop\.ini|Icon\r|__MACOSX|\.Spotlight-V100|\.Trashes|\.fseventsd|\$RECYCLE\.BIN|@eaDir"
    r"|System Volume Information",
    re.IGNORECASE | re.DOTALL,
)


def is_clutter(name: str) -> bool:
    """Return whether a name in a folder is that of a lock file, a temporary file or a file of the operating system.

    Nobody means these files, so they are not even reported.

    Example:
        >>> [is_clutter(name) for name in ("~$plan.docx", "Thumbs.db", "film.mp4.part", "plan.docx")]
        [True, True, True, False]
    """
    return _CLUTTER.fullmatch(name) is not None


def matching_entries(
    root: Path, pattern: Sequence[str], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], os.stat_result | str]]:
    """Yield the entries below a folder that match a glob, sorted by name.

    Args:
        root: The folder.
        pattern: Components of the glob.
        above: Path of the subfolder to search, relative to `root`.

    Yields:
        The path of each entry relative to `root`, with the status of a file or the reason why the entry is not read.
        Links, hidden files and hidden folders are not read. Lock files and temporary files are omitted.
    """
    try:
        names = sorted(os.listdir(root.joinpath(*above)))
    except OSError as error:
        yield above, f"the folder cannot be opened: {error.strerror}"
        return
    for name in names:
        if is_clutter(name):
            continue
        parts = (*above, name)
        path = root.joinpath(*parts)
        continues = _can_continue(pattern, parts) and os.path.isdir(path)
        if not continues and not accepts_name(pattern, parts):
            continue
        status = _visit(path, len(parts))
        if isinstance(status, str) or not stat.S_ISDIR(status.st_mode):
            yield parts, status
        elif continues:
            yield from matching_entries(root, pattern, parts)
        else:
            yield parts, "is a folder: end the pattern with /** to read the files in it"


def _visit(path: Path, depth: int) -> os.stat_result | str:
    """Return the status of a folder entry, or the reason why the entry is not read."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"cannot be accessed: {error.strerror}"
    if path.name.startswith("."):
        return "is hidden: name it directly to read it"
    # Python 3.11 cannot distinguish a Windows junction from a folder.
    if stat.S_ISLNK(status.st_mode) or getattr(os.path, "isjunction", os.path.islink)(path):
        return "is a link, and links in a folder are not followed: name its target to read it"
    if stat.S_ISDIR(status.st_mode) and depth >= MAX_DEPTH:
        return f"lies {MAX_DEPTH} folders deep: name it directly to read the files in it"
    return status


# Reading a file


def content_hash(path: str | os.PathLike[str]) -> str:
    """Return the xxh3-128 hash of a file as 32 hexadecimal digits.

    Raises:
        ReadError: The file cannot be opened.
    """
    try:
        with open_file(Path(path)) as file:
            return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
    except OSError as error:
        raise ReadError(printable_path(os.fspath(path)), f"cannot be opened: {error.strerror}") from error


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


def printable_path(path: str) -> str:
    """Escape the names in a path like `printable`; on Windows, the backslashes between them are kept."""
    return os.sep.join(printable(name) for name in path.split(os.sep))


def unescaped(name: str) -> str:
    r"""Return the original name, given the result of `printable`.

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
    """Return the text as one line of at most `limit` characters, without control, bidi or invisible characters."""
    head = " ".join(text[: 4 * limit].split())
    if not head.isascii() or not head.isprintable():
        head = " ".join("".join(char for char in head if not _is_unsafe(char)).split())
    return head if len(head) <= limit else head[: limit - 1].rstrip() + "…"
