"""Latency on real questions: `python -m tests.benchmarks.speed_real --data DATA`.

Ingests the documents of several sets into one project, and puts its chunks, with their contexts, into LlamaIndex's own
components (see `stock`). Both use WordLlama. Each question is asked once, by both in turn, so no passage is in a cache
because of an earlier repetition, and noise hits both alike. In each round, the project is loaded again, with empty
caches, and the shortest time of each question counts. Then 16 threads ask at once. The exit code is 1 if the ratio of
the medians exceeds `--most` in every attempt: other programs on the machine may slow down one of them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from llama_index.core.schema import BaseNode, NodeRelationship, ObjectType, RelatedNodeInfo, TextNode
from numpy.typing import NDArray

from llama_index_contextual import ProjectConfig, ProjectManager
from llama_index_contextual import metadata as keys
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
from llama_index_contextual.project.project import Project
from tests.benchmarks import stock
from tests.benchmarks.sets import load

SETS = ("contracts", "corpora", "conversations", "manuals", "tables")
WARM_UP = 20
CALLERS = 16
SEED = 1

Ask = Callable[[str], object]


def main() -> int:
    """Measure, print the table, and compare with the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the question sets")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--questions", type=int, default=600, help="of all sets together, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--attempts", type=int, default=1, help="until the median is at most --most, at most")
    parser.add_argument("--work", type=Path, help="keeps the project here, for the next run")
    parser.add_argument("--most", type=float, help="most that the median may take, as a multiple of that of stock")
    arguments = parser.parse_args()
    sets = [load(arguments.data, name) for name in arguments.sets]
    questions = list(dict.fromkeys(question.text for each in sets for question in each.questions))
    random.Random(SEED).shuffle(questions)
    with tempfile.TemporaryDirectory() as scratch:
        manager = ProjectManager(arguments.work or scratch)
        if "real" not in manager.list():
            project = manager.create("real", ProjectConfig.local())
            project.ingest([each.folder for each in sets if each.folder is not None])
        project = manager.load("real")
        nodes = stock_nodes(project)
        theirs = stock.retrievers(nodes, WordLlamaEmbedding())["hybrid"]
        chosen, first = questions[: arguments.questions], questions[-WARM_UP:]
        print(f"{len(nodes):,} chunks, {len(chosen):,} questions")
        for _ in range(arguments.attempts):
            rounds = [
                measure({"ours": manager.load("real").retrieve, "stock": theirs.retrieve}, chosen, first)
                for _ in range(arguments.rounds)
            ]
            ratio = show({name: np.min([times[name] for times in rounds], axis=0) for name in rounds[0]})
            if arguments.most is None or ratio <= arguments.most:
                break
        concurrent({"ours": project.retrieve, "stock": theirs.retrieve}, chosen)
    if arguments.most is not None and ratio > arguments.most:
        print(f"the median is {ratio:.2f} times that of stock, more than {arguments.most}")
        return 1
    return 0


def stock_nodes(project: Project) -> list[BaseNode]:
    """Return the chunks with their contexts in the text, their file name, their position and their document."""
    nodes: list[BaseNode] = []
    for record in project.documents():
        for position, chunk in enumerate(project.chunks(record.doc_id)):
            name = {keys.FILE_NAME: chunk.metadata[keys.FILE_NAME]}
            node = TextNode(
                id_=chunk.node_id,
                text=f"{chunk.metadata[keys.CONTEXT]}\n\n{chunk.get_content()}",
                metadata={**name, "position": position},
                excluded_embed_metadata_keys=[*name, "position"],
                excluded_llm_metadata_keys=[*name, "position"],
            )
            node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(
                node_id=record.doc_id, node_type=ObjectType.DOCUMENT, metadata=name, hash=record.content_hash
            )
            nodes.append(node)
    return nodes


def measure(ways: dict[str, Ask], questions: Sequence[str], first: Sequence[str]) -> dict[str, list[float]]:
    """Ask each question in each way, and return the milliseconds of each question by way."""
    for question in first:
        for ask in ways.values():
            ask(question)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number, question in enumerate(questions):
        for name in list(ways) if number % 2 else reversed(ways):
            started = time.perf_counter()
            ways[name](question)
            times[name].append(1e3 * (time.perf_counter() - started))
    return times


def show(times: Mapping[str, NDArray[np.float64]]) -> float:
    """Print quantiles of the times in milliseconds, and return the ratio of the medians."""
    print(f"{'':24s}{'ours':>8s}{'stock':>8s}{'ratio':>8s}")
    ratio = _print("p50, ms", {name: float(np.median(values)) for name, values in times.items()})
    _print("p95, ms", {name: float(np.quantile(values, 0.95)) for name, values in times.items()})
    return ratio


def concurrent(ways: dict[str, Ask], questions: Sequence[str]) -> None:
    """Ask from 16 threads, each way three times in turn, and print the median of the queries per second."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, ask in ways.items():
            with ThreadPoolExecutor(CALLERS) as pool:
                started = time.perf_counter()
                list(pool.map(ask, questions))
                rates[name].append(len(questions) / (time.perf_counter() - started))
    _print(f"{CALLERS} threads, queries/s", {name: statistics.median(values) for name, values in rates.items()})


def _print(name: str, values: dict[str, float]) -> float:
    ratio = values["ours"] / values["stock"]
    print(f"{name:24s}{values['ours']:8.2f}{values['stock']:8.2f}{ratio:8.2f}")
    return ratio


if __name__ == "__main__":
    sys.exit(main())
