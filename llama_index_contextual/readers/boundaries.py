"""Find headings, paragraphs, sentences, lines, words, graphemes, code fences and tables in text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from operator import itemgetter

import regex  # type: ignore[import-untyped]  # the package ships no types

Span = tuple[int, int]


class Rank(IntEnum):
    """Quality of a boundary as a place to split the text; higher is better."""

    LINE = 1
    SENTENCE = 2
    PARAGRAPH = 3
    HEADING = 4


_NEWLINES = "\n\r\x0b\x0c\x85\u2028\u2029"
_STOPS = "!?…؟۔।॥։།။។"
_WIDE_STOPS = "。！？｡"
_CLOSING = r"\"'”’»)\]}*_」』）】》〉›"
_ITEM_MARKS = r"\-*+•–#>|"
# A full stop after a letter, a number up to 99 or an abbreviation does not end a sentence. The patterns are grouped by
# width, because a lookbehind must have a fixed width.
_NO_SENTENCE_BEFORE_STOP = (
    r"[^\W\d_]|\d",
    r"\d\d|Mr|Ms|Dr|St|Jr|Sr|vs|Vs|No|no|Ch|Eq|pp|ed|al|ca|Co|Nr",
    r"Mrs|Rev|Hon|Gen|Sen|Rep|etc|Nos|Fig|fig|Tab|Sec|sec|Art|Eqs|Vol|vol|Inc|Ltd|bzw",
    r"Prof|Figs|Corp",
)


_CONDITION = "".join(rf"(?<!\W(?:{words})\.)" for words in _NO_SENTENCE_BEFORE_STOP)
_FULL_STOP = rf"(?<=\.)(?=[{_CLOSING}\s])(?:[{_CLOSING}]*(?=[{_NEWLINES}])|{_CONDITION}[{_CLOSING}]*)\s+"
_STOP = rf"(?<=[{_STOPS}])(?=[{_CLOSING}\s])[{_CLOSING}]*\s+"
_WIDE_STOP = rf"(?<=[{_WIDE_STOPS}])[{_WIDE_STOPS}{_CLOSING}]*\s*"
_PATTERNS = (
    (Rank.LINE, re.compile(rf"[{_NEWLINES}]\s*")),
    # Because the pattern begins with a set of characters, other characters are skipped quickly.
    (Rank.SENTENCE, re.compile(f"[.{_STOPS}{_WIDE_STOPS}](?:{_FULL_STOP}|{_STOP}|{_WIDE_STOP})")),
    # The end of a line counts as the end of a sentence after a colon, semicolon or brace, and before a list item.
    (Rank.SENTENCE, re.compile(rf"\n(?:(?<=[:;{{}}]\n)|(?=[^\S\n]*[{_ITEM_MARKS}]))\s*")),
    (Rank.PARAGRAPH, re.compile(r"(?:\n(?:[^\S\n]*\n)+|\r(?:[^\S\r\n]*\r)+)\s*")),
)

FENCE_MARKS = ("```", "~~~")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)", re.MULTILINE)
_ATX_HEADING = re.compile(r"#(?<![^\n]#)#{0,5}[ \t]+\S")
_PIPE_TO_LINE_END = re.compile(r"\|[^\n]*")
_VISIBLE_LINE = re.compile(r"\S[^\n]*")
_NON_SPACE = re.compile(r"\S")


def structural_offsets(
    text: str, start: int = 0, stop: int | None = None, *, ranks: Collection[Rank] = tuple(Rank)
) -> dict[Rank, list[int]]:
    """Return the sorted offsets at which paragraphs, sentences and lines begin, by rank.

    Each offset points to the first character after white space. The same offset may appear under several ranks.

    Args:
        text: Any string.
        start: Offset at which the search begins.
        stop: Largest offset to return.
        ranks: Ranks to return. Headings are found by `heading_offsets`.
    """
    last = len(text) - 1 if stop is None else min(stop, len(text) - 1)
    # Read one more character to see whether the white space continues at `stop`.
    end = len(text) if stop is None else min(stop + 1, len(text))
    out: dict[Rank, list[int]] = {}
    for rank, pattern in _PATTERNS:
        if rank in ranks:
            out.setdefault(rank, []).extend(match.end() for match in pattern.finditer(text, start, end))
    return {rank: [offset for offset in sorted(offsets) if offset <= last] for rank, offsets in out.items()}


def heading_offsets(text: str, known: Iterable[int] | None = None) -> list[int]:
    """Return the sorted offsets of headings.

    Args:
        text: Any string.
        known: Offsets recorded by the reader. Offsets that do not follow white space are dropped, because they were
            recorded for a different text. If None, lines that begin with "#" outside code fences are headings.
    """
    if known is None:
        fences = code_fences(text) if "#" in text else []
        known = [at for match in _ATX_HEADING.finditer(text) if is_outside(fences, at := match.start(), at)]
    headings = {skip_space(text, offset) for offset in known if 0 <= offset < len(text)}
    return sorted(offset for offset in headings if offset == 0 or text[offset - 1].isspace())


def blocks(text: str) -> list[Span]:
    """Return the spans of Markdown code fences and tables, in order and without overlap."""
    fences = code_fences(text)
    tables = ((skip_space(text, lines[0][0]), lines[-1][1]) for lines in pipe_blocks(text))
    return sorted([*fences, *(table for table in tables if is_outside(fences, *table))])


def code_fences(text: str) -> list[Span]:
    """Return the spans of closed Markdown code fences, from the opening marker to the end of the closing line."""
    out: list[Span] = []
    opening: re.Match[str] | None = None
    for match in _FENCE.finditer(text) if any(mark in text for mark in FENCE_MARKS) else ():
        mark, info = match.group(1), match.group(2).strip()
        if opening is None or (info and opening.group(1)[0] == mark[0]):
            opening = match
        elif not info and mark.startswith(opening.group(1)):
            out.append((opening.start(1), match.end(1)))
            opening = None
    return out


def pipe_blocks(text: str) -> Iterator[list[Span]]:
    """Yield the line spans of each group of two or more consecutive lines with a "|", as in a Markdown table."""
    block: list[Span] = []
    for match in _PIPE_TO_LINE_END.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        if block and start != block[-1][1] + 1:
            if len(block) > 1:
                yield block
            block = []
        block.append((start, match.end()))
    if len(block) > 1:
        yield block


def lines_of(text: str, start: int, end: int) -> list[Span]:
    """Return the spans of the non-blank lines between `start` and `end`, without indentation."""
    return [match.span() for match in _VISIBLE_LINE.finditer(text, start, end)]


def is_outside(spans: Sequence[Span], start: int, end: int) -> bool:
    """Return whether none of the sorted `spans` overlaps the range from `start` to `end`."""
    at = bisect_right(spans, end, key=itemgetter(0)) - 1
    return at < 0 or spans[at][1] <= start


def containing(spans: Sequence[Span], offset: int) -> Span | None:
    """Return the span among the sorted `spans` that a cut at `offset` would divide, or None."""
    at = bisect_right(spans, offset, key=itemgetter(0)) - 1
    return spans[at] if at >= 0 and spans[at][0] < offset < spans[at][1] else None


# Words and graphemes

NON_WORD_CHARACTER = regex.compile(r"[^\w\p{L}\p{M}\p{N}]")
_WORD_START = re.compile(r"(?<=\s)\S")
_REACH = 200
GRAPHEME = regex.compile(r"\X")
# There is always a grapheme boundary between two characters of these ranges, except between CR and LF: Latin without
# combining marks, CJK punctuation, kana without sound marks, and Han. There is also a boundary before a visible ASCII
# character or a space, unless the previous character has the Prepend property.
_PLAIN = "\u0000-\u02ff\u3001-\u3029\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uff01-\uff60"
_SURE_BOUNDARY = regex.compile(rf"(?!\r\n)[{_PLAIN}](?=[{_PLAIN}])|\P{{GCB=Prepend}}(?=[ -~])")


def skip_space(text: str, offset: int) -> int:
    """Return the offset of the first character at or after `offset` that is not white space, or the text's length."""
    match = _NON_SPACE.search(text, offset)
    return match.start() if match else len(text)


