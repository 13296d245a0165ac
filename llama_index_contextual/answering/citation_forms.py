"""Read the citations of an answer in the forms in which models write them.

The prompt asks for [Source 1]. Models also write [1], [1, 3], (Source 1), 【1†source】, [^1], ¹, "according to source
1", the same in other languages, or the name of a file in brackets. `CitationReader.read` recognises a citation at an
offset, and tells it from numbers that are part of the text, such as years, indexes in code, links and figures of a
passage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from llama_index_contextual.answering import citation_words as words
from llama_index_contextual.index.analysis import is_function_word
from llama_index_contextual.search.response import Source

LONGEST = 240
"""Maximum number of characters in a citation."""

BEFORE = 80
"""Number of characters before a citation that determine whether it is one."""


# ---- expressions -----------------------------------------------------------------------------------------------------


def _words(tables: Iterable[Mapping[str, str] | str]) -> list[str]:
    lists = (table if isinstance(table, str) else " ".join(table.values()) for table in tables)
    return sorted({word for text in lists for word in text.split()}, key=lambda word: (-len(word), word))


def is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script that is written without spaces between words."""
    return "\u0e00" <= character <= "\u0e7f" or "\u3040" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7a3"


def _any_of(alternatives: Sequence[str]) -> str:
    """Return an expression for any of these words, which do not begin or end within a word."""
    unspaced = [word for word in alternatives if is_unspaced(word[0])]
    spaced = [word for word in alternatives if word not in unspaced]
    return rf"(?:(?<![^\W\d_]){_common_prefixes(spaced)}(?![^\W\d_])|{_common_prefixes(unspaced)})"


def _common_prefixes(alternatives: Sequence[str]) -> str:
    """Return an expression for any of these words in which words share their common prefixes, so that it is fast."""
    if not alternatives:
        return "(?!)"
    endings: dict[str, list[str]] = {}
    for word in alternatives:
        endings.setdefault(word[:1], []).append(word[1:])
    branches = [
        r"\w{0,4}" if letter == "*" else re.escape(letter) + (_common_prefixes(suffixes) if any(suffixes) else "")
        for letter, suffixes in sorted(endings.items(), reverse=True)  # the longest word first
    ]
    return f"(?:{'|'.join(branches)})" if len(branches) > 1 else branches[0]


_SOURCE_WORDS = _words([words.SOURCE, words.SOURCES])
_DOCUMENT_WORDS = _words([words.DOCUMENT])
_ANY_WORDS = _words([words.SOURCE, words.SOURCES, words.DOCUMENT, words.IN_BRACKETS])
_PLURALS = frozenset(_words([words.SOURCES]))
_LABELS = frozenset(words.LABELS.split())
_ALONE = frozenset(words.DOCUMENT_ALONE.split())
_RESULTS = frozenset(words.RESULTS.split())
_COMPOUNDS = frozenset(words.COMPOUNDS.split())
_UNITS = frozenset(words.UNITS.split())
_ACCORDING_TO = tuple(phrase.strip() for listed in words.ACCORDING_TO.values() for phrase in listed.split(","))

_GAP = (
    r"(?:\([a-z]{1,3}\))?[\s\\.:：#№°º_*~-]{0,4}(?:(?:no|nr|núm|num|n|number|nummer|numéro|número)[.°º\s]{1,3}|№\s?)?"
)
_KEY = rf"{_any_of(_ANY_WORDS)}{_GAP}"
_RANGE = rf"(?:[-‐‑–—−~〜～]|{_any_of(words.TO.split())})"
_JOIN_WORDS = words.JOIN.split()
_JOIN = (
    rf"(?:{_any_of([word for word in _JOIN_WORDS if len(word) > 1 or is_unspaced(word)])}"
    rf"|(?<=\s)(?:{'|'.join(word for word in _JOIN_WORDS if len(word) == 1 and not is_unspaced(word))})(?=[\s\d-])-?)"
)
_SEPARATOR = rf"(?:[,;,；、،؛/|&+·•]\s?{_JOIN}?|{_RANGE}|{_JOIN})"
_NUMBERS = rf"(?:\d{{1,200}}(?:\s{{0,3}}{_SEPARATOR}\s{{0,3}}(?:{_KEY})?[#^]?\d{{1,200}}){{0,40}})"
_NUMBERS_ALONE = rf"(?:\d{{1,200}}(?:\s{{0,3}}{_SEPARATOR}\s{{0,3}}[#^]?\d{{1,200}}){{0,40}})"
_NO_BRACKET = r"[^\[\]［］【】〔〕〖〗⟦⟧()（）]"

