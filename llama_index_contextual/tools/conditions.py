"""Conditions on metadata and names of files, written by people, as LlamaIndex's filters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import InputError
from llama_index_contextual.metadata import FILE_PATH

if TYPE_CHECKING:
    from llama_index_contextual.index.manifest import DocumentRecord
    from llama_index_contextual.project.project import Project

_CONDITION = re.compile(r"(?s)([^=!<>~]+)(!=|<=|>=|==?|<|>|~)(.*)")
_MAX_NAMES = 8  # known names in a message
_OPERATORS = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "~": "text_match_insensitive"}


def parse_conditions(
    project: Project,
    conditions: Sequence[str] | None,
    files: Sequence[str] | None,
    *,
    condition: str = "--filter",
    listing: str = "`documents`",
) -> MetadataFilters | None:
    """Return the filters for conditions such as "kind=report" and names of files; None without any.

    All conditions must hold, and of several values of one field any.

    Args:
        project: The project.
        conditions: FIELD=VALUE, or with !=, <, <=, >, >= or ~ (contains).
        files: Ids, the ends of ids, or globs for one of them.
        condition: What a condition is called in messages.
        listing: What lists the documents, in messages.

    Raises:
        InputError: A condition cannot be read, or no document has that field or that file.
    """
    filters = _conditions(project, conditions or (), condition)
    if files:
        filters.append(_of_files(project.documents(), files, listing))
    return MetadataFilters(filters=list(filters)) if filters else None


def _conditions(project: Project, conditions: Sequence[str], name: str) -> list[MetadataFilter | MetadataFilters]:
    equal: dict[str, list[Any]] = {}
    filters: list[MetadataFilter | MetadataFilters] = []
    known = project.live_version.metadata_keys() if conditions else []
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise InputError(f"{name} {condition!r} is not FIELD=VALUE, such as kind=report.", value=condition)
        field, sign, text = match[1].strip(), match[2], match[3].strip()
        if field not in known:
            raise InputError(f"No document has the field {field!r}{_nearest(field, known)}.", value=field)
        if sign in ("=", "=="):
            equal.setdefault(field, []).extend(_readings(text))
        elif sign == "!=":
            filters += [MetadataFilter(key=field, value=one, operator=FilterOperator.NE) for one in _readings(text)]
        else:
            value = text if sign == "~" else _readings(text)[0]
            filters.append(MetadataFilter(key=field, value=value, operator=FilterOperator(_OPERATORS[sign])))
    for field, values in equal.items():
        of_one = [MetadataFilter(key=field, value=value) for value in values]
        filters.append(MetadataFilters(filters=list(of_one), condition=FilterCondition.OR))
    return filters


def field_and_pattern(condition: str) -> tuple[str, str] | None:
    """Return the field and the value of FIELD=VALUE if the value looks like a pattern, such as `X*`, else None."""
    match = _CONDITION.fullmatch(condition)
    if match is None or match[2] not in ("=", "==") or not re.search(r"[*?]", match[3]):
        return None
    return match[1].strip(), match[3].strip()


def _readings(text: str) -> list[Any]:
    """Return what a value can mean: a number or a boolean first, then its text; "2024" may be stored as either."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    if isinstance(value, str):
        return [value]
    return [int(value) if isinstance(value, bool) else value, text] if isinstance(value, int | float) else [text]


def _of_files(records: Sequence[DocumentRecord], files: Sequence[str], listing: str) -> MetadataFilter:
    of_files = [record for record in records if record.file_name is not None]
    wanted = [record.doc_id for file in files for record in documents_named(file, of_files, listing=listing)]
    return MetadataFilter(key=FILE_PATH, value=wanted, operator=FilterOperator.IN)


def documents_named(
    pattern: str, records: Sequence[DocumentRecord], *, listing: str = "`documents`"
) -> list[DocumentRecord]:
    """Return the documents with an id, file name or glob.

    Args:
        pattern: Id, the end of an id, or a glob for one of them.
        records: The documents.
        listing: What lists the documents, in the message.

    Raises:
        InputError: There is none.
    """
    matches = [record for record in records if is_named(pattern, record.doc_id)]
    if not matches:
        names = [name for record in records for name in (record.doc_id, record.file_name or "")]
        nearest = _nearest(pattern, filter(None, names))
        raise InputError(f"No document is named {pattern!r}{nearest}; {listing} lists all of them.", value=pattern)
    return matches


def is_named(pattern: str, doc_id: str) -> bool:
    """Return whether a file is meant by its id, the end of its id, or a glob for one of them."""
    pattern = PurePath(pattern).as_posix().removeprefix("./")
    ends = (doc_id[at:] for at in [0, *(i + 1 for i, sign in enumerate(doc_id) if sign == "/")])
    return any(end == pattern or fnmatchcase(end, pattern) for end in ends)


def _nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the most similar known name, or the first known ones."""
    names = list(dict.fromkeys(known))
    containing = [name for name in names if word.casefold() in name.casefold()]
    if close := get_close_matches(word, names, n=1) or containing:
        return f" (did you mean {close[0]!r}?)"
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f" (there are: {', '.join(sorted(names)[:_MAX_NAMES])}{more})" if names else " (there are none)"
