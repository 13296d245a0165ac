"""The view of a passage: its sentence on the page of the original file, its contexts, and the file itself.

`passage_view` collects all displayed content as plain data; the routes below render it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal
from urllib.parse import quote

import xxhash
from llama_index.core.schema import BaseNode
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.files import open_file
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import CorruptVersionError, ProjectError, ReadError, end_sentence
from llama_index_contextual.figures import Figure, figures_from_json, with_distances
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.sources import SourceFile
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers.files import MARKDOWN_SUFFIXES, PDF_SUFFIXES, TEXT_SUFFIXES
from llama_index_contextual.readers.ocr import OcrEngine, engine_for
from llama_index_contextual.readers.pdf.scans import Page
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.search.response import Source, visible
from llama_index_contextual.search.spotlight import spot_of
from llama_index_contextual.ui import views
from llama_index_contextual.ui.markdown import highlight, mark_sentence
from llama_index_contextual.ui.marks import Box, Span
from llama_index_contextual.ui.pages import Originals, PageMarks, PageRenderer, has_pages
from llama_index_contextual.ui.places import citation, date_of, icon_of, place_of, suffix_of
from llama_index_contextual.ui.quotes import Quote, quote_of
from llama_index_contextual.ui.search import search_parameters
from llama_index_contextual.ui.texts import TextKind, TextMarks, kind_of, render_text

CSS_PIXELS = 96 / 72
"""CSS pixels per point."""
MAX_PAGES = 4
"""Maximum number of pages of a passage that are shown together."""
MAX_PAGE = 999_999
ZOOM_MARGIN = 24
"""Width of the margins next to the marked lines of an enlarged page, in points."""
MAX_ZOOM = 250
AROUND = 3_000
"""Maximum number of characters shown before and after a passage if the document is longer than `WHOLE`."""
WHOLE = 8_000
"""Maximum length of a document that is shown in full; otherwise, only the text around the passage is shown."""
CHUNK_BYTES = 1 << 18
"""Number of bytes of an original file that are read at a time."""
PDF_POLICY = (
    "default-src 'none'; object-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
"""Content security policy of PDFs. In a sandbox, some browsers show an empty page; PDFs cannot run as web pages."""
INLINE = {
    **dict.fromkeys(PDF_SUFFIXES, "application/pdf"),
    **dict.fromkeys((".jpg", ".jpeg"), "image/jpeg"),
    ".png": "image/png",
    **dict.fromkeys((*TEXT_SUFFIXES, *MARKDOWN_SUFFIXES), "text/plain; charset=utf-8"),
}
"""Content types of the original files that browsers show; other files are downloaded."""


# ---- data ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PagePart:
    """The part of a passage on one page: the page number, and the start and end of the part in the passage's text."""

    page: int
    start: int
    end: int


@dataclass(frozen=True)
class MarkedPage:
    """A page of the original file with the passage marked.

    Attributes:
        number: Number of the page, starting at 1.
        label: The printed page number, or "".
        marks: The marks, or None if the page cannot be shown.
        note: Reason why the page cannot be shown or has no marks, or "".
        is_first_marked: Whether the browser scrolls to the marks on this page.
        figures: Boxes of the passage's figures on this page.
    """

    number: int
    label: str
    marks: PageMarks | None
    note: str
    is_first_marked: bool = False
    figures: Sequence[Box] = ()

    @property
    def description(self) -> str:
        """Page number and label as text."""
        label = f" (printed {visible(self.label)})" if self.label not in ("", str(self.number)) else ""
        return f"Page {self.number}{label}"

    @property
    def zoom(self) -> int:
        """Percentage by which a narrow window enlarges the page, so that the marked lines fill its width."""
        if self.marks is None or not self.marks.lines:
            return 100
        left, right = min(box.x0 for box in self.marks.lines), max(box.x1 for box in self.marks.lines)
        return min(max(round(4 * self.marks.width / max(right - left + ZOOM_MARGIN, 1)) * 25, 100), MAX_ZOOM)

    @property
    def css_width(self) -> int:
        """Width of the image in CSS pixels (96 per inch)."""
        return round(CSS_PIXELS * self.marks.width) if self.marks else 0

    @property
    def css_height(self) -> int:
        """Height of the image in CSS pixels."""
        return round(CSS_PIXELS * self.marks.height) if self.marks else 0

    def alternative(self, file_name: str) -> str:
        """Return the alternative text of the image."""
        lines = len(self.marks.lines) if self.marks else 0
        note = f"{pluralize(lines, 'line')} of the passage marked; its text follows" if lines else "with nothing marked"
        return f"{self.description} of {file_name}, {note}."


