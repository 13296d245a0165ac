"""Read text files: detect the encoding, and recognise headings by their numbering, keyword or capitals.

`decode_file` tries a byte order mark, UTF-16 and UTF-32 without one, UTF-8, and finally legacy encodings. Encodings of
Latin scripts use nearly the same bytes for letters of different languages. They are distinguished by alphabet: most
text is in one language, so that its letters beyond ASCII belong to one alphabet. charset-normalizer decides all other
cases: Cyrillic, Greek, Hebrew, Arabic, Thai, Chinese, Japanese and Korean text, and Latin text in several languages.

`plain_outline` compares each line that may be a heading with its neighbours: list items follow one another without
text in between, running headers repeat, and a heading has text below it. Doubtful lines are not headings.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from llama_index_contextual.errors import ReadError
from llama_index_contextual.metadata import DocumentMap, Heading
from llama_index_contextual.readers.base import FileAccount, ParsedFile, ReadLimits
from llama_index_contextual.readers.boundaries import Span
from llama_index_contextual.readers.discovery import one_line, read_limited


def read_text(path: Path, *, limits: ReadLimits = ReadLimits()) -> ParsedFile:  # noqa: B008
    """Read a plain text file and recognise its headings.

    The text is kept unchanged, including newlines; only a byte order mark is removed.

    Raises:
        ReadError: The file is empty, binary, too large, or cannot be opened.
    """
    return parse_text(decode_file(path, limits=limits))


def parse_text(decoded: Decoded) -> ParsedFile:
    """Recognise the headings of decoded text, as `read_text` does."""
    outline = plain_outline(decoded.text)
    return ParsedFile(
        text=decoded.text,
        map=DocumentMap(headings=outline.headings),
        title=outline.title,
        warnings=(*decoded.warnings, *outline.warnings),
        digest=decoded.digest,
    )


# Encoding

SAMPLE_BYTES = 1 << 16
_REPLACEMENT = "\ufffd"
_BINARY = "is a binary file, not text: remove it, or give it the extension of its type"


@dataclass(frozen=True)
class Decoded:
    """Decoded text of a file.

    Attributes:
        text: The text with the newlines of the file, without byte order mark.
        warnings: Assumptions and replacements.
        digest: Hexadecimal xxh3-128 of the bytes that were decoded.
    """

    text: str
    warnings: tuple[str, ...] = ()
    digest: str = ""


def decode_file(path: Path, *, limits: ReadLimits) -> Decoded:
    """Decode a text file: UTF-8, UTF-16 and UTF-32 with or without byte order mark, or a legacy encoding.

    The file is read only once. Peak memory is about twice the size of the text.

    Raises:
        ReadError: The file is empty, not text, too large, or cannot be opened.
    """
    data, digest = read_limited(path, limits)
    decoded = decode_bytes(path, data)
    FileAccount(path, len(data), limits).add_text(len(decoded.text))
    return replace(decoded, digest=digest)


def decode_bytes(path: Path, data: bytes, *, charset: str | None = None) -> Decoded:
    """Decode the bytes of a text file, as `decode_file` does, without limits.

    Args:
        path: Path of the file, for error messages.
        data: The bytes.
        charset: Encoding that the file declares; used if known and valid, unless a byte order mark contradicts it.

    Raises:
        ReadError: The bytes are empty or not text.
    """
    name = _DECLARED.get((charset or "").strip().lower(), (charset or "").strip())
    if name and data and not marked_encoding(data):
        with suppress(LookupError, ValueError):  # unknown, not a text encoding, or not the encoding of this file
            return _without_nul(path, data.decode(name), [])
    head = data[:SAMPLE_BYTES]
    if not head:
        raise ReadError(str(path), "is empty")
    if kind := signature(head):
        raise ReadError(str(path), f"is not text but {kind}: give it the extension of its type")
    marked = marked_encoding(head)
    unmarked = None if marked else unmarked_encoding(head)
    if not marked and not unmarked and looks_binary(head):
        raise ReadError(str(path), _BINARY)
    text, warnings = _from_unicode(path, data, marked or unmarked or "utf-8") or _from_legacy(path, data)
    if unmarked:
        warnings.append(f"has no byte order mark: read as {unmarked}; save it as UTF-8 if letters look wrong")
    return _without_nul(path, text, warnings)


def _from_unicode(path: Path, data: bytes, encoding: str) -> tuple[str, list[str]] | None:
    """Decode Unicode that may be damaged in a few places; return None if it is not Unicode at all."""
    with suppress(UnicodeDecodeError):
        return data.decode(encoding), []
    text = data.decode(encoding, "replace")
    damaged, foreign = text.count(_REPLACEMENT), len(text) - len(text.encode("ascii", "ignore"))
    # Text in a legacy encoding is rarely valid UTF-8: if most characters are valid, it is damaged UTF-8.
    if encoding == "utf-8" and foreign < 10 * damaged:
        return None
    if damaged * 10 > len(text):
        raise ReadError(str(path), _BINARY)
    characters = f"{damaged:,} damaged characters were" if damaged != 1 else "1 damaged character was"
    return text, [f"is not quite valid {encoding}: {characters} replaced by U+FFFD"]


def _from_legacy(path: Path, data: bytes) -> tuple[str, list[str]]:
    if any(looks_binary(data[at : at + SAMPLE_BYTES]) for at in range(0, len(data), SAMPLE_BYTES)):
        raise ReadError(str(path), _BINARY)
    encoding = legacy_encoding(data) or "cp1252"
    text = data.decode(encoding, "replace")
    count = text.count(_REPLACEMENT)
    damage = f", {count:,} characters replaced" if count else ""
    return text, [f"is not UTF-8: read as {encoding}{damage}; save it as UTF-8 if letters look wrong"]


def _without_nul(path: Path, text: str, warnings: list[str]) -> Decoded:
    if not text or text.isspace():
        raise ReadError(str(path), "is empty: it contains only white space")
    count = text.count("\0")
    if count * 50 > len(text):
        raise ReadError(str(path), _BINARY)
    if count:
        characters = f"{count:,} NUL characters were" if count != 1 else "1 NUL character was"
        warnings.append(f"{characters} replaced by U+FFFD")
    return Decoded(text.replace("\0", _REPLACEMENT), tuple(warnings))


# Detection by byte order mark, signature and control characters

# A byte order mark is decisive. Before version 3.5, charset-normalizer ignores the mark of UTF-16 text with formulas.
_MARKS = (
    # UTF-32 first: its little-endian mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# The names of ISO 8859-1 and ASCII mean cp1252, as in browsers.
_DECLARED = dict.fromkeys(("iso-8859-1", "iso8859-1", "latin-1", "latin1", "us-ascii", "ascii"), "cp1252")
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_SIGNATURES = (
    (b"%PDF-", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive or Office document"),
    (b"\xd0\xcf\x11\xe0", "an old Office document"),
    (b"{\\rtf", "an RTF document"),
    (b"\x89PNG", "a PNG image"),
)
_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n\v\f\r\b\x1a\x1b"})
_JAPANESE_ESCAPES = (b"\x1b$B", b"\x1b$@")
_COMMON = " \n\r\t\u3000\u3001\u3002\uff0c"


def signature(head: bytes) -> str | None:
    """Return the kind of a file that is often misnamed as text, or None."""
    return next((kind for mark, kind in _SIGNATURES if head.startswith(mark)), None)


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding that the byte order mark indicates, or None."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)


def looks_binary(window: bytes) -> bool:
    """Return whether more than 2 % of the bytes are control characters that do not occur in text."""
    return len(window) - len(window.translate(None, _CONTROLS)) > max(len(window) // 50, 1)


def unmarked_encoding(head: bytes) -> str | None:
    """Return the encoding of UTF-16, UTF-32 or ISO-2022-JP text without byte order mark, or None.

    charset-normalizer is not used here: it takes tables drawn with box characters for UTF-8, does not recognise
    formulas such as "∀x ∈ ℝ", and before version 3.5 reads some binary files as UTF-16.
    """
    if head.isascii() and any(escape in head for escape in _JAPANESE_ESCAPES):
        return "iso2022_jp_2"
    if b"\0" not in head or not looks_binary(head):
        return None
    best, most = None, 0
    for encoding in _WIDE:
        common = _common_characters(head, encoding)
        if common > most:
            best, most = encoding, common
    return best


def _common_characters(head: bytes, encoding: str) -> int:
    """Count white space and common punctuation in a sample decoded with `encoding`; 0 if it is not text."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return 0
    odd = sum(unicodedata.category(char) in ("Cn", "Co", "Cc") and char not in _COMMON for char in text)
    return 0 if odd * 100 > len(text) else sum(map(text.count, _COMMON))


