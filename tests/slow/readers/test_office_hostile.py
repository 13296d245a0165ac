"""A file that becomes far more text than its bytes can hold: one account for the file and its attachments."""

from __future__ import annotations

import random
import re
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers import DocumentReader, FileRef, ReadLimits, read_documents
from llama_index_contextual.readers.files import FileAccount, ParsedFile
from tests.integration.readers.office_files import (
    SHEET,
    WORD,
    archive,
    docx,
    mail,
    part,
    pptx,
    read,
    replaced,
    saved,
    workbook,
    xlsx,
)
from tests.support.pdf_files import RawPdf, lines, pdf_of, read_pdf

ROWS, COLUMNS = 300, 10
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
    assert "it has a header of more than 20,000 characters" in caught.value.reason


def test_a_mail_to_very_many_people_is_read() -> None:
    people = ",\n ".join(f"person{n}@example.org" for n in range(5_000))
    assert read("a.eml", f"From: a@example.org\nTo: {people}\n\nThe text.\n".encode()).text.endswith("The text.")


# ---- office, HTML, CSV and mail files that are damaged or made to do harm: refused with a sentence, or read without it


BOOK = xlsx(S=[["Region", "Sum"], ["East", 1]])
LETTER = docx((1, "Head"), "Text")
SLIDES = pptx(("Title", "Text"))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> NoReturn:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def reason(name: str, data: bytes, **limits: int) -> str:
    with pytest.raises(ReadError) as caught:
        read(name, data, **limits)
    return caught.value.reason


def in_child(tmp_path: Path, name: str, data: bytes, **limits: float) -> ParsedFile | str:
    """Return the text, or the reason why the file is not read."""
    path = tmp_path / name
    path.write_bytes(data)
    with DocumentReader(limits=ReadLimits(**limits)) as reader:  # type: ignore[arg-type]
        try:
            return reader.read(FileRef(path, name, len(data), name)).document.text
        except ReadError as error:
            return error.reason