@dataclass(frozen=True, kw_only=True)
class OriginalView:
    """The original pages or text of a passage, as displayed.

    Attributes:
        kind: "pages" for page images, or how the text is shown.
        position: The page, sheet or slide and their number, such as "Page 21 of 27", or "".
        pages: The pages, if `kind` is "pages".
        file_pages: Number of pages in the file, if `kind` is "pages".
        begins_on: Page on which the passage begins if it begins before the displayed pages, otherwise None.
        page_before: Number of the page before the displayed pages, or None.
        page_after: Number of the page after the displayed pages, or None.
        html: The text with the passage marked, if `kind` is not "pages".
        is_whole: Whether the text is the whole document.
        note: Reason why the pages cannot be shown, or "".
        command: A command line that solves the problem, or "".
    """

    kind: Literal["pages"] | TextKind
    position: str = ""
    pages: Sequence[MarkedPage] = ()
    file_pages: int = 0
    begins_on: int | None = None
    page_before: int | None = None
    page_after: int | None = None
    html: Markup = field(default_factory=Markup)
    is_whole: bool = False
    note: str = ""
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class PassageView:
    """A passage as displayed.

    Attributes:
        node_id: Id of the chunk.
        record: The record of the document.
        source: Location of the passage in the document.
        place: Location of the marked sentence or row, or of the passage if nothing is marked.
        date: Date of the document in words, or "".
        mark: Start and end of the marked sentence or row in the document's text, or None.
        quotation: The marked sentence or row.
        text: The text of the chunk, with the sentence and the words of the question marked.
        structure: The structural part of the context, with marks.
        context: The part of the context written by an LLM or a person, with marks.
        writer: Author of this part: "llm", "given", …
        is_fallback: Whether the LLM failed to write a context for the chunk.
        table_head: The column headers of the table that the chunk continues, or "".
        tokens: Number of tokens, or None.
        confidence: The lowest OCR confidence of the chunk's pages, from 0 to 1, or None.
        facts: The user's own metadata.
        original: The original pages or text, as displayed.
        has_file: Whether the original file can be opened.
        before: Id of the previous chunk, or "".
        after: Id of the next chunk, or "".
        is_elsewhere: Whether the displayed page was requested by its number.
        figures: The figures in the passage or to which it refers; those of the marked sentence come first.
    """

    node_id: str
    record: DocumentRecord
    source: Source
    place: Source
    date: str
    mark: Span | None
    quotation: Quote
    text: Markup
    structure: Markup
    context: Markup
    writer: str
    is_fallback: bool
    table_head: str
    tokens: int | None
    confidence: float | None
    facts: Mapping[str, Any]
    original: OriginalView
    has_file: bool
    before: str
    after: str
    is_elsewhere: bool
    figures: Sequence[Figure] = ()

    @property
    def title(self) -> str:
        """Title of the document."""
        return self.record.title or self.record.file_name or self.record.doc_id

    @property
    def file_name(self) -> str:
        """Name of the file, or the id of the document."""
        return self.record.file_name or self.record.doc_id

    @property
    def icon(self) -> str:
        """Name of the document's icon."""
        return "scan" if self.confidence is not None else icon_of(self.file_name)

    @property
    def citation(self) -> str:
        """The quotation with the name of the file and the place, as text to copy."""
        return citation(self.quotation.text, self.file_name, str(place_of(self.place)), self.date)


