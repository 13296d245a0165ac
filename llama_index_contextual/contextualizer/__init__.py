"""Who writes the context of a chunk, and how."""

from llama_index_contextual.contextualizer.base import ChunkFailure, Contextualized, Contextualizer
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.segments import Segment
from llama_index_contextual.contextualizer.structural import StructuralContextualizer

__all__ = [
    "ChunkFailure",
    "Contextualized",
    "Contextualizer",
    "LLMContextualizer",
    "Segment",
    "StructuralContextualizer",
]
