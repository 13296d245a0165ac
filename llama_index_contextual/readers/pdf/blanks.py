"""Mark the blank cells of tables, so that each figure of a row keeps its column in the text.

A row of a table is a line of the text. If one of its cells is blank, the figures after it would seem to belong to the
column before. The columns are the stretches of a page in which figures stand one below the other; a row that leaves one
of them blank gets a dash there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llama_index_contextual.readers.pdf.pieces import Cell, Row
from llama_index_contextual.readers.tables import MAX_LABEL_WORDS, MAX_SENTENCE_WORDS, is_figure

BLANK = "–"
MIN_FIGURES = 2  # in a column; at least one row has a cell in each column
MAX_COLUMNS = 20
MAX_GAP = 4  # rows with a label only between two rows with figures
MAX_STEP = 6.0  # of the font size, from one row with figures to the next


def with_blanks(rows: list[Row]) -> list[Row]:
    """Return the rows of a page with a dash in each blank cell of a table."""
    out = list(rows)
    for table in _tables(rows):
        columns = _columns([rows[at] for at in table])
        for at in table if columns else ():
            filled = rows[at]
            blanks = [_blank(column, filled) for column in columns if not any(_overlaps(column, c) for c in filled[1:])]
            if blanks and not _is_label_over(columns, filled):
                out[at] = sorted([*filled, *blanks], key=lambda cell: cell.x0)
    return out


def _tables(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Yield the indexes of the rows with a label and figures that follow one another."""
    table: list[int] = []
    for at, row in enumerate(rows):
        if _has_figures(row):
            if table and not _follows(rows[table[-1]], row):
                yield table
                table = []
            table.append(at)
        elif table and (len(row) > 1 or at - table[-1] > MAX_GAP or _is_prose(row[0].text)):
            yield table
            table = []
    if table:
        yield table


def _is_prose(text: str) -> bool:
    words = len(text.split())
    return words > MAX_LABEL_WORDS or (words > MAX_SENTENCE_WORDS and text.rstrip().endswith((".", ":")))


def _has_figures(row: Row) -> bool:
    return len(row) > 1 and not is_figure(row[0].text) and any(is_figure(cell.text) for cell in row[1:])


def _follows(row: Row, other: Row) -> bool:
    step = row[0].y - other[0].y
    return row[0].angle == other[0].angle and 0 < step <= MAX_STEP * max(row[0].size, other[0].size)


def _columns(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return the stretches in which the figures of the rows stand; empty if they do not form clear columns."""
    figures = sorted((cell.x0, cell.x1) for row in rows for cell in row[1:] if is_figure(cell.text))
    columns: list[tuple[float, float]] = []
    counts: list[int] = []
    for x0, x1 in figures:
        if columns and x0 < columns[-1][1]:
            columns[-1] = columns[-1][0], max(x1, columns[-1][1])
            counts[-1] += 1
        else:
            columns.append((x0, x1))
            counts.append(1)
    if not 1 < len(columns) <= MAX_COLUMNS or min(counts) < MIN_FIGURES:
        return []
    is_complete = any(all(any(_overlaps(column, c) for c in row[1:]) for column in columns) for row in rows)
    # Two figures of one row in one stretch are two columns that are too close to each other.
    is_single = all(
        sum(_overlaps(column, c) and is_figure(c.text) for c in row) <= 1 for row in rows for column in columns
    )
    return columns if is_single and is_complete else []


def _overlaps(column: tuple[float, float], cell: Cell) -> bool:
    return cell.x0 < column[1] and column[0] < cell.x1


def _is_label_over(columns: Sequence[tuple[float, float]], row: Row) -> bool:
    return any(_overlaps(column, row[0]) for column in columns)


def _blank(column: tuple[float, float], row: Row) -> Cell:
    first = row[0]
    return Cell(BLANK, column[1], column[1], first.y, first.size, first.angle)
