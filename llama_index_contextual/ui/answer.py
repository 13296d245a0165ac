"""Show a checked answer as HTML: citations link to their passages, quotations and figures are marked with the results.

The answer is Markdown. Citations, quotations and figures are located by their offsets, which are lost when the Markdown
is rendered. Therefore, before the text is rendered and sanitised, each citation is replaced by a private-use character,
and such characters are placed around each quotation and figure. In the HTML, links and marks replace the characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

from llama_index.core.schema import NodeWithScore
from markupsafe import Markup, escape

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.answering.citations import (
    CitationReport,
    Quotation,
    QuotationStatus,
    UnsupportedFigure,
    citations_of,
)
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.search.response import Source, visible

Render = Callable[[str], str]
"""Function that renders Markdown as HTML that is safe to display."""

_STATUS: dict[QuotationStatus, str] = {
    "verified": "verified",
    "wrong_source": "other source",
    "stitched": "pieced together",
    "not_found": "not found",
}
_EXPLANATION: dict[QuotationStatus, str] = {
    "verified": "A cited passage contains these words.",
    "wrong_source": "Only a passage that is not cited here contains these words.",
    "stitched": "The passages contain only parts of this quotation, not the whole of it.",
    "not_found": "No passage contains these words.",
}
_UNSUPPORTED = "No cited passage contains this figure."

_FIRST = 0xF0000
_SIGN = re.compile("[\U000f0000-\U000ffffd]")
_IN_ADDRESS = re.compile("%F3%B[0-9A-F]%[89AB][0-9A-F]%[89AB][0-9A-F]", re.IGNORECASE)
# Markdown syntax that must remain at the beginning of a line.
_LINE_START = re.compile(r"(?:[ \t]*(?:>|[-*+][ \t]|\d+[.)][ \t]|#{1,6}[ \t]))*[ \t]*")
# A sign before the title of a link would break the link.
_LONGEST_ADDRESS = 2_000
_LINK_TITLE = re.compile(r"\]\([^()\s]*\s+\Z")


@dataclass(frozen=True, kw_only=True)
class ShownSource:
    """A passage that the model read, as listed below an answer.

    Attributes:
        number: Number of the passage in citations.
        label: File, pages and section.
        url: Address of the passage.
        is_cited: Whether the answer cites it.
    """

    number: int
    label: str
    url: str
    is_cited: bool


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A result of the checks as a sentence.

    Attributes:
        kind: "good", "note" or "bad".
        text: The sentence.
        quoted: The words of the answer to which the result refers, or "".
    """

    kind: str
    text: str
    quoted: str = ""


@dataclass(frozen=True, kw_only=True)
class ShownAnswer:
    """An answer as displayed.

    Attributes:
        question: The question.
        html: The answer as HTML.
        found: Whether the documents answer the question.
        findings: Results of the checks.
        sources: The passages that the model read.
        reasoning: The reasoning before the answer, or None.
        usage: Model, tokens and price, as a sentence.
    """

    question: str
    html: Markup
    found: bool
    findings: Sequence[Finding]
    sources: Sequence[ShownSource]
    reasoning: str | None
    usage: str

    @property
    def cited(self) -> list[ShownSource]:
        """The sources that the answer cites."""
        return [source for source in self.sources if source.is_cited]

    @property
    def uncited(self) -> list[ShownSource]:
        """The other sources."""
        return [source for source in self.sources if not source.is_cited]


def shown_sources(
    hits: Sequence[NodeWithScore], link: Callable[[str], str], cited: Sequence[tuple[int, Source]] = ()
) -> list[ShownSource]:
    """Return the passages of a prompt for the list below the answer.

    Args:
        hits: The passages.
        link: Function that returns the address of a chunk.
        cited: Numbers of the cited passages, with the places that are cited.
    """
    places: dict[int, list[str]] = {}
    for number, place in cited:
        places.setdefault(number, []).append(str(place))
    return [
        ShownSource(
            number=at,
            label=" and ".join(places.get(at) or [str(Source.of(hit.node))]),
            url=link(hit.node.node_id),
            is_cited=at in places,
        )
        for at, hit in enumerate(hits, start=1)
    ]


# ---- findings --------------------------------------------------------------------------------------------------------


def findings_of(answer: GroundedResponse) -> list[Finding]:
    """Return the results of all checks of an answer as sentences, beginning with doubts about the search."""
    return [*_doubts(answer), *(_citation_findings(answer.citations) if answer.citations else ())]


def _doubts(answer: GroundedResponse) -> Iterator[Finding]:
    retrieval, verdict = answer.retrieval, answer.verdict
    if answer.partial:
        yield Finding(kind="bad", text=f"The answer is incomplete: {answer.partial}")
    for warning in retrieval.warnings if retrieval else ():
        yield Finding(kind="note", text=visible(warning))
    if answer.found and retrieval and (doubt := retrieval.doubt()):
        yield Finding(kind="note", text=doubt)
    if verdict is not None:
        yield _judgement(verdict, is_withheld="original" in (answer.metadata or {}))


