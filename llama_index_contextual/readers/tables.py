"""Find tables in text, and their column headers.

A chunk that begins inside a table does not contain the column headers. Readers and node parsers therefore look for
tables and record their headers. `figure_tables` finds tables in lines with separate cells, as in a PDF, and
`tables_in_text` finds tables in Markdown. Tables without recognisable headers are omitted, because there is nothing to
add to their chunks.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from llama_index_contextual.metadata import Table
from llama_index_contextual.readers.boundaries import code_fences, is_outside, pipe_blocks

if TYPE_CHECKING:
    from llama_index_contextual.readers.lines import Line

MAX_HEAD = 600
"""Maximum length of column headers in characters; if they are longer, the upper lines are omitted."""
MIN_CONTENTS = 5  # minimum number of rows in a table of contents
MOST_CONTENTS = 0.8  # minimum fraction of these rows in which the page number does not decrease
MAX_HEAD_LINES = 6
MAX_NARROW_LINES = 30  # maximum number of lines in column headers with one or two words on each line
MAX_LABELS = 4  # maximum number of consecutive lines with only a label; more such lines end a table
MAX_LABEL_WORDS = 14
MAX_SENTENCE_WORDS = 6  # maximum number of words in a label with a full stop
MAX_CAPTION_WORDS = 30
MIN_RECORD_CELLS = 3  # minimum number of cells in a row of a table without figures at the ends of its rows
MIN_RECORDS = 3  # minimum number of such rows
MAX_COLUMNS = 20  # maximum number of columns of figures
MAX_COLUMN_HEAD = 150  # maximum number of characters in the header of a column
MAX_ABOVE = 4  # number of lines above column headers that are searched for the title, the unit and the time period


# Markdown

_PIPE = re.compile(r"(?<!\\)\|")
_DELIMITER = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?")
_CAPTION = re.compile(r"[*_]*(?:table|tab\.|tabelle|tableau|tabla|tabella)\b", re.IGNORECASE)
_INLINE = re.compile(r"\*\*|__|`|<br\s*/?>")


def tables_in_text(text: str) -> list[Table]:
    """Return the Markdown tables in the text, in order. Tables in code are omitted.

    A table consists of lines with pipes, and has a row of hyphens below the column headers.

    Example:
        >>> text = "\\n".join(["Fees:", "", "| Service | Fee |", "|---|---|", "| Copy | 2 |"])
        >>> tables_in_text(text)
        [Table(start=7, body=35, end=47, head='Fees:\\nService | Fee', columns=())]
    """
    fences = code_fences(text)
    return [table for table in _pipe_tables(text) if is_outside(fences, table.start, table.end)]


def _pipe_tables(text: str) -> Iterator[Table]:
    for block in pipe_blocks(text):
        below = next((at for at in range(1, len(block) - 1) if _is_delimiter(text[slice(*block[at])])), 0)
        columns = _header_cells(text[slice(*block[below - 1])]) if below else ""
        if columns:
            (start, stop), (body, _), (_, end) = block[below - 1], block[below + 1], block[-1]
            start += len(text[start:stop]) - len(text[start:stop].lstrip())
            above = _lines_above(text, start) if below == 1 else []
            yield Table(start, body, end, join_headers([*naming_lines(above), columns]))


def _is_delimiter(line: str) -> bool:
    """Return whether a line is the row of hyphens below the column headers of a Markdown table."""
    return _DELIMITER.fullmatch(line.strip()) is not None


def _header_cells(line: str) -> str:
    cells = [" ".join(_INLINE.sub(" ", cell).split()) for cell in _PIPE.split(line.strip().strip("|"))]
    return " | ".join(cells) if any(cells) else ""


def _lines_above(text: str, start: int) -> list[str]:
    """Return the lines above a table, or an empty list if more than one blank line separates them from the table."""
    above = text[max(0, start - MAX_HEAD) : start]
    lines = above.rstrip().splitlines()
    is_near = above.count("\n", len(above.rstrip())) <= 2
    return [_INLINE.sub("", line).strip() for line in lines if line.strip()] if is_near else []


# Lines with cells

Kind = Literal["row", "columns", "label", "prose"]

_BULLET = re.compile(r"[•●▪■◦‣·*o–—-](?=\s|$)|\(?(?:\d{1,2}|[A-Za-z]|[ivx]{1,4})[.)](?=\s)")
_MARKS = "()[]{}<>≤≥~$€£¥₹%‰+-−–—*†‡§"
_NUMBER = re.compile(r"\d[\d.,'’\u00a0/:]*(?:x|bps?|pts?|[KMB]|[a-e])?")
_DASHES = re.compile(r"[-−–—―.…]+")
_YEAR = re.compile(r"(?:19|20)\d\d(?:[-–/](?:\d\d|(?:19|20)\d\d))?|(?:Q[1-4]|[1-4]Q|FY|F|H[12])['’]?\d*")
_DAY = re.compile(r"(?:[12]?\d|3[01]),?")
SHORT_DATE = re.compile(r"\d{1,2}[./]\d{1,2}[./](?:\d\d){1,2}")
_MONTH = re.compile(
    r"(?:Jan(?:uary?)?|Feb(?:ruary?)?|Mar(?:ch)?|März|Apr(?:il)?|Ma[iy]|Jun[ei]?|Jul[iy]?|Aug(?:ust)?|Sept?(?:ember)?|"
    r"O[ck]t(?:ober)?|Nov(?:ember)?|De[cz](?:ember)?)\.?",
    re.IGNORECASE,
)
_NEUTRAL = frozenset(
    ["$", "€", "£", "¥", "%", ")", "(", "]", "[", "N/A", "n/a", "NA", "NM", "nm", "N/M", "n/m", "bps", "pts", "pp", "x"]
)
_HEAD_WORD = re.compile(
    r"\b(?:amounts?|totals?|pages?|%|percent(?:age)?|millions?|thousands?|billions?|dollars|shares|fees?|prices?|rates?|"
    r"values?|quantit(?:y|ies)|years?|months?|quarters?|weeks?|ended|ending|as of)\b",
    re.IGNORECASE,
)
_UNIT = re.compile(r"\((?:in|dollars|amounts|shares|unaudited|\$)\b", re.IGNORECASE)
_SCALE = re.compile(
    r"(?i)\b(?:thousands?|millions?|billions?|tausend|tsd|millionen|mio|milliarden|mrd|teur|milliers|milliards|miles"
    r"|millones|migliaia|milioni|miliardi|duizend(?:en)?|miljoen(?:en)?)\b|[$€£¥]\s?000\b|\([$€£¥]\)|\bunaudited\b"
)
_PERIOD = re.compile(r"(?i)\b(?:ended|ending|as of|as at|months|weeks)\b")
_DATE = re.compile(
    rf"(?i:(?:{_MONTH.pattern})\s(?:{_DAY.pattern})(?:\s(?:19|20)\d\d)?|{SHORT_DATE.pattern}|(?:{_YEAR.pattern})(?!\d))"
)
_AMOUNT = re.compile(r"[$€£¥%]|\d[.,]\d")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\S)")


def pdf_tables(pages: Iterable[Iterable[Line]]) -> list[Table]:
    """Return the tables of a PDF, which may continue over several pages."""
    return figure_tables(_paragraphs(line for page in pages for line in page))


def _paragraphs(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines, joining the lines of each paragraph into one line."""
    parts: list[Line] = []
    for line in lines:
        parts.append(line)
        if line.end != " ":
            yield _join_lines(parts)
            parts = []
    if parts:
        yield _join_lines(parts)


