"""One small file for each class of published attack on PDF parsers: a message within the limits, the rest is read.

Those of pypdf's advisories bear the number.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from pypdf import PageObject

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.files import ReadLimits
from llama_index_contextual.readers.pdf import pages as pdf_pages
from llama_index_contextual.readers.pdf import pypdf as pdf_pypdf
from llama_index_contextual.readers.pdf.pages import Cell
from llama_index_contextual.readers.process import ParserProcess
from tests.support.pdf_files import RawPdf, bomb, pdf_of, read_pdf, show

HELLO = show(50, 700, "Hello")
TWICE = b"/Filter[/FlateDecode/FlateDecode]"
HUGE = 200_000_000  # bytes that a stream of about a thousand unfolds to


@cache
def huge_bomb() -> bytes:
    return bomb(HUGE)


def stored(folder: Path, made: RawPdf | bytes, name: str = "a.pdf") -> Path:
    path = folder / name
    path.write_bytes(made.data() if isinstance(made, RawPdf) else made)
    return path


def outline_loop() -> RawPdf:
    """CVE-2026-27024."""
    pdf = pdf_of([HELLO])
    root, mark = pdf.add(b""), pdf.add(b"")
    pdf.objects[root - 1] = b"<</First %d 0 R/Last %d 0 R/Count 1>>" % (mark, mark)
    entry = b"<</Title(Hello)/Parent %d 0 R/Next %d 0 R/First %d 0 R/Dest[%d 0 R/Fit]>>"
    pdf.objects[mark - 1] = entry % (root, mark, mark, pdf.kids[0])
    pdf.catalog = b"/Outlines %d 0 R" % root
    return pdf


def outline_that_branches_into_itself() -> RawPdf:
    pdf = pdf_of([HELLO])
    root = pdf.add(b"")
    marks = [pdf.add(b"") for _ in range(20)]
    for at, mark in enumerate(marks):
        links = (marks[(at + 1) % 20], marks[(at + 3) % 20], pdf.kids[0])
        pdf.objects[mark - 1] = b"<</Title(x)/Next %d 0 R/First %d 0 R/Dest[%d 0 R/Fit]>>" % links
    pdf.objects[root - 1] = b"<</First %d 0 R>>" % marks[0]
    pdf.catalog = b"/Outlines %d 0 R" % root
    return pdf


def xref_loop() -> bytes:
    """CVE-2026-27628."""
    data = pdf_of([HELLO]).data()
    return data.replace(b"/Root 1 0 R", b"/Root 1 0 R/Prev %d" % data.index(b"xref\n0"))


def xmp_bomb() -> RawPdf:
    """CVE-2026-40260."""
    pdf = pdf_of([HELLO])
    pdf.catalog = b"/Metadata %d 0 R" % pdf.stream(huge_bomb(), b"/Type/Metadata/Subtype/XML" + TWICE)
    return pdf


def xmp_entities() -> RawPdf:
    """CVE-2026-40260: ten entities of ten entities each, and so on."""
    pdf = pdf_of([HELLO])
    entities = b"".join(b'<!ENTITY e%d "%s">' % (at, b"&e%d;" % (at - 1) * 10) for at in range(1, 10))
    text = b'<!DOCTYPE x [<!ENTITY e0 "x">%s]><x:xmpmeta xmlns:x="adobe:ns:meta/">&e9;</x:xmpmeta>' % entities
    pdf.catalog = b"/Metadata %d 0 R" % pdf.stream(text, b"/Type/Metadata/Subtype/XML")
    return pdf


def form_bomb() -> RawPdf:
    """CVE-2026-27888: the XML of a form."""
    pdf = pdf_of([HELLO])
    pdf.catalog = b"/AcroForm<</XFA[(form) %d 0 R]>>" % pdf.stream(huge_bomb(), TWICE)
    return pdf


def form_that_draws_itself() -> RawPdf:
    pdf = RawPdf()
    form = pdf.add(b"")
    resources = b"/Resources<</XObject<</X %d 0 R>>>>" % form
    pdf.objects[form - 1] = (
        b"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]%s/Length 5>>stream\n/X Do\nendstream" % resources
    )
    pdf.page(b"/X Do " + HELLO, resources=b"/Font<</F1 3 0 R>>/XObject<</X %d 0 R>>" % form)
    return pdf


def forms_that_draw_ten_each() -> RawPdf:
    pdf = RawPdf()
    entries = b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]"
    form = pdf.stream(b"", entries)
    for _ in range(12):
        form = pdf.stream(b"/X Do " * 10, entries + b"/Resources<</XObject<</X %d 0 R>>>>" % form)
    pdf.page(HELLO + b"/X Do", resources=b"/Font<</F1 3 0 R>>/XObject<</X %d 0 R>>" % form)
    return pdf


def wrong_page_count() -> RawPdf:
    pdf = pdf_of([HELLO])
    pdf.objects[1] = b"<</Type/Pages/Count 2000000000/Kids[%d 0 R]>>" % pdf.kids[0]
    return pdf


AROUND_THE_TEXT = [
    outline_loop,
    outline_that_branches_into_itself,
    xref_loop,
    xmp_bomb,
    xmp_entities,
    form_bomb,
    form_that_draws_itself,
    forms_that_draw_ten_each,
    wrong_page_count,
]


@pytest.mark.parametrize("make", AROUND_THE_TEXT)
def test_what_does_not_concern_the_text_does_not_keep_it_from_being_read(
    tmp_path: Path, make: Callable[[], RawPdf | bytes]
) -> None:
    assert read_pdf(stored(tmp_path, make()), engine="pypdf").text == "Hello"


def page_with(stream: bytes, entries: bytes) -> RawPdf:
    pdf = RawPdf()
    pdf.page(pdf.stream(stream, entries))
    return pdf


def flate_bomb() -> RawPdf:
    return page_with(huge_bomb(), TWICE)


def run_length_bomb() -> RawPdf:
    """CVE-2026-28351."""
    return page_with(zlib.compress(b"\x81 " * 600_000 + b"\x80", 9), b"/Filter[/FlateDecode/RunLengthDecode]")


def the_same_stream_many_times() -> RawPdf:
    pdf = RawPdf()
    part = pdf.stream(zlib.compress(b" " * 1_000_000, 9), b"/Filter/FlateDecode")
    pdf.page(pdf.add(b"[%s]" % b" ".join([b"%d 0 R" % part] * 5_000)))
    return pdf


def nested_arrays() -> RawPdf:
    return pdf_of([b"[" * 100_000 + HELLO])


def character_map_of_four_billion() -> RawPdf:
    """CVE-2026-27025."""
    pdf = RawPdf()
    cmap = pdf.stream(b"1 beginbfrange <00000000> <FFFFFFFF> <0041> endbfrange")
    font = pdf.add(b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode %d 0 R>>" % cmap)
    pdf.page(HELLO, resources=b"/Font<</F1 %d 0 R>>" % font)
    return pdf


def widths_of_a_hundred_million() -> RawPdf:
    pdf = RawPdf()
    below = pdf.add(b"<</Type/Font/Subtype/CIDFontType2/BaseFont/X/W[0 99999999 500]>>")
    entry = b"<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/DescendantFonts[%d 0 R]>>"
    pdf.page(HELLO, resources=b"/Font<</F1 %d 0 R>>" % pdf.add(entry % below))
    return pdf


def image_without_an_end() -> RawPdf:
    return pdf_of([HELLO + b"BI /W 10 /H 10 ID " + b"x" * 1_000])


PAGES = [
    flate_bomb,
    run_length_bomb,
    the_same_stream_many_times,
    nested_arrays,
    character_map_of_four_billion,
    widths_of_a_hundred_million,
    image_without_an_end,
]


@pytest.mark.parametrize("make", PAGES)
def test_a_hostile_page_is_left_out_with_its_reason(tmp_path: Path, make: Callable[[], RawPdf]) -> None:
    pdf = make()
    pdf.page(HELLO)
    parsed = read_pdf(stored(tmp_path, pdf), engine="pypdf")

    assert parsed.text == "\nHello"
    (warning,) = parsed.warnings
    assert warning.startswith("page 1 was left out: pypdf cannot parse it (")


def test_damaged_compression_costs_no_more_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2026-27026: it is inflated byte by byte."""
    pdf = page_with(b"\x78\x9c" + random.Random(1).randbytes(40_000), b"/Filter/FlateDecode")
    pdf.page(HELLO)
    path = stored(tmp_path, pdf)
    assert read_pdf(path, engine="pypdf").text == "\nHello"

    limit = pdf_pypdf.CONFIGURATION.zlib_maximum_recovery_input_length
    assert 0 < limit <= 500_000
    monkeypatch.setattr(
        pdf_pypdf, "CONFIGURATION", replace(pdf_pypdf.CONFIGURATION, zlib_maximum_recovery_input_length=30_000)
    )
    parsed = read_pdf(path, engine="pypdf")
    assert parsed.text == "\nHello"
    assert parsed.warnings[0].startswith(
        "page 1 was left out: pypdf cannot parse it (LimitReachedError: Recovery limit"
    )


