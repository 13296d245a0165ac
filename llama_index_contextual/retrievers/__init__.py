"""Semantic, lexical, hybrid and conversational retrieval as LlamaIndex retrievers."""

from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
from llama_index_contextual.retrievers.hybrid import HybridRetriever
from llama_index_contextual.retrievers.lexical import LexicalRetriever
from llama_index_contextual.retrievers.semantic import SemanticRetriever

__all__ = [
    "ConversationQuery",
    "ConversationalRetriever",
    "HybridRetriever",
    "LexicalRetriever",
    "SemanticRetriever",
]
