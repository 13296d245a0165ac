"""The view that answers questions: a streamed answer, its checks, and the passages on which it is based.

Only a POST request calls the model. It either streams events, one JSON object per line, to the script of the page, or
redirects to the finished answer if it comes from a plain form. Finished answers are kept in memory under an address
that cannot be guessed, so that going back from a passage or reloading the page costs nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast, get_args
from urllib.parse import parse_qs

from llama_index.core.schema import NodeWithScore, QueryBundle
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual.answering.citations import Quotation
from llama_index_contextual.answering.query_engine import Draft, GroundedQueryEngine
from llama_index_contextual.answering.streaming import Completion
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ContextualError, InputError, ModelError, NoVersionError
from llama_index_contextual.models import missing_for
from llama_index_contextual.postprocessor import MergedChunk
from llama_index_contextual.project.project import Project
from llama_index_contextual.tools.filters import parse_conditions
from llama_index_contextual.ui.answer import ShownAnswer, answer_html, findings_of, shown_sources
from llama_index_contextual.ui.markdown import render_markdown
from llama_index_contextual.ui.search import MAX_CONDITIONS, facets_of
from llama_index_contextual.ui.views import (
    MAX_QUESTION,
    Links,
    Problem,
    bounded,
    page,
    parameter,
    problem_of,
    project_of,
    quoted,
    with_problems,
)

EVENTS = "application/x-ndjson"
"""Media type of the streamed events."""

MAX_BODY = 100_000
"""Maximum number of bytes in a posted form."""

FIELDS = ("q", "mode", "style", "where", "file")
"""Names of the form fields."""

MAX_ANSWERS = 200
"""Number of finished answers that are kept in memory."""

STYLES: Mapping[str, str] = {
    "instruction": "Complete",
    "persona": "In few words",
    "chain_of_thought": "With its reasoning",
}

T = TypeVar("T")


def routes() -> list[Route]:
    """Return the routes of this view."""
    return [
        Route("/p/{project}/ask", with_problems(show), methods=["GET"]),
        Route("/p/{project}/ask", answer, methods=["POST"]),
    ]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with the options from the form.

    Attributes:
        text: The question.
        mode: Indexes to search, or "" for the project's setting.
        style: Style of the answer, or "" for the project's setting.
        where: Conditions on metadata.
        files: Files to search.
    """

    text: str = ""
    mode: str = ""
    style: str = ""
    where: Sequence[str] = ()
    files: Sequence[str] = ()

    @classmethod
    def of(cls, fields: Mapping[str, Sequence[str]]) -> Question:
        """Return the question from form fields.

        Raises:
            InputError: A field is too long or unknown.
        """
        one = {name: bounded((fields.get(name) or [""])[0], name) for name in ("mode", "style")}
        for name, known in (("mode", get_args(Mode)), ("style", tuple(STYLES))):
            if one[name] and one[name] not in known:
                raise InputError(f"The {name} {one[name][:40]!r} is unknown: choose {', '.join(known)}.")
        where = [value for item in fields.get("where") or () if (value := bounded(item, "where"))]
        files = [value for item in fields.get("file") or () if (value := bounded(item, "file"))]
        if len(where) + len(files) > MAX_CONDITIONS:
            raise InputError(f"There are {len(where) + len(files)} filters: use at most {MAX_CONDITIONS}.")
        text = bounded((fields.get("q") or [""])[0], "question", limit=MAX_QUESTION)
        return cls(text=text, where=tuple(where), files=tuple(files), **one)


# ---- showing ---------------------------------------------------------------------------------------------------------


def show(request: Request) -> Response:
    """Show the form, with a finished answer if its id is in the address; no model is called."""
    shown = None
    key = parameter(request, "answer")
    if key:
        kept = _answers(request).get(f"{project_of(request).name} {key}")
        if kept is None:
            raise HTTPException(404, "This answer is no longer in memory: ask the question again.")
        question, shown = kept
    else:
        question = Question.of({name: request.query_params.getlist(name) for name in FIELDS})
    return _form(request, question, shown=shown)


def _form(
    request: Request, question: Question, *, shown: ShownAnswer | None = None, problem: Problem | None = None
) -> Response:
    project, model, missing = project_of(request), "", None
    try:
        model = project.as_query_engine().answer_stream.name
        if not project.documents():
            missing = problem_of(NoVersionError(f"Project {project.name!r} is empty."), project)
    except ModelError as error:
        missing = _missing_model(project, error)
    return page(
        request,
        "ask.html",
        status_code=problem.status if problem else 200,
        question=question,
        shown=shown,
        problem=problem,
        missing=missing,
        model=model,
        modes=get_args(Mode),
        styles=STYLES,
        default_mode=project.config.mode,
        default_style=STYLES.get(project.config.style, "As set in the project"),
        documents=project.documents(),
        facets=facets_of(project, question.where),
        max_question=MAX_QUESTION,
    )


def _missing_model(project: Project, error: ModelError) -> Problem:
    """Return the reason why a project cannot answer, and what to do."""
    title = "There is no model for answers"
    reason = missing_for(project.config.answer_llm or project.config.llm, setting="llm")
    if project.state.has_llm or reason is None:
        return Problem(title=title, text=str(error))
    return Problem(
        title=title,
        text=f"{reason} Supply it, or choose another model; then start the server again:",
        command=f"llama-index-contextual configure {quoted(project.name)} answer_llm=ollama:llama3.1",
    )


