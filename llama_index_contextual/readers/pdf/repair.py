"""Repairs of extracted text: hyphenated words at line ends, ligatures, control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

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
