"""Model Context Protocol server with read-only tools to search, list and read documents and ask questions.

`make_server` creates a server for standard input and output, and `make_http_app` one for streamable HTTP. The tools are
those of `DocumentTools` and `ask`. Each result consists of text for the model and structured content with a schema. The
documents are also available as resources.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast
from urllib.parse import quote

from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.server.mcpserver.resources import ResourceSecurity
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, Resource, TextContent, ToolAnnotations
from pydantic import AnyHttpUrl, BaseModel, Field, ValidationError

from llama_index_contextual._utils.calls import awithout_secrets
from llama_index_contextual._utils.http import accepted_hosts, require_token
from llama_index_contextual._version import __version__
from llama_index_contextual.answering.prompts import defused
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.errors import ContextualError, InputError, ModelError
from llama_index_contextual.project.project import Project
from llama_index_contextual.tools import models
from llama_index_contextual.tools.document_tools import INSTRUCTIONS

if TYPE_CHECKING:
    from starlette.applications import Starlette

T = TypeVar("T")

MAX_RESOURCES = 1_000
"""Maximum number of documents in the list of resources; `outline` lists all."""

MAX_RESOURCE_CHARACTERS = 1_000_000
"""Maximum length of a document that is read as a resource; `read` returns longer ones in parts."""

PROGRESS_SECONDS = 1.0
"""Seconds between two notifications of progress."""

_RESULTS: Mapping[str, type[models.ToolResult]] = {
    "search": models.SearchResult,
    "grep": models.GrepResult,
    "outline": models.OutlineResult,
    "read": models.ReadResult,
}
_ProjectName = Annotated[str | None, Field(description="Name of the project; needed only if there are several.")]
_NO_ISSUER = AnyHttpUrl("https://localhost")
_RESOURCE = "contextual://documents/"


class Answer(BaseModel):
    """An answer written by the project's LLM; without an LLM, passages to answer from."""

    answer: str | None = Field(description="The answer with citations; None if no LLM is available.")
    note: str | None = Field(description="Why the answer is missing or incomplete.")
    sources: list[str] = Field(description="The cited sources: file, pages, document and offsets.")
    passages: list[models.FoundPassage] = Field(description="Passages that may contain the answer, without an LLM.")


def make_server(projects: Sequence[Project], *, token: str | None = None) -> MCPServer[Any]:
    """Return a server for the given projects; start it with `server.run("stdio")`.

    Args:
        projects: The projects to serve. If there are several, each call must name one.
        token: Token that HTTP clients must send as `Authorization: Bearer TOKEN`; see `make_http_app`.

    Raises:
        InputError: No project was given.
        ConfigurationError: The token is too short.
    """
    if not projects:
        raise InputError("No project was passed: pass at least one.")
    return _Server({project.name: project for project in projects}, token)


def make_http_app(
    projects: Sequence[Project],
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
) -> Starlette:
    """Return an ASGI application that serves the given projects over streamable HTTP at the path `/mcp`.

    Requests with a different Host or Origin are refused, so that a web page cannot reach the server through its own
    domain name (DNS rebinding).

    Args:
        projects: The projects to serve.
        host: Address that the application will be bound to.
        token: Token that clients must send as `Authorization: Bearer TOKEN`; required unless `host` is a loopback
            address.
        allowed_hosts: Other host names through which clients reach the server, such as that of a proxy.

    Raises:
        InputError: No project was given.
        ConfigurationError: `host` is not a loopback address and there is no token, or the token is too short.
    """
    server = make_server(projects, token=token)
    return server.streamable_http_app(host=host, transport_security=_security(host, token, allowed_hosts))


