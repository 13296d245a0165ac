"""Find the tables of a page whose rows are not stored one after another.

`ruled_tables` uses the lines drawn around the cells, and `aligned_tables` the positions of the text alone. Tables whose
rows are read correctly in the stored order are not returned, so that their text does not change.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import NamedTuple

from llama_index_contextual.readers.lines import NO_SPACE, joined
from llama_index_contextual.readers.pdf.pages import BLANK, Cell, Row, Run, cells_of
from llama_index_contextual.readers.tables import is_figure

# ---- Ruled tables ----------------------------------------------------------------------------------------------------

SNAP = 2.5  # in points: lines that are closer together are one line
MAX_RULES = 300  # maximum number of horizontal or vertical lines on a page; a drawing has more
MAX_CELL = 1_500  # maximum number of characters in a table cell; a box with more text is a frame around it
MAX_REPEATED = 200  # maximum number of characters in a cell that is repeated in each row it spans
MIN_REGULAR = 0.6  # minimum share of the cells that are one row high; a form has fewer


class Rule(NamedTuple):
    """A straight line.

    Attributes:
        at: Position across the line.
        start: Lower end.
        end: Upper end.
    """

    at: float
    start: float
    end: float


class Rules(NamedTuple):
    """The horizontal and vertical lines of a page, in the coordinates of its text."""

    horizontal: Sequence[Rule] = ()
    vertical: Sequence[Rule] = ()


class Table(NamedTuple):
    """A table.

    Attributes:
        runs: Indexes of its runs, in ascending order.
        rows: Its rows from top to bottom.
    """

    runs: list[int]
    rows: list[Row]


class _Box(NamedTuple):
    """A cell between rules; an edge at which the table is open is infinite."""

    left: float
    right: float
    bottom: float
    top: float


def ruled_tables(runs: Sequence[Run], at: Sequence[int], rules: Rules) -> list[Table]:
    """Return the tables with rules between rows and columns whose rows are not stored one after another.

    Args:
        runs: The runs of the page.
        at: Indexes of the runs to consider, in ascending order.
        rules: The rules of the page.
    """
    horizontal, vertical = _merged(rules.horizontal), _merged(rules.vertical)
    if not 1 < len(horizontal) <= MAX_RULES or not 0 < len(vertical) <= MAX_RULES:
        return []
    tables: dict[int, dict[_Box, list[int]]] = defaultdict(lambda: defaultdict(list))
    levels, columns = [rule.at for rule in horizontal], [rule.at for rule in vertical]
    group = _connected(horizontal, vertical)
    for index in at:
        run = runs[index]
        x, y = (run.x0 + run.x1) / 2, run.y + 0.3 * run.size
        above, below = _nearest(horizontal, levels, y, x)
        right, left = _nearest(vertical, columns, x, y)
        if above is not None and below is not None and (left is not None or right is not None):
            box = _Box(
                -math.inf if left is None else vertical[left].at,
                math.inf if right is None else vertical[right].at,
                horizontal[below].at,
                horizontal[above].at,
            )
            sides = [vertical[side] for side in (left, right) if side is not None]
            if all(side.start - SNAP <= box.bottom and box.top <= side.end + SNAP for side in sides):
                tables[group[above]][box].append(index)
    out = (_ruled_table(runs, boxes) for boxes in tables.values())
    return [table for table in out if table is not None]


def _merged(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules in ascending order, with the pieces of a line joined."""
    levels: list[list[Rule]] = []
    for rule in sorted(rules):
        if levels and rule.at - levels[-1][0].at <= SNAP:
            levels[-1].append(rule)
        else:
            levels.append([rule])
    out: list[Rule] = []
    for level in levels:
        where = level[0].at
        first = len(out)
        for rule in sorted(level, key=lambda rule: rule.start):
            if len(out) > first and rule.start <= out[-1].end + 2 * SNAP:
                out[-1] = Rule(where, out[-1].start, max(out[-1].end, rule.end))
            else:
                out.append(Rule(where, rule.start, rule.end))
    return out


