"""Metadata filters in plain Python, and drawn metadata and filters to compare a document store or a backend with.

Nothing here is shared with the package: dates, too, are read in another way.

    chance = random.Random(seed)
    metadata = [draw_metadata(chance) for _ in range(50)]
    filters = draw_filters(chance)
    expected = [passes(one, filters) for one in metadata]
"""

from __future__ import annotations

import operator as operators
import random
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from fractions import Fraction
from functools import partial
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

Metadata = Mapping[str, Any]

COMPARISONS = {
    FilterOperator.GT: operators.gt,
    FilterOperator.GTE: operators.ge,
    FilterOperator.LT: operators.lt,
    FilterOperator.LTE: operators.le,
}
LISTED = (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)
TEXTUAL = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)


def passes(metadata: Metadata, item: MetadataFilter | MetadataFilters) -> bool:
    """Return whether metadata pass, as LlamaIndex's in-memory filter does.

    Where that one raises TypeError (text against a number), nothing matches; it cannot nest filters; and it compares
    dates as text.
    """
    if isinstance(item, MetadataFilters):
        results = [passes(metadata, part) for part in item.filters]
        if not results:
            return True
        return {"and": all(results), "or": any(results), "not": not any(results)}[(item.condition or "and").lower()]
    return passes_one(metadata.get(item.key), item.operator, item.value)


def passes_one(held: Any, operator: FilterOperator, value: Any) -> bool:
    """Return whether the value of a key passes a filter."""
    if operator == FilterOperator.IS_EMPTY:
        return held in (None, "", [])
    if held is None:
        return operator in (FilterOperator.NE, FilterOperator.NIN)
    return bool(_HOLDS[operator](held, value))


def is_ordered(held: Any, value: Any, compare: Callable[[Any, Any], bool]) -> bool:
    """Compare two numbers, or two texts: as points in time if both are dates."""
    if isinstance(held, str) != isinstance(value, str) or not isinstance(held, str | int | float):
        return False
    dates = [seconds(one) if isinstance(one, str) else None for one in (held, value)]
    return compare(held, value) if None in dates else compare(*dates)


def holds(held: Any, wanted: Any) -> bool:
    """Return whether a text holds another one, or a list a value."""
    if isinstance(held, str):
        return isinstance(wanted, str) and wanted in held
    return isinstance(held, list) and wanted in held


_HOLDS: Mapping[FilterOperator, Callable[[Any, Any], object]] = {
    FilterOperator.EQ: lambda held, value: held == value,
    FilterOperator.NE: lambda held, value: held != value,
    FilterOperator.IN: lambda held, value: held in value,
    FilterOperator.NIN: lambda held, value: held not in value,
    FilterOperator.CONTAINS: holds,
    FilterOperator.ANY: lambda held, value: any(holds(held, one) for one in value),
    FilterOperator.ALL: lambda held, value: all(holds(held, one) for one in value),
    FilterOperator.TEXT_MATCH: lambda held, value: isinstance(held, str) and value in held,
    FilterOperator.TEXT_MATCH_INSENSITIVE: lambda held, value: isinstance(held, str) and value.lower() in held.lower(),
    **{operator: partial(is_ordered, compare=compare) for operator, compare in COMPARISONS.items()},
}


def seconds(text: str) -> Fraction | None:
    """Return the seconds from year 0 to an ISO date with an optional time, in UTC without a time zone; or None."""
    digits = "0123456789"
    shape = "".join("0" if sign in digits else sign for sign in text)
    match = re.fullmatch(r"(0000-00-00)([T ]00:00(:00(\.0+)?)?(Z|[+-]00(:?00)?)?)?", shape)
    if match is None:
        return None
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
    try:
        days = date(year, month, day).toordinal()
    except ValueError:
        return None
    time, _, zone = text[11:].partition("Z")[0], None, ""
    if (at := max(time.rfind("+"), time.rfind("-"))) >= 0:
        time, zone = time[:at], time[at:]
    clock = [Fraction(part) for part in time.split(":")] if time else []
    hours, minutes, rest = [*clock, *[Fraction(0)] * (3 - len(clock))]
    offset = zone.replace(":", "")[1:].ljust(4, "0")
    zone_hours, zone_minutes = int(offset[:2]), int(offset[2:])
    if hours > 23 or minutes > 59 or rest >= 60 or zone_hours > 23 or zone_minutes > 59:
        return None
    rest = Fraction(int(rest * 1_000_000), 1_000_000)
    shift = (zone_hours * 60 + zone_minutes) * 60 * (-1 if zone.startswith("-") else 1)
    return days * 86_400 + hours * 3_600 + minutes * 60 + rest - shift


