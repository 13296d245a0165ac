"""Variants of a question's terms: forms in other languages, codes in another spelling, compounds, and corrected words.

A variant is a term of the index that is searched in addition to a term of the question, usually with a lower weight.

Compounds: in languages that write compounds as one word, such as German, a question about a "Frist" also finds a
"Kündigungsfrist", and a question about the "Kündigungsfrist" the words "Frist" and "Kündigung". No dictionary is
needed: the parts are compared with the vocabulary of the collection, as in Koehn and Knight, "Empirical Methods for
Compound Splitting", EACL 2003. Letters that link the parts, such as the "s" after "Kündigung", are ignored.

Spelling: four out of five misspelt words have one typing error; in words of at least eight letters, two are corrected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from typing import Literal, NamedTuple, Protocol

from llama_index_contextual.index.analysis import (
    LONGEST,
    WITH_OTHER_LETTERS,
    Analyzer,
    edit_distance_one,
    fold,
    is_code,
    joined,
    may_be_misspelt,
    with_space,
)

Kind = Literal["form", "language", "code", "compound", "spelling"]

GUESS_WEIGHT = 0.5
"""Total weight of the spelling candidates for an unknown word; a term of the query has weight 1."""

COMPOUND_WEIGHT = 0.2
"""Weight of a compound of a term or of the parts of a compound, relative to a text that contains the term itself."""

OTHER_LANGUAGE_WEIGHT = 0.25
"""Weight of a term's form in another language if documents contain the term itself."""

PREFIXES = ("ה", "ו", "ב", "ל", "מ", "ש", "כ", "וה", "שה", "מה", "כש")
"""Hebrew words that are written as the first letters of the next word: the article, prepositions and conjunctions."""

OTHER_FORM_WEIGHT = 0.8
"""Weight of a code with a space or a word with a prefix, so that the form in the question ranks first."""

MAX_SPELLED = 8
"""Maximum number of unknown words whose spelling is corrected, counted from the start of the query."""

MAX_COMPOUNDS = 32
"""Maximum number of compounds of a term that are searched; the most frequent ones are preferred."""

LINKS: Mapping[str, Sequence[str]] = {
    "german": ("es", "en", "er", "s", "n", "e"),
    "dutch": ("en", "er", "s", "e", "n"),
    "danish": ("s", "e", "er"),
    "norwegian": ("s", "e"),
    "swedish": ("s", "e", "o", "u", "a"),
    "finnish": ("n",),
}
"""Letters that link the parts of a compound, by language; other languages do not write compounds as one word."""

UMLAUTS: Mapping[str, Mapping[str, str]] = {
    "german": {"ae": "ä", "oe": "ö", "ue": "ü"},
    "swedish": {"ae": "ä", "oe": "ö", "aa": "å"},
    "finnish": {"ae": "ä", "oe": "ö"},
    "danish": {"ae": "æ", "oe": "ø", "aa": "å"},
    "norwegian": {"ae": "æ", "oe": "ø", "aa": "å"},
}
"""Letters that are also written as two letters, by language."""

LONG = 8
"""Number of letters of a word in which two typing errors are corrected."""

_MAX_ERRORS = 2
_LONGEST_COMPOUND = 48  # number of letters of a word in which two typing errors are corrected
_LONGEST_ENDING = 5  # number of letters that a stemmer may remove

_SURE = 5  # number of letters of a word that is part of another one by chance only rarely
_SHORTEST = 3  # number of letters of a word that is part of another one if the rest is a word too
_HEBREW = re.compile("[א-ת]{3,}")
_FILLER = "bokobok"  # letters without a meaning or an ending
_LONGEST_RUN = 5  # number of tokens that a code may be written in
_LONGEST_PART = 12  # number of characters of a token of such a code


class Vocabulary(Protocol):
    """The terms of an index; see `LexicalIndex`.

    Attributes:
        analyzer: Analyzer that splits text into terms.
        size: Number of texts.
    """

    analyzer: Analyzer
    size: int

    def holders(self, term: str) -> int:
        """Return the number of texts that contain a term."""

    def containing(self, part: str, *, is_first: bool) -> Iterator[tuple[str, str]]:
        """Yield the terms that begin or end with a part, and the rest of each."""

    def with_marks(self, term: str) -> set[str]:
        """Return the terms that are equal to a term without marks, except for their marks."""

    def beginning_with(self, letter: str) -> set[str]:
        """Return the terms that begin with a letter."""