def _connected(horizontal: Sequence[Rule], vertical: Sequence[Rule]) -> list[int]:
    """Return a number for each horizontal rule, which is equal for rules that vertical rules connect."""
    group = list(range(len(horizontal)))
    for rule in vertical:
        touched = [
            at
            for at, other in enumerate(horizontal)
            if rule.start - SNAP <= other.at <= rule.end + SNAP and other.start - SNAP <= rule.at <= other.end + SNAP
        ]
        for index in {group[at] for at in touched[1:]}:
            first = group[touched[0]]
            if index != first:
                group = [first if number == index else number for number in group]
    return group


def _nearest(rules: Sequence[Rule], levels: Sequence[float], at: float, x: float) -> tuple[int | None, int | None]:
    """Return the indexes of the nearest rules above and below a position that extend to `x`; either may be None."""
    first = bisect_left(levels, at)
    above = next((i for i in range(first, len(rules)) if rules[i].start - SNAP <= x <= rules[i].end + SNAP), None)
    below = next((i for i in range(first - 1, -1, -1) if rules[i].start - SNAP <= x <= rules[i].end + SNAP), None)
    return above, below


def _ruled_table(runs: Sequence[Run], boxes: dict[_Box, list[int]]) -> Table | None:
    if any(_is_no_cell(runs, members) for members in boxes.values()):
        return None
    boxes = _with_rows_apart(runs, boxes)
    indexes = sorted(index for members in boxes.values() for index in members)
    head = max(box.top for box in boxes)
    if not _is_apart(runs, [members for box, members in boxes.items() if box.top < head]):
        return None
    levels = sorted({edge for box in boxes for edge in (box.top, box.bottom)}, reverse=True)
    place = {level: number for number, level in enumerate(levels)}
    if sum(place[box.bottom] - place[box.top] == 1 for box in boxes) < MIN_REGULAR * len(boxes):
        return None
    bands: list[list[_Box]] = [[] for _ in levels]
    for box in boxes:
        for number in range(place[box.top], place[box.bottom]):
            bands[number].append(box)
    edges = sorted({box.left for box in boxes})
    texts = {box: _cell(runs, members) for box, members in boxes.items()}
    rows: list[Row] = []
    before: set[_Box] = set()
    for band in bands:
        new = [box for box in band if box not in before]
        if new:
            kept = [box for box in band if box in new or len(texts[box].text) <= MAX_REPEATED]
            if len({box.left for box in kept}) < len(kept):
                return None  # the boxes overlap: the rules do not form a table
            rows.append(_with_blanks({bisect_left(edges, box.left): texts[box] for box in kept}, _spans(edges, kept)))
        before = set(band)
    return Table(indexes, rows) if sum(len(row) > 1 for row in rows) > 1 else None


def _with_rows_apart(runs: Sequence[Run], boxes: dict[_Box, list[int]]) -> dict[_Box, list[int]]:
    """Return the cells, with rows that have no rules between them taken apart if the only rule is below the headers.

    A row begins at a line with text in most of the columns, unless most of this text begins with a small letter.
    """
    levels = sorted({edge for box in boxes for edge in (box.top, box.bottom)})
    body = {index: box for box, members in boxes.items() if box.bottom == levels[0] for index in members}
    if len(levels) != 3 or any(box.top != levels[1] for box in body.values()):
        return boxes
    columns = len(set(body.values()))
    rows: list[list[int]] = []
    for line in _visual_lines(runs, body):
        firsts = [runs[next(group)].text.lstrip() for _box, group in groupby(line, key=body.__getitem__)]
        if 2 * sum(not text[:1].islower() for text in firsts) > columns:
            rows.append(line)
        elif rows:
            rows[-1] += line
        else:
            return boxes  # column headers, which end at the same height, not rows, which begin at the same height
    out = {box: members for box, members in boxes.items() if box.bottom != levels[0]}
    starts = [runs[row[0]].y + 0.3 * runs[row[0]].size for row in rows[1:]]
    for row, (top, bottom) in zip(rows, pairwise([levels[1], *starts, levels[0]]), strict=True):
        for index in sorted(row):
            out.setdefault(body[index]._replace(top=top, bottom=bottom), []).append(index)
    return out


