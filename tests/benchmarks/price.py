"""What a folder costs before a key is needed: `python -m tests.benchmarks.price [--documents 71]`.

Writes documents as long as the five examples, 6,500 tokens or about 13 pages on average, to a temporary folder. Then
prints the estimate for contexts by the default LLM, and the seconds of an ingest with the free contexts. Nothing is
sent.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from llama_index_contextual import ProjectConfig, ProjectManager
from llama_index_contextual.ingestion.estimate import CostEstimate
from llama_index_contextual.readers import read_documents

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"


def write_documents(folder: Path, count: int) -> None:
    """Write copies of the examples whose paragraphs all differ, because equal chunks are paid for once."""
    examples = list(read_documents([EXAMPLES]))
    for number in range(count):
        example = examples[number % len(examples)]
        paragraphs = example.text.split("\n\n")
        text = "\n\n".join(f"{paragraph} ({number})" for paragraph in paragraphs)
        name = Path(example.metadata["file_name"]).stem
        (folder / f"{name}-{number:03}.md").write_text(text, encoding="utf-8")


def estimate(folder: Path) -> CostEstimate:
    """Return the estimate for the documents of a folder with the default models."""
    with tempfile.TemporaryDirectory() as root:
        return ProjectManager(root).create("priced", ProjectConfig()).estimate([folder])


def main() -> None:
    """Print the estimate, and the time of a free ingest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=71, help="number of documents")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "documents"
        folder.mkdir()
        write_documents(folder, options.documents)
        print(estimate(folder))
        project = ProjectManager(Path(scratch) / "knowledge").create("free", ProjectConfig.local())
        started = time.perf_counter()
        report = project.ingest([folder])
        print(f"free contexts and local embeddings: {report.summary()}; {time.perf_counter() - started:.0f} s, $0.00")


if __name__ == "__main__":
    main()