class TestArchives:
    @pytest.mark.parametrize(("name", "data"), [("a.xlsx", BOOK), ("a.docx", LETTER), ("a.pptx", SLIDES)])
    def test_what_unpacks_to_too_much_is_refused_before_it_is_unpacked(self, name: str, data: bytes) -> None:
        bomb = replaced(data, {"media/zeros.bin": bytes(60_000_000)})
        assert len(bomb) < 200_000
        assert reason(name, bomb).startswith(
            f"becomes more than 50.0 million unpacked bytes from {len(bomb):,} bytes: something in it is repeated"
        )
        limit = reason(name, data, max_unpacked_bytes=1_000)
        assert limit == "has more than 1,000 unpacked bytes: split it into smaller files"

    def test_a_false_size_in_the_directory_does_not_help(self) -> None:
        bomb = bytearray(replaced(BOOK, {"xl/worksheets/sheet1.xml": b" " * 60_000_000}))
        for mark, at in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
            place = bomb.find(mark)
            while place >= 0:
                if struct.unpack_from("<I", bomb, place + at)[0] == 60_000_000:
                    struct.pack_into("<I", bomb, place + at, 100)
                place = bomb.find(mark, place + 1)
        assert reason("a.xlsx", bytes(bomb)).startswith("is damaged")

    def test_too_many_parts(self) -> None:
        assert reason("a.docx", archive({f"{n}": b"" for n in range(20_001)})).startswith("consists of 20,001 parts")

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
    @pytest.mark.parametrize(
        ("name", "data", "place"),
        [
            ("a.docx", LETTER, "word/document.xml"),
            ("a.xlsx", BOOK, "xl/sharedStrings.xml"),
            ("a.pptx", SLIDES, "ppt/slides/slide1.xml"),
            ("a.docx", LETTER, "docProps/core.xml"),
            ("a.docx", LETTER, "word/_rels/document.xml.rels"),
        ],
    )
    def test_xml_entities_are_refused(self, name: str, data: bytes, place: str, encoding: str) -> None:
        laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
        head = f'<?xml version="1.0" encoding="{encoding}"?>{" " * 3_000_000}'
        bomb = f'{head}<!DOCTYPE x [<!ENTITY l0 "lol">{laughs}]><x>&l11;</x>'
        assert reason(name, replaced(data, {place: bomb.encode(encoding)})).startswith("declares XML entities in ")

    def test_a_file_cannot_be_read_through_an_entity(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret.txt"
        secret.write_text("password")
        entity = f'<!DOCTYPE x [<!ENTITY s SYSTEM "{secret.as_uri()}">]><w:document xmlns:w="{WORD}">&s;</w:document>'
        assert "declares XML entities" in reason("a.docx", replaced(LETTER, {"word/document.xml": entity.encode()}))

    def test_links_to_other_files_and_pages_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "secret.png").write_bytes(b"password")
        kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
        rels = part(LETTER, "word/_rels/document.xml.rels").replace(
            b"</Relationships>",
            "".join(
                f'<Relationship Id="x{n}" Type="{kind}/{name}" Target="{target}" TargetMode="External"/>'
                for n, (name, target) in enumerate(
                    [
                        ("image", "https://evil.example/x.png"),
                        ("image", (tmp_path / "secret.png").as_uri()),
                        ("attachedTemplate", "https://evil.example/x.dotm"),
                        ("frame", "file:///etc/passwd"),
                    ]
                )
            ).encode()
            + b"</Relationships>",
        )
        blip = (
            '<w:p><w:r><w:drawing><wp:inline xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/'
            'wordprocessingDrawing"><wp:docPr id="1" name="n" descr="a picture"/><a:graphic xmlns:a="http://schemas.'
            'openxmlformats.org/drawingml/2006/main"><a:graphicData><pic:pic xmlns:pic="http://schemas.openxmlformats.'
            'org/drawingml/2006/picture"><pic:blipFill><a:blip xmlns:r="%s" r:link="x%d"/></pic:blipFill></pic:pic>'
            "</a:graphicData></a:graphic></wp:inline></w:drawing></w:r></w:p>"
        )
        body = part(LETTER, "word/document.xml").replace(
            b"<w:body>", b"<w:body>" + "".join(blip % (kind, n) for n in (0, 1)).encode()
        )
        parsed = read("a.docx", replaced(LETTER, {"word/_rels/document.xml.rels": rels, "word/document.xml": body}))
        assert parsed.text == "a picture\n\na picture\n\n# Head\n\nText"

    def test_deep_elements(self, tmp_path: Path) -> None:
        deep = f'<w:document xmlns:w="{WORD}"><w:body>{"<w:p>" * 100_000}{"</w:p>" * 100_000}</w:body></w:document>'
        answer = in_child(tmp_path, "a.docx", replaced(LETTER, {"word/document.xml": deep.encode()}))
        assert isinstance(answer, str)
        assert "nested too deeply" in answer or "crashed" in answer

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"), "is encrypted: save a copy"),
            (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "is an old Office file with a new extension"),
            (b"<html>Page not found</html>", "is not a XLSX file: give it the extension of its type"),
            (b"PK\x03\x04" + bytes(100), "is damaged"),
            (BOOK[: len(BOOK) // 2], "is damaged"),
            (LETTER, "is damaged"),
            (archive({"a.txt": b"x"}), "is damaged"),
            (
                archive({"mimetype": b"application/vnd.oasis.opendocument.text"}),
                "is an OpenDocument file with a new extension: open it and save it as .xlsx",
            ),
            (b"", "is empty"),
        ],
    )
    def test_other_files_with_the_extension(self, data: bytes, expected: str) -> None:
        assert reason("a.xlsx", data).startswith(expected)

    @pytest.mark.parametrize(("name", "data"), [("a.xlsx", BOOK), ("a.docx", LETTER), ("a.pptx", SLIDES)])
    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=5)
    def test_a_damaged_file_is_read_or_refused_with_a_sentence(self, name: str, data: bytes, seed: int) -> None:
        rng = random.Random(seed)
        names = [entry for entry in zipfile.ZipFile(BytesIO(data)).namelist() if entry.endswith((".xml", ".rels"))]
        place = rng.choice(names)
        content = bytearray(part(data, place))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(content))
            content[at : at + rng.randrange(0, 30)] = rng.randbytes(rng.randrange(0, 4))
        with suppress(ReadError):  # any other error fails
            read(name, replaced(data, {place: bytes(content)}))


