"""Write data/contexts.jsonl and contracts/contexts.jsonl: the ledgers of contexts for the example documents.

    python record_contexts.py

Runs the package's own pipeline with a stand-in for an LLM, which answers from context_notes/: short descriptions of
every passage of the documents. Therefore, each row has the key that `ProjectConfig.local(context="llm")` looks up (for
the contracts, with the chunk size of notebook 04). Run it again after changes to the readers, the node parsers, the
prompt, the documents or the notes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llama_index.core.base.llms.types import CompletionResponse

from llama_index_contextual import ProjectConfig, ProjectManager, read_documents
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.cli.demo import CONTEXTS_FILE, RecordedLLM, demo_files
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.ledger_lines import write_ledger

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
NOTES = HERE / "context_notes"
AUTHOR = NOTES.name
MAX_TOKENS = 120
CONTRACTS = HERE / "contracts"
CONTRACT_SETTINGS = {"chunk_size": 200, "chunk_overlap": 20}
"""Settings of the project in notebook 04."""

_CHUNK = re.compile(r"<chunk>\n(?:\[Section: .*\]\n)?(.*)\n</chunk>", re.DOTALL)


@dataclass(frozen=True)
class Passage:
    """Description of a passage of a document; offsets refer to the folded text."""

    start: int
    end: int
    part: str
    covers: str


@dataclass(frozen=True)
class Guide:
    """A document as folded text, with its passages."""

    text: str
    passages: Sequence[Passage]

    @classmethod
    def of(cls, text: str, notes: Path) -> Guide:
        """Find the passages of the notes in a document; the `from` of each must occur exactly once."""
        folded, part, found = fold(text), "", []
        for row in map(json.loads, notes.read_text(encoding="utf-8").splitlines()):
            part = row.get("part", part)
            if (count := folded.count(fold(row["from"]))) != 1:
                raise ValueError(
                    f"{notes.name}: {row['from']!r} is {count} times in the text: it must occur exactly once."
                )
            found.append((folded.index(fold(row["from"])), part, row["covers"]))
        starts = [start for start, _, _ in found]
        if starts != sorted(starts):
            raise ValueError(f"{notes.name} is not in the order of the text.")
        ends = [*starts[1:], len(folded)]
        return cls(folded, [Passage(start, end, *rest) for (start, *rest), end in zip(found, ends, strict=True)])

    def context(self, start: int, end: int) -> str:
        """Describe the text between two offsets within MAX_TOKENS, preferring longer passages."""
        inside = {p: min(end, p.end) - max(start, p.start) for p in self.passages if p.start < end and p.end > start}
        telling = [p for p, size in inside.items() if 3 * size >= min(end - start, p.end - p.start)]
        text, named = "", []
        for passage in sorted(telling, key=lambda p: -inside[p]):
            longer = sentences(sorted([*named, passage], key=lambda p: p.start))
            if count_tokens(longer) <= MAX_TOKENS:
                text, named = longer, [*named, passage]
        return text


class NotesLLM(RecordedLLM):
    """Stand-in for an LLM that composes contexts from the notes."""

    guides: list[Guide]

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Find the chunk of the prompt in the documents, and describe its passages."""
        chunk = fold(_CHUNK.findall(prompt)[-1])
        holders = [guide for guide in self.guides if guide.text.count(chunk) == 1]
        if len(holders) != 1:
            raise ValueError(f"This chunk does not occur exactly once in the documents: {prompt[-500:]!r}")
        start = holders[0].text.index(chunk)
        return CompletionResponse(text=holders[0].context(start, start + len(chunk)))


def fold(text: str) -> str:
    """Keep only letters and digits, so that line breaks, hyphens, ligatures and table rules do not matter."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum())


def sentences(passages: Sequence[Passage]) -> str:
    """Return one sentence for each part of the document to which the passages belong."""
    parts: dict[str, list[str]] = {}
    for passage in passages:
        parts.setdefault(passage.part, []).append(passage.covers)
    (part, items), *others = parts.items()
    first = f"This passage comes from {part} and covers {listed(items)}."
    return " ".join([first, *(f"It goes on with {part}: {listed(items)}." for part, items in others)])


def listed(items: Sequence[str]) -> str:
    """Join phrases to a list: "a; b; and c"."""
    return items[0] if len(items) == 1 else f"{'; '.join(items[:-1])}; and {items[-1]}"


def record(target: Path, folder: Path = DATA, notes: Path = NOTES, **settings: Any) -> int:
    """Write the ledger of a folder of documents to a file and return the number of contexts.

    Args:
        target: The file.
        folder: The documents.
        notes: The notes on them, a file for each document.
        **settings: Settings of the project that will use the contexts.
    """
    read = read_documents(demo_files(folder)).documents
    guides = [Guide.of(d.text, notes / f"{Path(d.metadata['file_name']).stem}.jsonl") for d in read]
    with TemporaryDirectory() as root:
        manager = ProjectManager(root)
        config = ProjectConfig.local(context="llm", indexes="lexical", **settings)
        project = manager.create("record", config, llm=NotesLLM(guides=guides))
        report = project.ingest(read)
        if report.failures:
            raise ValueError(str(report))
        with closing(Ledger(project.directory / LEDGER_FILE)) as ledger:
            write_ledger(ledger, target)
    lines = map(json.loads, target.read_text(encoding="utf-8").splitlines())
    rows = [row for row in lines if "table" not in row]  # the contexts
    # The keys are those of the default LLM, but it did not write these contexts.
    signed = [json.dumps({**row, "model": AUTHOR}, ensure_ascii=False) for row in rows]
    target.write_text("".join(f"{line}\n" for line in signed), encoding="utf-8")
    return len(rows)


if __name__ == "__main__":
    print(f"{record(DATA / CONTEXTS_FILE)} contexts for {DATA.name}")
    recorded = record(CONTRACTS / CONTEXTS_FILE, CONTRACTS, NOTES / CONTRACTS.name, **CONTRACT_SETTINGS)
    print(f"{recorded} contexts for {CONTRACTS.name}")
