"""The cells of a table row and their column headers."""

from __future__ import annotations

import pytest

from llama_index_contextual.index.rows import TableRows, cells_of_figures, rows_at

TEXT = "Income\nEUR million Quarter Prior year\nRevenue 139.8 135.2\nTaxes on\nincome -2.1 —\nProfit 6.5 4.9\nIt rose."
COLUMNS = ("EUR million", "Quarter", "Prior year")


def rows(row: str, text: str = TEXT, **options: object) -> TableRows | None:
    start = text.index(row)
    return rows_at(text, start, start + len(row), **options)  # type: ignore[arg-type]


def test_the_cells_of_a_row_of_figures_are_told_apart_by_the_number_of_columns() -> None:
    found = rows("Profit 6.5 4.9", columns=COLUMNS)
    assert found == TableRows(COLUMNS, [["income", "-2.1", "—"]], [["Profit", "6.5", "4.9"]], [])
    assert found.labelled() == "Profit (Quarter: 6.5, Prior year: 4.9)"
    assert rows("It rose.", columns=COLUMNS) is None


def test_a_row_whose_headers_cannot_be_told_apart_has_their_line() -> None:
    found = rows("Revenue 139.8 135.2", TEXT.replace("Taxes on\n", "").replace("—", "1.0"))
    assert found is not None
    assert (found.title, found.head) == ("EUR million Quarter Prior year", [])
    assert found.labelled() == "EUR million Quarter Prior year: Revenue (139.8, 135.2)"


@pytest.mark.parametrize(
    ("line", "count", "cells"),
    [
        ("Net sales $ 14,694 $ (5) 1.2 %", 3, ["Net sales", "$ 14,694", "$ (5)", "1.2 %"]),
        ("Share of sales (8.2 %) (8.9 %)", 2, ["Share of sales", "(8.2 %)", "(8.9 %)"]),
        ("Growth in 2023 — 12 bps", 2, ["Growth in 2023", "—", "12 bps"]),
        ("Per share ($0.25) N/A", 2, ["Per share", "($0.25)", "N/A"]),
        ("$ 12 $ 13", 2, ["", "$ 12", "$ 13"]),
        ("Net sales 12", 2, []),
        ("Net sales", 1, []),
        ("", 1, []),
    ],
)
def test_the_cells_of_a_row_are_its_last_figures(line: str, count: int, cells: list[str]) -> None:
    assert cells_of_figures(line, count) == cells


@pytest.mark.parametrize(
    ("table", "row", "head"),
    [
        (
            "|  | Year ended May 31, |  |\n|---|---|---|\n|  | 2019 | 2018 |\n| Fees | 4.6 | 4.7 |",
            "| Fees | 4.6 | 4.7 |",
            ["", "Year ended May 31, 2019", "Year ended May 31, 2018"],
        ),
        (
            "|  | North |  | South |  |\n|---|---|---|---|---|\n"
            "|  | 2019 | 2018 | 2019 | 2018 |\n| Fees | 1 | 2 | 3 | 4 |",
            "| Fees | 1 | 2 | 3 | 4 |",
            ["", "North 2019", "North 2018", "South 2019", "South 2018"],
        ),
        (
            "|  | 2019 | 2018 |\n|---|---|---|\n|  | EUR | EUR |\n| Fees | 4.6 | 4.7 |",
            "| Fees | 4.6 | 4.7 |",
            ["", "2019 EUR", "2018 EUR"],
        ),
        ("| Zone | Fee |\n|---|---|\n| Tarn | 8 |\n| Vale | 9 |", "| Vale | 9 |", ["Zone", "Fee"]),
        ("| Zone | Head |\n|---|---|\n| Tarn | Ada |\n| Vale | Bo |", "| Vale | Bo |", ["Zone", "Head"]),
        ("|  | 2019 |\n|---|---|\n|  | EUR |", "|  | EUR |", ["", "2019"]),
    ],
)
def test_column_headers_of_several_rows_are_joined(table: str, row: str, head: list[str]) -> None:
    found = rows(row, table)
    assert found is not None
    assert (found.head, len(found.rows)) == (head, 1)
