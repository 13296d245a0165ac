"""The header of each column of a table in a PDF, from the positions of the cells."""

from __future__ import annotations

import re

import pytest

from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.tables import column_heads, figure_tables

WIDTH = 5.0  # points of a letter


def drawn(picture: str) -> list[Line]:
    """Return the lines of a page that is drawn with letters of equal width, with two spaces between cells."""
    lines, start = [], 0
    for at, row in enumerate(filter(str.strip, picture.splitlines())):
        cells = list(re.finditer(r"\S+(?: \S+)*", row))
        pieces = tuple((WIDTH * cell.start(), WIDTH * cell.end(), len(cell[0])) for cell in cells)
        text = " ".join(cell[0] for cell in cells)
        x0, x1 = pieces[0][0], pieces[-1][1]
        lines.append(Line(text, 700.0 - 12 * at, 10.0, len(cells), x0, x1, start=start, pieces=pieces))
        start += len(text) + 1
    return lines


@pytest.mark.parametrize(
    ("picture", "columns"),
    [
        (
            """
EUR million          Quarter   Prior year
==
Revenue                139.8        135.2
Operating income       (4.2)          2.9
""",
            ("EUR million", "Quarter", "Prior year"),
        ),
        (
            """
                          Year ended June 30,
(in millions)             2023      2022      2021
==
Product               $ 64,699  $ 72,732  $ 71,074
Service                147,216   125,538    97,014
""",
            ("(in millions)", "Year ended June 30, 2023", "Year ended June 30, 2022", "Year ended June 30, 2021"),
        ),
        (
            """
                    Three months ended    Six months ended
                      2022 2021            2022     2021
==
Net sales          $  42  $  40          $  84    $  81
Margin             12.5 %  11.0 %          12.1 %    11.3 %
""",
            (
                "",
                "Three months ended 2022",
                "Three months ended 2021",
                "Six months ended 2022",
                "Six months ended 2021",
            ),
        ),
        (
            """
NORTH YARD AND SUBSIDIARIES IN ALL TOWNS
                             Charged    Balance
                  Balance    to costs     at end
==
Returns                12        9,617        95
Doubtful                7            —         8
""",
            ("NORTH YARD AND SUBSIDIARIES IN ALL TOWNS", "Balance", "Charged to costs", "Balance at end"),
        ),
        (
            """
                     Depots and offices
==
Wages                 1,200      1,300
Rents                   300        400
""",
            (),
        ),
    ],
    ids=["words", "period over all", "periods over two each", "title and wrapped headers", "one header for two"],
)
def test_each_column_has_the_header_above_it(picture: str, columns: tuple[str, ...]) -> None:
    heads, body = map(drawn, picture.split("==\n"))
    assert column_heads(heads, body) == columns


def test_rows_on_another_page_and_changed_lines_do_not_count() -> None:
    lines = drawn("Zone     2023   2022\nTarn        1      2\nVale        3      4\n")
    moved = [Line("Port 5 6", 790.0, 10.0, 3, 0, 90, pieces=((0, 20, 4), (60, 70, 1), (80, 90, 1)))]
    columns = ("Zone", "2023", "2022")
    assert column_heads(lines[:1], [*lines[1:], *moved]) == columns
    rejoined = Line("Tarn and more 1 2", 650.0, 10.0, 3, 0, 100, pieces=((0, 20, 4), (60, 65, 1), (95, 100, 1)))
    assert column_heads(lines[:1], [*lines[1:], rejoined]) == columns
    assert column_heads(lines[:1], [rejoined]) == ()


def test_a_table_of_a_page_has_its_columns() -> None:
    page = "EUR million   Quarter  Prior year\nRevenue         139.8       135.2\nCosts            39.8        35.2\n"
    (table,) = figure_tables(drawn(page))
    assert table.columns == ("EUR million", "Quarter", "Prior year")
