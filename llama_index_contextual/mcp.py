"""Model Context Protocol server with read-only tools to search, list and read documents and ask questions.

`make_server` creates a server for standard input and output; `make_http_app` returns an application for streamable
HTTP. The tools are `ask` and the tools of `DocumentTools`. Each result consists of text for the model and structured
content with a schema.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, ContentBlock, ImageContent, TextContent, Tool, ToolAnnotations
from pydantic import AnyHttpUrl, BaseModel, create_model

from llama_index_contextual._utils.calls import awithout_secrets
from llama_index_contextual._utils.http import accepted_hosts, require_token
from llama_index_contextual._version import __version__
from llama_index_contextual.answering.prompts import defused
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.errors import ContextualError, CorruptVersionError, InputError, ModelError
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import Source
from llama_index_contextual.tools import models
from llama_index_contextual.tools.document_tools import INSTRUCTIONS

if TYPE_CHECKING:
    from starlette.applications import Starlette

_NO_ISSUER = AnyHttpUrl("https://localhost")
_READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


class Answer(models.Described):
    """An answer written by the project's LLM; without an LLM, passages to answer from."""

    answer: str | None
    """The answer with citations; None if no LLM is available."""
    note: str | None
    """Why the answer is missing or incomplete, or that it cites no source."""
    sources: list[str]
    """The cited sources: file, pages, document and offsets."""
    read: list[str]
    """The sources that the model read and did not cite."""
    passages: list[models.FoundPassage]
    """Passages that may contain the answer, without an LLM."""


_TOOLS: Mapping[str, tuple[type[BaseModel], type[BaseModel]]] = {
    "search": (models.SearchInput, models.SearchResult),
    "grep": (models.GrepInput, models.GrepResult),
    "outline": (models.OutlineInput, models.OutlineResult),
    "read": (models.ReadInput, models.ReadResult),
    "ask": (models.AskInput, Answer),
}
"""The Pydantic models for the arguments and the result of each tool."""


def make_server(projects: Sequence[Project], *, token: str | None = None) -> MCPServer[Any]:
    """Return a server for the given projects; start it with `server.run("stdio")`.

    Args:
        projects: The projects to serve. If there are several, each call must contain the name of a project.
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
    """Return an ASGI application that serves the given projects over streamable HTTP at `/mcp`.

    Requests with an unknown Host or Origin header are refused, so that a web page cannot reach the server through the
    page's own domain name (DNS rebinding).

    Args:
        projects: The projects to serve.
        host: Address that the application will be bound to.
        token: Token that clients must send as `Authorization: Bearer TOKEN`; required unless `host` is a loopback
            address.
        allowed_hosts: Other host names through which clients reach the server, such as the name of a proxy.

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

    The arguments are the same as for `make_http_app`, plus the port.
    """
    server = make_server(projects, token=token)
    server.run("streamable-http", host=host, port=port, transport_security=_security(host, token, allowed_hosts))


def _security(host: str, token: str | None, allowed_hosts: Sequence[str]) -> TransportSecuritySettings:
    """Return transport settings with the Host and Origin headers that are accepted."""
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
    """Server whose tools are described by the Pydantic models for their arguments and results."""

    def __init__(self, projects: Mapping[str, Project], token: str | None) -> None:
        self._projects = projects
        names = ", ".join(map(repr, projects))
        super().__init__(
            "llama-index-contextual",
            version=__version__,
            log_level="WARNING",  # the SDK's default level also logs each request
            instructions=f"Tools for the documents of {names}. {INSTRUCTIONS}",
            # The SDK requires the address of a server that issues tokens, although there is no such server.
            auth=None if token is None else AuthSettings(issuer_url=_NO_ISSUER, resource_server_url=None),
            token_verifier=None if token is None else _Token(token),
        )

    async def list_tools(self) -> list[Tool]:
        return await asyncio.to_thread(lambda: [self._described(name) for name in _TOOLS])

    def _described(self, name: str) -> Tool:
        arguments, result = _TOOLS[name]
        taken = create_model(arguments.__name__, __base__=(arguments, models.ProjectName))
        if name == "ask":
            described = ["Answers a question with sources, by the project's LLM; without an LLM, returns passages."]
        else:
            tools = [one.document_tools() for one in self._projects.values()]
            described = [tool.describe(cast(models.ToolName, name)) for tool in tools]
        numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(described, start=1))
        return Tool(
            name=name,
            description=numbered if len(described) > 1 else described[0],
            input_schema=taken.model_json_schema(),
            output_schema=result.model_json_schema(mode="serialization"),
            annotations=_READ_ONLY,
        )

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> CallToolResult:
        if name not in _TOOLS:
            raise ToolError(f"There is no tool {models.clip(name)!r}: choose one of {', '.join(_TOOLS)}.")
        try:
            # The server logs other exceptions unchanged, so API keys are removed from them first.
            return await awithout_secrets(lambda: self._call(name, arguments))
        except ContextualError as error:
            raise ToolError(str(error)) from error

    async def _call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        own = {key: value for key, value in arguments.items() if key != "project"}
        project = self._project(arguments.get("project"))
        if name == "ask":
            return await _ask_project(project, models.check_arguments(name, models.AskInput, own)["question"])
        return _reply(await project.document_tools().acall(cast(models.ToolName, name), own))

    def _project(self, name: str | None) -> Project:
        known = ", ".join(map(repr, self._projects))
        if name is None:
            if len(self._projects) > 1:
                raise InputError(f"There are several projects: choose one of {known}.")
            return next(iter(self._projects.values()))
        if name not in self._projects:
            shown = models.clip(str(name))
            raise InputError(f"There is no project {shown!r} here: choose one of {known}.", value=name)
        return self._projects[name]


async def _ask_project(project: Project, question: str) -> CallToolResult:
    try:
        engine = await asyncio.to_thread(project.as_query_engine)
    except ModelError as error:
        result = await project.document_tools().asearch(question)
        reason = f"No LLM is available to write an answer: {error}"
        answer = Answer(answer=None, note=reason, sources=[], read=[], passages=result.passages)
        return _reply(answer, f"{reason} These passages may contain it:\n\n{result}")
    response = cast(GroundedResponse, await engine.aquery(question))
    cited = [_source(number, source) for number, source in response.cited_sources if response.found]
    read = [_source(number, source) for number, source in response.read_sources]
    doubt = response.retrieval.doubt() if response.found and response.retrieval else ""
    if response.is_missing:
        raise ToolError(f"There is no answer. {response.partial}")
    partial = f"The answer is incomplete: {response.partial}" if response.partial else ""
    note = " ".join(filter(None, [doubt, partial, response.citation_note])) or None
    answer = Answer(answer=str(response), note=note, sources=cited, read=read, passages=[])
    uncited = [] if cited or not read else ["Read, but not cited:", *read]
    return _reply(answer, "\n\n".join(filter(None, [str(response), "\n".join(filter(None, [note, *cited, *uncited]))])))


def _source(number: int, source: Source) -> str:
    return f"[Source {number}] {defused(str(source))} ({models.place(source)})"


def _reply(result: BaseModel, text: str | None = None) -> CallToolResult:
    content: list[ContentBlock] = [TextContent(type="text", text=str(result) if text is None else text)]
    for figure in result.pictures if isinstance(result, models.SearchResult) else ():
        with suppress(CorruptVersionError):  # its caption is in the text
            data = base64.b64encode(figure.read_bytes()).decode("ascii")
            content.append(ImageContent(type="image", data=data, mime_type=figure.media_type))
    return CallToolResult(content=content, structured_content=result.model_dump(mode="json"))
