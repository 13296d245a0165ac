"""Running headers and footers leave the text, nothing of the body does; hyphens and characters are mended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.pages import PageContent
from llama_index_contextual.readers.pdf.reader import HyphenJoiner, clean
from llama_index_contextual.readers.pdf.running import Running, strip_running
from tests.unit.readers.examples import sections

WORDS = ["apples", "plums", "pears", "figs", "dates", "limes", "grapes", "melons", "quinces", "cherries"]


def page(body: Sequence[str], *, head: Sequence[str] = (), foot: Sequence[str] = (), size: float = 10) -> PageContent:
    """A page of 800 points: head from 785 down, body from 740 down, foot up from 20."""
    lines = [Line(text, 785.0 - 12 * at, size) for at, text in enumerate(head)]
    lines += [Line(text, 740.0 - 12 * at, 10) for at, text in enumerate(body)]
    lines += [Line(text, 20.0 + 12 * at, size) for at, text in enumerate(reversed(foot))][::-1]
    return PageContent(lines, False, (0.0, 800.0))


def body(at: int) -> list[str]:
    return [f"This page is about {WORDS[at]}", f"and {WORDS[at]} are", "fruit of a tree."]


def bodies(found: Running) -> list[list[str]]:
    return [[line.text for line in lines] for lines in found.pages]


@pytest.mark.parametrize(
    ("head", "foot", "labels", "kept"),
    [
        (["Confidential"], ["{n}"], ["1", "2", "3", "4"], []),
        (["ACME Corp"], ["{n}"], ["1", "2", "3", "4"], ["ACME Corp"]),
        (["ACME Corp", "fruit trees"], ["Page {n} of 4"], ["1", "2", "3", "4"], ["ACME Corp"]),
        ([], ["Confidential", "- {n} -"], ["1", "2", "3", "4"], []),
        (["{n} | ACME Corp"], [], ["1", "2", "3", "4"], ["1 | ACME Corp"]),
        ([], ["{roman}"], ["i", "ii", "iii", "iv"], []),
        (["Source: ACME, 10-K, 3/2/2020"], [], ["", "", "", ""], ["Source: ACME, 10-K, 3/2/2020"]),
        (["contract no. 9302-K"], [], ["", "", "", ""], ["contract no. 9302-K"]),
        (["contract 77120"], [], ["", "", "", ""], ["contract 77120"]),
        (["77120 contract"], [], ["", "", "", ""], ["77120 contract"]),
        (["contract of 2021"], [], ["", "", "", ""], []),
        (["contract: office@marigold.example"], [], ["", "", "", ""], ["contract: office@marigold.example"]),
    ],
)
def test_what_every_page_repeats_is_kept_once_if_it_has_a_name_or_number_of_its_own(
    head: list[str], foot: list[str], labels: list[str], kept: list[str]
) -> None:
    roman = ["i", "ii", "iii", "iv"]
    pages = [
        page(
            body(at),
            head=[text.format(n=at + 1, roman=roman[at]) for text in head],
            foot=[text.format(n=at + 1, roman=roman[at]) for text in foot],
        )
        for at in range(4)
    ]
    found = strip_running(pages)

    assert bodies(found) == [[*kept, *body(0)], *(body(at) for at in range(1, 4))]
    assert found.labels == labels
    texts = [text for text in (*head, *foot) if any(word in text for word in ("ACME", "fruit", "Conf", "contract"))]
    assert " | ".join(filter(None, (found.header, found.footer))) == " | ".join(texts).format(n=1)


def test_left_and_right_pages_may_differ() -> None:
    found = strip_running([page(body(at), head=[("ACME Corp", "yearly report")[at % 2]]) for at in range(8)])

    assert bodies(found) == [["ACME Corp", *body(0)], *(body(at) for at in range(1, 8))]
    assert found.header == "ACME Corp | yearly report"


def test_pages_without_the_header_are_left_alone() -> None:
    heads = [["fruit trees"] if at not in (0, 4) else [] for at in range(8)]

    assert bodies(strip_running([page(body(at), head=heads[at]) for at in range(8)])) == [body(at) for at in range(8)]


def test_a_number_that_starts_again_is_still_a_page_number() -> None:
    numbers = [1, 2, 3, 4, 1, 2, 3]
    found = strip_running([page(body(at), foot=[str(number)]) for at, number in enumerate(numbers)])

    assert bodies(found) == [body(at) for at in range(7)]
    assert found.labels == list(map(str, numbers))


def test_pages_that_differ_in_numbers_only_lose_header_and_page_number_only() -> None:
    pages = [page([f"Text of page {at}", "same"], head=["same text"], foot=[f"Page {at}"]) for at in range(1, 6)]

    assert bodies(strip_running(pages)) == [[f"Text of page {at}", "same"] for at in range(1, 6)]


@pytest.mark.parametrize(
    "pages",
    [
        # fewer than three pages
        [page(body(at), head=["ACME Corp"]) for at in range(2)],
        # a repeated last line that is not set off from the body
        [page([*body(at)[:2], "Signed by the parties."]) for at in range(4)],
        # numbers that do not count with the pages
        [page(body(at), foot=[text]) for at, text in enumerate(["17", "4", "230", "8", "15"])],
        [page(body(at), foot=[f"Total {text}"]) for at, text in enumerate(["17", "4", "230", "8", "15"])],
        # chapters of one page each
        [page(body(at), head=[f"Chapter {at + 1}"]) for at in range(5)],
        # titles of the pages, with numbers that count up with them but are not page numbers
        [page(body(at), head=[f"Q{at + 1} 2022 QTD – Income Before Tax by Segment"]) for at in range(4)],
        [page(body(at), head=[f"Results of {2019 + at} by Segment"], foot=["x" * at]) for at in range(4)],
        [page(body(at), head=[f"{2019 + at} Results"]) for at in range(4)],
        # headings are larger than the text
        [page(body(at), head=["ACME Corp"], size=20) for at in range(5)],
        # copies of one form
        [page(["Declaration", "of origin", "Date:"]) for _ in range(4)],
        # a line in the middle
        [page([WORDS[at], "the same on all", WORDS[-at - 1]]) for at in range(5)],
        # a page that has nothing else
        [page([], head=["ACME Corp"]) for _ in range(5)],
    ],
)
def test_the_body_is_never_touched(pages: list[PageContent]) -> None:
    found = strip_running(pages)

    assert found.pages == [list(page.lines) for page in pages]
    assert (found.header, found.footer) == ("", "")


def test_column_heads_that_every_page_repeats_stay_once() -> None:
    heads = Line("Date Item Amount", 785, 10, cells=3)
    pages = [PageContent([heads, *page(body(at)).lines], False, (0, 800)) for at in range(5)]
    found = strip_running(pages)

    assert bodies(found) == [["Date Item Amount", *body(0)], *(body(at) for at in range(1, 5))]


def test_lines_whose_place_is_unknown_can_be_page_numbers() -> None:
    pages = [PageContent([*map(Line, body(at)), Line(f"- {at + 1} -")], False, (0, 800)) for at in range(4)]

    assert bodies(strip_running(pages)) == [body(at) for at in range(4)]


@given(st.lists(st.lists(st.sampled_from([*WORDS, "ACME", "7", "Page 3"]), max_size=6), max_size=8))
def test_pages_only_ever_lose_whole_lines_and_never_all(texts: list[list[str]]) -> None:
    pages = [page(lines) for lines in texts]
    found = strip_running(pages)

    assert len(found.pages) == len(found.labels) == len(pages)
    for before, after in zip(pages, found.pages, strict=True):
        rest = iter(before.lines)
        assert all(any(line is other for other in rest) for line in after)
        assert bool(after) == bool(before.lines)


# ---- hyphens at line ends, ligatures, characters that are no text ----------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("con\ufb01dential \ufb02oor e\ufb00ect o\ufb03ce ra\ufb04e", "confidential floor effect office raffle"),
        ("a\u00a0b", "a b"),
        ("a\x00b\x1b[31mc\x9b", "ab[31mc"),
        ("a\ud800b", "a\ufffdb"),
        ("Straße, naïve, 契約, عقد", "Straße, naïve, 契約, عقد"),
        ("½ x² №", "½ x² №"),
    ],
)
def test_characters_are_made_readable_and_others_left_alone(raw: str, text: str) -> None:
    assert clean(raw) == text


@given(st.text(st.characters()))
def test_clean_text_can_be_encoded_and_stays_clean(text: str) -> None:
    cleaned = clean(text)

    assert cleaned.encode().decode() == cleaned
    assert clean(cleaned) == cleaned


HYPHENS = sections("pdf_hyphens")


@pytest.mark.parametrize("name", HYPHENS)
def test_words_at_line_ends_are_joined_as_in_the_example(name: str) -> None:
    text, elsewhere, expected = HYPHENS[name]
    lines = text.split("\n")
    joined = HyphenJoiner([lines, [elsewhere, ""]]).join(lines)
    assert [line for line in joined if line] == expected.split("\n")


def test_a_line_that_gives_its_only_word_away_is_empty() -> None:
    lines = ["a run-", "of-", "station basis"]

    assert HyphenJoiner([lines]).join(lines) == ["a run-of-", "", "station basis"]


@given(st.lists(st.text("abC -,.", max_size=12), max_size=8))
def test_no_letter_is_lost(lines: list[str]) -> None:
    after = HyphenJoiner([lines]).join(lines)

    assert len(after) == len(lines)
    letters = [char for line in lines for char in line if char not in " -"]
    assert [char for line in after for char in line if char not in " -"] == letters
