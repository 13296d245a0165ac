"""Tools with which agents explore the documents of a project: `search`, `grep`, `outline` and `read`."""

from llama_index_contextual.tools.document_tools import INSTRUCTIONS, DocumentTools, function_tools
from llama_index_contextual.tools.filters import Filters, to_filters
from llama_index_contextual.tools.models import doubts
from llama_index_contextual.tools.texts import describe_documents, passages, place, search_tool, tool_name

__all__ = [
    "INSTRUCTIONS",
    "DocumentTools",
    "Filters",
    "describe_documents",
    "doubts",
    "function_tools",
    "passages",
    "place",
    "search_tool",
    "to_filters",
    "tool_name",
]
