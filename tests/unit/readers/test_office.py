"""Word, PowerPoint, Excel, HTML and CSV files: text, sections, pages, tables."""

from __future__ import annotations

import datetime
from email.message import EmailMessage
from pathlib import Path

import pytest
from docx import Document
from docx.oxml import parse_xml
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.files import FileAccount, ParsedFile, ReadLimits
from llama_index_contextual.readers.number_formats import number_text
from tests.integration.readers.office_files import docx, mail, pptx, read, replaced, saved, workbook, xlsx
from tests.support.pdf_files import lines, pdf_of
from tests.unit.readers.examples import EXAMPLES, sections


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

        document = Document()
        for text, style in (("one", "List Bullet"), ("two", "List Bullet"), ("first", "List Number")):
            document.add_paragraph(text, style=style)
        table = document.add_table(3, 2)
        table.cell(0, 0).merge(table.cell(1, 0)).text = "North"
        for cell, text in (((0, 1), "a"), ((1, 1), "b"), ((2, 0), "South"), ((2, 1), "c")):
            table.cell(*cell).text = text
        assert read("a.docx", saved(document)).text == "- one\n- two\n\n1. first\n\nNorth  a\nNorth  b\nSouth  c"

    def test_deleted_text_is_left_out_and_a_header_is_read_once_at_the_end(self) -> None:

        word = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
        document = Document()
        document.sections[0].header.paragraphs[0].text = "HEADER"
        paragraph = document.add_paragraph("Kept")
        paragraph._p.append(parse_xml(f"<w:del {word}><w:r><w:delText> deleted</w:delText></w:r></w:del>"))
        paragraph._p.append(parse_xml(f"<w:ins {word}><w:r><w:t> inserted</w:t></w:r></w:ins>"))
        parsed = read("a.docx", saved(document))
        assert parsed.text == "Kept inserted\n\nPage header: HEADER"
        assert parsed.warnings == ("1 deletion is left out, which Word tracks: accept or reject the changes in Word",)


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
        assert text.splitlines()[3:] == ["007  NA  2024-01-31  TRUE", "null  a|b*_`  2024-02-29 10:30:00  =1"]

    @pytest.mark.parametrize("example", sections("excel_numbers")["numbers"][0].split("\n"))
    def test_numbers_are_read_as_excel_shows_them(self, example: str) -> None:
        value, code, shown = example.split(" | ")
        assert number_text(float(value) if "." in value or value == "inf" else int(value), code) == shown
        assert number_text(None, code) == ""

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

    def test_formulas_without_a_stored_result_are_counted(self) -> None:
        data = xlsx(S=[["Plan", 2], ["Total", "=SUM(B1)"], ["Mean", "=AVERAGE(B1)"]])
        advice = "the results of 2 formulas are not in the file: open it in Excel or LibreOffice, and save it"
        assert read("a.xlsx", data).warnings == (advice,)
        sheet = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData><row r="1">'
        sheet += b'<c r="A1"><f>1+1</f><v>2</v></c><c r="B1" t="str"><f>""</f><v></v></c></row></sheetData></worksheet>'
        stored = read("a.xlsx", replaced(data, {"xl/worksheets/sheet1.xml": sheet}))
        assert (stored.text, stored.warnings) == ("# S\n\n2", ())

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

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ("sep=;\r\nItem;Price\r\nTea;1,50\r\n", "Item  Price\nTea  1,50"),
            ("\ufeffSEP=|\nItem|a,b\n1|2,3\n", "Item  a,b\n1  2,3"),
            ('"sep=\t"\nItem\tPrice\n', "Item  Price"),
            ("sep=,\nonly one column\n", "only one column"),
            ("sep=;;\nItem;Price\n", "Item  Price"),
            ("separator;x\nItem;Price\n", "separator  x\nItem  Price"),
        ],
    )
    def test_the_line_that_declares_the_delimiter_is_no_row(self, data: str, text: str) -> None:
        assert read("a.csv", data.encode()).text == text

    def test_sparse_rows_have_no_placeholders(self) -> None:
        assert read("a.csv", b"a,b,c,d,e,f,g,h\n1,,,,,,,8\n,,,x,,,,\n").text == "a  b  c  d  e  f  g  h\n1  8\nx"


