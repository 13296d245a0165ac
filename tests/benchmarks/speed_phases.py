"""One measurement of the speed benchmark, in a process of its own; the last line is one JSON object."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Figures = dict[str, Any]
NAME = "speed"


def main() -> None:
    """Run the phase that the command line names."""
    phase, corpus, root, index, spawned = sys.argv[1:]
    print(json.dumps(PHASES[phase](Path(corpus), Path(root), index, float(spawned))))


def build(corpus: Path, root: Path, index: str, spawned: float) -> Figures:
    """Build one version from nodes and vectors that are there, the ledger aside."""
    import shutil

    from llama_index_contextual.ingestion.builder import VersionBuilder
    from llama_index_contextual.models import model_name
    from llama_index_contextual.storage.manifest import DocumentRecord

    shutil.rmtree(root, ignore_errors=True)
    nodes, vectors = _nodes(corpus), np.load(corpus / "emb.npy")
    project = _project(root, index, corpus, create=True)
    started = time.perf_counter()
    builder = VersionBuilder(project.directory, project.config)
    for start, stop in _documents(nodes):
        part = nodes[start:stop]
        record = DocumentRecord(doc_id=part[0].ref_doc_id or "", content_hash="0", chunks=len(part))
        builder.append(record, part, vectors[start:stop], None)
    manifest = builder.publish(embed_model=model_name(project.embed_model))
    return {"seconds": time.perf_counter() - started, "MB": sum(f["bytes"] for f in manifest.files.values()) / 1e6,
            "files_MB": {name: entry["bytes"] / 1e6 for name, entry in manifest.files.items()},
            "peak_MB": _memory()}  # fmt: skip


def first(corpus: Path, root: Path, index: str, spawned: float) -> Figures:
    """Open in a new process and answer once; imports are not counted."""
    query = json.loads((corpus / "queries.json").read_text())[0]
    project = _project(root, index, corpus)
    _import_what_a_query_needs()
    started = time.perf_counter()
    found = project.retrieve(query)
    seconds = time.perf_counter() - started
    if len(found) != 20:
        raise SystemExit(f"{len(found)} results instead of 20")
    return {"seconds": seconds, "peak_MB": _memory(),
            "with_imports": time.clock_gettime(time.CLOCK_MONOTONIC) - spawned}  # fmt: skip


def warm(corpus: Path, root: Path, index: str, spawned: float) -> Figures:
    """Answer the same questions warm, in each mode, and compare with the exact order of the vectors."""
    queries = json.loads((corpus / "queries.json").read_text())
    project = _project(root, index, corpus)
    times = _latency(project.retrieve, queries)
    figures: Figures = {"p50_ms": 1e3 * statistics.median(times), "p95_ms": 1e3 * sorted(times)[int(0.95 * len(times))]}
    for mode in ("semantic", "lexical"):
        took = _latency(lambda query, mode=mode: project.retrieve(query, mode=mode), queries)
        figures[f"{mode}_ms"] = 1e3 * statistics.median(took)
    vectors, asked = np.load(corpus / "emb.npy", mmap_mode="r"), np.load(corpus / "qemb.npy")
    ids = [f"chunk-{row:08d}" for row in range(len(vectors))]
    shares = []
    for query, vector in list(zip(queries, asked, strict=True))[:50]:
        exact = {ids[row] for row in np.argsort(-(vectors @ vector), kind="stable")[:20]}
        shares.append(len(exact & {hit.node_id for hit in project.retrieve(query, mode="semantic")}) / 20)
    return {**figures, "recall20": statistics.fmean(shares)}


def concurrent(corpus: Path, root: Path, index: str, spawned: float) -> Figures:
    """Answer 16 callers at once, as threads and awaited, and all questions in one call."""
    queries = json.loads((corpus / "queries.json").read_text())
    project = _project(root, index, corpus)
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
    if hasattr(project, "retrieve_many"):
        started = time.perf_counter()
        project.retrieve_many(queries)
        found["many"] = len(queries) / (time.perf_counter() - started)
    return found


def long(corpus: Path, root: Path, index: str, spawned: float) -> Figures:
    """Build one document of 2,000, 4,000 and 8,000 chunks: the time must grow as they do."""
    from llama_index_contextual.config import ProjectConfig
    from llama_index_contextual.ingestion.builder import VersionBuilder
    from llama_index_contextual.storage.manifest import DocumentRecord

    nodes, vectors = _nodes(corpus)[:8_000], np.load(corpus / "emb.npy")[:8_000]
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for count in (2_000, 4_000, 8_000):
            started = time.perf_counter()
            builder = VersionBuilder(Path(directory) / str(count), ProjectConfig.local())
            record = DocumentRecord(doc_id="long", content_hash="0", chunks=count)
            builder.append(record, nodes[:count], vectors[:count], None)
            builder.publish(embed_model="precomputed")
            found[f"{count}_s"] = time.perf_counter() - started
    return found


def folder(corpus: Path, files: Path, index: str, spawned: float) -> Figures:
    """Ingest a folder of files, local embedding and structural context, and ask."""
    from llama_index_contextual import ProjectConfig, ProjectManager

    queries = json.loads((corpus / "queries.json").read_text())
    with tempfile.TemporaryDirectory() as directory:
        project = ProjectManager(directory).create(NAME, ProjectConfig.local())
        started = time.perf_counter()
        project.ingest([files])
        seconds = time.perf_counter() - started
        return {"index_s": seconds, "p50_ms": 1e3 * statistics.median(_latency(project.retrieve, queries))}


def _latency(ask: Callable[[str], object], queries: Sequence[str]) -> list[float]:
    for query in queries[:10]:
        ask(query)
    times = []
    for query in queries:
        started = time.perf_counter()
        ask(query)
        times.append(time.perf_counter() - started)
    return times


def _import_what_a_query_needs() -> None:
    import bm25s  # noqa: F401
    import faiss  # noqa: F401
    import Stemmer  # noqa: F401
    from bm25s import stopwords  # noqa: F401

    import llama_index_contextual.storage.faiss_store  # noqa: F401


def _nodes(corpus: Path) -> list[Any]:
    from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

    from llama_index_contextual import metadata as keys

    with open(corpus / "chunks.jsonl", encoding="utf-8") as rows:
        chunks = [json.loads(row) for row in rows]
    nodes = []
    for row in chunks:
        name = row["file_name"].rpartition("/")[2]
        node = TextNode(
            id_=row["id"],
            text=row["text"],
            start_char_idx=row["position"],
            end_char_idx=row["position"] + len(row["text"]),
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=row["doc_id"])},
            metadata={keys.CONTEXT: row["context"], keys.FILE_NAME: name, "file_path": row["file_name"]},
        )
        nodes.append(keys.shape(node) if hasattr(keys, "shape") else node)
    return nodes


def _documents(nodes: Sequence[Any]) -> list[tuple[int, int]]:
    starts = [at for at, node in enumerate(nodes) if at == 0 or node.ref_doc_id != nodes[at - 1].ref_doc_id]
    return list(zip(starts, [*starts[1:], len(nodes)], strict=True))


def _project(root: Path, index: str, corpus: Path, *, create: bool = False) -> Any:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr

    from llama_index_contextual import ProjectConfig, ProjectManager

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
    model._table = dict(zip(queries, np.load(corpus / "qemb.npy").tolist(), strict=True))
    manager = ProjectManager(root)
    if not create:
        return manager.load(NAME, embed_model=model)
    known = {"faiss_index": index} if "faiss_index" in ProjectConfig.model_fields else {}
    return manager.create(NAME, ProjectConfig.local(context="none", **known), embed_model=model)


def _memory() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


PHASES: dict[str, Callable[[Path, Path, str, float], Figures]] = {
    function.__name__: function for function in (build, first, warm, concurrent, long, folder)
}

if __name__ == "__main__":
    main()
