"""Filters of tools: dicts that a model can write, converted to LlamaIndex's, and their description for a model."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from pydantic import ValidationError

from llama_index_contextual.errors import InputError
from llama_index_contextual.index.filters import require_filters
from llama_index_contextual.metadata import (
    CONTEXT,
    FACTS,
    FILE_NAME,
    RUNNING_LINES,
    SEGMENT_END,
    SEGMENT_START,
    SOURCE_LINE,
    TABLE_HEAD,
    TOKEN_COUNT,
)
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.search.response import visible
from llama_index_contextual.tools.models import wrong_argument

Filters = MetadataFilters | Mapping[str, Any]
"""LlamaIndex's filters, or a dict; see `to_filters`."""

_OPERATORS = {operator.value: operator for operator in FilterOperator}
# Keys that are useless in a filter.
_INNER_KEYS = frozenset({CONTEXT, SOURCE_LINE, SEGMENT_START, SEGMENT_END, TOKEN_COUNT, TABLE_HEAD, FACTS})
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
    parts = [one for key, value in filters.items() for one in _conditions(str(key), value)]
    return MetadataFilters(filters=list(parts), condition=FilterCondition.AND)


def _conditions(key: str, value: Any) -> Iterator[MetadataFilter]:
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
    return set(names) - _INNER_KEYS


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
    own = {key: values for key, values in version.metadata_values.items() if key not in RUNNING_LINES}
    described = [f"{key} ({_values(values)})" for key, values in own.items()]
    return f"Filters narrow the search. Valid keys: {', '.join([*described, FILE_NAME])}."


def _values(values: Sequence[str | int | float]) -> str:
    numbers = [value for value in values if not isinstance(value, str)]
    if len(values) > _SHOWN_VALUES and len(numbers) == len(values):
        return f"{min(numbers)} to {max(numbers)}"
    shown = [textwrap.shorten(visible(str(value)), _LONGEST_VALUE, placeholder="…") for value in values[:_SHOWN_VALUES]]
    more = f", and {len(values) - _SHOWN_VALUES:,} more" if len(values) > _SHOWN_VALUES else ""
    return f"{', '.join(shown)}{more}"
