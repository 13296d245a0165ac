"""Words that OCR reads right: `python -m tests.benchmarks.ocr` (needs the extra `ocr`).

Ten pages made for it (`tests/support/scans.py`) are images in one PDF, which a project ingests: through the layout,
with paragraphs joined, as a user gets them. "words" is the share of the page's words that were read, "in order" that of
the longest common sequence. Then the document is removed and ingested again, and no page may be read again.
`--engine tesseract` measures that program.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import DocumentReader, discover
from llama_index_contextual.readers.ocr import engine_for
from llama_index_contextual.storage.ledger import Ledger
from tests.support.scans import ScannedPage, pdf_of_images, scanned_pages


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
    with DocumentReader(ocr=config.ocr, ocr_language=config.ocr_language, page_store=ledger) as reader:
        document = reader.read(discover([path]).files[0]).document
    ledger.close()
    map = DocumentMap.from_metadata(document.metadata)
    ends = (*map.page_starts[1:], len(document.text))
    return [document.text[start:end] for start, end in zip(map.page_starts, ends, strict=True)], map


def main() -> None:
    """Print the share of words for each page, and what a second ingest reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("rapidocr", "tesseract"), default="rapidocr")
    parser.add_argument("--language", help="languages of tesseract")
    arguments = parser.parse_args()
    engine = engine_for(arguments.engine, arguments.language)
    if isinstance(engine, str):
        sys.exit(engine)
    pages = scanned_pages()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scans.pdf"
        path.write_bytes(pdf_of_images([page.image for page in pages]))
        settings = ProjectConfig.local(context="none", ocr=arguments.engine, ocr_language=arguments.language)
        project = ProjectManager(Path(folder) / "projects").create("scans", settings)
        started = time.perf_counter()
        print(project.ingest([path]))
        seconds = time.perf_counter() - started
        rows = Ledger(project.directory / "ledger.sqlite", read_only=True)
        stored = rows.info().pages
        texts, map = pages_of(path, project)
        print(f"\n{engine}: {seconds / len(pages):.1f} s per page\n")
        print(f"{'page':14} {'words':>5} {'read':>8} {'in order':>9} {'confidence':>11}")
        counts = [
            measure(page, text, confidence)
            for page, text, confidence in zip(pages, texts, map.page_confidences, strict=True)
        ]
        read, total = (sum(column) for column in zip(*counts, strict=True))
        print(f"{'all':14} {total:5} {read / total:8.1%}")
        project.remove("scans.pdf")
        states: list[IngestProgress] = []
        started = time.perf_counter()
        project.ingest([path], progress=states.append)
        print(
            f"\nsecond ingest: {rows.info().pages - stored} pages read by OCR, {time.perf_counter() - started:.1f} s"
            f" instead of {seconds:.1f} s"
        )
        rows.close()


if __name__ == "__main__":
    main()
