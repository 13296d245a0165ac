"""Turns files, folders and globs into a list of documents to read, each with its id."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.readers.base import ReadLimits, SkippedFile
from llama_index_contextual.readers.files import open_file
from llama_index_contextual.readers.names import printable
from llama_index_contextual.readers.walk import (
    EVERYTHING,
    FoundFile,
    Pattern,
    Refused,
    has_magic,
    special_reason,
    split_glob,
    walk,
)

TEXT_SUFFIXES = (".txt", ".text")
MARKDOWN_SUFFIXES = (".md", ".markdown")
PDF_SUFFIXES = (".pdf",)
SUFFIXES = (*PDF_SUFFIXES, *TEXT_SUFFIXES, *MARKDOWN_SUFFIXES)


@dataclass(frozen=True)
class FileRef:
    """A file that can be read.

    Attributes:
        path: Where it is, as named in the call.
        doc_id: Id of its document: the path as seen from the parent of the folder that was given, or the file name.
        size: Bytes on disk.
        shown: `path`, safe to print.
        identity: Device and inode, so that a file that is exchanged before it is read is noticed.
    """

    path: Path
    doc_id: str
    size: int
    shown: str
    identity: tuple[int, int] | None = field(default=None, repr=False, compare=False)


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

    Raises:
        InputError: Two different files have the same document id, or an input is no path.
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


def _look_up(item: object, found: _Findings) -> None:
    if not isinstance(item, str | os.PathLike):
        raise InputError(f"An input must be a path, got {type(item).__name__}.", value=item)
    name = os.fspath(item)
    if not isinstance(name, str):
        raise InputError(
            f"An input must be a path in text form, got {type(name).__name__}: use os.fsdecode.", value=item
        )
    if not name.strip() or "\0" in name:
        found.skip(name, "is no path: it is empty or contains a NUL character")
        return
    path = Path(name)
    try:
        status = os.stat(path)
    except OSError as error:
        _look_up_missing(name, path, error, found)
        return
    if stat.S_ISDIR(status.st_mode):
        _take_folder(path, EVERYTHING, "contains no file", name, found)
    elif reason := special_reason(status.st_mode):
        found.skip(name, reason)
    else:
        found.take(path, printable(path.name), status)


def _look_up_missing(name: str, path: Path, error: OSError, found: _Findings) -> None:
    if "://" in name:
        found.skip(name, "is a web address: load it with any LlamaIndex reader and pass the Documents")
    elif any(map(has_magic, path.parts)):
        root, pattern = split_glob(path)
        reason = "matches no file" if os.path.isdir(root) else "matches no file: its folder is not there"
        _take_folder(root, pattern, reason, name, found)
    elif isinstance(error, FileNotFoundError):
        found.skip(name, "is a link to a file that is not there" if os.path.islink(path) else "is not there")
    else:
        found.skip(name, f"cannot be looked at: {error.strerror}")


def _take_folder(root: Path, pattern: Pattern, reason_if_empty: str, name: str, found: _Findings) -> None:
    entries = list(walk(root, pattern)) if os.path.isdir(root) else []
    names_here = Counter(_identity(entry.status) for entry in entries if isinstance(entry, FoundFile))
    folder = Path(os.path.realpath(root)).name if root.name in ("", "..") else root.name
    for entry in entries:
        path = root.joinpath(*entry.parts)
        if isinstance(entry, Refused):
            found.skip(str(path), entry.reason)
        elif entry.status.st_nlink > names_here[_identity(entry.status)]:
            found.skip(str(path), "has a second name outside of the folder (a hard link): name it directly to read it")
        else:
            found.take(path, "/".join(printable(part) for part in (folder, *entry.parts) if part), entry.status)
    if not entries:
        found.skip(name, reason_if_empty)


class _Findings:
    """Collects files, and sees to it that each is taken once and each id is given once."""

    def __init__(self, limits: ReadLimits) -> None:
        self.files: list[FileRef] = []
        self.skipped: list[SkippedFile] = []
        self._limits = limits
        self._by_identity: dict[tuple[int, int], FileRef] = {}
        self._by_id: dict[str, FileRef] = {}

    def skip(self, name: str, reason: str) -> None:
        self.skipped.append(SkippedFile(printable(name), reason))

    def take(self, path: Path, doc_id: str, status: os.stat_result) -> None:
        identity = _identity(status)
        ref = FileRef(path, doc_id, status.st_size, printable(str(path)), identity)
        if reason := self._reason_to_skip(ref):
            self.skip(str(path), reason)
            return
        if first := self._by_identity.get(identity):
            self.skip(str(path), f"is the same file as {first.shown}, and is read once")
            return
        if other := self._by_id.get(doc_id):
            raise InputError(
                f"{other.shown} and {ref.shown} would both get the document id {doc_id!r}: "
                "give the folder that contains both, or rename one of them.",
                value=doc_id,
            )
        self._by_identity[identity] = self._by_id[doc_id] = ref
        self.files.append(ref)

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
