"""The API as an ASGI application: one table of operations, from which the routes and their description are made.

`add_api` returns the Workbench with the API at `/v1` and `/api`. Both have the same users: a token decides what a
program may do, and which documents it sees. Each request passes the same checks: the host, the origin, the token, the
right, the number of requests, and the length of the body.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.api import chat
from llama_index_contextual.api.errors import ApiError, as_api_error, error_response
from llama_index_contextual.api.openapi import Operation, describe
from llama_index_contextual.errors import ContextualError, InputError
from llama_index_contextual.index.project_file import is_project
from llama_index_contextual.project.project import Project
from llama_index_contextual.tools import models
from llama_index_contextual.tools.models import check_arguments
from llama_index_contextual.ui.adding import Adding
from llama_index_contextual.ui.security import Guard
from llama_index_contextual.ui.uploads import body_of
from llama_index_contextual.ui.users import Limits, Right, User
from llama_index_contextual.ui.views import Links, while_connected

MAX_BODY = 2_000_000
"""Maximum number of bytes in a request, except those with files."""

_MAX_VIEWS = 256
_PREFIXES = ("/v1/", "/api/")


class SearchBody(models.SearchInput, models.ProjectName):
    """A search."""


class PassageQuery(models.ReadInput, models.ProjectName):
    """A part of a document."""


class DocumentsQuery(models.OutlineInput, models.ProjectName):
    """The documents, or with `doc_id` the sections of one document."""


class AskBody(models.AskInput, models.ProjectName):
    """A question."""

    filters: models.FilterArgument = None


class Citation(models.Described):
    """A place that the answer cites."""

    start_index: int
    """Offset of the citation in the answer."""
    end_index: int
    """Offset after the citation."""
    title: str
    """File, page and section."""
    url: str
    """Address of the passage in the Workbench."""
    source: int
    """Number of the source in the answer."""
    doc_id: str | None
    """Id of the document."""
    file: str | None
    """Name of the file."""
    page: int | None
    """Page, from 1."""
    quote: str
    """The sentence or table row that supports the answer."""


class Answered(models.Described):
    """An answer."""

    answer: str
    """The answer, in which [Source 1] cites a source; a list of the cited sources follows it."""
    citations: list[Citation]
    """One entry for each source of each citation."""
    usage: dict[str, Any]
    """Tokens of the answer, as in OpenAI's API."""
    dollars: float
    """Price at list prices."""
    is_complete: bool
    """Whether the answer was written to its end."""


class AddedPath(models.Described):
    """A file that was added."""

    path: str
    """Path in the inbox."""
    state: str
    """ "read" if it can be searched, "queued" or "reading" before that, "skipped" if it cannot be read."""
    reason: str
    """Reason why it was skipped, with the remedy."""
    doc_id: str | None
    """Id of its document."""


class AddQuery(models.ProjectName):
    """Query of `add`."""

    max_cost: float | None = Field(default=None, ge=0)
    """Accepted price in dollars, if an LLM writes the contexts of the project."""


class Added(models.Described):
    """The files of the user."""

    files: list[AddedPath]
    """All files that the user has added, latest first."""
    refused: list[tuple[str, str]]
    """Names of files in the request that were not accepted, with the reasons."""
    is_running: bool
    """Whether files are being read."""
    error: str
    """Why the last ingestion ended early, or ""."""


class ModelList(models.Described):
    """The models."""

    object: str
    """ "list"."""
    data: list[dict[str, Any]]
    """The models, each with its `id`."""


class ChatCompletion(models.Described):
    """An answer in OpenAI's form; with `stream`, its pieces are sent as server-sent events."""

    id: str
    """Id of the answer."""
    choices: list[dict[str, Any]]
    """One choice, with the message and its `annotations`."""
    usage: dict[str, Any]
    """Tokens."""


