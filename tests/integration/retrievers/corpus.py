"""A few passages, the indexes over them, and retrievers with fixed results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import (
    Document,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    QueryType,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.hits import Hits, Scale, top
from llama_index_contextual.index.units import Units
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers import LexicalRetriever, SemanticRetriever
from llama_index_contextual.retrievers.lexical import NodeIndex
from llama_index_contextual.stores import IndexVectorStore
from tests.support.models import CountingEmbedding

PASSAGES = {
    "dry": "Error code TS-999 means that the pump runs dry.",
    "sensor": "Error code TS-104 means that the sensor is not calibrated.",
    "valve": "Close the valve before the pump is switched off.",
    "revenue": "Revenue grew in the second quarter.",
    "tariff": "Imports of cast iron cost duty.",
}


def passages(texts: dict[str, str] | None = None) -> list[TextNode]:
    """Return one node per passage; its id is the key, its document `doc-<key>`."""
    return [
        TextNode(
            id_=key,
            text=text,
            metadata={"kind": "manual" if "pump" in text or "sensor" in text else "report"},
            excluded_embed_metadata_keys=["kind"],
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc-{key}")},
        )
        for key, text in (PASSAGES if texts is None else texts).items()
    ]


class PassageIndex(NodeIndex):
    """Nodes with their vectors in an array; it records which rows are fetched."""

    def __init__(self, nodes: Sequence[TextNode], embed_model: BaseEmbedding | None = None) -> None:
        super().__init__(nodes)
        self.fetches: list[list[str]] = []
        model = embed_model or CountingEmbedding()
        rows = [model.get_text_embedding(node.text) for node in nodes]
        self.matrix = unit_vectors(np.asarray(rows, dtype=np.float32))
        self.dimensions = self.matrix.shape[1]
        self.stored_units = super().units(np.arange(len(nodes)))
        self.fetches.clear()

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Rank by cosine similarity."""
        similarities, mask = self.matrix @ vector, self.docstore.mask(filters)
        scores, rows = top(similarities if mask is None else np.where(mask, similarities, -np.inf), k)
        return Hits(rows, scores.astype(np.float64)), Scale(float(similarities.mean()), float(similarities.std()))

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks."""
        self.fetches.append([self.ids[row] for row in rows])
        return super().fetch(rows)

    def units(self, rows: NDArray[np.int64]) -> Units:
        """Return the units, which are stored as those of a version."""
        return self.stored_units.take(rows)


def by_meaning(index: PassageIndex, embed_model: BaseEmbedding | None = None, **options: Any) -> SemanticRetriever:
    """Return a semantic retriever over an index."""
    store = IndexVectorStore(index, version_directory="")  # type: ignore[arg-type]
    model = embed_model or CountingEmbedding()
    return SemanticRetriever(VectorStoreIndex.from_vector_store(store, embed_model=model), **options)


def both_legs(
    embed_model: BaseEmbedding | None = None, index: PassageIndex | None = None
) -> tuple[SemanticRetriever, LexicalRetriever]:
    """Return a semantic and a lexical retriever over the passages."""
    passage_index = index or PassageIndex(passages(), embed_model)
    return by_meaning(passage_index, embed_model), LexicalRetriever(passage_index)


def ranking(
    retriever: Any, query: QueryType, k: int, filters: MetadataFilters | None = None
) -> list[tuple[str, float]]:
    """Return the ids and scores of the k best nodes, in the order of the ranking: without the spotlight."""
    plain = copy(retriever)
    plain.similarity_top_k, plain.spotlight, plain._filters = k, False, filters or retriever._filters
    return [(hit.node_id, hit.score or 0.0) for hit in plain.retrieve(query)]


class FixedRetriever(BaseRetriever):
    """A foreign retriever that returns the same nodes for every query and records the queries."""

    def __init__(self, hits: Sequence[NodeWithScore]) -> None:
        super().__init__()
        self.hits = list(hits)
        self.queries: list[QueryBundle] = []

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.queries.append(query_bundle)
        return list(self.hits)


def project_of(root: Path, texts: Mapping[str, str], *, llm: LLM | None = None, **settings: Any) -> Project:
    """Return a project over texts, each a document without context, that needs neither key nor network."""
    config = ProjectConfig.local(**{"context": "none", **settings})
    made = ProjectManager(root).create("p", config, embed_model=CountingEmbedding(), llm=llm)
    unread = {"excluded_embed_metadata_keys": ["kind"], "excluded_llm_metadata_keys": ["kind"]}
    made.ingest([Document(id_=name, text=text, metadata={"kind": name[:1]}, **unread) for name, text in texts.items()])
    return made


def hits(**scores: float) -> list[NodeWithScore]:
    """Return nodes whose ids and texts are the names."""
    return [NodeWithScore(node=TextNode(id_=name, text=name), score=score) for name, score in scores.items()]
