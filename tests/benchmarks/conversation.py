"""Recall on follow-up questions: `python -m tests.benchmarks.conversation --data ../shared/data/conversations`.

Turns after the first, `ProjectConfig.local()`, scored as the other sets are (`tests/benchmarks/sets.py`), for: the last
question alone; the last three questions and it in one text; the blend of embeddings alone (question at weight 2, mean
of the last three at 1); the blend of both indexes; a human's stand-alone rewrite. p-values are those of a paired
permutation test; that first turns are unchanged is checked. Then changes of topic: every rewrite behind the history of
another conversation, which must not pull it back. No key, no network.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.base.llms.types import ChatMessage

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.evaluation.metrics import bootstrap_interval, permutation_p_value
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.conversational import BlendWeights, ConversationalRetriever, ConversationQuery
from llama_index_contextual.retrievers.response import RetrievedChunk
from tests.benchmarks.sets import first_ranks, recall

KS = (3, 5, 10, 20)
Row = dict[str, Any]
Search = Callable[[Row], Sequence[RetrievedChunk]]


def searches(project: Project) -> dict[str, Search]:
    """Return the ways of asking a turn."""
    retriever = project.as_retriever(mode="hybrid", similarity_top_k=max(KS))
    embedding_only = BlendWeights(history_terms=0.0, answer_terms=0.0)
    seed = ConversationalRetriever(retriever, embed_model=project.embed_model, weights=embedding_only)
    ours = ConversationalRetriever(retriever, embed_model=project.embed_model)
    return {
        "last question": lambda row: project.retrieve(row["question"], top_k=max(KS)).results,
        "questions in one": lambda row: project.retrieve(" ".join(_questions(row)), top_k=max(KS)).results,
        "embeddings blended": lambda row: seed.respond(_query(row)).results,
        "both blended": lambda row: ours.respond(_query(row)).results,
        "human rewrite": lambda row: project.retrieve(row["rewrite"], top_k=max(KS)).results,
    }


def _questions(row: Row) -> list[str]:
    calls = [message["content"] for message in row["history"] if message["role"] == "user"]
    return [*calls[-3:], row["question"]]


def _query(row: Row) -> ConversationQuery:
    return ConversationQuery(row["question"], history=[ChatMessage(**message) for message in row["history"]])


def switched(rows: Sequence[Row]) -> list[Row]:
    """Return the stand-alone questions, each behind a history that has nothing to do with it."""
    later = [row for row in rows if row["history"]]
    created = []
    for at, row in enumerate(rows):
        far = (later[(at + len(later) // 2 + step) % len(later)] for step in range(len(later)))
        other = next(result for result in far if _conversation(result) != _conversation(row))
        created.append({**row, "question": row["rewrite"], "history": other["history"]})
    return created


def _conversation(row: Row) -> str:
    return str(row["id"].partition("<")[0])


def recalls(rows: Sequence[Row], search: Search) -> dict[int, np.ndarray]:
    """Return recall@k in per cent of every row, for each k."""
    evidence = [[{"file": e["file"], "span": (e["start"], e["end"])} for e in row["evidence"]] for row in rows]
    ranks = [first_ranks(search(row), items) for row, items in zip(rows, evidence, strict=True)]
    return {k: np.array([100 * recall(result, k) for result in ranks]) for k in KS}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Folder with questions.jsonl and documents/.")
    folder: Path = parser.parse_args().data
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    first, later = [row for row in rows if not row["history"]], [row for row in rows if row["history"]]
    with tempfile.TemporaryDirectory() as root:
        project = ProjectManager(root).create("conversations", ProjectConfig.local())
        project.ingest([folder / "documents"])
        ways = searches(project)
        same = all(
            [c.node_id for c in ways["last question"](row)] == [c.node_id for c in ways["both blended"](row)]
            for row in first
        )
        results = {name: recalls(later, search) for name, search in ways.items()}
        elsewhere = {name: recalls(switched(rows), ways[name]) for name in ("last question", "both blended")}
    print(f"{len(later)} turns after the first; {len(first)} first turns {'unchanged' if same else 'CHANGED'}")
    print(f"{'':20s}" + "".join(f"   R@{k:<3d}" for k in KS))
    for name, values in results.items():
        print(f"{name:20s}" + "".join(f"  {values[k].mean():5.1f} " for k in KS))
    for other in ("last question", "embeddings blended", "human rewrite"):
        print(f"both blended - {other}:")
        _print_differences(results["both blended"], results[other])
    print(f"both blended - last question, {len(rows)} questions after a change of topic:")
    _print_differences(elsewhere["both blended"], elsewhere["last question"])


def _print_differences(ours: dict[int, np.ndarray], theirs: dict[int, np.ndarray]) -> None:
    for k in KS:
        difference = ours[k] - theirs[k]
        interval = bootstrap_interval(difference)
        p = permutation_p_value(difference)
        print(f"  R@{k:<3d} {interval.mean:+5.1f}  [{interval.low:+.1f}, {interval.high:+.1f}]  p = {p:.4f}")


if __name__ == "__main__":
    main()
