"""Knowledge for Agno agents: Agno's `KnowledgeProtocol` for a project or retriever, with Agno's filters.

Filters are converted to LlamaIndex's: dicts of values, or filter expressions in their dict form.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from agno.knowledge.document import Document
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import awithout_secrets, without_secrets
from llama_index_contextual.errors import ContextualError, InputError, NoVersionError
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.base import RankingRetriever, arespond_of, respond_of
from llama_index_contextual.retrievers.live import ProjectRetriever
from llama_index_contextual.retrievers.queries import bounded, require_positive, with_warnings
from llama_index_contextual.retrievers.response import RetrievalResponse, RetrievedChunk
from llama_index_contextual.tools import describe_documents, doubts

Filters = Mapping[str, Any] | Sequence[Any] | Any
"""A dict of values, an Agno `FilterExpr`, or a list of expressions that must all match."""

_OPERATORS = {
    "EQ": FilterOperator.EQ,
    "NEQ": FilterOperator.NE,
    "GT": FilterOperator.GT,
    "GTE": FilterOperator.GTE,
    "LT": FilterOperator.LT,
    "LTE": FilterOperator.LTE,
    "CONTAINS": FilterOperator.TEXT_MATCH_INSENSITIVE,
}
_CONDITIONS = {"AND": FilterCondition.AND, "OR": FilterCondition.OR}
_AFTER_ANY_CHARACTER = "\U0010ffff"
_MAX_DEPTH = 10


def to_metadata_filters(filters: Filters) -> MetadataFilters | None:
    """Convert Agno's filters to LlamaIndex's; return None if there are none.

    Args:
        filters: A dict (each key must have the value, or one of a list of values), a `FilterExpr`, its dict form, or
            a list of expressions that must all match.

    Raises:
        InputError: An operator is unknown, or the expression is nested too deeply.
    """
    if not filters:
        return None
    if isinstance(filters, Mapping) and "op" not in filters:
        parts: list[MetadataFilter | MetadataFilters] = [_equal(str(key), value) for key, value in filters.items()]
    else:
        items = filters if isinstance(filters, Sequence) else [filters]
        parts = [_expression(_as_dict(item), 0) for item in items]
    return MetadataFilters(filters=parts, condition=FilterCondition.AND)


def _as_dict(item: Any) -> Any:
    return item.to_dict() if hasattr(item, "to_dict") else item


def _equal(key: str, value: Any) -> MetadataFilter:
    operator = FilterOperator.IN if isinstance(value, list | tuple | set) else FilterOperator.EQ
    return _one(key, list(value) if operator is FilterOperator.IN else value, operator)


def _one(key: str, value: Any, operator: FilterOperator) -> MetadataFilter:
    try:
        return MetadataFilter(key=key, value=value, operator=operator)
    except ValueError as error:
        raise InputError(f"Filter {key!r} cannot have the value {value!r}: use a string or a number.") from error


def _expression(data: Any, depth: int) -> MetadataFilter | MetadataFilters:
    operator = data.get("op") if isinstance(data, Mapping) else None
    if depth > _MAX_DEPTH:
        raise InputError(f"The filter is nested more than {_MAX_DEPTH} levels deep: combine some of its parts.")
    try:
        if operator in _CONDITIONS:
            inner = [_expression(item, depth + 1) for item in data["conditions"]]
            return MetadataFilters(filters=inner, condition=_CONDITIONS[operator])
        if operator == "NOT":
            return MetadataFilters(filters=[_expression(data["condition"], depth + 1)], condition=FilterCondition.NOT)
        if operator == "IN":
            return _one(data["key"], list(data["values"]), FilterOperator.IN)
        if operator == "STARTSWITH":
            return _starts_with(data["key"], data["value"])
        if operator in _OPERATORS:
            return _one(data["key"], data["value"], _OPERATORS[operator])
    except (KeyError, TypeError) as error:
        raise InputError(f"The filter {data!r} is incomplete: it has no {error}.", value=data) from error
    known = ", ".join(sorted([*_OPERATORS, *_CONDITIONS, "IN", "NOT", "STARTSWITH"]))
    raise InputError(f"The filter {data!r} has no supported operator: use one of {known}.", value=data)


def _starts_with(key: str, value: str) -> MetadataFilters:
    bounds = [
        _one(key, value, FilterOperator.GTE),
        _one(key, value + _AFTER_ANY_CHARACTER, FilterOperator.LT),
    ]
    return MetadataFilters(filters=list(bounds), condition=FilterCondition.AND)


def filter_keys(filters: MetadataFilters) -> set[str]:
    """Return the metadata keys that the filters name."""
    names: set[str] = set()
    for item in filters.filters:
        names |= filter_keys(item) if isinstance(item, MetadataFilters) else {item.key}
    return names


# Keys that are useless in a filter.
_INNER_KEYS = frozenset(
    {
        keys.CONTEXT,
        keys.SOURCE_LINE,
        keys.SEGMENT_START,
        keys.SEGMENT_END,
        keys.TOKEN_COUNT,
        keys.TABLE_HEAD,
        keys.FACTS,
    }
)


class ContextualKnowledge:
    """Agno's `KnowledgeProtocol` over a project or a LlamaIndex retriever.

    Give it to an agent as `Agent(knowledge=ContextualKnowledge(project), search_knowledge=True)`. Passages have node
    id, score, relevance, file, pages and context in `meta_data`. Errors are returned to the model as messages
    that it can act on; `search` and `asearch` raise them instead.

    Args:
        source: A project, one of this package's retrievers, or any other LlamaIndex retriever (without filters).
        max_results: Default number of passages of a search.
        description: Description of the documents for the system prompt; None describes the project's documents.

    Example:
        >>> from agno.agent import Agent  # doctest: +SKIP
        >>> agent = Agent(knowledge=ContextualKnowledge(project), search_knowledge=True)  # doctest: +SKIP
    """

    def __init__(
        self, source: Project | BaseRetriever, *, max_results: int = 10, description: str | None = None
    ) -> None:
        self.source = source
        self.max_results = require_positive(max_results, "max_results", "passage")
        self._description = description

    # ---- searching -------------------------------------------------------------------------------------------------

    def search(self, query: str, max_results: int | None = None, filters: Filters = None, **_: Any) -> list[Document]:
        """Return the passages that answer a question best.

        Args:
            query: The question.
            max_results: Maximum number of passages; None uses the knowledge base's default.
            filters: Restrict the search to passages with matching metadata, before ranking.

        Raises:
            ContextualError: The search failed; the message says why and what to do.
        """
        k = self.max_results if max_results is None else require_positive(max_results, "max_results", "passage")
        return _documents(_respond(self.source, query, k, self._check_filters(filters)))

    async def asearch(
        self, query: str, max_results: int | None = None, filters: Filters = None, **_: Any
    ) -> list[Document]:
        """Do the same as `search`, without blocking the event loop."""
        k = self.max_results if max_results is None else require_positive(max_results, "max_results", "passage")
        checked = await asyncio.to_thread(self._check_filters, filters)
        return _documents(await _arespond(self.source, query, k, checked))

    def retrieve(self, query: str, max_results: int | None = None, filters: Filters = None, **_: Any) -> list[Document]:
        """Do the same as `search`, but return an error as a document that the model can read."""
        try:
            return self.search(query, max_results, filters)
        except ContextualError as error:
            return [_failure(error)]

    async def aretrieve(
        self, query: str, max_results: int | None = None, filters: Filters = None, **_: Any
    ) -> list[Document]:
        """Do the same as `retrieve`, without blocking the event loop."""
        try:
            return await self.asearch(query, max_results, filters)
        except ContextualError as error:
            return [_failure(error)]

    # ---- filters ---------------------------------------------------------------------------------------------------

    def get_valid_filters(self, **_: Any) -> set[str]:
        """Return the metadata keys available for filters; none if the source does not support filters or is empty."""
        try:
            return self._keys()
        except NoVersionError:  # an agent may be created before anything is ingested
            return set()

    def _keys(self) -> set[str]:
        if isinstance(self.source, Project | ProjectRetriever):
            return set(self.source.metadata_keys()) - _INNER_KEYS
        if isinstance(self.source, RankingRetriever):
            return set(self.source.docstore.metadata_keys()) - _INNER_KEYS
        return set()

    async def aget_valid_filters(self, **_: Any) -> set[str]:
        """Do the same as `get_valid_filters`, without blocking the event loop."""
        return await asyncio.to_thread(self.get_valid_filters)

    def validate_filters(self, filters: Filters, **_: Any) -> tuple[Filters, list[str]]:
        """Return the filters unchanged, and an empty list of invalid keys.

        Agno would drop an unknown key and search without it. Instead, the search itself reports an unknown key with the
        valid ones.
        """
        return filters, []

    async def avalidate_filters(self, filters: Filters, **_: Any) -> tuple[Filters, list[str]]:
        """Do the same as `validate_filters`."""
        return self.validate_filters(filters)

    def _check_filters(self, filters: Filters) -> MetadataFilters | None:
        converted = to_metadata_filters(filters)
        if converted is None:
            return None
        if not isinstance(self.source, Project | ProjectRetriever | RankingRetriever):
            raise InputError(
                "This retriever does not support filters: search without filters, or use a project as the source."
            )
        valid = self._keys()
        if unknown := sorted(filter_keys(converted) - valid):
            listed = ", ".join(sorted(valid))
            raise InputError(f"No passage has the metadata key {unknown[0]!r}. Valid keys: {listed}.", value=unknown)
        return converted

    # ---- instructions and tools ------------------------------------------------------------------------------------

    def build_context(self, enable_agentic_filters: bool = False, **_: Any) -> str:
        """Return the instructions for an agent's system prompt."""
        lines = [
            self._describe(),
            "Search it with the search_knowledge_base tool before you answer; search again in other words when the"
            " passages do not answer. `context` situates a passage and is no text of the document: never quote it.",
        ]
        if enable_agentic_filters and (valid := self.get_valid_filters()):
            lines.append(f"Filters narrow the search. Valid keys: {', '.join(sorted(valid))}.")
        return "<knowledge_base>\n" + "\n".join(lines) + "\n</knowledge_base>"

    def get_tools(self, **_: Any) -> list[Callable[..., str]]:
        """Return the search as a tool."""

        def search_knowledge_base(query: str) -> str:
            """Search the knowledge base for passages that answer a question.

            Args:
                query: The question.
            """
            return _as_json(self.retrieve(query))

        return [search_knowledge_base]

    async def aget_tools(self, **_: Any) -> list[Callable[..., Coroutine[Any, Any, str]]]:
        """Return the search as an asynchronous tool."""

        async def search_knowledge_base(query: str) -> str:
            """Search the knowledge base for passages that answer a question.

            Args:
                query: The question.
            """
            return _as_json(await self.aretrieve(query))

        return [search_knowledge_base]

    def _describe(self) -> str:
        if self._description is not None:
            return self._description
        if isinstance(self.source, Project):
            return describe_documents(self.source.name, self.source.documents())
        return "You have a knowledge base of documents."