class Correction(NamedTuple):
    """A spelling candidate for an unknown word.

    Attributes:
        term: The term of the index.
        word: The corrected word.
        weight: Weight of the term.
    """

    term: str
    word: str
    weight: float


class Variant(NamedTuple):
    """A term that is searched in addition to a term of the question.

    Attributes:
        term: The term.
        of: The term of the question.
        weight: Weight of the term.
        kind: Reason why it is searched.
        word: The corrected word, for spelling candidates.
    """

    term: str
    of: str
    weight: float
    kind: Kind
    word: str = ""


def find_variants(
    index: Vocabulary, texts: Sequence[tuple[str, float]], counts: Mapping[str, float]
) -> Iterator[Variant]:
    """Yield the variants of the terms of a question, except those that are terms of the question themselves.

    Args:
        index: The index.
        texts: The texts of the question with their weights.
        counts: The terms of the question with their weights.
    """
    for text, weight in texts:
        words = list(index.analyzer.own_terms(text))
        for variant in chain.from_iterable(find(index, words) for find in _FINDERS):
            if variant.term not in counts:
                yield variant._replace(weight=weight * variant.weight)


Words = Sequence[tuple[str, tuple[str, ...], Analyzer]]
"""The words of a question, each with its terms and the analyzer for the language of the question."""


def _of_languages(index: Vocabulary, words: Words) -> Iterator[Variant]:
    """Yield the terms of words in the other languages of the documents."""
    if any(index.analyzer.differs(own) for _, _, own in words[:1]):
        for word, terms, _ in words:
            weight = OTHER_LANGUAGE_WEIGHT if any(map(index.holders, terms)) else 1.0
            for term in index.analyzer.other_terms(word) if terms else ():
                if term not in terms and index.holders(term):
                    yield Variant(term, terms[0], weight, "language")


def _of_umlauts(index: Vocabulary, words: Words) -> Iterator[Variant]:
    """Yield words with umlauts that are written with two letters, such as "Mueller", or the other way round."""
    for token, terms, analyzer in words:
        letters = UMLAUTS.get(analyzer.language)
        if letters is None or len(terms) != 1:
            continue
        word = token.casefold()
        shorter = reduce(lambda form, pair: form.replace(*pair), letters.items(), word)
        longer = reduce(lambda form, pair: form.replace(pair[1], pair[0]), letters.items(), word)
        for term in map(analyzer.stem, (shorter, longer)):
            if term not in terms and index.holders(term):
                yield Variant(term, terms[0], 1.0, "form")


def _of_marks(index: Vocabulary, words: Words) -> Iterator[Variant]:
    """Yield words that the question has without marks, such as "subesi", in languages whose terms keep the marks."""
    if WITH_OTHER_LETTERS.isdisjoint(index.analyzer.languages):
        return
    for word, terms, _ in words:
        if len(terms) == 1 and word.isascii() and not index.holders(terms[0]):
            for plain in {*terms, *index.analyzer.stems({word.casefold()})}:
                yield from (Variant(term, terms[0], 1.0, "form") for term in sorted(index.with_marks(plain)))


def _of_prefixes(index: Vocabulary, words: Words) -> Iterator[Variant]:
    """Yield Hebrew words with and without the article and the prepositions that are written as their first letters."""
    if "hebrew" not in index.analyzer.languages:
        return
    for word, terms, _ in words:
        if len(terms) == 1 and _HEBREW.fullmatch(word):
            stripped = [word.removeprefix(prefix) for prefix in PREFIXES if word.startswith(prefix)]
            for form in (*(prefix + word for prefix in PREFIXES), *(one for one in stripped if len(one) >= _SHORTEST)):
                if form not in terms and index.holders(form):
                    yield Variant(form, terms[0], OTHER_FORM_WEIGHT, "form")


