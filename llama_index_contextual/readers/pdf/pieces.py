"""Pieces of text on a page: runs, cells and lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Run(NamedTuple):
    """Text drawn by one operator.

    Attributes:
        text: The text.
        x0: Start in points, along the direction of the text.
        x1: End in points.
        y: Baseline in points, across the direction of the text, growing upwards.
        size: Height of the font.
        space: Width of a space.
        angle: Direction of the text in degrees; 0 for upright text.
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
    """Adjacent text on one line; `bold` is the number of its characters in bold."""

    text: str
    x0: float
    x1: float
    y: float
    size: float
    angle: int = 0
    bold: int = 0


Row = list[Cell]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a page.

    Attributes:
        text: The text without surrounding white space.
        y: Baseline in points, growing upwards; NaN if unknown.
        size: Height of the font.
        cells: Number of separate pieces on the line; more than one in a table row.
        x0: Start in points, along the line.
        x1: End in points.
        bold: Whether most of its text is in bold.
    """

    text: str
    y: float = math.nan
    size: float = 0.0
    cells: int = 1
    x0: float = 0.0
    x1: float = 0.0
    bold: bool = False


def beside(one: Cell, other: Cell) -> bool:
    """Return whether two cells are on the same baseline and do not overlap."""
    return (
        one.angle == other.angle
        and abs(one.y - other.y) <= 0.5 * min(one.size, other.size)
        and (one.x1 <= other.x0 + 0.5 * one.size or other.x1 <= one.x0 + 0.5 * one.size)
    )
