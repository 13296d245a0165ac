"""The systems of `field` that run in this environment: `python -m tests.benchmarks.field_systems SYSTEM TASK FOLDER`.

Prints the figures as JSON in the last line.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import Stemmer
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual import ProjectConfig, ProjectManager
from tests.benchmarks.memory import peak_memory
from tests.benchmarks.sets import QuestionSet
from tests.benchmarks.stock import fused, vector_index

TOP_K = 20
LANGUAGES: dict[str, dict[str, Any]] = {
    "en": {},
    "de": {"stemmer": Stemmer.Stemmer("german"), "language": "german"},
    "es": {"stemmer": Stemmer.Stemmer("spanish"), "language": "spanish"},
    "ar": {"stemmer": Stemmer.Stemmer("arabic"), "language": []},
}
"""Options of `BM25Retriever` for each language; bm25s has no Arabic stop words."""

Search = Callable[[str], list[str]]


def contextual(context: str, task: dict[str, Any], model: BaseEmbedding, folder: Path) -> Search:
    """Ingest into a project, and return its search."""
    settings = ProjectConfig.local().changed(context=context)
    project = ProjectManager(folder).create("field", settings, embed_model=model)
    report = project.ingest(QuestionSet("field", None, task["chunks"], []).nodes(context=False))
    if report.failures or report.skipped:
        raise RuntimeError(f"{len(report.failures)} chunks failed, {len(report.skipped)} were skipped")
    return lambda question: [hit.node_id for hit in project.retrieve(question, top_k=TOP_K)]


def llama_index(task: dict[str, Any], model: BaseEmbedding | None, folder: Path) -> Search:
    """Build and persist the stock components, and return their search: fused, or without a model that of BM25 alone."""
    nodes: list[BaseNode] = [TextNode(id_=chunk["chunk_id"], text=chunk["text"]) for chunk in task["chunks"]]
    retriever: BaseRetriever
    retriever = lexical = BM25Retriever.from_defaults(
        nodes=nodes, similarity_top_k=TOP_K, **LANGUAGES[task["language"]]
    )
    lexical.persist(str(folder / "bm25"))
    if model is not None:
        index = vector_index(nodes, model)
        index.storage_context.persist(str(folder))
        retriever = fused(index.as_retriever(similarity_top_k=TOP_K), lexical)
    return lambda question: [hit.node.node_id for hit in retriever.retrieve(question)]


def timed(search: Search, questions: Sequence[str]) -> dict[str, Any]:
    """Return the ids that a search finds for each question, and the milliseconds of each."""
    hits, spent = [], []
    for question in questions:
        started = time.perf_counter()
        hits.append(search(question))
        spent.append(1000 * (time.perf_counter() - started))
    return {"hits": hits, "query_ms": spent}


def main(system: str, task_file: str, folder: str) -> None:
    """Measure one system."""
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    model = OpenAILikeEmbedding(model_name="served", api_base=task["url"], api_key="none", embed_batch_size=32)
    started = time.perf_counter()
    if system == "bm25":
        search, package = llama_index(task, None, Path(folder)), "llama-index-retrievers-bm25"
    elif system == "llama-index":
        search, package = llama_index(task, model, Path(folder)), "llama-index-core"
    else:
        search, package = contextual(system, task, model, Path(folder)), "llama-index-contextual"
    figures = {"ingest_s": time.perf_counter() - started, **timed(search, task["questions"])}
    figures["peak_mb"] = peak_memory()
    print(json.dumps(figures | {"version": f"{package} {importlib.metadata.version(package)}"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
