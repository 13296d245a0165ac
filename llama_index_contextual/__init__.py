"""Contextual Retrieval for LlamaIndex: every chunk is situated in its document before it is embedded and indexed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from llama_index_contextual._version import __version__

if TYPE_CHECKING:
    from llama_index_contextual.config import ProjectConfig
    from llama_index_contextual.contextualizer import Contextualizer, LLMContextualizer, StructuralContextualizer
    from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
    from llama_index_contextual.errors import ContextualError
    from llama_index_contextual.ingestion.report import IngestReport
    from llama_index_contextual.manager import ProjectManager
    from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
    from llama_index_contextual.project import Project
    from llama_index_contextual.readers import ReadLimits, read_documents
    from llama_index_contextual.results import RetrievalResponse, RetrievedChunk, Source
    from llama_index_contextual.retrievers import (
        ConversationalRetriever,
        ConversationQuery,
        HybridRetriever,
        LexicalRetriever,
        SemanticRetriever,
    )
    from llama_index_contextual.storage.docstore import SQLiteDocumentStore
    from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore
    from llama_index_contextual.storage.version import open_storage_context

__all__ = [
    "ChunkNodeParser",
    "ContextualError",
    "Contextualizer",
    "ConversationQuery",
    "ConversationalRetriever",
    "HybridRetriever",
    "IngestReport",
    "LLMContextualizer",
    "LexicalRetriever",
    "Project",
    "ProjectConfig",
    "ProjectManager",
    "ReadLimits",
    "RetrievalResponse",
    "RetrievedChunk",
    "SQLiteDocumentStore",
    "SegmentNodeParser",
    "SemanticRetriever",
    "Source",
    "StructuralContextualizer",
    "UnitFaissVectorStore",
    "WordLlamaEmbedding",
    "__version__",
    "open_storage_context",
    "read_documents",
]

_MODULES = {
    "ChunkNodeParser": "node_parser",
    "ContextualError": "errors",
    "Contextualizer": "contextualizer",
    "ConversationQuery": "retrievers",
    "ConversationalRetriever": "retrievers",
    "HybridRetriever": "retrievers",
    "IngestReport": "ingestion.report",
    "LLMContextualizer": "contextualizer",
    "LexicalRetriever": "retrievers",
    "Project": "project",
    "ProjectConfig": "config",
    "ProjectManager": "manager",
    "ReadLimits": "readers",
    "RetrievalResponse": "results",
    "RetrievedChunk": "results",
    "SQLiteDocumentStore": "storage.docstore",
    "SegmentNodeParser": "node_parser",
    "SemanticRetriever": "retrievers",
    "Source": "results",
    "StructuralContextualizer": "contextualizer",
    "UnitFaissVectorStore": "storage.faiss_store",
    "WordLlamaEmbedding": "embeddings.wordllama",
    "open_storage_context": "storage.version",
    "read_documents": "readers",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the bare import stays light."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
