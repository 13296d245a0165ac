"""The question sets in the data folder, and how a result is scored.

A set with a file `contexts.jsonl` has recorded contexts: lines with the `file` and the `text` of a chunk, and the
`context` that an LLM wrote for it with the default prompt.

A result contains an evidence item if it is from the same file and covers at least half of its characters (spans),
contains at least 80 % of its word tokens (clauses) or 60 % of its pieces of 60 letters (sentences and rows), or
includes its page (pages), or if it is the chunk itself (ids). The recall@k of a question is the share of its evidence
items among the first k results; the recall of a set is the mean over its questions.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode

from tests.benchmarks.adapter import RetrievedChunk, read_documents
from tests.benchmarks.adapter import recall as recall

SHORT_SETS = ("codebase", "contracts", "corpora", "conversations")
SETS = (*SHORT_SETS, "filings")
"""The sets for which figures are published; reading the thousands of pages of the filings takes a minute."""
SENTENCE_SETS = ("manuals", "tables", "xquad_de", "xquad_ar")
"""Sets whose evidence is sentences or table rows, also in other languages than English."""
ALL_SETS = (*SETS, *SENTENCE_SETS)
KS = (1, 5, 10, 20)


@dataclass(frozen=True)
class Question:
    """A question and the evidence that answers it."""

    text: str
    evidence: list[dict[str, Any]]


@dataclass(frozen=True)
class RecordedContext:
    """A context that an LLM wrote for a chunk.

    Attributes:
        document: Id of the chunk's document, or its file name.
        text: Text of the chunk.
        context: The context.
    """

    document: str
    text: str
    context: str


@dataclass(frozen=True)
class QuestionSet:
    """Documents (a folder, or ready chunks) and questions about them."""

    name: str
    folder: Path | None
    chunks: list[dict[str, Any]]
    questions: list[Question]
    contexts: tuple[RecordedContext, ...] = ()

    @cached_property
    def documents(self) -> list[Document]:
        """The documents of the folder, read once.

        Raises:
            ValueError: A file could not be read.
        """
        assert self.folder is not None
        result = read_documents(self.folder)
        if result.skipped:
            raise ValueError(f"{self.name}: {'; '.join(f'{file.path}: {file.reason}' for file in result.skipped)}")
        return result.documents

    def inputs(self) -> list[Document] | list[TextNode]:
        """Return the documents, or the ready chunks without contexts."""
        return self.documents if self.folder else self.nodes(context=False)

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
        chunks = _rows(folder / "chunks.jsonl")
        contexts = tuple(RecordedContext(row["doc_id"], row["text"], row["context"]) for row in chunks)
        return QuestionSet(name, None, chunks, questions, contexts)
    questions = [Question(row["question"], [_evidence(row, item) for item in row["evidence"]]) for row in rows]
    path = folder / "contexts.jsonl"
    recorded = _rows(path) if path.exists() else []
    contexts = tuple(RecordedContext(row["file"], row["text"], row["context"]) for row in recorded)
    pdf = folder / "pdf"
    return QuestionSet(name, pdf if pdf.exists() else folder / "documents", [], questions, contexts)


def _evidence(row: dict[str, Any], item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"file": row["file"], "text": item, "words": Counter(words(item))}
    if "page" in item:
        return {"file": row["file"], "page": item["page"]}
    if "text" in item:
        return {"file": row["file"], "text": item["text"], "pieces": pieces(item["text"])}
    return {"file": item.get("file", row.get("file")), "span": (item["start"], item["end"])}


def _rows(path: Path) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def words(text: str) -> list[str]:
    """Return the lower-case ASCII word tokens of a text."""
    return re.findall(r"[a-z0-9]+", text.lower())


def pieces(text: str, length: int = 60) -> list[str]:
    """Return the letters and digits of a text in lower case, in pieces of equal length; the last one is shorter."""
    letters = _letters(text)
    return [letters[start : start + length] for start in range(0, len(letters), length)]


@lru_cache(maxsize=20_000)
def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


@lru_cache(maxsize=20_000)
def _counts(text: str) -> Counter[str]:
    return Counter(words(text))


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
    if "page" in item:
        first, last = result.source.page_start, result.source.page_end
        return first is not None and first <= item["page"] <= (last or first)
    if "pieces" in item:
        letters = _letters(result.text)
        return sum(piece in letters for piece in item["pieces"]) >= 0.6 * len(item["pieces"])
    need, have = item["words"], _counts(result.text)
    return bool(sum(min(n, have[word]) for word, n in need.items()) >= 0.8 * need.total())


def first_ranks(results: Sequence[RetrievedChunk], evidence: Sequence[dict[str, Any]]) -> list[int | None]:
    """Return for each evidence item the rank (from 1) of the first result that holds it."""
    return [next((r for r, result in enumerate(results, 1) if covers(result, item)), None) for item in evidence]


def ndcg(ranks: Sequence[int | None], k: int = 10) -> float:
    """Return nDCG@k with binary gains, the measure of the published figures.

    A result has a gain of 1 if it contains an item that no earlier result contains. The ideal ranking has one item in
    each of the top results. `evaluate` counts each item in a result instead.
    """
    ideal = sum(1 / math.log2(1 + rank) for rank in range(1, min(len(ranks), k) + 1))
    return sum(1 / math.log2(1 + rank) for rank in {r for r in ranks if r is not None and r <= k}) / ideal


def score(
    questions: Sequence[Question], retrieve: Callable[[str], Sequence[RetrievedChunk]]
) -> tuple[dict[int, float], float, list[list[int | None]]]:
    """Return recall@k in per cent for each k, nDCG@10 in per cent, and the ranks of every question."""
    ranks = [first_ranks(retrieve(question.text)[: max(KS)], question.evidence) for question in questions]
    recalls = {k: 100 * sum(recall(r, k) for r in ranks) / len(ranks) for k in KS}
    return recalls, 100 * sum(ndcg(r) for r in ranks) / len(ranks), ranks
