"""Find the lines of a PDF page that a passage occupies.

The reader rewrites the text of a page: it joins lines and hyphenated words, removes running headers and footers,
reorders columns and tables, and repairs garbled characters. The passage is therefore aligned with the characters that
pdfium extracts from the page. Only letters and digits are compared, and the order of lines and cells may differ.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import groupby, pairwise
from typing import NamedTuple

from llama_index_contextual.readers.pdf.scans import Page

ANCHORS = (24, 12, 6)
"""Minimum number of letters in an anchor, a piece of the text that is also on the page, for each pass of the search."""
MAX_REPEATS = 16
"""Maximum number of times that an anchor may occur on the page."""
MAX_GAP = 1_500
"""Length of the longest gap between anchors, in letters, that is searched for shorter matches."""
MARGIN = 40
"""Number of extra letters of the page that are compared with a gap next to an anchor."""
BRIDGE = 2
"""Maximum number of unmatched letters, such as a footnote reference, that do not interrupt a mark on a line."""
MIN_SHARE = 0.5
"""Minimum share of the letters in a gap that must match; otherwise, no match in the gap is used."""


Span = tuple[int, int]
"""Start and end of a part of a text."""


class Char(NamedTuple):
    """A character on a page and its box, with y growing downwards."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float


class Box(NamedTuple):
    """A rectangle on a page, with y growing downwards."""

    x0: float
    y0: float
    x1: float
    y1: float


def scan_chars(page: Page, size: tuple[float, float]) -> list[Char]:
    """Return the characters that OCR read on a page, spread evenly over the boxes of their lines.

    Args:
        page: The OCR result for the page. If the page was rotated anticlockwise before OCR, the boxes are rotated back.
        size: Width and height of the displayed page in points.
    """
    chars: list[Char] = []
    for text, _confidence, *edges in page["boxes"]:
        corners = [complex(x, y) for x, y in zip(edges[::2], edges[1::2], strict=True)]
        width, height = page["width"], page["height"]
        for _ in range(page.get("turns", 0)):
            corners = [height + 1j * corner for corner in corners]
            width, height = height, width
        upper_left, upper_right, lower_right, lower_left = corners
        sides = (upper_left, upper_right - upper_left), (lower_left, lower_right - lower_left)
        for at, sign in enumerate(text):
            ends = [start + side * (at + step) / len(text) for start, side in sides for step in (0, 1)]
            xs, ys = [end.real * size[0] / width for end in ends], [end.imag * size[1] / height for end in ends]
            chars.append(Char(sign, min(xs), min(ys), max(xs), max(ys)))
    return chars


def mark_span(chars: Sequence[Char], places: Sequence[int | None], span: Span) -> list[Box]:
    """Return the boxes on a page that cover a span of a passage, such as a sentence.

    Args:
        chars: The characters of the page.
        places: For each character of the passage, the index of the matching character on the page; from `align`.
        span: Start and end of the span in the passage.
    """
    return line_boxes(chars, {at for at in places[slice(*span)] if at is not None})


# ---- Alignment -------------------------------------------------------------------------------------------------------


def align(page: Sequence[str], text: str) -> list[int | None]:
    """For each character of the text, return the index of the matching character on the page, or None.

    Long equal pieces are matched first, then shorter pieces between them. Each character of the page is used once.

    Args:
        page: The characters of the page.
        text: The text.

    Example:
        >>> align(list("ﬁle A-\\nBC"), "file aBC")
        [0, 0, 1, 2, None, 4, 7, 8]
    """
    theirs, page_at = _letters(page)
    ours, text_at = _letters(text)
    matching = _Matching(ours, theirs)
    for length in ANCHORS:
        matching.add_anchors(length)
    matching.fill_gaps()
    places: list[int | None] = [None] * len(text)
    for at, place in enumerate(matching.places):
        if place is not None and places[text_at[at]] is None:
            places[text_at[at]] = page_at[place]
    return places


def _letters(text: Iterable[str]) -> tuple[str, list[int]]:
    """Return the letters and digits of the text in lower case and without accents, with their positions in the text."""
    letters: list[str] = []
    places: list[int] = []
    for at, char in enumerate(text):
        plain = char.lower() if char.isascii() else unicodedata.normalize("NFKD", char).casefold()
        for letter in plain:
            if letter.isalnum():
                letters.append(letter)
                places.append(at)
    return "".join(letters), places


