"""Files to Documents: PDF, TXT and Markdown, with their pages and headings."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_index_contextual.readers.base import FileWarning, ParsedFile, ReadLimits, SkippedFile
    from llama_index_contextual.readers.documents import DocumentReader, ReadResult, read_documents
    from llama_index_contextual.readers.inputs import Discovery, FileRef, content_hash, discover

__all__ = [
    "Discovery",
    "DocumentReader",
    "FileRef",
    "FileWarning",
    "ParsedFile",
    "ReadLimits",
    "ReadResult",
    "SkippedFile",
    "content_hash",
    "discover",
    "read_documents",
]

_MODULES = {
    "Discovery": "inputs",
    "DocumentReader": "documents",
    "FileRef": "inputs",
    "FileWarning": "base",
    "ParsedFile": "base",
    "ReadLimits": "base",
    "ReadResult": "documents",
    "SkippedFile": "base",
    "content_hash": "inputs",
    "discover": "inputs",
    "read_documents": "documents",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the process that parses PDFs does without LlamaIndex."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
