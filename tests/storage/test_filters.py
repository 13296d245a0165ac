"""Metadata filters in SQL, compared with the same filters in plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from llama_index_contextual.errors import InputError
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.filters import to_sql

Metadata = Mapping[str, Any]

COMPARISONS = {
    FilterOperator.GT: lambda a, b: a > b,
    FilterOperator.GTE: lambda a, b: a >= b,
    FilterOperator.LT: lambda a, b: a < b,
    FilterOperator.LTE: lambda a, b: a <= b,
}


def passes(metadata: Metadata, item: MetadataFilter | MetadataFilters) -> bool:
    """Return whether metadata pass: the oracle, written from LlamaIndex's own in-memory filter.

    Where that one raises TypeError (text against a number), nothing matches.
    """
    if isinstance(item, MetadataFilters):
        results = [passes(metadata, part) for part in item.filters]
        if not results:
            return True
        return {"and": all(results), "or": any(results), "not": not any(results)}[(item.condition or "and").lower()]
    return passes_one(metadata.get(item.key), item.operator, item.value)


def passes_one(held: Any, operator: FilterOperator, value: Any) -> bool:
    if operator == FilterOperator.IS_EMPTY:
        return held is None or held == "" or held == []
    if held is None:
        return operator in (FilterOperator.NE, FilterOperator.NIN)
    if operator in COMPARISONS:
        comparable = isinstance(held, str) == isinstance(value, str) and not isinstance(held, list)
        return comparable and COMPARISONS[operator](held, value)
    match operator:
        case FilterOperator.EQ:
            return bool(held == value)
        case FilterOperator.NE:
            return bool(held != value)
        case FilterOperator.IN:
            return held in value
        case FilterOperator.NIN:
            return held not in value
        case FilterOperator.CONTAINS:
            return holds(held, value)
        case FilterOperator.ANY:
            return any(holds(held, expected) for expected in value)
        case FilterOperator.ALL:
            return all(holds(held, expected) for expected in value)
        case FilterOperator.TEXT_MATCH:
            return isinstance(held, str) and value in held
        case _:
            return isinstance(held, str) and value.lower() in held.lower()


def holds(held: Any, wanted: Any) -> bool:
    if isinstance(held, str):
        return isinstance(wanted, str) and wanted in held
    return isinstance(held, list) and wanted in held


def chosen(metadata: Sequence[Metadata], filters: MetadataFilters) -> list[bool]:
    """Return which of the nodes with these metadata the document store lets pass."""
    store = SQLiteDocumentStore()
    store.add_documents([TextNode(id_=str(n), text="x", metadata=dict(data)) for n, data in enumerate(metadata)])
    mask = store.mask(filters)
    return [True] * len(metadata) if mask is None else mask.tolist()


def one(key: str, operator: str, value: Any = None) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=FilterOperator(operator))])


NASTY = [
    "x') OR 1=1 --",
    "a.b",
    "$.a",
    'say "yes"',
    "it's",
    "%",
    "_",
    "",
    "[]",
    "null",
    "ß",
    "İ",
    "e\u0301",
    "🦙",
    "\\",
    "\n",
]
keys = st.sampled_from(["year", "a.b", "x') OR 1=1 --", '"', "$[0]", "ключ", "", "'"])
texts = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
)
integers = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
floats = st.one_of(st.sampled_from([0.5, -1.0, 0.1 + 0.2, 1e300]), st.floats(allow_nan=False, allow_infinity=False))
scalars = st.one_of(texts, integers, floats)
lists = st.one_of(*(st.lists(kind, max_size=4) for kind in (texts, integers, floats)))
held_values = st.one_of(scalars, st.booleans(), st.none(), lists, st.lists(st.none(), max_size=2))
metadata_dicts = st.dictionaries(keys, held_values, max_size=4)

LISTED = [FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL]
TEXTUAL = [FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE]


@st.composite
def single_filters(draw: st.DrawFn) -> MetadataFilter:
    operator = draw(st.sampled_from(FilterOperator))
    if operator in LISTED:
        value: Any = draw(lists)
    elif operator in TEXTUAL:
        value = draw(texts)
    else:
        value = None if operator == FilterOperator.IS_EMPTY else draw(scalars)
    return MetadataFilter(key=draw(keys), value=value, operator=operator)


conditions = st.sampled_from([*FilterCondition, None])
nested_filters = st.recursive(
    st.builds(MetadataFilters, filters=st.lists(single_filters(), max_size=3), condition=conditions),
    lambda inner: st.builds(
        MetadataFilters, filters=st.lists(st.one_of(single_filters(), inner), max_size=3), condition=conditions
    ),
    max_leaves=6,
)


@given(st.lists(metadata_dicts, min_size=1, max_size=6), nested_filters)
@example([{"year": "[]"}, {"year": []}, {"year": ""}, {}], one("year", "is_empty"))
@example([{"year": True}, {"year": 1}, {"year": "1"}], one("year", "==", 1))
@example([{"year": ["a", None]}, {"year": "ab"}], one("year", "all", ["a", "b"]))
@example([{"year": None}, {"year": []}, {"year": 1}, {}], one("year", "all", []))
def test_every_filter_agrees_with_plain_python(metadata: list[dict[str, Any]], filters: MetadataFilters) -> None:
    assert chosen(metadata, filters) == [passes(data, filters) for data in metadata]


@given(
    st.dictionaries(keys, st.one_of(scalars, st.none(), lists), max_size=4),
    st.lists(single_filters(), min_size=1, max_size=3),
    conditions,
)
def test_flat_filters_agree_with_the_stock_in_memory_filter(
    metadata: dict[str, Any], filters: list[MetadataFilter], condition: FilterCondition | None
) -> None:
    expected = MetadataFilters(filters=filters, condition=condition)
    try:
        stock = build_metadata_filter_fn(lambda _id: metadata, expected)("0")
    except TypeError:  # the stock filter compares text with numbers; ours matches nothing then
        return
    assert chosen([metadata], expected) == [stock]


@given(keys, texts, st.sampled_from(["==", "!=", "in", "contains", "text_match"]))
def test_keys_and_values_are_bound_and_never_written_into_the_statement(key: str, value: str, operator: str) -> None:
    condition = to_sql(one(key, operator, [value] if operator == "in" else value))
    harmless = to_sql(one("k", operator, ["v"] if operator == "in" else "v"))
    assert condition is not None
    assert harmless is not None
    assert condition[0] == harmless[0]


@pytest.mark.parametrize("key", ["x') OR 1=1 --", "a' UNION SELECT 1 --", 'b") --', "c; DROP TABLE nodes"])
def test_an_injection_in_a_key_or_value_finds_nothing_and_breaks_nothing(key: str) -> None:
    store = SQLiteDocumentStore()
    store.add_documents([TextNode(id_="a", text="x", metadata={"k": "v"})])
    for filters in (one(key, "==", "v"), one("k", "==", key), one("k", "in", [key]), one(key, "text_match", key)):
        mask = store.mask(filters)
        assert mask is not None
        assert mask.tolist() == [False]
    assert len(store) == 1


def test_a_missing_key_matches_only_unequal_not_in_and_empty() -> None:
    matched = {
        op for op in FilterOperator if chosen([{}], one("k", op.value, ["v"] if op in LISTED else "v")) == [True]
    }
    assert matched == {FilterOperator.NE, FilterOperator.NIN, FilterOperator.IS_EMPTY}


def test_no_filters_and_empty_filters_match_everything() -> None:
    assert to_sql(None) is None
    for condition in FilterCondition:
        assert to_sql(MetadataFilters(filters=[], condition=condition)) is None


def test_a_list_of_a_hundred_thousand_values_is_one_parameter() -> None:
    values = [f"contract {n}" for n in range(100_000)]
    assert chosen([{"k": "contract 99999"}, {"k": "contract x"}], one("k", "in", values)) == [True, False]


def test_the_largest_allowed_filters_work() -> None:
    flat = MetadataFilters(filters=[MetadataFilter(key="k", value=["v"], operator=FilterOperator.ALL)] * 500)
    assert chosen([{"k": ["v"]}, {}], flat) == [True, False]
    deep = MetadataFilters(filters=flat.filters[:3], condition=FilterCondition.NOT)
    for _ in range(8):
        deep = MetadataFilters(filters=[*flat.filters[:3], deep], condition=FilterCondition.NOT)
    assert chosen([{"k": ["v"]}, {}], deep) == [passes({"k": ["v"]}, deep), passes({}, deep)]


TOO_LONG = MetadataFilters(filters=[MetadataFilter(key="k", value="v")] * 501)
TOO_DEEP = one("k", "==", "v")
for _level in range(9):
    TOO_DEEP = MetadataFilters(filters=[TOO_DEEP])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (one("year", "==", None), r"'year' == needs a string or a number"),
        (one("year", ">", [1, 2]), r"'year' > needs a string or a number"),
        (one("year", "contains", ["a"]), r"'year' contains needs a string or a number"),
        (one("year", "in", "2023"), r"'year' in needs a list of strings or numbers"),
        (one("year", "any", 3), r"'year' any needs a list"),
        (one("year", "all", None), r"'year' all needs a list"),
        (one("year", "text_match", 3), r"'year' text_match needs a string"),
        (one("year", "text_match_insensitive", ["a"]), r"'year' text_match_insensitive needs a string"),
        (one("year", "==", 2**63), r"'year': 9223372036854775808 does not fit into 64 bits"),
        (one("year", "in", [-(2**63) - 1]), r"does not fit into 64 bits"),
        (one("year", "==", "a\0b"), r"NUL character or a lone surrogate"),
        (one("ye\ud800ar", "==", "a"), r"NUL character or a lone surrogate"),
        (TOO_LONG, r"more than 500 filters: use `in` with a list"),
        (TOO_DEEP, r"nested more than 8 levels deep: join some of them"),
    ],
)
def test_a_value_unsuitable_for_an_operator_is_refused_with_a_message(filters: MetadataFilters, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen([{"year": 2023}], filters)


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