def serve_http(
    projects: Sequence[Project],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serve the given projects over streamable HTTP at `http://HOST:PORT/mcp` until interrupted.

    The arguments are those of `make_http_app` and the port.
    """
    server = make_server(projects, token=token)
    server.run("streamable-http", host=host, port=port, transport_security=_security(host, token, allowed_hosts))


def _security(host: str, token: str | None, allowed_hosts: Sequence[str]) -> TransportSecuritySettings:
    """Return the hosts and origins whose requests are accepted."""
    hosts = accepted_hosts(host, token, allowed_hosts)
    with_ports = [form for name in hosts for form in (name, f"{name}:*")]
    origins = [f"{scheme}://{name}" for name in with_ports for scheme in ("http", "https")]
    return TransportSecuritySettings(allowed_hosts=with_ports, allowed_origins=origins)


class _Token:
    """Verifier that accepts one token and compares it in constant time."""

    def __init__(self, token: str) -> None:
        require_token(token)
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return access rights if the token is correct, otherwise None."""
        if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token):
            return None
        return AccessToken(token=token, client_id="client", scopes=[])


class _Server(MCPServer[Any]):
    """Server that reports an invalid argument in one sentence."""

    def __init__(self, projects: Mapping[str, Project], token: str | None) -> None:
        self._projects = projects
        names = ", ".join(map(repr, projects))
        super().__init__(
            "llama-index-contextual",
            version=__version__,
            log_level="WARNING",  # the SDK's default also logs each request to a model
            instructions=f"Tools for the documents of {names}. {INSTRUCTIONS}",
            # The SDK requires the address of an issuing server, although there is none.
            auth=None if token is None else AuthSettings(issuer_url=_NO_ISSUER, resource_server_url=None),
            token_verifier=None if token is None else _Token(token),
        )
        read_only = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
        for name in models.TOOLS:
            described = [project.document_tools().describe(name) for project in projects.values()]
            numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(described, start=1))
            description = numbered if len(described) > 1 else described[0]
            self.add_tool(self._tool(name), description=description, annotations=read_only)
        self.add_tool(self._ask, name="ask", annotations=read_only)
        # Ids are only looked up among the documents; no file path is opened.
        security = ResourceSecurity(exempt_params={"doc_id"})
        as_resource = self.resource(f"{_RESOURCE}{{project}}/{{+doc_id}}", mime_type="text/plain", security=security)
        as_resource(self._document)

    def _project(self, name: str | None) -> Project:
        known = ", ".join(map(repr, self._projects))
        if name is None:
            if len(self._projects) > 1:
                raise InputError(f"There are several projects: choose one of {known}.")
            return next(iter(self._projects.values()))
        if name not in self._projects:
            raise InputError(f"There is no project {models.shortened(name)!r} here: choose one of {known}.", value=name)
        return self._projects[name]

    # ---- tools -----------------------------------------------------------------------------------------------------

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        tools = {tool.name: tool for tool in await self.list_tools()}
        if name not in tools:
            raise ToolError(f"There is no tool {models.shortened(name)!r}: choose one of {', '.join(tools)}.")
        taken = tools[name].input_schema["properties"]
        if unknown := [argument for argument in arguments if argument not in taken]:
            listed = ", ".join(f"`{argument}`" for argument in taken)
            raise ToolError(f"{name} has no argument `{models.shortened(unknown[0])}`: it takes {listed}.")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(models.wrong_argument(name, error.__cause__)) from error
            raise

    def _tool(self, name: models.ToolName) -> Callable[..., Coroutine[Any, Any, CallToolResult]]:
        """Return a tool as an async function with the signature of its input model and a `project` parameter."""

        async def tool(context: Context, project: str | None = None, **arguments: Any) -> CallToolResult:
            async def work() -> CallToolResult:
                return _reply(await self._project(project).document_tools().acall(name, arguments))

            return await _finished(context, name, work)

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("context", keyword, annotation=Context),
            *(
                inspect.Parameter(
                    argument,
                    keyword,
                    default=inspect.Parameter.empty if field.is_required() else field.default,
                    annotation=Annotated[field.annotation, *field.metadata, Field(description=field.description)],
                )
                for argument, field in models.INPUTS[name].model_fields.items()
            ),
            inspect.Parameter("project", keyword, default=None, annotation=_ProjectName),
        ]
        returned = Annotated[CallToolResult, _RESULTS[name]]
        tool.__name__ = name
        tool.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
        tool.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": returned}
        return tool

    async def _ask(
        self,
        context: Context,
        question: Annotated[models.Query, Field(description="A whole question.")],
        project: _ProjectName = None,
    ) -> Annotated[CallToolResult, Answer]:
        """Return an answer by the project's own LLM with its sources; without an LLM, passages to answer from."""

        async def work() -> CallToolResult:
            source = self._project(project)
            try:
                engine = await asyncio.to_thread(source.as_query_engine)
            except ModelError as error:
                result = await source.document_tools().asearch(question)
                reason = f"No LLM is available to write an answer: {error}"
                answer = Answer(answer=None, note=reason, sources=[], passages=result.passages)
                return _reply(answer, f"{reason} These passages may contain it:\n\n{result}")
            return _answer(cast(GroundedResponse, await engine.aquery(question)))

        return await _finished(context, "ask", work)

    # ---- documents -------------------------------------------------------------------------------------------------

    async def list_resources(self) -> list[Resource]:
        return await asyncio.to_thread(self._resources)

    def _resources(self) -> list[Resource]:
        listed = [
            Resource(
                uri=f"{_RESOURCE}{quote(name, safe='')}/{quote(record.doc_id, safe='/')}",
                name=record.doc_id,
                title=record.title or record.file_name or record.doc_id,
                mime_type="text/plain",
            )
            for name, project in self._projects.items()
            for record in project.documents()
        ]
        return listed[:MAX_RESOURCES]

    async def _document(self, project: str, doc_id: str) -> str:
        """Return the text of a document, in which nothing can pass for a citation or the beginning of a message."""
        try:
            source = self._project(project)
            record = next((record for record in source.documents() if record.doc_id == doc_id), None)
            if record is None:
                raise ResourceNotFoundError(
                    f"Project {project!r} has no document {models.shortened(doc_id)!r}: `outline` lists them."
                )
            if record.characters > MAX_RESOURCE_CHARACTERS:
                raise ResourceError(
                    f"Document {doc_id!r} has {record.characters:,} characters: use the tool `read`, which returns it"
                    f" in parts."
                )
            return defused(await awithout_secrets(lambda: asyncio.to_thread(source.read, doc_id)))
        except ContextualError as error:
            raise ResourceError(str(error)) from error


