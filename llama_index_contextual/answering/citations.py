"""Checks an answer against its passages without an LLM: citations, quotations, numbers and dates.

Only original text counts: the context that was generated for a chunk can be neither quoted nor cited for a number.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Literal

from llama_index_contextual.answering.figures import Facts, figures_of
from llama_index_contextual.answering.quotations import Folded, Quoted, is_stitched, locate, quotations_of
from llama_index_contextual.results import Source

QuotationStatus = Literal["verified", "wrong_source", "stitched", "not_found"]

_Citation = tuple[int, int, tuple[int, ...]]
"""Where it begins, where it ends, the numbers that it names."""

_CITATION = re.compile(r"[ \t]*\[\s*sources?:?\s*([^\[\]]*?\d[^\[\]]*)\]", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?。！？]+[\"'”’»)*_]*(?:[ \t]*\[\s*sources?[^\[\]]*\])*(?=\s+|$)|\n", re.IGNORECASE)
_ABBREVIATION = re.compile(
    r"(?:\b(?:\w|No|Nos|Art|Sec|vs|cf|Dr|Mr|Mrs|Ms|St|Inc|Ltd|Co|pp?|e\.g|i\.e))\.$", re.IGNORECASE
)
_LIST_NUMBER = re.compile(r"^[ \t]*\d+[.)](?=\s)", re.MULTILINE)
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True)
class Passage:
    """What an answer may cite: a passage of a document, in its original words.

    Attributes:
        text: The original text, never the generated context.
        source: Where it stands.
    """

    text: str
    source: Source = field(default_factory=Source)


@dataclass(frozen=True, kw_only=True)
class Quotation:
    """A quotation of an answer and what became of it.

    Attributes:
        text: The words between the marks.
        start: Where the quotation begins in the checked answer.
        end: Where it ends.
        status: "verified": a cited passage holds it. "wrong_source": only one that is not cited does. "stitched": put
            together from pieces of the passages. "not_found": no passage holds it.
        cited: Numbers of the sources that the answer gives for it; empty where it gives none, and any passage counts.
        found_in: Number of the source that holds it, or None.
        source: File, pages and the quotation's own offsets in the document, or None.
    """

    text: str
    start: int
    end: int
    status: QuotationStatus
    cited: tuple[int, ...] = ()
    found_in: int | None = None
    source: Source | None = None


@dataclass(frozen=True, kw_only=True)
class UnsupportedFigure:
    """A number or date of an answer that no cited passage holds.

    Attributes:
        text: As the answer writes it.
        start: Where it begins in the checked answer.
        end: Where it ends.
        cited: Numbers of the sources that were searched.
    """

    text: str
    start: int
    end: int
    cited: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CitationReport:
    """An answer without its invalid citations, and what the check found.

    Attributes:
        text: The answer; citations of sources that do not exist are removed.
        cited: Numbers of the sources that it cites, in order of first mention.
        invalid: Numbers that were cited and do not exist, as they came.
        quotations: In the order of the answer.
        unsupported: Numbers and dates without support, in the order of the answer.
    """

    text: str
    cited: tuple[int, ...] = ()
    invalid: tuple[int, ...] = ()
    quotations: tuple[Quotation, ...] = ()
    unsupported: tuple[UnsupportedFigure, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found that a reader should know of."""
        return not self.invalid and not self.unsupported and all(q.status == "verified" for q in self.quotations)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "is_clean": self.is_clean}


def check_citations(answer: str, passages: Sequence[Passage], *, question: str = "") -> CitationReport:
    """Check an answer that cites its passages as [Source N], N from 1.

    Args:
        answer: The answer.
        passages: What the answer was written from; the first is Source 1.
        question: Its numbers may be repeated without support.

    Example:
        >>> passages = [Passage("Food keeps for three days."), Passage("Boil all water.")]
        >>> report = check_citations('It “keeps for three days” [Source 2], 4 at most [Source 7].', passages)
        >>> report.text, report.invalid
        ('It “keeps for three days” [Source 2], 4 at most.', (7,))
        >>> [(q.status, q.found_in) for q in report.quotations], [figure.text for figure in report.unsupported]
        ([('wrong_source', 1)], ['4'])
    """
    text, invalid = _without_invalid(answer, len(passages))
    layout = _Layout(text)
    folded = [Folded(passage.text) for passage in passages]
    quotations = tuple(_judge(quoted, layout.cited_for(quoted), passages, folded) for quoted in layout.quotations)
    return CitationReport(
        text=text,
        cited=tuple(dict.fromkeys(layout.all_cited)),
        invalid=invalid,
        quotations=quotations,
        unsupported=_unsupported(layout, passages, question),
    )