def _join_lines(parts: Sequence[Line]) -> Line:
    """Join the lines of a paragraph into one line."""
    return parts[0] if len(parts) == 1 else replace(parts[0], text=" ".join(part.text for part in parts), cells=1)


class _Sorted(NamedTuple):
    line: Line
    kind: Kind
    has_dates: bool


def figure_tables(lines: Iterable[Line]) -> list[Table]:
    """Return the tables that consist of column headers and rows of figures, or of rows with the same number of cells.

    Args:
        lines: The lines of a document in reading order; a paragraph may be given as one line.
    """
    read = [_sorted(line) for line in lines]
    tables: list[Table] = []
    done = at = 0
    while at < len(read):
        if (stop := _end_of_records(read, at, done)) > at:
            tables.append(_record_table(read, at, stop, done))
            at = done = stop
            continue
        if read[at].kind != "row" or not _is_table(read, at):
            at += 1
            continue
        head, stop = _head_lines(read, at, done), _end(read, at)
        if head is not None and not _is_table_of_contents(read[at:stop]):
            last = next(entry.line for entry in reversed(read[at:stop]) if entry.kind in ("row", "columns"))
            text = _head_text(read, *head, done)
            heads = [entry.line for entry in read[head[0] : head[1] + 1]]
            columns = column_heads(heads, [entry.line for entry in read[at:stop] if entry.kind == "row"])
            start, body, end = read[head[0]].line.start, read[at].line.start, last.start + len(last.text)
            tables.append(Table(start, body, end, text, columns))
        at = done = stop
    return tables