# Detection of legacy encodings

# Without this list, charset-normalizer takes Russian text in KOI8-R for Japanese, and Polish text in ISO 8859-2 for
# ISO 8859-14 ("ṡycie" for "życie").
LEGACY = (
    "cp1252",
    "cp1250",
    "cp1251",
    "cp1253",
    "cp1254",
    "cp1255",
    "cp1256",
    "cp1257",
    "iso8859_2",
    "iso8859_5",
    "iso8859_7",
    "koi8_r",
    "koi8_u",
    "cp437",
    "cp850",
    "cp866",
    "mac_roman",
    "mac_cyrillic",
    "tis_620",
    "cp932",
    "euc_jp",
    "gb18030",
    "big5",
    "cp949",
)


def legacy_encoding(data: bytes) -> str | None:
    """Return the most likely encoding of text that is not Unicode, based on a sample of its non-ASCII lines."""
    sample = _foreign_lines(data)
    if latin := latin_encoding(sample):
        return latin
    from charset_normalizer import from_bytes

    match = from_bytes(sample, cp_isolation=list(LEGACY)).best()
    return match.encoding if match else None


def _foreign_lines(data: bytes, width: int = 4096) -> bytes:
    lines: list[bytes] = []
    size = at = 0
    while size < SAMPLE_BYTES and (foreign := _FOREIGN.search(data, at)):
        start = max(data.rfind(b"\n", at, foreign.start()) + 1, foreign.start() - 200, at)
        at = data.find(b"\n", foreign.start())
        at = len(data) if at < 0 else at
        line = data[start:at]
        if len(line) > width:
            # Cut at a byte below 0x30, which is never the second half of a character in these encodings.
            line = line[: max(line.rfind(byte, 0, width) for byte in b" ,.!") + 1] or line[:width]
        lines.append(line)
        size += len(line)
    return b"\n".join(lines)


