"""Find the lines of a PDF page that a passage occupies.

The reader rewrites the text of a page: it joins lines and hyphenated words, removes running headers and footers,
reorders columns and tables, and repairs letters. The passage is therefore aligned with the characters that pdfium
extracts from the page. Only letters and digits are compared, and the order of lines and cells may differ.
"""

from __future__ import annotations

import unicodedata
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

ANCHORS = (24, 12, 6)
"""Minimum lengths of equal pieces, in letters, for each pass of the search; pieces in the last pass must be unique."""
MAX_REPEATS = 16
"""A piece that occurs more often on the page is not an anchor."""
MAX_GAP = 1_500
"""Maximum number of letters between two anchors that are compared one by one."""
MARGIN = 40
"""Number of additional letters of the page that are compared before and after an anchor."""
BRIDGE = 2
"""Number of unmatched letters within a line that do not interrupt a mark, such as a footnote mark."""
MIN_SHARE = 0.5
"""Share of the letters between two anchors that must match for any of these matches to be used."""


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


def mark_words(chars: Sequence[Char], places: Sequence[int | None], spans: Iterable[tuple[int, int]]) -> list[Box]:
    """Return the boxes of words of a passage on a page.

    Args:
        chars: The characters of the page.
        places: Index of the page's character for each character of the passage, from `align`.
        spans: Start and end of each word in the passage.
    """
    boxes = []
    for start, end in spans:
        boxes += line_boxes(chars, {at for at in places[start:end] if at is not None})
    return boxes


# ---- Alignment -------------------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """Equal letters of the text and the page."""

    length: int
    text: int
    page: int


