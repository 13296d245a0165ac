"""Check the citations of an answer against the passages in its prompt.

An answer cites its passages as [Source N]. `check_citations` converts other forms of citations to this form, removes
citations of sources that do not exist, looks up every quotation in the passages, finds the sentence that supports each
statement, and reports numbers that no cited passage contains. The first part of this module finds and compares
quotations; citation_forms.py reads the citations, and support.py finds the sentences.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from operator import attrgetter, itemgetter
from typing import Any, Literal

from llama_index_contextual.answering.citation_forms import (
    BEFORE,
    LONGEST,
    START,
    Citation,
    CitationReader,
    is_unspaced,
    parse_numbers,
    unfinished_word,
)
from llama_index_contextual.answering.support import MIN_TERMS, EvidenceFinder, SupportStatus
from llama_index_contextual.index.analysis import is_function_word
from llama_index_contextual.index.numbers import number_matches, numbers_in
from llama_index_contextual.readers.boundaries import Rank, structural_offsets
from llama_index_contextual.search.response import Source

# ---- Quotations ------------------------------------------------------------------------------------------------------

MIN_WORDS = 3
"""Minimum number of words in a quotation. Shorter text in quotation marks is regarded as a term."""

MAX_OMITTED = 300
"""Maximum number of characters that an ellipsis in a quotation may stand for."""

_DROPPED = frozenset("\"'`´*_“”„‟‘’‚‛«»‹›\u00ad\u200b\u200c\u200d\u2060\ufeff")
_DASHES = frozenset("-‐‑‒–—―−")
_SIGN = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"  # scripts in which each character counts as a word
_WORD = re.compile(rf"{_SIGN}|(?:(?!{_SIGN})\w)+(?:[-‐‑.,'’](?:(?!{_SIGN})\w)+)*")
_LINE_END = r"\n(?![ \t]*\n)"  # within a paragraph
_MARKED = re.compile(
    "|".join(
        [
            f"“((?:[^“”\\n]++|{_LINE_END})++)”",
            f"„((?:[^„“”\\n]++|{_LINE_END})++)[“”]",
            f"«((?:[^«»\\n]++|{_LINE_END})++)»",
            # A quotation mark after a digit is an inch sign and does not open a quotation.
            f'(?<![\\w"])"((?:[^"\\n]++|{_LINE_END})++)"(?!\\w)',
            # Within a word, a single quotation mark is an apostrophe.
            f"(?<!\\w)‘((?:[^‘’\\n]++|’(?=\\w)|{_LINE_END})++)’(?!\\w)",
            f"(?<!\\w)'((?:[^'\\n]++|(?<=\\w)'(?=\\w)|{_LINE_END})++)'(?!\\w)",
        ]
    )
)
_BLOCK = re.compile(r"^(?:[ \t]*>[^\n]*(?:\n|\Z))+", re.MULTILINE)
_BLOCK_MARK = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)
_ELISION = re.compile(r"[\[(]?(?:…|\.\s?\.\s?\.)[\])]?")
_ENDS = " \t\n.,;:!?…()[]"


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character).casefold()
    return "".join(part for part in parts if not "\u0300" <= part <= "\u036f")  # accents


class FoldedText:
    """Text normalised for comparison, with the offsets of its characters in the original text.

    Example:
        >>> FoldedText("Infor-\\nmation  “A”").text
        'informationa'
        >>> FoldedText("The infor-\\nmation is here.").find("information is", 0)
        (4, 20)
    """

    def __init__(self, original: str) -> None:
        self.original = original
        parts: list[str] = []
        self.offsets: list[int] = []
        gap = ""
        for offset, character in enumerate(original):
            if character.isspace() or character in _DASHES:
                gap += "-" if character in _DASHES else " "
                continue
            if character in _DROPPED:
                continue
            for part in _fold_character(character):
                if gap and parts and parts[-1].isdigit() and part.isdigit():
                    # "3-4" and "3 4" are not "34".
                    parts.append("-" if "-" in gap else " ")
                    self.offsets.append(offset)
                parts.append(part)
                self.offsets.append(offset)
                gap = ""
        self.text = "".join(parts)

    def find(self, words: str, start: int) -> tuple[int, int] | None:
        """Find the first match of whole words from `start` onwards and return its span in the original, or None."""
        needle = fold(words)
        at = self.text.find(needle, bisect_left(self.offsets, start)) if needle else -1
        while at >= 0:
            first, last = self.offsets[at], self.offsets[at + len(needle) - 1]
            if first >= start and self._is_edge(first) and self._is_edge(last + 1):
                return first, last + 1
            at = self.text.find(needle, at + 1)
        return None

    def _is_edge(self, offset: int) -> bool:
        """Return whether an offset is not inside a word."""
        around = self.original[max(0, offset - 1) : offset + 1]
        return offset == 0 or len(around) < 2 or not around.isalnum() or bool(re.search(_SIGN, around))


@lru_cache(maxsize=256)
def fold(text: str) -> str:
    """Normalise text for comparison."""
    return FoldedText(text).text


QuotationStatus = Literal["verified", "wrong_source", "stitched", "not_found"]


@dataclass(frozen=True, kw_only=True)
class Quotation:
    """A quotation in an answer and the result of its check.

    Attributes:
        text: The words between the quotation marks.
        start: Start offset in the checked answer.
        end: End offset.
        status: "verified" if a cited passage contains the quotation, "wrong_source" if only another passage does,
            "stitched" if it is assembled from pieces of the passages, "not_found" otherwise.
        cited: Numbers of the sources cited for the quotation; if empty, any passage may contain it.
        found_in: Number of the source that contains the quotation, or None.
        source: File, pages and offsets of the quotation in the document, or None.
    """

    text: str
    start: int
    end: int
    status: QuotationStatus = "not_found"
    cited: tuple[int, ...] = ()
    found_in: int | None = None
    source: Source | None = None


def quotations_of(answer: str) -> list[Quotation]:
    """Find quotations of at least three words in quotation marks or Markdown block quotes, without checking them.

    Example:
        >>> [quoted.text for quoted in quotations_of('It says “food keeps three days” and "maybe".')]
        ['food keeps three days']
    """
    quotations = []
    blocks = [(block.start(), block.end()) for block in _BLOCK.finditer(answer)]
    for start, end in blocks:
        text = re.sub(r"(?<!\s)\s*\[Sources? [^\[\]]*\]\s*", " ", _BLOCK_MARK.sub("", answer[start:end])).strip()
        quotations.append(Quotation(text=text, start=start, end=end))
    starts = [start for start, _ in blocks]
    for match in _MARKED.finditer(answer):
        before = bisect_right(starts, match.start())  # number of blocks that begin before the quotation marks
        if not before or blocks[before - 1][1] <= match.start():
            text = next(group for group in match.groups() if group is not None)
            quotations.append(Quotation(text=text, start=match.start(), end=match.end()))
    long_enough = (quotation for quotation in quotations if _count_words(quotation.text) >= MIN_WORDS)
    return sorted(long_enough, key=lambda quotation: quotation.start)


def _count_words(text: str) -> int:
    return len(_WORD.findall(text))


def locate(words: str, text: FoldedText) -> tuple[int, int] | None:
    """Return the span of a quotation in a text, or None if the text does not contain it.

    An ellipsis ("…") in the quotation stands for omitted words, at most 300 characters.

    Example:
        >>> locate("food … three days.", FoldedText("All Food keeps for three days here."))
        (4, 29)
    """
    whole = text.find(words.strip(_ENDS), 0)
    pieces = _pieces(words)
    if whole is not None or len(pieces) < 2:
        return whole
    first = text.find(pieces[0], 0)
    while first is not None:
        spans = [first]
        for piece in pieces[1:]:
            if (span := text.find(piece, spans[-1][1])) is None:
                return None
            spans.append(span)
        if all(after[0] - before[1] <= MAX_OMITTED for before, after in pairwise(spans)):
            return first[0], spans[-1][1]
        first = text.find(pieces[0], first[1])  # it may occur again, closer to the others
    return None


def _pieces(words: str) -> list[str]:
    return [piece for part in _ELISION.split(words) if _count_words(piece := part.strip(_ENDS))]


def is_stitched(text: str, texts: Sequence[FoldedText]) -> bool:
    """Return whether a quotation is assembled from pieces of at least three words from the texts.

    The pieces may be joined by an ellipsis or by a word such as "and".

    Example:
        >>> texts = [FoldedText("Food keeps long."), FoldedText("Boil all water.")]
        >>> is_stitched("food keeps long boil all water", texts)
        True
    """
    pieces = _pieces(text)
    if len(pieces) > 1 and all(any(passage.find(piece, 0) for passage in texts) for piece in pieces):
        return True
    words, first = list(_WORD.finditer(text)), 0

    def is_found(last: int) -> bool:
        span = text[words[first].start() : words[last - 1].end()]
        return any(passage.find(span, 0) for passage in texts)

    while first < len(words):
        last = first + MIN_WORDS
        if last <= len(words) and is_found(last):
            while last < len(words) and is_found(last + 1):
                last += 1
            first = last
        elif first and is_function_word(words[first][0].casefold()):
            first += 1
        else:
            return False
    return True


# ---- Checking an answer ----------------------------------------------------------------------------------------------

_Citation = tuple[int, int, tuple[int, ...]]
"""Start offset, end offset and source numbers."""

_OPEN, _CLOSE = r"[\[［【〔]", r"[\]］】〕]"  # some models write citations in East Asian brackets
_INSIDE = r"[^\[\]［］【】〔〕]"
_CITATION = re.compile(
    rf"{_OPEN}\s?sources?(?![a-z])({_INSIDE}{{0,200}}\d)({_INSIDE}{{0,200}}{_CLOSE})?", re.IGNORECASE
)
_OPEN_BRACKET = re.compile(rf"{_OPEN}{_INSIDE}{{0,240}}\Z")
_FOLLOWING = re.compile(rf"(?:[\s.,;:!?]*{_OPEN}\s?sources?{_INSIDE}*{_CLOSE})+", re.IGNORECASE)
_CODE_MARK = re.compile(r"`{1,3}|\n")
_BEFORE_SPACE = ".,;:!?)\"'”’»%"
_LONGEST = LONGEST + 1
_LINE_START = re.compile(r"[\s>]*(?:[-*•–]\s|#+\s|\d{1,3}[.)]\s)?")  # of a list item, a heading or a block quote
_LIST_NUMBER = re.compile(r"^[ \t]*\d+[.)](?=\s)", re.MULTILINE)


@dataclass(frozen=True)
class Passage:
    """A passage that an answer may cite.

    Attributes:
        text: The original text, without the generated context.
        source: File, pages and offsets of the passage.
        head: Facts about the document, and column headers of a table that begins before the passage; numbers in them
            count as part of the passage.
        locate: Function that returns the source of part of the passage, given its offsets in the document; None if only
            the source of the whole passage is known.
    """

    text: str
    source: Source = field(default_factory=Source)
    head: str = ""
    locate: Callable[[int, int], Source] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class UnsupportedFigure:
    """A number or month that occurs in an answer but in none of the cited passages.

    Attributes:
        text: The number or month as written in the answer.
        start: Start offset in the checked answer.
        end: End offset.
        cited: Numbers of the sources cited for the number or month; if empty, all sources were searched.
    """

    text: str
    start: int
    end: int
    cited: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A sentence or list item of an answer, and the sentence or table row of a source that supports it.

    Attributes:
        text: The statement, without citations.
        start: Start offset in the checked answer.
        end: End offset.
        status: "supported" if a source that it cites supports it, or any source if it cites none, "elsewhere" if only
            another source does, "not_found" otherwise.
        cited: Numbers of the sources that it cites.
        found_in: Number of the source that supports it, or None.
        quote: The sentence or row that supports it, or an empty string.
        source: File, pages, section and offsets of this sentence or row in the document, or None.
    """

    text: str
    start: int
    end: int
    status: SupportStatus
    cited: tuple[int, ...] = ()
    found_in: int | None = None
    quote: str = ""
    source: Source | None = None

    def __str__(self) -> str:
        """Return the statement and its support as one line of text."""
        if self.source is None:
            return f"{self.text} → no source"
        doubt = "" if self.status == "supported" else " (not cited for it)"
        return f"{self.text} → [Source {self.found_in}]{doubt} {self.source}: “{' '.join(self.quote.split())}”"


