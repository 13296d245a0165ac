"""Turns positioned pieces of text into the lines of a page, in reading order. Pure; knows nothing of PDF syntax.

The order in which a page draws its text is nearly always the order in which it is read, so that order is kept, and
geometry decides only where a line ends, where a space belongs, and the two cases in which the drawing order misleads:
columns of prose drawn row by row, and a column of figures drawn apart from its labels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from statistics import mean, median
from typing import NamedTuple

SAME_LINE = 0.8  # of the smaller font size: more is another line, less a superscript
WORD_GAP = 0.5  # of the width of a space
CELL_GAP = 1.2  # of the font size: more than any space between words of one column
WIDE_GLYPHS = 0x2E80  # from here on scripts that write no spaces between words
MAX_CELLS = 30  # of a row that are compared with the next one
MAX_ROWS = 2_000  # of a page; with more it is no page of text, and its drawing order is kept
MIN_FIGURES = 3  # one below the other
MIN_COLUMN_ROWS = 5
MIN_COLUMN_WORDS = 3.5


class Run(NamedTuple):
    """Text drawn in one go.

    Attributes:
        text: As it is read.
        x0: Start, along the direction of the text, in points.
        x1: End.
        y: Baseline, across the direction of the text; grows upwards.
        size: Height of the font.
        space: Width of a space.
        angle: Direction of the text in degrees; 0 for upright text.
    """

    text: str
    x0: float
    x1: float
    y: float
    size: float
    space: float
    angle: int = 0


@dataclass(slots=True)
class Cell:
    """Text that stands together on one line."""

    text: str
    x0: float
    x1: float
    y: float
    size: float
    angle: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a page.

    Attributes:
        text: Without surrounding white space.
        y: Baseline in points, growing upwards; NaN where it is not known.
        size: Height of the font.
        cells: How many pieces stand apart on the line; more than one in a table row.
    """

    text: str
    y: float = math.nan
    size: float = 0.0
    cells: int = 1


Row = list[Cell]


def page_lines(runs: Sequence[Run]) -> list[Line]:
    """Return the lines of one page in reading order; those that run in another direction than most have no height."""
    upright = main_angle(runs)
    rows = rows_of(cell for cell in cells_of(runs) if cell.text.strip())
    if len(rows) <= MAX_ROWS:
        rows = columns_in_order(figures_beside_labels(rows))
    return [_line(row, upright) for row in rows]


def main_angle(runs: Iterable[Run]) -> int:
    """Return the direction in which most of the text runs, in degrees."""
    letters: Counter[int] = Counter()
    for run in runs:
        letters[run.angle] += len(run.text)
    return max(letters, key=letters.__getitem__, default=0)


def _line(row: Row, upright: int) -> Line:
    texts = [" ".join(cell.text.split()) for cell in row]
    largest = max(row, key=lambda cell: cell.size)
    y = largest.y if largest.angle == upright else math.nan
    return Line(" ".join(filter(None, texts)), y, largest.size, len(row))


def cells_of(runs: Iterable[Run]) -> list[Cell]:
    """Join the runs that stand together on one line, with a space where the gap between them shows one."""
    cells: list[Cell] = []
    last: Run | None = None
    for run in runs:
        if last is not None and _drawn_twice(last, run):
            continue
        cell = cells[-1] if cells else None
        gap = run.x0 - last.x1 if last is not None else 0.0
        if cell is None or last is None or not _same_line(cell, run) or abs(gap) > CELL_GAP * max(run.size, last.size):
            cells.append(Cell(run.text, run.x0, run.x1, run.y, run.size, run.angle))
        else:
            if _is_word_gap(gap, last, run):
                cell.text += " "
            cell.text += run.text
            cell.x0, cell.x1 = min(cell.x0, run.x0), max(cell.x1, run.x1)
            if run.size > cell.size:
                cell.y, cell.size = run.y, run.size
        last = run
    return cells


def _same_line(cell: Cell, run: Run) -> bool:
    return cell.angle == run.angle and abs(cell.y - run.y) <= SAME_LINE * min(cell.size, run.size)


def _drawn_twice(last: Run, run: Run) -> bool:
    """Whether the run repeats the last one a hair's breadth aside, which is how some programs print bold."""
    return (
        run.text == last.text
        and bool(run.text.strip())
        and abs(run.x0 - last.x0) + abs(run.y - last.y) < 0.2 * run.size
    )


def _is_word_gap(gap: float, last: Run, run: Run) -> bool:
    if last.text.endswith(" ") or run.text.startswith(" ") or not last.text or not run.text:
        return False
    if ord(last.text[-1]) >= WIDE_GLYPHS and ord(run.text[0]) >= WIDE_GLYPHS:
        return gap > 0.5 * run.size
    return abs(gap) > WORD_GAP * min(last.space, run.space)


def rows_of(cells: Iterable[Cell]) -> list[Row]:
    """Put cells that are drawn one after the other on the same baseline into one row, from left to right."""
    rows: list[Row] = []
    for cell in cells:
        row = rows[-1] if rows else None
        if row is not None and all(_beside(other, cell) for other in row[-MAX_CELLS:]):
            row.append(cell)
        else:
            rows.append([cell])
    for row in rows:
        row.sort(key=lambda cell: cell.x0)
    return rows


def _beside(one: Cell, other: Cell) -> bool:
    return (
        one.angle == other.angle
        and abs(one.y - other.y) <= 0.5 * min(one.size, other.size)
        and (one.x1 <= other.x0 + 0.5 * one.size or other.x1 <= one.x0 + 0.5 * one.size)
    )


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
        other for other in reversed(rows) if len(row) == 1 and _beside(other[-1], cell) and other[-1].x1 <= cell.x0
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
