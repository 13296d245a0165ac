"""Build data/quarterly-reports-2024.pdf from the Markdown files in pdf_source/.

    pip install reportlab
    python make_pdf.py

The output is the same on every run, byte for byte, because it contains neither
times nor random numbers. The fonts are the standard ones of every PDF viewer,
so no font files are needed.

The supported Markdown: "# " report title, "## " section, "### " subsection,
paragraphs, and "|" tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from reportlab.lib.enums import TA_JUSTIFY, TA_LEFT
from reportlab.lib.fonts import addMapping
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.platypus import (
    BaseDocTemplate,
    Flowable,
    Frame,
    NextPageTemplate,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
)

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / "pdf_source" / name for name in ("q1.md", "q2.md", "q3.md")]
OUTPUT = HERE / "data" / "quarterly-reports-2024.pdf"

TITLE = "Haldermoor Utilities Group plc: Interim reports 2024"
RUNNING_HEADER = "Interim management report"

# Words that are set with the typographic ligatures of the font, as many
# typesetting programs do.
LIGATURE_WORDS = ("floor", "firm", "flat", "flats", "flow", "reflects", "finished", "difficult", "official", "fibre")
LIGATURES = (("fi", "\ufb01"), ("fl", "\ufb02"))

# Long words that may be hyphenated at the end of a line.
DIVIDED_WORDS = """
    appli-cations communi-cation con-nection connec-tions depar-tures differ-ences disinfec-tant elec-tricity
    finan-cial inter-ruptions invest-ment manufac-turer munici-palities opera-tions percent-age punctu-ality
    recog-nised replace-ment reser-voirs state-ments techni-cian temper-ature utili-ties water-works
