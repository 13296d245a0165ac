"""Split text into the terms of the lexical index: word stems, and compounds with their parts.

"TS-999" yields ts-999, ts999, ts and 999; "getUserName" yields getusername, get, user and name; an ordinary word yields
one term. Text in scripts without spaces between words is cut into overlapping pairs of characters. The same is done
with Korean text, because of its word endings.

All spellings of a fiscal year, quarter or date yield the same term. A question may contain "FY2018" while the report
contains "fiscal year ended May 31, 2018". Similarly, a file name may contain "2018Q1" while the file's first page
contains "first quarter of 2018". Analysed as words, these spellings share at most the year, which also occurs in every
table of the next year's report. The terms are `fy2018` for a fiscal year, `2018q1` for a quarter, and `2018-12-31` for
a date. The end date of a year or quarter also yields the term of that year or quarter: "quarter ended June 30, 2022"
yields `2022q2` too. A fiscal year that ends in January yields the terms of both calendar years, because companies name
it after either year. Only English names of months and quarters are recognised. In dates written in digits, the day
comes first ("31.12.2022"), or the month if there are slashes ("12/31/2022"). If the month would be greater than 12, the
two numbers are swapped.
"""

from __future__ import annotations

import functools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from datetime import date
from functools import cached_property, partial
from itertools import chain, compress
from operator import itemgetter
from string import ascii_lowercase
from typing import NamedTuple, TypeVar

import regex  # type: ignore[import-untyped]  # the package ships no types

from llama_index_contextual._utils.tokens import replace_surrogates
from llama_index_contextual.config import LANGUAGES
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.stop_words import NEGATIONS, OTHER_STOP_WORDS, QUESTION_WORDS

# Letters of scripts that are cut into pairs: Thai, Lao, Myanmar, Khmer, Hangul, kana, Han.
_PAIRED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    r"\uf900-\ufaff\U00020000-\U0003ffff"
)
# A word may contain combining marks, which most scripts of India use for vowels, but it may not begin with one.
_WORD = rf"[\w--[\p{{M}}{_PAIRED}]][[\w\p{{M}}]--[{_PAIRED}]]*"
# A comma belongs to a number if at most three digits follow, unlike in "May 31,2018".
_COMMA = r"(?<=\d),\d{1,3}(?!\d)"
_TOKEN = regex.compile(rf"[{_PAIRED}]+|{_WORD}(?:[-.'/@:+&]{_WORD}|{_COMMA})*", regex.V1)
# In text that contains only these characters, the standard library finds the same tokens several times faster.
_SIMPLE = re.compile(
    r"[\x00-\xb1\xb4-\xb8\xba\xbb\xbf-\u02ff\u0370-\u0482\u048a-\u052f\u2010-\u203e\u2041-\u2053\u20a0-\u20bf"
    r"\u2190-\u23ff\u2500-\u2767]*+"
)
# Greedy, because in Python before 3.11.5 a possessive group does not release its match when its last repetition fails.
_SIMPLE_TOKEN = re.compile(rf"\w+(?:[-.'/@:+&]\w+|{_COMMA})*")
# A run consists of ASCII characters, or of other characters and the ASCII character before them. A cluster is a
# sequence of characters that readers perceive as one.
_RUN = re.compile(r"[\x00-\x7f]+(?![^\x00-\x7f])|[\x00-\x7f]?[^\x00-\x7f]+")
_CLUSTER = regex.compile(r"\X")
_IS_PAIRED = re.compile(rf"[{_PAIRED}]")
_PLAIN = re.compile(r"[a-z]+|[A-Z][a-z]*|[A-Z]+|[0-9]+")
_JOINT = re.compile(r"[-.'/@:+&_,]+")
_HAS_DIGIT = re.compile(r"\d")
# A number with thousands separators, a decimal point or a decimal comma; "1.234" is read as a thousand.
_NUMBER = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,3}(?:\.\d{3})+|\d+)(?:[.,](\d+))?")
_CODE = re.compile(r"(?=\w*\d)(?!\w*[^\W\d_]{6})\w+")
_TWO_YEARS = re.compile(r"(?:19|20)\d\d(?:19|20)\d\d")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_FEWEST_DIGITS = 7  # of a number in groups, such as 4711.0815.22, that is not a version such as 1.2.3
# Runs of capitals, capitalised words, digits, and letters of scripts without case.
_CAMEL = regex.compile(
    r"(?:\p{Lu}\p{M}*)+(?!\p{Ll})|\p{Lu}?[\p{Ll}\p{M}]+|\p{N}+|[\p{L}--[\p{Lu}\p{Ll}]][[\p{L}\p{M}]--[\p{Lu}\p{Ll}]]*",
    regex.V1,
)
_MAX_TEXT_TOKENS = 200_000  # maximum number of cached tokens from texts, which contain many numbers
_MAX_QUERY_TOKENS = 20_000  # maximum number of cached tokens from queries, which have fewer words
_MAX_WORDS = 50_000  # maximum number of cached words from passages, including adjacent punctuation marks
_LONGEST_CACHED = 64  # maximum length of a cached token; longer tokens seldom occur twice
_LONGEST_PREFIX, _LONGEST_NUMBER = 5, 12  # numbers of characters of the two parts of a code such as "TS 999"
_WITHOUT_SPACE = re.compile(rf"([^\W\d_]{{1,{_LONGEST_PREFIX}}})(\d\w{{,{_LONGEST_NUMBER - 1}}})")
_ARTICLES = ("art", "article", "articles", "artikel", "artikels", "artículo", "articolo", "artigo")

_CLITIC = re.compile(r"'(?:s|t|d|m|re|ve|ll)$", re.IGNORECASE)

