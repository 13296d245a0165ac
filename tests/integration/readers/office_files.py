"""Office files, made with the libraries that write them, and archives with any parts."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from io import BytesIO
from pathlib import Path
from typing import Any

from llama_index_contextual.readers.files import FileAccount, FileSource, ParsedFile, ReadLimits
from llama_index_contextual.readers.office import parse_office

Rows = Sequence[Sequence[Any]]

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def read(name: str, data: bytes, **limits: Any) -> ParsedFile:
    path = Path(name)
    return parse_office(FileSource(path, data, FileAccount(path, len(data), ReadLimits(**limits))))


def saved(document: Any) -> bytes:
    buffer = BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def workbook(**sheets: Rows) -> Any:
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    return book


def xlsx(**sheets: Rows) -> bytes:
    return saved(workbook(**sheets))


def docx(*blocks: str | tuple[int, str] | Rows) -> bytes:
    """Return a document of paragraphs, headings (level, title) and tables (rows)."""
    from docx import Document

    document = Document()
    for block in blocks:
        if isinstance(block, str):
            document.add_paragraph(block)
        elif isinstance(block, tuple):
            document.add_heading(block[1], block[0])
        else:
            table = document.add_table(len(block), len(block[0]))
            for cells, row in zip(table.rows, block, strict=True):
                for cell, text in zip(cells.cells, row, strict=True):
                    cell.text = str(text)
    return saved(document)


def pptx(*slides: tuple[str, str]) -> bytes:
    """Return a presentation of slides with a title and a text."""
    from pptx import Presentation

    presentation = Presentation()
    for title, text in slides:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, text
    return saved(presentation)


def mail(subject: str, text: str, *attachments: tuple[str, bytes]) -> bytes:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = subject, "Ada <ada@example.org>", "bob@example.org"
    message["Date"] = "Mon, 01 Jan 2024 10:00:00 +0100"
    message.set_content(text)
    for name, data in attachments:
        message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    return message.as_bytes()


def archive(parts: Mapping[str, bytes]) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in parts.items():
            target.writestr(name, content)
    return buffer.getvalue()


def replaced(data: bytes, parts: Mapping[str, bytes]) -> bytes:
    """Return an archive with some parts replaced or added."""
    with zipfile.ZipFile(BytesIO(data)) as source:
        return archive({name: source.read(name) for name in source.namelist()} | dict(parts))


def part(data: bytes, name: str) -> bytes:
    with zipfile.ZipFile(BytesIO(data)) as source:
        return source.read(name)
