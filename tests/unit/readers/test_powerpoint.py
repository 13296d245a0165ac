"""PowerPoint presentations: charts, merged cells, numbers, formulas, long titles, footers and hidden slides."""

from __future__ import annotations

import re
import zipfile
from datetime import date
from functools import partial
from io import BytesIO
from typing import Any

import pytest
from lxml import etree
from pptx import Presentation
from pptx.chart.data import BubbleChartData, CategoryChartData, XyChartData
from pptx.enum.chart import XL_CHART_TYPE

from llama_index_contextual.readers.charts import diagram_lines
from tests.integration.readers.office_files import archive, part, pptx, read, replaced, saved

DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"


def blank() -> tuple[Any, Any]:
    """Return a presentation and its only slide, which is blank."""
    presentation = Presentation()
    return presentation, presentation.slides.add_slide(presentation.slide_layouts[6])


@pytest.mark.parametrize("kind", ["THREE_D_COLUMN", "THREE_D_PIE", "COLUMN_CLUSTERED", "LINE", "XY_SCATTER", "RADAR"])
@pytest.mark.parametrize("error", ["2", "#N/A", "#DIV/0!"])
def test_any_chart_leaves_the_other_slides_readable(kind: str, error: str) -> None:
    presentation, slide = blank()
    data = CategoryChartData()
    data.categories = ["East", "West"]
    data.add_series("Sales", (1.5, 2))
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, 9, 9, data)
    names = {"THREE_D_COLUMN": "bar3DChart", "THREE_D_PIE": "pie3DChart", "LINE": "lineChart", "RADAR": "radarChart"}
    data = saved(presentation)
    (name,) = (name for name in _names(data) if name.startswith("ppt/charts/chart"))
    chart = part(data, name).decode().replace("barChart", names.get(kind, "barChart"))
    if kind == "XY_SCATTER":
        chart = chart.replace("c:cat>", "c:xVal>").replace("c:val>", "c:yVal>")
    chart = chart.replace("<c:v>2</c:v>", f"<c:v>{error}</c:v>")
    parsed = read("a.pptx", replaced(data, {name: chart.encode()}))
    assert parsed.text == f"# Slide 1\n\nSales\nEast  1.5\nWest  {error}"


def _names(data: bytes) -> list[str]:
    return zipfile.ZipFile(BytesIO(data)).namelist()


def chart_text(kind: Any, data: Any, change: Any = lambda chart: chart) -> str:
    """Return the text of a slide with a chart, whose part is changed first."""
    presentation, slide = blank()
    slide.shapes.add_chart(kind, 0, 0, 9, 9, data)
    content = saved(presentation)
    (name,) = (name for name in _names(content) if name.startswith("ppt/charts/chart"))
    content = replaced(content, {name: change(part(content, name).decode()).encode()})
    return read("a.pptx", content).text.removeprefix("# Slide 1\n\n")


def test_the_sizes_of_bubbles_are_read() -> None:
    data = BubbleChartData()
    series = data.add_series("Projects")
    series.add_data_point(1.5, 2, 30)
    series.add_data_point(2.5, 4, 70)
    assert chart_text(XL_CHART_TYPE.BUBBLE, data) == "–  Projects  Projects (size)\n1.5  2  30\n2.5  4  70"


def test_series_with_other_horizontal_values_have_tables_of_their_own() -> None:
    data = XyChartData()
    for name, points in {"A": ((1, 2), (3, 4)), "B": ((10, 2), (30, 4))}.items():
        series = data.add_series(name)
        for x, y in points:
            series.add_data_point(x, y)
    assert chart_text(XL_CHART_TYPE.XY_SCATTER, data) == "A\n1  2\n3  4\n\nB\n10  2\n30  4"


@pytest.mark.parametrize(("epoch", "day"), [("0", "2024-01-31"), ("1", "2028-02-01")])
def test_dates_and_percentages_of_a_chart_are_read_as_shown(epoch: str, day: str) -> None:
    data = CategoryChartData(number_format="0.0%")
    data.categories = [date(2024, 1, 31)]
    data.add_series("Share", (0.125,))
    text = chart_text(XL_CHART_TYPE.LINE, data, lambda chart: chart.replace('1904 val="0"', f'1904 val="{epoch}"'))
    assert text == f"Share\n{day}  12.5%"


def test_the_titles_of_the_axes_are_above_the_values() -> None:
    data = CategoryChartData()
    data.categories = ["East"]
    data.add_series("Rents", (5,))
    title = "<c:title><c:tx><c:rich><a:bodyPr/><a:p><a:r><a:t>EUR million</a:t></a:r></a:p></c:rich></c:tx></c:title>"
    change = partial(
        re.sub, "(<c:valAx>.*?</c:majorGridlines>|<c:valAx>.*?<c:majorGridlines/>)", rf"\1{title}", flags=re.S
    )
    text = chart_text(XL_CHART_TYPE.COLUMN_CLUSTERED, data, change)
    assert text == "EUR million\n\nRents\nEast  5"