def passage_view(
    project: Project,
    node_id: str,
    *,
    question: str = "",
    mark: Span | None = None,
    originals: Originals | None = None,
    page_number: int | None = None,
) -> PassageView | None:
    """Return a passage as displayed, or None if the live version has no such chunk.

    Args:
        project: The project.
        node_id: Id of the chunk.
        question: Question whose words are marked.
        mark: Start and end, in the document's text, of the sentence to mark; if it is None or outside the passage, the
            sentence or row that matches the question best is marked.
        originals: The original files; if None, only the text is shown.
        page_number: Page of the file to show instead of the pages of the passage.

    Raises:
        NoVersionError: Nothing has been ingested yet.
    """
    original = _Original.find(project, node_id, question, mark)
    if original is None:
        return None
    record, node, span, place = original.record, original.node, original.span, Source.of(original.node)
    structure, context = keys.context_parts(node.metadata)
    ids = ["", *project.live_version.docstore.ids_of_document(record.doc_id), ""]
    at = ids.index(node_id) if node_id in ids else 0
    file = SourceFile(None) if originals is None else originals.find(record)
    if originals is not None and has_pages(record):
        original_view = original.as_pages(project, originals.renderer, file, page_number)
    else:
        original_view = original.as_text()
    return PassageView(
        node_id=node_id,
        record=record,
        source=place,
        place=place if span is None else place.at(*span, original.where.places(*span)),
        date=date_of(node.metadata),
        mark=span,
        quotation=original.quotation(),
        text=original.chunk_text(),
        structure=original.mark_words(visible(structure)),
        context=original.mark_words(visible(context)),
        writer=str(node.metadata.get(keys.CONTEXT_SOURCE) or ""),
        is_fallback=node_id in record.fallback_chunks,
        table_head=str(node.metadata.get(keys.TABLE_HEAD) or ""),
        tokens=node.metadata.get(keys.TOKEN_COUNT),
        confidence=node.metadata.get(keys.OCR_CONFIDENCE),
        facts=keys.user_metadata(node),
        original=original_view,
        has_file=file.path is not None,
        before=ids[at - 1] if at else "",
        after=ids[at + 1] if at else "",
        is_elsewhere=page_number is not None,
        figures=original.figures(),
    )


# ---- the marked sentence -------------------------------------------------------------------------------------------


def _span_in(chunk: Chunk, mark: Span | None, record: DocumentRecord) -> Span | None:
    """Return a requested mark, or None if it is not in the document or not in the chunk."""
    if mark is None or not mark[0] < mark[1] <= max(record.characters, len(chunk.text)):
        return None
    return mark if any(_within(mark, chunk.start or 0, len(chunk.text))) else None


def _best_span(version: SearchableVersion, chunk: Chunk, question: str) -> Span | None:
    """Return the document offsets of the sentence or row that matches the question best, or None."""
    lexical = version.index.lexical
    if not question or lexical is None:
        return None
    spot, first = spot_of(chunk, question, lexical), chunk.start or 0
    return (first + spot.start, first + spot.end) if spot.start < spot.end else None


def _within(span: Span | None, start: int, length: int) -> Span:
    """Convert a span of the document to offsets in a text that begins at `start`, and clip it to the text."""
    if span is None or span[0] >= start + length or span[1] <= start:
        return 0, 0
    return max(0, span[0] - start), min(length, span[1] - start)


# ---- the original --------------------------------------------------------------------------------------------------


def parts_on_pages(chunk: Chunk, where: DocumentMap) -> list[PagePart]:
    """Return the part of a chunk on each of its pages.

    Args:
        chunk: The chunk.
        where: The map of its document; if it has no pages, the whole text may be on any page in the chunk's metadata.
    """
    text, start = chunk.text, chunk.start
    if start is None or not where.page_starts:
        first, last = chunk.metadata.get(keys.PAGE_START), chunk.metadata.get(keys.PAGE_END)
        pages = range(first, (last or first) + 1) if isinstance(first, int) and first > 0 else range(0)
        return [PagePart(number, 0, len(text)) for number in pages]
    parts = []
    end = start + len(text)
    for number in range(max(1, bisect_right(where.page_starts, start)), len(where.page_starts) + 1):
        begin = where.page_starts[number - 1] if number > 1 else 0
        finish = where.page_starts[number] if number < len(where.page_starts) else end
        if begin >= end:
            break
        part = PagePart(number, max(begin, start) - start, min(finish, end) - start)
        if text[part.start : part.end].strip():
            parts.append(part)
    return parts