_FOREIGN = re.compile(rb"[\x80-\xff]")

# charset-normalizer confuses Latin alphabets. It reads French text in Windows-1252 as Windows-1257 ("Oł qu'il soit" for
# "Où qu'il soit"), and Italian and Swedish text as Windows-1250 ("societŕ" for "società", "bĺda" for "båda").
_WEST = (
    "àâæçéèêëîïôœùûüÿ",  # French
    "äöüß",  # German
    "áéíóúñüªº",  # Spanish
    "áâãàçéêíóôõúüªº",  # Portuguese
    "àèéìíîòóùú",  # Italian
    "åäöæøéü",  # Danish, Norwegian, Swedish, Finnish
    "áéèëïóöüĳ",  # Dutch
    "áéíóúýþæöð",  # Icelandic
    "àçèéíïòóúü·",  # Catalan
)
_CENTRE = (
    "ąćęłńóśźż",  # Polish
    "áčďéěíňóřšťúůýž",  # Czech
    "áäčďéíĺľňóôŕšťúýž",  # Slovak
    "áéíóöőúüű",  # Hungarian
    "ăâîşţșț",  # Romanian
    "čćđšž",  # Croatian, Slovene
    "äöüß",
)
_TURKISH = ("çğıöşüâîû",)
_BALTIC = (
    "ąčęėįšųūž",  # Lithuanian
    "āčēģīķļņšūž",  # Latvian
    "äõöüšž",  # Estonian
)
_ALPHABETS = {
    "cp1252": _WEST,
    "iso8859_15": _WEST,
    "cp1250": _CENTRE,
    "iso8859_2": _CENTRE,
    "cp1254": _TURKISH,
    "cp1257": _BALTIC,
    "cp850": _WEST,
    "cp852": _CENTRE,
    "mac_roman": _WEST,
}
_INSIDE_WORDS = frozenset("’'–—\u00ad\u00a0")
_BETWEEN_WORDS = frozenset("‘“”„‚…•«»‹›€£§°©®™´¿¡±²³½¼µ×")
_ENOUGH = 0.95
_MAX_FOREIGN = 0.4


def latin_encoding(sample: bytes) -> str | None:
    """Return the encoding in which a sample is Latin-script text in one language, or None."""
    shares = {encoding: _share(sample, encoding) for encoding in _ALPHABETS}
    best = max(shares, key=lambda encoding: shares[encoding])
    return best if shares[best] >= _ENOUGH else None


def _share(sample: bytes, encoding: str) -> float:
    """Return the share of the characters beyond ASCII that belong to one alphabet or are punctuation."""
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return 0.0
    counts = _foreign(text)
    letters = sum(map(str.isalpha, text))
    total = sum(counts.values())
    if not total or total > _MAX_FOREIGN * letters:
        return 0.0
    marks = counts["mark"]
    return max(marks + sum(counts[char] for char in alphabet) for alphabet in _ALPHABETS[encoding]) / total


