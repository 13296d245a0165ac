"""Filters for people and models: conditions and names of files as text, and a description of the fields."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import TYPE_CHECKING

from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.fields import DOCUMENT, PREFIX, READ
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.search.filters import field_names, to_filters
from llama_index_contextual.search.response import visible
from llama_index_contextual.tools.models import clip

if TYPE_CHECKING:
    from llama_index_contextual.search.live import LiveIndexes, SearchableVersion

_SHOWN_VALUES = 8


def describe_filters(version: SearchableVersion) -> str:
    """Return a description of filters for a model: the fields, and the values of those that have few."""
    values_by_key = {key: values for key, values in version.metadata_values.items() if key not in keys.RUNNING_LINES}
    for field in READ:
        if field not in values_by_key:
            column = version.docstore.values(f"{PREFIX}{field}")
            first = (value[0] if isinstance(value, list) else value for value in column)
            values_by_key[field] = sorted(set(first))
    parts = [f"{key} ({_value_list(values)})" for key, values in values_by_key.items() if values]
    others = [name for name in field_names(()) if name not in values_by_key]
    return f"Filters narrow the search. Valid keys: {', '.join([*parts, *others])}."


def _value_list(values: Sequence[str | int | float]) -> str:
    text = ", ".join(visible(clip(str(value))) for value in values[:_SHOWN_VALUES])
    more = f", and {len(values) - _SHOWN_VALUES:,} more" if len(values) > _SHOWN_VALUES else ""
    return f"{text}{more}"


# ---- conditions and files --------------------------------------------------------------------------------------------


def parse_conditions(
    live: LiveIndexes,
    conditions: Sequence[str] | None,
    files: Sequence[str] | None,
    *,
    listing: str = "`documents`",
) -> MetadataFilters | None:
    """Return the filters for conditions such as "kind=report" and for file names, or None if there are none.

    Args:
        live: The indexes to search.
        conditions: Filters as text; see `to_filters`.
        files: Document ids, ends of ids such as file names, or glob patterns for either.
        listing: Command or method that lists the documents, for messages.

    Raises:
        InputError: A condition cannot be parsed, or no document meets it or matches a file.
    """
    filters = to_filters(list(conditions or ()))
    if filters is not None:
        live.current().resolved(filters)
    if not files:
        return filters
    records = [record for record in live.current().records if record.file_name is not None]
    ids = [record.doc_id for file in files for record in documents_named(file, records, listing=listing)]
    one = MetadataFilter(key=DOCUMENT, value=ids, operator=FilterOperator.IN)
    return MetadataFilters(filters=[*(filters.filters if filters else ()), one])


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
