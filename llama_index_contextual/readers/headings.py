"""Recognise the headings of plain text by their numbering, keyword, capitals or underline.

`classify` decides from a single paragraph whether it may be a heading. `plain_outline` then compares it with its
neighbours: items of a list follow one another without text in between, running headers repeat, and a heading has text
below it. Doubtful lines are not headings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.discovery import one_line

MAX_PARAGRAPHS = 3_000_000
"""Number of paragraphs that are examined."""

MAX_HEADINGS = 100_000

_HEAD = 400
_BODY = 80
# Searching for a pattern that begins with a fixed character is ten times faster.
_BLANK = {"\n": re.compile(r"\n[ \t\f\v\r]*\n\s*"), "\r": re.compile(r"\r[ \t\f\v]*\r\s*")}
_LEADING = re.compile(r"\s*")
_NEWLINE = re.compile(r"\r\n|\n|\r")


Span = tuple[int, int]


@dataclass(frozen=True)
class PlainOutline:
    """The headings of a plain text.

    Attributes:
        headings: The headings in the order of the text.
        title: The first line of the text, if it is a heading in capitals or underlined.
        warnings: Headings that were left out.
    """

    headings: tuple[Heading, ...] = ()
    title: str | None = None
    warnings: tuple[str, ...] = ()


def plain_outline(text: str) -> PlainOutline:
    """Find the headings of a plain text.

    The level follows from the numbering: "3.2" is below "3", and both are below "PART", "ARTICLE" and similar keywords.
    """
    candidates: list[Candidate] = []
    cut = ""
    for count, (before, span, after) in enumerate(_windows(_paragraphs(text))):
        if count == MAX_PARAGRAPHS or len(candidates) > 3 * MAX_HEADINGS:
            cut = f"is very long: headings are recognised in its first {count:,} paragraphs only"
            break
        candidate = classify(_block(text, span)) if _may_be_heading(text, span) else None
        if candidate and _fits(
            candidate, *(None if other is None else _block(text, other) for other in (before, after))
        ):
            candidates.append(candidate)
    kept = _without_repeated(candidates)
    # A heading with a number or keyword is a section; only one without can be the title of the document.
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
    """Yield the spans of the paragraphs, which are separated by blank lines."""
    leading = _LEADING.match(text)
    at = leading.end() if leading else 0
    for gap in _BLANK["\n" if "\n" in text else "\r"].finditer(text, at):
        yield at, gap.start()
        at = gap.end()
    if at < len(text):
        yield at, len(text)


def _windows(spans: Iterator[Span]) -> Iterator[tuple[Span | None, Span, Span | None]]:
    """Yield each paragraph with the previous and the next one."""
    before: Span | None = None
    current = next(spans, None)
    for after in chain(spans, [None]):
        if current is not None:
            yield before, current, after
        before, current = current, after


def _may_be_heading(text: str, span: Span) -> bool:
    """Rule out most paragraphs by their first characters."""
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
    """Return where the line begins; an indentation of more than a thousand spaces is ignored."""
    lowest = max(at - 1_000, 0)
    newline = max(text.rfind("\n", lowest, at), text.rfind("\r", lowest, at))
    return newline + 1 if newline >= 0 or not lowest else at


def _fits(candidate: Candidate, before: Block | None, after: Block | None) -> bool:
    """Return whether the previous and the next paragraph allow a heading here."""
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
    """Return whether a paragraph is long enough to have a heading in capitals above it, and not in capitals itself."""
    text = " ".join(block.lines)
    return (len(text) >= _BODY or list_depth(block) > 0) and not text.isupper()


def _without_repeated(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Leave out running headers: lines in capitals that occur three times, and repetitions of the last heading."""
    counts = Counter(candidate.title for candidate in candidates)
    kept: list[Candidate] = []
    for candidate in candidates:
        is_running = candidate.kind == "capitals" and counts[candidate.title] > 2
        if not is_running and not (kept and kept[-1].title == candidate.title):
            kept.append(candidate)
    return kept


