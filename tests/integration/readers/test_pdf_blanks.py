"""Blank cells of tables in PDFs get a dash, so that each figure keeps its column; nothing else changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.readers.pdf.blanks import BLANK, with_blanks
from llama_index_contextual.readers.pdf.pieces import Cell, Row
from llama_index_contextual.readers.pdf.reader import read_pdf
from llama_index_contextual.retrievers.analysis import Analyzer
from tests.support.pdf_files import RawPdf, show

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


def texts_of(rows: list[Row]) -> list[str]:
    return [" ".join(cell.text for cell in row) for row in rows]


FULL = [("Cash", "10", "1,100", "(12)"), ("Debt", "$ 13", "14", "15 %")]


def test_a_row_that_skips_a_column_gets_a_dash_there() -> None:
    rows = rows_of(("", "2023", "2022", "2021"), *FULL, ("Fees", "27", "", "28"), ("Tax", "", "", "29"), ("Rent", "3"))
    assert texts_of(with_blanks(rows))[3:] == ["Fees 27 – 28", "Tax – – 29", "Rent 3 – –"]


def test_labels_and_rows_without_a_blank_stay_as_they_are() -> None:
    rows = rows_of(FULL[0], ("Other assets:",), FULL[1], ("Fees", "1", "—", "3"))
    assert with_blanks(rows) == rows


@pytest.mark.parametrize(
    "rows",
    [
        rows_of(("Cash", "10", "11"), ("Fees", "", "12")),  # one complete row
        rows_of(("Cash", "10"), ("Debt", "11"), ("Fees", "12")),  # one column
        rows_of(("Name", "Place", "Date"), ("Ann", "", "May"), ("Bo", "Rome", "June")),  # no figures
        rows_of(*FULL, ("Fees", "", "1", "2"), step=90.0),  # rows that are far from each other
        [],
    ],
)
def test_without_clear_columns_nothing_is_added(rows: list[Row]) -> None:
    assert with_blanks(rows) == rows


def test_a_paragraph_or_a_head_separates_tables_with_other_columns() -> None:
    two = [("Wood", "", "7"), ("Iron", "", "8")]
    prose = ("The fees of the following years are as follows (in thousands of dollars):",)
    for between in (prose, ("", "Year", "Fee")):
        rows = rows_of(*FULL, FULL[0], between, *two)
        assert with_blanks(rows) == rows


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
    parsed = read_pdf(path, engine="pypdf")
    assert parsed.text == "in thousands 2023 2022\nCash 10 11\nDebt 12 13\nTax – 7"
    assert [table.head for table in parsed.map.tables] == ["in thousands 2023 2022"]
