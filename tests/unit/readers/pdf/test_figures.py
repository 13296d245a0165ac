"""Figures of PDFs: groups of what is drawn, their captions, and what is left out."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fpdf import FPDF
from PIL import Image

from llama_index_contextual.errors import ReadError
from llama_index_contextual.figures import Figure
from llama_index_contextual.readers.files import FileSource, ReadLimits
from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.drawing import FigureDrawer
from llama_index_contextual.readers.pdf.figures import Box, DrawnPage, find_figures
from llama_index_contextual.readers.pdf.graphics import Graphic
from llama_index_contextual.readers.pdf.reader import parse_pdf
from tests.support.figures import picture

PROSE = "The pump is started against a closed valve and sized by its curve, which the table below does not show."


def page(
    lines: Sequence[tuple[str, float, float]],
    graphics: Sequence[tuple[float, float, float, float, str]],
    number: int = 0,
) -> DrawnPage:
    """Return a page of 600 by 800 points with lines (text, left edge, baseline) of 10 points."""
    placed, start = [], 0
    for text, x, y in lines:
        placed.append(Line(text, y, 10.0, 1, x, x + 5 * len(text), start=start))
        start += len(text) + 1
    drawn = [Graphic(*edges, kind, key="" if kind != "picture" else f"{edges}{number}") for *edges, kind in graphics]
    return DrawnPage(number, placed, drawn, Box(0, 0, 600, 800), 0)


def found(*pages: DrawnPage) -> list[tuple[int, str, str]]:
    """Return the page, the kind and the caption of each figure."""
    texts = {each.number: "\n".join(line.text for line in each.lines) for each in pages}
    return [(one.page, one.kind, texts[one.page][one.start : one.end]) for one in find_figures(pages)]


CURVES = [(100.0 + 10 * n, 400.0, 200.0 + 10 * n, 600.0, "shape") for n in range(10)]


def test_a_caption_below_belongs_to_the_picture_above() -> None:
    drawn = page([(PROSE, 50, 700), ("Figure 1: Pump", 100, 380), (PROSE, 50, 300)], [(100, 400, 300, 600, "picture")])
    assert found(drawn) == [(0, "picture", "Figure 1: Pump")]


def test_a_caption_above_belongs_to_the_drawing_below() -> None:
    drawn = page([(PROSE, 50, 700), ("Fig. 1 Pump", 100, 620), (PROSE, 50, 300)], CURVES)
    assert found(drawn) == [(0, "drawing", "Fig. 1 Pump")]


def test_between_two_figures_a_caption_belongs_to_the_one_on_the_side_of_the_others() -> None:
    lines = [("Figure 1: Pump", 100, 590), ("Figure 2: Valve", 100, 390)]
    pictures = [(100, 600, 300, 750, "picture"), (100, 400, 300, 550, "picture"), (100, 200, 300, 378, "picture")]
    other = page([("Figure 3: Tank", 100, 590)], [(100, 600, 300, 750, "picture")], 1)
    assert found(page(lines, pictures), other) == [
        (0, "picture", "Figure 1: Pump"),
        (0, "picture", "Figure 2: Valve"),
        (0, "picture", ""),
        (1, "picture", "Figure 3: Tank"),
    ]


def test_the_lines_of_a_caption_are_read_to_its_end() -> None:
    first = "Figure 1: The pump with its two valves, as seen from the side of the"
    lines = [(first, 100, 380), ("motor, without the cover", 100, 368), (PROSE, 100, 340)]
    assert found(page(lines, [(100, 400, 500, 600, "picture")])) == [(0, "picture", f"{first}\n{lines[1][0]}")]


def test_a_label_alone_is_continued_by_the_line_below() -> None:
    lines = [("Figure 1.", 420, 430), ("Impact of training", 420, 418), (PROSE, 50, 300)]
    assert found(page(lines, [(100, 400, 400, 600, "picture")])) == [(0, "picture", "Figure 1.\nImpact of training")]


def test_the_parts_of_a_figure_are_one_figure() -> None:
    lines = [
        ("(a) Open, as it is delivered and before it is", 100, 388),
        ("(b) Closed", 330, 388),
        ("Figure 1: Valve", 200, 370),
    ]
    parts = [(100, 400, 290, 600, "picture"), (310, 400, 500, 600, "picture")]
    assert found(page(lines, parts)) == [(0, "picture", "Figure 1: Valve")]
    assert find_figures([page(lines, parts)])[0].box.x1 == 503.0


def test_a_sentence_that_mentions_a_figure_is_no_caption() -> None:
    drawn = page([("Figure 1 shows the pump.", 100, 380)], [(100, 400, 300, 600, "picture")])
    assert found(drawn) == [(0, "picture", "")]


def test_running_text_divides_a_caption_from_a_picture() -> None:
    drawn = page([(PROSE, 100, 390), ("Figure 1: Pump", 100, 370)], [(100, 400, 300, 600, "picture")])
    assert found(drawn) == [(0, "picture", "")]


@pytest.mark.parametrize(
    ("reason", "graphics"),
    [
        ("an icon", [(100, 500, 120, 520, "picture")]),
        ("a background", [(0, 0, 600, 800, "picture")]),
        ("a logo in the header", [(50, 745, 200, 795, "picture")]),
        ("a grid", [(100, 400 + 20 * n, 400, 401 + 20 * n, "rule") for n in range(9)]),
        ("boxes", [(100 + 50 * n, 400, 140 + 50 * n, 500, "box") for n in range(6)]),
        ("a frame around text", [(40, 200, 590, 720, "shape")]),
        ("a line", [(100, 400, 500, 405, "shape")]),
        ("a small drawing", [(100, 400, 150, 450, "shape")] * 9),
    ],
)
def test_what_is_no_figure_is_left_out(reason: str, graphics: Any) -> None:
    text = [(PROSE, 50, 700 - 12 * line) for line in range(9)]
    assert found(page(text, graphics)) == [], reason


def test_a_table_is_no_figure_and_bars_with_a_caption_are_one() -> None:
    bars = [(100 + 50 * n, 400, 140 + 50 * n, 450 + 20 * n, "box") for n in range(6)]
    assert found(page([("Table 1: Sales", 100, 580)], bars)) == []
    assert found(page([("Figure 1: Sales", 100, 380)], bars)) == [(0, "drawing", "Figure 1: Sales")]


def test_a_picture_on_several_pages_is_a_logo() -> None:
    logo = Graphic(300, 500, 500, 600, "picture", "logo")
    other = Graphic(100, 200, 300, 400, "picture", "other")
    pages = [
        DrawnPage(number, (), [logo, *([other] if number == 1 else [])], Box(0, 0, 600, 800), 0) for number in range(3)
    ]
    assert found(*pages) == [(1, "picture", "")]


def test_figures_at_the_same_place_of_several_pages_are_kept_and_drawings_without_caption_are_logos() -> None:
    captions = [page([(f"Figure {n}: Curve", 100, 380)], CURVES, n) for n in range(4)]
    assert [caption for _, _, caption in found(*captions)] == [f"Figure {n}: Curve" for n in range(4)]
    assert found(*(page([(PROSE, 50, 300)], CURVES, n) for n in range(4))) == []
    assert len(found(*(page([(PROSE, 50, 300)], [(100, 400, 300, 600, "picture")], n) for n in range(4)))) == 4


AXES = [(100 + 20 * n, 398, 101 + 20 * n, 402, "rule") for n in range(10)]


def test_a_curve_with_axes_is_a_figure_and_a_frame_around_cells_is_none() -> None:
    curve = (100, 400, 300, 500, "shape")
    cells = [(f"cell {n}", 110 + 60 * (n % 3), 410 + 20 * (n // 3)) for n in range(9)]
    assert found(page([(PROSE, 50, 300)], [curve, *AXES])) == [(0, "drawing", "")]
    assert found(page(cells, [curve, *AXES])) == []


def test_a_flat_picture_has_a_caption() -> None:
    drawn = page([("Figure 1: Spectrum", 100, 380)], [(100, 400, 500, 412, "picture")])
    assert found(drawn) == [(0, "picture", "Figure 1: Spectrum")]


def test_the_key_in_a_drawing_is_no_figure_of_its_own() -> None:
    lines = [("Figure 1: Listing", 100, 640), ("Figure 2: Curve", 100, 380)]
    curves = [(100, 400, 300, 600, "shape"), *[(100, 400 + 4 * n, 200, 402 + 4 * n, "shape") for n in range(4)]]
    key = (260, 540, 320, 595, "picture")
    assert found(page(lines, [*curves, key])) == [(0, "drawing", "Figure 2: Curve")]


def test_panels_of_equal_size_are_one_figure() -> None:
    lines = [("Figure 1: Before and after", 150, 380)]
    panels = [(60, 400, 210, 550, "picture"), (310, 400, 460, 550, "picture")]
    assert found(page(lines, panels)) == [(0, "picture", "Figure 1: Before and after")]
    assert find_figures([page(lines, panels)])[0].box.x1 == 463.0


def test_a_caption_below_a_listing_and_a_drawing_belongs_to_the_drawing() -> None:
    lines = [("dot -Tps a.dot", 60, 450), ("Figure 1: Listing and drawing", 200, 380)]
    width = len(lines[1][0]) * 5
    left = 200 + width - 12
    assert found(page(lines, [(left, 400, left + 150, 550, "picture")])) == [(0, "picture", lines[1][0])]


def test_pictures_in_a_table_are_figures() -> None:
    rules = [(300, 200 + 20 * n, 500, 201 + 20 * n, "rule") for n in range(25)]
    sides = [(x, 200, x + 1, 680, "rule") for x in (300, 500)]
    drawn = page([(PROSE, 50, 100)], [*rules, *sides, (320, 500, 420, 580, "picture")])
    assert found(drawn) == [(0, "picture", "")]


@pytest.mark.parametrize(("side", "number"), [(62, 0), (68, 1)])
def test_a_picture_without_caption_has_a_minimum_size(side: int, number: int) -> None:
    assert len(found(page([(PROSE, 50, 300)], [(100, 400, 100 + side, 400 + side, "picture")]))) == number


def test_a_font_without_size_has_captions() -> None:
    drawn = page([(PROSE, 50, 300), ("Figure 1: Pump", 100, 380)], [(100, 400, 300, 600, "picture")])
    bitmaps = [
        replace(line, size=0.12, pieces=((line.x0, line.x0 + 30, 6), (line.x0 + 35, line.x1, len(line.text) - 7)))
        for line in drawn.lines
    ]
    assert found(drawn._replace(lines=bitmaps)) == [(0, "picture", "Figure 1: Pump")]


def test_labels_beside_a_drawing_are_in_its_picture() -> None:
    lines = [("Head", 300, 500), ("Flow", 180, 390), ("Figure 1: Curve", 100, 360)]
    [region] = find_figures([page(lines, CURVES)])
    assert region.box.x1 == 323.0
    assert 370 < region.box.y0 < 390


# ---- files -----------------------------------------------------------------------------------------------------------


def read(pdf: FPDF, path: Path) -> list[Figure]:
    pdf.output(str(path))
    return list(parse_pdf(FileSource.open(path, ReadLimits())).map.figures)


def drawn(path: Path, figure: Figure) -> Any:
    digest = FileSource.open(path, ReadLimits()).digest
    request = {"path": str(path), "digest": digest, "max_bytes": 10**8, "password": None}
    stored = FigureDrawer().draw({**request, "page": figure.page, "box": figure.box})
    assert stored is not None
    return Image.open(io.BytesIO(stored.data)).convert("RGB")


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_figure_is_drawn_from_its_place_on_the_displayed_page(tmp_path: Path, rotation: int) -> None:
    import pypdf

    pdf = FPDF()
    pdf.add_page()
    pdf.set_font("Helvetica", size=11)
    pdf.cell(text="The coloured square is drawn from its place.")
    pdf.image(Image.effect_noise((200, 200), 90).convert("RGB"), x=120, y=200, w=50)
    pdf.output(str(tmp_path / "a.pdf"))
    writer = pypdf.PdfWriter(clone_from=tmp_path / "a.pdf")
    writer.pages[0].rotate(rotation)
    writer.write(tmp_path / "b.pdf")
    [figure] = parse_pdf(FileSource.open(tmp_path / "b.pdf", ReadLimits())).map.figures
    assert figure.box is not None
    left, top, right, bottom = figure.box
    assert (round(right - left), round(bottom - top)) == (148, 148)
    image = drawn(tmp_path / "b.pdf", figure)
    assert abs(image.width - image.height) <= 2
    middle = image.crop((30, 30, image.width - 30, image.height - 30)).convert("L")
    assert len(middle.getcolors(256)) > 100, "noise, not the white page"


def test_a_page_that_inherits_its_size_is_read_whole(tmp_path: Path) -> None:
    pdf = FPDF(format="A4")
    pdf.add_page()
    pdf.set_font("Helvetica", size=11)
    pdf.cell(text="The first line of the page.")
    pdf.output(str(tmp_path / "a.pdf"))
    assert parse_pdf(FileSource.open(tmp_path / "a.pdf", ReadLimits())).text == "The first line of the page."


def test_text_and_offsets_do_not_depend_on_figures(tmp_path: Path) -> None:
    pdf = FPDF()
    pdf.add_page()
    pdf.set_font("Helvetica", size=11)
    pdf.multi_cell(0, 6, PROSE)
    pdf.image(picture(1), x=30, y=60, w=80)
    pdf.set_y(120)
    pdf.multi_cell(0, 6, "Figure 1: A picture")
    [figure] = read(pdf, tmp_path / "a.pdf")
    source = FileSource.open(tmp_path / "a.pdf", ReadLimits())
    without = parse_pdf(source, figures=False)
    assert without.map.figures == ()
    assert without.text == parse_pdf(source).text
    assert without.text[figure.start : figure.end] == "Figure 1: A picture"


def test_the_other_engine_has_no_figures(tmp_path: Path) -> None:
    pdf = FPDF()
    pdf.add_page()
    pdf.set_font("Helvetica", size=11)
    pdf.cell(text="A picture follows.")
    pdf.image(picture(1), x=30, y=60, w=80)
    pdf.output(str(tmp_path / "a.pdf"))
    assert parse_pdf(FileSource.open(tmp_path / "a.pdf", ReadLimits()), engine="pypdf").map.figures == ()


def test_a_file_that_has_changed_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7 other")
    request = {"path": str(tmp_path / "a.pdf"), "digest": "0", "max_bytes": 100, "password": None, "page": 1}
    with pytest.raises(ReadError, match="has changed while it was read"):
        FigureDrawer().draw({**request, "box": [0, 0, 10, 10]})


def test_a_page_with_too_many_captions_for_its_pictures_has_no_figures() -> None:
    lines = [(f"Figure {n}: Pump", 20 + 110 * (n % 5), 790 - n / 2) for n in range(1_500)]
    pictures = [(40.0 * x, 40.0 * y, 40.0 * x + 32, 40.0 * y + 32, "picture") for x in range(15) for y in range(20)]
    drawn = page([("Figure 1: Weir", 100, 380)], [(100, 400, 300, 600, "picture")], 1)
    assert found(page(lines, pictures), drawn) == [(1, "picture", "Figure 1: Weir")]