# ---- codes -----------------------------------------------------------------------------------------------------------


def _of_codes(index: Vocabulary, words: Words) -> Iterator[Variant]:
    """Yield codes that the question writes in several tokens and the documents in one, or the other way round."""
    if not any(character.isdecimal() for word, _, _ in words for character in word):  # as in most questions
        return
    for at in range(len(words)):
        code, of = "", ""
        for number, (word, terms, _) in enumerate(words[at : at + _LONGEST_RUN], start=1):
            if len(word) > _LONGEST_PART or not (terms or len(word) == 1):
                break
            code, of = code + joined(word), of or next(iter(terms), "")
            if not is_code(code):
                continue
            spaced = with_space(code)
            if number > 1 and index.holders(code):
                yield _form(index, code, of, spaced or of)
            if spaced is not None and index.holders(spaced):
                yield _form(index, spaced, of, code) if number == 1 else Variant(spaced, of, 1.0, "code")
    for _, terms, _ in words:
        for term in terms:
            if term.isdecimal() and len(term) >= 2 * _SHORTEST and not index.holders(term):
                yield from (Variant(group, term, 1.0, "code") for group in _groups(index, term))


def _form(index: Vocabulary, form: str, of: str, own: str) -> Variant:
    """Return another form of a code, which counts less than the form that the question has, even if it is rarer."""
    holders = index.holders(form)
    share = _idf(index.size, min(index.size, holders + index.holders(own))) / _idf(index.size, holders)
    return Variant(form, of, OTHER_FORM_WEIGHT * share, "code")


def _groups(index: Vocabulary, digits: str) -> list[str]:
    """Return the fewest groups of digits in the index that a long number consists of, or an empty list."""
    best: list[list[str] | None] = [[]]
    for end in range(1, len(digits) + 1):
        splits = (
            [*before, digits[start:end]]
            for start in range(max(0, end - 2 * _SURE), end - 1)
            if (before := best[start]) is not None and index.holders(digits[start:end])
        )
        best.append(min(splits, key=len, default=None))
    return best[-1] or []


# ---- compounds -------------------------------------------------------------------------------------------------------


def _of_compounds(index: Vocabulary, words: Words) -> Iterator[Variant]:
    """Yield the compounds of the words of a question, and the parts of its compounds."""
    for token, terms, analyzer in words:
        if analyzer.language not in LINKS or len(terms) != 1 or not token.isalpha() or len(token) < _SHORTEST:
            continue
        word, term = token.casefold(), terms[0]
        yield from _weighted(index, term, _compounds_with(index, word, analyzer))
        for part in _parts(index, word, analyzer):
            stem = analyzer.stem(part)
            if index.holders(stem):
                yield Variant(stem, term, COMPOUND_WEIGHT / 2 if index.holders(term) else COMPOUND_WEIGHT, "compound")
            elif len(part) >= _SURE:  # it occurs only in other compounds
                yield from _weighted(index, term, _compounds_with(index, part, analyzer), scale=0.5)


def _weighted(index: Vocabulary, term: str, compounds: Sequence[str], scale: float = 1.0) -> Iterator[Variant]:
    """Yield compounds with the weights with which they count like less frequent occurrences of the term."""
    compounds = sorted(compounds, key=lambda one: (-index.holders(one), one))[:MAX_COMPOUNDS]
    together = min(index.size, index.holders(term) + sum(map(index.holders, compounds)))
    for compound in compounds:
        share = _idf(index.size, together) / _idf(index.size, index.holders(compound))
        yield Variant(compound, term, scale * COMPOUND_WEIGHT * share, "compound")


def _idf(size: int, holders: int) -> float:
    return math.log1p((size - holders + 0.5) / (holders + 0.5))


