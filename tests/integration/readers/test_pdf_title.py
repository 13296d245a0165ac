"""The title of a PDF is what its first page states; metadata counts where the page states nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.readers.pdf.outline import PlacedLine
from llama_index_contextual.readers.pdf.title import document_title

BODY = "Running text that fills the page from the left edge to the right one and says nothing else."


def page(*lines: str, large: int = 0) -> list[PlacedLine]:
    """A page whose first `large` lines are set in a larger size."""
    out, start = [], 0
    for at, text in enumerate(lines):
        out.append(PlacedLine(text, start, 700.0 - 20 * at, size=20.0 if at < large else 10.0))
        start += len(text) + 1
    return out


def title(*lines: str, large: int = 0, stored: str | None = None) -> str | None:
    return document_title([page(*lines, BODY, BODY, large=large)], stored)[0]


ANNUAL = (
    "UNITED STATES",
    "SECURITIES AND EXCHANGE COMMISSION",
    "FORM 10-K",
    "FOR THE FISCAL YEAR ENDED MAY 31, 2023",
    "ACME, Inc .",
    "(Exact name of Registrant as specified in its charter)",
)


def test_a_filing_is_named_by_form_company_and_period() -> None:
    assert title(*ANNUAL, stored="ACME 2023 Proxy") == "Form 10-K, ACME, Inc., fiscal year ended May 31, 2023"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ("FORM 10-Q", "For the quarterly period ended Commission file", "June 30, 2022 number 1-5805", "ACME & Co.",
             "(Exact name of registrant as specified in its charter)"),
            "Form 10-Q, ACME & Co., quarterly period ended June 30, 2022",
        ),
        (
            ("FORM 8-K", "Date of report (Date of earliest event reported): August 19, 2022 (August 16, 2022)",
             "ACME plc", "(Exact name of registrant as specified in charter)"),
            "Form 8-K, ACME plc, August 19, 2022",
        ),
        (("Form 10-K/A", "ACME", "(Exact name of registrant)"), "Form 10-K/A, ACME"),
    ],
)  # fmt: skip
def test_other_filings(lines: tuple[str, ...], expected: str) -> None:
    assert title(*lines) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ("SUPPLY AGREEMENT", "This Supply Agreement is made as of January 1, 2019 by and between Alpha Foods,",
             "Inc., a Delaware corporation (“Alpha”), and Beta Farms LLC, a Texas company (“Beta”)."),
            "Supply Agreement between Alpha Foods, Inc. and Beta Farms LLC, January 1, 2019",
        ),
        (
            ("MAINTENANCE AGREEMENT", "THIS AGREEMENT is entered into as of the 3rd day of March 2006, between",
             "Centre for Probes and Trade, an institution (“CPDT”), and Gamma Ltd. (“Gamma”)."),
            "Maintenance Agreement between Centre for Probes and Trade and Gamma Ltd., 3rd day of March 2006",
        ),
        (("OUTSOURCING AGREEMENT", "ALPHA POWER, LLC", "and", "BETA LLC"),
         "Outsourcing Agreement between ALPHA POWER, LLC and BETA LLC"),
        (("FRANCHISE AGREEMENT",), "Franchise Agreement"),
    ],
)  # fmt: skip
def test_a_contract_is_named_by_its_kind_parties_and_date(lines: tuple[str, ...], expected: str) -> None:
    assert title(*lines) == expected


def test_a_date_that_is_not_the_date_of_the_contract_is_left_out() -> None:
    lines = ["AGENCY AGREEMENT", "The plan was adopted. Deposits of March 31, 2008 are counted between A and B."]

    assert title(*lines) == "Agency Agreement"


def test_the_parties_are_left_out_where_they_are_not_plain() -> None:
    assert title("LEASE AGREEMENT", "This lease is between the parties named below and each of their successors.") == (
        "Lease Agreement"
    )


def test_the_largest_lines_name_another_document() -> None:
    lines = ("Alpha Announces Fourth Quarter", "Results for 2022; Raises Outlook", "March 9, 2023")

    assert title(*lines, large=2) == "Alpha Announces Fourth Quarter Results for 2022; Raises Outlook"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("Annual Report of Alpha", "Annual Report of Alpha"),  # says more about the same
        ("Template for letters", "Alpha Annual Report"),  # another document
        (None, "Alpha Annual Report"),
    ],
)
def test_metadata_counts_unless_the_page_contradicts(stored: str | None, expected: str) -> None:
    assert title("Alpha Annual Report", large=1, stored=stored) == expected


def test_without_a_title_on_the_page_the_metadata_count() -> None:
    assert title(stored="Minutes of May") == "Minutes of May"
    assert title() is None
    assert document_title([], "Minutes of May") == ("Minutes of May", None)


@given(
    st.lists(st.text(min_size=1, max_size=80).map(str.strip).filter(bool), max_size=8), st.text(max_size=20) | st.none()
)
def test_any_first_page_gives_a_title_or_none(lines: list[str], stored: str | None) -> None:
    found, heading = document_title([page(*lines, large=1)], stored)

    assert found is None or found == stored or 0 < len(found) <= 200
    assert heading is None or heading.title
