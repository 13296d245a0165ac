"""What the checks of an answer found, as sentences for people: warnings about the search, the judge, the citations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.answering.citations import NO_CITATION, CitationReport, Quotation
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.search.response import visible


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A result of the checks, expressed as a sentence.

    Attributes:
        kind: "good", "note" or "bad".
        text: The sentence.
        quotations: The words of the answer that the result refers to.
    """

    kind: str
    text: str
    quotations: Sequence[str] = ()


def findings_of(answer: GroundedResponse) -> list[Finding]:
    """Return the results of all checks of an answer as sentences, starting with warnings about the search."""
    return [*_warning_findings(answer), *(_citation_findings(answer.citations) if answer.citations else ())]


def _warning_findings(answer: GroundedResponse) -> Iterator[Finding]:
    retrieval, verdict = answer.retrieval, answer.verdict
    if answer.is_missing:
        yield Finding(kind="bad", text="The model wrote no answer: ask again, or choose another model.")
    elif answer.partial:
        yield Finding(kind="bad", text=f"The answer is incomplete: {answer.partial}")
    for warning in retrieval.warnings if retrieval else ():
        yield Finding(kind="note", text=visible(warning))
    if retrieval and retrieval.searched != retrieval.query:
        yield Finding(kind="note", text=f"Searched for: {visible(retrieval.searched)}")
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
    kinds: dict[str, list[str]] = {}
    for quotation in report.quotations:
        if quotation.status != "verified":
            kinds.setdefault(_where_found(quotation), []).append(" ".join(quotation.text.split()))
    for where, texts in kinds.items():
        yield Finding(kind="bad", text=f"{pluralize(len(texts), 'quotation')} {where}:", quotations=texts)
    if figures := [figure.text for figure in report.unsupported]:
        yield Finding(kind="bad", text=f"{pluralize(len(figures), 'figure')} in no cited passage:", quotations=figures)
    matches = sum(quotation.status == "verified" for quotation in report.quotations)
    if matches:
        yield Finding(kind="good", text=f"{pluralize(matches, 'quotation')} verified word for word.")
    quoted = [(one.start, one.end) for one in report.quotations]
    elsewhere = [one for one in report.statements if one.status == "elsewhere"]
    if misplaced := [one.text for one in elsewhere if not any(a < one.end and one.start < b for a, b in quoted)]:
        text = f"{pluralize(len(misplaced), 'statement')} supported by a source that is not cited there:"
        yield Finding(kind="note", text=text, quotations=misplaced)
    if report.cites_nothing:
        yield Finding(kind="note", text=NO_CITATION)
    elif report.is_clean and not report.quotations:
        yield Finding(kind="good", text="Every figure of the answer is in the passages it cites.")


def _where_found(quotation: Quotation) -> str:
    if quotation.status == "wrong_source":
        return (
            f"in Source {quotation.found_in}, which is not cited for it" if quotation.found_in else "in another source"
        )
    return "in no passage" if quotation.status == "not_found" else "pieced together from parts of a passage"
