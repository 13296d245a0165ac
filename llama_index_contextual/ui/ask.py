"""The view that answers questions: a streamed answer, its checks, and the passages on which it is based.

Only a POST request calls the model. The response to a request from the page's script is a stream of events, one JSON
object per line; the response to a plain form is a redirect to the finished answer. Each finished answer is kept in
memory and has a URL that cannot be guessed, so that going back from a passage or reloading the page costs nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from html import escape as escape_html
from typing import Any, cast, get_args
from urllib.parse import parse_qs

from llama_index.core.schema import NodeWithScore, QueryBundle
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.answering.citations import CitationReport, Quotation, UnsupportedFigure, citations_of
from llama_index_contextual.answering.query_engine import Draft, GroundedQueryEngine
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.answering.streaming import Completion
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ContextualError, InputError, ModelError, NoVersionError
from llama_index_contextual.postprocessor import MergedChunk
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import Source, visible
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.tools.filters import parse_conditions
from llama_index_contextual.ui.markdown import render_markdown
from llama_index_contextual.ui.search import MAX_CONDITIONS, facets_of
from llama_index_contextual.ui.views import (
    MAX_QUESTION,
    Links,
    ProblemView,
    clean_value,
    page,
    parameter,
    problem_of,
    project_of,
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

STYLE_LABELS: Mapping[str, str] = {
    "instruction": "Complete",
    "persona": "In few words",
    "chain_of_thought": "With its reasoning",
}


def routes() -> list[Route]:
    """Return the routes for this view."""
    return [
        Route("/p/{project}/ask", with_problems(show), methods=["GET"]),
        Route("/p/{project}/ask", answer, methods=["POST"]),
    ]


@dataclass(frozen=True, kw_only=True)
class AskForm:
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
    def of(cls, fields: Mapping[str, Sequence[str]]) -> AskForm:
        """Return the question from form fields.

        Raises:
            InputError: A field is too long or unknown.
        """
        one = {name: clean_value((fields.get(name) or [""])[0], name) for name in ("mode", "style")}
        for name, known in (("mode", get_args(Mode)), ("style", tuple(STYLE_LABELS))):
            if one[name] and one[name] not in known:
                raise InputError(f"The {name} {one[name][:40]!r} is unknown: choose {', '.join(known)}.")
        where = [value for item in fields.get("where") or () if (value := clean_value(item, "where"))]
        files = [value for item in fields.get("file") or () if (value := clean_value(item, "file"))]
        if len(where) + len(files) > MAX_CONDITIONS:
            raise InputError(f"There are {len(where) + len(files)} filters: use at most {MAX_CONDITIONS}.")
        text = clean_value((fields.get("q") or [""])[0], "question", limit=MAX_QUESTION)
        return cls(text=text, where=tuple(where), files=tuple(files), **one)


# ---- an answer with its checks ----------------------------------------------------------------------------------

_RESULTS = {
    "verified": ("verified", "A cited passage contains these words."),
    "wrong_source": ("other source", "Only a passage that is not cited here contains these words."),
    "stitched": ("pieced together", "The passages contain only parts of this quotation, not the whole of it."),
    "not_found": ("not found", "No passage contains these words."),
    "unsupported": ("unsupported", "No cited passage contains this figure."),
}
"""Label and explanation for each check result."""


@dataclass(frozen=True, kw_only=True)
class ShownSource:
    """A passage from the prompt, as listed below the answer.

    Attributes:
        number: Number of the passage in citations.
        label: File, pages and section.
        url: URL of the passage.
        is_cited: Whether the answer cites the passage.
    """

    number: int
    label: str
    url: str
    is_cited: bool


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A result of the checks, expressed as a sentence.

    Attributes:
        kind: "good", "note" or "bad".
        text: The sentence.
        quoted: The words of the answer that the result refers to, or "".
    """

    kind: str
    text: str
    quoted: str = ""


@dataclass(frozen=True, kw_only=True)
class ShownAnswer:
    """An answer as displayed.

    Attributes:
        question: The question.
        html: The answer as HTML.
        found: Whether the documents answer the question.
        findings: Results of the checks, as sentences.
        sources: The passages in the prompt.
        reasoning: The reasoning before the answer, or None.
        usage: Model, tokens and price, as a sentence.
    """

    question: str
    html: Markup
    found: bool
    findings: Sequence[Finding]
    sources: Sequence[ShownSource]
    reasoning: str | None
    usage: str

    @property
    def cited(self) -> list[ShownSource]:
        """The sources that the answer cites."""
        return [source for source in self.sources if source.is_cited]

    @property
    def uncited(self) -> list[ShownSource]:
        """The sources that the answer does not cite."""
        return [source for source in self.sources if not source.is_cited]