LONGEST = 24
"""Maximum length of a word whose spelling is corrected.

Longer tokens are seldom words and have thousands of variants."""

_ORDINARY = re.compile(rf"[A-Za-z][a-z]{{4,{LONGEST - 1}}}")

# For search only: invisible and optional characters are removed, and characters that look alike are unified.
_UNIFIED: dict[int, str | None] = {
    **dict.fromkeys(
        (0xAD, 0x34F, 0x180E, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070))
    ),
    **dict.fromkeys(range(0xFE00, 0xFE10)),  # variation selectors
    **dict.fromkeys((0x640, *range(0x64B, 0x653), 0x670)),  # Arabic vowel signs and tatweel
    **dict.fromkeys((*range(0x591, 0x5BE), 0x5BF, 0x5C1, 0x5C2, 0x5C4, 0x5C5, 0x5C7)),  # Hebrew points
    **dict.fromkeys((*range(0x2010, 0x2014), 0x2212), "-"),
    **dict.fromkeys((0x2018, 0x2019, 0x2BC), "'"),
    0x130: "I",  # dotted capital I, whose lower case has two characters
    **{first + digit: str(digit) for first in (0x660, 0x6F0) for digit in range(10)},  # Arabic and Persian digits
}
# A joiner changes words of some scripts, whose letters have no case, and emoji.
_JOINED = r"[\p{Lo}\p{M}\p{So}\p{Sk}]"
_INVISIBLE = regex.compile(
    rf"[\p{{DI}}--[\u200c\u200d]]|(?<!{_JOINED})[\u200c\u200d]|[\u200c\u200d](?!{_JOINED})", regex.V1
)
_TO_UNIFY = re.compile(f"[{re.escape(''.join(map(chr, _UNIFIED)))}]")

_OTHER_LANGUAGES = (
    *("danish", "dutch", "french", "german", "italian", "norwegian"),
    *("portuguese", "russian", "spanish", "swedish", "turkish"),
)
_STOPWORD_LISTS = {
    **dict.fromkeys(("english", "porter"), "STOPWORDS_EN"),
    **{language: f"STOPWORDS_{language.upper()}" for language in _OTHER_LANGUAGES},
}
# The lists for other languages include question words. The English list for texts does not, so that these words can be
# found by a query that is not a question, such as "to do".
_QUESTION_WORD_LISTS = {"english": "STOPWORDS_EN_PLUS", "porter": "STOPWORDS_EN_PLUS"}


DEFAULT_LANGUAGE = "english"
"""Language in which a text in an unknown language is analysed, such as source code or a table of numbers."""

# Letters that writers often replace: dotless i, alef and other carriers of hamza, ta marbuta, and the Russian yo.
_LETTERS: dict[int, int] = str.maketrans("ıآأإٱؤئىیکةё", "iااااوييي\u0643\u0647\u0435")
_MARKED = [*range(0xC0, 0x250), *range(0x1E00, 0x1F00)]
_LETTERS_AND_MARKS: dict[int, str | int] = {
    **{mark: unicodedata.normalize("NFD", chr(mark))[0] for mark in _MARKED},
    **{ord(letter): letters for letter, letters in (("æ", "ae"), ("œ", "oe"), ("ø", "o"), ("đ", "d"), ("ł", "l"))},
    **_LETTERS,
}
WITH_OTHER_LETTERS = frozenset(
    ("danish", "estonian", "finnish", "hungarian", "norwegian", "swedish", "turkish", "vietnamese")
)
"""Languages in which a letter with a mark is a letter of its own, and terms keep the mark."""

_SHORTEST_ARABIC = 3  # number of letters of a stem that may have one of the next endings
_ARABIC_ENDINGS = "هي"  # the stemmer removes them, unless they are written as a final heh or alef
_ARABIC_HAMZA = ("ئو", "ؤو")  # the same sound before waw, written in two ways

_WITHOUT_STEMMER = frozenset({"none", *LANGUAGES.values()})

MAX_CHARACTERS = 32_000
"""Maximum number of characters read from a query, about as much English text as an embedding model accepts."""

MAX_MARKS = 30
"""Maximum number of consecutive combining marks that are read, as in the Stream-Safe Text Format of Unicode (UAX 15).

The number is limited because normalisation sorts combining marks in quadratic time."""

_SHORT = 1_000  # maximum length of a text that is fast to normalise even if it consists of marks
_MARKS = regex.compile(rf"(\p{{M}}{{{MAX_MARKS}}})\p{{M}}+")


