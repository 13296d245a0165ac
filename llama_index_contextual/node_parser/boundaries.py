"""The places at which a text falls apart by itself: headings, paragraphs, sentences, lines; and what stays whole."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum


class Rank(IntEnum):
    """How good a place for a cut is; higher is better."""

    LINE = 1
    SENTENCE = 2
    PARAGRAPH = 3
    HEADING = 4


_NEWLINE = "\n\r\x0b\x0c\x85\u2028\u2029"
_STOP = ".!?…؟۔।॥።։།။។"
_WIDE_STOP = "。！？｡"
_CLOSING = r"\"'”’»)\]}*_」』）】》〉›"
_BREAK = re.compile(
    rf"[{_NEWLINE}{_STOP}{_WIDE_STOP}]"
    rf"(?:(?<=[{_NEWLINE}])\s*|(?<=[{_STOP}])[{_CLOSING}]*\s+|(?<=[{_WIDE_STOP}])[{_CLOSING}]*\s*)"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[\"“])"
    r"(?:\d{1,3}(?:\.\d{1,3})*|(?:[^\W\d_]\.)*[^\W\d_]|[Mm]rs?|Ms|Dr|Prof|Rev|Hon|Gen|Sen|Rep|St|Jr|Sr|[Vv]s|etc|[Nn]os?"
    r"|[Ff]igs?|[Tt]ab|[Ss]ec|[Aa]rt|[Cc]h|[Ee]qs?|[Vv]ol|[Pp]p|[Ee]d|[Aa]l|[Cc]a|[Aa]pprox|Inc|Ltd|Co|Corp|Nr|bzw)\.$"
)
_LINE_ENDS_THOUGHT = ":;{}"
_LINE_BEGINS_ITEM = "-*+•–#>|"

_FENCE_MARKS = ("```", "~~~")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)", re.MULTILINE)
_ATX_HEADING = re.compile(r"^#{1,6}[ \t]+\S", re.MULTILINE)
_PIPE_TO_LINE_END = re.compile(r"\|[^\n]*")
_VISIBLE_LINE = re.compile(r"\S[^\n]*")
_NON_BLANK = re.compile(r"\S")


def structural_breaks(text: str, start: int, stop: int) -> Iterator[tuple[int, Rank]]:
    """Yield the offsets behind paragraph, sentence and line ends between `start` and `stop`, with their rank.

    An offset is that of the first character behind the white space; it may lie a little behind `stop`.
    """
    for match in _BREAK.finditer(text, start):
        if match.start() >= stop:
            return
        offset = match.end()
        if offset == len(text):
            return
        rank = _rank(text, match.start(), match.group(), offset)
        if rank is not None:
            yield offset, rank


def _rank(text: str, start: int, gap: str, offset: int) -> Rank | None:
    lines = gap.count("\n") or gap.count("\r")
    if lines > 1:
        return Rank.PARAGRAPH
    first = gap[0]
    if first in _NEWLINE:
        thought_ends = start > 0 and text[start - 1] in _LINE_ENDS_THOUGHT
        return Rank.SENTENCE if thought_ends or text[offset] in _LINE_BEGINS_ITEM else Rank.LINE
    if first == "." and not lines and _ABBREVIATION.search(text[max(0, start - 16) : start + 1]):
        return None
    return Rank.SENTENCE


def heading_offsets(text: str, known: Iterable[int] = ()) -> list[int]:
    """Return where headings begin: the known ones if there are any, else the lines that begin with "#".

    Known offsets that do not stand at the beginning of a word (a map of another text) are left out.
    """
    found = {_first_non_blank(text, offset) for offset in known if 0 <= offset < len(text)}
    if not found and "#" in text:
        fences = code_fences(text)
        starts = [start for start, _ in fences]
        for match in _ATX_HEADING.finditer(text):
            at = bisect_right(starts, match.start()) - 1
            if at < 0 or match.start() >= fences[at][1]:
                found.add(match.start())
    return sorted(offset for offset in found if offset == 0 or text[offset - 1].isspace())


def blocks(text: str) -> list[tuple[int, int]]:
    """Return the spans of Markdown code fences and tables, in order and without overlap."""
    fences = code_fences(text)
    starts = [start for start, _ in fences]
    out = list(fences)
    for start, end in tables(text):
        at = bisect_right(starts, end) - 1
        if at < 0 or fences[at][1] <= start:
            out.append((start, end))
    return sorted(out)


def code_fences(text: str) -> list[tuple[int, int]]:
    """Return the spans of closed Markdown code fences, from the first mark to the end of the closing line."""
    if not any(mark in text for mark in _FENCE_MARKS):
        return []
    out: list[tuple[int, int]] = []
    opening: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        mark, info = match.group(1), match.group(2).strip()
        if opening is None or (info and opening.group(1)[0] == mark[0]):
            opening = match
        elif not info and mark.startswith(opening.group(1)):
            out.append((opening.start(1), match.end(1)))
            opening = None
    return out


def tables(text: str) -> list[tuple[int, int]]:
    """Return the spans of runs of at least two lines that hold a "|", from the first to the last visible character."""
    out: list[tuple[int, int]] = []
    first = rows = 0
    last = -1
    for match in _PIPE_TO_LINE_END.finditer(text):
        line_start = text.rfind("\n", 0, match.start()) + 1
        if rows and line_start == last + 1:
            rows += 1
        else:
            if rows > 1:
                out.append((_first_non_blank(text, first), last))
            first, rows = line_start, 1
        last = match.end()
    if rows > 1:
        out.append((_first_non_blank(text, first), last))
    return out


def lines_of(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the spans of the non-blank lines between `start` and `end`, each from its first visible character."""
    return [match.span() for match in _VISIBLE_LINE.finditer(text, start, end)]


def containing(spans: Sequence[tuple[int, int]], starts: Sequence[int], offset: int) -> tuple[int, int] | None:
    """Return the span that `offset` would cut in two, or None."""
    at = bisect_right(starts, offset) - 1
    if at >= 0 and spans[at][0] < offset < spans[at][1]:
        return spans[at]
    return None


def _first_non_blank(text: str, offset: int) -> int:
    found = _NON_BLANK.search(text, offset)
    return found.start() if found else len(text)
