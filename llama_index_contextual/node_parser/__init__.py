"""Node parsers that split Documents into segments, and segments into chunks."""

from llama_index_contextual.node_parser.chunk import ChunkNodeParser
from llama_index_contextual.node_parser.segment import SegmentNodeParser
from llama_index_contextual.node_parser.tokens import count_tokens

__all__ = ["ChunkNodeParser", "SegmentNodeParser", "count_tokens"]