def normalise_query(text: str) -> str:
    """Return a query in the form in which it is searched, which does not depend on how it was typed.

    Each run of white space becomes a space, white space at the ends and invisible characters are removed, and the text
    is in the Unicode form NFC. Joiners are kept where they change words or emoji.

    Example:
        >>> normalise_query(" How long does\\u00a0food\\n keep?\\u200b")
        'How long does food keep?'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", _INVISIBLE.sub("", _without_excess(text)))
    return " ".join(text.split())


def cut_query(text: str) -> str:
    """Normalise a query and shorten it to its first 32,000 characters; see `normalise_query` and `cut_text`.

    Example:
        >>> cut_query(" How long does food keep?"), len(cut_query("food " * 10_000))
        ('How long does food keep?', 31999)
    """
    return cut_text(normalise_query(text))


def cut_text(text: str) -> str:
    """Shorten a text to its first 32,000 characters, cut at a space if possible; a longer text is normalised first.

    Long runs of combining marks are shortened too (see `MAX_MARKS`), and surrogates, which UTF-8 cannot encode, are
    replaced.
    """
    if len(text) > MAX_CHARACTERS:
        text = normalise_query(text)
    if len(text) > MAX_CHARACTERS:
        words, space, rest = text[: MAX_CHARACTERS + 1].rpartition(" ")
        text = words if space and len(rest) < MAX_CHARACTERS // 2 else text[:MAX_CHARACTERS]
    return _without_excess(text)


def _without_excess(text: str) -> str:
    """Shorten long runs of combining marks, and replace surrogates."""
    if len(text) > _SHORT and not text.isascii():
        text = _MARKS.sub(r"\1", text)
    return replace_surrogates(text)


T = TypeVar("T")


class Memory(dict[str, T]):
    """Cache for the results of a function that takes a string. When the cache is full, it is cleared.

    Args:
        compute: The function.
        size: Maximum number of results; results for strings of more than 64 characters are not cached.

    Example:
        >>> lengths = Memory(len)
        >>> lengths["pump"]
        4
    """

    def __init__(self, compute: Callable[[str], T], size: int = _MAX_TEXT_TOKENS) -> None:
        super().__init__()
        self._compute = compute
        self._size = size

    def __missing__(self, text: str) -> T:
        result = self._compute(text)
        if len(text) <= _LONGEST_CACHED:
            if len(self) >= self._size:
                self.clear()
            self[text] = result
        return result


class TermSpan(NamedTuple):
    """The terms of a span of text, and the character offsets of the span."""

    terms: tuple[str, ...]
    start: int
    end: int


class Analyzer:
    """Analyzer that splits text into terms in the same way for the index and for queries.

    Args:
        language: Name of a language, or `none` for no stemming and no stop words.
        others: Other languages of the texts. A word of a text yields the terms of all languages, a word of a question
            those of its own language.
        rare: Those of the other languages in which a question in a different language is not searched.
        contexts: Those of the other languages in which there are only lines of contexts. They are rare, and a question
            in one of them is foreign.
        is_certain: Whether the language of at least half of the texts is known. Otherwise, no question may be foreign.
        has_periods: Whether to add terms for fiscal years, quarters and dates. If such a period is more than one word
            long, its term comes after the terms of all words.

    Example:
        >>> Analyzer("english").terms("Error code TS-999")
        ['error', 'code', 'ts-999', 'ts999', 'ts', '999']
        >>> Analyzer("english", has_periods=True).terms("FY2018 and fiscal 2018")
        ['fy2018', '2018', 'fiscal', '2018', 'fy2018']
    """

    def __init__(
        self,
        language: str = DEFAULT_LANGUAGE,
        *,
        others: Sequence[str] = (),
        rare: Collection[str] = (),
        contexts: Collection[str] = (),
        is_certain: bool = True,
        has_periods: bool = False,
    ) -> None:
        self.language = language or DEFAULT_LANGUAGE
        self.has_periods = has_periods
        self._is_certain = is_certain
        self.by_language = tuple(Analyzer(name, has_periods=has_periods) for name in (language, *others) if others)
        self._last_words: tuple[tuple[str, ...], Analyzer] = (), self
        self._of_texts = tuple(one for one in self.by_language if one.language not in contexts)
        self._frequent = tuple(one for one in self._of_texts if one.language not in rare)
        self._terms_of = Memory(self.analyse, _MAX_QUERY_TOKENS)
        self._query_terms_of = Memory(self._analyse_query, _MAX_QUERY_TOKENS)
        self._terms_of_word = Memory(self._analyse_word, _MAX_WORDS)

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of the texts, the most frequent one first."""
        return tuple(one.language for one in self._of_texts) or (self.language,)

    @property
    def frequent_languages(self) -> tuple[str, ...]:
        """The languages of the texts, except rare ones."""
        return tuple(one.language for one in self._frequent) or (self.language,)

    @property
    def context_languages(self) -> tuple[str, ...]:
        """Further languages, in which there are only lines of contexts."""
        return tuple(one.language for one in self.by_language if one not in self._of_texts)

    def terms(self, text: str) -> list[str]:
        """Return all terms of a text in order, including repeated terms."""
        words = tokens(text)
        of_periods = joined_terms(words) if self.has_periods and len(words) > 1 else ()
        return [*chain.from_iterable(map(self._terms_of.__getitem__, words)), *of_periods]

    def spans(self, text: str) -> Iterator[TermSpan]:
        """Yield the spans of a text that produce index terms.

        Words and pairs of characters come first, followed by time periods that are more than one word long.

        Example:
            >>> [(span.terms, span.start, span.end) for span in Analyzer("english").spans("The pumps (TS-999)")]
            [(('pump',), 4, 9), (('ts-999', 'ts999', 'ts', '999'), 11, 17)]
        """
        places = token_spans(text)
        for token, ends in places:
            terms = self._terms_of[token]
            if _IS_PAIRED.match(token) and len(token) > 1:
                for at, pair in enumerate(terms):
                    yield TermSpan((pair,), ends[at].start, ends[at + 1].stop)
            elif terms:
                yield TermSpan(terms, ends[0].start, ends[-1].stop)
        words = [token for token, _ in places]
        for period in chain(find_periods(words), find_codes(words)) if self.has_periods else ():
            yield TermSpan((period.term,), places[period.first][1][0].start, places[period.last][1][-1].stop)

    def query_terms(self, text: str) -> list[str]:
        """Return the terms of a question in order, including repeated terms but excluding question words.

        Question words are left out because they are unrelated to the subject of a question. A word in capitals is
        treated as a name and kept.

        Example:
            >>> Analyzer("english").query_terms("What does the WHO recommend?")
            ['who', 'recommend']
        """
        words = _tokens_of_question(text)
        own = self._in_language_of(words)
        of_periods = joined_terms(words) if self.has_periods and len(words) > 1 else ()
        return [*chain.from_iterable(map(own._query_terms_of.__getitem__, words)), *of_periods]

    def language_among_texts(self, question: str) -> str:
        """Return the language of a question, or the most frequent language of the texts if it is not one of these."""
        own = self._in_language_of(_tokens_of_question(question)).language
        return own if own in self.frequent_languages else self.languages[0]

    def own_terms(self, text: str) -> Iterator[tuple[str, tuple[str, ...], Analyzer]]:
        """Yield each word of a question with its terms, as in `query_terms`, and the analyzer for its language."""
        words = _tokens_of_question(text)
        own = self._in_language_of(words)
        for word in words:
            yield word, own._query_terms_of[word], own

    def other_terms(self, word: str) -> list[str]:
        """Return the terms of a word in the languages of the texts, except rare ones."""
        return [*chain.from_iterable(one._terms_of[word] for one in self._frequent)]

    def differs(self, own: Analyzer) -> bool:
        """Return whether a question with its own analyzer, from `own_terms`, has other terms in another language."""
        return any(one is not own for one in self._frequent)

    def _in_language_of(self, words: tuple[str, ...]) -> Analyzer:
        """Return the analyzer for the language of a question, or for the first language if that is unknown."""
        if not self.by_language:
            return self
        last = self._last_words  # a search asks several times; other threads may replace this in between
        if words != last[0]:
            folded, script = {word.casefold() for word in words}, _script(words)
            own = max(self.by_language, key=lambda one: (len(folded & one._function_words), one._script == script))
            self._last_words = last = words, own
        return last[1]

    @cached_property
    def _script(self) -> str:
        return _script(sorted(self._function_words))

    def matching(self, terms: frozenset[str]) -> Callable[[str], frozenset[str]]:
        """Return a function that finds which of the given terms a text contains. It is faster than `terms`.

        Example:
            >>> Analyzer("english").matching(frozenset({"pump", "fee"}))("Pumps lift water.")
            frozenset({'pump'})
        """
        terms_of = self._terms_of_word.__getitem__
        of_several_words = frozenset(filter(may_have_words, terms)) if self.has_periods else frozenset()

        def match(text: str) -> frozenset[str]:
            # No token contains white space.
            matched = terms.intersection(chain.from_iterable(map(terms_of, text.split())))
            if of_several_words - matched:
                matched |= of_several_words.intersection(joined_terms(tokens(text)))
            return matched

        return match

    def may_be_foreign(self, question: str) -> bool:
        """Return whether the function words or the script of a question are not those of a frequent language.

        Example:
            >>> [Analyzer().may_be_foreign(text) for text in ("Was bedeutet die Meldung?", "ما هي المدة؟", "The fee?")]
            [True, True, False]
        """
        if not self._is_certain or "none" in self.frequent_languages:
            return False
        frequent, script = self._frequent or (self,), _script(_tokens_of_question(question))
        has_other_script = script and all(one._script and one._script != script for one in frequent)
        languages = question_languages(question)
        return bool(has_other_script or (languages and languages.isdisjoint(self.frequent_languages)))

    def stem(self, word: str) -> str:
        """Return the stem of a lower-case word."""
        return self._stem(word)

    def stems(self, words: Set[str]) -> set[str]:
        """Return the terms of the given lower-case words in languages that are not rare, except question words."""
        if self.by_language:
            return set().union(*(one.stems(words) for one in self._frequent))
        return {self._stem(word) for word in words} - self._question_stems

    def analyse(self, token: str) -> tuple[str, ...]:
        """Return the terms of a token, as returned by `tokens`."""
        if self.by_language:
            return tuple(dict.fromkeys(chain.from_iterable(one.analyse(token) for one in self._of_texts)))
        if _IS_PAIRED.match(token):
            return tuple(token[i : i + 2] for i in range(len(token) - 1)) or (token,)
        if _PLAIN.fullmatch(token):
            return self._word(token)
        if self.has_periods and (of_period := period_token(token)):
            return of_period
        whole = _CLITIC.sub("", token)
        parts = [part for piece in _JOINT.split(whole) for part in _CAMEL.findall(piece)]
        if parts == [whole]:
            return self._word(whole)
        if not parts:  # a run of underscores
            return ()
        forms = code_forms(whole) if _HAS_DIGIT.search(whole) else []
        if "," in whole and _THOUSANDS.fullmatch(whole):
            return tuple(forms)
        terms = [] if "," in whole else [whole.casefold()]
        if self.has_periods and (day := date_token(whole)):
            terms.append(day)
        else:
            terms += forms
        for part in parts:
            terms.extend(self._word(part))
        return tuple(dict.fromkeys(terms))

    def _analyse_word(self, word: str) -> tuple[str, ...]:
        """Return the terms of a word, which is any run of characters without white space."""
        return tuple(chain.from_iterable(map(self._terms_of.__getitem__, tokens(word))))

    def _analyse_query(self, token: str) -> tuple[str, ...]:
        is_name = len(token) > 1 and token.isupper()
        return self._terms_of[token] if is_name or _CLITIC.sub("", token).casefold() not in self._question_words else ()

    def _word(self, word: str) -> tuple[str, ...]:
        word = word.casefold()
        # A single letter has no meaning, but a single character of a script without case may be a word.
        if word in self._stopwords or (self.has_periods and word == "fy") or (len(word) == 1 and word.upper() != word):
            return ()
        return (self._stem(word),)

    @cached_property
    def _stem(self) -> Callable[[str], str]:
        import Stemmer

        # The stemmer's own cache is not used, because it keeps words of any length; `Memory` caches terms instead.
        try:
            stem: Callable[[str], str] = Stemmer.Stemmer(self.language, 0).stemWord
        except KeyError as error:
            if self.language == "none":
                return str
            if self.language in _WITHOUT_STEMMER:
                return partial(fold, language=self.language)
            known = ", ".join(sorted({*Stemmer.algorithms(), *_WITHOUT_STEMMER}))
            raise ConfigurationError(
                f"There is no stemmer for the language {self.language!r}: use one of {known}.", setting="language"
            ) from error
        if self.language == "arabic":
            return lambda word: fold(stem(word.replace(*_ARABIC_HAMZA)), self.language)
        return lambda word: fold(stem(word), self.language)

    @cached_property
    def _stopwords(self) -> frozenset[str]:
        return stop_words(self.language) - NEGATIONS

    @cached_property
    def _question_words(self) -> frozenset[str]:
        more = frozenset(QUESTION_WORDS.get(self.language, "").split())
        return (more | stop_word_list(_QUESTION_WORD_LISTS.get(self.language))) - NEGATIONS

    @cached_property
    def _function_words(self) -> frozenset[str]:
        return self._stopwords | self._question_words

    @cached_property
    def _question_stems(self) -> frozenset[str]:
        return frozenset(map(self._stem, self._question_words))


