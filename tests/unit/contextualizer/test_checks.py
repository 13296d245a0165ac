"""Contexts are checked against the segment: what it does not say is removed, and other faults are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.contextualizer.checks import SegmentFacts, check_context

REPORT = SegmentFacts(
    [
        "Title: Annual report 2022 of Harrow Marine plc",
        "harrow_20230214.pdf",
        "Harrow Marine plc repaired 1,250 pumps in the Kestrel yard between 4/3/2021 and 2 May 2022. Earnings per share"
        " rose by twelve percent. The board of the Norwegian branch met Ms. Adaeze Fuller about the X-200 and the TVs.",
    ]
)
MINUTES = SegmentFacts(
    [
        "Protokoll der 14. Sitzung des Stadtrats Lindau. Frau Dr. Meinert berichtet über den Haushalt und die Brücke am"
        " Hafen, die für 2,5 Millionen Euro saniert wird. Der Rat beschließt das mit 21 Stimmen."
    ]
)
CHUNK = "The board of the Norwegian branch met Ms. Adaeze Fuller about the X-200 and the TVs."


@pytest.mark.parametrize(
    "context",
    [
        "Harrow Marine's repairs of 1250 pumps at the Kestrel yard.",
        "From the report for 2022, on repairs in April 2021 and in May 2022.",
        "EPS rose by 12 percent at Harrow.",
        "On 2021 200 and 12 pumps.",
        "A meeting of the board in Norway with Adaeze Fuller on the X200 and a TV.",
        "Filed on 14 February 2023. Repairs lasted from 4 March 2021 to 2 May 2022.",
        "See Section IV and Exhibit B of the report. However, repairs took longer: Pumps were old.",
    ],
)
def test_what_the_segment_says_in_any_notation_is_kept(context: str) -> None:
    assert check_context(context, CHUNK, REPORT) == (context, frozenset(), ())


@pytest.mark.parametrize(
    "context",
    [
        "Aus dem Protokoll des Stadtrats Lindau: Sanierung der Brücke für 2,5 Millionen Euro.",
        "Debatte und Abstimmung des Rats über die Hafenbrücke. Der Bericht stammt von Frau Meinert.",
        "In der Sitzung berichtete Dr. Meinert dem Stadtrat Lindaus über Ausgaben und Bauarbeiten.",
    ],
)
def test_nouns_with_a_capital_letter_are_not_names(context: str) -> None:
    assert check_context(context, "Der Rat beschließt.", MINUTES) == (context, frozenset(), ())


@pytest.mark.parametrize(
    ("context", "text", "unsupported"),
    [
        ("On pumps of Harrow. It followed the year 2019.", "On pumps of Harrow.", ("2019",)),
        ("On pumps of Harrow. Repaired in Rotterdam by Harrow.", "On pumps of Harrow.", ("Rotterdam",)),
        ("On pumps. Approved by the FDA.", "On pumps.", ("FDA",)),
        ("On the pumps of the yard (delivered by Tolland Ltd) at Harrow.", "On the pumps of the yard at Harrow.", None),
        ("A Rust function of the Kestrel yard.", "A function of the Kestrel yard.", ("Rust",)),
        ("The report gives 1,251 pumps.", "", ("1,251",)),
        ("Repairs until 2 June 2022.", "", ("June",)),
        ("The X-300 of Harrow.", "", ("300",)),
    ],
)
def test_what_the_segment_does_not_say_is_removed(context: str, text: str, unsupported: tuple[str, ...] | None) -> None:
    result = check_context(context, CHUNK, REPORT)
    assert (result.text, result.findings) == (text, {"unsupported"})
    assert unsupported in (None, result.unsupported)


@pytest.mark.parametrize(
    ("context", "unsupported"),
    [
        ("Rede von Angela Tollmann im Stadtrat über die Brücke.", ("Tollmann",)),
        ("Bericht an die BAFIN über die Brücke, die der Rat saniert.", ("BAFIN",)),
        ("Der Rat beschließt mit 22 Stimmen die Sanierung, über die er berichtet.", ("22",)),
    ],
)
def test_names_and_numbers_are_checked_in_german(context: str, unsupported: tuple[str, ...]) -> None:
    assert check_context(context, "Der Rat beschließt.", MINUTES) == ("", {"unsupported"}, unsupported)


def test_a_sentence_that_repeats_the_chunk_is_removed() -> None:
    result = check_context(f"From the report of Harrow Marine. {CHUNK}", CHUNK, REPORT)
    assert result == ("From the report of Harrow Marine.", {"repetition"}, ())


@pytest.mark.parametrize(
    ("context", "finding"),
    [
        ("Keywords: pumps, yard, repairs, board.", "keywords"),
        ("pumps, yard, board, repairs, earnings, branch, share", "keywords"),
        ("This chunk describes the pumps of Harrow Marine.", "self_reference"),
        ("The given excerpt is about the board.", "self_reference"),
        ("Es geht um die Pumpen, die in der Werft und auf dem Hof repariert wurden.", "language"),
    ],
)
def test_other_faults_are_reported_and_the_context_is_kept(context: str, finding: str) -> None:
    assert check_context(context, CHUNK, REPORT) == (context, {finding}, ())


@given(st.text(st.sampled_from("Ab1. (),ß中 —\n'"), max_size=60), st.text(max_size=60))
def test_the_text_has_only_parts_of_the_context_and_is_not_reduced_again(context: str, segment: str) -> None:
    facts = SegmentFacts([segment])
    result = check_context(context, "", facts)
    assert set(result.text) <= {*context, " "}
    assert not check_context(result.text, "", facts).unsupported
