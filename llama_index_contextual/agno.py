"""Agno integration: the documents of a project as a knowledge base (`KnowledgeProtocol`) and as a `Toolkit`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from agno.knowledge.document import Document
from agno.media import Image
from agno.run import RunContext
from agno.tools import Toolkit
from agno.tools.function import Function, ToolResult

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import twin
from llama_index_contextual._utils.templates import enclosed
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import (
    ContextualError,
    CorruptVersionError,
    InputError,
    NoVersionError,
    ProjectNotFoundError,
)
from llama_index_contextual.figures import EXTENSIONS, Figure
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.base import as_bundle
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.search.filters import Filters, field_names, to_filters
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk
from llama_index_contextual.search.search import require_positive
from llama_index_contextual.tools import document_tools, models

ForcedFilters = Filters | Callable[[RunContext], Filters]
"""Filters that restrict access as in `Project.only`, or a function that returns them for the run of an agent.

The function is called each time a tool is used. If there is no run, or if it returns None or no filters, the call is
refused.
"""


def _visible_to(project: Project, filters: ForcedFilters | None, run_context: object) -> Project:
    """Return the project restricted to the documents that may be seen in a run.

    Raises:
        InputError: The filters depend on the run, and the run is unknown or has no filters.
    """
    if callable(filters):
        if not isinstance(run_context, RunContext):
            raise InputError("Access depends on the run of an agent, and this call belongs to no run.")
        filters = filters(run_context) or {}
    return project if filters is None else project.only(filters)


class ContextualKnowledge:
    """Implementation of Agno's `KnowledgeProtocol` for a project.

    Pass an instance to an agent: `Agent(knowledge=ContextualKnowledge(project), search_knowledge=True)`. The
    `meta_data` of a passage contains its node id, score, relevance, file, pages and context. Errors are returned to the
    model as messages that it can act on; only `search` and `asearch` raise exceptions.

    Args:
        source: A project or a project's retriever. If it is a retriever, its mode and filters are used.
        filters: Filters that restrict access, or a function that returns them; see `ForcedFilters`. In the search tool
            that Agno builds for an agent, the function receives only the `user_id` of the run.
        max_results: Default number of passages that a search returns; None uses the project's or retriever's `top_k`.
        description: Description of the documents for the system prompt; None generates one from the project's
            documents.

    Example:
        >>> from agno.agent import Agent  # doctest: +SKIP
        >>> agent = Agent(knowledge=ContextualKnowledge(project), search_knowledge=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        source: Project | ProjectRetriever,
        *,
        filters: ForcedFilters | None = None,
        max_results: int | None = None,
        description: str | None = None,
    ) -> None:
        self._filters = filters if callable(filters) else None
        if filters is not None:
            if not isinstance(source, Project):
                raise InputError("Filters that restrict access need a project, not a retriever: pass the project.")
            source = source if self._filters else _visible_to(source, filters, None)
        self.source = source
        self._max_results = None if max_results is None else require_positive(max_results, "max_results", "passage")
        self._description = description

    def _retriever(self, call: Mapping[str, Any]) -> ProjectRetriever:
        """Return the retriever for the run to which a call belongs."""
        if not isinstance(self.source, Project):
            return self.source
        return _visible_to(self.source, self._filters, _run_of(call)).as_retriever()

    @property
    def max_results(self) -> int:
        """Default number of passages that a search returns."""
        if self._max_results is not None:
            return self._max_results
        return self.source.config.top_k if isinstance(self.source, Project) else self.source.similarity_top_k

    # ---- searching -------------------------------------------------------------------------------------------------

    def search(
        self, query: str, max_results: int | None = None, filters: Filters | None = None, **call: Any
    ) -> list[Document]:
        """Return the passages that best answer a question.

        Args:
            query: The question.
            max_results: Maximum number of passages; None uses the knowledge base's default.
            filters: Metadata filters; only passages that pass them are ranked. See `to_filters`.
            **call: The run, if access depends on it: `run_context` or `user_id`.

        Raises:
            ContextualError: The search failed; the message explains why and what to do.
        """
        return _documents(self._respond(query, max_results, filters, call))

    def _respond(
        self, query: str, max_results: int | None, filters: Filters | None, call: Mapping[str, Any]
    ) -> RetrievalResponse:
        k = self.max_results if max_results is None else require_positive(max_results, "max_results", "passage")
        retriever = self._retriever(call)
        min_relevance = "auto" if retriever.min_relevance is None else retriever.min_relevance
        searched = retriever.changed(similarity_top_k=k, filters=to_filters(filters), min_relevance=min_relevance)
        return searched.respond(as_bundle(query))

    def retrieve(
        self, query: str, max_results: int | None = None, filters: Filters | None = None, **call: Any
    ) -> list[Document]:
        """Search like `search`, but return an error as a document that the model can read.

        If nothing was found, the document says which words no document contains.
        """
        try:
            response = self._respond(query, max_results, filters, call)
            if response.results:
                return _documents(response)
            notes = [*response.warnings, *models.confidence_notes(response)]
            return [Document(name="nothing found", content=" ".join(notes), meta_data={"error": False})]
        except ContextualError as error:
            return [
                Document(
                    name="search failed", content=document_tools.text_of("search", error), meta_data={"error": True}
                )
            ]

    async def asearch(self, query: str, *args: Any, **options: Any) -> list[Document]:
        """Asynchronous version of `search`."""
        return await asyncio.to_thread(self.search, query, *args, **options)

    async def aretrieve(self, query: str, *args: Any, **options: Any) -> list[Document]:
        """Asynchronous version of `retrieve`."""
        return await asyncio.to_thread(self.retrieve, query, *args, **options)

    # ---- filters ---------------------------------------------------------------------------------------------------

    def get_valid_filters(self, **_: Any) -> set[str]:
        """Return the metadata keys that can be used in filters.

        The set is empty if nothing has been ingested yet, or if access depends on the run.
        """
        try:
            return set() if self._filters else set(field_names(self._retriever({}).metadata_keys()))
        except (NoVersionError, ProjectNotFoundError):  # must not prevent an agent from being created
            return set()

    def validate_filters(self, filters: Filters, **_: Any) -> tuple[Filters, list[str]]:
        """Return the filters unchanged, and an empty list of invalid keys.

        Agno would drop an unknown key and search without it. Instead, the search reports the unknown key and lists the
        valid keys.
        """
        return filters, []

    async def avalidate_filters(self, filters: Filters, **_: Any) -> tuple[Filters, list[str]]:
        """Asynchronous version of `validate_filters`."""
        return self.validate_filters(filters)

    # ---- instructions and tools ------------------------------------------------------------------------------------

    def build_context(self, enable_agentic_filters: bool = False, **_: Any) -> str:
        """Return the instructions for an agent's system prompt."""
        described = "You have a knowledge base of documents."
        if isinstance(self.source, Project) and not self._filters:
            described = document_tools.describe_documents(self.source.name, self.source.documents())
        lines = [
            self._description or described,
            "Search it with the search_knowledge_base tool before you answer; search again in other words when the"
            " passages do not answer. `context` situates a passage and is no text of the document: never quote it.",
        ]
        if enable_agentic_filters and (valid := self.get_valid_filters()):
            if isinstance(self.source, Project):
                lines.append(self.source.document_tools().describe_filters())
            else:
                lines.append(f"Filters narrow the search. Valid keys: {', '.join(sorted(valid))}.")
        opening, closing = "<knowledge_base>", "</knowledge_base>"
        return "\n".join([opening, enclosed("\n".join(lines), opening), closing])

    def get_tools(self, **call: Any) -> list[Callable[..., str]]:
        """Return the search as a tool, for the run that is passed as `run_context`."""

        def search_knowledge_base(query: str) -> str:
            """Search the knowledge base for passages that answer a question.

            Args:
                query: The question.
            """
            documents = self.retrieve(query, run_context=_run_of(call))
            return json.dumps([document.to_dict() for document in documents], ensure_ascii=False)

        return [search_knowledge_base]

    async def aget_tools(self, **call: Any) -> list[Callable[..., Coroutine[Any, Any, str]]]:
        """Return the search as an asynchronous tool."""
        return [twin(search) for search in self.get_tools(**call)]


