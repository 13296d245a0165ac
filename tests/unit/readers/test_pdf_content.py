"""Where the pen stands after each operator of a content stream."""

from __future__ import annotations

from io import BytesIO

import pytest
from pypdf import PdfReader

from llama_index_contextual.readers.pdf.content import ContentReader
from llama_index_contextual.readers.pdf.pieces import Run
from tests.support.pdf_files import RawPdf

# Widths of Helvetica in thousandths: a 556, b 556, space 278.
A, B, SPACE = 5.56, 5.56, 2.78  # at size 10


def runs(content: bytes, **options: bytes) -> list[Run]:
    pdf = RawPdf()
    pdf.page(content, **options)  # type: ignore[arg-type]
    reader = PdfReader(BytesIO(pdf.data()))
    return ContentReader(reader).runs(reader.pages[0])


def places(content: bytes) -> list[tuple[str, float, float, float]]:
    return [(run.text, pytest.approx(run.x0), pytest.approx(run.x1), pytest.approx(run.y)) for run in runs(content)]


def test_a_string_is_as_wide_as_its_glyphs() -> None:
    (run,) = runs(b"BT /F1 10 Tf 100 700 Td (ab a) Tj ET")

    assert run.text == "ab a"
    assert run.x0 == 100
    assert run.x1 == pytest.approx(100 + A + B + SPACE + A)
    assert (run.y, run.size, run.space, run.angle) == (700, 10, pytest.approx(SPACE), 0)


def test_the_next_string_goes_on_where_the_last_one_ended() -> None:
    assert places(b"BT /F1 10 Tf 100 700 Td (a) Tj (b) Tj ET") == [
        ("a", 100, 100 + A, 700),
        ("b", 100 + A, 100 + A + B, 700),
    ]


@pytest.mark.parametrize(
    ("state", "width"),
    [
        (b"2 Tc", A + 2 + SPACE + 2 + B),  # after the last glyph it is no part of the text
        (b"3 Tw", A + SPACE + 3 + B),
        (b"50 Tz", (A + SPACE + B) / 2),
        (b"2 Tc 50 Tz", (A + 2 + SPACE + 2 + B) / 2),
    ],
)
def test_spacing_and_stretching_move_the_pen(state: bytes, width: float) -> None:
    assert places(b"BT /F1 10 Tf 100 700 Td " + state + b" (a b) Tj ET") == [("a b", 100, 100 + width, 700)]


@pytest.mark.parametrize(
    ("array", "text", "width"),
    [
        (b"[(a) -30 (b)]", "ab", A + 0.3 + B),
        (b"[(a) 80 (b)]", "ab", A - 0.8 + B),
        (b"[(a) -278 (b)]", "a b", A + 2.78 + B),
        (b"[(a ) -278 (b)]", "a b", A + SPACE + 2.78 + B),
    ],
)
def test_a_jump_of_a_space_within_an_array_is_a_space(array: bytes, text: str, width: float) -> None:
    assert places(b"BT /F1 10 Tf 100 700 Td " + array + b" TJ ET") == [(text, 100, 100 + width, 700)]


def test_a_long_jump_within_an_array_begins_another_piece() -> None:
    assert places(b"BT /F1 10 Tf 100 700 Td [(a) -5000 (b)] TJ ET") == [
        ("a", 100, 100 + A, 700),
        ("b", 150 + A, 150 + A + B, 700),
    ]


def test_line_operators_move_down_from_the_start_of_the_line() -> None:
    content = b"BT /F1 10 Tf 100 700 Td (a) Tj 0 -12 TD (b) Tj T* (a) Tj (b) ' 1 2 (a) \" ET"

    assert [(run.text, run.x0, run.y) for run in runs(content)] == [
        ("a", 100, 700),
        ("b", 100, 688),
        ("a", 100, 676),
        ("b", 100, 664),
        ("a", 100, 652),
    ]


def test_saved_states_come_back_and_matrices_multiply() -> None:
    content = b"q 2 0 0 2 10 20 cm BT /F1 10 Tf 5 5 Td (a) Tj ET Q BT /F1 10 Tf 1 0 0 1 5 5 Tm (a) Tj 4 Ts (a) Tj ET"
    first, second, raised = runs(content)

    assert (first.x0, first.y, first.size) == (20, 30, 20)
    assert (second.x0, second.y, second.size) == (5, 5, 10)
    assert raised.y == 9


def test_turned_text_is_measured_along_its_own_direction() -> None:
    (run,) = runs(b"BT /F1 10 Tf 0 1 -1 0 300 100 Tm (ab) Tj ET")

    assert run.angle == 90
    assert (run.x0, run.y) == (pytest.approx(100), pytest.approx(-300))
    assert run.x1 == pytest.approx(100 + A + B)


def form_page(content: bytes, form: bytes, entries: bytes = b"") -> list[Run]:
    pdf = RawPdf()
    number = pdf.stream(form, b"/Type/XObject/Subtype/Form/BBox[0 0 600 800]" + entries)
    pdf.page(content, resources=b"/Font<</F1 3 0 R>>/XObject<</X %d 0 R>>" % number)
    reader = PdfReader(BytesIO(pdf.data()))
    return ContentReader(reader).runs(reader.pages[0])


def test_a_form_is_drawn_in_its_own_place_and_leaves_the_state_alone() -> None:
    form = b"BT /F1 20 Tf 5 5 Td (a) Tj ET"
    inner, outer = form_page(b"BT /F1 10 Tf ET /X Do BT 1 0 0 1 7 8 Tm (b) Tj ET", form, b"/Matrix[1 0 0 1 100 200]")

    assert (inner.text, inner.x0, inner.y, inner.size) == ("a", 105, 205, 20)
    assert (outer.text, outer.x0, outer.y, outer.size) == ("b", 7, 8, 10)


def test_a_form_without_resources_uses_those_of_the_page() -> None:
    assert [run.text for run in form_page(b"/X Do", b"BT /F1 10 Tf (a) Tj ET")] == ["a"]


def test_text_without_a_font_and_unknown_objects_are_passed_over() -> None:
    assert runs(b"BT (a) Tj /None 10 Tf (b) Tj ET /Nothing Do") == []
