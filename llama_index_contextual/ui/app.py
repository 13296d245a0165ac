"""The workbench: a web interface for reading projects. It never changes a document.

`make_app` returns the workbench as an ASGI application, and `serve` runs it. There are views for searches, passages,
answers written by an LLM, and projects with their documents; each view is a module with a `routes` function.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.http import accepted_hosts, require_token, server_address
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.index.project_file import is_project
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui import ask, overview, passage, search, security
from llama_index_contextual.ui.background import BackgroundIngest
from llama_index_contextual.ui.charts import Chart
from llama_index_contextual.ui.hits import RecentHits
from llama_index_contextual.ui.pages import Originals
from llama_index_contextual.ui.views import Links, ProblemView, make_templates, page, problem_page

HOST, PORT = "127.0.0.1", 8010

SECONDS_TO_END = 2
"""Number of seconds that the server waits for running requests when it is stopped."""

_HTTP_PROBLEMS = {
    404: ("Not found", "There is no such page here."),
    410: ("The project was deleted", ""),
    405: ("Not possible", "This address only shows a page: it takes no other requests."),
}


def make_app(
    projects: Sequence[Project],
    *,
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    document_folders: Sequence[Path] = (),
    ingests: Mapping[str, BackgroundIngest] = MappingProxyType({}),
    charts: Mapping[str, Chart] = MappingProxyType({}),
) -> Starlette:
    """Return the workbench for one or more projects as an ASGI application.

    Requests with an unknown host in the Host or Origin header are refused, so that other web pages cannot read the
    documents.

    Args:
        projects: The projects to show; for a restricted project (see `Project.only`), only its visible documents.
        token: Token that clients must send; None gives read access to everyone who can reach the application.
        allowed_hosts: Host names that clients use for the server, in addition to the names of the loopback interface.
        document_folders: Folders that contain the original files, whose pages are shown as images.
        ingests: Running ingestions by the names of their projects; the views show their progress.
        charts: Evaluation results by the names of the projects; like `ingests`, not shown for restricted projects.

    Raises:
        InputError: No project was given, or two projects have the same name.
        ConfigurationError: The token is too short.

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
    session = None if token is None else security.Session(token)
    hosts = accepted_hosts(HOST, token, allowed_hosts)
    guard = Middleware(security.Guard, hosts=hosts, session=session, failed=_failed)
    app = Starlette(
        routes=[
            Route("/", _start_page),
            Mount("/static", StaticFiles(packages=[("llama_index_contextual.ui", "static")]), name="static"),
            *security.routes(),
            *search.routes(),
            *passage.routes(),
            *ask.routes(),
            *overview.routes(),
        ],
        middleware=[guard],
        exception_handlers={HTTPException: _http_problem},  # type: ignore[dict-item]  # its argument's type is narrower
    )
    app.state.projects = dict(zip(names, projects, strict=True))
    app.state.templates = make_templates()
    app.state.originals = Originals(tuple(document_folders))
    weakref.finalize(app, app.state.originals.renderer.close)
    app.state.hits = RecentHits()
    app.state.facets = weakref.WeakKeyDictionary()
    # Progress and figures describe the whole project.
    whole = {project.name for project in projects if not project.is_restricted}
    app.state.ingests = {name: ingest for name, ingest in ingests.items() if name in whole}
    app.state.charts = {name: chart for name, chart in charts.items() if name in whole}
    app.state.answers = LRUCache(ask.MAX_ANSWERS)
    app.state.session = session
    return app


def serve(
    projects: Sequence[Project],
    *,
    host: str = HOST,
    port: int = PORT,
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    document_folders: Sequence[Path] = (),
    ingests: Mapping[str, BackgroundIngest] = MappingProxyType({}),
    charts: Mapping[str, Chart] = MappingProxyType({}),
    announce: Callable[[str], object] | None = None,
) -> None:
    """Serve the workbench for one or more projects until the process is interrupted.

    Args:
        projects: The projects to show.
        host: Address to bind to; any address other than a loopback address requires a token.
        port: Port to bind to; 0 selects a free port.
        token: As for `make_app`.
        allowed_hosts: As for `make_app`.
        document_folders: As for `make_app`.
        ingests: As for `make_app`.
        charts: As for `make_app`.
        announce: Callback that receives the server's address once the port is bound.

    Raises:
        ConfigurationError: There is no token although `host` can be reached from other machines, the token is too
            short, or the address cannot be bound.
    """
    hosts = accepted_hosts(host, token, allowed_hosts)
    app = make_app(
        projects, token=token, allowed_hosts=hosts, document_folders=document_folders, ingests=ingests, charts=charts
    )
    config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=SECONDS_TO_END)
    with _open_socket(host, port) as sock:
        if announce is not None:
            announce(f"{server_address(host, sock.getsockname()[1], allowed_hosts)}/")
        with contextlib.suppress(KeyboardInterrupt):  # raised by uvicorn after all requests have ended
            uvicorn.Server(config).run(sockets=[sock])


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
    if error.status_code in (404, 410) and error.detail not in ("", "Not Found"):
        text = str(error.detail)
    response = problem_page(request, ProblemView(title=title, text=text, status=error.status_code))
    response.headers.update(error.headers or {})
    return response


def _failed(request: Request) -> Response:
    text = "This is a bug: the log of the server has the details. The other views still work."
    return problem_page(request, ProblemView(title="The server could not answer", text=text, status=500))
