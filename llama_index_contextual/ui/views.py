"""Functions shared by the views: rendering, URLs, request parameters, and error messages."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache, wraps
from importlib.resources import files as package_files
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import (
    ContextualError,
    CorruptVersionError,
    InputError,
    ModelError,
    NoSpaceError,
    NoVersionError,
)
from llama_index_contextual.figures import Figure
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.project_file import is_project
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import visible
from llama_index_contextual.ui import places
from llama_index_contextual.ui.marks import Span
from llama_index_contextual.ui.users import RefusedError

T = TypeVar("T")

MAX_QUESTION = 4_000
"""Maximum number of characters in a question."""

MAX_PARAMETER = 2_000
"""Maximum number of characters in any other request parameter."""


# ---- URLs ----------------------------------------------------------------------------------------------------------


class Links:
    """URLs of the views of one project.

    Args:
        project: Name of the project.
    """

    def __init__(self, project: str) -> None:
        self._base = f"/p/{quote(project, safe='')}"

    def search(self, **parameters: Any) -> str:
        """Return the URL of the search, with the non-empty parameters, such as `q` and `where`."""
        return _with_query(f"{self._base}/", parameters)

    def passage(
        self,
        node_id: str,
        q: str = "",
        mark: Span | None = None,
        *,
        page: int | None = None,
        anchor: str = "#passage",
        **search: Any,
    ) -> str:
        """Return the URL of a passage.

        Args:
            node_id: Id of the chunk.
            q: Question whose words are highlighted.
            mark: Start and end, in the document's text, of the sentence or row to highlight; None highlights the
                sentence or row that matches `q` best.
            page: Page of the file to show instead of the pages of the passage.
            anchor: Fragment of the URL that scrolls the view to the passage; "" shows the top of the view.
            **search: Other parameters of the search that found the passage, such as `mode` and `where`.
        """
        span = f"{mark[0]}-{mark[1]}" if mark else ""
        path = f"{self._base}/passage/{quote(node_id, safe='')}"
        return f"{_with_query(path, {'q': q, 'mark': span, 'page': page, **search})}{anchor}"

    def image(self, doc_id: str, page: int, checksum: str = "") -> str:
        """Return the URL of the image of a page, which browsers cache if the URL contains the checksum of the file."""
        return _with_query(f"{self._base}/image", {"doc": doc_id, "page": page, "v": checksum})

    def original(self, doc_id: str, page: int | None = None) -> str:
        """Return the URL of a document's file, opened at a page if the browser supports this."""
        url = _with_query(f"{self._base}/original", {"doc": doc_id})
        return f"{url}#page={page}" if page else url

    def picture(self, node_id: str, mark: Span | None, checksum: str) -> str:
        """Return the URL of a small picture of the page with a passage; see `image`."""
        span = f"{mark[0]}-{mark[1]}" if mark else ""
        return _with_query(f"{self._base}/picture", {"chunk": node_id, "mark": span, "v": checksum})

    def figure(self, node_id: str, figure: Figure) -> str:
        """Return the URL of the picture of a figure in a passage, which browsers cache."""
        return _with_query(f"{self._base}/figure", {"chunk": node_id, "id": figure.id, "v": figure.sha256})

    def document(self, doc_id: str, **parameters: Any) -> str:
        """Return the URL of a document's segments and chunks."""
        return _with_query(f"{self._base}/document", {"id": doc_id, **parameters})

    def ask(self, q: str = "") -> str:
        """Return the URL of the view that answers questions."""
        return _with_query(f"{self._base}/ask", {"q": q})

    def add(self, action: str = "") -> str:
        """Return the URL of the view that adds documents, or of the form that changes them."""
        return f"{self._base}/add{action}"

    def overview(self, **parameters: Any) -> str:
        """Return the URL of the view of the project itself."""
        return _with_query(f"{self._base}/project", parameters)


def _with_query(path: str, parameters: Mapping[str, Any]) -> str:
    values = {name: value for name, value in parameters.items() if value not in (None, "", [], ())}
    return f"{path}?{urlencode(values, doseq=True, errors='replace')}" if values else path


# ---- rendering -----------------------------------------------------------------------------------------------------