def pages_of_themselves() -> RawPdf:
    pdf = pdf_of([HELLO])
    pdf.objects[1] = b"<</Type/Pages/Count 2/Kids[2 0 R %d 0 R]>>" % pdf.kids[0]
    return pdf


def a_trillion_pages() -> RawPdf:
    pdf = pdf_of([HELLO])
    node = pdf.kids[0]
    for _ in range(12):
        node = pdf.add(b"<</Type/Pages/Count 1/Kids[%s]>>" % b" ".join([b"%d 0 R" % node] * 10))
    pdf.objects[1] = b"<</Type/Pages/Count 1/Kids[%d 0 R]>>" % node
    return pdf


def nested_catalog() -> RawPdf:
    """CVE-2026-33699: what must end the parsing is taken for a small mistake."""
    pdf = pdf_of([HELLO])
    pdf.catalog = b"/Foo " + b"[" * 100_000
    return pdf


FILES = [pages_of_themselves, a_trillion_pages, nested_catalog]


@pytest.mark.parametrize("make", FILES)
def test_a_hostile_file_is_refused_with_its_reason(tmp_path: Path, make: Callable[[], RawPdf]) -> None:
    path = stored(tmp_path, make())

    with pytest.raises(ReadError, match="the PDF is damaged or truncated"):
        read_pdf(path, engine="pypdf")


