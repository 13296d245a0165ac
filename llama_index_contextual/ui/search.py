"""The search view: a start page, and the results as quotations by document, with facets that narrow the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, get_args

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.text import excerpt
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ContextualError, InputError
from llama_index_contextual.figures import Figure
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.project.project import Project, SearchOptions
from llama_index_contextual.search.response import Explanation, visible, without_repetitions
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk
from llama_index_contextual.ui import places, views
from llama_index_contextual.ui.facets import NAMES, Selection, VersionFacets, facets_of
from llama_index_contextual.ui.markdown import highlight
from llama_index_contextual.ui.marks import Span
from llama_index_contextual.ui.pages import Originals
from llama_index_contextual.ui.quotes import LONGEST, Quote, quote_of

MAX_RESULTS = 100
"""Maximum number of results on a page."""

MAX_TEXT = 70
"""Maximum length of the beginning of a result."""

MAX_SEARCHES = 500
"""Number of searches whose results are kept."""

_MATCHES = {
    "high": "A good match.",
    "medium": "A partial match.",
    "low": "A weak match: even the best passage has little in common with the question.",
}
"""The confidence levels in words."""
_WORDS = "Passages with words of the question."


def routes() -> list[Route]:
    """Return the routes of this view."""
    return [Route("/p/{project}/", views.with_problems(search), name="search")]


# ---- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Result:
    """A result as displayed.

    Attributes:
        node_id: Id of the chunk.
        rank: Position in the ranking, starting at 1.
        place: Section and page of the marked sentence or row, or of the passage if nothing is marked.
        date: Date of the document, or "".
        mark: Start and end of this sentence or row in the document's text, or None.
        quote: The sentence or row.
        citation: The quotation with the file and the place, for copying.
        structure: The structural part of the context, with marks.
        context: The part of the context written by an LLM or a person, with marks.
        writer: Author of this part: "llm", "given", …
        relevance: The estimated relevance in words, or "".
        explanation: The reasons for the rank, or None.
        facts: The user's own metadata.
        figures: The figures next to the marked sentence or row.
    """

    node_id: str
    rank: int
    place: places.PlaceWords
    date: str
    mark: Span | None
    quote: Quote
    citation: str
    structure: Markup
    context: Markup
    writer: str
    relevance: str
    explanation: Explanation | None
    facts: Mapping[str, Any]
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Group:
    """The results from one document.

    Attributes:
        doc_id: Id of the document, or "".
        title: Title of the document.
        file_name: Name of the file, or the id of the document.
        picture_of: Checksum of the file if there are pictures of its pages, otherwise "".
        newer: Id of the newest document that supersedes this one, or "".
        results: The results, best first.
    """

    doc_id: str
    title: str
    file_name: str
    picture_of: str
    newer: str
    results: Sequence[Result]


def groups_of(
    response: RetrievalResponse,
    hits: Sequence[RetrievedChunk],
    project: Project,
    originals: Originals | None = None,
) -> list[Group]:
    """Return search results as displayed; the document with the best result comes first.

    Args:
        response: The response of the search.
        hits: The results to display.
        project: The project.
        originals: The original files, for pictures of their pages; without them, there are no pictures.
    """
    analyzer, version = views.analyzer_of(project), project.live_version
    explanations = {explanation.node_id: explanation for explanation in response.explanations}
    terms = set(analyzer.query_terms(response.query))
    by_document: dict[str, list[RetrievedChunk]] = {}
    for hit in without_repetitions(hits):
        by_document.setdefault(hit.source.doc_id or "", []).append(hit)
    groups = []
    for doc_id, of_document in by_document.items():
        record, results = version.record(doc_id), []
        for hit in of_document:
            matches = terms | set(hit.lexical.matched_terms if hit.lexical else ())
            mark_words = partial(highlight, terms=matches, analyzer=analyzer)
            results.append(_result(hit, explanations.get(hit.node_id), matches, mark_words))
        file_name = of_document[0].source.file_name or doc_id
        title = visible(of_document[0].source.title or file_name or of_document[0].node_id)
        has_pages = originals is not None and record is not None and originals.may_have_pages(record)
        groups.append(
            Group(
                doc_id,
                title,
                file_name,
                record.content_hash if record and has_pages else "",
                of_document[0].newer or "",
                results,
            )
        )
    return groups


def _result(
    hit: RetrievedChunk, explanation: Explanation | None, terms: set[str], mark_words: Callable[[str], Markup]
) -> Result:
    structure, context = keys.context_parts(hit.node.metadata)
    quote, place, date = _quote(hit, terms, mark_words), places.place_of(hit.place), places.date_of(hit.node.metadata)
    file_name = hit.source.file_name or hit.source.doc_id or hit.node_id
    return Result(
        node_id=hit.node_id,
        rank=hit.rank,
        place=place,
        date=date,
        mark=(hit.spotlight.start, hit.spotlight.end) if hit.spotlight else None,
        quote=quote,
        citation=places.citation(quote.text, file_name, str(place), date),
        structure=mark_words(visible(structure)),
        context=mark_words(visible(context)),
        writer=str(hit.node.metadata.get(keys.CONTEXT_SOURCE) or ""),
        relevance="probably relevant" if (hit.relevance or 0.0) >= 0.5 else "",
        explanation=explanation,
        facts=keys.user_metadata(hit.node),
        figures=hit.near_figures,
    )


def _quote(hit: RetrievedChunk, terms: set[str], mark_words: Callable[[str], Markup]) -> Quote:
    """Return the marked sentence or row of a result, or the text with the words of the question if there is none."""
    if hit.spotlight is None:
        text = visible(hit.text)
        start = max(0, len(text) - len(excerpt(text, terms, LONGEST).removeprefix("… ")))
        return quote_of(text, (start, min(len(text), start + LONGEST)), mark_words)
    first = hit.spotlight.start - (hit.source.start_char or 0)
    span, head = (first, first + len(hit.spotlight.text)), hit.table_head or ""
    columns = keys.columns_at(hit.metadata, hit.spotlight.start)
    return quote_of(hit.text, span, mark_words, table_head=head, columns=columns, file_name=hit.source.file_name)


def confidence_words(response: RetrievalResponse) -> str:
    """Return a sentence that describes how well the passages match the question."""
    if not response.results:
        return response.verdict()
    other = _WORDS if response.mode_used == "lexical" else "The best passages."
    return " ".join(filter(None, (_MATCHES.get(response.confidence_level or "", other), response.missing)))


# ---- recent searches -------------------------------------------------------------------------------------------------

# The view of a passage links to the previous and the next result of its search, unless they have been dropped.


class RecentHit(NamedTuple):
    """A result of a search.

    Attributes:
        node_id: Id of the chunk.
        doc_id: Id of the document.
        text: The beginning of the marked sentence or row.
        place: The page, sheet, slide or section of the result, or "".
        mark: Start and end of the marked sentence or row in the document's text, or None.
    """

    node_id: str
    doc_id: str
    text: str
    place: str
    mark: Span | None


@dataclass(frozen=True)
class HitStrip:
    """The position of a passage among the results of a search.

    Attributes:
        results: URL of the results.
        rank: Position of the passage, starting at 1; 0 if it is not among the results.
        count: Number of results.
        before: The previous result, or None.
        after: The next result, or None.
        same_document: The results from the document of the passage, in the order of the ranking.
    """

    results: str
    rank: int = 0
    count: int = 0
    before: RecentHit | None = None
    after: RecentHit | None = None
    same_document: Sequence[RecentHit] = ()


class RecentHits:
    """Thread-safe memory of the results of recent searches."""

    def __init__(self) -> None:
        self._hits: LRUCache[str, tuple[RecentHit, ...]] = LRUCache(MAX_SEARCHES)

    def remember(self, links: views.Links, parameters: dict[str, Any], hits: Sequence[RecentHit]) -> None:
        """Keep the results of a search.

        Args:
            links: The URLs of the project.
            parameters: Parameters of the search's URL: `q` and, if they were given, the mode and the filters.
            hits: The results in the order in which they are shown.
        """
        self._hits.put(links.search(**parameters), tuple(hits))

    def strip(self, links: views.Links, parameters: dict[str, Any], node_id: str) -> HitStrip | None:
        """Return the position of a passage among the results of a search; None if the URL names no search."""
        if not parameters.get("q"):
            return None
        url = links.search(**parameters)
        hits = self._hits.get(url) or ()
        at = next((at for at, hit in enumerate(hits) if hit.node_id == node_id), None)
        if at is None:
            return HitStrip(url)
        before, after = hits[at - 1] if at else None, hits[at + 1] if at + 1 < len(hits) else None
        same = [hit for hit in hits if hit.doc_id == hits[at].doc_id]
        return HitStrip(url, at + 1, len(hits), before, after, same)


def search_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of the search from which a page was opened, without empty ones."""
    query = request.query_params
    single = {name: query.get(name, "").strip() for name in ("q", "mode", "top_k")}
    several = {
        name: [value.strip() for value in query.getlist(name) if value.strip()] for name in ("where", "file", *NAMES)
    }
    return {name: value for name, value in (single | several).items() if value}


