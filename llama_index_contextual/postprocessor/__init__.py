"""Postprocessors for results: merge adjacent chunks, fit passages into a budget, cut off by relevance."""

from llama_index_contextual.postprocessor.adjacent import AdjacentChunkMerger, MergedChunk
from llama_index_contextual.postprocessor.packing import ContextWindowPacker
from llama_index_contextual.postprocessor.relevance import RelevancePostprocessor

__all__ = ["AdjacentChunkMerger", "ContextWindowPacker", "MergedChunk", "RelevancePostprocessor"]
