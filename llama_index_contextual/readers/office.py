"""Read Word, PowerPoint, Excel, CSV, email and HTML files, which are parsed in a child process.

Each format has its own module. Office files are checked by `check_package` before a library opens them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.delimited import read_csv
from llama_index_contextual.readers.excel import add_sheets
from llama_index_contextual.readers.files import (
    MARKDOWN_SUFFIXES,
    TEXT_SUFFIXES,
    FileSource,
    ParsedFile,
    suffix_reason,
)
from llama_index_contextual.readers.html import read_html
from llama_index_contextual.readers.mail import read_mail
from llama_index_contextual.readers.package import check_package
from llama_index_contextual.readers.pdf.reader import parse_pdf
from llama_index_contextual.readers.pdf.scans import Page
from llama_index_contextual.readers.pictures import Pictures
from llama_index_contextual.readers.powerpoint import add_slides
from llama_index_contextual.readers.text import parse_markdown, parse_text
from llama_index_contextual.readers.word import add_word

_INSTALL = 'pip install "llama-index-contextual[office]"'


def parse_office(source: FileSource, scans: Mapping[int, Page] | None = None, *, figures: bool = True) -> ParsedFile:
    """Read the bytes of a file whose extension is one of `OFFICE_SUFFIXES`, or of an email attachment.

    Args:
        source: The file.
        scans: The pictures in it that OCR has read, by number. The other pictures are listed in the `scanned` field of
            the result.
        figures: Whether to keep the figures; an attachment is treated like the email.

    Raises:
        ReadError: The file is damaged, is encrypted, has another type, or exceeds a limit.
    """
    suffix = source.path.suffix.lower()
    if not source.data.strip():
        raise source.error("is empty")
    if suffix not in READERS:
        raise source.error(suffix_reason(suffix))
    try:
        if source.pictures is not None:
            return READERS[suffix](source)
        pictures = Pictures(source, scans or {})
        parsed = READERS[suffix](replace(source, pictures=pictures, figures=figures))
        return replace(parsed, scanned=pictures.unread, warnings=(*parsed.warnings, *pictures.notes))
    except (MemoryError, ReadError):
        raise
    except ModuleNotFoundError as error:
        raise source.error(f"needs further packages: {_INSTALL}") from error
    except RecursionError as error:
        raise source.error("has elements nested too deeply, such as tables in tables: save it as PDF") from error
    except Exception as error:  # the libraries raise various exceptions for damaged files
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise source.error(f"is damaged and cannot be read ({reason}): open it, repair it and save it") from error


def _read_package(source: FileSource, add: Callable[[DocumentBuilder, FileSource], str | None]) -> ParsedFile:
    """Read an Office file with `add`, which adds its content to a document and returns the title, or None."""
    builder = DocumentBuilder(source.account, figures=source.figures)
    check_package(source)
    return builder.parsed(add(builder, source), source.digest)


def _read_mail(source: FileSource) -> ParsedFile:
    return read_mail(source, parse_office)


def _read_pdf(source: FileSource) -> ParsedFile:
    """Read a PDF that is attached to an email, with its scanned pages."""
    if source.pictures is None:
        return parse_pdf(source, figures=False)
    parsed = parse_pdf(source, scans=source.pictures.pdf_pages(source.data), figures=False)
    source.pictures.add_unread_pages(source.data, parsed.scanned)
    return parsed


READERS: dict[str, Callable[[FileSource], ParsedFile]] = {
    **dict.fromkeys((".docx", ".docm"), partial(_read_package, add=add_word)),
    **dict.fromkeys((".pptx", ".pptm"), partial(_read_package, add=add_slides)),
    **dict.fromkeys((".xlsx", ".xlsm"), partial(_read_package, add=add_sheets)),
    **dict.fromkeys((".html", ".htm", ".xhtml"), read_html),
    **dict.fromkeys((".csv", ".tsv"), read_csv),
    ".eml": _read_mail,
    # Files of these types are read here only if they are attached to an email.
    ".pdf": _read_pdf,
    **dict.fromkeys(MARKDOWN_SUFFIXES, parse_markdown),
    **dict.fromkeys(TEXT_SUFFIXES, parse_text),
}
"""Reader function for each file extension."""
