"""Readers that turn files into Documents and record the positions of pages, headings and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index_contextual.readers.files import FileRef, FileWarning, ReadLimits, SkippedFile, content_hash, discover

if TYPE_CHECKING:
    from llama_index_contextual.readers.documents import DocumentReader, ReadResult, read_documents

__all__ = [
    "DocumentReader",
    "FileRef",
    "FileWarning",
    "ReadLimits",
    "ReadResult",
    "SkippedFile",
    "content_hash",
    "discover",
    "read_documents",
]


def __getattr__(name: str) -> Any:
    """Import the names that require LlamaIndex lazily, so that child processes that parse files need not load it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from llama_index_contextual.readers import documents

    return getattr(documents, name)


def __dir__() -> list[str]:
    return __all__