class _Original:
    """A passage in its document.

    Args:
        version: The version.
        record: Record of the document.
        node: The chunk.
        mark: As for `passage_view`. If the sentence extends beyond the chunk, the displayed passage does too.
        question: Question whose best sentence is marked if there is no `mark`.
        mark_words: Function that returns text as HTML with the words of the question marked.

    Attributes:
        span: Start and end of the marked sentence or row in the document's text, or None.
        where: Map of the document, which is empty if the document was ingested as chunks.
    """

    def __init__(
        self,
        version: SearchableVersion,
        record: DocumentRecord,
        node: BaseNode,
        mark: Span | None,
        question: str,
        mark_words: Callable[[str], Markup],
    ) -> None:
        self.record, self.node, self.mark_words, self._version = record, node, mark_words, version
        self._kind: TextKind = kind_of(record.file_name or record.doc_id)
        chunk, frame = Chunk.from_node(node), version.frame(record.doc_id)
        self.where = version.map_of(record.doc_id)
        self.span = _span_in(chunk, mark, record) or _best_span(version, chunk, question)
        self._has_text = frame is not None and chunk.start is not None
        if self.span is not None and chunk.start is not None and self._has_text:
            start, end = chunk.start, chunk.start + len(chunk.text)
            first, last = max(min(start, self.span[0]), start - AROUND), min(max(end, self.span[1]), end + AROUND)
            if (first, last) != (start, end):
                chunk = replace(chunk, text=version.read_text(record, first, last), start=first, end=last)
        self._chunk, self._text, self._start = chunk, chunk.text, chunk.start
        self._sentence = _within(self.span, chunk.start or 0, len(chunk.text))

    @classmethod
    def find(cls, project: Project, node_id: str, question: str = "", mark: Span | None = None) -> _Original | None:
        """Return a passage of the live version, or None if there is no such chunk."""
        version = project.live_version
        node = next(iter(version.docstore.find_nodes([node_id])), None)
        record = None if node is None else version.record(node.ref_doc_id or node.node_id)
        if node is None or record is None:
            return None
        analyzer = views.analyzer_of(project)
        mark_words = partial(highlight, terms=frozenset(analyzer.query_terms(question)), analyzer=analyzer)
        return cls(version, record, node, mark, question, mark_words)

    def figures(self) -> list[Figure]:
        """Return the figures of the passage; those of the marked sentence come first."""
        figures = figures_from_json(self.node.metadata.get(keys.FIGURES))
        if self.span is None:
            return list(figures)
        text = self._text[slice(*self._sentence)]
        return [figure for _, figure in with_distances(figures, text, *self.span, self.where.page(self.span[0]))]

    def quotation(self) -> Quote:
        """Return the marked sentence or row, or the beginning of the passage."""
        span = self._sentence if any(self._sentence) else (0, len(self._text))
        head = str(self.node.metadata.get(keys.TABLE_HEAD) or "")
        columns = keys.columns_at(self.node.metadata, (self._start or 0) + span[0])
        name = self.record.file_name
        return quote_of(self._text, span, escape, table_head=head, columns=columns, file_name=name)

    def chunk_text(self) -> Markup:
        """Return the text of the chunk with the sentence and the words of the question marked."""
        text, start = self.node.get_content(), getattr(self.node, "start_char_idx", None) or 0
        return mark_sentence(text, _within(self.span, start, len(text)), self.mark_words)

    def marked_page(self, project: Project, renderer: PageRenderer, file: SourceFile) -> MarkedPage | None:
        """Return the page on which the sentence begins, or the passage if no sentence is marked."""
        parts = self._parts_from_sentence()
        return self._marked(project, renderer, file, parts[0]) if parts else None

    def _parts_from_sentence(self) -> list[PagePart]:
        return [part for part in parts_on_pages(self._chunk, self.where) if part.end > self._sentence[0]]

    def as_pages(
        self, project: Project, renderer: PageRenderer, file: SourceFile, page_number: int | None
    ) -> OriginalView:
        """Return the pages of the file; if they cannot be shown, return the text with the reason."""
        if file.path is None:
            return self.as_text(*_no_file_reason(file, project, self.record))
        parts = parts_on_pages(self._chunk, self.where)
        page_parts = self._parts_from_sentence()[:MAX_PAGES]
        if page_number is not None:
            page_parts = [part for part in parts if part.page == page_number] or [PagePart(page_number, 0, 0)]
        pages = [self._marked(project, renderer, file, part) for part in page_parts or [PagePart(1, 0, 0)]]
        images = [page for page in pages if page.marks is not None]
        if not images:
            return self.as_text(pages[0].note)
        marked_images = [page for page in images if page.marks is not None and page.marks.lines]
        first = next(
            (page for page in marked_images if page.marks is not None and page.marks.mark),
            next(iter(marked_images), None),
        )
        file_pages = max(page.marks.pages for page in images if page.marks is not None)
        return OriginalView(
            kind="pages",
            position=f"{(first or pages[0]).description} of {file_pages:,}",
            pages=[replace(page, is_first_marked=page is first) for page in pages],
            file_pages=file_pages,
            begins_on=parts[0].page if page_number is None and parts and parts[0].page < pages[0].number else None,
            page_before=pages[0].number - 1 or None,
            page_after=pages[-1].number + 1 if pages[-1].number < file_pages else None,
        )

    def _marked(self, project: Project, renderer: PageRenderer, file: SourceFile, part: PagePart) -> MarkedPage:
        text, where = self._text[part.start : part.end], self.where
        sentence = _within(self._sentence, part.start, len(text))
        label = where.page_labels[part.page - 1] if part.page <= len(where.page_labels) else ""
        was_scanned = any(where.page_confidences[part.page - 1 : part.page])
        try:
            scan = _read_scan(project, renderer.scan_hash(file, part.page)) if text and was_scanned else None
            marks = renderer.marks(file, part.page, text, sentence, scan)
        except ReadError as error:
            return MarkedPage(part.page, label, None, _reason_sentence(error.reason))
        note = ""
        if text and not marks.lines:
            note = (
                "The lines of the passage could not be found on this page."
                if marks.has_text
                else "This page is an image without a text layer, so its lines cannot be marked."
            )
        figures = figures_from_json(self.node.metadata.get(keys.FIGURES))
        boxes = [Box(*figure.box) for figure in figures if figure.page == part.page and figure.box is not None]
        return MarkedPage(part.page, label, marks, note, figures=boxes)

    def as_text(self, note: str = "", command: str = "") -> OriginalView:
        """Return the text around the passage."""
        start = self._start or 0
        end = start + len(self._text)
        first, last, text = start, end, self._text
        if self._has_text:
            first, last = self._surroundings(start, end)
            text = self._version.read_text(self.record, first, last)
        sentence = start + self._sentence[0], start + self._sentence[1]
        marks = TextMarks((start, end), sentence if any(self._sentence) else (0, 0), self.mark_words)
        return OriginalView(
            kind=self._kind,
            position=self._position(marks.sentence[0] or start),
            html=render_text(text, first, self._kind, self.where, marks),
            is_whole=first == 0 and last >= self.record.characters,
            note=note,
            command=command,
        )

    def _position(self, at: int) -> str:
        """Return the number of the sheet or slide at an offset, or ""."""
        word = keys.page_word(self.record.file_name or "")
        return "" if word == "page" else f"{word.capitalize()} {self.where.page(at)} of {len(self.where.page_starts)}"

    def _surroundings(self, start: int, end: int) -> Span:
        """Return the range of the document to show: all of it, or whole sections or lines around the passage.

        Only the sheet of a workbook that contains the mark is shown.
        """
        lowest, highest, starts = 0, self.record.characters, self.where.page_starts
        if self._kind == "sheet":
            at = start + self._sentence[0]
            lowest = max((page for page in starts if page <= at), default=0)
            highest = min((page for page in starts if page > at), default=highest)
            start, end = max(start, lowest), min(end, highest)
        if highest - lowest <= WHOLE:
            return lowest, highest
        first, last = max(lowest, start - AROUND), min(highest, end + AROUND)
        text = self._version.read_text(self.record, first, last)
        breaks = starts if self._kind == "slides" else [heading.start for heading in self.where.headings]
        before = [head for head in breaks if first <= head <= start]
        after = [head for head in breaks if end <= head <= last]
        line, line_end = first + text.find("\n", 0, start - first) + 1, text.rfind("\n", end - first)
        return (
            lowest if first == lowest else before[0] if before else line,
            highest if last == highest else after[-1] if after else last if line_end < 0 else first + line_end,
        )