NO_VALUES = '<c:chartSpace xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"/>'


@pytest.mark.parametrize("damage", ["", "<c:chartSpace", "cut", "missing", NO_VALUES])
def test_a_chart_that_is_damaged_empty_or_missing_leaves_the_other_slides_readable(damage: str) -> None:
    presentation, slide = blank()
    data = CategoryChartData()
    data.categories = ["East"]
    data.add_series("Sales", (1,))
    slide.shapes.add_chart(XL_CHART_TYPE.PIE, 0, 0, 9, 9, data)
    presentation.slides.add_slide(presentation.slide_layouts[5]).shapes.title.text = "Second"
    content = saved(presentation)
    (name,) = (name for name in _names(content) if name.startswith("ppt/charts/chart"))
    if damage == "missing":
        content = archive({each: part(content, each) for each in _names(content) if each != name})
    else:
        content = replaced(content, {name: part(content, name)[:500] if damage == "cut" else damage.encode()})
    parsed = read("a.pptx", content)
    assert parsed.text == "# Slide 1\n\n# Second"
    assert parsed.warnings == ("slide 1 has a chart without stored values (Chart 1), which is left out",)


def test_merged_cells_are_repeated_in_every_row_that_they_span() -> None:
    presentation, slide = blank()
    table = slide.shapes.add_table(4, 3, 0, 0, 9, 9).table
    for at, text in enumerate(("Zone", "Class", "Fee", "Inner", "A", "1", "", "B", "2", "", "C", "")):
        table.cell(at // 3, at % 3).text = text
    table.cell(1, 0).merge(table.cell(3, 0))
    table.cell(2, 2).merge(table.cell(3, 2))
    assert read("a.pptx", saved(presentation)).text == (
        "# Slide 1\n\nZone  Class  Fee\nInner  A  1\nInner  B  2\nInner  C  2"
    )


def text_of(*paragraphs: tuple[str, str]) -> str:
    """Return the text of a box with paragraphs, given as properties and runs in XML."""
    presentation, slide = blank()
    body = slide.shapes.add_textbox(0, 0, 9, 9).text_frame._txBody
    for child in body.findall(f"{{{DRAWING}}}p"):
        body.remove(child)
    for properties, content in paragraphs:
        body.append(etree.fromstring(f'<a:p xmlns:a="{DRAWING}">{properties}{content}</a:p>'))
    return read("a.pptx", saved(presentation)).text.removeprefix("# Slide 1\n\n")


def run(text: str, properties: str = "") -> str:
    return f"<a:r><a:rPr {properties}/><a:t>{text}</a:t></a:r>"


def numbered(kind: str, level: int = 0, start: str = "") -> str:
    return f'<a:pPr lvl="{level}"><a:buAutoNum type="{kind}" {start}/></a:pPr>'


def test_numbers_of_paragraphs() -> None:
    period, letter = numbered("arabicPeriod"), numbered("alphaLcParenBoth", 1)
    lines = [(period, "one"), (letter, "sub"), (letter, "sub"), (period, "two"), ("", "text"), (period, "again")]
    text = text_of(*((properties, run(line)) for properties, line in lines))
    assert text == "1. one\n(a) sub\n(b) sub\n2. two\ntext\n1. again"
    assert text_of((numbered("romanUcPeriod", start='startAt="4"'), run("x"))) == "IV. x"


def test_superscripts_and_subscripts() -> None:
    raised, lowered = 'baseline="30000"', 'baseline="-25000"'
    line = run("10") + run("6", raised) + run(" l of H") + run("2", lowered) + run("O in 45") + run("3", raised)
    assert text_of(("", line)) == "10^6 l of H2O in 45^3"
    assert text_of(("", run("10") + run("6", 'baseline="high"'))) == "106"  # no number: not raised


def test_formulas() -> None:
    math = "http://schemas.openxmlformats.org/officeDocument/2006/math"
    power = "<m:sSup><m:e><m:r><m:t>c</m:t></m:r></m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup>"
    formula = (
        '<mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"><mc:Choice'
        ' xmlns:a14="http://schemas.microsoft.com/office/drawing/2010/main" Requires="a14"><a14:m><m:oMath'
        f' xmlns:m="{math}"><m:r><m:t>E=m</m:t></m:r>{power}</m:oMath></a14:m></mc:Choice></mc:AlternateContent>'
    )
    assert text_of(("", f"{run('Law: ')}{formula}")) == "Law: E=mc^2"


def test_a_long_title_is_read_whole() -> None:
    title = "Agenda: " + "; ".join(f"point {n} about the harbour" for n in range(20)) + "; the crane is bought in May."
    parsed = read("a.pptx", pptx((title, "text"), ("Short", "more")))
    assert parsed.text == f"# Slide 1\n\n{title}\n\ntext\n\n# Short\n\nmore"


def test_shapes_that_are_hidden_or_outside_the_slide_are_left_out_with_a_warning() -> None:
    presentation, slide = blank()
    width, height = presentation.slide_width, presentation.slide_height
    places = {"on the slide": (0, 0), "left": (-50, 0), "right": (width, 0), "below": (0, height), "over": (0, -50)}
    for text, place in places.items():
        slide.shapes.add_textbox(*place, 50, 50).text_frame.text = text
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 50, 50).text_frame.text = "shown in a group"
    hidden = group.shapes.add_textbox(0, 0, 50, 50)
    hidden.text_frame.text = "hidden"
    hidden._element.xpath(".//p:cNvPr")[0].set("hidden", "1")
    slide.shapes.add_textbox(width + 50, 0, 50, 50)
    parsed = read("a.pptx", saved(presentation))
    assert parsed.text == "# Slide 1\n\non the slide\n\nshown in a group"
    (warning,) = parsed.warnings
    assert warning.startswith("5 shapes are hidden or outside the slide and left out (slide 1): ")