# A list of numbers may follow up to three words and a word for a source, as in "see also Sources 1 and 3".
_KEYED = re.compile(
    rf"\s{{0,3}}\^?(?:[^\W\d_]{{1,20}}(?:[.,:]?\s{{1,2}}|-)){{0,3}}?(?P<key>{_any_of(_ANY_WORDS)}|s(?=\d)){_GAP}[\"'“„«]?"
    rf"(?P<numbers>{_NUMBERS})(?!\d)",
    re.IGNORECASE,
)
_BARE = re.compile(rf"\s{{0,3}}[\^@#№]?\s?(?P<numbers>{_NUMBERS})[\^\\]?(?P<rest>.*)", re.DOTALL)
_MARKED = re.compile(r"\s{0,3}(?:\d{1,3}:(?=[1-9]))?(?P<numbers>\d{1,9})(?::0)?\s?†(?P<name>.*)", re.DOTALL)
_AFTER_BARE = re.compile(
    rf"\s{{0,3}}(?:[,;:，：]?\s{{0,2}}{_any_of(words.PAGE.split())}[.\s]{{0,2}}\d.*)?", re.IGNORECASE | re.DOTALL
)
_OPEN, _CLOSE = r"[\[［【〔〖⟦]", r"[\]］】〕〗⟧]"
_SQUARE = re.compile(rf"({_OPEN}{{1,2}})([^\[\]［］【】〔〕〖〗⟦⟧]{{0,200}})({_CLOSE}{{1,2}})")
_ROUND = re.compile(rf"((?:[(（]{_OPEN}?))({_NO_BRACKET}{{0,200}})({_CLOSE}?[)）])")
_UNCLOSED = re.compile(rf"(?:{_OPEN}{{1,2}}[^\[\]［］【】〔〕〖〗⟦⟧]*|[(（]{_OPEN}?{_NO_BRACKET}*{_CLOSE}?)")
_OPEN_KEYED = re.compile(rf"[\[［【〔]\s?(?:{_any_of(_SOURCE_WORDS)}){_GAP}(?P<numbers>{_NUMBERS})", re.IGNORECASE)
_UNFINISHED = re.compile(rf"[\[［【〔]\s?{_any_of(_SOURCE_WORDS)}{_GAP}[\s\d:：,、&–-]*\Z", re.IGNORECASE)
_RUNNING = re.compile(
    rf"(?P<key>{_any_of(_words([words.SOURCE, words.SOURCES, words.DOCUMENT]))}){_GAP}"
    rf"(?:[\[(（]\s?(?P<enclosed>{_NUMBERS})\s?[\])）]|(?P<numbers>{_NUMBERS_ALONE}))",
    re.IGNORECASE,
)
_KEY_ONLY = re.compile(rf"{_any_of(_words([words.SOURCE, words.SOURCES, words.DOCUMENT]))}", re.IGNORECASE)
_GAP_ONLY = re.compile(
    r"(?:\([a-z]{0,3}\)?)?[\s\\.:：#№°º_*~-]{0,4}(?:[nN][\w.°º]{0,7}\s{0,2})?(?:[\[(（][\d\s,;–-]{0,40})?\Z"
)
_MORE = re.compile(r"\s{0,3}[_,;、，&+/.:–—~-]?\s{0,3}[^\W\d_]{0,9}[\s.:#-]{0,3}\Z")
_NEXT_NUMBERS = re.compile(rf"(\d{{1,200}})(?:\s{{0,3}}{_RANGE}\s{{0,3}}(?:{_KEY})?(\d{{1,200}}))?", re.IGNORECASE)
_SUPERSCRIPT = r"[⁰¹²³⁴-⁹]"
_SUPERSCRIPTS = re.compile(rf"{_SUPERSCRIPT}{{1,6}}(?:\s?[,˒⁻–]\s?{_SUPERSCRIPT}{{1,6}}){{0,20}}")
_SUP_TAG = re.compile(
    r"(?:<|&lt;)sup(?:>|&gt;)\s{0,3}\[?(?P<numbers>\d{1,3}(?:\s?[,–-]\s?\d{1,3}){0,20})\]?\s{0,3}(?:<|&lt;)/sup(?:>|&gt;)"
)
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻˒", "0123456789-,")
_NUMBER_WORDS = {
    word: number for listed in words.NUMBER_WORDS.values() for number, word in enumerate(listed.split(), start=1)
}
_SPELLED = re.compile(
    rf"(?P<key>(?:sources?|quellen?))\s(?P<first>{'|'.join(_NUMBER_WORDS)})(?:\s(?:and|und)\s(?P<other>{'|'.join(_NUMBER_WORDS)}))?"
    r"(?![^\W_])",
    re.IGNORECASE,
)
_MAYBE_SPELLED = re.compile(r"(?:sources?|quellen?)\s[^\W\d_]{0,6}(?:\s[^\W\d_]{0,9}){0,2}\Z", re.IGNORECASE)
_AFTER_SPELLED = re.compile(rf"[.,:;!?)\]]|\s(?:{'|'.join(words.STATES.split())})\b|\Z")
_NUMBERS_ONLY = r"\d{1,2}(?:\s?[,;–-]\s?\d{1,2}){0,9}"
_ROUND_BARE = re.compile(rf"\((?P<numbers>{_NUMBERS_ONLY})\)")
_BEFORE_ROUND = re.compile(
    r"(?:[\"“„«*_]{0,2}[^\W\d_][\w'’-]{0,30}[,;:]?[ \u00a0]){2}(?P<word>[^\W\d_]{2,30})[\"”’*_]{0,2}[ \u00a0]\Z"
)
_AFTER_ROUND = re.compile(rf"(?:\s?\({_NUMBERS_ONLY}\))*(?:[.!?][*_\"”]{{0,2}}(?:\s|\Z)|[ \t]*(?:\n|\Z))")
_MAYBE_ROUND = re.compile(r"(?:\s?\([\d ,;–-]{0,20}\)?)*[.!?]?[*_\"”]{0,2}[ \t]*\Z")
_FIGURE = re.compile(r"\d{1,200}")
_NEAR = 60
"""Number of characters between a word and a figure that may belong to it."""
_QUOTED = re.compile(rf"`\[(?P<numbers>{_NUMBERS_ONLY})\]`")
_MAYBE_QUOTED = re.compile(r"`(?:\[(?:\d[\d ,;–-]{0,20}(?:\]`?)?)?)?\Z")
# What may become a link, the target of a link, or source code.
_UNDECIDED = re.compile(r"(?:[.\[]|:\s?(?:h|ht|htt|w|ww)?|\s)?\Z")
_IN_TARGET = re.compile(r"(?:\]\(|://|#|/|@)[^\s()]{0,60}\Z")
_INDEXES = re.compile(r"(?:\[\d{1,4}\]){1,30}\Z")  # before the next index of a matrix
_LABEL = re.compile(r"\[([^\[\]]{1,60})\]\Z")
_IN_SQUARE = re.compile(r"[\[［【〔]\s?(\d{1,4}(?:\s?[,–-]\s?\d{1,4}){0,9})\s?[\]］】〕]")
_LAST_WORD = re.compile(r"(?<![^\W_])[^\W_]+\Z")
# Letters, and the marks above and below them, such as vowels in Hindi.
_LETTER = r"[^\W\d_]|[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0903\u093a-\u094f\u0981-\u09cd]"
_LAST_LETTERS = re.compile(rf"(?<!{_LETTER.replace('|', ')(?<!')})(?:{_LETTER})+\Z")
_PAGES = re.compile(r"\d{1,5}")
_MATHS = "=∈∉×≤≥≈≠<+∪∩"