def _is_no_cell(runs: Sequence[Run], members: Sequence[int]) -> bool:
    """Return whether a box has too much text for a table cell, a list, or several figures one below the other."""
    if sum(len(runs[index].text) for index in members) > MAX_CELL:
        return True
    lines = ["".join(runs[index].text for index in line).strip() for line in _visual_lines(runs, members)]
    return sum(_is_value(line) for line in lines) > 1 or sum(bool(_BULLET.match(line)) for line in lines) > 1


def _spans(edges: Sequence[float], boxes: Iterable[_Box]) -> set[int]:
    """Return the columns that merged cells cover in addition to their first column."""
    return {
        column for box in boxes for column in range(bisect_left(edges, box.left) + 1, bisect_left(edges, box.right))
    }


def _is_apart(runs: Sequence[Run], cells: Sequence[Sequence[int]]) -> bool:
    """Return whether the text of the cells goes up between two runs, or a cell is not stored in one piece."""
    indexes = sorted(index for cell in cells for index in cell)
    if any(runs[b].y - runs[a].y > 0.5 * min(runs[a].size, runs[b].size) for a, b in pairwise(indexes)):
        return True
    order = {index: at for at, index in enumerate(indexes)}
    return any(order[cell[-1]] - order[cell[0]] >= len(cell) for cell in cells)


def _cell(runs: Sequence[Run], members: Iterable[int]) -> Cell:
    """Return the text of a table cell, which may have several lines, as one cell on its first line."""
    lines = _visual_lines(runs, members)
    pieces = [cell for line in lines for cell in cells_of(runs[index] for index in line)]
    first = max(pieces[:1], key=lambda cell: cell.size)
    return Cell(
        joined(piece.text for piece in pieces),
        min(piece.x0 for piece in pieces),
        max(piece.x1 for piece in pieces),
        first.y,
        max(piece.size for piece in pieces),
        first.angle,
        sum(piece.bold for piece in pieces),
    )


def _with_blanks(cells: dict[int, Cell], spanned: Iterable[int]) -> Row:
    """Return a table row with a dash for each blank cell between other cells, unless most of the cells are blank."""
    last = max(cells) + 1
    if len(cells) > 1 and last <= 3 * len(cells):
        first = next(iter(cells.values()))
        for column in set(range(last)) - cells.keys() - set(spanned):
            x = max((cell.x1 for at, cell in cells.items() if at < column), default=min(c.x0 for c in cells.values()))
            cells[column] = Cell(BLANK, x, x, first.y, first.size, first.angle)
    return _row(cells)


def _row(cells: dict[int, Cell]) -> Row:
    """Return the cells of a table row by column, all at the height of the first line."""
    y = max(cell.y for cell in cells.values())
    return [replace(cells[column], y=y) for column in sorted(cells)]


def _visual_lines(runs: Sequence[Run], members: Iterable[int]) -> list[list[int]]:
    """Group runs into lines from top to bottom, sorted from left to right."""
    lines: list[list[int]] = []
    for index in sorted(members, key=lambda index: -runs[index].y):
        run = runs[index]
        if lines and runs[lines[-1][0]].y - run.y <= SAME_BASELINE * max(runs[lines[-1][0]].size, run.size):
            lines[-1].append(index)
        else:
            lines.append([index])
    for line in lines:
        line.sort(key=lambda index: runs[index].x0)
    return lines


# ---- Aligned tables --------------------------------------------------------------------------------------------------

