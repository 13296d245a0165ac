"""Metadata filters as conditions on facets: numbers that stand for the values of metadata keys.

An engine stores with each chunk the facets of its metadata, and only has to find the chunks that have one of some
facets. Which values pass a filter is decided here, as in files, among the different values of the key, which every
part keeps. So filters have one meaning, whatever an engine's own filters do with lists, booleans,
dates and missing keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import xxhash
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilters

from llama_index_contextual.index.filters import FieldTest, field_test, valid_filters

MAX_LENGTH = 200
"""Maximum length of a value of a key of this package, such as a context, that filters can test."""


@dataclass(frozen=True)
class AnyFacet:
    """The chunks that have at least one of some facets."""

    facets: Sequence[int]


@dataclass(frozen=True)
class Junction:
    """A combination of conditions: all of them, any of them, or none of them."""

    kind: Literal["all", "any", "none"]
    conditions: Sequence[AnyFacet | Junction]


Condition = bool | AnyFacet | Junction
"""A condition on a chunk; True and False stand for all chunks and for none."""


def facet(key: str, value: str) -> int:
    """Return the facet of a value of a metadata key: 63 bits of a hash.

    Args:
        key: The key.
        value: The value as JSON.

    Example:
        >>> facet("year", "2024") == facet("year", '"2024"')
        False
    """
    return xxhash.xxh3_64_intdigest(json.dumps([key, value]).encode()) >> 1


def condition_of(filters: MetadataFilters | None, passing: Callable[[FieldTest], Collection[int]]) -> Condition:
    """Return the condition for metadata filters.

    Args:
        filters: The filters; None for all chunks.
        passing: Returns the facets of the values that pass a test.

    Raises:
        InputError: The filters are invalid; see `valid_filters`.
    """
    valid = valid_filters(filters)
    return True if valid is None else _condition(valid, passing)


def _condition(filters: MetadataFilters, passing: Callable[[FieldTest], Collection[int]]) -> Condition:
    if not filters.filters:
        return True
    conditions = [
        _condition(item, passing) if isinstance(item, MetadataFilters) else _leaf(field_test(item), passing)
        for item in filters.filters
    ]
    joined = filters.condition or FilterCondition.AND
    if joined == FilterCondition.AND:
        return _join("all", conditions)
    return _join("any" if joined == FilterCondition.OR else "none", conditions)


def _leaf(test: FieldTest, passing: Callable[[FieldTest], Collection[int]]) -> Condition:
    facets = sorted(passing(test))
    condition: Condition = AnyFacet(facets) if facets else False
    return _join("none", [condition]) if test.is_negated else condition


def _join(kind: Literal["all", "any", "none"], conditions: Sequence[Condition]) -> Condition:
    """Join conditions, without those that do not matter."""
    deciding = kind != "all"  # "any" is decided by a condition that always holds, "all" by one that never does
    if any(condition is deciding for condition in conditions):
        return kind == "any"
    rest = [condition for condition in conditions if not isinstance(condition, bool)]
    if not rest:
        return kind != "any"
    return rest[0] if len(rest) == 1 and kind != "none" else Junction(kind, rest)