START = re.compile(rf"[`\n\[［【〔〖⟦(（]|(?:<|&lt;)sup|{_SUPERSCRIPT}|{_KEY_ONLY.pattern}", re.IGNORECASE)
"""Where a citation, source code or a line may begin."""


class Citation(NamedTuple):
    """A citation in an answer.

    Attributes:
        end: End offset.
        numbers: Numbers of the sources.
        is_enclosed: Whether it can be removed without leaving a gap in the sentence.
    """

    end: int
    numbers: tuple[int, ...]
    is_enclosed: bool = True


class _Pending:
    """More text is needed to decide whether a citation begins here."""


PENDING: Final = _Pending()


@dataclass(frozen=True)
class _Name:
    """A name that cites the sources of a document, with their pages."""

    text: str
    pages: tuple[tuple[int, int | None, int | None], ...]


class CitationReader:
    """Recognise citations of given passages.

    Args:
        passages: The text and the source of each passage; the first is Source 1.
    """

    def __init__(self, passages: Sequence[tuple[str, Source]]) -> None:
        self.sources = len(passages)
        self._highest = max(99, self.sources)
        self._texts = [" ".join(text.casefold().split()) for text, _ in passages]
        self._own: dict[str, set[str]] = {}  # numbers in brackets and superscripts of passages, with the words before
        for text, _ in passages:
            for mark in (*_IN_SQUARE.finditer(text), *_SUPERSCRIPTS.finditer(text)):
                number = "".join((mark[1] if mark.re is _IN_SQUARE else mark[0]).split())
                self._own.setdefault(number, set()).add(
                    _word_before(text[max(0, mark.start() - BEFORE) : mark.start()])
                )
        self._names = list(_names_of([source for _, source in passages]))

    def read(self, text: str, at: int, *, in_code: bool = False, is_end: bool = True) -> Citation | _Pending | None:
        """Return the citation that begins at an offset, `PENDING` if more text is needed, or None if there is none.

        Args:
            text: The text, with at least `BEFORE` characters before the offset.
            at: The offset; `START` matches there.
            in_code: Whether the offset is in source code, in which only citations in words are recognised.
            is_end: Whether no more text follows.
        """
        if text[at] in "[［【〔〖⟦(（":
            return self._in_brackets(text, at, in_code, is_end)
        if in_code:
            return None
        if text[at] in "<&":
            return self._in_tag(text, at, is_end)
        if superscript := _SUPERSCRIPTS.match(text, at):
            return self._superscript(text, superscript, is_end)
        return self._in_words(text, at, is_end)

    # ---- in brackets ----

    def _in_brackets(self, text: str, at: int, in_code: bool, is_end: bool) -> Citation | _Pending | None:
        is_square = text[at] not in "(（"
        group = (_SQUARE if is_square else _ROUND).match(text, at)
        if group is None:
            return self._open(text, at, is_end)
        if not in_code and (numbers_alone := _ROUND_BARE.match(text, at)):
            return self._at_end_of_sentence(text, numbers_alone, is_end)
        opening, content, closing = group.groups()
        end = group.end()
        if len(opening) > len(closing):
            return PENDING if is_square and end == len(text) and not is_end else None
        if len(opening) < len(closing):
            if not is_square:
                return None
            end -= 1
        is_square = is_square or len(opening) == 2
        numbers = self._numbers_in(content, is_square) or self._spelled_in(content)
        if numbers is None and is_square and not in_code and (bare := self._bare(content, opening)) is not None:
            if not is_end and _UNDECIDED.match(text, end):
                return PENDING
            numbers = bare if self._is_citation(text, at, end, content) else None
        return None if numbers is None else Citation(end, numbers)

    def _open(self, text: str, at: int, is_end: bool) -> Citation | _Pending | None:
        """Return the citation in a bracket that is not closed, or PENDING if it may still be closed."""
        unclosed = _UNCLOSED.match(text, at, at + LONGEST)
        is_open = unclosed is not None and unclosed.end() == len(text) and len(text) - at < LONGEST
        if is_open and not is_end and self._may_cite(text[at:]):
            return PENDING
        if is_open and is_end and (unfinished := _UNFINISHED.match(text, at)):
            wrong = [number for number in parse_numbers(unfinished[0]) if not 1 <= number <= self.sources]
            return Citation(len(text), tuple(wrong))
        match = _OPEN_KEYED.match(text, at)
        if match is None:
            return None
        is_separate = not text[match.end() : match.end() + 1].isalnum()
        return Citation(match.end(), parse_numbers(match["numbers"]), is_separate)

    def _may_cite(self, start: str) -> bool:
        """Return whether an open bracket may become a citation; most texts in round brackets are of no interest."""
        return start[0] not in "(（" or len(start) < 40 or _KEY_ONLY.search(start, 0, 60) is not None

    def _numbers_in(self, content: str, is_square: bool) -> tuple[int, ...] | None:
        """Return the numbers in brackets that contain a word for a source, the name of a document, or a dagger."""
        if mark := _MARKED.match(content):
            return self._named(mark["name"]) or parse_numbers(mark["numbers"])
        match = _KEYED.match(content)
        if match is not None:
            key = match["key"].casefold()
            is_whole = not content[match.end() :][:1].isalnum() and (is_square or not _is_loose(key))
            is_own = not is_square and self._is_in_passages(f"[{content}]", f"({content})")
            is_own = is_own or (not _is_source(key) and self._is_in_passages(content))
            if (is_whole or _is_source(key)) and not is_own:
                first, *further = parse_numbers(match["numbers"])
                return (first, *(number for number in further if number <= max(999, self.sources)))
        return self._named(content)

    def _spelled_in(self, content: str) -> tuple[int, ...] | None:
        """Return the numbers in brackets that contain a word for a source and numbers in words."""
        mark = _SPELLED.fullmatch(content.strip())
        numbers = _spelled_numbers(mark) if mark else ()
        is_known = bool(numbers) and all(number <= self.sources for number in numbers)
        return numbers if is_known and not self._is_in_passages(content) else None

    def _is_in_passages(self, *phrases: str) -> bool:
        candidates = [" ".join(phrase.casefold().split()) for phrase in phrases]
        return any(phrase in text for text in self._texts for phrase in candidates)

    def _named(self, content: str) -> tuple[int, ...] | None:
        name_text = content.strip().strip("`*_\"'“”").casefold()
        key = _KEY_ONLY.match(name_text)
        without_key = name_text[key.end() :].lstrip(" :：") if key else ""
        for name in self._names:
            if name_text.startswith(name.text) and "." in name.text[1:]:
                suffix = name_text[len(name.text) :]
            elif without_key.startswith(name.text):
                suffix = without_key[len(name.text) :]
            else:
                continue
            if suffix[:1].isalnum():
                continue
            page = _PAGES.search(suffix)
            on_page = [
                number
                for number, first, last in name.pages
                if page and first is not None and first <= int(page[0]) <= (last or first)
            ]
            return tuple(on_page or [number for number, _, _ in name.pages])
        return None

    def _bare(self, content: str, opening: str) -> tuple[int, ...] | None:
        """Return the numbers in brackets that contain nothing else, or None."""
        bare = _BARE.fullmatch(content)
        if bare is None or not _AFTER_BARE.fullmatch(bare["rest"]):
            return None
        if "/" in content:  # a fraction
            return None
        numbers = parse_numbers(bare["numbers"])
        is_note = "^" in content or len(opening) == 2
        return numbers if is_note or all(1 <= number <= self._highest for number in numbers) else None

    def _is_citation(self, text: str, at: int, end: int, content: str) -> bool:
        """Return whether numbers in brackets cite sources, considering what is around them."""
        before, after = text[max(0, at - BEFORE) : at], text[end : end + 8]
        if (indexes := _INDEXES.search(before)) and _is_array(before[: indexes.start()]):
            return False
        if (
            (label := _LABEL.search(before))
            and self._numbers_in(label[1], True) is None
            and not self._bare(label[1], "[")
        ):
            return False  # [text][1] is a link
        if after.startswith("(") or re.match(r":\s?(?:http|www)", after) or before.endswith(("!", "](")):
            return before.endswith("!") and not after.startswith(("(", ":", "["))
        word, exponent_words = _word_before(before), self._own.get("".join(content.split()))
        if exponent_words is not None and (
            word in exponent_words or not all(1 <= n <= self.sources for n in parse_numbers(content))
        ):
            return False
        if "^" in content:
            return True
        if word in _LABELS or before.rstrip()[-1:] in tuple(_MATHS) or re.match(r"\s?[=+×∈]", after):
            return False
        return not (_is_array(before) or (before[-1:].isalnum() and re.match(r"[.\[]?[A-Za-z_(]", after)))

    def _at_end_of_sentence(self, text: str, mark: re.Match[str], is_end: bool) -> Citation | _Pending | None:
        """Return the citation in a form that also has other uses, such as "(1)", if it ends a sentence.

        It is none if its number may be one of the text: if the passages contain the same form, or the number near the
        word before it, or if the sentence contains the number as a word.
        """
        before = text[max(0, mark.start() - BEFORE) : mark.start()]
        while (earlier := re.search(rf"\s?\({_NUMBERS_ONLY}\)\s?\Z|\s?\[Source \d+\]\s?\Z", before)) is not None:
            before = f"{before[: earlier.start()]} "
        words_before = _BEFORE_ROUND.search(before)
        numbers = parse_numbers(mark["numbers"])
        if words_before is None or not all(1 <= number <= self.sources for number in numbers):
            return None
        word = words_before["word"].casefold()
        is_other = word in _LABELS or word in _NUMBER_WORDS or word in _RESULTS or is_function_word(word)
        if is_other or _is_source(word) or self._is_in_passages(mark[0].strip("`")):
            return None
        sentence = re.split(r"[.!?]\s", before)[-1].casefold()
        number_words = {_NUMBER_WORDS.get(token) for token in re.findall(r"[^\W\d_]+", sentence)}
        if number_words.intersection(numbers) or any(self._has_figure(number, word) for number in numbers):
            return None
        if not is_end and _MAYBE_ROUND.match(text, mark.end()):
            return PENDING
        return Citation(mark.end(), numbers) if _AFTER_ROUND.match(text, mark.end()) else None

    def _has_figure(self, number: int, word: str) -> bool:
        """Return whether a passage contains a number near a word."""
        parts = [text.split(word) for text in self._texts]
        before = (part[-_NEAR:] for split in parts for part in split[:-1])
        after = (part[:_NEAR] for split in parts for part in split[1:])
        return any(str(number) in _FIGURE.findall(around) for around in (*before, *after))

    def read_quoted(self, text: str, at: int, *, is_end: bool) -> Citation | _Pending | None:
        """Return the citation that a pair of backquotes contains, such as `[1]`, if it ends a sentence; see `read`."""
        mark = _QUOTED.match(text, at)
        if mark is None:
            return PENDING if not is_end and _MAYBE_QUOTED.match(text, at) else None
        return self._at_end_of_sentence(text, mark, is_end)

    # ---- without brackets ----

    def _in_tag(self, text: str, at: int, is_end: bool) -> Citation | _Pending | None:
        tag = _SUP_TAG.match(text, at)
        if tag is None:
            is_open = len(text) - at < BEFORE and not re.search(r"/sup(?:>|&gt;)", text[at:])
            return PENDING if is_open and not is_end else None
        return self._exponent(text, at, tag.end(), tag["numbers"])

    def _superscript(self, text: str, mark: re.Match[str], is_end: bool) -> Citation | _Pending | None:
        if not is_end and len(text) - mark.end() < 2 and not text[mark.end() :].strip(",˒⁻– "):
            return PENDING
        if text[mark.end() : mark.end() + 1].isalnum() and not is_unspaced(text[mark.end()]):
            return None
        return self._exponent(text, mark.start(), mark.end(), mark[0].translate(_DIGITS), mark[0])

    def _exponent(self, text: str, at: int, end: int, numbers: str, notation: str = "") -> Citation | None:
        before = text[max(0, at - BEFORE) : at]
        word = _word_before(before) if before[-1:].isalnum() else ""
        is_word = (len(word) > 2 and word.isalpha() and word not in _UNITS) or (bool(word) and is_unspaced(word[-1]))
        is_word = is_word or (not notation and before[-1:].isspace())
        if not (is_word or (before[-1:] in tuple(".,;:!?)]\"'”’»。，、；）」") and before[-1:])):
            return None
        if notation and word in self._own.get("".join(notation.split()), ()):
            return None
        sources = parse_numbers(numbers)
        if any(number > self.sources for number in sources) and numbers.isdigit() and len(numbers) > 1:
            digits = tuple(dict.fromkeys(map(int, numbers)))  # ¹² is 1 and 2
            sources = digits if all(1 <= digit <= self.sources for digit in digits) else sources
        return Citation(end, sources) if all(1 <= number <= self._highest for number in sources) else None

    def _in_words(self, text: str, at: int, is_end: bool) -> Citation | _Pending | None:
        """Return the citation that consists of a word for a source and a number."""
        if match := _SPELLED.match(text, at):
            return self._spelled(text, match, is_end)
        if not is_end and _MAYBE_SPELLED.match(text, at):
            return PENDING
        key = _KEY_ONLY.match(text, at)
        mark = _RUNNING.match(text, at)
        if mark is None:
            is_pending = not is_end and key is not None and _GAP_ONLY.match(text, key.end())
            return PENDING if is_pending else None
        word = mark["key"].casefold()
        end = mark.end() if mark["enclosed"] else self._end_of_list(mark)
        if not is_end and _MORE.match(text, end):
            return PENDING
        after = text[end : end + 2]
        gap = text[mark.end("key") : mark.end() if mark["enclosed"] else mark.start("numbers")]
        if (_is_source(word) and re.match(r"\.\s", gap)) or ("\n" in gap and re.match(r"[.)]\s", after)):
            return None  # the number begins the next sentence or an item of a list
        is_part = after[:1].isalnum() and not is_unspaced(after[0])
        if is_part or re.match(r"%|_[^\W_]|[.,:]\d", after):
            return None
        numbers = parse_numbers(mark["enclosed"] or text[mark.start("numbers") : end])
        before = text[max(0, at - BEFORE) : at]
        is_within = before[-1:].isalnum() and not is_unspaced(word[0])
        if is_within or _IN_TARGET.search(before):
            return None
        if not all(1 <= number <= self._highest for number in numbers):
            return None
        word_before = _word_before(before) if before[-1:] == " " else ""
        phrase = text[at:end]
        if not _is_source(word):
            phrases = [phrase]
        else:
            phrases = (
                [f"{word_before} {phrase}"]
                if word_before
                else [f"[{phrase}]", f"({phrase})"]
                if before[-1:] == "("
                else []
            )
        if self._is_in_passages(*phrases):
            return None
        is_certain = _is_source(word) or before.casefold().rstrip().endswith(_ACCORDING_TO)
        if not is_certain and (word not in _ALONE or max(numbers) > self.sources):
            return None
        if word_before in _COMPOUNDS:
            return None
        return Citation(end, numbers, is_enclosed=False)

    def _spelled(self, text: str, mark: re.Match[str], is_end: bool) -> Citation | _Pending | None:
        """Return the citation in words such as "source one", but not in "they source one part from Spain"."""
        if not is_end and _MAYBE_SPELLED.match(text, mark.start()):
            return PENDING
        numbers = _spelled_numbers(mark)
        before = text[max(0, mark.start() - BEFORE) : mark.start()]
        is_german = mark["key"].startswith("Quelle") and mark["first"].casefold() in words.NUMBER_WORDS["de"].split()
        is_german = (
            is_german and not text[mark.end() + 1 : mark.end() + 2].isupper()
        )  # not "eine Quelle drei Meter tief"
        is_cited = before.casefold().rstrip().endswith(_ACCORDING_TO)
        is_subject = mark["key"] == "Source" and _AFTER_SPELLED.match(text, mark.end()) is not None
        is_certain = is_german or ((is_cited or is_subject) and _AFTER_SPELLED.match(text, mark.end()) is not None)
        if not is_certain or before[-1:].isalnum() or self._is_in_passages(mark[0]):
            return None
        is_known = all(1 <= number <= self.sources for number in numbers)
        return Citation(mark.end(), numbers, is_enclosed=False) if is_known else None

    def _end_of_list(self, mark: re.Match[str]) -> int:
        """Return the end of the numbers after a word for a source.

        In "source 1, 2 days" and "sources 1 and 2, 40 days", the last number is not one of a source.
        """
        is_plural = mark["key"].casefold() in _PLURALS or is_unspaced(mark["key"][0]) or "(" in mark[0]
        end = mark.start("numbers")
        for number in re.finditer(r"\d{1,200}", mark["numbers"]):
            start = mark.start("numbers") + number.start()
            gap = mark.string[end:start]
            is_known = 1 <= int(number[0]) <= self.sources
            if gap and not (is_known or not re.fullmatch(r"\s*,\s*", gap)):
                break
            if gap and not is_plural and ("," in gap or not is_known):
                break
            end = mark.start("numbers") + number.end()
        return end