# ---- drawn metadata and filters --------------------------------------------------------------------------------------

KEYS = ("kind", "year", "tags", "filed", "a.b", "ключ")
TEXTS = (
    *("report", "Report", "REPORT", "a report", "straße", "STRASSE", "İstanbul", "e\u0301", "é", "🦙", "\uffff"),
    *("", " ", "[]", "null", "true", "9", "10", "2024", "PART II", "PART II > Item 7", "it's", "\\", "%", "x" * 5_000),
)
NUMBERS = (
    *(0, 1, -1, 2, 9, 10, 2024, 1.0, 0.5, -0.0, 0.1 + 0.2),
    *(2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63), 1e300),
)
DATES = (
    *("2024-03-31", "2024-04-01", "2024-03", "2024-02-29", "2023-02-29", "2024-3-1", "0001-01-01", "9999-12-31"),
    *("2024-03-31T00:00", "2024-03-31 00:00:00", "2024-03-31T00:00Z", "2024-03-31T00:00:00.000001Z"),
    *("2024-03-31T24:00", "2024-04-01T01:00+02:00", "2024-03-31T23:00+00:00", "2024-03-31T19:30-03:30"),
    *("2024-04-01T09:00+1000", "0001-01-01T00:00+14:00", "9999-12-31T23:59:59.999999-12:00", "2024-03-31T12:00:60"),
    "2024-03-31 report",
)


def draw_scalar(chance: random.Random) -> str | int | float:
    """Return a text, a date as text, or a number."""
    return chance.choice(chance.choice((TEXTS, NUMBERS, DATES)))


def draw_value(chance: random.Random) -> Any:
    """Return a value that metadata may have."""
    draws = chance.random()
    if draws < 0.6:
        return draw_scalar(chance)
    if draws < 0.9:
        return [draw_scalar(chance) for _ in range(chance.randint(0, 4))]
    return chance.choice((None, True, False, [None], [True, 0], {"a": 1}, [[1], {"b": "report"}], {}))


def draw_metadata(chance: random.Random) -> dict[str, Any]:
    """Return metadata in which some keys are missing."""
    return {key: draw_value(chance) for key in KEYS if chance.random() < 0.7}


def draw_filter(chance: random.Random, operators: Sequence[FilterOperator] = tuple(FilterOperator)) -> MetadataFilter:
    """Return a filter that the package accepts."""
    operator = chance.choice(operators)
    value: Any = draw_scalar(chance)
    if operator in LISTED:
        pool = chance.choice((TEXTS, tuple(n for n in NUMBERS if isinstance(n, int)), DATES))
        value = [chance.choice(pool) for _ in range(chance.randint(0, 3))]
    elif operator in TEXTUAL:
        value = chance.choice(chance.choice((TEXTS, DATES)))
    elif operator == FilterOperator.IS_EMPTY:
        value = None
    return MetadataFilter(key=chance.choice((*KEYS, "missing")), value=value, operator=operator)


def draw_filters(
    chance: random.Random, operators: Sequence[FilterOperator] = tuple(FilterOperator), levels: int = 2
) -> MetadataFilters:
    """Return filters, nested up to a number of levels."""
    parts = [
        draw_filters(chance, operators, levels - 1)
        if levels and chance.random() < 0.25
        else draw_filter(chance, operators)
        for _ in range(chance.randint(1, 3))
    ]
    return MetadataFilters(filters=list(parts), condition=chance.choice((*FilterCondition, None)))