def _leveled(candidates: Sequence[Candidate]) -> tuple[Heading, ...]:
    """Assign the top levels to keywords, by rank, and the levels below to numbers."""
    ranks = _ranks(candidates, "keyword")
    levels = {
        "keyword": ranks,
        "number": {depth: depth + len(ranks) for depth in range(1, 8)},
        "capitals": {1: 1},
        "underlined": _ranks(candidates, "underlined"),
    }
    return tuple(Heading(c.start, levels[c.kind][c.depth], one_line(c.title)) for c in candidates)


def _ranks(candidates: Sequence[Candidate], kind: Kind) -> dict[int, int]:
    """Map the depths that occur to levels 1, 2, …"""
    depths = sorted({candidate.depth for candidate in candidates if candidate.kind == kind})
    return {depth: level for level, depth in enumerate(depths, 1)}


Kind = Literal["keyword", "number", "capitals", "underlined"]


@dataclass(frozen=True)
class Block:
    """The beginning of a paragraph.

    Attributes:
        start: Offset of its first line.
        lines: Its first three lines, stripped.
        is_whole: Whether these are all of its lines.
    """

    start: int
    lines: tuple[str, ...]
    is_whole: bool


@dataclass(frozen=True)
class Candidate:
    """A line that may be a heading.

    Attributes:
        start: Offset of the line.
        kind: The feature by which it was recognised.
        depth: Rank of the keyword; number of parts of the numbering ("3.2" has two); 1 for capitals; 1 for a double
            underline and 2 for a single one.
        title: The line.
        has_body: Whether text follows on the next line.
    """

    start: int
    kind: Kind
    depth: int
    title: str
    has_body: bool = False


_RANKS = {"PART": 1, "BOOK": 1, "VOLUME": 1, "APPENDIX": 1, "ANNEX": 1, "SCHEDULE": 1, "EXHIBIT": 1}
_RANKS |= {"CHAPTER": 2, "ARTICLE": 2, "ITEM": 2, "SECTION": 3}

KEYWORDS = tuple(spelled for word in _RANKS for spelled in (word, word.title()))
UNDERLINES = "=-~*#"

_ROMAN = r"(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_COUNT = (
    "ONE|TWO|THREE|FOUR|FIVE|SIX|SEVEN|EIGHT|NINE|TEN|ELEVEN|TWELVE|THIRTEEN|FOURTEEN|FIFTEEN|SIXTEEN|SEVENTEEN"
    "|EIGHTEEN|NINETEEN|TWENTY(?:-(?:ONE|TWO|THREE|FOUR|FIVE|SIX|SEVEN|EIGHT|NINE))?|THIRTY"
)
_KEYWORD = re.compile(
    rf"(?P<word>{'|'.join(KEYWORDS)})[ \t]+(?P<number>\d{{1,3}}(?:\.\d{{1,3}})*[A-Za-z]?|{_ROMAN}|[A-Z](?:-?\d{{1,2}})?"
    rf"|(?i:{_COUNT}))(?![\w'’])(?P<mark>[ \t]*[.:—–-])?(?:[ \t]+(?P<title>\S.*))?$"
)
_NUMBER = re.compile(r"(?P<number>\d{1,3}(?:\.\d{1,3}){0,5}|[A-Z](?:\.\d{1,3}){1,5})\.?[ \t]+(?P<title>\S.*)$")
_LIST_ITEM = re.compile(r"(\d{1,3}(?:\.\d{1,3})*|[A-Z](?:\.\d{1,3})+)[.)]?(?=\s)")

