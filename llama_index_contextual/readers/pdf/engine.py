"""What the engines that parse PDFs return: pieces of text on a page, and their interface."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

# ---- Pieces of text --------------------------------------------------------------------------------------------------


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


PdfEngine = Literal["pypdf", "pdfium"]

MIN_PATHS = 100  # on a page without text, fewer paths are frames and backgrounds, more may be letters
WRONG_PASSWORD = "the PDF is encrypted, and the password given for it does not open it: give the right one"
NO_PASSWORD = "the PDF is encrypted: give its password"

_PROGRAM = re.compile(r"(?i)microsoft (?:office )?(?:word|powerpoint|excel) - ")
_NO_TITLE = re.compile(
    r"(?i)(?:untitled|unnamed|no title|title|document|presentation|slide|layout|print|null|none|unknown)[\s\d._-]*"
    r"|.*\.(?:docx?|odt|rtf|pptx?|xlsx?|pdf|indd|qxd|tex|dvi|ps|txt|html?|p65|fm)"
    r"|(?:file|https?):.*|[A-Za-z]:\\.*|\S*/\S*"
)
_RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufefc]")


class OutlineEntry(NamedTuple):
    """A bookmark.

    Attributes:
        title: Title in the outline.
        level: Level in the outline, from 1.
        page: Index of the page that it points to, from 0.
        top: Position on that page, in points from the bottom, or None.
    """

    title: str
    level: int
    page: int
    top: float | None = None


class PageContent(NamedTuple):
    """One page.

    Attributes:
        lines: The lines in reading order.
        span: The lower and the upper edge of the page, in the units of `Line.y`.
        is_drawn: Whether images or many paths are drawn; such a page without text is a scan.
    """

    lines: Sequence[Line]
    is_drawn: bool
    span: tuple[float, float]


class PdfSource(Protocol):
    """An open PDF. Methods raise `ReadError` if something cannot be read."""

    @property
    def page_count(self) -> int:
        """Number of pages."""

    def page(self, index: int) -> PageContent:
        """Return the page with an index, from 0."""

    def title(self) -> str | None:
        """Return the title in the file's metadata, or None."""

    def labels(self) -> list[str]:
        """Return the page labels, one per page; empty if the file has none."""

    def outline(self) -> list[OutlineEntry]:
        """Return the bookmarks in order."""

    def close(self) -> None:
        """Close the file."""


def sensible_title(title: str | None) -> str | None:
    """Remove the name of a program from a title; return None for a file name, a path, "Untitled" and the like."""
    text = _PROGRAM.sub("", " ".join((title or "").split()))
    if not any(char.isalpha() for char in text) or "\ufffd" in text or len(text) > 300 or _NO_TITLE.fullmatch(text):
        return None
    return text


def is_right_to_left(text: str) -> bool:
    """Return whether a text has letters of a script that is written from right to left."""
    return _RIGHT_TO_LEFT.search(text) is not None


def page_span(box: tuple[float, float, float, float], angle: int) -> tuple[float, float]:
    """Return the lower and the upper edge of a page, relative to the direction of its text.

    Args:
        box: Left, lower, right and upper edge of the page.
        angle: Direction of the text in degrees.
    """
    left, bottom, right, top = box
    along, across = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    heights = [y * along - x * across for x in (left, right) for y in (bottom, top)]
    return min(heights), max(heights)
