"""Files to Documents: PDF, TXT and Markdown, with their pages and headings."""

from __future__ import annotations

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
