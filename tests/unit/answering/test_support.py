"""The sentence of a source that supports each statement of an answer."""

from __future__ import annotations

import pytest

from llama_index_contextual.answering.citations import CitationReport, Passage, Statement, check_citations
from llama_index_contextual.answering.support import EvidenceFinder
from llama_index_contextual.metadata import Place
from llama_index_contextual.search.response import Source

LEASE = """3. Rent

The tenant pays a rent of 1,250 euros in advance, at the latest on the third working day of each month.

5. Notice

Either party may terminate the lease in writing with three months' notice to the end of a quarter.
Rooms are handed over swept clean, and all keys are returned to the landlord."""
RULES = """Bicycles are kept in the cellar, not in the hallway.
Pets need the consent of the landlord, which is given unless neighbours object.
| Floor | Storage in m2 |
|---|---|
| first | 4.5 |
| second | 6.2 |"""


def located(start: int, end: int) -> Source:
    places = [Place(0, 1, None, "3. Rent"), Place(LEASE.index("5. Notice"), 2, None, "5. Notice")]
    return Source(file_name="lease.pdf", section="3. Rent", page_start=1, start_char=0).at(start, end, places)


PASSAGES = [
    Passage(LEASE, Source(file_name="lease.pdf", section="3. Rent", page_start=1, start_char=0), locate=located),
    Passage(RULES, Source(file_name="rules.md", start_char=100, end_char=100 + len(RULES))),
]


def checked(answer: str, **options: object) -> CitationReport:
    return check_citations(answer, PASSAGES, **options)  # type: ignore[arg-type]


def only(answer: str) -> Statement:
    (statement,) = checked(answer).statements
    return statement


def test_a_paraphrase_is_given_the_sentence_that_supports_it_and_its_place() -> None:
    statement = only("To end the lease, three months of written notice are needed [Source 1].")
    assert (statement.status, statement.found_in, statement.cited) == ("supported", 1, (1,))
    assert statement.quote.startswith("Either party may terminate the lease")
    assert statement.source is not None
    assert (statement.source.section, statement.source.page_start) == ("5. Notice", 2)
    assert LEASE[statement.source.start_char : statement.source.end_char] == statement.quote


def test_a_statement_with_the_wrong_citation_is_found_elsewhere() -> None:
    statement = only("Pets are allowed with the landlord's consent [Source 1].")
    assert (statement.status, statement.found_in) == ("elsewhere", 2)
    assert statement.quote.startswith("Pets need the consent")
    assert str(statement).startswith(
        "Pets are allowed with the landlord's consent. → [Source 2] (not cited for it) rules.md: “Pets need the consent"
    )


def test_a_statement_without_a_citation_is_looked_up_in_all_sources() -> None:
    statement = only("The second floor has 6.2 m2 of storage.")
    assert (statement.status, statement.found_in, statement.quote) == ("supported", 2, "| second | 6.2 |")
    # The source cited for the rest of a paragraph is preferred to an equal one.
    twice = [Passage("Keys are returned to the landlord.")] * 2
    report = check_citations("Keys go back to the landlord. Return keys to the landlord [Source 2].", twice)
    assert [one.found_in for one in report.statements] == [2, 2]


@pytest.mark.parametrize(
    "answer",
    [
        "The swimming pool opens at seven on Sundays [Source 1].",
        "The tenant pays an annual fee for parking of 400 euros [Source 2].",
        "The tenant pays a rent of 1,350 euros in advance on the third working day of each month [Source 1].",
        "Der Garten darf nur im Sommer betreten werden.",
    ],
)
def test_a_statement_that_no_source_supports_is_not_found(answer: str) -> None:
    statement = only(answer)
    assert (statement.status, statement.found_in, statement.quote, statement.source) == ("not_found", None, "", None)
    assert str(statement) == f"{statement.text} → no source"


def test_of_similar_sentences_the_one_with_the_figures_of_the_statement_supports_it() -> None:
    text = (
        "The fee for houses in the upper zone is 30 euros.\nThe fee for houses in the upper zone was 25 euros before."
    )
    finder = EvidenceFinder([Passage(text)])
    for figure in (30, 25):
        best = finder.best(f"Houses in the upper zone had a fee of {figure} euros.")
        assert best is not None
        assert str(figure) in text[best.start : best.end]


def test_a_figure_may_be_in_the_title_the_column_headers_or_the_question() -> None:
    passage = Passage("| Net sales | 11 |", Source(title="Results of 2023", file_name="q4.md"), head="| | million |")
    for answer, question in (
        ("Net sales in 2023 were 11.", ""),
        ("In 1999, net sales were 11.", "What was it in 1999?"),
    ):
        (statement,) = check_citations(answer, [passage], question=question).statements
        assert statement.status == "supported"


def test_a_quotation_is_its_own_evidence() -> None:
    answer = "The rules say: “Pets need the consent of the landlord” [Source {}]."
    assert [only(answer.format(number)).status for number in (1, 2)] == ["elsewhere", "supported"]
    assert only("The rules say: “Pets need the consent of the landlord”.").status == "supported"
    assert only(answer.format(2)).quote == "Pets need the consent of the landlord"


def test_statements_are_sentences_and_list_items_with_something_to_look_up() -> None:
    answer = """## Storage and pets

Yes. In short:

1. Bicycles are kept in the cellar [Source 2].
- **Keys** are returned to the landlord [Source 1].

Do you need anything else about bicycles in the cellar?"""
    report = checked(answer)
    assert [one.text for one in report.statements] == [
        "Bicycles are kept in the cellar.",
        "**Keys** are returned to the landlord.",
    ]
    assert [report.text[one.start : one.end][:4] for one in report.statements] == ["Bicy", "**Ke"]
    assert checked("I could not find the keys of the landlord.", found=False).statements == ()
    assert check_citations("Keys are returned to the landlord.", []).statements == (
        Statement(text="Keys are returned to the landlord.", start=0, end=34, status="not_found"),
    )


def test_the_places_of_a_cited_source_are_those_of_the_sentences_that_support_the_statements() -> None:
    report = checked(
        "Rent is due on the third working day of the month [Source 1]. Notice is three months to the end of a quarter"
        " [Source 1]. Bicycles belong in the cellar [Source 1]."
    )
    places = report.cited_places()
    assert [place.section for place in places[1]] == ["3. Rent", "5. Notice"]
    assert list(places) == [1]  # the third statement is in Source 2, which is not cited
    labels = [one["label"] for one in report.to_dict()["statements"]]
    assert labels == ["lease.pdf, page 1, section 3. Rent", "lease.pdf, page 2, section 5. Notice", "rules.md"]