def _script(words: Sequence[str]) -> str:
    """Return the name of the script of the first letter of words, or "" if there is none."""
    letter = next(filter(str.isalpha, chain.from_iterable(words)), "")
    return unicodedata.name(letter, "").partition(" ")[0] if letter else ""


def fold(word: str, language: str) -> str:
    """Return a stem without the marks and endings that writers of its language often leave out.

    Example:
        >>> fold("élev", "french"), fold("får", "swedish"), fold("إجازه", "arabic")
        ('elev', 'får', 'اجاز')
    """
    if word.isascii():
        return word
    table: Mapping[int, str | int] = _LETTERS if language in WITH_OTHER_LETTERS else _LETTERS_AND_MARKS
    word = word.translate(table)
    return word[:-1] if len(word) > _SHORTEST_ARABIC and word[-1] in _ARABIC_ENDINGS else word


def code_forms(token: str) -> list[str]:
    """Return the forms of a code or number with separators that do not depend on the separators.

    Example:
        >>> [code_forms(code) for code in ("A/B-12", "4711-0815-22", "1.234,5", "1,5", "1.2.3")]
        [['ab12'], ['4711081522'], ['1234.5'], ['1.5'], []]
    """
    if match := _NUMBER.fullmatch(token):
        return [match[1].replace(",", "").replace(".", "") + (f".{match[2]}" if match[2] else "")]
    code = joined(token)
    is_version = code.isdecimal() and len(code) < _FEWEST_DIGITS
    return [] if is_version else [code]


