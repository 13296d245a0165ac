"""What one engine reads and the other does not: letters, spaces, digits, ligatures, marks, and weights of fonts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llama_index_contextual.readers.pdf import pdfium as pdf_pdfium
from llama_index_contextual.readers.pdf.engine import PageContent
from llama_index_contextual.readers.pdf.pdfium import PdfiumSource
from llama_index_contextual.readers.pdf.pypdf import PypdfSource
from llama_index_contextual.readers.pdf.reader import PdfEngine, read_pdf
from tests.support.pdf_files import RawPdf, lines, pdf_of, show

HELVETICA_WIDTHS = {"a": 556, "c": 500, "d": 556, "e": 556, "f": 278, "i": 222, "n": 556, "r": 333, "s": 500, "t": 278}


@pytest.fixture(params=["pypdf", "pdfium"])
def engine(request: pytest.FixtureRequest) -> PdfEngine:
    """Both engines."""
    name: PdfEngine = request.param
    return name


def text_of(folder: Path, pdf: RawPdf, engine: PdfEngine = "pdfium") -> str:
    path = folder / "a.pdf"
    path.write_bytes(pdf.data())
    return read_pdf(path, engine=engine).text


def page_of(pdf: RawPdf, engine: PdfEngine) -> PageContent:
    source = (PdfiumSource if engine == "pdfium" else PypdfSource)(Path("a.pdf"), pdf.data(), None)
    try:
        return source.page(0)
    finally:
        source.close()


def letter_by_letter(x: float, y: float, text: str, *, size: float = 10, kerned: float = 0.0) -> bytes:
    """Return the operators that draw each letter by itself; equal letters stand closer by a share of their width."""
    out = b""
    for letter, following in zip(text, [*text[1:], ""], strict=True):
        if letter != " ":
            out += show(x, y, letter, size=size)
        width = HELVETICA_WIDTHS.get(letter, 278) * size / 1000
        x += width * (1 - kerned if letter == following else 1)
    return out


def test_the_second_of_two_equal_letters_drawn_one_by_one_is_kept(tmp_path: Path, engine: PdfEngine) -> None:
    pdf = pdf_of([letter_by_letter(50, 700, "different effects and affairs", kerned=0.2)])

    assert text_of(tmp_path, pdf, engine) == "different effects and affairs"


def test_a_letter_drawn_twice_to_look_bold_is_one_letter(tmp_path: Path, engine: PdfEngine) -> None:
    twice = b"".join(show(50 + shift, 700, "Bold effect", size=10) for shift in (0, 0.3))

    assert text_of(tmp_path, pdf_of([twice]), engine) == "Bold effect"


def test_a_page_that_pdfium_cannot_decode_is_taken_from_pypdf(tmp_path: Path) -> None:
    pdf = RawPdf()
    cmap = pdf.stream(
        b"begincmap 1 begincodespacerange <00> <ff> endcodespacerange "
        b"2 beginbfchar <61> <E001> <62> <FFFD> endbfchar endcmap"
    )
    pdf.objects[2] = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode %d 0 R>>" % cmap
    pdf.page(show(50, 700, "abab words"))
    pages: list[int] = []

    class Second(PypdfSource):
        def page(self, index: int) -> PageContent:
            pages.append(index)
            return super().page(index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdf_pdfium, "PypdfSource", Second)
        assert text_of(tmp_path, pdf).endswith("words")
    assert pages == [0]


def test_letters_without_an_entry_in_the_character_map_are_read(tmp_path: Path) -> None:
    pdf = RawPdf()
    cmap = pdf.stream(
        b"begincmap 1 begincodespacerange <00> <ff> endcodespacerange 1 beginbfchar <53> <0053> endbfchar endcmap"
    )
    pdf.objects[2] = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding/ToUnicode %d 0 R>>" % cmap
    pdf.page(show(50, 700, "Second"))

    assert text_of(tmp_path, pdf) == "Second"


def test_kerned_capitals_are_one_word(tmp_path: Path, engine: PdfEngine) -> None:
    content = b"BT /F1 10 Tf 50 700 Td [(V) 140 (oting under HIP) 150 (AA)] TJ ET "
    pieces = show(50, 680, "V") + show(50 + 6.67 - 1.5, 680, "oting")

    assert text_of(tmp_path, pdf_of([content + pieces]), engine) == "Voting under HIPAA\nVoting"


def test_spaced_digits_are_one_number(tmp_path: Path, engine: PdfEngine) -> None:
    content = b"BT /F1 10 Tf 0.4 Tc 50 700 Td (March 31, ) Tj [(2) -40 (0) -40 (2) -40 (1)] TJ ET"

    assert text_of(tmp_path, pdf_of([content]), engine) == "March 31, 2021"


def test_ligatures_are_letters(tmp_path: Path, engine: PdfEngine) -> None:
    pdf = RawPdf()
    pdf.objects[2] = (
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding<</Type/Encoding"
        b"/BaseEncoding/WinAnsiEncoding/Differences[1/fi/fl]>>>>"
    )
    pdf.page(b"BT /F1 10 Tf 50 700 Td (The of\\001ce \\002oor) Tj ET")

    assert text_of(tmp_path, pdf, engine) == "The office floor"


def test_a_raised_mark_is_part_of_its_line(tmp_path: Path, engine: PdfEngine) -> None:
    content = show(50, 700, "Revenues") + show(95, 704, "(a)", size=6) + show(200, 700, "1,234")

    assert text_of(tmp_path, pdf_of([content]), engine).split() == ["Revenues(a)", "1,234"]


def test_footnote_marks_drawn_after_the_text_stand_at_their_words(tmp_path: Path, engine: PdfEngine) -> None:
    text = (
        show(50, 700, "Revenues")
        + show(106, 700, "rose in 2021.")
        + show(50, 680, "Other costs")
        + show(50, 660, "Taxes")
    )
    marks = show(95.2, 704, "(a)", size=6) + show(101.4, 684, "(b)", size=6)

    assert text_of(tmp_path, pdf_of([text + marks]), engine) == "Revenues(a) rose in 2021.\nOther costs(b)\nTaxes"


def test_a_space_that_a_font_decodes_as_a_line_feed_is_a_space(tmp_path: Path) -> None:
    pdf = RawPdf()
    cmap = pdf.stream(
        b"begincmap 1 begincodespacerange <00> <ff> endcodespacerange 1 beginbfchar <20> <000A> endbfchar "
        b"1 beginbfrange <61> <7a> <0061> endbfrange endcmap"
    )
    pdf.objects[2] = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding/ToUnicode %d 0 R>>" % cmap
    pdf.page(lines(["results of operations", "and other risks"]))

    assert text_of(tmp_path, pdf) == "results of operations\nand other risks"


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
def test_bold_lines_are_known(name: bytes, entries: bytes, is_bold: bool, engine: PdfEngine) -> None:
    pdf = RawPdf()
    described = pdf.add(b"<</Type/FontDescriptor/FontName/%s%s>>" % (name, entries))
    pdf.objects[2] = (
        b"<</Type/Font/Subtype/TrueType/BaseFont/%s/Encoding/WinAnsiEncoding/FirstChar 32/LastChar 126/Widths[%s]"
        b"/FontDescriptor %d 0 R>>" % (name, b" ".join([b"500"] * 95), described)
    )
    pdf.page(show(50, 700, "Item 7. Discussion"))
    (line,) = page_of(pdf, engine).lines

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

    assert (line.size, line.x0, line.y) == pytest.approx((20, 50, 700), abs=0.01)


def test_pages_of_both_engines_have_the_same_lines_in_the_same_places() -> None:
    rows = ["The Company leases two buildings.", "It may end the lease after ten years."]
    table = b"".join(show(50, 600 - 14 * at, f"Row {at}") + show(300, 600 - 14 * at, f"{at},000") for at in range(4))
    turned = b"BT /F1 10 Tf 0 1 -1 0 550 100 Tm (turned by ninety degrees) Tj ET "
    pdf = pdf_of([lines(rows) + table + turned])
    one, other = page_of(pdf, "pypdf"), page_of(pdf, "pdfium")

    assert [(line.text, line.cells) for line in one.lines] == [(line.text, line.cells) for line in other.lines]
    for mine, theirs in zip(one.lines, other.lines, strict=True):
        assert (mine.x0, mine.x1, mine.size) == pytest.approx((theirs.x0, theirs.x1, theirs.size), abs=0.2)
        assert mine.y == pytest.approx(theirs.y, abs=0.01, nan_ok=True)
    assert one.span == other.span
