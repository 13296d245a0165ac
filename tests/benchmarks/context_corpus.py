"""Documents and providers for the benchmark of the context engine, the same ones on every machine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from llama_index.core.schema import BaseNode, Document
from llama_index.llms.openai import OpenAI

from llama_index_contextual import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project

T = TypeVar("T")

MODEL = "gpt-4.1"
PRICES = {"input": 2.0, "cached": 0.5, "output": 8.0}
"""List prices of gpt-4.1, dollars per million tokens, apart from those that the package knows."""

SEGMENTS, CHUNKS = 40, 11

AMPLE = {"rpm": 1_000_000, "tpm": 1_000_000_000}
"""Limits of the provider that no run reaches; by those that it tells otherwise, 3.4 million tokens take 42 seconds more
than the first two, and a client that follows its headers takes that time."""

_WORDS = [
    "the",
    "pump",
    "valve",
    "pressure",
    "report",
    "board",
    "quarter",
    "revenue",
    "margin",
    "supplier",
    "steel",
    "iron",
    "contract",
    "clause",
    "tenant",
    "landlord",
    "notice",
    "engine",
    "bearing",
    "oil",
    "water",
    "steam",
    "measured",
    "replaced",
    "approved",
    "rejected",
    "before",
    "after",
    "during",
    "winter",
    "summer",
    "north",
    "south",
    "plant",
    "office",
    "committee",
    "budget",
    "forecast",
    "order",
    "shipment",
    "harbour",
    "vessel",
    "crew",
    "inspection",
    "failure",
    "repair",
    "delay",
    "penalty",
    "payment",
    "invoice",
    "interest",
    "rate",
    "bank",
    "loan",
    "share",
    "dividend",
    "minutes",
    "motion",
    "vote",
    "majority",
    "member",
    "chair",
    "agenda",
    "appendix",
    "table",
    "figure",
    "method",
    "sample",
    "result",
    "error",
    "estimate",
    "model",
    "curve",
    "sensor",
    "signal",
    "filter",
    "noise",
    "limit",
    "threshold",
    "alarm",
    "manual",
    "operator",
    "shift",
    "training",
    "safety",
    "rule",
    "standard",
    "audit",
    "finding",
    "action",
    "owner",
    "date",
    "status",
    "open",
    "closed",
]


def paragraph(chance: random.Random) -> str:
    """Return a paragraph of some ninety words."""
    sentences = []
    for _ in range(6):
        words = [chance.choice(_WORDS) for _ in range(chance.randint(10, 20))]
        sentences.append(f"{' '.join(words).capitalize()} {chance.randint(2, 9999)}.")
    return " ".join(sentences)


def parse(document: Document) -> list[BaseNode]:
    """Return the chunks of a document, by way of segments, at the default sizes."""
    return ChunkNodeParser()(SegmentNodeParser()([document]))


def segment_document(number: int) -> Document:
    """Return a document of exactly one segment of 11 chunks."""
    chance = random.Random(number)
    parts = [f"# Document {number}"]
    while True:
        parts.append(paragraph(chance))
        if len(parts) < 45:
            continue
        document = Document(text="\n\n".join(parts), id_=f"d{number}", metadata={"title": f"Document {number}"})
        nodes = parse(document)
        if len({node.metadata["segment_index"] for node in nodes}) > 1:
            raise RuntimeError(f"document {number} has no size at which it is one segment of {CHUNKS} chunks")
        if len(nodes) == CHUNKS:
            return document


def documents(segments: int = SEGMENTS) -> list[Document]:
    """Return documents of one segment each."""
    return [segment_document(number) for number in range(segments)]


def long_document(number: int, tokens: int) -> str:
    """Return a text of many segments, with headings."""
    chance = random.Random(1_000 + number)
    parts, size = [f"# Volume {number}"], 0
    while size < tokens:
        if len(parts) % 12 == 0:
            parts.append(f"## Part {len(parts) // 12}")
        parts.append(paragraph(chance))
        size += count_tokens(parts[-1]) + 1
    return "\n\n".join(parts)


def write(folder: Path, texts: Sequence[str]) -> Path:
    """Write texts as files of a folder, and return the folder."""
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"d{number:05d}.md").write_text(text, encoding="utf-8")
    return folder


def llm(api_base: str) -> OpenAI:
    """Return LlamaIndex's OpenAI class as the package makes it, for the loopback provider."""
    return OpenAI(
        model=MODEL, api_base=api_base, api_key="any", max_retries=0, reuse_client=False, temperature=0.0, timeout=60.0
    )


def project(root: Path, name: str, api_base: str, **changes: object) -> Project:
    """Return a new project that asks the loopback provider for contexts and has a lexical index only."""
    config = ProjectConfig(**{"context": "llm", "llm": f"openai:{MODEL}", "faiss": False, **changes})
    return ProjectManager(root).create(name, config, llm=llm(api_base))


def contexts(of: Project) -> dict[str, tuple[str, str, str]]:
    """Return text, context and the context's source of each chunk by its id."""
    nodes = of.storage_context.docstore.iterate()  # type: ignore[attr-defined]
    return {n.node_id: (n.text, n.metadata["context"], n.metadata["context_source"]) for n in nodes}


def dollars(totals: dict[str, int], *, cached: int | None = None) -> float:
    """Return the list price of a log's chat calls.

    Args:
        totals: The counts of a log.
        cached: Cached tokens to assume instead of those that were counted.
    """
    hit = totals["cached_tokens"] if cached is None else cached
    parts = (totals["prompt_tokens"] - hit, "input"), (hit, "cached"), (totals["completion_tokens"], "output")
    return sum(tokens * PRICES[kind] for tokens, kind in parts) / 1e6


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the wall clock of a call, and its result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def verdict(reached: bool) -> str:
    """Return how a figure stands to its goal."""
    return "reached" if reached else "NOT REACHED"
