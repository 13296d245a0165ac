"""Word, PowerPoint, Excel, HTML and CSV files: text, sections, pages, tables."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers import DocumentReader, FileRef, discovery
from llama_index_contextual.readers.base import ParsedFile
from llama_index_contextual.readers.office import _number
from tests.integration.readers.office_files import docx, pptx, read, replaced, saved, workbook, xlsx


def outline(parsed: ParsedFile) -> list[tuple[int, str]]:
    """The level and title of each heading; each begins a line of the text with its marks."""
    for heading in parsed.map.headings:
        line = parsed.text[heading.start :].partition("\n")[0]
        assert line.lstrip("# ") == heading.title or line == heading.title
    return [(heading.level, heading.title) for heading in parsed.map.headings]


class TestWord:
    def test_headings_lists_and_tables(self) -> None:
        rows = [["Item", "2023", "2024"], ["Rent", "1,000", "1,100"], ["Pay | bonus", "", "6"]]
        parsed = read("a.docx", docx((0, "Annual plan"), "Opening.", (1, "Scope"), "All of it.", (2, "Costs"), rows))

        assert parsed.text == (
            "# Annual plan\n\nOpening.\n\n# Scope\n\nAll of it.\n\n## Costs\n\n"
            "Item  2023  2024\nRent  1,000  1,100\nPay | bonus  –  6"
        )
        assert outline(parsed) == [(1, "Annual plan"), (1, "Scope"), (2, "Costs")]
        assert parsed.map.section(parsed.text.index("Rent")) == "Scope > Costs"
        assert (parsed.title, parsed.warnings) == ("Annual plan", ())

    def test_numbered_paragraphs_are_headings_if_no_style_says_so(self) -> None:
        text = "In this agreement, these words have the meanings that are given to them here."
        parsed = read("a.docx", docx("1. Definitions", text, "2. Term", text))
        assert outline(parsed) == [(1, "1. Definitions"), (1, "2. Term")]

    def test_lines_that_look_like_markdown_are_no_headings(self) -> None:
        parsed = read("a.docx", docx((1, "Real"), "# not a heading", "```", "Text", "---"))
        assert outline(parsed) == [(1, "Real")]
        assert "# not a heading\n\n```\n\nText\n\n---" in parsed.text

    def test_lists_footnote_marks_and_merged_cells(self) -> None:
        from docx import Document

        document = Document()
        for text, style in (("one", "List Bullet"), ("two", "List Bullet"), ("first", "List Number")):
            document.add_paragraph(text, style=style)
        table = document.add_table(3, 2)
        table.cell(0, 0).merge(table.cell(1, 0)).text = "North"
        for cell, text in (((0, 1), "a"), ((1, 1), "b"), ((2, 0), "South"), ((2, 1), "c")):
            table.cell(*cell).text = text
        assert read("a.docx", saved(document)).text == "- one\n- two\n\n1. first\n\nNorth  a\nNorth  b\nSouth  c"

    def test_formulas_are_kept_as_text(self) -> None:
        from docx import Document
        from docx.oxml import parse_xml

        math = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
        fraction = "<m:f><m:num><m:r><m:t>a</m:t></m:r></m:num><m:den><m:r><m:t>b</m:t></m:r></m:den></m:f>"
        document = Document()
        document.add_paragraph("Ratio ")._p.append(parse_xml(f"<m:oMath {math}>{fraction}</m:oMath>"))
        block = f"<m:oMathPara {math}><m:oMath>{fraction}</m:oMath></m:oMathPara>"
        document.add_paragraph("Block ")._p.append(parse_xml(block))
        assert read("a.docx", saved(document)).text == "Ratio a/b\n\nBlock a/b"

    def test_headers_footers_and_deleted_text_are_left_out_and_images_named(self) -> None:
        from docx import Document
        from docx.oxml import parse_xml

        word = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
        document = Document()
        document.sections[0].header.paragraphs[0].text = "HEADER"
        paragraph = document.add_paragraph("Kept")
        paragraph._p.append(parse_xml(f"<w:del {word}><w:r><w:delText> deleted</w:delText></w:r></w:del>"))
        paragraph._p.append(parse_xml(f"<w:ins {word}><w:r><w:t> inserted</w:t></w:r></w:ins>"))
        assert read("a.docx", saved(document)).text == "Kept inserted"

    def test_a_style_without_id_does_no_harm(self) -> None:
        data = docx((1, "Head"), "Text")
        word = b'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
        styles = b'<w:styles %s><w:style w:type="paragraph"/><w:style w:styleId="x"/></w:styles>' % word
        assert read("a.docx", replaced(data, {"word/styles.xml": styles})).text.endswith("Text")

    def test_the_title_of_the_properties_counts_if_the_text_has_none(self) -> None:
        from docx import Document

        document = Document()
        document.add_paragraph("Only text")
        document.core_properties.title = "Lease of a boat"
        assert read("a.docx", saved(document)).title == "Lease of a boat"
        document.core_properties.title = "Microsoft Word - untitled"
        assert read("a.docx", saved(document)).title is None


class TestPowerPoint:
    def test_slides_are_pages_and_titles_are_headings(self) -> None:
        parsed = read("a.pptx", pptx(("Results", "First\nSecond # point"), ("", "No title"), ("Outlook", "# good")))

        assert parsed.text == ("# Results\n\nFirst\nSecond # point\n\n# Slide 2\n\nNo title\n\n# Outlook\n\n# good")
        assert outline(parsed) == [(1, "Results"), (1, "Slide 2"), (1, "Outlook")]
        pages = [
            (parsed.map.page(at), parsed.map.page_label(at)) for at in map(parsed.text.index, ("First", "No t", "goo"))
        ]
        assert pages == [(1, "1"), (2, "2"), (3, "3")]
        assert parsed.title == "Results"

    def test_tables_charts_groups_and_notes(self) -> None:
        from pptx import Presentation
        from pptx.chart.data import CategoryChartData
        from pptx.enum.chart import XL_CHART_TYPE

        presentation = Presentation()
        slide = presentation.slides.add_slide(presentation.slide_layouts[6])
        group = slide.shapes.add_group_shape()
        group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "grouped"
        table = slide.shapes.add_table(2, 3, 0, 100, 9, 9).table
        for at, text in enumerate(("Region", "2023", "2024", "East", "", "4")):
            table.cell(at // 3, at % 3).text = text
        data = CategoryChartData()
        data.categories = ["East", "West"]
        data.add_series("Sales", (1.5, 2))
        data.add_series("Costs", (3, None))
        chart = slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 200, 9, 9, data).chart
        chart.has_title = True
        chart.chart_title.text_frame.text = "Two figures"
        slide.notes_slide.notes_text_frame.text = "Say this"
        parsed = read("a.pptx", saved(presentation))

        assert parsed.text == (
            "# Slide 1\n\ngrouped\n\nRegion  2023  2024\nEast  –  4\n\nTwo figures\n\n–  Sales  Costs\n"
            "East  1.5  3\nWest  2\n\n## Notes\n\nSay this"
        )


class TestExcel:
    def test_sheets_are_pages_with_their_name_as_label(self) -> None:
        rows = [["Region", "2023", "2024"], ["North", 1000, 1234567.891], ["South", None, 5]]
        parsed = read("a.xlsx", xlsx(Revenue=rows, Staff=[["Name", "Age"], ["Ada", 36]]))

        assert parsed.text == (
            "# Revenue\n\nRegion  2023  2024\nNorth  1000  1234567.891\nSouth  –  5\n\n# Staff\n\nName  Age\nAda  36"
        )
        at = parsed.text.index("Ada")
        assert (parsed.map.page(at), parsed.map.page_label(at), parsed.map.section(at)) == (2, "Staff", "Staff")

    def test_no_cell_is_changed(self) -> None:
        rows = [
            ["Code", "Country", "When", "Yes"],
            ["007", "NA", datetime.date(2024, 1, 31), True],
            ["null", "a|b*_`", datetime.datetime(2024, 2, 29, 10, 30), "=1"],
        ]
        book = workbook(Data=rows)
        book["Data"]["D3"].data_type = "s"
        text = read("a.xlsx", saved(book)).text
        assert text.splitlines()[3:] == ["007  NA  2024-01-31  TRUE", "null  a|b*_`  2024-02-29 10:30  =1"]

    @pytest.mark.parametrize(
        ("value", "code", "shown"),
        [
            (0.1234, "0.0%", "12.3%"),
            (-0.5, "0%", "-50%"),
            (-1234567.8, "#,##0.00", "-1,234,567.80"),
            (7, "000", "007"),
            (-5, "#,##0_);(#,##0)", "(5)"),
            (1234.5, '_("$"* #,##0.00_);_("$"* (#,##0.00);_("$"* "-"??_);_(@_)', "$1,234.50"),
            (-1234.5, '_("$"* #,##0.00_);_("$"* (#,##0.00)', "$(1,234.50)"),
            (1234.5, "#,##0.00 [$€-407]", "1,234.50 €"),
            (-3, "[Red]0.0", "-3.0"),
            (2.5, '0.0 "kg"', "2.5 kg"),
            (12.5, "0.###", "12.5"),
            (12, "0.##", "12"),
            (2_500_000, '0.0,,"M"', "2500000"),
            (0.5, "# ?/?", "0.5"),
            (1500, "0.00E+00", "1500"),
            (5, "[>=1000]#,##0;0", "5"),
            (0.1 + 0.2, "General", "0.3"),
            (1e15, "General", "1e+15"),
            (float("inf"), "General", "inf"),
            (None, "General", ""),
        ],
    )
    def test_numbers_are_read_as_excel_shows_them(self, value: Any, code: str, shown: str) -> None:
        assert _number(value, code) == shown

    def test_blocks_between_blank_rows_are_tables(self) -> None:
        rows = [["Sales report"], [], [None, "Region", "Sum"], [None, "East", 1], [], [None, "West", 2]]
        parsed = read("a.xlsx", xlsx(S=rows))
        assert parsed.text == "# S\n\nSales report\n\nRegion  Sum\nEast  1\n\nWest  2"

    def test_hidden_sheets_are_named_and_left_out(self) -> None:
        book = workbook(Shown=[["visible"]], Lists=[["secret"]])
        book["Lists"].sheet_state = "veryHidden"
        parsed = read("a.xlsx", saved(book))
        assert "secret" not in parsed.text
        assert parsed.warnings == ("sheet 'Lists' is hidden and left out: show it in Excel to have it read",)

    def test_formulas_without_a_value_are_counted(self) -> None:
        parsed = read("a.xlsx", xlsx(S=[["a", 1], ["sum", "=SUM(B1:B1)"], ["twice", "=B1*2"]]))
        assert parsed.warnings == ("has 2 formulas without stored values, left blank: open it in Excel and save it",)

    def test_a_workbook_with_macros_is_read_and_nothing_is_run(self) -> None:
        data = replaced(xlsx(S=[["text"]]), {"xl/vbaProject.bin": b"\xd0\xcf\x11\xe0 Sub AutoOpen()"})
        assert read("a.xlsm", data).text == "# S\n\ntext"


class TestCsv:
    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    def test_the_delimiter_is_recognised(self, delimiter: str) -> None:
        rows = [["Name", "Wert", "Note"], ["Müller", "1.234", '"a\nb"'], ["Maier", "", "x y"]]
        data = "\r\n".join(delimiter.join(row) for row in rows).encode()
        assert read("a.csv", data).text == "Name  Wert  Note\nMüller  1.234  a b\nMaier  –  x y"

    def test_decimal_commas_do_not_divide(self) -> None:
        assert read("a.csv", b"Item;Price\nTea;1,50\nMilk;0,90\nBread;2,10\n").text.splitlines()[1] == "Tea  1,50"

    def test_encodings_and_one_column(self) -> None:
        parsed = read("a.csv", "Straße\nGrößenwahn\nÄrger\n".encode("cp1252"))
        assert parsed.text == "Straße\nGrößenwahn\nÄrger"
        assert parsed.warnings == ("is not UTF-8: read as cp1252; save it as UTF-8 if letters look wrong",)

    def test_sparse_rows_have_no_placeholders(self) -> None:
        assert read("a.csv", b"a,b,c,d,e,f,g,h\n1,,,,,,,8\n,,,x,,,,\n").text == "a  b  c  d  e  f  g  h\n1  8\nx"


PAGE = """<html><head><title> A
 page</title><style>p{}</style><meta charset="utf-8"></head><body><nav><a href=x>Home</a></nav>
