"""Text helpers: excerpts around query terms, numbers with nouns, values, and JSON."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import reprlib
import shlex
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Any

_WINDOWS = os.name == "nt"
_PLAIN = re.compile(r"[\w.:/\\=@+-]+")
"""Words that need no quotes in cmd and in PowerShell."""

MAX_TERMS = 256
"""Maximum number of terms to search for; additional terms are ignored."""

_BEFORE = 40
"""Approximate maximum number of characters before the first term of an excerpt."""


def excerpt(text: str, terms: Iterable[str], width: int) -> str:
    """Return the end of a text, starting shortly before the most specific terms. The caller must truncate it.

    Of all windows that begin with a term, the window with the rarest terms is chosen. Each term counts once, weighted
    by the inverse of its frequency in the text. If several windows have the same weight, the last of them is chosen,
    because it begins closest to the terms.

    Args:
        text: The passage, on one line.
        terms: Word prefixes, as matched by the lexical index.
        width: Number of characters that will be shown.

    Example:
        >>> excerpt("The pump was serviced. " * 9 + "TS-999: the pump runs dry.", ["pump", "ts-999"], 50)
        '… TS-999: the pump runs dry.'
    """
    words = {term.casefold() for term in itertools.islice(terms, MAX_TERMS)}
    if len(text) <= width or not words:
        return text
    # Each term is searched for separately, because a term can contain another: `ts-999` contains `ts`.
    places = {term: re.finditer(rf"(?<!\w){re.escape(term)}", text, re.IGNORECASE) for term in words}
    hits = sorted((hit.start(), term) for term, matches in places.items() for hit in matches)
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
    """Return a number with a noun in the singular or plural.

    Args:
        number: The number.
        noun: The noun in the singular; its plural must end in "s".

    Example:
        >>> pluralize(1, "chunk"), pluralize(0, "chunk"), pluralize(1_234, "paid context")
        ('1 chunk', '0 chunks', '1,234 paid contexts')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def quote_word(word: str) -> str:
    """Return a word of a command in the quotes that it needs in a shell; on Windows, in both cmd and PowerShell."""
    if not _WINDOWS:
        return shlex.quote(word)
    return word if _PLAIN.fullmatch(word) else '"' + word.replace('"', '\\"') + '"'


def represent(value: object) -> str:
    """Return the `repr` of a value, shortened if the value is nested too deeply."""
    try:
        return repr(value)
    except RecursionError:
        return reprlib.repr(value)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
