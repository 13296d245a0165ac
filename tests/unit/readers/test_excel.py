"""Excel workbooks: merged cells, drawings, charts, page headers, durations, superscripts and hidden rows."""

from __future__ import annotations

import datetime
import zipfile
from io import BytesIO
from typing import Any

import pytest
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment

from llama_index_contextual.readers.files import ParsedFile
from tests.integration.readers.office_files import SHEET, archive, part, read, replaced, saved, workbook


def parsed(book: Any) -> ParsedFile:
    return read("a.xlsx", saved(book))


class TestMergedCells:
    def test_a_cell_is_repeated_in_every_row_that_it_spans(self) -> None:
        rows = [
            ["Region", "Quarter", "Fee"],
            ["North", "Q1", 10],
            [None, "Q2", 20],
            [None, "Q3", 30],
            ["South", "Q1", 4],
        ]
        book = workbook(S=rows)
        book["S"].merge_cells("A2:A4")
        assert parsed(book).text == (
            "# S\n\nRegion  Quarter  Fee\nNorth  Q1  10\nNorth  Q2  20\nNorth  Q3  30\nSouth  Q1  4"
        )

    def test_cells_in_the_middle_and_at_the_end_and_in_the_head(self) -> None:
        rows = [["Item", "2024", None, "Note"], [None, "Q1", "Q2", None], ["a", 1, 2, "same"], ["b", 3], ["c", 5, 6]]
        book = workbook(S=rows)
        for place in ("A1:A2", "B1:C1", "D1:D2", "D3:D4"):
            book["S"].merge_cells(place)
        assert parsed(book).text == (
            "# S\n\nItem  2024  –  Note\nItem  Q1  Q2  Note\na  1  2  same\nb  3  –  same\nc  5  6"
        )

    def test_a_title_that_spans_rows_of_its_own_is_read_once(self) -> None:
        book = workbook(S=[["Sales report"], [], ["East", 1]])
        book["S"].merge_cells("A1:D2")
        assert parsed(book).text == "# S\n\nSales report\n\nEast  1"


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (datetime.timedelta(hours=26), "[h]:mm", "26:00"),
        (datetime.timedelta(hours=26, minutes=5, seconds=9), "[hh]:mm:ss", "26:05:09"),
        (datetime.timedelta(minutes=90), "[mm]:ss", "90:00"),
        (datetime.timedelta(hours=100), "[$-409][h]:mm;@", "100:00"),
        (datetime.timedelta(days=2), '[h]" h"', "48 h"),
        (datetime.timedelta(seconds=1.5), "[s].0", "1.5"),
        (datetime.time(9, 30), "h:mm", "09:30:00"),
    ],
)
def test_durations_are_read_as_excel_shows_them(value: Any, code: str, text: str) -> None:
    book = workbook(S=[["Time", value]])
    book["S"]["B1"].number_format = code
    assert parsed(book).text == f"# S\n\nTime  {text}"


def test_superscripts_do_not_join_the_number_before_them() -> None:
    raised = TextBlock(InlineFont(vertAlign="superscript"), "6")
    lowered = TextBlock(InlineFont(vertAlign="subscript"), "2")
    book = workbook(S=[["Volume", CellRichText("10", raised, " l of CO", lowered)]])
    text = "# S\n\nVolume  10^6 l of CO2"
    assert parsed(book).text == text
    run = '<r><rPr><vertAlign val="superscript"/></rPr><t>6</t></r>'
    strings = (
        f'<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><si><r><t>10</t></r>{run}</si></sst>'
    )
    sheet = (
        f'<worksheet xmlns="{SHEET}"><sheetData><row r="1"><c r="A1" t="s"><v>0</v></c></row></sheetData></worksheet>'
    )
    data = saved(workbook(S=[["x"]]))
    types = part(data, "[Content_Types].xml").replace(
        b"</Types>",
        b'<Override PartName="/xl/sharedStrings.xml" ContentType="application/vnd.openxmlformats-officedocument.'
        b'spreadsheetml.sharedStrings+xml"/></Types>',
    )
    files = {"xl/sharedStrings.xml": strings.encode(), "xl/worksheets/sheet1.xml": sheet.encode()}
    assert read("a.xlsx", replaced(data, {**files, "[Content_Types].xml": types})).text == "# S\n\n10^6"


