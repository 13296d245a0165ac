"""Check queries and limit their length.

A query may be a megabyte long, and any step of a search may be slow for such a text. Every search therefore reads at
most the same number of characters, and a warning names the limit when a query is longer.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from llama_index.core.schema import QueryBundle

from llama_index_contextual.errors import InputError
from llama_index_contextual.index.analysis import shortened
from llama_index_contextual.index.bm25 import LexicalQuery
from llama_index_contextual.search.response import RetrievalResponse


@dataclass
class WeightedQuery(QueryBundle):
    """A question with other texts for the lexical indexes than for the semantic one.

    Attributes:
        lexical_texts: Texts for the lexical indexes, each with the weight of its terms; empty for the question itself.
    """

    lexical_texts: tuple[tuple[str, float], ...] = field(default=(), repr=False)


def lexical_query(bundle: QueryBundle) -> LexicalQuery:
    """Return the query for the lexical indexes: the weighted texts if there are any, or else the question."""
    weighted = bundle.lexical_texts if isinstance(bundle, WeightedQuery) else ()
    return weighted or bundle.query_str


def with_terms(bundle: QueryBundle, texts: Sequence[str], weight: float) -> WeightedQuery:
    """Return the query with further texts for the lexical indexes, whose terms have the given weight."""
    query = lexical_query(bundle)
    base_texts = ((query, 1.0),) if isinstance(query, str) else query
    lexical_texts = (*base_texts, *((text, weight) for text in texts))
    if isinstance(bundle, WeightedQuery):
        return replace(bundle, lexical_texts=lexical_texts)
    return WeightedQuery(
        bundle.query_str, bundle.image_path, bundle.custom_embedding_strs, bundle.embedding, lexical_texts
    )


def as_bundle(query: object) -> QueryBundle:
    """Return the query as a QueryBundle.

    Raises:
        InputError: The query is neither a text nor a QueryBundle.
    """
    bundle = QueryBundle(query) if isinstance(query, str) else query
    if not isinstance(bundle, QueryBundle):
        raise InputError(f"The query is {_described(query)}: pass a string or a QueryBundle.", value=query)
    if not isinstance(bundle.query_str, str):
        raise InputError(
            f"The query's `query_str` is {_described(bundle.query_str)}: pass a string.", value=bundle.query_str
        )
    return bundle


def as_bundles(queries: object) -> list[QueryBundle]:
    """Return several queries as QueryBundles.

    Raises:
        InputError: The queries are not a list, or one of them is not a query.
    """
    if isinstance(queries, str | bytes | QueryBundle) or not isinstance(queries, Iterable):
        raise InputError(f"The queries are {_described(queries)}: pass a list.", value=queries)
    return [as_bundle(query) for query in queries]


def bounded(query: object) -> tuple[QueryBundle, tuple[str, ...]]:
    """Return the query limited to the part that is searched, and a warning if it was longer.

    Raises:
        InputError: The query is empty, or neither a text nor a QueryBundle.
    """
    bundle = as_bundle(query)
    if not bundle.query_str or bundle.query_str.isspace():
        raise InputError("The query is empty: ask a question.", value=bundle.query_str)
    text = shortened(bundle.query_str)
    if text is bundle.query_str:
        return bundle, ()
    cut = copy(bundle)  # keeps the class and its fields
    cut.query_str = text
    return cut, (
        f"The query has {len(bundle.query_str):,} characters: only its beginning, {len(text):,} characters, was"
        f" searched.",
    )


def with_warnings(response: RetrievalResponse, warnings: Sequence[str]) -> RetrievalResponse:
    """Return a response with further warnings before its own."""
    return replace(response, warnings=(*warnings, *response.warnings)) if warnings else response


def number_of_results(similarity_top_k: int | None, top_k: int | None, default: int) -> int:
    """Return the number of results, which has two names: LlamaIndex's `similarity_top_k`, and `top_k`.

    Raises:
        InputError: Both are given and differ.
    """
    if None not in (similarity_top_k, top_k) and similarity_top_k != top_k:
        raise InputError(
            f"similarity_top_k is {similarity_top_k!r} and top_k is {top_k!r}, but both are the number of results:"
            f" pass one of them.",
            value=(similarity_top_k, top_k),
        )
    given = top_k if similarity_top_k is None else similarity_top_k
    return default if given is None else given


def require_positive(k: object, name: str = "top_k", what: str = "result") -> int:
    """Return a number of results as an int; NumPy's integers are accepted.

    Args:
        k: The given number.
        name: Name of the argument, for the message.
        what: Noun for the things that are counted, for the message.

    Raises:
        InputError: The number is not a whole number, or not positive.
    """
    try:
        number = None if isinstance(k, bool) else operator.index(k)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise InputError(f"{name} is {k!r}: it must be a whole number of at least 1.", value=k)
    if number < 1:
        raise InputError(f"{name} is {number}: request at least one {what}.", value=k)
    return number


def _described(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