def _spelled_numbers(mark: re.Match[str]) -> tuple[int, ...]:
    return tuple(_NUMBER_WORDS[word.casefold()] for word in mark.groups()[1:] if word)


def unfinished_word(text: str) -> int:
    """Return the number of characters at the end of a text that may be the beginning of a word for a source."""
    ending = text[-24:].casefold()
    last = _LAST_LETTERS.search(ending)
    length = len(last[0]) if last is not None and last[0] in _BEGINNINGS else 0
    unspaced = (n for n in range(min(16, len(ending)), 0, -1) if is_unspaced(ending[-n]) and ending[-n:] in _BEGINNINGS)
    tag = next(
        (
            n
            for n in range(min(7, len(ending)), 0, -1)
            if "<sup&lt;sup".startswith(ending[-n:]) or "&lt;sup".startswith(ending[-n:])
        ),
        0,
    )
    return max(length, next(unspaced, 0), tag)


_BEGINNINGS = frozenset(
    word.rstrip("*")[:end] for word in (*_SOURCE_WORDS, *_DOCUMENT_WORDS) for end in range(1, len(word) + 5)
)


def _names_of(sources: Sequence[Source]) -> Iterator[_Name]:
    """Yield the names that cite each document, the longest first."""
    pages: dict[str, list[tuple[int, int | None, int | None]]] = {}
    for number, source in enumerate(sources, start=1):
        file_name = (source.file_name or "").replace("\\", "/")
        names = {file_name, file_name.rpartition("/")[2], file_name.rpartition(".")[0], source.title or ""}
        for name in {alias.casefold().strip() for alias in names} - {""}:
            pages.setdefault(name, []).append((number, source.page_start, source.page_end))
    yield from (_Name(name, tuple(pages[name])) for name in sorted(pages, key=len, reverse=True))


