"""PDF engine that uses pypdf, which is pure Python.

The text is extracted with pypdf's `extract_text`, together with the position, size and weight of each line. Unlike the
pdfium engine, this engine does not join lines into paragraphs or recognise table rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from pypdf import Configuration, PdfReader
from pypdf.errors import DependencyError
from pypdf.generic import Destination

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.files import one_line
from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.pages import (
    BOLD_NAME,
    NO_PASSWORD,
    WRONG_PASSWORD,
    XFA,
    OutlineEntry,
    PageContent,
    PageSource,
    embedded_note,
)

# pypdf's own limits against malicious files apply, except for damaged data: it is inflated at 2 s per megabyte.
CONFIGURATION = Configuration(zlib_maximum_recovery_input_length=500_000)


class PypdfSource(PageSource):
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
        with self._reading("the PDF is damaged or truncated"):
            self._pdf = PdfReader(BytesIO(data))
            if self._pdf.is_encrypted and not self._pdf.decrypt(password or ""):
                raise ReadError(self._path, WRONG_PASSWORD if password else NO_PASSWORD)
            self.page_count = len(self._pdf.pages)

    @contextmanager
    def _reading(self, failure: str) -> Iterator[None]:
        try:
            yield
        except ReadError:
            raise
        except DependencyError as error:
            raise ReadError(self._path, "the PDF is encrypted with AES: `pip install cryptography`") from error
        except Exception as error:  # pypdf/errors.py warns that "broken PDF files might cause other Exceptions"
            detail = ": ".join(filter(None, (type(error).__name__, one_line(str(error)))))
            raise ReadError(self._path, f"{failure} ({detail})") from error

    def page(self, index: int) -> PageContent:
        """Return the page with the given index."""
        collected = _Lines()
        with self._reading("pypdf cannot parse it"):
            page = self._pdf.pages[index]
            page.extract_text(visitor_text=collected.add)
            lines = collected.lines()
            box = page.mediabox
            return PageContent(lines, not lines and len(page.images) > 0, (float(box.bottom), float(box.top)))

    def title(self) -> str | None:
        """Return the title in the document information."""
        with self._reading("the document information cannot be read"):
            return self._pdf.metadata.title if self._pdf.metadata else None

    def labels(self) -> list[str]:
        """Return the page labels."""
        with self._reading("the page labels cannot be read"):
            return list(self._pdf.page_labels) if "/PageLabels" in self._pdf.root_object else []

    def outline(self) -> list[OutlineEntry]:
        """Return the bookmarks that point to a page."""
        with self._reading("the outline cannot be read"):
            return list(self._entries(self._pdf.outline, 1))

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

    def notes(self) -> list[str]:
        """Return warnings about an XFA form and embedded files."""
        with self._reading("the embedded files cannot be listed"):
            root = self._pdf.root_object
            is_xfa = bool(root.get("/NeedsRendering")) and "/XFA" in root.get("/AcroForm", {})
            return [*([XFA] if is_xfa else []), *embedded_note([one_line(name) for name in self._pdf.attachments])]

    def close(self) -> None:
        """Close the file."""
        self._pdf.close()


class _Lines:
    """Visitor for `extract_text` that collects the lines of a page."""

    def __init__(self) -> None:
        self._lines: list[list[tuple[str, float, float, bool]]] = [[]]

    def add(self, text: str, matrix: Sequence[float], text_matrix: Sequence[float], font: Any, size: float) -> None:
        """Add a piece of text, which may contain line feeds, with its transformation and font."""
        _a, b, _c, d, _e, f = matrix
        y = text_matrix[4] * b + text_matrix[5] * d + f
        height = abs(size * text_matrix[3] * d)
        is_bold = BOLD_NAME.search(str((font or {}).get("/BaseFont", ""))) is not None
        for at, part in enumerate(text.split("\n")):
            if at:
                self._lines.append([])
            self._lines[-1].append((part, y, height, is_bold))

    def lines(self) -> list[Line]:
        """Return the lines that have text."""
        return [line for parts in self._lines if (line := _line(parts)) is not None]


def _line(parts: Sequence[tuple[str, float, float, bool]]) -> Line | None:
    visible = [part for part in parts if part[0].strip()]
    if not visible:
        return None
    text = " ".join("".join(part for part, *_ in parts).split())
    _text, y, height, _is_bold = max(visible, key=lambda part: part[2])
    bold = sum(len(part) for part, _y, _height, is_bold in visible if is_bold)
    return Line(text, y, height, bold=2 * bold > len(text))
