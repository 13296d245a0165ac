"""Build the lines of scanned pages from the text boxes that OCR returned, and warn about these pages.

The ledger stores the boxes as the OCR engine returned them, so that a change to the layout rules requires no new OCR.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from statistics import median, median_low
from typing import Any, NamedTuple

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.readers.files import ParsedFile
from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.pages import Cell, PageContent, PageSource, Row, Run, page_lines

LOW_CONFIDENCE = 0.8  # pages with a lower confidence are reported as hard to read
MAX_RANGES = 10  # maximum number of page ranges in a warning
FONT_SIZE = 0.72  # times the height of a box, which has a margin around ascenders and descenders
BASELINE = 0.28  # times the height of a box, from its lower edge
SPACE = 0.28  # times the font size
SIMILAR = 0.7  # minimum similarity of a line to the same line as read by OCR
MAX_OWN = 400  # maximum number of characters of a line that are compared
SAME_SIZE = 1.3  # boxes whose heights differ by up to this factor have the same font size
VERTICAL = 1.5  # minimum ratio of height to width of a box whose text runs up or down
MAX_SKEW = 5  # in degrees
MIN_SKEWED = 4  # minimum number of boxes needed to measure the angle
MIN_COLUMN_LINES = 5
MIN_WORDS = 3  # minimum number of words in a line of prose
FILLED = 0.6  # minimum share of the column width that at least half of the lines in a prose column fill
MAX_CROSSING = 0.5  # maximum number of lines across the gap (such as headings) per line of the shorter column

Page = Mapping[str, Any]
"""A page as returned by the child processes: width and height in pixels, resolution, quarter turns, and text boxes.

The width, the height and the boxes apply to the image after `turns` anticlockwise quarter turns.

