"""Writes PDF files byte by byte, so that a test decides where each glyph stands and what is broken."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from llama_index_contextual.readers.files import FileSource, ParsedFile, ReadLimits
from llama_index_contextual.readers.pdf.reader import parse_pdf

HELVETICA = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"
CATALOG, PAGES, FONT = 1, 2, 3


class RawPdf:
    """A PDF as a list of objects: 1 is the catalog, 2 the page tree, 3 the font /F1 (Helvetica, WinAnsi)."""

    def __init__(self) -> None:
        self.objects: list[bytes] = [b"", b"", HELVETICA]
        self.kids: list[int] = []
        self.catalog = b""
        self.trailer = b""

    def add(self, body: bytes) -> int:
        """Add an object and return its number."""
        self.objects.append(body)
        return len(self.objects)

    def stream(self, data: bytes, entries: bytes = b"", *, length: int | None = None) -> int:
        """Add a stream and return its number."""
        size = len(data) if length is None else length
        return self.add(b"<</Length %d%s>>stream\n%s\nendstream" % (size, entries, data))

    def page(self, content: bytes | int, entries: bytes = b"", *, resources: bytes = b"/Font<</F1 3 0 R>>") -> int:
        """Add a page with a content stream (its bytes, or its number) and return its number."""
        number = content if isinstance(content, int) else self.stream(content)
        body = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<<%s>>/Contents %d 0 R%s>>"
        self.kids.append(self.add(body % (resources, number, entries)))
        return self.kids[-1]

    def data(self) -> bytes:
        """Return the file."""
        self.objects[0] = self.objects[0] or b"<</Type/Catalog/Pages 2 0 R%s>>" % self.catalog
        kids = b" ".join(b"%d 0 R" % kid for kid in self.kids)
        self.objects[1] = self.objects[1] or b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(self.kids), kids)
        out, offsets = bytearray(b"%PDF-1.7\n"), []
        for number, body in enumerate(self.objects, 1):
            offsets.append(len(out))
            out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
        start = len(out)
        out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(offsets) + 1)
        out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
        out += b"trailer\n<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (len(offsets) + 1, self.trailer, start)
        return bytes(out)


def show(x: float, y: float, text: str, *, size: float = 10) -> bytes:
    """Return the operators that draw a text at a place."""
    escaped = text.encode("cp1252").replace(b"\\", rb"\\").replace(b"(", rb"\(").replace(b")", rb"\)")
    return b"BT /F1 %g Tf %g %g Td (%s) Tj ET\n" % (size, x, y, escaped)


def lines(texts: Sequence[str], *, top: float = 750, x: float = 50, step: float = 14, size: float = 10) -> bytes:
    """Return the operators that draw lines one below the other."""
    return b"".join(show(x, top - step * at, text, size=size) for at, text in enumerate(texts))


def pdf_of(pages: Iterable[bytes]) -> RawPdf:
    """Return a PDF with one page for each content stream."""
    pdf = RawPdf()
    for content in pages:
        pdf.page(content)
    return pdf


def bomb(size: int) -> bytes:
    """Return compressed zeros that inflate to `size` bytes, twice compressed while that makes them small."""
    return zlib.compress(zlib.compress(bytes(size), 9), 9)


def encrypted(user: str, owner: str = "owner") -> bytes:
    """Return a PDF that is encrypted."""
    from fpdf import FPDF

    pdf = FPDF()
    pdf.set_encryption(owner_password=owner, user_password=user)
    pdf.set_font("Helvetica", size=12)
    pdf.add_page()
    pdf.multi_cell(0, text="A secret clause")
    return bytes(pdf.output())


def read_pdf(path: Path, *, limits: ReadLimits = ReadLimits(), **options: Any) -> ParsedFile:  # noqa: B008
    """Read a PDF in this process; see `parse_pdf`."""
    return parse_pdf(FileSource.open(path, limits), **options)