class _Matching:
    """Matches between the letters of a text and the letters on a page.

    Attributes:
        places: Position on the page of each letter of the text, or None.
    """

    def __init__(self, text: str, page: str) -> None:
        self._text, self._page = text, page
        self.places: list[int | None] = [None] * len(text)
        self._used = bytearray(len(page))

    def add_anchors(self, length: int) -> None:
        """Match pieces of at least `length` letters with the longest equal pieces on the page.

        An anchor of the shortest length must be unique on the page, unless it continues the previous match.
        """
        on_page: dict[str, list[int]] = defaultdict(list)
        for at in range(len(self._page) - length + 1):
            on_page[self._page[at : at + length]].append(at)
        at, expected = 0, -1
        while at + length <= len(self._text):
            if (place := self.places[at]) is not None:
                at, expected = at + 1, place + 1
                continue
            places = on_page.get(self._text[at : at + length], [])
            if len(places) > MAX_REPEATS or (length == ANCHORS[-1] and len(places) > 1):
                places = [place for place in places if place == expected]
            sizes = [(self._equal(at, place), place == expected, place) for place in places]
            size, _, place = max(sizes, default=(0, False, 0))
            if size >= length:
                self._match(at, place, size)
            at += max(1, size)
            expected = place + size

    def _equal(self, at: int, place: int) -> int:
        """Return the number of equal, unmatched letters from the positions `at` in the text and `place` on the page."""
        size = 0
        for ours, theirs, match, is_used in zip(
            self._text[at:], self._page[place:], self.places[at:], self._used[place:], strict=False
        ):
            if ours != theirs or match is not None or is_used:
                break
            size += 1
        return size

    def _match(self, at: int, place: int, size: int) -> None:
        """Match a piece, and any equal, unmatched letters directly before it."""
        while at and place and self._text[at - 1] == self._page[place - 1]:
            if self.places[at - 1] is not None or self._used[place - 1]:
                break
            at, place, size = at - 1, place - 1, size + 1
        self.places[at : at + size] = range(place, place + size)
        self._used[place : place + size] = b"\1" * size

    def fill_gaps(self) -> None:
        """Match shorter pieces between, before and after anchors."""
        at = 0
        for is_gap, letters in groupby(self.places, key=lambda place: place is None):
            size = len(list(letters))
            start, at = at, at + size
            if is_gap and size <= MAX_GAP:
                self._fill(start, at)

    def _fill(self, start: int, end: int) -> None:
        before = self.places[start - 1] if start else None
        after = self.places[end] if end < len(self._text) else None
        room = end - start + MARGIN
        first = 0 if before is None else before + 1
        last = len(self._page) if after is None else after
        windows = [(first, last)]
        if last - first > 2 * MAX_GAP or last < first:
            windows = [(first, first + room)] if before is not None else []
            windows += [(max(0, last - room), last)] if after is not None else []
        best: list[tuple[int, int, int]] = []
        for first, last in windows:
            # Replace letters that are already matched with a character that the text does not contain.
            page = "".join(
                " " if is_used else letter
                for letter, is_used in zip(self._page[first:last], self._used[first:last], strict=True)
            )
            matcher = SequenceMatcher(None, self._text[start:end], page, autojunk=False)
            blocks = [
                (start + block.a, first + block.b, block.size)
                for block in matcher.get_matching_blocks()
                if block.size >= min(2, end - start)
            ]
            best = max(best, blocks, key=lambda blocks: sum(size for _, _, size in blocks))
        if sum(size for _, _, size in best) >= MIN_SHARE * (end - start):
            for at, place, size in best:
                self._match(at, place, size)


# ---- Boxes -----------------------------------------------------------------------------------------------------------


def line_boxes(chars: Sequence[Char], indexes: set[int]) -> list[Box]:
    """Return the boxes of marked characters from top to bottom, with adjacent boxes on a line joined.

    Args:
        chars: The characters of the page in pdfium's order.
        indexes: Indexes of characters.
    """
    boxes: list[Box] = []
    pending: list[int] = []  # unmarked characters since the last marked character
    last: int | None = None
    for at, char in enumerate(chars):
        if not char.text.strip() or char.x1 <= char.x0 or char.y1 <= char.y0:
            continue
        if at not in indexes:
            if last is not None:
                pending.append(at)
            continue
        letters = sum(chars[index].text.isalnum() for index in pending)
        steps = [] if last is None else pairwise(chars[index] for index in (last, *pending, at))
        if last is not None and letters <= BRIDGE and all(_on_one_line(char, next_char) for char, next_char in steps):
            boxes[-1] = _union(boxes[-1], *(chars[index] for index in pending), char)
        else:
            boxes.append(Box(char.x0, char.y0, char.x1, char.y1))
        last, pending = at, []
    boxes.sort(key=lambda box: (box.y0, box.x0))
    for at, (box, below) in enumerate(pairwise(boxes)):
        is_below = below.y0 > (box.y0 + box.y1) / 2 and below.x0 < box.x1 and box.x0 < below.x1
        if is_below:  # in many fonts, glyph boxes extend into the next line
            boxes[at] = box._replace(y1=min(box.y1, below.y0))
    return boxes


def _on_one_line(char: Char, next_char: Char) -> bool:
    """Return whether one character may follow the other on the same line, horizontally or vertically."""
    height = min(char.y1 - char.y0, next_char.y1 - next_char.y0)
    if min(char.y1, next_char.y1) - max(char.y0, next_char.y0) >= 0.5 * height:
        return True
    width = min(char.x1 - char.x0, next_char.x1 - next_char.x0)
    gap = max(char.y0, next_char.y0) - min(char.y1, next_char.y1)
    is_above = min(char.x1, next_char.x1) - max(char.x0, next_char.x0) >= 0.5 * width
    return is_above and gap <= 0.5 * height


def _union(box: Box, *shapes: Box | Char) -> Box:
    return Box(
        min(box.x0, *(shape.x0 for shape in shapes)),
        min(box.y0, *(shape.y0 for shape in shapes)),
        max(box.x1, *(shape.x1 for shape in shapes)),
        max(box.y1, *(shape.y1 for shape in shapes)),
    )
