"""Checks the facts that a user adds to a file."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import InputError
from llama_index_contextual.metadata import OWN_KEYS, RESERVED_KEYS, TITLE, DocumentMap

_MAX_INTEGER = 2**63


def user_facts(file_metadata: Callable[[str], Mapping[str, Any] | None] | None, path: Path) -> dict[str, Any]:
    """Return what `file_metadata` says about a file.

    Raises:
        InputError: `file_metadata` is not a function, what it returns is not a mapping of names to JSON scalars, or
            uses a name that this package owns.
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
            raise InputError(f"file_metadata: the value of {key!r} {reason}.", value=value)
    return dict(facts)


def is_own_key(key: str) -> bool:
    """Say whether a metadata key belongs to this package, the title apart, which users may set."""
    return key != TITLE and (key in OWN_KEYS or key in RESERVED_KEYS)


def scalar_fault(value: object) -> str | None:
    """Return why a value cannot be stored as a JSON scalar, or None if it can."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if _is_encodable(value) else "contains lone surrogates: clean it with encode('utf-8', 'replace')"
    if isinstance(value, int):
        return None if -_MAX_INTEGER <= value < _MAX_INTEGER else "does not fit into 64 bits: pass it as text"
    if isinstance(value, float):
        return None if math.isfinite(value) else "is not a finite number: leave it out"
    return f"is of type {type(value).__name__}: pass text, a number, True, False or None"


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key.strip() or not _is_encodable(key):
        raise InputError(f"file_metadata: a key must be a non-empty text, got {key!r}.", value=key)
    if is_own_key(key):
        raise InputError(f"file_metadata: the key {key!r} is set by this package: choose another name.", value=key)


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


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
