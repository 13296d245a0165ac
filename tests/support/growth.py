"""Measure how the processor time of a call grows with the length of its text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_EXPONENT = 1.3
_SMALL = (8, 11, 16, 22, 32, 45)  # close together, so that exponential growth is seen before it takes minutes
_SCREENED = (*_SMALL, 128, 512, 2_048, 4_096)
_SHORTEST = 0.02  # seconds that the text of a measurement takes at least
_LONGEST = 500_000  # characters; with longer texts, misses of the processor's cache would count
_ROUNDS = 5
_ATTEMPTS = 4  # before growth is reported: other work can delay the longest text


@dataclass(frozen=True)
class Run:
    """A text with a part that is repeated.

    Attributes:
        before: What the text begins with.
        repeated: The part that is repeated.
        after: What the text ends with.
    """

    before: str
    repeated: str
    after: str = ""

    def text(self, length: int) -> str:
        """Return a text whose repeated part has a given length."""
        return self.before + (self.repeated * (length // len(self.repeated) + 1))[:length] + self.after

    def __str__(self) -> str:
        return f"{self.before!r} + {self.repeated!r} * n + {self.after!r}"


def seconds(call: Callable[[Any], object], text: Any) -> float:
    """Return the processor time of one call."""
    started = time.process_time()
    call(text)
    return time.process_time() - started


def is_suspicious(call: Callable[[Any], object], run: Run, allowance: float = 1e-6, start: float = 2e-4) -> bool:
    """Return whether a call takes longer than a given time for each character of a text of up to 4,096 characters."""
    for length in _SCREENED:
        text = run.text(length)
        if _takes(call, text, start + allowance * length):
            return True
    return False


def exponent(call: Callable[[Any], object], run: Run) -> float:
    """Return the exponent of the growth of a call: 1 for linear growth, 2 for quadratic, infinity for exponential.

    The text is doubled until the call takes 20 ms. The exponent is determined from the best of five measurements of
    this length, half and a quarter of it. It is 0 if the call is faster for the longest text.
    """
    length = 8
    while not _takes(call, run.text(length), _SHORTEST):
        if length > _LONGEST:
            return 0.0
        length = int(length * 1.42) if length < 64 else 2 * length
    if length < 256:
        return math.inf
    value = math.inf
    for _ in range(_ATTEMPTS):
        times = [math.inf] * 3
        for _ in range(_ROUNDS):
            for shift in range(3):
                times[shift] = min(times[shift], seconds(call, run.text(length >> shift)))
            value = min(value, math.log2(times[0] / times[2]) / 2)
            if value < MAX_EXPONENT:
                return value
    return value


def _takes(call: Callable[[Any], object], text: Any, limit: float) -> bool:
    return seconds(call, text) > limit and seconds(call, text) > limit and seconds(call, text) > limit


# ---- hostile texts ---------------------------------------------------------------------------------------------------

SPACES = (" ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\x0c", "\u2028")
CHARACTERS = (*SPACES, *"a1A_-.,:;!?#|<>[](){}\"'`*/\\=&@$%+~^", "\u4e2d", "\u0301", "\u00e4", "\u201c", "\x00")
PAIRS = (
    " \n",
    "\n ",
    "\n\n ",
    "a ",
    " a",
    "1 ",
    "1.",
    "a.",
    ". ",
    "a\n",
    "| ",
    "<a ",
    "[a",
    "(a",
    "a_",
    "\\a",
    "> ",
    "- ",
)
ENDS = ("", "\x00", "!")
