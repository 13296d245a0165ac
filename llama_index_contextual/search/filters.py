"""The language of filters: its forms, the fields that filters can use, and the values that documents have.

`to_filters` turns every form of a filter into LlamaIndex's `MetadataFilters`: a dict, a condition such as
"kind=report", a list of these, LlamaIndex's own filters, and the expressions of Agno. `resolve` then reads them for one
version: it replaces the fields of documents, such as `type` and `folder`, by columns, converts values whose type is
plain ("2025" where documents have 2025), and explains which value or field no document has.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Protocol

import numpy as np
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual._utils.text import parse_json, represent
from llama_index_contextual.config import parsed_value
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.fields import DATE, DOCUMENT, FIELDS, NEWEST, PREFIX, READ, SOURCE, period_named
from llama_index_contextual.index.filters import field_test, moment, valid_filters
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.search.response import visible

Filters = MetadataFilters | MetadataFilter | Mapping[str, Any] | Sequence[Any] | str
"""A filter in any form; see `to_filters`."""

_JSON_FORMS = '{"kind": "report"}, {"year": {">=": 2023}} or kind=report'
FORMS = "{'kind': 'report'}, {'year': {'>=': 2023}} or 'kind=report'"
"""Examples of filters, for messages."""

_OPERATORS_BY_NAME = {one.value: one for one in FilterOperator}
_OTHER_NAMES = {
    "=": "==",
    "eq": "==",
    "equals": "==",
    "is": "==",
    "ne": "!=",
    "neq": "!=",
    "<>": "!=",
    "gt": ">",
    "lt": "<",
    "gte": ">=",
    "ge": ">=",
    "lte": "<=",
    "le": "<=",
    "not_in": "nin",
    "after": ">",
    "before": "<",
    "~": "text_match_insensitive",
}
_CONDITION = re.compile(r"(?s)([^=!<>~]+)(!=|<=|>=|==?|<|>|~)(.*)")
_MAX_NESTING = 16
_BLANK: tuple[Any, ...] = ("", None, [], {}, ())


# ---- forms -----------------------------------------------------------------------------------------------------------


def to_filters(filters: Filters | None, *, keep_blank: bool = False) -> MetadataFilters | None:
    """Convert a filter in any form to LlamaIndex filters; return None if there are no filters.

    Args:
        filters: One of these forms:

            - a dict that maps each field to a value, a list of allowed values, or a dict of operators and values;
            - a condition in the form FIELD=VALUE, also with !=, <, <=, >, >= or ~ (contains);
            - any other form as JSON;
            - `MetadataFilters` or a `MetadataFilter` of LlamaIndex, also as a dict of its fields;
            - an expression of `agno.filters`, such as `EQ("kind", "report")`, also as a dict;
            - a list of these, all of which must hold; several conditions FIELD=VALUE for one field are alternatives.
        keep_blank: Whether a field with a blank value, such as {"kind": ""}, is a condition. Otherwise, it is ignored.

    Raises:
        InputError: The argument has another form, an operator is unknown, or a value is neither a string nor a number.

    Example:
        >>> filters = to_filters({"kind": "a", "year": {">=": 2023}})
        >>> [(one.key, one.operator.value, one.value) for one in filters.filters]
        [('kind', '==', 'a'), ('year', '>=', 2023)]
        >>> to_filters("kind=a") == to_filters({"kind": "a"}) == to_filters([{"key": "kind", "value": "a"}])
        True
    """
    if isinstance(filters, MetadataFilters):
        return filters
    parts = list(_Forms(keep_blank).parts(filters, 0))
    return MetadataFilters(filters=parts, condition=FilterCondition.AND) if parts else None


Condition = MetadataFilter | MetadataFilters


class _Forms:
    """Reads the forms of filters.

    Args:
        keep_blank: As in `to_filters`.
    """

    def __init__(self, keep_blank: bool) -> None:
        self._keep_blank = keep_blank

    def parts(self, value: Any, nesting: int) -> Iterator[Condition]:
        """Yield the conditions of a filter, all of which must hold."""
        if nesting > _MAX_NESTING:
            raise InputError(f"The filters are nested more than {_MAX_NESTING} levels deep: join some of them.")
        if isinstance(value, MetadataFilter | MetadataFilters):
            yield value
        elif (
            value is None
            or value in ([], ())
            or (not self._keep_blank and isinstance(value, str) and not value.strip())
        ):
            return
        elif isinstance(value, str):
            yield from self._of_text(value, nesting)
        elif isinstance(value, Mapping):
            yield from self._of_dict(value, nesting)
        elif isinstance(value, list | tuple):
            yield from self._of_list(value, nesting)
        elif callable(getattr(value, "to_dict", None)):
            yield from self.parts(value.to_dict(), nesting + 1)
        else:
            raise InputError(f"The filters are of type {type(value).__name__}: pass a dict or text, such as {FORMS}.")

    def _all(self, value: Any, nesting: int) -> Condition:
        """Return a filter as one condition."""
        parts = list(self.parts(value, nesting + 1))
        return parts[0] if len(parts) == 1 else MetadataFilters(filters=parts, condition=FilterCondition.AND)

    # ---- text --------------------------------------------------------------------------------------------------------

    def _of_text(self, text: str, nesting: int) -> Iterator[Condition]:
        if text.lstrip().startswith(("{", "[")):
            try:
                value = parse_json(text)
            except ValueError as error:
                raise InputError(f"The filter {_clip(text)!r} is not JSON: write {_JSON_FORMS}.", value=text) from error
            yield from self.parts(value, nesting + 1)
            return
        match = _CONDITION.fullmatch(text)
        if match is None or not match[1].strip():
            raise InputError(f"{_clip(text)!r} is not FIELD=VALUE, such as kind=report.", value=text)
        field, sign, operand = match[1].strip(), match[2], match[3].strip()
        if len(operand) > 1 and operand[0] == operand[-1] == "'":  # as in SQL, where no shell removes the quotes
            operand = operand[1:-1]
        value = parsed_value(operand)
        if sign == "~" or not isinstance(value, str | list):
            value = operand
        yield from self._of_operator(field, sign, value)

    def _of_list(self, items: Sequence[Any], nesting: int) -> Iterator[Condition]:
        alternatives: dict[str, list[MetadataFilter]] = {}
        for item in items:
            for part in self.parts(item, nesting + 1):
                if isinstance(item, str) and isinstance(part, MetadataFilter) and part.operator == FilterOperator.EQ:
                    alternatives.setdefault(part.key, []).append(part)
                else:
                    yield part
        for equal in alternatives.values():
            if len(equal) == 1:
                yield equal[0]
            else:
                yield MetadataFilters(filters=list(equal), condition=FilterCondition.OR)

    # ---- dicts -------------------------------------------------------------------------------------------------------

    def _of_dict(self, value: Mapping[Any, Any], nesting: int) -> Iterator[Condition]:
        names = set(value)
        if "op" in names and names & {"key", "conditions", "condition"}:
            yield self._of_agno(value, nesting)
        elif "filters" in names and names <= {"filters", "condition"} and isinstance(value["filters"], list):
            items = [self._all(item, nesting) for item in value["filters"]]
            yield MetadataFilters(filters=items, condition=_junction(value.get("condition") or "and"))
        elif names in ({"key", "value"}, {"key", "value", "operator"}) and isinstance(value["key"], str):
            yield from self._of_operator(value["key"], value.get("operator") or "==", value["value"])
        else:
            for key, operand in value.items():
                yield from self._of_key(str(key), operand, nesting)

    def _of_agno(self, value: Mapping[str, Any], nesting: int) -> Condition:
        name = str(value["op"]).lower()
        if name in ("and", "or", "not"):
            items = value["conditions"] if "conditions" in value else [value.get("condition")]
            if not isinstance(items, list) or not items:
                raise InputError(f"{value['op']} needs conditions, such as EQ('kind', 'report').", value=value)
            return MetadataFilters(filters=[self._all(item, nesting) for item in items], condition=_junction(name))
        operand = value.get("values", value.get("value"))
        sign = {"contains": "~"}.get(name, name)  # Agno's ignores upper and lower case
        conditions = list(self._of_operator(str(value.get("key")), sign, operand))
        return conditions[0] if conditions else MetadataFilters(filters=[])

    def _of_key(self, key: str, value: Any, nesting: int) -> Iterator[Condition]:
        if key in ("$and", "$or", "$not"):
            items = value if isinstance(value, list) else [value]
            yield MetadataFilters(filters=[self._all(item, nesting) for item in items], condition=_junction(key[1:]))
        elif isinstance(value, Mapping) and value:
            for name, operand in value.items():
                yield from self._of_operator(key, str(name), operand)
        elif value in _BLANK and isinstance(value, Mapping) and self._keep_blank:
            raise InputError(f"Filter {key!r} has no operator: use one of {_operator_names()}.", value=value)
        else:
            yield from self._of_operator(
                key, "in" if isinstance(value, list | tuple | set | frozenset) else "==", value
            )

    def _of_operator(self, key: str, name: str, operand: Any) -> Iterator[Condition]:
        sign = name.strip().lower().removeprefix("$")
        one = _OPERATORS_BY_NAME.get(_OTHER_NAMES.get(sign, sign))
        if one is None:
            raise InputError(
                f"Filter {key!r} has no operator {_clip(name)!r}: use one of {_operator_names()}.", value=name
            )
        if one is FilterOperator.IS_EMPTY:
            condition = metadata_filter(key, None, one)
            # LlamaIndex ignores the value.
            is_negated = operand is False
            yield MetadataFilters(filters=[condition], condition=FilterCondition.NOT) if is_negated else condition
            return
        if isinstance(operand, str) and not operand.strip():
            operand = ""
        if isinstance(operand, list | tuple | set | frozenset) and not self._keep_blank:
            operand = [value for value in operand if value is not None and (value or value == 0)]
        if not self._keep_blank and any(operand is blank or operand == blank for blank in _BLANK):
            return
        if isinstance(operand, list | tuple | set | frozenset):
            operand = list(operand)
            if len({isinstance(value, str) for value in operand}) == 2:
                yield _of_both_types(key, operand, one)
                return
            one = {FilterOperator.EQ: FilterOperator.IN, FilterOperator.NE: FilterOperator.NIN}.get(one, one)
        elif one in _LISTED:
            operand = [operand]
        yield metadata_filter(key, operand, one)


_LISTED = (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)


def _junction(name: str) -> FilterCondition:
    try:
        return FilterCondition(str(name).lower())
    except ValueError as error:
        raise InputError(f"Filters are joined by 'and', 'or' or 'not', not by {_clip(str(name))!r}.") from error


def _operator_names() -> str:
    return ", ".join(one.value for one in FilterOperator)


def _clip(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"


def metadata_filter(key: str, value: Any, operator: FilterOperator) -> MetadataFilter:
    """Create a LlamaIndex filter after checking its value.

    Raises:
        InputError: The value is not a string, a number, or a list of strings and numbers.
    """
    # Booleans are stored as 0 and 1.
    numbers = [
        int(number) if isinstance(number, bool) else number
        for number in (value if isinstance(value, list) else [value])
    ]
    try:
        return MetadataFilter(key=key, value=numbers if isinstance(value, list) else numbers[0], operator=operator)
    except ValueError as error:
        raise InputError(
            f"Filter {key!r} cannot have the value {represent(value)}: use a string or a number."
        ) from error


# ---- the documents of a version --------------------------------------------------------------------------------------


class Nodes(Protocol):
    """The chunks that a filter is read for."""

    def __len__(self) -> int:
        """Return the number of chunks."""

    @property
    def superseded(self) -> Mapping[str, str]:
        """The ids of documents that a newer one supersedes, with its id."""

    def values(self, key: str) -> Sequence[Any]:
        """Return the values of a metadata key."""

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Return a mask of the chunks that pass the filters."""

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the chunks."""


_HIDDEN = (frozenset(keys.OWN_KEYS) | frozenset(keys.RESERVED_KEYS) | frozenset(keys.RUNNING_LINES)) - {
    keys.FILE_NAME,
    keys.TITLE,
}


def field_names(metadata_keys: Iterable[str]) -> list[str]:
    """Return the fields that filters are offered: the user's own metadata keys, and the fields of every document.

    Args:
        metadata_keys: The metadata keys of the chunks.
    """
    own = [key for key in metadata_keys if key not in _HIDDEN and key not in (keys.FILE_NAME, keys.TITLE)]
    return list(dict.fromkeys([*own, keys.FILE_NAME, keys.TITLE, *FIELDS]))


def resolve(filters: MetadataFilters | None, nodes: Nodes, *, is_checked: bool = True) -> MetadataFilters | None:
    """Read filters for the documents of a version: their fields, and values of another type.

    Args:
        filters: Filters returned by `to_filters`.
        nodes: The chunks of the version.
        is_checked: Whether a condition that no document meets is an error. For filters that restrict access it is not:
            the message would name the values of hidden documents.

    Raises:
        InputError: No document has a field or a value.
    """
    valid = valid_filters(filters)
    if valid is None:
        return None
    is_checked = is_checked and len(nodes) > 0
    if is_checked:
        for key in filter_keys(valid):
            _require_field(key, nodes)
    resolved = _resolved_group(valid, nodes, is_checked)
    if is_checked and len(valid.filters) > 1 and not _is_met(resolved, nodes):
        raise InputError("No document passes all of the filters together: leave one of them out.", value=filters)
    return resolved


def filter_keys(filters: MetadataFilters) -> list[str]:
    """Return the fields that the filters use, in their order."""
    names: list[str] = []
    for item in filters.filters:
        names += filter_keys(item) if isinstance(item, MetadataFilters) else [item.key]
    return list(dict.fromkeys(names))


def _resolved_group(filters: MetadataFilters, nodes: Nodes, is_checked: bool) -> MetadataFilters:
    # A negated condition may be met by no document.
    is_checked = is_checked and filters.condition != FilterCondition.NOT
    items: list[Condition] = []
    problems: list[InputError] = []
    for item in filters.filters:
        try:
            items.append(_resolved(item, nodes, is_checked))
        except InputError as error:
            if filters.condition != FilterCondition.OR:
                raise
            items.append(_resolved(item, nodes, False))
            problems.append(error)
    if problems and len(problems) == len(items):  # of alternatives, some may be met by no document
        raise problems[0]
    return MetadataFilters(filters=items, condition=filters.condition)


def _resolved(item: Condition, nodes: Nodes, is_checked: bool) -> Condition:
    if isinstance(item, MetadataFilters):
        return _resolved_group(item, nodes, is_checked)
    resolved: Condition
    values = nodes.values(item.key)
    if item.key == NEWEST and not values:
        resolved = _on_newest(item, nodes)
        if is_checked and not _is_met(resolved, nodes):
            raise InputError("No document has newest false: none is superseded by a newer one.", value=item.value)
        return resolved
    if item.key == DATE and all(isinstance(value, str) and moment(value) is not None for value in values):
        values = nodes.values(f"{PREFIX}{DATE}")
        resolved = _on_date(item, values)
    elif item.key in READ and (not values or item.key == SOURCE):  # a chunk's `source` is the line about its place
        values = nodes.values(f"{PREFIX}{item.key}")
        resolved = _on_field(item, values)
    elif not values and item.key == "doc_id":
        values = nodes.values(DOCUMENT)
        resolved = item.model_copy(update={"key": DOCUMENT})
    else:
        resolved = _coerced(item, values)
    if is_checked and item.operator not in _UNCHECKED and not _is_met(resolved, nodes):
        is_internal = item.key in _HIDDEN and item.key not in (*FIELDS, keys.FILE_PATH, "doc_id")
        raise InputError(_no_field(item.key, nodes) if is_internal else _absence(item, values), value=item.value)
    return resolved


_UNCHECKED = (FilterOperator.NE, FilterOperator.NIN, FilterOperator.IS_EMPTY)


def _is_met(condition: Condition, nodes: Nodes) -> bool:
    group = condition if isinstance(condition, MetadataFilters) else MetadataFilters(filters=[condition])
    mask = nodes.mask(group)
    return mask is None or bool(mask.any())


def _require_field(key: str, nodes: Nodes) -> None:
    """Raise the error for a field that no document has.

    Raises:
        InputError: No document has the field.
    """
    if key not in FIELDS and key != "doc_id" and not nodes.values(key):
        raise InputError(_no_field(key, nodes), value=key)


def _no_field(key: str, nodes: Nodes) -> str:
    names = field_names(nodes.metadata_keys())
    close = nearest(key, names)
    return (
        f"No document has the field {_clip(key)!r}{close or ';'} {'T' if close else 't'}he fields are"
        f" {_clip_list(names)}."
    )


def _clip_list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED_FIELDS:,} more" if len(names) > _LISTED_FIELDS else ""
    return f"{', '.join(_short(name) for name in names[:_LISTED_FIELDS])}{more}"


# ---- files --------------------------------------------------------------------------------------------


def filter_on_documents(files: Sequence[str], records: Sequence[DocumentRecord], *, listing: str) -> MetadataFilters:
    """Return the filter for the documents of files; the arguments are those of `documents_named`.

    Raises:
        InputError: No document matches a file.
    """
    of_files = [record for record in records if record.file_name is not None]
    ids = [record.doc_id for file in files for record in documents_named(file, of_files, listing=listing)]
    return MetadataFilters(filters=[MetadataFilter(key=DOCUMENT, value=ids, operator=FilterOperator.IN)])


def documents_named(
    pattern: str, records: Sequence[DocumentRecord], *, listing: str = "`documents`"
) -> list[DocumentRecord]:
    """Return the documents whose ids match a pattern.

    Args:
        pattern: A document id, the end of an id (such as a file name), or a glob pattern for either.
        records: The documents.
        listing: Command or method that lists the documents, for the message.

    Raises:
        InputError: No document matches.
    """
    matches = [record for record in records if matches_doc_id(pattern, record.doc_id)]
    if not matches:
        close = nearest(pattern, (name for record in records for name in (record.file_name, record.doc_id) if name))
        raise InputError(f"No document is named {pattern!r}{close or f'; {listing} lists all of them.'}", value=pattern)
    return matches


def matches_doc_id(pattern: str, doc_id: str) -> bool:
    """Return whether a pattern matches a document id or the end of the id, literally or as a glob."""
    pattern = PurePath(pattern).as_posix().removeprefix("./")
    ends = (doc_id[at:] for at in [0, *(i + 1 for i, sign in enumerate(doc_id) if sign == "/")])
    return any(end == pattern or fnmatchcase(end, pattern) for end in ends)


# ---- fields of documents ---------------------------------------------------------------------------------------------


def _on_field(item: MetadataFilter, values: Sequence[Any]) -> Condition:
    """Return a condition on a field of documents as one on its column.

    Args:
        item: The condition.
        values: The values of the column.
    """
    key, read = f"{PREFIX}{item.key}", READ[item.key]
    if item.operator == FilterOperator.IS_EMPTY:
        return MetadataFilter(key=key, value=None, operator=item.operator)
    operands = [read(str(one)) for one in (item.value if isinstance(item.value, list) else [item.value])]
    if item.operator in _COMPARISONS:
        raise InputError(
            f"Filter {item.key!r} has no order: use ==, !=, in, nin or contains instead of {item.operator.value}.",
            value=item.value,
        )
    if item.operator in _PARTS:
        found = [name for name in _names(values) if any(one.casefold() in name.casefold() for one in operands)]
        operands = found
    is_list = any(isinstance(value, list) for value in values)
    one = MetadataFilter(key=key, value=operands, operator=FilterOperator.ANY if is_list else FilterOperator.IN)
    if item.operator in (FilterOperator.NE, FilterOperator.NIN):
        return MetadataFilters(filters=[one], condition=FilterCondition.NOT)
    return one


def _on_date(item: MetadataFilter, values: Sequence[Any]) -> Condition:
    """Return a condition on the dates of documents; a year or a month means all its days."""
    key = f"{PREFIX}{DATE}"
    if item.operator in (FilterOperator.IS_EMPTY, *_PARTS):
        return item.model_copy(update={"key": key, "value": str(item.value)})
    bounds = []
    for one in item.value if isinstance(item.value, list) else [item.value]:
        period = period_named(str(one))
        if period is None:
            raise InputError(
                f"Filter 'date' cannot have the value {represent(one)[:100]}: use a year, a month or a day, such as"
                " 2025, 2025-03 or 2025-03-31.",
                value=item.value,
            )
        bounds.append(period)

    def compared(sign: FilterOperator, day: str) -> MetadataFilter:
        return MetadataFilter(key=key, value=day, operator=sign)

    start, end = bounds[0]
    if item.operator in _COMPARISONS:
        day = start if item.operator in (FilterOperator.GTE, FilterOperator.LT) else end
        is_from = item.operator in (FilterOperator.GTE, FilterOperator.GT)
        return compared(FilterOperator.GTE if is_from else FilterOperator.LT, day)
    periods: list[Condition] = [
        MetadataFilters(filters=[compared(FilterOperator.GTE, start), compared(FilterOperator.LT, end)])
        for start, end in bounds
    ]
    is_negated = item.operator in (FilterOperator.NE, FilterOperator.NIN)
    return MetadataFilters(filters=periods, condition=FilterCondition.NOT if is_negated else FilterCondition.OR)


def _on_newest(item: MetadataFilter, nodes: Nodes) -> Condition:
    """Return a condition on documents that a newer one supersedes."""
    wanted = _plain(item.value)
    if wanted not in (0, 1) or item.operator not in (FilterOperator.EQ, FilterOperator.NE):
        raise InputError(
            f"Filter 'newest' cannot be {item.operator.value} {represent(item.value)[:100]}: use true for the newest"
            " documents, or false for those that a newer one supersedes.",
            value=item.value,
        )
    is_newest = bool(wanted) == (item.operator == FilterOperator.EQ)
    operator = FilterOperator.NIN if is_newest else FilterOperator.IN
    return MetadataFilter(key=DOCUMENT, value=sorted(nodes.superseded), operator=operator)


_PARTS = (FilterOperator.CONTAINS, FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)
_COMPARISONS: Mapping[FilterOperator, Callable[[Any, Any], bool]] = {
    FilterOperator.GT: operator.gt,
    FilterOperator.GTE: operator.ge,
    FilterOperator.LT: operator.lt,
    FilterOperator.LTE: operator.le,
}


def _names(values: Sequence[Any]) -> list[Any]:
    """Return the distinct values of a column, and the items of its lists."""
    items = (item for value in values for item in (value if isinstance(value, list) else [value]))
    return list(dict.fromkeys(item for item in items if isinstance(item, str | int | float)))


# ---- values ----------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{1,18})?", re.ASCII)
_TRUTHS = {"true": 1, "false": 0}


def _plain(value: Any) -> Any:
    """Return a value as a number if it is one, or is written as one; True and False are 1 and 0."""
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            return float(text) if "." in text else int(text)
        return _TRUTHS.get(text.casefold(), value)
    return int(value) if isinstance(value, bool) else value


def _coerced(item: MetadataFilter, values: Sequence[Any]) -> Condition:
    """Return a condition whose value has the type of the values that the documents have."""
    if item.operator in (FilterOperator.EQ, FilterOperator.IN, FilterOperator.NE, FilterOperator.NIN):
        field_test(item)
        return _coerced_equality(item, values)
    if item.operator in _COMPARISONS:
        return _coerced_comparison(item, values)
    if item.operator in (FilterOperator.ANY, FilterOperator.ALL, FilterOperator.CONTAINS):
        field_test(item)
        return _coerced_items(item, values)
    return item


def _coerced_items(item: MetadataFilter, values: Sequence[Any]) -> Condition:
    """Return a condition on the items of lists, with operands of the type of the items."""
    names = _names([value for value in values if isinstance(value, list)])
    operands = item.value if isinstance(item.value, list) else [item.value]
    equal = [[name for name in names if _plain(name) == _plain(one)] or [one] for one in operands]
    if all(list(map(repr, found)) == [repr(one)] for found, one in zip(equal, operands, strict=True)):
        return item
    if item.operator == FilterOperator.ALL:
        parts: list[Condition] = [_one_of(item.key, found, FilterOperator.ANY) for found in equal]
        return MetadataFilters(filters=parts)
    return _one_of(item.key, [name for found in equal for name in found], FilterOperator.ANY)


def _coerced_equality(item: MetadataFilter, values: Sequence[Any]) -> Condition:
    operands = item.value if isinstance(item.value, list) else [item.value]
    wanted = {_plain(one) for one in operands}
    scalars = list(dict.fromkeys(value for value in values if isinstance(value, str | int | float)))
    equal = [value for value in scalars if _plain(value) in wanted]
    items = [name for name in _names([value for value in values if isinstance(value, list)]) if _plain(name) in wanted]
    if not items and set(map(repr, equal)) <= set(map(repr, operands)):
        return item
    parts: list[Condition] = [_one_of(item.key, equal)] if equal else []
    if items:
        # `any` also finds a text in longer texts that are not in a list.
        longer = [value for value in scalars if isinstance(value, str) and any(str(one) in value for one in items)]
        lists: list[Condition] = [_one_of(item.key, items, FilterOperator.ANY)]
        lists += [metadata_filter(item.key, longer, FilterOperator.NIN)] if longer else []
        parts.append(lists[0] if len(lists) == 1 else MetadataFilters(filters=lists))
    found = parts[0] if len(parts) == 1 else MetadataFilters(filters=parts, condition=FilterCondition.OR)
    is_negated = item.operator in (FilterOperator.NE, FilterOperator.NIN)
    return MetadataFilters(filters=[found], condition=FilterCondition.NOT) if is_negated else found


def _of_both_types(key: str, values: Sequence[Any], sign: FilterOperator) -> Condition:
    """Return the condition for a list that contains strings and numbers."""
    if sign == FilterOperator.ALL:
        each: list[Condition] = [metadata_filter(key, [value], sign) for value in values]
        return MetadataFilters(filters=each)
    found = _one_of(key, values, sign if sign == FilterOperator.ANY else FilterOperator.IN)
    is_negated = sign in (FilterOperator.NE, FilterOperator.NIN)
    return MetadataFilters(filters=[found], condition=FilterCondition.NOT) if is_negated else found


def _one_of(key: str, values: Sequence[Any], make: FilterOperator = FilterOperator.IN) -> Condition:
    """Return the condition that a field has one of some values, which may be strings and numbers."""
    # A filter of LlamaIndex has a list of strings or a list of numbers.
    lists = [[value for value in values if isinstance(value, str) is is_text] for is_text in (True, False)]
    parts: list[Condition] = [metadata_filter(key, one, make) for one in lists if one or not values]
    return parts[0] if not values or len(parts) == 1 else MetadataFilters(filters=parts, condition=FilterCondition.OR)


def _coerced_comparison(item: MetadataFilter, values: Sequence[Any]) -> Condition:
    """Compare numbers as numbers, if the bound or all values are written as text."""
    bound = _plain(item.value)
    if isinstance(bound, str) or not isinstance(bound, int | float):
        return item
    plain = [(value, _plain(value)) for value in values if isinstance(value, str | int | float)]
    if not plain or not all(isinstance(number, int | float) for _, number in plain):
        return item  # dates and other text are compared as text
    if not any(isinstance(value, str) for value, _ in plain):
        return item.model_copy(update={"value": bound})
    passing = [value for value, number in plain if _COMPARISONS[item.operator](number, bound)]
    return _one_of(item.key, list(dict.fromkeys(passing)))


# ---- messages --------------------------------------------------------------------------------------------------------

_LISTED_VALUES, _LISTED_FIELDS, _LONGEST_VALUE, _MAX_COMPARED = 8, 30, 40, 2_000
_WORDS = {
    FilterOperator.CONTAINS: "with",
    FilterOperator.TEXT_MATCH: "with",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "~",
}


def _absence(item: MetadataFilter, values: Sequence[Any]) -> str:
    """Return the sentence for a condition that no document meets, with the nearest values that documents have.

    Example:
        >>> _absence(MetadataFilter(key="dept", value="HR"), ["legal", "hr"])
        "No document has dept 'HR'; there are hr, legal."
        >>> _absence(MetadataFilter(key="year", value=2030, operator=FilterOperator.GT), [2024, 2025])
        'No document has year > 2030; there are 2024, 2025.'
    """
    operands = item.value if isinstance(item.value, list) else [item.value]
    plain = [_plain(one) for one in operands[:3]]
    shown = " or ".join(repr(_short(one) if isinstance(one, str) else one) for one in plain)
    more = f" or {len(operands) - 3} more" if len(operands) > 3 else ""
    is_equality = item.operator in (FilterOperator.EQ, FilterOperator.IN, FilterOperator.ANY, FilterOperator.ALL)
    sign = "" if is_equality else f"{_WORDS.get(item.operator, item.operator.value)} "
    sentence = f"No document has {_clip(item.key)} {sign}{shown}{more}{_listing(operands, _names(values))}."
    is_pattern = is_equality and any(set(str(one)) & set("*?") for one in operands)
    return (
        f"{sentence} To find a part of a value, use contains or ~ in place of = and a pattern."
        if is_pattern
        else sentence
    )


def _listing(operands: Sequence[Any], names: Sequence[Any]) -> str:
    if not names:
        return ""
    by_text = {str(name): name for name in sorted(names, key=lambda name: (isinstance(name, str), name))}
    numbers = [number for number in map(_plain, operands) if isinstance(number, int | float)]
    if numbers and not any(isinstance(name, str) for name in names):
        near = sorted(names, key=lambda name: (abs(name - numbers[0]), name))[:_LISTED_VALUES]
        by_text = {str(name): name for name in [*sorted(near), *names]}
        operands = ()
    folded: dict[str, str] = {}
    for text in list(by_text)[:_MAX_COMPARED]:
        folded.setdefault(text[:_LONGEST_VALUE].casefold(), text)
    close = [
        folded[one]
        for operand in operands[:3]
        for one in get_close_matches(str(operand)[:_LONGEST_VALUE].casefold(), folded, n=3, cutoff=0.6)
    ]
    order = list(dict.fromkeys([*close, *by_text]))
    listed = ", ".join(_short(text) for text in order[:_LISTED_VALUES])
    more = f" and {len(order) - _LISTED_VALUES:,} more" if len(order) > _LISTED_VALUES else ""
    return f"; there {'is' if len(order) == 1 else 'are'} {listed}{more}"


def _short(value: Any) -> str:
    text = visible(str(value))
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
