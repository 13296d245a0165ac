"""Agno's filters as LlamaIndex's: dicts of values, and filter expressions in their dict form; agno is not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import InputError

Filters = Mapping[str, Any] | Sequence[Any] | Any
"""A dict of values, an agno `FilterExpr`, or a list of them (all must hold)."""

_OPERATORS = {
    "EQ": FilterOperator.EQ,
    "NEQ": FilterOperator.NE,
    "GT": FilterOperator.GT,
    "GTE": FilterOperator.GTE,
    "LT": FilterOperator.LT,
    "LTE": FilterOperator.LTE,
    "CONTAINS": FilterOperator.TEXT_MATCH_INSENSITIVE,
}
_CONDITIONS = {"AND": FilterCondition.AND, "OR": FilterCondition.OR}
_BEHIND_EVERY_LETTER = "\U0010ffff"
_MAX_DEPTH = 10


def to_metadata_filters(filters: Filters) -> MetadataFilters | None:
    """Return agno's filters as LlamaIndex's, or None where nothing is filtered.

    Args:
        filters: A dict (each key must have that value, or one of a list of values), a `FilterExpr`, its dict, or a
            list of expressions that must all hold.

    Raises:
        InputError: An operator is unknown, or the expression is nested too deeply.
    """
    if not filters:
        return None
    if isinstance(filters, Mapping) and "op" not in filters:
        parts: list[MetadataFilter | MetadataFilters] = [_equal(str(key), value) for key, value in filters.items()]
    else:
        items = filters if isinstance(filters, Sequence) else [filters]
        parts = [_expression(_as_dict(item), 0) for item in items]
    return MetadataFilters(filters=parts, condition=FilterCondition.AND)


def _as_dict(item: Any) -> Any:
    return item.to_dict() if hasattr(item, "to_dict") else item


def _equal(key: str, value: Any) -> MetadataFilter:
    operator = FilterOperator.IN if isinstance(value, list | tuple | set) else FilterOperator.EQ
    return _one(key, list(value) if operator is FilterOperator.IN else value, operator)


def _one(key: str, value: Any, operator: FilterOperator) -> MetadataFilter:
    try:
        return MetadataFilter(key=key, value=value, operator=operator)
    except ValueError as error:
        raise InputError(f"Filter {key!r} cannot have the value {value!r}: use a text or a number.") from error


def _expression(found: Any, depth: int) -> MetadataFilter | MetadataFilters:
    operator = found.get("op") if isinstance(found, Mapping) else None
    if depth > _MAX_DEPTH:
        raise InputError(f"The filter is nested more than {_MAX_DEPTH} levels deep: join some of its parts.")
    try:
        if operator in _CONDITIONS:
            inner = [_expression(item, depth + 1) for item in found["conditions"]]
            return MetadataFilters(filters=inner, condition=_CONDITIONS[operator])
        if operator == "NOT":
            return MetadataFilters(filters=[_expression(found["condition"], depth + 1)], condition=FilterCondition.NOT)
        if operator == "IN":
            return _one(found["key"], list(found["values"]), FilterOperator.IN)
        if operator == "STARTSWITH":
            return _starts_with(found["key"], found["value"])
        if operator in _OPERATORS:
            return _one(found["key"], found["value"], _OPERATORS[operator])
    except (KeyError, TypeError) as error:
        raise InputError(f"The filter {found!r} is incomplete: it has no {error}.", value=found) from error
    known = ", ".join(sorted([*_OPERATORS, *_CONDITIONS, "IN", "NOT", "STARTSWITH"]))
    raise InputError(f"The filter {found!r} has no operator that is known here: use one of {known}.", value=found)


def _starts_with(key: str, value: str) -> MetadataFilters:
    bounds = [
        _one(key, value, FilterOperator.GTE),
        _one(key, value + _BEHIND_EVERY_LETTER, FilterOperator.LT),
    ]
    return MetadataFilters(filters=list(bounds), condition=FilterCondition.AND)


def filter_keys(filters: MetadataFilters) -> set[str]:
    """Return the metadata keys that the filters name."""
    found: set[str] = set()
    for item in filters.filters:
        found |= filter_keys(item) if isinstance(item, MetadataFilters) else {item.key}
    return found