def _sorted(line: Line) -> _Sorted:
    words = line.text.split()
    bullet = _BULLET.match(line.text)
    cells = line.cells - (bullet is not None and line.cells > 1)
    figures, dates = _count_figures(words)
    if figures and (cells > 1 or figures > 1) and len(words) <= 4 * MAX_LABEL_WORDS:
        return _Sorted(line, "row", dates > 0)
    if (cells > 1 or dates > 1) and not bullet and len(words) <= 3 * MAX_LABEL_WORDS:
        return _Sorted(line, "columns", dates > 0 or any(_YEAR.fullmatch(word.strip(_MARKS + ",")) for word in words))
    is_short = len(words) <= MAX_LABEL_WORDS and not (line.text.endswith(".") and len(words) > MAX_SENTENCE_WORDS)
    return _Sorted(line, "label" if is_short else "prose", dates > 0)


def _count_figures(words: Sequence[str]) -> tuple[int, int]:
    """Count the figures and the dates at the end of a line."""
    figures = years = days = 0
    at = len(words) - 1
    while at >= 0:
        word = words[at]
        bare = word.strip(_MARKS)
        if _YEAR.fullmatch(bare.rstrip(",;")) and "," not in bare[:-1]:
            years += 1
        elif at and _DAY.fullmatch(bare) and _MONTH.fullmatch(words[at - 1].strip(_MARKS)):
            days += 1
            at -= 1
        elif SHORT_DATE.fullmatch(bare):
            days += 1
        elif _NUMBER.fullmatch(bare) or _DASHES.fullmatch(word):
            figures += 1
        elif bare and word not in _NEUTRAL:
            break
        at -= 1
    dates = max(years, days)
    is_number = at < 0 and figures == 1 and not dates  # a page number or the number of a list item
    return 0 if is_number else figures, dates


def is_figure(text: str) -> bool:
    """Return whether a cell contains a figure or a dash, with or without signs and units, but not a year.

    Example:
        >>> [is_figure(text) for text in ("$ 1,234", "(13)", "15.5 %", "—", "2023", "Note 5", "$")]
        [True, True, True, True, False, False, False]
    """
    words = [word for word in text.split() if word not in _NEUTRAL]
    bare = [word if _DASHES.fullmatch(word) else word.strip(_MARKS) for word in words]
    if not bare or (len(bare) == 1 and _YEAR.fullmatch(bare[0])):
        return False
    return all(_NUMBER.fullmatch(word) or _DASHES.fullmatch(word) for word in bare)


def _is_table(read: Sequence[_Sorted], at: int) -> bool:
    """Return whether another row follows the row with index `at`, with at most `MAX_LABELS` labels between them."""
    below = (other.kind for other in read[at + 1 : at + 2 + MAX_LABELS] if other.kind != "label")
    return next(below, None) == "row"


