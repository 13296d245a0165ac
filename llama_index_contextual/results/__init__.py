"""What a search answers: the passages, where they stand, and why they were found."""

from llama_index_contextual.results.chunks import LegScore, RetrievedChunk, ScoredChunk, Source
from llama_index_contextual.results.response import ConfidenceLevel, Explanation, QueryBlend, RetrievalResponse

__all__ = [
    "ConfidenceLevel",
    "Explanation",
    "LegScore",
    "QueryBlend",
    "RetrievalResponse",
    "RetrievedChunk",
    "ScoredChunk",
    "Source",
]
