"""Segments of several chunks that are long enough for a provider's prefix cache, and figures from its log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.schema import BaseNode

from tests.contextualizer.samples import loose
from tests.support.log_check import check
from tests.support.records import Record
from tests.support.server import LoopbackProvider

WORDS = ("valve", "pump", "margin", "order", "station", "quarter", "reader", "signal", "terms", "north", "report")


def text_of(segment: int, chunk: int, words: int) -> str:
    """Return a text that no other chunk has."""
    picked = (WORDS[(segment * 7 + chunk * 3 + n * n) % len(WORDS)] for n in range(words))
    return f"Part {chunk} of document {segment}: {' '.join(picked)}."


def corpus(segments: int, chunks: int, *, words: int = 300) -> list[BaseNode]:
    """Return the chunks of some documents of one segment each."""
    return [
        node
        for segment in range(segments)
        for node in loose(*(text_of(segment, n, words) for n in range(chunks)), doc_id=f"doc-{segment}")
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
    """Return what the independent checker counts in the provider's log."""
    return check(provider.write_log(folder / "log.jsonl"))


def answered(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the entries of answers to several chunks."""
    return [entry for record in records for entry in json.loads(record.reply or "{}").get("contexts", [])]
