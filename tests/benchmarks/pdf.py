"""Speed and exactness of the PDF reader: `python -m tests.benchmarks.pdf --data ../shared/data`.

On the shared contracts and filings: the speed of both engines and of bare pdfium, with a process per core; and the
words of each page that an engine loses, against the text that pdfium gives of the page and, where poppler-utils is
installed, against pdftotext.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import subprocess
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pypdfium2

from llama_index_contextual.readers import read_documents
from llama_index_contextual.readers.documents import MAX_PROCESSES
from llama_index_contextual.readers.pdf.pdfium import PdfiumSource
from llama_index_contextual.readers.pdf.pypdf import PypdfSource
from llama_index_contextual.readers.pdf.reader import PdfEngine, read_pdf

GOAL_LOST = 0.05  # per cent of all words
GOAL_LOST_IN_FILE = 0.5
GOAL_SPEED = 8.0  # times the engine pypdf, one process
ENGINES: tuple[PdfEngine, ...] = ("pypdf", "pdfium")


def speed(paths: Sequence[Path]) -> None:
    """Print pages per second of processor time, and how many cores a folder keeps busy on an idle machine."""
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
    started = time.perf_counter()
    read = read_documents(paths)
    by_the_clock = time.perf_counter() - started
    pages = sum(len(page_texts(path)) for path in paths)
    slowest = seconds["read_pdf, pypdf"]
    for reading_name, taken in seconds.items():
        print(f"{reading_name:24s} {pages / taken:7.1f} pages/s   {slowest / taken:5.2f} x read_pdf, pypdf")
    print(f"{pages:,} pages of {len(paths)} files; {len(read.documents)} read, {len(read.skipped)} skipped")
    processes = max(1, min(os.cpu_count() or 1, MAX_PROCESSES))
    print(f"read_documents, {processes} processes: {pages / by_the_clock:.1f} pages/s by the clock")
    gain = processes * slowest / seconds["read_pdf, pdfium"]
    print(f"{gain:.1f} x read_pdf, pypdf, with all processes; goal {GOAL_SPEED:g} x: {verdict(gain >= GOAL_SPEED)}")


def verdict(is_met: bool) -> str:
    """Return the word for a goal that is met or missed."""
    return "met" if is_met else "MISSED"


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


def pdftotext(path: Path) -> list[str]:
    """What poppler reads, page by page."""
    command = ["pdftotext", "-enc", "UTF-8", str(path), "-"]
    return subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout.split("\f")[:-1]


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


def words(paths: Sequence[Path], engines: Sequence[PdfEngine]) -> None:
    """Print the share of words that each engine loses, and the worst file."""
    oracles: dict[str, Callable[[Path], list[str]]] = {"pdfium's page text": page_texts}
    if shutil.which("pdftotext"):
        oracles["pdftotext"] = pdftotext
    for engine in engines:
        ours = {path: laid_out(path, engine) for path in paths}
        for name, reference in oracles.items():
            files = {path: lost(ours[path], reference(path)) for path in paths}
            gone, total = (sum(column) for column in zip(*files.values(), strict=True))
            shares = {path: 100 * part / (whole or 1) for path, (part, whole) in files.items()}
            worst = max(shares, key=lambda path: shares[path])
            goal = verdict(100 * gone <= GOAL_LOST * total and shares[worst] <= GOAL_LOST_IN_FILE)
            print(f"{engine:7s} {name:19s} {100 * gone / total:.4f} % of {total:,} words lost ({gone}), goal {goal}")
            print(f"        worst file {shares[worst]:.3f} %: {worst.name[:60]}")


def main() -> None:
    """Print speed and words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="take every nth file")
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=ENGINES, help="whose words are compared")
    arguments = parser.parse_args()
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    paths = [path for name in ("contracts", "filings") for path in sorted((arguments.data / name / "pdf").iterdir())]
    speed(paths[:: arguments.every])
    words(paths[:: arguments.every], arguments.engines)


if __name__ == "__main__":
    main()
