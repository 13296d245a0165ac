"""Knowledge and tools for Agno agents: Agno's `KnowledgeProtocol` and `Toolkit` for a project, with Agno's filters.

Filters are converted to LlamaIndex's: dicts of values, or filter expressions in their dict form.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from agno.knowledge.document import Document
from agno.tools import Toolkit
from agno.tools.function import Function
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import awithout_secrets, without_secrets
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ContextualError, InputError, NoVersionError
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.base import arespond_of, bounded, respond_of
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.retrievers.ranking import RankingRetriever
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk
from llama_index_contextual.search.search import require_positive, with_warnings
from llama_index_contextual.tools import INSTRUCTIONS, DocumentTools, describe_documents, doubts, tool_name
from llama_index_contextual.tools import Filters as ToolFilters
from llama_index_contextual.tools.document_tools import text_of, tool_names
from llama_index_contextual.tools.filters import equality_filter, metadata_filter, require_known_keys, usable_keys
from llama_index_contextual.tools.models import INPUTS, TOOLS, ToolName
from llama_index_contextual.tools.texts import with_tool_names

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
_FIRST_CHARACTER, _AFTER_ANY_CHARACTER = "\x01", "\U0010ffff"
_MAX_DEPTH = 10
_DEFAULT_RESULTS = 10
"""Number of passages of a retriever that has no setting for it."""


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
        parts: list[MetadataFilter | MetadataFilters] = [
            equality_filter(str(key), value) for key, value in filters.items()
        ]
    else:
        items = filters if isinstance(filters, Sequence) else [filters]
        parts = [_expression(_as_dict(item), 0) for item in items]
    return MetadataFilters(filters=parts, condition=FilterCondition.AND)


def _as_dict(item: Any) -> Any:
    return item.to_dict() if hasattr(item, "to_dict") else item


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
            return metadata_filter(data["key"], list(data["values"]), FilterOperator.IN)
        if operator == "STARTSWITH":
            return _starts_with(data["key"], data["value"])
        if operator in _OPERATORS:
            return metadata_filter(data["key"], data["value"], _OPERATORS[operator])
    except (KeyError, TypeError) as error:
        raise InputError(f"The filter {data!r} is incomplete: it has no {error}.", value=data) from error
    known = ", ".join(sorted([*_OPERATORS, *_CONDITIONS, "IN", "NOT", "STARTSWITH"]))
    raise InputError(f"The filter {data!r} has no supported operator: use one of {known}.", value=data)


def _starts_with(key: str, value: str) -> MetadataFilters:
    # With a character after it, a date is not a date any more, so that all values are compared as text.
    longer = [
        metadata_filter(key, value + _FIRST_CHARACTER, FilterOperator.GTE),
        metadata_filter(key, value + _AFTER_ANY_CHARACTER, FilterOperator.LT),
    ]
    return MetadataFilters(
        filters=[
            metadata_filter(key, value, FilterOperator.EQ),
            MetadataFilters(filters=list(longer), condition=FilterCondition.AND),
        ],
        condition=FilterCondition.OR,
    )


class ContextualKnowledge:
    """Agno's `KnowledgeProtocol` over a project or a LlamaIndex retriever.

    Give it to an agent as `Agent(knowledge=ContextualKnowledge(project), search_knowledge=True)`. Passages have node
    id, score, relevance, file, pages and context in `meta_data`. Errors are returned to the model as messages
    that it can act on; `search` and `asearch` raise them instead.

    Args:
        source: A project, one of this package's retrievers, or any other LlamaIndex retriever (without filters).
        max_results: Default number of passages of a search; None uses the setting `top_k` of the project or retriever.
        description: Description of the documents for the system prompt; None describes the project's documents.

    Example:
        >>> from agno.agent import Agent  # doctest: +SKIP
        >>> agent = Agent(knowledge=ContextualKnowledge(project), search_knowledge=True)  # doctest: +SKIP
    """

    def __init__(
        self, source: Project | BaseRetriever, *, max_results: int | None = None, description: str | None = None
    ) -> None:
        self.source = source
        self._max_results = None if max_results is None else require_positive(max_results, "max_results", "passage")
        self._description = description

    @property
    def max_results(self) -> int:
        """Default number of passages of a search."""
        if self._max_results is not None:
            return self._max_results
        if isinstance(self.source, Project):
            return self.source.config.top_k
        return int(getattr(self.source, "similarity_top_k", _DEFAULT_RESULTS))

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
        if isinstance(self.source, Project):
            return usable_keys(self.source.live_version.metadata_keys())
        if isinstance(self.source, ProjectRetriever | RankingRetriever):
            return usable_keys(self.source.metadata_keys())
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
        require_known_keys(converted, self._keys())
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
            if isinstance(self.source, Project):
                lines.append(self.source.document_tools().describe_filters())
            else:
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


class ContextualTools(Toolkit):
    """The tools `search`, `grep`, `outline` and `read` over a project, for an Agno agent or team.

    The model reads text; an error is a message that it can act on. They include the search, so an agent that has them
    needs no `ContextualKnowledge`.

    Args:
        project: The project.
        suffix: Added to the names of the tools after an underscore; None uses the project's name, so that an agent can
            have the tools of several projects, and "" adds nothing.
        mode: Default mode of the search; None uses `config.mode`.
        top_k: Default number of passages of a search; None uses `config.top_k`.
        filters: Restricts every tool to documents and passages with this metadata.

    Example:
        >>> from agno.agent import Agent  # doctest: +SKIP
        >>> agent = Agent(tools=[ContextualTools(project)])  # doctest: +SKIP
    """

    def __init__(
        self,
        project: Project,
        *,
        suffix: str | None = None,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: ToolFilters | None = None,
    ) -> None:
        self.document_tools = project.document_tools(mode=mode, top_k=top_k, filters=filters)
        suffix = project.name if suffix is None else suffix
        names = tool_names(suffix)
        super().__init__(
            name=tool_name(f"documents_{suffix}" if suffix else "documents"),
            instructions=with_tool_names(INSTRUCTIONS, names),
            add_instructions=True,
        )
        for tool in TOOLS:
            name = names[tool]
            run, arun = _entry_points(self.document_tools, tool)
            described = with_tool_names(self.document_tools.describe(tool), names)
            self.functions[name] = _function(name, described, tool, run)
            self.async_functions[name] = _function(name, described, tool, arun)


def _function(name: str, description: str, tool: ToolName, entry_point: Callable[..., Any]) -> Function:
    schema = INPUTS[tool].model_json_schema()
    return Function(
        name=name,
        description=description,
        parameters=schema,
        entrypoint=entry_point,
        skip_entrypoint_processing=True,
    )


def _entry_points(
    tools: DocumentTools, tool: ToolName
) -> tuple[Callable[..., str], Callable[..., Coroutine[Any, Any, str]]]:
    def run(**arguments: Any) -> str:
        try:
            return str(tools.call(tool, arguments))
        except ContextualError as error:
            return text_of(tool, error)

    async def arun(**arguments: Any) -> str:
        try:
            return str(await tools.acall(tool, arguments))
        except ContextualError as error:
            return text_of(tool, error)

    return run, arun


# ---- the search ----------------------------------------------------------------------------------------------------


def _respond(source: Project | BaseRetriever, query: str, k: int, filters: MetadataFilters | None) -> RetrievalResponse:
    if isinstance(source, Project):
        return source.retrieve(query, top_k=k, filters=filters)
    searched, notes = bounded(query)
    if isinstance(source, ProjectRetriever):
        response = source.changed(similarity_top_k=k, filters=filters).respond(searched)
    elif isinstance(source, RankingRetriever):
        response = RetrievalResponse.of_nodes(query, _ranked(source, searched, k, filters))
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
        await source.aprepare(searched)
        response = RetrievalResponse.of_nodes(query, await asyncio.to_thread(_ranked, source, searched, k, filters))
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
