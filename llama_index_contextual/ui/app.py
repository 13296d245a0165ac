"""The workbench: a web interface for reading projects and, if their owner allows it, for adding documents.

`make_app` returns the workbench as an ASGI application, and `serve` runs it. There are views for searches, passages,
answers written by an LLM, projects with their documents, and added files; each view is a module with a `routes`
function. Users who may not see all documents have an application of their own, with its own caches.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.http import accepted_hosts, require_token, server_address
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.index.project_file import is_project
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui import adding as adding_view
from llama_index_contextual.ui import ask, overview, passage, search, security
from llama_index_contextual.ui.adding import Adding
from llama_index_contextual.ui.background import BackgroundIngest
from llama_index_contextual.ui.pages import Originals
from llama_index_contextual.ui.users import Limits, Right, TokensFile, User
from llama_index_contextual.ui.views import Links, ProblemView, make_templates, page, problem_page

HOST, PORT = "127.0.0.1", 8010

SECONDS_TO_END = 2
"""Number of seconds that the server waits for running requests when it is stopped."""

SWITCH_SECONDS = 0.0005
"""Time after which a thread that reads files lets a thread that searches run, if documents can be added."""

_MAX_USERS = 256
"""Number of users with filters whose applications are kept."""

_HTTP_PROBLEMS = {
    403: ("Not allowed", ""),
    404: ("Not found", "There is no such page here."),
    410: ("The project was deleted", ""),
    405: ("Not possible", "This address only shows a page: it takes no other requests."),
}


def make_app(
    projects: Sequence[Project],
    *,
    host: str = HOST,
    token: str | None = None,
    users: TokensFile | None = None,
    allowed_hosts: Sequence[str] = (),
    document_folders: Sequence[Path] = (),
    ingests: Mapping[str, BackgroundIngest] = MappingProxyType({}),
    adding: Mapping[str, Adding] = MappingProxyType({}),
) -> Starlette:
    """Return the workbench for one or more projects as an ASGI application.

    Requests with an unknown host in the Host or Origin header are refused, so that other web pages cannot read the
    documents.

    Args:
        projects: The projects to show; for a restricted project (see `Project.only`), only its visible documents.
        host: Address to bind to; any address other than a loopback address requires a token.
        token: Token that clients must send; without it and `users`, everyone who can reach the application may read.
        users: File with the tokens of users, whose rights and filters decide what they may do and see.
        allowed_hosts: Host names that clients use for the server, in addition to the names of the loopback interface.
        document_folders: Folders that contain the original files, whose pages are shown as images.
        ingests: Running ingestions by the names of their projects; the views show their progress.
        adding: The added files of the projects to which documents can be added, by the names of the projects.

    Raises:
        InputError: No project was given, or two projects have the same name.
        ConfigurationError: There is no token although `host` can be reached from other machines, the token is too
            short, or a restricted project should be changed.

    Example:
        >>> app = make_app([project])  # doctest: +SKIP
    """
    if not projects:
        raise InputError("No project was passed: pass at least one.")
    names = [project.name for project in projects]
    if len(set(names)) < len(names):
        raise InputError("Two projects have the same name: pass each project once.", value=names)
    if token is not None:
        require_token(token)
    if changed := [project.name for project in projects if project.is_restricted and project.name in adding]:
        raise ConfigurationError(
            f"Project {changed[0]!r} is restricted: documents can be added to whole projects only."
        )
    session = security.Session(token, users) if token is not None or users is not None else None
    hosts = accepted_hosts(host, session, allowed_hosts)
    limits = Limits()
    originals = Originals((*document_folders, *(one.inbox.folder for one in adding.values())))

    def views_for(shown: Sequence[Project], **options: Any) -> Starlette:
        app = Starlette(
            routes=[
                Route("/", _start_page),
                Mount("/static", StaticFiles(packages=[("llama_index_contextual.ui", "static")]), name="static"),
                *security.routes(),
                *search.routes(),
                *passage.routes(),
                *ask.routes(),
                *overview.routes(),
                *adding_view.routes(),
            ],
            exception_handlers={HTTPException: _http_problem},  # type: ignore[dict-item]  # narrower argument
            **options,
        )
        app.state.projects = dict(zip(names, shown, strict=True))
        app.state.templates = make_templates()
        app.state.originals = originals
        app.state.hits = search.RecentHits()
        app.state.facets = weakref.WeakKeyDictionary()
        app.state.ingests = ingests
        app.state.adding = adding
        app.state.answers = LRUCache(ask.MAX_ANSWERS)
        app.state.session = session
        app.state.limits = limits
        return app

    apps: LRUCache[str, Starlette] = LRUCache(_MAX_USERS)

    def app_of(user: User) -> Starlette:
        key = user.model_dump_json()
        if (app := apps.get(key)) is None:
            app = views_for([project.only(user.filters) for project in projects])
            apps.put(key, app)
        return app

    guard = Middleware(security.Guard, hosts=hosts, session=session, failed=_failed, right_of=_right_of, app_of=app_of)
    app = views_for(projects, middleware=[guard])
    app.state.hosts = hosts
    weakref.finalize(app, originals.renderer.close)
    return app


def _right_of(request: Request) -> Right | None:
    """Return the right that a request needs."""
    path = str(request.scope["path"])
    if not path.startswith("/p/"):
        return "search" if path == "/" else None
    view = path.removeprefix("/p/").partition("/")[2].partition("/")[0]
    return "ask" if view == "ask" else "add" if view == "add" else "search"


def serve(
    app: ASGIApp,
    *,
    host: str = HOST,
    port: int = PORT,
    allowed_hosts: Sequence[str] = (),
    adding: Collection[Adding] = (),
    announce: Callable[[str], object] | None = None,
) -> None:
    """Serve the workbench until the process is interrupted.

    Ingestions of added files that were interrupted are resumed, and stopped at the end.

    Args:
        app: The application returned by `make_app`, or by `api.app.add_api`.
        host: As for `make_app`.
        port: Port to bind to; 0 selects a free port.
        allowed_hosts: As for `make_app`.
        adding: The added files of the projects to which documents can be added.
        announce: Callback that receives the server's address once the port is bound.

    Raises:
        ConfigurationError: The address cannot be bound.
    """
    config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=SECONDS_TO_END)
    with _open_socket(host, port) as sock:
        if announce is not None:
            announce(f"{server_address(host, sock.getsockname()[1], allowed_hosts)}/")
        switch_interval = sys.getswitchinterval()
        try:
            if adding:  # an ingestion in a thread must not hold up a search each time that it needs the interpreter
                sys.setswitchinterval(SWITCH_SECONDS)
            for one in adding:
                one.resume()
            with contextlib.suppress(KeyboardInterrupt):  # raised by uvicorn after all requests have ended
                uvicorn.Server(config).run(sockets=[sock])
        finally:
            for one in adding:
                one.stop()
            sys.setswitchinterval(switch_interval)


def _open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except (OSError, OverflowError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "is in use" if in_use else f"cannot be bound ({getattr(error, 'strerror', None) or error})"
        advice = "choose another port (--port), or end the program that uses it" if in_use else "choose another"
        raise ConfigurationError(f"Port {port} of {host} {reason}: {advice}.", setting="port") from error


def _start_page(request: Request) -> Response:
    """Show the list of projects; if there is only one project, redirect to it."""
    projects = request.app.state.projects
    if len(projects) == 1:
        return RedirectResponse(Links(next(iter(projects))).search(), 303)
    infos = [(project, Links(name), is_project(project.directory)) for name, project in projects.items()]
    return page(request, "projects.html", projects=infos)


def _http_problem(request: Request, error: HTTPException) -> Response:
    title, text = _HTTP_PROBLEMS.get(error.status_code, ("The request failed", str(error.detail)))
    if error.status_code in (403, 404, 410) and error.detail not in ("", "Not Found"):
        text = str(error.detail)
    response = problem_page(request, ProblemView(title=title, text=text, status=error.status_code))
    response.headers.update(error.headers or {})
    return response


def _failed(request: Request) -> Response:
    text = "This is a bug: the log of the server has the details. The other views still work."
    return problem_page(request, ProblemView(title="The server could not answer", text=text, status=500))