def _end_of_records(read: Sequence[_Sorted], head: int, done: int) -> int:
    """Return the index of the first line after a table whose first line is at index `head`.

    The result is `head` if there is no such table. Most of its rows have as many cells as its first line and do not end
    with a figure. The first line has no figures, and no other row is above it.
    """
    count = read[head].line.cells
    is_inside = head > done and read[head - 1].line.cells >= count
    if count < MIN_RECORD_CELLS or is_inside or read[head].kind != "columns" or _has_value(read[head]):
        return head
    stop, rows, records, labels = head, 0, 0, 0
    for at in range(head + 1, len(read)):
        line, kind, _has_dates = read[at]
        labels = labels + 1 if line.cells == 1 else 0
        if kind == "prose" or labels > MAX_LABELS or line.cells > count:
            break
        if kind == "row" and rows < MAX_HEAD_LINES and _is_table(read, at):
            return head  # the lines above are the column headers of a table of figures
        if line.cells > 1:
            rows += 1
            records += line.cells == count and kind != "row" and line.text != read[head].line.text
            if rows > 2 * MIN_RECORDS and 2 * records <= rows:
                break
            stop = at + 1
    return stop if records >= MIN_RECORDS and 2 * records > rows - 1 else head


def _has_value(entry: _Sorted) -> bool:
    return entry.has_dates or any(word.lstrip(_MARKS)[:1].isdigit() for word in entry.line.text.split())


def _record_table(read: Sequence[_Sorted], at: int, stop: int, done: int) -> Table:
    """Return the table from index `at` to `stop`. If all its rows have figures or dates, lines without are headers."""
    first = last = at
    while first > done and at - first < MAX_HEAD_LINES and read[first - 1].kind == "columns":
        first -= 1
    lines = read[at + 1 : at + MAX_HEAD_LINES]
    more = next((number for number, entry in enumerate(lines) if _has_value(entry) or entry.line.cells == 1), 0)
    if all(_has_value(entry) for entry in read[at + 1 + more : stop] if entry.line.cells == read[at].line.cells):
        last += more
    end = next(entry.line for entry in reversed(read[at:stop]) if entry.line.cells > 1)
    text = _head_text(read, first, last, done)
    return Table(read[first].line.start, read[last + 1].line.start, end.start + len(end.text), text)


def _is_table_of_contents(read: Sequence[_Sorted]) -> bool:
    """Return whether the rows form a table of contents, in which the only figure in a row is its page number."""
    return are_pages_of_contents([_page_number(entry.line) for entry in read if entry.kind == "row"])


def are_pages_of_contents(pages: Sequence[int]) -> bool:
    """Return whether a list may be a table of contents: it has enough entries, and few page numbers decrease.

    Args:
        pages: The page number of each entry, or -1 for an entry without a page number.

    Example:
        >>> are_pages_of_contents([1, 2, 2, 7, 9]), are_pages_of_contents([9, 2, 7, 1, 4])
        (True, False)
    """
    increasing = sum(0 <= one <= other for one, other in pairwise(pages))
    return len(pages) >= MIN_CONTENTS and increasing >= MOST_CONTENTS * (len(pages) - 1)


def _page_number(line: Line) -> int:
    word = line.text.rpartition(" ")[2]
    is_alone = line.cells <= 2 + (_BULLET.match(line.text) is not None) or _count_figures(line.text.split())[0] == 1
    return int(word) if is_alone and word.isascii() and word.isdigit() and len(word) <= 4 else -1


def _head_lines(read: Sequence[_Sorted], at: int, done: int) -> tuple[int, int] | None:
    """Return the indexes of the first and the last line of the column headers above a table row.

    The index of the row is `at`, and lines with an index below `done` are not used. The result is None if the row has
    no column headers.
    """
    above = range(at - 1, max(done, at - MAX_LABELS) - 1, -1)
    last = next((place for place in above if read[place].kind != "label" or _is_column_label(read, place, at)), None)
    if last is None or read[last].kind not in ("columns", "label"):
        return _narrow_head(read, at, done)
    first = last
    while first > done and last - first + 1 < MAX_HEAD_LINES and read[first - 1].kind in ("columns", "label"):
        first -= 1
    # A list item at the beginning belongs to the text before the table.
    while first < last and read[first].kind == "label" and _BULLET.match(read[first].line.text):
        first += 1
    return first, last


