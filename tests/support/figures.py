"""PDFs with figures, made by the tests."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def picture(number: int, size: tuple[int, int] = (240, 160)) -> Any:
    """Return a picture that differs for each number."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    draw.ellipse((20, 20, 60 + 10 * (number % 10), 140), fill=(200, 40 + number % 100, 60))
    draw.line((0, 0, *size), fill="black", width=3)
    draw.text((100, 60), f"part {number}", fill="navy")
    return image


def encoded(number: int, kind: str = "PNG", size: tuple[int, int] = (240, 160)) -> bytes:
    """Return a picture as a file."""
    data = io.BytesIO()
    picture(number, size).save(data, kind)
    return data.getvalue()


def manual(path: Path, pages: Sequence[tuple[str, int | None, str]]) -> Path:
    """Write a PDF in which each page has a paragraph, a picture with this number, or None, and a caption below it."""
    from fpdf import FPDF

    pdf = FPDF()
    pdf.set_creation_date(datetime(2026, 1, 1, tzinfo=UTC))
    for paragraph, number, caption in pages:
        pdf.add_page()
        pdf.set_font("Helvetica", size=11)
        pdf.multi_cell(0, 6, paragraph)
        if number is not None:
            pdf.image(picture(number), x=40, y=80, w=90)
        pdf.set_y(145)
        pdf.set_font("Helvetica", size=9)
        pdf.multi_cell(0, 5, caption)
    pdf.output(str(path))
    return path


PUMP = (
    "The pump moves water from the well to the tank. It is described in the maintenance plan of the building, and it"
    " is shown in Figure 1.",
    1,
    "Figure 1: Cross-section of the circulation pump",
)
VALVE = (
    "The relief valve opens when the pressure in the boiler exceeds three bar. It closes on its own as soon as the"
    " pressure falls.",
    2,
    "Figure 2: Spring of the relief valve",
)
TEXT = ("The warranty ends after two years. It does not cover wear of the seals and of the bearings.", None, "")
