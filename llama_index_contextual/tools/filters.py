"""Filters on metadata and files, as models and people write them, as filters of LlamaIndex.

A model or a program writes a dict, see `to_filters`; a person writes conditions such as "kind=report", and names of
files, see `parse_conditions`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from pydantic import ValidationError

from llama_index_contextual import metadata as keys
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.filters import require_filters
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.search.response import visible
from llama_index_contextual.tools.models import wrong_argument

if TYPE_CHECKING:
    from llama_index_contextual.project.project import Project

# ---- dicts -----------------------------------------------------------------------------------------------------------

Filters = MetadataFilters | Mapping[str, Any]
"""LlamaIndex's filters, or a dict; see `to_filters`."""

_OPERATORS = {operator.value: operator for operator in FilterOperator}
_USELESS_KEYS = frozenset(
    {keys.CONTEXT, keys.SOURCE_LINE, keys.SEGMENT_START, keys.SEGMENT_END, keys.TOKEN_COUNT, keys.TABLE_HEAD}
    | {keys.FACTS}
)
"""Keys that are useless in a filter."""

_LONGEST_VALUE = 40
_SHOWN_VALUES = 8


def to_filters(filters: Filters | None) -> MetadataFilters | None:
    """Return LlamaIndex's filters for a dict, or None if there are none.

    Args:
        filters: A dict in which each key has a value, a list of allowed values, or a dict of operators and values; the
            dict form of MetadataFilters; or MetadataFilters.

    Raises:
        InputError: An operator is unknown, or a value is neither a text nor a number.

    Example:
        >>> filters = to_filters({"kind": "a", "year": {">=": 2023}})
        >>> [(one.key, one.operator.value, one.value) for one in filters.filters]
        [('kind', '==', 'a'), ('year', '>=', 2023)]
    """
    if filters is None or not isinstance(filters, Mapping):
        return require_filters(filters)
    if not filters:
        return None
    if isinstance(filters.get("filters"), list):
        try:
            return MetadataFilters.model_validate(dict(filters))
        except ValidationError as error:
            raise InputError(f"The filters are not MetadataFilters: {wrong_argument('filters', error)}") from error
    parts = [one for key, value in filters.items() for one in _of_key(str(key), value)]
    return MetadataFilters(filters=list(parts), condition=FilterCondition.AND)


def _of_key(key: str, value: Any) -> Iterator[MetadataFilter]:
    if isinstance(value, Mapping):
        for name, operand in value.items():
            operator = _OPERATORS.get(str(name))
            if operator is None:
                raise InputError(
                    f"Filter {key!r} has no operator {name!r}: use one of {', '.join(_OPERATORS)}.", value=value
                )
            yield metadata_filter(key, operand, operator)
    else:
        yield equality_filter(key, value)


def equality_filter(key: str, value: Any) -> MetadataFilter:
    """Return the filter for a key that has a value, or one of a list of values."""
    is_list = isinstance(value, list | tuple | set | frozenset)
    return metadata_filter(key, list(value) if is_list else value, FilterOperator.IN if is_list else FilterOperator.EQ)


def metadata_filter(key: str, value: Any, operator: FilterOperator) -> MetadataFilter:
    """Return a filter.

    Raises:
        InputError: The value is neither a text nor a number, nor a list of them.
    """
    value = [_number(one) for one in value] if isinstance(value, list) else _number(value)
    try:
        return MetadataFilter(key=key, value=value, operator=operator)
    except ValueError as error:
        raise InputError(f"Filter {key!r} cannot have the value {value!r}: use a string or a number.") from error


def _number(value: Any) -> Any:
    """Return a boolean as 0 or 1, as which it is stored; other values unchanged."""
    return int(value) if isinstance(value, bool) else value


def filter_keys(filters: MetadataFilters) -> set[str]:
    """Return the metadata keys that the filters name."""
    names: set[str] = set()
    for item in filters.filters:
        names |= filter_keys(item) if isinstance(item, MetadataFilters) else {item.key}
    return names


def usable_keys(names: Sequence[str]) -> set[str]:
    """Return the metadata keys that are useful in a filter."""
    return set(names) - _USELESS_KEYS


def require_known_keys(filters: MetadataFilters, valid: set[str], *, restricted: bool = False) -> None:
    """Check that passages have the keys of the filters.

    Args:
        filters: The filters.
        valid: Keys that passages have.
        restricted: Whether the keys must not be listed; see `describe_filters`.

    Raises:
        InputError: No passage has one of the keys.
    """
    if unknown := sorted(filter_keys(filters) - valid):
        listed = "" if restricted else f" Valid keys: {', '.join(sorted(valid))}."
        raise InputError(f"No passage has the metadata key {unknown[0][:100]!r}.{listed}", value=unknown)


def describe_filters(version: SearchableVersion, *, restricted: bool) -> str:
    """Return the user's own metadata keys with their values, and that of the file's name, as text for a model.

    Args:
        version: The version.
        restricted: Whether only a part of the documents may be seen; keys and values of others would disclose them.
    """
    if restricted:
        return "Filters narrow the search by metadata keys of the passages, which each result shows."
    own = {key: values for key, values in version.metadata_values.items() if key not in keys.RUNNING_LINES}
    described = [f"{key} ({_values(values)})" for key, values in own.items()]
    return f"Filters narrow the search. Valid keys: {', '.join([*described, keys.FILE_NAME])}."


def _values(values: Sequence[str | int | float]) -> str:
    numbers = [value for value in values if not isinstance(value, str)]
    if len(values) > _SHOWN_VALUES and len(numbers) == len(values):
        return f"{min(numbers)} to {max(numbers)}"
    shown = [textwrap.shorten(visible(str(value)), _LONGEST_VALUE, placeholder="…") for value in values[:_SHOWN_VALUES]]
    more = f", and {len(values) - _SHOWN_VALUES:,} more" if len(values) > _SHOWN_VALUES else ""
    return f"{', '.join(shown)}{more}"


# ---- conditions and files --------------------------------------------------------------------------------------------

_CONDITION = re.compile(r"(?s)([^=!<>~]+)(!=|<=|>=|==?|<|>|~)(.*)")
_MAX_NAMES = 8  # known names in a message
_SIGNS = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "~": "text_match_insensitive"}


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
        records = [record for record in project.documents() if record.file_name is not None]
        wanted = [record.doc_id for file in files for record in documents_named(file, records, listing=listing)]
        filters.append(MetadataFilter(key=keys.FILE_PATH, value=wanted, operator=FilterOperator.IN))
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
            filters.append(MetadataFilter(key=field, value=value, operator=FilterOperator(_SIGNS[sign])))
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
