"""What belongs to a page: its visible text, the values of forms, notes, raised digits, and text in other directions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llama_index_contextual.readers.files import ParsedFile
from tests.support.pdf_files import RawPdf, lines, read_pdf, show

BODY = ["The tenant keeps the premises in good repair and", "reports every defect within a week of its discovery."]


def read(path: Path, pdf: RawPdf) -> ParsedFile:
    path.write_bytes(pdf.data())
    return read_pdf(path)


def turned(x: float, y: float, text: str, degrees: float, size: float) -> bytes:
    along, across = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    numbers = b"%.4f %.4f %.4f %.4f %g %g" % (along, across, -across, along, x, y)
    return b"BT /F1 %g Tf %s Tm (%s) Tj ET\n" % (size, numbers, text.encode("cp1252"))


# ---- raised digits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "raised", "after", "text"),
    [
        ("holds 10", "6", " litres", "holds 10^6 litres"),
        ("holds (10", "6", ") litres", "holds (10^6) litres"),
        ("was 45", "3", ", a record", "was 45^3, a record"),
        ("about 10", "-3", " metres", "about 10^-3 metres"),
        ("the 1", "st", " of May", "the 1st of May"),
        ("two parts.", "1", " The first", "two parts.1 The first"),
    ],
)
def test_raised_digits_are_not_digits_of_the_number_before_them(
    tmp_path: Path, before: str, raised: str, after: str, text: str
) -> None:
    pdf = RawPdf()
    shown = (part.replace("(", "\\(").replace(")", "\\)").encode() for part in (before, raised, after))
    pdf.page(b"BT /F1 10 Tf 50 700 Td (%s) Tj /F1 7 Tf 4 Ts (%s) Tj /F1 10 Tf 0 Ts (%s) Tj ET" % tuple(shown))

    assert read(tmp_path / "page.pdf", pdf).text == text


# ---- text in another direction ---------------------------------------------------------------------------------------


def test_a_stamp_in_the_margin_is_neither_title_nor_heading(tmp_path: Path) -> None:
    pdf = RawPdf()
    stamp = turned(20, 200, "Paper 2401.01234 v2 of January", 90, 24)
    pdf.page(show(50, 700, "A study of cranes", size=16) + lines(BODY, top=650) + stamp)
    parsed = read(tmp_path / "page.pdf", pdf)

    assert parsed.title == "A study of cranes"
    assert not any("Paper" in heading.title for heading in parsed.map.headings)
    assert parsed.text.endswith("Paper 2401.01234 v2 of January")


def test_a_watermark_does_not_interrupt_a_paragraph_and_is_read_once(tmp_path: Path) -> None:
    pdf = RawPdf()
    for _ in range(4):
        pdf.page(show(50, 700, BODY[0]) + turned(100, 300, "SECRET", 45, 60) + show(50, 686, BODY[1]))
    parsed = read(tmp_path / "page.pdf", pdf)

    assert parsed.text.count("SECRET") == 1
    assert parsed.text.count(" ".join(BODY)) == 4
    assert parsed.title is None


@pytest.mark.parametrize("is_first", [False, True])
def test_a_large_word_across_lines_is_neither_title_nor_heading(tmp_path: Path, is_first: bool) -> None:
    pdf = RawPdf()
    for number in range(2):
        text = lines(
            [f"Clause {number * 9 + at} is about the rent of rooms in the harbour." for at in range(9)], top=700
        )
        mark = show(100, 610, "DRAFT", size=90)
        pdf.page(mark + text if is_first else text + mark)
    parsed = read(tmp_path / "page.pdf", pdf)

    assert "DRAFT" in parsed.text
    assert parsed.title is None
    assert not parsed.map.headings


def test_a_large_initial_is_part_of_its_paragraph(tmp_path: Path) -> None:
    pdf = RawPdf()
    pdf.page(
        show(50, 672, "T", size=40) + lines(["he harbour is large", "and old; its cranes", "are new."], x=80, top=700)
    )

    assert read(tmp_path / "page.pdf", pdf).text.splitlines()[0].startswith("T")


# ---- the visible part of the page ------------------------------------------------------------------------------------


def test_text_outside_the_visible_page_is_not_read(tmp_path: Path) -> None:
    pdf = RawPdf()
    sheet = pdf.stream(lines(["The left page"], x=50) + lines(["The right page"], x=350))
    pdf.page(sheet, b"/CropBox[0 0 300 800]")
    pdf.page(sheet, b"/CropBox[300 0 600 800]")

    assert read(tmp_path / "spread.pdf", pdf).text.splitlines() == ["The left page", "The right page"]


def test_turned_pages_are_cropped_as_well(tmp_path: Path) -> None:
    pdf = RawPdf()
    sheet = pdf.stream(turned(100, 50, "Inside the page", 90, 10) + turned(500, 50, "Beyond the cut", 90, 10))
    pdf.page(sheet, b"/CropBox[0 0 300 800]/Rotate 90")

    assert read(tmp_path / "turned.pdf", pdf).text == "Inside the page"


# ---- forms, notes and embedded files ---------------------------------------------------------------------------------


def field(pdf: RawPdf, name: str, kind: bytes, box: tuple[int, int, int, int], more: bytes) -> int:
    entries = b"/Type/Annot/Subtype/Widget/F 4/T(%s)/FT/%s/Rect[%d %d %d %d]%s" % (name.encode(), kind, *box, more)
    return pdf.add(b"<<%s>>" % entries)


def form() -> RawPdf:
    pdf = RawPdf()
    content = show(50, 700, "Name:") + show(50, 670, "Amount:") + show(300, 670, "Insured:") + show(50, 640, "End.")
    fields = [
        field(pdf, "name", b"Tx", (120, 695, 280, 712), b"/V(Marigold Quarry)"),
        field(pdf, "amount", b"Tx", (120, 665, 280, 682), b"/V(18750)"),
        field(pdf, "insured", b"Btn", (350, 666, 362, 680), b"/V/Yes/AS/Yes"),
        field(pdf, "blank", b"Tx", (120, 635, 280, 652), b""),
        field(pdf, "hidden", b"Tx", (120, 605, 280, 622), b"/V(not shown)").real,
    ]
    pdf.objects[fields[-1] - 1] = pdf.objects[fields[-1] - 1].replace(b"/F 4", b"/F 2")
    references = b" ".join(b"%d 0 R" % number for number in fields)
    pdf.catalog = b"/AcroForm<</Fields[%s]/DA(/F1 10 Tf)/DR<</Font<</F1 3 0 R>>>>>>" % references
    pdf.page(content, b"/Annots[%s]" % references)
    return pdf


def test_the_values_of_a_form_stand_beside_their_labels(tmp_path: Path) -> None:
    assert read(tmp_path / "form.pdf", form()).text.splitlines() == [
        "Name: Marigold Quarry",
        "Amount: 18750 Insured: ☒",
        "End.",
    ]


def test_the_chosen_entries_of_lists_are_read_as_they_are_shown(tmp_path: Path) -> None:
    pdf = RawPdf()
    options = b"/Opt[[(de)(Germany)][(fr)(France)][(it)(Italy)]]"
    fields = [
        field(pdf, "country", b"Ch", (120, 695, 280, 712), b"/Ff 131072/V(fr)" + options),
        field(pdf, "branches", b"Ch", (120, 665, 280, 682), b"/Ff 2097152/V[(de)(it)]/I[0 2]" + options),
        field(pdf, "city", b"Ch", (120, 635, 280, 652), b"/Ff 393216/V(Bremen)" + options),
    ]
    references = b" ".join(b"%d 0 R" % number for number in fields)
    pdf.catalog = b"/AcroForm<</Fields[%s]/DA(/F1 10 Tf)>>" % references
    labels = show(50, 700, "Country:") + show(50, 670, "Branches:") + show(50, 640, "City:")
    pdf.page(labels, b"/Annots[%s]" % references)

    assert read(tmp_path / "form.pdf", pdf).text.splitlines() == [
        "Country: France",
        "Branches: Germany, Italy",
        "City: Bremen",
    ]


def test_stamps_and_signatures_are_read_if_only_their_appearance_has_text(tmp_path: Path) -> None:
    pdf = RawPdf()
    drawn = b"/Type/XObject/Subtype/Form/BBox[0 0 200 20]/Resources<</Font<</F1 3 0 R>>>>"
    stamp, signature, note = (pdf.stream(show(2, 5, text), drawn) for text in ("PAID 3 June", "Signed by Ada", "twice"))
    box = b"<</Type/Annot/Subtype/%s/F %d/Rect[%d %d %d %d]/AP<</N %d 0 R>>%s>>"
    annotations = [
        pdf.add(box % (b"Stamp", 4, 300, 740, 500, 760, stamp, b"")),
        pdf.add(box % (b"Widget", 4, 50, 100, 250, 120, signature, b"/FT/Sig/T(s)")),
        pdf.add(box % (b"FreeText", 4, 50, 600, 250, 620, note, b"/Contents(typed 7788)")),
        pdf.add(box % (b"Stamp", 2, 50, 500, 250, 520, note, b"")),
    ]
    references = b" ".join(b"%d 0 R" % number for number in annotations)
    pdf.catalog = b"/AcroForm<</Fields[%d 0 R]>>" % annotations[1]
    pdf.page(lines(BODY, top=700), b"/Annots[%s]" % references)
    text = read(tmp_path / "stamped.pdf", pdf).text

    assert {"PAID 3 June", "Signed by Ada", "typed 7788", " ".join(BODY)} == set(text.splitlines())


def test_a_file_that_is_attached_to_a_page_is_named_in_a_warning(tmp_path: Path) -> None:
    pdf = RawPdf()
    data = pdf.stream(b"item,price", b"/Type/EmbeddedFile")
    spec = pdf.add(b"<</Type/Filespec/F(prices.csv)/UF(prices.csv)/EF<</F %d 0 R>>>>" % data)
    pin = pdf.add(b"<</Type/Annot/Subtype/FileAttachment/Rect[9 9 29 29]/Contents(our prices)/FS %d 0 R>>" % spec)
    pdf.page(lines(BODY), b"/Annots[%d 0 R]" % pin)
    parsed = read(tmp_path / "letter.pdf", pdf)

    assert parsed.text.endswith("our prices")
    assert parsed.warnings == ("1 embedded file is not read: save and ingest 'prices.csv'",)


def test_notes_are_read_and_highlighted_text_is_not_repeated(tmp_path: Path) -> None:
    pdf = RawPdf()
    notes = [
        pdf.add(b"<</Type/Annot/Subtype/Text/Rect[400 690 420 710]/Contents(approve after 12 May)>>"),
        pdf.add(b"<</Type/Annot/Subtype/Highlight/Rect[50 690 200 710]/Contents(keeps the premises)>>"),
        pdf.add(b"<</Type/Annot/Subtype/FreeText/Rect[50 600 300 615]/DA(/F1 9 Tf)/Contents(reference 5519)>>"),
    ]
    pdf.page(lines(BODY, top=700), b"/Annots[%s]" % b" ".join(b"%d 0 R" % number for number in notes))
    text = read(tmp_path / "notes.pdf", pdf).text

    assert text.splitlines()[0] == " ".join(BODY)
    assert {"approve after 12 May", "reference 5519"} <= set(text.splitlines())
    assert text.count("keeps the premises") == 1


@pytest.mark.parametrize("engine", ["pdfium", "pypdf"])
def test_embedded_files_are_named_in_a_warning(tmp_path: Path, engine: str) -> None:
    pdf = RawPdf()
    data = pdf.stream(b"item,price", b"/Type/EmbeddedFile")
    spec = pdf.add(b"<</Type/Filespec/F(prices.csv)/UF(prices.csv)/EF<</F %d 0 R>>>>" % data)
    pdf.catalog = b"/Names<</EmbeddedFiles<</Names[(prices.csv) %d 0 R]>>>>" % spec
    pdf.page(lines(BODY))
    (tmp_path / "letter.pdf").write_bytes(pdf.data())

    assert read_pdf(tmp_path / "letter.pdf", engine=engine).warnings == (
        "1 embedded file is not read: save and ingest 'prices.csv'",
    )


@pytest.mark.parametrize("engine", ["pdfium", "pypdf"])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_form_of_which_only_a_notice_is_shown_is_reported(tmp_path: Path, engine: str, is_dynamic: bool) -> None:
    pdf = RawPdf()
    template = pdf.stream(b"<xdp:xdp xmlns:xdp='http://ns.adobe.com/xdp/'/>")
    pdf.catalog = b"/AcroForm<</Fields[]/XFA %d 0 R>>%s" % (template, b"/NeedsRendering true" if is_dynamic else b"")
    pdf.page(lines(["Please wait..."]))
    (tmp_path / "form.pdf").write_bytes(pdf.data())
    warnings = read_pdf(tmp_path / "form.pdf", engine=engine).warnings

    assert [warning.partition(",")[0] for warning in warnings] == ["the file is an XFA form"] * is_dynamic


# ---- pictures with a stamp -------------------------------------------------------------------------------------------


def scan(pdf: RawPdf, share: float, text: bytes) -> None:
    image = pdf.stream(
        b"\x80", b"/Type/XObject/Subtype/Image/Width 1/Height 1/ColorSpace/DeviceGray/BitsPerComponent 8"
    )
    content = b"q %g 0 0 800 0 0 cm /Im Do Q\n" % (600 * share) + text
    pdf.page(content, resources=b"/Font<</F1 3 0 R>>/XObject<</Im %d 0 R>>" % image)


@pytest.mark.parametrize(
    ("share", "texts", "covered"),
    [
        (0.9, ["ACME-0002"], (1,)),
        (0.3, ["ACME-0002"], (1,)),
        (0.1, ["ACME-0002"], ()),
        (0.3, [" "] * 6 + ["ACME-0002"], ()),
        (0.9, [" ".join(BODY)] * 3, (1,)),
        (0.9, BODY * 6, ()),
    ],
)
def test_a_page_that_a_picture_covers_needs_ocr_unless_it_has_text(
    tmp_path: Path, share: float, texts: list[str], covered: tuple[int, ...]
) -> None:
    pdf = RawPdf()
    scan(pdf, share, lines(texts))
    (tmp_path / "scan.pdf").write_bytes(pdf.data())

    assert read_pdf(tmp_path / "scan.pdf", scans={}).covered == covered
    warnings = ("page 1 is a picture with hardly any text: it needs OCR",) if covered else ()
    assert read_pdf(tmp_path / "scan.pdf").warnings == warnings


def test_a_picture_in_a_form_inside_a_form_is_found(tmp_path: Path) -> None:
    pdf = RawPdf()
    entries = b"/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<<%s>>>>"
    drawn = b"BI /W 1 /H 1 /CS /G /BPC 8 ID \x80 EI"
    inner = pdf.stream(drawn, entries % b"")
    outer = pdf.stream(b"/Inner Do", entries % b"/Inner %d 0 R" % inner)
    content = b"q 600 0 0 800 0 0 cm /Outer Do Q\n" + show(50, 20, "ACME-0002")
    pdf.page(content, resources=b"/Font<</F1 3 0 R>>/XObject<</Outer %d 0 R>>" % outer)

    assert read(tmp_path / "scan.pdf", pdf).warnings == ("page 1 is a picture with hardly any text: it needs OCR",)


def test_a_stamp_replaces_the_same_line_in_the_text_that_ocr_found(tmp_path: Path) -> None:
    pdf = RawPdf()
    scan(pdf, 0.9, lines(["Envelope ID: 7F3A-110"], top=780))
    (tmp_path / "scan.pdf").write_bytes(pdf.data())
    boxes = [
        ["Envelope ID: 7F3A-l1O", 0.9, 50, 12, 250, 12, 250, 28, 50, 28],
        ["The rent is 2,450 dollars.", 0.9, 50, 100, 250, 100, 250, 116, 50, 116],
    ]
    page = {"width": 600, "height": 800, "dpi": 72, "turns": 0, "boxes": boxes}

    assert read_pdf(tmp_path / "scan.pdf", scans={1: page}).text.splitlines() == [
        "Envelope ID: 7F3A-110",
        "The rent is 2,450 dollars.",
    ]