SAME_BASELINE = 0.5  # times the font size: text at a smaller vertical offset is on the same line
PIECE_GAP = 0.7  # times the font size: a wider gap may be the edge of a column
MIN_ROWS = 3  # minimum number of rows with more than one cell
MAX_ROW_STEP = 4.0  # times the font size: maximum distance between the rows of a table
MIN_FIGURES = 0.6  # minimum share of figures in a column of figures
MIN_WORDS = 3  # minimum number of words in a line of running text
PROSE_WORDS = 5  # minimum number of words in a line of prose
MIN_SCATTERED = 0.3  # minimum share of rows that are not stored in one piece, or not after the rows above them
MIN_COMPLETE = 0.7  # minimum share of rows without blank cells in a table whose numbers are not marks of notes
MIN_FULL = 0.5  # minimum share of lines with more than one cell
MIN_EQUAL = 0.3  # minimum share of cells that repeat another cell of their column in a column of categories
MAX_FLOW = 0.3  # maximum share of lines in a column that begin in the middle of a sentence and have several words
MAX_PROSE = 0.25  # maximum share of lines of prose among the cells of a table

_FIGURE = re.compile(r"\W*\d[\d\W]*(?:[^\W\d_]{1,3}\W*)?")
_YEARS = re.compile(r"(?:(?:19|20)\d\d\W*)+")
_MARK = re.compile(r"(?:\(?\w{1,2}\)[ ,]*)+|[*†‡§®™]+|\w{1,2}")
_BULLET = re.compile(r"[•●▪■◦‣·]")


class _Piece(NamedTuple):
    """Adjacent text on a line: the indexes of its runs, its position, and its text."""

    runs: list[int]
    x0: float
    x1: float
    y: float
    size: float
    text: str


def aligned_tables(runs: Sequence[Run], at: Sequence[int]) -> list[Table]:
    """Return the tables without rules whose rows are not stored one after another.

    At least one column must consist of figures or repeat its words, such as "yes" and "no", or the column headers must
    be bold: other columns of names or text are more likely to be read one after another.

    The arguments are the same as in `ruled_tables`.
    """
    lines = [_pieces(runs, line) for line in _visual_lines(runs, at)]
    return [
        Table(sorted(index for line in region for piece in line for index in piece.runs), rows)
        for lines_of_region, columns in _regions(lines)
        for region in [_trimmed(lines_of_region)]
        if _is_scattered(runs, region)
        and _is_table(runs, region, columns)
        and not _are_side_by_side(runs, region, columns)
        for rows in [_aligned_rows(runs, region, columns)]
    ]


def _pieces(runs: Sequence[Run], line: Sequence[int]) -> list[_Piece]:
    groups: list[list[int]] = []
    for index in line:
        last = runs[groups[-1][-1]] if groups else None
        if last is not None and runs[index].x0 - last.x1 <= PIECE_GAP * max(last.size, runs[index].size):
            groups[-1].append(index)
        else:
            groups.append([index])
    return [
        _Piece(
            group,
            runs[group[0]].x0,
            max(runs[index].x1 for index in group),
            runs[group[0]].y,
            runs[group[0]].size,
            "".join(runs[index].text for index in group).strip(),
        )
        for group in groups
    ]


Columns = list[tuple[float, float]]


def _regions(lines: Sequence[list[_Piece]]) -> Iterator[tuple[list[list[_Piece]], Columns]]:
    """Yield the groups of consecutive lines whose pieces form at least two columns, and the edges of the columns."""
    region: list[list[_Piece]] = []
    columns: Columns = []
    for line in [*lines, []]:
        merged = _with_line(columns, line)
        is_near = not region or region[-1][0].y - line[0].y <= MAX_ROW_STEP * region[-1][0].size if line else False
        if is_near and len(merged) > 1 and len(merged) >= len(columns):
            region.append(line)
            columns = merged
            continue
        if sum(len(row) > 1 for row in region) >= MIN_ROWS:
            yield region, columns
        region, columns = ([line], _with_line([], line)) if len(line) > 1 else ([], [])


