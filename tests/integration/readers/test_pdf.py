"""`read_pdf` as its callers see it: text, pages, labels, headings, title, warnings, limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from pypdf import PdfReader
from pypdf.errors import DependencyError

from llama_index_contextual.errors import ReadError
from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.base import ParsedFile, ReadLimits
from llama_index_contextual.readers.pdf.engine import sensible_title
from llama_index_contextual.readers.pdf.reader import PdfEngine, read_pdf
from tests.support.pdf_files import RawPdf, encrypted, lines, pdf_of, show


@pytest.fixture(params=["pypdf", "pdfium"])
def engine(request: pytest.FixtureRequest) -> PdfEngine:
    """Both engines."""
    name: PdfEngine = request.param
    return name


def read(folder: Path, pdf: RawPdf | bytes, **options: object) -> ParsedFile:
    path = folder / "a.pdf"
    path.write_bytes(pdf.data() if isinstance(pdf, RawPdf) else pdf)
    return read_pdf(path, **options)  # type: ignore[arg-type]


def refusal(folder: Path, pdf: RawPdf | bytes, **options: object) -> str:
    with pytest.raises(ReadError) as caught:
        read(folder, pdf, **options)
    assert caught.value.path == str(folder / "a.pdf")
    return caught.value.reason


def test_every_character_knows_its_page(tmp_path: Path, engine: PdfEngine) -> None:
    pages = [["Alpha one", "Alpha two"], ["Beta"], [], ["Gamma one", "Gamma two"]]
    parsed = read(tmp_path, pdf_of(lines(page) for page in pages), engine=engine)

    assert parsed.text == "Alpha one\nAlpha two\nBeta\n\nGamma one\nGamma two"
    assert len(parsed.map.page_starts) == 4
    for number, page in enumerate(pages, 1):
        for line in page:
            start = parsed.text.index(line)
            assert {parsed.map.page(at) for at in range(start, start + len(line))} == {number}


def test_printed_page_labels_are_taken_from_the_file(tmp_path: Path, engine: PdfEngine) -> None:
    pdf = pdf_of(lines([f"Text {word}"]) for word in ("one", "two", "three"))
    pdf.catalog = b"/PageLabels<</Nums[0<</S/r>>2<</S/D/P(A-)>>]>>"
    parsed = read(tmp_path, pdf, engine=engine)

    assert parsed.map.page_labels == ("i", "ii", "A-1")
    assert parsed.map.page_label(parsed.text.index("three")) == "A-1"


def test_page_numbers_in_the_footer_are_labels_where_the_file_has_none(tmp_path: Path, engine: PdfEngine) -> None:
    words = ("apples", "plums", "pears", "figs")
    pdf = pdf_of(lines([f"About {word}"]) + show(290, 30, f"- {at} -") for at, word in enumerate(words, 17))
    parsed = read(tmp_path, pdf, engine=engine)

    assert parsed.text == "About apples\nAbout plums\nAbout pears\nAbout figs"
    assert parsed.map.page_labels == ("17", "18", "19", "20")
    assert dict(parsed.metadata) == {}


def test_running_headers_and_footers_leave_the_text_and_stay_in_the_metadata(tmp_path: Path, engine: PdfEngine) -> None:
    words = ("apples", "plums", "pears", "figs")
    pdf = pdf_of(
        show(50, 780, "ACME Annual Report") + lines([f"About {word}", "and more"]) + show(250, 30, f"Page {at} of 4")
        for at, word in enumerate(words, 1)
    )
    parsed = read(tmp_path, pdf, engine=engine)

    assert "ACME" not in parsed.text
    assert "Page" not in parsed.text
    assert parsed.metadata["running_header"] == "ACME Annual Report"
    assert "running_footer" not in parsed.metadata
    assert parsed.map.page_labels == ("1", "2", "3", "4")


def bookmarked(*marks: tuple[str, int, int | None], child_of_first: bool = False) -> RawPdf:
    """A PDF of three pages with bookmarks: (title, page from 0, top or None)."""
    pdf = pdf_of(
        [
            lines(["Report", "1 Results", "Revenue grew.", "1.1 Costs", "Costs fell."]),
            lines(["More on costs.", "2 Outlook and", "Risks", "All is well."]),
            lines(["The end."]),
        ]
    )
    root = pdf.add(b"")
    numbers = [pdf.add(b"") for _ in marks]
    for at, (title, page, top) in enumerate(marks):
        fit = b"/Fit" if top is None else b"/XYZ 0 %d 0" % top
        after = b"/Next %d 0 R" % numbers[at + 1] if at + 1 < len(marks) and not child_of_first else b""
        first = b"/First %d 0 R" % numbers[1] if child_of_first and at == 0 else b""
        pdf.objects[numbers[at] - 1] = b"<</Title(%s)/Parent %d 0 R/Dest[%d 0 R%s]%s%s>>" % (
            title.encode(),
            root,
            pdf.kids[page],
            fit,
            after,
            first,
        )
    pdf.objects[root - 1] = b"<</Type/Outlines/First %d 0 R/Last %d 0 R/Count %d>>" % (
        numbers[0],
        numbers[-1],
        len(marks),
    )
    pdf.catalog = b"/Outlines %d 0 R" % root
    return pdf


def test_bookmarks_are_headings_at_the_line_that_bears_their_title(tmp_path: Path, engine: PdfEngine) -> None:
    parsed = read(tmp_path, bookmarked(("1 Results", 0, None), ("2  Outlook and Risks", 1, None)), engine=engine)

    assert parsed.map.headings == (
        Heading(parsed.text.index("1 Results"), 1, "1 Results"),
        Heading(parsed.text.index("2 Outlook"), 1, "2 Outlook and Risks"),
    )
    assert parsed.map.section(parsed.text.index("Costs fell")) == "1 Results"
    assert parsed.map.section(0) is None


def test_nested_bookmarks_give_the_path_of_a_section(tmp_path: Path, engine: PdfEngine) -> None:
    parsed = read(
        tmp_path, bookmarked(("1 Results", 0, None), ("1.1 Costs", 0, None), child_of_first=True), engine=engine
    )

    assert parsed.map.section(parsed.text.index("Costs fell")) == "1 Results > 1.1 Costs"


@pytest.mark.parametrize(
    ("title", "top", "line"),
    [
        ("1. Resultz", None, "1 Results"),  # the most similar line of the page
        ("Something quite different", 720, "1.1 Costs"),  # the first line below the point
        ("Something quite different", None, "Report"),  # the top of the page
    ],
)
def test_a_bookmark_without_its_title_on_the_page_finds_the_nearest_line(
    tmp_path: Path, title: str, top: int | None, line: str
) -> None:
    parsed = read(tmp_path, bookmarked((title, 0, top)))

    assert parsed.map.headings == (Heading(parsed.text.index(line), 1, title),)


@pytest.mark.parametrize(
    ("raw", "title"),
    [
        ("Supply  Agreement", "Supply Agreement"),
        ("Microsoft Word - Annual report 2023", "Annual report 2023"),
        ("Microsoft Word - contract_v3.doc", None),
        ("untitled", None),
        ("Untitled 3", None),
        ("Document1", None),
        ("report.indd", None),
        (r"C:\users\x\report", None),
        ("https://example.org/a", None),
        ("12345", None),
        ("", None),
        (None, None),
    ],
)
def test_the_title_of_the_file_counts_when_it_is_one(raw: str | None, title: str | None) -> None:
    assert sensible_title(raw) == title


def test_the_title_is_read_from_the_document_information(tmp_path: Path, engine: PdfEngine) -> None:
    pdf = pdf_of([lines(["Text"])])
    pdf.trailer = b"/Info %d 0 R" % pdf.add(b"<</Title(Supply Agreement\x00)>>")

    assert read(tmp_path, pdf, engine=engine).title == "Supply Agreement"


def test_a_scanned_page_is_reported_and_a_blank_one_too(tmp_path: Path, engine: PdfEngine) -> None:
    pdf = RawPdf()
    image = pdf.stream(
        b"\x00", b"/Type/XObject/Subtype/Image/Width 1/Height 1/ColorSpace/DeviceGray/BitsPerComponent 8"
    )
    pdf.page(lines(["Text"]))
    pdf.page(b"q 600 0 0 800 0 0 cm /Im Do Q", resources=b"/XObject<</Im %d 0 R>>" % image)
    pdf.page(b"")
    parsed = read(tmp_path, pdf, engine=engine)

    assert parsed.text == "Text\n\n"
    assert parsed.warnings == (
        "page 2 has no text: it needs OCR",
        "page 3 has no text: it needs OCR unless it is blank",
    )


def test_many_pages_without_text_are_reported_as_ranges(tmp_path: Path) -> None:
    parsed = read(tmp_path, pdf_of([b""] * 30 + [lines(["Text"])] + [b""]))

    assert parsed.warnings == (
        "pages 1–30 have no text: they need OCR unless they are blank",
        "page 32 has no text: it needs OCR unless it is blank",
    )


def test_a_page_that_cannot_be_parsed_leaves_the_others(tmp_path: Path) -> None:
    pdf = pdf_of([lines(["First"]), b"[" * 5_000, lines(["Third"])])
    parsed = read(tmp_path, pdf, engine="pypdf")

    assert parsed.text == "First\n\nThird"
    assert parsed.map.page(parsed.text.index("Third")) == 3
    (warning,) = parsed.warnings
    assert warning.startswith("page 2 was left out: pypdf cannot parse it (RecursionError")


def test_a_page_that_only_pypdf_itself_can_read_is_read(tmp_path: Path) -> None:
    parsed = read(tmp_path, pdf_of([lines(["First"]), b"/Odd Tf Td Tm " + lines(["Second"])]), engine="pypdf")

    assert parsed.text == "First\nSecond"
    assert parsed.warnings == ()


def test_text_can_always_be_encoded_and_holds_no_control_characters(tmp_path: Path) -> None:
    pdf = RawPdf()
    cmap = pdf.stream(
        b"begincmap 1 begincodespacerange <00> <ff> endcodespacerange "
        b"3 beginbfchar <41> <D800> <42> <0000> <43> <001B> endbfchar endcmap"
    )
    pdf.objects[2] = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode %d 0 R>>" % cmap
    pdf.page(show(50, 700, "xAyBzC"))
    text = read(tmp_path, pdf).text

    assert text.encode()
    assert "\x1b" not in text
    assert "\x00" not in text


def test_no_file_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="cannot be read: No such file"):
        read_pdf(tmp_path / "missing.pdf")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="not a regular file"):
        read_pdf(tmp_path)


def test_a_page_without_a_size_is_read(tmp_path: Path) -> None:
    pdf = pdf_of([lines(["Text"])])
    pdf.objects = [body.replace(b"/MediaBox[0 0 600 800]", b"/MediaBox(none)") for body in pdf.objects]

    assert read(tmp_path, pdf).text == "Text"


def test_an_empty_file_is_named_as_such(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"") == "the file is empty (0 bytes)"


def test_another_format_is_named_as_such(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"PK\x03\x04 something") == "this is not a PDF: it does not begin with %PDF-"


def test_a_pdf_without_pages_is_refused(tmp_path: Path, engine: PdfEngine) -> None:
    assert refusal(tmp_path, RawPdf(), engine=engine) == "the PDF has no pages"


def test_a_pdf_without_pages_is_not_refused_for_what_an_earlier_file_was(tmp_path: Path, engine: PdfEngine) -> None:
    assert "damaged" in refusal(tmp_path, b"%PDF-1.7 broken", engine=engine)
    assert refusal(tmp_path, RawPdf(), engine=engine) == "the PDF has no pages"


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
def test_a_truncated_file_is_refused_or_reported(tmp_path: Path, engine: PdfEngine, share: float) -> None:
    data = pdf_of(lines([f"Text {at}", "more"]) for at in range(9)).data()
    try:
        messages = read(tmp_path, data[: int(share * len(data))], engine=engine).warnings
    except ReadError as error:
        messages = (error.reason,)

    said = ("the file has no end mark: it may be truncated", "the PDF is damaged or truncated", "no page could be read")
    assert any(message.startswith(said) for message in messages)


def test_an_encrypted_file_opens_with_its_password(tmp_path: Path, engine: PdfEngine) -> None:
    data = encrypted("sesame")

    assert read(tmp_path, data, password="sesame", engine=engine).text == "A secret clause"
    assert refusal(tmp_path, data, engine=engine).startswith("the PDF is encrypted: give its password")
    assert "does not open it" in refusal(tmp_path, data, password="mustard", engine=engine)


def test_a_file_encrypted_without_a_user_password_opens_without_one(tmp_path: Path, engine: PdfEngine) -> None:
    assert read(tmp_path, encrypted(""), engine=engine).text == "A secret clause"


def test_a_missing_package_for_decryption_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DependencyError("cryptography>=3.1 is required for AES algorithm")

    monkeypatch.setattr(PdfReader, "decrypt", fail)
    assert "pip install cryptography" in refusal(tmp_path, encrypted("sesame"), password="sesame", engine="pypdf")


def test_a_password_does_not_hinder_a_file_without_one(tmp_path: Path, engine: PdfEngine) -> None:
    assert read(tmp_path, pdf_of([lines(["Open"])]), password="sesame", engine=engine).text == "Open"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ReadLimits(max_bytes=100), "has more than 100 bytes: split it into smaller files"),
        (ReadLimits(max_pages=2), "has more than 2 pages: split it into smaller files"),
        (ReadLimits(max_characters=15), "has more than 15 characters: split it into smaller files"),
        (ReadLimits(max_seconds=0), "parsing took longer than 0 seconds and was stopped"),
    ],
)
def test_a_limit_that_is_exceeded_is_named(tmp_path: Path, engine: PdfEngine, limits: ReadLimits, reason: str) -> None:
    pdf = pdf_of(lines([f"Page {word}"]) for word in ("one", "two", "three"))

    assert reason in refusal(tmp_path, pdf, limits=limits, engine=engine)


def test_scripts_from_right_to_left_are_read_by_pypdf_itself(tmp_path: Path) -> None:
    pdf = RawPdf()
    cmap = pdf.stream(
        b"begincmap 1 begincodespacerange <00> <ff> endcodespacerange "
        b"3 beginbfchar <41> <05D0> <42> <05D1> <43> <05D2> endbfchar endcmap"
    )
    pdf.objects[2] = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode %d 0 R>>" % cmap
    pdf.page(show(50, 700, "CBA") + show(50, 680, "BA"))
    text = read(tmp_path, pdf).text

    assert text == PdfReader(tmp_path / "a.pdf").pages[0].extract_text()
    assert text == "אבג\nאב"