<h1>Head <em>line</em></h1><p>See <a href='http://x.example/z'>the page</a> a_b *c* <img src='data:image/png;base64,AA'
alt='a nice boat'><img src='http://x.example/x.png' alt='x.png'><br>next</p>loose <b>bold</b><div>in div<p>in p</div>
<ul><li>one<ul><li>sub</li></ul></li><li><p>two</p><p>more</p></li></ul><ol><li>x<li>y</ol>
<table><caption>Cap</caption><tr><th>A<th>2023<th>2024</tr><tr><td rowspan=2>N<td><td>5</tr><tr><td>1<td>2|3</tr>
<tr><td colspan=2>both<td>7</tr></table>
<table><tr><td><h2>Layout</h2><table><tr><td>inner</td><td>x</td></tr></table></td></tr></table>
<pre>def f():
    return 1</pre><p style="display: none">secret</p><p hidden>secret</p>
<script>secret</script><!-- secret --></body>"""


class TestHtml:
    def test_blocks_lists_tables_and_titles(self) -> None:
        parsed = read("a.html", PAGE.encode())

        assert parsed.text == (
            "# Head line\n\nSee the page a_b *c* a nice boat\nnext\n\nloose bold\n\nin div\n\nin p\n\n"
            "- one\n  - sub\n- two\nmore\n\n1. x\n2. y\n\nCap\n\nA  2023  2024\nN  –  5\nN  1  2|3\nboth  –  7\n\n"
            "## Layout\n\ninner  x\n\ndef f():\n    return 1"
        )
        assert outline(parsed) == [(1, "Head line"), (2, "Layout")]
        assert parsed.title == "A page"

    def test_the_main_element_is_the_page(self) -> None:
        page = b"<body><header>Menu</header><main><h1>Own</h1>text</main><footer>Imprint</footer>"
        assert read("a.htm", page).text == "# Own\n\ntext"

    @pytest.mark.parametrize(
        ("head", "encoding"),
        [
            ('<meta charset="windows-1251">', "cp1251"),
            ("", "utf-8"),
            ("", "utf-16"),
            ('<meta charset="nonsense">', "utf-8"),
        ],
    )
    def test_declared_and_undeclared_encodings(self, head: str, encoding: str) -> None:
        assert read("a.html", f"{head}<p>Привет, мир".encode(encoding)).text == "Привет, мир"

    def test_a_heading_that_is_never_closed_is_text(self) -> None:
        parsed = read("a.html", b"<h1>" + b"<p>word word word</p>" * 50)
        assert (outline(parsed), parsed.text.count("word")) == ([], 150)

    @pytest.mark.parametrize("data", [b"<!-- nothing -->", b"<html></html>", b"<script>x</script>"])
    def test_a_page_without_text_has_none(self, data: bytes) -> None:
        assert read("a.html", data).text == ""


def test_every_table_has_its_column_head_recorded() -> None:
    from llama_index_contextual.readers.base import FileAccount, ReadLimits
    from llama_index_contextual.readers.builder import DocumentBuilder

    builder = DocumentBuilder(FileAccount(Path("a.csv"), 100, ReadLimits()))
    builder.paragraph("Before")
    head = builder.table([["Report"], ["", "2023", "2024"], ["East", "1", "2"]])
    builder.table([["West", "3", "4"]], head_before=head)
    builder.table([["Only", "row"]])
    text = builder.text()
    spans = [(text[one.start : one.body], text[one.body : one.end], one.head) for one in builder.tables]
    assert spans == [("–  2023  2024\n", "East  1  2", "–  2023  2024"), ("", "West  3  4", "–  2023  2024")]


def test_without_the_extra_a_file_is_skipped_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "find_spec", lambda name: None)
    path = tmp_path / "a.docx"
    path.write_bytes(docx("text"))
    with DocumentReader() as reader, pytest.raises(ReadError) as caught:
        reader.read(FileRef(path, "a.docx", path.stat().st_size, str(path)))
    assert caught.value.reason == 'needs further packages: pip install "llama-index-contextual[office]"'
    assert discovery.missing_extra(".csv") is None


def test_the_child_process_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.pptx"
    path.write_bytes(data := pptx(("Über", "Text")))
    with DocumentReader() as reader:
        content = reader.read(FileRef(path, "a.pptx", path.stat().st_size, str(path)))
    parsed = read("a.pptx", data)
    assert (content.document.text, content.digest != "") == (parsed.text, True)
    assert content.document.metadata["title"] == "Über"
