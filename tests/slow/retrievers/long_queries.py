"""Questions of any size that are hard for one reader of questions or another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator


def words(number: int = 200_000) -> Iterator[str]:
    """Yield different words of letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return map("".join, itertools.islice(itertools.product("bdfklmnprst", letters, letters, letters, letters), number))


def _repeated(unit: str) -> Callable[[int], str]:
    return lambda size: (unit * (size // len(unit) + 1))[:size]


QUERIES: dict[str, Callable[[int], str]] = {
    "letter": _repeated("w"),
    "spaces": _repeated(" "),
    "words": lambda size: " ".join(words())[:size],
    "spaced": lambda size: "pump" + " " * (size - 9) + "valve",
    "capitals": _repeated("A"),
    "digits": _repeated("7"),
    "punctuation": _repeated("!?."),
    "initials": _repeated("A."),
    "hyphens": _repeated("a-"),
    "camel": _repeated("aB"),
    "marks": lambda size: ("a" + "\u0315\u0300" * size)[:size],
    "quotes": _repeated("\"'"),
    "brackets": _repeated("[]("),
    "chinese": lambda size: "".join(chr(0x4E00 + at % 20_000) for at in range(size)),
    "ligatures": _repeated("\ufdfa"),
    "surrogates": _repeated("\ud800"),
    "days": _repeated("today "),
    "dates": _repeated("1/1/2020 "),
    "thousands": _repeated("1,000"),
    "addresses": _repeated("a@"),
    "sides": _repeated("compare a "),
    "versus": _repeated("a vs "),
    "weather": lambda size: ("what is the weather" + " in a" * size)[: size - 2] + "\nx",
    "poem": lambda size: ("write me a poem" + "!" * size)[: size - 2] + "\nx",
}