def _judgement(verdict: dict[str, Any], *, is_withheld: bool) -> Finding:
    if "error" in verdict:
        return Finding(kind="bad", text=f"The judge could not check the answer: {verdict['error']}")
    sure = f"confidence {verdict['confidence']:.2f} of 1"
    if not is_withheld:
        return Finding(kind="good", text=f"The judge found the answer supported by the passages ({sure}).")
    reasons = [
        *(f"no cited passage supports “{' '.join(statement.split())}”" for statement in verdict["unsupported"]),
        *(["it does not answer the question"] if not verdict["relevant"] else []),
    ]
    reason = "; ".join(reasons) or "the judge is not sure enough"
    return Finding(kind="bad", text=f"The judge withheld the answer: {reason} ({sure}).")


def _citation_findings(report: CitationReport) -> Iterator[Finding]:
    for number in dict.fromkeys(report.invalid):
        yield Finding(kind="bad", text=f"A citation of Source {number}, which does not exist, was removed.")
    for quotation in report.quotations:
        if quotation.status != "verified":
            yield Finding(kind="bad", text=_quotation_sentence(quotation), quoted=" ".join(quotation.text.split()))
    for figure in report.unsupported:
        yield Finding(kind="bad", text=_UNSUPPORTED, quoted=figure.text)
    verified = sum(quotation.status == "verified" for quotation in report.quotations)
    if verified:
        yield Finding(kind="good", text=f"{pluralize(verified, 'quotation')} verified word by word.")
    if report.text and not report.cited:
        yield Finding(kind="note", text="The answer cites no source.")
    elif report.is_clean and not report.quotations:
        yield Finding(kind="good", text="Every figure of the answer is in the passages it cites.")


def _quotation_sentence(quotation: Quotation) -> str:
    if quotation.status == "wrong_source" and quotation.found_in is not None:
        return f"This quotation is in Source {quotation.found_in}, not in the source that is cited for it."
    return _EXPLANATION[quotation.status].replace("this quotation", "it").replace("these words", "this quotation")


# ---- the text of the answer ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mark:
    """A part of the answer that was checked.

    Attributes:
        kind: Status of a quotation, or "unsupported".
        label: The result in a word or two.
        explanation: The result as a sentence.
        url: Address of the passage that contains the part, or "".
    """

    kind: str
    label: str
    explanation: str
    url: str = ""

    def wrap(self, html: str) -> Markup:
        return Markup('<mark class="check check-{}" title="{}">{}</mark>').format(
            self.kind, self.explanation, Markup(html)
        )

    def note(self, *, may_link: bool) -> Markup:
        """Return the label that follows the part."""
        if self.url and may_link:
            return Markup('<a class="check-label check-label-{}" href="{}" title="{}">{}</a>').format(
                self.kind, self.url, self.explanation, self.label
            )
        return Markup('<span class="check-label check-label-{}" title="{}">{}</span>').format(
            self.kind, self.explanation, self.label
        )


@dataclass(frozen=True)
class _Cited:
    """A citation of one source."""

    source: ShownSource

    def link(self, *, may_link: bool) -> Markup:
        text = f"[Source {self.source.number}]"
        if not may_link:
            return escape(text)
        return Markup('<a class="citation" href="{}" title="{}">{}</a>').format(
            self.source.url, self.source.label, text
        )


_Event = tuple[str, "_Mark | _Cited"]


def answer_html(
    text: str,
    report: CitationReport | None,
    sources: Sequence[ShownSource],
    render: Render,
    link_quotation: Callable[[Quotation], str] = lambda _: "",
) -> Markup:
    """Return an answer as HTML.

    Args:
        text: The answer in Markdown; with a report, it must be the text of the report.
        report: The report on the citations, or None to only link citations.
        sources: The sources that the answer can cite.
        render: Function that renders Markdown as safe HTML.
        link_quotation: Function that returns the address at which a verified quotation can be read, or "".

    Example:
        >>> from html import escape
        >>> source = ShownSource(number=1, label="manual.md", url="/p/a/passage/1", is_cited=True)
        >>> print(answer_html("Three days [Source 1].", None, [source], escape))
        Three days <a class="citation" href="/p/a/passage/1" title="manual.md">[Source 1]</a>.
    """
    marks = [] if report is None else _marks(text, report, link_quotation)
    signed, events = _with_signs(_SIGN.sub("\ufffd", text), marks, {source.number: source for source in sources})
    annotator = _Annotator(events)
    annotator.feed(str(render(signed)))  # str, because the methods of Markup would escape it again
    return annotator.result()