def _foreign(text: str) -> Counter[str]:
    """Count the characters beyond ASCII: letters in lower case, plausible punctuation as "mark", others as "odd"."""
    counts: Counter[str] = Counter()
    for at, char in enumerate(text):
        if char.isascii():
            continue
        before, after = text[max(at - 1, 0) : at], text[at + 1 : at + 2]
        if char.isalpha():
            # A capital in the middle of a word shows that the encoding is wrong.
            counts["odd" if char.isupper() and before.islower() else char.lower()] += 1
        elif char in _INSIDE_WORDS or (char in _BETWEEN_WORDS and not (before.isalpha() and after.isalpha())):
            counts["mark"] += 1
        else:
            counts["odd"] += 1
    return counts


# Headings

MAX_HEADINGS = 100_000
MAX_REPEATED = 2
"""Number of times that a heading in capitals may occur; a line that occurs more often is a running header."""

_HEAD = 400
_BODY = 80
# Searching for a pattern that begins with a fixed character is ten times faster.
_BLANK = {"\n": re.compile(r"\n[ \t\f\v\r]*\n\s*"), "\r": re.compile(r"\r[ \t\f\v]*\r\s*")}
_LEADING = re.compile(r"\s*")
_NEWLINE = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class PlainOutline:
    """The headings of plain text.

    Attributes:
        headings: The headings in the order of the text.
        title: The first line of the text, if it is a heading in capitals or underlined.
        warnings: Headings that were omitted.
    """

    headings: tuple[Heading, ...] = ()
    title: str | None = None
    warnings: tuple[str, ...] = ()


def plain_outline(text: str) -> PlainOutline:
    """Find the headings of plain text.

    The numbering determines the level: "3.2" is below "3", and both are below "PART", "ARTICLE" and similar keywords.
    """
    spans = list(_paragraphs(text))
    found: list[_Candidate] = []
    around = [None, *spans, None]
    for before, span, after in zip(around, spans, around[2:], strict=False):
        candidate = _classify(_block(text, span)) if _may_be_heading(text, span[0]) else None
        if candidate and (candidate.has_body or _fits(candidate, _block(text, before), _block(text, after))):
            found.append(candidate)
    counts = Counter(candidate.title for candidate in found)
    kept = [one for one in found if one.kind != "capitals" or counts[one.title] <= MAX_REPEATED]
    ranks = sorted({one.depth for one in kept if one.kind == "keyword"})
    # A heading with a number or keyword is a section; only a heading without either can be the document title.
    opens = kept and kept[0].kind == "capitals" and not text[: kept[0].start].strip()
    many = f"has more than {MAX_HEADINGS:,} headings: the later ones are left out"
    return PlainOutline(
        headings=tuple(Heading(one.start, _level(one, ranks), one_line(one.title)) for one in kept[:MAX_HEADINGS]),
        title=one_line(kept[0].title) if opens else None,
        warnings=(many,) if len(kept) > MAX_HEADINGS else (),
    )


def _level(candidate: _Candidate, ranks: list[int]) -> int:
    """Return the level of a heading: 1 for capitals, otherwise keywords by rank with numbers below them."""
    if candidate.kind == "keyword":
        return ranks.index(candidate.depth) + 1
    return candidate.depth + (len(ranks) if candidate.kind == "number" else 0)


def _paragraphs(text: str) -> Iterator[Span]:
    """Yield the spans of the paragraphs, which are separated by blank lines."""
    leading = _LEADING.match(text)
    at = leading.end() if leading else 0
    for gap in _BLANK["\n" if "\n" in text else "\r"].finditer(text, at):
        yield at, gap.start()
        at = gap.end()
    if at < len(text):
        yield at, len(text)


def _may_be_heading(text: str, at: int) -> bool:
    """Rule out most paragraphs by their first characters."""
    return text[at].isdigit() or text[at : at + 2].isupper() or text.startswith(KEYWORDS, at)


def _block(text: str, span: Span | None) -> _Block:
    if span is None:
        return _Block(0, [], is_whole=True)
    at, end = span
    stripped = (line.strip() for line in _NEWLINE.split(text[at : min(end, at + _HEAD)], 3))
    lines = [line for line in stripped if line]
    return _Block(_line_start(text, at), lines[:3], is_whole=end - at <= _HEAD and len(lines) <= 3)


