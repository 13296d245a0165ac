"""The view that answers questions: a streamed answer, its checks, and quotations from the passages it is based on.

Only a POST request calls the model. The response to a request from the page's script is a stream of events, one JSON
object per line; the response to a plain form is a redirect to the finished answer. Each finished answer is kept in
memory and has a URL that cannot be guessed, so that going back from a passage or reloading the page costs nothing.
A follow-up names the answer before it, so that a conversation is a chain of kept answers.

Without an LLM, the view shows the passages that match the question.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape as escape_html
from typing import Any, cast, get_args

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.schema import NodeWithScore
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from llama_index_contextual import metadata as keys
from llama_index_contextual.answering.chat_engine import TURNS, GroundedChatEngine
from llama_index_contextual.answering.citations import (
    CitationReport,
    Quotation,
    Statement,
    UnsupportedFigure,
    citations_of,
)
from llama_index_contextual.answering.findings import Finding, findings_of
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ContextualError, InputError, ModelError, NoVersionError, end_sentence
from llama_index_contextual.figures import Figure, figures_from_json
from llama_index_contextual.postprocessor import MergedChunk
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import Source, visible
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.ui.facets import Selection, facets_of
from llama_index_contextual.ui.markdown import highlight, render_markdown
from llama_index_contextual.ui.marks import Span
from llama_index_contextual.ui.places import place_of
from llama_index_contextual.ui.quotes import Quote, quote_around
from llama_index_contextual.ui.uploads import form_fields
from llama_index_contextual.ui.users import Spent
from llama_index_contextual.ui.views import (
    MAX_QUESTION,
    Links,
    ProblemView,
    analyzer_of,
    clean_value,
    page,
    parameter,
    problem_of,
    project_of,
    quoted,
    while_connected,
    with_problems,
)

EVENTS = "application/x-ndjson"
"""Media type of the streamed events."""

MAX_BODY = 100_000
"""Maximum number of bytes in a posted form."""

FIELDS = ("q", "mode", "style", "where", "file", "after")
"""Names of the form fields."""

MAX_ANSWERS = 200
"""Number of finished answers that are kept in memory."""

MAX_TURNS = 20
"""Maximum number of answers of one conversation on a page."""

PASSAGES = 8
"""Number of passages that are shown if there is no LLM."""

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
        selection: Filters of the search.
        after: Key of the previous answer of the conversation, or "".
    """

    text: str = ""
    mode: str = ""
    style: str = ""
    selection: Selection = field(default_factory=Selection)
    after: str = ""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Sequence[str]]) -> AskForm:
        """Return the question from form fields.

        Raises:
            InputError: A field is too long or unknown.
        """
        choices = {name: clean_value((fields.get(name) or [""])[0], name) for name in ("mode", "style", "after")}
        for name, values in (("mode", get_args(Mode)), ("style", tuple(STYLE_LABELS))):
            if choices[name] and choices[name] not in values:
                raise InputError(f"The {name} {choices[name][:40]!r} is unknown: choose {', '.join(values)}.")
        text = clean_value((fields.get("q") or [""])[0], "question", limit=MAX_QUESTION)
        return cls(text=text, selection=Selection.from_parameters(lambda name: fields.get(name) or ()), **choices)


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
class Excerpt:
    """A quotation from a passage.

    Attributes:
        quote: The sentence or row, with the cited words or the words of the question highlighted.
        title: Title or name of the document.
        place: Heading above the sentence, and its page, sheet or slide.
        url: URL of the passage in which this place is highlighted.
        evidence: The place as evidence in a file of questions, in JSON.
    """

    quote: Quote
    title: str
    place: str
    url: str
    evidence: str


