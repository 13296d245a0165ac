"""Reading order of columns that are drawn in another order.

Columns of prose that are drawn row by row are read one after the other. A column of figures that is drawn separately
from its labels is moved next to them. Everything else stays in the order of drawing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, takewhile
from statistics import median

from llama_index_contextual.readers.pdf.pieces import Cell, Row, beside

MIN_FIGURES = 3  # one below the other
MIN_COLUMN_ROWS = 5
MIN_WORDS = 3  # of a line of prose
FILLED = 0.7  # of the width of a column
LINE_STEP = 1.3  # of the distance of lines: more is another paragraph
MAX_WEAK_ROWS = 2  # in a row that have text in both columns, but no prose in both


def figures_beside_labels(rows: list[Row]) -> list[Row]:
    """Move a column of figures that was drawn after its labels into the rows of the labels."""
    out: list[Row] = []
    for block in _descending(rows):
        column = list(
            takewhile(lambda pair: _is_short(pair[0]) and pair[1], ((row[0], _row_beside(row, out)) for row in block))
        )
        rest = block[len(column) :]
        is_text = bool(rest) and abs(rest[0][0].x0 - block[0][0].x0) < rest[0][0].size  # the column goes on
        if len(column) >= MIN_FIGURES and 2 * sum(_is_figure(cell) for cell, _ in column) > len(column) and not is_text:
            for cell, row in column:
                row.append(cell)
            out.extend(rest)
        else:
            out.extend(block)
    return out


def _descending(rows: list[Row]) -> list[list[Row]]:
    """Split the rows wherever the drawing moves back up the page."""
    blocks: list[list[Row]] = []
    for row in rows:
        if blocks and row[0].y < blocks[-1][-1][0].y:
            blocks[-1].append(row)
        else:
            blocks.append([row])
    return blocks


def _row_beside(row: Row, rows: list[Row]) -> Row:
    """Return the row to the left of a row that is a single cell, or an empty one."""
    cell = row[0]
    if len(row) > 1:
        return []
    return next((other for other in reversed(rows) if beside(other[-1], cell) and other[-1].x1 <= cell.x0), [])


def _is_short(cell: Cell) -> bool:
    return len(cell.text.split()) <= 3


def _is_figure(cell: Cell) -> bool:
    return any(char.isdigit() for char in cell.text)


def columns_in_order(rows: list[Row]) -> list[Row]:
    """Reorder columns of prose that were drawn row by row, but leave tables as they are."""
    gutter = _gutter(rows)
    if gutter is None:
        return rows
    out: list[Row] = []
    done = 0
    for first, last in _regions(rows, gutter):
        out.extend(rows[done:first])
        region = rows[first:last]
        for side in (True, False):
            part = [cells for row in region if (cells := [cell for cell in row if (cell.x1 <= gutter) is side])]
            out.extend(columns_in_order(part))
        done = last
    return out + rows[done:]


def _gutter(rows: list[Row]) -> float | None:
    """Return an x position between two columns of prose that most rows leave blank, or None."""
    pairs = [(a, b) for row in rows for a, b in pairwise(row) if a.x1 < b.x0 and _is_prose(a) and _is_prose(b)]
    if len(pairs) < MIN_COLUMN_ROWS:
        return None
    edges = sorted([(a.x1, 1) for a, _ in pairs] + [(b.x0, -1) for _, b in pairs])
    depth = list(accumulate(step for _, step in edges))
    at = max(range(len(edges)), key=depth.__getitem__)
    x = (edges[at][0] + edges[at + 1][0]) / 2
    here = [(a, b) for a, b in pairs if a.x1 <= x <= b.x0]
    if len(here) >= MIN_COLUMN_ROWS and all(_is_filled(side) for side in zip(*here, strict=True)):
        return x
    return None


def _is_prose(cell: Cell) -> bool:
    return sum(word[0].isalpha() for word in cell.text.split()) >= MIN_WORDS


def _is_filled(column: Sequence[Cell]) -> bool:
    """Return whether most lines fill the width of their column, unlike those of a table."""
    width = max(cell.x1 for cell in column) - min(cell.x0 for cell in column)
    return median(cell.x1 - cell.x0 for cell in column) >= FILLED * width


def _regions(rows: list[Row], gutter: float) -> Iterator[tuple[int, int]]:
    """Yield the start and the end (exclusive) of each stretch of rows in which both columns continue."""
    both = [_is_prose_on_both_sides(row, gutter) for row in rows]
    steps = sorted(a[0].y - b[0].y for (a, b), here in zip(pairwise(rows), both, strict=False) if here)
    step = LINE_STEP * steps[len(steps) // 2] if steps else 0.0
    at = 0
    while at < len(rows):
        if not both[at]:
            at += 1
            continue
        last, weak = at, 0
        for index in range(at, len(rows)):
            row = rows[index]
            if any(cell.x0 < gutter < cell.x1 for cell in row) or weak > MAX_WEAK_ROWS:
                break
            if both[index]:
                last, weak = index, 0
            else:
                weak += row[0].x1 <= gutter < row[-1].x0
        while last + 1 < len(rows) and _goes_on(rows[last], rows[last + 1], gutter, step):
            last += 1
        yield at, last + 1
        at = last + 1


def _is_prose_on_both_sides(row: Row, gutter: float) -> bool:
    left = any(_is_prose(cell) for cell in row if cell.x1 <= gutter)
    return left and any(_is_prose(cell) for cell in row if cell.x0 >= gutter)


def _goes_on(row: Row, following: Row, gutter: float, step: float) -> bool:
    """Return whether the next row is a line of only one of the columns."""
    one_side = following[-1].x1 <= gutter or following[0].x0 >= gutter
    return one_side and 0 < row[0].y - following[0].y <= step
