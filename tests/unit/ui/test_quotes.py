"""Quotations: which text and which cells are shown of a sentence or a table row."""

from __future__ import annotations

import pytest
from markupsafe import escape

from llama_index_contextual.ui.quotes import Grid, Quote, quote_around, quote_of

MARKDOWN = (
    "# Towns\n\n| Town | Customers |\n|---|---:|\n| Upper \\| Vale | 20 |\n| Port <Averly> | 40 |\n| Tarn | 8 |\n\nEnd."
)
SHEET = "Town  Customers\nUpper Vale  20\nPort Averly  40"


def quote(text: str, sentence: str, **options: object) -> Quote:
    start = text.index(sentence)
    return quote_of(text, (start, start + len(sentence)), escape, **options)  # type: ignore[arg-type]


def grid(text: str, sentence: str, **options: object) -> Grid:
    found = quote(text, sentence, **options).grid
    assert found is not None
    return found


def test_a_row_of_a_markdown_table_has_its_column_headers_and_neighbours() -> None:
    found = grid(MARKDOWN, "| Port <Averly> | 40 |", file_name="towns.md")
    assert found.head == ["Town", "Customers"]
    assert found.rows == [["Port &lt;Averly&gt;", "40"]]
    assert found.before == [["Upper | Vale", "20"]]
    assert found.after == [["Tarn", "8"]]


def test_a_row_of_a_sheet_has_its_column_headers() -> None:
    assert grid(SHEET, "Port Averly  40") == Grid(
        ["Town", "Customers"], [["Upper Vale", "20"]], [["Port Averly", "40"]], [], ""
    )
    together = grid(SHEET, "Town  Customers\nUpper Vale  20")  # the headers belong to the marked text
    assert (together.head, together.rows) == (["Town", "Customers"], [["Upper Vale", "20"]])


def test_a_passage_that_begins_inside_a_table_has_the_headers_of_the_table() -> None:
    rest = SHEET.partition("\n")[2]
    found = grid(rest, "Port Averly  40", table_head="Customers by town\nTown  Customers")
    assert (found.head, found.before) == (["Town", "Customers"], [["Upper Vale", "20"]])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("It runs.  It stops.", "It runs."),
        ("One  two  three\nA sentence of one column.", "A sentence of one column."),
        ("Town  Customers\nUpper Vale  20  and more", "Upper Vale  20  and more"),
        ("Town  Customers", "Town  Customers"),
    ],
)
def test_text_that_is_not_a_row_under_headers_is_a_sentence(text: str, sentence: str) -> None:
    assert quote(text, sentence).grid is None
    assert quote(text, sentence).text == " ".join(sentence.split())


def test_the_copied_text_names_the_columns() -> None:
    assert quote(SHEET, "Port Averly  40").text == "Port Averly (Customers: 40)"


def test_a_long_sentence_is_cut_where_it_is_shown_and_whole_where_it_is_copied() -> None:
    sentence = "The pump of the plant runs. " * 40
    found = quote(f"Before. {sentence}After.", sentence)
    assert found.text == sentence.strip()
    assert len(found.html) <= 422
    assert found.html.endswith("\u00a0…")
    assert (found.before, found.after) == ("Before.", "After.")


@pytest.mark.parametrize(
    ("sentence", "file_name", "shown"),
    [
        ("- It is **due** on _the_ `Monday`, see [below](#b).", "rent.md", "It is due on the Monday, see below."),
        ("The name a_b_c is 5 * 3 * 2 long.", "rent.md", "The name a_b_c is 5 * 3 * 2 long."),
        ("> > It was *due* (see *).", "rent.eml", "It was *due* (see *)."),
        ("# Costs *", "costs.docx", "Costs *"),
        ("# It is **due**", "rent.pdf", "# It is **due**"),
        ("> It is **due**", None, "> It is **due**"),
    ],
)
def test_signs_of_markdown_are_left_out_of_files_that_have_them(
    sentence: str, file_name: str | None, shown: str
) -> None:
    assert quote(f"Before.\n\n{sentence}\n\nAfter.", sentence, file_name=file_name).html == escape(shown)