def is_code(term: str) -> bool:
    """Return whether a term without separators is a code: up to five letters with digits, or at least seven digits.

    Example:
        >>> [is_code(term) for term in ("ts999", "december31", "4711081522", "20172018", "12")]
        [True, False, True, False, False]
    """
    if term.isdecimal():
        return len(term) >= _FEWEST_DIGITS and _TWO_YEARS.fullmatch(term) is None
    return _CODE.fullmatch(term) is not None


def joined(token: str) -> str:
    """Return a token in lower case without separators."""
    return _JOINT.sub("", token).casefold()


def with_space(code: str) -> str | None:
    """Return the term of a code without separators for the same code with a space, or None for other terms.

    Example:
        >>> with_space("ts999"), with_space("999")
        ('ts 999', None)
    """
    match = _WITHOUT_SPACE.fullmatch(code)
    return None if match is None else f"{match[1]} {match[2]}"


def find_codes(words: Sequence[str]) -> Iterator[Period]:
    """Yield the codes in a text that are written with a space, such as "TS 999", and references such as "Article 5".

    Example:
        >>> [code.term for code in find_codes("the TS 999 and Art 5 or Artikel 6".split())]
        ['ts 999', 'art5', 'art6']
    """
    places = range(len(words) - 1)
    for at in compress(places, map(str.isupper, words)):
        word, number = words[at], words[at + 1]
        if word.isalpha() and len(word) <= _LONGEST_PREFIX and not _IS_ANCHOR(word) and _is_number(number):
            yield Period(f"{word} {joined(number)}".casefold(), at, at + 1)
    for at in compress(places, map(_IS_ARTICLE, words)):
        if _is_number(words[at + 1]):
            yield Period(f"art{words[at + 1].casefold()}", at, at + 1)


def _is_number(token: str) -> bool:
    return token[0].isdecimal() and len(token) <= _LONGEST_NUMBER


def stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language, or an empty set if there is no list of them."""
    if language in _STOPWORD_LISTS:
        return stop_word_list(_STOPWORD_LISTS[language])
    return frozenset(tokens(OTHER_STOP_WORDS.get(language, "")))


def stop_word_list(name: str | None) -> frozenset[str]:
    """Return a list of stop words from bm25s, or an empty set if there is no such list."""
    if name is None:
        return frozenset()
    from bm25s import stopwords

    # bm25s sets its logger to DEBUG at import, which would show its messages in applications with a root handler.
    logging.getLogger("bm25s").setLevel(logging.NOTSET)
    # Early releases of bm25s have no lists for some languages.
    return frozenset(word.casefold() for word in getattr(stopwords, name, ()))


@functools.cache
def lists_by_word() -> Mapping[str, Sequence[str]]:
    """Return a mapping of each stop word to the languages whose lists contain it."""
    languages: dict[str, list[str]] = {}
    for language, name in _STOPWORD_LISTS.items():
        for word in stop_word_list(name) if language != "porter" else ():
            languages.setdefault(word, []).append(language)
    return languages


def is_function_word(word: str) -> bool:
    """Return whether a lower-case word is a function word or question word of any language with a list of them.

    Example:
        >>> [is_function_word(word) for word in ("who", "us", "nasa")]
        [True, True, False]
    """
    lists = map(stop_word_list, _QUESTION_WORD_LISTS.values())
    return word == "us" or word in lists_by_word() or any(word in words for words in lists)  # no list has "us"


def language_of(text: str) -> str:
    """Return the language with the most function words in a text, or "" if it has too few of them.

    Example:
        >>> [language_of(text) for text in ("Nach dem Halt muss sie stehen.", "The TS-999 is on.", "TS-999")]
        ['german', 'english', '']
    """
    words = [word.casefold() for word in tokens(text) if len(word) > 1]
    counts = Counter(chain.from_iterable(lists_by_word().get(word, ()) for word in words))
    best, count = max(counts.items(), key=itemgetter(1), default=("", 0))
    return best if count >= max(3, len(words) / 12) else ""


def question_languages(question: str) -> set[str]:
    """Return the languages with the most function words in a question, of those with a list of stop words.

    Example:
        >>> [sorted(question_languages(text)) for text in ("Wann wurde es gebaut?", "Was bedeutet die 4?", "TS-999?")]
        [['german'], ['dutch', 'german'], []]
    """
    words = {word.casefold() for word in _tokens_of_question(question) if len(word) > 1}
    by_word = _languages_by_function_word()
    counts = Counter(chain.from_iterable(by_word[word] for word in words if word in by_word))
    most = max(counts.values(), default=0)
    return {language for language, count in counts.items() if count == most}


@functools.cache
def _languages_by_function_word() -> Mapping[str, Sequence[str]]:
    """Return a mapping of each function word, including question words, to the languages that have it."""
    languages: dict[str, list[str]] = {}
    for language in (DEFAULT_LANGUAGE, *_OTHER_LANGUAGES, *OTHER_STOP_WORDS):
        for word in Analyzer(language)._function_words:
            languages.setdefault(word, []).append(language)
    return languages


def tokens(text: str) -> list[str]:
    """Return the tokens of a text in order: words, compounds, and runs of characters in scripts without spaces."""
    unified = normalise(text)
    if unified.isascii() or _SIMPLE.fullmatch(unified):
        return _SIMPLE_TOKEN.findall(unified)
    # No token spans two lines, and most lines of most texts are simple.
    result: list[str] = []
    for line in unified.splitlines():
        result += (_SIMPLE_TOKEN if _SIMPLE.fullmatch(line) else _TOKEN).findall(line)
    return result


def _tokens_of_question(text: str) -> tuple[str, ...]:
    """Return the tokens of a question, which is analysed for several purposes in one search."""
    return _cached_tokens(text) if len(text) <= _SHORT else tuple(tokens(text))


@functools.lru_cache(maxsize=64)
def _cached_tokens(text: str) -> tuple[str, ...]:
    return tuple(tokens(text))


def token_spans(text: str) -> list[tuple[str, Sequence[range]]]:
    """Return the same tokens as `tokens`, each with the positions of its characters in the text.

    Example:
        >>> [(token, places[0].start, places[-1].stop) for token, places in token_spans("two ﬁles")]
        [('two', 0, 3), ('files', 4, 8)]
    """
    pieces, places = [], []
    for start, end in _pieces(text):
        piece = normalise(text[start:end])
        pieces.append(piece)
        is_same = len(piece) == end - start and piece == text[start:end]
        places += [range(at, at + 1) for at in range(start, end)] if is_same else [range(start, end)] * len(piece)
    unified = "".join(pieces)
    result: list[tuple[str, Sequence[range]]] = []
    begin = 0
    for line in unified.splitlines(keepends=True):
        for match in (_SIMPLE_TOKEN if _SIMPLE.fullmatch(line) else _TOKEN).finditer(line):
            result.append((match[0], places[begin + match.start() : begin + match.end()]))
        begin += len(line)
    return result


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of short pieces of a text that can be normalised separately.

    If a piece begins with an ASCII character, normalisation never merges it with the preceding piece.
    """
    for run in _RUN.finditer(text):
        start, end = run.span()
        clusters = [] if run[0].isascii() else [cluster.span() for cluster in _CLUSTER.finditer(run[0])]
        if clusters and "".join(normalise(run[0][at:to]) for at, to in clusters) == normalise(run[0]):
            yield from ((start + at, start + to) for at, to in clusters)
        else:
            yield start, end


def match_spans(text: str, terms: Collection[str], analyzer: Analyzer) -> list[tuple[int, int]]:
    """Return the spans of the words that yield at least one of the given terms, in order and without overlap.

    A compound counts as one word. A time period that is more than one word long is one span. In scripts without spaces
    between words, pairs of characters are matched.

    Args:
        text: The text, for example a passage.
        terms: Terms of the lexical index, such as the `matched_terms` of a hit or the `query_terms` of a question.
        analyzer: The analyzer of the index.

    Example:
        >>> match_spans("Pumps of type TS-999 pump water.", ["pump", "999"], Analyzer("english"))
        [(0, 5), (14, 20), (21, 25)]
    """
    targets = set(terms)
    spans = ((span.start, span.end) for span in analyzer.spans(text) if not targets.isdisjoint(span.terms))
    return _merged(spans) if targets else []


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def normalise(text: str) -> str:
    """Normalise a text for searching: unify compatibility characters and remove invisible characters."""
    if text.isascii():
        return text
    # NFKC turns full-width characters into plain characters, which may also have to be unified.
    unified = _TO_UNIFY.sub(lambda match: _UNIFIED[ord(match[0])] or "", unicodedata.normalize("NFKC", text))
    return unicodedata.normalize("NFKC", unified)