def _compounds_with(index: Vocabulary, word: str, analyzer: Analyzer) -> list[str]:
    """Return the terms of the index that are compounds of a word."""
    stem, links = analyzer.stem(word), LINKS[analyzer.language]
    is_known = index.holders(stem) > 0
    compounds = []
    for form, is_first in _forms(word, analyzer):
        needs_word = is_known and len(form) < _SURE and (is_first or len(form) == _SHORTEST)
        long = _SHORTEST + (is_first or len(form) <= _SURE)
        for term, rest in index.containing(form, is_first=is_first):
            if len(rest) < _SHORTEST or len(term) <= _SURE or term == stem:
                continue
            if not needs_word and len(rest) >= long:
                compounds.append(term)
                continue
            others = map(analyzer.stem, _without_links(rest, links, at_start=is_first))
            if any(len(other) >= _SHORTEST and index.holders(other) for other in others):
                compounds.append(term)
    return list(dict.fromkeys(compounds))


def _forms(word: str, analyzer: Analyzer) -> set[tuple[str, bool]]:
    """Return the forms that a word may have in the stem of a compound, and whether it is the first part.

    A stemmer changes the end of a long word more than that of a short one, and never the end of a first part.
    """
    first = analyzer.stem(word + _FILLER)
    forms = {(analyzer.stem(word), True), (analyzer.stem(word), False)}
    if first.endswith(_FILLER):
        forms.add((first.removesuffix(_FILLER), True))
    for ending in ("", *LINKS[analyzer.language]):  # the letters that link words are endings of the first one
        last = analyzer.stem(_FILLER + word + ending)
        if last.startswith(_FILLER):
            forms.add((last.removeprefix(_FILLER), False))
    return {(form, is_first) for form, is_first in forms if len(form) >= _SHORTEST}


def _parts(index: Vocabulary, word: str, analyzer: Analyzer) -> tuple[str, ...]:
    """Return the two words that a compound consists of, one if the other one is unknown, or none."""
    links = LINKS[analyzer.language]
    splits: list[tuple[int, int, tuple[str, ...]]] = []
    for cut in range(_SHORTEST, len(word) - _SHORTEST + 1):
        tail = word[cut:]
        heads = [head for head in _without_links(word[:cut], links, at_start=False) if len(head) >= _SHORTEST]
        head = next((head for head in heads if index.holders(analyzer.stem(head))), None)
        has_tail = index.holders(analyzer.stem(tail)) > 0
        if head is not None and has_tail:
            splits.append((2, min(len(head), len(tail)), (head, tail)))
        elif head is not None and len(head) >= _SURE:
            splits.append((1, len(head), (head,)))
        elif has_tail and len(tail) > _SHORTEST and cut > _SHORTEST:
            splits.append((1, len(tail), (heads[-1], tail)))
    return max(splits, default=(0, 0, ()))[2]


def _without_links(part: str, links: Sequence[str], *, at_start: bool) -> list[str]:
    """Return a part of a compound, and the same without the letters that link it with the other part."""
    if at_start:
        return [part, *(part.removeprefix(link) for link in links if part.startswith(link))]
    return [part, *(part.removesuffix(link) for link in links if part.endswith(link))]


_FINDERS = (_of_languages, _of_umlauts, _of_marks, _of_prefixes, _of_codes, _of_compounds)


# ---- spelling --------------------------------------------------------------------------------------------------------


def may_be_corrected(token: str) -> bool:
    """Return whether the spelling of an unknown token is corrected: that of ordinary words, and of any long word.

    Example:
        >>> [may_be_corrected(token) for token in ("agrement", "mean", "TS-999", "Kündigungsfrsit", "naïve")]
        [True, False, False, True, True]
    """
    is_long = LONG <= len(token) <= _LONGEST_COMPOUND and token.isalpha() and token[1:].islower()
    return is_long or may_be_misspelt(fold(token, ""))


def spelling_candidates(index: Vocabulary, token: str, *, most_errors: int = _MAX_ERRORS) -> list[Correction]:
    """Return the terms in the index that an unknown word may have been meant to be.

    They differ from the word by one typing error or, if there is no such term and the word has at least eight letters,
    by up to `most_errors`. The first letter is not changed.
    """
    word, language = token.casefold(), index.analyzer.languages[0]
    folded = fold(word, language)
    spellings = _with_one_error(index, folded) if folded.isascii() and len(folded) <= LONGEST else {}
    if not spellings and len(folded) >= LONG:
        spellings = _with_two_errors(index, folded, most_errors)
    total = sum(map(index.holders, spellings))
    return [
        Correction(term, _with_marks(spellings[term], word, language), GUESS_WEIGHT * index.holders(term) / total)
        for term in sorted(spellings)
    ]