_GAP = re.compile(r"\s{2,}|[\t|]|_{3}|\.{3}|…|(?:\. ){3}")
_SENTENCE_END = re.compile(r"[^\W\d_]{3}[.!?;] ")
_VERB = re.compile(r"\b(?:shall|will|must|may|can|is|are|was|were|has|have|had|be|been)\b")
_YEAR = re.compile(r"(?:19|20)\d\d$")
_LAST_NUMBER = re.compile(r"[\d.,%$€£()-]*\d[\d.,%)]*$")
_SMALL_WORDS = frozenset(
    ("a", "an", "and", "as", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with")
)
_CAPITALS = re.compile(r"[^\W\d_][^\d_|=<>@/\\$%*{}#~\"\[\]]*$")

_MAX_TITLE = 100
_MAX_CAPITALS = 60


def classify(block: Block) -> Candidate | None:
    """Return the heading that the first line of a block may be, or None."""
    line = block.lines[0] if block.lines else ""
    if not line or len(line) > _MAX_TITLE:
        return None
    if underline := _underline(block):
        block = Block(block.start, (line,), is_whole=True)
    if match := _KEYWORD.match(line):
        return _keyword(block, match)
    if match := _NUMBER.match(line):
        return _number(block, match)
    if underline:
        depth = 1 if underline == "=" else 2
        return Candidate(block.start, "underlined", depth, line) if _is_title(line) else None
    if block.is_whole and len(block.lines) == 1 and _is_capitals(line):
        return Candidate(block.start, "capitals", 1, line)
    return None


def list_depth(block: Block) -> int:
    """Return the number of parts of the numbering with which a block begins, or 0."""
    match = _LIST_ITEM.match(block.lines[0]) if block.lines else None
    return match[1].count(".") + 1 if match else 0


def _underline(block: Block) -> str:
    """Return the character with which a single line is underlined, or an empty string."""
    if not block.is_whole or len(block.lines) != 2:
        return ""
    text, line = block.lines
    is_line = line[0] in UNDERLINES and not line.strip(line[0]) and 3 <= len(line) <= 2 * len(text) <= 4 * len(line)
    return line[0] if is_line else ""


def _keyword(block: Block, match: re.Match[str]) -> Candidate | None:
    line, title = block.lines[0], match["title"]
    word = match["word"].upper()
    depth = _RANKS[word] + (match["number"].count(".") if word == "SECTION" else 0)
    joined = " ".join(block.lines)
    if len(block.lines) == 2 and block.is_whole and not _is_entry(block.lines[1]):
        second = joined if title else block.lines[1]
        if _is_title(second if title is None else joined[match.start("title") :], words=25):
            return Candidate(block.start, "keyword", depth, joined)
    if title is not None and not _is_title(title, may_end=bool(match["mark"])):
        return None
    if len(block.lines) == 1:
        return Candidate(block.start, "keyword", depth, line)
    is_marked = title is None or match["mark"]
    return Candidate(block.start, "keyword", depth, line, has_body=True) if is_marked and _has_body(block) else None


def _number(block: Block, match: re.Match[str]) -> Candidate | None:
    depth = match["number"].count(".") + 1
    if not _is_title(match["title"]):
        return None
    if block.is_whole and len(block.lines) == 1:
        return Candidate(block.start, "number", depth, block.lines[0])
    # A single number before a paragraph is more often a list item than a heading.
    if depth > 1 and _has_body(block):
        return Candidate(block.start, "number", depth, block.lines[0], has_body=True)
    return None


def _has_body(block: Block) -> bool:
    """Return whether the second line begins a paragraph rather than continuing a wrapped first line."""
    if len(block.lines) < 2:
        return False
    first, second = block.lines[:2]
    return second[0].isupper() and len(first) <= 60 and 2 * len(second) >= 3 * len(first) and not _is_entry(second)


def _is_entry(line: str) -> bool:
    return bool(_KEYWORD.match(line) or _LIST_ITEM.match(line))


def _is_title(text: str, *, words: int = 12, may_end: bool = False) -> bool:
    """Return whether a text looks like a title: short, with a capital first, and not a sentence or table row."""
    if not text[0].isalpha() or text[0].islower():
        return False
    tokens = text.split()
    if len(tokens) > words or any(mark.search(text) for mark in (_GAP, _SENTENCE_END, _VERB)):
        return False
    if _LAST_NUMBER.match(tokens[-1]) and not _YEAR.match(tokens[-1]):
        return False
    if text[-1] in ".;:,!" and not (may_end and text[-1] == "." and _is_title_case(tokens)):
        return False
    return 2 * sum(char.isalpha() for char in text) >= len(text)


def _is_title_case(tokens: list[str]) -> bool:
    return all(token[0].isupper() or token in _SMALL_WORDS for token in tokens if token[0].isalpha())


def _is_capitals(line: str) -> bool:
    if len(line) > _MAX_CAPITALS or not line.isupper() or not _CAPITALS.match(line) or _GAP.search(line):
        return False
    words = line.split()
    return len(words) <= 8 and sum(map(str.isalpha, line)) >= 5 and line[-1] not in ".,;:!?-"
