"""Pieces of text, and reading order, spaces, columns and tables from their places."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.pages import BLANK, Cell, Row, Run, page_lines, with_blanks
from llama_index_contextual.readers.pdf.reader import _page_text, _place_lines, continuations
from tests.support.pdf_files import RawPdf, read_pdf, show
from tests.unit.readers.examples import sections

SIZE = 10.0
GLYPH = 5.0  # width of every glyph in these tests


def run(text: str, x: float, y: float, *, size: float = SIZE, angle: int = 0) -> Run:
    return Run(text, x, x + GLYPH * len(text) * size / SIZE, y, size, GLYPH * size / SIZE, angle)


def texts(runs: Iterable[Run]) -> list[str]:
    return [line.text for line in page_lines(list(runs))]


@pytest.mark.parametrize(
    ("gap", "text"),
    [(0.0, "agreement"), (2.0, "agreement"), (3.0, "agree ment"), (8.0, "agree ment"), (-1.0, "agreement")],
)
def test_a_space_is_where_the_gap_shows_one(gap: float, text: str) -> None:
    first = run("agree", 50, 700)

    assert texts([first, run("ment", first.x1 + gap, 700)]) == [text]


def test_white_space_is_collapsed_and_empty_lines_are_left_out() -> None:
    assert texts([run("  the   end ", 50, 700), run("   ", 50, 680), run("", 50, 660)]) == ["the end"]


def test_scripts_without_spaces_get_none_from_loose_spacing() -> None:
    first = run("契約", 50, 700)

    assert texts([first, run("期間", first.x1 + 4, 700)]) == ["契約期間"]


def test_repeated_words_are_not_taken_for_bold() -> None:
    assert texts([run("no", 50, 700), run("no", 65, 700)]) == ["no no"]


def test_pieces_far_apart_on_a_line_are_cells() -> None:
    (line,) = page_lines([run("Revenue", 50, 700), run("1,200", 200, 700), run("1,100", 300, 700)])

    assert (line.text, line.cells) == ("Revenue 1,200 1,100", 3)


def test_text_in_another_direction_is_a_line_of_its_own_without_a_height() -> None:
    lines = page_lines([run("Body text", 50, 700), run("DRAFT", 55, 700, angle=45), run("goes on", 50, 688)])

    assert [line.text for line in lines] == ["Body text", "DRAFT", "goes on"]
    assert [line.y == line.y for line in lines] == [True, False, True]


@given(
    st.lists(
        st.builds(
            run,
            st.text("ab 1契", min_size=1, max_size=8),
            st.integers(0, 40).map(lambda at: 15.0 * at),
            st.integers(0, 30).map(lambda at: 8.0 * at),
            size=st.sampled_from([6.0, 10.0, 24.0]),
            angle=st.sampled_from([0, 0, 0, 90]),
        ),
        max_size=60,
    )
)
def test_no_letter_is_lost_or_made_up(runs: list[Run]) -> None:
    # A twin at the very same place is bold print; the twins of this test are told apart by a unique mark.
    marked = [piece._replace(text=f"{piece.text}<{at}>") for at, piece in enumerate(runs)]

    drawn = Counter("".join("".join(piece.text.split()) for piece in marked))
    assert Counter("".join("".join(text.split()) for text in texts(marked))) == drawn


# ---- which lines of a page are one paragraph: those of running text, and never rows, items, headings or addresses ----


STEP = 12.0
PARAGRAPH = (
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
    ends = (" " if flows else "\n" for flows in continuations(lines))
    text = "".join(line.text + end for line, end in zip(lines, ends, strict=True))
    return text.rstrip("\n").split("\n")


PARAGRAPHS = sections("pdf_paragraphs")
ITEMS, ENDS = PARAGRAPHS.pop("items that begin a line"), PARAGRAPHS.pop("lines that do not go on")


@pytest.mark.parametrize("name", PARAGRAPHS)
def test_the_paragraphs_of_lines_are_those_of_the_example(name: str) -> None:
    lines, expected = PARAGRAPHS[name]
    assert paragraphs(set_in_lines(lines.split("\n"))) == expected.split("\n")


@pytest.mark.parametrize("item", ITEMS)
def test_an_item_begins_a_line(item: str) -> None:
    assert paragraphs(set_in_lines([*PARAGRAPH[:3], item])) == [" ".join(PARAGRAPH[:3]), item]


@pytest.mark.parametrize("line", ENDS)
def test_what_ends_by_itself_does_not_go_on(line: str) -> None:
    assert paragraphs(set_in_lines([*PARAGRAPH[:3], line, *PARAGRAPH[:3]]))[-1] == " ".join(PARAGRAPH[:3])


def test_rows_of_a_table_stay_lines() -> None:
    rows = set_in_lines(["Base rent of the premises 12,000 12,600", "Service charge of the roof 1,800 1,950"] * 3)

    assert continuations([replace(row, cells=3) for row in rows]) == [False] * 6


def test_another_size_another_distance_or_an_indent_is_another_paragraph() -> None:
    lines = set_in_lines(PARAGRAPH[:3])
    larger = [replace(lines[0], size=13.0), *lines[1:]]
    apart = [lines[0], *(replace(line, y=line.y - 10) for line in lines[1:])]
    indented = [lines[0], replace(lines[1], x0=lines[1].x0 + 15, x1=lines[1].x1 + 5), lines[2]]

    for changed in (larger, apart, indented):
        assert continuations(changed)[0] is False
    assert continuations(lines) == [True, True, False]


def test_lines_whose_place_is_not_known_stay_lines() -> None:
    assert continuations([Line(text, math.nan, SIZE) for text in PARAGRAPH]) == [False] * 4
    assert continuations([Line(text) for text in PARAGRAPH]) == [False] * 4


def test_a_bookmark_begins_a_line_even_within_a_paragraph() -> None:
    (page,) = _place_lines([set_in_lines(PARAGRAPH)])
    heading = Heading(page[2].start, 1, PARAGRAPH[2])

    assert _page_text(page, {heading.start}).split("\n") == [" ".join(PARAGRAPH[:2]), " ".join(PARAGRAPH[2:])]


def test_a_cut_word_that_empties_its_line_leaves_the_paragraph_whole() -> None:
    texts = ["We make every single sentence of agree-", "ment", "that the agreement of the tenant is whole"]
    (page,) = _place_lines([set_in_lines(texts)])

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
    placed: list[list[Line]] = _place_lines(pages)
    text = "\n".join(_page_text(page, set()) for page in placed)

    assert text.replace("\n", " ") == " ".join(" ".join(line.text for line in page) for page in placed)
    assert all(text.startswith(line.text, line.start) for page in placed for line in page)


# ---- blank cells of tables in PDFs get a dash, so that each figure keeps its column; nothing else changes ------------


STARTS = (50.0, 250.0, 320.0, 390.0, 460.0)


def rows_of(*texts: Sequence[str], step: float = 14.0) -> list[Row]:
    """Return rows whose cells stand in columns; an empty text is a blank cell, and figures are right-aligned."""
    rows = []
    for at, row in enumerate(texts):
        cells = []
        for start, text in zip(STARTS, row, strict=False):
            left = start if start == STARTS[0] else start + 50 - 5 * len(text)
            if text:
                cells.append(Cell(text, left, left + 5 * len(text), 700 - step * at, 10))
        rows.append(cells)
    return rows


BLANKS = sections("pdf_blanks")


@pytest.mark.parametrize("name", BLANKS)
def test_rows_get_the_dashes_of_the_example_or_none(name: str) -> None:
    given, *expected = BLANKS[name]
    rows = rows_of(*([cell.strip() for cell in row.split("|")] for row in given.split("\n")))
    after = with_blanks(rows)
    if expected:
        assert [" ".join(cell.text for cell in row) for row in after] == expected[0].split("\n")
    else:
        assert after == rows


def test_rows_far_from_each_other_are_no_table() -> None:
    rows = rows_of(("Cash", "10", "11"), ("Debt", "12", "13"), ("Fees", "", "1", "2"), step=90.0)
    assert with_blanks(rows) == rows
    assert with_blanks([]) == []


def test_a_dash_is_not_a_term_of_the_lexical_index() -> None:
    analyzer = Analyzer()
    assert analyzer.terms(f"Fees 27 {BLANK} 28") == analyzer.terms("Fees 27 28")


@given(st.integers(0, 10**6))
def test_cells_are_kept_in_their_order_and_only_dashes_are_added(seed: int) -> None:
    numbers = random.Random(seed)
    texts = [
        [f"Row {at}", *(numbers.choice(["", "", "1,234", "(7)", "—", "n/a"]) for _ in STARTS[1:])]
        for at in range(numbers.randint(0, 12))
    ]
    rows = rows_of(*texts)
    for before, after in zip(rows, with_blanks(rows), strict=True):
        assert [cell for cell in after if any(cell is other for other in before)] == before
        assert all(cell.text == BLANK for cell in after if not any(cell is other for other in before))
        assert len(after) <= len(STARTS)


def test_the_text_of_a_pdf_has_the_dashes(tmp_path: Path) -> None:
    pdf, page = RawPdf(), b""
    for at, row in enumerate(
        [("in thousands", "2023", "2022"), ("Cash", "10", "11"), ("Debt", "12", "13"), ("Tax", "", "7")]
    ):
        for start, text in zip((50, 300, 400), row, strict=True):
            page += show(start, 700 - 14 * at, text) if text else b""
    pdf.page(page)
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf.data())
    parsed = read_pdf(path)
    assert parsed.text == "in thousands 2023 2022\nCash 10 11\nDebt 12 13\nTax – 7"
    assert [table.head for table in parsed.map.tables] == ["in thousands 2023 2022"]


def test_words_of_a_rotated_line_are_read_along_the_line(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    pdf, upwards = RawPdf(), b"BT /F1 10 Tf 0 1 -1 0 %d %d Tm (%s) Tj ET\n"
    pdf.page(upwards % (100, 350, b"upwards.") + upwards % (100, 300, b"One line") + upwards % (120, 300, b"Below it."))
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf.data())
    assert read_pdf(path).text.split("\n") == ["One line upwards.", "Below it."]


@pytest.mark.parametrize(("matrix", "entries"), [(b"0 -1 1 0", b""), (b"1 0 0 1", b"/Rotate 90")])
def test_the_lines_of_text_that_runs_down_the_page_are_in_order(tmp_path: Path, matrix: bytes, entries: bytes) -> None:
    pytest.importorskip("pypdfium2")
    texts = ["The first line.", "The second line.", "The third line."]
    places = [(300 - 20 * at, 500) if matrix == b"0 -1 1 0" else (50, 500 - 20 * at) for at in range(3)]
    content = b"".join(
        b"BT /F1 10 Tf %s %d %d Tm (%s) Tj ET\n" % (matrix, *place, text.encode())
        for place, text in zip(places, texts, strict=True)
    )
    pdf = RawPdf()
    pdf.page(content, entries)
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf.data())
    assert read_pdf(path).text.split("\n") == texts
