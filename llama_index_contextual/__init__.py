"""Contextual Retrieval for LlamaIndex: every chunk is situated in its document before it is embedded and indexed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from llama_index_contextual._version import __version__

if TYPE_CHECKING:
    from llama_index_contextual.answering.chat_engine import GroundedChatEngine
    from llama_index_contextual.answering.query_engine import GroundedQueryEngine
    from llama_index_contextual.config import ProjectConfig
    from llama_index_contextual.contextualizer import Contextualizer, LLMContextualizer, StructuralContextualizer
    from llama_index_contextual.embeddings.contextual import ContextualEmbedding
    from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
    from llama_index_contextual.errors import ContextualError
    from llama_index_contextual.figures import Figure
    from llama_index_contextual.ingestion.report import IngestReport
    from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
    from llama_index_contextual.postprocessor import AdjacentChunkMerger, ContextWindowPacker, RelevancePostprocessor
    from llama_index_contextual.project.manager import ProjectManager
    from llama_index_contextual.project.project import Project
    from llama_index_contextual.readers import read_documents
    from llama_index_contextual.retrievers import (
        ConversationalRetriever,
        HybridRetriever,
        LexicalRetriever,
        SemanticRetriever,
    )
    from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk
    from llama_index_contextual.stores import open_storage_context

__all__ = [
    "AdjacentChunkMerger",
    "ChunkNodeParser",
    "ContextWindowPacker",
    "ContextualEmbedding",
    "ContextualError",
    "Contextualizer",
    "ConversationalRetriever",
    "Figure",
    "GroundedChatEngine",
    "GroundedQueryEngine",
    "HybridRetriever",
    "IngestReport",
    "LLMContextualizer",
    "LexicalRetriever",
    "Project",
    "ProjectConfig",
    "ProjectManager",
    "RelevancePostprocessor",
    "RetrievalResponse",
    "RetrievedChunk",
    "SegmentNodeParser",
    "SemanticRetriever",
    "StructuralContextualizer",
    "WordLlamaEmbedding",
    "__version__",
    "open_storage_context",
    "read_documents",
]

_EXPORTS = {
    "answering.chat_engine": ("GroundedChatEngine",),
    "answering.query_engine": ("GroundedQueryEngine",),
    "config": ("ProjectConfig",),
    "contextualizer": ("Contextualizer", "LLMContextualizer", "StructuralContextualizer"),
    "embeddings.contextual": ("ContextualEmbedding",),
    "embeddings.wordllama": ("WordLlamaEmbedding",),
    "errors": ("ContextualError",),
    "figures": ("Figure",),
    "ingestion.report": ("IngestReport",),
    "node_parser": ("ChunkNodeParser", "SegmentNodeParser"),
    "postprocessor": ("AdjacentChunkMerger", "ContextWindowPacker", "RelevancePostprocessor"),
    "project.manager": ("ProjectManager",),
    "project.project": ("Project",),
    "readers": ("read_documents",),
    "retrievers": ("ConversationalRetriever", "HybridRetriever", "LexicalRetriever", "SemanticRetriever"),
    "search.results": ("RetrievalResponse", "RetrievedChunk"),
    "stores": ("open_storage_context",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package stays fast."""
    for module, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
