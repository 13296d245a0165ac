"""A line of text on a page."""

from __future__ import annotations

import math
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
