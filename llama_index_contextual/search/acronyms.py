"""Acronyms that the texts themselves explain, as in "Property, plant and equipment (PP&E)"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_BRACKETS = re.compile(r"\(([^()]{2,120})\)")
_SHORT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9&/.-]{0,8}[A-Za-z0-9])")
_LONG = re.compile(r"[\w\s,&'’/–-]+")  # words, but not the arguments of a function call
_WORD_BEFORE = re.compile(r"(\S+)\s+$")
_SENTENCE_END = re.compile(r"[.!?;:\n]\s+(?=[^.!?;:\n]*$)")
_PLURAL = re.compile(r"[A-Z]{2,}s")
_POSSESSIVE = re.compile(r"['’]s$")
_PUNCTUATION = ".,;:?!()[]\"'“”‘’"
_SMALL = frozenset({"a", "and", "&", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"})
_WINDOW = 200  # characters before a bracket; no long form is longer


def find_acronyms(texts: Iterable[str]) -> dict[str, str]:
    """Return the acronyms that texts explain in brackets, each with its most frequent long form.

    The method is that of Schwartz and Hearst ("A simple algorithm for identifying abbreviation definitions in
    biomedical text", PSB 2003): the letters of the short form are matched from right to left in the words before it,
    the first letter at the start of a word. The initials of the words are tried before that, so that "PP&E" does not
    become "plant and equipment". A short form has at least two capitals.

    Example:
        >>> find_acronyms(["Property, plant and equipment (PP&E) fell.", "WHO (World Health Organization)"])
        {'PP&E': 'Property, plant and equipment', 'WHO': 'World Health Organization'}
    """
    return most_frequent(pair for text in texts for pair in explained(text))


def explained(text: str) -> list[tuple[str, str]]:
    """Return the acronyms that a text explains in brackets, each with its long form."""
    if "(" not in text:
        return []
    matches = _BRACKETS.finditer(text)
    pairs = (_pair(text[max(0, m.start() - _WINDOW) : m.start()], m[1].strip(" \"'“”‘’")) for m in matches)
    return [pair for pair in pairs if pair is not None]


def most_frequent(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return each acronym with its most frequent long form."""
    long_forms: dict[str, Counter[str]] = {}
    spellings: dict[str, str] = {}
    for short, long in pairs:
        spellings.setdefault(long.casefold(), long)
        long_forms.setdefault(short, Counter())[long.casefold()] += 1
    return {short: spellings[longs.most_common(1)[0][0]] for short, longs in long_forms.items()}


class Acronyms:
    """Acronyms of a corpus, which add words to a question.

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
        """Return the long forms of the acronyms in a question, and the acronyms of the long forms in it.

        Acronyms are case-sensitive ("IT" is not "it"), long forms are not.
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


def _pair(before: str, inside: str) -> tuple[str, str] | None:
    """Return the short and the long form from a bracket and the text before it; None if it explains no acronym."""
    if _is_short(inside):
        short, words = inside, _SENTENCE_END.split(before)[-1].split()
        candidate = " ".join(words[-min(len(short) + 5, 2 * len(short)) :])
    elif (match := _WORD_BEFORE.search(before)) is not None and _is_short(match[1]):
        short, candidate = match[1], " ".join(inside.split())
    else:
        return None
    long = _by_initials(short, candidate) or _by_letters(short, candidate)
    if long is None or len(long) <= len(short) or short in long.split() or not _LONG.fullmatch(long):
        return None
    return short.removesuffix("s") if _PLURAL.fullmatch(short) else short, long


def _is_short(text: str) -> bool:
    return _SHORT.fullmatch(text) is not None and sum(letter.isupper() for letter in text) >= 2


def _by_initials(short: str, candidate: str) -> str | None:
    """Return the last words whose initials are the letters of the short form, apart from small words."""
    letters = [letter for letter in short.casefold() if letter.isalnum()]
    words = [(match.start(), match[0]) for match in re.finditer(r"\w+", candidate)]
    for at in range(len(words) - 1, -1, -1):
        initials = [word[0].casefold() for _, word in words[at:] if word.casefold() not in _SMALL]
        if initials == letters and words[at][1].casefold() not in _SMALL:
            return candidate[words[at][0] :]
        if len(initials) > len(letters):
            return None
    return None


def _by_letters(short: str, candidate: str) -> str | None:
    """Return the shortest end of the candidate with the letters in order and the first one at the start of a word."""
    letters = [letter for letter in short.casefold() if letter.isalnum()]
    folded, at = candidate.lower(), len(candidate)
    for number, letter in reversed(list(enumerate(letters))):
        at = folded.rfind(letter, 0, at)
        while number == 0 and at > 0 and folded[at - 1].isalnum():
            at = folded.rfind(letter, 0, at)
        if at < 0:
            return None
    return candidate[at:]