def align(page: Sequence[str], text: str) -> list[int | None]:
    """Return the index of the page's character for each character of the text, or None for characters without a match.

    Long equal pieces are assigned first, then shorter pieces between them. Each character of the page is used once.

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
        if len(ours) >= length:
            matching.add_anchors(length, unique=length == ANCHORS[-1])
    matching.fill_gaps()
    places: list[int | None] = [None] * len(text)
    for at, place in enumerate(matching.places):
        if place is not None and places[text_at[at]] is None:
            places[text_at[at]] = page_at[place]
    return places


def _letters(text: Iterable[str]) -> tuple[str, list[int]]:
    """Return the letters and digits of the text, without case and accents, and the index of the character of each."""
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
    """Letters of the text that have been matched on a page.

    Attributes:
        places: Position on the page of each letter of the text, or None.
    """

    def __init__(self, text: str, page: str) -> None:
        self._text, self._page = text, page
        self.places: list[int | None] = [None] * len(text)
        self._used = bytearray(len(page))

    def add_anchors(self, length: int, *, unique: bool) -> None:
        """Match equal pieces of at least `length` letters, the longest first.

        Args:
            length: Minimum number of letters.
            unique: Whether a piece must occur only once in the unmatched parts of the text and of the page.
        """
        blocks = sorted(self._blocks(length, unique=unique))
        while blocks:
            equal = [blocks.pop()]
            while blocks and blocks[-1].length == equal[0].length:
                equal.append(blocks.pop())
            # For repeated pieces, prefer those next to letters that are already matched.
            for block in sorted(equal, key=self._distance):
                free = self._free_part(block)
                if free == block:
                    self._match(block)
                elif free.length >= length:
                    insort(blocks, free)

    def fill_gaps(self) -> None:
        """Match shorter pieces between, before and after anchors."""
        for start, end in self._gaps():
            before = self.places[start - 1] if start else None
            after = self.places[end] if end < len(self._text) else None
            size = end - start
            windows = []
            if before is not None and after is not None and 0 <= after - before - 1 <= 2 * size + MAX_GAP // 2:
                windows.append((before + 1, after))
            else:
                if before is not None:
                    windows.append((before + 1, before + 1 + size + MARGIN))
                if after is not None:
                    windows.append((after - size - MARGIN, after))
            if before is None and after is None:
                windows.append((0, len(self._page)))
            if size <= MAX_GAP:
                self._fill(start, end, windows)

    def _fill(self, start: int, end: int, windows: Sequence[tuple[int, int]]) -> None:
        best: list[_Block] = []
        for first, last in windows:
            first, last = max(first, 0), min(last, len(self._page))
            if last - first > 2 * MAX_GAP:
                continue
            # Replace used letters with a character that the text does not contain.
            page = "".join(" " if self._used[at] else self._page[at] for at in range(first, last))
            matcher = SequenceMatcher(None, self._text[start:end], page, autojunk=False)
            least = min(2, end - start)
            blocks = [
                _Block(size, start + at, first + place)
                for at, place, size in matcher.get_matching_blocks()
                if size >= least
            ]
            best = max(best, blocks, key=lambda blocks: sum(block.length for block in blocks))
        if sum(block.length for block in best) >= MIN_SHARE * (end - start):
            for block in best:
                self._match(block)

    def _blocks(self, length: int, *, unique: bool) -> Iterator[_Block]:
        """Yield the longest equal pieces of at least `length` free letters."""
        text, page = self._text, self._page
        limit = 1 if unique else MAX_REPEATS
        on_page: dict[str, list[int]] = defaultdict(list)
        for at in _free_windows(self._used, length):
            on_page[page[at : at + length]].append(at)
        taken = bytearray(place is not None for place in self.places)
        starts = list(_free_windows(taken, length))
        in_text: dict[str, int] = defaultdict(int)
        for at in starts if unique else ():
            in_text[text[at : at + length]] += 1
        ends: dict[int, int] = {}  # end in the text of the last block on a diagonal
        for at in starts:
            piece = text[at : at + length]
            places = on_page.get(piece, ())
            if len(places) > limit or (unique and in_text[piece] > 1):
                continue
            for place in places:
                if ends.get(place - at, -1) > at:
                    continue
                block = self._extended(_Block(length, at, place), taken)
                ends[place - at] = block.text + block.length
                yield block

    def _extended(self, block: _Block, taken: bytearray) -> _Block:
        """Return the block extended by the equal letters before and after it that are free."""
        text, page, used = self._text, self._page, self._used
        start, end, shift = block.text, block.text + block.length, block.page - block.text
        while start and start + shift and text[start - 1] == page[start + shift - 1]:
            if taken[start - 1] or used[start + shift - 1]:
                break
            start -= 1
        while end < len(text) and end + shift < len(page) and text[end] == page[end + shift]:
            if taken[end] or used[end + shift]:
                break
            end += 1
        return _Block(end - start, start, start + shift)

    def _free_part(self, block: _Block) -> _Block:
        """Return the longest part of a block whose letters are not yet matched."""
        best, size = _Block(0, 0, 0), 0
        for at in range(block.length):
            is_free = self.places[block.text + at] is None and not self._used[block.page + at]
            size = size + 1 if is_free else 0
            if size > best.length:
                best = _Block(size, block.text + at + 1 - size, block.page + at + 1 - size)
        return best

    def _match(self, block: _Block) -> None:
        for at in range(block.length):
            if self.places[block.text + at] is None and not self._used[block.page + at]:
                self.places[block.text + at] = block.page + at
                self._used[block.page + at] = 1

    def _distance(self, block: _Block) -> int:
        """Return the distance from the block to the position on the page that its neighbours in the text suggest."""
        distances = []
        for at in range(block.text - 1, max(block.text - MAX_GAP, -1), -1):
            if (place := self.places[at]) is not None:
                distances.append(abs((block.page - place) - (block.text - at)))
                break
        for at in range(block.text + block.length, min(block.text + block.length + MAX_GAP, len(self._text))):
            if (place := self.places[at]) is not None:
                distances.append(abs((place - block.page) - (at - block.text)))
                break
        return min(distances, default=len(self._page))

    def _gaps(self) -> list[tuple[int, int]]:
        gaps: list[tuple[int, int]] = []
        for at, place in enumerate(self.places):
            if place is not None:
                continue
            if gaps and gaps[-1][1] == at:
                gaps[-1] = (gaps[-1][0], at + 1)
            else:
                gaps.append((at, at + 1))
        return gaps


def _free_windows(taken: bytearray, length: int) -> Iterator[int]:
    """Yield the starts of all windows of `length` in which no letter is taken."""
    last = -1
    for at, is_taken in enumerate(taken):
        if is_taken:
            last = at
        if at - last >= length:
            yield at - length + 1


# ---- Boxes -----------------------------------------------------------------------------------------------------------


def line_boxes(chars: Sequence[Char], marked: set[int]) -> list[Box]:
    """Return the boxes of marked characters from top to bottom, with adjacent boxes on a line joined.

    Args:
        chars: The characters of the page in pdfium's order.
        marked: Indexes of characters.
    """
    boxes: list[Box] = []
    pending: list[int] = []  # unmarked characters since the last marked one
    last: int | None = None
    for at, char in enumerate(chars):
        if not char.text.strip() or char.x1 <= char.x0 or char.y1 <= char.y0:
            continue
        if at not in marked:
            if last is not None:
                pending.append(at)
            continue
        letters = sum(chars[index].text.isalnum() for index in pending)
        if (
            last is not None
            and letters <= BRIDGE
            and all(
                _on_one_line(chars[one], chars[two]) for one, two in zip([last, *pending], [*pending, at], strict=True)
            )
        ):
            boxes[-1] = _union(boxes[-1], *(chars[index] for index in pending), char)
        else:
            boxes.append(Box(char.x0, char.y0, char.x1, char.y1))
        last, pending = at, []
    boxes.sort(key=lambda box: (box.y0, box.x0))
    for at, (box, following) in enumerate(pairwise(boxes)):
        if following.y0 > (box.y0 + box.y1) / 2:  # the glyph boxes of many fonts reach into the next line
            boxes[at] = box._replace(y1=min(box.y1, following.y0))
    return boxes


def _on_one_line(one: Char, other: Char) -> bool:
    """Return whether a character may follow another one on the same line, horizontally or vertically."""
    height = min(one.y1 - one.y0, other.y1 - other.y0)
    if min(one.y1, other.y1) - max(one.y0, other.y0) >= 0.5 * height:
        return True
    width = min(one.x1 - one.x0, other.x1 - other.x0)
    gap = max(one.y0, other.y0) - min(one.y1, other.y1)
    is_above = min(one.x1, other.x1) - max(one.x0, other.x0) >= 0.5 * width
    return is_above and gap <= 0.5 * height


def _union(box: Box, *others: Box | Char) -> Box:
    return Box(
        min(box.x0, *(other.x0 for other in others)),
        min(box.y0, *(other.y0 for other in others)),
        max(box.x1, *(other.x1 for other in others)),
        max(box.y1, *(other.y1 for other in others)),
    )
