"""Read Markdown files: headings and front matter.

Headings are found with markdown-it-py. If a file is too long or too deeply nested for it, the lines that begin with #
are used instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from llama_index_contextual.metadata import TITLE, DocumentMap, Heading
from llama_index_contextual.readers.base import ParsedFile, ReadLimits, is_own_key, scalar_fault
from llama_index_contextual.readers.boundaries import heading_offsets
from llama_index_contextual.readers.discovery import one_line
from llama_index_contextual.readers.text import Decoded, decode_file

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


TITLE_REACH = 5_000
"""Number of characters at the beginning of a file in which a heading can be the title of the document."""


def read_markdown(path: Path, *, limits: ReadLimits = ReadLimits()) -> ParsedFile:  # noqa: B008
    """Read a Markdown file; the text is the whole file, including front matter and markup.

    Raises:
        ReadError: The file is empty, binary, too large, or cannot be opened.
    """
    return parse_markdown(decode_file(path, limits=limits))


def parse_markdown(decoded: Decoded) -> ParsedFile:
    """Read the headings and front matter of decoded text, as `read_markdown` does."""
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


# Headings

MAX_PARSED = 10_000_000
"""Largest number of characters that are parsed."""
MAX_LINES = 100_000
"""Largest number of lines that are parsed; a list with this many items takes half a minute."""
MAX_NESTING = 60
"""Nesting levels of lists and quotes; below them, the parser would drop the rest of the file."""
MAX_HEADINGS = 100_000
MAX_TITLE = 200
"""Characters in a title; a longer paragraph above a line of hyphens is not a heading."""
_LINE_END = re.compile(r"\r\n?|\n")


def markdown_headings(text: str, start: int = 0) -> tuple[tuple[Heading, ...], tuple[str, ...]]:
    """Return the headings from offset `start` on, and warnings.

    Headings in quotes, lists, code and HTML are omitted, because they do not divide the document.

    Args:
        text: The whole file.
        start: Offset at which the Markdown begins, after the front matter.
    """
    from markdown_it import MarkdownIt

    inline = MarkdownIt("commonmark")
    tokens = _blocks(text[start:])
    warnings = []
    if tokens is None:
        warnings.append("is too long or nested: only lines that begin with # are recognised as headings")
        headings = list(_scanned(text, start, inline))
    else:
        headings = list(_headings(tokens, [start, *(end.end() for end in _LINE_END.finditer(text, start))], inline))
    if len(headings) > MAX_HEADINGS:
        warnings.append(f"has more than {MAX_HEADINGS:,} headings: the later ones are left out")
    return tuple(headings[:MAX_HEADINGS]), tuple(warnings)


def _blocks(text: str) -> list[Token] | None:
    """Parse the text into blocks, or return None if it is too long or too deeply nested."""
    from markdown_it import MarkdownIt

    if len(text) > MAX_PARSED or text.count("\n") + text.count("\r") > MAX_LINES:
        return None
    # Without the table rule, the parser would take a table above a thematic break for a heading.
    parser = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING}).enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    tokens = parser.parse(text)
    return None if any(token.level >= MAX_NESTING - 1 for token in tokens) else tokens


def _headings(tokens: list[Token], line_starts: list[int], inline: MarkdownIt) -> Iterator[Heading]:
    for token, content in pairwise(tokens):
        if token.type != "heading_open" or token.level or not token.map:
            continue
        is_rule = token.markup in ("-", "=") and len(content.content) > MAX_TITLE
        title = "" if is_rule else _plain(content.content, inline)
        if title:
            yield Heading(line_starts[token.map[0]], int(token.tag[1]), title)


def _scanned(text: str, start: int, inline: MarkdownIt) -> Iterator[Heading]:
    for offset in heading_offsets(text):
        line = text[offset : offset + 4 * MAX_TITLE].splitlines()[0]
        title = line.lstrip("#")
        if offset >= start:
            yield Heading(offset, len(line) - len(title), _plain(title.strip("# \t"), inline))


def _plain(markdown: str, inline: MarkdownIt) -> str:
    """Return the text of a heading without inline markup."""
    head = markdown[: 4 * MAX_TITLE]
    if not any(mark in head for mark in "*_`[<&\\!"):
        return one_line(head, MAX_TITLE)
    return one_line(_text(inline.parseInline(head)), MAX_TITLE)


def _text(tokens: list[Token]) -> str:
    parts = []
    for token in tokens:
        if token.children is not None and token.type in ("inline", "image"):
            parts.append(_text(token.children))
        elif token.type in ("text", "text_special", "code_inline"):
            parts.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            parts.append(" ")
    return "".join(parts)


# Front matter

MAX_FRONT_MATTER = 32_768
"""Characters in the front matter; a longer block is treated as text."""
MAX_VALUE = 1_000
"""Characters in a value of the front matter."""
Scalar = str | int | float | bool
_FRONT_MATTER = re.compile(r"---[ \t]*(?:\r\n?|\n)(.*?)(?<=[\r\n])(?:---|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"([\w-]+):(.*)")


@dataclass(frozen=True)
class FrontMatter:
    """Front matter of a Markdown file.

    Attributes:
        end: Offset of the first character after the front matter.
        title: The value of `title`.
        metadata: The other top-level scalars. Lists and nested mappings are omitted.
        warnings: Keys that cannot be used.
    """

    end: int = 0
    title: str | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_front_matter(text: str) -> FrontMatter | None:
    """Return the front matter, or None if the text has none."""
    block = _FRONT_MATTER.match(text[:MAX_FRONT_MATTER])
    entries = _entries(block[1]) if block else None
    if block is None or entries is None:
        return None
    title = one_line(str(entries.pop(TITLE, "")))
    unusable = [key for key in entries if not key or one_line(key) != key or is_own_key(key)]
    warnings = [
        f"front matter: {one_line(repr(key))} cannot be used as a metadata key and is left out" for key in unusable
    ]
    metadata = {key: value for key, value in entries.items() if key not in unusable}
    return FrontMatter(block.end(), title or None, metadata, tuple(warnings))


def _entries(block: str) -> dict[str, Scalar] | None:
    """Return the top-level scalars that have a value."""
    import yaml

    try:
        # Nodes are not constructed, so that no tag is resolved, no alias expanded, and "1.10" and "no" stay as written.
        root = yaml.compose(block, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return _entries_by_line(block)
    if not isinstance(root, yaml.MappingNode):
        return None
    entries: dict[str, Scalar] = {}
    for key, value in root.value:
        if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
            text = one_line(value.value, MAX_VALUE)
            scalar = text if value.style in ("'", '"') else _scalar(text)
            if scalar not in (None, ""):
                entries[key.value] = scalar
    return entries


def _entries_by_line(block: str) -> dict[str, Scalar] | None:
    """Read the `key: value` lines of a block that is not valid YAML, such as `title: Rome: a history`."""
    lines = [line for line in block.splitlines() if line.strip() and line[0] not in " \t#-"]
    entries = [_ENTRY.fullmatch(line) for line in lines]
    return (
        {entry[1]: one_line(entry[2], MAX_VALUE).strip("\"'") for entry in entries if entry} if all(entries) else None
    )


def _scalar(text: str) -> Scalar | None:
    """Convert a value to a number or bool only if converting it back gives the same text."""
    if text in ("null", "~"):
        return None
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if str(number) == text and scalar_fault(number) is None:
            return number
    return text