def _narrow_head(read: Sequence[_Sorted], at: int, done: int) -> tuple[int, int] | None:
    """Return the indexes of the first and the last line of column headers that are stored column by column.

    Such headers begin with a unit or with dates. The arguments and the result are the same as in `_head_lines`.
    """
    for first in range(at - 1, max(done, at - MAX_NARROW_LINES) - 1, -1):
        if read[first].kind not in ("label", "columns"):
            return None
        if at - first > 1 and _names_columns(read[first]):
            return first - (first > done and _names_columns(read[first - 1])), at - 1
    return None


def _names_columns(one: _Sorted) -> bool:
    """Return whether a line has dates or a unit, as column headers do."""
    return one.has_dates or _UNIT.match(one.line.text) is not None


def _is_column_label(read: Sequence[_Sorted], place: int, row: int) -> bool:
    """Return whether a line with one cell is a column header.

    It must be indented further than the row, and contain a date or a word that is typical of column headers.
    """
    line = read[place].line
    return (
        read[place].kind == "label"
        and line.x0 > read[row].line.x0
        and (read[place].has_dates or _HEAD_WORD.search(line.text) is not None)
    )


def _end(read: Sequence[_Sorted], at: int) -> int:
    """Return the index of the first line after the table that contains the row with index `at`.

    A table ends before prose, a series of labels, or other column headers.
    """
    labels = 0
    for place in range(at + 1, len(read)):
        kind = _kind_within(read, place)
        labels = labels + 1 if kind == "label" else 0
        if kind == "prose" or labels > MAX_LABELS:
            return place - labels + (kind != "prose")
        if kind == "columns" and read[place].has_dates:
            return place - _labels_before(read, place)
    return len(read)


def _kind_within(read: Sequence[_Sorted], place: int) -> Kind:
    """Return the kind of a line inside a table.

    A long line inside a table is a wrapped label, not prose, if it does not end a sentence and a row follows it.
    """
    text, kind = read[place].line.text, read[place].kind
    is_label = not text.endswith((".", ":", ";")) and len(text.split()) <= 2 * MAX_LABEL_WORDS
    follows_row = place + 1 < len(read) and read[place + 1].kind == "row"
    return "label" if kind == "prose" and is_label and follows_row else kind


def _labels_before(read: Sequence[_Sorted], place: int) -> int:
    count = 0
    while count < MAX_LABELS and read[place - count - 1].kind == "label":
        count += 1
    return count


def _head_text(read: Sequence[_Sorted], first: int, last: int, done: int) -> str:
    lines = [entry.line.text for entry in read[first : last + 1]]
    start = first
    while start > max(done, first - MAX_ABOVE) and read[start - 1].kind in ("label", "columns"):
        start -= 1
    above = [entry.line.text for entry in read[max(done, min(start, first - 1)) : first]]
    return join_headers([*naming_lines(above, has_unit=_names_columns(read[first])), *lines])


# Columns of figures, by their positions


class _Piece(NamedTuple):
    x0: float
    x1: float
    text: str


