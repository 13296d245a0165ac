"""Read Excel workbooks, with the values as they are displayed.

Converters that use pandas turn 007 into 7, "NA" into a missing value and 1,234,567.891 into 1.234568e+06, and
converters to Markdown tables lose the text after a | in a cell.
"""

from __future__ import annotations

import html
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from itertools import groupby, islice
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.figures import Figure
from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.charts import chart_blocks, chart_figure, diagram_lines, drawing_text
from llama_index_contextual.readers.files import FileSource, PictureReader, one_line
from llama_index_contextual.readers.number_formats import MAX_FORMAT, number_text
from llama_index_contextual.readers.package import Package, Relation, local, parse_xml, relation_id, use_choices
from llama_index_contextual.readers.scripts import joined_runs

MAX_ROWS = 1_048_576
"""Maximum number of rows in a sheet, as in Excel."""


def add_sheets(builder: DocumentBuilder, source: FileSource) -> None:
    """Add the visible sheets of a workbook, with the values formatted as in Excel."""
    from openpyxl import load_workbook

    package = Package(source.data)
    sheets = _sheets_of(package)
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        workbook = load_workbook(_with_scripts(source.data, package), read_only=True, data_only=True, keep_links=False)
        if formulas := sum(sheet.formulas_without_result for sheet in sheets.values()):
            builder.warnings.append(
                f"the results of {pluralize(formulas, 'formula')} are not in the file: open it in Excel or"
                " LibreOffice, and save it"
            )
        hidden = {sheet.title for sheet in workbook.worksheets if sheet.sheet_state != "visible"}
        sheets = {name: sheet for name, sheet in sheets.items() if name not in hidden}
        for sheet in workbook.worksheets:
            if sheet.title in hidden:
                builder.warnings.append(
                    f"sheet {sheet.title!r} is hidden and left out: show it in Excel to have it read"
                )
                continue
            builder.page(sheet.title)
            builder.heading(1, sheet.title)
            sheet.reset_dimensions()  # the file may state a wrong size
            part = sheets.get(sheet.title, _Sheet())
            rows = part.with_merged(_rows_of(sheet))
            head = ""
            for is_filled, block in groupby(rows, key=any):
                if is_filled:
                    head = builder.table(block, head_before=head)
            _add_drawings(builder, package, sheet.title, sheets, source.pictures)
    for name, part in sheets.items():
        if part.is_chart:
            builder.page(name)
            builder.heading(1, name)
            _add_drawings(builder, package, name, sheets, source.pictures)
    builder.page_texts(text for part in sheets.values() for text in part.page_texts)
    builder.warnings += [*_notes(sheets), *package.warnings()]
    counts = Counter(
        one_line(str(message.message)) for message in messages if not _IRRELEVANT.search(str(message.message))
    )
    builder.warnings += [
        f"Excel: {text}{f' ({count} times)' if count > 1 else ''}" for text, count in islice(counts.items(), 10)
    ]


MAX_MESSAGES = 10
# Messages of openpyxl about what is not part of the text.
_IRRELEVANT = re.compile(r"extension is not supported|default style|[Pp]rint |header or footer|will be removed|wmf")


def _with_scripts(data: bytes, package: Package) -> BytesIO:
    """Return a workbook in which marks replace the superscripts and subscripts, which openpyxl does not read."""
    from lxml import etree

    texts = [name for name in package.names if name.startswith(("xl/sharedStrings", "xl/worksheets/"))]
    changed = {name: content for name in texts if b"vertAlign" in (content := package.read(name))}
    if not changed:
        return BytesIO(data)
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
        for name in package.names:
            if name in changed:
                root = parse_xml(changed[name])
                for element in root.iter("{*}si", "{*}is"):
                    _mark_scripts(element)
                target.writestr(name, etree.tostring(root, encoding="utf-8", xml_declaration=True))
            elif name.endswith((".xml", ".rels")):
                target.writestr(name, package.read(name))
    archive.seek(0)
    return archive


def _mark_scripts(element: Any) -> None:
    """Replace the runs of a rich text by one run, with marks for superscripts and subscripts."""
    levels = {"superscript": 1, "subscript": -1}
    runs = []
    for run in element.iterchildren("{*}r"):
        kinds = [levels.get(mark.get("val"), 0) for mark in run.iter("{*}vertAlign")]
        runs.append(("".join(text.text or "" for text in run.iter("{*}t")), next(iter(kinds), 0)))
    if any(level for _, level in runs):
        namespace = element.tag.rpartition("}")[0]
        for child in list(element):
            element.remove(child)
        text = element.makeelement(f"{namespace}}}t", {})
        text.text = joined_runs(runs)
        element.append(text)


def _rows_of(sheet: Any) -> Iterator[list[str]]:
    return ([_cell_text(cell) for cell in row] for row in islice(sheet.rows, MAX_ROWS))


