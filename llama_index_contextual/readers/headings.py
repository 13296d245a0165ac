"""Recognises headings of plain text by their numbering, keyword or capitals; when in doubt, it does not.

What a single line tells is in `numbering.py`. Here its neighbours are looked at: the items of a list follow one another
without text in between, running headers repeat, and a heading has something below it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.names import one_line
from llama_index_contextual.readers.numbering import KEYWORDS, UNDERLINES, Block, Candidate, Kind, classify, list_depth

MAX_PARAGRAPHS = 3_000_000
"""Paragraphs that are looked at."""

MAX_HEADINGS = 100_000

_HEAD = 400
_BODY = 80
# A pattern that begins with one fixed character is searched ten times faster.
_BLANK = {"\n": re.compile(r"\n[ \t\f\v\r]*\n\s*"), "\r": re.compile(r"\r[ \t\f\v]*\r\s*")}
_LEADING = re.compile(r"\s*")
_NEWLINE = re.compile(r"\r\n|\n|\r")


Span = tuple[int, int]


@dataclass(frozen=True)
class PlainOutline:
    """The headings of a plain text.

    Attributes:
        headings: In the order of the text.
        title: The line in capitals, or underlined, with which the text begins, if it does.
        warnings: What was left out.
    """

    headings: tuple[Heading, ...] = ()
    title: str | None = None
    warnings: tuple[str, ...] = ()


def plain_outline(text: str) -> PlainOutline:
    """Find the headings of a plain text.

    The level comes from the numbering: "3.2" lies below "3", and both lie below "PART", "ARTICLE" and the like.
    """
    found: list[Candidate] = []
    cut = ""
    for count, (before, span, after) in enumerate(_windows(_paragraphs(text))):
        if count == MAX_PARAGRAPHS or len(found) > 3 * MAX_HEADINGS:
            cut = f"is very long: headings are recognised in its first {count:,} paragraphs only"
            break
        candidate = classify(_block(text, span)) if _may_be_heading(text, span) else None
        if candidate and _fits(
            candidate, *(None if other is None else _block(text, other) for other in (before, after))
        ):
            found.append(candidate)
    kept = _without_repeated(found)
    # A number or a keyword divides a document; only a line without either can name it.
    opens = kept and kept[0].kind in ("capitals", "underlined") and not text[: kept[0].start].strip()
    return PlainOutline(
        headings=_leveled(kept)[:MAX_HEADINGS],
        title=one_line(kept[0].title) if opens else None,
        warnings=_warnings(len(kept), cut),
    )


def _warnings(headings: int, cut: str) -> tuple[str, ...]:
    many = f"has more than {MAX_HEADINGS:,} headings: the later ones are left out" if headings > MAX_HEADINGS else ""
    return tuple(warning for warning in (cut, many) if warning)


def _paragraphs(text: str) -> Iterator[Span]:
    """Yield where the paragraphs, which blank lines separate, begin and end."""
    leading = _LEADING.match(text)
    at = leading.end() if leading else 0
    for gap in _BLANK["\n" if "\n" in text else "\r"].finditer(text, at):
        yield at, gap.start()
        at = gap.end()
    if at < len(text):
        yield at, len(text)


def _windows(spans: Iterator[Span]) -> Iterator[tuple[Span | None, Span, Span | None]]:
    """Yield each paragraph with the ones before and after it."""
    before: Span | None = None
    current = next(spans, None)
    for after in chain(spans, [None]):
        if current is not None:
            yield before, current, after
        before, current = current, after


def _may_be_heading(text: str, span: Span) -> bool:
    """Look at a few characters only: most paragraphs of a long text end here."""
    at, end = span
    if text[at].isdigit() or text[at : at + 2].isupper() or text.startswith(KEYWORDS, at):
        return True
    second = _NEWLINE.search(text, at, min(end, at + _HEAD))
    return second is not None and text[second.end() : second.end() + 20].lstrip(" \t")[:1] in tuple(UNDERLINES)


def _block(text: str, span: Span) -> Block:
    at, end = span
    stripped = (line.strip() for line in _NEWLINE.split(text[at : min(end, at + _HEAD)], 3))
    lines = [line for line in stripped if line]
    return Block(_line_start(text, at), tuple(lines[:3]), is_whole=end - at <= _HEAD and len(lines) <= 3)


def _line_start(text: str, at: int) -> int:
    """Return where the line begins; an indentation of more than a thousand blanks is left out."""
    lowest = max(at - 1_000, 0)
    newline = max(text.rfind("\n", lowest, at), text.rfind("\r", lowest, at))
    return newline + 1 if newline >= 0 or not lowest else at


def _fits(candidate: Candidate, before: Block | None, after: Block | None) -> bool:
    """Say whether the neighbours are those of a heading."""
    if candidate.has_body:
        return True
    if after is None:
        return False
    if candidate.kind == "capitals":
        following = classify(after)
        return _is_prose(after) or (following is not None and following.kind != "capitals")
    if candidate.kind == "number":
        return all(block is None or list_depth(block) != candidate.depth for block in (before, after))
    return True


def _is_prose(block: Block) -> bool:
    """Say whether a paragraph is one that a line in capitals can stand above, and not written in capitals itself."""
    text = " ".join(block.lines)
    return (len(text) >= _BODY or list_depth(block) > 0) and not text.isupper()


def _without_repeated(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Leave out running headers: lines in capitals that come three times, and a heading that only comes again."""
    counts = Counter(candidate.title for candidate in candidates)
    kept: list[Candidate] = []
    for candidate in candidates:
        is_running = candidate.kind == "capitals" and counts[candidate.title] > 2
        if not is_running and not (kept and kept[-1].title == candidate.title):
            kept.append(candidate)
    return kept


def _leveled(candidates: Sequence[Candidate]) -> tuple[Heading, ...]:
    """Give keywords the top levels, in their order of rank, and numbers the levels below."""
    ranks = _ranks(candidates, "keyword")
    levels = {
        "keyword": ranks,
        "number": {depth: depth + len(ranks) for depth in range(1, 8)},
        "capitals": {1: 1},
        "underlined": _ranks(candidates, "underlined"),
    }
    return tuple(Heading(c.start, levels[c.kind][c.depth], one_line(c.title)) for c in candidates)


def _ranks(candidates: Sequence[Candidate], kind: Kind) -> dict[int, int]:
    """Map the depths that occur to 1, 2, …"""
    depths = sorted({candidate.depth for candidate in candidates if candidate.kind == kind})
    return {depth: level for level, depth in enumerate(depths, 1)}
