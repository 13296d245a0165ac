"""Text layers that pdfium decodes wrongly: letters apart, fonts without Unicode, accents drawn over letters."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fpdf import FPDF

from llama_index_contextual.readers.files import ParsedFile
from llama_index_contextual.readers.pdf.layers import find_false_spaces
from tests.support.pdf_files import RawPdf, lines, pdf_of, read_pdf, show

TEXTS = ["The Metropolis of Milan is filled with little villas", "and the tall hill is still till the fall of the year"]
WHOLE = " ".join(TEXTS)


def read(folder: Path, pdf: RawPdf) -> ParsedFile:
    path = folder / "page.pdf"
    path.write_bytes(pdf.data())
    return read_pdf(path)


def drawn_apart(text: str, y: float, *, pitch: float | None, tracking: float = 0, draws_spaces: bool) -> bytes:
    """Draw each letter on its own, at a fixed distance or at a fixed gap from the letter before it."""
    measure = FPDF(unit="pt")
    measure.set_font("Helvetica", size=10)
    x, drawn = 50.0, []
    for char in text:
        if char != " " or draws_spaces:
            drawn.append(show(x, y, char))
        x += pitch if pitch is not None else measure.get_string_width(char) + tracking
    return b"".join(drawn)


@pytest.mark.parametrize("draws_spaces", [False, True])
@pytest.mark.parametrize(("pitch", "tracking"), [(5.0, 0), (6.0, 0), (7.0, 0), (8.0, 0), (None, 2.0), (None, 3.5)])
def test_letters_that_are_placed_one_by_one_are_words(
    tmp_path: Path, pitch: float | None, tracking: float, draws_spaces: bool
) -> None:
    content = (
        drawn_apart(text, 700 - 14 * at, pitch=pitch, tracking=tracking, draws_spaces=draws_spaces)
        for at, text in enumerate(TEXTS)
    )
    assert read(tmp_path, pdf_of([b"".join(content)])).text.replace("\n", " ") == WHOLE


def test_a_heading_with_wide_letters_is_words_above_a_text(tmp_path: Path) -> None:
    heading = drawn_apart("SUPPLY AGREEMENT", 740, pitch=None, tracking=4, draws_spaces=False)
    assert read(tmp_path, pdf_of([heading + lines(TEXTS, top=700)])).text.splitlines()[0] == "SUPPLY AGREEMENT"


@pytest.mark.parametrize(
    "text", ["the sum of a x and b y is c z in every row", "Grades A B C D E are given", "a i o u are vowels"]
)
def test_words_of_one_letter_are_words(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, pdf_of([lines([text])])).text == text


def without_unicode(shown: list[str]) -> RawPdf:
    """Return a PDF whose font has numbers of glyphs, and no Unicode characters for them."""
    pdf = RawPdf()
    name = b"/BaseFont/ABCDEF+Sans"
    about = pdf.add(
        b"<</Type/FontDescriptor/FontName/ABCDEF+Sans/Flags 4/FontBBox[0 0 1000 1000]/Ascent 800/Descent -200"
        b"/CapHeight 700/StemV 80/ItalicAngle 0>>"
    )
    system = b"/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>"
    below = pdf.add(b"<</Type/Font/Subtype/CIDFontType2%s%s/FontDescriptor %d 0 R/DW 500>>" % (name, system, about))
    font = b"<</Type/Font/Subtype/Type0%s/Encoding/Identity-H/DescendantFonts[%d 0 R]>>" % (name, below)
    glyphs = ("".join(f"{ord(char) - 29:04x}" for char in text).encode() for text in shown)
    content = (b"BT /F2 10 Tf 50 %d Td <%s> Tj ET\n" % (700 - 14 * at, text) for at, text in enumerate(glyphs))
    number = pdf.add(font)
    pdf.page(b"".join(content) + show(50, 760, "PARTIES"), resources=b"/Font<</F1 3 0 R/F2 %d 0 R>>" % number)
    return pdf


def mapped(content: bytes, entries: bytes) -> RawPdf:
    """Return a PDF whose font maps its characters as given."""
    pdf = RawPdf()
    cmap = pdf.stream(b"begincmap 1 begincodespacerange <00> <ff> endcodespacerange %s endcmap" % entries)
    pdf.objects[2] = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode %d 0 R>>" % cmap
    pdf.page(content)
    return pdf


def test_numbers_of_glyphs_are_read_as_the_letters_that_they_show(tmp_path: Path) -> None:
    assert read(tmp_path, without_unicode(TEXTS)).text == f"PARTIES\n{WHOLE}"


def test_letters_in_the_private_use_area_are_read(tmp_path: Path) -> None:
    pdf = mapped(lines(TEXTS), b"1 beginbfrange <20> <7e> <F020> endbfrange")
    assert read(tmp_path, pdf).text == WHOLE


SENTENCE = "The e~cient o~ce is ~nal and the rent is due on the fifth day of each month"


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (b"<7e> <F001>", SENTENCE.replace("~c", "fic").replace("~n", "fin")),
        (b"<7e> <F002>", SENTENCE.replace("~c", "flc").replace("~n", "fln")),
        (b"<7e> <F730>", SENTENCE.replace("~", "0")),
        (b"<7e> <F77A>", SENTENCE.replace("~", "Z")),
        (b"<7e> <D835DC65>", SENTENCE.replace("~", "\U0001d465")),
        (b"<7e> <006600660069>", SENTENCE.replace("~", "ffi")),
    ],
)
def test_ligatures_old_style_digits_small_capitals_and_letters_of_formulas_are_read(
    tmp_path: Path, entries: bytes, text: str
) -> None:
    parsed = read(tmp_path, mapped(lines([SENTENCE]), b"1 beginbfchar %s endbfchar" % entries))
    assert (parsed.text, parsed.warnings) == (text, ())


@pytest.mark.parametrize("code", [b"0000", b"FFFD", b"E039", b"F8E5"])
@pytest.mark.parametrize("text", ["The e~cient o~ce in the ma~er", "Rent 1~00 EUR, fee 2~5 EUR and 7~5 EUR"])
def test_letters_and_digits_inside_words_that_are_lost_are_counted(tmp_path: Path, code: bytes, text: str) -> None:
    (warning,) = read(tmp_path, mapped(lines([text]), b"1 beginbfchar <7e> <%s> endbfchar" % code)).warnings
    assert warning.startswith("3 letters on page 1 cannot be decoded")


@pytest.mark.parametrize("code", [b"F0B7", b"F0D4"])
def test_bullets_and_signs_beside_words_are_not_lost_letters(tmp_path: Path, code: bytes) -> None:
    pdf = mapped(lines(["~ First", "~Second", "Third~ and more"]), b"1 beginbfchar <7e> <%s> endbfchar" % code)
    assert not read(tmp_path, pdf).warnings


def test_a_hyphen_at_the_end_of_a_line_is_not_a_lost_letter(tmp_path: Path) -> None:
    parsed = read(tmp_path, pdf_of([lines(["The parties agree that this agree-", "ment ends on the last day."])]))
    assert (parsed.text, parsed.warnings) == ("The parties agree that this agree-ment ends on the last day.", ())


def test_a_page_without_any_unicode_needs_ocr_and_says_so(tmp_path: Path) -> None:
    unknown = b" ".join(b"<%02x> <FFFD>" % code for code in range(0x41, 0x7B))
    pdf = mapped(lines(TEXTS), b"58 beginbfchar %s endbfchar" % unknown)
    pdf.page(lines(["1 2 3"]))
    parsed = read(tmp_path, pdf)

    assert parsed.text == "\n1 2 3"
    assert parsed.warnings == (
        "page 1 has no text: it needs OCR",
        "the text of page 1 was left out: the fonts do not say which letters they show",
    )


def test_letters_without_unicode_are_counted(tmp_path: Path) -> None:
    pdf = RawPdf()
    pdf.objects[2] = (
        b"<</Type/Font/Subtype/Type1/BaseFont/ABCDEF+Sans/Encoding<</BaseEncoding/WinAnsiEncoding/Differences[1/g1/g3"
        b" 3/g7]>>>>"
    )
    pdf.page(b"BT /F1 10 Tf 50 700 Td (o\x01ce and \x03nal and \x01uent) Tj ET")
    (warning,) = read(tmp_path, pdf).warnings

    assert warning.startswith(
        "3 letters on page 1 cannot be decoded: the fonts do not say which letters they show; try"
    )


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (rb"(M) (\250) 333 (u) (ller and others)", "Müller and others"),
        (rb"(caf) (\264) 333 (e) ( and others)", "café and others"),
        (rb"(gar) (c) 500 (\270) -167 (on and others)", "garçon and others"),
        (rb"(see \250 and \264 above)", "see ¨ and ´ above"),
        (rb"(the `root' of the tree)", "the `root' of the tree"),
    ],
)
def test_an_accent_that_is_drawn_over_a_letter_belongs_to_it(tmp_path: Path, pieces: bytes, text: str) -> None:
    assert read(tmp_path, pdf_of([b"BT /F1 10 Tf 50 700 Td [%s] TJ ET" % pieces])).text == text


def test_letters_apart_take_no_longer_than_their_number() -> None:
    def seconds(count: int) -> float:
        text = "a b " * count
        start = time.process_time()
        find_false_spaces(text, lambda at: 1, lambda at: (5.0 * at, 0.0, 5.0 * at + 4, 10.0))
        return time.process_time() - start

    assert min(seconds(16_000) for _ in range(3)) < 8 * min(seconds(4_000) for _ in range(3)) + 0.01
