"""Paragraphs of a page: which lines belong together.

Lines of a paragraph are joined, because a line feed costs a token, a space does not, and line feeds split sentences.
Rows of tables and tables of contents, list items, headings and short lines remain separate lines. Words that are
hyphenated at the end of a line are joined, ligatures and control characters replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from llama_index_contextual.readers.pdf.engine import Line

STEP = 1.3  # of the usual distance of lines: more is another paragraph
SAME_SIZE = 0.1  # of the font size
MAX_SHIFT = 6.0  # of the font size: how far lines of one paragraph may begin apart
INDENT = 1.0  # of the font size: a line that is indented more begins a paragraph
MIN_CHARACTERS = 28  # of a line that can go on
NEAR_EDGE = 8.0  # of the font size
MIN_NEAR_EDGE = 1 / 3  # of the lines; with less it is a list, not running text

_ITEM = re.compile(r"(?:[•●▪■◦‣·–—*o-]|\(?(?:\d{1,3}|[A-Za-z]|[ivxlc]{1,5})[.)]|\d{1,3}(?:\.\d{1,3})+\.?|§+)(?=\s|$)")
_LEADER = re.compile(r"(?:[._…-]\s?){4}\s*\S{0,8}$")  # of a table of contents, or a blank to fill in
_LETTER = re.compile(r"[^\W_]")


def goes_on(lines: Sequence[Line]) -> list[bool]:
    """Return for each line whether its paragraph continues on the next line."""
    out = [False] * len(lines)
    for first, last in _blocks(lines):
        block = lines[first:last]
        edge = max(line.x1 for line in block)
        near = sum(edge - line.x1 <= NEAR_EDGE * line.size for line in block)
        if near >= MIN_NEAR_EDGE * len(block):
            for at, (line, following) in enumerate(pairwise(block), first):
                out[at] = _is_full(line, following, edge) and not _begins_paragraph(line, following)
    return out


def _blocks(lines: Sequence[Line]) -> Iterator[tuple[int, int]]:
    """Yield the start and the end (exclusive) of each stretch of evenly spaced lines."""
    steps = sorted(_step(a, b) for a, b in pairwise(lines) if _step(a, b) > 0.8)
    largest = STEP * steps[len(steps) // 4] if steps else 0.0
    first = 0
    for at in range(1, len(lines) + 1):
        if at == len(lines) or not _evenly_set(lines[at - 1], lines[at], largest):
            yield first, at
            first = at


def _step(line: Line, following: Line) -> float:
    """Return the distance to the next line in font sizes, or NaN if a position is unknown."""
    return (line.y - following.y) / (line.size or 1.0)


def _evenly_set(line: Line, following: Line, largest: float) -> bool:
    size = max(line.size, following.size)
    return (
        line.cells == following.cells == 1
        and abs(line.size - following.size) <= SAME_SIZE * size
        and abs(line.x0 - following.x0) <= MAX_SHIFT * size
        and 0 < _step(line, following) <= largest
    )


def _is_full(line: Line, following: Line, edge: float) -> bool:
    """Return whether the first word of the next line would not have fitted on this line."""
    word = len(following.text.split(maxsplit=1)[0]) + 1
    width = word * (following.x1 - following.x0) / len(following.text)
    return len(line.text) >= MIN_CHARACTERS and line.x1 + width > edge


def _begins_paragraph(line: Line, following: Line) -> bool:
    is_indented = following.x0 - line.x0 > INDENT * line.size and not _ITEM.match(line.text)
    is_end = line.text.endswith(":") or _LEADER.search(line.text) is not None
    is_rule = not _LETTER.search(following.text)
    return is_indented or is_end or is_rule or _ITEM.match(following.text) is not None


# ---- Repairs of extracted text ---------------------------------------------------------------------------------------

SOFT_HYPHEN: Final = "\u00ad"
_HYPHENS: Final = ("-", "\u2010", SOFT_HYPHEN)
LIGATURES: Final = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
_CONTROLS: Final = dict.fromkeys([*range(9), 11, *range(14, 32), *range(127, 160), 0xFEFF, 0xFFFE, 0xFFFF])
_SURROGATES: Final = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_CHARACTERS: Final = str.maketrans({**LIGATURES, "\u00a0": " "}) | _CONTROLS | _SURROGATES

_WORD = re.compile(r"[^\W\d_]+(?:[-\u2010][^\W\d_]+)*")
_HEAD = re.compile(r"(?<![^\W_])([^\W\d_]+)([-\u2010\u00ad])$")
_TAIL = re.compile(r"([^\W\d_]+)(?:-[^\W\d_]+)*(?:-$|[^\w\s]*)")
_MIN_CUTS = 3  # number of certainly hyphenated words, before doubtful ones are rejoined as well


def clean(text: str) -> str:
    """Replace ligatures by letters, remove control characters, and replace lone surrogates."""
    return text.translate(_CHARACTERS)


class HyphenJoiner:
    """Joiner of words that are hyphenated at the end of a line.

    The hyphen is removed if the joined word occurs elsewhere in the document ("agree-ment"), and kept if the hyphenated
    word does ("long-term"). If neither occurs, it is removed only if the document certainly hyphenates other words and
    the halves are not words themselves.

    Args:
        pages: The lines of the whole document.
    """

    def __init__(self, pages: Iterable[Sequence[str]]) -> None:
        self._words: set[str] = set()
        cuts = []
        for lines in pages:
            for at, line in enumerate(lines):
                words = _WORD.findall(line.lower())
                start = 1 if at and lines[at - 1].endswith(_HYPHENS) else 0
                self._words.update(words[start : -1 if line.endswith(_HYPHENS) else None])
                cuts.append(_cut(line, lines[at + 1]) if at + 1 < len(lines) else None)
        self._cuts_words = sum(cut is not None and self._joined(*cut) for cut in cuts) >= _MIN_CUTS

    def join(self, lines: Sequence[str]) -> list[str]:
        """Return the lines of one page with hyphenated words rejoined; a line may become empty."""
        out = list(lines)
        for at in range(len(out) - 1):
            cut = _cut(out[at], out[at + 1])
            if cut is None:
                continue
            tail = _TAIL.match(out[at + 1])
            end = tail.end() if tail else 0
            head = out[at][:-1] if self._is_one_word(out[at][-1], *cut) else out[at]
            out[at], out[at + 1] = head + out[at + 1][:end], out[at + 1][end:].lstrip()
        return [line.replace(SOFT_HYPHEN, "") for line in out]

    def _is_one_word(self, mark: str, first: str, second: str) -> bool:
        if mark == SOFT_HYPHEN or self._joined(first, second):
            return True
        halves = first in self._words and second in self._words
        return self._cuts_words and not halves and f"{first}-{second}" not in self._words

    def _joined(self, first: str, second: str) -> bool:
        return first + second in self._words and f"{first}-{second}" not in self._words


def _cut(line: str, following: str) -> tuple[str, str] | None:
    """Return the halves, in lower case, of a word that seems to be hyphenated at the end of a line."""
    if not line.endswith(_HYPHENS):
        return None
    head, tail = _HEAD.search(line), _TAIL.match(following)
    if head is None or tail is None:
        return None
    goes_on = tail[1][0].islower() or (head[1].isupper() and tail[1].isupper() and len(tail[1]) > 1)
    return (head[1].lower(), tail[1].lower()) if goes_on else None