def strip_end(text: str, start: int, end: int) -> int:
    """Move `end` back over trailing white space, but not before `start`."""
    while end > start and text[end - 1].isspace():
        head = text[max(start, end - 4_096) : end]
        end -= len(head) - len(head.rstrip())
    return end


def word_starts(text: str, low: int, high: int) -> list[int]:
    """Return the offsets, from `low` to `high` (exclusive), at which words begin after white space."""
    return [match.start() for match in _WORD_START.finditer(text, low, high)]


def word_ends(text: str, low: int, high: int) -> list[int]:
    """Return the offsets after non-word characters, such as a comma that is not followed by a space."""
    return [match.end() for match in NON_WORD_CHARACTER.finditer(text, low, high)]


def is_clean(text: str, offset: int, known: int = 0) -> bool:
    """Return whether cutting the text at `offset` leaves every grapheme whole.

    White space may be separated from a combining mark.
    """
    return text[offset - 1].isspace() or grapheme_floor(text, offset, known) == offset


def grapheme_floor(text: str, offset: int, known: int = 0) -> int:
    """Return the last grapheme boundary at or before `offset`.

    Args:
        text: Any string.
        offset: The position to check.
        known: An earlier boundary; the text before it is not read.
    """
    if not known < offset < len(text) or _SURE_BOUNDARY.match(text, offset - 1):
        return offset
    sure = _SURE_BOUNDARY.search(text, max(known, offset - _REACH), offset)
    start = sure.end() if sure else known
    return start + _grapheme_starts(text[start : offset + 1])[-1]


def grapheme_boundaries(text: str, offsets: Sequence[int], known: int = 0) -> list[int]:
    """Return the grapheme boundaries among the sorted `offsets`.

    The text before `known`, an earlier boundary, is not read.
    """
    if not offsets:
        return []
    first = grapheme_floor(text, offsets[0], known)
    starts = {first + start for start in _grapheme_starts(text[first : offsets[-1] + 1])}
    return [offset for offset in offsets if offset in starts]


def _grapheme_starts(text: str) -> list[int]:
    return [match.start() for match in GRAPHEME.finditer(text)]
