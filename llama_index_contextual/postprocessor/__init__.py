"""Postprocessors for results that an LLM reads: merge adjacent chunks into passages, fit passages into a budget."""

from llama_index_contextual.postprocessor.adjacent import AdjacentChunkMerger, MergedChunk
from llama_index_contextual.postprocessor.packing import ContextWindowPacker

__all__ = ["AdjacentChunkMerger", "ContextWindowPacker", "MergedChunk"]
