"""Find the cells of a table row in the text of a passage, and the column header of each cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

ROWS_AROUND = 2
"""Number of rows before and after the rows that were asked for."""

MOST_ROWS = 6
"""Number of rows above which a span is not regarded as rows of a table."""

MOST_HEADS = 3
"""Maximum number of rows of column headers."""

_COLUMNS = re.compile(r"\t| {2,}")
_PIPES = re.compile(r"(?<!\\)\|")
_FIGURE = re.compile(r"[-–(]?\d(?:[\d.,]*\d)?\)?%?")
_LABEL_END = re.compile(r".\w\W?$")
_YEARS = re.compile(r"(?:(?:19|20)\d\d ?)+")
_RULE = re.compile(r"[\s|:-]+")
_DATE_CELL = re.compile(r"(?:19|20)\d\d(?!\d)")
_HAS_FIGURE = re.compile(r"\d")
_VALUE = re.compile(r"[-–−—(+<>~$€£¥]*\d[\d.,/:]*[)%]*(?:x|bps|pts?)?\)?|[-–−—]+%?|N/A|n/a|N/?M|nm|\*+")
_SIGN_BEFORE = re.compile(r"[-–−(+]?[$€£¥][(]?|\(")
_SIGN_AFTER = re.compile(r"[)%]+|bps|pts?|pp|x")


@dataclass(frozen=True)
class TableRows:
    """Rows of a table with its column headers.

    Attributes:
        head: The header of each column; empty if only one line for all of them is known.
        before: The rows before them.
        rows: The rows.
        after: The rows after them.
        title: The line above the table if the headers cannot be told apart, or "".
    """

    head: Sequence[str]
    before: Sequence[Sequence[str]]
    rows: Sequence[Sequence[str]]
    after: Sequence[Sequence[str]]
    title: str = ""

    def labelled(self) -> str:
        """Return each row as text, with the column header before each cell.

        Example:
            >>> TableRows(["Zone", "Fee"], [], [["Tarn", "8"]], []).labelled()
            'Tarn (Fee: 8)'
        """
        lines = []
        for first, *rest in self.rows:
            heads = self.head[1:] or [""] * len(rest)
            pairs = ", ".join(f"{head}: {cell}" if head else cell for head, cell in zip(heads, rest, strict=True))
            line = f"{first} ({pairs})" if pairs and first else first or pairs
            lines.append(f"{self.title}: {line}" if self.title else line)
        return "; ".join(lines)


def rows_at(text: str, start: int, end: int, *, table_head: str = "", columns: Sequence[str] = ()) -> TableRows | None:
    """Return the rows at a span of a passage, or None if they are not rows of a table with column headers.

    Args:
        text: The passage.
        start: Offset of the first row in the passage.
        end: Offset after the last row.
        table_head: The column headers of the table that the passage continues, or "".
        columns: The header of each column if the text does not separate the cells; see `metadata.columns_at`.
    """
    first, last = text.rfind("\n", 0, start) + 1, (text.find("\n", end) + 1 or len(text) + 1) - 1
    lines_above, row_lines = text[:first].splitlines(), text[first:last].strip().splitlines()
    lines_below = text[last + 1 :].splitlines()
    if len(row_lines) > MOST_ROWS:
        return None
    if columns:
        rows, before, after = (
            [cells for line in lines if (cells := cells_of_figures(line, len(columns) - 1))]
            for lines in (row_lines, lines_above[-ROWS_AROUND:], lines_below[:ROWS_AROUND])
        )
        return TableRows(columns, before, rows, after) if rows and len(rows) == len(row_lines) else None
    above, rows, below = _rows(reversed(lines_above))[::-1], _rows(row_lines), _rows(lines_below)
    if table_head and len(above) == len(lines_above):  # the passage begins inside the table
        above = [next(iter(_rows(reversed(table_head.splitlines()))), []), *above]
    title = _title([*lines_above, *row_lines], len(lines_above) - len(above)) if above or below else ""
    head, *table = [[], *above, *rows] if title else _with_whole_head([*above, *rows])
    rows = table[max(0, len(table) - len(rows)) :]  # without the headers, if they are asked for
    width = len(rows[0] if title and rows else head)
    if not rows or len(_rows(row_lines)) < len(row_lines) or any(len(row) != width for row in rows):
        return None
    return TableRows(head, table[: len(table) - len(rows)][-ROWS_AROUND:], rows, below[:ROWS_AROUND], title)


def cells_of(line: str) -> list[str]:
    r"""Return the cells of a line of a table, which are separated by "|" or several spaces, or are several figures.

    Example:
        >>> cells_of("| Leakage | 15.6 % |"), cells_of("Leakage 15.6 % 16.9 %"), cells_of("No table.")
        (['Leakage', '15.6 %'], ['Leakage', '15.6 %', '16.9 %'], [])
    """
    line = line.strip()
    if line.startswith("|") or " | " in line:
        inner = line.removeprefix("|").removesuffix("|")
        return [_one_line(cell.replace("\\|", "|")) for cell in _PIPES.split(inner)]
    if row := _figure_row(line):
        return [_one_line(row[0]), *row[1]]
    cells = [_one_line(cell) for cell in _COLUMNS.split(line)]
    return cells if len(cells) > 1 else []


def cells_of_figures(line: str, count: int) -> list[str]:
    """Return the label and the figures of a row with a known number of columns; empty if it has fewer figures.

    Example:
        >>> cells_of_figures("Net sales $ 14,694 $ (5) 1.2 %", 3), cells_of_figures("Net sales 2", 3)
        (['Net sales', '$ 14,694', '$ (5)', '1.2 %'], [])
    """
    words, values = line.split(), list[str]()
    while len(values) < count:
        last = len(words)
        first = last - 1
        while first > 0 and _SIGN_AFTER.fullmatch(words[first]):
            first -= 1
        if first < 0 or not _VALUE.fullmatch(words[first]):
            return []
        while first > 0 and _SIGN_BEFORE.fullmatch(words[first - 1]):
            first -= 1
        values.append(" ".join(words[first:last]))
        del words[first:]
    return [" ".join(words), *reversed(values)]


def _one_line(cell: str) -> str:
    return " ".join(cell.split())


def _rows(lines: Iterable[str]) -> list[list[str]]:
    """Return the cells of the lines up to the first one that is not part of a table, without rules such as "|---|"."""
    rows = takewhile(bool, map(cells_of, lines))
    return [cells for cells in rows if not _RULE.fullmatch("|".join(cells))]


def _with_whole_head(table: Sequence[list[str]]) -> list[list[str]]:
    """Return a table whose column headers are one row, also if they are several rows with merged cells."""
    if not table:
        return [[]]
    last = 0
    while last + 1 < min(len(table) - 1, MOST_HEADS) and _continues_head(table[last], table[last + 1]):
        last += 1
    if not last:
        return list(table)
    spread = [*map(_spread, table[:last]), table[last]]
    head = [" ".join(filter(None, dict.fromkeys(cells))) for cells in zip(*spread, strict=True)]
    return [head, *table[last + 1 :]]


def _continues_head(head: Sequence[str], cells: Sequence[str]) -> bool:
    """Return whether a row belongs to the headers above it: it has dates or words, and one of them has blank cells."""
    if len(cells) != len(head) or not any(cells[1:]):
        return False
    has_dates = all(_DATE_CELL.search(cell.replace(" ", "")) for cell in cells[1:] if cell)
    has_words = not cells[0] and not any(map(_HAS_FIGURE.search, cells[1:]))
    return (has_dates and not all(head[1:])) or has_words


def _spread(cells: Sequence[str]) -> list[str]:
    """Return a row of headers with the text of each merged cell in all columns that it covers."""
    filled = [cell for cell in cells[1:] if cell]
    if len(filled) == 1:
        return [cells[0], *filled * (len(cells) - 1)]
    out = list(cells)
    for at in range(2, len(out)):
        out[at] = out[at] or out[at - 1]
    return out


def _title(lines: Sequence[str], at: int) -> str:
    """Return the line above the first row of a table of figures, whose column headers cannot be told apart, or ""."""
    row = _figure_row(lines[at].strip()) if 0 < at < len(lines) else None
    return _one_line(lines[at - 1]) if row and not _YEARS.fullmatch(" ".join(row[1])) else ""


def _figure_row(line: str) -> tuple[str, list[str]] | None:
    """Divide a row of the text of a PDF, such as "Revenue 1,204 (5) %", into its label and two or more figures."""
    words, figures = line.split(" "), []
    while words:
        size = 2 if words[-1] == "%" and not words[-2:][0].endswith("%") else 1
        if not _FIGURE.fullmatch(words[-size]):
            break
        figures.append(" ".join(words[-size:]))
        del words[-size:]
    while len(figures) >= 2:
        if _LABEL_END.search(" ".join(words[-3:])[-3:]) and not line[0].isdecimal():
            return " ".join(words), figures[::-1]
        words.append(figures.pop())
    return None
