"""The same questions with and without contexts, on the example documents: no key, no network.

The contexts were recorded: they come from a ledger file beside the documents, as if they had been paid for before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.manager import ProjectManager
from llama_index_contextual.results import RetrievalResponse, RetrievedChunk

CONTEXTS_FILE = "contexts.jsonl"
QUESTIONS_FILE = "questions.jsonl"
DOCUMENT_SUFFIXES = (".pdf", ".md", ".txt")
TOP_K = 5


@dataclass(frozen=True, kw_only=True)
class DemoAnswer:
    """One question, answered by both projects.

    Attributes:
        question: What was asked.
        evidence: The text that answers it.
        rank_without: Rank of the passage that holds the evidence without contexts, or None when it is not found.
        rank_with: The same with contexts.
        found: The passage, as found with contexts.
    """

    question: str
    evidence: str
    rank_without: int | None
    rank_with: int | None
    found: RetrievedChunk | None


def data_directory() -> Path:
    """Return the folder of the example documents: inside the installed package, or in the source tree.

    Raises:
        InputError: It is in neither place.
    """
    here = Path(__file__).parent
    for candidate in (here / "_demo_data", here.parent / "examples" / "data"):
        if (candidate / CONTEXTS_FILE).is_file():
            return candidate
    raise InputError("The example documents are not installed: install the package from its wheel or its source tree.")


def documents(folder: Path) -> list[Path]:
    """Return the example documents."""
    return sorted(p for p in folder.iterdir() if p.suffix in DOCUMENT_SUFFIXES)


def run_demo(report: Callable[[str], None]) -> list[DemoAnswer]:
    """Ingest the example documents twice, ask the demo questions, and return the answers.

    Args:
        report: Called with a sentence before each step.
    """
    folder = data_directory()
    questions = [json.loads(line) for line in (folder / QUESTIONS_FILE).read_text(encoding="utf-8").splitlines()]
    with TemporaryDirectory(prefix="llama-index-contextual-") as root:
        manager = ProjectManager(root)
        plain = manager.create("without-context", ProjectConfig.local(context="none"))
        contextual = manager.create("with-context", ProjectConfig.local(context="llm"))
        contextual.import_contexts(folder / CONTEXTS_FILE)
        report(f"Ingesting {len(documents(folder))} documents without contexts")
        plain.ingest(documents(folder))
        report("Ingesting them with recorded LLM contexts")
        contextual.ingest(documents(folder))
        report("Asking")
        return [
            _answer(
                row,
                plain.retrieve(row["question"], top_k=TOP_K),
                contextual.retrieve(row["question"], top_k=TOP_K),
            )
            for row in questions
            if row.get("demo")
        ]


def _answer(row: dict[str, object], without: RetrievalResponse, with_context: RetrievalResponse) -> DemoAnswer:
    evidence = [str(text) for text in row["evidence"]]  # type: ignore[attr-defined]
    found = _first(with_context.results, str(row["file"]), evidence)
    missed = _first(without.results, str(row["file"]), evidence)
    return DemoAnswer(
        question=str(row["question"]),
        evidence=evidence[0],
        rank_without=missed.rank if missed else None,
        rank_with=found.rank if found else None,
        found=found,
    )


def _first(results: Sequence[RetrievedChunk], file_name: str, evidence: Sequence[str]) -> RetrievedChunk | None:
    wanted = [_words(text) for text in evidence]
    for result in results:
        text = _words(result.text)
        if result.source.file_name == file_name and any(words in text for words in wanted):
            return result
    return None


def _words(text: str) -> str:
    return " ".join(text.split())
