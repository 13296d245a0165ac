"""How costs grow with a project: a whole build, queries, and adding a file.

    python -m tests.benchmarks.growth limits --chunks 10000 100000 1000000

Documents have ten chunks. The vectors are random unit vectors, so no model is needed; they are the hardest case for an
approximate index. Builds start from chunks and vectors, so reading files, contexts, embeddings and generating the words
are not included. CPU times include all threads. Bytes are those that the process wrote and read, as counted by Linux.
The results are JSON lines.

Chunks have 40 words, drawn by Zipf's law from a vocabulary of 50,000, and vectors have 256 dimensions.
Each step runs in its own process, and the results are also printed as a table. Memory is the peak of the process:
`own` is what it has allocated, and `total` includes mapped pages of files, which the system can reclaim.
"""

from __future__ import annotations

import argparse
import functools
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
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from numpy.typing import NDArray

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project

CHUNKS = 10  # of a document
WORDS = [
    f"{a}{b}{c}" for a in "bcdfgklmnprst" for b in ("a", "e", "io", "u", "ea") for c in ("ner", "ling", "tor", "x")
]
WEIGHTS = [1 / (rank + 3) for rank in range(len(WORDS))]
Figures = dict[str, Any]


class RandomEmbedding(BaseEmbedding):
    """A random unit vector for each text, always the same one."""

    model_name: str = "random"
    dimensions: int = 1_536

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which versions identify the model."""
        return cls.__name__

    def _get_text_embedding(self, text: str) -> list[float]:
        return unit_vectors(np.random.default_rng(zlib.crc32(text.encode())), 1, self.dimensions)[0].tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def unit_vectors(generator: np.random.Generator, number: int, dimensions: int) -> NDArray[np.float32]:
    vectors = generator.standard_normal((number, dimensions), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1)[:, None]


def sentence(chance: random.Random) -> str:
    return f"{' '.join(chance.choices(WORDS, WEIGHTS, k=20)).capitalize()} {chance.randint(1, 10_000)}."


def project_of(root: Path, name: str, model: RandomEmbedding | None = None, **settings: Any) -> Project:
    """Create a project, or load it."""
    manager, model = ProjectManager(root), model or RandomEmbedding()
    if name in manager.list():
        return manager.load(name, embed_model=model)
    config = ProjectConfig.local(chunk_size=300, chunk_overlap=0, keep_versions=2, **settings)
    return manager.create(name, config, embed_model=model)


def three_sentences(number: int) -> list[str]:
    chance = random.Random(number)
    return [" ".join(sentence(chance) for _ in range(3)) for _ in range(CHUNKS)]


def fill(
    project: Project,
    chunks: int,
    texts: Callable[[int], list[str]] = three_sentences,
    facts: Callable[[int], dict[str, Any]] = lambda _: {},
) -> dict[str, float]:
    """Publish a version with as many chunks, without the pipeline and its ledger.

    Args:
        project: The project.
        chunks: Number of chunks.
        texts: Returns the texts of the chunks of a document, given its number.
        facts: Returns additional metadata of a document.

    Returns:
        Seconds of the processor and of the wall clock that the builder took.
    """
    builder, generator = VersionBuilder(project.directory, project.config), np.random.default_rng(1)
    model: Any = project.embed_model
    took: Counter[str] = Counter()
    for number in range(chunks // CHUNKS):
        doc_id = f"base/{number}.txt"
        nodes = [
            TextNode(
                id_=f"{number}-{at}",
                text=text,
                start_char_idx=at * 1_000,
                end_char_idx=at * 1_000 + 400,
                metadata={"share": number % 100, "file_name": f"{number}.txt", "chunk_index": at, **facts(number)},
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)},
            )
            for at, text in enumerate(texts(number))
        ]
        vectors = unit_vectors(generator, CHUNKS, model.dimensions)
        record = DocumentRecord(
            doc_id=doc_id, content_hash=f"{number:032x}", path=f"/files/{number:064x}", chunks=CHUNKS, characters=10_000
        )
        took.update(measured(functools.partial(builder.append, record, nodes, vectors, None)))
    took.update(measured(lambda: builder.publish(embed_model=f"{model.class_name()}:{model.model_name}")))
    return {name: round(value, 3) for name, value in took.items()}


def measured(run: Callable[[], object]) -> dict[str, float]:
    """Return processor seconds, wall seconds, and the bytes written and read by a call."""
    before, started, wall = traffic(), time.process_time(), time.perf_counter()
    run()
    after = traffic()
    return {
        "processor_s": round(time.process_time() - started, 6),
        "wall_s": round(time.perf_counter() - wall, 6),
        "written_MB": round((after[0] - before[0]) / 1e6, 6),
        "read_MB": round((after[1] - before[1]) / 1e6, 6),
    }


def traffic() -> tuple[int, int]:
    path = Path("/proc/self/io")
    counts = dict(line.split(": ") for line in path.read_text().splitlines()) if path.exists() else {}
    return int(counts.get("wchar", 0)), int(counts.get("rchar", 0))


# ---- limits of one machine -------------------------------------------------------------------------------------------

WARM_UP = 20
QUERIES = 200
VOCABULARY = 50_000
_SYLLABLES = [f"{a}{b}{c}" for a in "bdfgklmnprstv" for b in ("a", "e", "i", "o", "u") for c in ("", "l", "n", "r")]


@functools.cache
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


def zipf_texts(number: int) -> list[str]:
    generator = np.random.default_rng([1, number])
    return [f"{drawn(generator, 40).capitalize()} {generator.integers(1_000_000)}." for _ in range(CHUNKS)]


def opened(root: Path) -> Project:
    return project_of(root, "limits", RandomEmbedding(dimensions=256), context="none")


def build(root: Path, chunks: int) -> Figures:
    """Publish a version with as many chunks."""
    project = opened(root)
    with PeakMemory() as memory:
        took = fill(project, chunks, zipf_texts)
    return {
        "build_processor_s": took["processor_s"],
        "build_wall_s": took["wall_s"],
        "build_own_MB": memory.own,
        "build_total_MB": memory.total,
        "disk_MB": round(sum(path.stat().st_size for path in files.walk(project.directory)) / 1e6, 1),
    }


def query(root: Path, chunks: int) -> Figures:
    """Open the project, ask once, and then many times."""
    generator = np.random.default_rng(2)
    questions = [drawn(generator, 8) for _ in range(WARM_UP + QUERIES)]
    project = opened(root)
    with PeakMemory() as memory:
        first = measured(lambda: project.retrieve(questions[0]))
        times = [measured(functools.partial(project.retrieve, question)) for question in questions][WARM_UP:]
    parts = project.live_version.parts
    result: Figures = {
        "parts": len(parts),
        "query_own_MB": memory.own,
        "query_total_MB": memory.total,
    }
    for clock in ("processor", "wall"):
        result[f"first_query_{clock}_ms"] = round(first[f"{clock}_s"] * 1e3)
        cuts = statistics.quantiles([one[f"{clock}_s"] for one in times], n=100)
        result |= {f"query_{clock}_p{share}_ms": round(cuts[share - 1] * 1e3, 1) for share in (50, 95)}
    return result


def add(root: Path, chunks: int) -> Figures:
    """Ingest one more file of ten chunks, while a reader is open."""
    project = opened(root)
    generator = np.random.default_rng(4)
    project.retrieve(drawn(generator, 8))
    path = root / "more.txt"
    path.write_text("\n\n".join(". ".join(drawn(generator, 20) for _ in range(10)) for _ in range(CHUNKS)))
    added = measured(lambda: project.ingest([path]))
    question = drawn(generator, 8)
    return {
        "add_processor_s": added["processor_s"],
        "add_written_MB": added["written_MB"],
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


STEPS: dict[str, Callable[[Path, int], Figures]] = {step.__name__: step for step in (build, query, add)}
ROWS = (
    ("build, processor", "{build_processor_s:,.0f} s"),
    ("build, wall clock", "{build_wall_s:,.0f} s"),
    ("build, memory (own)", "{build_own_MB:,.0f} MB"),
    ("build, memory (total)", "{build_total_MB:,.0f} MB"),
    ("disk", "{disk_MB:,.0f} MB"),
    ("parts", "{parts}"),
    ("first query of a process, processor", "{first_query_processor_ms:,} ms"),
    ("first query of a process, wall clock", "{first_query_wall_ms:,} ms"),
    ("warm query, processor, p50 / p95", "{query_processor_p50_ms:,.1f} / {query_processor_p95_ms:,.1f} ms"),
    ("warm query, wall clock, p50 / p95", "{query_wall_p50_ms:,.1f} / {query_wall_p95_ms:,.1f} ms"),
    ("querying process, memory (own)", "{query_own_MB:,.0f} MB"),
    ("querying process, memory (total)", "{query_total_MB:,.0f} MB"),
    ("one more file, processor", "{add_processor_s:.2f} s"),
    ("one more file, written", "{add_written_MB:.2f} MB"),
    ("first query after it, processor", "{query_after_add_ms:,} ms"),
)


def limits(root: Path, chunks: int) -> Figures:
    """Run each step in a process of its own."""
    result: Figures = {"chunks": chunks}
    for step in STEPS:
        command = [sys.executable, "-m", "tests.benchmarks.growth", step, "--folder", str(root)]
        command += ["--chunks", str(chunks)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        result |= json.loads(done.stdout.splitlines()[-1])
    return result


def print_table(results: Sequence[Figures]) -> None:
    """Print the results of `limits` as a Markdown table."""
    print(" | ".join(["| chunks", *(f"{result['chunks']:,}" for result in results)]) + " |")
    print(f"|---|{'---:|' * len(results)}")
    for name, cell in ROWS:
        print(" | ".join([f"| {name}", *(cell.format(**result) for result in results)]) + " |")


def main() -> None:
    """Run a measurement and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["limits", *STEPS], metavar="limits")
    parser.add_argument("--chunks", type=int, nargs="+", default=[10_000])
    parser.add_argument("--folder", type=Path, help="folder for the projects, with 2 kB for each chunk")
    options = parser.parse_args()
    if options.command in STEPS:
        print(json.dumps(STEPS[options.command](options.folder, options.chunks[0])))
        return
    results = []
    for size in options.chunks:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            results.append(limits(Path(folder), size))
        print(json.dumps(results[-1]), flush=True)
    print_table(results)


if __name__ == "__main__":
    main()
