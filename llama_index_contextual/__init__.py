"""Contextual Retrieval for LlamaIndex: every chunk is situated in its document before it is embedded and indexed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from llama_index_contextual._version import __version__

if TYPE_CHECKING:
    from llama_index_contextual.answering.batch import QA, aanswer_many, answer_many
    from llama_index_contextual.answering.cache import AnswerCache
    from llama_index_contextual.answering.chat_engine import GroundedChatEngine
    from llama_index_contextual.answering.citations import Passage, check_citations
    from llama_index_contextual.answering.guards import Guards
    from llama_index_contextual.answering.intent import SearchPlan
    from llama_index_contextual.answering.judge import Judge
    from llama_index_contextual.answering.query_engine import GroundedQueryEngine
    from llama_index_contextual.answering.streaming import Timeouts
    from llama_index_contextual.config import ProjectConfig, TokenPrice
    from llama_index_contextual.contextualizer import Contextualizer, LLMContextualizer, StructuralContextualizer
    from llama_index_contextual.embeddings.contextual import ContextualEmbedding
    from llama_index_contextual.embeddings.voyage import VoyageContextualEmbedding
    from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
    from llama_index_contextual.errors import ContextualError
    from llama_index_contextual.evaluation.compare import Comparison, compare
    from llama_index_contextual.evaluation.questions import Evidence, Question, load_questions, write_questions
    from llama_index_contextual.evaluation.report import write_report
    from llama_index_contextual.evaluation.run import Evaluation, assert_recall, evaluate
    from llama_index_contextual.index.ledger import Ledger
    from llama_index_contextual.ingestion.report import IngestReport
    from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
    from llama_index_contextual.postprocessor import AdjacentChunkMerger, ContextWindowPacker, RelevancePostprocessor
    from llama_index_contextual.project.manager import ProjectManager
    from llama_index_contextual.project.project import Project
    from llama_index_contextual.readers import ReadLimits, read_documents
    from llama_index_contextual.retrievers import (
        ConversationalRetriever,
        ConversationQuery,
        HybridRetriever,
        LexicalRetriever,
        SemanticRetriever,
    )
    from llama_index_contextual.retrievers.conversational import BlendWeights
    from llama_index_contextual.search.response import RetrievalResponse, RetrievedChunk, Source
    from llama_index_contextual.stores.docstore import SQLiteDocumentStore
    from llama_index_contextual.stores.faiss import UnitFaissVectorStore
    from llama_index_contextual.stores.storage_context import open_storage_context
    from llama_index_contextual.tools.document_tools import DocumentTools

__all__ = [
    "QA",
    "AdjacentChunkMerger",
    "AnswerCache",
    "BlendWeights",
    "ChunkNodeParser",
    "Comparison",
    "ContextWindowPacker",
    "ContextualEmbedding",
    "ContextualError",
    "Contextualizer",
    "ConversationQuery",
    "ConversationalRetriever",
    "DocumentTools",
    "Evaluation",
    "Evidence",
    "GroundedChatEngine",
    "GroundedQueryEngine",
    "Guards",
    "HybridRetriever",
    "IngestReport",
    "Judge",
    "LLMContextualizer",
    "Ledger",
    "LexicalRetriever",
    "Passage",
    "Project",
    "ProjectConfig",
    "ProjectManager",
    "Question",
    "ReadLimits",
    "RelevancePostprocessor",
    "RetrievalResponse",
    "RetrievedChunk",
    "SQLiteDocumentStore",
    "SearchPlan",
    "SegmentNodeParser",
    "SemanticRetriever",
    "Source",
    "StructuralContextualizer",
    "Timeouts",
    "TokenPrice",
    "UnitFaissVectorStore",
    "VoyageContextualEmbedding",
    "WordLlamaEmbedding",
    "__version__",
    "aanswer_many",
    "answer_many",
    "assert_recall",
    "check_citations",
    "compare",
    "evaluate",
    "load_questions",
    "open_storage_context",
    "read_documents",
    "write_questions",
    "write_report",
]

_MODULES = {
    "AdjacentChunkMerger": "postprocessor",
    "AnswerCache": "answering.cache",
    "BlendWeights": "retrievers.conversational",
    "ChunkNodeParser": "node_parser",
    "Comparison": "evaluation.compare",
    "ContextWindowPacker": "postprocessor",
    "ContextualEmbedding": "embeddings.contextual",
    "ContextualError": "errors",
    "Contextualizer": "contextualizer",
    "ConversationQuery": "retrievers",
    "ConversationalRetriever": "retrievers",
    "DocumentTools": "tools.document_tools",
    "Evaluation": "evaluation.run",
    "Evidence": "evaluation.questions",
    "GroundedChatEngine": "answering.chat_engine",
    "GroundedQueryEngine": "answering.query_engine",
    "Guards": "answering.guards",
    "HybridRetriever": "retrievers",
    "IngestReport": "ingestion.report",
    "Judge": "answering.judge",
    "LLMContextualizer": "contextualizer",
    "Ledger": "index.ledger",
    "LexicalRetriever": "retrievers",
    "Passage": "answering.citations",
    "Project": "project.project",
    "ProjectConfig": "config",
    "ProjectManager": "project.manager",
    "QA": "answering.batch",
    "Question": "evaluation.questions",
    "ReadLimits": "readers",
    "RelevancePostprocessor": "postprocessor",
    "RetrievalResponse": "search.response",
    "RetrievedChunk": "search.response",
    "SQLiteDocumentStore": "stores.docstore",
    "SearchPlan": "answering.intent",
    "SegmentNodeParser": "node_parser",
    "SemanticRetriever": "retrievers",
    "Source": "search.response",
    "StructuralContextualizer": "contextualizer",
    "Timeouts": "answering.streaming",
    "TokenPrice": "config",
    "UnitFaissVectorStore": "stores.faiss",
    "VoyageContextualEmbedding": "embeddings.voyage",
    "WordLlamaEmbedding": "embeddings.wordllama",
    "aanswer_many": "answering.batch",
    "answer_many": "answering.batch",
    "assert_recall": "evaluation.run",
    "check_citations": "answering.citations",
    "compare": "evaluation.compare",
    "evaluate": "evaluation.run",
    "load_questions": "evaluation.questions",
    "open_storage_context": "stores.storage_context",
    "read_documents": "readers",
    "write_questions": "evaluation.questions",
    "write_report": "evaluation.report",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the bare import stays light."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
