"""The check of citations: faults that it detects, and correct answers that it accepts."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.answering.citations import CitationReport, FoldedText, Passage, check_citations, locate
from llama_index_contextual.search.response import Source
from tests.support.planted import measure

FOOD = Passage(
    "Store at least a three-day supply of food. Canned goods, which keep for 24 months, are the safest choice.",
    Source(file_name="food.pdf", page_start=4, page_end=4, start_char=1000, end_char=1104),
)
WATER = Passage(
    "Boil all water for one minute. Above 6,500 feet boil it for 3 minutes. The notice of 3 March 2021 was lifted.",
    Source(file_name="water.pdf", page_start=7, page_end=8, start_char=50, end_char=160),
)
BROKEN = Passage("The infor-\nmation is kept by the Depart-\n ment of Health, “as  the law\nrequires”, for 1 000 days.")


def check(answer: str, *passages: Passage, question: str = "") -> CitationReport:
    return check_citations(answer, passages or (FOOD, WATER), question=question)


def statuses(answer: str, *passages: Passage) -> list[str]:
    return [quotation.status for quotation in check(answer, *passages).quotations]


def unsupported(answer: str, *passages: Passage, question: str = "") -> list[str]:
    return [figure.text for figure in check(answer, *passages, question=question).unsupported]


# ---- citations -------------------------------------------------------------------------------------------------------


# ---- quotations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["[Source <i>90</i> 1]", "[Source x 90 of 2021]", "`[90]` and `sources[90]`"])
def test_text_that_only_resembles_a_citation_is_none(text: str) -> None:
    report = check(f"It is so [Source 1]. But here it is {text}.")
    assert (report.cited, report.invalid) == ((1,), ())
    assert [figure.text for figure in report.unsupported][:1] == ["90"]


def test_a_verified_quotation_has_its_offsets_in_the_document() -> None:
    (quotation,) = check("They “keep for 24 months” [Source 1].").quotations
    assert (quotation.status, quotation.found_in, quotation.cited) == ("verified", 1, (1,))
    start = 1000 + FOOD.text.index("keep for")
    assert quotation.source == Source(
        file_name="food.pdf", page_start=4, page_end=4, start_char=start, end_char=start + len("keep for 24 months")
    )


def test_a_quotation_of_a_passage_without_offsets_has_the_source_of_the_passage() -> None:
    source = Source(doc_id="notes", file_name="notes.md")
    passage = Passage("For schools, the fee is waived.", source)
    (quotation,) = check("“the fee is waived” [Source 1]", passage).quotations
    assert (quotation.status, quotation.source) == ("verified", source)


@pytest.mark.parametrize(
    "answer",
    [
        "“The information is kept by the Department of Health” [Source 1].",
        '"the INFORMATION is kept by" [Source 1].',
        "«The infor-\nmation is kept by» [Source 1].",
        "„is kept by the Department“ [Source 1].",
        "‘as the law requires’ [Source 1].",
        "It says 'as the law requires' [Source 1].",
        '> The information is kept by the Department of Health, "as the\n> law requires"\n\n[Source 1]',
        "“The **information** is kept” [Source 1].",
        "“The information is kept by […] the law requires” [Source 1].",
        "“... is kept by the Department of Health, ...” [Source 1].",
    ],
)
def test_white_space_hyphenation_marks_and_case_do_not_matter(answer: str) -> None:
    assert statuses(answer, BROKEN) == ["verified"]


PAGES = Passage("See pages 3-4 to 6 of it, and 3 4 to 6.")


@pytest.mark.parametrize(
    ("answer", "passages", "expected"),
    [
        ("“Boil all water for one minute” [Source 1].", (), ["wrong_source"]),
        ("“Boil all water for one minute”.", (), ["verified"]),  # without a citation every passage counts
        ("“Canned goods should be boiled first” [Source 1].", (), ["not_found"]),
        ("“which keep for 36 months” [Source 1].", (), ["not_found"]),
        ("“Store at least a three-day supply for one minute” [Source 1].", (), ["stitched"]),
        ("“Canned goods, which keep … boil it for 3 minutes” [Source 1].", (), ["stitched"]),
        ("“Canned goods … Store at least” [Source 1].", (), ["stitched"]),
        ("“tore at least a three-day supply” [Source 1].", (), ["not_found"]),
        ("“Store at least a three-day supp” [Source 1].", (), ["not_found"]),
        ("“pages 34 to 6 of it” [Source 1].", [PAGES], ["not_found"]),  # digits do not run together
        ("“pages 3 4 to 6 of it” [Source 1].", [PAGES], ["not_found"]),
        ("“pages 3–4 to 6 of it” [Source 1].", [PAGES], ["verified"]),
        # Terms, inches and apostrophes are not quotations.
        ("“three-day supply”", (), []),
        ('A 5" pipe and a 6" one are here.', (), []),
        ("the dogs' and cats' food", (), []),
    ],
)
def test_a_quotation_has_its_status(answer: str, passages: tuple[Passage, ...], expected: list[str]) -> None:
    assert statuses(answer, *passages) == expected


FAR = "Canned goods keep for two years. " + "Store them in a dry place. " * 40 + "Boil all water for one minute."


@pytest.mark.parametrize(
    ("quotation", "text", "expected"),
    [
        ("Canned goods keep … for one minute", FAR, "stitched"),
        ("Store them in … all water for one", FAR, "verified"),  # a later place of the first part
        ("Canned goods keep … are never opened", FAR, "not_found"),
        ("Canned goods keep and boil all water", FAR, "stitched"),
        ("Canned goods keep whereas boil all water", FAR, "not_found"),
        ("and boil all water", FAR, "not_found"),
    ],
)
def test_the_parts_of_a_quotation_are_close_together(quotation: str, text: str, expected: str) -> None:
    assert statuses(f"“{quotation}” [Source 1].", Passage(text)) == [expected]


def test_a_repeated_part_of_a_quotation_is_looked_up_in_linear_time() -> None:
    text = FoldedText("Boil all water. " * 20_000 + "x" * 400 + " Keep calm always.")
    started = time.process_time()
    assert locate("boil all water … keep calm always", text) is None
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        ("“keep for 24 months” [Source 1], but “boil it for 3 minutes” [Source 2].", [(1,), (2,)]),
        ("“boil it for 3 minutes” [Source 1], [Source 2]. Other [Source 1].", [(1, 2)]),
        ("It says “boil it for 3 minutes.” [Source 2] Food is another matter [Source 1].", [(2,)]),
    ],
)
def test_each_quotation_has_the_citations_next_to_it(answer: str, cited: list[tuple[int, ...]]) -> None:
    quotations = check(answer).quotations
    assert [quotation.cited for quotation in quotations] == cited
    assert {quotation.status for quotation in quotations} == {"verified"}


# ---- numbers and dates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "flagged"),
    [
        ("Above 6500 feet boil for 3 minutes [Source 2].", []),
        ("Above 6,500.0 feet [Source 2].", []),
        ("Lifted on March 3, 2021 [Source 2].", []),
        ("Lifted on 2021-03-03, in March 2021 [Source 2].", []),
        ("Boil for 1 minute [Source 2].", []),
        ("1. Boil it [Source 2].\n2. Lift it [Source 2].\n\n7) Eat [Source 1].", []),
        ("In 24 months or 3 minutes.", []),
        ("Above 7,500 feet [Source 2].", ["7,500"]),
        ("It keeps 24 months [Source 2].", ["24"]),
        ("Lifted on 4 March 2021 [Source 2].", ["4"]),
        ("Lifted on 3 April 2021 [Source 2].", ["April"]),
        ("Lifted in March 2022 [Source 2].", ["2022"]),
        ("Food keeps 24 months [Source 1]. Boil for 24 minutes [Source 2].", ["24"]),
        ("It is 24.5 months [Source 1].", ["24.5"]),
    ],
)
def test_numbers_and_dates_are_supported_by_the_cited_passage_in_any_notation(answer: str, flagged: list[str]) -> None:
    assert unsupported(answer) == flagged


def test_numbers_of_the_question_may_be_repeated() -> None:
    assert unsupported("Nothing is said about 1999.") == ["1999"]
    assert unsupported("Nothing is said about 1999.", question="What happened in 1999?") == []


@pytest.mark.parametrize(
    ("in_passage", "in_answer"),
    [("two hundred days", "200"), ("$5 million", "5,000,000"), ("1.000,50 EUR", "1,000.50"), ("twenty-five", "25")],
)
def test_one_number_in_several_notations(in_passage: str, in_answer: str) -> None:
    assert unsupported(f"It is {in_answer} [Source 1].", Passage(f"It is {in_passage}.")) == []


# ---- as a whole ------------------------------------------------------------------------------------------------------


def test_a_report_converts_to_json_with_is_clean() -> None:
    report = check("“keep for 24 months” [Source 1].")
    assert report.is_clean
    assert json.loads(json.dumps(report.to_dict()))["quotations"][0]["source"]["page_start"] == 4
    assert not check("It is 7 [Source 1].").is_clean
    assert not check("It is so [Source 7].").is_clean


@given(st.text(alphabet="ab1“”\"'[]> \n.…-,Source 2", max_size=80), st.lists(st.text(max_size=60), max_size=3))
def test_any_text_is_checked_and_offsets_point_into_the_answer(answer: str, texts: list[str]) -> None:
    report = check_citations(answer, [Passage(text) for text in texts])
    for quotation in report.quotations:
        assert quotation.text.split()[0] in report.text[quotation.start : quotation.end]
    for figure in report.unsupported:
        assert report.text[figure.start : figure.end] == figure.text
    assert all(1 <= number <= len(texts) for number in report.cited)
    assert check_citations(report.text, [Passage(text) for text in texts]).invalid == ()


def synthetic_passages(count: int, seed: int) -> list[str]:
    """Return passages of synthetic words and some numbers, with a third of the words in common."""
    source = random.Random(seed)
    syllables = ["ba", "ne", "ti", "ro", "lu", "ka", "ste", "mor", "vin", "da", "pe", "sol"]
    words = ["".join(source.choices(syllables, k=source.randint(1, 4))) for _ in range(400)]
    passages = []
    for _ in range(count):
        sentences = []
        for _ in range(4):
            sentence = source.choices(words, k=source.randint(8, 18))
            if source.random() < 0.6:
                sentence[source.randrange(len(sentence))] = str(source.randint(10, 999))
            sentences.append(" ".join(sentence).capitalize() + ".")
        passages.append("\n".join(sentences))
    return passages


def test_planted_faults_are_detected_with_few_false_alarms() -> None:
    planted, detected, misses = measure(synthetic_passages(60, seed=7), answers=500, seed=7)
    assert planted["faults"] > 300
    assert min(planted[kind] for kind in ("hyphenated", "stitched", "altered_number", "wrong_source", "invented")) > 30
    assert detected["faults"] / planted["faults"] >= 0.98, misses[:5]
    assert detected["faults"] / (detected["faults"] + detected["false"]) >= 0.98, misses[:5]
