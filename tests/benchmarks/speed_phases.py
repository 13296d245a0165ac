"""One measurement of the speed benchmark, in its own process; the last line of the output is a JSON object."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.memory import peak_memory

NAME = "speed"
Figures = dict[str, Any]


def main() -> None:
    """Run the phase that the command line names."""
    phase, corpus, root, spawned = sys.argv[1:]
    print(json.dumps(PHASES[phase](Path(corpus), Path(root), float(spawned))))


def nodes_of(corpus: Path) -> list[Any]:
    """Return the chunks of a corpus as nodes."""
    from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

    from llama_index_contextual import metadata as keys

    nodes = []
    with open(corpus / "chunks.jsonl", encoding="utf-8") as rows:
        for row in map(json.loads, rows):
            name = row["file_name"].rpartition("/")[2]
            node = TextNode(
                id_=row["id"],
                text=row["text"],
                start_char_idx=row["position"],
                end_char_idx=row["position"] + len(row["text"]),
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=row["doc_id"])},
                metadata={keys.CONTEXT: row["context"], keys.FILE_NAME: name, keys.FILE_PATH: row["file_name"]},
            )
            nodes.append(node)
    return nodes


def open_project(root: Path, corpus: Path, *, create: bool = False) -> Any:
    """Open or create the project of a corpus, with an embedding model that knows the vectors of the questions."""
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr

    from llama_index_contextual import ProjectConfig, ProjectManager
    from llama_index_contextual.index.analysis import normalise_query

    queries = json.loads((corpus / "queries.json").read_text())

    class Precomputed(BaseEmbedding):
        """Knows the vectors of the questions."""

        _table: dict[str, list[float]] = PrivateAttr()

        def _get_query_embedding(self, query: str) -> list[float]:
            return self._table[query]

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._table[query]

        def _get_text_embedding(self, text: str) -> list[float]:
            raise NotImplementedError

    model = Precomputed(model_name="precomputed")
    vectors = np.load(corpus / "qemb.npy").tolist()
    model._table = dict(zip(map(normalise_query, queries), vectors, strict=True))
    manager = ProjectManager(root)
    if not create:
        return manager.load(NAME, embed_model=model)
    return manager.create(NAME, ProjectConfig.local(context="none"), embed_model=model)


def import_what_a_query_needs() -> None:
    """Import what opening and asking would import."""
    import bm25s  # noqa: F401
    import faiss  # noqa: F401
    import Stemmer  # noqa: F401
    from bm25s import stopwords  # noqa: F401

    import llama_index_contextual.index.vectors  # noqa: F401


def latency(ask: Callable[[str], object], queries: Sequence[str]) -> list[float]:
    """Return the seconds of each question, after ten that do not count."""
    for query in queries[:10]:
        ask(query)
    times = []
    for query in queries:
        started = time.perf_counter()
        ask(query)
        times.append(time.perf_counter() - started)
    return times


def build(corpus: Path, root: Path, spawned: float) -> Figures:
    """Build one version from nodes and vectors that are there, the ledger aside."""
    from llama_index_contextual.index.manifest import DocumentRecord
    from llama_index_contextual.index.writer import VersionBuilder
    from llama_index_contextual.models import model_name

    shutil.rmtree(root, ignore_errors=True)
    nodes, vectors = nodes_of(corpus), np.load(corpus / "emb.npy")
    project = open_project(root, corpus, create=True)
    started = time.perf_counter()
    builder = VersionBuilder(project.directory, project.config)
    for doc_id, rows in itertools.groupby(range(len(nodes)), key=lambda row: nodes[row].ref_doc_id):
        of_document = list(rows)
        record = DocumentRecord(doc_id=doc_id, content_hash="0", chunks=len(of_document))
        builder.append(record, [nodes[row] for row in of_document], vectors[of_document], None)
    manifest = builder.publish(embed_model=model_name(project.embed_model))
    return {"seconds": time.perf_counter() - started, "MB": manifest.size / 1e6, "peak_MB": peak_memory()}


def first(corpus: Path, root: Path, spawned: float) -> Figures:
    """Open in a new process and answer once; imports are not counted."""
    query = json.loads((corpus / "queries.json").read_text())[0]
    project = open_project(root, corpus)
    import_what_a_query_needs()
    started = time.perf_counter()
    found = project.retrieve(query)
    seconds = time.perf_counter() - started
    if len(found) != 20:
        raise SystemExit(f"{len(found)} results instead of 20")
    with_imports = time.clock_gettime(time.CLOCK_MONOTONIC) - spawned
    return {"seconds": seconds, "peak_MB": peak_memory(), "with_imports": with_imports}


def warm(corpus: Path, root: Path, spawned: float) -> Figures:
    """Answer the same questions warm, in each mode, and compare with the exact order of the vectors."""
    queries = json.loads((corpus / "queries.json").read_text())
    project = open_project(root, corpus)
    times = latency(project.retrieve, queries)
    figures: Figures = {"p50_ms": 1e3 * statistics.median(times), "p95_ms": 1e3 * sorted(times)[int(0.95 * len(times))]}
    for mode in ("semantic", "lexical"):
        took = latency(lambda query, mode=mode: project.retrieve(query, mode=mode), queries)
        figures[f"{mode}_ms"] = 1e3 * statistics.median(took)
    vectors, asked = np.load(corpus / "emb.npy", mmap_mode="r"), np.load(corpus / "qemb.npy")
    ids = [f"chunk-{row:08d}" for row in range(len(vectors))]
    shares = []
    for query, vector in list(zip(queries, asked, strict=True))[:50]:
        exact = {ids[row] for row in np.argsort(-(vectors @ vector), kind="stable")[:20]}
        shares.append(len(exact & {hit.node_id for hit in project.retrieve(query, mode="semantic")}) / 20)
    return {**figures, "recall20": statistics.fmean(shares)}


def concurrent(corpus: Path, root: Path, spawned: float) -> Figures:
    """Answer 16 callers at once, as threads and awaited, and all questions in one call."""
    queries = json.loads((corpus / "queries.json").read_text())
    project = open_project(root, corpus)
    for query in queries[:10]:
        project.retrieve(query)
    found: Figures = {}
    with ThreadPoolExecutor(16) as pool:
        started = time.perf_counter()
        for _ in pool.map(project.retrieve, queries):
            pass
        found["threads16"] = len(queries) / (time.perf_counter() - started)

    async def gathered() -> None:
        for start in range(0, len(queries), 16):
            await asyncio.gather(*(project.aretrieve(query) for query in queries[start : start + 16]))

    started = time.perf_counter()
    asyncio.run(gathered())
    found["gather16"] = len(queries) / (time.perf_counter() - started)
    started = time.perf_counter()
    project.retrieve_many(queries)
    found["many"] = len(queries) / (time.perf_counter() - started)
    return found


PHASES: dict[str, Callable[[Path, Path, float], Figures]] = {
    function.__name__: function for function in (build, first, warm, concurrent)
}

if __name__ == "__main__":
    main()
