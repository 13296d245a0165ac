"""Read Markdown files: headings and front matter.

Headings come from markdown-it-py, which parses the file in pieces. Where a file is too long or too deeply nested for
it, the rest is scanned line by line with `scan_headings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from llama_index_contextual.metadata import TITLE, DocumentMap, Heading
from llama_index_contextual.readers.base import ParsedFile, ReadLimits, is_own_key, scalar_fault
from llama_index_contextual.readers.discovery import one_line
from llama_index_contextual.readers.text import Decoded, decode_file

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


TITLE_REACH = 5_000
"""Number of characters at the beginning in which a heading can be the title of the document."""


def read_markdown(path: Path, *, limits: ReadLimits = ReadLimits()) -> ParsedFile:  # noqa: B008
    """Read a Markdown file; the text is the whole file, including front matter and marks.

    Raises:
        ReadError: The file is empty, binary, too large, or cannot be opened.
    """
    return parse_markdown(decode_file(path, limits=limits))


def parse_markdown(decoded: Decoded) -> ParsedFile:
    """Read the headings and front matter of a decoded text, as `read_markdown` does."""
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

MAX_WORK = 4_000_000
"""Lines and tokens that are parsed; the rest of the file is scanned line by line."""
MAX_BLOCK_LINES = 80_000
"""Lines of a list, quote, code block or paragraph that are parsed."""
MAX_NESTING = 60
"""Levels of lists and quotes; the parser would drop the rest of the file below them."""
MAX_HEADINGS = 100_000
MAX_TITLE = 200
"""Characters of a title; a longer paragraph above a line of hyphens is not a heading."""
_PIECE_LINES = 10_000
_PIECE_CHARACTERS = 4_000_000


def markdown_headings(
    text: str, start: int = 0, *, piece_lines: int = _PIECE_LINES
) -> tuple[tuple[Heading, ...], tuple[str, ...]]:
    """Return the headings from offset `start` on, and warnings.

    Headings in quotes, lists, code and HTML are left out, because they do not divide the document.

    Args:
        text: The whole file.
        start: Where the Markdown begins, after the front matter.
        piece_lines: Number of lines to parse at once; the result does not depend on it.
    """
    outline = _Outline(text, start, piece_lines)
    headings = tuple(islice(outline.headings(), MAX_HEADINGS + 1))
    warnings = [outline.warning] if outline.warning else []
    if len(headings) > MAX_HEADINGS:
        warnings.append(f"has more than {MAX_HEADINGS:,} headings: the later ones are left out")
    return headings[:MAX_HEADINGS], tuple(warnings)


@dataclass
class _Outline:
    """One pass over a text; `warning` is set if the rest of the text was scanned line by line."""

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


def _parsers() -> tuple[MarkdownIt, MarkdownIt]:
    from markdown_it import MarkdownIt

    # Without the table rule, a table above a thematic break would be parsed as a heading.
    blocks = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING}).enable("table")
    blocks.core.ruler.enableOnly(["normalize", "block"])
    return blocks, MarkdownIt("commonmark")


def _piece(text: str, at: int, lines: int, *, has_returns: bool) -> tuple[list[int], int]:
    """Return the offsets of the next lines and the end of the last one."""
    starts: list[int] = []
    for start in line_starts(text, at, has_returns=has_returns):
        if len(starts) == lines or start - at > _PIECE_CHARACTERS:
            return starts, start
        starts.append(start)
    return starts, len(text)


def _last_block(tokens: list[Token]) -> int:
    """Return the line on which the last block begins, as it may continue in the next piece."""
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
    """Return the text of a heading without inline marks."""
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


# Headings line by line

_MAX_LINE = 4_000
"""Number of characters of a line that are scanned."""
_MARKS = frozenset(" #`~=-<")
_NO_PARAGRAPH = ("#", ">", "|", "<", "`", "~", "- ", "* ", "+ ", "---", "===", "***", "___")


def scan_headings(text: str, at: int = 0) -> Iterator[Heading]:
    """Yield the headings from offset `at` on; their titles still contain inline marks.

    Code fences and HTML comments are skipped. Headings in lists, quotes and other HTML are not found.
    """
    fence, comment_end = "", at
    above = before = -1
    for start in line_starts(text, at):
        if text[start] in _MARKS and start >= comment_end:
            line = _line(text, start)
            if fence:
                fence = "" if _closes(line, fence) else fence
            elif fence := _opened_fence(line):
                pass
            elif line.lstrip().startswith("<!--"):
                comment_end = text.find("-->", start) + 1 or len(text)
            elif heading := _atx(start, line) or _setext(text, line, above, before):
                yield heading
        before, above = above, start


def line_starts(text: str, at: int = 0, *, has_returns: bool | None = None) -> Iterator[int]:
    r"""Yield the offset of each line; `\n`, `\r\n` and `\r` end a line, as in CommonMark.

    Args:
        text: The whole text.
        at: Offset of the first line to yield.
        has_returns: Whether the text contains `\r`; None searches for it.
    """
    if ("\r" in text) if has_returns is None else has_returns:
        yield from _mixed_line_starts(text, at)
        return
    while at < len(text):
        yield at
        at = text.find("\n", at) + 1
        if not at:
            return


def _mixed_line_starts(text: str, at: int) -> Iterator[int]:
    feed, back, length = text.find("\n", at), text.find("\r", at), len(text)
    while at < length:
        yield at
        if 0 <= feed < at:
            feed = text.find("\n", at)
        if 0 <= back < at:
            back = text.find("\r", at)
        if feed < 0 and back < 0:
            return
        is_feed = back < 0 or 0 <= feed < back
        at = feed + 1 if is_feed or feed == back + 1 else back + 1


def _line(text: str, start: int) -> str:
    """Return a line without its end, or an empty string if it is indented as code."""
    end = text.find("\n", start, start + _MAX_LINE)
    line = text[start : end if end >= 0 else start + _MAX_LINE].partition("\r")[0]
    return line.rstrip() if len(line) - len(line.lstrip(" ")) < 4 and not line.startswith("\t") else ""


def _atx(start: int, line: str) -> Heading | None:
    body = line.strip()
    title = body.lstrip("#")
    level = len(body) - len(title)
    if not 1 <= level <= 6 or title[:1] not in (" ", "\t"):
        return None
    title = title.strip()
    without_closing = title.rstrip("#")
    if not without_closing or without_closing.endswith((" ", "\t")):
        title = without_closing.rstrip()
    return Heading(start, level, title) if title else None


def _setext(text: str, line: str, above: int, before: int) -> Heading | None:
    """Return the heading that a line of `=` or `-` makes of the single line above it, or None."""
    mark = line.strip()
    if above < 0 or not mark or mark[0] not in "=-" or mark.strip(mark[0]):
        return None
    title = _line(text, above)
    is_alone = before < 0 or _line(text, before).strip()[:1] in ("", "#")
    if not is_alone or not title.strip() or len(title) > MAX_TITLE or title.lstrip().startswith(_NO_PARAGRAPH):
        return None
    return Heading(above, 1 if mark[0] == "=" else 2, title.strip())


def _opened_fence(line: str) -> str:
    """Return the marks of the code fence that a line opens, or an empty string."""
    body = line.lstrip()
    for mark in "`~":
        rest = body.lstrip(mark)
        count = len(body) - len(rest)
        if count >= 3 and not (mark == "`" and "`" in rest):
            return mark * count
    return ""


def _closes(line: str, fence: str) -> bool:
    body = line.strip()
    return body.startswith(fence) and not body.strip(fence[0])


# Front matter

MAX_FRONT_MATTER = 32_768
"""Characters of the front matter; a longer block is treated as text."""
MAX_VALUE = 1_000
"""Characters of a value in the front matter."""
Scalar = str | int | float | bool


@dataclass(frozen=True)
class FrontMatter:
    """Front matter of a Markdown file.

    Attributes:
        end: Offset of the first character after the front matter.
        title: Its `title`.
        metadata: Its other top-level scalars. Lists and nested mappings are left out.
        warnings: Keys that cannot be used.
    """

    end: int = 0
    title: str | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_front_matter(text: str) -> FrontMatter | None:
    """Return the front matter, or None if the text has none."""
    block = _find_block(text)
    if block is None:
        return None
    content, end = block
    entries = _parse(content)
    if entries is None:
        return None
    title = one_line(_unquoted(entries.pop(TITLE, "")))
    metadata, warnings = _accept(entries)
    return FrontMatter(end, title or None, metadata, tuple(warnings))


def _find_block(text: str) -> tuple[str, int] | None:
    head = text[:MAX_FRONT_MATTER]
    lines = head.splitlines(keepends=True)
    if not lines or lines[0].rstrip() != "---":
        return None
    at = len(lines[0])
    for line in lines[1:]:
        if line.rstrip() in ("---", "..."):
            return head[len(lines[0]) : at], at + len(line)
        at += len(line)
    return None


def _parse(content: str) -> dict[str, str] | None:
    """Return the top-level scalars; quoted ones keep their quotes, to distinguish "7" from 7."""
    import yaml

    try:
        # Nodes are not constructed: no tag is resolved, no alias expanded, and "1.10" and "no" stay as written.
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return _parse_lines(content)
    if not isinstance(root, yaml.MappingNode):
        return None
    scalars = [pair for pair in root.value if all(isinstance(node, yaml.ScalarNode) for node in pair)]
    return {key.value: f'"{value.value}"' if value.style in ("'", '"') else value.value for key, value in scalars}


def _parse_lines(content: str) -> dict[str, str] | None:
    """Read the `key: value` lines of a block that is not valid YAML, such as `title: Rome: a history`."""
    entries: dict[str, str] = {}
    for line in content.splitlines():
        if not line.strip() or line[0] in " \t#-":
            continue
        key, colon, value = line.partition(":")
        if not colon or not key.replace("_", "").replace("-", "").isalnum():
            return None
        entries[key] = value.strip()
    return entries or None


def _accept(entries: Mapping[str, str]) -> tuple[dict[str, Scalar], list[str]]:
    metadata: dict[str, Scalar] = {}
    warnings = []
    for key, value in entries.items():
        scalar = _scalar(value)
        if scalar is None:
            continue
        if not key or one_line(key) != key or is_own_key(key):
            warnings.append(f"front matter: {one_line(repr(key))} cannot be used as a metadata key and is left out")
        else:
            metadata[key] = scalar
    return metadata, warnings


def _scalar(written: str) -> Scalar | None:
    """Convert a value to a number or bool only if writing it again gives the same text."""
    text = _unquoted(written)
    if text != written or not text:
        return text or None
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


def _unquoted(written: str) -> str:
    is_quoted = len(written) > 1 and written[0] == written[-1] and written[0] in "\"'"
    return one_line(written[1:-1] if is_quoted else written, MAX_VALUE)
