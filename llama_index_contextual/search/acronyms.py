"""Acronyms and their long forms: if a question contains one form, the other form is searched too."""

from __future__ import annotations

import re
from collections.abc import Mapping

_POSSESSIVE = re.compile(r"['’]s$")
_PUNCTUATION = ".,;:?!()[]\"'“”‘’"


class Acronyms:
    """A table of acronyms, used to expand questions.

    Args:
        table: Short forms with their long forms.

    Example:
        >>> Acronyms({"PP&E": "Property, plant and equipment"}).added_to("How is PP&E measured?")
        ('Property, plant and equipment',)
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = dict(table)
        self._short: dict[str, list[str]] = {}
        for short, long in self.table.items():
            self._short.setdefault(_folded(long), []).append(short)
        self._lengths: dict[str, set[int]] = {}  # numbers of words of the long forms, by their first word
        for long in self._short:
            words = long.split(" ")
            self._lengths.setdefault(words[0], set()).add(len(words))

    def added_to(self, question: str) -> tuple[str, ...]:
        """Return the long forms of the acronyms in a question, and the acronyms for the long forms in it.

        Acronyms are case-sensitive ("IT" is not "it"); long forms are not.
        """
        words = dict.fromkeys(_POSSESSIVE.sub("", word.strip(_PUNCTUATION)) for word in question.split())
        folded = _folded(question).split()
        spans = {
            " ".join(folded[start : start + length])
            for start, word in enumerate(folded)
            for length in self._lengths.get(word, ())
        }
        longs = [self.table[word] for word in words if word in self.table and _folded(self.table[word]) not in spans]
        shorts = [short for span in sorted(spans) for short in self._short.get(span, ()) if short not in words]
        return tuple(dict.fromkeys([*longs, *shorts]))


def _folded(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))