def test_the_headers_of_a_markdown_table_are_known_where_the_passage_begins_inside_it() -> None:
    rows = "| Upper Vale | 20 |\n| Tarn | 8 |"
    assert grid(rows, "| Tarn | 8 |", table_head="Towns:\nTown | Customers").head == ["Town", "Customers"]
    assert quote(rows, "| Tarn | 8 |", table_head="Towns without columns").grid is None


REPORT = """A special item.
EUR million Quarter Prior year
Segment revenue 68.0 67.1
Margin 36.5 % 35.8 %
Leakage (share) -17.3 (17.0)
Revenue rose by 1.3 % in 2023 2024."""


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        ("Segment revenue 68.0 67.1", ["Segment revenue", "68.0", "67.1"]),
        ("Margin 36.5 % 35.8 %", ["Margin", "36.5 %", "35.8 %"]),
        ("Leakage (share) -17.3 (17.0)", ["Leakage (share)", "-17.3", "(17.0)"]),
    ],
)
def test_a_row_of_figures_in_a_pdf_is_shown_below_the_line_with_its_columns(row: str, cells: list[str]) -> None:
    found = grid(REPORT, row, file_name="report.pdf")
    assert (found.title, found.head, found.rows) == ("EUR million Quarter Prior year", [], [cells])
    columns = ["EUR million", "Quarter", "Prior year"]
    found = grid(REPORT, row, file_name="report.pdf", columns=columns)
    assert (found.title, found.head, found.rows) == ("", columns, [cells])
    assert quote(REPORT, row, columns=columns).text == f"{cells[0]} (Quarter: {cells[1]}, Prior year: {cells[2]})"


def test_years_are_column_headers_and_sentences_with_figures_are_no_rows() -> None:
    table = "EUR million 2024 2023\nRevenue 3.1 2.9\nCosts 1.0 1.1"
    assert grid(table, "Costs 1.0 1.1").head == ["EUR million", "2024", "2023"]
    assert quote(REPORT, "Revenue rose by 1.3 % in 2023 2024.").grid is None
    assert quote("Our number:\nCall 030 123 456\nAny time.", "Call 030 123 456").grid is None


# ---- words within a sentence -----------------------------------------------------------------------------------------

MANUAL = """# Pump

It is **old**. The pump runs <dry> (see 4.2), and must be stopped. Then wait.

| Part | Price |
|---|---|
| Seal | 7 |"""


@pytest.mark.parametrize(
    ("words", "html"),
    [
        ("runs <dry>", "It is old. The pump <mark>runs &lt;dry&gt;</mark> (see 4.2), and must be stopped. Then wait."),
        (
            "old**. The pump",
            "It is <mark>old. The pump</mark> runs &lt;dry&gt; (see 4.2), and must be stopped. Then wait.",
        ),
    ],
)
def test_cited_words_are_marked_in_their_sentence(words: str, html: str) -> None:
    start = MANUAL.index(words)
    assert quote_around(MANUAL, (start, start + len(words)), file_name="manual.md").html == html


def test_cited_words_of_a_row_are_marked_in_its_cell() -> None:
    start = MANUAL.index("Seal")
    found = quote_around(MANUAL, (start, start + 4), file_name="manual.md").grid
    assert found is not None
    assert (found.head, found.rows) == (["Part", "Price"], [["<mark>Seal</mark>", "7"]])


def test_a_quotation_of_a_whole_passage_is_short_and_no_table_of_all_its_rows() -> None:
    text = f"<b>{'word ' * 1_000}</b>"
    assert len(quote_around(text, (0, len(text)), escape).html) < 440
    rows = "Town  Customers\n" + "\n".join(f"Town {at}  {at}" for at in range(20))
    assert quote_around(rows, (0, len(rows)), escape).grid is None
