"""Repairs of the text itself: hyphens at line ends, ligatures, characters that are no text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

LIGATURES: Final = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
SOFT_HYPHEN: Final = "\u00ad"
_HYPHENS: Final = "-\u2010" + SOFT_HYPHEN
_NO_TEXT = dict.fromkeys((*range(9), 11, *range(14, 32), 127, 65279, 65534, 65535))
_SURROGATES = dict.fromkeys(range(55296, 57344), "�")
_CHARACTERS = str.maketrans({**LIGATURES, "\u00a0": " "}) | _NO_TEXT | _SURROGATES
_WORD = re.compile(r"[^\W\d_]+(?:[-\u2010][^\W\d_]+)*")
_BROKEN = re.compile(r"([^\W\d_]+)([-\u2010\u00ad])$")
_REST = re.compile(r"[^\W\d_]+")


def clean(text: str) -> str:
    """Write ligatures as letters, drop control characters, replace lone surrogates."""
    return text.translate(_CHARACTERS)


def vocabulary(lines: Iterable[str]) -> set[str]:
    """Return the words of the lines in lower case, except those that a line end cuts."""
    words: set[str] = set()
    for line in lines:
        found = _WORD.findall(line.lower())
        words.update(found[1:-1] if line.endswith(tuple(_HYPHENS)) else found[1:])
    return words


def join_hyphens(lines: Sequence[str], words: set[str]) -> list[str]:
    """Bring words that a line end cuts together on the first line.

    The hyphen goes when it only marks the cut: the joined word occurs elsewhere in the document, or one of the halves
    is no word of the document. It stays in "long-term".
    """
    out = list(lines)
    for at in range(len(out) - 1):
        head, tail = _BROKEN.search(out[at]), _REST.match(out[at + 1])
        if head is None or tail is None or not tail[0][0].islower():
            continue
        first, second = head[1], tail[0]
        mark = "" if head[2] == SOFT_HYPHEN or _is_one_word(first.lower(), second.lower(), words) else head[2]
        taken = len(second) + len(re.match(r"[^\s\w]*", out[at + 1][len(second) :])[0])
        out[at] = out[at][: head.start()] + first + mark + out[at + 1][:taken]
        out[at + 1] = out[at + 1][taken:].lstrip()
    return [line.replace(SOFT_HYPHEN, "") for line in out if line]


def _is_one_word(first: str, second: str, words: set[str]) -> bool:
    if first + second in words:
        return True
    return f"{first}-{second}" not in words and not (first in words and second in words)