class TestHtml:
    def test_blocks_lists_tables_and_titles(self) -> None:
        parsed = read("a.html", (EXAMPLES / "page.html").read_bytes())

        assert parsed.text == (EXAMPLES / "page.txt").read_text(encoding="utf-8").rstrip("\n")
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

    builder = DocumentBuilder(FileAccount(Path("a.csv"), 100, ReadLimits()))
    builder.paragraph("Before")
    head = builder.table([["Report"], ["", "2023", "2024"], ["East", "1", "2"]])
    builder.table([["West", "3", "4"]], head_before=head)
    builder.table([["Only", "row"]])
    text = builder.text()
    spans = [(text[one.start : one.body], text[one.body : one.end], one.head) for one in builder.tables]
    whole = "Report\n–  2023  2024"
    assert spans == [("–  2023  2024\n", "East  1  2", whole), ("", "West  3  4", whole)]


STATEMENT = ["Statements of income", "(in millions, except per share data)", "Years ended June 30"]
ROWS = [["", "2023", "2022"], ["Revenue", "211", "198"], ["Net income", "72", "73"]]


def html(above: str, title_rows: str = "") -> bytes:
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in ROWS)
    return f"<h1>Report</h1><p>Revenue grew.</p>{above}<table>{title_rows}{rows}</table>".encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.html", html("".join(f"<p>{line}</p>" for line in STATEMENT))),
        ("a.html", html(f"<div>{'<br>'.join(STATEMENT)}</div>")),
        ("a.html", html("", "".join(f"<tr><td colspan=3>{line}</td></tr>" for line in STATEMENT))),
        ("a.html", html("", f"<caption>{' '.join(STATEMENT)}</caption>")),
        ("a.csv", "\n".join([*(f'"{line}"' for line in STATEMENT), *map(",".join, ROWS)]).encode()),
        ("a.xlsx", xlsx(Income=[*([line] for line in STATEMENT), *ROWS])),
        ("a.xlsx", xlsx(Income=[*([line] for line in STATEMENT), [], *ROWS])),
    ],
    ids=["paragraphs", "lines", "rows", "caption", "csv", "xlsx", "above a blank row"],
)
def test_the_head_of_a_table_has_its_title_unit_and_period(name: str, data: bytes) -> None:
    (table,) = read(name, data).map.tables
    assert " ".join(table.head.split()) == " ".join([*STATEMENT, "– 2023 2022"])


def test_sentences_and_other_short_lines_above_a_table_are_not_in_its_head() -> None:
    for above in ("<p>Figures in millions are not audited.</p>", "<p>Overview</p>", "<ul><li>in millions</li></ul>"):
        (table,) = read("a.html", html(above)).map.tables
        assert table.head == "–  2023  2022"
    heading = html("<p>in millions</p><h2>Sales</h2>")
    assert read("a.html", heading).map.tables[0].head == "–  2023  2022"


@pytest.mark.parametrize("form", ["{0:c}", "&#{0:d};", "&#x{0:x};"], ids=["raw", "decimal", "hexadecimal"])
@pytest.mark.parametrize("code", [*range(1, 0x20), 0x7F, 0xFFFE, 0xFFFF], ids=hex)
def test_control_characters_in_html_are_left_out(code: int, form: str) -> None:
    control = form.format(code)
    inline = f"<i>pu{control}<script>x</script>mp{control}<b></b>s</i>"
    page = f"{control}<p>{inline}<br>{control}<img alt='two {control}words'>{control}<p>{control}<!--{'-' * 2_000}>"
    text = " ".join(read("a.html", page.encode()).text.split())
    assert text == ("pu mp s two words" if chr(code).isspace() and code < 0x1C else "pumps two words")


def test_a_form_feed_in_html_is_white_space_in_a_mail() -> None:
    page = mail("Pages", "").replace(b"text/plain", b"text/html") + b"<p>one\x0ctwo"
    assert read("a.eml", page).text.endswith("one two")


# ---- mail: headers, text, attachments --------------------------------------------------------------------------------


def test_headers_come_first_and_are_metadata() -> None:
    parsed = read("a.eml", mail("Angebot für Büro 3", "Dear Bob,\n\n  the offer.\n\nAda"))

    assert parsed.text == (
        "Subject: Angebot für Büro 3\nFrom: Ada <ada@example.org>\nTo: bob@example.org\n"
        "Date: Mon, 01 Jan 2024 10:00:00 +0100\n\nDear Bob,\n\n  the offer.\n\nAda"
    )
    assert parsed.title == "Angebot für Büro 3"
    assert dict(parsed.metadata) == {
        "mail_from": "Ada <ada@example.org>",
        "mail_to": "bob@example.org",
        "mail_date": "2024-01-01T10:00:00+01:00",
    }


