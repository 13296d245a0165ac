"""Cost of a project on one machine by its size: build, disk, memory, queries, and one more file.

    python -m tests.benchmarks.limits --chunks 10000 100000 1000000

Documents have ten chunks of about 40 words, drawn by Zipf's law from a vocabulary of 50,000. The vectors are random
unit vectors with 256 dimensions, so that no model is needed; they are the hardest case for an approximate index. The
build begins with chunks and vectors (`VersionBuilder.append` and `publish`): reading and dividing files, contexts and
embeddings are not included, and neither is the time to draw the words.

Each step runs in a process of its own. Times of the processor are those of all its threads; they count where other
programs run too. Memory is the peak of the process as Linux counts it: `own` is what it has allocated, and `total`
includes mapped pages of files, which the system takes back when others need the memory.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from numpy.typing import NDArray

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.ingestion.builder import VersionBuilder
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage import files
from llama_index_contextual.storage.manifest import DocumentRecord
from tests.benchmarks.growth import measured

NAME = "limits"
DIMENSIONS = 256
CHUNKS = 10  # of a document
WORDS = 40  # of a chunk
VOCABULARY = 50_000
WARM_UP = 20
QUERIES = 200
QUERY_WORDS = 8
_SYLLABLES = [f"{a}{b}{c}" for a in "bdfgklmnprstv" for b in ("a", "e", "i", "o", "u") for c in ("", "l", "n", "r")]


class RandomVectors(BaseEmbedding):
    """A random unit vector for each text, always the same one."""

    model_name: str = "random"

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which versions identify the model."""
        return "RandomVectors"

    def _get_text_embedding(self, text: str) -> list[float]:
        return unit_vectors(np.random.default_rng(zlib.crc32(text.encode())), 1)[0].tolist()  # type: ignore[no-any-return]

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def unit_vectors(generator: np.random.Generator, number: int) -> NDArray[np.float32]:
    vectors = generator.standard_normal((number, DIMENSIONS), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    return vectors


@cache
def vocabulary() -> tuple[list[str], NDArray[np.float64]]:
    """Return the words and the cumulative probability of each."""
    chance = random.Random(3)
    words = list(dict.fromkeys("".join(chance.choices(_SYLLABLES, k=3)) for _ in range(2 * VOCABULARY)))[:VOCABULARY]
    probabilities = 1 / (np.arange(len(words)) + 2.7)  # Zipf and Mandelbrot
    return words, np.cumsum(probabilities / probabilities.sum())


def drawn(generator: np.random.Generator, number: int) -> str:
    words, cumulative = vocabulary()
    at = np.minimum(np.searchsorted(cumulative, generator.random(number)), len(words) - 1)
    return " ".join(words[index] for index in at)


def open_project(root: Path, kind: str | None = None) -> Project:
    """Create the project with a kind of index, or load it."""
    manager = ProjectManager(root)
    if kind is None:
        return manager.load(NAME, embed_model=RandomVectors())
    config = ProjectConfig.local(context="none", chunk_size=300, chunk_overlap=0, keep_versions=2, faiss_index=kind)
    return manager.create(NAME, config, embed_model=RandomVectors())


def build(root: Path, chunks: int, kind: str) -> dict[str, Any]:
    """Publish a version with as many chunks."""
    project = open_project(root, kind)
    builder = VersionBuilder(project.directory, project.config)
    generator = np.random.default_rng(1)
    processor = wall = 0.0

    def timed(run: Callable[[], object]) -> None:
        nonlocal processor, wall
        before = time.process_time(), time.perf_counter()
        run()
        processor += time.process_time() - before[0]
        wall += time.perf_counter() - before[1]

    with PeakMemory() as memory:
        for number in range(chunks // CHUNKS):
            record, nodes = document(generator, number)
            vectors = unit_vectors(generator, CHUNKS)
            timed(lambda: builder.append(record, nodes, vectors, None))  # noqa: B023 - called at once
            if number % 10_000 == 9_999:
                sys.stderr.write(f"{(number + 1) * CHUNKS:,} chunks, {processor:.0f} s of processor\n")
        timed(lambda: builder.publish(embed_model="RandomVectors:random"))
    return {
        "build_processor_s": round(processor, 1),
        "build_wall_s": round(wall, 1),
        "build_own_MB": memory.own,
        "build_total_MB": memory.total,
        "disk_MB": round(sum(path.stat().st_size for path in files.walk(project.directory)) / 1e6, 1),
    }


def document(generator: np.random.Generator, number: int) -> tuple[DocumentRecord, list[TextNode]]:
    """Return a document of ten chunks."""
    doc_id = f"base/{number}.txt"
    source = RelatedNodeInfo(node_id=doc_id)
    nodes = [
        TextNode(
            id_=f"{number}-{at}",
            text=f"{drawn(generator, WORDS).capitalize()} {generator.integers(1_000_000)}.",
            start_char_idx=at * 1_000,
            end_char_idx=at * 1_000 + 400,
            metadata={"share": number % 100, "file_name": f"{number}.txt", "chunk_index": at},
            relationships={NodeRelationship.SOURCE: source},
        )
        for at in range(CHUNKS)
    ]
    record = DocumentRecord(
        doc_id=doc_id, content_hash=f"{number:032x}", origin=f"{number:064x}", chunks=CHUNKS, characters=10_000
    )
    return record, nodes


def query(root: Path) -> dict[str, Any]:
    """Open the project, ask once, and then many times."""
    generator = np.random.default_rng(2)
    questions = [drawn(generator, QUERY_WORDS) for _ in range(WARM_UP + QUERIES)]
    project = open_project(root)
    with PeakMemory() as memory:
        first = measured(lambda: project.retrieve(questions[0]))
        times = []
        for question in questions:
            before = time.process_time(), time.perf_counter()
            project.retrieve(question)
            times.append((time.process_time() - before[0], time.perf_counter() - before[1]))
        times = times[WARM_UP:]
    version = project.live_version
    return {
        "parts": len(version.parts),
        "indexes": dict(Counter(type(part.part.index).__name__ for part in version.parts)),
        "first_query_processor_ms": round(first["processor_s"] * 1e3),
        "first_query_wall_ms": round(first["wall_s"] * 1e3),
        **{
            f"query_{clock}_p{share}_ms": percentile([one[at] for one in times], share)
            for at, clock in enumerate(("processor", "wall"))
            for share in (50, 95)
        },
        "query_own_MB": memory.own,
        "query_total_MB": memory.total,
    }


def percentile(seconds: Sequence[float], share: int) -> float:
    return round(statistics.quantiles(seconds, n=100)[share - 1] * 1e3, 1)


def add(root: Path) -> dict[str, Any]:
    """Ingest one more file of ten chunks, while a reader is open."""
    project = open_project(root)
    generator = np.random.default_rng(4)
    project.retrieve(drawn(generator, QUERY_WORDS))
    path = root / "more.txt"
    sentences = "\n\n".join(". ".join(drawn(generator, 20) for _ in range(10)) for _ in range(CHUNKS))
    path.write_text(sentences, encoding="utf-8")
    added = measured(lambda: project.ingest([path]))
    question = drawn(generator, QUERY_WORDS)
    return {
        "add_processor_s": added["processor_s"],
        "add_written_MB": added["written_MB"],
        "add_read_MB": added["read_MB"],
        "query_after_add_ms": round(measured(lambda: project.retrieve(question))["processor_s"] * 1e3, 1),
    }


class PeakMemory(threading.Thread):
    """The most memory that the process has while the block runs, in MB, as sampled."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.own = self.total = 0.0
        self._ended = threading.Event()

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()
        self._sample()

    def run(self) -> None:
        """Sample until the block ends."""
        while not self._ended.wait(0.05):
            self._sample()

    def _sample(self) -> None:
        lines = Path("/proc/self/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "VmHWM")))
        own, total = (int(status[name].split()[0]) * 1024 / 1e6 for name in ("RssAnon", "VmHWM"))
        self.own, self.total = max(self.own, round(own)), max(self.total, round(total))


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "build": build,
    "query": query,
    "add": add,
}
ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("build, processor", lambda r: f"{r['build_processor_s']:,.0f} s"),
    ("build, wall clock", lambda r: f"{r['build_wall_s']:,.0f} s"),
    ("build, memory (own)", lambda r: f"{r['build_own_MB']:,.0f} MB"),
    ("build, memory (total)", lambda r: f"{r['build_total_MB']:,.0f} MB"),
    ("disk", lambda r: f"{r['disk_MB']:,.0f} MB"),
    ("parts", lambda r: f"{r['parts']}"),
    ("first query of a process, processor", lambda r: f"{r['first_query_processor_ms']:,} ms"),
    ("first query of a process, wall clock", lambda r: f"{r['first_query_wall_ms']:,} ms"),
    ("warm query, processor, p50 / p95", lambda r: _pair(r, "processor")),
    ("warm query, wall clock, p50 / p95", lambda r: _pair(r, "wall")),
    ("querying process, memory (own)", lambda r: f"{r['query_own_MB']:,.0f} MB"),
    ("querying process, memory (total)", lambda r: f"{r['query_total_MB']:,.0f} MB"),
    ("one more file, processor", lambda r: f"{r['add_processor_s']:.2f} s"),
    ("one more file, written", lambda r: f"{r['add_written_MB']:.2f} MB"),
    ("first query after it, processor", lambda r: f"{r['query_after_add_ms']:,} ms"),
)


def _pair(result: dict[str, Any], clock: str) -> str:
    return " / ".join(f"{result[f'query_{clock}_p{share}_ms']:,.1f}" for share in (50, 95)) + " ms"


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        " | ".join(["| chunks", *(f"{result['chunks']:,}" for result in results)]) + " |",
        f"|---|{'---:|' * len(results)}",
        *(" | ".join([f"| {name}", *(show(result) for result in results)]) + " |" for name, show in ROWS),
    ]
    return "\n".join(lines) + "\n"


def run_step(step: str, root: Path, chunks: int, kind: str) -> dict[str, Any]:
    """Run a step in a process of its own and return its results."""
    command = [sys.executable, "-m", "tests.benchmarks.limits", "--step", step, "--folder", str(root)]
    output = subprocess.run(
        [*command, "--chunks", str(chunks), "--index", kind], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """Measure each size, and print the results as JSON lines on stderr and as a table on stdout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[10_000])
    parser.add_argument("--index", choices=["flat", "rabitq", "auto"], default="auto")
    parser.add_argument("--folder", type=Path, help="where to build; 2 kB a chunk are needed")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        given = (options.chunks[0], options.index) if options.step == "build" else ()
        sys.stdout.write(json.dumps(STEPS[options.step](options.folder, *given)) + "\n")
        return
    results = []
    for chunks in options.chunks:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            result: dict[str, Any] = {"chunks": chunks, "index": options.index}
            for step in STEPS:
                result |= run_step(step, Path(folder), chunks, options.index)
        sys.stderr.write(json.dumps(result) + "\n")
        results.append(result)
    sys.stdout.write(table(results))


if __name__ == "__main__":
    main()
