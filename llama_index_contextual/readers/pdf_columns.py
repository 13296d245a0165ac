"""Puts columns in order where the order of drawing misleads. Pure.

Columns of prose that are drawn row by row are read one after the other; a column of figures that is drawn apart from
its labels is read beside them. Everything else stays as it is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, takewhile
from statistics import mean, median

from llama_index_contextual.readers.pdf_pieces import Cell, Row, beside

MIN_FIGURES = 3  # one below the other
MIN_COLUMN_ROWS = 5
MIN_COLUMN_WORDS = 3.5


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
    """Cut the rows wherever the drawing goes back up the page."""
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
    beside = (
        other for other in reversed(rows) if len(row) == 1 and beside(other[-1], cell) and other[-1].x1 <= cell.x0
    )
    return next(beside, [])


def _is_short(cell: Cell) -> bool:
    return len(cell.text.split()) <= 3


def _is_figure(cell: Cell) -> bool:
    return any(char.isdigit() for char in cell.text)


def columns_in_order(rows: list[Row]) -> list[Row]:
    """Put columns of prose that were drawn row by row one after the other; leave tables row by row."""
    gutter = _gutter(rows)
    if gutter is None:
        return rows
    out: list[Row] = []
    band: list[Row] = []
    for row in rows:
        if any(cell.x0 < gutter < cell.x1 for cell in row):
            out.extend(_unfold(band, gutter))
            out.append(row)
            band = []
        else:
            band.append(row)
    return out + _unfold(band, gutter)


def _unfold(band: list[Row], gutter: float) -> list[Row]:
    left = [part for row in band if (part := [cell for cell in row if cell.x1 <= gutter])]
    right = [part for row in band if (part := [cell for cell in row if cell.x1 > gutter])]
    return columns_in_order(left) + columns_in_order(right)


def _gutter(rows: list[Row]) -> float | None:
    """Return the x that most rows leave blank between two columns of prose, or None."""
    pairs = [(a, b) for row in rows for a, b in pairwise(row) if a.x1 < b.x0]
    if len(pairs) < MIN_COLUMN_ROWS:
        return None
    edges = sorted([(a.x1, 1) for a, _ in pairs] + [(b.x0, -1) for _, b in pairs])
    depth = list(accumulate(step for _, step in edges))
    at = max(range(len(edges)), key=depth.__getitem__)
    x = (edges[at][0] + edges[at + 1][0]) / 2
    here = [(a, b) for a, b in pairs if a.x1 <= x <= b.x0]
    if len(here) >= MIN_COLUMN_ROWS and all(_is_prose(side) for side in zip(*here, strict=True)):
        return x
    return None


def _is_prose(column: Sequence[Cell]) -> bool:
    """Whether the lines have several words and fill the width of their column, as those of a table do not."""
    width = max(cell.x1 for cell in column) - min(cell.x0 for cell in column)
    return (
        mean(len(cell.text.split()) for cell in column) >= MIN_COLUMN_WORDS
        and median(cell.x1 - cell.x0 for cell in column) >= 0.7 * width
    )