def test_an_html_mail_has_the_headings_of_its_page() -> None:
    message = EmailMessage()
    message["From"] = "ada@example.org"
    message.set_content("<table><tr><td><h1>Offer</h1></td><td>rich</td></tr></table>", subtype="html")
    parsed = read("a.eml", message.as_bytes())
    assert parsed.text.endswith("# Offer\n\nrich")
    assert [heading.title for heading in parsed.map.headings] == ["Offer"]


def test_attachments_are_sections_with_their_own_below() -> None:
    attachments = (
        ("offer.docx", docx((1, "Price"), "Ten boats.")),
        ("sums.xlsx", xlsx(Sums=[["Boat", "Price"], ["Swan", 5]])),
        ("notes.md", b"# Note\n\nText"),
        ("list.csv", b"a,b\n1,2\n"),
        ("scan.pdf", pdf_of([lines(["A page of text"])]).data()),
        ("photo.jpg", b"\xff\xd8\xff"),
        ("broken.xlsx", b"PK"),
        ("empty.txt", b""),
    )
    parsed = read("a.eml", mail("Offer", "See below.", *attachments))

    sections = {word: parsed.map.section(parsed.text.index(word)) for word in ("See", "Ten", "Swan", "Text", "A page")}
    assert sections == {
        "See": None,
        "Ten": "Attachment: offer.docx > Price",
        "Swan": "Attachment: sums.xlsx > Sums",
        "Text": "Attachment: notes.md > Note",
        "A page": "Attachment: scan.pdf",
    }
    assert parsed.warnings == (
        "attachment 'broken.xlsx' was left out: it is damaged and cannot be read (File is not a zip file): open it, "
        "repair it and save it",
        "attachment 'empty.txt' was left out: it is empty",
        "1 picture is damaged and left out (attachment 'photo.jpg'): insert it again",
    )


def test_an_attached_message_is_named_by_its_subject() -> None:
    inner, outer = EmailMessage(), EmailMessage()
    inner["Subject"], inner["From"] = "Old/news", "eve@example.org"
    inner.set_content("inner text")
    outer["From"] = "ada@example.org"
    outer.set_content("see attached")
    outer.add_attachment(inner)
    parsed = read("a.eml", outer.as_bytes())
    assert parsed.map.section(parsed.text.index("inner text")) == "Attachment: Old news.eml"


def test_images_in_the_text_and_signatures_are_not_reported() -> None:
    message = EmailMessage()
    message["From"] = "ada@example.org"
    message.set_content("text")
    message.add_attachment(b"x", maintype="image", subtype="png", filename="logo.png", cid="<logo>")
    message.add_attachment(b"x", maintype="application", subtype="pkcs7-signature", filename="smime.p7s")
    assert read("a.eml", message.as_bytes()).warnings == ()


def test_attachments_of_an_alternative_that_is_not_read_are_kept() -> None:
    rich = EmailMessage()
    rich.set_content("<p>rich</p>", subtype="html")
    rich.add_attachment(b"inside", maintype="text", subtype="plain", filename="a.txt")
    message = EmailMessage()
    message["From"] = "ada@example.org"
    message.set_content("plain")
    message.make_alternative()
    message.attach(rich)
    assert read("a.eml", message.as_bytes()).text == ("From: ada@example.org\n\nplain\n\n# Attachment: a.txt\n\ninside")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"Just some text.\n\nMore.", "is not a mail: it has no headers such as From and Subject"),
        (b"From: a@b\nContent-Type: multipart/encrypted; boundary=x\n\n--x\n\n--x--", "is encrypted"),
        (b"From: a@b\nContent-Type: application/pkcs7-mime\n\nMIIB", "is encrypted"),
        (b"  \n", "is empty"),
    ],
)
def test_what_is_not_a_readable_mail(data: bytes, reason: str) -> None:
    with pytest.raises(ReadError) as caught:
        read("a.eml", data)
    assert caught.value.reason.startswith(reason)
