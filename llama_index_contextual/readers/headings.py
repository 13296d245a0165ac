"""Recognises headings of plain text by their numbering, keyword or capitals; when in doubt, it does not.

What a single line tells is in `numbering.py`. Here its neighbours are looked at: the items of a list follow one another
without text in between, running headers repeat, and a heading has something below it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.names import one_line
from llama_index_contextual.readers.numbering import Block, Candidate, classify, list_depth

MAX_BLOCKS = 3_000_000
"""Paragraphs that are looked at."""

MAX_HEADINGS = 100_000

_HEAD = 400
_BODY = 80
# A pattern that begins with one fixed character is searched ten times faster.
_BLANK = {"\n": re.compile(r"\n[ \t\f\v\r]*\n\s*"), "\r": re.compile(r"\r[ \t\f\v]*\r\s*")}
_LEADING = re.compile(r"\s*")
_NEWLINE = re.compile(r"\r\n|\n|\r")


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
    blocks = capitals = 0
    found: list[Candidate] = []
    for before, block, after in _windows(islice(_blocks(text), MAX_BLOCKS)):
        blocks += 1
        candidate = classify(block)
        capitals += candidate is not None and candidate.kind == "capitals"
        if candidate and _fits(candidate, before, after):
            found.append(candidate)
    if 4 * capitals > blocks:
        # The text is written in capitals throughout.
        found = [candidate for candidate in found if candidate.kind != "capitals"]
    kept = _without_repeated(found)
    # A number or a keyword divides a document; only a line without either can name it.
    opens = kept and kept[0].kind in ("capitals", "underlined") and not text[: kept[0].start].strip()
    return PlainOutline(
        headings=_leveled(kept)[:MAX_HEADINGS],
        title=one_line(kept[0].title) if opens else None,
        warnings=_warnings(len(kept), blocks),
    )


def _warnings(headings: int, blocks: int) -> tuple[str, ...]:
    warnings = []
    if blocks == MAX_BLOCKS:
        warnings.append(f"is very long: headings are recognised in its first {MAX_BLOCKS:,} paragraphs only")
    if headings > MAX_HEADINGS:
        warnings.append(f"has more than {MAX_HEADINGS:,} headings: the later ones are left out")
    return tuple(warnings)


def _blocks(text: str) -> Iterator[Block]:
    """Yield the paragraphs, which blank lines separate."""
    leading = _LEADING.match(text)
    at = leading.end() if leading else 0
    for gap in _BLANK["\n" if "\n" in text else "\r"].finditer(text, at):
        yield _block(text, at, gap.start())
        at = gap.end()
    if at < len(text):
        yield _block(text, at, len(text))


def _block(text: str, at: int, end: int) -> Block:
    head = text[at : min(end, at + _HEAD)]
    lines = [line.strip() for line in _NEWLINE.split(head, 3)]
    if not lines[-1]:
        lines.pop()
    start = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1 if at and text[at - 1] in " \t\f\v" else at
    return Block(start, tuple(lines[:3]), is_whole=end - at <= _HEAD and len(lines) <= 3)


def _windows(blocks: Iterator[Block]) -> Iterator[tuple[Block | None, Block, Block | None]]:
    """Yield each block with the ones before and after it."""
    before: Block | None = None
    current = next(blocks, None)
    for after in chain(blocks, [None]):
        if current is not None:
            yield before, current, after
        before, current = current, after


def _fits(candidate: Candidate, before: Block | None, after: Block | None) -> bool:
    """Say whether the neighbours are those of a heading."""
    if candidate.has_body:
        return True
    if after is None:
        return False
    if candidate.kind == "capitals":
        following = classify(after)
        return _is_body(after) or (following is not None and following.kind != "capitals")
    if candidate.kind == "number":
        return all(block is None or list_depth(block) != candidate.depth for block in (before, after))
    return True


def _is_body(block: Block) -> bool:
    return sum(map(len, block.lines)) >= _BODY or list_depth(block) > 0


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
    ranks = sorted({candidate.depth for candidate in candidates if candidate.kind == "keyword"})
    levels = {
        "keyword": {rank: level for level, rank in enumerate(ranks, 1)},
        "number": {depth: depth + len(ranks) for depth in range(1, 8)},
        "capitals": {1: 1},
        "underlined": {1: 1},
    }
    return tuple(Heading(c.start, levels[c.kind][c.depth], one_line(c.title)) for c in candidates)