def _trimmed(region: list[list[_Piece]]) -> list[list[_Piece]]:
    """Return a region without the lines at its end that have only one piece."""
    return region[: max(row for row, line in enumerate(region, 1) if len(line) > 1)]


def _with_line(columns: Columns, line: Sequence[_Piece]) -> Columns:
    """Return the columns after a line has been added: horizontal ranges that overlap are one column."""
    out: Columns = []
    for x0, x1 in sorted([*columns, *((piece.x0, piece.x1) for piece in line)]):
        if out and x0 < out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], x1)
        else:
            out.append((x0, x1))
    return out


def _is_scattered(runs: Sequence[Run], region: Sequence[list[_Piece]]) -> bool:
    """Return whether many rows of a region are not stored in one piece, or not after the rows above them.

    Column headers do not count, because headers with several lines are often stored column by column. Neither do marks
    of notes, which are often stored after the text; in rows without blank cells, short numbers are not marks.
    """
    width = max(map(len, region))
    is_full = sum(len(line) == width for line in region) >= MIN_COMPLETE * len(region)
    places = sorted(
        (index, row)
        for row, line in enumerate(region)
        for piece in line
        for index in piece.runs
        if (is_full and piece.text.isdigit()) or not _MARK.fullmatch(runs[index].text.strip())
    )
    scattered: set[int] = set()
    seen: set[int] = set()
    last = -1
    for row in (row for row, _group in groupby(row for _index, row in places)):
        if row in seen or row < last:
            scattered.add(row)
        seen.add(row)
        last = row
    has_figures = [any(_is_value(piece.text) for piece in line[1:]) for line in region]
    is_body = has_figures if any(has_figures) else [row > 0 for row in range(len(region))]
    body = [row for row, line in enumerate(region) if is_body[row] and len(line) > 1]
    count = sum(row in scattered for row in body)
    return count > 1 and count >= MIN_SCATTERED * len(body)


def _is_value(text: str) -> bool:
    """Return whether a cell contains a figure, unlike column headers such as "2024" or "2024 2023"."""
    return is_figure(text) and not _YEARS.fullmatch(text)


def _halves(
    region: Sequence[list[_Piece]], columns: Columns
) -> Iterator[tuple[list[list[_Piece]], list[list[_Piece]]]]:
    """Yield the left and the right part of a region at each gap that leaves two columns on each side."""
    for at in range(2, len(columns) - 1):
        edge = columns[at][0]
        left = [part for line in region if (part := [piece for piece in line if piece.x0 < edge])]
        right = [part for line in region if (part := [piece for piece in line if piece.x0 >= edge])]
        yield left, right


def _are_side_by_side(runs: Sequence[Run], region: Sequence[list[_Piece]], columns: Columns) -> bool:
    """Return whether a region consists of two tables, the second of which is stored after the first."""
    return any(
        max(i for line in left for piece in line for i in piece.runs)
        < min(i for line in right for piece in line for i in piece.runs)
        and not _is_scattered(runs, left)
        and not _is_scattered(runs, right)
        for left, right in _halves(region, columns)
    )


def _is_table(runs: Sequence[Run], region: Sequence[list[_Piece]], columns: Columns) -> bool:
    pieces = [piece for line in region for piece in line]
    prose = sum(len(piece.text.split()) >= PROSE_WORDS or len(piece.text) > 60 for piece in pieces)
    if prose > MAX_PROSE * len(pieces):
        return False
    if sum(len(line) > 1 for line in region) < MIN_FULL * len(region):
        return False
    starts = [left for left, _right in columns]
    by_column: list[list[_Piece]] = [[] for _ in columns]
    for piece in pieces:
        by_column[bisect_left(starts, piece.x0 + 0.01) - 1].append(piece)
    if any(sum(is_inside_sentence(piece.text) for piece in column) > MAX_FLOW * len(column) for column in by_column):
        return False
    figures = [sum(is_figure(p.text) or bool(_FIGURE.fullmatch(p.text)) for p in column) for column in by_column]
    are_figures = [
        count >= MIN_FIGURES * max(len(column) - 1, 1) for count, column in zip(figures, by_column, strict=True)
    ]
    has_head = all(runs[index].bold for piece in region[0] for index in piece.runs) and not any(
        runs[index].bold for line in region[1:] for piece in line[1:] for index in piece.runs
    )
    if any(are_figures[1:]) and len(region[0]) > 1:
        return True
    return len(columns) > 2 and (has_head or (len(region[0]) == len(columns) and any(map(_are_categories, by_column))))