@dataclass(frozen=True, kw_only=True)
class SourceView:
    """A passage from the prompt, as listed with the answer.

    Attributes:
        number: Number of the passage in citations.
        label: File, pages and section.
        url: URL of the passage.
        is_cited: Whether the answer cites the passage.
        excerpts: Quotations from the passage.
        figures: The figures of the quoted sentences, with the URLs of their pictures.
    """

    number: int
    label: str
    url: str
    is_cited: bool
    excerpts: Sequence[Excerpt] = ()
    figures: Sequence[tuple[Figure, str]] = ()


@dataclass(frozen=True, kw_only=True)
class AnswerView:
    """An answer as displayed.

    Attributes:
        question: The question.
        key: Key of the answer in the server's memory.
        html: The answer as HTML.
        found: Whether the documents answer the question.
        findings: Results of the checks, as sentences.
        sources: The passages in the prompt.
        statements: The statements of the answer, with the URLs of the passages that support them, or "".
        reasoning: The reasoning before the answer, or None.
        usage: Model, tokens and price, as a sentence.
    """

    question: str
    key: str
    html: Markup
    found: bool
    findings: Sequence[Finding]
    sources: Sequence[SourceView]
    statements: Sequence[tuple[Statement, str]]
    reasoning: str | None
    usage: str

    @property
    def cited(self) -> list[SourceView]:
        """The sources that the answer cites."""
        return [source for source in self.sources if source.is_cited]

    @property
    def uncited(self) -> list[SourceView]:
        """The sources that the answer does not cite."""
        return [source for source in self.sources if not source.is_cited]


def source_views(
    hits: Sequence[NodeWithScore],
    link: Callable[..., str],
    citations: Sequence[tuple[int, Source]] = (),
    mark_words: Callable[[str], Markup] = escape,
    link_figure: Callable[[str, Figure], str] | None = None,
) -> list[SourceView]:
    """Return passages as entries for the list of sources.

    Args:
        hits: The passages, in the order of the prompt.
        link: Function that returns the URL of a chunk; see `Links.passage`.
        citations: For each citation, the number of the passage and the cited place in it.
        mark_words: Function that highlights the words of the question in a passage that is not quoted.
        link_figure: Function that returns the URL of a figure's picture; see `Links.figure`. None shows no figures.
    """
    places: dict[int, list[Source]] = {}
    for number, place in citations:
        places.setdefault(number, []).append(place)
    sources = []
    for at, hit in enumerate(hits, start=1):
        best = RetrievedChunk.of(at, hit).place
        of_hit = places.get(at) or [best]
        excerpts = [_excerpt(hit, place, link, mark_words if place == best else None) for place in of_hit]
        label = " and ".join(map(str, of_hit))
        figures = [] if link_figure is None else _figures(RetrievedChunk.of(at, hit), of_hit, hit, link_figure)
        is_cited = at in places
        url = excerpts[0].url
        sources.append(
            SourceView(number=at, label=label, url=url, is_cited=is_cited, excerpts=excerpts, figures=figures)
        )
    return sources


def _figures(
    chunk: RetrievedChunk, places: Sequence[Source], hit: NodeWithScore, link: Callable[[str, Figure], str]
) -> list[tuple[Figure, str]]:
    """Return the figures of quoted sentences with the URLs of their pictures."""
    nodes = hit.chunks if isinstance(hit, MergedChunk) else [hit.node]
    holders = {each.id: node for node in nodes for each in figures_from_json(node.metadata.get(keys.FIGURES))}
    figures = chunk.figures_at(places)
    return [(figure, link(holders[figure.id].node_id, figure)) for figure in figures if figure.id in holders]


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


def _excerpt(
    hit: NodeWithScore, place: Source, link: Callable[..., str], mark_words: Callable[[str], Markup] | None
) -> Excerpt:
    text = hit.node.get_content()
    evidence: dict[str, Any] = {"text": visible(text)}
    if place.doc_id and place.start_char is not None and place.end_char is not None:
        evidence = {"file": place.doc_id, "start": place.start_char, "end": place.end_char}
    section, page_words = place_of(place)
    head, name = str(hit.node.metadata.get(keys.TABLE_HEAD) or ""), place.file_name
    columns = keys.columns_at(hit.node.metadata, place.start_char or 0)
    return Excerpt(
        quote=quote_around(
            text, _span_of(place, hit, text), mark_words, table_head=head, columns=columns, file_name=name
        ),
        title=visible(place.title or place.file_name or place.doc_id or "Passage"),
        place=" · ".join(filter(None, (section.rpartition(" › ")[2], page_words))),
        url=address_of(hit, place, link),
        evidence=json.dumps(evidence),
    )