def _line_start(text: str, at: int) -> int:
    """Return the offset at which the line begins; an indentation of more than a thousand spaces is ignored."""
    lowest = max(at - 1_000, 0)
    newline = max(text.rfind("\n", lowest, at), text.rfind("\r", lowest, at))
    return newline + 1 if newline >= 0 or not lowest else at


def _fits(candidate: _Candidate, before: _Block, after: _Block) -> bool:
    """Return whether the previous and the next paragraph allow a heading here."""
    if candidate.kind == "capitals":
        following = _classify(after)
        text = " ".join(after.lines)
        is_prose = (len(text) >= _BODY or _list_depth(after) > 0) and not text.isupper()
        return is_prose or (following is not None and following.kind != "capitals")
    if candidate.kind == "number" and candidate.depth in (_list_depth(before), _list_depth(after)):
        return False
    return bool(after.lines)


class _Block(NamedTuple):
    """The beginning of a paragraph: the offset of its first line, up to three lines, and whether there are no more."""

    start: int
    lines: list[str]
    is_whole: bool


class _Candidate(NamedTuple):
    """A line that may be a heading.

    Attributes:
        start: Offset of the line.
        kind: The feature by which the line was recognised.
        depth: Rank of the keyword; number of parts of the numbering ("3.2" has two); 1 for capitals.
        title: The line.
        has_body: Whether text follows on the next line.
    """

    start: int
    kind: Literal["keyword", "number", "capitals"]
    depth: int
    title: str
    has_body: bool = False


_RANKS = {"PART": 1, "BOOK": 1, "VOLUME": 1, "APPENDIX": 1, "ANNEX": 1, "SCHEDULE": 1, "EXHIBIT": 1}
_RANKS |= {"CHAPTER": 2, "ARTICLE": 2, "ITEM": 2, "SECTION": 3}

KEYWORDS = tuple(spelled for word in _RANKS for spelled in (word, word.title()))

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


def _classify(block: _Block) -> _Candidate | None:
    """Return the heading that the first line of a block may be, or None."""
    line = block.lines[0] if block.lines else ""
    if len(line) > _MAX_TITLE:
        return None
    if match := _KEYWORD.match(line):
        return _keyword(block, match)
    if match := _NUMBER.match(line):
        return _number(block, match)
    is_alone = block.is_whole and len(block.lines) == 1
    return _Candidate(block.start, "capitals", 1, line) if is_alone and _is_capitals(line) else None


def _list_depth(block: _Block) -> int:
    """Return the number of parts of the numbering with which a block begins, or 0."""
    match = _LIST_ITEM.match(block.lines[0]) if block.lines else None
    return match[1].count(".") + 1 if match else 0


def _keyword(block: _Block, match: re.Match[str]) -> _Candidate | None:
    line, title = block.lines[0], match["title"]
    depth = _RANKS[match["word"].upper()] + (match["number"].count(".") if match["word"].upper() == "SECTION" else 0)
    if len(block.lines) == 2 and block.is_whole and not _is_entry(block.lines[1]):
        joined = " ".join(block.lines)
        if _is_title(joined[match.start("title") :] if title else block.lines[1], words=25):
            return _Candidate(block.start, "keyword", depth, joined)
    if title is not None and not _is_title(title, may_end=bool(match["mark"])):
        return None
    if len(block.lines) == 1:
        return _Candidate(block.start, "keyword", depth, line)
    is_marked = title is None or match["mark"]
    return _Candidate(block.start, "keyword", depth, line, has_body=True) if is_marked and _has_body(block) else None


def _number(block: _Block, match: re.Match[str]) -> _Candidate | None:
    depth = match["number"].count(".") + 1
    is_alone = block.is_whole and len(block.lines) == 1
    # A single number before a paragraph is more often a list item than a heading.
    has_body = not is_alone and depth > 1 and _has_body(block)
    if not _is_title(match["title"]) or not (is_alone or has_body):
        return None
    return _Candidate(block.start, "number", depth, block.lines[0], has_body)


def _has_body(block: _Block) -> bool:
    """Return whether the second line begins a paragraph rather than continuing a wrapped first line."""
    if len(block.lines) < 2:
        return False
    first, second = block.lines[:2]
    return second[0].isupper() and len(first) <= 60 and 2 * len(second) >= 3 * len(first) and not _is_entry(second)


def _is_entry(line: str) -> bool:
    return bool(_KEYWORD.match(line) or _LIST_ITEM.match(line))


def _is_title(text: str, *, words: int = 12, may_end: bool = False) -> bool:
    """Return whether the text looks like a title: short, beginning with a capital, and not a sentence or table row."""
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
