"""Evaluation of LlamaIndex metadata filters on columns. A column stores the values of one metadata key for all rows.

A chunk that lacks the key, or whose value is None, matches only `!=`, `nin` and `is_empty`, as in LlamaIndex's
in-memory store. Numbers are compared only with numbers, and strings only with strings; True and False count as 1 and 0.
If a comparison would raise TypeError in that store, it does not match.

`>`, `>=`, `<` and `<=` compare two dates as points in time (see `moment`) and other strings character by character.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.errors import InputError

Mask = NDArray[np.bool_]
# Filters may come from other programs, so the cost of evaluating them must be limited.
_MAX_NESTING = 16
_MAX_FILTERS = 500
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ](?:[01]\d|2[0-3]):\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_MICROSECOND = timedelta(microseconds=1)


def moment(text: str) -> int | None:
    """Convert an ISO 8601 date to a point in time in microseconds; return None if the string is not a date.

    A date is `2024-03-31`, optionally followed by `T` or a space and a time: `2024-03-31T18:30:00+02:00`. The default
    time is the beginning of the day, and the default time zone is UTC.

    Example:
        >>> moment("2024-03-31T01:00+02:00") < moment("2024-03-31") == moment("2024-03-31 00:00Z")
        True
        >>> moment("Q1 2024") is moment("2024-02-30") is None
        True
    """
    if not _DATE.fullmatch(text):
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:  # the day does not exist
        return None
    offset = read.utcoffset() or timedelta()
    # The offset is subtracted from a duration, because the result may be outside the years 1 to 9999.
    return (read.replace(tzinfo=UTC) - datetime(1, 1, 1, tzinfo=UTC) - offset) // _MICROSECOND


class Column(NamedTuple):
    """The values of a metadata key.

    Attributes:
        values: The values, as in JSON; usually distinct.
        codes: For each row, the position of its value in `values`, or `len(values)` if the row lacks the key; shape
            (rows,).
    """

    values: Sequence[Any]
    codes: NDArray[Any]


@dataclass(frozen=True)
class FieldTest:
    """A test for the values of a metadata key.

    Attributes:
        key: The key.
        passes: Function that returns whether a value passes.
        is_negated: Whether to invert the result, so that rows without the key also pass.
    """

    key: str
    passes: Callable[[Any], bool]
    is_negated: bool = False

    def mask(self, column: Column) -> Mask:
        """Return a mask of the rows in a column that pass the test."""
        passing = np.array([*map(self.passes, column.values), False], dtype=np.bool_)
        mask: Mask = passing[column.codes]
        return ~mask if self.is_negated else mask


def require_filters(filters: object) -> MetadataFilters | None:
    """Check that the argument is MetadataFilters or None, and return it.

    Raises:
        InputError: The argument is neither MetadataFilters nor None.
    """
    if filters is None or isinstance(filters, MetadataFilters):
        return filters
    raise InputError(
        f"The filters are of type {type(filters).__name__}: pass MetadataFilters(filters=[MetadataFilter(key=...,"
        f" value=...)]) of llama_index.core.vector_stores.",
        value=filters,
    )


def valid_filters(filters: MetadataFilters | None) -> MetadataFilters | None:
    """Check that filters can be evaluated, and return them, or None if there are no filters.

    Raises:
        InputError: The argument is not MetadataFilters, a value does not suit its operator, or there are too many
            filters or nesting levels.
    """
    filters = require_filters(filters)
    if filters is None or not filters.filters:
        return None
    if _count_tests(filters) > _MAX_FILTERS:
        raise InputError(
            f"There are more than {_MAX_FILTERS} filters: use `in` with a list instead of one filter for each value."
        )
    return filters


def restricting_filters(filters: MetadataFilters | None) -> MetadataFilters:
    """Check the filters that determine which documents are visible, and return them.

    Raises:
        InputError: The filters are invalid, contain text that is not valid Unicode, or contain an empty group, so that
            they would restrict nothing.
    """
    valid = valid_filters(filters)
    if valid is None or _has_empty_group(valid):
        raise InputError(
            "The filters that restrict access are empty, which would allow access to all documents: pass at least one"
            " condition, such as {'group': 'hr'}."
        )
    try:
        valid.model_dump_json()
    except ValueError as error:
        raise InputError(
            f"The filters cannot be stored as JSON ({error}): use keys and values of valid Unicode, without surrogates."
        ) from error
    return valid


def _has_empty_group(filters: MetadataFilters) -> bool:
    groups = (item for item in filters.filters if isinstance(item, MetadataFilters))
    return not filters.filters or any(map(_has_empty_group, groups))


def _count_tests(filters: MetadataFilters, nesting: int = 0) -> int:
    """Check all filters, including those in nested groups, and return their total number."""
    if nesting > _MAX_NESTING:
        raise InputError(f"The filters are nested more than {_MAX_NESTING} levels deep: join some of them.")
    number = 0
    for item in filters.filters:
        if isinstance(item, MetadataFilters):
            number += _count_tests(item, nesting + 1)
        else:
            field_test(item)
            number += 1
    return number


def row_mask(filters: MetadataFilters, size: int, passing: Callable[[FieldTest], Mask]) -> Mask:
    """Return a mask of the rows that pass the filters.

    Args:
        filters: Filters returned by `valid_filters`.
        size: Number of rows.
        passing: Function that returns a mask of the rows that pass a test.
    """
    masks = [
        row_mask(item, size, passing) if isinstance(item, MetadataFilters) else passing(field_test(item))
        for item in filters.filters
    ]
    condition = filters.condition or FilterCondition.AND
    mask: Mask
    if condition == FilterCondition.AND or not masks:
        mask = np.logical_and.reduce([np.ones(size, dtype=np.bool_), *masks])
        return mask
    mask = np.logical_or.reduce(masks)
    return ~mask if condition == FilterCondition.NOT else mask


def field_test(item: MetadataFilter) -> FieldTest:
    """Return the test for a filter.

    Raises:
        InputError: The value does not suit the operator.
    """
    kind, make = _OPERATORS[item.operator]
    if not isinstance(item.value, kind.types):
        raise InputError(f"Filter {item.key!r} {item.operator.value} needs {kind.name}.", value=item.value)
    return FieldTest(item.key, make(item.value), item.operator in _NEGATED)


# ---- operators -------------------------------------------------------------------------------------------------------

Passes = Callable[[Any], bool]


def _equal(operand: Any) -> Passes:
    return lambda value: isinstance(value, _SCALAR.types) and value == operand


def _among(operand: Sequence[Any]) -> Passes:
    values = frozenset(operand)
    return lambda value: isinstance(value, _SCALAR.types) and value in values


def _compare(compare: Callable[[Any, Any], bool], bound: Any) -> Passes:
    if not isinstance(bound, str):
        return lambda value: isinstance(value, int | float) and compare(value, bound)
    bound_moment = moment(bound)

    def passes(value: Any) -> bool:
        if not isinstance(value, str):
            return False
        if bound_moment is not None and (value_moment := moment(value)) is not None:
            return compare(value_moment, bound_moment)
        return compare(value, bound)

    return passes


def _holds(value: Any, operand: Any) -> bool:
    """Return whether a list contains an item, or a string contains a substring."""
    return operand in value if isinstance(value, list) else _includes(value, operand)


def _includes(value: Any, operand: Any) -> bool:
    return isinstance(value, str) and isinstance(operand, str) and operand in value


def _insensitive(operand: str) -> Passes:
    return lambda value: isinstance(value, str) and operand.lower() in value.lower()


class _Kind(NamedTuple):
    """Types that an operator accepts as the value of a filter, and their name in error messages."""

    types: tuple[type, ...]
    name: str


_SCALAR = _Kind((str, int, float), "a string or a number")
_TEXT = _Kind((str,), "a string")
_LIST = _Kind((list,), "a list of strings or numbers")
_ANYTHING = _Kind((object,), "")

_OPERATORS: dict[FilterOperator, tuple[_Kind, Callable[[Any], Passes]]] = {
    FilterOperator.EQ: (_SCALAR, _equal),
    FilterOperator.NE: (_SCALAR, _equal),
    FilterOperator.GT: (_SCALAR, partial(_compare, operator.gt)),
    FilterOperator.GTE: (_SCALAR, partial(_compare, operator.ge)),
    FilterOperator.LT: (_SCALAR, partial(_compare, operator.lt)),
    FilterOperator.LTE: (_SCALAR, partial(_compare, operator.le)),
    FilterOperator.IN: (_LIST, _among),
    FilterOperator.NIN: (_LIST, _among),
    FilterOperator.ANY: (_LIST, lambda operand: lambda value: any(_holds(value, item) for item in operand)),
    FilterOperator.ALL: (
        _LIST,
        lambda operand: lambda value: value is not None and all(_holds(value, item) for item in operand),
    ),
    FilterOperator.CONTAINS: (_SCALAR, lambda operand: lambda value: _holds(value, operand)),
    FilterOperator.TEXT_MATCH: (_TEXT, lambda operand: lambda value: _includes(value, operand)),
    FilterOperator.TEXT_MATCH_INSENSITIVE: (_TEXT, _insensitive),
    FilterOperator.IS_EMPTY: (_ANYTHING, lambda _: lambda value: value not in (None, "", [])),
}
_NEGATED = frozenset({FilterOperator.NE, FilterOperator.NIN, FilterOperator.IS_EMPTY})