def shown_sources(
    hits: Sequence[NodeWithScore], link: Callable[..., str], cited: Sequence[tuple[int, Source]] = ()
) -> list[ShownSource]:
    """Return the passages in a prompt as entries for the list of sources below the answer.

    Args:
        hits: The passages, in the order of the prompt.
        link: Function that returns the URL of a chunk; see `Links.passage`.
        cited: For each citation, the number of the passage and the cited place in it.
    """
    places: dict[int, list[Source]] = {}
    for number, place in cited:
        places.setdefault(number, []).append(place)
    sources = []
    for at, hit in enumerate(hits, start=1):
        of_hit = places.get(at) or [RetrievedChunk.of(at, hit).place]
        label, url = " and ".join(map(str, of_hit)), address_of(hit, of_hit[0], link)
        sources.append(ShownSource(number=at, label=label, url=url, is_cited=at in places))
    return sources


def address_of(hit: NodeWithScore, place: Source, link: Callable[..., str]) -> str:
    """Return a URL that shows a passage with a given place highlighted.

    Args:
        hit: The passage. If it was merged from several chunks, the URL is that of the chunk in which the place
            begins.
        place: The place; if it is the whole passage, no sentence is highlighted.
        link: Function that returns the URL of a chunk; see `Links.passage`.
    """
    start, end = place.start_char, place.end_char
    if start is None or end is None or place == Source.of(hit.node):
        return link(hit.node.node_id)
    chunk = hit.chunk_at(start) if isinstance(hit, MergedChunk) else None
    return link((chunk or hit.node).node_id, mark=(start, end))


# ---- findings --------------------------------------------------------------------------------------------------------


def findings_of(answer: GroundedResponse) -> list[Finding]:
    """Return the results of all checks of an answer as sentences, starting with warnings about the search."""
    return [*_warning_findings(answer), *(_citation_findings(answer.citations) if answer.citations else ())]


def _warning_findings(answer: GroundedResponse) -> Iterator[Finding]:
    retrieval, verdict = answer.retrieval, answer.verdict
    if answer.partial:
        yield Finding(kind="bad", text=f"The answer is incomplete: {answer.partial}")
    for warning in retrieval.warnings if retrieval else ():
        yield Finding(kind="note", text=visible(warning))
    if answer.found and retrieval and (doubt := retrieval.doubt()):
        yield Finding(kind="note", text=doubt)
    if verdict is not None:
        yield _judgement(verdict, is_withheld="original" in (answer.metadata or {}))


def _judgement(verdict: dict[str, Any], *, is_withheld: bool) -> Finding:
    if "error" in verdict:
        return Finding(kind="bad", text=f"The judge could not check the answer: {verdict['error']}")
    sure = f"confidence {verdict['confidence']:.2f} of 1"
    if not is_withheld:
        return Finding(kind="good", text=f"The judge found the answer supported by the passages ({sure}).")
    reasons = [
        *(f"no cited passage supports “{' '.join(statement.split())}”" for statement in verdict["unsupported"]),
        *(["it does not answer the question"] if not verdict["relevant"] else []),
    ]
    reason = "; ".join(reasons) or "the judge is not sure enough"
    return Finding(kind="bad", text=f"The judge withheld the answer: {reason} ({sure}).")


def _citation_findings(report: CitationReport) -> Iterator[Finding]:
    for number in dict.fromkeys(report.invalid):
        yield Finding(kind="bad", text=f"A citation of Source {number}, which does not exist, was removed.")
    for quotation in report.quotations:
        if quotation.status != "verified":
            yield Finding(kind="bad", text=_quotation_sentence(quotation), quoted=" ".join(quotation.text.split()))
    for figure in report.unsupported:
        yield Finding(kind="bad", text=_RESULTS["unsupported"][1], quoted=figure.text)
    verified = sum(quotation.status == "verified" for quotation in report.quotations)
    if verified:
        yield Finding(kind="good", text=f"{pluralize(verified, 'quotation')} verified word by word.")
    if report.text and not report.cited:
        yield Finding(kind="note", text="The answer cites no source.")
    elif report.is_clean and not report.quotations:
        yield Finding(kind="good", text="Every figure of the answer is in the passages it cites.")


def _quotation_sentence(quotation: Quotation) -> str:
    if quotation.status == "wrong_source" and quotation.found_in is not None:
        return f"This quotation is in Source {quotation.found_in}, not in the source that is cited for it."
    return _RESULTS[quotation.status][1].replace("this quotation", "it").replace("these words", "this quotation")