@cache
def static_address(name: str) -> str:
    """Return the URL of a static file, which includes a hash of the content, so that browsers can cache the file."""
    content = package_files("llama_index_contextual.ui").joinpath("static", name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"


@cache
def make_templates() -> jinja2.Environment:
    """Return the template environment, which escapes everything that is not marked as safe.

    All applications share it, because compiling the templates takes longer than most pages.
    """
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("llama_index_contextual.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"pluralize": pluralize, "visible": visible, "static": static_address}
    templates.filters |= {"place": places.place_of, "icon_name": places.icon_of, "date": places.date_of}
    return templates


def page(request: Request, template: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """Return the response of a view.

    Args:
        request: The request.
        template: Name of a template, which usually extends base.html.
        status_code: HTTP status.
        **values: Values for the template. The template also gets `project` (the Project or None), `links` (the
            project's `Links`), `view` (the first word of the path below the project, "" for the search), `several`
            (whether there are other projects), `ingest` (the ingestion into the project, or None), `can_add` and
            `can_ask` (what the user may do).
    """
    projects: Mapping[str, Project] = request.app.state.projects
    name = request.path_params.get("project", "")
    project = projects.get(name)
    view = request.url.path.removeprefix("/p/").partition("/")[2].partition("/")[0] if project else ""
    rights = request.scope["user"].rights if request.scope.get("user") else frozenset()
    context = {
        "project": project,
        "links": Links(name),
        "view": view,
        "several": len(projects) > 1,
        "ingest": copy(ingest_of(request, name)),  # a copy, because it may end while the page is rendered
        "can_add": name in request.app.state.adding and "add" in rights,
        "can_ask": "ask" in rights,
        **values,
    }
    html = request.app.state.templates.get_template(template).render(context)
    # Lone surrogates in text cannot be encoded.
    return HTMLResponse(html.encode("utf-8", "replace"), status_code=status_code)


def ingest_of(request: Request, name: str) -> Any:
    """Return the ingestion into a project that the user may follow, or None."""
    project, adding = request.app.state.projects.get(name), request.app.state.adding.get(name)
    if project is None or project.is_restricted:  # progress describes the whole project
        return None
    return request.app.state.ingests.get(name) if adding is None else adding.ingest


# ---- requests ------------------------------------------------------------------------------------------------------


def project_of(request: Request) -> Project:
    """Return the project in the URL of a request.

    An unknown name raises an HTTP error with status 404, and a deleted project raises an error with status 410.
    """
    project: Project | None = request.app.state.projects.get(request.path_params["project"])
    if project is None:
        raise HTTPException(404, f"There is no project {request.path_params['project'][:100]!r} here.")
    if not is_project(project.directory):
        raise HTTPException(
            410,
            f"Project {project.name!r} was deleted while this server was running: its documents are no longer here."
            f" Start the server again to show other projects.",
        )
    return project


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of a coroutine, or None if the client disconnects, in which case the coroutine is cancelled.

    The body of the request must have been read.
    """
    work_task, left_task = asyncio.create_task(work), asyncio.create_task(_wait_until_left(request))
    try:
        await asyncio.wait({work_task, left_task}, return_when=asyncio.FIRST_COMPLETED)
        is_finished = work_task.done()
    finally:
        for task in (work_task, left_task):
            task.cancel()  # without effect on a task that is done
        await asyncio.gather(work_task, left_task, return_exceptions=True)
    return work_task.result() if is_finished else None


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parameter(request: Request, name: str, *, limit: int = MAX_PARAMETER) -> str:
    """Return a parameter of the URL without surrounding white space, or "" if it is missing.

    Raises:
        InputError: The parameter is longer than `limit`.
    """
    return clean_value(request.query_params.get(name, ""), name, limit=limit)


def clean_value(value: str, name: str, *, limit: int = MAX_PARAMETER) -> str:
    """Return a value from a request without surrounding white space.

    Raises:
        InputError: The value is longer than `limit`.
    """
    if len(value) > limit:
        what = "The question" if name in ("q", "question") else f"The parameter {name!r}"
        raise InputError(f"{what} has {len(value):,} characters: use at most {limit:,}.")
    return value.strip()


def number(request: Request, name: str, what: str, lowest: int, highest: int) -> int | None:
    """Return a parameter of the URL that is a number, or None if it is missing.

    Raises:
        InputError: The parameter is not a number between `lowest` and `highest`; `what` names it in the message.
    """
    text = parameter(request, name)
    if text and not (text.isascii() and text.isdigit() and len(text) < 12 and lowest <= int(text) <= highest):
        raise InputError(f"{what} must be between {lowest} and {highest:,}.", value=text)
    return int(text) if text else None


def analyzer_of(project: Project) -> Analyzer:
    """Return the analyzer of the project's lexical index, which is used to highlight the words of a question."""
    return project.as_retriever().analyzer


# ---- errors --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProblemView:
    """An error to show to the user.

    Attributes:
        title: The problem in a few words.
        text: Description of the problem and of the solution.
        command: A command line that solves the problem, or "".
        status: HTTP status.
    """

    title: str
    text: str
    command: str = ""
    status: int = 400


def problem_of(error: ContextualError, project: Project | None) -> ProblemView:
    """Describe an error raised by this package for users of the workbench."""
    name = project.name if project else "NAME"
    program = "llama-index-contextual"
    if isinstance(error, NoVersionError):
        return ProblemView(
            title="No documents yet",
            text=f"Project {name!r} is empty. When the person who runs it has added documents, reload this page.",
            command=f"{program} ingest {quoted(name)} FOLDER",
            status=409,
        )
    if isinstance(error, CorruptVersionError):
        return ProblemView(
            title="The project is damaged",
            text=f"{without_signs(error)} The person who runs it can find out what is wrong.",
            command=f"{program} verify {quoted(name)}",
            status=500,
        )
    if isinstance(error, ModelError):
        return ProblemView(title="A model is not available", text=without_signs(error), status=503)
    if isinstance(error, RefusedError):
        return ProblemView(title="This is not possible now", text=without_signs(error), status=error.status)
    if isinstance(error, InputError):
        return ProblemView(title="This cannot be searched", text=without_signs(error))
    status = 507 if isinstance(error, NoSpaceError) else 500
    return ProblemView(title="The request failed", text=without_signs(error), status=status)


def without_signs(message: object) -> str:
    """Return a message without the backticks around names of settings and commands.

    Example:
        >>> without_signs("Set `llm` first.")
        'Set llm first.'
    """
    return str(message).replace("`", "")


def quoted(name: str) -> str:
    """Return the name of a project or document, quoted so that a shell reads it as one word."""
    return name if name.replace("-", "").replace("_", "").replace(".", "").isalnum() else f'"{name}"'


def with_problems(view: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Wrap a view so that errors raised by this package are shown as a page.

    The view is an ordinary function, which Starlette runs in a thread so that it does not block other requests.
    """

    @wraps(view)
    def wrapper(request: Request) -> Response:
        try:
            return view(request)
        except ContextualError as error:
            return problem_page(request, problem_of(error, project_of(request)))

    return wrapper


def problem_page(request: Request, problem: ProblemView) -> HTMLResponse:
    """Return the page for an error."""
    return page(request, "error.html", status_code=problem.status, problem=problem)
