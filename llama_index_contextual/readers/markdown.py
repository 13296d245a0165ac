"""Reads Markdown: headings by CommonMark's block structure, front matter as metadata."""

from __future__ import annotations

from pathlib import Path

from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers.base import ParsedFile, ReadLimits
from llama_index_contextual.readers.decoding import decode_file
from llama_index_contextual.readers.front_matter import FrontMatter, read_front_matter
from llama_index_contextual.readers.outline import markdown_headings

TITLE_REACH = 5_000
"""Characters from the beginning within which a heading can be the title of the document."""


def read_markdown(path: Path, *, limits: ReadLimits = ReadLimits()) -> ParsedFile:  # noqa: B008
    """Read a Markdown file. The text is the whole file, front matter and marks included.

    Raises:
        ReadError: The file is empty, binary, too large or cannot be opened.
    """
    decoded = decode_file(path, limits=limits)
    front = read_front_matter(decoded.text) or FrontMatter()
    headings, warnings = markdown_headings(decoded.text, front.end)
    early = [heading for heading in headings if heading.start < front.end + TITLE_REACH]
    first = min(early, key=lambda heading: heading.level > 1, default=None)
    return ParsedFile(
        text=decoded.text,
        map=DocumentMap(headings=headings),
        title=front.title or (first.title if first else None),
        warnings=(*decoded.warnings, *front.warnings, *warnings),
        metadata=front.metadata,
        digest=decoded.digest,
    )
