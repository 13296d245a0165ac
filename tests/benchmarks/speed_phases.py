"""One measurement of the speed benchmark, in a process of its own; the last line is one JSON object."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.speed_project import (
    import_what_a_query_needs,
    latency,
    nodes_of,
    open_project,
    peak_memory,
    spans_of_documents,
)

Figures = dict[str, Any]


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
    nodes, vectors = nodes_of(corpus), np.load(corpus / "emb.npy")
    project = open_project(root, index, corpus, create=True)
    started = time.perf_counter()
    builder = VersionBuilder(project.directory, project.config)
    for start, stop in spans_of_documents(nodes):
        part = nodes[start:stop]
        record = DocumentRecord(doc_id=part[0].ref_doc_id or "", content_hash="0", chunks=len(part))
        builder.append(record, part, vectors[start:stop], None)
    manifest = builder.publish(embed_model=model_name(project.embed_model))
    parts = project.directory / "parts"
    sizes = {path.relative_to(parts).as_posix(): path.stat().st_size / 1e6 for path in sorted(parts.rglob("*.*"))}
    return {"seconds": time.perf_counter() - started, "MB": manifest.size / 1e6,
            "files_MB": sizes,
            "peak_MB": peak_memory()}  # fmt: skip


def limit(corpus: Path, root: Path, index: str, spawned: float) -> Figures:
    """Build the same straight into faiss, bm25s and a file of texts, with the tokeniser of this package."""
    import bm25s
    import faiss
    from llama_index.core.schema import MetadataMode

    from llama_index_contextual.retrievers.analysis import Analyzer

    nodes, vectors = nodes_of(corpus), np.load(corpus / "emb.npy")
    texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        flat = faiss.IndexFlatIP(vectors.shape[1])
        flat.add(vectors)
        analyzer = Analyzer("english")
        tokens = [analyzer.terms(text) for text in texts]
        tokenised = time.perf_counter()
        bm25 = bm25s.BM25()
        bm25.index(tokens, show_progress=False)
        faiss.write_index(flat, f"{directory}/vectors.faiss")
        bm25.save(f"{directory}/bm25", show_progress=False)
        (Path(directory) / "texts.bin").write_bytes(b"".join(text.encode() for text in texts))
        rows = [json.dumps([node.node_id, node.ref_doc_id, node.metadata["file_name"]]) for node in nodes]
        (Path(directory) / "meta.bin").write_text("\n".join(rows), encoding="utf-8")
        written = [path for path in Path(directory).rglob("*") if path.is_file()]
        return {"seconds": time.perf_counter() - started, "add_and_tokenise_s": tokenised - started,
                "MB": sum(path.stat().st_size for path in written) / 1e6}  # fmt: skip


def first(corpus: Path, root: Path, index: str, spawned: float) -> Figures:
    """Open in a new process and answer once; imports are not counted."""
    query = json.loads((corpus / "queries.json").read_text())[0]
    project = open_project(root, index, corpus)
    import_what_a_query_needs()
    started = time.perf_counter()
    found = project.retrieve(query)
    seconds = time.perf_counter() - started
    if len(found) != 20:
        raise SystemExit(f"{len(found)} results instead of 20")
    return {"seconds": seconds, "peak_MB": peak_memory(),
            "with_imports": time.clock_gettime(time.CLOCK_MONOTONIC) - spawned}  # fmt: skip


def warm(corpus: Path, root: Path, index: str, spawned: float) -> Figures:
    """Answer the same questions warm, in each mode, and compare with the exact order of the vectors."""
    queries = json.loads((corpus / "queries.json").read_text())
    project = open_project(root, index, corpus)
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


def concurrent(corpus: Path, root: Path, index: str, spawned: float) -> Figures:
    """Answer 16 callers at once, as threads and awaited, and all questions in one call."""
    queries = json.loads((corpus / "queries.json").read_text())
    project = open_project(root, index, corpus)
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

    nodes, vectors = nodes_of(corpus)[:8_000], np.load(corpus / "emb.npy")[:8_000]
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


def real(corpus: Path, files: Path, index: str, spawned: float) -> Figures:
    """Return recall@20 of the compact index on real vectors of real sentences, and whether its probe would take it."""
    import faiss

    from llama_index_contextual.embeddings.batching import unit_vectors
    from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
    from llama_index_contextual.storage import compact
    from llama_index_contextual.storage.scan import inner_products, top

    with open(corpus / "chunks.jsonl", encoding="utf-8") as rows:
        found = (sentence for row in rows for sentence in re.split(r"(?<=[.!?])\s+", json.loads(row)["text"]))
        sentences = dict.fromkeys(sentence for sentence in found if len(sentence) > 40)
    vectors = unit_vectors(np.asarray(WordLlamaEmbedding().get_text_embedding_batch(list(sentences)), dtype=np.float32))
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    index_of = compact.compress(flat, "rabitq")
    questions = json.loads((corpus / "queries.json").read_text())
    asked = unit_vectors(np.asarray([WordLlamaEmbedding().get_query_embedding(q) for q in questions], dtype=np.float32))
    shares = [
        len(set(top(scores, 20)[1]) & set(compact.search(index_of, query[None], 20, None)[1])) / 20
        for query, scores in zip(asked, inner_products(flat.get_xb(), vectors.shape, asked), strict=True)
    ]
    return {"vectors": len(vectors), "dimensions": vectors.shape[1], "recall20": statistics.fmean(shares),
            "probe": compact.probed_recall(vectors, index_of, list(sentences))}  # fmt: skip


PHASES: dict[str, Callable[[Path, Path, str, float], Figures]] = {
    function.__name__: function for function in (build, limit, first, warm, concurrent, long, real)
}

if __name__ == "__main__":
    main()
