"""PDF engine that uses pdfium; it is fast and needs the extra `pdfium`.

pdfium itself determines lines and spaces. Columns that are drawn row by row stay in this order.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import ConfigurationError, ReadError
from llama_index_contextual.readers.pdf.engine import MIN_PATHS, NO_PASSWORD, WRONG_PASSWORD, OutlineEntry, PageContent
from llama_index_contextual.readers.pdf.pieces import Line

SUCCESS = 0  # FPDF_ERR_SUCCESS, which pdfium reports of a page tree that it finds empty
PASSWORD_ERROR = 4  # FPDF_ERR_PASSWORD
IMAGE = 3  # FPDF_PAGEOBJ_IMAGE
_HYPHENS = ("\x02", "\ufffe")  # how pdfium marks a hyphen at the end of a line, instead of ending the line
_LINE = re.compile(r"([^\r\n\x02\ufffe]*)(\r\n|[\r\n\x02\ufffe]|\Z)")


class PdfiumSource:
    """An open PDF, read with pdfium.

    Args:
        path: Path of the file, for error messages.
        data: The bytes of the file.
        password: Password of an encrypted PDF.

    Raises:
        ReadError: The file cannot be opened.
        ConfigurationError: The package is not installed.
    """

    def __init__(self, path: Path, data: bytes, password: str | None) -> None:
        try:
            import pypdfium2
        except ImportError as error:
            message = "The engine 'pdfium' needs a package: `pip install llama-index-contextual[pdfium]`"
            raise ConfigurationError(message, setting="pdf_engine") from error
        self._path = str(path)
        self._error = pypdfium2.PdfiumError
        try:
            self._pdf: Any = pypdfium2.PdfDocument(data, password=password)
        except pypdfium2.PdfiumError as error:
            if error.err_code == PASSWORD_ERROR:
                raise ReadError(self._path, WRONG_PASSWORD if password else NO_PASSWORD) from error
            if error.err_code == SUCCESS:
                raise ReadError(self._path, "the PDF has no pages") from error
            raise ReadError(self._path, f"the PDF is damaged or truncated ({error})") from error
        self.page_count = len(self._pdf)

    def page(self, index: int) -> PageContent:
        """Return the page with an index."""
        try:
            page = self._pdf[index]
            text = page.get_textpage()
            lines = _lines(text)
            is_drawn = not lines and _is_drawn(page)
            _left, bottom, _right, top = page.get_mediabox()
            text.close()
            page.close()
        except self._error as error:
            raise ReadError(self._path, f"pdfium cannot parse it ({error})") from error
        return PageContent(lines, is_drawn, (bottom, top))

    def title(self) -> str | None:
        """Return the title in the document information."""
        return str(self._pdf.get_metadata_value("Title"))

    def labels(self) -> list[str]:
        """Return the page labels."""
        labels = [self._pdf.get_page_label(index) for index in range(self.page_count)]
        return labels if any(labels) else []

    def outline(self) -> list[OutlineEntry]:
        """Return the bookmarks that point to a page."""
        try:
            return [entry for mark in self._pdf.get_toc() if (entry := _entry(mark)) is not None]
        except self._error as error:
            raise ReadError(self._path, f"the outline cannot be read ({error})") from error

    def close(self) -> None:
        """Close the file."""
        self._pdf.close()


def _is_drawn(page: Any) -> bool:
    kinds = [shape.type for shape in page.get_objects()]
    return IMAGE in kinds or len(kinds) >= MIN_PATHS


def _entry(mark: Any) -> OutlineEntry | None:
    destination = mark.get_dest()
    page = destination.get_index() if destination is not None else None
    if page is None:
        return None
    _mode, position = destination.get_view()
    return OutlineEntry(mark.get_title(), mark.level + 1, page, position[1] if len(position) > 1 else None)


def _lines(page: Any) -> list[Line]:
    text, lines, at = page.get_text_range(), [], 0
    last = page.count_chars() - 1
    for piece, end in _LINE.findall(text):
        words = " ".join(piece.split())
        if words:
            start = min(at + len(piece) - len(piece.lstrip()), last)
            _left, bottom, _right, top = page.get_charbox(start, loose=True)
            lines.append(Line(words + ("-" if end in _HYPHENS else ""), bottom, top - bottom))
        at += len(piece) + len(end)
    return lines