def _read_scan(project: Project, image: str) -> Page | None:
    """Return the OCR result for an image with this hash, or None if it is missing or the ledger is unreadable."""
    engine = engine_for(project.config.ocr)
    page, path = None, project.directory / LEDGER_FILE
    if isinstance(engine, OcrEngine):
        with contextlib.suppress(ProjectError), contextlib.closing(Ledger(path, read_only=True)) as ledger:
            page = ledger.page(engine.key(image))
    return None if page is None else json.loads(page)


def _no_file_reason(file: SourceFile, project: Project, record: DocumentRecord) -> tuple[str, str]:
    """Return the reason why the file of a document cannot be shown, and a command that helps."""
    program, name = "llama-index-contextual", views.quoted(project.name)
    if file.problem == "text":
        return "This document was passed as text, not as a file, so there are no pages to show.", ""
    if file.problem == "changed":
        note = (
            "The file has changed since it was ingested, so its pages are not shown: they might not contain this text."
            " They are shown when it has been ingested again."
        )
        return note, f"{program} ingest {name} FOLDER"
    note = (
        f"The file {visible(record.file_name or record.doc_id)} is not where it was ingested, so its pages are not"
        " shown. They are shown if the Workbench is started with a folder that contains it."
    )
    return note, f"{program} serve {name} --documents FOLDER"