ROW_OF_ONE = '<row r="1"><c r="A1"><v>1</v></c></row>'
ROW_OF_TWO = '<row r="1"><c r="A1"><v>1</v></c><c r="C1"><v>3</v></c></row>'


class TestSheets:
    def sheet(self, rows: str, head: str = "") -> bytes:
        content = f'<worksheet xmlns="{SHEET}">{head}<sheetData>{rows}</sheetData></worksheet>'
        return replaced(BOOK, {"xl/worksheets/sheet1.xml": content.encode()})

    @pytest.mark.parametrize(
        ("rows", "head", "text"),
        [
            (ROW_OF_TWO, '<dimension ref="A1"/>', "1  –  3"),
            (ROW_OF_TWO, '<dimension ref="A1:XFD1048576"/>', "1  –  3"),
            (f'{ROW_OF_ONE}<row r="1048576"><c r="XFD1048576"><v>9</v></c></row>', "", "1\n\n9"),
            (f'{ROW_OF_ONE}<row r="99999999999"><c><v>9</v></c></row>', "", "1"),
        ],
        ids=["too small", "too large", "the far end", "beyond the end"],
    )
    def test_false_dimensions_and_places_do_no_harm(self, rows: str, head: str, text: str) -> None:
        assert read("a.xlsx", self.sheet(rows, head)).text == f"# S\n\n{text}"

    def test_a_shared_string_that_is_not_there(self) -> None:
        assert reason("a.xlsx", self.sheet('<row r="1"><c r="A1" t="s"><v>99</v></c></row>')).startswith("is damaged")

    def test_a_huge_sheet_ends_at_a_limit(self, tmp_path: Path) -> None:
        cell = '<c t="inlineStr"><is><t>' + "x" * 30_000 + "</t></is></c>"
        data = self.sheet("".join(f"<row>{cell}</row>" for _ in range(500)))
        assert "split it into smaller files" in reason("a.xlsx", data, max_characters=1_000_000)
        answer = in_child(tmp_path, "a.xlsx", data, max_seconds=0.01)
        assert answer == "parsing took longer than 0.01 seconds and was stopped"


class TestPages:
    @pytest.mark.parametrize("tag", ["table><tr><td", "ul><li", "h1", "span"])
    def test_deep_nesting_is_read_or_refused(self, tag: str) -> None:
        opening = f"<{tag}>"
        assert "deep" in read("a.html", (opening * 100 + "deep").encode()).text
        try:
            answer = read("a.html", (opening * 40_000 + "deep").encode()).text
        except ReadError as error:
            answer = error.reason
        assert "deep" in answer

    def test_spans_are_limited(self) -> None:
        row = '<tr><td rowspan="999999999" colspan="99999999">x</td><td colspan="-1" rowspan="²">y</td></tr>'
        assert len(read("a.html", f"<table>{row * 20}</table>".encode()).text) < 1_000_000

    def test_nothing_is_fetched(self) -> None:
        page = (
            '<!DOCTYPE html SYSTEM "http://evil.example/x.dtd" [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
            '<link rel=stylesheet href="http://evil.example/x.css"><img src="http://evil.example/x.png">'
            '<iframe src="file:///etc/passwd"></iframe><p>&x; text</p><object data="http://evil.example/x"></object>'
        )
        text = read("a.html", page.encode()).text
        assert "text" in text
        assert "root:" not in text