# ---- the answer text -------------------------------------------------------------------------------------------------

# Links, other tags, and citations in a rendered answer.
_CITED = re.compile(r"<a .*?</a>|<[^>]*>|\[\s?sources?\b[^\[\]<]*\]", re.IGNORECASE | re.DOTALL)


def answer_html(
    text: str,
    report: CitationReport | None,
    sources: Sequence[ShownSource],
    link_quotation: Callable[[Quotation], str] = lambda _: "",
) -> Markup:
    """Return an answer as HTML, with citations as links and with checked quotations and figures highlighted.

    A quotation that contains Markdown syntax is not highlighted.

    Args:
        text: The answer in Markdown; if there is a report, this must be the text that the report refers to.
        report: The report on the citations; if None, quotations and figures are not highlighted.
        sources: The sources that the answer can cite.
        link_quotation: Function that returns the URL of a verified quotation in its passage, or "".

    Example:
        >>> source = ShownSource(number=1, label="manual.md", url="/p/a/passage/1", is_cited=True)
        >>> print(answer_html("Three days [Source 1].", None, [source]))
        <p>Three days <a class="citation" href="/p/a/passage/1" title="manual.md">[Source 1]</a>.</p>
    """
    html = str(render_markdown(text)).rstrip()
    edits: list[tuple[int, str]] = []
    for quotation in report.quotations if report else ():
        edits += _edits(html, text, quotation, quotation.status, link_quotation(quotation))
    for figure in report.unsupported if report else ():
        edits += _edits(html, text, figure, "unsupported")
    for at, inserted in sorted(edits, reverse=True):
        html = html[:at] + inserted + html[at:]
    by_number = {source.number: source for source in sources}
    return Markup(_CITED.sub(lambda part: _linked(part[0], by_number), html))


def _edits(
    html: str, text: str, checked: Quotation | UnsupportedFigure, result: str, url: str = ""
) -> list[tuple[int, str]]:
    """Return the insertions that highlight a checked quotation or figure.

    Each insertion is a tuple of an offset in `html` and the markup to insert there. The list is empty if the quotation
    or figure cannot be found in the HTML.
    """
    part = text[checked.start : checked.end]
    pattern = rf"<[^>]*>|{re.escape(escape_html(part, quote=False))}"
    places = [place for place in re.finditer(pattern, html) if place[0][0] != "<"]
    if (number := text[: checked.start].count(part)) >= len(places):
        return []
    label, explanation = _RESULTS[result]
    kind, element = result.replace("_", "-"), "a" if url else "span"
    link = Markup(' href="{}"').format(url) if url else Markup("")
    before = Markup('<mark class="check check-{}" title="{}">').format(kind, explanation)
    after = Markup('</mark><{0} class="check-label check-label-{1}"{2} title="{3}">{4}</{0}>')
    start, end = places[number].span()
    return [(start, str(before)), (end, str(after.format(Markup(element), kind, link, explanation, label)))]


def _linked(part: str, sources: Mapping[int, ShownSource]) -> str:
    """Return a part of the HTML, with each source replaced by a link if the part is a citation."""
    numbers = [] if part.startswith("<") else [number for _, _, listed in citations_of(part) for number in listed]
    if not numbers or not all(number in sources for number in numbers):
        return part
    link = Markup('<a class="citation" href="{}" title="{}">[Source {}]</a>')
    return " ".join(link.format(sources[number].url, sources[number].label, number) for number in numbers)


# ---- showing ---------------------------------------------------------------------------------------------------------


def show(request: Request) -> Response:
    """Show the form, and a finished answer if the URL contains its id; no model is called."""
    shown = None
    key = parameter(request, "answer")
    if key:
        kept = _answers(request).get(f"{project_of(request).name} {key}")
        if kept is None:
            raise HTTPException(404, "This answer is no longer in memory: ask the question again.")
        question, shown = kept
    else:
        question = AskForm.of({name: request.query_params.getlist(name) for name in FIELDS})
    return _form(request, question, shown=shown)


def _form(
    request: Request, question: AskForm, *, shown: ShownAnswer | None = None, problem: ProblemView | None = None
) -> Response:
    project, model, missing = project_of(request), "", None
    try:
        model = cast(GroundedQueryEngine, project.as_query_engine()).answer_stream.name
        if not project.documents():
            missing = problem_of(NoVersionError(f"Project {project.name!r} is empty."), project)
    except ModelError as error:
        missing = ProblemView(title="There is no model for answers", text=str(error))
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
        styles=STYLE_LABELS,
        default_mode=project.config.mode,
        default_style=STYLE_LABELS.get(project.config.style, "As set in the project"),
        documents=project.documents(),
        facets=facets_of(project, question.where),
        max_question=MAX_QUESTION,
    )


