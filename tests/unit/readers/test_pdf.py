"""`read_pdf` as its callers see it: text, pages, labels, headings, title, warnings, limits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader
from pypdf.errors import DependencyError

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.files import ParsedFile, ReadLimits
from llama_index_contextual.readers.pdf.pages import PageContent, PdfEngine
from llama_index_contextual.readers.pdf.pdfium import PdfiumSource
from llama_index_contextual.readers.pdf.pypdf import PypdfSource
from llama_index_contextual.readers.pdf.title import sensible_title
from tests.integration.readers.pdf_sample import sample
from tests.support.pdf_files import RawPdf, encrypted, lines, pdf_of, read_pdf, show
from tests.support.shared import shared_data
from tests.support.source import ROOT


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


def test_page_numbers_in_the_footer_are_labels_where_the_file_has_none(tmp_path: Path, engine: PdfEngine) -> None:
    words = ("apples", "plums", "pears", "figs")
    pdf = pdf_of(lines([f"About {word}"]) + show(290, 30, f"- {at} -") for at, word in enumerate(words, 17))
    parsed = read(tmp_path, pdf, engine=engine)

    assert parsed.text == "About apples\nAbout plums\nAbout pears\nAbout figs"
    assert parsed.map.page_labels == ("17", "18", "19", "20")
    assert dict(parsed.metadata) == {}


@pytest.mark.parametrize(
    ("raw", "title"),
    [
        ("Supply  Agreement", "Supply Agreement"),
        ("Microsoft Word - Annual report 2023", "Annual report 2023"),
        ("Microsoft Word - contract_v3.doc", None),
        ("untitled", None),
        (r"C:\users\x\report", None),
        ("12345", None),
        (None, None),
    ],
)
def test_the_title_of_the_file_counts_when_it_is_one(raw: str | None, title: str | None) -> None:
    assert sensible_title(raw) == title


def test_many_pages_without_text_are_reported_as_ranges(tmp_path: Path) -> None:
    parsed = read(tmp_path, pdf_of([b""] * 30 + [lines(["Text"])] + [b""]))

    assert parsed.warnings == ("pages 1–30, 32 have no text: they need OCR unless blank",)


def test_a_page_that_cannot_be_parsed_leaves_the_others(tmp_path: Path) -> None:
    pdf = pdf_of([lines(["First"]), b"[" * 5_000, lines(["Third"])])
    parsed = read(tmp_path, pdf, engine="pypdf")

    assert parsed.text == "First\n\nThird"
    assert parsed.map.page(parsed.text.index("Third")) == 3
    (warning,) = parsed.warnings
    assert warning.startswith("page 2 was left out: pypdf cannot parse it (RecursionError")


def test_a_page_without_a_size_is_read(tmp_path: Path) -> None:
    pdf = pdf_of([lines(["Text"])])
    pdf.objects = [body.replace(b"/MediaBox[0 0 600 800]", b"/MediaBox(none)") for body in pdf.objects]

    assert read(tmp_path, pdf).text == "Text"


def mapped(content: bytes, *entries: bytes, ranges: bytes = b"", encoding: bytes = b"") -> RawPdf:
    """Return a PDF whose font maps these codes to other characters."""
    pdf = RawPdf()
    cmap = pdf.stream(
        b"begincmap 1 begincodespacerange <00> <ff> endcodespacerange %d beginbfchar %s endbfchar %sendcmap"
        % (len(entries), b" ".join(entries), ranges)
    )
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica%s/ToUnicode %d 0 R>>"
    pdf.objects[2] = font % (encoding, cmap)
    pdf.page(content)
    return pdf


def test_text_can_always_be_encoded_and_holds_no_control_characters(tmp_path: Path) -> None:
    text = read(tmp_path, mapped(show(50, 700, "xAyBzC"), b"<41> <D800>", b"<42> <0000>", b"<43> <001B>")).text

    assert text.encode()
    assert "\x1b" not in text
    assert "\x00" not in text


def test_scripts_from_right_to_left_are_read_in_their_order(tmp_path: Path) -> None:
    content = show(50, 700, "CBA") + show(50, 680, "BA")
    pdf = mapped(content, b"<41> <05D0>", b"<42> <05D1>", b"<43> <05D2>")

    assert read(tmp_path, pdf).text == "אבג\nאב"


def test_what_is_no_pdf_is_named_as_such(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"") == "the file is empty (0 bytes)"
    assert refusal(tmp_path, b"PK\x03\x04 something") == "this is not a PDF: it does not begin with %PDF-"
    for path, reason in ((tmp_path, "not a regular file"), (tmp_path / "missing.pdf", "cannot be read: No such file")):
        with pytest.raises(ReadError, match=reason):
            read_pdf(path)


def test_a_broken_pdf_and_one_without_pages_are_refused(tmp_path: Path, engine: PdfEngine) -> None:
    assert "damaged" in refusal(tmp_path, b"%PDF-1.7 broken", engine=engine)
    assert refusal(tmp_path, RawPdf(), engine=engine).startswith("the PDF ")


@pytest.mark.parametrize("share", [0.3, 0.9])
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
    assert read(tmp_path, encrypted(""), engine=engine).text == "A secret clause", "it has no user password"
    assert refusal(tmp_path, data, engine=engine).startswith("the PDF is encrypted: give its password")
    assert "does not open it" in refusal(tmp_path, data, password="mustard", engine=engine)


def test_a_missing_package_for_decryption_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DependencyError("cryptography>=3.1 is required for AES algorithm")

    monkeypatch.setattr(PdfReader, "decrypt", fail)
    assert "pip install cryptography" in refusal(tmp_path, encrypted("sesame"), password="sesame", engine="pypdf")


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


# ---- letters, spaces, digits, ligatures, marks, and weights of fonts, read by the default engine ---------------------


def page_of(pdf: RawPdf, engine: PdfEngine = "pdfium") -> PageContent:
    source = (PdfiumSource if engine == "pdfium" else PypdfSource)(Path("a.pdf"), pdf.data(), None)
    try:
        return source.page(0)
    finally:
        source.close()


def drawn_twice(text: str) -> bytes:
    return b"".join(show(50 + shift, 700, text, size=10) for shift in (0, 0.3))


KERNED = b"BT /F1 10 Tf 50 700 Td [(V) 140 (oting under HIP) 150 (AA)] TJ ET "
SPACED = b"BT /F1 10 Tf 0.4 Tc 50 700 Td (March 31, ) Tj [(2) -40 (0) -40 (2) -40 (1)] TJ ET"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (drawn_twice("Bold effect"), "Bold effect"),
        (KERNED + show(50, 680, "V") + show(50 + 6.67 - 1.5, 680, "oting"), "Voting under HIPAA\nVoting"),
        (SPACED, "March 31, 2021"),
    ],
    ids=["drawn twice to look bold", "kerned", "spaced digits"],
)
def test_letters_are_words_however_they_are_drawn(tmp_path: Path, content: bytes, text: str) -> None:
    assert read(tmp_path, pdf_of([content])).text == text


@pytest.mark.parametrize(
    ("texts", "entry", "ranges"),
    [
        (["Second"], b"<53> <0053>", b""),
        (["results of operations", "and other risks"], b"<20> <000A>", b"1 beginbfrange <61> <7a> <0061> endbfrange "),
    ],
    ids=["letters without an entry", "a space that is decoded as a line feed"],
)
def test_incomplete_and_odd_character_maps_do_no_harm(
    tmp_path: Path, texts: list[str], entry: bytes, ranges: bytes
) -> None:
    pdf = mapped(lines(texts), entry, ranges=ranges, encoding=b"/Encoding/WinAnsiEncoding")
    assert read(tmp_path, pdf, engine="pdfium").text == "\n".join(texts)


@pytest.mark.parametrize(
    ("name", "entries", "is_bold"),
    [
        (b"ABCDEF+Arial-BoldMT", b"", True),
        (b"ABCDEF+Arial,Bold", b"", True),
        (b"ABCDEF+Arial", b"/Flags 262176", True),
        (b"ABCDEF+Arial", b"/Flags 32", False),
        (b"ABCDEF+Arial-ItalicMT", b"/Flags 32/StemV 100", False),
    ],
)
def test_bold_lines_are_known(name: bytes, entries: bytes, is_bold: bool) -> None:
    pdf = RawPdf()
    described = pdf.add(b"<</Type/FontDescriptor/FontName/%s%s>>" % (name, entries))
    pdf.objects[2] = (
        b"<</Type/Font/Subtype/TrueType/BaseFont/%s/Encoding/WinAnsiEncoding/FirstChar 32/LastChar 126/Widths[%s]"
        b"/FontDescriptor %d 0 R>>" % (name, b" ".join([b"500"] * 95), described)
    )
    pdf.page(show(50, 700, "Item 7. Discussion"))
    (line,) = page_of(pdf).lines

    assert line.bold is is_bold


@pytest.mark.parametrize(
    "draw",
    [
        lambda: show(50, 700, "Large", size=20),
        lambda: b"BT /F1 1 Tf 20 0 0 20 50 700 Tm (Large) Tj ET",
        lambda: b"q 2 0 0 2 0 0 cm BT /F1 10 Tf 25 350 Td (Large) Tj ET Q",
    ],
)
def test_sizes_are_those_on_the_page(draw: Callable[[], bytes], engine: PdfEngine) -> None:
    (line,) = page_of(pdf_of([draw()]), engine).lines

    assert (line.size, line.y) == pytest.approx((20, 700), abs=0.01)


# ---- one PDF with everything in it, and what is read from it, to the character ---------------------------------------


FLAG = "LLAMA_INDEX_CONTEXTUAL_REGENERATE"
PDF = ROOT / "tests" / "data" / "lease.pdf"
GOLDEN = PDF.with_suffix(".pdf.json")


def reading(engine: PdfEngine = "pdfium") -> dict[str, Any]:
    parsed = read_pdf(PDF, engine=engine)
    return {
        "text": parsed.text.split("\n"),
        "page_starts": list(parsed.map.page_starts),
        "page_labels": list(parsed.map.page_labels),
        "headings": [asdict(heading) for heading in parsed.map.headings],
        "title": parsed.title,
        "warnings": list(parsed.warnings),
        "metadata": dict(parsed.metadata),
    }


def test_the_sample_is_read_as_before() -> None:
    if os.environ.get(FLAG):
        PDF.write_bytes(sample())
        GOLDEN.write_text(json.dumps(reading(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    assert reading() == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_files_are_not_being_regenerated() -> None:
    assert not os.environ.get(FLAG), f"{FLAG} is set: the golden files were just written, not checked. Unset it."


def test_the_stored_pdf_is_the_one_that_the_code_makes() -> None:
    assert PDF.read_bytes() == sample()


def test_the_other_engine_reads_the_same_words() -> None:
    golden, other = json.loads(GOLDEN.read_text(encoding="utf-8")), reading("pypdf")

    assert sorted(" ".join(other["text"]).split()) == sorted(" ".join(golden["text"]).split())
    assert other["page_labels"] == golden["page_labels"]
    assert other["warnings"] == golden["warnings"]
    assert other["metadata"] == golden["metadata"]
    assert [heading["title"] for heading in other["headings"]] == [heading["title"] for heading in golden["headings"]]


# ---- real contracts: the clauses that lawyers marked are in the text -------------------------------------------------


NAMES = ("OAKTREE", "IdeanomicsInc", "COOLTECHNOLOGIES", "JOINTCORP_09", "TRANSPHORM")


@pytest.fixture(scope="module")
def folder() -> Path:
    return shared_data("contracts")


def letters(text: str) -> str:
    """The text without white space, hyphens and other signs, in lower case."""
    return "".join(re.findall(r"\w+", text.lower()))


@pytest.mark.parametrize("name", NAMES)
def test_every_marked_clause_is_found_in_the_text(folder: Path, name: str) -> None:
    (path,) = (folder / "pdf").glob(f"{name}*")
    rows = map(json.loads, (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines())
    clauses = {clause for row in rows if row["file"] == path.name for clause in row["evidence"]}
    text = letters(read_pdf(path).text)

    assert clauses
    assert [clause for clause in clauses if letters(clause) not in text] == []
