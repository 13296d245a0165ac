"""Server of the Model Context Protocol: tools to search, read, list and ask; they change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import textwrap
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar, cast

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, ValidationError

from llama_index_contextual._utils.calls import awithout_secrets
from llama_index_contextual._version import __version__
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ContextualError, InputError, ModelError
from llama_index_contextual.project.project import Project
from llama_index_contextual.tools import passages, place

T = TypeVar("T")

MAX_CHARACTERS = 20_000
"""Maximum number of characters in one reply of `read_passage`."""

MAX_DOCUMENTS = 200
"""Maximum number of documents in one reply of `list_documents`."""

MAX_RESULTS = 50
"""Maximum number of passages in one reply of `search`."""


class ListedDocument(BaseModel):
    """A document, as shown to a client."""

    project: str
    doc_id: str
    title: str
    chunks: int
    characters: int


class DocumentList(BaseModel):
    """A page of the document list, the total number of documents, and the start of the next page."""

    documents: list[ListedDocument]
    total: int
    next_start: int | None


class ReadPassage(BaseModel):
    """A part of a document's original text, and the start of the next part."""

    text: str
    next_start: int | None


def make_server(projects: Sequence[Project]) -> MCPServer[Any]:
    """Return a server for some projects; start it with `server.run("stdio")`.

    Args:
        projects: The projects to serve. If there are several, each call names one of them.

    Raises:
        InputError: No project was given.
    """
    if not projects:
        raise InputError("No project was passed: pass at least one.")
    return _Tools({project.name: project for project in projects}).server()


class _Server(MCPServer[Any]):
    """A server that reports an invalid argument of a call in one sentence."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(_wrong_argument(name, error.__cause__)) from error
            raise


def _wrong_argument(tool: str, error: ValidationError) -> str:
    wrong = error.errors(include_url=False)[0]
    argument, message = ".".join(map(str, wrong["loc"])), wrong["msg"].replace("Input should be", "it must be")
    if wrong["type"] == "missing":
        return f"{tool} needs the argument `{argument}`."
    return f"The argument `{argument}` of {tool} cannot be {textwrap.shorten(repr(wrong['input']), 80)}: {message}."


class _Tools:
    """The tools of some projects.

    Args:
        projects: The projects by name.
    """

    def __init__(self, projects: dict[str, Project]) -> None:
        self._projects = projects

    def server(self) -> MCPServer[Any]:
        """Return the server."""
        names = ", ".join(repr(name) for name in self._projects)
        server = _Server(
            "llama-index-contextual",
            version=__version__,
            instructions=f"Searches the documents of {names}. Search first, then read around a passage where it"
            f" matters, and name file and pages of what you use. Text after `Background:` situates a passage and is"
            f" no text of the document: never quote it.",
        )
        read_only = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
        for tool in (self.search, self.read_passage, self.list_documents, self.ask):
            server.add_tool(_with_error_messages(tool), annotations=read_only)
        return server

    async def search(self, query: str, project: str | None = None, top_k: int = 10, mode: Mode | None = None) -> str:
        """Return the passages that answer a question best, each with its file, pages and place.

        Args:
            query: A whole question, with the names and numbers that matter.
            project: Name of the project; needed only if there are several.
            top_k: Number of passages, 1 to 50.
            mode: "semantic" for meaning, "lexical" for exact words, "hybrid" for both; by default, the setting.
        """
        response = await self._project(project).aretrieve(query, top_k=min(top_k, MAX_RESULTS), mode=mode)
        return passages(response, places=True)

    async def read_passage(
        self, doc_id: str, start: int = 0, end: int | None = None, project: str | None = None
    ) -> ReadPassage:
        """Return the original text of a document between two character offsets, 20,000 characters at most.

        Args:
            doc_id: Id of the document, as `search` and `list_documents` give it.
            start: Offset of the first character.
            end: Offset after the last character; if omitted, up to the maximum.
            project: Name of the project; needed only if there are several.
        """
        source = self._project(project)
        length = next((record.characters for record in source.documents() if record.doc_id == doc_id), 0)
        start = max(0, start)
        stop = max(start, min(length if end is None else end, start + MAX_CHARACTERS, length)) if length else end
        text = await asyncio.to_thread(source.read, doc_id, start, stop)
        return ReadPassage(text=text, next_start=stop if stop is not None and stop < length else None)

    async def list_documents(self, project: str | None = None, start: int = 0) -> DocumentList:
        """Return the documents of a project, or of all, 200 at a time.

        Args:
            project: Name of the project; if omitted, all projects.
            start: Number of documents to skip: `next_start` of the previous reply.
        """
        chosen = list(self._projects.values()) if project is None else [self._project(project)]
        records = [(source.name, record) for source in chosen for record in source.documents()]
        start = max(0, start)
        listed = [
            ListedDocument(
                project=name,
                doc_id=record.doc_id,
                title=record.title or record.file_name or record.doc_id,
                chunks=record.chunks,
                characters=record.characters,
            )
            for name, record in records[start : start + MAX_DOCUMENTS]
        ]
        behind = start + len(listed)
        return DocumentList(documents=listed, total=len(records), next_start=behind if behind < len(records) else None)

    async def ask(self, question: str, project: str | None = None) -> str:
        """Return an answer written by the project's own LLM, and its sources; without an LLM, passages to answer from.

        Args:
            question: A whole question.
            project: Name of the project; needed only if there are several.
        """
        source = self._project(project)
        try:
            engine = await asyncio.to_thread(source.as_query_engine)
        except ModelError as error:
            passage_text = passages(await source.aretrieve(question, top_k=5), places=True)
            return f"No LLM is available to write an answer: {error} These passages may contain it:\n\n{passage_text}"
        return _with_sources(cast(GroundedResponse, await engine.aquery(question)))

    def _project(self, name: str | None) -> Project:
        known = ", ".join(repr(known) for known in self._projects)
        if name is None:
            if len(self._projects) > 1:
                raise InputError(f"There are several projects: choose one of {known}.")
            return next(iter(self._projects.values()))
        if name not in self._projects:
            raise InputError(f"There is no project {name!r} here: choose one of {known}.", value=name)
        return self._projects[name]


def _with_sources(answer: GroundedResponse) -> str:
    lines = [str(answer)]
    if answer.found and answer.retrieval and (doubt := answer.retrieval.doubt()):
        lines.append(doubt)
    if answer.partial:
        lines.append(f"The answer is incomplete: {answer.partial}")
    lines += [f"[Source {number}] {source} ({place(source)})" for number, source in answer.shown_sources]
    return "\n\n".join([*lines[:1], "\n".join(lines[1:])]).rstrip()


def _with_error_messages(tool: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Return the tool with errors converted to messages for the model."""

    @functools.wraps(tool)
    async def wrapper(*arguments: Any, **options: Any) -> T:
        with _errors_as_messages():
            # The server sends other exceptions to the client as they are, so keys are removed first.
            return await awithout_secrets(lambda: tool(*arguments, **options))

    return wrapper


@contextlib.contextmanager
def _errors_as_messages() -> Iterator[None]:
    try:
        yield
    except ContextualError as error:
        raise ToolError(str(error)) from error
