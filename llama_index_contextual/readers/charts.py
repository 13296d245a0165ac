"""Read the stored values of charts, and the text of diagrams, in Office files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

from llama_index_contextual.figures import Figure
from llama_index_contextual.readers.number_formats import MAX_FORMAT, number_text
from llama_index_contextual.readers.package import local
from llama_index_contextual.readers.scripts import joined_runs, office_formula

Element = Any  # lxml ships no types
Block = str | list[list[str]]
"""A line, or the rows of a table."""

_RAISED = 10_000  # minimum offset of the baseline in thousandths of a percent
MAX_POINTS = 100_000
"""Maximum number of a point in a series; further points are omitted."""


def chart_blocks(root: Element) -> list[Block]:
    """Return the title of a chart and a table for each of its plots, with the series as columns.

    The values are those that the program stored with the chart. Errors such as #N/A are shown as they are.

    Args:
        root: Root element of the part with the chart.
    """
    blocks: list[Block] = []
    axes = root.xpath("./*[local-name()='chart']/*[local-name()='plotArea']/*/*[local-name()='title']")
    for title in (*root.xpath("./*[local-name()='chart']/*[local-name()='title']"), *axes):
        if text := drawing_text(title):
            blocks.append(text)
    for plot in root.xpath(".//*[local-name()='plotArea']/*[*[local-name()='ser']]"):
        for rows in _plot_tables(plot):
            if any(any(row[1:]) for row in rows):
                blocks.append(rows)
    return [*blocks, *_new_chart(root)]


def chart_figure(
    blocks: Sequence[Block], *, alt: str = "", box: tuple[float, float, float, float] | None = None
) -> Figure:
    """Return a chart, given as its title and its tables, as a figure with its values.

    Example:
        >>> chart_figure(["Sales", [["", "2024"], ["North", "5"]]]).values
        'Sales\\n  2024\\nNorth  5'
    """
    lines = [block if isinstance(block, str) else "\n".join(map("  ".join, block)) for block in blocks]
    title = next((block for block in blocks if isinstance(block, str)), "")
    return Figure(id="", kind="chart", alt=alt or " ".join(title.split()), values="\n".join(lines), box=box)


def _plot_tables(plot: Element) -> Iterator[list[list[str]]]:
    """Yield a table with the series of a plot, or one for each series if they have different horizontal values."""
    series = plot.xpath("./*[local-name()='ser']")
    labels = [_labels(each) for each in series]
    first = next(filter(None, labels), [])
    if any(
        _first(each, "xVal") is not None and own not in ([], first) for each, own in zip(series, labels, strict=True)
    ):
        for each, own in zip(series, labels, strict=True):
            yield _rows([each], own)
    else:
        yield _rows(series, first)


def _rows(series: Sequence[Element], labels: Sequence[str]) -> list[list[str]]:
    """Return the column headers and the rows of some series; the sizes of bubbles are columns of their own."""
    head, columns = [""], [list(labels)]
    for each in series:
        name = " ".join(each.xpath("./*[local-name()='tx']//*[local-name()='v']/text()"))
        head.append(name)
        columns.append(_points(_first(each, "val", "yVal")))
        if sizes := _points(_first(each, "bubbleSize")):
            head.append(f"{name} (size)".lstrip())
            columns.append(sizes)
    return [head, *(list(row) for row in zip_longest(*columns, fillvalue=""))]


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
    """Return the stored values of a series, with numbers as Excel shows them, and dates in ISO format."""
    if source is None:
        return []
    epoch = _epoch(source)
    is_number = bool(source.xpath(".//*[local-name()='numCache' or local-name()='numLit']"))
    code = "".join(source.xpath("(.//*[local-name()='formatCode'])[1]/text()")) or "General"
    values: dict[int, str] = {}
    for point in source.xpath(".//*[local-name()='pt']"):
        at = point.get("idx", "")
        text = "".join(point.xpath("./*[local-name()='v'][1]/text()")) or (point.text or "").strip()
        if at.isascii() and at.isdigit() and len(at) < 7 and int(at) <= MAX_POINTS:
            values[int(at)] = _number(text, point.get("formatCode") or code, epoch) if is_number else text
    return [values.get(at, "") for at in range(max(values, default=-1) + 1)]


def _epoch(element: Element) -> datetime:
    """Return the date from which the dates of a chart are counted in days."""
    from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH

    root = element.getroottree().getroot()
    is_mac = root.xpath("boolean(./*[local-name()='date1904'][not(@val = '0' or @val = 'false')])")
    epoch: datetime = MAC_EPOCH if is_mac else WINDOWS_EPOCH
    return epoch


def _number(text: str, code: str, epoch: datetime) -> str:
    """Return a number in a format of Excel; errors such as #N/A are returned as they are."""
    from openpyxl.styles.numbers import is_date_format
    from openpyxl.utils.datetime import from_excel

    try:
        if not is_date_format(code[:MAX_FORMAT]):
            return number_text(float(text), code)
        return str(from_excel(float(text), epoch)).removesuffix(" 00:00:00")
    except (ValueError, OverflowError):
        return text


