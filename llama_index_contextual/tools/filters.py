"""Convert filters from models, programs and users to LlamaIndex filters.

Models and programs pass dicts (see `to_filters`); users write conditions such as "kind=report" and file names (see
`parse_conditions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual._utils.text import represent
from llama_index_contextual.config import parsed_value
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.search.response import visible
from llama_index_contextual.tools.models import clip

if TYPE_CHECKING:
    from llama_index_contextual.search.live import LiveIndexes, SearchableVersion

# ---- dicts -----------------------------------------------------------------------------------------------------------

Filters = MetadataFilters | Mapping[str, Any]
"""LlamaIndex filters, or a dict; see `to_filters`."""

_OPERATORS_BY_NAME = {operator.value: operator for operator in FilterOperator}
_USELESS_KEYS = frozenset(
    {keys.CONTEXT, keys.SOURCE_LINE, keys.SEGMENT_START, keys.SEGMENT_END, keys.TOKEN_COUNT, keys.TABLE_HEAD}
    | {keys.FACTS}
)
"""Keys that are not useful in a filter."""

_SHOWN_VALUES = 8


def to_filters(filters: Filters | None) -> MetadataFilters | None:
    """Convert a dict to LlamaIndex filters; return None if there are no filters.

    Args:
        filters: MetadataFilters, or a dict that maps each metadata key to a value, a list of allowed values, or a dict
            of operators and values.

    Raises:
        InputError: The argument is of another type, an operator is unknown, or a value is neither a string nor a
            number.

    Example:
        >>> filters = to_filters({"kind": "a", "year": {">=": 2023}})
        >>> [(one.key, one.operator.value, one.value) for one in filters.filters]
        [('kind', '==', 'a'), ('year', '>=', 2023)]
    """
    if isinstance(filters, MetadataFilters):
        return filters
    if filters is not None and not isinstance(filters, Mapping):
        raise InputError(
            f"The filters are of type {type(filters).__name__}: pass a dict, such as {{'kind': 'report'}}, or"
            " MetadataFilters.",
            value=filters,
        )
    if not filters:
        return None
    parts = [part for key, value in filters.items() for part in _of_key(str(key), value)]
    return MetadataFilters(filters=list(parts), condition=FilterCondition.AND)


def _of_key(key: str, value: Any) -> Iterator[MetadataFilter | MetadataFilters]:
    if isinstance(value, Mapping):
        if not value:
            raise InputError(
                f"Filter {key!r} has no operator: use one of {', '.join(_OPERATORS_BY_NAME)}.", value=value
            )
        for name, operand in value.items():
            operator = _OPERATORS_BY_NAME.get(str(name))
            if operator is None:
                raise InputError(
                    f"Filter {key!r} has no operator {name!r}: use one of {', '.join(_OPERATORS_BY_NAME)}.", value=value
                )
            condition = metadata_filter(key, operand, operator)
            is_negated = operator is FilterOperator.IS_EMPTY and operand is False  # LlamaIndex ignores the value
            yield MetadataFilters(filters=[condition], condition=FilterCondition.NOT) if is_negated else condition
    else:
        is_list = isinstance(value, list | tuple | set | frozenset)
        operator = FilterOperator.IN if is_list else FilterOperator.EQ
        yield metadata_filter(key, list(value) if is_list else value, operator)


def metadata_filter(key: str, value: Any, operator: FilterOperator) -> MetadataFilter:
    """Create a LlamaIndex filter after checking its value.

    Raises:
        InputError: The value is not a string, a number, or a list of strings and numbers.
    """
    # Booleans are stored as 0 and 1.
    numbers = [
        int(number) if isinstance(number, bool) else number
        for number in (value if isinstance(value, list) else [value])
    ]
    try:
        return MetadataFilter(key=key, value=numbers if isinstance(value, list) else numbers[0], operator=operator)
    except ValueError as error:
        raise InputError(
            f"Filter {key!r} cannot have the value {represent(value)}: use a string or a number."
        ) from error


def filter_keys(filters: MetadataFilters) -> set[str]:
    """Return the metadata keys used in the filters."""
    names: set[str] = set()
    for item in filters.filters:
        names |= filter_keys(item) if isinstance(item, MetadataFilters) else {item.key}
    return names


def usable_keys(names: Sequence[str]) -> set[str]:
    """Return the metadata keys that are useful in a filter."""
    return set(names) - _USELESS_KEYS


class Metadata(Protocol):
    """The metadata of all passages."""

    def metadata_keys(self) -> list[str]:
        """Return the keys."""

    def metadata_values(self, *, skip: Sequence[str]) -> Mapping[str, Sequence[str | int | float]]:
        """Return the distinct values of each key, except the keys in `skip`."""


def require_usable(filters: MetadataFilters, metadata: Metadata) -> None:
    """Check that the filters do not exclude all passages because of a mistake.

    Args:
        filters: The filters.
        metadata: The metadata of the passages.

    Raises:
        InputError: A key does not exist in any passage, or a value differs from an existing value only in case or type.
    """
    valid, fields = usable_keys(metadata.metadata_keys()), filter_keys(filters)
    if unknown := sorted(fields - valid):
        raise InputError(
            f"No passage has the metadata key {unknown[0][:100]!r}. Valid keys: {', '.join(sorted(valid))}.",
            value=unknown,
        )
    values = metadata.metadata_values(skip=[key for key in metadata.metadata_keys() if key not in fields])
    for key, value in _equal_values(filters):
        field_values = values.get(key, ())
        near = [candidate for candidate in field_values if str(candidate).casefold() == str(value).casefold()]
        if near and value not in field_values:
            raise InputError(f"No passage has the value {value!r} for {key!r}; did you mean {near[0]!r}?", value=value)


def _equal_values(filters: MetadataFilters) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of the filters that compare for equality."""
    for item in filters.filters:
        if isinstance(item, MetadataFilters):
            yield from _equal_values(item)
        elif item.operator in (FilterOperator.EQ, FilterOperator.IN):
            yield from ((item.key, value) for value in (item.value if isinstance(item.value, list) else [item.value]))


