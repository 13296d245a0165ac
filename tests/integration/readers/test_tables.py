"""Tables in lines with cells, in Markdown and in plain text: where they are, and their column heads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.metadata import Table
from llama_index_contextual.readers.tables import TextLine, caption_of, figure_tables, is_delimiter, tables_in_text


def lines_of(page: str) -> list[TextLine]:
    """Return the lines of a page on which two spaces separate cells, with their offsets in the joined text."""
    lines, at = [], 0
    for line in page.strip("\n").split("\n"):
        cells = [cell for cell in line.split("  ") if cell.strip()]
        text = " ".join(" ".join(cell.split()) for cell in cells)
        lines.append(TextLine(text, at, len(cells), float(len(line) - len(line.lstrip()))))
        at += len(text) + 1
    return lines


def read(page: str) -> list[tuple[str, str, str]]:
    """Return head, first row and last row of each table on a page."""
    lines = lines_of(page)
    text = "\n".join(line.text for line in lines)
    return [
        (table.head, text[table.body :].partition("\n")[0], text[: table.end].rpartition("\n")[2])
        for table in figure_tables(lines)
    ]


STATEMENT = """
Our results are discussed in the notes, which are an integral part of the consolidated financial statements of the firm.
CONSOLIDATED STATEMENTS OF INCOME
                              Year ended June 30,
(in millions)                 2023     2022     2021
Revenue:
Product                       $ 64,699  $ 72,732  $ 71,074
Service and other             147,216   125,538   97,014
Total revenue                 211,915   198,270   168,088
Cost of revenue, including the amortization of
  intangible assets           65,863    62,650    52,232
Other, net                    788       —         (13)
The notes are an integral part of these statements, and they should be read together with all of them from here on.
"""


def test_a_head_of_several_lines_is_taken_with_its_years_and_unit() -> None:
    assert read(STATEMENT) == [
        (
            "CONSOLIDATED STATEMENTS OF INCOME\nYear ended June 30,\n(in millions) 2023 2022 2021",
            "Product $ 64,699 $ 72,732 $ 71,074",
            "Other, net 788 — (13)",
        )
    ]


def test_the_sentence_that_announces_a_table_names_it() -> None:
    page = """
Leases are for offices. The following table presents the cost of leases by kind (in thousands):
                  2023     2022
Operating         27       25
Finance           837      810
"""
    assert [head for head, *_ in read(page)] == [
        "The following table presents the cost of leases by kind (in thousands):\n2023 2022"
    ]


def test_a_second_head_begins_a_second_table() -> None:
    page = """
(in millions)     2023     2022
Cash              10       11
Debt              12       13
Average           Q1 2023  Q1 2022
Shares            14       15
Options           16       17
"""
    assert [head for head, *_ in read(page)] == ["(in millions) 2023 2022", "Average Q1 2023 Q1 2022"]


def test_dates_in_a_head_are_no_figures_and_dates_in_labels_are_no_head() -> None:
    page = """
                          June 30, 2023   December 31, 2022
