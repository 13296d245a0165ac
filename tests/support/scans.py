"""Scanned pages made for the tests: typeset text, drawn as an image, skewed and dirtied, with the words it contains."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fpdf import FPDF
from PIL import Image

DATA = Path(__file__).resolve().parent.parent / "data"
CHINESE = (
    "人民法院关于合同纠纷的判决书",
    "原告与被告于二零二三年五月签订房屋租赁合同，",
    "约定租期三年，每月租金为人民币8500元。",
    "被告自2024年1月起未按期支付租金，",
    "经原告多次催告仍未履行付款义务。",
    "本院认为，双方签订的合同合法有效，",
    "被告应当支付拖欠的租金共计51000元，",
    "并按照合同第12条承担违约责任。",
)
"""Lines of the page in `tests/data/scan-chinese.png`."""

ROWS = (
    ("Item", "2022", "2023", "2024"),
    ("Revenue", "1,204.7", "1,318.2", "1,452.9"),
    ("Cost of sales", "(713.4)", "(768.1)", "(829.6)"),
    ("Gross profit", "491.3", "550.1", "623.3"),
    ("Research and development", "(88.2)", "(97.5)", "(110.4)"),
    ("Selling expenses", "(141.0)", "(149.8)", "(163.7)"),
    ("Administrative expenses", "(60.5)", "(63.9)", "(70.1)"),
    ("Operating income", "201.6", "238.9", "279.1"),
    ("Interest expense", "(17.3)", "(14.6)", "(9.8)"),
    ("Income taxes", "(46.8)", "(57.2)", "(68.5)"),
    ("Net income", "137.5", "167.1", "200.8"),
    ("Earnings per share", "3.44", "4.18", "5.02"),
)


def drawn(draw: Callable[[FPDF], None], *, dpi: int = 300) -> Image.Image:
    """Return a page as a grey image; needs pypdfium2."""
    import pypdfium2

    pdf = FPDF(unit="pt", format="A4")
    pdf.set_margins(60, 60)
    pdf.add_page()
    draw(pdf)
    with pypdfium2.PdfDocument(bytes(pdf.output())) as document:
        image: Image.Image = document[0].render(scale=dpi / 72, grayscale=True).to_pil()
    return image


def skewed(image: Image.Image, degrees: float) -> Image.Image:
    """Return the image turned by a small angle, as a page fed crookedly into a scanner."""
    return image.rotate(degrees, resample=Image.Resampling.BICUBIC, fillcolor=255)


def pdf_of_images(images: Iterable[Image.Image]) -> bytes:
    """Return a PDF with one image per page."""
    pdf = FPDF(unit="pt", format="A4")
    pdf.set_auto_page_break(False)
    for image in images:
        width, height = (842, 595) if image.width > image.height else (595, 842)
        pdf.add_page(format=(width, height))
        pdf.image(image, 0, 0, width, height)
    return bytes(pdf.output())


def texts(pdf: FPDF, texts: Sequence[str], *, size: float = 10.5, family: str = "helvetica") -> None:
    pdf.set_font(family, size=size)
    for text in texts:
        for paragraph in text.strip().split("\n\n"):
            pdf.multi_cell(0, size * 1.35, paragraph, new_x="LMARGIN", new_y="NEXT")
            pdf.ln(size)


def table(pdf: FPDF) -> None:
    pdf.set_font("helvetica", size=10)
    for label, *figures in ROWS:
        pdf.cell(220, 18, label)
        for figure in figures:
            pdf.cell(80, 18, figure, align="R")
        pdf.ln(18)


def broken_image() -> bytes:
    """Return the first half of a PNG."""
    file = io.BytesIO()
    drawn(table).save(file, "PNG")
    return file.getvalue()[: len(file.getvalue()) // 2]
