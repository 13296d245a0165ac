"""Speed and accuracy of the PDF reader: `python -m tests.benchmarks.pdf --data DATA`.

Measures the speed of both engines and of pdfium alone on the contracts and filings, in one process. Also counts the
words on each page that an engine loses, compared with the text that pdfium returns for the page.
"""

from __future__ import annotations

import argparse
import logging
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pypdfium2

from llama_index_contextual.readers.pdf.pages import PdfEngine
from llama_index_contextual.readers.pdf.pdfium import PdfiumSource
from llama_index_contextual.readers.pdf.pypdf import PypdfSource
from tests.support.pdf_files import read_pdf

ENGINES: tuple[PdfEngine, ...] = ("pypdf", "pdfium")


def speed(paths: Sequence[Path]) -> None:
    """Print pages per second of processor time."""
    readings: dict[str, Callable[[Path], object]] = {
        "bare pdfium": page_texts,
        "read_pdf, pdfium": lambda path: read_pdf(path, engine="pdfium"),
        "read_pdf, pypdf": lambda path: read_pdf(path, engine="pypdf"),
    }
    seconds = dict.fromkeys(readings, 0.0)
    for path in paths:
        for name, reading in readings.items():
            started = time.process_time()
            reading(path)
            seconds[name] += time.process_time() - started
    pages = sum(len(page_texts(path)) for path in paths)
    print(f"{pages:,} pages of {len(paths)} files, one process, processor time")
    for name, taken in seconds.items():
        print(f"  {name:18s} {pages / taken:7.1f} pages/s")


def page_texts(path: Path) -> list[str]:
    """What pdfium gives by itself."""
    pdf = pypdfium2.PdfDocument(path.read_bytes())
    try:
        texts = []
        for page in pdf:
            text = page.get_textpage()
            texts.append(text.get_text_range())
            text.close()
            page.close()
        return texts
    finally:
        pdf.close()


def laid_out(path: Path, engine: PdfEngine) -> list[str]:
    """The lines of each page, before anything is taken off or repaired."""
    source = (PdfiumSource if engine == "pdfium" else PypdfSource)(path, path.read_bytes(), None)
    try:
        return ["\n".join(line.text for line in source.page(at).lines) for at in range(source.page_count)]
    finally:
        source.close()


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).replace("\u00ad", "").lower())


def lost(ours: Sequence[str], reference: Sequence[str]) -> tuple[int, int]:
    """Return how many words of the reference have their letters nowhere in a row on our page, and how many it has."""
    gone = total = 0
    for mine, page in zip(ours, reference, strict=True):
        have, want = _words(mine), Counter(_words(page))
        joined = "".join(have)
        total += want.total()
        gone += sum(count for word, count in (want - Counter(have)).items() if word not in joined)
    return gone, total


def words(paths: Sequence[Path]) -> None:
    """Print the share of words that each engine loses, and the worst file."""
    references = {path: page_texts(path) for path in paths}
    for engine in ENGINES:
        files = {path: lost(laid_out(path, engine), references[path]) for path in paths}
        gone, total = (sum(column) for column in zip(*files.values(), strict=True))
        worst = max(files, key=lambda path: files[path][0] / (files[path][1] or 1))
        print(f"{engine}: {100 * gone / total:.4f} % of {total:,} words lost ({gone}); most in {worst.name[:60]}")


def main() -> None:
    """Print speed and words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="read every nth file")
    arguments = parser.parse_args()
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    paths = [path for name in ("contracts", "filings") for path in sorted((arguments.data / name / "pdf").iterdir())]
    speed(paths[:: arguments.every])
    words(paths[:: arguments.every])


if __name__ == "__main__":
    main()
