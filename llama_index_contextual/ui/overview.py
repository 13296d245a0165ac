"""The views of a project (documents, versions, costs and failures) and of a document (segments and chunks)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from llama_index.core.schema import BaseNode
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llama_index_contextual import metadata as keys
from llama_index_contextual.index.inbox import Change
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.ingestion.report import read_skipped
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.money.price import money
from llama_index_contextual.money.receipt import Receipt
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import Source
from llama_index_contextual.ui.background import BackgroundIngest
from llama_index_contextual.ui.facets import facets_of
from llama_index_contextual.ui.places import date_of
from llama_index_contextual.ui.texts import TextKind, TextMarks, kind_of, render_text
from llama_index_contextual.ui.users import OWNER
from llama_index_contextual.ui.views import (
    ingest_of,
    number,
    page,
    parameter,
    project_of,
    quoted,
    with_problems,
)

DOCUMENTS_PER_PAGE = 100
CHUNKS_PER_PAGE = 50
CHANGES_SHOWN = 50


def routes() -> list[Route]:
    """Return the routes for these views."""
    return [
        Route("/p/{project}/project", with_problems(overview), name="overview"),
        Route("/p/{project}/document", with_problems(document), name="document"),
    ]


# ---- the project ---------------------------------------------------------------------------------------------------


def overview(request: Request) -> Response:
    """Show the documents, versions, costs and failures of a project."""
    project = project_of(request)
    ingest = copy(ingest_of(request, project.name))  # a copy, because it may end while the page is made
    find = parameter(request, "find", limit=200)
    documents = facets_of(request.app.state.facets, project).documents
    rows = [doc for doc in documents if find.casefold() in f"{doc.record.doc_id}\n{doc.record.title or ''}".casefold()]
    start = start_of(request, len(rows), DOCUMENTS_PER_PAGE)
    return page(
        request,
        "project.html",
        find=find,
        start=start,
        rows=rows[start : start + DOCUMENTS_PER_PAGE],
        total=len(rows),
        count=len(project.documents()),
        ingest=ingest,
        skipped=() if project.is_restricted else _skipped(project, ingest),
        per_page=DOCUMENTS_PER_PAGE,
        changes=_changes(request, project),
        **project_values(project),
    )


def _changes(request: Request, project: Project) -> Sequence[Change]:
    """Return the last changes of all users, latest first, if the owner looks at the page."""
    adding = request.app.state.adding.get(project.name)
    if adding is None or request.scope["user"] is not OWNER:
        return ()
    return list(reversed(adding.inbox.changes()[-CHANGES_SHOWN:]))


def _skipped(project: Project, ingest: BackgroundIngest | None) -> Sequence[Any]:
    return ingest.report.skipped if ingest and ingest.report else read_skipped(project.directory)


def project_values(project: Project) -> dict[str, Any]:
    """Return the template values that describe the project on a page; a restricted project has no report."""
    whole = None if project.is_restricted else project
    return {
        "info": whole and whole.info(),
        "versions": list(reversed(whole.versions())) if whole else (),
        "cost": whole and whole.cost(),
        "failed": [record for record in project.documents() if record.has_failed_chunks],
        "retry": retry_command(project),
        "money": money,
        "day": day,
        "run_facts": run_facts,
    }


def start_of(request: Request, total: int, per_page: int) -> int:
    """Return the position of the first row on the requested page of a list.

    Raises:
        InputError: The page parameter is not a number.
    """
    start = number(request, "start", "The start", 0, 99_999_999_999) or 0
    return max(0, min(start, total - 1)) // per_page * per_page


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


def run_facts(receipt: Receipt) -> str:
    """Describe the calls and tokens of a run in a few words."""
    facts = []
    if receipt.calls:
        facts.append(
            f"{receipt.calls:,} calls of {receipt.llm}, "
            f"{receipt.input_tokens:,} tokens in, {receipt.output_tokens:,} out"
        )
    if receipt.cached_tokens:
        facts.append(f"{receipt.cached_tokens:,} from the cache")
    if receipt.embedding_tokens:
        facts.append(f"{receipt.embedding_tokens:,} tokens embedded by {receipt.embed_model}")
    if receipt.is_estimated:
        facts.append("estimated, because the provider did not report all tokens")
    return "; ".join(facts)


# ---- a document ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChunkView:
    """A chunk as listed in its document.

    Attributes:
        node_id: Id of the chunk.
        source: Location of the chunk in the document.
        structure: The structural part of the context.
        context: The part of the context written by an LLM or a person.
        writer: Author of this part: "llm", "given", …
        text: The text of the chunk.
        kind: How the text is shown.
        html: The text as HTML, or "".
        tokens: Number of tokens, or None.
        is_fallback: Whether the LLM failed to write a context for the chunk.
        facts: The user's own metadata.
    """

    node_id: str
    source: Source
    structure: str
    context: str
    writer: str
    text: str
    kind: TextKind
    html: Markup
    tokens: int | None
    is_fallback: bool
    facts: dict[str, Any]


@dataclass(frozen=True)
class SegmentView:
    """A segment of a document, or the part of a segment that is on one page of a long list of chunks.

    Attributes:
        number: Number of the segment in the document, starting at 1.
        chunks: The chunks of the segment.
    """

    number: int
    chunks: Sequence[ChunkView]


def segments_of(
    nodes: Sequence[BaseNode], record: DocumentRecord, where: DocumentMap | None = None
) -> list[SegmentView]:
    """Group the chunks of a document by segment.

    Args:
        nodes: The chunks.
        record: Record of the document.
        where: Map of the document, which is needed to show its text as HTML.
    """
    by_segment = groupby(nodes, key=lambda node: int(node.metadata.get(keys.SEGMENT_INDEX) or 0))
    return [SegmentView(number + 1, [_chunk(node, record, where) for node in group]) for number, group in by_segment]


def _chunk(node: BaseNode, record: DocumentRecord, where: DocumentMap | None) -> ChunkView:
    structure, context = keys.context_parts(node.metadata)
    text, start, kind = node.get_content(), getattr(node, "start_char_idx", None), kind_of(record.file_name)
    return ChunkView(
        node_id=node.node_id,
        source=Source.of(node),
        structure=structure,
        context=context,
        writer=str(node.metadata.get(keys.CONTEXT_SOURCE) or ""),
        text=text,
        kind=kind,
        html=Markup() if where is None else render_text(text, start or 0, kind, where, TextMarks()),
        tokens=node.metadata.get(keys.TOKEN_COUNT),
        is_fallback=node.node_id in record.fallback_chunks,
        facts=keys.user_metadata(node),
    )


def document(request: Request) -> Response:
    """Show the segments and chunks of a document."""
    project = project_of(request)
    version, doc_id = project.live_version, parameter(request, "id")
    record = version.record(doc_id)
    if record is None:
        raise HTTPException(404, f"There is no document {doc_id[:200]!r} in the live version: see the view Project.")
    start = start_of(request, record.chunks, CHUNKS_PER_PAGE)
    ids, where = version.docstore.ids_of_document(doc_id) or [doc_id], version.map_of(doc_id)
    *nodes, last = version.docstore.get_nodes([*ids[start : start + CHUNKS_PER_PAGE], ids[-1]])
    return page(
        request,
        "document.html",
        record=record,
        date=date_of(nodes[0].metadata) if nodes else "",
        has_file=request.app.state.originals.find(record).path is not None,
        segments=segments_of(nodes, record, where),
        segment_count=int(last.metadata.get(keys.SEGMENT_INDEX) or 0) + 1,
        start=start,
        total=len(ids),
        per_page=CHUNKS_PER_PAGE,
        retry=retry_command(project),
    )


def retry_command(project: Project) -> str:
    """Return the command line that requests missing contexts again."""
    return f"llama-index-contextual retry {quoted(project.name)}"
