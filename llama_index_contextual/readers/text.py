"""Reads plain text."""

from __future__ import annotations

from pathlib import Path

from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers.base import ParsedFile, ReadLimits
from llama_index_contextual.readers.decoding import decode_file
from llama_index_contextual.readers.headings import plain_outline


def read_text(path: Path, *, limits: ReadLimits = ReadLimits()) -> ParsedFile:  # noqa: B008
    """Read a plain text file, with the headings that its numbering, keywords and capitals show.

    The text is that of the file to the character: newlines are not changed, a byte order mark is dropped.

    Raises:
        ReadError: The file is empty, binary, too large or cannot be opened.
    """
    decoded = decode_file(path, limits=limits)
    outline = plain_outline(decoded.text)
    return ParsedFile(
        text=decoded.text,
        map=DocumentMap(headings=outline.headings),
        title=outline.title,
        warnings=(*decoded.warnings, *outline.warnings),
        digest=decoded.digest,
    )
