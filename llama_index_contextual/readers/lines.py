"""A line of text on a page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a page.

    Attributes:
        text: The text without surrounding white space.
        y: Baseline in points, increasing upwards; NaN if unknown.
        size: Height of the font.
        cells: Number of separate pieces of text on the line; more than one in a table row.
        x0: Start in points, along the line.
        x1: End in points.
        bold: Whether most of the text is bold.
        start: Offset of the first character in the document.
        end: Separator before the next line: a line feed, or a space within a paragraph.
        spaced: Whether the file stores a space between the previous line and this line.
        pieces: Start and end in points, and number of characters, of each cell; the text has a space between them.
        upright: Whether the line runs in the main direction of the page, unlike a stamp in the margin or a watermark.
    """

    text: str
    y: float = math.nan
    size: float = 0.0
    cells: int = 1
    x0: float = 0.0
    x1: float = 0.0
    bold: bool = False
    start: int = 0
    end: str = "\n"
    spaced: bool = False
    upright: bool = True
    pieces: tuple[tuple[float, float, int], ...] = ()


NO_SPACE = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]"
)
"""Letters and punctuation of scripts without spaces between words, such as Chinese, Thai and Khmer."""

HANGUL = re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff]")
"""Korean letters: there are spaces between words, but lines often end inside words."""


def joint(first: str, second: str) -> str:
    """Return the separator between two lines of a paragraph: a space, or nothing in scripts without spaces.

    Example:
        >>> joint("the rent", "is due"), joint("遅延", "損害金")
        (' ', '')
    """
    return "" if NO_SPACE.match(first[-1:]) or NO_SPACE.match(second[:1]) else " "


def joined(lines: Iterable[str]) -> str:
    """Join the lines of a paragraph or a table cell and normalise the white space; hyphens are kept."""
    out = ""
    for line in (" ".join(line.split()) for line in lines):
        if out and line:
            is_hyphenated = out[-1] in "-\u2010" and len(out) > 1 and out[-2].isalpha() and line[0].islower()
            out += ("" if is_hyphenated else joint(out, line)) + line
        else:
            out += line
    return out
