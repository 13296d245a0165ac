"""The search view: the results, the reasons for their ranks, and facets that narrow the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from llama_index.core.vector_stores.types import MetadataFilters
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import ContextualError, InputError
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import Explanation, Source, visible
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk
from llama_index_contextual.tools.filters import parse_conditions
from llama_index_contextual.ui import views
from llama_index_contextual.ui.hits import search_parameters
from llama_index_contextual.ui.markdown import highlight, mark_sentence
from llama_index_contextual.ui.marks import Span

EXCERPT = 420
"""Number of characters in an excerpt."""

MAX_RESULTS = 100
"""Maximum number of results on a page."""

MAX_CONDITIONS = 50
"""Maximum number of conditions and files that narrow a search."""

FACET_VALUES = 12
"""Maximum number of values of a metadata key that is offered as a facet."""


def routes() -> list[Route]:
    """Return the routes for this view."""
    return [Route("/p/{project}/", views.with_problems(search), name="search")]


# ---- result parts --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """The contribution of one ranking to a score, shown as a part of the result's bar.

    Attributes:
        name: Name of the ranking.
        value: The contribution, which may be negative.
        x: Start of the ranking's part of the bar, in percent.
        width: Width of the ranking's part of the bar, in percent.
    """

    name: str
    value: float
    x: float
    width: float

    @property
    def kind(self) -> str:
        """The name as a CSS class."""
        return self.name.replace(" ", "-")


@dataclass(frozen=True, kw_only=True)
class Result:
    """A result or a near miss as displayed.

    Attributes:
        node_id: Id of the chunk.
        rank: Position in the ranking, starting at 1.
        source: Location of the marked sentence or row in the document, or of the passage if nothing is marked.
        mark: Start and end of this sentence or row in the document's text, or None.
        excerpt: The text starting at this sentence or row, with the sentence or row and the question's words marked.
        structure: The structural part of the context, with marks.
        written: The part of the context written by an LLM or a person, with marks.
        writer: Author of this part: "llm", "given", …
        score: Score of the ranking or of the reranker.
        shares: The contribution of each ranking.
        relevance: The estimated relevance in words, or "".
        explanation: The reasons for the rank, or None.
        facts: The user's own metadata.
    """

    node_id: str
    rank: int
    source: Source
    mark: Span | None
    excerpt: Markup
    structure: Markup
    written: Markup
    writer: str
    score: float
    shares: Sequence[Share]
    relevance: str
    explanation: Explanation | None
    facts: Mapping[str, Any]


def results_of(response: RetrievalResponse, analyzer: Analyzer) -> list[Result]:
    """Return search results as displayed."""
    explanations = {one.node_id: one for one in response.explanations}
    highest = max((_width(one.shares) for one in response.explanations), default=0.0)
    of_question = set(analyzer.query_terms(response.query))
    return [_result_view(hit, explanations.get(hit.node_id), of_question, analyzer, highest) for hit in response]


def _result_view(
    hit: RetrievedChunk, explanation: Explanation | None, of_question: set[str], analyzer: Analyzer, highest: float
) -> Result:
    terms = of_question | set(hit.lexical.matched_terms if hit.lexical else ())
    structure, written = keys.context_parts(hit.node.metadata)
    text, spotlight = hit.excerpt(" ".join(terms), EXCERPT), hit.spotlight
    if len(text) > EXCERPT:
        text = f"{text[:EXCERPT].rpartition(' ')[0] or text[:EXCERPT]}\u00a0…"
    start = 2 if text.startswith("… ") else 0
    sentence = (start, start + len(visible(spotlight.text))) if spotlight else (0, 0)
    return Result(
        node_id=hit.node_id,
        rank=hit.rank,
        source=hit.place,
        mark=(spotlight.start, spotlight.end) if spotlight else None,
        excerpt=mark_sentence(text, sentence, lambda part: highlight(part, terms, analyzer)),
        structure=highlight(visible(structure), terms, analyzer),
        written=highlight(visible(written), terms, analyzer),
        writer=str(hit.node.metadata.get(keys.CONTEXT_SOURCE) or ""),
        score=hit.get_score(),
        shares=shares_of(explanation.shares if explanation else {}, highest),
        relevance=relevance_words(hit.relevance),
        explanation=explanation,
        facts=keys.user_metadata(hit.node),
    )


def _width(shares: Mapping[str, float]) -> float:
    return sum(value for value in shares.values() if value > 0)


def shares_of(shares: Mapping[str, float], highest: float) -> list[Share]:
    """Return the parts of a bar, side by side; parts for negative summands overlap the end of the bar.

    Args:
        shares: The summands of a score by name.
        highest: The sum that fills the bar.

    Example:
        >>> [(one.name, one.x, one.width) for one in shares_of({"a": 0.5, "b": 0.3, "less": -0.1}, 0.8)]
        [('a', 0.0, 62.5), ('b', 62.5, 37.5), ('less', 87.5, 12.5)]
    """
    unit = 100 / highest if highest > 0 else 0.0
    bars, end = [], 0.0
    for name, value in sorted(shares.items(), key=lambda share: share[1] < 0):
        width = abs(value) * unit
        start = end if value >= 0 else max(0.0, end - width)
        bars.append(Share(name, value, round(start, 2), round(width, 2)))
        end = end + width if value >= 0 else start
    return bars


def relevance_words(relevance: float | None) -> str:
    """Return "probably relevant", or "" if the relevance is low or unknown."""
    return "probably relevant" if relevance is not None and relevance >= 0.5 else ""


def confidence_words(response: RetrievalResponse) -> str:
    """Return a sentence that describes how well the passages match the question."""
    if verdict := response.verdict():
        return verdict
    return f"Only the {response.mode_used} index was searched: that does not tell how well the passages match."


# ---- the view --------------------------------------------------------------------------------------------------------


def search(request: Request) -> Response:
    """Show the search form, and the results if there is a question."""
    project = views.project_of(request)
    where = [views.clean_value(one, "where") for one in request.query_params.getlist("where")]
    files = [views.clean_value(one, "file") for one in request.query_params.getlist("file") if one.strip()]
    if len(where) + len(files) > MAX_CONDITIONS:
        raise InputError(f"There are {len(where) + len(files)} filters: use at most {MAX_CONDITIONS}.")
    question, mode = request.query_params.get("q", "").strip(), views.parameter(request, "mode")
    top_k = views.parameter(request, "top_k")
    chosen = {"q": question[: views.MAX_QUESTION], "mode": mode, "top_k": top_k}
    values: dict[str, Any] = {
        "q": question[: views.MAX_QUESTION + 1],
        "mode": mode or project.config.mode,
        "top_k": top_k or str(project.config.top_k),
        "modes": get_args(Mode),
        "where": where,
        "files": files,
        "facets": facets_of(project, where),
        "active": active_filters(views.Links(project.name), chosen, where, files),
        "documents": project.documents(),
        "response": None,
    }
    if not question:
        return views.page(request, "search.html", problem=None, **values)
    try:
        views.clean_value(question, "q", limit=views.MAX_QUESTION)
        response = project.retrieve(
            question, mode=_mode(mode), top_k=_top_k(top_k), filters=_filters(project, where, files), explain=True
        )
    except ContextualError as error:
        problem = views.problem_of(error, project)
        return views.page(request, "search.html", status_code=problem.status, problem=problem, **values)
    links, parameters = views.Links(project.name), search_parameters(request)
    request.app.state.hits.remember(links, parameters, response)
    values |= {"response": response, "parameters": parameters}
    return views.page(
        request,
        "search.html",
        problem=None,
        results=results_of(response, views.analyzer_of(project)),
        confidence=confidence_words(response),
        **values,
    )


def _mode(mode: str) -> Any:
    if mode and mode not in get_args(Mode):
        raise InputError(f"The mode {mode[:40]!r} is unknown: choose semantic, lexical or hybrid.", value=mode)
    return mode or None


def _top_k(top_k: str) -> int | None:
    if not top_k:
        return None
    if not (top_k.isascii() and top_k.isdigit() and len(top_k) < 10 and 1 <= int(top_k) <= MAX_RESULTS):
        raise InputError(f"The number of results must be between 1 and {MAX_RESULTS}.", value=top_k)
    return int(top_k)


def _filters(project: Project, where: Sequence[str], files: Sequence[str]) -> MetadataFilters | None:
    return parse_conditions(project, where, files, condition="The filter", listing="the view Project")


def active_filters(
    links: views.Links, chosen: Mapping[str, str], where: Sequence[str], files: Sequence[str]
) -> list[tuple[str, str]]:
    """Return each condition and file that narrows the search, with the URL of the search without it."""
    conditions = [
        (condition, links.search(**chosen, where=[one for one in where if one != condition], file=files))
        for condition in dict.fromkeys(where)
    ]
    names = [(file, links.search(**chosen, where=where, file=[one for one in files if one != file])) for file in files]
    return [*conditions, *names]


# ---- facets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facet:
    """A metadata key with few values.

    Attributes:
        key: The key.
        values: For each value, the text, the condition, and whether the search is limited to this value.
    """

    key: str
    values: Sequence[tuple[str, str, bool]]


def facets_of(project: Project, where: Sequence[str]) -> list[Facet]:
    """Return the user's metadata keys that have few values, or an empty list for an empty project."""
    if not project.documents():
        return []
    facets = []
    for key, values in project.live_version.metadata_values.items():
        is_usable = key not in keys.RUNNING_LINES and key.strip() == key and not set(key) & set("=!<>~")
        if is_usable and 1 < len(values) <= FACET_VALUES:
            rows = [(visible(str(value)), f"{key}={value}") for value in values if len(str(value)) <= 80]
            facets.append(Facet(key, [(shown, condition, condition in where) for shown, condition in rows]))
    return facets