A box consists of a string, its confidence, and its four corners in pixels, clockwise from the upper left.
"""


class OcrPages(NamedTuple):
    """Pages of a file that were read by OCR.

    Attributes:
        pages: The pages by number, starting at 1.
        failed: A warning for each page that could not be read.
        total: Number of pages in the file.
        digest: Hexadecimal xxh3-128 hash of the file.
    """

    pages: dict[int, Page]
    failed: list[str]
    total: int
    digest: str


class ImagePages(PageSource):
    """Page source for an image file whose pages were read by OCR."""

    def __init__(self, scans: OcrPages) -> None:
        self._pages = scans.pages
        self.page_count = scans.total

    def page(self, index: int) -> PageContent:
        """Return the page with the given index, starting at 0."""
        page = self._pages.get(index + 1)
        return PageContent((), True, (0.0, 0.0)) if page is None else page_content(page)


def with_ocr_notes(parsed: ParsedFile, scans: OcrPages) -> ParsedFile:
    """Add the confidence of each scanned page to the map of a file, and add warnings that list these pages."""
    scores = {number: mean_confidence(page["boxes"]) for number, page in scans.pages.items() if page["boxes"]}
    confidences = tuple(round(scores[number], 3) if number in scores else None for number in range(1, scans.total + 1))
    notes = list(_confidence_notes(scores)) if scores else []
    if empty := [n for n, page in scans.pages.items() if not page["boxes"] and n not in parsed.covered]:
        notes.append(f"{page_ranges(empty)} {'has' if len(empty) == 1 else 'have'} no text: OCR found none")
    return replace(
        parsed,
        map=replace(parsed.map, page_confidences=confidences if scores else ()),
        warnings=(*notes, *scans.failed, *parsed.warnings),
        scanned=(),
        covered=(),
    )


def _confidence_notes(scores: Mapping[int, float]) -> Iterator[str]:
    """Yield a warning that lists the pages, and another warning if any of them are hard to read."""
    mean = sum(scores.values()) / len(scores)
    yield f"{page_ranges(scores)} {'was' if len(scores) == 1 else 'were'} read by OCR (confidence {mean:.2f})"
    if low := {number: score for number, score in scores.items() if score < LOW_CONFIDENCE}:
        verb, them = ("is", "it") if len(low) == 1 else ("are", "them")
        yield (
            f"{page_ranges(low)} {verb} hard to read (confidence {min(low.values()):.2f}): check the text, or scan"
            f" {them} again at 300 dpi"
        )


def no_text_note(pages: Sequence[int], addition: str = "") -> str:
    """Return a warning about pages without text, followed by `addition`."""
    have, need = ("has", "it needs") if len(pages) == 1 else ("have", "they need")
    return f"{page_ranges(pages)} {have} no text: {need} OCR{addition}"


def unread_pictures_note(pictures: Sequence[int], remedy: str) -> str:
    """Return a warning about pictures that OCR could read; `remedy` says how to have it read them."""
    verb, them = ("was", "it") if len(pictures) == 1 else ("were", "them")
    return f"{pluralize(len(pictures), 'picture')} {verb} not read: {remedy} to have {them} read by OCR"


def picture_notes(scans: OcrPages) -> Iterator[str]:
    """Yield warnings about the pictures of an Office file or an email that OCR has read, or could not read."""
    scores = [mean_confidence(page["boxes"]) for page in scans.pages.values() if page["boxes"]]
    if scores:
        verb = "was" if len(scores) == 1 else "were"
        mean = sum(scores) / len(scores)
        yield f"{pluralize(len(scores), 'picture')} with text {verb} read by OCR (confidence {mean:.2f})"
    if low := [score for score in scores if score < LOW_CONFIDENCE]:
        verb = "is" if len(low) == 1 else "are"
        yield f"{pluralize(len(low), 'picture')} {verb} hard to read (confidence {min(low):.2f}): check the text"
    yield from (f"picture {note.removeprefix('page ')}" for note in scans.failed)


def covered_note(pages: Sequence[int], addition: str = "") -> str:
    """Return a warning about pages that a picture covers, followed by `addition`."""
    are, need = ("is a picture", "it needs") if len(pages) == 1 else ("are pictures", "they need")
    return f"{page_ranges(pages)} {are} with hardly any text: {need} OCR{addition}"


def unreadable_notes(pages: Sequence[int], lost: Mapping[int, int]) -> Iterator[str]:
    """Yield warnings about letters without a Unicode character.

    Args:
        pages: The pages whose text consists of such letters, and was left out.
        lost: Number of such letters in the text of other pages.
    """
    reason = "the fonts do not say which letters they show"
    if pages:
        yield f"the text of {page_ranges(pages)} was left out: {reason}"
    if lost:
        number = pluralize(sum(lost.values()), "letter")
        yield (
            f"{number} on {page_ranges(lost)} cannot be decoded: {reason}; try the setting pdf_engine: pypdf, or save"
            " the file again as PDF from the program that made it"
        )


def page_ranges(pages: Iterable[int]) -> str:
    """Return page numbers as ranges.

    Example:
        >>> page_ranges([3, 4, 5, 9])
        'pages 3–5, 9'
    """
    ranges: list[list[int]] = []
    for page in sorted(pages):
        if ranges and ranges[-1][1] == page - 1:
            ranges[-1][1] = page
        else:
            ranges.append([page, page])
    descriptions = [f"{first}" if first == last else f"{first}–{last}" for first, last in ranges[:MAX_RANGES]]
    more = f" and {len(ranges) - MAX_RANGES} more ranges" if len(ranges) > MAX_RANGES else ""
    word = "page" if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else "pages"
    return f"{word} {', '.join(descriptions)}{more}"


# ---- Layout ----------------------------------------------------------------------------------------------------------


def page_content(page: Page) -> PageContent:
    """Return the lines of a page in reading order."""
    scale = 72.0 / page["dpi"]
    cells = [cell for row in _rows(_cells(page["boxes"], scale, page["height"])) for cell in row]
    _set_font_sizes(cells)
    runs = [Run(cell.text, cell.x0, cell.x1, cell.y, cell.size, SPACE * cell.size, cell.angle) for cell in cells]
    return PageContent(page_lines(runs), True, (0.0, page["height"] * scale))


def with_own_lines(content: PageContent, own: Sequence[Line]) -> PageContent:
    """Return a scanned page with the page's own lines, such as a stamp, in place of similar lines that OCR found.

    Lines that OCR did not find are added at the beginning.
    """
    lines = list(content.lines)
    missing: list[Line] = []
    for line in own:
        matcher = SequenceMatcher(b=line.text.casefold(), autojunk=False)
        at = next((at for at, other in enumerate(lines) if _is_similar(matcher, other.text)), None)
        if at is None:
            missing.append(replace(line, y=math.nan))
        else:
            lines[at] = replace(lines[at], text=line.text)
    return content._replace(lines=[*missing, *lines])


def _is_similar(matcher: SequenceMatcher[str], text: str) -> bool:
    matcher.set_seq1(text.casefold()[:MAX_OWN])
    return matcher.real_quick_ratio() >= SIMILAR and matcher.quick_ratio() >= SIMILAR and matcher.ratio() >= SIMILAR


def mean_confidence(boxes: Sequence[Sequence[Any]]) -> float:
    """Return the mean confidence of the characters in boxes, or 0 if there are none."""
    letters = sum(len(text) for text, *_ in boxes)
    return sum(len(text) * score for text, score, *_ in boxes) / letters if letters else 0.0


def _cells(boxes: Sequence[Sequence[Any]], scale: float, height: float) -> list[Cell]:
    """Convert text boxes to cells in points, and rotate them to correct the skew of the page.

    The size of a cell is the height of its box.
    """
    skew = _skew(boxes)
    along, across = math.cos(math.radians(skew)), math.sin(math.radians(skew))
    out = []
    for text, _score, *corners in boxes:
        points = [
            ((x * along + y * across) * scale, (height - y * along + x * across) * scale)
            for x, y in zip(corners[::2], corners[1::2], strict=True)
        ]
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = points
        wide = max(math.hypot(bx - ax, by - ay), 1.0)
        high = max(math.hypot(dx - ax, dy - ay), 1.0)
        x0, x1, low = min(ax, dx), max(bx, cx), (cy + dy) / 2
        if high >= VERTICAL * wide and len(text) > 1:
            out.append(Cell(text, min(ay, dy), max(ay, dy), -x1, wide, 90))
        else:
            out.append(Cell(text, x0, x1, low + BASELINE * high, high))
    return out


def _skew(boxes: Sequence[Sequence[Any]]) -> float:
    """Return the skew in degrees: the angle at which the ends of the boxes fall on the fewest lines.

    A single short box is not enough to measure the angle, but a table row with several short boxes is.
    """
    ends: list[tuple[float, float]] = []
    heights: list[float] = []
    for _text, _score, x0, y0, x1, y1, x2, y2, x3, y3 in boxes:
        if abs(y3 - y0) < VERTICAL * abs(x1 - x0):
            ends += (((x0 + x3) / 2, (y0 + y3) / 2), ((x1 + x2) / 2, (y1 + y2) / 2))
            heights.append(abs(y3 - y0))
    if len(heights) < MIN_SKEWED:
        return 0.0
    step = max(median(heights) / 4, 1.0)

    def levelness(degrees: float) -> tuple[int, float]:
        slope = math.tan(math.radians(degrees))
        levels = Counter((half, round((y - x * slope) / step + half / 2)) for x, y in ends for half in (0, 1))
        return sum(number * number for number in levels.values()), -abs(degrees)

    return max((tenths / 10 for tenths in range(-10 * MAX_SKEW, 10 * MAX_SKEW + 1)), key=levelness)


def _set_font_sizes(cells: Sequence[Cell]) -> None:
    """Replace the height of each cell with a font size, which is the same for cells of about the same height."""
    rest = sorted(cells, key=lambda cell: cell.size)
    while rest:
        usual = median_low(cell.size for cell in rest for _ in cell.text)
        alike = [cell for cell in rest if usual / SAME_SIZE <= cell.size <= usual * SAME_SIZE]
        rest = [cell for cell in rest if not usual / SAME_SIZE <= cell.size <= usual * SAME_SIZE]
        for cell in alike:
            cell.size = FONT_SIZE * usual


def _rows(boxes: Sequence[Cell]) -> list[Row]:
    """Return the boxes in rows from top to bottom. If prose is set in columns, return one column after another."""
    gap = _gap(boxes)
    if gap is None:
        return _by_height(boxes)
    left, right, across = _sides(boxes, gap)
    out: list[Row] = []
    top = math.inf
    for heading in [*sorted(across, key=lambda box: -box.y), None]:
        bottom = -math.inf if heading is None else heading.y
        for side in (left, right):
            out += _rows([box for box in side if bottom < box.y <= top])
        if heading is not None:
            out.append([heading])
            top = bottom
    return out


def _by_height(boxes: Iterable[Cell]) -> list[Row]:
    rows: list[Row] = []
    for box in sorted(boxes, key=lambda box: (box.angle, -box.y)):
        row = rows[-1] if rows else []
        if row and row[0].angle == box.angle and abs(row[-1].y - box.y) <= 0.4 * min(row[-1].size, box.size):
            row.append(box)
        else:
            rows.append([box])
    return [sorted(row, key=lambda box: box.x0) for row in rows]


def _gap(boxes: Sequence[Cell]) -> float | None:
    """Return the x position that divides two columns of prose, or None if there are no such columns."""
    prose = [box for box in boxes if box.angle == 0 and _is_prose(box.text)]
    best, most = None, 0.0
    for x in sorted({box.x1 for box in prose}):
        left, right, across = _sides(prose, x)
        lines = min(len(left), len(right))
        if lines < MIN_COLUMN_LINES or len(across) > MAX_CROSSING * lines or lines - len(across) <= most:
            continue
        if _is_filled(left) and _is_filled(right):
            best, most = x, lines - len(across)
    return best


def _is_filled(column: Sequence[Cell]) -> bool:
    """Return whether most lines fill most of the width of their column, unlike the lines of a table."""
    width = max(cell.x1 for cell in column) - min(cell.x0 for cell in column)
    return median(cell.x1 - cell.x0 for cell in column) >= FILLED * width


def _sides(boxes: Sequence[Cell], x: float) -> tuple[list[Cell], list[Cell], list[Cell]]:
    """Return the boxes to the left of `x`, the boxes to the right of `x`, and the boxes that cross `x`."""
    sides: tuple[list[Cell], list[Cell], list[Cell]] = [], [], []
    for box in boxes:
        slack = 0.3 * box.size
        sides[0 if box.x1 <= x + slack else 1 if box.x0 >= x - slack else 2].append(box)
    return sides


def _is_prose(text: str) -> bool:
    words = sum(word[0].isalpha() for word in text.split())
    return words >= MIN_WORDS or sum(ord(char) >= 0x2E80 for char in text) >= 2 * MIN_WORDS
