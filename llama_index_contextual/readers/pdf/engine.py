"""Interface of the engines that parse PDFs, and code that they share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from llama_index_contextual.readers.pdf.pieces import Line

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