def column_heads(heads: Sequence[Line], rows: Sequence[Line]) -> tuple[str, ...]:
    """Return the header of each column of a table of figures from the positions of the cells, that of the labels first.

    The result is empty if the columns, or a header of its own for each of them, are not known. A piece of a header
    belongs to the nearest column, or to the labels if it ends to the left of all columns; a title belongs to none. The
    name of a period belongs to all columns that are nearer to it than to another one.

    Args:
        heads: The lines of the column headers.
        rows: The rows of the table.
    """
    columns = _value_columns(rows)
    if not 0 < len(columns) <= MAX_COLUMNS or any(one[1] >= other[0] for one, other in pairwise(columns)):
        return ()
    lines = [[part for piece in _pieces(line) for part in _parts(piece, columns)] for line in heads]
    periods = [_PERIOD.search(line.text) is not None for line in heads]
    days = [len(pieces) == 1 and _is_date(pieces[0]) for pieces in lines]
    labels_end = max((row.x0 + row.pieces[0][1]) / 2 if row.pieces else row.x0 for row in rows)
    texts: list[list[str]] = [[] for _ in range(len(columns) + 1)]
    for number, pieces in enumerate(lines):
        is_day = days[number] and sum(days) == 1
        is_period = periods[number] or is_day or _is_line_of_dates(pieces, len(columns))
        is_above_period = not is_period and any(periods[number:]) and not any(periods[:number])
        is_title = is_above_period or (len(pieces) == 1 and not is_period and pieces[0].x0 < labels_end)
        above = [] if is_title else _above(pieces, columns)
        before = pieces[: len(pieces) - len(above)]
        is_shifted = any(map(_is_date, above)) and any(map(_is_date, before))
        if is_shifted or any(_AMOUNT.search(piece.text) and is_figure(piece.text) for piece in above):
            return ()
        texts[0] += [piece.text for piece in before]
        above = [piece for piece in above if not _is_unit(piece)]
        if is_period and above:
            for at, column in enumerate(columns, start=1):
                texts[at].append(min(above, key=lambda piece: _distance(piece, column)).text)
            continue
        nearest = [min(range(len(columns)), key=lambda at: _distance(piece, columns[at])) for piece in above]
        if len(set(nearest)) < len(above) and all(map(_is_date, above)):
            return ()
        for at, piece in zip(nearest, above, strict=True):
            texts[at + 1].append(piece.text)
    names = [" ".join(texts[0][-1:]), *map(" ".join, texts[1:])]
    is_known = all(names[1:]) and len(set(names[1:])) == len(columns) and max(map(len, names)) <= MAX_COLUMN_HEAD
    return tuple(names) if is_known else ()


def _value_columns(rows: Iterable[Line]) -> list[tuple[float, float]]:
    """Return the left and the right end of each column of figures, from the rows with the usual number of figures."""
    values = [cells for row in _on_first_page(rows) if (cells := _value_pieces(row))]
    if not values:
        return []
    count = Counter(map(len, values)).most_common(1)[0][0]
    columns = zip(*(cells for cells in values if len(cells) == count), strict=True)
    return [(min(cell.x0 for cell in cells), max(cell.x1 for cell in cells)) for cells in columns]


def _above(pieces: Sequence[_Piece], columns: Sequence[tuple[float, float]]) -> list[_Piece]:
    """Return the pieces of a line that are above the columns of figures, rather than above the labels."""
    if len(pieces) == len(columns) and all(map(_is_date, pieces)):
        return [_Piece(*column, piece.text) for column, piece in zip(columns, pieces, strict=True)]
    return [piece for piece in pieces if piece.x1 > columns[0][0]]


def _is_date(piece: _Piece) -> bool:
    return _DATE.fullmatch(piece.text) is not None


def _is_unit(piece: _Piece) -> bool:
    """Return whether a piece is a unit in parentheses, such as "(in millions)"."""
    return piece.text.startswith("(") and _SCALE.search(piece.text) is not None


def _is_line_of_dates(pieces: Sequence[_Piece], columns: int) -> bool:
    """Return whether a line consists of dates, each of which belongs to the same number of columns."""
    is_shared = 1 < len(pieces) < columns and columns % len(pieces) == 0
    return is_shared and all(map(_is_date, pieces))


def _parts(piece: _Piece, columns: Sequence[tuple[float, float]]) -> list[_Piece]:
    """Divide dates that are one piece into one piece for each of the columns below them."""
    dates = _DATE.findall(piece.text)
    below = [column for column in columns if column[0] < piece.x1 and piece.x0 < column[1]]
    if len(dates) < 2 or len(dates) != len(below) or " ".join(dates) != piece.text:
        return [piece]
    return [_Piece(*column, date) for column, date in zip(below, dates, strict=True)]


