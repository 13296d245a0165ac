"""Demo that asks the same questions with and without contexts. It needs neither a key nor a network.

The contexts are imported from a ledger file in the folder of the example documents, so no LLM is called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llama_index.core.base.llms.types import CompletionResponse, CompletionResponseGen, LLMMetadata
from llama_index.core.llms import CustomLLM
from rich.table import Table

from llama_index_contextual.cli.common import out, safe, say, snippet
from llama_index_contextual.config import DEFAULT_LLM, ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.ledger_lines import import_ledger
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import read_documents
from llama_index_contextual.search.results import RetrievedChunk

CONTEXTS_FILE = "contexts.jsonl"
QUESTIONS_FILE = "questions.jsonl"
DOCUMENT_SUFFIXES = (".pdf", ".md", ".txt")
TOP_K = 5


@dataclass(frozen=True, kw_only=True)
class DemoAnswer:
    """Search results for one question, with and without contexts.

    Attributes:
        question: The question.
        evidence: The text that answers the question.
        rank_without: Rank of the passage with the evidence in the search without contexts; None if it was not found.
        rank_with: Rank of the passage with the evidence in the search with contexts; None if it was not found.
        hit: The passage with the evidence, from the search with contexts.
    """

    question: str
    evidence: str
    rank_without: int | None
    rank_with: int | None
    hit: RetrievedChunk | None


class RecordedLLM(CustomLLM):
    """LLM that stands in for the default LLM and refuses all calls.

    It has the name of the default LLM, because this name is part of the keys of the recorded contexts. If a context is
    missing from the ledger, this class prevents a paid call with an API key from the environment.
    """

    model: str = DEFAULT_LLM.removeprefix("openai:")

    @classmethod
    def class_name(cls) -> str:
        """Return the default LLM's class name, as in the provider table."""
        return "openai_llm"

    @property
    def metadata(self) -> LLMMetadata:
        """Return the metadata that LlamaIndex requires of an LLM."""
        return LLMMetadata(model_name=self.model)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Refuse to answer."""
        raise InputError(
            "There is no recorded context for this chunk: the example documents are split differently now. Run"
            " `python examples/record_contexts.py`."
        )

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Refuse to answer."""
        yield self.complete(prompt, formatted, **kwargs)


def data_directory() -> Path:
    """Return the folder of the example documents in the installed package or the source tree.

    Raises:
        InputError: The folder exists in neither place.
    """
    here = Path(__file__).parents[1]
    for candidate in (here / "_demo_data", here.parent / "examples" / "data"):
        if (candidate / CONTEXTS_FILE).is_file():
            return candidate
    raise InputError("The example documents are not installed: install the package from its wheel or its source tree.")


def demo_files(folder: Path) -> list[Path]:
    """Return the paths of the example documents."""
    return sorted(p for p in folder.iterdir() if p.suffix in DOCUMENT_SUFFIXES)


def run_demo(report: Callable[[str], None]) -> list[DemoAnswer]:
    """Ingest the example documents twice, search for the demo questions, and return the results.

    Args:
        report: Called with a description of each step before the step begins.
    """
    folder = data_directory()
    files = demo_files(folder)
    questions = [json.loads(line) for line in (folder / QUESTIONS_FILE).read_text(encoding="utf-8").splitlines()]
    with TemporaryDirectory(prefix="llama-index-contextual-") as root:
        manager = ProjectManager(root)
        # Without reranking, the ranks show only the effect of the contexts.
        plain = manager.create("without-context", ProjectConfig.local(context="none", rerank=None))
        contextual = manager.create("with-context", ProjectConfig.local(context="llm", rerank=None), llm=RecordedLLM())
        import_ledger(contextual.directory, folder / CONTEXTS_FILE)
        report(f"Reading {len(files)} documents")
        result = read_documents(files)
        for skipped in result.skipped:
            report(f"{skipped.path}: {skipped.reason}")
        report("Ingesting them without contexts")
        plain.ingest(result.documents)
        report("Ingesting them with recorded contexts")
        if failures := contextual.ingest(result.documents).failures:
            report(f"Chunks with a structural context instead: {len(failures)}. {failures[0].error}")
        report("Searching")
        return [_answer(row, plain, contextual) for row in questions if row.get("demo")]


def _answer(row: Mapping[str, Any], plain: Project, contextual: Project) -> DemoAnswer:
    passage_without, passage = (
        first_with_evidence(project.retrieve(row["question"], top_k=TOP_K), row) for project in (plain, contextual)
    )
    return DemoAnswer(
        question=row["question"],
        evidence=row["evidence"][0],
        rank_without=passage_without.rank if passage_without else None,
        rank_with=passage.rank if passage else None,
        hit=passage,
    )


def first_with_evidence(results: Iterable[RetrievedChunk], row: Mapping[str, Any]) -> RetrievedChunk | None:
    """Return the first result that contains an evidence text, or None. Differences in white space are ignored.

    Args:
        results: Results, best first.
        row: A row of `questions.jsonl`.
    """
    evidence = [_one_line(text) for text in row["evidence"]]
    for result in results:
        if result.source.file_name == row["file"] and any(text in _one_line(result.text) for text in evidence):
            return result
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def show_answer(answer: DemoAnswer) -> None:
    """Print the rank of the answer to a demo question, without and with contexts."""
    say(f"\n[bold]{safe(answer.question)}[/]")
    lines = Table.grid(padding=(0, 2))
    lines.add_row("without contexts", _rank_text(answer.rank_without))
    lines.add_row("with contexts", _rank_text(answer.rank_with))
    if answer.hit is not None:
        lines.add_row("  passage", safe(str(answer.hit.source)))
        lines.add_row("  its context", f"[italic dim]{safe(answer.hit.written_context or '')}[/]")
    lines.add_row("  answer", f"… {snippet(answer.evidence, 160)} …")
    out.print(lines)


def _rank_text(rank: int | None) -> str:
    return f"[red]not in the first {TOP_K}[/]" if rank is None else f"[green]rank {rank}[/]"
