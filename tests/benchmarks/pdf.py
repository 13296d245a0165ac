"""Speed and exactness of the PDF reader: `python -m tests.benchmarks.pdf --data ../shared/data`.

Parts (`--parts`), on the shared contracts and filings: `speed` of both engines and of bare pdfium, with a
process per core; `words` lost, torn and glued by each engine against pdftotext (needs poppler-utils) and against the
text that pdfium gives of the page. On contracts alone: `oracle`, the share of words on the right page and the marked
clauses; `retrieval` before and after each repair; `typeset`, the same on the contracts set anew in two columns with cut
words and ligatures, which the originals do not have.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pypdfium2
from pypdf import PdfReader

from llama_index_contextual.readers import read_documents
from llama_index_contextual.readers.documents import MAX_PROCESSES
from llama_index_contextual.readers.pdf.content import ContentReader
from llama_index_contextual.readers.pdf.engine import PageContent
from llama_index_contextual.readers.pdf.layout import cells_of, rows_of
from llama_index_contextual.readers.pdf.pdfium import PdfiumSource
from llama_index_contextual.readers.pdf.pypdf import PypdfSource
from llama_index_contextual.readers.pdf.reader import PdfEngine, read_pdf
from llama_index_contextual.readers.pdf.repair import HyphenJoiner, clean
from llama_index_contextual.readers.pdf.running import strip_running
from tests.benchmarks.pdf_oracle import Pages, agreement, boundaries, found, lost, poppler, share_of_words
from tests.benchmarks.pdf_typeset import typeset
from tests.benchmarks.sets import load

PARTS = ("speed", "words", "oracle", "retrieval", "typeset")
GOAL_LOST = 0.05  # per cent of all words
GOAL_LOST_IN_FILE = 0.5
GOAL_SPEED = 8.0  # times the engine pypdf, one process
OPENING = 600  # characters of the document before each chunk, as the simplest context
ENGINES: tuple[PdfEngine, ...] = ("pypdf", "pdfium")


# ---- readings ------------------------------------------------------------------------------------------------------


@cache
def bare(path: Path) -> list[str]:
    """What pypdf gives by itself."""
    return [page.extract_text() for page in PdfReader(path).pages]


@cache
def contents(path: Path) -> list[PageContent]:
    """The pages as lines, before anything is taken off or repaired."""
    source = PypdfSource(path, path.read_bytes(), None)
    return [source.page(index) for index in range(source.page_count)]


def as_lines(path: Path) -> list[str]:
    """Lines and spaces from the places of the glyphs, columns and tables in order."""
    return ["\n".join(line.text for line in page.lines) for page in contents(path)]


def without_columns(path: Path) -> list[str]:
    """Lines and spaces from the places of the glyphs, in the order of drawing."""
    pdf = PdfReader(path)
    reader = ContentReader(pdf)
    rows = [rows_of(cell for cell in cells_of(reader.runs(page)) if cell.text.strip()) for page in pdf.pages]
    return ["\n".join(" ".join(" ".join(cell.text.split()) for cell in row) for row in page) for page in rows]


def without_running(path: Path) -> list[str]:
    """The lines, running headers and footers off."""
    return ["\n".join(line.text for line in page) for page in strip_running(contents(path)).pages]


def with_letters(path: Path) -> list[str]:
    """The same, ligatures as letters."""
    return [clean(page) for page in without_running(path)]


def with_whole_words(path: Path) -> list[str]:
    """The same, cut words together."""
    pages = [page.split("\n") for page in with_letters(path)]
    joiner = HyphenJoiner(pages)
    return ["\n".join(filter(None, joiner.join(page))) for page in pages]


@cache
def finished(path: Path, engine: PdfEngine = "pypdf") -> list[str]:
    """What `read_pdf` gives, page by page."""
    parsed = read_pdf(path, engine=engine)
    ends = [*parsed.map.page_starts[1:], len(parsed.text) + 1]
    return [parsed.text[start : end - 1] for start, end in zip(parsed.map.page_starts, ends, strict=True)]


def with_running(path: Path) -> list[str]:
    """What `read_pdf` gives, and what it took off as running, page by page."""
    left = [set(map(id, page)) for page in strip_running(contents(path)).pages]
    taken = [
        [line.text for line in page.lines if id(line) not in ids]
        for page, ids in zip(contents(path), left, strict=True)
    ]
    return ["\n".join([page, *lines]) for page, lines in zip(finished(path), taken, strict=True)]


# ---- parts ---------------------------------------------------------------------------------------------------------


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


def words(paths: Sequence[Path], engines: Sequence[PdfEngine]) -> None:
    """Print the words of each oracle that are lost, and those that are torn and glued, with the worst files."""
    raw = poppler(paths, "-raw")
    oracles: dict[str, Pages] = {
        "pdftotext": poppler(paths),
        "pdfium's page text": {path.name: page_texts(path) for path in paths},
    }
    for engine in engines:
        ours: Pages = {path.name: laid_out(path, engine) for path in paths}
        for name, reference in oracles.items():
            files = {path.name: lost(ours[path.name], reference[path.name]) for path in paths}
            gone, total = sum(part for part, _ in files.values()), sum(whole for _, whole in files.values())
            share = 100 * gone / total
            worst = max(files, key=lambda file: files[file][0] / (files[file][1] or 1))
            of_worst = 100 * files[worst][0] / (files[worst][1] or 1)
            goal = verdict(share <= GOAL_LOST and of_worst <= GOAL_LOST_IN_FILE)
            print(f"{engine:7s} {name:19s} {share:.4f} % of {total:,} words lost ({gone}), goal {goal}")
            print(f"        worst file {of_worst:.3f} %: {worst[:60]}")
        cut, glued, moved = boundaries(ours, raw)
        print(f"{engine:7s} {cut} torn, {glued} glued words; {moved:.2f} % of the words in another order")


def oracle(paths: Sequence[Path], clauses: Sequence[tuple[str, str]]) -> None:
    """Print the agreement with pdftotext, and how many marked clauses are in the text."""
    reference, raw = poppler(paths), poppler(paths, "-raw")
    readings: dict[str, Callable[[Path], list[str]]] = {
        "before: pypdf alone": bare,
        "after: lines": as_lines,
        "after: read_pdf": finished,
        "  and running lines": with_running,
    }
    readings["read_pdf, pdfium"] = lambda path: finished(path, "pdfium")
    for name, reading in readings.items():
        ours: Pages = {path.name: reading(path) for path in paths}
        count, missing = found(ours, clauses)
        print(f"{name:20s} {agreement(ours, reference, raw)}; clauses {count} of {len(clauses)}")
        for file, clause in missing:
            print(f"    not found in {file[:30]}: {' '.join(clause.split())[:100]}")
    removed = sum(
        len(page.lines) - len(left)
        for path in paths
        for page, left in zip(contents(path), strip_running(contents(path)).pages, strict=True)
    )
    print(f"running headers and footers taken off by read_pdf: {removed} lines")


def retrieval(paths: Sequence[Path], data: Path, steps: dict[str, Callable[[Path], list[str]]]) -> None:
    """Print recall for each reading, and the change that each step brings."""
    from tests.benchmarks.pdf_retrieval import Retrieval, line

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    names = {path.name for path in paths}
    questions = load(data, "contracts").questions
    scorer = Retrieval([question for question in questions if {item["file"] for item in question.evidence} <= names])
    texts = {name: {path.name: "\n".join(step(path)) for path in paths} for name, step in steps.items()}
    opening = {path.name: f"{path.stem}\n{' '.join(as_lines(path))[:OPENING]}\n\n" for path in paths}
    for label, prefixes in (("chunks alone", None), ("opening of the document first", opening)):
        print(f"{label}: recall at 1, 5, 10, 20 (change to the line above)")
        before = None
        for name, reading in texts.items():
            scores = scorer.recall(reading, prefixes=prefixes)
            print("  " + line(name, scores, before))
            before = scores


def collapsed(path: Path) -> list[str]:
    """What pypdf gives, runs of white space as one space."""
    return [" ".join(page.split()) for page in bare(path)]


def originals(paths: Sequence[Path], data: Path) -> None:
    """Repairs on the contracts as they are."""
    steps: dict[str, Callable[[Path], list[str]]] = {
        "pypdf alone": bare,
        "white space collapsed": collapsed,
        "lines, spaces, tables from places": as_lines,
        "running headers and footers off": without_running,
        "ligatures as letters": with_letters,
        "cut words together": with_whole_words,
        "lines of a paragraph joined": finished,
    }
    steps["(all, engine pdfium)"] = lambda path: finished(path, "pdfium")
    retrieval(paths, data, steps)


def set_anew(paths: Sequence[Path], data: Path, clauses: Sequence[tuple[str, str]]) -> None:
    """Repairs on every second contract, set in two columns with cut words and ligatures."""
    steps: dict[str, Callable[[Path], list[str]]] = {
        "pypdf alone": bare,
        "lines from places": without_columns,
        "columns in order": as_lines,
        "running headers and footers off": without_running,
        "ligatures as letters": with_letters,
        "cut words together": with_whole_words,
        "lines of a paragraph joined": finished,
    }
    paths = paths[::2]
    names = {path.name for path in paths}
    clauses = [clause for clause in clauses if clause[0] in names]
    with tempfile.TemporaryDirectory() as folder:
        anew = [Path(folder) / path.name for path in paths]
        source = {path.name: "\n".join(without_running(path)) for path in paths}
        for new in anew:
            new.write_bytes(typeset(source[new.name], new.stem[:60]))
        for name, step in steps.items():
            ours = {path.name: step(path) for path in anew}
            whole = share_of_words({file: "\n".join(pages) for file, pages in ours.items()}, source)
            count, _ = found(ours, clauses)
            print(f"{name:34s} {whole:6.2f} % of the words as in the source; clauses found: {count} of {len(clauses)}")
        retrieval(anew, data, steps)


def main() -> None:
    """Print the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--every", type=int, default=1, help="of the files for `speed` and `words`, take every nth")
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=ENGINES, help="for `words`")
    arguments = parser.parse_args()
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    paths = sorted((arguments.data / "contracts" / "pdf").iterdir())
    files = [*paths, *sorted((arguments.data / "filings" / "pdf").iterdir())][:: arguments.every]
    rows = (arguments.data / "contracts" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    clauses = [(row["file"], clause) for row in map(json.loads, rows) for clause in row["evidence"]]
    run = {
        "speed": lambda: speed(files),
        "words": lambda: words(files, arguments.engines),
        "oracle": lambda: oracle(paths, clauses),
        "retrieval": lambda: originals(paths, arguments.data),
        "typeset": lambda: set_anew(paths, arguments.data, clauses),
    }
    for part in arguments.parts:
        print(f"# {part}")
        run[part]()


if __name__ == "__main__":
    main()