# ---- the search ----------------------------------------------------------------------------------------------------


def _respond(source: Project | BaseRetriever, query: str, k: int, filters: MetadataFilters | None) -> RetrievalResponse:
    if isinstance(source, Project):
        return source.retrieve(query, top_k=k, filters=filters)
    searched, notes = bounded(query)
    if isinstance(source, ProjectRetriever):
        response = source.changed(similarity_top_k=k, filters=filters).respond(searched)
    elif isinstance(source, RankingRetriever):
        response = RetrievalResponse.of_nodes(query, _ranked(source, source.prepare(searched), k, filters))
    else:
        response = _first(without_secrets(lambda: respond_of(source, searched)), k)
    return with_warnings(response, notes)


async def _arespond(
    source: Project | BaseRetriever, query: str, k: int, filters: MetadataFilters | None
) -> RetrievalResponse:
    if isinstance(source, Project):
        return await source.aretrieve(query, top_k=k, filters=filters)
    searched, notes = await asyncio.to_thread(bounded, query)
    if isinstance(source, ProjectRetriever):
        response = await source.changed(similarity_top_k=k, filters=filters).arespond(searched)
    elif isinstance(source, RankingRetriever):
        prepared = await source.aprepare(searched)
        response = RetrievalResponse.of_nodes(query, await asyncio.to_thread(_ranked, source, prepared, k, filters))
    else:
        response = _first(await awithout_secrets(lambda: arespond_of(source, searched)), k)
    return with_warnings(response, notes)