def _answer(response: GroundedResponse) -> CallToolResult:
    sources = [f"[Source {number}] {defused(str(one))} ({models.place(one)})" for number, one in response.shown_sources]
    doubt = response.retrieval.doubt() if response.found and response.retrieval else ""
    partial = f"The answer is incomplete: {response.partial}" if response.partial else ""
    note = " ".join(filter(None, [doubt, partial])) or None
    answer = Answer(answer=str(response), note=note, sources=sources, passages=[])
    return _reply(answer, "\n\n".join(filter(None, [str(response), "\n".join(filter(None, [note, *sources]))])))


def _reply(result: BaseModel, text: str | None = None) -> CallToolResult:
    content = TextContent(type="text", text=str(result) if text is None else text)
    return CallToolResult(content=[content], structured_content=result.model_dump(mode="json"))


async def _finished(context: Context, tool: str, work: Callable[[], Awaitable[T]]) -> T:
    """Await a tool's work, and report the elapsed seconds as progress.

    Raises:
        ToolError: The work failed; the message is written for the model.
    """
    # The server logs other exceptions unchanged, so keys are removed first.
    running = asyncio.ensure_future(awithout_secrets(work))
    try:
        for seconds in itertools.count(1):
            done, _ = await asyncio.wait([running], timeout=PROGRESS_SECONDS)
            if done:
                break
            await context.report_progress(seconds * PROGRESS_SECONDS, message=f"{tool} is running")
        return await running
    except ContextualError as error:
        raise ToolError(str(error)) from error
    finally:
        running.cancel()
