"""Says whether the first line of a paragraph looks like a heading."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["keyword", "number", "capitals", "underlined"]


@dataclass(frozen=True)
class Block:
    """The beginning of a paragraph.

    Attributes:
        start: Character offset of its first line.
        lines: Its first lines, stripped; three at most.
        is_whole: Whether that is all of it.
    """

    start: int
    lines: tuple[str, ...]
    is_whole: bool


@dataclass(frozen=True)
class Candidate:
    """A line that looks like a heading.

    Attributes:
        start: Character offset of the line.
        kind: What makes it one.
        depth: Rank of the keyword, or the number of parts in the numbering ("3.2" has two); 1 for capitals;
            1 for a double underline and 2 for a single one.
        title: The line.
        has_body: Text follows on the next line.
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
    """Return the heading that the first line of a block may be."""
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
    """Return the number of parts of the number that the block begins with; 0 if there is none."""
    match = _LIST_ITEM.match(block.lines[0]) if block.lines else None
    return match[1].count(".") + 1 if match else 0


def _underline(block: Block) -> str:
    """Return the character with which a line that stands alone is underlined; empty if it is not."""
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
    # A single number before a paragraph is an item of a list more often than a heading.
    if depth > 1 and _has_body(block):
        return Candidate(block.start, "number", depth, block.lines[0], has_body=True)
    return None


def _has_body(block: Block) -> bool:
    """Say whether the second line begins a paragraph of its own rather than going on with a wrapped first line."""
    if len(block.lines) < 2:
        return False
    first, second = block.lines[:2]
    return second[0].isupper() and len(first) <= 60 and 2 * len(second) >= 3 * len(first) and not _is_entry(second)


def _is_entry(line: str) -> bool:
    return bool(_KEYWORD.match(line) or _LIST_ITEM.match(line))


def _is_title(text: str, *, words: int = 12, may_end: bool = False) -> bool:
    """Say whether a text reads as a title: begins with a capital, is short, and is neither sentence nor table row."""
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
