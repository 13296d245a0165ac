"""A few passages, the indexes over them, and retrievers with fixed results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import (
    BaseNode,
    Document,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers import LexicalRetriever, SemanticRetriever
from llama_index_contextual.stores.docstore import SQLiteDocumentStore
from llama_index_contextual.stores.faiss import UnitFaissVectorStore
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


class CountingStore(SQLiteDocumentStore):
    """A document store that counts how often nodes are fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches: list[list[str]] = []
        read = self.nodes.get_nodes

        def get_nodes(node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
            self.fetches.append(list(node_ids))
            return read(node_ids, raise_error)

        self.nodes.get_nodes = get_nodes  # type: ignore[method-assign]


def vector_index(
    nodes: Sequence[TextNode], embed_model: BaseEmbedding, docstore: SQLiteDocumentStore
) -> VectorStoreIndex:
    """Return an index over a `UnitFaissVectorStore` that shares its nodes with `docstore`."""
    store = UnitFaissVectorStore(docstore=docstore)
    embedded = [node.model_copy(update={"embedding": embed_model.get_text_embedding(node.text)}) for node in nodes]
    store.add(embedded)
    context = StorageContext.from_defaults(vector_store=store, docstore=docstore)
    return VectorStoreIndex(nodes=[], storage_context=context, embed_model=embed_model)


def both_legs(
    embed_model: BaseEmbedding | None = None, docstore: SQLiteDocumentStore | None = None
) -> tuple[SemanticRetriever, LexicalRetriever]:
    """Return a semantic and a lexical retriever over the passages, with one document store."""
    store = docstore if docstore is not None else SQLiteDocumentStore()
    index = vector_index(passages(), embed_model or CountingEmbedding(), store)
    return SemanticRetriever(index), LexicalRetriever.from_defaults(docstore=store)


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
