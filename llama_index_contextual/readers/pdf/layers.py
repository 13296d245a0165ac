"""Repair text that pdfium decodes from a broken text layer.

- The letters of words are placed one by one, too far apart for their font, so that pdfium inserts spaces inside words:
  "Th e Metropoli s".
- A font without a Unicode mapping: the characters are numbers of glyphs, or in the private use area, as old-style
  digits, small capitals and ligatures of some fonts are.
- An accent is drawn over its letter as a character of its own: "M¨uller".

All functions keep the length of the text, because pdfium is asked for positions by the index of a character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

Box = tuple[float, float, float, float]
"""Left, lower, right and upper edge of a character, in points."""

MIN_ALONE = 3  # minimum number of words of one letter in a line whose letters may be apart
MIN_ALONE_SHARE = 0.2  # minimum share of such words
MAX_WORD = 12  # maximum number of letters per space in a line that stores the spaces between words
MAX_LETTER_GAP = 0.7  # times the height of the letters: a wider gap is between words, or between cells of a table
MIN_REGULAR = 0.5  # minimum share of the letters that have the usual distance
SAME_DISTANCE = 0.1  # times the height of the letters, or the usual distance
WORD_STEP = 1.5  # times the usual distance from letter to letter: a longer step is a space
WORD_GAP = 0.15  # times the height of the letters: a gap that is wider than usual by so much is a space
SPACE_GLYPH = (
    "\x03"  # number of the space in most TrueType fonts, whose glyphs begin with the printable ASCII characters
)
FIRST_GLYPH, LAST_GLYPH = 0x03, 0x61
TO_ASCII = 29  # difference between a printable ASCII character and the number of its glyph
MIN_SPACES = 1 / 16  # minimum share of spaces in text that consists of such numbers
MAX_UNKNOWN = 0.5  # a page with a higher share of characters without Unicode cannot be read

_ALONE = re.compile(r"(?<!\S)[^\W\d_](?!\S)")
_ALONE_IN_A_ROW = re.compile(r"(?<!\S)[^\W\d_](?:\s{1,2}[^\W\d_]){3}(?!\S)")
_PRIVATE = re.compile("[\uf021-\uf07e\uf0a1-\uf0ff]")
_VISIBLE = re.compile(r"\S")
_FROM_PRIVATE = {0xF000 + code: code for code in (*range(0x20, 0x7F), *range(0xA0, 0x100))}
_UNKNOWN = re.compile("[\\x00\\x01\\x03-\\x08\\x0e-\\x1f\\x7f-\\x9f\ufffd\uffff\ue000-\uf8ff]|[\\x02\ufffe]{2,}")
_WITHOUT_UNICODE = r"[\x01\x03-\x08\x0e-\x1f\ufffd\ue000-\uefff]"
_LOST = re.compile(  # characters between U+F000 and U+F8FF next to a word may be bullets or signs
    rf"(?<=[^\W_]|[\ue000-\uefff]){_WITHOUT_UNICODE}|{_WITHOUT_UNICODE}(?=[^\W_]|[\ue000-\uefff])"
    r"|(?<=[^\W_])[\uf000-\uf8ff](?=[^\W_])"
)
_GLYPHS = {
    0xF001: "ﬁ",
    0xF002: "ﬂ",
    **{0xF730 + digit: str(digit) for digit in range(10)},  # old-style digits
    **{0xF761 + letter: chr(0x41 + letter) for letter in range(26)},  # small capitals
}
_NAMED = re.compile("(?<=[^\\W_])[\uf001\uf002]|[\uf001\uf002](?=[^\\W_])|[\uf730-\uf739\uf761-\uf77a]")
_ACCENTS = {
    "`": "\u0300",
    "´": "\u0301",
    "ˆ": "\u0302",
    "˜": "\u0303",
    "¯": "\u0304",
    "˘": "\u0306",
    "˙": "\u0307",
    "¨": "\u0308",
    "˚": "\u030a",
    "˝": "\u030b",
    "ˇ": "\u030c",
    "¸": "\u0327",
}
_ACCENT = re.compile(f"[{''.join(_ACCENTS)}]")
NOTHING = "\ufeff"
"""Takes the place of an accent or of the second half of a character, and is removed from the text of lines."""


def decoded(text: str, font_of: Callable[[int], object]) -> str:
    """Return the text with characters of the private use area and numbers of glyphs replaced by what they show.

    Args:
        text: The characters of a page.
        font_of: Function that returns the font of the character with the given index.
    """
    text = _NAMED.sub(lambda match: _GLYPHS[ord(match[0])], text)
    if _PRIVATE.search(text) and 2 * len(_PRIVATE.findall(text)) > len(_VISIBLE.findall(text)):
        return text.translate(_FROM_PRIVATE)
    if text.count(SPACE_GLYPH) <= MIN_SPACES * len(text):
        return text
    fonts = {font_of(at) for at, char in enumerate(text) if char == SPACE_GLYPH}
    return "".join(
        chr(ord(char) + TO_ASCII) if FIRST_GLYPH <= ord(char) <= LAST_GLYPH and font_of(at) in fonts else char
        for at, char in enumerate(text)
    )


def unknown_share(text: str) -> float:
    """Return the share of the visible characters for which the file has no Unicode character."""
    if not _UNKNOWN.search(text):
        return 0.0
    return sum(map(len, _UNKNOWN.findall(text))) / max(len(_VISIBLE.findall(text)), 1)


def count_lost_letters(text: str) -> int:
    """Return the number of characters without Unicode next to a letter or digit, which thus are letters or digits."""
    return len(_LOST.findall(text)) if _UNKNOWN.search(text) else 0


def with_accents(text: str, box_of: Callable[[int], Box]) -> str:
    """Return the text with accents that are drawn over the letter before or after them combined with that letter.

    Args:
        text: The characters of a page.
        box_of: Function that returns the box of the character with the given index.
    """
    chars: list[str] = []
    for match in _ACCENT.finditer(text):
        at = match.start()
        for letter in (at + 1, at - 1):
            if not (0 <= letter < len(text) and text[letter].isalpha()):
                continue
            base = {"ı": "i", "ȷ": "j"}.get(text[letter], text[letter])
            combined = unicodedata.normalize("NFC", base + _ACCENTS[match[0]])
            if len(combined) == 1 and _is_over(box_of(at), box_of(letter)):
                chars = chars or list(text)
                chars[at], chars[letter] = NOTHING, combined
                if letter < at and text[at + 1 : at + 2] == " " and _are_adjacent(box_of, letter, at + 2, len(text)):
                    chars[at + 1] = NOTHING
                break
    return "".join(chars) if chars else text


def _is_over(accent: Box, letter: Box) -> bool:
    """Return whether the middle of an accent is over a letter."""
    return letter[0] < (accent[0] + accent[2]) / 2 < letter[2] and accent[1] < letter[3] and letter[1] < accent[3]


def _are_adjacent(box_of: Callable[[int], Box], one: int, other: int, length: int) -> bool:
    _left, bottom, right, top = box_of(one)
    return other < length and box_of(other)[0] - right < WORD_GAP * (top - bottom)


# ---- Spaces inside words ---------------------------------------------------------------------------------------------


def find_false_spaces(text: str, is_inserted: Callable[[int], bool], box_of: Callable[[int], Box]) -> set[int]:
    """Return the indexes at which pdfium has inserted a space or a line end inside a word.

    Only lines with many words of one letter are examined. If a line stores the spaces between its words, there are no
    others; otherwise, a space must be wider than the usual distance between two letters.

    Args:
        text: The characters of a page.
        is_inserted: Function that returns whether the file does not contain the character with the given index.
        box_of: Function that returns the box of the character with the given index.
    """
    out: set[int] = set()
    if _has_letters_apart(text):
        for line in _visual_lines(text, box_of):
            pieces = sum(after.at > before.at + 1 for before, after in pairwise(line)) + 1
            alone = sum(_is_alone(text, letter.at) for letter in line)
            if alone >= MIN_ALONE and alone >= MIN_ALONE_SHARE * pieces:
                out.update(_false_in_line(text, line, is_inserted))
    return out


def _has_letters_apart(text: str) -> bool:
    alone = len(_ALONE.findall(text))
    return alone >= MIN_ALONE and (alone >= MIN_ALONE_SHARE * len(text.split()) or bool(_ALONE_IN_A_ROW.search(text)))


def _is_alone(text: str, at: int) -> bool:
    return text[at].isalpha() and not text[at - 1 : at].strip() and not text[at + 1 : at + 2].strip()


class _Letter(NamedTuple):
    """A visible character: its index in the text, and its edges."""

    at: int
    left: float
    bottom: float
    right: float
    top: float


def _visual_lines(text: str, box_of: Callable[[int], Box]) -> Iterator[list[_Letter]]:
    line: list[_Letter] = []
    for match in _VISIBLE.finditer(text):
        letter = _Letter(match.start(), *box_of(match.start()))
        height = letter.top - letter.bottom
        if line and (abs(letter.bottom - line[-1].bottom) > 0.3 * height or letter.left < line[-1].left):
            yield line
            line = []
        line.append(letter)
    if line:
        yield line


def _false_in_line(text: str, line: Sequence[_Letter], is_inserted: Callable[[int], bool]) -> Iterator[int]:
    pairs = list(pairwise(line))
    height = median(letter.top - letter.bottom for letter in line)
    gaps = [after.left - before.right for before, after in pairs]
    steps = [after.left - before.left for before, after in pairs]
    spaces = [number for number, (before, after) in enumerate(pairs) if after.at > before.at + 1]
    inserted = [number for number in spaces if all(map(is_inserted, range(line[number].at + 1, line[number + 1].at)))]
    doubtful = [at for at in inserted if text[line[at].at].isalpha() and text[line[at + 1].at].isalpha()]
    stored = len(spaces) - len(inserted)
    if stored and stored * MAX_WORD >= len(line):
        yield from (line[at].at + 1 for at in doubtful if gaps[at] <= MAX_LETTER_GAP * height)
        return
    usual_step, usual_gap = median(steps), median(gaps)
    by_step = _regular_share(steps, usual_step, SAME_DISTANCE * abs(usual_step))
    by_gap = _regular_share(gaps, usual_gap, SAME_DISTANCE * height)
    if max(by_step, by_gap) < MIN_REGULAR:
        return
    for at in doubtful:
        is_space = steps[at] > WORD_STEP * usual_step if by_step > by_gap else gaps[at] > usual_gap + WORD_GAP * height
        if not is_space and gaps[at] <= MAX_LETTER_GAP * height:
            yield line[at].at + 1


def _regular_share(values: Sequence[float], usual: float, tolerance: float) -> float:
    return sum(abs(value - usual) <= tolerance for value in values) / len(values)
