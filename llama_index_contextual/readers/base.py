"""What the reader of one file format returns, and the limits it keeps."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from llama_index_contextual.metadata import DocumentMap


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """What one file may cost before it is skipped with a reason.

    Attributes:
        max_bytes: Size of the file on disk, in bytes.
        max_pages: Pages of a PDF.
        max_seconds: Time for parsing one PDF, in seconds of wall clock; the child process is killed after it.
        max_characters: Characters of the text that comes out.
    """

    max_bytes: int = 500_000_000
    max_pages: int = 10_000
    max_seconds: float = 300.0
    max_characters: int = 500_000_000


def has_text(text: str) -> bool:
    """Return whether a text has a character other than white space, controls and invisible format characters."""
    return any(not char.isspace() and unicodedata.category(char) not in ("Cc", "Cf") for char in text)


@dataclass(frozen=True)
class ParsedFile:
    """The text of one file and what is known about it.

    Attributes:
        text: The whole text; offsets everywhere in this package are characters (code points) of this string.
        map: Where pages and headings begin in `text`.
        title: Title of the document, or None where the file names none.
        warnings: Sentences about what was left out, such as "page 3 has no text: it needs OCR".
        metadata: Further facts, JSON scalars only (front matter of Markdown, running headers of a PDF).
        digest: xxh3-128, in hexadecimal, of the very bytes that were parsed; empty where the reader gives none.
    """

    text: str
    map: DocumentMap = field(default_factory=DocumentMap)
    title: str | None = None
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True)
class SkippedFile:
    """A file, or an empty Document, that was not read.

    Attributes:
        path: The file as it was named in the call, or the id of the Document.
        reason: Why, and what can be done.
        absent: Whether this is a path of the call that leads to no file at all.
    """

    path: str
    reason: str
    absent: bool = False


@dataclass(frozen=True)
class FileWarning:
    """Something about a file that was read.

    Attributes:
        path: The file as it was named in the call.
        message: What was noticed.
    """

    path: str
    message: str