def _reason_sentence(reason: str) -> str:
    """Turn the reason why a page cannot be shown into a sentence."""
    return end_sentence(f"The page cannot be shown: {visible(reason)}")


# ---- routes --------------------------------------------------------------------------------------------------------


class _Anything(StringConvertor):
    """Path parameter that may contain any characters, because chunk ids can contain slashes and line breaks."""

    regex = r"(?s:.*)"


register_url_convertor("anything", _Anything())


def routes() -> list[Route]:
    """Return the routes for this view."""
    return [
        Route("/p/{project}/passage/{node_id:anything}", views.with_problems(passage), name="passage"),
        Route("/p/{project}/image", views.with_problems(image), name="image"),
        Route("/p/{project}/picture", picture, name="picture"),
        Route("/p/{project}/figure", views.with_problems(figure), name="figure"),
        Route("/p/{project}/original", views.with_problems(original), name="original"),
    ]


def passage(request: Request) -> Response:
    """Show a passage on its pages, with its contexts and neighbours."""
    project = views.project_of(request)
    question = views.parameter(request, "q", limit=views.MAX_QUESTION)
    view = passage_view(
        project,
        request.path_params["node_id"],
        question=question,
        mark=requested_mark(request),
        originals=request.app.state.originals,
        page_number=_page_number(request),
    )
    if view is None:
        raise HTTPException(404, "There is no such passage in the live version: search again.")
    parameters, links = search_parameters(request), views.Links(project.name)
    strip = request.app.state.hits.strip(links, parameters, view.node_id)
    return views.page(request, "passage.html", passage=view, parameters=parameters, strip=strip)


def image(request: Request) -> Response:
    """Return a page of a document's file as PNG."""
    project = views.project_of(request)
    record = project.live_version.record(views.parameter(request, "doc"))
    number = _page_number(request)
    if record is None or number is None or not has_pages(record):
        return PlainTextResponse("There is no such page.", 404)
    originals: Originals = request.app.state.originals
    return _drawn(request, record, "image/png", lambda: originals.renderer.image(originals.find(record), number))


async def picture(request: Request) -> Response:
    """Return a small picture of a page around the marked sentence or row of a result, as JPEG."""
    async with request.app.state.originals.renderer.picture_slots:
        if await request.is_disconnected():  # another page has been opened
            return PlainTextResponse("", 499)
        return await run_in_threadpool(views.with_problems(_picture), request)


