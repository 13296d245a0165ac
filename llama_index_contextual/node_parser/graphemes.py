"""Where a text may be cut without breaking what a reader sees as one character or one word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import regex  # type: ignore[import-untyped]  # the package ships no types

WORD_CHARACTER = regex.compile(r"[\w\p{L}\p{M}\p{N}]")
NON_WORD_CHARACTER = regex.compile(r"[^\w\p{L}\p{M}\p{N}]")
LAST_NON_WORD_CHARACTER = regex.compile(r"(?r)[^\w\p{L}\p{M}\p{N}]")
WORD_START = re.compile(r"(?<=\s)\S")
_FEW = 8
_GRAPHEME = regex.compile(r"\X")
_NON_SPACE = re.compile(r"\S")
# Between two characters there is a boundary whatever stands around them if both are of this kind (CR LF is looked at
# before): Latin without combining marks, CJK punctuation, kana without sound marks, Han. And before visible ASCII or a
# space, which join with a character of the class Prepend before them only.
_PLAIN = "\u0000-\u02ff\u3001-\u3029\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uff01-\uff60"
_SURE_BOUNDARY = regex.compile(rf"[{_PLAIN}](?=[{_PLAIN}])|\P{{GCB=Prepend}}(?=[ -~])")


def skip_space(text: str, offset: int) -> int:
    """Return the offset of the first character at or behind `offset` that is not white space, or the length."""
    found = _NON_SPACE.search(text, offset)
    return found.start() if found else len(text)


def strip_end(text: str, start: int, end: int) -> int:
    """Return `end` moved back over white space, not before `start`."""
    while end > start and text[end - 1].isspace():
        head = text[max(start, end - 4_096) : end]
        end -= len(head) - len(head.rstrip())
    return end


def in_word(text: str, offset: int) -> bool:
    """Return whether the characters on both sides of `offset` belong to one run of word characters."""
    if not 0 < offset < len(text):
        return False
    return bool(WORD_CHARACTER.match(text, offset - 1) and WORD_CHARACTER.match(text, offset))


def is_surrogate_pair(text: str, offset: int) -> bool:
    """Return whether the two surrogates of one character stand at `offset`; regular expressions see two characters."""
    return "\ud800" <= text[offset] <= "\udbff" and "\udc00" <= text[offset + 1 : offset + 2] <= "\udfff"


def is_grapheme_boundary(text: str, offset: int, known: int = 0) -> bool:
    """Return whether no extended grapheme cluster (UAX #29) spans `offset`.

    Args:
        text: Any string.
        offset: Where a cut is wanted.
        known: An offset before it that is a boundary; nothing before that is read.
    """
    if not known < offset < len(text):
        return True
    before, behind = text[offset - 1], text[offset]
    if before < "\u0300" and behind < "\u0300":
        return before != "\r" or behind != "\n"
    if is_surrogate_pair(text, offset - 1):
        return False
    if _SURE_BOUNDARY.match(text, offset - 1):
        return True
    return _cluster_start(text, offset, known) == offset


def grapheme_floor(text: str, offset: int, known: int = 0) -> int:
    """Return the last grapheme boundary at or before `offset`, not before `known`."""
    if is_grapheme_boundary(text, offset, known):
        return offset
    if is_surrogate_pair(text, offset - 1):
        return offset - 1
    return _cluster_start(text, offset, known)


def grapheme_boundaries(text: str, offsets: Sequence[int], known: int = 0) -> list[int]:
    """Return those of the sorted `offsets` that are grapheme boundaries, in one pass; `known` is one before them."""
    if len(offsets) < _FEW or text[offsets[0] - 1 : offsets[-1] + 1].isascii():
        return [offset for offset in offsets if is_grapheme_boundary(text, offset, known)]
    starts = set(_cluster_starts(text, _safe_start(text, offsets[0], known), offsets[-1] + 1))
    return [offset for offset in offsets if offset in starts and not is_surrogate_pair(text, offset - 1)]


def grapheme_end(text: str, start: int, limit: int) -> int:
    """Return where the grapheme cluster that begins at `start` ends, or `limit` if it is longer."""
    if is_surrogate_pair(text, start):
        return start + 2
    found = _GRAPHEME.match(text, start, limit)
    return int(found.end()) if found else limit


def _cluster_start(text: str, offset: int, known: int) -> int:
    *_, last = _cluster_starts(text, _safe_start(text, offset, known), offset + 1)
    return last


def _cluster_starts(text: str, start: int, stop: int) -> Iterator[int]:
    # A slice, as \X counts all regional indicators before each match, back to the beginning of the string.
    return (start + int(match.start()) for match in _GRAPHEME.finditer(text[start:stop]))


def _safe_start(text: str, offset: int, known: int) -> int:
    for width in (64, 1_024):
        begin = offset - width
        if begin <= known:
            break
        sure = _SURE_BOUNDARY.search(text, begin, offset)
        if sure:
            return int(sure.end())
    return known
