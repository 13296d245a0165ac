"""What happens to results before an LLM reads them: adjacent chunks become one passage, passages fit a budget."""

from llama_index_contextual.postprocessor.adjacent import AdjacentChunkMerger, MergedChunk
from llama_index_contextual.postprocessor.packing import ContextWindowPacker

__all__ = ["AdjacentChunkMerger", "ContextWindowPacker", "MergedChunk"]
