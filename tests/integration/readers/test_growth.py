"""A file that becomes far more text than its bytes can hold: one account for the file and its attachments."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers import ReadLimits, read_documents
from llama_index_contextual.readers.base import FileAccount
from llama_index_contextual.readers.pdf.reader import read_pdf
from tests.integration.readers.office_files import WORD, docx, mail, part, pptx, read, replaced, saved, workbook, xlsx
from tests.support.pdf_files import RawPdf, lines, pdf_of

ROWS, COLUMNS = 1_000, 10
CELL = "an honest cell of some words"


def page_of_spans(rows: int, columns: int, text: str) -> bytes:
    """Return an HTML table whose first row has cells that span all rows."""
    spanning = f'<td rowspan="{rows}">{text}' * columns
    return f"<table><tr>{spanning}<td>a</tr>{'<tr><td>b</tr>' * (rows - 1)}</table>".encode()


def letter_of(body: str) -> bytes:
    document = f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    return replaced(docx("text"), {"word/document.xml": document.encode()})


def word_cell(text: str, merge: str = "") -> str:
    properties = f'<w:tcPr><w:vMerge w:val="{merge}"/></w:tcPr>' if merge else ""
    return f"<w:tc>{properties}<w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>"


def letter_with_a_merged_cell(rows: int, text: str) -> bytes:
    first = f"<w:tr>{word_cell(text, 'restart')}{word_cell('1')}</w:tr>"
    others = f"<w:tr>{word_cell('', 'continue')}{word_cell('2')}</w:tr>" * (rows - 1)
    return letter_of(f"<w:tbl>{first}{others}</w:tbl>")


def slides_that_name_one(times: int, text: str) -> bytes:
    data = pptx(("Title", text))
    presentation = part(data, "ppt/presentation.xml").decode()
    reference = re.search(r'<p:sldId [^>]*r:id="(\w+)"/>', presentation)
    assert reference is not None
    again = "".join(f'<p:sldId id="{256 + n}" r:id="{reference[1]}"/>' for n in range(times))
    return replaced(data, {"ppt/presentation.xml": presentation.replace(reference[0], again).encode()})


def workbook_in_a_format(code: str, rows: int) -> bytes:
    book = workbook(S=[["Number"], *([n] for n in range(1, rows + 1))])
    for (cell,) in book["S"].iter_rows(min_row=2):
        cell.number_format = "FORMAT"
    data = saved(book)
    return replaced(data, {"xl/styles.xml": part(data, "xl/styles.xml").replace(b"FORMAT", code.encode())})


GROWING: dict[str, Callable[[], bytes]] = {
    "spans.html": lambda: page_of_spans(1_000, 10, "x" * 500),
    "merged.docx": lambda: letter_with_a_merged_cell(100, "x" * 60_000),
    "slide.pptx": lambda: slides_that_name_one(3_000, "word " * 1_000),
    "strings.xlsx": lambda: xlsx(S=[["y" * 30_000] * 2] * 100),
}


@pytest.mark.parametrize("name", GROWING)
def test_a_file_that_becomes_far_more_text_than_its_bytes_is_skipped_with_what_to_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data := GROWING[name]())
    result = read_documents([path])

    (skipped,) = result.skipped
    assert skipped.reason == (
        f"becomes more than 3.0 million characters from {len(data):,} bytes: something in it is repeated; "
        "save its text as .txt or .csv"
    )


def test_a_pdf_whose_pages_share_their_content_grows_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pdf = RawPdf()
    content = pdf.stream(zlib.compress(lines(["word " * 50] * 50)), b"/Filter/FlateDecode")
    for _ in range(100):
        pdf.page(content)
    path = tmp_path / "a.pdf"
    path.write_bytes(data := pdf.data())
    monkeypatch.setattr(FileAccount, "SMALL_TEXT", 0)
    with pytest.raises(ReadError, match="becomes more than") as caught:
        read_pdf(path)
    assert f"million characters from {len(data):,} bytes: something in it is repeated" in caught.value.reason


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.html", lambda: page_of_spans(ROWS, COLUMNS, CELL)),
        ("a.docx", lambda: letter_of("<w:tbl>" + f"<w:tr>{word_cell(CELL) * COLUMNS}</w:tr>" * ROWS + "</w:tbl>")),
        ("a.xlsx", lambda: xlsx(S=[[CELL] * COLUMNS] * ROWS)),
        ("a.csv", lambda: (",".join([CELL] * COLUMNS) + "\n").encode() * ROWS),
    ],
)
def test_a_table_of_equal_cells_is_read(name: str, make: Callable[[], bytes]) -> None:
    assert read(name, make()).text.count(CELL) == ROWS * COLUMNS


def test_a_number_format_longer_than_excel_allows_counts_as_general() -> None:
    assert read("a.xlsx", workbook_in_a_format("0" * 100_000, 50)).text.split()[-1] == "50"
    assert read("a.xlsx", workbook_in_a_format("0" * 5, 50)).text.split()[-1] == "00050"


def test_the_head_of_many_tables_is_part_of_the_account() -> None:
    blocks = [row for n in range(2_000) for row in (["East", n], [])]
    with pytest.raises(ReadError, match="becomes more than 3"):
        read("a.xlsx", xlsx(S=[["column " * 300, "Sum"], *blocks]))


class TestAttachments:
    def test_unpacked_bytes_count_for_the_whole_mail(self) -> None:
        letter = letter_of("<w:p><w:r><w:t>inside</w:t></w:r></w:p>")
        with zipfile.ZipFile(BytesIO(letter)) as archive:
            limit = 2 * sum(entry.file_size for entry in archive.infolist())
        attachments = ((f"{n}.docx", letter) for n in range(4))
        parsed = read("a.eml", mail("S", "T", *attachments), max_unpacked_bytes=limit)
        assert parsed.text.count("inside") == 2
        assert parsed.warnings == tuple(
            f"attachment '{n}.docx' was left out: it has more than {limit:,} unpacked bytes: split it into smaller "
            "files"
            for n in (2, 3)
        )

    def test_characters_count_for_the_whole_mail(self) -> None:
        attachments = [("a.txt", b"x" * 400), ("b.html", b"<p>" + b"y" * 400), ("c.csv", b"z" * 400)]
        parsed = read("a.eml", mail("S", "T", *attachments), max_characters=1_000)
        assert ("x" * 400 in parsed.text, "y" * 400 in parsed.text, "z" * 400 in parsed.text) == (True, True, False)

    def test_characters_of_an_attachment_count_once(self) -> None:
        inner = mail("Inner", "T", ("a.html", b"<p>" + b"y" * 400))
        assert "y" * 400 in read("a.eml", mail("S", "T", ("inner.eml", inner)), max_characters=800).text

    def test_pages_count_for_the_whole_mail(self) -> None:
        pdf = pdf_of([lines([f"Page {n}"]) for n in (1, 2)]).data()
        parsed = read("a.eml", mail("S", "T", ("a.pdf", pdf), ("b.pdf", pdf)), max_pages=3)
        assert parsed.text.count("Page") == 2

    def test_a_growing_attachment_is_left_out_with_what_to_do(self) -> None:
        data = mail("S", "The letter.", ("a.html", page_of_spans(1_000, 10, "x" * 500)))
        parsed = read("a.eml", data)
        assert parsed.text.endswith("The letter.")
        (warning,) = parsed.warnings
        assert warning.startswith(
            f"attachment 'a.html' was left out: it becomes more than 3.0 million characters from {len(data):,} bytes"
        )


def test_tables_in_tables_are_named_as_what_is_wrong() -> None:
    body = "<w:p/>"
    for _ in range(200):
        body = f"<w:tbl><w:tr><w:tc>{body}<w:p/></w:tc></w:tr></w:tbl>"
    with pytest.raises(ReadError) as caught:
        read("a.docx", letter_of(body))
    assert caught.value.reason == "has elements nested too deeply, such as tables in tables: save it as PDF"


def test_an_element_with_very_many_attributes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(f"<p {' '.join(f'a{n}=1' for n in range(500_000))}>text</p><p hidden>secret</p>")
    (document,) = read_documents([path], limits=ReadLimits(max_seconds=100))
    assert document.text == "text"


@pytest.mark.parametrize("name", ["Content-Type: text/plain", "content-disposition: attachment"])
def test_a_mail_with_very_many_parameters_is_refused_with_what_to_do(name: str) -> None:
    parameters = "".join(f";\n p{n}*0=x" for n in range(40_000))
    with pytest.raises(ReadError) as caught:
        read("a.eml", f"From: a@example.org\n{name}{parameters}\n\ntext\n".encode())
    header = name.partition(":")[0]
    assert caught.value.reason == (
        f"has a {header} header of more than 20,000 characters: save its text from the mail program"
    )


def test_a_mail_to_very_many_people_is_read() -> None:
    people = ",\n ".join(f"person{n}@example.org" for n in range(5_000))
    assert read("a.eml", f"From: a@example.org\nTo: {people}\n\nThe text.\n".encode()).text.endswith("The text.")