def describe_filters(version: SearchableVersion) -> str:
    """Return a description of filters for a model: the user's own metadata keys, with their values, and the file name.

    Args:
        version: The version.
    """
    values_by_key = {key: values for key, values in version.metadata_values.items() if key not in keys.RUNNING_LINES}
    parts = [f"{key} ({_value_list(values)})" for key, values in values_by_key.items()]
    return f"Filters narrow the search. Valid keys: {', '.join([*parts, keys.FILE_NAME])}."


def _value_list(values: Sequence[str | int | float]) -> str:
    text = ", ".join(visible(clip(str(value))) for value in values[:_SHOWN_VALUES])
    more = f", and {len(values) - _SHOWN_VALUES:,} more" if len(values) > _SHOWN_VALUES else ""
    return f"{text}{more}"


# ---- conditions and files --------------------------------------------------------------------------------------------

_CONDITION = re.compile(r"(?s)([^=!<>~]+)(!=|<=|>=|==?|<|>|~)(.*)")
_SIGNS = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "~": "text_match_insensitive"}


def parse_conditions(
    live: LiveIndexes,
    conditions: Sequence[str] | None,
    files: Sequence[str] | None,
    *,
    condition: str = "--filter",
    listing: str = "`documents`",
) -> MetadataFilters | None:
    """Return the filters for conditions such as "kind=report" and for file names, or None if there are none.

    A passage must meet the conditions for all fields. If several values are given for a field, it must have one of
    them.

    Args:
        live: The indexes to search.
        conditions: Conditions in the form FIELD=VALUE, or with !=, <, <=, >, >= or ~ (contains) instead of =.
        files: Document ids, ends of ids such as file names, or glob patterns for either.
        condition: The option or parameter that the conditions were passed to, for messages.
        listing: Command or method that lists the documents, for messages.

    Raises:
        InputError: A condition cannot be parsed, or no document has the field or matches a file.
    """
    if not (conditions or files):
        return None
    version = live.current()
    filters = _conditions(version, conditions or (), condition)
    if files:
        records = [record for record in version.records if record.file_name is not None]
        ids = [record.doc_id for file in files for record in documents_named(file, records, listing=listing)]
        filters.append(MetadataFilter(key=keys.FILE_PATH, value=ids, operator=FilterOperator.IN))
    return MetadataFilters(filters=list(filters))


def _conditions(
    version: SearchableVersion, conditions: Sequence[str], name: str
) -> list[MetadataFilter | MetadataFilters]:
    equal: dict[str, list[Any]] = {}
    filters: list[MetadataFilter | MetadataFilters] = []
    fields = version.metadata_keys() if conditions else []
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise InputError(f"{name} {condition!r} is not FIELD=VALUE, such as kind=report.", value=condition)
        field, sign, text = match[1].strip(), match[2], match[3].strip()
        if field not in fields:
            close = nearest(field, fields) or f"; there are: {clip(', '.join(sorted(fields)))}."
            raise InputError(f"No document has the field {field!r}{close}", value=field)
        if sign in ("=", "=="):
            equal.setdefault(field, []).extend(_readings(text))
        elif sign == "!=":
            filters += [
                MetadataFilter(key=field, value=reading, operator=FilterOperator.NE) for reading in _readings(text)
            ]
        else:
            value = text if sign == "~" else _readings(text)[0]
            filters.append(MetadataFilter(key=field, value=value, operator=FilterOperator(_SIGNS[sign])))
    for field, values in equal.items():
        of_one = [MetadataFilter(key=field, value=value) for value in values]
        filters.append(MetadataFilters(filters=list(of_one), condition=FilterCondition.OR))
    return filters


def _readings(text: str) -> list[Any]:
    """Return the possible values of a string: a number or boolean, if it can be parsed as such, and the string."""
    value = parsed_value(text)
    if isinstance(value, str):
        return [value]
    return [int(value) if isinstance(value, bool) else value, text] if isinstance(value, int | float) else [text]


def documents_named(
    pattern: str, records: Sequence[DocumentRecord], *, listing: str = "`documents`"
) -> list[DocumentRecord]:
    """Return the documents whose ids match a pattern.

    Args:
        pattern: A document id, the end of an id (such as a file name), or a glob pattern for either.
        records: The documents.
        listing: Command or method that lists the documents, for the message.

    Raises:
        InputError: No document matches.
    """
    matches = [record for record in records if matches_doc_id(pattern, record.doc_id)]
    if not matches:
        close = nearest(pattern, (name for record in records for name in (record.file_name, record.doc_id) if name))
        raise InputError(f"No document is named {pattern!r}{close or f'; {listing} lists all of them.'}", value=pattern)
    return matches


def matches_doc_id(pattern: str, doc_id: str) -> bool:
    """Return whether a pattern matches a document id or the end of the id, literally or as a glob."""
    pattern = PurePath(pattern).as_posix().removeprefix("./")
    ends = (doc_id[at:] for at in [0, *(i + 1 for i, sign in enumerate(doc_id) if sign == "/")])
    return any(end == pattern or fnmatchcase(end, pattern) for end in ends)
