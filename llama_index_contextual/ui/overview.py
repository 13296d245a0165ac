"""The views of a project and of a document: ingested documents, segments and chunks, versions, costs and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from llama_index.core.schema import BaseNode
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llama_index_contextual import metadata as keys
from llama_index_contextual.contextualizer.cost import money
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.receipts import RunCost
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import Source
from llama_index_contextual.ui.views import page, parameter, project_of, quoted, with_problems

DOCUMENTS_PER_PAGE = 100
CHUNKS_PER_PAGE = 50


def routes() -> list[Route]:
    """Return the routes of these views."""
    return [
        Route("/p/{project}/project", with_problems(overview), name="overview"),
        Route("/p/{project}/document", with_problems(document), name="document"),
    ]


# ---- the project ---------------------------------------------------------------------------------------------------


def overview(request: Request) -> Response:
    """Show the documents, versions, costs and failures of a project."""
    project = project_of(request)
    find = parameter(request, "find", limit=200)
    records = [record for record in project.documents() if _matches(record, find)]
    start = start_of(request, len(records), DOCUMENTS_PER_PAGE)
    return page(
        request,
        "project.html",
        find=find,
        start=start,
        records=records[start : start + DOCUMENTS_PER_PAGE],
        total=len(records),
        per_page=DOCUMENTS_PER_PAGE,
        **project_values(project),
    )


def project_values(project: Project) -> dict[str, Any]:
    """Return the template values for the project's part of a page."""
    return {
        "info": project.info(),
        "versions": list(reversed(project.versions())),
        "cost": project.cost(),
        "failed": [record for record in project.documents() if record.fallback_chunks],
        "retry": f"llama-index-contextual retry {quoted(project.name)}",
        "money": money,
        "day": day,
        "run_facts": run_facts,
    }


def _matches(record: DocumentRecord, find: str) -> bool:
    return find.casefold() in f"{record.doc_id}\n{record.title or ''}".casefold()


def start_of(request: Request, total: int, per_page: int) -> int:
    """Return the position of the first row on the requested page of a list.

    Raises:
        InputError: The parameter is not a number.
    """
    text = parameter(request, "start", limit=12) or "0"
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"The start {text!r} is not a number.", value=text)
    return max(0, min(int(text), total - 1)) // per_page * per_page


def day(moment: str | float | None) -> str:
    """Format a time in UTC, to the minute.

    Example:
        >>> day("2026-05-04T10:20:30.123456+00:00"), day(0.0)
        ('2026-05-04 10:20', '1970-01-01 00:00')
    """
    if moment is None:
        return ""
    at = datetime.fromisoformat(moment) if isinstance(moment, str) else datetime.fromtimestamp(moment, UTC)
    return f"{at:%Y-%m-%d %H:%M}"


def run_facts(run: RunCost) -> str:
    """Return the calls and tokens of a run as text."""
    facts = []
    if run.calls:
        facts.append(f"{run.calls:,} calls of {run.llm}, {run.input_tokens:,} tokens in, {run.output_tokens:,} out")
    if run.cached_tokens:
        facts.append(f"{run.cached_tokens:,} from the cache")
    if run.embedding_tokens:
        facts.append(f"{run.embedding_tokens:,} tokens embedded by {run.embed_model}")
    return "; ".join(facts)


# ---- a document ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """A chunk as listed in its document.

    Attributes:
        node_id: Id of the chunk.
        source: Where it is in the document.
        structure: The structural part of its context.
        written: The part of its context that an LLM or a person wrote.
        writer: Author of this part: "llm", "given", …
        text: The text of the chunk.
        tokens: Number of tokens, or None.
        is_fallback: Whether the LLM failed to write its context.
        facts: The user's own metadata.
    """

    node_id: str
    source: Source
    structure: str
    written: str
    writer: str
    text: str
    tokens: int | None
    is_fallback: bool
    facts: dict[str, Any]


@dataclass(frozen=True)
class Segment:
    """A segment of a document, or the part of it that is on a page.

    Attributes:
        number: Number of the segment in the document, from 1.
        chunks: The chunks of the segment.
    """

    number: int
    chunks: Sequence[Chunk]


def segments_of(nodes: Sequence[BaseNode], record: DocumentRecord) -> list[Segment]:
    """Group the chunks of a document by segment."""
    failed = set(record.fallback_chunks)
    by_segment = groupby(nodes, key=lambda node: int(node.metadata.get(keys.SEGMENT_INDEX) or 0))
    return [Segment(number + 1, [_chunk(node, failed) for node in group]) for number, group in by_segment]


def _chunk(node: BaseNode, failed: set[str]) -> Chunk:
    structure, written = keys.context_parts(node.metadata)
    return Chunk(
        node_id=node.node_id,
        source=Source.of(node),
        structure=structure,
        written=written,
        writer=str(node.metadata.get(keys.CONTEXT_SOURCE) or ""),
        text=node.get_content(),
        tokens=node.metadata.get(keys.TOKEN_COUNT),
        is_fallback=node.node_id in failed,
        facts=keys.user_metadata(node),
    )


def document(request: Request) -> Response:
    """Show the segments and chunks of a document."""
    project = project_of(request)
    doc_id = parameter(request, "id")
    record = next((record for record in project.documents() if record.doc_id == doc_id), None)
    if record is None:
        raise HTTPException(404, f"There is no document {doc_id[:200]!r} in the live version: see the view Project.")
    start = start_of(request, record.chunks, CHUNKS_PER_PAGE)
    nodes = project.chunks(doc_id)
    return page(
        request,
        "document.html",
        record=record,
        segments=segments_of(nodes[start : start + CHUNKS_PER_PAGE], record),
        segment_count=len({node.metadata.get(keys.SEGMENT_INDEX) for node in nodes}),
        start=start,
        total=len(nodes),
        per_page=CHUNKS_PER_PAGE,
    )