def _are_categories(column: Sequence[_Piece]) -> bool:
    """Return whether a column repeats its words, unlike a list of names or the lines of a text."""
    words = [piece.text for piece in column if any(map(str.isalpha, piece.text))]
    return len(words) > 2 * MIN_ROWS and len(set(words)) <= (1 - MIN_EQUAL) * len(words)


def is_inside_sentence(text: str) -> bool:
    """Return whether a line begins in the middle of a sentence, like most lines of running text."""
    text = text.lstrip()
    is_wide = NO_SPACE.match(text) is not None
    return (text[:1].islower() and len(text.split()) >= MIN_WORDS) or (is_wide and len(text) >= 2 * MIN_WORDS)


def _aligned_rows(runs: Sequence[Run], region: Sequence[list[_Piece]], columns: Columns) -> list[Row]:
    """Return the rows of a table; column headers with several lines become one row."""
    first = next((row for row, line in enumerate(region) if any(_is_value(piece.text) for piece in line[1:])), 0)
    groups = [region[:first]] if first > 1 else [[line] for line in region[:first]]
    return [_record_row(runs, lines, columns) for lines in [*groups, *([line] for line in region[first:])]]


# ---- Tables with wrapped cells that are stored line by line ----------------------------------------------------------

MAX_RECORD = 6  # maximum number of lines in a row of a table
LEADING = 1.1  # times the smallest distance: maximum distance between the lines of a cell
ROW_SPACE = 1.25  # times the smallest distance: minimum distance between the rows of a table
MIN_RULE = 0.8  # minimum length of a rule between rows, as a share of the width of the table

Record = list[list[_Piece]]
"""The lines of a row of a table."""


def spaced_tables(runs: Sequence[Run], at: Sequence[int], horizontal: Sequence[Rule]) -> list[Table]:
    """Return the tables with cells of several lines whose rows are set apart by space, rules or labels.

    A row is read whole only if the lines of its cells would interrupt one another otherwise.

    Args:
        runs: The runs of the page.
        at: Indexes of the runs to consider, in ascending order.
        horizontal: The horizontal rules of the page.
    """
    lines = [_pieces(runs, line) for line in _visual_lines(runs, at)]
    if sum(len(line) > 2 for line in lines) < MIN_ROWS:
        return []
    tables: list[Table] = []
    for region, columns in _regions(lines):
        records = next((group for group in _groups(region, columns, horizontal) if _are_records(group, columns)), None)
        if records is not None:
            members = sorted(index for record in records for line in record for piece in line for index in piece.runs)
            tables.append(Table(members, [_record_row(runs, record, columns) for record in records]))
    return tables


def _groups(region: list[list[_Piece]], columns: Columns, horizontal: Sequence[Rule]) -> Iterator[list[Record]]:
    """Yield the lines of a region in groups that may be rows, first with and then without the short lines below it."""
    ends = [region, _trimmed(region)]
    for lines in ends if len(ends[0]) > len(ends[1]) else ends[:1]:
        yield _by_rules(lines, columns, horizontal)
        yield _by_space(lines)
        yield _by_labels(lines, columns)


def _split(region: Sequence[list[_Piece]], starts: Callable[[list[_Piece], list[_Piece]], bool]) -> list[Record]:
    """Split the lines of a region where `starts` returns true for a line and the one after it."""
    records: list[Record] = [[region[0]]]
    for line, following in pairwise(region):
        records.append([following]) if starts(line, following) else records[-1].append(following)
    return records


