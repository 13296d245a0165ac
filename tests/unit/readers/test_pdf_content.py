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


def runs(content: bytes, *, form: bytes = b"", entries: bytes = b"") -> list[Run]:
    """Return what a page draws that may draw a form."""
    pdf = RawPdf()
    number = pdf.stream(form, b"/Type/XObject/Subtype/Form/BBox[0 0 600 800]" + entries)
    pdf.page(content, resources=b"/Font<</F1 3 0 R>>/XObject<</X %d 0 R>>" % number)
    reader = PdfReader(BytesIO(pdf.data()))
    return ContentReader(reader).runs(reader.pages[0])


def shown(operators: bytes) -> bytes:
    return b"BT /F1 10 Tf 100 700 Td " + operators + b" ET"


@pytest.mark.parametrize(
    ("operators", "places"),
    [
        # A string is as wide as its glyphs, and the next one goes on where it ended.
        (b"(ab a) Tj", [("ab a", 100, 2 * A + B + SPACE, 700)]),
        (b"(a) Tj (b) Tj", [("a", 100, A, 700), ("b", 100 + A, B, 700)]),
        # Spacing and stretching move the pen; after the last glyph they are no part of the text.
        (b"2 Tc (a b) Tj", [("a b", 100, A + 2 + SPACE + 2 + B, 700)]),
        (b"3 Tw (a b) Tj", [("a b", 100, A + SPACE + 3 + B, 700)]),
        (b"50 Tz (a b) Tj", [("a b", 100, (A + SPACE + B) / 2, 700)]),
        (b"2 Tc 50 Tz (a b) Tj", [("a b", 100, (A + 2 + SPACE + 2 + B) / 2, 700)]),
        # A jump of a space within an array is a space, and a long one begins another piece.
        (b"[(a) -30 (b)] TJ", [("ab", 100, A + 0.3 + B, 700)]),
        (b"[(a) 80 (b)] TJ", [("ab", 100, A - 0.8 + B, 700)]),
        (b"[(a) -278 (b)] TJ", [("a b", 100, A + 2.78 + B, 700)]),
        (b"[(a ) -278 (b)] TJ", [("a b", 100, A + SPACE + 2.78 + B, 700)]),
        (b"[(a) -5000 (b)] TJ", [("a", 100, A, 700), ("b", 150 + A, B, 700)]),
        # Operators of lines move down from the start of the line.
        (b"(a) Tj 0 -12 TD (b) Tj T* (a) Tj", [("a", 100, A, 700), ("b", 100, B, 688), ("a", 100, A, 676)]),
        (b"12 TL (a) Tj (b) ' 1 2 (a) \"", [("a", 100, A, 700), ("b", 100, B, 688), ("a", 100, A, 676)]),
    ],
)
def test_the_pen_stands_where_the_operators_put_it(
    operators: bytes, places: list[tuple[str, float, float, float]]
) -> None:
    found = runs(shown(operators))
    assert [(run.text, run.x0, run.x1, run.y) for run in found] == [
        (text, pytest.approx(x), pytest.approx(x + width), pytest.approx(y)) for text, x, width, y in places
    ]
    assert {(run.size, run.angle) for run in found} == {(10, 0)}


def test_saved_states_come_back_and_matrices_multiply_and_turn() -> None:
    content = b"q 2 0 0 2 10 20 cm BT /F1 10 Tf 5 5 Td (a) Tj ET Q BT /F1 10 Tf 1 0 0 1 5 5 Tm (a) Tj 4 Ts (a) Tj ET"
    first, second, raised = runs(content)
    assert (first.x0, first.y, first.size) == (20, 30, 20)
    assert (second.x0, second.y, second.size) == (5, 5, 10)
    assert second.space == pytest.approx(SPACE)
    assert raised.y == 9
    (turned,) = runs(b"BT /F1 10 Tf 0 1 -1 0 300 100 Tm (ab) Tj ET")
    place = (turned.angle, turned.x0, turned.x1, turned.y)
    assert place == pytest.approx((90, 100, 100 + A + B, -300)), "measured along its own direction"


def test_a_form_is_drawn_in_its_own_place_and_leaves_the_state_alone() -> None:
    form = b"BT /F1 20 Tf 5 5 Td (a) Tj ET"
    page = b"BT /F1 10 Tf ET /X Do BT 1 0 0 1 7 8 Tm (b) Tj ET"
    inner, outer = runs(page, form=form, entries=b"/Matrix[1 0 0 1 100 200]")

    assert (inner.text, inner.x0, inner.y, inner.size) == ("a", 105, 205, 20)
    assert (outer.text, outer.x0, outer.y, outer.size) == ("b", 7, 8, 10)


def test_a_form_without_resources_uses_those_of_the_page() -> None:
    assert [run.text for run in runs(b"/X Do", form=b"BT /F1 10 Tf (a) Tj ET")] == ["a"]


def test_text_without_a_font_and_unknown_objects_are_passed_over() -> None:
    assert runs(b"BT (a) Tj /None 10 Tf (b) Tj ET /Nothing Do") == []
