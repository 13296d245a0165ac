"""Contextualizers, which write the text that situates a chunk in its document."""

from llama_index_contextual.contextualizer.base import (
    ChunkFailure,
    Contextualized,
    Contextualizer,
    Segment,
    StructuralContextualizer,
)
from llama_index_contextual.contextualizer.llm import LLMContextualizer

__all__ = [
    "ChunkFailure",
    "Contextualized",
    "Contextualizer",
    "LLMContextualizer",
    "Segment",
    "StructuralContextualizer",
]