"""
DIVISIONS = {word.replace("-", ""): tuple(word.split("-")) for word in DIVIDED_WORDS.split()}

# The standard fonts hold the two ligatures in the Mac Roman encoding only.
FONTS = {
    "Body": "Times-Roman",
    "Sans": "Helvetica",
    "SansBold": "Helvetica-Bold",
}
for alias, face in FONTS.items():
    pdfmetrics.registerFont(pdfmetrics.Font(alias, face, "MacRomanEncoding"))
    addMapping(alias, 0, 0, alias)


def divide(word: str) -> Iterator[tuple[str, ...]]:
    """Yield the parts of a word for hyphenation; called by Paragraph."""
    if word in DIVISIONS:
        yield DIVISIONS[word]


BODY = ParagraphStyle("body", fontName="Body", fontSize=12, leading=18, alignment=TA_JUSTIFY, spaceAfter=9)
BODY.hyphenationLang = divide
H1 = ParagraphStyle("h1", fontName="SansBold", fontSize=20, leading=26, spaceAfter=18, alignment=TA_LEFT)
H2 = ParagraphStyle("h2", fontName="SansBold", fontSize=14, leading=19, spaceBefore=14, spaceAfter=8, keepWithNext=1)
H3 = ParagraphStyle("h3", fontName="SansBold", fontSize=11.5, leading=16, spaceBefore=6, spaceAfter=5, keepWithNext=1)
COVER = ParagraphStyle("cover", fontName="SansBold", fontSize=26, leading=34, spaceAfter=24)


def typeset(text: str) -> str:
    """Escape a paragraph and insert the ligatures."""
    text = escape(text)
    for word in LIGATURE_WORDS:
        text = re.sub(rf"\b{word}\b", word.replace(*LIGATURES[0]).replace(*LIGATURES[1]), text)
    return text


class Heading(Paragraph):
    """A paragraph that adds an outline entry."""

    def __init__(self, text: str, style: ParagraphStyle, level: int, key: str) -> None:
        super().__init__(escape(text), style)
        self.plain, self.level, self.key = text, level, key

    def draw(self) -> None:
        self.canv.bookmarkPage(self.key)
        self.canv.addOutlineEntry(self.plain, self.key, level=self.level, closed=self.level > 0)
        super().draw()


class FigureTable(Flowable):
    """A table with one line of text per row: label and figures."""

    ROW = 17

    def __init__(self, rows: list[list[str]]) -> None:
        super().__init__()
        self.rows = rows

    def wrap(self, available_width: float, available_height: float) -> tuple[float, float]:
        self.width, self.height = available_width, self.ROW * len(self.rows) + 10
        return self.width, self.height

    def draw(self) -> None:
        figures = len(self.rows[0]) - 1
        step = (self.width - 76 * mm) / 3
        right = [self.width - step * (figures - 1 - i) for i in range(figures)]
        self.canv.setLineWidth(0.4)
        for number, (label, *cells) in enumerate(self.rows):
            y = self.height - self.ROW * (number + 1)
            font = "SansBold" if number == 0 else "Sans"
            line = self.canv.beginText(0, y + 5)
            line.setFont(font, 9.5)
            line.textOut(label)
            for x, cell in zip(right, cells, strict=True):
                line.setTextOrigin(x - pdfmetrics.stringWidth(cell, font, 9.5), y + 5)
                line.textOut(cell)
            self.canv.drawText(line)
            self.canv.line(0, y, self.width, y)


def read(path: Path, story: list) -> None:
    """Append one report to the story."""
    blocks = re.split(r"\n\s*\n", path.read_text(encoding="utf-8").strip())
    for count, block in enumerate(blocks, start=1):
        key = f"{path.stem}-{count}"
        if block.startswith("# "):
            story.append(Heading(block[2:].strip(), H1, 0, key))
        elif block.startswith("## "):
            story.append(Heading(block[3:].strip(), H2, 1, key))
        elif block.startswith("### "):
            story.append(Heading(block[4:].strip(), H3, 2, key))
        elif block.startswith("|"):
            lines = [line.strip().strip("|").split("|") for line in block.splitlines()]
            rows = [[cell.strip() for cell in line] for line in lines]
            story.append(FigureTable([rows[0], *rows[2:]]))
        else:
            story.append(Paragraph(typeset(" ".join(block.split())), BODY))


def header(canvas, document) -> None:
    """Running header and page label of an ordinary page."""
    canvas.addPageLabel(document.page - 1, style="ARABIC", start=document.page - 1)
    canvas.saveState()
    canvas.setFont("Sans", 8.5)
    canvas.drawString(25 * mm, A4[1] - 15 * mm, RUNNING_HEADER)
    canvas.line(25 * mm, A4[1] - 17 * mm, A4[0] - 25 * mm, A4[1] - 17 * mm)
    canvas.restoreState()


def footer(canvas, document) -> None:
    canvas.saveState()
    canvas.setFont("Sans", 8.5)
    canvas.drawCentredString(A4[0] / 2, 13 * mm, str(document.page - 1))
    canvas.restoreState()


def cover(canvas, document) -> None:
    canvas.addPageLabel(0, style="ROMAN_LOWER", start=1)
    canvas.setTitle(TITLE)
    canvas.setAuthor("Haldermoor Utilities Group plc")
    canvas.setCreator("make_pdf.py")
    canvas.setSubject("Interim reports for the first to third quarter of 2024")


def build(output: Path = OUTPUT) -> Path:
    document = BaseDocTemplate(str(output), pagesize=A4, invariant=1, initialFontName="Sans", lang="en-GB")
    frame = Frame(25 * mm, 22 * mm, 160 * mm, A4[1] - 44 * mm, leftPadding=0, rightPadding=0, topPadding=6)
    document.addPageTemplates(
        [
            PageTemplate("cover", [frame], onPage=cover),
            PageTemplate("page", [frame], onPage=header, onPageEnd=footer),
        ]
    )
    story: list = [
        Spacer(1, 60 * mm),
        Paragraph(escape(TITLE), COVER),
        Paragraph("First, second and third quarter, bound in one file for the archive.", BODY),
        Paragraph("Port Averly. The three reports are reprinted without change.", BODY),
        NextPageTemplate("page"),
    ]
    for path in SOURCES:
        story.append(PageBreak())
        read(path, story)
    output.parent.mkdir(parents=True, exist_ok=True)
    document.build(story)
    return output


if __name__ == "__main__":
    print(build().relative_to(HERE))