def may_be_misspelt(token: str) -> bool:
    """Return whether a token is an ordinary word of 5 to 24 letters, unlike part numbers and acronyms.

    Shorter words are excluded, because too many other words are one typing error away from them.

    Example:
        >>> [may_be_misspelt(token) for token in ("agrement", "Agrement", "TS-999", "NASA", "getUser", "mean")]
        [True, True, False, False, False, False]
    """
    return _ORDINARY.fullmatch(token) is not None


def edit_distance_one(word: str) -> set[str]:
    """Return the spellings one typing error away: a letter missing, added or replaced, or two adjacent letters swapped.

    Four out of five misspelt words have exactly one such error (Damerau, "A technique for computer detection and
    correction of spelling errors", CACM 1964). The first letter is not changed, because it is seldom wrong.

    Example:
        >>> {"their", "tier", "thief"} <= edit_distance_one("thier"), "hier" in edit_distance_one("thier")
        (True, False)
    """
    first, rest = word[:1], word[1:]
    cuts = [(rest[:at], rest[at:]) for at in range(len(rest) + 1)]
    neighbours = {head + tail[1:] for head, tail in cuts if tail}
    neighbours.update(head + tail[1] + tail[0] + tail[2:] for head, tail in cuts if len(tail) > 1)
    neighbours.update(head + letter + tail[1:] for head, tail in cuts if tail for letter in ascii_lowercase)
    neighbours.update(head + letter + tail for head, tail in cuts for letter in ascii_lowercase)
    return {first + neighbour for neighbour in neighbours - {rest}}


# ---- fiscal years, quarters and dates --------------------------------------------------------------------------------

MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
"""English names of the months."""

_MONTHS = {name[:3]: number for number, name in enumerate(map(str.lower, MONTH_NAMES), 1)}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4}
_QUARTERS = {
    **{f"q{number}": number for number in range(1, 5)},
    **{f"{number}q": number for number in range(1, 5)},
    **{f"{ordinal}-quarter": number for ordinal, number in _ORDINALS.items()},
}
_BETWEEN_YEARS = frozenset({"and", "or", "to", "through", "vs", "versus"})
_BEFORE_YEAR = frozenset({"of", "in", "for", "the", "calendar", "fiscal", "fy", "year"})
_WEEKDAYS = frozenset({"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"})
_ENDS = {
    **dict.fromkeys((("twelve", "months"), ("12", "months"), ("52", "weeks"), ("53", "weeks")), "year"),
    **dict.fromkeys((("three", "months"), ("3", "months"), ("13", "weeks"), ("quarterly", "period")), "quarter"),
}


def _spellings(*words: str) -> frozenset[str]:
    return frozenset(spelling for word in words for spelling in (word.lower(), word.title(), word.upper()))


# "may" is also a verb.
_MONTH_WORDS = _spellings(*MONTH_NAMES, *_MONTHS, "Sept") - {"may"}
_IS_ARTICLE = _spellings(*_ARTICLES).__contains__
_IS_ANCHOR = (_MONTH_WORDS | _spellings("fiscal", "FY", "quarter", "quarters", *_QUARTERS)).__contains__

_YEAR = re.compile(r"(?:19|20)\d\d")
_FISCAL_YEAR = re.compile(r"FY'?((?:19|20)?\d\d)", re.IGNORECASE)
_DAY = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?", re.IGNORECASE)
_ONE_TOKEN = re.compile(
    r"FY'?(?P<fiscal>(?:19|20)?\d\d)|(?P<fy>FY)?(?P<year>(?:19|20)\d\d)-?Q(?P<q>[1-4])"
    r"|(?:Q(?P<before>[1-4])['-]|(?P<after>[1-4])Q['-]?)(?P<of>(?:19|20)?\d\d)",
    re.IGNORECASE,
)
_PERIOD_TERM = re.compile(r"fy\d{4}|\d{4}q[1-4]")
_SPELT_TERM = re.compile(
    rf"{_PERIOD_TERM.pattern}|\d{{4}}-\d\d-\d\d|[^\W\d]{{1,{_LONGEST_PREFIX}}} ?\d\w{{,{_LONGEST_NUMBER}}}"
)
_NUMERIC_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2((?:19|20)\d\d)")


class Period(NamedTuple):
    """A year, quarter or date in a text: its term, and the positions of its first and last token."""

    term: str
    first: int
    last: int


def joined_terms(words: Sequence[str]) -> list[str]:
    """Return the terms of all time periods and codes that are more than one token long.

    Args:
        words: The tokens of the text, from `analysis.tokens`.
    """
    return [one.term for one in chain(find_periods(words), find_codes(words))]


def periods(words: Sequence[str]) -> list[str]:
    """Return the terms of all time periods that are more than one token long, in text order.

    Args:
        words: The tokens of the text, from `analysis.tokens`.

    Example:
        >>> periods("fiscal years 2018 and 2017 ; second quarter of 2018 ; year ended May 31 2018".split())
        ['fy2018', 'fy2017', '2018q2', '2018-05-31', 'fy2018']
    """
    return [period.term for period in find_periods(words)]