class TestAroundTheCells:
    def test_a_chart_adds_its_title_and_its_values_only_if_they_are_in_no_sheet(self) -> None:
        def book_of(state: str) -> Any:
            book = workbook(S=[["text"]], Data=[["Town", "Sales"], ["East", 1], ["West", 2]])
            book["Data"].sheet_state = state
            chart = BarChart()
            chart.title = "Two towns"
            chart.add_data(Reference(book["Data"], min_col=2, min_row=1, max_row=3), titles_from_data=True)
            book["S"].add_chart(chart, "D1")
            return book

        data = saved(book_of("hidden"))
        values = '<c:numCache><c:pt idx="0"><c:v>1</c:v></c:pt><c:pt idx="1"><c:v>#N/A</c:v></c:pt></c:numCache>'
        name = "xl/charts/chart1.xml"
        chart = part(data, name).decode().replace("<val><numRef>", "<val><numRef>" + values.replace("c:", ""))
        assert read("a.xlsx", replaced(data, {name: chart.encode()})).text == "# S\n\ntext\n\nTwo towns\n\n1\n#N/A"
        assert parsed(book_of("visible")).text.startswith("# S\n\ntext\n\nTwo towns\n\n# Data")

    def test_text_boxes_and_alternative_texts(self) -> None:
        anchor = (
            '<xdr:wsDr xmlns:xdr="http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing"'
            ' xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><xdr:twoCellAnchor><xdr:sp><xdr:nvSpPr>'
            '<xdr:cNvPr id="2" name="Box" descr="a note of the firm"/></xdr:nvSpPr><xdr:txBody><a:p><a:r>'
            "<a:t>Prices in</a:t></a:r></a:p><a:p><a:r><a:t>thousands</a:t></a:r></a:p></xdr:txBody></xdr:sp>"
            "</xdr:twoCellAnchor></xdr:wsDr>"
        )
        rels = (
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1"'
            ' Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/drawing"'
            ' Target="../drawings/drawing1.xml"/></Relationships>'
        )
        data = saved(workbook(S=[["text"]]))
        files = {"xl/drawings/drawing1.xml": anchor, "xl/worksheets/_rels/sheet1.xml.rels": rels}
        text = read("a.xlsx", replaced(data, {name: content.encode() for name, content in files.items()})).text
        assert text == "# S\n\ntext\n\na note of the firm\n\nPrices in\nthousands"

    def test_page_headers_are_read_once_at_the_end(self) -> None:
        book = workbook(S=[["text"]], T=[["more"]])
        for sheet in book.worksheets:
            sheet.oddHeader.center.text = "Budget 9302-K"
            sheet.oddFooter.right.text = "Page &P of &N"
        assert parsed(book).text == "# S\n\ntext\n\n# T\n\nmore\n\nPage header: Budget 9302-K"

    def test_hidden_rows_and_columns_are_read_and_reported_with_comments(self) -> None:
        book = workbook(S=[["a", "b"], [1, 2]])
        book["S"].row_dimensions[2].hidden = True
        book["S"].column_dimensions["B"].hidden = True
        book["S"]["A1"].comment = Comment("why?", "Ada")
        result = parsed(book)
        assert result.text == "# S\n\na  b\n1  2"
        assert result.warnings == (
            "sheet 'S' has 1 hidden row and 1 hidden column, whose cells are read",
            "1 comment is left out: move what is needed into cells",
        )


@pytest.mark.parametrize("name", ["xl/charts/chart1.xml", "xl/drawings/drawing1.xml"])
def test_a_damaged_drawing_leaves_the_cells_readable(name: str) -> None:
    book = workbook(S=[["Town", "Rent"], ["A", 1]])
    chart = BarChart()
    chart.add_data(Reference(book["S"], min_col=2, min_row=1, max_row=2))
    book["S"].add_chart(chart)
    result = read("a.xlsx", replaced(saved(book), {name: b"<c:chartSpace"}))
    assert result.text == "# S\n\nTown  Rent\nA  1"
    (warning,) = result.warnings
    assert warning.startswith(f"{name} in the file is missing or damaged, and left out: ")


def test_a_missing_sheet_is_reported() -> None:
    data = saved(workbook(S=[["a"]], T=[["b"]]))
    names = zipfile.ZipFile(BytesIO(data)).namelist()
    result = read("a.xlsx", archive({name: part(data, name) for name in names if not name.endswith("sheet1.xml")}))
    assert result.text == "# T\n\nb"
    (warning,) = result.warnings
    assert warning.startswith("xl/worksheets/sheet1.xml in the file is missing or damaged, and left out: ")


def test_a_text_box_with_alternatives_is_read_once_with_its_superscripts() -> None:
    book = workbook(S=[["Town"]])
    chart = BarChart()
    chart.add_data(Reference(book["S"], min_col=1, min_row=1))
    book["S"].add_chart(chart)
    data = saved(book)
    drawing = part(data, "xl/drawings/drawing1.xml").decode()
    space = "http://schemas.openxmlformats.org/drawingml/2006/main"
    box = (
        f'<txBody xmlns:a="{space}"><a:p><a:r><a:t>10</a:t></a:r><a:r><a:rPr baseline="30000"/><a:t>6</a:t></a:r>'
        "<a:br/><a:r><a:t>litres</a:t></a:r></a:p></txBody>"
    )
    alternatives = (
        '<mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">'
        f"<mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent>"
    )
    changed = drawing.replace("<graphicFrame", f"{alternatives}<graphicFrame", 1)
    assert changed != drawing
    result = read("a.xlsx", replaced(data, {"xl/drawings/drawing1.xml": changed.encode()}))
    assert result.text == "# S\n\nTown\n\n10^6\nlitres"
