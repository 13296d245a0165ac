"""Lines of a page in reading order, from positioned pieces of text.

Pages nearly always draw their text in reading order, so that order is kept. Positions determine the ends of lines, the
spaces, and the order of columns that are drawn in another order.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from llama_index_contextual.readers.pdf.columns import columns_in_order, figures_beside_labels, with_blanks
from llama_index_contextual.readers.pdf.engine import Cell, Line, Row, Run, beside

SAME_LINE = 0.8  # of the smaller font size: more is another line, less a superscript
WORD_GAP = 0.5  # of the width of a space
MAX_KERNING = 0.5  # of the font size: a larger step back begins another word
CELL_GAP = 1.2  # of the font size: more than any space between words of one column
WIDE_GLYPHS = 0x2E80  # from here on scripts that write no spaces between words
MAX_MARK = 5  # characters of a footnote mark
MAX_NEAR = 1_000  # runs that are looked at for one mark
MARK_SIZE = 0.8  # of the font size of the word: more is not a footnote mark
MARK_GAP = 0.3  # of the font size
MAX_CELLS = 30  # of a row that are compared with the next one
MAX_ROWS = 2_000  # of a page; with more it is not a page of text, and its drawing order is kept


def page_lines(runs: Sequence[Run]) -> list[Line]:
    """Return the lines of one page in reading order; `y` is NaN for lines that run in an unusual direction."""
    upright = main_angle(runs)
    rows = rows_of(cell for cell in cells_of(marks_in_place(runs)) if cell.text.strip())
    if len(rows) <= MAX_ROWS:
        rows = with_blanks(columns_in_order(figures_beside_labels(rows)))
    return [_line(row, upright) for row in rows]


def marks_in_place(runs: Sequence[Run]) -> list[Run]:
    """Move footnote marks that were drawn after the text, such as "(1)", behind the word that they mark."""
    marks = [
        at
        for at, run in enumerate(runs)
        if at and len(run.text.strip()) <= MAX_MARK and not _marks(run, runs[at - 1]) and run.text.strip()
    ]
    if not marks:
        return list(runs)
    by_end = sorted(range(len(runs)), key=lambda at: runs[at].x1)
    ends = [runs[at].x1 for at in by_end]
    behind: dict[int, list[int]] = defaultdict(list)
    for at in marks:
        run = runs[at]
        near = by_end[bisect_left(ends, run.x0 - run.size) : bisect_right(ends, run.x0 + run.size)][:MAX_NEAR]
        word = min(
            (other for other in near if other != at and _marks(run, runs[other])),
            key=lambda other: abs(run.x0 - runs[other].x1),
            default=None,
        )
        if word is not None:
            behind[word].append(at)
    moved = {at for group in behind.values() for at in group}
    order = (one for at in range(len(runs)) if at not in moved for one in (at, *behind.get(at, ())))
    return [runs[at] for at in order]


def _marks(mark: Run, word: Run) -> bool:
    """Return whether a run is a raised mark at the end of another run."""
    return (
        mark.angle == word.angle
        and mark.size <= MARK_SIZE * word.size
        and 0.1 * word.size < mark.y - word.y < SAME_LINE * mark.size
        and abs(mark.x0 - word.x1) <= MARK_GAP * word.size
    )


def main_angle(runs: Iterable[Run]) -> int:
    """Return the direction of most of the text, in degrees."""
    letters: Counter[int] = Counter()
    for run in runs:
        letters[run.angle] += len(run.text)
    return max(letters, key=letters.__getitem__, default=0)


def _line(row: Row, upright: int) -> Line:
    texts = [" ".join(cell.text.split()) for cell in row]
    largest = max(row, key=lambda cell: cell.size)
    y = largest.y if largest.angle == upright else math.nan
    return Line(
        " ".join(filter(None, texts)),
        y,
        largest.size,
        len(row),
        row[0].x0,
        max(cell.x1 for cell in row),
        2 * sum(cell.bold for cell in row) > sum(len(cell.text) for cell in row),
    )


def cells_of(runs: Iterable[Run]) -> list[Cell]:
    """Join adjacent runs on one line, with a space where the gap is wide enough."""
    cells: list[Cell] = []
    last: Run | None = None
    for run in runs:
        if last is not None and _drawn_twice(last, run):
            continue
        cell = cells[-1] if cells else None
        gap = run.x0 - last.x1 if last is not None else 0.0
        if cell is None or last is None or not _same_line(cell, run) or abs(gap) > CELL_GAP * max(run.size, last.size):
            cells.append(Cell(run.text, run.x0, run.x1, run.y, run.size, run.angle, run.bold * len(run.text)))
        else:
            if _is_word_gap(gap, last, run):
                cell.text += " "
            cell.text += run.text
            cell.bold += run.bold * len(run.text)
            cell.x0, cell.x1 = min(cell.x0, run.x0), max(cell.x1, run.x1)
            if run.size > cell.size:
                cell.y, cell.size = run.y, run.size
        last = run
    return cells


def _same_line(cell: Cell, run: Run) -> bool:
    return cell.angle == run.angle and abs(cell.y - run.y) <= SAME_LINE * min(cell.size, run.size)


def _drawn_twice(last: Run, run: Run) -> bool:
    """Return whether a run repeats the last one with a tiny offset, as some programs do to print bold text."""
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
    return gap > WORD_GAP * min(last.space, run.space) or gap < -MAX_KERNING * run.size


def rows_of(cells: Iterable[Cell]) -> list[Row]:
    """Group cells that are drawn one after the other on the same baseline into rows, from left to right."""
    rows: list[Row] = []
    for cell in cells:
        row = rows[-1] if rows else None
        if row is not None and all(beside(other, cell) for other in row[-MAX_CELLS:]):
            row.append(cell)
        else:
            rows.append([cell])
    for row in rows:
        row.sort(key=lambda cell: cell.x0)
    return rows