# ---- a request -------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """A request with what its handler needs.

    Attributes:
        request: The request.
        user: The user.
        projects: The projects as the user sees them.
        service: The service.
    """

    request: Request
    user: User
    projects: Mapping[str, Project]
    service: Service

    async def body(self) -> dict[str, Any]:
        """Return the JSON object in the body, or the parameters of the URL for GET.

        Raises:
            ApiError: The body is no JSON object.
            RefusedError: The body is too large.
        """
        if self.request.method == "GET":
            return dict(self.request.query_params)
        body = await body_of(self.request, MAX_BODY)
        try:
            value = await asyncio.to_thread(parse_json, body)
        except ValueError as error:
            raise ApiError(400, f"The body is not JSON: {str(error)[:200]}.", code="invalid_json") from error
        if not isinstance(value, dict):
            raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
        return value

    async def arguments(self, operation: str, model: type[BaseModel]) -> tuple[Project, dict[str, Any]]:
        """Return the project and the other arguments of a request of the JSON API.

        Raises:
            ApiError: There is no such project.
            InputError: An argument is missing, unknown or invalid.
        """
        values = check_arguments(operation, model, await self.body())
        return self.project(values.pop("project")), values

    def project(self, name: str | None) -> Project:
        """Return a project by its name, or the only one.

        Raises:
            ApiError: There is no such project, or several and the name is missing.
        """
        known = ", ".join(map(repr, self.projects))
        if name is None and len(self.projects) == 1:
            return next(iter(self.projects.values()))
        if name is None:
            raise ApiError(400, f"There are several projects: choose one of {known}.", param="project")
        if name not in self.projects:
            message = f"There is no project {models.clip(name)!r}: choose one of {known}."
            raise ApiError(404, message, code="project_not_found", param="project")
        return self.projects[name]

    def link(self, project: Project) -> Callable[..., str]:
        """Return a function that returns the URL of a passage in the Workbench."""
        links, base = Links(project.name), str(self.request.base_url).rstrip("/")
        return lambda *arguments, **options: f"{base}{links.passage(*arguments, **options)}"


class Service:
    """The projects of a server, as its users see them.

    Args:
        projects: The projects.
        adding: The added files of the projects to which documents can be added.
        limits: Limits of the users.
    """

    def __init__(self, projects: Mapping[str, Project], adding: Mapping[str, Adding], limits: Limits) -> None:
        self._projects = projects
        self.adding, self.limits = adding, limits
        self._views: LRUCache[str, dict[str, Project]] = LRUCache(_MAX_VIEWS)

    def projects_of(self, user: User) -> Mapping[str, Project]:
        """Return the projects as a user sees them; those that were deleted are left out."""
        views: Mapping[str, Project] = self._projects
        if user.filters:
            key = user.model_dump_json()
            known = self._views.get(key)
            if known is None:
                known = {name: project.only(user.filters) for name, project in self._projects.items()}
                self._views.put(key, known)
            views = known
        return {name: project for name, project in views.items() if is_project(project.directory)}


# ---- the OpenAI-compatible API ---------------------------------------------------------------------------------------


async def list_models(call: Call) -> Response:
    """List the models: one for each project, and one that returns its passages."""
    entries = await asyncio.to_thread(chat.model_entries, call.projects, call.user.rights)
    name = call.request.path_params.get("model")
    if name is None:
        return JSONResponse({"object": "list", "data": entries})
    entry = next((one for one in entries if one["id"] == name), None)
    if entry is None:
        raise ApiError(404, f"The model {name[:100]!r} does not exist.", code="model_not_found", param="model")
    return JSONResponse(entry)


async def complete_chat(call: Call) -> Response:
    """Answer the last message of a conversation, complete or streamed."""
    try:
        body = chat.ChatRequest.model_validate(await call.body())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = ".".join(map(str, first["loc"][:3]))
        raise ApiError(400, f"{param}: {first['msg']}.", code="invalid_value", param=param) from error
    project, is_passages = chat.find_model(body.model, call.projects, call.user)
    completion = chat.Completion(body.model)
    pieces = chat.write(completion, body, project, is_passages=is_passages, link=call.link(project))
    return await _respond(
        call,
        completion,
        pieces,
        streams=bool(body.stream),
        with_usage=bool(body.stream_options and body.stream_options.include_usage),
        has_price=not is_passages and chat.task_reply(body.messages[-1].text) is None,
    )


async def _respond(
    call: Call,
    completion: chat.Completion,
    pieces: AsyncGenerator[str, None],
    *,
    streams: bool,
    with_usage: bool = False,
    has_price: bool = True,
    body: Callable[[chat.Completion], dict[str, Any]] = chat.Completion.body,
) -> Response:
    """Return a completion. If the client disconnects, the call to the LLM is stopped."""
    with ExitStack() as stack:
        completion.spent = stack.enter_context(call.service.limits.answering(call.user, has_price=has_price))
        if not streams:
            if not await while_connected(call.request, _read(pieces)):
                return Response(status_code=499)
            return JSONResponse(body(completion))
        # The status of the response is known only when the LLM has begun to answer.
        first = await while_connected(call.request, _first(pieces))
        if first is None:
            return Response(status_code=499)
        running = stack.pop_all()
    stream = chat.events(completion, pieces, first[0], with_usage=with_usage)
    return _Stream(stream, running)


async def _read(pieces: AsyncGenerator[str, None]) -> bool:
    async with contextlib.aclosing(pieces):
        async for _ in pieces:
            pass
    return True


async def _first(pieces: AsyncGenerator[str, None]) -> tuple[str | None]:
    try:
        return (await anext(pieces, None),)
    except BaseException:
        await pieces.aclose()
        raise


class _Stream(StreamingResponse):
    """Server-sent events that count as a running answer until they end."""

    def __init__(self, events: Any, running: ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        with self._running:
            async with contextlib.aclosing(cast("AsyncGenerator[Any, None]", self.body_iterator)):
                await super().__call__(scope, receive, send)


# ---- the JSON API ----------------------------------------------------------------------------------------------------


async def search(call: Call) -> Response:
    """Search for the passages that answer a question."""
    project, values = await call.arguments("search", SearchBody)
    return _result(await project.document_tools().acall("search", values))


async def list_documents(call: Call) -> Response:
    """List the documents, or the sections of one document."""
    project, values = await call.arguments("documents", DocumentsQuery)
    return _result(await project.document_tools().acall("outline", values))


async def read_passage(call: Call) -> Response:
    """Return the original text of a part of a document."""
    project, values = await call.arguments("passage", PassageQuery)
    return _result(await project.document_tools().acall("read", values))


def _result(result: BaseModel) -> Response:
    return JSONResponse(result.model_dump(mode="json"))


async def ask(call: Call) -> Response:
    """Answer a question with citations."""
    project, values = await call.arguments("ask", AskBody)
    message = chat.Message(role="user", content=values["question"])
    request = chat.ChatRequest(model=project.name, messages=[message], filters=values["filters"])
    completion = chat.Completion(project.name)
    pieces = chat.write(completion, request, project, is_passages=False, link=call.link(project))
    return await _respond(call, completion, pieces, streams=False, body=_answered)


def _answered(completion: chat.Completion) -> dict[str, Any]:
    return {
        "answer": completion.content,
        "citations": [one["url_citation"] for one in completion.annotations],
        "usage": completion.usage,
        "dollars": completion.spent.dollars,
        "is_complete": completion.finish_reason == "stop",
    }


async def add_documents(call: Call) -> Response:
    """Add the files of a form, and return all files of the user; they are read in the background."""
    values = check_arguments("add", AddQuery, dict(call.request.query_params))
    adding = _adding(call, values["project"])
    user = call.user
    # A refused price discards the files that wait, which must not be those of the Workbench or of another request.
    others = await asyncio.to_thread(adding.inbox.waiting, user.name)
    if adding.needs_confirmation and others:
        message = "Other files of this user wait for their price to be accepted: accept or discard it in the Workbench."
        raise ApiError(409, message, code="files_waiting")
    paths, received = await adding.receive(call.request, user, confirmed=not adding.needs_confirmation)
    if adding.needs_confirmation and paths:
        await _confirm(call, adding, values["max_cost"])
    return await _files(adding, user, received.refused, status=202)


async def _confirm(call: Call, adding: Adding, max_cost: float | None) -> None:
    """Add the waiting files if their price is accepted; otherwise, discard them."""
    user = call.user
    try:
        stamp = await asyncio.to_thread(adding.inbox.stamp, user.name)
        estimate = await asyncio.to_thread(adding.calculate, user)
        if max_cost is None or estimate.dollars is None or estimate.dollars > max_cost:
            advice = (
                "the price is unknown. Set the prices of the model in the settings, or add the files in the Workbench."
                if estimate.dollars is None
                else f"the price is ${estimate.dollars:.4f}. Accept it with ?max_cost=DOLLARS."
            )
            raise ApiError(
                402,
                f"An LLM writes the contexts of these files; {advice}",
                code="price_not_accepted",
                param="max_cost",
            )
        call.service.limits.charge(user, estimate.dollars)
        await asyncio.to_thread(adding.confirm, user, stamp)
    finally:
        await asyncio.to_thread(adding.inbox.discard_waiting, user.name)


async def added_documents(call: Call) -> Response:
    """Return the files that the user has added, and whether they can be searched."""
    values = check_arguments("add", AddQuery, dict(call.request.query_params))
    return await _files(_adding(call, values["project"]), call.user)


def _adding(call: Call, name: str | None) -> Adding:
    project = call.project(name)
    if project.name not in call.service.adding:
        message = "Documents cannot be added here: the server was started without --allow-changes."
        raise ApiError(403, message, code="changes_not_allowed")
    return call.service.adding[project.name]


async def _files(adding: Adding, user: User, refused: Any = (), *, status: int = 200) -> Response:
    states = await asyncio.to_thread(adding.files, user)
    ingest = adding.ingest
    is_running = ingest is not None and ingest.is_running
    added = Added(
        files=[AddedPath(path=one.path, state=one.state, reason=one.reason, doc_id=one.doc_id) for one in states],
        refused=list(refused),
        is_running=is_running,
        error="" if ingest is None or is_running else ingest.error,
    )
    return JSONResponse(added.model_dump(mode="json"), status)


async def openapi(call: Call) -> Response:
    """Describe this API in the form of OpenAPI 3.1."""
    return JSONResponse(describe(OPERATIONS, base_url=str(call.request.base_url).rstrip("/")))


Handler = Callable[[Call], Awaitable[Response]]

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/models", None, list_models, None, ModelList),
    Operation("GET", "/v1/models/{model:path}", None, list_models, None, None),
    Operation("POST", "/v1/chat/completions", None, complete_chat, chat.ChatRequest, ChatCompletion),
    Operation("POST", "/api/search", "search", search, SearchBody, models.SearchResult),
    Operation("POST", "/api/ask", "ask", ask, AskBody, Answered),
    Operation("GET", "/api/documents", "search", list_documents, DocumentsQuery, models.OutlineResult),
    Operation("GET", "/api/passage", "search", read_passage, PassageQuery, models.ReadResult),
    Operation("POST", "/api/add", "add", add_documents, AddQuery, Added, has_files=True),
    Operation("GET", "/api/add", "add", added_documents, AddQuery, Added),
    Operation("GET", "/api/openapi.json", None, openapi, None, None),
)
"""The operations of the API: method, path, right, handler, and the models of their input and output."""


# ---- the application -------------------------------------------------------------------------------------------------


def add_api(workbench: Starlette) -> ASGIApp:
    """Return the Workbench with the API at `/v1` and `/api`.

    Args:
        workbench: The application returned by `ui.app.make_app`.

    Example:
        >>> app = add_api(make_app([project], users=TokensFile(path)))  # doctest: +SKIP
    """
    service = Service(workbench.state.projects, workbench.state.adding, workbench.state.limits)
    guard = Middleware(
        Guard,
        hosts=workbench.state.hosts,
        session=workbench.state.session,
        failed=lambda request: error_response(ApiError(500, "This is a bug: the log of the server has the details.")),
        refused=lambda status, reason: error_response(ApiError(status, reason, code=_CODES.get(status))),
        right_of=_right_of,
    )
    api = Starlette(
        routes=[Route(one.path, partial(_handle, service, one.run), methods=[one.method]) for one in OPERATIONS],
        middleware=[guard],
        exception_handlers={HTTPException: _http_error},  # type: ignore[dict-item]  # narrower argument
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_api = scope["type"] == "http" and scope["path"].startswith(_PREFIXES)
        await (api if is_api else workbench)(scope, receive, send)

    return app


_CODES = {401: "invalid_api_key", 403: "missing_right"}


def _right_of(request: Request) -> Right | None:
    """Return the right that a request needs, apart from those that depend on the model."""
    return next((one.right for one in OPERATIONS if one.path == request.scope["path"]), None)


async def _handle(service: Service, run: Handler, request: Request) -> Response:
    """Run the handler of a request, and return its errors in OpenAI's form."""
    user: User = request.scope["user"]
    try:
        service.limits.count_request(user)
        projects = await asyncio.to_thread(service.projects_of, user)
        return await run(Call(request, user, projects, service))
    except (ContextualError, InputError) as error:
        api_error = as_api_error(error)
        response = error_response(api_error)
        if api_error.status in (408, 409, 411, 413, 415, 429, 507):
            response.headers["Connection"] = "close"  # the rest of the body is not read
        return response


def _http_error(request: Request, error: HTTPException) -> Response:
    reason = {404: "There is no such path: see /api/openapi.json.", 405: "This path does not take this method."}
    response = error_response(ApiError(error.status_code, reason.get(error.status_code, str(error.detail))))
    response.headers.update(error.headers or {})
    return response
