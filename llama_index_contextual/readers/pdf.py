"""Reads PDF files: text, pages, printed page numbers, outline, title."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from llama_index_contextual.errors import ReadError
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers.base import ParsedFile, ReadLimits
from llama_index_contextual.readers.pdf_process import PdfWorker

__all__ = ["PdfEngine", "PdfWorker", "read_pdf"]

PdfEngine = Literal["pypdf", "pdfium"]


def read_pdf(
    path: Path,
    *,
    password: str | None = None,
    limits: ReadLimits = ReadLimits(),  # noqa: B008
    engine: PdfEngine = "pypdf",
) -> ParsedFile:
    """Read one PDF in this process.

    Raises:
        ReadError: The file cannot be read; `reason` says why.
    """
    import pypdf

    try:
        if path.stat().st_size == 0:
            raise ReadError(str(path), "the file is empty (0 bytes)")
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(password or ""):
            raise ReadError(str(path), "the PDF is encrypted: pass its password")
        texts, warnings = [], []
        for number, page in enumerate(reader.pages, 1):
            texts.append(page.extract_text())
            if not texts[-1].strip():
                warnings.append(f"page {number} has no text: it needs OCR")
    except (pypdf.errors.PyPdfError, OSError, ValueError, KeyError, TypeError) as error:
        raise ReadError(str(path), f"the PDF is damaged: {error}") from error
    starts, at = [], 0
    for text in texts:
        starts.append(at)
        at += len(text) + 1
    return ParsedFile("\n".join(texts), DocumentMap(page_starts=tuple(starts)), warnings=tuple(warnings))
