"""Check a context that an LLM wrote against the text that it read.

A context may only contain what its segment says, because a search would otherwise find the chunk by a name or a number
that its document does not contain. Sentences with such a name or number are removed, as are sentences that repeat the
chunk. A name that only describes the noun behind it is removed alone. What remains is used; if nothing remains, the
chunk gets the structural context.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Set
from decimal import Decimal
from functools import cached_property, partial
from itertools import pairwise
from typing import Literal, NamedTuple

from llama_index_contextual.index.analysis import is_function_word, language_of
from llama_index_contextual.index.numbers import number_matches, numbers_in
from llama_index_contextual.readers.boundaries import Rank, structural_offsets

Finding = Literal["unsupported", "repetition", "keywords", "self_reference", "language", "missing_line"]
"""What is wrong with a context:

- "unsupported": It contains a name, number or date that the segment does not contain.
- "repetition": A sentence repeats the chunk.
- "keywords": It is a list of keywords.
- "self_reference": It speaks of "this chunk" instead of its content.
- "language": It is in another language than the segment.
- "missing_line": A line in one of the languages in `context_languages` is missing.
"""

_WORD = re.compile(r"[^\W_]+")
_ABBREVIATION = re.compile(r"[A-Z]{2,}s?")
_BEGINS = re.compile(r"[.!?:–—]")  # a word behind is written with a capital letter anyway
_LABEL = re.compile(r"[A-Z]|[IVX]+")  # of a section, chapter or exhibit
_OF_LABEL = re.compile(r"\s?(?:(?:No\.?|Nr\.?|[§#])\s?)?(?:\d|[IVX]+\b|[A-Z]\b)")
_TITLES = frozenset({"Dr", "Prof", "Herr", "Herrn", "Frau", "Mr", "Mrs", "Ms"})
_DATE = re.compile(r"(?<!\d)((?:19|20)\d\d)[-_.]?([01]\d)[-_.]?([0-3]\d)(?!\d)")
_THIS_CHUNK = re.compile(r"\b(?:this|the|given|provided|following) (?:chunk|excerpt|snippet)\b", re.IGNORECASE)
_KEYWORDS = re.compile(r"\W*(?:key ?words?|key (?:terms|phrases)|tags|topics|schlagw[oö]rter)\s*:", re.IGNORECASE)
_BRACKETS = re.compile(r"\s?\([^()]*\)")
_MIN_LISTED = 6
_ATTRIBUTE = re.compile(r"(?<![^\W_])([^\W\d_]+) (?=([^\W\d_]+))")
_NO_END = re.compile(r"\b(?:[A-Z][a-z]{0,3}|[a-z]|\d{1,2})\.\s*$")  # such as Inc. or No.
_SHORTEST_BEGINNING = 4
_SHARE = 0.6
"""Share of a name's letters with which a word of the segment must begin, because languages inflect names."""
_WITH_CAPITAL_NOUNS = frozenset({"german"})
"""Languages that write all nouns with a capital letter."""
_MIN_REPETITION = 60
"""Minimum number of letters of a sentence that counts as a repetition."""


class CheckedContext(NamedTuple):
    """A context after its check.

    Attributes:
        text: The context without the removed sentences, which may be empty.
        findings: What was wrong with it.
        unsupported: Names and numbers that the segment does not contain.
    """

    text: str
    findings: frozenset[Finding] = frozenset()
    unsupported: tuple[str, ...] = ()