@pytest.mark.parametrize("make", [*AROUND_THE_TEXT, *PAGES, *FILES])
def test_with_pdfium_a_hostile_file_is_read_or_refused_and_the_next_file_is_read(
    tmp_path: Path, make: Callable[[], RawPdf | bytes]
) -> None:
    hostile, good = stored(tmp_path, make()), stored(tmp_path, pdf_of([HELLO]), "b.pdf")

    with closing(ParserProcess(max_memory=2_000_000_000)) as worker:
        try:
            assert worker.read(hostile, limits=ReadLimits(max_seconds=5), engine="pdfium").text.strip()
        except ReadError as error:
            assert any(  # noqa: PT017
                reason in error.reason
                for reason in ("has no text", "was stopped", "crashed", "memory", "damaged", "characters")
            ), error.reason
        assert worker.read(good, engine="pdfium").text == "Hello"


@pytest.mark.parametrize(
    "place",
    [
        lambda at: b"1 0 0 1 %d 700 Tm (a) Tj " % (50 * at),  # one endless row
        lambda at: b"1 0 0 1 %d %d Tm (1) Tj " % (50 + 100 * (at % 2), at),  # rows that climb
        lambda at: b"1 0 0 1 %d %d Tm (aa bb cc dd) Tj " % (50 * (at % 9), 5 * (at // 9)),  # many columns
    ],
)
def test_the_comparisons_of_pieces_do_not_grow_with_the_square_of_their_number(
    tmp_path: Path, place: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = pdf_pages.is_beside, 0

    def counted(one: Cell, other: Cell) -> bool:
        nonlocal calls
        calls += 1
        return real(one, other)

    monkeypatch.setattr(pdf_pages, "is_beside", counted)
    pieces = 6_000
    stream = zlib.compress(b"BT /F1 1 Tf " + b"".join(map(place, range(pieces))) + b"ET")
    pdf = page_with(stream, b"/Filter/FlateDecode")
    pdf.objects[-1] = pdf.objects[-1].replace(b"[0 0 600 800]", b"[0 0 400000 8000]")  # what is outside is not read
    path = stored(tmp_path, pdf)

    assert len(read_pdf(path).text.split()) >= pieces
    assert 0 < calls <= 2 * pdf_pages.MAX_CELLS * pieces


def test_messages_do_not_quote_control_characters_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise ValueError("bad token \x1b[31m\x07\n at 7")

    monkeypatch.setattr(PageObject, "extract_text", fail)
    path = stored(tmp_path, pdf_of([b"1 0 0 RG"]))

    with pytest.raises(ReadError) as caught:
        read_pdf(path, engine="pypdf")
    assert caught.value.reason.endswith("(ValueError: bad token [31m at 7)")