# ---- the view --------------------------------------------------------------------------------------------------------


def search(request: Request) -> Response:
    """Show the start page, or the results if there is a question.

    If a request with a question also has the `part` parameter, return only the results, without the rest of the page.
    """
    project = views.project_of(request)
    facets = facets_of(request.app.state.facets, project)
    selection = Selection.from_parameters(request.query_params.getlist)
    question, mode = request.query_params.get("q", "").strip(), views.parameter(request, "mode")
    top_k = views.parameter(request, "top_k")
    links, options = views.Links(project.name), {"mode": mode, "top_k": top_k}
    query = {"q": question[: views.MAX_QUESTION], **options}
    is_part = bool(question) and "part" in request.query_params
    template = "_results.html" if is_part else "search.html"
    facet_list = facets.facets(selection)
    fields = {(facet.parameter, entry.value) for facet in facet_list for entry in facet.values}
    values: dict[str, Any] = {
        "q": question[: views.MAX_QUESTION + 1],
        "options": options,
        "modes": get_args(Mode),
        "facets": facet_list,
        "selected": selection.pairs,
        "other_filters": [pair for pair in selection.pairs if pair not in fields],
        "chips": [(visible(text), links.search(**query, **others)) for text, others in selection.chips()],
        "total": len(facets.documents),
        "response": None,
        "problem": None,
    }
    try:
        views.clean_value(question, "q", limit=views.MAX_QUESTION)
        filters = selection.filters(project)
        if not question:
            return views.page(request, template, documents=_documents(project, facets, filters), **values)
        count = views.number(request, "top_k", "The number of results", 1, MAX_RESULTS)
        search_options: SearchOptions = {
            "mode": _mode(mode),
            "top_k": count,
            "filters": filters,
            "min_relevance": "auto",
        }
        response = project.retrieve(question, explain=not is_part, **search_options)
    except ContextualError as error:
        values["problem"] = views.problem_of(error, project)
        return views.page(request, template, status_code=values["problem"].status, **values)
    parameters = search_parameters(request)
    groups, folded = (
        groups_of(response, hits, project, request.app.state.originals) for hits in (response.results, response.folded)
    )
    if not is_part:
        request.app.state.hits.remember(links, parameters, _recent_hits([*groups, *folded]))
    values |= {
        "response": response,
        "groups": groups,
        "folded": folded,
        "confidence": confidence_words(response),
    }
    return views.page(request, template, parameters=parameters, **values)


def _mode(mode: str) -> Any:
    if mode and mode not in get_args(Mode):
        raise InputError(f"The mode {mode[:40]!r} is unknown: choose semantic, lexical or hybrid.", value=mode)
    return mode or None


def _documents(project: Project, facets: VersionFacets, filters: Any) -> list[tuple[DocumentRecord, str]]:
    """Return the newest documents that pass the filters, with their dates in words."""
    ids: set[str] | None = None
    if filters is not None:
        version = project.live_version
        ids = version.docstore.document_ids(version.resolved(filters))
    rows = [document for document in facets.documents if ids is None or document.record.doc_id in ids]
    return [(document.record, places.day_words(document.day)) for document in rows]


def _recent_hits(groups: Sequence[Group]) -> list[RecentHit]:
    return [_recent_hit(result, group.doc_id) for group in groups for result in group.results]


def _recent_hit(result: Result, doc_id: str) -> RecentHit:
    line, place = result.quote.text, result.place
    text = line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT].rpartition(' ')[0] or line[:MAX_TEXT]} …"
    return RecentHit(result.node_id, doc_id, text, place.page or place.section.rpartition("› ")[2], result.mark)
