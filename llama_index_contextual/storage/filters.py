"""LlamaIndex metadata filters as one SQL condition: keys and values are bound, never written into the statement.

A chunk without the key matches only `!=` and `nin` (and `is_empty`), as in LlamaIndex's own in-memory store. Numbers
compare with numbers and text with text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import InputError

Condition = tuple[str, list[Any]]

_COMPARISONS = {
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
}
_ITEMS = "json_each(CASE field.type WHEN 'array' THEN field.value ELSE '[]' END) AS item"


def to_sql(filters: MetadataFilters | None) -> Condition | None:
    """Return (condition, parameters) over the table `nodes`, or None where nothing is filtered.

    Raises:
        InputError: An operator got a value that it cannot work with.
    """
    if filters is None or not filters.filters:
        return None
    parts = [_one(item) for item in filters.filters]
    parameters = [value for _, values in parts for value in values]
    condition = filters.condition or FilterCondition.AND
    joiner = " AND " if condition == FilterCondition.AND else " OR "
    joined = joiner.join(f"({sql})" for sql, _ in parts)
    return (f"NOT ({joined})" if condition == FilterCondition.NOT else joined), parameters


def _one(item: MetadataFilter | MetadataFilters) -> Condition:
    if isinstance(item, MetadataFilters):
        return to_sql(item) or ("1", [])
    return _BUILDERS[item.operator](item)


def _field(test: str, key: str, parameters: Sequence[Any], *, tables: str = "") -> Condition:
    """Return the condition that the value under `key` passes `test`, in which it is called field."""
    sql = f"EXISTS (SELECT 1 FROM json_each(nodes.metadata) AS field{tables} WHERE field.key = ? AND {test})"
    return sql, [key, *parameters]


def _present(key: str) -> Condition:
    return _field("field.type <> 'null'", key, [])


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
    values = _list(item)
    return _field(f"field.atom IN ({', '.join('?' * len(values))})", item.key, values)


def _not_among(item: MetadataFilter) -> Condition:
    return _negated(_among(item))


def _any(item: MetadataFilter) -> Condition:
    values = _list(item)
    return _field(f"item.atom IN ({', '.join('?' * len(values))})", item.key, values, tables=f", {_ITEMS}")


def _all(item: MetadataFilter) -> Condition:
    parts = [_field("item.atom = ?", item.key, [value], tables=f", {_ITEMS}") for value in _list(item)]
    sql, parameters = _present(item.key)
    return " AND ".join([sql, *(s for s, _ in parts)]), [*parameters, *(p for _, ps in parts for p in ps)]


def _contains(item: MetadataFilter) -> Condition:
    value = _scalar(item)
    in_list, list_parameters = _field("item.atom = ?", item.key, [value], tables=f", {_ITEMS}")
    if not isinstance(value, str):
        return in_list, list_parameters
    in_text, text_parameters = _field("field.type = 'text' AND instr(field.atom, ?) > 0", item.key, [value])
    return f"{in_list} OR {in_text}", [*list_parameters, *text_parameters]


def _text_match(item: MetadataFilter) -> Condition:
    return _field("field.type = 'text' AND instr(field.atom, ?) > 0", item.key, [_text(item)])


def _text_match_insensitive(item: MetadataFilter) -> Condition:
    test = "field.type = 'text' AND instr(unicode_lower(field.atom), ?) > 0"
    return _field(test, item.key, [_text(item).lower()])


def _is_empty(item: MetadataFilter) -> Condition:
    return _negated(_field("field.type <> 'null' AND field.value NOT IN ('', '[]')", item.key, []))


def _negated(condition: Condition) -> Condition:
    sql, parameters = condition
    return f"NOT ({sql})", parameters


def _scalar(item: MetadataFilter) -> str | int | float:
    if isinstance(item.value, (str, int, float)):
        return item.value
    raise InputError(f"Filter {item.key!r} {item.operator.value} needs one text or number.", value=item.value)


def _text(item: MetadataFilter) -> str:
    if isinstance(item.value, str):
        return item.value
    raise InputError(f"Filter {item.key!r} {item.operator.value} needs a text.", value=item.value)


def _list(item: MetadataFilter) -> list[Any]:
    if isinstance(item.value, list):
        return list(item.value)
    raise InputError(f"Filter {item.key!r} {item.operator.value} needs a list of texts or numbers.", value=item.value)


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
