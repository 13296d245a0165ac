"""Pages of a PDF: pieces of text with their positions, and lines in reading order.

The text of a page is nearly always stored in reading order, column by column, so this order is kept. Positions are used
to find line ends and spaces.

A table row becomes one line of text. A blank cell would leave no trace in it, and the figures after the blank cell
would seem to belong to the previous column. Columns are therefore detected as horizontal ranges in which figures are
aligned, and each blank cell in such a column is filled with a dash.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.tables import MAX_LABEL_WORDS, MAX_SENTENCE_WORDS, is_figure

if TYPE_CHECKING:  # imports PDFium, which only the process that parses PDFs needs
    from llama_index_contextual.readers.pdf.graphics import Graphic

SAME_LINE = 0.8  # times the smaller font size: text at a larger vertical offset is on another line, not raised
WORD_GAP = 0.5  # times the width of a space
MAX_KERNING = 0.5  # times the font size: a larger step back starts a new word
CELL_GAP = 1.2  # times the font size: a wider gap is not a word space and begins a new cell
WIDE_GLYPHS = 0x2E80  # first code point of the scripts that have no spaces between words
RAISED = 0.15  # times the font size: minimum height of a superscript above the baseline
RAISED_SIZE = 0.92  # times the font size: maximum size of a superscript
MAX_CELLS = 30  # maximum number of cells in a row that are compared with the next cell

_DIGIT = re.compile(r"[+\-−–]?\d")

_RAISED_NUMERATOR = re.compile(r"\^(\d+)\Z")

# ---- Text pieces -----------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """Text drawn by a single PDF operator.

    Attributes:
        text: The text.
        x0: Start in points, along the direction of the text.
        x1: End in points.
        y: Baseline in points, at right angles to the direction of the text, increasing upwards.
        size: Height of the font.
        space: Width of a space.
        angle: Direction of the text in degrees; 0 for horizontal text.
        bold: Whether the font is bold.
    """

    text: str
    x0: float
    x1: float
    y: float
    size: float
    space: float
    angle: int = 0
    bold: bool = False


@dataclass(slots=True)
class Cell:
    """Adjacent text on one line; the fields are as in `Run`, except that `bold` is the number of bold characters."""

    text: str
    x0: float
    x1: float
    y: float
    size: float
    angle: int = 0
    bold: int = 0


Row = list[Cell]


# ---- Lines -----------------------------------------------------------------------------------------------------------


def page_lines(runs: Sequence[Run]) -> list[Line]:
    """Return the lines of a page in the stored order."""
    return lines_of(rows_of(cell for cell in cells_of(runs) if cell.text.strip()), main_angle(runs))


def lines_of(rows: list[Row], upright: int) -> list[Line]:
    """Return rows as lines; `y` is NaN for lines that do not run in the main direction."""
    return [_line(row, upright) for row in with_blanks(rows)]


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
        spaced=row[0].text.startswith(" "),
        upright=largest.angle == upright,
        pieces=tuple((cell.x0, cell.x1, len(text)) for cell, text in zip(row, texts, strict=True) if text),
    )


def usual_size(lines: Iterable[Line]) -> tuple[float, int]:
    """Return the font size of most of the text, and the number of characters that have this size."""
    sizes: Counter[float] = Counter()
    for line in lines:
        sizes[round(line.size, 1)] += len(line.text)
    return sizes.most_common(1)[0] if sizes else (0.0, 0)


def cells_of(runs: Iterable[Run]) -> list[Cell]:
    """Join adjacent runs on a line into cells, with a space where the gap is wide enough."""
    cells: list[Cell] = []
    last: Run | None = None
    for run in runs:
        if last is not None and is_double_strike(last, run):
            continue
        cell = cells[-1] if cells else None
        gap = run.x0 - last.x1 if last is not None else 0.0
        if cell is None or last is None or not _same_line(cell, run) or abs(gap) > CELL_GAP * max(run.size, last.size):
            cells.append(Cell(run.text, run.x0, run.x1, run.y, run.size, run.angle, run.bold * len(run.text)))
        else:
            if run.text.startswith(("/", "⁄")):
                cell.text = _RAISED_NUMERATOR.sub(r" \1", cell.text)
            cell.text += " " if _is_word_gap(gap, last, run) else raised_mark(last, run)
            cell.text += run.text
            cell.bold += run.bold * len(run.text)
            cell.x0, cell.x1 = min(cell.x0, run.x0), max(cell.x1, run.x1)
            if run.size > cell.size:
                cell.y, cell.size = run.y, run.size
        last = run
    return cells


def _same_line(cell: Cell, run: Run) -> bool:
    return cell.angle == run.angle and abs(cell.y - run.y) <= SAME_LINE * min(cell.size, run.size)


def is_double_strike(last: Run, run: Run) -> bool:
    """Return whether a run repeats the previous run at a tiny offset, as some programs do to imitate bold text."""
    is_near = abs(run.x0 - last.x0) + abs(run.y - last.y) < 0.2 * run.size
    return is_near and run.text == last.text and bool(run.text.strip())


def _is_word_gap(gap: float, last: Run, run: Run) -> bool:
    if last.text.endswith(" ") or run.text.startswith(" ") or not last.text or not run.text:
        return False
    if ord(last.text[-1]) >= WIDE_GLYPHS and ord(run.text[0]) >= WIDE_GLYPHS:
        return gap > 0.5 * run.size
    return gap > WORD_GAP * min(last.space, run.space) or gap < -MAX_KERNING * run.size


def raised_mark(last: Run, run: Run) -> str:
    """Return a separator between digits of which the first or the second are raised, and otherwise an empty string.

    Without a separator, 10 with a raised 6 would become 106.
    """
    if not (last.text[-1:].isdigit() and _DIGIT.match(run.text)):
        return ""
    if run.size <= RAISED_SIZE * last.size and run.y - last.y >= RAISED * last.size:
        return "^"
    return " " if last.size <= RAISED_SIZE * run.size and last.y - run.y >= RAISED * run.size else ""


def is_beside(one: Cell, other: Cell) -> bool:
    """Return whether two cells are on the same baseline and do not overlap."""
    return (
        one.angle == other.angle
        and abs(one.y - other.y) <= 0.5 * min(one.size, other.size)
        and (one.x1 <= other.x0 + 0.5 * one.size or other.x1 <= one.x0 + 0.5 * one.size)
    )


def rows_of(cells: Iterable[Cell]) -> list[Row]:
    """Group consecutive cells on the same baseline into rows, sorted from left to right."""
    rows: list[Row] = []
    for cell in cells:
        row = rows[-1] if rows else None
        if row is not None and all(is_beside(other, cell) for other in row[-MAX_CELLS:]):
            row.append(cell)
        else:
            rows.append([cell])
    for row in rows:
        row.sort(key=lambda cell: cell.x0)
    return rows


# ---- Blank table cells -----------------------------------------------------------------------------------------------

BLANK = "–"
MIN_COLUMN_FIGURES = 2  # minimum number of figures in a column
MAX_COLUMNS = 20
MAX_GAP = 4  # maximum number of rows with only a label between two rows with figures
MAX_STEP = 6.0  # times the font size: maximum distance from one row with figures to the next


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
    """For each table on the page, yield the indexes of the rows that have a label and figures."""
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
    """Return the left and right edges of each column of figures, or an empty list if there are no clear columns."""
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
    # If a range contains two figures of the same row, two columns are too close to be separated.
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


# ---- Engines ---------------------------------------------------------------------------------------------------------

PdfEngine = Literal["pypdf", "pdfium"]

MAX_STAMP = 200  # maximum number of characters on a scanned page that are stamps, page numbers and the like
MAX_MARGIN_TEXT = 1_000  # maximum number if all of them are in the upper or lower margin
COVERED = 0.5  # minimum share of the area of such a page that pictures cover
COVERED_BESIDE_MARGINS = 0.2  # minimum share if all the text is in the margins
MARGIN = 0.1  # height of a margin, as a share of the height of the page
MIN_PATHS = 100  # for a page without text: fewer paths are frames and backgrounds, more paths may be letters
WRONG_PASSWORD = "the PDF is encrypted, and the password given for it does not open it: give the right one"
NO_PASSWORD = "the PDF is encrypted: give its password (`passwords`, or `ingest --password`)"
XFA = "the file is an XFA form, whose fields are not read: open it in Adobe Acrobat Reader and print it to a PDF file"

BOLD_NAME = re.compile(r"(?i)bold|black|heavy|[,-]b(?:i|old)?$")  # matches the names of bold fonts
RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufefc]")  # letters of right-to-left scripts


class OutlineEntry(NamedTuple):
    """A bookmark.

    Attributes:
        title: Title in the outline.
        level: Level in the outline, starting at 1.
        page: Index of the page that the bookmark points to, starting at 0.
        top: Position on that page, in points from the bottom, or None.
    """

    title: str
    level: int
    page: int
    top: float | None = None


class PageContent(NamedTuple):
    """One page.

    Attributes:
        lines: The lines in reading order.
        span: The lower and upper edges of the page, in the units of `Line.y`.
        is_drawn: Whether the page has images or many paths; if such a page has no text, it is a scan.
        is_covered: Whether a picture covers most of the page and there is hardly any text, as on a scan with a stamp.
        graphics: Pictures and shapes on the page, in the direction of its text.
        box: Left, lower, right and upper edge of the page, in the same direction.
    """

    lines: Sequence[Line]
    is_drawn: bool
    span: tuple[float, float]
    is_covered: bool = False
    graphics: Sequence[Graphic] = ()
    box: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


class PageSource:
    """An open file with pages. Its methods raise `ReadError` if something cannot be read.

    Attributes:
        page_count: Number of pages.
    """

    page_count: int

    def page(self, index: int) -> PageContent:
        """Return the page with the given index, starting at 0."""
        raise NotImplementedError

    def title(self) -> str | None:
        """Return the title in the file's metadata, or None."""
        return None

    def labels(self) -> list[str]:
        """Return the page labels, one per page, or an empty list if the file has none."""
        return []

    def outline(self) -> list[OutlineEntry]:
        """Return the bookmarks that point to a page, in order."""
        return []

    def notes(self) -> list[str]:
        """Return warnings about contents of the file that are not read, such as embedded files."""
        return []

    def displayed(self, index: int, box: tuple[float, float, float, float]) -> tuple[float, float, float, float] | None:
        """Return the left, upper, right and lower edge, on the displayed page, of a box in the direction of its text.

        The edges are in points from the upper left corner of the page; None if they are unknown.
        """
        return None

    def close(self) -> None:
        """Close the file."""


def embedded_note(names: Sequence[str]) -> list[str]:
    """Return a warning that lists embedded files, or an empty list if there are none."""
    if not names:
        return []
    some = ", ".join(repr(name) for name in names[:MAX_NAMES])
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    files = "1 embedded file is" if len(names) == 1 else f"{len(names)} embedded files are"
    return [f"{files} not read: save and ingest {some}{more}"]


MAX_NAMES = 5  # maximum number of names of embedded files in a warning


def page_span(box: tuple[float, float, float, float], angle: int) -> tuple[float, float]:
    """Return the lower and upper edges of a page, as seen in the reading direction of its text.

    Args:
        box: Left, lower, right and upper edges of the page.
        angle: Direction of the text in degrees.
    """
    left, bottom, right, top = box
    along, across = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    heights = [y * along - x * across for x in (left, right) for y in (bottom, top)]
    return min(heights), max(heights)