def _run_of(call: Mapping[str, Any]) -> object:
    """Return the run to which a call belongs, or None; Agno passes most methods only the user."""
    if call.get("user_id") is None or "run_context" in call:
        return call.get("run_context")
    return RunContext(run_id="", session_id="", user_id=call["user_id"])


class ContextualTools(Toolkit):
    """The `search`, `grep`, `outline` and `read` tools for a project's documents, for an Agno agent or team.

    The model receives text; errors are returned as messages that it can act on. An agent with these tools does not need
    `ContextualKnowledge`, because they include the search.

    Args:
        project: The project.
        suffix: String to append to the tool names after an underscore. None uses the project's name, so that an agent
            can use several projects; "" appends nothing.
        mode: Default mode of the search; None uses `config.mode`.
        top_k: Default number of passages that a search returns; None uses `config.top_k`.
        filters: Filters that restrict access, or a function that returns them; see `ForcedFilters`.

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
        filters: ForcedFilters | None = None,
    ) -> None:
        of_run = filters if callable(filters) else None
        source = project if of_run else _visible_to(project, filters, None)

        def tools_for(run_context: object) -> document_tools.DocumentTools:
            return _visible_to(source, of_run, run_context).document_tools(mode=mode, top_k=top_k)

        described = source.document_tools(mode=mode, top_k=top_k)
        suffix = project.name if suffix is None else suffix
        names = document_tools.ToolNames(suffix)
        super().__init__(
            name=document_tools.tool_name(f"documents_{suffix}" if suffix else "documents"),
            instructions=names.rename_in(document_tools.INSTRUCTIONS),
            add_instructions=True,
        )
        for tool, name in names.items():
            description = names.rename_in(described.describe(tool, listing=not of_run))
            run = _entry_point(tools_for, tool, names)
            for functions, entry_point in ((self.functions, run), (self.async_functions, _in_thread(run))):
                functions[name] = Function(
                    name=name,
                    description=description,
                    parameters=models.INPUTS[tool].model_json_schema(),
                    entrypoint=entry_point,
                    skip_entrypoint_processing=True,
                )


def _entry_point(
    tools_for: Callable[[object], document_tools.DocumentTools], tool: models.ToolName, names: document_tools.ToolNames
) -> Callable[..., str | ToolResult]:
    def run(run_context: object = None, **arguments: Any) -> str | ToolResult:  # Agno passes the run by this name
        try:
            result = tools_for(run_context).call(tool, arguments)
            images = _images(result.pictures) if isinstance(result, models.SearchResult) else []
            return ToolResult(content=str(result), images=images) if images else str(result)
        except ContextualError as error:
            return names.text_of(tool, error)

    return run


def _images(figures: Sequence[Figure]) -> list[Image]:
    """Return the pictures of figures that can be read."""
    images = []
    for figure in figures:
        with suppress(CorruptVersionError):  # its caption is in the text
            content, kind = figure.read_bytes(), figure.media_type
            images.append(Image(content=content, mime_type=kind, format=EXTENSIONS[kind], alt_text=figure.name))
    return images


def _in_thread(run: Callable[..., str | ToolResult]) -> Callable[..., Coroutine[Any, Any, str | ToolResult]]:
    async def arun(run_context: object = None, **arguments: Any) -> str | ToolResult:
        return await asyncio.to_thread(run, run_context, **arguments)

    return arun


# ---- answers -------------------------------------------------------------------------------------------------------


def _documents(response: RetrievalResponse) -> list[Document]:
    """Convert the passages to Agno documents, with notes for the model in the metadata of the first document."""
    documents = [_agno_document(chunk, response) for chunk in response]
    if documents and (notes := [*response.warnings, *models.confidence_notes(response)]):
        documents[0].meta_data = {"note": " ".join(notes), **documents[0].meta_data}
    return documents


def _agno_document(chunk: RetrievedChunk, response: RetrievalResponse) -> Document:
    own = {name: value for name, value in chunk.node.metadata.items() if name not in keys.OWN_KEYS}
    facts = {
        "node_id": chunk.node_id,
        "rank": chunk.rank,
        "score": chunk.score,
        "relevance": chunk.relevance,
        "confidence": response.confidence,
        "context": chunk.context,
        "newer": chunk.newer,
        keys.TABLE_HEAD: chunk.table_head,
        "figures": [figure.to_dict() for figure in chunk.near_figures] or None,
        "spotlight": chunk.spotlight_dict(),
        **asdict(chunk.source),
    }
    return Document(
        id=chunk.node_id,
        name=chunk.source.file_name or chunk.source.doc_id,
        content=chunk.text,
        meta_data={**own, **{name: value for name, value in facts.items() if value is not None}},
    )
