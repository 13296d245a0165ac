"""A tiny corpus about a fictional company, in the three formats that are read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

MARKDOWN = """\
# Orlen Valve Works, second quarter

## Results

Revenue grew by 3 % over the quarter before. Orders from shipyards made up half of it.

## Outlook

The board expects the pump division to close the year with a profit.
"""
TEXT = """\
Procedure manual for the test bench.

Error TS-999 means that the pump runs dry. Close valve V2 before the bench is switched off.

Error TS-104 means that the sensor is not calibrated.
"""
PDF_PAGES = ("Tariff note. Imports of cast iron cost 12 percent duty.", "Exports of bronze fittings are free of duty.")


def write_texts(folder: Path) -> Path:
    """Write the Markdown and the plain text file into a new folder and return it."""
    folder.mkdir()
    (folder / "quarter.md").write_text(MARKDOWN, encoding="utf-8")
    (folder / "manual.txt").write_text(TEXT, encoding="utf-8")
    return folder


@cache
def pdf_bytes() -> bytes:
    """Return a PDF of two pages."""
    from fpdf import FPDF

    pdf = FPDF()
    pdf.set_title("Tariff note")
    pdf.set_font("Helvetica", size=12)
    for page in PDF_PAGES:
        pdf.add_page()
        pdf.multi_cell(0, text=page)
    return bytes(pdf.output())