def _distance(piece: _Piece, column: tuple[float, float]) -> float:
    """Return the distance between the middles of a piece of a header and of a column."""
    return abs(piece.x0 + piece.x1 - column[0] - column[1]) / 2


def _on_first_page(rows: Iterable[Line]) -> Iterator[Line]:
    """Yield the rows down to the end of the page, where the next row is further up."""
    y = math.inf
    for row in rows:
        if not row.y < y + row.size:
            return
        y = row.y
        yield row


def _pieces(line: Line) -> list[_Piece]:
    """Return the cells of a line; there are none if the text was changed after its cells were read."""
    pieces, start = [], 0
    for x0, x1, length in line.pieces:
        pieces.append(_Piece(x0, x1, line.text[start : start + length]))
        start += length + 1
    return pieces if start == len(line.text) + 1 else []


def _value_pieces(row: Line) -> list[_Piece]:
    """Return the figures and dashes at the end of a row, each with the signs next to it."""
    values: list[_Piece] = []
    sign: _Piece | None = None
    for piece in reversed(_pieces(row)):
        is_sign = all(word in _NEUTRAL for word in piece.text.split()) and not any(map(str.isalpha, piece.text))
        if is_sign and piece.text.strip(")%] ") == "":
            sign = piece  # belongs to the figure before it
        elif is_sign and values:
            values[-1] = _Piece(piece.x0, values[-1].x1, piece.text)
        elif is_figure(piece.text) or piece.text in _NEUTRAL:
            values.append(_Piece(piece.x0, piece.x1 if sign is None else sign.x1, piece.text))
            sign = None
        else:
            break
    return values[::-1]


def naming_lines(above: Sequence[str], *, has_unit: bool = False) -> list[str]:
    """Return the lines directly above column headers that state the title, unit and time period of the table.

    Short lines are returned if one of them is a caption or contains a unit or a date. A longer line is returned if it
    ends with a colon.

    Args:
        above: The lines above the column headers.
        has_unit: Whether the headers begin with the unit or the time period, so that the line above them is the title.

    Example:
        >>> naming_lines(["Sales fell.", "Statements of income", "(in millions)"])
        ['Statements of income', '(in millions)']
    """
    lines: list[str] = []
    for line in reversed(above[-MAX_ABOVE:]):
        if not _is_short(line) and not _is_caption(line):
            break
        lines.insert(0, line)
        if _is_caption(line):
            break
    if any(map(_names_table, lines)):
        return lines
    caption = caption_of(above[-1]) if above else ""
    return [caption] if caption else lines[-1:] if has_unit else []


def _is_short(line: str) -> bool:
    """Return whether a line may be part of a title, and is not a sentence, a heading or a list item."""
    is_sentence = line.endswith((".", ",", ";")) or len(line.split()) > MAX_LABEL_WORDS
    return not is_sentence and not line.startswith("#") and not _BULLET.match(line)


def _is_caption(line: str) -> bool:
    return _CAPTION.match(line) is not None and len(line.split()) <= MAX_CAPTION_WORDS


def _names_table(line: str) -> bool:
    return _is_caption(line) or _SCALE.search(line) is not None or _count_figures(line.split())[1] > 0


def caption_of(text: str) -> str:
    """Return the last sentence of a paragraph if it ends with a colon, or an empty string otherwise."""
    sentence = _SENTENCE.split(text[-MAX_HEAD:].strip())[-1]
    return sentence if sentence.endswith(":") and len(sentence.split()) <= MAX_CAPTION_WORDS else ""


def join_headers(lines: Sequence[str]) -> str:
    """Join the lines of column headers, omitting lines from the top if the result is longer than `MAX_HEAD`."""
    kept: list[str] = []
    size = 0
    for line in reversed(list(dict.fromkeys(lines))):
        size += len(line) + 1
        if kept and size > MAX_HEAD:
            break
        kept.append(line[:MAX_HEAD])
    return "\n".join(reversed(kept))