def _answers(request: Request) -> LRUCache[str, tuple[Question, ShownAnswer]]:
    """Return the finished answers of the server."""
    return cast("LRUCache[str, tuple[Question, ShownAnswer]]", request.app.state.answers)


# ---- answering -------------------------------------------------------------------------------------------------------


async def answer(request: Request) -> Response:
    """Answer a posted question with a stream of events if the client accepts it, or else with a page."""
    project, question = project_of(request), Question()
    wants_events = EVENTS in request.headers.get("accept", "")
    try:
        question = Question.of(await _posted(request))
        if wants_events:
            return StreamingResponse(_event_lines(request, project, question), media_type=EVENTS)
        url = await _while_connected(request, _finished(request, project, question))
    except ClientDisconnect:
        return Response(status_code=499)  # the client has disconnected
    except ContextualError as error:
        problem = problem_of(error, project)
        if wants_events:
            return Response(_line(_problem_event(problem)), media_type=EVENTS)
        return await asyncio.to_thread(_form, request, question, problem=problem)
    return RedirectResponse(url, status_code=303)


async def _posted(request: Request) -> dict[str, list[str]]:
    """Return the fields of a posted form.

    Raises:
        InputError: The form is too large, or the request is not a form.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise InputError(f"The form is larger than {MAX_BODY:,} bytes: shorten the question.")
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=200)
    except ValueError as error:
        raise InputError("The form has too many fields.") from error


async def _event_lines(request: Request, project: Project, question: Question) -> AsyncIterator[bytes]:
    """Yield the events of an answer as lines of JSON; if the client disconnects, the call to the model is stopped."""
    try:
        async with aclosing(_events(request, project, question)) as events:
            async for event in events:
                yield _line(event)
    except ContextualError as error:
        yield _line(_problem_event(problem_of(error, project)))


def _problem_event(problem: Problem) -> dict[str, Any]:
    return {"event": "problem", "title": problem.title, "text": problem.text, "command": problem.command}


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


async def _finished(request: Request, project: Project, question: Question) -> str:
    """Write an answer and return its address."""
    url = ""
    async with aclosing(_events(request, project, question)) as events:
        async for event in events:
            url = event.get("url", url)
    return url


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of an awaitable, which is cancelled if the client disconnects.

    Raises:
        ClientDisconnect: The client has disconnected.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return await task
    finally:
        task.cancel()
        gone.cancel()


async def _events(request: Request, project: Project, question: Question) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of an answer: the passages, the pieces of the text, and the address of the finished answer.

    Raises:
        InputError: The question is empty, or a filter matches nothing.
        ModelError: The model cannot be reached or does not start to answer in time.
    """
    engine = await asyncio.to_thread(_engine, project, question)
    draft = await engine.adraft(QueryBundle(question.text))
    link = partial(Links(project.name).passage, q=question.text)
    sources = shown_sources(draft.hits, link)
    yield {"event": "passages", "sources": [{"number": s.number, "label": s.label, "url": s.url} for s in sources]}
    completion = Completion()
    async with aclosing(engine.astream(draft, completion)) as pieces:
        async for piece in pieces:
            yield {"event": "text", "text": piece}
    shown = await asyncio.to_thread(_shown, project, engine, draft, completion)
    key = secrets.token_urlsafe(16)
    _answers(request).put(f"{project.name} {key}", (question, shown))
    html = request.app.state.templates.get_template("_answer.html").render(shown=shown)
    yield {"event": "answer", "html": html, "url": f"{Links(project.name).ask()}?answer={key}"}


def _engine(project: Project, question: Question) -> GroundedQueryEngine:
    if not question.text:
        raise InputError("The question is empty: write one.")
    filters = parse_conditions(
        project, question.where, question.files, condition="The filter", listing="the view Project"
    )
    return project.as_query_engine(
        mode=cast(Mode, question.mode) or None, filters=filters, style=question.style or None, streaming=True
    )


def _shown(project: Project, engine: GroundedQueryEngine, draft: Draft, completion: Completion) -> ShownAnswer:
    """Return the checked answer as displayed."""
    response = engine.finish(draft, completion)
    links, text, report = Links(project.name), response.response or "", response.citations
    sources = shown_sources(draft.hits, partial(links.passage, q=draft.question), response.cited_sources)

    def link_quotation(quotation: Quotation) -> str:
        node_id = chunk_of(draft.hits, quotation)
        return links.passage(node_id, q=quotation.text) if node_id else ""

    usage = "No model was called"
    if response.usage is not None:
        usage = str(response.usage) if response.usage.dollars is None else f"{response.usage}, at list prices"
    return ShownAnswer(
        question=draft.question,
        html=answer_html(text, report, sources, render_markdown, link_quotation),
        found=response.found,
        findings=findings_of(response),
        sources=sources,
        reasoning=response.reasoning,
        usage=f"{usage}.",
    )


def chunk_of(hits: Sequence[NodeWithScore], quotation: Quotation) -> str | None:
    """Return the id of the chunk in which a quotation begins, or None if no passage contains it.

    A passage that was merged from several chunks has the id of the best one.
    """
    if quotation.found_in is None:
        return None
    hit = hits[quotation.found_in - 1]
    start = quotation.source.start_char if quotation.source else None
    chunk = hit.chunk_at(start) if isinstance(hit, MergedChunk) and start is not None else None
    return (chunk or hit.node).node_id
