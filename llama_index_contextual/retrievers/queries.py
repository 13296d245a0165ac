"""Queries as they come: checked, and cut to what is searched.

A query may be a megabyte, and nobody knows beforehand which step is slow with what it holds. So every search reads the
same number of characters at most, and says so in a warning when there were more.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace

import regex  # type: ignore[import-untyped]  # the package ships no types
from llama_index.core.schema import QueryBundle

from llama_index_contextual.errors import InputError
from llama_index_contextual.retrievers.response import RetrievalResponse

MAX_CHARACTERS = 32_000
"""Characters of a query that are read: about as much English as an embedding model takes."""

MAX_MARKS = 30
"""Combining marks in a row that are read, as in the Stream-Safe Text Format of Unicode (UAX 15): normalising sorts them
in quadratic time."""

_SHORT = 1_000  # too short to hold a run of marks that takes time
_MARKS = regex.compile(rf"(\p{{M}}{{{MAX_MARKS}}})\p{{M}}+")


def shortened(text: str) -> str:
    """Return the part of a query that is read: its first 32,000 characters, cut at white space where there is some.

    Example:
        >>> shortened("How long does food keep?"), len(shortened("food " * 10_000))
        ('How long does food keep?', 31999)
    """
    if len(text) > MAX_CHARACTERS:
        text = text.lstrip()
    if len(text) > MAX_CHARACTERS:
        words, space, rest = text[: MAX_CHARACTERS + 1].rpartition(" ")
        text = words if space and len(rest) < MAX_CHARACTERS // 2 else text[:MAX_CHARACTERS]
    if len(text) > _SHORT and not text.isascii():
        text = _MARKS.sub(r"\1", text)
    return text


def as_bundle(query: object) -> QueryBundle:
    """Return the query as a QueryBundle.

    Raises:
        InputError: It is neither a text nor a QueryBundle.
    """
    bundle = QueryBundle(query) if isinstance(query, str) else query
    if not isinstance(bundle, QueryBundle):
        raise InputError(f"The query is {_described(query)}: give a text or a QueryBundle.", value=query)
    if not isinstance(bundle.query_str, str):
        raise InputError(
            f"The query's `query_str` is {_described(bundle.query_str)}: give a text.", value=bundle.query_str
        )
    return bundle


def as_bundles(queries: object) -> list[QueryBundle]:
    """Return several queries as QueryBundles.

    Raises:
        InputError: They are not a list of queries, or one of them is not a query.
    """
    if isinstance(queries, str | bytes | QueryBundle) or not isinstance(queries, Iterable):
        raise InputError(f"The queries are {_described(queries)}: give a list of them.", value=queries)
    return [as_bundle(query) for query in queries]


def bounded(query: object) -> tuple[QueryBundle, tuple[str, ...]]:
    """Return a query as it is searched, and the warnings about what is left out of it.

    Raises:
        InputError: It is empty, or neither a text nor a QueryBundle.
    """
    bundle = as_bundle(query)
    if not bundle.query_str or bundle.query_str.isspace():
        raise InputError("The query is empty: ask something.", value=bundle.query_str)
    text = shortened(bundle.query_str)
    if text is bundle.query_str:
        return bundle, ()
    cut = copy(bundle)  # of its own class, with whatever that class carries
    cut.query_str = text
    return cut, (
        f"The query has {len(bundle.query_str):,} characters: only its beginning, {len(text):,} characters, was"
        f" searched.",
    )


def with_warnings(response: RetrievalResponse, warnings: Sequence[str]) -> RetrievalResponse:
    """Return a response with more warnings, those of the query first."""
    return replace(response, warnings=(*warnings, *response.warnings)) if warnings else response


def require_positive(k: object, name: str = "top_k", what: str = "result") -> int:
    """Return a number of results; NumPy's integers count as such.

    Args:
        k: What was given.
        name: Of the argument, for the message.
        what: Is counted, for the message.

    Raises:
        InputError: It is not a whole number, or not positive.
    """
    try:
        number = None if isinstance(k, bool) else operator.index(k)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise InputError(f"{name} is {k!r}: give a whole number from 1 on.", value=k)
    if number < 1:
        raise InputError(f"{name} is {number}: ask for at least one {what}.", value=k)
    return number


def _described(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