class SegmentFacts:
    """The words and numbers of the text that an LLM read, which are computed when they are first needed.

    Args:
        texts: The text of the segment and all else that the prompt says about the document.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._text = "\n".join(texts)

    @cached_property
    def language(self) -> str:
        """Name of the language, or an empty string if it is not recognised."""
        return language_of(self._text)

    @cached_property
    def _numbers(self) -> set[Decimal]:
        return numbers_in(self._text) | {
            Decimal(number) for match in _DATE.finditer(self._text) for number in match.groups()
        }

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(map(_folded, _WORD.findall(self._text)))

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(word[:end] for word in self._words for end in range(_SHORTEST_BEGINNING, len(word) + 1))

    @cached_property
    def _letters(self) -> str:
        return "".join(_WORD.findall(_folded(self._text)))

    @cached_property
    def _initials(self) -> str:
        return "".join(word[0] for word in _WORD.findall(self._text)).upper()

    def has_number(self, values: set[Decimal], notation: str) -> bool:
        """Return whether the text contains one of the values of a number, or the numbers that its spaces separate."""
        if not values.isdisjoint(self._numbers):
            return True
        parts = notation.split()
        return len(parts) > 1 and all(part.isdigit() and Decimal(part) in self._numbers for part in parts)

    def has_name(self, word: str) -> bool:
        """Return whether the text contains a word, perhaps inflected or written apart, or the words it abbreviates."""
        if _ABBREVIATION.fullmatch(word):
            word = word.removesuffix("s")
            return _folded(word) in self._words or _folded(word) in self._letters or word in self._initials
        key = _folded(word)
        if key in self._words or len(key) < _SHORTEST_BEGINNING:
            return key in self._words
        prefix = key[: max(_SHORTEST_BEGINNING, round(_SHARE * len(key)))]
        return prefix in self._beginnings or key in self._letters


def check_context(context: str, chunk: str, facts: SegmentFacts) -> CheckedContext:
    """Check a context, and remove the sentences that the segment does not support or that repeat the chunk.

    Args:
        context: The context.
        chunk: Text of the chunk.
        facts: Words and numbers of the segment.

    Example:
        >>> facts = SegmentFacts(["ACME Corp. Report for 2023. Revenue grew by 3 %."])
        >>> check_context("ACME's revenue in 2023. It followed 2021.", "Revenue grew by 3 %.", facts)
        CheckedContext(text="ACME's revenue in 2023.", findings=frozenset({'unsupported'}), unsupported=('2021',))
    """
    language, of_chunk = language_of(context), _letters_of(chunk)
    unknown = partial(_unknown, facts=facts, nouns=language in _WITH_CAPITAL_NOUNS)
    sentences: list[str] = []
    unsupported: list[str] = []
    findings: set[Finding] = set()
    for sentence in _sentences(context):
        remainder, names = sentence, unknown(sentence)
        if names:
            unsupported += names
            remainder = _BRACKETS.sub(lambda part: "" if unknown(part[0]) else part[0], remainder)
            remainder = _ATTRIBUTE.sub(partial(_without_attribute, frozenset(names)), remainder)
        letters = _letters_of(remainder)
        if len(letters) >= _MIN_REPETITION and letters in of_chunk:
            findings.add("repetition")
        elif not (names and unknown(remainder)):
            sentences.append(remainder)
    if unsupported:
        findings.add("unsupported")
    if _KEYWORDS.match(context) or _is_list(context):
        findings.add("keywords")
    if _THIS_CHUNK.search(context):
        findings.add("self_reference")
    if language and facts.language and language != facts.language:
        findings.add("language")
    return CheckedContext(" ".join(sentences), frozenset(findings), tuple(dict.fromkeys(unsupported)))


def check_line(line: str, facts: SegmentFacts) -> str:
    """Return a line in another language without the terms whose numbers the segment does not contain.

    Names cannot be checked, because they are translated.

    Example:
        >>> check_line("de: Mietvertrag 2023, Frist von 14 Tagen", SegmentFacts(["Lease of 2023."]))
        'de: Mietvertrag 2023'
    """
    code, _, terms = line.partition(": ")
    supported = [
        term
        for term in terms.split(", ")
        if all(facts.has_number(values, match[0]) for match, values in number_matches(term))
    ]
    return f"{code}: {', '.join(supported)}" if supported else ""


def _is_list(text: str) -> bool:
    """Return whether a text consists of short phrases between commas, semicolons or line breaks."""
    parts = [part for part in re.split(r"[,;\n•|]", text) if part.strip()]
    return len(parts) >= _MIN_LISTED and len(text.split()) <= 3 * len(parts) and not re.search(r"[.!?]\s", text)


def _folded(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text).casefold() if not unicodedata.combining(c))


def _letters_of(text: str) -> str:
    return "".join(_WORD.findall(text.casefold()))


def _sentences(text: str) -> list[str]:
    """Divide a text into sentences; a full stop after an abbreviation or a short number ends none."""
    starts = [0, *structural_offsets(text, ranks=(Rank.SENTENCE,))[Rank.SENTENCE], len(text)]
    sentences = [""]
    for start, end in pairwise(starts):
        if sentences[-1] and not _NO_END.search(sentences[-1][-8:]):
            sentences.append("")
        sentences[-1] += text[start:end]
    return [sentence.strip() for sentence in sentences if sentence.strip()]


def _without_attribute(names: Set[str], pair: re.Match[str]) -> str:
    """Return an empty string for a name before the noun that it describes: "the Rust module" is also "the module"."""
    name, noun = pair[1], pair[2]
    return "" if name in names and noun.islower() and not is_function_word(noun) else pair[0]


def _unknown(sentence: str, *, facts: SegmentFacts, nouns: bool) -> list[str]:
    """Return the numbers and names in a sentence that the segment does not contain.

    Names are capitalised words, except at the beginning of a sentence.

    Args:
        sentence: The sentence, or a part of it in brackets.
        facts: Words and numbers of the segment.
        nouns: Whether the language capitalises nouns. Then only abbreviations, words with digits, and words after a
            title or after another unknown word are names.
    """
    unknown = [match[0] for match, values in number_matches(sentence) if not facts.has_number(values, match[0])]
    before, end = "", 0
    for word in _WORD.finditer(sentence):
        text, gap = word[0], sentence[end : word.start()]
        begins = (_BEGINS.search(gap) and before not in _TITLES) or (not end and "(" not in gap)
        follows = before in _TITLES or (gap == " " and before[0].isupper() and not facts.has_name(before))
        is_code = sum(c.isupper() for c in text) > 1 or any(c.isdigit() for c in text)
        before, end = text, word.end()
        if begins or not text[0].isupper() or _LABEL.fullmatch(text) or _OF_LABEL.match(sentence, end):
            continue
        if (is_code or follows or not nouns) and not facts.has_name(text):
            unknown.append(text)
    return unknown
