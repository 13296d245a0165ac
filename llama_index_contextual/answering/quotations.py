"""Finds quotations in original text: white space, hyphenation, quotation marks, emphasis, accents and case aside."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MIN_WORDS = 3
"""Words of a quotation, at least; fewer are a term between quotation marks."""

_DROPPED = frozenset("\"'`´*_“”„‟‘’‚‛«»‹›\u00ad\u200b\u200c\u200d\u2060\ufeff")
_DASHES = frozenset("-‐‑‒–—―−")
_SIGN = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"  # scripts in which a sign counts as a word
_WORD = re.compile(rf"{_SIGN}|(?:(?!{_SIGN})\w)+(?:[-‐‑.,'’](?:(?!{_SIGN})\w)+)*")
_PARAGRAPH = r"(?:[^{marks}\n]|\n(?![ \t]*\n))+?"
_MARKED = re.compile(
    "|".join(
        [
            f"“({_PARAGRAPH.format(marks='“”')})”",
            f"„({_PARAGRAPH.format(marks='„“”')})[“”]",
            f"«({_PARAGRAPH.format(marks='«»')})»",
            # An inch sign follows a digit and opens nothing.
            f'(?<![\\w"])"({_PARAGRAPH.format(marks=chr(34))})"(?!\\w)',
            f"(?<!\\w)‘({_PARAGRAPH.format(marks='‘')})’(?!\\w)",
            f"(?<!\\w)'({_PARAGRAPH.format(marks='')})'(?!\\w)",
        ]
    )
)
_BLOCK = re.compile(r"^(?:[ \t]*>[^\n]*(?:\n|\Z))+", re.MULTILINE)
_BLOCK_MARK = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)
_ELISION = re.compile(r"\s*[\[(]?(?:…|\.\s?\.\s?\.)[\])]?\s*")
_ENDS = " \t\n.,;:!?…()[]"


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character).casefold()
    return "".join(part for part in parts if not "\u0300" <= part <= "\u036f")  # accents


class Folded:
    """A text in the form in which it is compared, and where each of its characters stands in the original.

    Example:
        >>> Folded("Infor-\\nmation  “A”").text
        'informationa'
        >>> Folded("The infor-\\nmation is here.").find("information is", 0)
        (4, 20)
    """

    def __init__(self, original: str) -> None:
        self.original = original
        folded: list[str] = []
        self.offsets: list[int] = []
        gap = ""
        for offset, character in enumerate(original):
            if character.isspace() or character in _DASHES:
                gap += "-" if character in _DASHES else " "
                continue
            if character in _DROPPED:
                continue
            for part in _folded(character):
                if gap and folded and folded[-1].isdigit() and part.isdigit():
                    # "3-4" and "3 4" are not "34".
                    folded.append("-" if "-" in gap else " ")
                    self.offsets.append(offset)
                folded.append(part)
                self.offsets.append(offset)
                gap = ""
        self.text = "".join(folded)

    def find(self, quoted: str, start: int) -> tuple[int, int] | None:
        """Return where a text stands in the original, as whole words, from offset `start` on; None if nowhere."""
        needle = fold(quoted)
        at = self.text.find(needle) if needle else -1
        while at >= 0:
            first, last = self.offsets[at], self.offsets[at + len(needle) - 1]
            if first >= start and self._is_edge(first) and self._is_edge(last + 1):
                return first, last + 1
            at = self.text.find(needle, at + 1)
        return None

    def _is_edge(self, offset: int) -> bool:
        """Return whether no word goes on over an offset."""
        around = self.original[max(0, offset - 1) : offset + 1]
        return offset == 0 or len(around) < 2 or not around.isalnum() or bool(re.search(_SIGN, around))


@lru_cache(maxsize=256)
def fold(quoted: str) -> str:
    """Return the form in which a text is compared."""
    return Folded(quoted).text


@dataclass(frozen=True)
class Quoted:
    """A quotation of an answer.

    Attributes:
        text: What stands between the marks.
        start: Where the quotation begins in the answer, its mark included.
        end: Where it ends.
    """

    text: str
    start: int
    end: int


def quotations_of(answer: str) -> list[Quoted]:
    """Return the quotations of a text: between quotation marks, or as a Markdown block quote; at least three words.

    Example:
        >>> [found.text for found in quotations_of('It says “food keeps three days” and "maybe".')]
        ['food keeps three days']
    """
    found = []
    blocks = [(block.start(), block.end()) for block in _BLOCK.finditer(answer)]
    for start, end in blocks:
        text = _BLOCK_MARK.sub("", answer[start:end]).strip()
        found.append(Quoted(re.sub(r"\s*\[Sources? [^\]]*\]\s*", " ", text).strip(), start, end))
    for match in _MARKED.finditer(answer):
        if not any(start <= match.start() < end for start, end in blocks):
            text = next(group for group in match.groups() if group is not None)
            found.append(Quoted(text, match.start(), match.end()))
    return sorted((quoted for quoted in found if _count(quoted.text) >= MIN_WORDS), key=lambda quoted: quoted.start)


def _count(text: str) -> int:
    return len(_WORD.findall(text))


def locate(quoted: str, text: Folded) -> tuple[int, int] | None:
    """Return where a quotation stands in a text, or None; what it leaves out and says so ("…") may be missing.

    Example:
        >>> locate("food … three days.", Folded("All Food keeps for three days here."))
        (4, 29)
    """
    whole = text.find(quoted.strip(_ENDS), 0)
    pieces = _pieces(quoted)
    if whole is not None or len(pieces) < 2:
        return whole
    spans: list[tuple[int, int]] = []
    for piece in pieces:
        span = text.find(piece, spans[-1][1] if spans else 0)
        if span is None:
            return None
        spans.append(span)
    return spans[0][0], spans[-1][1]


def _pieces(quoted: str) -> list[str]:
    return [piece for part in _ELISION.split(quoted) if _count(piece := part.strip(_ENDS))]


def is_stitched(quoted: str, texts: Sequence[Folded]) -> bool:
    """Return whether a quotation is put together from pieces of three or more words that stand in the texts.

    Example:
        >>> is_stitched("food keeps long boil all water", [Folded("Food keeps long."), Folded("Boil all water.")])
        True
    """
    marked = _pieces(quoted)
    if len(marked) > 1 and all(any(text.find(piece, 0) for text in texts) for piece in marked):
        return True
    words = [(match.start(), match.end()) for match in _WORD.finditer(quoted)]
    reached = {0}
    for first in range(len(words)):
        if first not in reached:
            continue
        for last in range(first + 1, len(words) + 1):
            span = quoted[words[first][0] : words[last - 1][1]]
            if not any(text.find(span, 0) for text in texts):
                break
            if last - first >= MIN_WORDS:
                reached.add(last)
    return len(words) in reached
