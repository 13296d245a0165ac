"""Metadata filters as conditions on facets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import InputError
from llama_index_contextual.storage.facets import AnyFacet, Condition, Junction, condition_of, facet
from llama_index_contextual.storage.filters import FieldTest

PASSING = {"kind": {3, 1}, "year": {2}}


def of(*filters: MetadataFilter | MetadataFilters, condition: FilterCondition | None = None) -> Condition:
    def passing(test: FieldTest) -> Collection[int]:
        return PASSING.get(test.key, ())

    return condition_of(MetadataFilters(filters=list(filters), condition=condition), passing)


def equal(key: str, value: Any = "a", operator: FilterOperator = FilterOperator.EQ) -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=operator)


def test_a_facet_depends_on_key_type_and_value_and_fits_into_63_bits() -> None:
    known = {facet(*one) for one in (("a", '"1"'), ("a", "1"), ("b", "1"), ("a", "2"), ("ключ", "null"))}
    assert len(known) == 5
    assert facet("ключ", '"\ud800"') == facet("ключ", '"\ud800"')
    assert all(0 <= one < 2**63 for one in known)


def test_a_filter_is_the_facets_of_the_values_that_pass() -> None:
    assert of(equal("kind")) == AnyFacet([1, 3])
    assert of(equal("kind"), equal("year")) == Junction("all", [AnyFacet([1, 3]), AnyFacet([2])])
    either = of(equal("kind"), equal("year"), condition=FilterCondition.OR)
    assert either == Junction("any", [AnyFacet([1, 3]), AnyFacet([2])])
    assert of(equal("kind", operator=FilterOperator.NE)) == Junction("none", [AnyFacet([1, 3])])


def test_no_filters_pass_everything() -> None:
    assert condition_of(None, lambda _test: ()) is True
    assert of() is True
    assert of(MetadataFilters(filters=[]), condition=FilterCondition.NOT) is False


def test_a_value_that_no_chunk_has_decides_without_the_engine() -> None:
    assert of(equal("missing")) is False
    assert of(equal("missing"), equal("kind")) is False
    assert of(equal("missing"), equal("kind"), condition=FilterCondition.OR) == AnyFacet([1, 3])
    assert of(equal("missing", operator=FilterOperator.NE)) is True
    assert of(equal("missing"), condition=FilterCondition.NOT) is True
    assert of(equal("missing", operator=FilterOperator.NE), equal("kind"), condition=FilterCondition.OR) is True
    nested = MetadataFilters(filters=[equal("missing", operator=FilterOperator.NE), equal("year")])
    assert of(nested, equal("kind")) == Junction("all", [AnyFacet([2]), AnyFacet([1, 3])])


def test_invalid_filters_are_refused_as_with_files() -> None:
    with pytest.raises(InputError, match="needs a list"):
        of(equal("kind", "a", FilterOperator.IN))
