"""Node parsers that split Documents into segments, and segments into chunks."""

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.node_parser.chunk import ChunkNodeParser
from llama_index_contextual.node_parser.segment import SegmentNodeParser

__all__ = ["ChunkNodeParser", "SegmentNodeParser", "count_tokens"]