def _new_chart(root: Element) -> Iterator[Block]:
    """Yield the values of a chart in the format of Office 2016, such as a waterfall chart."""
    for data in root.xpath(".//*[local-name()='chartData']/*[local-name()='data']"):
        columns = []
        for dimension in data.xpath("./*[local-name()='strDim' or local-name()='numDim']"):
            for level in dimension.xpath("./*[local-name()='lvl']"):
                is_number = dimension.tag.endswith("numDim")
                code = level.get("formatCode") or "General"
                epoch = _epoch(level)
                columns.append([_number(each, code, epoch) if is_number else each for each in _points(level)])
        if columns:
            yield [list(row) for row in zip_longest(*columns, fillvalue="")]


def drawing_text(element: Element) -> str:
    """Return the text in an element of a drawing, with a line for each paragraph."""
    if paragraphs := element.xpath(".//*[local-name()='p']"):
        return "\n".join(map(drawing_line, paragraphs)).replace("\v", "\n").strip()
    texts = ("".join(each.xpath(".//*[local-name()='v']/text()")) for each in element.xpath(".//*[local-name()='pt']"))
    return "\n".join(texts).strip()


def drawing_line(paragraph: Element) -> str:
    """Return the text of a paragraph, with marks for superscripts, formulas as text, and "\\v" for line breaks."""
    runs: list[tuple[str, int]] = []
    for child in paragraph.iterchildren():
        name = local(child)
        if name in ("r", "fld"):
            properties = child.find("{*}rPr")
            offset = _offset("" if properties is None else properties.get("baseline", ""))
            level = (offset >= _RAISED) - (offset <= -_RAISED)
            runs.append(("".join(text.text or "" for text in child.iter("{*}t")), level))
        elif name == "br":
            runs.append(("\v", 0))
        elif name in ("AlternateContent", "m"):
            formulas = child.xpath(".//*[local-name()='oMath'][not(ancestor::*[local-name()='Fallback'])]")
            runs.append(("".join(map(office_formula, formulas)), 0))
    return joined_runs(runs)


def _offset(baseline: str) -> float:
    """Return the offset of a baseline in thousandths of a percent; 0 if it is not a number."""
    try:
        return float(baseline.removesuffix("%")) * (1_000 if baseline.endswith("%") else 1)
    except ValueError:
        return 0.0


def diagram_lines(root: Element) -> list[str]:
    """Return the text of each shape of a SmartArt diagram, in the order in which it is shown."""
    points = root.xpath("//*[local-name()='pt']")
    order = _shown_order(root)
    texts = [(order.get(each.get("modelId"), len(order)), drawing_text(each)) for each in points]
    return [line for _, text in sorted(texts, key=lambda entry: entry[0]) for line in text.split("\n") if line.strip()]


def _shown_order(root: Element) -> dict[str, int]:
    """Return the places of the shapes of a diagram by their ids: each shape is followed by those below it."""
    below: dict[str, list[tuple[int, str]]] = {}
    for link in root.xpath("//*[local-name()='cxn'][not(@type) or @type = 'parOf']"):
        place = link.get("srcOrd", "")
        at = int(place) if place.isascii() and place.isdigit() and len(place) < 7 else 0
        below.setdefault(link.get("srcId", ""), []).append((at, link.get("destId", "")))
    order: dict[str, int] = {}
    waiting = root.xpath("//*[local-name()='pt'][@type = 'doc']/@modelId")[::-1]
    while waiting:
        point = waiting.pop()
        if point not in order:
            order[point] = len(order)
            waiting += [other for _, other in sorted(below.get(point, []), reverse=True)]
    return order