# What openpyxl does not read in its read-only mode

_WITHOUT_RESULT = re.compile(
    rb'<c\b(?![^>]{0,200}\bt="str")[^>]{0,200}>\s*<f(?:[^>]*/>|[^<]*</f>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>'
)
_MERGED = re.compile(rb'<(?:\w{1,20}:)?mergeCell\s[^<>]{0,100}?ref="([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})"')
_HIDDEN_ROW = re.compile(rb'<(?:\w{1,20}:)?row\s[^<>]{0,300}?\bhidden="(?:1|true)"')
_COLUMNS = re.compile(rb"<(?:\w{1,20}:)?col\s[^<>]{0,300}>")
_PAGE_TEXT = re.compile(rb"<(?:\w{1,20}:)?(?:odd|even|first)(Header|Footer)>([^<]{1,2000})<")
_PAGE_CODE = re.compile(r'&(?:"[^"]*+"|\d+|K[0-9A-Fa-f+-]{1,8}|[A-Za-z+-])')


@dataclass
class _Sheet:
    """What is around the cells of a sheet.

    Attributes:
        name: Name of the part.
        is_chart: Whether the sheet consists of a chart.
        merged: Last row of each cell that spans several rows, by row and column, starting at 1.
        page_texts: The kind and the text of each header and footer.
        hidden_rows: Number of hidden rows.
        hidden_columns: Number of hidden columns.
        formulas_without_result: Number of formulas whose results are not in the file.
        comments: Number of comments.
    """

    name: str = ""
    is_chart: bool = False
    merged: dict[tuple[int, int], int] = field(default_factory=dict)
    page_texts: list[tuple[str, str]] = field(default_factory=list)
    hidden_rows: int = 0
    hidden_columns: int = 0
    formulas_without_result: int = 0
    comments: int = 0

    @classmethod
    def of(cls, package: Package, relation: Relation) -> _Sheet:
        data = package.read(relation.target)
        is_chart = relation.kind == "chartsheet"
        relations = package.relations(relation.target).values()
        notes = [to.target for to in relations if to.kind == "comments" and to.target in package.names]
        columns = [column for column in _COLUMNS.findall(data) if b'hidden="1"' in column or b'hidden="true"' in column]
        return cls(
            name=relation.target,
            is_chart=is_chart,
            merged={
                (int(top), _column(left)): int(bottom)
                for left, top, _right, bottom in _MERGED.findall(data)
                if int(bottom) > int(top)
            },
            page_texts=[(kind.decode().lower(), _page_text(text)) for kind, text in _PAGE_TEXT.findall(data)],
            hidden_rows=len(_HIDDEN_ROW.findall(data)),
            hidden_columns=len(columns),
            formulas_without_result=len(_WITHOUT_RESULT.findall(data)),
            comments=sum(package.read(name).count(b"<comment ") for name in notes),
        )

    def with_merged(self, rows: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yield the rows, with a cell that spans several rows repeated in each of them that has other cells."""
        if not self.merged:
            yield from rows
            return
        below: dict[int, tuple[int, str]] = {}  # column -> last row, text
        for number, row in enumerate(rows, 1):
            below = {column: span for column, span in below.items() if span[0] >= number}
            if below and any(row):
                row += [""] * (max(below) - len(row))
                for column, (_, text) in below.items():
                    row[column - 1] = row[column - 1] or text
            for column, text in enumerate(row, 1):
                if text and (last := self.merged.get((number, column))) is not None:
                    below[column] = (last, text)
            yield row


def _column(letters: bytes) -> int:
    """Return the number of a column, such as 27 for AA."""
    number = 0
    for letter in letters:
        number = 26 * number + letter - 64
    return number


def _page_text(data: bytes) -> str:
    """Return a header or footer without its formatting and its fields, such as the page number."""
    text = html.unescape(data.decode("utf-8", "replace")).replace("&&", "\0")
    return _PAGE_CODE.sub(" ", text).replace("\0", "&")


def _sheets_of(package: Package) -> dict[str, _Sheet]:
    """Return the sheets of a workbook by name."""
    main = package.main_part() or "xl/workbook.xml"
    root, relations = package.xml(main), package.relations(main)
    sheets = {}
    for element in [] if root is None else root.iter():
        to = relations.get(relation_id(element, "id")) if local(element) == "sheet" else None
        is_visible_chart = to is not None and to.kind == "chartsheet" and element.get("state", "visible") == "visible"
        if to is None or not (to.kind == "worksheet" or is_visible_chart):
            continue
        if to.target not in package.names:
            package.damaged[to.target] = None
        else:
            sheets[element.get("name", "")] = _Sheet.of(package, to)
    return sheets


def _notes(sheets: Mapping[str, _Sheet]) -> Iterator[str]:
    """Yield a warning for each sheet with hidden rows or columns, and one for all comments."""
    for name, sheet in sheets.items():
        hidden = [(sheet.hidden_rows, "hidden row"), (sheet.hidden_columns, "hidden column")]
        if any(count for count, _ in hidden):
            parts = " and ".join(pluralize(count, noun) for count, noun in hidden if count)
            yield f"sheet {name!r} has {parts}, whose cells are read"
    if comments := sum(sheet.comments for sheet in sheets.values()):
        verb = "is" if comments == 1 else "are"
        yield f"{pluralize(comments, 'comment')} {verb} left out: move what is needed into cells"


def _add_drawings(
    builder: DocumentBuilder,
    package: Package,
    title: str,
    sheets: Mapping[str, _Sheet],
    pictures: PictureReader | None,
) -> None:
    """Add the text boxes, the pictures and the charts of a sheet."""
    part_name = sheets[title].name if title in sheets else ""
    for to in package.relations(part_name).values() if part_name else ():
        root = package.xml(to.target) if to.kind == "drawing" else None
        relations = package.relations(to.target) if root is not None else {}
        if root is not None:
            use_choices(root)
        for element in [] if root is None else root.iter():
            name = local(element)
            if name == "txBody":
                builder.paragraph(drawing_text(element))
            elif name == "cNvPr" and " " in (description := element.get("descr", "").strip()):
                builder.paragraph(description)
            elif name == "blip" and pictures is not None:
                target = relations.get(relation_id(element, "embed"))
                if target is not None and target.target in package.names:
                    data = package.read(target.target)
                    names = element.xpath("ancestor::*[local-name()='pic']//*[local-name()='cNvPr']/@descr")
                    builder.figure(Figure(id="", alt="".join(names)), data)
                    text = pictures.text(data, f"sheet {title!r}")
                    builder.paragraph(text or "", keeps_space=True)
            elif name in ("chart", "relIds"):
                target = relations.get(relation_id(element, "id" if name == "chart" else "dm"))
                part = None if target is None else package.xml(target.target)
                if part is not None and name == "relIds":
                    builder.paragraph("\n".join(diagram_lines(part)))
                elif part is not None:
                    _add_chart(builder, part, sheets)


def _add_chart(builder: DocumentBuilder, root: Any, sheets: Mapping[str, _Sheet]) -> None:
    """Add the title of a chart, and its values if they are not in the sheets."""
    references = root.xpath(".//*[local-name()='f']/text()")
    names = {reference.rpartition("!")[0].strip("'").replace("''", "'") for reference in references}
    is_shown = bool(names) and names <= set(sheets)
    blocks = chart_blocks(root)
    if blocks:
        builder.figure(chart_figure(blocks))
    for block in blocks:
        if isinstance(block, str):
            builder.paragraph(block)
        elif not is_shown:
            builder.table(block)


def _cell_text(cell: Any) -> str:
    """Return the value of a cell, formatted as in Excel, with dates in ISO format."""
    from openpyxl.utils.escape import unescape

    value = cell.value
    if value is None:
        return ""
    if isinstance(value, str):
        return str(unescape(value))
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return number_text(value, cell.number_format)
    if _ELAPSED.search(cell.number_format):
        return _duration_text(value, cell.number_format)
    return str(value).removesuffix(" 00:00:00")  # a date without a time


_ELAPSED = re.compile(r"\[(?:h{1,9}|m{1,9}|s{1,9})\]", re.IGNORECASE)
_CLOCK = re.compile(
    r'\[([hms]{1,9})\]|(h{1,9}|m{1,9}|s{1,9})|\.(0{1,9})|\[[^\[\]]*+\]|"([^"]*+)"|\\(.)|[_*].|(.)', re.IGNORECASE
)


def _duration_text(value: Any, code: str) -> str:
    """Format a duration with an Excel format for elapsed time, such as "[h]:mm"; `value` is a date, time or duration.

    Example:
        >>> from datetime import timedelta
        >>> _duration_text(timedelta(hours=26, minutes=5), "[h]:mm")
        '26:05'
    """
    from openpyxl.utils.datetime import to_excel

    seconds = float(to_excel(value)) * 86_400
    places = next((len(match[3]) for match in _CLOCK.finditer(code) if match[3]), 0)
    rest = round(abs(seconds), places)
    sizes = {"h": 3_600, "m": 60, "s": 1}
    text = ""
    for match in _CLOCK.finditer(code[:MAX_FORMAT].partition(";")[0]):
        elapsed, clock, decimals, quoted, escaped, other = match.groups()
        unit = (elapsed or clock or "").lower()
        if unit:
            count, rest = divmod(rest, sizes[unit[0]])
            text += f"{int(count):0{len(unit)}d}"
        elif decimals:
            text += f"{rest:.{places}f}"[1:]
        else:
            text += quoted or escaped or (other if other and other != "@" else "")
    return f"{'-' if seconds < 0 else ''}{text.strip()}"
