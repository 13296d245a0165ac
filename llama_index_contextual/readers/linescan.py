"""Finds Markdown headings line by line, for files too large for a parser."""

from __future__ import annotations

from collections.abc import Iterator

from llama_index_contextual.metadata import Heading

_MAX_LINE = 4_000
"""Characters of a line that are looked at."""

_MAX_TITLE = 200
_MARKS = frozenset(" #`~=-<")
_NO_PARAGRAPH = ("#", ">", "|", "<", "`", "~", "- ", "* ", "+ ", "---", "===", "***", "___")


def line_starts(text: str, at: int = 0, *, has_returns: bool | None = None) -> Iterator[int]:
    r"""Yield where lines begin; `\n`, `\r\n` and `\r` end one, as in CommonMark.

    Args:
        text: The whole text.
        at: Where to begin; a line must begin there.
        has_returns: Whether `\r` is in the text; looked for if not given.
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


def scan_headings(text: str, at: int = 0) -> Iterator[Heading]:
    """Yield the headings from character `at` on; their titles still carry inline marks.

    Code fences and HTML comments are respected; lists, quotes and other HTML are not looked into.
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


def _line(text: str, start: int) -> str:
    """Return a line without its end; empty if it is indented as code."""
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
    """Return the heading that a line of `=` or `-` makes of the paragraph of one line above it."""
    mark = line.strip()
    if above < 0 or not mark or mark[0] not in "=-" or mark.strip(mark[0]):
        return None
    title = _line(text, above)
    is_alone = before < 0 or _line(text, before).strip()[:1] in ("", "#")
    if not is_alone or not title.strip() or len(title) > _MAX_TITLE or title.lstrip().startswith(_NO_PARAGRAPH):
        return None
    return Heading(above, 1 if mark[0] == "=" else 2, title.strip())


def _opened_fence(line: str) -> str:
    """Return the marks of the code fence that the line opens; empty if it opens none."""
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
