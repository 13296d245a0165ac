"""Evaluation of LlamaIndex metadata filters on columns: the distinct values of a metadata key, and the rows with each.

A chunk without the key, or with None, matches only `!=`, `nin` and `is_empty`, as in LlamaIndex's in-memory store.
Numbers are compared only with numbers, and strings only with strings; True and False count as 1 and 0. Where the
in-memory store raises TypeError, nothing matches.

`>`, `>=`, `<` and `<=` compare strings by character order, but compare two dates as points in time (`moment`).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.errors import InputError

Mask = NDArray[np.bool_]
Codes = Iterable[int]
"""Numbers of values of a column."""

# Filters may be written by other programs; these limits bound their cost.
_MAX_NESTING = 16
_MAX_FILTERS = 500
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ](?:[01]\d|2[0-3]):\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_MICROSECOND = timedelta(microseconds=1)


def moment(text: str) -> int | None:
    """Return the point in time of an ISO 8601 date in microseconds, or None if the string is not such a date.

    A date is `2024-03-31`, optionally followed by `T` or a space and a time: `2024-03-31T18:30:00+02:00`. Without a
    time, it is the beginning of the day; without a time zone, it is in UTC.

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
    except ValueError:  # no such day
        return None
    offset = read.utcoffset() or timedelta()
    # The offset is subtracted from a duration, because no dates exist before the first or after the last calendar day.
    return (read.replace(tzinfo=UTC) - datetime(1, 1, 1, tzinfo=UTC) - offset) // _MICROSECOND


@dataclass(frozen=True)
class _Sorted:
    """Values in ascending order, and their numbers in the column."""

    values: Sequence[Any]
    codes: Sequence[int]

    @classmethod
    def of(cls, pairs: Iterable[tuple[Any, int]]) -> _Sorted:
        ordered = sorted(pairs)
        return cls([value for value, _ in ordered], [code for _, code in ordered])

    def range(self, operator: FilterOperator, bound: Any) -> Sequence[int]:
        """Return the numbers of the values that are greater or less than a bound."""
        if operator in (FilterOperator.GT, FilterOperator.GTE):
            find = bisect_left if operator == FilterOperator.GTE else bisect_right
            return self.codes[find(self.values, bound) :]
        find = bisect_left if operator == FilterOperator.LT else bisect_right
        return self.codes[: find(self.values, bound)]


class Column:
    """The values of a metadata key.

    Args:
        values: The values, as in JSON; usually distinct.
        codes: The number of the value of each row, and `len(values)` for rows without the key; shape (rows,).
    """

    def __init__(self, values: Sequence[Any], codes: NDArray[Any]) -> None:
        self.values = values
        self.codes = codes

    @cached_property
    def scalars(self) -> Mapping[str | int | float, Sequence[int]]:
        """The numbers of each string or number; 1, 1.0 and True are the same."""
        return _inverted(
            (value, code) for code, value in enumerate(self.values) if isinstance(value, str | int | float)
        )

    @cached_property
    def items(self) -> Mapping[str | int | float, Sequence[int]]:
        """The numbers of the lists that contain each string or number."""
        lists = ((value, code) for code, value in enumerate(self.values) if isinstance(value, list))
        return _inverted((item, code) for value, code in lists for item in value if isinstance(item, str | int | float))

    @cached_property
    def numbers(self) -> _Sorted:
        """The numbers, True and False."""
        return _Sorted.of((value, code) for code, value in enumerate(self.values) if isinstance(value, int | float))

    @cached_property
    def texts(self) -> _Sorted:
        """The strings."""
        return _Sorted.of((value, code) for code, value in enumerate(self.values) if isinstance(value, str))

    @cached_property
    def dates_and_others(self) -> tuple[_Sorted, _Sorted]:
        """The strings that are dates, as points in time, and the other strings."""
        texts = zip(self.texts.values, self.texts.codes, strict=True)
        read = [(moment(text), text, code) for text, code in texts]
        dates = _Sorted.of((at, code) for at, _, code in read if at is not None)
        return dates, _Sorted.of((text, code) for at, text, code in read if at is None)

    @cached_property
    def present(self) -> Sequence[int]:
        """The numbers of the values other than None."""
        return [code for code, value in enumerate(self.values) if value is not None]

    def holding(self, wanted: str | int | float) -> set[int]:
        """Return the numbers of the lists that contain an item, and of the strings that contain it as a substring."""
        texts = self.containing(wanted) if isinstance(wanted, str) else ()
        return {*self.items.get(wanted, ()), *texts}

    def containing(self, wanted: str, change: Callable[[str], str] | None = None) -> Sequence[int]:
        """Return the numbers of the strings that contain a substring after `change` is applied to them."""
        texts = self.texts.values if change is None else map(change, self.texts.values)
        return [code for text, code in zip(texts, self.texts.codes, strict=True) if wanted in text]


def _inverted(pairs: Iterable[tuple[Any, int]]) -> dict[Any, list[int]]:
    codes: dict[Any, list[int]] = {}
    for value, code in pairs:
        codes.setdefault(value, []).append(code)
    return codes


@dataclass(frozen=True)
class FieldTest:
    """A test of the value of one metadata key.

    Attributes:
        key: The key.
        matches: Returns the numbers of the values that pass.
        is_negated: Whether the rows without these values pass instead.
    """

    key: str
    matches: Callable[[Column], Codes]
    is_negated: bool = False

    def mask(self, column: Column) -> Mask:
        """Return which rows of a column pass."""
        passing = np.full(len(column.values) + 1, self.is_negated)
        passing[np.fromiter(self.matches(column), dtype=np.intp)] = not self.is_negated
        mask: Mask = passing[column.codes]
        return mask