def _span_of(place: Source, hit: NodeWithScore, text: str) -> Span:
    """Return the start and end of a place in the text of its passage, or those of the passage if they are unknown."""
    whole = Source.of(hit.node)
    start = (place.start_char or 0) - (whole.start_char or 0)
    end = start + (place.end_char or 0) - (place.start_char or 0)
    return (start, end) if place != whole and 0 <= start < end <= len(text) else (0, len(text))


# ---- the answer text -------------------------------------------------------------------------------------------------

# Links, other tags, and citations in a rendered answer.
_CITED = re.compile(r"<a (?:[^<]|<(?!a |/a>))*+</a>|<[^<>]*>|(?:\[Source \d{1,9}\])+", re.IGNORECASE | re.DOTALL)


def answer_html(
    text: str,
    report: CitationReport | None,
    sources: Sequence[SourceView],
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
        >>> source = SourceView(number=1, label="manual.md", url="/p/a/passage/1", is_cited=True)
        >>> print(answer_html("Three days [Source 1].", None, [source]))
        <p>Three days <a class="cite" href="/p/a/passage/1" title="manual.md" aria-label="Source 1">1</a>.</p>
    """
    html = str(render_markdown(text)).rstrip()
    edits: list[tuple[int, str]] = []
    for quotation in report.quotations if report else ():
        edits += _edits(html, text, quotation, quotation.status, link_quotation(quotation))
    for figure in report.unsupported if report else ():
        edits += _edits(html, text, figure, "unsupported")
    for at, markup in sorted(edits, reverse=True):
        html = html[:at] + markup + html[at:]
    by_number = {source.number: source for source in sources}
    return Markup(_CITED.sub(lambda part: _linked(part[0], by_number), html))


def _edits(
    html: str, text: str, claim: Quotation | UnsupportedFigure, result: str, url: str = ""
) -> list[tuple[int, str]]:
    """Return the insertions that highlight a checked quotation or figure.

    Each insertion is a tuple of an offset in `html` and the markup to insert there. The list is empty if the quotation
    or figure cannot be found in the HTML.
    """
    part = text[claim.start : claim.end]
    pattern = rf"<[^<>]*>|{re.escape(escape_html(part, quote=False))}"
    places = [place for place in re.finditer(pattern, html) if place[0][0] != "<"]
    if (number := text[: claim.start].count(part)) >= len(places):
        return []
    label, explanation = _RESULTS[result]
    kind, element = result.replace("_", "-"), "a" if url else "span"
    link = Markup(' href="{}"').format(url) if url else Markup("")
    before = Markup('<mark class="check check-{}" title="{}">').format(kind, explanation)
    after = Markup('</mark><{0} class="check-label check-label-{1}"{2} title="{3}">{4}</{0}>')
    start, end = places[number].span()
    return [(start, str(before)), (end, str(after.format(Markup(element), kind, link, explanation, label)))]


def _linked(part: str, sources: Mapping[int, SourceView]) -> str:
    """Return a part of the HTML, with each source replaced by a link if the part is a citation."""
    numbers = [] if part.startswith("<") else [number for _, _, citation in citations_of(part) for number in citation]
    if not numbers or not all(number in sources for number in numbers):
        return part
    link = Markup('<a class="cite" href="{}" title="{}" aria-label="Source {}">{}</a>')
    return " ".join(link.format(sources[number].url, sources[number].label, number, number) for number in numbers)


# ---- showing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredAnswer:
    """A finished answer in the server's memory.

    Attributes:
        question: The question with its options; `after` is the key of the previous answer.
        text: The answer in Markdown.
        view: The answer as displayed.
    """

    question: AskForm
    text: str
    view: AnswerView


def show(request: Request) -> Response:
    """Show the form, and a conversation if the URL contains the id of its last answer; no model is called."""
    key = parameter(request, "answer")
    if not key:
        return _form(request, AskForm.from_fields({name: request.query_params.getlist(name) for name in FIELDS}))
    turns = _conversation(request, key)
    if not turns:
        raise HTTPException(404, "This answer is no longer in memory: ask the question again.")
    return _form(request, replace(turns[-1].question, text="", after=key), turns=turns)


def _form(
    request: Request, question: AskForm, *, turns: Sequence[StoredAnswer] = (), problem: ProblemView | None = None
) -> Response:
    project, model, missing, passages = project_of(request), "", None, None
    try:
        if not project.documents():
            missing = problem_of(NoVersionError(f"Project {project.name!r} is empty."), project)
        model = project.as_chat_engine().engine.answer_stream.name
    except ModelError as error:
        command = f"llama-index-contextual configure {quoted(project.name)} answer_llm=ollama:llama3.1"
        missing = missing or ProblemView(
            title="No model is configured", text=end_sentence(error.problem), command=command
        )
        if question.text:
            filters = question.selection.filters(project)
            hits = project.retrieve(question.text, top_k=PASSAGES, filters=filters).to_nodes()
            link = partial(Links(project.name).passage, q=question.text)
            passages = source_views(
                hits, link, mark_words=_word_highlight(project, question.text), link_figure=Links(project.name).figure
            )
    facets = facets_of(request.app.state.facets, project).facets(Selection())
    return page(
        request,
        "ask.html",
        status_code=problem.status if problem else 200,
        question=question,
        turns=[turn.view for turn in turns],
        passages=passages,
        problem=problem,
        missing=missing,
        model=model,
        modes=get_args(Mode),
        styles=STYLE_LABELS,
        default_mode=project.config.mode,
        default_style=STYLE_LABELS.get(project.config.style, "As set in the project"),
        documents=project.documents(),
        conditions=[entry.value for facet in facets if facet.parameter == "where" for entry in facet.values],
        max_question=MAX_QUESTION,
    )


def _word_highlight(project: Project, question: str) -> Callable[[str], Markup]:
    """Return a function that highlights the words of a question."""
    analyzer = analyzer_of(project)
    return partial(highlight, terms=set(analyzer.query_terms(question)), analyzer=analyzer)


def _conversation(request: Request, key: str) -> list[StoredAnswer]:
    """Return the answers of a conversation up to the one with this key, as far as they are in memory, oldest first."""
    turns: list[StoredAnswer] = []
    while (
        key and len(turns) < MAX_TURNS and (turn := request.app.state.answers.get(f"{project_of(request).name} {key}"))
    ):
        turns.insert(0, turn)
        key = turn.question.after
    return turns


# ---- answering -------------------------------------------------------------------------------------------------------


async def answer(request: Request) -> Response:
    """Answer a posted question: stream events if the client accepts them, or redirect to the finished answer.

    If the client disconnects, the call to the model is stopped.
    """
    project, question = project_of(request), AskForm()
    wants_events = EVENTS in request.headers.get("accept", "")
    try:
        question = AskForm.from_fields(await form_fields(request, MAX_BODY))
        if wants_events:
            return StreamingResponse(_event_lines(request, project, question), media_type=EVENTS)
        url = await while_connected(request, _finished(request, project, question))
        if url is None:
            return Response(status_code=499)
    except ContextualError as error:
        problem = problem_of(error, project)
        if wants_events:
            return Response(_encode(_problem_event(problem)), media_type=EVENTS)
        return await asyncio.to_thread(_form, request, question, problem=problem)
    return RedirectResponse(url, status_code=303)


async def _finished(request: Request, project: Project, question: AskForm) -> str:
    """Answer a question and return the URL of the answer."""
    url = ""
    async with aclosing(_events(request, project, question)) as events:
        async for event in events:
            url = event.get("url", "")
    return url


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
        RefusedError: The user has reached a limit.
    """
    with request.app.state.limits.answering(request.scope["user"]) as spent:
        async with aclosing(_answer_events(request, project, question, spent)) as events:
            async for event in events:
                yield event


async def _answer_events(
    request: Request, project: Project, question: AskForm, spent: Spent
) -> AsyncGenerator[dict[str, Any], None]:
    chat, turns = await asyncio.to_thread(_chat_engine, project, question), _conversation(request, question.after)
    stream = await chat.astream_chat(question.text, _history(turns))
    link = partial(Links(project.name).passage, q=question.text)
    sources = source_views(stream.source_nodes, link)
    yield {"event": "passages", "sources": [{"number": s.number, "label": s.label, "url": s.url} for s in sources]}
    try:
        async with aclosing(cast("AsyncGenerator[ChatResponse, None]", stream.achat_stream)) as pieces:
            async for piece in pieces:
                yield {"event": "text", "text": piece.delta}
    finally:
        if stream.grounded is not None and stream.grounded.usage is not None:
            spent.dollars = stream.grounded.usage.dollars or 0.0
    response, key = cast(GroundedResponse, stream.grounded), secrets.token_urlsafe(16)
    view = await asyncio.to_thread(_answer_view, project, question.text, key, response)
    if question.after and not turns:
        note = "The earlier answers are no longer in memory: this question was answered without them."
        view = replace(view, findings=[Finding(kind="note", text=note), *view.findings])
    request.app.state.answers.put(
        f"{project.name} {key}", StoredAnswer(question, "" if response.is_missing else str(response), view)
    )
    html = request.app.state.templates.get_template("_answer.html").render(answer=view)
    yield {"event": "answer", "key": key, "html": html, "url": f"{Links(project.name).ask()}?answer={key}"}


def _chat_engine(project: Project, question: AskForm) -> GroundedChatEngine:
    if not question.text:
        raise InputError("The question is empty: write one.")
    filters, mode = question.selection.filters(project), cast(Mode, question.mode) or None
    return project.as_chat_engine(search_mode=mode, filters=filters, style=question.style or None)


def _history(turns: Sequence[StoredAnswer]) -> list[ChatMessage]:
    """Return the last exchanges of a conversation as messages."""
    return [
        ChatMessage(role=role, content=text)
        for turn in [turn for turn in turns if turn.text][-TURNS:]
        for role, text in ((MessageRole.USER, turn.question.text), (MessageRole.ASSISTANT, turn.text))
    ]


def _answer_view(project: Project, question: str, key: str, response: GroundedResponse) -> AnswerView:
    """Return a checked answer in the form in which it is displayed."""
    links, text, report = Links(project.name), response.response or "", response.citations
    hits = response.source_nodes
    link = partial(links.passage, q=question)
    sources = source_views(
        hits, link, response.cited_sources, _word_highlight(project, question), Links(project.name).figure
    )

    def link_to(one: Quotation | Statement) -> str:
        if one.found_in is None:
            return ""
        hit = hits[one.found_in - 1]
        return address_of(hit, one.source or Source.of(hit.node), partial(links.passage, q=one.text))

    usage = "No model was called"
    if response.usage is not None:
        usage = str(response.usage) if response.usage.dollars is None else f"{response.usage}, at list prices"
    return AnswerView(
        question=question,
        key=key,
        html=answer_html(text, report, sources, link_to),
        found=response.found,
        findings=findings_of(response),
        sources=sources,
        statements=[(one, link_to(one)) for one in (report.statements if report else ())],
        reasoning=response.reasoning,
        usage=f"{usage}.",
    )