def _with_one_error(index: Vocabulary, word: str) -> dict[str, str]:
    """Return the known terms one typing error away, each with a spelling of the word that yields it."""
    spellings: dict[str, str] = {}
    similar = edit_distance_one(word)
    if not any(map(index.holders, index.analyzer.stems(similar))):  # most unknown words are not misspelt
        return spellings
    for spelling in sorted(similar, key=lambda one: (len(one) != len(word), one)):
        for term in index.analyzer.stems({spelling}):
            if term not in spellings and index.holders(term):
                spellings[term] = spelling
    return spellings


def _with_two_errors(index: Vocabulary, word: str, most_errors: int) -> dict[str, str]:
    """Return the known terms at most two typing errors away, each with a spelling of the word that yields it."""
    third = len(word) // 3
    first, second, last = word[:third], word[third : 2 * third], word[2 * third :][:3]
    shortest, longest = max(LONG, len(word)) - _LONGEST_ENDING, len(word) + 2
    # Two errors leave one third of the word unchanged; of the last third, a stem may contain only the first letters.
    similar = [
        term
        for term in index.beginning_with(word[0])
        if shortest <= len(term) <= longest and (first in term or second in term or last in term)
    ]
    spellings = {term: _spelling(index, term, word, most_errors) for term in similar}
    return {term: spelling for term, spelling in spellings.items() if spelling is not None}


def _spelling(index: Vocabulary, term: str, word: str, most_errors: int) -> str | None:
    """Return a spelling of a word that yields a term, or None if there are too many typing errors between them.

    The index contains stems, so the term is compared with the beginning of the word, and the rest of the word must be
    an ending of the term, perhaps with one of the errors.
    """
    endings = {
        word[length:]: errors
        for length, errors in enumerate(_errors(term, word, most_errors))
        if errors <= most_errors and len(word) - length <= _LONGEST_ENDING
    }
    exact = [term + ending for ending in endings]
    corrected = [
        term[:-1] + ending
        for misspelt, errors in endings.items()
        for ending in (sorted(edit_distance_one(term[-1] + misspelt)) if misspelt and errors < most_errors else ())
    ]
    stems = index.analyzer.stems
    for spellings in (exact, corrected):
        if term in stems({*spellings}):  # many spellings are stemmed faster together
            return next(one for one in spellings if term in stems({one}))
    return None


def _with_marks(spelling: str, word: str, language: str) -> str:
    """Return a spelling without marks with those marks that the word has in the same places, from either end."""
    letters = list(spelling)
    for step in (1, -1):
        for at, letter in enumerate(word[::step]):
            place = at if step == 1 else -1 - at
            if at >= len(letters) or fold(letter, language) != fold(letters[place], language):
                break
            letters[place] = letter
    return "".join(letters)


def _errors(term: str, word: str, most: int) -> list[int]:
    """Return the number of typing errors between a term and each beginning of a word, from the empty one.

    This is the distance of Damerau and Levenshtein, in which no substring is changed twice. Only beginnings whose
    length differs from the term's by at most `most` letters are compared; other numbers are above `most`.
    """
    beyond = most + 1
    before: list[int] = []
    last = [*range(beyond), *[beyond] * (len(word) + 1 - beyond)]
    for row, letter in enumerate(term, start=1):
        current = [beyond] * (len(word) + 1)
        if row <= most:
            current[0] = row
        least = current[0]
        for column in range(max(1, row - most), min(len(word), row + most) + 1):
            other = word[column - 1]
            errors = last[column - 1] + (letter != other)
            if last[column] < errors:
                errors = last[column] + 1
            if current[column - 1] < errors:
                errors = current[column - 1] + 1
            if row > 1 and column > 1 and letter == word[column - 2] and term[row - 2] == other:
                errors = min(errors, before[column - 2] + 1)
            current[column] = errors
            if errors < least:
                least = errors
        if least > most:
            return [beyond] * (len(word) + 1)
        before, last = last, current
    return last
