"""Read the stored values of charts, and the text of diagrams, in Office files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from llama_index_contextual.readers.number_formats import number_text

Element = Any  # lxml ships no types
Block = str | list[list[str]]
"""A line, or the rows of a table."""

MAX_POINTS = 100_000
"""Maximum number of a point in a series; further points are omitted."""


def chart_blocks(root: Element) -> list[Block]:
    """Return the title of a chart and a table for each of its plots, with the series as columns.

    The values are those that the program stored with the chart. Errors such as #N/A are shown as they are.

    Args:
        root: Root element of the part with the chart.
    """
    blocks: list[Block] = []
    for title in root.xpath("./*[local-name()='chart']/*[local-name()='title']"):
        if text := drawing_text(title):
            blocks.append(text)
    for plot in root.xpath(".//*[local-name()='plotArea']/*[*[local-name()='ser']]"):
        rows = _plot_rows(plot)
        if any(any(row[1:]) for row in rows):
            blocks.append(rows)
    return [*blocks, *_new_chart(root)]


def _plot_rows(plot: Element) -> list[list[str]]:
    series = plot.xpath("./*[local-name()='ser']")
    names = [" ".join(each.xpath("./*[local-name()='tx']//*[local-name()='v']/text()")) for each in series]
    labels = next((points for each in series if (points := _labels(each))), [])
    columns = [_points(_first(each, "val", "yVal")) for each in series]
    length = max(map(len, (labels, *columns)), default=0)
    labels += [""] * (length - len(labels))
    return [["", *names], *(list(row) for row in zip_longest(labels, *columns, fillvalue=""))]


def _first(series: Element, *names: str) -> Element | None:
    return next((child for name in names for child in series.xpath(f"./*[local-name()='{name}']")), None)


def _labels(series: Element) -> list[str]:
    """Return the labels of the points; labels with several levels are joined from the outermost to the innermost."""
    source = _first(series, "cat", "xVal")
    levels = [] if source is None else source.xpath(".//*[local-name()='lvl']")
    if not levels:
        return _points(source)
    columns = [_points(level) for level in levels]
    length = max(map(len, columns))
    for column in columns[1:]:  # a label of an outer level applies until the next one
        column += [""] * (length - len(column))
        for at in range(1, length):
            column[at] = column[at] or column[at - 1]
    return [" ".join(filter(None, reversed(row))) for row in zip_longest(*columns, fillvalue="")]


def _points(source: Element | None) -> list[str]:
    """Return the stored values of a series, with numbers as Excel shows them."""
    if source is None:
        return []
    is_number = bool(source.xpath(".//*[local-name()='numCache' or local-name()='numLit']"))
    values: dict[int, str] = {}
    for point in source.xpath(".//*[local-name()='pt']"):
        at = point.get("idx", "")
        text = "".join(point.xpath("./*[local-name()='v'][1]/text()")) or (point.text or "").strip()
        if at.isascii() and at.isdigit() and len(at) < 7 and int(at) <= MAX_POINTS:
            values[int(at)] = _number(text) if is_number else text
    return [values.get(at, "") for at in range(max(values, default=-1) + 1)]


def _number(text: str) -> str:
    try:
        return number_text(float(text), "General")
    except (ValueError, OverflowError):
        return text


def _new_chart(root: Element) -> Iterator[Block]:
    """Yield the values of a chart in the format of Office 2016, such as a waterfall chart."""
    for data in root.xpath(".//*[local-name()='chartData']/*[local-name()='data']"):
        columns = []
        for dimension in data.xpath("./*[local-name()='strDim' or local-name()='numDim']"):
            for level in dimension.xpath("./*[local-name()='lvl']"):
                is_number = dimension.tag.endswith("numDim")
                columns.append([_number(point) if is_number else point for point in _points(level)])
        if columns:
            yield [list(row) for row in zip_longest(*columns, fillvalue="")]


def drawing_text(element: Element) -> str:
    """Return the text in an element of a drawing, with a line for each paragraph."""
    paragraphs = element.xpath(".//*[local-name()='p']") or element.xpath(".//*[local-name()='pt']")
    texts = ("".join(each.xpath(".//*[local-name()='t' or local-name()='v']/text()")) for each in paragraphs)
    return "\n".join(texts).strip()


def diagram_lines(root: Element) -> list[str]:
    """Return the text of each shape of a SmartArt diagram."""
    points = root.xpath("//*[local-name()='pt']")
    return [text for point in points if (text := "".join(point.xpath(".//*[local-name()='t']/text()")).strip())]
