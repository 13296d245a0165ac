"""Columns of a page: their reading order if they are drawn in another order, and the blank cells of tables.

Columns of prose that are drawn row by row are read one after the other. A column of figures that is drawn separately
from its labels is moved next to them. Everything else stays in the order of drawing.

A row of a table is a line of the text. If one of its cells is blank, the figures after it would seem to belong to the
column before. The columns are the stretches of a page in which figures stand one below the other; a row that leaves one
of them blank gets a dash there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, takewhile
from statistics import median

from llama_index_contextual.readers.pdf.engine import Cell, Row, beside
from llama_index_contextual.readers.tables import MAX_LABEL_WORDS, MAX_SENTENCE_WORDS, is_figure

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


# ---- Blank cells of tables -------------------------------------------------------------------------------------------

BLANK = "–"
MIN_COLUMN_FIGURES = 2  # in a column; at least one row has a cell in each column
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
        elif table and (len(row) > 1 or at - table[-1] > MAX_GAP or _is_sentence(row[0].text)):
            yield table
            table = []
    if table:
        yield table


def _is_sentence(text: str) -> bool:
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
    if not 1 < len(columns) <= MAX_COLUMNS or min(counts) < MIN_COLUMN_FIGURES:
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
