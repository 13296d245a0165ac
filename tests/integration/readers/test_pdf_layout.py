"""Reading order, spaces, columns and tables, from the places of the pieces of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.readers.pdf.layout import Run, page_lines

SIZE = 10.0
GLYPH = 5.0  # width of every glyph in these tests
PROSE = "the tenant pays the rent on the first day of each month and keeps the premises in good repair until the end"


def run(text: str, x: float, y: float, *, size: float = SIZE, angle: int = 0) -> Run:
    return Run(text, x, x + GLYPH * len(text) * size / SIZE, y, size, GLYPH * size / SIZE, angle)


def texts(runs: Iterable[Run]) -> list[str]:
    return [line.text for line in page_lines(list(runs))]


def prose(side: str, count: int) -> list[str]:
    words = PROSE.split()
    return [" ".join([f"{side}{at}", *words[at % 5 : at % 5 + 6]]) for at in range(count)]


@pytest.mark.parametrize(
    ("gap", "text"),
    [(0.0, "agreement"), (2.0, "agreement"), (3.0, "agree ment"), (8.0, "agree ment"), (-1.0, "agreement")],
)
def test_a_space_is_where_the_gap_shows_one(gap: float, text: str) -> None:
    first = run("agree", 50, 700)

    assert texts([first, run("ment", first.x1 + gap, 700)]) == [text]


def test_a_space_that_is_drawn_is_not_doubled() -> None:
    first = run("the ", 50, 700)

    assert texts([first, run("end", first.x1 + 4, 700)]) == ["the end"]


def test_white_space_is_collapsed_and_empty_lines_are_left_out() -> None:
    assert texts([run("  the   end ", 50, 700), run("   ", 50, 680), run("", 50, 660)]) == ["the end"]


def test_scripts_without_spaces_get_none_from_loose_spacing() -> None:
    first = run("契約", 50, 700)

    assert texts([first, run("期間", first.x1 + 4, 700)]) == ["契約期間"]


def test_a_superscript_stays_on_its_line_and_the_next_line_does_not() -> None:
    runs = [run("on the 30", 50, 700), run("th", 95, 704, size=6), run("day", 110, 700), run("below", 50, 688)]

    assert texts(runs) == ["on the 30th day", "below"]


def test_text_printed_twice_to_look_bold_is_read_once() -> None:
    assert texts([run("Heading", 50, 700), run("Heading", 50.4, 700), run("Body", 50, 680)]) == ["Heading", "Body"]


def test_repeated_words_are_not_taken_for_bold() -> None:
    assert texts([run("no", 50, 700), run("no", 65, 700)]) == ["no no"]


def test_pieces_far_apart_on_a_line_are_cells() -> None:
    (line,) = page_lines([run("Revenue", 50, 700), run("1,200", 200, 700), run("1,100", 300, 700)])

    assert (line.text, line.cells) == ("Revenue 1,200 1,100", 3)


def test_cells_drawn_from_right_to_left_are_read_from_left_to_right() -> None:
    assert texts([run("1,200", 200, 700), run("Revenue", 50, 700)]) == ["Revenue 1,200"]


def test_columns_of_prose_drawn_row_by_row_are_read_one_after_the_other() -> None:
    left, right = prose("left", 8), prose("right", 8)
    rows = [
        piece for at in range(8) for piece in (run(left[at], 50, 700 - 12 * at), run(right[at], 320, 700 - 12 * at))
    ]
    title, note = run("A title that crosses both of the columns " * 2, 50, 720), run("A note " * 14, 50, 580)

    assert texts([title, *rows, note]) == [title.text.strip(), *left, *right, note.text.strip()]


def test_columns_drawn_one_after_the_other_stay_so() -> None:
    left, right = prose("left", 8), prose("right", 8)
    runs = [run(text, 50, 700 - 12 * at) for at, text in enumerate(left)]
    runs += [run(text, 320, 700 - 12 * at) for at, text in enumerate(right)]

    assert texts(runs) == left + right


def test_three_columns_are_read_from_left_to_right() -> None:
    columns = [prose(side, 8) for side in "abc"]
    runs = [run(column[at], 20 + 250 * i, 700 - 12 * at) for at in range(8) for i, column in enumerate(columns)]

    assert texts(runs) == columns[0] + columns[1] + columns[2]


def test_a_last_line_in_one_column_only_stays_in_its_column() -> None:
    left, right = prose("left", 9), prose("right", 8)
    runs = []
    for at in range(9):
        runs.append(run(left[at], 50, 700 - 12 * at))
        if at < 8:
            runs.append(run(right[at], 320, 700 - 12 * at))

    assert texts(runs) == left + right


TABLE = [("Base rent for the first year", "12,000"), ("Rent for the second", "13,500"), ("Deposit", "2,000")]


def test_a_table_is_read_row_by_row() -> None:
    rows = TABLE * 4
    runs = [
        piece
        for at, (label, figure) in enumerate(rows)
        for piece in (run(label, 50, 700 - 12 * at), run(figure, 300, 700 - 12 * at))
    ]

    assert texts(runs) == [f"{label} {figure}" for label, figure in rows]


def test_figures_drawn_after_their_labels_stand_beside_them() -> None:
    runs = [run(label, 50, 700 - 12 * at) for at, (label, _) in enumerate(TABLE)]
    runs += [run(figure, 300, 700 - 12 * at) for at, (_, figure) in enumerate(TABLE)]
    runs += [run("14,000", 400, 700), run("15,000", 400, 688), run("2,500", 400, 676), run("Below", 50, 640)]

    assert texts(runs) == [
        "Base rent for the first year 12,000 14,000",
        "Rent for the second 13,500 15,000",
        "Deposit 2,000 2,500",
        "Below",
    ]


def test_addresses_side_by_side_are_not_mixed() -> None:
    left, right = ["John Smith", "Main Street", "Boston"], ["Jane Doe", "High Street", "London"]
    runs = [run(text, 50, 700 - 12 * at) for at, text in enumerate(left)]
    runs += [run(text, 300, 700 - 12 * at) for at, text in enumerate(right)]

    assert texts(runs) == left + right


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
