"""Read PDF files: text in reading order, pages, printed page numbers, headings and title."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

from llama_index_contextual.errors import ReadError
from llama_index_contextual.metadata import RUNNING_LINES, DocumentMap
from llama_index_contextual.readers.base import FileAccount, ParsedFile, ReadLimits, has_text
from llama_index_contextual.readers.discovery import read_limited
from llama_index_contextual.readers.pdf.engine import Line, PageContent, PdfEngine, PdfSource, sensible_title
from llama_index_contextual.readers.pdf.outline import PlacedLine
from llama_index_contextual.readers.pdf.paragraphs import HyphenJoiner, clean, goes_on
from llama_index_contextual.readers.pdf.running import strip_running
from llama_index_contextual.readers.pdf.scans import page_content
from llama_index_contextual.readers.pdf.sections import headings
from llama_index_contextual.readers.pdf.title import document_title
from llama_index_contextual.readers.tables import pdf_tables

T = TypeVar("T")

DEFAULT_LIMITS = ReadLimits()
END = 1024  # bytes at both ends of the file that must contain its header and end mark
NO_PAGE = PageContent((), False, (0.0, 0.0))
SCANNED = "has no text layer; run OCR on it, e.g. ocrmypdf, and ingest it again"
BLANK = "has no text; unless its pages are blank, run OCR on it, e.g. ocrmypdf, and ingest it again"
MAX_LABEL = 200
MAX_SINGLE_WARNINGS = 20  # if more pages have no text, they are reported as ranges


def read_pdf(
    path: Path,
    *,
    password: str | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
    engine: PdfEngine = "pdfium",
    scans: Mapping[int, Mapping[str, Any]] | None = None,
    on_page: Callable[[int, int], None] | None = None,
) -> ParsedFile:
    """Read one PDF in this process.

    Running headers and footers are removed from the text and stored in the metadata as "running_header" and
    "running_footer". `limits.max_seconds` is only checked between pages; `ParserProcess` enforces it.

    Args:
        path: The file.
        password: Password of an encrypted PDF; ignored for other files.
        limits: Limits of the file.
        engine: "pdfium", or "pypdf", which is written in Python alone.
        scans: Pages that were read by OCR, by number from 1 (see `readers.ocr`). Other pages without text are listed in
            `scanned` of the result, and are neither an error nor a warning. None stands for a caller without OCR.
        on_page: Called after each page with the number of pages that have been read, and with their total. Pages that
            need OCR do not count.

    Returns:
        The text with pages joined by line feeds; each character belongs to a page of the map.

    Raises:
        ReadError: The file cannot be read or exceeds a limit; `reason` says why.
    """
    data, digest = read_limited(path, limits)
    account = FileAccount(path, len(data), limits)
    parsed = parse_pdf(path, data, account=account, password=password, engine=engine, scans=scans, on_page=on_page)
    return replace(parsed, digest=digest)


def parse_pdf(
    path: Path,
    data: bytes,
    *,
    account: FileAccount,
    password: str | None = None,
    engine: PdfEngine = "pdfium",
    scans: Mapping[int, Mapping[str, Any]] | None = None,
    on_page: Callable[[int, int], None] | None = None,
) -> ParsedFile:
    """Read the bytes of a PDF, as `read_pdf` does; `path` is its name."""
    _check(path, data)
    notes = [] if b"%%EOF" in data[-END:] else ["the file has no end mark: it may be truncated"]
    if engine == "pdfium":
        from llama_index_contextual.readers.pdf.pdfium import PdfiumSource

        return read_source(PdfiumSource(path, data, password), path, account, notes, scans, on_page)
    from pypdf import apply_configuration

    from llama_index_contextual.readers.pdf.pypdf import CONFIGURATION, PypdfSource

    with apply_configuration(CONFIGURATION):
        return read_source(PypdfSource(path, data, password), path, account, notes, scans, on_page)


def _check(path: Path, data: bytes) -> None:
    if not data:
        raise ReadError(str(path), "the file is empty (0 bytes)")
    if b"%PDF-" not in data[:END]:
        raise ReadError(str(path), "this is not a PDF: it does not begin with %PDF-")


def read_source(
    source: PdfSource,
    path: Path,
    account: FileAccount,
    notes: list[str],
    scans: Mapping[int, Mapping[str, Any]] | None = None,
    on_page: Callable[[int, int], None] | None = None,
) -> ParsedFile:
    """Read an open PDF, or another source of pages, and close it; arguments and errors as in `read_pdf`."""
    try:
        if not source.page_count:
            raise ReadError(str(path), "the PDF has no pages")
        account.add_pages(source.page_count)
        pages, warnings, scanned = _read_pages(source, path, account, scans, on_page)
        parsed = replace(_assemble(pages, notes + warnings, source), scanned=scanned)
        if not has_text(parsed.text) and not scanned and not scans:
            raise ReadError(str(path), SCANNED if any(page.is_drawn for page in pages) else BLANK)
        return parsed
    finally:
        source.close()


def _read_pages(
    source: PdfSource,
    path: Path,
    account: FileAccount,
    scans: Mapping[int, Mapping[str, Any]] | None,
    on_page: Callable[[int, int], None] | None,
) -> tuple[list[PageContent], list[str], tuple[int, ...]]:
    """Return the pages, warnings about some of them, and the numbers of those that the caller is to read by OCR."""
    seconds = account.limits.max_seconds
    deadline = time.monotonic() + seconds
    pages: list[PageContent] = []
    failed: list[str] = []
    scanned: list[int] = []
    blank: list[int] = []
    for number in range(1, source.page_count + 1):
        if time.monotonic() >= deadline:
            raise ReadError(str(path), f"parsing took longer than {seconds:g} seconds and was stopped")
        try:
            page = source.page(number - 1)
        except ReadError as error:
            failed.append(f"page {number} was left out: {error.reason}")
            page = NO_PAGE
        else:
            if not page.lines and scans is not None and number in scans:
                page = page_content(scans[number])
            cleaned = (replace(line, text=clean(line.text).strip()) for line in page.lines)
            page = page._replace(lines=[line for line in cleaned if line.text])
            if not page.lines:
                (scanned if page.is_drawn else blank).append(number)
        pages.append(page)
        account.add_text(sum(len(line.text) + 1 for line in page.lines))
        if on_page is not None:
            on_page(number - len(scanned), source.page_count)
    if len(failed) == len(pages):
        raise ReadError(str(path), f"no page could be read; {failed[0]}")
    to_read = () if scans is None else tuple(number for number in scanned if number not in scans)
    warned = scanned if scans is None else ()
    return pages, [*failed, *_without_text(warned, ""), *_without_text(blank, " unless {} blank")], to_read


def _without_text(pages: Sequence[int], unless: str) -> list[str]:
    ranges: list[list[int]] = []
    for page in pages:
        if ranges and len(pages) > MAX_SINGLE_WARNINGS and ranges[-1][1] == page - 1:
            ranges[-1][1] = page
        else:
            ranges.append([page, page])
    one, many = unless.format("it is"), unless.format("they are")
    return [
        f"page {first} has no text: it needs OCR{one}"
        if first == last
        else f"pages {first}–{last} have no text: they need OCR{many}"
        for first, last in ranges
    ]


def _assemble(content: Sequence[PageContent], warnings: list[str], source: PdfSource) -> ParsedFile:
    running = strip_running(content)
    pages = _place(running.pages)
    labels = _optional(source.labels, warnings) or running.labels
    outline = _optional(source.outline, warnings) or []
    marks = [entry._replace(title=clean(entry.title)) for entry in outline]
    title, front = document_title(pages, sensible_title(clean(_optional(source.title, warnings) or "")))
    found = headings(marks, pages, headers=running.headers, labels=labels, title=front)
    return ParsedFile(
        text=_text(pages, {heading.start for heading in found}),
        map=DocumentMap(
            page_starts=_page_starts(pages),
            page_labels=tuple(clean(label[:MAX_LABEL]) for label in labels) if any(labels) else (),
            headings=tuple(found),
            tables=tuple(pdf_tables(pages)),
        ),
        title=title,
        warnings=tuple(warnings),
        metadata={key: text for key, text in zip(RUNNING_LINES, (running.header, running.footer), strict=True) if text},
    )


def _place(pages: Sequence[Sequence[Line]]) -> list[list[PlacedLine]]:
    """Join hyphenated words, assign an offset to each line, and find the paragraphs."""
    joiner = HyphenJoiner([[line.text for line in page] for page in pages])
    placed: list[list[PlacedLine]] = []
    start = 0
    for page in pages:
        lines: list[PlacedLine] = []
        for line, text, flows in zip(page, joiner.join([line.text for line in page]), goes_on(page), strict=True):
            end = " " if flows else "\n"
            if text:
                lines.append(PlacedLine(text, start, line.y, end, line.cells, line.x0, line.x1, line.size, line.bold))
                start += len(text) + 1
            elif lines:
                lines[-1] = lines[-1]._replace(end=end)
        start += not lines
        placed.append(lines)
    return placed


def _text(pages: Sequence[Sequence[PlacedLine]], heads: set[int]) -> str:
    """Return the whole text, with pages joined by line feeds and each heading on a new line."""
    return "\n".join(_page_text(page, heads) for page in pages)


def _page_text(page: Sequence[PlacedLine], heads: set[int]) -> str:
    parts: list[str] = []
    for line, following in pairwise(page):
        parts += (line.text, "\n" if following.start in heads else line.end)
    return "".join([*parts, *(line.text for line in page[-1:])])


def _page_starts(pages: Sequence[Sequence[PlacedLine]]) -> tuple[int, ...]:
    lengths = (sum(len(line.text) + 1 for line in page) or 1 for page in pages)
    return tuple(accumulate(lengths, initial=0))[:-1]


def _optional(get: Callable[[], T | None], warnings: list[str]) -> T | None:
    """Return the result of `get`, or add a warning and return None if it cannot be read."""
    try:
        return get()
    except ReadError as error:
        warnings.append(error.reason)
        return None
