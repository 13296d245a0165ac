"""The part of a passage that shows why it was found. Pure."""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

MAX_TERMS = 256
"""Terms that are looked for, at most: the first ones."""

_BEFORE = 40
"""Characters that are shown before the first term, at most."""


def excerpt(text: str, terms: Iterable[str], width: int) -> str:
    """Return the text from shortly before the terms that say most; the caller cuts it at `width`.

    Among the pieces that begin with a term, the one whose terms are rarest in the text is taken: each term counts once,
    by one part in as many as the text holds of it. Of pieces that are equal, the last one begins nearest to them.

    Args:
        text: The passage, in one line.
        terms: Beginnings of words, as the lexical index found them.
        width: Characters that will be shown.

    Example:
        >>> excerpt("The pump was serviced. " * 9 + "TS-999: the pump runs dry.", ["pump", "ts-999"], 50)
        '… TS-999: the pump runs dry.'
    """
    wanted = {term.casefold() for term in itertools.islice(terms, MAX_TERMS)}
    if len(text) <= width or not wanted:
        return text
    # Each term by itself, since terms stand in one another: `ts` in `ts-999`.
    places = {term: re.finditer(rf"(?<!\w){re.escape(term)}", text, re.IGNORECASE) for term in wanted}
    hits = sorted((hit.start(), term) for term, found in places.items() for hit in found)
    if not hits:
        return text
    counts = Counter(term for _, term in hits)
    starts = [at for at, _ in hits]

    def weight(first: int) -> float:
        behind = bisect_left(starts, starts[first] + width - _BEFORE, first)
        return math.fsum(1 / counts[term] for term in {term for _, term in hits[first:behind]})

    best = starts[max(range(len(hits) - 1, -1, -1), key=weight)]
    begin = text.rfind(" ", 0, max(0, best - _BEFORE)) + 1 if best > _BEFORE else 0
    sentence = max(text.rfind(mark, begin, best) for mark in (". ", "? ", "! "))
    begin = sentence + 2 if sentence >= 0 else begin
    return f"… {text[begin:]}" if begin else text


def pluralize(number: int, noun: str) -> str:
    """Return a number of things in words.

    Args:
        number: How many there are.
        noun: What one of them is called; its plural ends with an "s".

    Example:
        >>> pluralize(1, "chunk"), pluralize(0, "chunk"), pluralize(1_234, "paid context")
        ('1 chunk', '0 chunks', '1,234 paid contexts')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
