"""Translation of LlamaIndex metadata filters into an SQL condition, with keys and values as bound parameters.

A chunk without the key matches only `!=`, `nin` and `is_empty`, as in LlamaIndex's in-memory store. Numbers are
compared only with numbers, and text only with text. Where the in-memory store raises TypeError, nothing matches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import InputError
from llama_index_contextual.storage.storable import INTEGERS, has_surrogate

Condition = tuple[str, list[Any]]

_COMPARISONS = {
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
}
_ITEMS = "json_each(CASE field.type WHEN 'array' THEN field.value ELSE '[]' END)"
# A list contains its items, and a text contains its substrings.
_HOLDS = (
    "(field.type = 'text' AND wanted.type = 'text' AND instr(field.atom, wanted.atom) > 0"
    f" OR wanted.atom IN (SELECT atom FROM {_ITEMS} WHERE atom IS NOT NULL))"
)
_WANTED = "SELECT 1 FROM json_each(?) AS wanted WHERE"
# SQLite limits the depth of its parser stack: in the build with the smallest one, to 11 levels.
_MAX_NESTING = 8
_MAX_FILTERS = 500


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


def to_sql(filters: MetadataFilters | None) -> Condition | None:
    """Return (condition, parameters) for the table `nodes`, or None without filters.

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
    return _join(filters)


def _count(filters: MetadataFilters, nesting: int = 0) -> int:
    if nesting > _MAX_NESTING:
        raise InputError(f"The filters are nested more than {_MAX_NESTING} levels deep: join some of them.")
    return sum(_count(item, nesting + 1) if isinstance(item, MetadataFilters) else 1 for item in filters.filters)


def _join(filters: MetadataFilters) -> Condition | None:
    if not filters.filters:
        return None
    parts = [_one(item) for item in filters.filters]
    parameters = [value for _, values in parts for value in values]
    condition = filters.condition or FilterCondition.AND
    joiner = " AND " if condition == FilterCondition.AND else " OR "
    joined = joiner.join(f"({sql})" for sql, _ in parts)
    return (f"NOT ({joined})" if condition == FilterCondition.NOT else joined), parameters


def _one(item: MetadataFilter | MetadataFilters) -> Condition:
    if isinstance(item, MetadataFilters):
        return _join(item) or ("1", [])
    return _BUILDERS[item.operator](item)


def _field(test: str, key: str, parameters: Sequence[Any]) -> Condition:
    """Return the condition that the value of `key`, called `field` in `test`, passes the test."""
    sql = f"EXISTS (SELECT 1 FROM json_each(nodes.metadata) AS field WHERE field.key = ? AND {test})"
    return sql, [_text_fit_for_sql(key, key), *parameters]


def _equal(item: MetadataFilter) -> Condition:
    return _field("field.atom = ?", item.key, [_scalar(item)])


def _not_equal(item: MetadataFilter) -> Condition:
    return _negated(_equal(item))


def _compare(item: MetadataFilter) -> Condition:
    value = _scalar(item)
    kinds = "('text')" if isinstance(value, str) else "('integer', 'real')"
    test = f"typeof(field.atom) IN {kinds} AND field.atom {_COMPARISONS[item.operator]} ?"
    return _field(test, item.key, [value])


def _among(item: MetadataFilter) -> Condition:
    return _field("field.atom IN (SELECT atom FROM json_each(?))", item.key, [_list(item)])


def _not_among(item: MetadataFilter) -> Condition:
    return _negated(_among(item))


def _any(item: MetadataFilter) -> Condition:
    return _field(f"EXISTS ({_WANTED} {_HOLDS})", item.key, [_list(item)])


def _all(item: MetadataFilter) -> Condition:
    return _field(f"field.type <> 'null' AND NOT EXISTS ({_WANTED} NOT {_HOLDS})", item.key, [_list(item)])


def _contains(item: MetadataFilter) -> Condition:
    return _field(f"EXISTS ({_WANTED} {_HOLDS})", item.key, [_dump([_scalar(item)])])


def _text_match(item: MetadataFilter) -> Condition:
    return _field("field.type = 'text' AND instr(field.atom, ?) > 0", item.key, [_text(item)])


def _text_match_insensitive(item: MetadataFilter) -> Condition:
    test = "field.type = 'text' AND instr(unicode_lower(field.atom), ?) > 0"
    return _field(test, item.key, [_text(item).lower()])


def _is_empty(item: MetadataFilter) -> Condition:
    test = "field.type <> 'null' AND (field.type, field.value) NOT IN (VALUES ('text', ''), ('array', '[]'))"
    return _negated(_field(test, item.key, []))


def _negated(condition: Condition) -> Condition:
    sql, parameters = condition
    return f"NOT ({sql})", parameters


def _scalar(item: MetadataFilter) -> str | int | float:
    if isinstance(item.value, (str, int, float)):
        return _fit_for_sql(item.value, item.key)
    raise InputError(f"Filter {item.key!r} {item.operator.value} needs a string or a number.", value=item.value)


def _text(item: MetadataFilter) -> str:
    if isinstance(item.value, str):
        return _text_fit_for_sql(item.value, item.key)
    raise InputError(f"Filter {item.key!r} {item.operator.value} needs a string.", value=item.value)


def _list(item: MetadataFilter) -> str:
    """Return a list of values as JSON, so that it is a single parameter."""
    if isinstance(item.value, list):
        return _dump([_fit_for_sql(value, item.key) for value in item.value])
    raise InputError(f"Filter {item.key!r} {item.operator.value} needs a list of strings or numbers.", value=item.value)


def _dump(values: Sequence[str | int | float]) -> str:
    # Numbers in metadata are finite, so infinity and NaN, which JSON lacks, match nothing.
    return json.dumps([value for value in values if not isinstance(value, float) or math.isfinite(value)])


def _fit_for_sql(value: str | int | float, key: str) -> str | int | float:
    if isinstance(value, str):
        return _text_fit_for_sql(value, key)
    if isinstance(value, int) and value not in INTEGERS:
        raise InputError(
            f"Filter {key!r}: {value} does not fit into 64 bits, and no metadata contains it.", value=value
        )
    return value


def _text_fit_for_sql(value: str, key: str) -> str:
    if "\0" in value or has_surrogate(value):
        raise InputError(
            f"Filter {key!r}: {value!r} contains a NUL character or a lone surrogate, and no metadata contains it.",
            value=value,
        )
    return value


_BUILDERS: dict[FilterOperator, Callable[[MetadataFilter], Condition]] = {
    FilterOperator.EQ: _equal,
    FilterOperator.NE: _not_equal,
    FilterOperator.GT: _compare,
    FilterOperator.GTE: _compare,
    FilterOperator.LT: _compare,
    FilterOperator.LTE: _compare,
    FilterOperator.IN: _among,
    FilterOperator.NIN: _not_among,
    FilterOperator.ANY: _any,
    FilterOperator.ALL: _all,
    FilterOperator.CONTAINS: _contains,
    FilterOperator.TEXT_MATCH: _text_match,
    FilterOperator.TEXT_MATCH_INSENSITIVE: _text_match_insensitive,
    FilterOperator.IS_EMPTY: _is_empty,
}