def _ranked(
    source: RankingRetriever, query: QueryBundle, k: int, filters: MetadataFilters | None
) -> list[RetrievedChunk]:
    return source.fetch(source.rank(query, k, filters), k)


def _first(response: RetrievalResponse, k: int) -> RetrievalResponse:
    return replace(response, results=tuple(response.results[:k]))


# ---- answers -------------------------------------------------------------------------------------------------------


def _documents(response: RetrievalResponse) -> list[Document]:
    """Return the passages as Agno documents; notes to the model are in the metadata of the first one."""
    documents = [_document(chunk, response) for chunk in response]
    if documents and (notes := [*response.warnings, *doubts(response)]):
        documents[0].meta_data = {"note": " ".join(notes), **documents[0].meta_data}
    return documents


def _document(chunk: RetrievedChunk, response: RetrievalResponse) -> Document:
    own = {name: value for name, value in chunk.node.metadata.items() if name not in keys.OWN_KEYS}
    facts = {
        "node_id": chunk.node_id,
        "rank": chunk.rank,
        "score": chunk.score,
        "relevance": chunk.relevance,
        "confidence": response.confidence,
        "context": chunk.context,
        keys.TABLE_HEAD: chunk.table_head,
        **asdict(chunk.source),
    }
    return Document(
        id=chunk.node_id,
        name=chunk.source.file_name or chunk.source.doc_id,
        content=chunk.text,
        meta_data={**own, **{name: value for name, value in facts.items() if value is not None}},
    )


def _failure(error: ContextualError) -> Document:
    return Document(name="search failed", content=f"The search failed: {error}", meta_data={"error": True})


def _as_json(documents: Sequence[Document]) -> str:
    if not documents:
        return "No documents found."
    return json.dumps([document.to_dict() for document in documents], ensure_ascii=False)