def _picture(request: Request) -> Response:
    project, originals = views.project_of(request), request.app.state.originals
    original = _Original.find(project, views.parameter(request, "chunk"), mark=requested_mark(request))
    file = SourceFile(None) if original is None else originals.find(original.record)
    page = None if original is None or file.path is None else original.marked_page(project, originals.renderer, file)
    if original is None or page is None or page.marks is None:
        return PlainTextResponse("There is no such picture.", 404)
    number, marks = page.number, page.marks
    return _drawn(request, original.record, "image/jpeg", lambda: originals.renderer.picture(file, number, marks))


def figure(request: Request) -> Response:
    """Return the picture of a figure in a passage of the live version.

    The request names the passage and the number of the figure; the name of the file comes from the stored passage.
    """
    version = views.project_of(request).live_version
    node_id, number = views.parameter(request, "chunk"), views.parameter(request, "id")
    node = next(iter(version.docstore.find_nodes([node_id])), None)
    figures = () if node is None else version.figures_of(node)
    found = next((one for one in figures if one.id == number and one.sha256), None)
    if found is None:
        return PlainTextResponse("There is no such figure.", 404)
    is_fixed = request.query_params.get("v") == found.sha256
    headers = {"Cache-Control": "private, max-age=31536000, immutable"} if is_fixed else {}
    headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    try:
        return Response(found.read_bytes(), media_type=found.media_type, headers=headers)
    except CorruptVersionError as error:
        return PlainTextResponse(end_sentence(error.problem), 404)


def _drawn(request: Request, record: DocumentRecord, kind: str, draw: Callable[[], bytes]) -> Response:
    """Return an image of a page, which browsers cache if its URL contains the checksum of the file."""
    try:
        image = draw()
    except ReadError as error:
        return PlainTextResponse(_reason_sentence(error.reason), 404)
    is_fixed = request.query_params.get("v") == record.content_hash
    headers = {"Cache-Control": "private, max-age=31536000, immutable"} if is_fixed else {}
    return Response(image, media_type=kind, headers=headers)


def original(request: Request) -> Response:
    """Return the file of a document of the live version, if it is still the file that was ingested.

    PDFs, images and plain text are shown by the browser, without scripts; other files are downloaded.
    """
    project = views.project_of(request)
    record = project.live_version.record(views.parameter(request, "doc"))
    if record is None:
        raise HTTPException(404, "There is no such document in the live version.")
    source: SourceFile = request.app.state.originals.find(record)
    file = None if source.path is None else _open_unchanged(source.path, record)
    if file is None:
        raise HTTPException(
            404, _no_file_reason(replace(source, problem=source.problem or "changed"), project, record)[0]
        )
    kind = INLINE.get(suffix_of(record.file_name))
    name = quote(record.file_name or "document", safe="", errors="replace")
    headers = {
        "Content-Disposition": f"{'inline' if kind else 'attachment'}; filename*=UTF-8''{name}",
        "Content-Security-Policy": PDF_POLICY if kind == "application/pdf" else "default-src 'none'; sandbox",
    }
    return StreamingResponse(_content(file), media_type=kind or "application/octet-stream", headers=headers)


def _open_unchanged(path: Path, record: DocumentRecord) -> BinaryIO | None:
    """Open a file if its content is that of the document, otherwise return None."""
    with contextlib.suppress(OSError):
        file = open_file(path)
        if hashlib.file_digest(file, xxhash.xxh3_128).hexdigest() == record.content_hash:
            file.seek(0)
            return file
        file.close()
    return None


def _content(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while data := file.read(CHUNK_BYTES):
            yield data


def requested_mark(request: Request) -> Span | None:
    """Return the start and end of the sentence to mark, or None if the URL does not contain both numbers."""
    match = re.fullmatch(r"([0-9]{1,12})-([0-9]{1,12})", request.query_params.get("mark", ""))
    return (int(match[1]), int(match[2])) if match else None


def _page_number(request: Request) -> int | None:
    return views.number(request, "page", "The number of a page", 1, MAX_PAGE)
