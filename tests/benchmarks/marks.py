"""Check that marks cover a passage on its pages: `python -m tests.benchmarks.marks --data DATA`.

Chunks are drawn at random, half from the contracts and half from the filings. For each chunk, the words that pdfium
finds within the marks are compared with the words of the passage, independently of the alignment that created the
marks. A chunk is correct if the marks cover at least 90 % of its words, and at least 90 % of the covered words belong
to it.

`--users` renders and marks pages in several threads at once.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pypdfium2
from llama_index.core.schema import BaseNode, TextNode

from llama_index_contextual import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.index.sources import SourceFile
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers import content_hash, read_documents
from llama_index_contextual.ui.marks import Box
from llama_index_contextual.ui.pages import PageMarks, PageRenderer
from llama_index_contextual.ui.passage import parts_on_pages

SETS = ("contracts", "filings")
ENOUGH = 0.9
CHUNKS_OF_A_FILE = 5
EDGE = 0.2  # of the height of a line: letters of the lines above and below may reach so far into it
_WORD = re.compile(r"[^\W_]+")
_CUT = re.compile(r"[-\u00ad\u2010\x02\ufffe]\s*[\r\n]+\s*")


@dataclass(frozen=True)
class Case:
    """A chunk, its file, and the part of it on each page."""

    path: Path
    node: TextNode
    parts: dict[int, str]


@dataclass(frozen=True)
class Judgement:
    """How well the marks of a chunk fit, and how long they took."""

    case: Case
    recall: float
    precision: float
    seconds: float
    has_text: bool

    @property
    def is_right(self) -> bool:
        """Whether the marks cover the chunk and little else."""
        return self.recall >= ENOUGH and self.precision >= ENOUGH


def sample(data: Path, count: int, seed: int) -> list[Case]:
    """Draw chunks: a few from each of some files of each set."""
    chance = random.Random(seed)
    cases: list[Case] = []
    for name in SETS:
        paths = sorted(path for path in (data / name / "pdf").iterdir() if path.suffix.lower() == ".pdf")
        chance.shuffle(paths)
        wanted = count // len(SETS)
        drawn: list[Case] = []
        while len(drawn) < wanted and paths:
            path = paths.pop()
            found = cases_of(path)
            drawn += chance.sample(found, k=min(CHUNKS_OF_A_FILE, len(found), wanted - len(drawn)))
        cases += drawn
    return cases


def cases_of(path: Path) -> list[Case]:
    """Return the chunks of a file."""
    documents = read_documents(path).documents
    where = DocumentMap.from_metadata(documents[0].metadata)
    nodes = ChunkNodeParser()(SegmentNodeParser()(documents))
    return [Case(path, node, parts(node, where)) for node in nodes if isinstance(node, TextNode)]


def parts(node: BaseNode, where: DocumentMap) -> dict[int, str]:
    """Return the text of a chunk on each of its pages."""
    return {part.page: node.get_content()[part.start : part.end] for part in parts_on_pages(node, where)}


def judge(case: Case, renderer: PageRenderer) -> Judgement:
    """Mark a chunk, and compare the words within the marks with its own."""
    marks, seconds = marked(case, renderer)
    pdf = pypdfium2.PdfDocument(case.path)
    own, covered = Counter[str](), Counter[str]()
    for page, found in marks:
        own += words(case.parts[page])
        covered += words("\n".join(text_in(pdf[page - 1], box) for box in found.lines))
    both = (own & covered).total()
    return Judgement(
        case,
        recall=both / max(own.total(), 1),
        precision=both / max(covered.total(), 1),
        seconds=seconds,
        has_text=all(found.has_text for _, found in marks),
    )


def marked(case: Case, renderer: PageRenderer) -> tuple[list[tuple[int, PageMarks]], float]:
    """Mark all pages of a chunk and draw the first one; return the marks and the seconds that it took."""
    started = time.perf_counter()
    file = SourceFile(case.path, content_hash(case.path))
    marks = [(page, renderer.marks(file, page, text)) for page, text in case.parts.items()]
    renderer.image(file, next(iter(case.parts)))
    return marks, time.perf_counter() - started


def words(text: str) -> Counter[str]:
    """Return the words of a text, with those joined that were cut at the end of a line."""
    return Counter(_WORD.findall(_CUT.sub("", text).casefold()))


def text_in(page: pypdfium2.PdfPage, box: Box) -> str:
    """Return the text within a box of an upright page, without letters that only touch its edges."""
    left, _bottom, _right, top = page.get_cropbox()
    edge = EDGE * (box.y1 - box.y0)
    text = page.get_textpage()
    return str(text.get_text_bounded(left + box.x0, top - box.y1 + edge, left + box.x1, top - box.y0 - edge))


def main() -> None:
    """Print a line for each chunk, and the share of those that are marked right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--users", type=int, default=8)
    arguments = parser.parse_args()
    cases = sample(arguments.data, arguments.count, arguments.seed)
    renderer = PageRenderer()
    renderer.marks(SourceFile(cases[0].path, content_hash(cases[0].path)), 1, "")  # starts the process
    judgements = []
    for number, case in enumerate(cases):
        judgement = judge(case, renderer)
        judgements.append(judgement)
        where = f"{case.path.name[:50]} pages {','.join(map(str, case.parts))}"
        shown = (
            f"recall {judgement.recall:.3f}  precision {judgement.precision:.3f}  {1000 * judgement.seconds:4.0f} ms"
        )
        print(f"{number:3} {'right' if judgement.is_right else 'WRONG'}  {shown}  {where}")
    right = sum(judgement.is_right for judgement in judgements)
    times = sorted(judgement.seconds for judgement in judgements)
    print(f"\n{right} of {len(judgements)} right (seed {arguments.seed})")
    print(f"marks and first image: median {median(times):.3f} s, slowest {times[-1]:.3f} s")
    started = time.perf_counter()
    fresh = PageRenderer()
    with ThreadPoolExecutor(arguments.users) as pool:
        latencies = list(pool.map(lambda case: marked(case, fresh)[1], cases))
    total = time.perf_counter() - started
    print(
        f"{arguments.users} users at once: {len(cases) / total:.1f} pages/s, median {median(latencies):.3f} s,"
        f" slowest {max(latencies):.3f} s"
    )
    renderer.close()
    fresh.close()


if __name__ == "__main__":
    main()
