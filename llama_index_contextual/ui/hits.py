"""The results of recent searches, so that the view of a passage can link to the previous and the next result.

Results are kept in memory by the URL of their search. If they have been dropped, a passage has no such links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.requests import Request

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual.ui.facets import NAMES
from llama_index_contextual.ui.marks import Span
from llama_index_contextual.ui.views import Links

MAX_SEARCHES = 500
"""Number of searches whose results are kept."""


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

    def remember(self, links: Links, parameters: dict[str, Any], hits: Sequence[RecentHit]) -> None:
        """Keep the results of a search.

        Args:
            links: The URLs of the project.
            parameters: Parameters of the search's URL: `q` and, if they were given, the mode and the filters.
            hits: The results in the order in which they are shown.
        """
        self._hits.put(links.search(**parameters), tuple(hits))

    def strip(self, links: Links, parameters: dict[str, Any], node_id: str) -> HitStrip | None:
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
