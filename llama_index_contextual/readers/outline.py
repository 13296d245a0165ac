"""Finds the headings of Markdown by CommonMark's block structure.

Large files are parsed in pieces that end where a block ends, so that memory does not grow with the file and the result
is that of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.linescan import line_starts, scan_headings
from llama_index_contextual.readers.names import one_line

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_WORK = 4_000_000
"""Lines and tokens of the parser; what follows is scanned line by line."""

MAX_BLOCK_LINES = 80_000
"""Lines of one list, quote, code block or paragraph that the parser sees."""

MAX_NESTING = 60
"""Levels of lists and quotes; below it the parser drops the rest of the file."""

MAX_HEADINGS = 100_000

MAX_TITLE = 200
"""Characters; a longer paragraph above a line of hyphens is a paragraph above a rule, not a heading."""

_PIECE_LINES = 10_000
_PIECE_CHARACTERS = 4_000_000


def markdown_headings(
    text: str, start: int = 0, *, piece_lines: int = _PIECE_LINES
) -> tuple[tuple[Heading, ...], tuple[str, ...]]:
    """Return the headings from character `start` on, and what has to be said about them.

    Headings in quotes and lists, code and HTML are none: they do not divide the document.

    Args:
        text: The whole file.
        start: Where the Markdown begins, after the front matter.
        piece_lines: Lines parsed at once; the result does not depend on it.
    """
    parse = _Outline(text, start, piece_lines)
    headings = tuple(islice(parse.headings(), MAX_HEADINGS + 1))
    warnings = [parse.warning] if parse.warning else []
    if len(headings) > MAX_HEADINGS:
        warnings.append(f"has more than {MAX_HEADINGS:,} headings: the later ones are left out")
    return headings[:MAX_HEADINGS], tuple(warnings)


@dataclass
class _Outline:
    """One pass over a text; `warning` is set when the parser had to give way to the line scan."""

    text: str
    at: int
    piece_lines: int
    warning: str | None = None

    def headings(self) -> Iterator[Heading]:
        blocks, inline = _parsers()
        has_returns = "\r" in self.text
        work_left, size = MAX_WORK, self.piece_lines
        while self.at < len(self.text):
            if work_left <= 0 or size > max(MAX_BLOCK_LINES, self.piece_lines):
                yield from self._scan(inline)
                return
            starts, end = _piece(self.text, self.at, size, has_returns=has_returns)
            tokens = blocks.parse(self.text[self.at : end])
            work_left -= len(starts) + len(tokens)
            if any(token.level >= MAX_NESTING - 1 for token in tokens):
                yield from self._scan(inline)
                return
            done = len(starts) if end == len(self.text) else _last_block(tokens)
            if done == 0:
                size *= 2
                continue
            size = self.piece_lines
            yield from _headings(tokens, starts, done, inline)
            self.at = end if done == len(starts) else starts[done]

    def _scan(self, inline: MarkdownIt) -> Iterator[Heading]:
        line = self.text.count("\n", 0, self.at) + 1
        self.warning = f"is too long or nested: its headings from line {line:,} on are recognised line by line"
        for heading in scan_headings(self.text, self.at):
            yield Heading(heading.start, heading.level, _plain(heading.title, inline))


def _piece(text: str, at: int, lines: int, *, has_returns: bool) -> tuple[list[int], int]:
    """Return where the next lines begin, and where the last of them ends."""
    starts: list[int] = []
    for start in line_starts(text, at, has_returns=has_returns):
        if len(starts) == lines or start - at > _PIECE_CHARACTERS:
            return starts, start
        starts.append(start)
    return starts, len(text)


def _last_block(tokens: list[Token]) -> int:
    """Return the line on which the last block begins: it may go on in the next piece."""
    return next((token.map[0] for token in reversed(tokens) if token.level == 0 and token.map), 0)


def _headings(tokens: list[Token], starts: list[int], done: int, inline: MarkdownIt) -> Iterator[Heading]:
    for token, content in pairwise(tokens):
        if token.type != "heading_open" or token.level or not token.map or token.map[0] >= done:
            continue
        is_rule = token.markup in ("-", "=") and len(content.content) > MAX_TITLE
        title = "" if is_rule else _plain(content.content, inline)
        if title:
            yield Heading(starts[token.map[0]], int(token.tag[1]), title)


def _plain(markdown: str, inline: MarkdownIt) -> str:
    """Return the text of a heading without marks."""
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


def _parsers() -> tuple[MarkdownIt, MarkdownIt]:
    from markdown_it import MarkdownIt

    # Without the table rule, a table above a rule would be taken for a heading.
    blocks = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING}).enable("table")
    blocks.core.ruler.enableOnly(["normalize", "block"])
    return blocks, MarkdownIt("commonmark")
