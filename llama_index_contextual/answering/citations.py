"""Check the citations of an answer against the passages in its prompt.

An answer cites its passages as [Source N]. `check_citations` converts other forms of citations to this form, removes
citations of sources that do not exist, looks up every quotation in the passages, and reports numbers that no cited
passage contains. The first part of this module finds and compares quotations; citation_forms.py reads the citations.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from itertools import pairwise
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
from llama_index_contextual.index.figures import figures_of, numbers_in
from llama_index_contextual.readers.boundaries import Rank, structural_offsets
from llama_index_contextual.search.response import Source

# ---- Quotations ------------------------------------------------------------------------------------------------------

MIN_WORDS = 3
"""Minimum number of words in a quotation. Shorter text in quotation marks is regarded as a term."""

_DROPPED = frozenset("\"'`´*_“”„‟‘’‚‛«»‹›\u00ad\u200b\u200c\u200d\u2060\ufeff")
_DASHES = frozenset("-‐‑‒–—―−")
_SIGN = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"  # scripts in which each character counts as a word
_WORD = re.compile(rf"{_SIGN}|(?:(?!{_SIGN})\w)+(?:[-‐‑.,'’](?:(?!{_SIGN})\w)+)*")
_PARAGRAPH = r"(?:[^{marks}\n]|\n(?![ \t]*\n))+?"
_MARKED = re.compile(
    "|".join(
        [
            f"“({_PARAGRAPH.format(marks='“”')})”",
            f"„({_PARAGRAPH.format(marks='„“”')})[“”]",
            f"«({_PARAGRAPH.format(marks='«»')})»",
            # A quotation mark after a digit is an inch sign and does not open a quotation.
            f'(?<![\\w"])"({_PARAGRAPH.format(marks=chr(34))})"(?!\\w)',
            f"(?<!\\w)‘({_PARAGRAPH.format(marks='‘')})’(?!\\w)",
            f"(?<!\\w)'({_PARAGRAPH.format(marks='')})'(?!\\w)",
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
        folded: list[str] = []
        self.offsets: list[int] = []
        gap = ""
        for offset, character in enumerate(original):
            if character.isspace() or character in _DASHES:
                gap += "-" if character in _DASHES else " "
                continue
            if character in _DROPPED:
                continue
            for part in _fold_character(character):
                if gap and folded and folded[-1].isdigit() and part.isdigit():
                    # "3-4" and "3 4" are not "34".
                    folded.append("-" if "-" in gap else " ")
                    self.offsets.append(offset)
                folded.append(part)
                self.offsets.append(offset)
                gap = ""
        self.text = "".join(folded)

    def find(self, quoted: str, start: int) -> tuple[int, int] | None:
        """Find the first match of whole words from `start` onwards and return its span in the original, or None."""
        needle = fold(quoted)
        at = self.text.find(needle) if needle else -1
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
def fold(quoted: str) -> str:
    """Normalise text for comparison."""
    return FoldedText(quoted).text


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
    for match in _MARKED.finditer(answer):
        if not any(start <= match.start() < end for start, end in blocks):
            text = next(group for group in match.groups() if group is not None)
            quotations.append(Quotation(text=text, start=match.start(), end=match.end()))
    long_enough = (quoted for quoted in quotations if _count_words(quoted.text) >= MIN_WORDS)
    return sorted(long_enough, key=lambda quoted: quoted.start)


def _count_words(text: str) -> int:
    return len(_WORD.findall(text))


def locate(quoted: str, text: FoldedText) -> tuple[int, int] | None:
    """Return the span of a quotation in a text, or None if the text does not contain it.

    An ellipsis ("…") in the quotation stands for any omitted words.

    Example:
        >>> locate("food … three days.", FoldedText("All Food keeps for three days here."))
        (4, 29)
    """
    whole = text.find(quoted.strip(_ENDS), 0)
    pieces = _pieces(quoted)
    if whole is not None or len(pieces) < 2:
        return whole
    spans: list[tuple[int, int]] = []
    for piece in pieces:
        span = text.find(piece, spans[-1][1] if spans else 0)
        if span is None:
            return None
        spans.append(span)
    return spans[0][0], spans[-1][1]


def _pieces(quoted: str) -> list[str]:
    return [piece for part in _ELISION.split(quoted) if _count_words(piece := part.strip(_ENDS))]


def is_stitched(quoted: str, texts: Sequence[FoldedText]) -> bool:
    """Return whether a quotation is assembled from pieces of at least three words from the texts.

    Example:
        >>> texts = [FoldedText("Food keeps long."), FoldedText("Boil all water.")]
        >>> is_stitched("food keeps long boil all water", texts)
        True
    """
    marked = _pieces(quoted)
    if len(marked) > 1 and all(any(text.find(piece, 0) for text in texts) for piece in marked):
        return True
    words, first = list(_WORD.finditer(quoted)), 0
    while first < len(words):
        spans = ((last, quoted[words[first].start() : words[last - 1].end()]) for last in range(len(words), first, -1))
        last = next((last for last, span in spans if any(text.find(span, 0) for text in texts)), first)
        if last - first < MIN_WORDS:
            return False
        first = last
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
class CitationReport:
    """Result of a citation check, including the answer with its citations in one form.

    Attributes:
        text: The answer with citations in the form [Source N], without citations of sources that do not exist.
        cited: Numbers of the cited sources, in order of first citation.
        invalid: Numbers of cited sources that do not exist, in order of first citation.
        quotations: The quotations, in order.
        unsupported: Numbers and months that no cited passage contains, in order.
        found: Whether the passages answer the question; otherwise, the answer need not cite any.
    """

    text: str
    cited: tuple[int, ...] = ()
    invalid: tuple[int, ...] = ()
    quotations: tuple[Quotation, ...] = ()
    unsupported: tuple[UnsupportedFigure, ...] = ()
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

    def quoted_places(self) -> dict[int, list[Source]]:
        """Map the number of each quoted passage to the sources of its verified quotations, without duplicates."""
        places: dict[int, dict[str, Source]] = {}
        for quotation in self.quotations:
            if quotation.status == "verified" and quotation.found_in is not None and quotation.source is not None:
                places.setdefault(quotation.found_in, {}).setdefault(str(quotation.source), quotation.source)
        return {number: list(labelled.values()) for number, labelled in places.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        quotations = [
            {**asdict(quotation), "label": None if quotation.source is None else str(quotation.source)}
            for quotation in self.quotations
        ]
        more = {"cites_nothing": self.cites_nothing, "is_clean": self.is_clean}
        return {**asdict(self), "quotations": quotations, **more}


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
    quotations = [replace(quoted, cited=layout.citations_for(quoted)) for quoted in quotations_of(text)]
    folded = [FoldedText(passage.text) for passage in passages] if quotations else []
    return CitationReport(
        text=text,
        cited=tuple(dict.fromkeys(number for _, _, numbers in layout.citations for number in numbers)),
        invalid=tuple(citations.invalid),
        quotations=tuple(_check_quotation(quoted, passages, folded) for quoted in quotations),
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
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._last = (self._last + shown)[-_LONGEST:]
        self._length += len(shown)
        return shown

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
            shown = ""
            for number in right:
                mark = f"[Source {number}]"
                shown += self._show(mark)
                self.citations.append((self._length - len(mark), self._length, (number,)))
            return shown
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

    def citations_for(self, quoted: Quotation) -> tuple[int, ...]:
        """Return the sources cited in a quotation or, if there are none, right after it.

        If no source is cited in either place, return the result of `citations_at` for the start of the quotation.
        """
        inside = self._cited(quoted.start, quoted.end)
        following = _FOLLOWING.match(self.text, quoted.end)
        after = self._cited(quoted.end, following.end()) if following else ()
        return inside or after or self.citations_at(quoted.start)

    def citations_at(self, offset: int) -> tuple[int, ...]:
        """Return the sources cited in the sentence at an offset.

        If the sentence cites none, return the sources cited in its paragraph or, failing that, in the whole answer.
        """
        for starts in (self._sentences, self._paragraphs):
            at = bisect_right(starts, offset)
            if cited := self._cited(starts[at - 1], starts[at] if at < len(starts) else len(self.text)):
                return cited
        return self._cited(0, len(self.text))

    def _cited(self, start: int, end: int) -> tuple[int, ...]:
        inside = (numbers for at, _, numbers in self.citations if start <= at < end)
        return tuple(dict.fromkeys(number for numbers in inside for number in numbers))


def _check_quotation(quoted: Quotation, passages: Sequence[Passage], folded: Sequence[FoldedText]) -> Quotation:
    """Look up a quotation in the passages and return it with its status and, if a passage contains it, its source."""
    others = (number for number in range(1, len(passages) + 1) if number not in quoted.cited)
    for number in (*quoted.cited, *others):
        if (span := locate(quoted.text, folded[number - 1])) is not None:
            right = not quoted.cited or number in quoted.cited
            source = _at_span(passages[number - 1], span)
            return replace(quoted, status="verified" if right else "wrong_source", found_in=number, source=source)
    return replace(quoted, status="stitched") if is_stitched(quoted.text, folded) else quoted


def _at_span(passage: Passage, span: tuple[int, int]) -> Source:
    """Return the source for a span within a passage."""
    source = passage.source
    if source.start_char is None:
        return source
    start, end = source.start_char + span[0], source.start_char + span[1]
    return source.at(start, end, ()) if passage.locate is None else passage.locate(start, end)


def _unsupported(layout: _Layout, passages: Sequence[Passage], question: str) -> tuple[UnsupportedFigure, ...]:
    known = cache(lambda number: numbers_in(f"{passages[number - 1].head}\n{passages[number - 1].text}"))
    in_question = numbers_in(question)
    unsupported = []
    for match, values in figures_of(_LIST_NUMBER.sub(_blank, layout.uncited)):
        cited = layout.citations_at(match.start())
        sources = cited or range(1, len(passages) + 1)
        if values.isdisjoint(in_question.union(*map(known, sources))):
            unsupported.append(UnsupportedFigure(text=match[0], start=match.start(), end=match.end(), cited=cited))
    return tuple(unsupported)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])