def _by_rules(region: Sequence[list[_Piece]], columns: Columns, horizontal: Sequence[Rule]) -> list[Record]:
    left, right = columns[0][0], columns[-1][1]
    wide = [rule.at for rule in horizontal if min(rule.end, right) - max(rule.start, left) >= MIN_RULE * (right - left)]
    return _split(region, lambda line, other: any(other[0].y < at < line[0].y for at in wide)) if len(wide) > 1 else []


def _by_space(region: Sequence[list[_Piece]]) -> list[Record]:
    steps = [line[0].y - following[0].y for line, following in pairwise(region)]
    least = min(steps)
    if least > MAX_LEADING * region[0][0].size or any(LEADING * least < step < ROW_SPACE * least for step in steps):
        return []
    return _split(region, lambda line, other: line[0].y - other[0].y >= ROW_SPACE * least)


def _by_labels(region: Sequence[list[_Piece]], columns: Columns) -> list[Record]:
    """Return the lines grouped by the lines that begin in the first column; the others must go on in small letters."""
    edge = columns[1][0]
    others = [line for line in region if line[0].x0 >= edge]
    steps = [line[0].y - following[0].y for line, following in pairwise(region)]
    are_regular = max(steps) <= ROW_SPACE * min(steps)
    if not are_regular or not all(any(piece.text[:1].islower() for piece in line) for line in others):
        return []
    return _split(region, lambda _line, other: other[0].x0 < edge)


def _are_records(records: Sequence[Record], columns: Columns) -> bool:
    """Return whether groups of lines are the rows of a table, some of whose cells interrupt one another.

    In every row, one column has a cell of one line, such as a name or a number, and the first line has all cells. It
    is not enough if the cells of only one row without numbers interrupt one another, which may be column headers.
    """
    if len(records) < MIN_ROWS or len(columns) < 3 or max(map(len, records)) > MAX_RECORD:
        return False
    starts = [left for left, _right in columns]
    single = set(range(len(columns)))
    interrupted: list[list[_Piece]] = []
    for record in records:
        first, *others = [{bisect_left(starts, piece.x0 + 0.01) - 1 for piece in line} for line in record]
        after = set().union(*others)
        if not after <= first or any(_BULLET.match(piece.text) for line in record for piece in line):
            return False
        single &= first - after
        if any(0 < column < max(first) for column in after):
            interrupted.append(record[0])
    has_numbers = any(any(map(str.isdigit, piece.text)) for line in interrupted for piece in line)
    return bool(single) and (has_numbers or len(interrupted) > 1)


def _record_row(runs: Sequence[Run], record: Record, columns: Columns) -> Row:
    starts = [left for left, _right in columns]
    cells: dict[int, list[int]] = defaultdict(list)
    for piece in (piece for line in record for piece in line):
        cells[bisect_left(starts, piece.x0 + 0.01) - 1] += piece.runs
    return _row({column: _cell(runs, members) for column, members in cells.items()})


# ---- Tables with wrapped cells ---------------------------------------------------------------------------------------

MAX_LEADING = 1.7  # times the font size: maximum distance between the lines of a cell
MAX_LINES = 4  # maximum number of lines in a cell; longer text can be read without the rest of the row


class _Stack(NamedTuple):
    """The lines of a table cell, stored one after another."""

    lines: list[_Piece]

    @property
    def x0(self) -> float:
        return min(line.x0 for line in self.lines)

    @property
    def x1(self) -> float:
        return max(line.x1 for line in self.lines)

    @property
    def top(self) -> float:
        return self.lines[0].y + 0.8 * self.lines[0].size

    @property
    def bottom(self) -> float:
        return self.lines[-1].y - 0.2 * self.lines[-1].size


