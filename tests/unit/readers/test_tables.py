"""Tables in lines with cells, in Markdown and in plain text: where they are, and their column heads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.metadata import Table
from llama_index_contextual.readers.tables import TextLine, figure_tables, tables_in_text
from tests.unit.readers.examples import sections


def lines_of(page: str) -> list[TextLine]:
    """Return the lines of a page on which two spaces separate cells, with their offsets in the joined text."""
    lines, at = [], 0
    for line in page.split("\n"):
        cells = [cell for cell in line.split("  ") if cell.strip()]
        text = " ".join(" ".join(cell.split()) for cell in cells)
        lines.append(TextLine(text, at, len(cells), float(len(line) - len(line.lstrip()))))
        at += len(text) + 1
    return lines


EXAMPLES = sections("tables")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_tables_of_a_page_and_their_heads_are_those_of_the_example(name: str) -> None:
    page, expected = EXAMPLES[name]
    lines = lines_of(page)
    text = "\n".join(line.text for line in lines)
    found = []
    for table in figure_tables(lines):
        first, last = text[table.body :].partition("\n")[0], text[: table.end].rpartition("\n")[2]
        found.append(f"{table.head}\nfirst: {first}\nlast: {last}")
    assert "\n".join(found) == expected


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
