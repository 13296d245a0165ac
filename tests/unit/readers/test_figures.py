"""Figures of files that are no PDFs, their captions, and texts read in figures."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from email.message import EmailMessage
from pathlib import Path

import pytest
from docx import Document
from docx.shared import Inches
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Pt

from llama_index_contextual.figures import Figure
from llama_index_contextual.metadata import DocumentMap, Heading
from llama_index_contextual.readers.figures import (
    MAX_FIGURES,
    FigureCollector,
    decoded_picture,
    is_caption_line,
    text_in,
    with_captions,
    with_texts,
)
from llama_index_contextual.readers.files import FileAccount, FileSource, ParsedFile, ReadLimits
from llama_index_contextual.readers.office import parse_office
from tests.support.figures import encoded


def parsed(name: str, data: bytes, folder: Path = Path()) -> ParsedFile:
    path = folder / name
    return parse_office(FileSource(path, data, FileAccount(path, len(data), ReadLimits())))


def facts(file: ParsedFile) -> list[tuple[str, str, str]]:
    return [(figure.kind, figure.caption, figure.alt) for figure in file.map.figures]


def test_a_word_document_keeps_pictures_with_captions_and_alternative_texts() -> None:
    document = Document()
    document.add_paragraph("The pump is shown below.")
    document.add_picture(io.BytesIO(encoded(1)), width=Inches(2))
    document.add_paragraph("Figure 1: The pump", style="Caption")
    document.add_picture(io.BytesIO(encoded(2)), width=Inches(2))
    document.add_paragraph("A valve without a number", style="Caption")
    document.add_paragraph("It is closed by hand, as Figure 1 shows.")
    document.add_picture(io.BytesIO(encoded(3)), width=Inches(2))
    properties = document.inline_shapes[2]._inline.docPr
    properties.set("descr", "A photo of the filter")
    document.add_paragraph("Figure 1 shows the pump again.")
    document.add_picture(io.BytesIO(encoded(4, size=(30, 30))))
    file = parsed("a.docx", saved(document))
    assert facts(file) == [
        ("picture", "Figure 1: The pump", ""),
        ("picture", "A valve without a number", ""),
        ("picture", "", "A photo of the filter"),
    ]
    first = file.map.figures[0]
    assert file.text[first.start : first.end] == first.caption
    assert (first.width, first.height) == (240, 160)
    assert set(file.pictures) == {figure.sha256 for figure in file.map.figures}


def test_a_picture_that_is_repeated_is_a_logo() -> None:
    document = Document()
    for number in range(4):
        document.add_picture(io.BytesIO(encoded(1)))
        document.add_paragraph(f"Chapter {number} is about valves.")
    document.add_picture(io.BytesIO(encoded(2)))
    file = parsed("a.docx", saved(document))
    assert len(file.map.figures) == 1
    assert len(file.pictures) == 1


def test_slides_have_pictures_with_their_places_and_charts_with_their_values() -> None:
    presentation = Presentation()
    layout = presentation.slide_layouts[5]
    first, second = (presentation.slides.add_slide(layout) for _ in range(2))
    shape = first.shapes.add_picture(io.BytesIO(encoded(1)), Pt(72), Pt(100), Pt(240), Pt(160))
    shape._element.nvPicPr.cNvPr.set("descr", "The pump from above")
    box = first.shapes.add_textbox(Pt(72), Pt(270), Pt(240), Pt(20))
    box.text_frame.text = "Fig. 1 Pump"
    data = CategoryChartData()
    data.categories = ["2024", "2025"]
    data.add_series("Sales", (3.5, 4.0))
    second.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, Pt(72), Pt(72), Pt(300), Pt(200), data)
    second.shapes.add_picture(io.BytesIO(encoded(2, size=(960, 720))), 0, 0, presentation.slide_width)
    picture, chart = parsed("a.pptx", saved(presentation)).map.figures
    assert (picture.page, picture.caption, picture.alt) == (1, "Fig. 1 Pump", "The pump from above")
    assert picture.box == (72.0, 100.0, 312.0, 260.0)
    assert (chart.page, chart.kind, chart.sha256) == (2, "chart", "")
    assert chart.values.splitlines()[-2:] == ["2024  3.5", "2025  4"]


def test_a_web_page_keeps_images_in_it_and_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "pump 1.png").write_bytes(encoded(1))
    (tmp_path.parent / "outside.png").write_bytes(encoded(2))
    (tmp_path / "link.png").symlink_to(tmp_path.parent / "outside.png")
    inline = base64.b64encode(encoded(3)).decode()
    page = f"""<p>Before.</p>
    <figure><img src="parts/pump%201.png" alt="The pump from above"><figcaption>Pump with valve</figcaption></figure>
    <p>Text <img src="data:image/png;base64,{inline}"> in a line.</p><p>Abb. 2: Ventil</p>
    <img src="../outside.png"><img src="link.png"><img src="/etc/passwd"><img src="file:///etc/passwd">
    <img src="https://example.com/a.png"><img src="parts/missing.png"><img src="data:text/html,x">"""
    file = parsed("a.html", page.encode(), tmp_path)
    assert facts(file) == [("picture", "Pump with valve", "The pump from above"), ("picture", "Abb. 2: Ventil", "")]


def test_a_mail_keeps_its_pictures_and_those_of_its_attachments() -> None:
    document = Document()
    document.add_picture(io.BytesIO(encoded(2)))
    document.add_paragraph("Figure 7: Valve", style="Caption")
    mail = EmailMessage()
    mail["Subject"] = "Pump"
    mail.set_content("The pictures are attached.")
    mail.add_attachment(encoded(1), maintype="image", subtype="png", filename="pump.png")
    mail.add_attachment(saved(document), maintype="application", subtype="octet-stream", filename="valve.docx")
    file = parsed("a.eml", mail.as_bytes())
    assert facts(file) == [("picture", "", "pump.png"), ("picture", "Figure 7: Valve", "")]
    valve = file.map.figures[1]
    assert file.text[valve.start : valve.end] == "Figure 7: Valve"


@pytest.mark.parametrize(
    ("text", "at", "marked", "caption"),
    [
        ("Before.\nFigure 1: Below", 7, {}, "Figure 1: Below"),
        ("Figure 1: Above\nThen text.", 15, {}, "Figure 1: Above"),
        ("Figure 1: Above\nFigure 2: Below", 15, {}, "Figure 2: Below"),
        ("Text.\nAny words", 5, {6: 15}, "Any words"),
        ("Text.\nFigure 1 shows it.", 5, {}, ""),
        ("Text.\nTable 1: Prices", 5, {6: 21}, ""),
        ("Text.\n# Figure 1", 5, {}, ""),
        ("", 0, {}, ""),
    ],
)
def test_a_caption_stands_next_to_its_figure(text: str, at: int, marked: Mapping[int, int], caption: str) -> None:
    [figure] = with_captions([Figure(id="1", start=at, end=at)], text, list(marked.items()))
    assert figure.caption == caption
    assert text[figure.start : figure.end] == caption


def test_two_figures_do_not_share_a_caption() -> None:
    text = "Text.\nFigure 1: Pump\nMore."
    figures = with_captions([Figure(id="1", start=5, end=5), Figure(id="2", start=20, end=20)], text, [])
    assert [figure.caption for figure in figures] == ["Figure 1: Pump", ""]


def test_a_caption_is_no_sentence() -> None:
    lines = ("Figure 3: Pump", "Fig. 3 Pump", "Figure 3", "Figure 3 shows", "Table 3: Pump")
    assert [is_caption_line(line) for line in lines] == [True, True, True, False, False]


def test_the_number_of_figures_is_limited() -> None:
    collector = FigureCollector()
    stored = decoded_picture(encoded(1))
    assert not isinstance(stored, str)
    added = [collector.add(Figure(id=""), stored) for _ in range(MAX_FIGURES + 2)]
    assert added.count(False) == 2
    assert len(collector.pictures) == 1
    assert collector.notes() == [
        "2 of its figures are left out: a document keeps up to 300 figures and 20 MB of pictures"
    ]


def test_a_large_picture_that_is_shown_again_is_no_logo() -> None:
    presentation = Presentation()
    for _ in range(3):
        slide = presentation.slides.add_slide(presentation.slide_layouts[6])
        slide.shapes.add_picture(io.BytesIO(encoded(1)), Pt(50), Pt(50), Pt(300), Pt(250))
        slide.shapes.add_picture(io.BytesIO(encoded(2)), Pt(400), Pt(50), Pt(80), Pt(80))
        slide.shapes.add_picture(io.BytesIO(encoded(1)), Pt(400), Pt(200), Pt(20), Pt(20))
    figures = parsed("a.pptx", saved(presentation)).map.figures
    assert [(figure.page, figure.box) for figure in figures] == [
        (number, (50.0, 50.0, 350.0, 300.0)) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    "data",
    [
        b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
        b"\x01\0\0\0" + bytes(36) + b" EMF" + bytes(40),
        b"\xd7\xcd\xc6\x9a" + bytes(40),
    ],
)
def test_a_picture_that_is_never_drawn_is_noted_once(data: bytes) -> None:
    collector = FigureCollector()
    for number in range(3):
        assert not collector.add_encoded(Figure(id=str(number)), data)
    assert collector.notes() == ["1 picture left out: SVG, EMF and WMF are not drawn; save what is needed as PNG"]
    assert not collector.add_encoded(Figure(id="4"), b"no picture")
    assert len(collector.notes()) == 1


def test_texts_in_figures_follow_their_captions_and_everything_after_them_moves() -> None:
    text = "One.\nFigure 1: Pump\nTwo.\nThree."
    figures = (Figure(id="1", caption="Figure 1: Pump", start=5, end=19), Figure(id="2", start=24, end=24))
    where = DocumentMap(page_starts=(0, 25), headings=(Heading(25, 1, "Three."),), figures=figures)
    file = with_texts(ParsedFile(text, where), {"1": "Oil", "2": "Gas"})
    assert file.text == "One.\nFigure 1: Pump\nOil\nTwo.\nGas\nThree."
    assert file.map.page_starts == (0, 33)
    assert file.map.headings[0].start == 33
    assert [file.text[one.start : one.end].strip() for one in file.map.figures] == ["Figure 1: Pump\nOil", "Gas"]
    assert [one.text for one in file.map.figures] == ["Oil", "Gas"]
    assert with_texts(file, {}).text == file.text


def test_the_text_in_a_figure_is_that_in_its_box() -> None:
    def box(text: str, x: float, y: float) -> list[object]:
        return [text, 0.9, x, y, x + 100, y, x + 100, y + 20, x, y + 20]

    page = {"dpi": 144.0, "turns": 0, "width": 1200, "height": 1600, "boxes": [box("in", 300, 300), box("out", 10, 10)]}
    assert text_in(Figure(id="1", box=(100.0, 100.0, 300.0, 300.0)), page) == "in"
    assert text_in(Figure(id="1"), page) == ""


def saved(document: object) -> bytes:
    data = io.BytesIO()
    document.save(data)  # type: ignore[attr-defined]
    return data.getvalue()