def _marks(
    text: str, report: CitationReport, link_quotation: Callable[[Quotation], str]
) -> list[tuple[int, int, _Mark]]:
    """Return the parts to mark, without Markdown syntax and white space at their ends."""
    checked: list[tuple[Quotation | UnsupportedFigure, _Mark]] = []
    for quotation in report.quotations:
        status = quotation.status
        number = quotation.found_in
        label = f"in Source {number}" if status == "wrong_source" and number is not None else _STATUS[status]
        url = "" if number is None else link_quotation(quotation)
        place = f" {quotation.source}." if quotation.source is not None else ""
        checked.append((quotation, _Mark(status.replace("_", "-"), label, f"{_EXPLANATION[status]}{place}", url)))
    for figure in report.unsupported:
        checked.append((figure, _Mark("unsupported", "unsupported", _UNSUPPORTED)))
    marks = []
    for one, mark in checked:
        start = one.start
        if _LINK_TITLE.search(text, max(0, start - _LONGEST_ADDRESS), start):
            continue
        if start == 0 or text[start - 1] == "\n":
            found = _LINE_START.match(text, start, one.end)
            start = found.end() if found else start
        end = start + len(text[start : one.end].rstrip())
        if end > start:
            marks.append((start, end, mark))
    return marks


def _with_signs(
    text: str, marks: Sequence[tuple[int, int, _Mark]], sources: dict[int, ShownSource]
) -> tuple[str, list[_Event]]:
    """Return the text with a sign for each event in it, and the events; the sign of event N is character _FIRST + N."""
    # At the same offset, ends come before beginnings. A citation is replaced, so nothing can begin or end inside it.
    edits: list[tuple[int, int, int, list[_Event]]] = []
    taken: list[tuple[int, int]] = []
    for start, end, numbers in citations_of(text):
        cited: list[_Event] = [("cite", _Cited(sources[number])) for number in numbers if number in sources]
        if cited and len(cited) == len(numbers):
            edits.append((start, 1, end, cited))
            taken.append((start, end))
    for start, end, mark in marks:
        if not any(first < at < last for first, last in taken for at in (start, end)):
            edits.append((start, 1, start, [("open", mark)]))
            edits.append((end, 0, end, [("close", mark)]))
    parts: list[str] = []
    events: list[_Event] = []
    at = 0
    for start, _, end, new in sorted(edits, key=lambda edit: edit[:3]):
        if len(events) + len(new) > 0xFFFD:
            break
        parts.append(text[at:start])
        parts.append(" ".join(chr(_FIRST + len(events) + index) for index in range(len(new))))
        events.extend(new)
        at = end
    return "".join([*parts, text[at:]]), events


class _Annotator(HTMLParser):
    """Rewrites HTML with links and marks in place of the signs.

    To keep the HTML well-formed, a part that spans several elements is marked separately in each of them.
    """

    def __init__(self, events: Sequence[_Event]) -> None:
        super().__init__(convert_charrefs=False)
        self._events = events
        self._open: list[_Mark] = []
        self._links = 0
        self._text: list[str] = []
        self._parts: list[str] = []

    def result(self) -> Markup:
        """Return the whole HTML."""
        self.close()
        self._flush()
        return Markup("".join(self._parts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Copy a tag, and apply the signs in its attributes."""
        self._flush()
        markup = self.get_starttag_text() or ""
        for sign in _SIGN.findall(markup):
            self._follow(sign)
        self._parts.append(_IN_ADDRESS.sub("", _SIGN.sub("", markup)))
        self._links += tag == "a"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Copy a tag without content."""
        self.handle_starttag(tag, attrs)
        self._links -= tag == "a"

    def handle_endtag(self, tag: str) -> None:
        """Copy the end of an element."""
        self._flush()
        self._parts.append(f"</{tag}>")
        self._links -= tag == "a"

    def handle_data(self, data: str) -> None:
        """Collect text."""
        self._text.append(data)

    def handle_entityref(self, name: str) -> None:
        """Collect a named character."""
        self._text.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        """Collect a numbered character."""
        self._text.append(f"&#{name};")

    def _flush(self) -> None:
        text, self._text = "".join(self._text), []
        at = 0
        for sign in _SIGN.finditer(text):
            self._copy(text[at : sign.start()])
            self._parts.append(self._follow(sign[0]))
            at = sign.end()
        self._copy(text[at:])

    def _copy(self, html: str) -> None:
        if html.strip():
            for mark in reversed(self._open):
                html = mark.wrap(html)
        self._parts.append(html)

    def _follow(self, sign: str) -> str:
        """Begin or end a mark, and return the HTML that replaces the sign."""
        index = ord(sign) - _FIRST
        if index >= len(self._events):
            return ""
        kind, event = self._events[index]
        if isinstance(event, _Cited):
            return event.link(may_link=not self._links)
        if kind == "open":
            self._open.append(event)
            return ""
        if event in self._open:
            self._open.remove(event)
        return event.note(may_link=not self._links)
