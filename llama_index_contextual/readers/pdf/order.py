"""Put the text of a page in reading order.

The text of a page is nearly always stored in reading order, column by column, so the stored order is kept unless the
positions of the text refute it:

- The rows of a table are not stored one after another (see `grid`).
- Each line of a block contains a line from every column of running text.
- A block is stored after another block although it is above it, or although both are columns of the same text and it is
  the left one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations, pairwise
from statistics import median
from typing import NamedTuple

from llama_index_contextual.readers.pdf.grid import (
    MIN_WORDS,
    Rules,
    Table,
    aligned_tables,
    is_inside_sentence,
    ruled_tables,
    spaced_tables,
    wrapped_tables,
)
from llama_index_contextual.readers.pdf.pages import Cell, Row, Run, cells_of, is_double_strike, rows_of

MAX_BLOCKS = 400  # maximum number of blocks on a page that are sorted; a drawing has more
BLOCK_STEP = 2.2  # times the font size: maximum distance between the lines of a block
MIN_OVERLAP = 0.3  # minimum share of the width of a block that is below another block
NOTE_SIZE = 0.9  # times the usual font size: a smaller block at the bottom is a footnote
MIN_BODY = 0.2  # minimum share of the text that is set in the usual font size
MIN_LETTERS = 3  # a block with fewer letters is a number, a mark, or a label in a drawing, and keeps its place
MIN_COLUMN_LINES = 4
SAME_SIZE = 0.05  # times the font size: maximum difference in size between two columns of a text
SAME_WIDTH = 0.2  # times the width: maximum difference in width between two columns of a text
MIN_BESIDE = 0.5  # minimum share of the height of the shorter column that is next to the other column
FILLED = 0.6  # minimum share of the column width that at least half of the lines in a column of prose fill
MIN_FLOW = 0.3  # minimum share of lines in a column that begin in the middle of a sentence
WIDE_GLYPHS = 0x2E80
WATERMARK_SIZE = 2.5  # times the usual font size: minimum size of a watermark


class _Block(NamedTuple):
    """Consecutive lines: their rows, and their edges, which are NaN for text that has no fixed place in the order."""

    rows: list[Row]
    left: float
    right: float
    bottom: float
    top: float
    size: float


def ordered_rows(runs: Sequence[Run], upright: int, rules: Callable[[], Rules]) -> list[Row]:
    """Return the rows of a page in reading order.

    Args:
        runs: The runs in the stored order.
        upright: Direction of most of the text in degrees.
        rules: Function that returns the rules of the page.
    """
    at = _upright_runs(runs, upright)
    is_up = any(runs[b].y - runs[a].y > 0.5 * min(runs[a].size, runs[b].size) for a, b in pairwise(at))
    has_gaps = any(abs(runs[b].y - runs[a].y) < 0.5 * runs[a].size for a, b in pairwise(at))
    tables = _tables(runs, at, rules, is_up=is_up) if is_up or has_gaps else []
    parts = _parts(runs, tables)
    if not is_up and all(run.angle == upright for run in runs):
        return [row for rows, _is_table in parts for row in rows]
    blocks = [block for rows, is_table in parts for block in _blocks(rows, upright, is_table=is_table)]
    blocks = _set_apart(blocks, upright)
    if is_up:
        blocks = _by_position(blocks)
    rows = [row for block in blocks for row in block.rows]
    return _by_columns(rows) if is_up and not tables else rows


def with_watermarks_apart(runs: list[Run], upright: int) -> list[Run]:
    """Return the runs with another direction for large words across several lines, such as a horizontal "DRAFT".

    Text in another direction than that of the page interrupts no paragraph, and is neither a title nor a heading.
    """
    largest = max((run.size for run in runs), default=0.0)
    usual = median([run.size for run in runs] or [0.0])
    if largest < WATERMARK_SIZE * usual:
        return runs
    return [
        run._replace(angle=(upright + 45) % 360)
        if run.size >= WATERMARK_SIZE * usual and run.angle == upright and _is_across(run, runs)
        else run
        for run in runs
    ]


def _is_across(run: Run, others: Iterable[Run]) -> bool:
    """Return whether a run lies over at least two lines of smaller text."""
    levels = {
        round(other.y)
        for other in others
        if 2 * other.size <= run.size
        and run.y < other.y + 0.3 * other.size < run.y + 0.7 * run.size
        and min(run.x1, other.x1) - max(run.x0, other.x0) > other.size
    }
    return len(levels) > 1 and sum(map(str.isalpha, run.text)) >= MIN_LETTERS


def _upright_runs(runs: Sequence[Run], upright: int) -> list[int]:
    out: list[int] = []
    for index, run in enumerate(runs):
        if run.text.strip() and run.angle == upright and not (out and is_double_strike(runs[out[-1]], run)):
            out.append(index)
    return out


# ---- Tables ----------------------------------------------------------------------------------------------------------


def _tables(runs: Sequence[Run], at: Sequence[int], rules: Callable[[], Rules], *, is_up: bool) -> list[Table]:
    """Return the tables whose rows are not stored one after another, in the stored order."""
    drawn = rules()
    tables = ruled_tables(runs, at, drawn)
    spaced = partial(spaced_tables, horizontal=drawn.horizontal)
    for find in (wrapped_tables, spaced, aligned_tables) if is_up else (spaced,):
        taken = {index for table in tables for index in table.runs}
        tables += find(runs, [index for index in at if index not in taken])
    return sorted(tables, key=lambda table: table.runs[0])


def _parts(runs: Sequence[Run], tables: Sequence[Table]) -> list[tuple[list[Row], bool]]:
    """Return the rows of the tables and of the text between them, and whether they are the rows of a table."""
    taken = {index for table in tables for index in table.runs}
    out: list[tuple[list[Row], bool]] = []
    start = 0
    for table in tables:
        out += (_rows(runs, range(start, table.runs[0]), taken), False), (table.rows, True)
        start = table.runs[0]
    return [*out, (_rows(runs, range(start, len(runs)), taken), False)]


def _rows(runs: Sequence[Run], at: Iterable[int], taken: set[int]) -> list[Row]:
    cells = cells_of(runs[index] for index in at if index not in taken)
    return _by_columns(rows_of(cell for cell in cells if cell.text.strip()))


# ---- Columns that are stored line by line ----------------------------------------------------------------------------


def _by_columns(rows: list[Row]) -> list[Row]:
    """Return the rows with columns of running text read one after another, instead of line by line."""
    if sum(len(row) > 1 for row in rows) < MIN_COLUMN_LINES:
        return rows
    out: list[Row] = []
    group: list[Row] = []
    columns: list[tuple[float, float]] = []
    for row in [*rows, []]:
        merged = _merged(columns, row)
        if row and _continues(group, row) and len(merged) > 1 and len(merged) >= len(columns):
            group.append(row)
            columns = merged
            continue
        out += _columns(group, columns)
        group, columns = [row] if row else [], _merged([], row)
    return out


def _merged(columns: Sequence[tuple[float, float]], row: Row) -> list[tuple[float, float]]:
    """Return the columns after a row has been added: horizontal ranges that overlap are one column."""
    out: list[tuple[float, float]] = []
    for x0, x1 in sorted([*columns, *((cell.x0, cell.x1) for cell in row)]):
        if out and x0 < out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], x1)
        else:
            out.append((x0, x1))
    return out


def _continues(group: Sequence[Row], row: Row) -> bool:
    if not group:
        return len(row) > 1
    last, first = group[-1][0], row[0]
    return first.angle == last.angle and 0 < last.y - first.y <= BLOCK_STEP * max(last.size, first.size)


def _columns(group: list[Row], columns: Sequence[tuple[float, float]]) -> list[Row]:
    """Return the rows column by column if each column is running text, otherwise unchanged."""
    if sum(len(row) > 1 for row in group) < MIN_COLUMN_LINES:
        return group
    by_column = [[cell for row in group for cell in row if left <= cell.x0 < right] for left, right in columns]
    if not all(_is_running_text(cells) for cells in by_column):
        return group
    return [[cell] for cells in by_column for cell in cells]


def _is_running_text(cells: Sequence[Cell]) -> bool:
    if len(cells) < MIN_COLUMN_LINES:
        return False
    width = max(cell.x1 for cell in cells) - min(cell.x0 for cell in cells)
    is_filled = median(cell.x1 - cell.x0 for cell in cells) >= FILLED * width
    has_words = median(_word_count(cell.text) for cell in cells) >= MIN_WORDS
    flow = sum(is_inside_sentence(cell.text) for cell in cells[1:])
    return is_filled and has_words and flow >= MIN_FLOW * (len(cells) - 1)


def _word_count(text: str) -> float:
    wide = sum(ord(char) >= WIDE_GLYPHS for char in text)
    return sum(word[0].isalpha() for word in text.split()) + wide / 2


def _has_letters(cells: Iterable[Cell]) -> bool:
    """Return whether the cells have at least `MIN_LETTERS` letters; Chinese and similar letters count twice."""
    count = 0
    for char in (char for cell in cells for char in cell.text):
        if char.isalpha():
            count += 1 + (ord(char) >= WIDE_GLYPHS)
            if count >= MIN_LETTERS:
                return True
    return False


# ---- Blocks that are stored after blocks below them ------------------------------------------------------------------


def _blocks(rows: Sequence[Row], upright: int, *, is_table: bool) -> list[_Block]:
    groups: list[list[Row]] = []
    for row in rows:
        if groups and (is_table or _is_next_line(groups[-1][-1], row, upright)):
            groups[-1].append(row)
        else:
            groups.append([row])
    return [_block(group, upright) for group in groups]


def _is_next_line(row: Row, other: Row, upright: int) -> bool:
    last, first = row[0], other[0]
    return (
        last.angle == first.angle == upright
        and 0 < last.y - first.y <= BLOCK_STEP * max(last.size, first.size)
        and max(cell.x1 for cell in row) > other[0].x0
        and max(cell.x1 for cell in other) > row[0].x0
    )


def _set_apart(blocks: list[_Block], upright: int) -> list[_Block]:
    """Move text in another direction that interrupts a paragraph, such as a watermark, to the end."""
    if all(block.rows[0][0].angle == upright for block in blocks):
        return blocks
    out: list[_Block] = []
    moved: list[_Block] = []
    turned: list[_Block] = []
    for block in blocks:
        if block.rows[0][0].angle != upright:
            turned.append(block)
            continue
        is_interrupted = out and turned and _is_next_line(out[-1].rows[-1], block.rows[0], upright)
        (moved if is_interrupted else out).extend(turned)
        turned = []
        out.append(block)
    return [*out, *turned, *moved]


def _block(rows: list[Row], upright: int) -> _Block:
    cells = [cell for row in rows for cell in row]
    if cells[0].angle != upright or not _has_letters(cells):
        return _Block(rows, math.nan, math.nan, math.nan, math.nan, math.nan)
    return _Block(
        rows,
        min(cell.x0 for cell in cells),
        max(cell.x1 for cell in cells),
        min(cell.y - 0.2 * cell.size for cell in cells),
        max(cell.y + 0.7 * cell.size for cell in cells),
        median(cell.size for cell in cells),
    )


def _is_above(one: _Block, other: _Block) -> bool:
    overlap = min(one.right, other.right) - max(one.left, other.left)
    is_over = overlap > MIN_OVERLAP * min(one.right - one.left, other.right - other.left)
    return is_over and one.bottom >= other.top - 0.2 * min(one.size, other.size)


def _are_equal(one: _Block, other: _Block) -> bool:
    """Return whether two blocks have the same font size."""
    return abs(one.size - other.size) <= SAME_SIZE * other.size


def _text_columns(blocks: Sequence[_Block]) -> list[tuple[range, _Block]]:
    """Return the columns of running text: the indexes of their blocks, which are stored one after another."""
    columns: list[tuple[range, _Block]] = []
    for at, block in enumerate(blocks):
        if math.isnan(block.size) or any(len(row) > 1 for row in block.rows):
            continue
        indexes, column = columns[-1] if columns else (range(0), block)
        is_same = abs(block.left - column.left) <= 2 * block.size and _are_equal(block, column)
        if indexes and indexes.stop == at and is_same and block.top <= column.bottom + block.size:
            rows = [*column.rows, *block.rows]
            columns[-1] = (
                range(indexes.start, at + 1),
                _Block(rows, column.left, max(column.right, block.right), block.bottom, column.top, column.size),
            )
        else:
            columns.append((range(at, at + 1), block))
    return [(at, block) for at, block in columns if _is_running_text([row[0] for row in block.rows])]


def _is_left_column(one: _Block, other: _Block) -> bool:
    """Return whether two columns of running text are of the same kind and side by side, the first one on the left."""
    height = min(one.top - one.bottom, other.top - other.bottom)
    return (
        one.right < other.left
        and _are_equal(one, other)
        and min(one.top, other.top) - max(one.bottom, other.bottom) >= MIN_BESIDE * height
        and abs((one.right - one.left) - (other.right - other.left)) <= SAME_WIDTH * (other.right - other.left)
    )


def _by_position(blocks: list[_Block]) -> list[_Block]:
    """Move blocks that are stored too late before those below them, and footnotes, if one is too early, to the end.

    This is a topological sort that keeps the stored order wherever possible (Breuel, "High Performance Document Layout
    Analysis", 2003).
    """
    if len(blocks) > MAX_BLOCKS:
        return blocks
    above = {
        at: others
        for at, block in enumerate(blocks)
        if (others := [other for other in range(at + 1, len(blocks)) if _is_above(blocks[other], block)])
    }
    for (early, one), (late, other) in combinations(_text_columns(blocks), 2):
        if _is_left_column(other, one):
            for at in early:
                above[at] = [*above.get(at, ()), *late]
    if not above:
        return blocks
    usual = _usual_size(blocks)
    notes = {at for at, block in enumerate(blocks) if _is_note(block, blocks, usual)}
    notes = notes if not notes.isdisjoint(above) else set()
    order: list[int] = []
    done: set[int] = set()
    for first in [*(at for at in range(len(blocks)) if at not in notes), *sorted(notes)]:
        stack = [first]
        while stack:
            at = stack[-1]
            waiting = [other for other in above.get(at, ()) if other not in done]
            if at in done:
                stack.pop()
            elif waiting:
                stack += reversed(waiting)
            else:
                done.add(stack.pop())
                order.append(at)
    return [blocks[at] for at in order]


def _is_note(block: _Block, blocks: Sequence[_Block], usual: float) -> bool:
    """Return whether a block is in smaller letters, and there are no letters of the usual size below it."""
    return block.size <= NOTE_SIZE * usual and not any(
        other.size > NOTE_SIZE * usual and _is_above(block, other) for other in blocks
    )


def _usual_size(blocks: Sequence[_Block]) -> float:
    """Return the largest font size in which a good part of the page is set."""
    sizes: dict[float, int] = {}
    for block in blocks:
        if not math.isnan(block.size):
            size = round(block.size, 1)
            sizes[size] = sizes.get(size, 0) + sum(len(cell.text) for row in block.rows for cell in row)
    total = sum(sizes.values())
    return max((size for size, count in sizes.items() if count >= MIN_BODY * total), default=0.0)