def find_periods(words: Sequence[str]) -> Iterator[Period]:
    """Yield the time periods in a text that are more than one token long, in order.

    Example:
        >>> list(find_periods("the second quarter of 2018".split()))
        [Period(term='2018q2', first=1, last=4)]
    """
    for at in compress(range(len(words)), map(_IS_ANCHOR, words)):
        if words[at] in _MONTH_WORDS:
            yield from _dates(words, at)
        elif (word := words[at].lower()) in ("fiscal", "fy"):
            yield from _fiscal_years(words, at)
        elif word in _QUARTERS:
            yield from _quarter(words, at, at, _QUARTERS[word])
        else:
            first = at - 2 if _word(words, at - 1) == "fiscal" else at - 1
            yield from _quarter(words, first, at, _ORDINALS.get(_word(words, first), 0))


def period_token(token: str) -> tuple[str, ...]:
    """Return the terms of a token that is a fiscal year or quarter, including the plain year, or () for other tokens.

    Example:
        >>> period_token("FY2018"), period_token("2018Q1"), period_token("1Q18"), period_token("TS-999")
        (('fy2018', '2018'), ('2018q1', '2018'), ('2018q1', '2018'), ())
    """
    match = _ONE_TOKEN.fullmatch(token)
    if match is None:
        return ()
    if match["fiscal"]:
        year = _full_year(match["fiscal"])
        return f"fy{year}", str(year)
    year = _full_year(match["year"] or match["of"])
    terms = (f"{year}q{match['q'] or match['before'] or match['after']}", str(year))
    return (f"fy{year}", *terms) if match["fy"] else terms


def date_token(token: str) -> str | None:
    """Return the term of a token that is a date written in digits, or None for other tokens.

    Example:
        >>> date_token("31.12.2022"), date_token("12/31/2022"), date_token("1.2.3")
        ('2022-12-31', '2022-12-31', None)
    """
    match = _NUMERIC_DATE.fullmatch(token)
    if match is None:
        return None
    day, month = int(match[1]), int(match[3])
    if (match[2] == "/" and day <= 12) or month > 12:
        day, month = month, day
    date_value = _valid_date(int(match[4]), month, day)
    return None if date_value is None else date_value.isoformat()


@functools.lru_cache(maxsize=4_096)
def is_period(term: str) -> bool:
    """Return whether a term is a fiscal year or a quarter."""
    return _PERIOD_TERM.fullmatch(term) is not None


def may_have_words(term: str) -> bool:
    """Return whether a term is a fiscal year, quarter or date, which may consist of several words in a text."""
    return _SPELT_TERM.fullmatch(term) is not None


def _word(words: Sequence[str], at: int) -> str:
    """Return the token at a position in lower case, or "" if the position is outside the text."""
    return words[at].lower() if 0 <= at < len(words) else ""


def _full_year(digits: str) -> int:
    year = int(digits)
    return year if year > 99 else year + (1900 if year >= 70 else 2000)


def _valid_date(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:  # there is no such day
        return None


def _dates(words: Sequence[str], at: int) -> Iterator[Period]:
    """Yield a date such as "May 31, 2018" or "31 May 2018", and the year or quarter that ends on it."""
    after, before = _word(words, at + 1), _word(words, at - 1)
    if (number := _DAY.fullmatch(after)) and _YEAR.fullmatch(_word(words, at + 2)):
        start, last = at, at + 2
    elif (number := _DAY.fullmatch(before)) and _YEAR.fullmatch(after):
        start, last = at - 1, at + 1
    else:
        return
    day = _valid_date(int(words[last]), _MONTHS[words[at][:3].lower()], int(number[1]))
    if day is None:
        return
    yield Period(day.isoformat(), start, last)
    while _word(words, start - 1) in _WEEKDAYS or _word(words, start - 1) == "on":
        start -= 1
    if _word(words, start - 1) not in ("ended", "ending"):
        return
    first, kind = start - 2, _word(words, start - 2)
    if of_two_words := _ENDS.get((_word(words, start - 3), kind)):
        first, kind = start - 3, of_two_words
    if kind == "year":
        yield Period(f"fy{day.year}", first, last)
        if day.month == 1:
            yield Period(f"fy{day.year - 1}", first, last)
    if kind == "quarter":
        yield Period(f"{day.year}q{(day.month + 2) // 3}", first, last)


def _fiscal_years(words: Sequence[str], at: int) -> Iterator[Period]:
    """Yield the years of "fiscal 2018", "fiscal years 2018, 2017 and 2016" or "2018 fiscal year"."""
    has_year = _word(words, at + 1) in ("year", "years")
    if has_year and _YEAR.fullmatch(_word(words, at - 1)):
        yield Period(f"fy{words[at - 1]}", at - 1, at + 1)
        return
    first, at = at, at + 1 + has_year
    while _YEAR.fullmatch(year := _word(words, at)):
        yield Period(f"fy{year}", first, at)
        at += 2 if _word(words, at + 1) in _BETWEEN_YEARS else 1
        first = at


def _quarter(words: Sequence[str], first: int, last: int, number: int) -> Iterator[Period]:
    """Yield a quarter whose year comes before or after its name.

    Args:
        words: The tokens of the text.
        first: Position of the first word of the name.
        last: Position of the last word of the name.
        number: The number of the quarter, or 0 if the name is not that of a quarter.
    """
    if not number:
        return
    at = last + 1
    while _word(words, at) in _BEFORE_YEAR:
        at += 1
    for place in (at, first - 1):
        word = _word(words, place)
        if match := _YEAR.fullmatch(word) or _FISCAL_YEAR.fullmatch(word):
            year = int(word) if match.re is _YEAR else _full_year(match[1])
            yield Period(f"{year}q{number}", min(place, first), max(place, last))
            return
