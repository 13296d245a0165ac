"""Share of words that OCR reads correctly: `python -m tests.benchmarks.ocr` (needs the `ocr` extra).

A project ingests a PDF with the images of ten generated pages, with layout and joined paragraphs as in ordinary use.
"words" is the share of the words that were read, and "in order" is the share in the longest common subsequence.
`--engine tesseract` measures tesseract.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

from fpdf import FPDF
from PIL import Image, ImageFilter

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import DocumentReader, discover
from llama_index_contextual.readers.ocr import engine_for
from tests.support.scans import CHINESE, DATA, ROWS, drawn, pdf_of_images, skewed, table, texts

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
        ScannedPage("accents", drawn(lambda pdf: texts(pdf, (GERMAN, FRENCH))), accents),
        ScannedPage("skewed by 1°", skewed(drawn(_prose), 1.0), prose),
        ScannedPage("skewed table", skewed(drawn(table), -1.0), figures),
        ScannedPage("noise", dirtied(drawn(_prose)), prose),
        ScannedPage("sideways fax", drawn(_prose, dpi=200).convert("1").rotate(90, expand=True, fillcolor=1), prose),
    )


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


def _prose(pdf: FPDF, *, size: float = 10.5, family: str = "helvetica") -> None:
    pdf.set_font(family, "B", size * 1.4)
    texts(pdf, (LETTER, REPORT), size=size, family=family)


def _columns(pdf: FPDF) -> None:
    pdf.set_font("times", size=11)
    with pdf.text_columns(ncols=2, gutter=24, text_align="J", balance=True) as columns:
        columns.write(REPORT.strip())


def in_order(words: Sequence[str], expected: Sequence[str]) -> float:
    """Return the share of the expected words that are in the text in their order."""
    blocks = SequenceMatcher(None, words, expected, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / len(expected)


def measure(page: ScannedPage, text: str, confidence: float | None) -> tuple[int, int]:
    """Print the figures of one page; return the number of words read, and of all."""
    words = tuple("".join(text.split())) if page.name == "Chinese" else tuple(text.split())
    read = sum((Counter(words) & Counter(page.words)).values())
    shown = "" if confidence is None else f"{confidence:.3f}"
    share, order = read / len(page.words), in_order(words, page.words)
    print(f"{page.name:14} {len(page.words):5} {share:8.1%} {order:9.1%} {shown:>11}")
    return read, len(page.words)


def pages_of(path: Path, project: Project) -> tuple[list[str], DocumentMap]:
    """Return the text of each page of a file, from the ledger of a project, and the map of the file."""
    config = project.config
    ledger = Ledger(project.directory / "ledger.sqlite", read_only=True)
    with DocumentReader(ocr=config.ocr, page_store=ledger) as reader:
        document = reader.read(discover([path]).files[0]).document
    ledger.close()
    map = DocumentMap.from_metadata(document.metadata)
    ends = (*map.page_starts[1:], len(document.text))
    return [document.text[start:end] for start, end in zip(map.page_starts, ends, strict=True)], map


def main() -> None:
    """Print the share of words for each page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="rapidocr", help="rapidocr, tesseract, or tesseract:deu+fra")
    arguments = parser.parse_args()
    engine = engine_for(arguments.engine)
    if isinstance(engine, str):
        sys.exit(engine)
    pages = scanned_pages()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scans.pdf"
        path.write_bytes(pdf_of_images([page.image for page in pages]))
        settings = ProjectConfig.local(context="none", ocr=arguments.engine)
        project = ProjectManager(Path(folder) / "projects").create("scans", settings)
        started = time.perf_counter()
        print(project.ingest([path]))
        seconds = time.perf_counter() - started
        texts, map = pages_of(path, project)
        print(f"\n{engine}: {seconds / len(pages):.1f} s per page\n")
        print(f"{'page':14} {'words':>5} {'read':>8} {'in order':>9} {'confidence':>11}")
        counts = [
            measure(page, text, confidence)
            for page, text, confidence in zip(pages, texts, map.page_confidences, strict=True)
        ]
        read, total = (sum(column) for column in zip(*counts, strict=True))
        print(f"{'all':14} {total:5} {read / total:8.1%}")


if __name__ == "__main__":
    main()
