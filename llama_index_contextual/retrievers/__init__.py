"""Semantic, lexical, hybrid and conversational retrieval as LlamaIndex retrievers."""

from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
from llama_index_contextual.retrievers.ranking import HybridRetriever, LexicalRetriever, SemanticRetriever

__all__ = [
    "ConversationQuery",
    "ConversationalRetriever",
    "HybridRetriever",
    "LexicalRetriever",
    "SemanticRetriever",
]
