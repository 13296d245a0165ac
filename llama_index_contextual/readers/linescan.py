"""Finds Markdown headings line by line, for files too large for a parser."""

from __future__ import annotations

from collections.abc import Iterator

from llama_index_contextual.metadata import Heading

_MAX_LINE = 4_000
"""Characters of a line that are looked at."""


def line_starts(text: str, at: int = 0) -> Iterator[int]:
    r"""Yield where lines begin; `\n`, `\r\n` and `\r` end one, as in CommonMark."""
    if text.find("\r", at) >= 0:
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
    closing, above, before = "", None, ""
    for start in line_starts(text, at):
        line = _line(text, start)
        if closing:
            if _closes(line, closing):
                closing = ""
            above, before = None, line
            continue
        closing = _opening(line)
        heading = None if closing else _heading(start, line, above)
        if heading:
            yield heading
        above = (start, line) if not (before or closing or heading) and _is_paragraph(line) else None
        before = line


def _line(text: str, start: int) -> str:
    line = text[start : start + _MAX_LINE]
    for end in "\n\r":
        line = line.partition(end)[0]
    return line.rstrip() if len(line) - len(line.lstrip(" ")) < 4 and not line.startswith("\t") else ""


def _heading(start: int, line: str, above: tuple[int, str] | None) -> Heading | None:
    body = line.strip()
    if body.startswith("#"):
        title = body.lstrip("#")
        level = len(body) - len(title)
        if level <= 6 and title[:1] in (" ", "\t") and (title := _without_closing(title.strip())):
            return Heading(start, level, title)
    elif above and body and body.strip(body[0]) == "" and body[0] in "=-":
        return Heading(above[0], 1 if body[0] == "=" else 2, above[1].strip())
    return None


def _without_closing(title: str) -> str:
    head = title.rstrip("#")
    return head.rstrip() if head == "" or head.endswith((" ", "\t")) else title


def _opening(line: str) -> str:
    """Return what closes the code fence or comment that the line opens; empty if it opens none."""
    body = line.lstrip()
    for mark in "`~":
        rest = body.lstrip(mark)
        count = len(body) - len(rest)
        if count >= 3 and not (mark == "`" and "`" in rest):
            return mark * count
    return "-->" if body.startswith("<!--") and "-->" not in body else ""


def _closes(line: str, closing: str) -> bool:
    if closing == "-->":
        return closing in line
    body = line.strip()
    return body.startswith(closing) and body.strip(closing[0]) == ""


def _is_paragraph(line: str) -> bool:
    body = line.lstrip()
    return bool(body) and len(body) <= 200 and not body.startswith(("#", ">", "|", "<", "- ", "* ", "+ "))