def _is_source(key: str) -> bool:
    return key in _SOURCE_SET


_SOURCE_SET = frozenset(_SOURCE_WORDS)
_LOOSE = frozenset({*words.IN_BRACKETS.split(), "s", "font", "fonts", "cite", "chunk", "chunks", "evidence"})


def _is_loose(key: str) -> bool:
    """Return whether a word cites a source in square brackets only."""
    return key in _LOOSE


def _is_array(before: str) -> bool:
    """Return whether a text ends with a name as in source code, such as "x", "my_list", "args" or "f()"."""
    name = re.search(r"[\w.]{1,40}(?:\(\))?\Z", before)
    if name is None:
        return False
    is_short = len(name[0]) == 1 and not is_unspaced(name[0])
    is_code = re.search(r"_|[a-z][A-Z]|[A-Za-z]\d|\w\.\w|\(", name[0])
    return is_short or bool(is_code) or name[0].casefold() in _LABELS


def _word_before(text: str) -> str:
    """Return the last word of a text, in lower case, if only white space or punctuation follows it."""
    word = _LAST_WORD.search(text.rstrip(" \t\n.,:;*_"))
    return word[0].casefold() if word else ""


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse source numbers such as "1", "1, 3", "1 and 3" or "1-3"."""
    numbers: list[int] = []
    for first, last in _NEXT_NUMBERS.findall(text):
        end = int(last or first)
        numbers.extend(range(int(first), end + 1) if int(first) <= end <= int(first) + 50 else (int(first), end))
    return tuple(dict.fromkeys(numbers))