def test_footers_and_texts_of_the_master_are_read_once_and_hidden_slides_are_reported() -> None:
    presentation = Presentation()
    box = presentation.slide_master.shapes._spTree
    for title in ("One", "Two"):
        slide = presentation.slides.add_slide(presentation.slide_layouts[5])
        slide.shapes.title.text = title
    slide._element.set("show", "0")
    text = slide.shapes.add_textbox(0, 0, 9, 9)
    text.text_frame.text = "Project Falcon 9302-K"
    box.append(text._element)
    parsed = read("a.pptx", saved(presentation))
    assert parsed.text == "# One\n\n# Two\n\nPage footer: Project Falcon 9302-K"
    assert parsed.warnings == ("1 slide hidden in the show and read: 2",)


def test_the_shapes_of_a_diagram_are_read_in_the_order_of_their_connections() -> None:
    space = "http://schemas.openxmlformats.org/drawingml/2006/diagram"

    def shape(number: int, *lines: str) -> str:
        texts = "".join(
            f"<a:p><a:r><a:t>{line[:2]}</a:t></a:r><a:r><a:t>{line[2:]}</a:t></a:r></a:p>" for line in lines
        )
        return f'<d:pt modelId="{number}"><d:t>{texts}</d:t></d:pt>'

    links = "".join(
        f'<d:cxn srcId="{first}" destId="{second}" srcOrd="{at}"/>'
        for first, second, at in ((0, 1, 0), (0, 2, 1), (1, 3, 0), (3, 1, 0))
    )
    shapes = shape(2, "Deliver") + shape(3, "Sort", "Pack") + shape(1, "Collect") + shape(9, "Alone")
    root = etree.fromstring(
        f'<d:dataModel xmlns:d="{space}" xmlns:a="{DRAWING}"><d:ptLst><d:pt modelId="0" type="doc"/>{shapes}</d:ptLst>'
        f"<d:cxnLst>{links}</d:cxnLst></d:dataModel>"
    )
    assert diagram_lines(root) == ["Collect", "Sort", "Pack", "Deliver", "Alone"]


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("<p:sp>{head}<p:txBody><a:bodyPr/><a:p>{run}{formula}</a:p></p:txBody></p:sp>", "So E=1"),
        ("<p:contentPart/>", "old"),
    ],
)
def test_shapes_with_alternatives_are_read_once(choice: str, text: str) -> None:
    presentation, slide = blank()
    slide.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "old"
    data = saved(presentation)
    xml = part(data, "ppt/slides/slide1.xml").decode()
    shape = xml[xml.index("<p:sp>") : xml.index("</p:sp>") + len("</p:sp>")]
    math = "http://schemas.openxmlformats.org/officeDocument/2006/math"
    formula = (
        '<a14:m xmlns:a14="http://schemas.microsoft.com/office/drawing/2010/main">'
        f'<m:oMath xmlns:m="{math}"><m:r><m:t>E=1</m:t></m:r></m:oMath></a14:m>'
    )
    head = shape[len("<p:sp>") : shape.index("<p:txBody>")]
    first = choice.format(head=head, run=run("So "), formula=formula)
    alternatives = (
        '<mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">'
        f'<mc:Choice Requires="a14">{first}</mc:Choice><mc:Fallback>{shape}</mc:Fallback></mc:AlternateContent>'
    )
    data = replaced(data, {"ppt/slides/slide1.xml": xml.replace(shape, alternatives).encode()})
    assert read("a.pptx", data).text == f"# Slide 1\n\n{text}"