def _without_invalid(answer: str, count: int) -> tuple[str, tuple[int, ...]]:
    invalid: list[int] = []

    def rewrite(match: re.Match[str]) -> str:
        numbers = _numbers(match[1])
        wrong = [number for number in numbers if not 1 <= number <= count]
        if not wrong:
            return match[0]
        invalid.extend(wrong)
        right = [number for number in numbers if 1 <= number <= count]
        space = match[0][: len(match[0]) - len(match[0].lstrip())]
        return space + "".join(f"[Source {number}]" for number in right) if right else ""

    return _CITATION.sub(rewrite, answer), tuple(invalid)


def _numbers(listed: str) -> list[int]:
    """Return the numbers of "1", "1, 3", "1 and 3" or "1-3"."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,6})(?:\s*[-–]\s*(\d{1,6}))?", listed):
        end = int(last or first)
        found.extend(range(int(first), end + 1) if int(first) <= end <= int(first) + 50 else (int(first), end))
    return found


class _Layout:
    """Where the sentences, paragraphs, citations and quotations of an answer are."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.citations = [(m.start(), m.end(), tuple(_numbers(m[1]))) for m in _CITATION.finditer(text)]
        self.quotations = quotations_of(text)
        self._sentences = self._starts()
        self._paragraphs = [0, *(match.end() for match in _PARAGRAPH_END.finditer(text))]

    def _starts(self) -> list[int]:
        masked = list(self.text)
        for quoted in self.quotations:  # a sentence may quote several
            masked[quoted.start : quoted.end] = "x" * (quoted.end - quoted.start)
        hidden = "".join(masked)
        ends = (
            match
            for match in _SENTENCE_END.finditer(hidden)
            if not _ABBREVIATION.search(hidden[: match.start() + 1][-8:])
        )
        return [0, *(match.end() for match in ends)]

    @property
    def all_cited(self) -> list[int]:
        return [number for _, _, numbers in self.citations for number in numbers]

    def _within(self, starts: Sequence[int], offset: int) -> list[_Citation]:
        at = bisect_right(starts, offset)
        first, last = starts[at - 1], starts[at] if at < len(starts) else len(self.text)
        return [citation for citation in self.citations if first <= citation[0] < last]

    def cited_for(self, quoted: Quoted) -> tuple[int, ...]:
        """Return the sources of a quotation: those that follow it up to the next one, else those of its sentence."""
        inside = [c for c in self.citations if quoted.start <= c[0] < quoted.end]
        if inside:
            return _joined(inside)
        sentence = self._within(self._sentences, quoted.start)
        next_one = next((q.start for q in self.quotations if q.start >= quoted.end), len(self.text))
        following = [c for c in sentence if quoted.end <= c[0] < next_one]
        return _joined(_side_by_side(following, self.text) or sentence) or self.cited_at(quoted.start)

    def cited_at(self, offset: int) -> tuple[int, ...]:
        """Return the sources of a sentence, else those of its paragraph, else those of the answer."""
        for starts in (self._sentences, self._paragraphs):
            if found := self._within(starts, offset):
                return _joined(found)
        return tuple(dict.fromkeys(self.all_cited))


def _side_by_side(citations: Sequence[_Citation], text: str) -> Sequence[_Citation]:
    """Return the citations that stand together at the beginning of a list: they are one list of sources."""
    count = min(1, len(citations))
    while count < len(citations) and not text[citations[count - 1][1] : citations[count][0]].strip(" ,;"):
        count += 1
    return citations[:count]


def _joined(citations: Sequence[_Citation]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(number for _, _, numbers in citations for number in numbers))


def _judge(quoted: Quoted, cited: tuple[int, ...], passages: Sequence[Passage], folded: Sequence[Folded]) -> Quotation:
    made = Quotation(text=quoted.text, start=quoted.start, end=quoted.end, status="not_found", cited=cited)
    others = (number for number in range(1, len(passages) + 1) if number not in cited)
    for number in (*cited, *others):
        span = locate(quoted.text, folded[number - 1])
        if span is not None:
            right = not cited or number in cited
            source = _placed(passages[number - 1].source, span)
            return replace(made, status="verified" if right else "wrong_source", found_in=number, source=source)
    return replace(made, status="stitched") if is_stitched(quoted.text, folded) else made


def _placed(source: Source, span: tuple[int, int]) -> Source:
    """Return the source with a quotation's own offsets."""
    if source.start_char is None:
        return source
    return replace(source, start_char=source.start_char + span[0], end_char=source.start_char + span[1])


def _unsupported(layout: _Layout, passages: Sequence[Passage], question: str) -> tuple[UnsupportedFigure, ...]:
    text = _LIST_NUMBER.sub(_blank, _CITATION.sub(_blank, layout.text))
    facts = cache(lambda number: Facts(passages[number - 1].text))
    asked = Facts(question)
    found = []
    for figure in figures_of(text):
        cited = layout.cited_at(figure.start)
        searched = cited or range(1, len(passages) + 1)
        if not asked.support(figure) and not any(facts(number).support(figure) for number in searched):
            found.append(UnsupportedFigure(text=figure.text, start=figure.start, end=figure.end, cited=cited))
    return tuple(found)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])
