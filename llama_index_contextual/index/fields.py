"""Fields that every document has, besides its metadata: its type, folder, source, language and date.

Filters read them as columns whose names begin with `PREFIX`, so that they never meet a metadata key of the user. A
column of a list holds names of different width: `report.docx` is of the types "word" and "docx", and a document in
`hr/rules` is in the folders "hr", "hr/rules" and "rules".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import LANGUAGES
from llama_index_contextual.index.dates import dates_in
from llama_index_contextual.index.manifest import DocumentRecord, Records

if TYPE_CHECKING:
    from llama_index_contextual.index.filters import Column

PREFIX = "_contextual_field_"
DOCUMENT = f"{PREFIX}document"
"""Column with the id of each chunk's document."""

_MOST_LEVELS = 8  # of folders; deeper ones are found by their upper levels

_SUFFIXES = {
    "pdf": ("pdf",),
    "word": ("docx", "docm"),
    "sheet": ("xlsx", "xlsm", "csv", "tsv"),
    "slides": ("pptx", "pptm"),
    "markdown": ("md", "markdown"),
    "mail": ("eml",),
    "web": ("html", "htm", "xhtml"),
    "image": ("png", "jpg", "jpeg", "tif", "tiff"),
}
_TYPES = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes}
_OTHER_NAMES = {
    "doc": "word",
    "document": "word",
    "spreadsheet": "sheet",
    "excel": "sheet",
    "xls": "sheet",
    "powerpoint": "slides",
    "presentation": "slides",
    "ppt": "slides",
    "email": "mail",
    "e-mail": "mail",
    "web page": "web",
    "webpage": "web",
    "picture": "image",
    "scan": "image",
    "plain text": "text",
}


def suffix_of(file_name: str | None) -> str:
    """Return the extension of a file in lower case, without the dot, or "" if it has none."""
    return PurePosixPath(file_name or "").suffix.lower().removeprefix(".")


def type_of(file_name: str | None) -> str:
    """Return the type of a file by its extension.

    Example:
        >>> type_of("Plan.DOCX"), type_of("notes.txt"), type_of(None)
        ('word', 'text', 'text')
    """
    return _TYPES.get(suffix_of(file_name), "text")


def type_named(text: str) -> str:
    """Return the type or the extension that a word means.

    Example:
        >>> type_named("Excel"), type_named(".DOCX"), type_named("PDF")
        ('sheet', 'docx', 'pdf')
    """
    name = text.strip().casefold().removeprefix("*").removeprefix(".")
    return _OTHER_NAMES.get(name, name)


def language_named(text: str) -> str:
    """Return the language that a word means: its English name in lower case, or its code.

    Example:
        >>> language_named("German"), language_named("de")
        ('german', 'german')
    """
    name = text.strip().casefold()
    return LANGUAGES.get(name, name)


def folder_named(text: str) -> str:
    """Return a folder as it stands in the ids of documents.

    Example:
        >>> folder_named("./hr/rules/")
        'hr/rules'
    """
    return "/".join(part for part in text.strip().replace("\\", "/").split("/") if part not in ("", "."))


def folder_of(record: DocumentRecord) -> str:
    """Return the folder of a document, as in its id, or "" if it was not read from a file in a folder."""
    return record.doc_id.rpartition("/")[0] if record.path is not None else ""


def source_of(record: DocumentRecord) -> str:
    """Return the source of a document: its name, the server or bucket of its URL, "files", or "" if it is unknown.

    Example:
        >>> source_of(DocumentRecord(doc_id="a", content_hash="", path="s3://reports/2024/a.pdf"))
        's3://reports'
    """
    if record.source or record.path is None:
        return record.source
    protocol, is_url, rest = record.path.partition("://")
    return f"{protocol}://{rest.partition('/')[0]}" if is_url else "files"


def _types(record: DocumentRecord) -> list[str]:
    name = record.file_name or record.doc_id
    return list(dict.fromkeys([type_of(name), *filter(None, [suffix_of(name)])]))


def _folders(record: DocumentRecord) -> list[str]:
    parts = folder_of(record).split("/")[:_MOST_LEVELS]
    spans = ("/".join(parts[start:end]) for start in range(len(parts)) for end in range(start + 1, len(parts) + 1))
    return list(dict.fromkeys(filter(None, spans)))


COLUMNS: Mapping[str, Callable[[DocumentRecord], str | list[str]]] = {
    f"{PREFIX}type": _types,
    f"{PREFIX}folder": _folders,
    f"{PREFIX}source": source_of,
    f"{PREFIX}language": lambda record: record.language,
    f"{PREFIX}date": lambda record: record.date or record.file_date,
    DOCUMENT: lambda record: record.doc_id,
}
"""The value of a document in each column; it has none if the value is empty."""

SOURCE = "source"
READ: Mapping[str, Callable[[str], str]] = {
    "type": type_named,
    "folder": folder_named,
    SOURCE: str.strip,
    "language": language_named,
}
"""For each field whose values are names, the function that reads one."""

DATE, NEWEST = "date", "newest"
FIELDS = (*READ, DATE, NEWEST)
"""The fields by their names in filters; `newest` is true for documents that no other one supersedes."""


def period_named(text: str) -> tuple[str, str] | None:
    """Return the first day of a year, a month or a day, and the first day after it, or None for other text.

    Example:
        >>> period_named("2025"), period_named("2025-12"), period_named("2025-12-31T18:00")
        (('2025-01-01', '2026-01-01'), ('2025-12-01', '2026-01-01'), ('2025-12-31', '2026-01-01'))
    """
    match = _PERIOD.match(text.strip())
    if match is None:
        days = dates_in(text[:100])
        return period_named(days[0]) if len(days) == 1 else None
    year, month, day = (int(group) if group else None for group in match.groups())
    try:
        start = date(year or 0, month or 1, day or 1)
        if day:
            end = start + timedelta(days=1)
        else:
            months = 12 * start.year + start.month - 1 + (1 if month else 12)
            end = date(months // 12, months % 12 + 1, 1)
    except (ValueError, OverflowError):
        return None
    return start.isoformat(), end.isoformat()


_PERIOD = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ][\d:.+Z-]*)?)?)?$", re.ASCII)


def column_of(key: str, records: Records, document_of: NDArray[np.int32]) -> Column:
    """Return the column of a field.

    Args:
        key: A key of `COLUMNS`.
        records: The documents.
        document_of: Position of each row's document in `records`; shape (rows,).
    """
    from llama_index_contextual.index.filters import Column

    values = [COLUMNS[key](record) for record in records]
    distinct: dict[str, int] = {}
    codes = [distinct.setdefault(repr(value), len(distinct)) if value else -1 for value in values]
    kept = {code: value for code, value in zip(codes, values, strict=True) if code >= 0}
    of_documents = np.array([len(kept) if code < 0 else code for code in codes], dtype=np.int64)
    return Column([kept[code] for code in range(len(kept))], of_documents[document_of])
