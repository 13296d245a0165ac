"""PDF engine that uses pypdf, which is written in Python alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from pypdf import Configuration, PageObject, PdfReader
from pypdf.errors import DependencyError, LimitReachedError, PyPdfError
from pypdf.generic import Destination

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.pdf.content import ContentReader
from llama_index_contextual.readers.pdf.engine import (
    MIN_PATHS,
    NO_PASSWORD,
    WRONG_PASSWORD,
    Line,
    OutlineEntry,
    PageContent,
    Run,
    is_right_to_left,
    page_span,
)
from llama_index_contextual.readers.pdf.layout import main_angle, page_lines
from llama_index_contextual.readers.pdf.paragraphs import clean

# "broken PDF files might cause other Exceptions" than its own (pypdf/errors.py)
PARSER_ERRORS = (
    PyPdfError,
    DependencyError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)

# Stricter limits than pypdf's defaults against malicious files, because text needs less than images.
CONFIGURATION = Configuration(
    zlib_maximum_output_length=50_000_000,
    zlib_maximum_recovery_input_length=500_000,  # damaged data is inflated byte by byte, at 2 s per megabyte
    lzw_maximum_output_length=50_000_000,
    run_length_maximum_output_length=50_000_000,
    brotli_maximum_output_length=50_000_000,
    array_based_stream_maximum_output_length=50_000_000,
    stream_decoding_work_maximum_length=150_000_000,
    stream_parsing_work_maximum_count=2_000_000,
    outline_maximum_entries=10_000,
    outline_maximum_depth=50,
    named_destinations_maximum_entries=100_000,
    page_tree_maximum_entries=100_000,
    xform_maximum_invocations_per_extraction=5_000,
    xmp_maximum_input_length=1_000_000,
)

MAX_DETAIL = 200  # characters of an error message of the parser, which may quote the file


class PypdfSource:
    """An open PDF, read with pypdf.

    Args:
        path: Path of the file, for error messages.
        data: The bytes of the file.
        password: Password of an encrypted PDF.

    Raises:
        ReadError: The file cannot be opened.
    """

    def __init__(self, path: Path, data: bytes, password: str | None) -> None:
        self._path = str(path)
        try:
            self._pdf = PdfReader(BytesIO(data))
            if self._pdf.is_encrypted and not self._pdf.decrypt(password or ""):
                raise ReadError(self._path, WRONG_PASSWORD if password else NO_PASSWORD)
            self.page_count = len(self._pdf.pages)
        except PARSER_ERRORS as error:
            raise self._error("the PDF is damaged or truncated", error) from error
        self._content = ContentReader(self._pdf)

    def page(self, index: int) -> PageContent:
        """Return the page with an index."""
        try:
            page = self._pdf.pages[index]
            runs = self._runs(page)
            lines = page_lines(runs) if runs else _plain_lines(page)
        except PARSER_ERRORS as error:
            raise self._error("pypdf cannot parse it", error) from error
        is_drawn = self._content.images > 0 or self._content.paths >= MIN_PATHS
        return PageContent(lines, is_drawn, _span(page, main_angle(runs)))

    def _runs(self, page: PageObject) -> list[Run]:
        """Return the text with its positions, or nothing for a page that pypdf's own extraction should handle.

        pypdf's extraction supports right-to-left and vertical scripts, and tolerates more errors.
        """
        try:
            runs = self._content.runs(page)
        except (DependencyError, LimitReachedError, MemoryError):
            raise
        except PARSER_ERRORS:
            if not page.extract_text().strip():
                raise
            return []
        return [] if self._content.vertical or any(is_right_to_left(run.text) for run in runs) else runs

    def title(self) -> str | None:
        """Return the title in the document information."""
        try:
            metadata = self._pdf.metadata
            return metadata.title if metadata else None
        except PARSER_ERRORS as error:
            raise self._error("the document information cannot be read", error) from error

    def labels(self) -> list[str]:
        """Return the page labels."""
        try:
            return list(self._pdf.page_labels) if "/PageLabels" in self._pdf.root_object else []
        except PARSER_ERRORS as error:
            raise self._error("the page labels cannot be read", error) from error

    def outline(self) -> list[OutlineEntry]:
        """Return the bookmarks that point to a page."""
        try:
            return list(self._entries(self._pdf.outline, 1))
        except PARSER_ERRORS as error:
            raise self._error("the outline cannot be read", error) from error

    def _entries(self, items: list[Any], level: int) -> Iterator[OutlineEntry]:
        for item in items:
            if isinstance(item, list):
                yield from self._entries(item, level + 1)
            elif isinstance(item, Destination):
                page = self._pdf.get_destination_page_number(item)
                if page is not None and item.title:
                    top = item.top
                    yield OutlineEntry(
                        str(item.title), level, page, float(top) if isinstance(top, (int, float)) else None
                    )

    def close(self) -> None:
        """Close the file."""
        self._pdf.close()

    def _error(self, what: str, error: BaseException) -> ReadError:
        if isinstance(error, DependencyError):
            return ReadError(self._path, "the PDF is encrypted with AES: `pip install cryptography`")
        detail = " ".join(clean(str(error)).split())[:MAX_DETAIL]
        return ReadError(self._path, f"{what} ({': '.join(filter(None, (type(error).__name__, detail)))})")


def _span(page: PageObject, angle: int) -> tuple[float, float]:
    try:
        left, bottom, right, top = map(float, page.mediabox)
    except PARSER_ERRORS:  # without a size, the page has no margins
        return 0.0, 0.0
    return page_span((left, bottom, right, top), angle)


def _plain_lines(page: PageObject) -> list[Line]:
    """Return the lines of pypdf's own extraction."""
    return [Line(" ".join(text.split())) for text in page.extract_text().splitlines() if text.strip()]
