"""Compare Qdrant with files: the rankings of both, and the recall of Qdrant's approximate search.

    python -m tests.benchmarks.engines overlap --data DATA
    python -m tests.benchmarks.engines recall --data DATA

The engine is Qdrant Edge, which runs in this process, or the server at `--url`. The embedding is WordLlama.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index import remote
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.sets import load
from tests.integration.index.edge import edge_engine

QUESTIONS = 250
TOP_K = 20


@contextlib.contextmanager
def places(url: str | None, threshold: int | None = None) -> Iterator[tuple[ProjectManager, str]]:
    """Yield a root for projects, and the address of an engine."""
    with tempfile.TemporaryDirectory() as folder:
        manager = ProjectManager(Path(folder) / "root")
        if url is not None:
            yield manager, url
            for name in manager.list():
                manager.delete(name)
            return
        with edge_engine(Path(folder) / "edge", threshold) as (address, _):
            yield manager, address


def both(manager: ProjectManager, url: str, **settings: Any) -> tuple[Project, Project]:
    config = ProjectConfig.local(**settings)
    on_files = manager.create("files", config)
    return on_files, manager.create("engine", config.changed(backend=f"qdrant:{url}"))


def ids(project: Project, question: str, **options: Any) -> list[str]:
    return [hit.node_id for hit in project.retrieve(question, top_k=TOP_K, **options)]


# ---- rankings --------------------------------------------------------------------------------------------------------


def corpus(data: Path) -> tuple[list[Document], list[Document], list[str]]:
    """Return short documents, longer ones with four times as many chunks, and questions about both."""
    conversations, corpora = load(data, "conversations"), load(data, "corpora")
    questions = [one.text for one in (*conversations.questions, *corpora.questions)]
    random.Random(0).shuffle(questions)
    short = sorted(conversations.documents, key=lambda document: len(document.text))
    first = short[: len(short) // 2]
    return first, [*short[len(short) // 2 :], *corpora.documents], questions[:QUESTIONS]


def compare(one: Project, other: Project, questions: Sequence[str]) -> dict[str, Any]:
    """Return the mean overlap of the first 20 results, and the processor time of a question on both."""
    result: dict[str, Any] = {}
    for fusion in ("rrf", "score"):
        for project in (one, other):
            project.update_config(fusion=fusion)
        shares, same, times = [], 0, [0.0, 0.0]
        for question in questions:
            lists = []
            for number, project in enumerate((one, other)):
                started = time.process_time()
                lists.append(ids(project, question))
                times[number] += time.process_time() - started
            shares.append(len(set(lists[0]) & set(lists[1])) / max(1, *map(len, lists)))
            same += lists[0] == lists[1]
        result[fusion] = {
            "overlap@20": round(100 * float(np.mean(shares)), 3),
            "worst": round(100 * min(shares), 1),
            "same order": round(100 * same / len(questions), 1),
            "ms files": round(1_000 * times[0] / len(questions), 2),
            "ms engine": round(1_000 * times[1] / len(questions), 2),
        }
    return result


def overlap(url: str | None, data: Path) -> dict[str, Any]:
    first, more, questions = corpus(data)
    result: dict[str, Any] = {"questions": len(questions)}
    with places(url) as (manager, address):
        projects = both(manager, address, chunk_size=64, chunk_overlap=8, context="structural")
        for name, documents in (("at first", first), ("fourfold", more), ("rebuilt", None)):
            started = time.process_time()
            reports = [
                project.rebuild() if documents is None else project.ingest(documents)
                for project in (projects if documents is not None else projects[1:])
            ]
            result[name] = {
                "chunks": reports[-1].chunks,
                "build s": round(time.process_time() - started, 1),
                **compare(*projects, questions),
            }
            print(name, json.dumps(result[name]), file=sys.stderr, flush=True)
    return result


def recall(url: str | None, data: Path) -> dict[str, Any]:
    """Measure the approximate search against the exact one."""
    first, more, questions = corpus(data)
    with places(url, threshold=100) as (manager, address):
        config = ProjectConfig.local(
            chunk_size=64, chunk_overlap=8, context="structural", indexes="semantic", backend=f"qdrant:{address}"
        )
        project = manager.create("engine", config)
        report = project.ingest([*first, *more])
        store: Any = project.live_version.index._vectors
        vectors = [np.asarray(project.embed_model.get_query_embedding(one), dtype=np.float32) for one in questions]
        hits: dict[int, list[set[int]]] = {}
        for limit in (sys.maxsize, 0):
            with mock.patch.object(remote, "EXACT_CHUNKS", limit):
                hits[limit] = [set(store._nearest(one, TOP_K, None).rows.tolist()) for one in vectors]
        shares = [len(best & found) / len(best) for best, found in zip(*hits.values(), strict=True)]
    return {"chunks": report.chunks, "recall@20": round(float(np.mean(shares)), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["overlap", "recall"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--url", help="address of a Qdrant server; default: Qdrant Edge")
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"{options.data} does not exist: name the folder with --data")
    run = {"overlap": overlap, "recall": recall}[options.command]
    print(json.dumps(run(options.url, options.data), indent=1))


if __name__ == "__main__":
    main()
