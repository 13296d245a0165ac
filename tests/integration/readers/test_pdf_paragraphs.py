"""Which lines of a page are one paragraph: those of running text, and never rows, items, headings or addresses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.pdf.outline import PlacedLine
from llama_index_contextual.readers.pdf.paragraphs import goes_on
from llama_index_contextual.readers.pdf.pieces import Line
from llama_index_contextual.readers.pdf.reader import _page_text, _place

GLYPH, SIZE, STEP = 5.0, 10.0, 12.0
PROSE = (
    "The tenant keeps the premises in good",
    "repair and reports every single defect",
    "within a week. The landlord sees to it",
    "that the roof is whole.",
)


def set_in_lines(texts: Sequence[str], *, x: float = 50.0, top: float = 700.0) -> list[Line]:
    return [
        Line(text, top - STEP * at, SIZE, 1, x, x + GLYPH * len(text) * (SIZE / 10)) for at, text in enumerate(texts)
    ]


def paragraphs(lines: Sequence[Line]) -> list[str]:
    text = "".join(line.text + (" " if flows else "\n") for line, flows in zip(lines, goes_on(lines), strict=True))
    return text.rstrip("\n").split("\n")


def test_full_lines_go_on_and_a_short_one_ends_the_paragraph() -> None:
    assert paragraphs(set_in_lines([*PROSE, *PROSE])) == [" ".join(PROSE)] * 2


def test_a_line_that_had_room_for_the_next_word_ends_its_paragraph() -> None:
    lines = set_in_lines([PROSE[0], "repair and reports every", PROSE[1]])  # 14 glyphs of room, "repair" needs 7

    assert paragraphs(lines) == [" ".join([PROSE[0], "repair and reports every"]), PROSE[1]]


@pytest.mark.parametrize(
    "item",
    [
        "(a) without notice, for an important one",
        "2. Duties of the tenant and of the lord",
        "3.1 Rent is due monthly",
        "• one week of notice for each of the two",
        "- one month of notice for each of us two",
    ],
)
def test_an_item_begins_a_line(item: str) -> None:
    assert paragraphs(set_in_lines([*PROSE[:3], item])) == [" ".join(PROSE[:3]), item]


@pytest.mark.parametrize(
    "line",
    [
        "The parties hereby agree as follows :",
        "Duties of the tenant . . . . . . . . 12",
        "Landlord: _____________________________",
        "---------------------------------------",
    ],
)
def test_what_ends_by_itself_does_not_go_on(line: str) -> None:
    assert paragraphs(set_in_lines([*PROSE[:3], line, *PROSE[:3]]))[-1] == " ".join(PROSE[:3])


def test_rows_of_a_table_stay_lines() -> None:
    rows = set_in_lines(["Base rent of the premises 12,000 12,600", "Service charge of the roof 1,800 1,950"] * 3)

    assert goes_on([replace(row, cells=3) for row in rows]) == [False] * 6


def test_short_lines_stay_lines() -> None:
    address = ["Jane Doe", "5 Hanover Square", "New York"]

    assert paragraphs(set_in_lines(address)) == address


def test_another_size_another_distance_or_an_indent_is_another_paragraph() -> None:
    lines = set_in_lines(PROSE[:3])
    larger = [replace(lines[0], size=13.0), *lines[1:]]
    apart = [lines[0], *(replace(line, y=line.y - 10) for line in lines[1:])]
    indented = [lines[0], replace(lines[1], x0=lines[1].x0 + 15, x1=lines[1].x1 + 5), lines[2]]

    for changed in (larger, apart, indented):
        assert goes_on(changed)[0] is False
    assert goes_on(lines) == [True, True, False]


def test_lines_whose_place_is_not_known_stay_lines() -> None:
    assert goes_on([Line(text, math.nan, SIZE) for text in PROSE]) == [False] * 4
    assert goes_on([Line(text) for text in PROSE]) == [False] * 4


def test_a_bookmark_begins_a_line_even_within_a_paragraph() -> None:
    (page,) = _place([set_in_lines(PROSE)])
    heading = Heading(page[2].start, 1, PROSE[2])

    assert _page_text(page, {heading.start}).split("\n") == [" ".join(PROSE[:2]), " ".join(PROSE[2:])]


def test_a_cut_word_that_empties_its_line_leaves_the_paragraph_whole() -> None:
    texts = ["We make every single sentence of agree-", "ment", "that the agreement of the tenant is whole"]
    (page,) = _place([set_in_lines(texts)])

    assert [line.text for line in page] == [texts[0][:-1] + "ment", texts[2]]
    assert page[1].start == len(page[0].text) + 1


word = st.text("abc(1.•-:", min_size=1, max_size=9)
line = st.builds(
    Line,
    st.lists(word, min_size=1, max_size=9).map(" ".join),
    st.floats(0, 800) | st.just(math.nan),
    st.floats(0, 30),
    st.integers(1, 3),
    st.floats(0, 600),
    st.floats(0, 600),
)


@given(st.lists(st.lists(line, max_size=8), max_size=3))
def test_only_line_feeds_change_and_every_line_begins_where_its_place_says(pages: list[list[Line]]) -> None:
    placed: list[list[PlacedLine]] = _place(pages)
    text = "\n".join(_page_text(page, set()) for page in placed)

    assert text.replace("\n", " ") == " ".join(" ".join(line.text for line in page) for page in placed)
    assert all(text.startswith(line.text, line.start) for page in placed for line in page)