Assets                    10              11
Balance at June 30, 2021  12              13
Maturing March 31, 2024   14              15
"""
    assert read(page) == [("June 30, 2023 December 31, 2022", "Assets 10 11", "Maturing March 31, 2024 14 15")]


@pytest.mark.parametrize(
    "page",
    [
        "Revenue  10  11\nCosts  12  13",  # no head
        "(in millions)  2023  2022\nRevenue  10  11",  # one row
        "We have  offices in\n12 countries.\n\nWe employ 3,000 people in 2021 and in 2020.",
        "",
    ],
)
def test_lines_without_head_or_rows_are_no_table(page: str) -> None:
    assert figure_tables(lines_of(page)) == []


def test_a_table_goes_on_behind_labels_but_not_behind_prose() -> None:
    prose = "This is a paragraph of prose that has many words in it and that ends with a full stop, as they do."
    rows = ["                  2023     2022", "Cash   10   11", "Debt   12   13", "Other:", "Fees   1   2"]
    page = "\n".join([*rows, prose, "Tax   7   8"])
    assert [last for _, _, last in read(page)] == ["Fees 1 2"]


def test_a_table_of_contents_is_no_table() -> None:
    page = "\n".join(["TABLE OF CONTENTS", "         Page", *(f"{n}. Article {n}   {3 * n}" for n in range(1, 9))])
    assert figure_tables(lines_of(page)) == []
    fees = "\n".join(["         2023   2022", *(f"Rent of hall {n}   2   {3 * n}" for n in range(1, 9))])
    assert len(figure_tables(lines_of(fees))) == 1, "two columns"


def test_a_head_of_narrow_columns_drawn_one_after_the_other_is_taken_from_its_unit_on() -> None:
    columns = ["Gross", "derivative", "payables", "Amounts", "netted", "Net", "payables"]
    page = "\n".join(["March 31, 2021", "(in millions)", *columns, "Rates   257   249   8", "Credit   19   17   2"])
    assert [head for head, *_ in read(page)] == [
        "\n".join(["March 31, 2021", "(in millions)", *dict.fromkeys(columns)])
    ]


# ---- Markdown --------------------------------------------------------------------------------------------------------

PIPES = "Table 3: Fees\n\n| Service | **2023** | 2022 |\n|:--|--:|--:|\n| Copy | 2 | 1 |\n| Scan | 3 | |\n"


def test_a_markdown_table_has_its_first_line_as_head_and_the_caption_above() -> None:
    (table,) = tables_in_text(f"Some text.\n\n{PIPES}\nMore text.")
    text = f"Some text.\n\n{PIPES}\nMore text."
    assert table.head == "Table 3: Fees\nService | 2023 | 2022"
    assert text[table.start :].startswith("| Service")
    assert text[table.body :].startswith("| Copy")
    assert text[: table.end].endswith("| Scan | 3 | |")


@pytest.mark.parametrize(
    "text",
    [
        "a | b\nc | d\n",  # no row of hyphens
        "| a | b |\n|---|---|\n",  # no rows
        "|   |   |\n|---|---|\n| 1 | 2 |\n",  # an empty head
        "x = a | b\n---\ny = c | d\n",
    ],
)
def test_pipes_alone_are_no_table_with_a_head(text: str) -> None:
    assert tables_in_text(text) == []


def test_tables_in_code_are_left_out() -> None:
    text = f"```\n{PIPES}```\n\n{PIPES}"
    assert [table.start for table in tables_in_text(text, [(0, text.index("```\n\n") + 3)])] == [text.rindex("| Serv")]


def test_the_row_of_hyphens_is_recognised() -> None:
    assert all(map(is_delimiter, ("|---|", "--|--", " | :-: | ", "| - |\r")))
    assert not any(map(is_delimiter, ("", "|", "| a |", "-- --", "|--|:|")))


# ---- plain text ------------------------------------------------------------------------------------------------------


def test_figures_in_columns_set_with_spaces_or_tabs_are_a_table() -> None:
    for gap in ("    ", "\t"):
        rows = [["Service", "2023", "2022"], ["Copy", "2.10", "1.90"], ["Scan", "3.00", "2.80"], ["Fax", "1.00", "–"]]
        text = "Prices\n\n" + "\n".join(gap.join(row) for row in rows) + "\n\nPrices include tax.\n"
        (table,) = tables_in_text(text)
        assert table.head.splitlines()[-1].split() == ["Service", "2023", "2022"]
        assert text[table.body :].startswith("Copy")
        assert text[: table.end].endswith("–")


def test_prose_with_wide_spaces_and_aligned_code_are_no_tables() -> None:
    prose = "It  was  the best of times,  it  was the worst  of times,  in  1859  and  later.\n" * 20
    code = "int  a    = 1;\nint  bb   = 2;\nint  ccc  = 3;\n" * 5
    books = [f"Author {'A' * n}  Writer   A title of {'many ' * (n % 7)}words {190 + n} {n}" for n in range(30)]
    assert tables_in_text("\n".join(["Name One  Name Two   A book about dogs", *books])) == []
    assert tables_in_text(prose) == []
    assert tables_in_text(code) == []


def test_the_last_sentence_of_a_paragraph_is_a_caption_only_with_a_colon() -> None:
    assert caption_of("First. The fees are as follows:") == "The fees are as follows:"
    assert caption_of("First. The fees are listed.") == ""
    assert caption_of("word " * 40 + "follows:") == ""


# ---- any text --------------------------------------------------------------------------------------------------------


@given(st.text(alphabet="|-: \n\taB12,.$%)(—", max_size=400))
def test_tables_of_any_text_are_in_order_within_it_and_have_a_head(text: str) -> None:
    tables = tables_in_text(text)
    end = 0
    for table in tables:
        assert end <= table.start < table.body < table.end <= len(text)
        assert table.head.strip()
        assert not text[table.body].isspace()
        end = table.end


@given(st.lists(st.tuples(st.text(alphabet="aB 12,$%—:.", min_size=1, max_size=30), st.integers(1, 4)), max_size=30))
def test_tables_of_any_lines_are_in_order_and_have_a_head(given_lines: list[tuple[str, int]]) -> None:
    lines, at = [], 0
    for text, cells in given_lines:
        lines.append(TextLine(text, at, cells))
        at += len(text) + 1
    end = 0
    for table in figure_tables(lines):
        assert isinstance(table, Table)
        assert end <= table.start < table.body < table.end <= at
        end = table.end