def require_filters(filters: object) -> MetadataFilters | None:
    """Return metadata filters, or None if there are none.

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
    """Return filters that can be evaluated, or None if there are none.

    Raises:
        InputError: The argument is not MetadataFilters, a value does not suit its operator, or there are too many
            filters or levels.
    """
    filters = require_filters(filters)
    if filters is None or not filters.filters:
        return None
    if _count(filters) > _MAX_FILTERS:
        raise InputError(
            f"There are more than {_MAX_FILTERS} filters: use `in` with a list instead of one filter for each value."
        )
    return filters


def _count(filters: MetadataFilters, nesting: int = 0) -> int:
    """Check filters and return their number."""
    if nesting > _MAX_NESTING:
        raise InputError(f"The filters are nested more than {_MAX_NESTING} levels deep: join some of them.")
    number = 0
    for item in filters.filters:
        if isinstance(item, MetadataFilters):
            number += _count(item, nesting + 1)
        else:
            field_test(item)
            number += 1
    return number


def evaluate(filters: MetadataFilters, size: int, passing: Callable[[FieldTest], Mask]) -> Mask:
    """Return which rows pass filters that were returned by `valid_filters`.

    Args:
        filters: The filters.
        size: Number of rows.
        passing: Returns the rows that pass a test.
    """
    masks = [
        evaluate(item, size, passing) if isinstance(item, MetadataFilters) else passing(field_test(item))
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
    return FieldTest(item.key, _BUILDERS[item.operator](item), item.operator in _NEGATED)


# ---- operators -------------------------------------------------------------------------------------------------------

Matches = Callable[[Column], Codes]


def _equal(item: MetadataFilter) -> Matches:
    value = _scalar(item)
    return lambda column: column.scalars.get(value, ())


def _among(item: MetadataFilter) -> Matches:
    values = _list(item)
    return lambda column: (code for value in values for code in column.scalars.get(value, ()))


def _compare(item: MetadataFilter) -> Matches:
    value, operator = _scalar(item), item.operator
    if not isinstance(value, str):
        # NaN is neither less nor greater than any number.
        return lambda column: () if math.isnan(value) else column.numbers.range(operator, value)
    at = moment(value)
    if at is None:
        return lambda column: column.texts.range(operator, value)

    def of_date(column: Column) -> Codes:
        dates, others = column.dates_and_others
        return [*dates.range(operator, at), *others.range(operator, value)]

    return of_date


def _any(item: MetadataFilter) -> Matches:
    values = _list(item)
    return lambda column: set().union(*map(column.holding, values))


def _all(item: MetadataFilter) -> Matches:
    values = _list(item)
    return lambda column: set(column.present).intersection(*map(column.holding, values))


def _contains(item: MetadataFilter) -> Matches:
    value = _scalar(item)
    return lambda column: column.holding(value)


def _text_match(item: MetadataFilter) -> Matches:
    text = _text(item)
    return lambda column: column.containing(text)


def _text_match_insensitive(item: MetadataFilter) -> Matches:
    text = _text(item).lower()
    return lambda column: column.containing(text, str.lower)


def _not_empty(_: MetadataFilter) -> Matches:
    return lambda column: [code for code in column.present if column.values[code] not in ("", [])]


_BUILDERS: dict[FilterOperator, Callable[[MetadataFilter], Matches]] = {
    FilterOperator.EQ: _equal,
    FilterOperator.NE: _equal,
    FilterOperator.GT: _compare,
    FilterOperator.GTE: _compare,
    FilterOperator.LT: _compare,
    FilterOperator.LTE: _compare,
    FilterOperator.IN: _among,
    FilterOperator.NIN: _among,
    FilterOperator.ANY: _any,
    FilterOperator.ALL: _all,
    FilterOperator.CONTAINS: _contains,
    FilterOperator.TEXT_MATCH: _text_match,
    FilterOperator.TEXT_MATCH_INSENSITIVE: _text_match_insensitive,
    FilterOperator.IS_EMPTY: _not_empty,
}
_NEGATED = frozenset({FilterOperator.NE, FilterOperator.NIN, FilterOperator.IS_EMPTY})
_INSTEAD_OF_LIST = {
    FilterOperator.EQ: "in",
    FilterOperator.NE: "nin",
    FilterOperator.CONTAINS: "any` or `all",
}


# ---- values ----------------------------------------------------------------------------------------------------------


def _scalar(item: MetadataFilter) -> str | int | float:
    if isinstance(item.value, (str, int, float)):
        return item.value
    advice = ""
    if isinstance(item.value, list) and (operators := _INSTEAD_OF_LIST.get(item.operator)):
        advice = f": use `{operators}` for a list"
    elif item.value is None and item.operator in (FilterOperator.EQ, FilterOperator.NE):
        advice = ": use `is_empty` for chunks without a value"
    raise InputError(f"Filter {item.key!r} {item.operator.value} needs a string or a number{advice}.", value=item.value)


def _text(item: MetadataFilter) -> str:
    if isinstance(item.value, str):
        return item.value
    raise InputError(f"Filter {item.key!r} {item.operator.value} needs a string.", value=item.value)


def _list(item: MetadataFilter) -> Sequence[str | int | float]:
    if isinstance(item.value, list):
        return item.value
    raise InputError(f"Filter {item.key!r} {item.operator.value} needs a list of strings or numbers.", value=item.value)
