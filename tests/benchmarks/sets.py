"""The four question sets of the shared data folder, and how a result is scored.

An evidence item counts as found by a result when the result is of the same file and covers at least half of its
characters (spans), holds at least 80 % of its word tokens (text without offsets), or is the chunk itself (ids).
recall@k of a question is the share of its evidence items found among the first k results; a set's figure is the mean.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.evaluation.metrics import ndcg as ndcg
from llama_index_contextual.evaluation.metrics import recall as recall
from llama_index_contextual.retrievers.response import RetrievedChunk

SETS = ("codebase", "contracts", "corpora", "conversations")
KS = (1, 5, 10, 20)


@dataclass(frozen=True)
class Question:
    """A question and the evidence that answers it."""

    text: str
    evidence: list[dict[str, Any]]


@dataclass(frozen=True)
class QuestionSet:
    """Documents (a folder, or ready chunks) and questions about them."""

    name: str
    folder: Path | None
    chunks: list[dict[str, Any]]
    questions: list[Question]

    def nodes(self, *, context: bool) -> list[TextNode]:
        """Return the ready chunks as nodes, with their recorded contexts if `context`."""
        nodes = []
        for chunk in self.chunks:
            metadata = {"context": chunk["context"]} if context else {}
            nodes.append(
                TextNode(
                    id_=chunk["chunk_id"],
                    text=chunk["text"],
                    metadata=metadata,
                    start_char_idx=chunk["start"],
                    end_char_idx=chunk["end"],
                    relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=chunk["doc_id"])},
                )
            )
        return nodes


def load(data: Path, name: str) -> QuestionSet:
    """Read one set."""
    folder = data / name
    rows = _rows(folder / "questions.jsonl")
    if name == "codebase":
        questions = [Question(row["question"], [{"id": i} for i in row["relevant"]]) for row in rows]
        return QuestionSet(name, None, _rows(folder / "chunks.jsonl"), questions)
    questions = [Question(row["question"], [_evidence(row, item) for item in row["evidence"]]) for row in rows]
    return QuestionSet(name, folder / ("pdf" if name == "contracts" else "documents"), [], questions)


def _evidence(row: dict[str, Any], item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"file": row["file"], "words": Counter(words(item))}
    return {"file": item.get("file", row.get("file")), "span": (item["start"], item["end"])}


def _rows(path: Path) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def words(text: str) -> list[str]:
    """Return the lower-case ASCII word tokens of a text."""
    return re.findall(r"[a-z0-9]+", text.lower())


def covers(result: RetrievedChunk, item: dict[str, Any]) -> bool:
    """Return whether a result holds an evidence item."""
    if "id" in item:
        return bool(result.node_id == item["id"])
    if result.source.file_name != item["file"]:
        return False
    if "span" in item:
        start, end = item["span"]
        overlap = min(end, result.source.end_char or 0) - max(start, result.source.start_char or 0)
        return bool(overlap >= 0.5 * (end - start))
    need, have = item["words"], Counter(words(result.text))
    return bool(sum(min(n, have[word]) for word, n in need.items()) >= 0.8 * need.total())


def first_ranks(results: Sequence[RetrievedChunk], evidence: Sequence[dict[str, Any]]) -> list[int | None]:
    """Return for each evidence item the rank (from 1) of the first result that holds it."""
    return [next((r for r, result in enumerate(results, 1) if covers(result, item)), None) for item in evidence]


def score(
    questions: Sequence[Question], retrieve: Callable[[str], Sequence[RetrievedChunk]]
) -> tuple[dict[int, float], float, list[list[int | None]]]:
    """Return recall@k in per cent for each k, nDCG@10 in per cent, and the ranks of every question."""
    ranks = [first_ranks(retrieve(question.text)[: max(KS)], question.evidence) for question in questions]
    recalls = {k: 100 * sum(recall(r, k) for r in ranks) / len(ranks) for k in KS}
    return recalls, 100 * sum(ndcg(r) for r in ranks) / len(ranks), ranks
