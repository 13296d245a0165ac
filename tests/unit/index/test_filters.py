"""Metadata filters of the document store, compared with the same filters in plain Python."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from llama_index_contextual.errors import InputError
from llama_index_contextual.index.nodes import NodeTable
from tests.support.filter_oracle import (
    COMPARISONS,
    DATES,
    LISTED,
    NUMBERS,
    TEXTS,
    TEXTUAL,
    Metadata,
    draw_filters,
    draw_metadata,
    passes,
    seconds,
)

SEED = 20_240_331


def store_of(metadata: Sequence[Metadata], *, path: Path | None = None) -> NodeTable:
    """Return a document store with a node for each metadata, published if it is in a file."""
    store = NodeTable(path)
    store.add([TextNode(id_=str(n), text="x", metadata=dict(data)) for n, data in enumerate(metadata)])
    if path is None:
        return store
    store.index_metadata()
    store.close()
    return NodeTable(path, access="read")


def masks(metadata: Sequence[Metadata]) -> list[Callable[[MetadataFilters], list[bool]]]:
    """Return what selects nodes: a store in memory, and a published one."""
    folder = Path(tempfile.mkdtemp())
    stores = [store_of(metadata), store_of(metadata, path=folder / "nodes.sqlite")]

    def selection(store: NodeTable) -> Callable[[MetadataFilters], list[bool]]:
        def select(filters: MetadataFilters) -> list[bool]:
            mask = store.mask(filters)
            return [True] * len(metadata) if mask is None else mask.tolist()

        return select

    return [selection(store) for store in stores]


def chosen(metadata: Sequence[Metadata], filters: MetadataFilters) -> list[bool]:
    """Return which of the nodes with these metadata the document store lets pass, at the first time and again."""
    results = [select(filters) for select in masks(metadata) for _ in range(2)]
    assert all(result == results[0] for result in results)
    return results[0]


def one(key: str, operator: str, value: Any = None) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=FilterOperator(operator))])


@pytest.mark.parametrize(
    ("metadata", "filters"),
    [
        ([{"year": "[]"}, {"year": []}, {"year": ""}, {}], one("year", "is_empty")),
        ([{"year": True}, {"year": 1}, {"year": "1"}], one("year", "==", 1)),
        ([{"year": ["a", None]}, {"year": "ab"}], one("year", "all", ["a", "b"])),
        ([{"year": None}, {"year": []}, {"year": 1}, {}], one("year", "all", [])),
    ],
)
def test_values_that_are_easily_confused_are_told_apart(metadata: list[Metadata], filters: MetadataFilters) -> None:
    assert chosen(metadata, filters) == [passes(data, filters) for data in metadata]


def test_flat_filters_agree_with_the_stock_in_memory_filter() -> None:
    chance, compared = random.Random(SEED), 0
    metadata = [draw_metadata(chance) for _ in range(6)]
    select = masks(metadata)[-1]
    for _ in range(600):
        filters = draw_filters(chance, levels=0)
        if any(part.operator in COMPARISONS and seconds(str(part.value)) is not None for part in filters.filters):  # type: ignore[union-attr]
            continue  # the stock filter compares dates as text
        try:
            expected = [build_metadata_filter_fn(lambda _id, data=data: data, filters)("0") for data in metadata]  # type: ignore[misc]
        except TypeError:  # it compares text with numbers; ours matches nothing then
            continue
        assert select(filters) == expected, filters
        compared += 1
    assert compared > 100


@pytest.mark.parametrize("key", ["x') OR 1=1 --", "a' UNION SELECT 1 --", 'b") --', "c; DROP TABLE nodes"])
def test_an_injection_in_a_key_or_value_finds_nothing_and_breaks_nothing(key: str) -> None:
    store = NodeTable()
    store.add([TextNode(id_="a", text="x", metadata={"k": "v"})])
    for filters in (one(key, "==", "v"), one("k", "==", key), one("k", "in", [key]), one(key, "text_match", key)):
        mask = store.mask(filters)
        assert mask is not None
        assert mask.tolist() == [False]
    assert len(store) == 1


def test_a_list_of_a_hundred_thousand_values_is_one_parameter() -> None:
    values = [f"contract {n}" for n in range(100_000)]
    assert chosen([{"k": "contract 99999"}, {"k": "contract x"}], one("k", "in", values)) == [True, False]


def test_the_largest_allowed_filters_work() -> None:
    flat = MetadataFilters(filters=[MetadataFilter(key="k", value=["v"], operator=FilterOperator.ALL)] * 500)
    assert chosen([{"k": ["v"]}, {}], flat) == [True, False]
    deep = MetadataFilters(filters=flat.filters[:3], condition=FilterCondition.NOT)
    for _ in range(16):
        deep = MetadataFilters(filters=[*flat.filters[:3], deep], condition=FilterCondition.NOT)
    assert chosen([{"k": ["v"]}, {}], deep) == [passes({"k": ["v"]}, deep), passes({}, deep)]


TOO_LONG = MetadataFilters(filters=[MetadataFilter(key="k", value="v")] * 501)
TOO_DEEP = one("k", "==", "v")
for _level in range(17):
    TOO_DEEP = MetadataFilters(filters=[TOO_DEEP])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (one("year", "==", None), r"'year' == needs a string or a number\."),
        (one("year", "!=", [1, 2]), r"'year' != needs a string or a number\."),
        (one("year", ">", [1, 2]), r"'year' > needs a string or a number\."),
        (one("year", "contains", ["a"]), r"'year' contains needs a string or a number\."),
        (one("year", "in", "2023"), r"'year' in needs a list of strings or numbers"),
        (one("year", "any", 3), r"'year' any needs a list"),
        (one("year", "all", None), r"'year' all needs a list"),
        (one("year", "text_match", 3), r"'year' text_match needs a string"),
        (one("year", "text_match_insensitive", ["a"]), r"'year' text_match_insensitive needs a string"),
        (TOO_LONG, r"more than 500 filters: use `in` with a list"),
        (TOO_DEEP, r"nested more than 16 levels deep: join some of them"),
    ],
)
def test_a_value_unsuitable_for_an_operator_is_refused_with_a_message(filters: MetadataFilters, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen([{"year": 2023}], filters)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "a\0b", "ye\ud800ar"])
def test_values_that_no_metadata_can_contain_match_nothing(value: Any, tmp_path: Path) -> None:
    filters = (one("year", "==", value), one("year", "in", [value]), one(f"ye{value}", "==", value))
    with contextlib.closing(NodeTable(tmp_path / "nodes.sqlite")) as building:
        building.add([TextNode(id_="a", text="x", metadata={"year": 2023})])
        building.index_metadata()
    with contextlib.closing(NodeTable(tmp_path / "nodes.sqlite", access="read")) as published:
        for one_filter in filters:
            assert chosen([{"year": 2023}, {}], one_filter) == [False, False]
            assert np.flatnonzero(published.mask(one_filter)).tolist() == []


def test_nan_and_infinity_match_nothing() -> None:
    nan, infinite = float("nan"), float("inf")
    assert chosen([{"k": 1.0}], one("k", "in", [nan, infinite])) == [False]
    assert chosen([{"k": 1.0}], one("k", "==", nan)) == [False]
    assert chosen([{"k": 1.0}], one("k", "<", infinite)) == [True]


def test_a_section_is_found_by_the_beginning_of_its_path() -> None:
    below = MetadataFilters(
        filters=[*one("section", ">=", "PART II").filters, *one("section", "<", "PART II\U0010ffff").filters]
    )
    sections = ["PART II", "PART II > Item 7 > Overview", "PART I > Item 1", "Annex > PART II"]

    assert chosen([{"section": section} for section in sections] + [{}], below) == [True, True, False, False, False]


def test_five_hundred_drawn_filters_agree_with_plain_python() -> None:
    chance = random.Random(SEED)
    metadata = [draw_metadata(chance) for _ in range(60)]
    selections, passing = masks(metadata), 0
    for number in range(500):
        filters = draw_filters(chance)
        expected = [passes(data, filters) for data in metadata]
        passing += 0 < sum(expected) < len(expected)
        for select in selections:
            for _ in range(2):
                assert select(filters) == expected, f"seed {SEED}, filter {number}: {filters!r}"
    assert passing > 150, "many filters should select some of the nodes, but not all"


def test_every_operator_agrees_with_plain_python_for_every_pair_of_drawn_values() -> None:
    metadata = [{}, {"k": []}, {"k": None}, *({"k": value} for value in (*TEXTS, *NUMBERS, *DATES, True, False))]
    metadata += [{"k": [value]} for value in (*TEXTS, *NUMBERS, *DATES)]
    selections = masks(metadata)
    for operator in FilterOperator:
        for value in TEXTS if operator in TEXTUAL else (*TEXTS, *NUMBERS, *DATES):
            filters = one("k", operator.value, [value] if operator in LISTED else value)
            expected = [passes(data, filters) for data in metadata]
            assert all(select(filters) == expected for select in selections), filters


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        (">=", "2024-03-31", {"day", "midnight", "evening", "berlin", "text"}),
        (">", "2024-03-31", {"evening", "text"}),
        ("<", "2024-04-01", {"earlier", "day", "midnight", "evening", "berlin"}),
        ("<=", "2024-03-31", {"earlier", "day", "midnight", "berlin"}),
        ("<", "2024-03-31T00:00+02:00", {"earlier"}),
        (">=", "2024-03-31 18:00", {"evening", "text"}),
        ("==", "2024-03-31", {"day"}),
        ("in", ["2024-03-31", "2024-03-31T00:00:00Z"], {"day", "midnight"}),
        ("text_match", "2024-03-31", {"day", "midnight", "berlin"}),
        (">=", "2024", {"earlier", "day", "midnight", "evening", "berlin", "text"}),
    ],
)
def test_dates_are_compared_as_points_in_time(operator: str, value: Any, expected: set[str]) -> None:
    filed = {
        "earlier": "2024-03-30",
        "day": "2024-03-31",
        "midnight": "2024-03-31T00:00:00Z",
        "berlin": "2024-03-31T02:00:00+02:00",  # midnight in UTC
        "evening": "2024-04-01T01:30:00+05:00",  # 20:30 in UTC
        "text": "not yet",
        "missing": None,
        "number": 2024,
    }
    passing = chosen([{"filed": value} for value in filed.values()], one("filed", operator, value))
    assert {name for name, is_in in zip(filed, passing, strict=True) if is_in} == expected
