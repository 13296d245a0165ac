"""Segments that are long enough for a provider's prefix cache, and the calls for them in a provider's log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llama_index.core.schema import BaseNode, Document

from llama_index_contextual._utils.templates import ContextPrompt
from llama_index_contextual.contextualizer.base import Segment, segments
from llama_index_contextual.contextualizer.prompts import (
    DEFAULT_PROMPT,
    ContextRequest,
    chunks_by_key,
    context_requests,
)
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from tests.integration.contextualizer.samples import loose
from tests.support.log_check import check
from tests.support.records import Record
from tests.support.server import LoopbackProvider

WORDS = ("valve", "pump", "margin", "order", "station", "quarter", "reader", "signal", "terms", "north", "report")


def text_of(segment: int, chunk: int, words: int) -> str:
    """Return a text that is different for each chunk."""
    picked = (WORDS[(segment * 7 + chunk * 3 + n * n) % len(WORDS)] for n in range(words))
    return f"Part {chunk} of document {segment}: {' '.join(picked)}."


def corpus(segments: int, chunks: int, *, words: int = 300) -> list[BaseNode]:
    """Return the chunks of documents that have one segment each."""
    return [
        node
        for segment in range(segments)
        for node in loose(*(text_of(segment, n, words) for n in range(chunks)), doc_id=f"doc-{segment}")
    ]


def plan_requests(
    segment: Segment,
    chunks: Sequence[BaseNode],
    *,
    prompt: ContextPrompt,
    model: str,
) -> list[ContextRequest]:
    """Return the calls for the contexts of chunks of a segment."""
    by_key = {key: same[0] for key, same in chunks_by_key(segment, chunks, prompt=prompt, model=model).items()}
    return context_requests(segment, by_key, prompt=prompt)


def planned(*, words: int = 4_000) -> list[list[ContextRequest]]:
    """Return the calls for each segment of a document with ten sections."""
    text = "\n\n".join(
        f"## Part {part}\n\n" + " ".join(f"Word{part} number {n} differs." for n in range(words // 40))
        for part in range(10)
    )
    parsers = SegmentNodeParser(segment_size=4000, segment_overlap=400), ChunkNodeParser(chunk_size=400)
    nodes = parsers[1](parsers[0]([Document(text=text, metadata={"title": "Parts"})]))
    prompt = ContextPrompt(DEFAULT_PROMPT)
    return [
        plan_requests(segment, segment.chunks, prompt=prompt, model="openai:gpt-4.1")
        for segment in segments(nodes, segment_size=4000)
    ]


def prompt_of(record: Record) -> str:
    """Return the prompt of a recorded call."""
    return "".join(str(message["content"]) for message in record.body["messages"])


def by_segment(provider: LoopbackProvider) -> dict[str, list[Record]]:
    """Return the calls by the prefix of their prompts, in the order of arrival."""
    results: dict[str, list[Record]] = {}
    for record in provider.chat_calls:
        results.setdefault(prompt_of(record).partition("</document>")[0], []).append(record)
    return results


def independent_totals(provider: LoopbackProvider, folder: Path) -> dict[str, int]:
    """Return the totals that the independent checker counts in the provider's log."""
    return check(provider.write_log(folder / "log.jsonl"))
