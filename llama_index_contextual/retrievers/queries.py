"""Questions of LlamaIndex: as `QueryBundle`s, and as the queries that are searched."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from llama_index.core.schema import QueryBundle

from llama_index_contextual.errors import InputError
from llama_index_contextual.search import search
from llama_index_contextual.search.search import Query


@dataclass
class WeightedQuery(QueryBundle):
    """A question with other texts for the lexical indexes than for the semantic one.

    Attributes:
        lexical_texts: Texts for the lexical indexes, each with the weight of its terms; empty for the question itself.
    """

    lexical_texts: tuple[tuple[str, float], ...] = field(default=(), repr=False)


def query_of(bundle: QueryBundle) -> Query:
    """Return what is searched for a question."""
    weighted = bundle.lexical_texts if isinstance(bundle, WeightedQuery) else ()
    return Query(
        text=bundle.query_str,
        embedded=bundle.embedding_strs,
        embedding=bundle.embedding,
        lexical=weighted or bundle.query_str,
    )


def with_embedding(query: QueryBundle, embedding: list[float]) -> QueryBundle:
    """Return a copy of a query with its embedding."""
    prepared = copy(query)  # keeps the class and its fields
    prepared.embedding = embedding
    return prepared


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
    text, notes = search.bounded(bundle.query_str)
    if not notes:
        return bundle, ()
    cut = copy(bundle)  # keeps the class and its fields
    cut.query_str = text
    return cut, notes


def _described(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
