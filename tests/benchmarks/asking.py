"""Questions to a project with some of its documents left out, and what relevance and confidence are judged by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle
from numpy.typing import NDArray

from llama_index_contextual.config import Mode
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.bm25 import LexicalIndex, Postings
from llama_index_contextual.retrievers.confidence import JUDGED, hit_features, query_features
from llama_index_contextual.retrievers.response import RetrievalResponse, RetrievedChunk
from tests.benchmarks.calibration import Array

Evidence = list[dict[str, Any]]


class Asking(BaseRetriever):
    """Asks a project, with some of its documents left out.

    Args:
        project: The project.
        mode: Indexes that are searched.
    """

    def __init__(self, project: Project, mode: Mode = "hybrid") -> None:
        super().__init__()
        current = project._live.current()
        self.retriever = current.retriever(mode, project.config)
        self.document_leg = current.documents
        self.lexical_index = current.lexical.lexical_index
        store = self.retriever.docstore
        of_node = {node.node_id: node.ref_doc_id or "" for node in store.iterate()}
        self.documents = np.array([of_node[node_id] for node_id in store.ids])
        self.names = np.array([name.rpartition("/")[2] for name in self.documents])
        self.rows = {node_id: row for row, node_id in enumerate(store.ids)}
        self.allowed: NDArray[np.bool_] | None = None
        self.searched = QueryBundle("")
        store.mask = lambda filters: self.allowed  # type: ignore[method-assign]
        _leave_out(self.lexical_index, lambda: self.allowed)
        if (documents := current.documents) is not None:
            index = documents._index
            _leave_out(index.lexical_index, lambda: _documents_of(self.allowed, index.rows))

    def ask(self, bundle: QueryBundle) -> tuple[list[RetrievedChunk], dict[str, Array], dict[str, float]]:
        """Return the first 20 hits, their features but for the confidence, and those of the answer."""
        self.lexical_index._respelled.clear()  # what a misspelt word may have been meant to be, among what is left
        ranking = self.retriever.rank(bundle, JUDGED)
        evidence = ranking.evidence(JUDGED)
        hits = self.retriever.fetch(ranking, JUDGED, evidence)
        features = hit_features(ranking, evidence, 0.5) if evidence else {}
        return hits, features, query_features(ranking, evidence, self.document_leg)

    def leave_out(self, evidence: Evidence) -> None:
        """Leave out the documents that answer a question."""
        if "id" in evidence[0]:
            gold = [self.documents[self.rows[item["id"]]] for item in evidence]
            self.allowed = ~np.isin(self.documents, gold)
        else:
            self.allowed = ~np.isin(self.names, [item["file"] for item in evidence])

    def respond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Keep what a conversational retriever asks."""
        self.searched = bundle
        return RetrievalResponse.of_nodes(bundle.query_str, [])

    async def arespond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Do as `respond` does."""
        return self.respond(bundle)

    def specificity(self, text: str) -> float | None:
        """Return how specific a text is among the chunks."""
        return self.lexical_index.specificity(text)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return []


def _leave_out(index: LexicalIndex, allowed: Callable[[], NDArray[np.bool_] | None]) -> None:
    """Let an index hold only the rows that are allowed."""
    everything = index.postings

    def postings(term: str) -> Postings | None:
        result, mask = everything(term), allowed()
        if result is None or mask is None:
            return result
        kept = mask[result[0]]
        return (result[0][kept], result[1][kept]) if kept.any() else None

    index.postings = postings  # type: ignore[method-assign]


def _documents_of(chunks: NDArray[np.bool_] | None, rows: NDArray[np.int32]) -> NDArray[np.bool_] | None:
    if chunks is None:
        return None
    result = np.zeros(int(rows.max()) + 1, dtype=np.bool_)
    result[rows[chunks]] = True
    return result