@dataclass(frozen=True, kw_only=True)
class CitationReport:
    """Result of a citation check, including the answer with its citations in one form.

    Attributes:
        text: The answer with citations in the form [Source N], without citations of sources that do not exist.
        cited: Numbers of the cited sources, in order of first citation.
        invalid: Numbers of cited sources that do not exist, in order of first citation.
        quotations: The quotations, in order.
        unsupported: Numbers and months that no cited passage contains, in order.
        statements: The statements with the sentences that support them, in order; empty if the passages do not answer
            the question.
        found: Whether the passages answer the question; otherwise, the answer need not cite any.
    """

    text: str
    cited: tuple[int, ...] = ()
    invalid: tuple[int, ...] = ()
    quotations: tuple[Quotation, ...] = ()
    unsupported: tuple[UnsupportedFigure, ...] = ()
    statements: tuple[Statement, ...] = ()
    found: bool = True

    @property
    def cites_nothing(self) -> bool:
        """True if the answer cites no source, although it answers the question."""
        return self.found and bool(self.text) and not self.cited

    @property
    def is_clean(self) -> bool:
        """True if the check found no problems, and the answer cites a source unless nothing was found."""
        is_sound = all(quotation.status == "verified" for quotation in self.quotations)
        return is_sound and not (self.invalid or self.unsupported or self.cites_nothing)

    def cited_places(self) -> dict[int, list[Source]]:
        """Map the number of each cited source to the places of the sentences in it that support the statements.

        The places of a source are in the order of the answer, without duplicates.
        """
        places: dict[int, dict[str, Source]] = {}
        checked: tuple[Quotation | Statement, ...] = (*self.quotations, *self.statements)
        for one in checked:
            if one.status in ("verified", "supported") and one.found_in in self.cited and one.source is not None:
                places.setdefault(one.found_in, {}).setdefault(str(one.source), one.source)
        return {number: list(by_label.values()) for number, by_label in places.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        labelled = {
            name: [
                {**asdict(one), "label": None if one.source is None else str(one.source)} for one in getattr(self, name)
            ]
            for name in ("quotations", "statements")
        }
        return {**asdict(self), **labelled, "cites_nothing": self.cites_nothing, "is_clean": self.is_clean}


NO_CITATION = "The answer cites no source."
"""Note on an answer that cites no source, although it answers the question."""


def check_citations(
    answer: str, passages: Sequence[Passage], *, question: str = "", found: bool = True
) -> CitationReport:
    """Check an answer that cites its passages, which are numbered from 1.

    Citations are recognised in the forms in which models write them, such as [Source 1], [1, 2], (Source 1),
    【1†source】, [^1], ¹, [Quelle 1], "according to source 1", or the name of a file in brackets.

    Args:
        answer: The answer.
        passages: The passages in the prompt; the first is Source 1.
        question: The question. Numbers that it contains need not be in a passage.
        found: Whether the passages answer the question; otherwise, the answer need not cite any.

    Example:
        >>> passages = [Passage("Food keeps for three days."), Passage("Boil all water.")]
        >>> report = check_citations('It “keeps for three days” [Source 2], 4 at most [Source 7].', passages)
        >>> report.text, report.invalid
        ('It “keeps for three days” [Source 2], 4 at most.', (7,))
        >>> [(q.status, q.found_in) for q in report.quotations], [figure.text for figure in report.unsupported]
        ([('wrong_source', 1)], ['4'])
    """
    citations = CitationFilter(passages)
    text = citations.feed(answer) + citations.flush()
    layout = _Layout(text, citations.citations)
    quotations = [replace(quotation, cited=layout.citations_for(quotation)) for quotation in quotations_of(text)]
    folded_texts = [FoldedText(passage.text) for passage in passages] if quotations else []
    quotations = [_check_quotation(quotation, passages, folded_texts) for quotation in quotations]
    return CitationReport(
        text=text,
        cited=tuple(dict.fromkeys(number for _, _, numbers in layout.citations for number in numbers)),
        invalid=tuple(citations.invalid),
        quotations=tuple(quotations),
        statements=tuple(_statements(layout, passages, quotations, question)) if found else (),
        unsupported=_unsupported(layout, passages, question),
        found=found,
    )


def citations_of(answer: str) -> list[_Citation]:
    """Return each citation in an answer as its start offset, its end offset, and the numbers of its sources.

    Example:
        >>> citations_of("Three days [Source 2], or four [Sources 1 and 3].")
        [(11, 21, (2,)), (31, 48, (1, 3))]
    """
    return [(mark.start(), mark.end(), parse_numbers(mark[1])) for mark in _CITATION.finditer(answer) if mark[2]]


def uncited(text: str) -> str:
    """Remove the citations, and the white space before them, from a text."""
    return re.sub(rf"(?<![ \t])[ \t]*{_CITATION.pattern}", "", text, flags=re.IGNORECASE)


class CitationFilter:
    """Filter that converts the citations in streamed text to one form, and removes those of other sources.

    The form is [Source N]. Text is held back while it may be the beginning of a citation, so that no part of an invalid
    citation is released. White space at either end of the text and before a removed citation is also removed, as is an
    unfinished citation at the end. The result does not depend on how the text is divided into pieces.

    Args:
        passages: The passages that can be cited; the first is Source 1.

    Attributes:
        citations: The citations shown so far, with their offsets in the filtered text.
        invalid: Numbers of the invalid sources cited so far.

    Example:
        >>> stream = CitationFilter([Passage("Food keeps."), Passage("Boil water.")])
        >>> [stream.feed(piece) for piece in ("Three days [Sou", "rce 99] or ", "four [2].")], stream.flush()
        (['Three days', ' or', ' four'], ' [Source 2].')
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.citations: list[_Citation] = []
        self.invalid: list[int] = []
        self._reader = CitationReader([(passage.text, passage.source) for passage in passages])
        self._held = ""  # the last characters that have been read, followed by those that have not
        self._pieces: list[str] = []  # what has come since
        self._read = 0
        self._code = ""  # the marks that began source code
        self._space = ""  # white space at the end of the text to show
        self._last = ""  # the end of the text that has been shown
        self._length = 0  # of the text that has been shown

    def feed(self, piece: str) -> str:
        """Add a piece of the text and return the text that can now be shown, which may be empty."""
        self._pieces.append(piece)
        if piece.isspace():  # held back until more text follows
            return ""
        return self._advance(is_end=False)

    def flush(self) -> str:
        """Return the remaining text, without an unfinished citation."""
        return self._advance(is_end=True)

    def _advance(self, *, is_end: bool) -> str:
        text, at, parts = self._held + "".join(self._pieces), self._read, []
        self._pieces.clear()
        while True:
            start = START.search(text, at)
            if start is None:
                break
            parts.append(self._show(text[at : start.start()]))
            at = start.start()
            if mark := _CODE_MARK.match(text, at):
                if mark.end() == len(text) and mark[0] in ("`", "``") and not is_end:
                    break
                result = (
                    self._reader.read_quoted(text, at, is_end=is_end) if mark[0] == "`" and not self._code else None
                )
                if not isinstance(result, Citation | None):
                    break
                citation, end = result, mark.end()
                if citation is None:
                    self._set_code(text, mark)
            else:
                result = self._reader.read(text, at, in_code=bool(self._code), is_end=is_end)
                if not isinstance(result, Citation | None):
                    break
                citation, end = result, at + 1
            if citation is None:
                parts.append(self._show(text[at:end]))
                at = end
            else:
                parts.append(self._cite(citation))
                at = citation.end
        end_of_text = at if start is not None else len(text) - (0 if is_end else unfinished_word(text[at:]))
        parts.append(self._show(text[at:end_of_text]))
        self._held, self._read = text[max(0, end_of_text - BEFORE) :], min(end_of_text, BEFORE)
        return "".join(parts)

    def _set_code(self, text: str, mark: re.Match[str]) -> None:
        """Begin or end source code, which is enclosed in backquotes and, on one line, in fewer than three of them."""
        if mark[0] == "\n":
            self._code = self._code if len(self._code) > 2 else ""
        elif not self._code:
            self._code = mark[0]
        elif len(mark[0]) >= len(self._code):
            self._code = ""

    def _show(self, text: str) -> str:
        """Return the text that can be shown, and hold back trailing white space until more text follows."""
        text = self._space + text
        if not self._last:
            text = text.lstrip()
        visible = text.rstrip()
        self._space = text[len(visible) :]
        self._last = (self._last + visible)[-_LONGEST:]
        self._length += len(visible)
        return visible

    def _cite(self, citation: Citation) -> str:
        """Return a citation in the form to show, leaving out sources that do not exist."""
        right = [number for number in citation.numbers if 1 <= number <= self._reader.sources]
        self.invalid += [number for number in citation.numbers if number not in right]
        if right:
            previous = self._last[-1:]
            if not self._space and (
                (previous.isalnum() and not is_unspaced(previous)) or previous in tuple(_BEFORE_SPACE)
            ):
                self._space = " "
            visible = ""
            for number in right:
                mark = f"[Source {number}]"
                visible += self._show(mark)
                self.citations.append((self._length - len(mark), self._length, (number,)))
            return visible
        # The text around a removed citation could form another citation.
        if not citation.is_enclosed or _OPEN_BRACKET.search(self._last) or unfinished_word(self._last):
            return self._show("[…]")
        self._space = self._space.rstrip(" \t")
        return ""


class _Layout:
    """The layout of an answer: the offsets of its sentences, paragraphs and citations."""

    def __init__(self, text: str, citations: Sequence[_Citation]) -> None:
        self.text = text
        self.citations = citations
        around = [0, *(offset for start, end, _ in citations for offset in (start, end)), len(text)]
        parts = [text[start:end] for start, end in pairwise(around)]
        self.uncited = "".join(part if at % 2 == 0 else " " * len(part) for at, part in enumerate(parts))
        starts = structural_offsets(self.uncited)
        self._paragraphs = [0, *starts[Rank.PARAGRAPH]]
        self._sentences = sorted({*self._paragraphs, *starts[Rank.SENTENCE]})
        self._cited_between: dict[tuple[int, int], tuple[int, ...]] = {}

    def citations_for(self, quotation: Quotation) -> tuple[int, ...]:
        """Return the sources cited in a quotation or, if there are none, right after it.

        If no source is cited in either place, return the result of `citations_at` for the start of the quotation.
        """
        inside = self._cited(quotation.start, quotation.end)
        match = _FOLLOWING.match(self.text, quotation.end)
        after = self._cited(quotation.end, match.end()) if match else ()
        return inside or after or self.citations_at(quotation.start)

    def citations_at(self, offset: int) -> tuple[int, ...]:
        """Return the sources cited in the sentence at an offset.

        If the sentence cites none, return the sources cited in its paragraph or, failing that, in the whole answer.
        """
        for starts in (self._sentences, self._paragraphs):
            if numbers := self._cited(*self._part_at(starts, offset)):
                return numbers
        return self._cited(0, len(self.text))

    def statements(self) -> Iterator[tuple[str, int, int, tuple[int, ...]]]:
        """Yield each sentence and list item without citations, its start, its end, and the sources that it cites."""
        for start, end in pairwise([*self._sentences, len(self.text)]):
            text = self.uncited[start:end]
            mark = _LINE_START.match(text)
            text, cited = text[0 if mark is None else mark.end() :].strip(), self._cited(start, end)
            if text and not text.endswith(("?", ":")) and not (mark and "#" in mark[0]):
                at = self.uncited.index(text, start)
                yield " ".join(uncited(self.text[at : at + len(text)]).split()), at, at + len(text), cited

    def cited_near(self, offset: int) -> tuple[int, ...]:
        """Return the sources cited in the paragraph at an offset."""
        return self._cited(*self._part_at(self._paragraphs, offset))

    def _part_at(self, starts: Sequence[int], offset: int) -> tuple[int, int]:
        """Return the start and the end of the sentence or paragraph at an offset."""
        at = bisect_right(starts, offset)
        return starts[at - 1], starts[at] if at < len(starts) else len(self.text)

    def _cited(self, start: int, end: int) -> tuple[int, ...]:
        if (start, end) not in self._cited_between:
            first, last = (bisect_left(self.citations, at, key=itemgetter(0)) for at in (start, end))
            numbers = (number for _, _, numbers in self.citations[first:last] for number in numbers)
            self._cited_between[start, end] = tuple(dict.fromkeys(numbers))
        return self._cited_between[start, end]


def _check_quotation(
    quotation: Quotation, passages: Sequence[Passage], folded_texts: Sequence[FoldedText]
) -> Quotation:
    """Look up a quotation in the passages and return it with its status and, if a passage contains it, its source."""
    candidates = (number for number in range(1, len(passages) + 1) if number not in quotation.cited)
    for number in (*quotation.cited, *candidates):
        if (span := locate(quotation.text, folded_texts[number - 1])) is not None:
            right = not quotation.cited or number in quotation.cited
            source = _at_span(passages[number - 1], span)
            return replace(quotation, status="verified" if right else "wrong_source", found_in=number, source=source)
    return replace(quotation, status="stitched") if is_stitched(quotation.text, folded_texts) else quotation


def _statements(
    layout: _Layout, passages: Sequence[Passage], quotations: Sequence[Quotation], question: str
) -> Iterator[Statement]:
    """Yield the statements of an answer, each with the sentence that supports it."""
    finder, known = EvidenceFinder(passages), numbers_in(question)
    ends = list(accumulate((one.end for one in quotations), max))  # those of the quotations up to each of them
    for text, start, end, cited in layout.statements():
        if finder.term_count(text) < MIN_TERMS:
            continue
        statement = Statement(text=text, start=start, end=end, status="not_found", cited=cited)
        near = quotations[bisect_right(ends, start) : bisect_left(quotations, end, key=attrgetter("start"))]
        quoted = [one for one in near if start < one.end and one.source is not None]
        # A quotation from a source that is not cited is reported rather than one from a cited source.
        if quoted := sorted(quoted, key=lambda one: not cited or one.found_in in cited):
            first = quoted[0]
            yield replace(
                statement,
                status="elsewhere" if cited and first.found_in not in cited else "supported",
                found_in=first.found_in,
                quote=first.text,
                source=first.source,
            )
            continue
        status, evidence = finder.support(text, cited=cited, nearby=layout.cited_near(start), known=known)
        if evidence is not None:
            passage, span = passages[evidence.number - 1], (evidence.start, evidence.end)
            quote, source = passage.text[slice(*span)], _at_span(passage, span)
            statement = replace(statement, status=status, found_in=evidence.number, quote=quote, source=source)
        yield statement


def _at_span(passage: Passage, span: tuple[int, int]) -> Source:
    """Return the source for a span within a passage."""
    source = passage.source
    if source.start_char is None:
        return source
    start, end = source.start_char + span[0], source.start_char + span[1]
    return source.at(start, end, ()) if passage.locate is None else passage.locate(start, end)


def _unsupported(layout: _Layout, passages: Sequence[Passage], question: str) -> tuple[UnsupportedFigure, ...]:
    passage_numbers = cache(lambda number: numbers_in(f"{passages[number - 1].head}\n{passages[number - 1].text}"))
    in_question = numbers_in(question)
    unsupported = []
    for match, values in number_matches(_LIST_NUMBER.sub(_blank, layout.uncited)):
        citations = layout.citations_at(match.start())
        sources = citations or range(1, len(passages) + 1)
        if values.isdisjoint(in_question.union(*map(passage_numbers, sources))):
            unsupported.append(UnsupportedFigure(text=match[0], start=match.start(), end=match.end(), cited=citations))
    return tuple(unsupported)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])
