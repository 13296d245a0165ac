"""Cut passages into units: the sentences, table rows, list items, headings and lines of code of a text.

A unit is what answers a question, what is marked for a reader, and what a citation refers to. No other module cuts
passages.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from llama_index_contextual import metadata as keys
from llama_index_contextual.figures import figures_from_json
from llama_index_contextual.readers.boundaries import Rank, structural_offsets

LONG_LINE = 160
"""Number of characters above which a line is divided into sentences. Shorter lines are rows, items or sentences."""

_SPACED = re.compile(r"\S  +\S")
_NUMBER = re.compile(r"(?<!\w)\d[\d.,]*")
_YEAR = re.compile(r"(?:\d\d?\.\d\d?\.)?(?:19|20)\d\d")  # or a date such as 31.12.2025
_HEADING = 40  # a shorter line that ends with a letter, a colon or an asterisk is a heading, unless it is a table row
_FIGURES = re.compile(r"\s\d.*\s\d")
_FIGURE_CELL = re.compile(r"[($€£¥%)+–—−-]*(?:\d[\d.,]*[)%$€£¥]*)?")  # a figure, a sign next to it, or a dash
_ENDS_OF_CELLS = ")%-–—"
_AMOUNT = re.compile(r"[$€£¥%]|\d[.,]\d")
_PERIOD_WORD = re.compile(
    r"(?:19|20)\d\d|\d{1,2}|\d{1,2}[./]\d{1,2}[./](?:\d\d){1,2}|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?"
    r"|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|fiscal|years?|quarters?|months|weeks"
    r"|three|six|nine|twelve|ended|ending|as|at|of|the|and",
    re.IGNORECASE,
)
_UNIT = re.compile(
    r"\((?:in|dollars|amounts|shares|unaudited|[$€£¥])\b[^()]*\)|\((?:[$€£¥] )?in [^()]*\)", re.IGNORECASE
)
_WRAPPED = 50  # a line of at least this length may be continued by a line that begins in lower case or with a figure
_FIGURE = (
    r"0\.\d|\d{1,3}(?:\.\d{3})+\s|"  # a decimal number, or thousands separated by full stops
    r"\d{1,2}\.\s+(?:Januar|Februar|März|April|Mai|Ju[nl]i|August|September|Oktober|November|Dezember)\b"
)
_NUMBERED = re.compile(rf"(?!{_FIGURE})(?:\d{{1,3}}[.)]\s|\d[\d.]*\s+[^\W\d_a-zß-ÿ])")  # an item or a heading
_CODE_SHARE = 0.3
_CODE_START = re.compile(
    r"\s*(?:[\])}]+[,;]?\s*$"
    r"|def |class |import |from \w+ import|return\b|#include|pub |fn |let |const |var |use |//|/\*|\*/|@\w)"
)
_ASSIGNMENT = re.compile(r"\w\s*[+*/|&-]?=\s*\S")
_CALL_START = re.compile(r"\w\(")


class Kind(IntEnum):
    """Kind of a unit. The first two units of every passage are the texts before it, which may be empty."""

    HEADER = 0
    """Title, file name, section and column headers of the passage."""
    CONTEXT = 1
    """The context that situates the passage in its document."""
    TEXT = 2
    """A sentence, a list item or a short line."""
    HEADING = 3
    ROW = 4
    """A row of a table without figures, such as its column headers; years are not figures."""
    CODE = 5
    """A line of source code."""
    FIGURES = 6
    """A row of a table with figures."""
    CAPTION = 7
    """The caption, the alternative text or the description of a figure; see `llama_index_contextual.figures`."""


FIRST_OF_TEXT = 2
"""Position of the first unit of a passage that belongs to its text."""


class Unit(NamedTuple):
    """A unit of a passage.

    Attributes:
        kind: Kind of the unit.
        text: Text of the unit.
        start: Offset of the text in the passage; 0 for a text before the passage.
        end: Offset after the text; 0 for a text before the passage.
        head: How many units before it the unit is that heads it: for a row with figures, the heading or row above that
            names a group of rows, and for these, the column headers or the line before the table; 0 if there is none.
    """

    kind: Kind
    text: str
    start: int
    end: int
    head: int


def units_of(text: str, metadata: Mapping[str, object]) -> list[Unit]:
    """Cut a passage into units, which are preceded by its header and its context.

    Each line is a unit, for example a row, a list item or a heading. Lines of more than 160 characters are divided into
    sentences. If a line continues on the next line, as in hand-wrapped text, the two lines are joined.

    Args:
        text: Text of the passage.
        metadata: Metadata of the passage.

    Example:
        >>> text = "| Zone | Tariff |\\n| Upper Vale | 2.95 |\\nThe tariff is reviewed."
        >>> for unit in units_of(text, {"title": "Prices", "context": "Tariffs of 2025."}):
        ...     print(unit.kind.name, unit.text)
        HEADER Prices
        CONTEXT Tariffs of 2025.
        ROW | Zone | Tariff |
        FIGURES | Upper Vale | 2.95 |
        TEXT The tariff is reviewed.
    """
    before = [
        Unit(Kind.HEADER, header_of(metadata), 0, 0, 0),
        Unit(Kind.CONTEXT, str(metadata.get(keys.CONTEXT) or ""), 0, 0, 0),
    ]
    spans = spans_of(text)
    texts = [text[start:end] for start, end in spans]
    kinds = [Kind.CODE] * len(texts) if is_code(text) else list(map(_kind_of, texts))
    for first, last in caption_spans(text, metadata):
        for at, (start, end) in enumerate(spans):
            if start < last and first < end:
                kinds[at] = Kind.CAPTION
    heads = _heads(texts, kinds)
    units = zip(kinds, texts, spans, heads, strict=True)
    return [*before, *(Unit(kind, unit, *span, head) for kind, unit, span, head in units)]


def caption_spans(text: str, metadata: Mapping[str, object]) -> Iterator[tuple[int, int]]:
    """Yield the spans of the captions of a passage's figures, and of the texts in them.

    Example:
        >>> metadata = {"figure_records": '[{"id": "1", "caption": "Figure 1: Pump"}]'}
        >>> list(caption_spans("It leaks.\\nFigure 1: Pump", metadata))
        [(10, 24)]
    """
    for figure in figures_from_json(metadata.get(keys.FIGURES)):
        for caption in filter(None, (figure.caption, figure.alt, figure.text)):
            if (at := text.find(caption)) >= 0:
                yield at, at + len(caption)


def header_of(metadata: Mapping[str, object]) -> str:
    """Return the text that identifies the subject of a passage: title, file name, section and column headers.

    Example:
        >>> header_of({"title": "Tariffs", "section": "Gardens", "page_start": 3})
        'Tariffs\\nGardens'
    """
    names = (keys.TITLE, keys.FILE_NAME, keys.SECTION, keys.TABLE_HEAD)
    return "\n".join(str(metadata[name]) for name in names if metadata.get(name))


def spans_of(text: str) -> list[tuple[int, int]]:
    """Return the start and end offset of each unit of a text, in order.

    Example:
        >>> text = "# Garden water\\n\\nIt is free."
        >>> [text[start:end] for start, end in spans_of(text)]
        ['# Garden water', 'It is free.']
    """
    lines = _lines(text, joins_wrapped=not is_code(text))
    return [unit for start, end in lines for unit in _sentences(text, start, end)]


def _kind_of(unit: str) -> Kind:
    if _has_cells(unit):
        return Kind.ROW if _has_only_years(_NUMBER.findall(unit)) else Kind.FIGURES
    if cells := _cells_at_end(unit):
        return Kind.ROW if _has_only_years(cells) else Kind.FIGURES
    if _names_columns(unit):
        return Kind.ROW
    is_short = len(unit) < _HEADING and (unit[-1].isalpha() or unit[-1] in ":*")
    return Kind.HEADING if is_short and not _FIGURES.search(unit) else Kind.TEXT


def _names_columns(unit: str) -> bool:
    """Return whether a line has only dates, periods or a unit, as column headers do in the text of a PDF.

    Example:
        >>> [_names_columns(line) for line in ("Year ended May 31,", "(in millions)", "It ended in May 2020")]
        [True, True, False]
    """
    if len(unit) > LONG_LINE:
        return False
    words = unit.replace(",", " ").split()
    is_period = any(map(str.isdecimal, unit)) and all(map(_PERIOD_WORD.fullmatch, words))
    return (is_period and len(words) > 1) or _UNIT.fullmatch(unit) is not None


def _cells_at_end(unit: str) -> list[str]:
    """Return the figures at the end of a row whose cells are separated by single spaces, as in the text of a PDF.

    Example:
        >>> _cells_at_end("Net sales $ 14,694 $ 14,544"), _cells_at_end("The fee was 30 euros in 2024")
        (['14,694', '14,544'], [])
    """
    if len(unit) > LONG_LINE or not (unit[-1].isdigit() or unit[-1] in _ENDS_OF_CELLS):
        return []
    words = unit.split()
    cells = list(itertools.takewhile(_FIGURE_CELL.fullmatch, reversed(words)))[::-1]
    figures = [cell for cell in cells if any(map(str.isdecimal, cell))]
    is_row = len(cells) > 1 or _AMOUNT.search("".join(cells)) is not None
    return figures if is_row and len(cells) < len(words) else []


def _has_only_years(numbers: Sequence[str]) -> bool:
    return all(_YEAR.fullmatch(number.rstrip(".,")) for number in numbers)


def _has_cells(unit: str) -> bool:
    """Return whether a unit consists of cells, as in a Markdown table or in a table drawn with spaces."""
    return "|" in unit or "\t" in unit or ("  " in unit and _SPACED.search(unit) is not None)


def _heads(units: Sequence[str], kinds: Sequence[Kind]) -> Iterator[int]:
    """Yield, for each unit, the distance from the unit that heads it, or 0; see `Unit`.

    A table begins with the lines that head it: a line that ends with a colon, headings, and a row without figures.
    Headings and rows without figures that follow a row with figures head the rows of a group.
    """
    # The last unit that heads others, and the last one before the first row with figures.
    head: int | None = None
    top: int | None = None
    has_rows = False
    for at, (unit, kind) in enumerate(zip(units, kinds, strict=True)):
        above = head
        if kind is Kind.FIGURES:
            has_rows = True
        elif kind in (Kind.ROW, Kind.HEADING) or unit.endswith(":"):
            if has_rows and (kind is Kind.TEXT or unit.startswith("#") or _NUMBER.search(unit)):
                above, top, has_rows = None, None, False  # another table
            is_group = has_rows or (kind is not Kind.ROW and top is not None and kinds[top] is Kind.ROW)
            above = top if is_group else above
            head, top = at, top if is_group else at
        else:
            above = head = top = None
            has_rows = False
        yield 0 if above is None else at - above


def _lines(text: str, *, joins_wrapped: bool) -> Iterator[tuple[int, int]]:
    """Yield the spans of the lines that are not blank.

    Args:
        text: The text.
        joins_wrapped: Whether to join the lines of hand-wrapped text; the lines of source code are not wrapped.
    """
    start = end = 0
    first = last = ""  # lines of the span, without white space around them
    for line in text.splitlines(keepends=True):
        body = line.strip()
        is_prose = end - start > LONG_LINE or not first[:1].isdecimal()
        may_continue = joins_wrapped and last and end - start >= _WRAPPED
        if not may_continue or not _is_continued(last, body, is_prose=is_prose):
            if last:
                yield start, end
            start, first = end, body
        last = body
        end += len(line)
    if last:
        yield start, end


def _is_continued(line: str, following: str, *, is_prose: bool) -> bool:
    """Return whether a line continues on the following line.

    The lines of a table or a log begin with figures, and so do the items of a list, but not the lines of prose.
    """
    if _has_cells(following) or _has_cells(line):
        return False
    if following[:1].isdigit():
        return is_prose and line.rstrip(",")[-1:].isalpha() and not _NUMBERED.match(following)
    return following[:1].islower()


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the units of a line: its sentences if it is long, otherwise the whole line."""
    is_long = end - start > LONG_LINE
    cuts = structural_offsets(text[start:end], ranks=(Rank.SENTENCE,))[Rank.SENTENCE] if is_long else ()
    for first, last in itertools.pairwise([start, *(start + cut for cut in cuts), end]):
        if unit := text[first:last].lstrip():
            yield last - len(unit), last - len(unit) + len(unit.rstrip())


def is_code(text: str) -> bool:
    """Return whether a text is source code, that is, whether at least three in ten lines look like code.

    Example:
        >>> is_code("def area(r):\\n    return PI * r**2\\n"), is_code("The fee is due:\\nby the end of May.")
        (True, False)
    """
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and sum(map(_is_code_line, lines)) >= _CODE_SHARE * len(lines)


def _is_code_line(line: str) -> bool:
    return bool(
        line.rstrip().endswith(("{", "}", ";"))
        or "=>" in line
        or "::" in line
        or "->" in line
        or _CODE_START.match(line)
        or ("=" in line and _ASSIGNMENT.search(line))
        or _ends_with_call(line.rstrip())
    )


def _ends_with_call(line: str) -> bool:
    """Return whether a line ends with the call of a function, which a comma or another sign may follow."""
    call = line.removesuffix(line[-1]) if line[-1] in ";,:{" else line
    return call.endswith(")") and _CALL_START.search(call[:-1].rpartition(")")[2]) is not None
