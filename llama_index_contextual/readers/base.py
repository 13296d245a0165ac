"""Results and limits of the readers, and validation of the metadata that a user adds to a file."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.index.storable import has_surrogate, value_fault
from llama_index_contextual.metadata import OWN_KEYS, RESERVED_KEYS, TITLE, DocumentMap

SPLIT = "split it into smaller files"
"""Advice for files that exceed a limit."""

_REPEATED = "something in it is repeated; save its text as .txt or .csv"


def user_facts(file_metadata: Callable[[str], Mapping[str, Any] | None] | None, path: Path) -> dict[str, Any]:
    """Return the metadata that the function `file_metadata` gives for a file.

    Raises:
        InputError: `file_metadata` is not a function, or its result is not a mapping of names to JSON scalars or uses a
            name that is reserved for this package.
    """
    if file_metadata is not None and not callable(file_metadata):
        kind = type(file_metadata).__name__
        raise InputError(
            f"file_metadata must be a function from a path to a dict, got {kind}: pass `lambda path: {{...}}`.",
            value=file_metadata,
        )
    facts = None if file_metadata is None else file_metadata(str(path))
    if facts is None:
        return {}
    if not isinstance(facts, Mapping):
        raise InputError(f"file_metadata must return a dict, got {type(facts).__name__}.", value=facts)
    for key, value in facts.items():
        _check_key(key)
        if reason := scalar_fault(value):
            raise InputError(f"The value of the metadata {key!r} of a file {reason}.", value=value)
    return dict(facts)


def is_own_key(key: str) -> bool:
    """Return whether a metadata key is reserved for this package. Users may set the title."""
    return key != TITLE and (key in OWN_KEYS or key in RESERVED_KEYS)


def scalar_fault(value: object) -> str | None:
    """Return the reason why a value cannot be stored as a JSON scalar, or None if it can."""
    if value is None or isinstance(value, str | int | float):
        return value_fault(value)
    return f"is of type {type(value).__name__}: use text, a number or a truth value"


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key.strip() or has_surrogate(key):
        raise InputError(f"A key of the metadata of a file must be a non-empty string, not {key!r}.", value=key)
    if is_own_key(key):
        raise InputError(
            f"The key {key!r} of the metadata of a file is set by this package: choose another name.", value=key
        )


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """Limits for each file; a file that exceeds one of them is skipped.

    Attributes:
        max_bytes: Size of the file on disk, in bytes.
        max_pages: Number of pages in a PDF, or in all PDFs attached to a mail.
        max_seconds: Wall-clock time in seconds for parsing one file (except text and Markdown) or for reading one
            scanned page, after which the child process is killed. The same limit applies to splitting each 10 million
            characters into chunks.
        max_characters: Number of characters in the extracted text.
        max_unpacked_bytes: Unpacked size of an Office file, or of all Office files attached to a mail, in bytes.
    """

    max_bytes: int = 500_000_000
    max_pages: int = 10_000
    max_seconds: float = 300.0
    max_characters: int = 500_000_000
    max_unpacked_bytes: int = 1_000_000_000


class FileAccount:
    """Counter of the unpacked bytes, pages and characters that reading a file produces.

    A mail and its attachments share one counter. In addition to `limits`, it limits growth relative to the file size,
    because a few bytes of a merged cell, a number format or a reference to a slide can expand to any amount of text.

    Args:
        path: Path of the file, for error messages.
        size: Size of the file on disk, in bytes.
        limits: Limits for the file.

    Attributes:
        limits: Limits for the file.
    """

    MAX_GROWTH = 50
    """Characters per byte; documents have 1 to 3, and a generated workbook of one long repeated value had 48."""
    MAX_UNPACKED = 200
    """Unpacked bytes per byte."""
    SMALL_TEXT = 3_000_000
    """Characters that every file may have, whatever its size."""
    SMALL_ARCHIVE = 50_000_000
    """Unpacked bytes that every file may have, whatever its size."""

    def __init__(self, path: Path, size: int, limits: ReadLimits) -> None:
        self.limits = limits
        self._path, self._size = path, size
        self._characters = self._unpacked = self._pages = 0

    def add_text(self, characters: int) -> None:
        """Count characters of text.

        Raises:
            ReadError: The total exceeds a limit; the other methods raise it too.
        """
        self._characters += characters
        plausible = max(self.SMALL_TEXT, self.MAX_GROWTH * self._size)
        self._check(self._characters, "characters", self.limits.max_characters, plausible)

    def unpack(self, size: int) -> None:
        """Count the bytes to which an archive will unpack."""
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


def has_text(text: str) -> bool:
    """Return whether the text has any character other than white space, control and format characters."""
    return any(not char.isspace() and unicodedata.category(char) not in ("Cc", "Cf") for char in text)


@dataclass(frozen=True)
class ParsedFile:
    """The text of one file with its structure and metadata.

    Attributes:
        text: The whole text. Offsets everywhere in this package count characters (code points) of this string.
        map: Offsets of pages and headings in `text`, and its tables.
        title: Title of the document, or None if it has none.
        warnings: Problems such as "page 3 has no text: it needs OCR".
        metadata: Further metadata, JSON scalars only (front matter of Markdown, running headers of a PDF).
        digest: Hexadecimal xxh3-128 of the bytes that were parsed; empty if the reader does not compute it.
        scanned: Numbers of the pages that have content but no text, which the caller should read with OCR.
    """

    text: str
    map: DocumentMap = field(default_factory=DocumentMap)
    title: str | None = None
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    digest: str = ""
    scanned: tuple[int, ...] = ()


@dataclass(frozen=True)
class SkippedFile:
    """A file that was not read, or an empty Document.

    Attributes:
        path: Path of the file as it was passed, or the id of the Document.
        reason: Why it was skipped, and what to do about it.
        absent: Whether the path that was passed does not lead to any file.
    """

    path: str
    reason: str
    absent: bool = False


@dataclass(frozen=True)
class FileWarning:
    """A problem in a file that was still read.

    Attributes:
        path: Path of the file as it was passed.
        message: Description of the problem.
    """

    path: str
    message: str
