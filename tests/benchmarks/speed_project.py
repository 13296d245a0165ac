"""What the phases of the speed benchmark share: nodes of a corpus, a project over it, clocks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NAME = "speed"


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


def spans_of_documents(nodes: Sequence[Any]) -> list[tuple[int, int]]:
    """Return (start, stop) of the nodes of each document."""
    starts = [at for at, node in enumerate(nodes) if at == 0 or node.ref_doc_id != nodes[at - 1].ref_doc_id]
    return list(zip(starts, [*starts[1:], len(nodes)], strict=True))


def open_project(root: Path, index: str, corpus: Path, *, create: bool = False) -> Any:
    """Open or create the project of a corpus, with an embedding model that knows the vectors of the questions."""
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
    return manager.create(NAME, ProjectConfig.local(context="none", faiss_index=index), embed_model=model)


def import_what_a_query_needs() -> None:
    """Import what opening and asking would import."""
    import bm25s  # noqa: F401
    import faiss  # noqa: F401
    import Stemmer  # noqa: F401
    from bm25s import stopwords  # noqa: F401

    import llama_index_contextual.storage.faiss_store  # noqa: F401


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


def peak_memory() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