def wrapped_tables(runs: Sequence[Run], at: Sequence[int]) -> list[Table]:
    """Return the tables without rules that are stored cell by cell and have cells with several lines.

    The arguments are the same as in `ruled_tables`.
    """
    records: list[list[_Stack]] = []
    for stack in _stacks(runs, at):
        record = records[-1] if records else []
        is_beside = record and stack.x0 >= record[-1].x1 and _overlap(stack, record)
        if is_beside:
            record.append(stack)
        else:
            records.append([stack])
    tables: list[Table] = []
    group: list[list[_Stack]] = []
    columns: Columns = []
    for record in [*records, []]:
        merged = _with_line(columns, [line for stack in record for line in stack.lines])
        is_below = not group or (bool(record) and max(s.top for s in record) <= min(s.bottom for s in group[-1]) + 2)
        if len(record) > 1 and is_below and len(merged) >= max(len(record), len(columns)):
            group.append(record)
            columns = merged
            continue
        if _is_wrapped_table(group, columns):
            tables += [_record_table(runs, record, columns) for record in group if _is_record_apart(record)]
        group = [record] if len(record) > 1 else []
        columns = _with_line([], [line for stack in record for line in stack.lines])
    return tables


def _stacks(runs: Sequence[Run], at: Sequence[int]) -> list[_Stack]:
    pieces: list[_Piece] = []
    group: list[int] = []
    for index in [*at, -1]:
        if group and index >= 0:
            last, run = runs[group[-1]], runs[index]
            size = max(last.size, run.size)
            if abs(run.y - last.y) <= SAME_BASELINE * size and abs(run.x0 - last.x1) <= PIECE_GAP * size:
                group.append(index)
                continue
        if group:
            pieces += _pieces(runs, group)
        group = [index]
    stacks: list[_Stack] = []
    for piece in pieces:
        if stacks:
            last_line = stacks[-1].lines[-1]
            is_below = 0.5 * piece.size < last_line.y - piece.y <= MAX_LEADING * max(last_line.size, piece.size)
            if is_below and piece.x0 < last_line.x1 and last_line.x0 < piece.x1:
                stacks[-1].lines.append(piece)
                continue
        stacks.append(_Stack([piece]))
    return stacks


def _overlap(stack: _Stack, record: Sequence[_Stack]) -> bool:
    return stack.bottom < max(other.top for other in record) and min(other.bottom for other in record) < stack.top


def _is_wrapped_table(group: Sequence[Sequence[_Stack]], columns: Columns) -> bool:
    """Return whether records form a table in which a cell is stored after the lower lines of another cell.

    It is not enough if the column headers are such records.
    """
    has_figures = [any(_is_value(stack.lines[0].text) for stack in record[1:]) for record in group]
    body = group[has_figures.index(True) if any(has_figures) else 1 :]
    if len(group) < 2 or not any(map(_is_record_apart, body)):
        return False
    last = [record[-1] for record in group if record[-1].x0 >= columns[-1][0]]
    are_figures = sum(len(s.lines) == 1 and _FIGURE.fullmatch(s.lines[0].text) is not None for s in last)
    return len(columns) > 2 or are_figures >= max(2, len(last) - 1)


def _is_record_apart(record: Sequence[_Stack]) -> bool:
    """Return whether a cell begins above the last line of the cell before it, so that their lines are not one row."""
    lines = [line for stack in record for line in stack.lines]
    if any(len(stack.lines) > MAX_LINES for stack in record) or any(_BULLET.match(line.text) for line in lines):
        return False
    return any(
        other.lines[0].y - one.lines[-1].y > SAME_BASELINE * one.lines[-1].size and len(other.lines[0].text) > 1
        for one, other in pairwise(record)
    )


def _record_table(runs: Sequence[Run], record: Sequence[_Stack], columns: Columns) -> Table:
    starts = [left for left, _right in columns]
    cells: dict[int, list[int]] = defaultdict(list)
    for stack in record:
        cells[bisect_left(starts, stack.x0 + 0.01) - 1] += [index for line in stack.lines for index in line.runs]
    row = _row({column: _cell(runs, members) for column, members in cells.items()})
    return Table(sorted(index for members in cells.values() for index in members), [row])