class TestCsv:
    def test_an_open_quotation_mark(self) -> None:
        assert reason("a.csv", b'a,b\n1,"' + b"x" * 10_000_001).startswith(
            "is damaged and cannot be read (field larger than field limit"
        )

    def test_binary_and_long_lines(self) -> None:
        assert "binary" in reason("a.csv", bytes(range(256)) * 10)
        assert read("a.csv", b"x," * 100_000).text.startswith("x  x")


class TestMail:
    def nested(self, depth: int, kind: str = "multipart/mixed") -> bytes:
        parts = [b"Content-Type: %s; boundary=b%d\n\n--b%d\n" % (kind.encode(), n, n) for n in range(depth)]
        return b"From: a@example.org\n" + b"".join(parts) + b"Content-Type: text/plain\n\ndeep text\n"

    def test_parts_in_parts(self) -> None:
        assert "deep text" in read("a.eml", self.nested(20)).text
        assert reason("a.eml", self.nested(1_000)).startswith("has elements nested too deeply")
        assert reason("a.eml", self.nested(1_000, "multipart/alternative")).startswith("has elements nested too deeply")

    def test_mails_attached_to_mails(self) -> None:
        data = mail("0", "text 0")
        for number in range(1, 9):
            data = mail(str(number), f"text {number}", ("inner.eml", data))
        parsed = read("a.eml", data)
        assert [f"text {n}" in parsed.text for n in range(9)] == [False] * 4 + [True] * 5
        assert any("is attached to 5 mails" in warning for warning in parsed.warnings)

    def test_names_of_attachments_lead_nowhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        names = [
            "../../etc/passwd.txt",
            "C:\\Windows\\a.txt",
            "/etc/b.txt",
            "\u202etxt.exe",
            "..",
            "x" * 5_000 + ".txt",
        ]
        parsed = read("a.eml", mail("Subject", "Text", *((name, b"inside") for name in names)))
        titles = [heading.title for heading in parsed.map.headings]
        assert titles[:3] == ["Attachment: passwd.txt", "Attachment: a.txt", "Attachment: b.txt"]
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "lines",
        [
            b"Content-Type: text/plain; charset=nonsense\n\nM\xc3\xbcller",
            b"Content-Type: text/plain; charset=base64\n\nM\xc3\xbcller",
            b"Content-Type: text/plain\nContent-Transfer-Encoding: 8bit\n\nM\xfcller und S\xf6hne",
            b"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64\n\nTcO8bGxlcg",
            b"Content-Type: ;;;\nContent-Disposition: \xff\xfe\nContent-Transfer-Encoding: odd\n\nM\xc3\xbcller",
            b"Subject: =?utf-99?q?=C3?= =?utf-8?b?!!?=\nDate: nonsense\nTo: <<>>\n\nM\xc3\xbcller",
        ],
    )
    def test_bad_charsets_and_headers(self, lines: bytes) -> None:
        assert "Müller" in read("a.eml", b"From: a@example.org\n" + lines).text

    @pytest.mark.parametrize("make", [lambda rng: rng.randbytes(2_000), lambda rng: _shuffled(rng)])
    @given(seed=st.integers(0, 2**32))
    def test_noise_is_read_or_refused_with_a_sentence(self, make: Callable[[random.Random], bytes], seed: int) -> None:
        with suppress(ReadError):  # any other error fails
            read("a.eml", b"From: a@example.org\n" + make(random.Random(seed)))


def _shuffled(rng: random.Random) -> bytes:
    lines = mail("Subject", "Text äöü", ("a.txt", b"inside"), ("b.xlsx", BOOK)).splitlines(keepends=True)
    return b"".join(rng.choices(lines, k=len(lines)))
