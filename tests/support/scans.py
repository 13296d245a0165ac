"""Scanned pages made for the tests: typeset text, drawn as an image, skewed and dirtied, with the words it contains."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fpdf import FPDF
from PIL import Image, ImageFilter

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

LETTER = """\
The tenant shall keep the premises in good repair and shall not make any alteration to the structure of the building \
without the prior written consent of the landlord. Consent shall not be unreasonably withheld where the alteration is \
required by law. The tenant shall pay the rent of $4,250.00 on the first day of each month by bank transfer to the \
account named in the schedule, free of any deduction or set-off.

If the rent remains unpaid for 14 days after the due date, the landlord may charge interest at 8.5% per year from that \
date until payment. The landlord shall insure the building against fire, storm and flood for its full reinstatement \
value, and shall lay out all money received under the policy in rebuilding or repairing the premises.

Either party may end this agreement by giving not less than 3 months' notice in writing to the other at the address \
stated above. A notice sent by registered post is deemed to have been received on the second working day after posting.
"""
REPORT = """\
Sales of industrial pumps rose for the third year in a row, and the order book at the end of December was the \
largest in the history of the company. Demand was strong in northern Europe, where several cities renewed their \
water supply, while orders from the building trade remained weak. Prices of steel and copper fell in the spring but \
had returned to their former level by autumn. The board therefore expects margins to stay under pressure next year. \
Two plants were modernised during the year without any interruption of production. The number of employees grew to \
2,318, mainly in research and in service. Accidents at work fell by a quarter. The company reduced its use of \
energy per tonne of output by six per cent and now draws all of its electricity from renewable sources. An interim \
dividend was paid in August. The board proposes a final dividend of 1.20 euros per share. Cash flow from operations \
covered all investments, so that net debt could be repaid in full. The search for a new head of finance is nearly \
complete and will be announced soon.
"""
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
GERMAN = """\
Der Käufer prüft die Ware unverzüglich nach der Übergabe und zeigt Mängel spätestens binnen sieben Tagen schriftlich \
an. Für größere Lieferungen gewährt der Verkäufer einen Nachlass von 2 % auf den Kaufpreis. Überfällige Beträge werden \
mit fünf Prozentpunkten über dem Basiszinssatz verzinst. Änderungen dieses Vertrages bedürfen der Schriftform.
"""
FRENCH = """\
Le locataire s'engage à régler le loyer au début de chaque mois. Les réparations nécessaires sont à la charge du \
propriétaire, sauf négligence établie. La durée du bail est fixée à neuf années entières et consécutives.
"""


@dataclass(frozen=True)
class ScannedPage:
    """A scanned page.

    Attributes:
        name: What is special about it.
        image: The image.
        words: Its words in reading order; for Chinese, its characters.
    """

    name: str
    image: Image.Image
    words: tuple[str, ...]


@cache
def scanned_pages() -> tuple[ScannedPage, ...]:
    """Return ten pages: prose, small print, a table, two columns, Chinese, and damage of several kinds."""
    prose = (*LETTER.split(), *REPORT.split())
    figures = tuple(word for row in ROWS for cell in row for word in cell.split())
    accents = (*GERMAN.split(), *FRENCH.split())
    chinese = Image.open(DATA / "scan-chinese.png")
    chinese.load()
    return (
        ScannedPage("prose", drawn(_prose), prose),
        ScannedPage("small print", drawn(lambda pdf: _prose(pdf, size=7.5, family="times")), prose),
        ScannedPage("table", drawn(table), figures),
        ScannedPage("two columns", drawn(_columns), tuple(REPORT.split())),
        ScannedPage("Chinese", chinese, tuple("".join(CHINESE))),
        ScannedPage("accents", drawn(lambda pdf: _texts(pdf, (GERMAN, FRENCH))), accents),
        ScannedPage("skewed by 1°", skewed(drawn(_prose), 1.0), prose),
        ScannedPage("skewed table", skewed(drawn(table), -1.0), figures),
        ScannedPage("noise", dirtied(drawn(_prose)), prose),
        ScannedPage("sideways fax", drawn(_prose, dpi=200).convert("1").rotate(90, expand=True, fillcolor=1), prose),
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


def dirtied(image: Image.Image, *, seed: int = 7) -> Image.Image:
    """Return the image blurred, on grey paper, with specks and the artefacts of a strong JPEG compression."""
    dice = random.Random(seed)
    grey = image.filter(ImageFilter.GaussianBlur(1.2)).point([40 + level * 190 // 255 for level in range(256)])
    for _ in range(image.width * image.height // 1500):
        x, y, shade = dice.randrange(image.width), dice.randrange(image.height), dice.choice((60, 120, 250))
        grey.paste(shade, (x, y, x + dice.choice((1, 2)), y + dice.choice((1, 2))))
    file = io.BytesIO()
    grey.save(file, "JPEG", quality=35)
    return Image.open(io.BytesIO(file.getvalue()))


def pdf_of_images(images: Iterable[Image.Image], *, text_first: str = "") -> bytes:
    """Return a PDF with one image per page; `text_first` adds a page with a text layer before them."""
    pdf = FPDF(unit="pt", format="A4")
    pdf.set_auto_page_break(False)
    if text_first:
        pdf.add_page()
        _texts(pdf, [text_first])
    for image in images:
        width, height = (842, 595) if image.width > image.height else (595, 842)
        pdf.add_page(format=(width, height))
        pdf.image(image, 0, 0, width, height)
    return bytes(pdf.output())


def _prose(pdf: FPDF, *, size: float = 10.5, family: str = "helvetica") -> None:
    pdf.set_font(family, "B", size * 1.4)
    _texts(pdf, (LETTER, REPORT), size=size, family=family)


def _texts(pdf: FPDF, texts: Sequence[str], *, size: float = 10.5, family: str = "helvetica") -> None:
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


def _columns(pdf: FPDF) -> None:
    pdf.set_font("times", size=11)
    with pdf.text_columns(ncols=2, gutter=24, text_align="J", balance=True) as columns:
        columns.write(REPORT.strip())


def broken_image() -> bytes:
    """Return the first half of a PNG."""
    file = io.BytesIO()
    drawn(table).save(file, "PNG")
    return file.getvalue()[: len(file.getvalue()) // 2]


def saved(image: Image.Image, path: Path, **options: Any) -> Path:
    """Write an image to a file and return its path."""
    image.save(path, **options)
    return path