def _answers(request: Request) -> LRUCache[str, tuple[AskForm, ShownAnswer]]:
    """Return the server's cache of finished answers and their questions."""
    return cast("LRUCache[str, tuple[AskForm, ShownAnswer]]", request.app.state.answers)


# ---- answering -------------------------------------------------------------------------------------------------------


async def answer(request: Request) -> Response:
    """Answer a posted question: stream events if the client accepts them, or redirect to the finished answer."""
    project, question, url = project_of(request), AskForm(), ""
    wants_events = EVENTS in request.headers.get("accept", "")
    try:
        question = AskForm.of(await _posted(request))
        if wants_events:
            return StreamingResponse(_event_lines(request, project, question), media_type=EVENTS)
        async for event in _events(request, project, question):
            url = event.get("url", "")
    except ContextualError as error:
        problem = problem_of(error, project)
        if wants_events:
            return Response(_encode(_problem_event(problem)), media_type=EVENTS)
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


async def _event_lines(request: Request, project: Project, question: AskForm) -> AsyncIterator[bytes]:
    """Yield the events of an answer as lines of JSON. If the client disconnects, the call to the model is stopped."""
    try:
        async with aclosing(_events(request, project, question)) as events:
            async for event in events:
                yield _encode(event)
    except ContextualError as error:
        yield _encode(_problem_event(problem_of(error, project)))


def _problem_event(problem: ProblemView) -> dict[str, Any]:
    return {"event": "problem", "title": problem.title, "text": problem.text, "command": problem.command}


def _encode(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


async def _events(request: Request, project: Project, question: AskForm) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of an answer: the passages, the pieces of the text, and the URL of the finished answer.

    Raises:
        InputError: The question is empty, or a filter matches nothing.
        ModelError: The model cannot be reached or does not start to answer in time.
    """
    engine = await asyncio.to_thread(_query_engine, project, question)
    draft = await engine.adraft(QueryBundle(question.text))
    link = partial(Links(project.name).passage, q=question.text)
    sources = shown_sources(draft.hits, link)
    yield {"event": "passages", "sources": [{"number": s.number, "label": s.label, "url": s.url} for s in sources]}
    completion = Completion()
    async with aclosing(engine.astream(draft, completion)) as pieces:
        async for piece in pieces:
            yield {"event": "text", "text": piece}
    shown = await asyncio.to_thread(_shown_answer, project, engine, draft, completion)
    key = secrets.token_urlsafe(16)
    _answers(request).put(f"{project.name} {key}", (question, shown))
    html = request.app.state.templates.get_template("_answer.html").render(shown=shown)
    yield {"event": "answer", "html": html, "url": f"{Links(project.name).ask()}?answer={key}"}


def _query_engine(project: Project, question: AskForm) -> GroundedQueryEngine:
    if not question.text:
        raise InputError("The question is empty: write one.")
    filters = parse_conditions(
        project, question.where, question.files, condition="The filter", listing="the view Project"
    )
    engine = project.as_query_engine(
        mode=cast(Mode, question.mode) or None, filters=filters, style=question.style or None, streaming=True
    )
    return cast(GroundedQueryEngine, engine)


def _shown_answer(project: Project, engine: GroundedQueryEngine, draft: Draft, completion: Completion) -> ShownAnswer:
    """Check a finished answer and return it in the form in which it is displayed."""
    response = engine.finish(draft, completion)
    links, text, report = Links(project.name), response.response or "", response.citations
    sources = shown_sources(draft.hits, partial(links.passage, q=draft.question), response.cited_sources)

    def link_quotation(quotation: Quotation) -> str:
        if quotation.found_in is None:
            return ""
        hit = draft.hits[quotation.found_in - 1]
        return address_of(hit, quotation.source or Source.of(hit.node), partial(links.passage, q=quotation.text))

    usage = "No model was called"
    if response.usage is not None:
        usage = str(response.usage) if response.usage.dollars is None else f"{response.usage}, at list prices"
    return ShownAnswer(
        question=draft.question,
        html=answer_html(text, report, sources, link_quotation),
        found=response.found,
        findings=findings_of(response),
        sources=sources,
        reasoning=response.reasoning,
        usage=f"{usage}.",
    )
