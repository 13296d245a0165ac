"""The pieces of text that a page is made of, from what is drawn in one go up to a line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Run(NamedTuple):
    """Text drawn in one go.

    Attributes:
        text: As it is read.
        x0: Start, along the direction of the text, in points.
        x1: End.
        y: Baseline, across the direction of the text; grows upwards.
        size: Height of the font.
        space: Width of a space.
        angle: Direction of the text in degrees; 0 for upright text.
    """

    text: str
    x0: float
    x1: float
    y: float
    size: float
    space: float
    angle: int = 0


@dataclass(slots=True)
class Cell:
    """Text that stands together on one line."""

    text: str
    x0: float
    x1: float
    y: float
    size: float
    angle: int = 0


Row = list[Cell]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a page.

    Attributes:
        text: Without surrounding white space.
        y: Baseline in points, growing upwards; NaN where it is not known.
        size: Height of the font.
        cells: How many pieces stand apart on the line; more than one in a table row.
        x0: Start, in points along the line.
        x1: End.
    """

    text: str
    y: float = math.nan
    size: float = 0.0
    cells: int = 1
    x0: float = 0.0
    x1: float = 0.0


def beside(one: Cell, other: Cell) -> bool:
    """Whether two cells stand on one baseline without covering each other."""
    return (
        one.angle == other.angle
        and abs(one.y - other.y) <= 0.5 * min(one.size, other.size)
        and (one.x1 <= other.x0 + 0.5 * one.size or other.x1 <= one.x0 + 0.5 * one.size)
    )
