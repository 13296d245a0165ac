"""Read text and Markdown files: encoding, headings and front matter.

`decode` looks for a byte order mark, and then tries UTF-8, UTF-16, UTF-32 and legacy encodings. Encodings for Latin
scripts assign different letters to the same bytes. They are distinguished by alphabet, because most text is in one
language and its non-ASCII letters belong to one alphabet. All other cases are left to charset-normalizer.

`plain_headings` finds the headings of plain text: lines between blank lines that begin with a keyword or a number, or
are in capitals. Doubtful lines are not treated as headings. The headings of Markdown are found with markdown-it-py.
"""

from __future__ import annotations

import codecs
import html
import json
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, time
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeGuard

import regex  # type: ignore[import-untyped]  # the package ships no types

from llama_index_contextual._utils.text import parse_json, pluralize
from llama_index_contextual.metadata import TITLE, DocumentMap, Heading, is_own_key, value_fault
from llama_index_contextual.readers.files import FileSource, ParsedFile, one_line
from llama_index_contextual.readers.scripts import joined_runs

if TYPE_CHECKING:
    from markdown_it.token import Token

MAX_HEADINGS = 100_000


def parse_text(source: FileSource) -> ParsedFile:
    """Read a plain text file and recognise its headings.

    The text is kept unchanged, including newlines; only a byte order mark is removed.

    Raises:
        ReadError: The file is empty, binary or too large.
    """
    text, warnings = decode(source)
    source.account.add_text(len(text))
    headings = plain_headings(text)
    # A heading with a number or keyword is a section; only a heading without either can be the document title.
    is_title = headings and headings[0].title.isupper() and not _KEYWORD.match(headings[0].title)
    return ParsedFile(
        text=text,
        map=DocumentMap(headings=headings),
        title=headings[0].title if is_title and not text[: headings[0].start].strip() else None,
        warnings=tuple(warnings),
        digest=source.digest,
    )


# Encoding

_SAMPLE_BYTES = 1 << 16
_REPLACEMENT = "\ufffd"
_BINARY = "is a binary file, not text: remove it, or give it the extension of its type"
# A byte order mark takes precedence. Before version 3.5, charset-normalizer ignores the byte order mark of UTF-16 text
# with formulas.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Text declared as ISO 8859-1 or ASCII is decoded as cp1252, as in browsers.
_DECLARED = ("iso8859-1", "ascii")
_LATIN = (*_DECLARED, "cp1252", "iso8859-15")
_SIGNATURES = (b"%PDF-", b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"{\\rtf", b"\x89PNG")
_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n\v\f\r\b\x1a\x1b"})


def decode(source: FileSource, charset: str | None = None) -> tuple[str, list[str]]:
    """Decode text in UTF-8, UTF-16, UTF-32 or a legacy encoding.

    Args:
        source: The file.
        charset: Declared encoding, which is used if it is known and can decode the bytes. A byte order mark takes
            precedence, and so does UTF-8 if a declared encoding for Latin letters is wrong.

    Returns:
        The text with its original newlines, and warnings about assumptions and replacements.

    Raises:
        ReadError: The bytes are empty or not text.
    """
    data = source.data
    marked = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), None)
    with suppress(LookupError, ValueError):  # unknown, not a text encoding, or not the encoding of this file
        if charset and not marked:
            name = codecs.lookup(charset.strip()).name
            name = "utf-8" if name in _LATIN and _is_utf8(data) else "cp1252" if name in _DECLARED else name
            return _without_nul(source, data.decode(name), [])
    if not data:
        raise source.error("is empty")
    encoding = marked or _wide_encoding(data) or _escaped_encoding(data)
    if data.startswith(_SIGNATURES) or (not encoding and _looks_binary(data[:_SAMPLE_BYTES])):
        raise source.error(_BINARY)
    text, warnings = _from_unicode(source, encoding or "utf-8") or _from_legacy(source)
    return _without_nul(source, text, warnings)


def _looks_binary(window: bytes) -> bool:
    """Return whether more than 2 % of the bytes are control characters that do not occur in text."""
    return len(window) - len(window.translate(None, _CONTROLS)) > max(len(window) // 50, 1)


def _is_utf8(data: bytes) -> bool:
    """Return whether the bytes are valid UTF-8 with other characters than those of ASCII."""
    with suppress(UnicodeDecodeError):
        return not data.isascii() and bool(data.decode("utf-8"))
    return False


_ESCAPED = ("iso2022_jp_ext", "iso2022_jp_2")
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_NO_TEXT_CATEGORIES = frozenset({"Cc", "Cn", "Co", "Cs"})
_MIN_ASCII = 0.02
_MAX_STRANGE = 0.01


def _wide_encoding(data: bytes) -> str | None:
    """Return the encoding of text in UTF-16 or UTF-32 without a byte order mark, or None for other bytes.

    Such text contains NUL bytes, because every language uses spaces, digits or line feeds.
    """
    if b"\0" not in data[:_SAMPLE_BYTES]:
        return None
    shares = {}
    for encoding in _WIDE:
        width = 4 if encoding.startswith("utf-32") else 2
        sample = data[: _SAMPLE_BYTES - _SAMPLE_BYTES % width]
        with suppress(UnicodeDecodeError):
            text = codecs.getincrementaldecoder(encoding)().decode(sample, final=len(data) <= len(sample))
            strange = sum(unicodedata.category(char) in _NO_TEXT_CATEGORIES and char not in "\t\n\r\f" for char in text)
            if len(data) % width == 0 and text and strange <= _MAX_STRANGE * len(text):
                shares[encoding] = sum(char.isascii() for char in text) / len(text)
    best = max(shares, key=lambda encoding: shares[encoding], default=None)
    return best if best is not None and shares[best] >= _MIN_ASCII else None


def _escaped_encoding(data: bytes) -> str | None:
    """Return the encoding of text that switches to Japanese letters by escape sequences, or None."""
    if b"\x1b$" in data and b"\x1b(" in data and data.isascii():
        for encoding in _ESCAPED:
            with suppress(UnicodeDecodeError):
                data.decode(encoding)
                return encoding
    return None


def _from_unicode(source: FileSource, encoding: str) -> tuple[str, list[str]] | None:
    """Decode the file as Unicode, and return the text and warnings, or None if another encoding is more likely.

    Damaged characters are replaced. If there are too many of them, `ReadError` is raised.
    """
    with suppress(UnicodeDecodeError):
        return source.data.decode(encoding), []
    text = source.data.decode(encoding, "replace")
    damaged, foreign = text.count(_REPLACEMENT), len(text) - len(text.encode("ascii", "ignore"))
    # Text in a legacy encoding is rarely valid UTF-8: if most characters are valid, it is damaged UTF-8.
    if encoding == "utf-8" and foreign < 10 * damaged:
        return None
    if damaged * 10 > len(text):
        raise source.error(_BINARY)
    return text, [f"is not quite valid {encoding}: {pluralize(damaged, 'damaged character')} replaced by U+FFFD"]


def _from_legacy(source: FileSource) -> tuple[str, list[str]]:
    data = source.data
    if any(_looks_binary(data[at : at + _SAMPLE_BYTES]) for at in range(0, len(data), _SAMPLE_BYTES)):
        raise source.error(_BINARY)
    encoding = _legacy_encoding(data) or "cp1252"
    text = data.decode(encoding, "replace")
    count = text.count(_REPLACEMENT)
    damage = f", {pluralize(count, 'character')} replaced" if count else ""
    return text, [f"is not UTF-8: read as {encoding}{damage}; save it as UTF-8 if letters look wrong"]


def _without_nul(source: FileSource, text: str, warnings: list[str]) -> tuple[str, list[str]]:
    if not text or text.isspace():
        raise source.error("is empty: it contains only white space")
    count = text.count("\0")
    if count * 50 > len(text):
        raise source.error(_BINARY)
    if count:
        warnings.append(f"{pluralize(count, 'NUL character')} replaced by U+FFFD")
    return text.replace("\0", _REPLACEMENT), warnings


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
)
_CENTRE = (
    "ąćęłńóśźż",  # Polish
    "áčďéěíňóřšťúůýž",  # Czech
    "áäčďéíĺľňóôŕšťúýž",  # Slovak
    "áéíóöőúüű",  # Hungarian
    "ăâîşţșț",  # Romanian
    "čćđšž",  # Croatian, Slovene
)
_BALTIC = ("ąčęėįšųūž", "āčēģīķļņšūž", "äõöüšž")  # Lithuanian, Latvian, Estonian
_ALPHABETS = {
    "cp1252": _WEST,
    "cp1250": _CENTRE,
    "iso8859_2": _CENTRE,
    "cp1254": ("çğıöşüâîû",),  # Turkish
    "cp1257": _BALTIC,
    "cp850": _WEST,
    "cp852": _CENTRE,
    "mac_roman": _WEST,
}
_PUNCTUATION = frozenset("’‘“”„‚…–—•«»‹›€£§°©®™´¿¡½¼\u00ad\u00a0")
# Quotation marks and signs that do not occur between two letters, and capitals after small letters.
_MISPLACED = regex.compile(r"(?<=\p{L})(?:[‚„¿¡]|[“”…«»‹›§©®™•€£½¼](?=\p{L}))|(?<=\p{Ll})(?![A-Z])\p{Lu}")
_HUNGARIAN = re.compile(r"[õû](?=[a-df-zõû]|\b)")  # ő and ű, read as cp1252; Portuguese has õ only before e
_ENOUGH = 0.95
_MAX_FOREIGN = 0.4
# Without this list, charset-normalizer mistakes Russian text in KOI8-R for Japanese, and Polish text in ISO 8859-2 for
# ISO 8859-14 ("ṡycie" for "życie").
_CONFUSED = ["iso8859_14", "mac_latin2", "shift_jis_2004", "shift_jisx0213", "euc_jis_2004", "euc_jisx0213"]
_CONFUSED += ["utf_7", "utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be"]
# EBCDIC, which has other bytes for line feeds, and encodings that are hardly used.
_UNUSUAL = ["cp037", "cp273", "cp424", "cp500", "cp875", "cp1026", "cp1140", "cp1006", "johab", "hp_roman8", "ptcp154"]
_SAMPLE_LINES = 1_000


def _legacy_encoding(data: bytes) -> str | None:
    """Return the most likely encoding of text that is not Unicode, based on a sample of its non-ASCII lines."""
    sample = b"\n".join([line for line in data.split(b"\n") if not line.isascii()][:_SAMPLE_LINES])
    shares = {encoding: _share(sample, encoding) for encoding in _ALPHABETS}
    best = max(shares, key=lambda encoding: shares[encoding])
    if shares[best] >= _ENOUGH:
        return best
    if japanese := next((encoding for encoding in ("euc_jp", "cp932") if _has_kana(sample, encoding)), None):
        return japanese
    from charset_normalizer import from_bytes
    from charset_normalizer.utils import is_multi_byte_encoding

    excluded = ["cp932", "shift_jis"] if _is_half_width(sample) else []
    match = from_bytes(sample, cp_exclusion=[*_CONFUSED, *_UNUSUAL, *excluded]).best()
    if (match is None or not is_multi_byte_encoding(match.encoding)) and _is_hebrew(sample):
        return "cp1255"
    return match.encoding if match else None


_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_MIN_KANA = 0.2
_HALF_WIDTH = re.compile("[\uff61-\uff9f]")
_MAX_HALF_WIDTH = 0.5


def _has_kana(sample: bytes, encoding: str) -> bool:
    """Return whether text in a Japanese encoding has as many syllables as Japanese text, and no damaged characters."""
    with suppress(UnicodeDecodeError):
        text = sample.decode(encoding)
        return len(_KANA.findall(text)) > _MIN_KANA * sum(not char.isascii() for char in text)
    return False


def _is_half_width(sample: bytes) -> bool:
    """Return whether most letters would be half-width katakana in cp932, as only those of other encodings are."""
    text = sample.decode("cp932", "ignore")
    return len(_HALF_WIDTH.findall(text)) > _MAX_HALF_WIDTH * sum(not char.isascii() for char in text)


# The letters of Hebrew in cp1255 are small letters of Russian in cp1251. Those that are frequent in Hebrew (י, ר, ש, ת)
# are rare in Russian (й, ш, щ, ъ).
_HEBREW = bytes(range(0xE0, 0xFB))
_HEBREW_POINTS = bytes(range(0xC0, 0xD4)) + b"\x82\x84\x85\x91\x92\x93\x94\x96\x97\xa0\xab\xbb"
_FREQUENT = b"\xe9\xf8\xf9\xfa"
_HEBREW_LETTERS = 0.9
_MIN_FREQUENT = 0.12
_MIN_HEBREW = 5


def _is_hebrew(sample: bytes) -> bool:
    """Return whether text in a legacy encoding is Hebrew, which charset-normalizer mistakes for Russian."""
    letters = [byte for byte in sample if byte >= 0x80 and byte not in _HEBREW_POINTS]
    hebrew = [byte for byte in letters if byte in _HEBREW]
    if len(hebrew) < _MIN_HEBREW or len(hebrew) < _HEBREW_LETTERS * len(letters):
        return False
    if re.search(rb"[A-Za-z][\xe0-\xfa]|[\xe0-\xfa][A-Za-z]", sample):
        return False  # letters with accents in Latin words
    return sum(byte in _FREQUENT for byte in hebrew) >= _MIN_FREQUENT * len(hebrew)


def _share(sample: bytes, encoding: str) -> float:
    """Decode a sample and return the share of its non-ASCII characters that belong to one alphabet.

    Of the encoding's alphabets, the alphabet that contains the most of these characters is used. Punctuation is not
    counted.
    """
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return 0.0
    letters = text.replace("İ", "ı")  # its small form is two characters
    counts = Counter(char.lower() for char in letters if not char.isascii() and char not in _PUNCTUATION)
    if counts.total() > _MAX_FOREIGN * sum(map(str.isalpha, text)):
        return 0.0
    most = max(sum(counts[char] for char in alphabet) for alphabet in _ALPHABETS[encoding])
    misplaced = len(_MISPLACED.findall(text))
    if encoding == "cp1252" and "õ" in text:
        misplaced += len(_HUNGARIAN.findall(text))
    return most / (counts.total() + misplaced) if counts else float(not misplaced)


# Headings of plain text

MAX_REPEATED = 2
"""Maximum number of occurrences of a heading in capitals; a line that occurs more often is a running header."""
_MAX_LINE = 100
_MAX_CAPITALS = 60
_MAX_WORDS = 12
_MIN_LETTERS = 5
_HEAD = 400  # number of characters of a paragraph that are compared
_BODY = 80  # number of characters read from the paragraph below a heading in capitals
_PARAGRAPH = re.compile(r"\S[^\n]*(?:\n[^\S\n]*\S[^\n]*)*")
_RANKS = {"PART": 1, "BOOK": 1, "VOLUME": 1, "APPENDIX": 1, "ANNEX": 1, "SCHEDULE": 1, "EXHIBIT": 1}
_RANKS |= {"CHAPTER": 2, "ARTICLE": 2, "ITEM": 2, "SECTION": 3}
_WORDS = "|".join(f"{word}|{word.title()}" for word in _RANKS)
_KEYWORD = re.compile(
    rf"(?P<word>{_WORDS})[ \t]+(?P<number>\d{{1,3}}(?:\.\d{{1,3}})*[A-Za-z]?|[IVXLC]+|[A-Z](?:-?\d{{1,2}})?)(?![\w'’])"
    r"(?:[ \t]*[.:—–-])?(?:[ \t]+(?P<title>\S.*))?$"
)
_NUMBER = re.compile(r"(?P<number>\d{1,3}(?:\.\d{1,3}){0,5}|[A-Z](?:\.\d{1,3}){1,5})\.?[ \t]+(?P<title>\S.*)$")
_LIST_ITEM = re.compile(r"(\d{1,3}(?:\.\d{1,3})*|[A-Z](?:\.\d{1,3})+)[.)]?(?=\s)")
# A line is not a title if it has columns, contains a verb, ends like a sentence, or ends with a number that is not a
# year.
_NO_TITLE = re.compile(
    r"\s{2}|[\t|]|_{3}|\.{3}|…|(?:\. ){3}|[^\W\d_]{3}[.!?;] |[.;:,!]$| (?!(?:19|20)\d\d$)[\d.,%$€£()-]*\d[\d.,%)]*$"
    r"|\b(?:shall|will|must|may|can|is|are|was|were|has|have|had|be|been)\b"
)
_CAPITALS = re.compile(r"[^\W\d_][^\d_|=<>@/\\$%*{}#~\"\[\]]*$")


class _Candidate(NamedTuple):
    """A line that may be a heading.

    Attributes:
        start: Offset of the line.
        kind: The feature by which the line was recognised.
        depth: For a keyword, its rank; for a number, the number of its parts ("3.2" has two); for capitals, 1.
        title: The line.
    """

    start: int
    kind: Literal["keyword", "number", "capitals"]
    depth: int
    title: str


def plain_headings(text: str) -> tuple[Heading, ...]:
    """Return the headings of plain text.

    The numbering determines the level: "3.2" is below "3", and both are below "PART", "ARTICLE" and similar keywords.
    """
    spans = [match.span() for match in _PARAGRAPH.finditer(text)]
    openings = ["", *(text[start : min(end, start + _HEAD)] for start, end in spans), ""]
    candidates = []
    for at, (start, _) in enumerate(spans):
        if candidate := _candidate(*openings[at : at + 3]):
            candidates.append(candidate._replace(start=text.rfind("\n", 0, start) + 1))
    counts = Counter(candidate.title for candidate in candidates)
    heads = [head for head in candidates if head.kind != "capitals" or counts[head.title] <= MAX_REPEATED]
    ranks = sorted({head.depth for head in heads if head.kind == "keyword"})
    headings = (Heading(head.start, _heading_level(head, ranks), one_line(head.title)) for head in heads)
    return tuple(islice(headings, MAX_HEADINGS))


def _heading_level(candidate: _Candidate, ranks: list[int]) -> int:
    """Return the level of a heading: 1 for capitals, by rank for keywords, and below all keywords for numbers."""
    if candidate.kind == "keyword":
        return ranks.index(candidate.depth) + 1
    return candidate.depth + (len(ranks) if candidate.kind == "number" else 0)


def _candidate(before: str, head: str, after: str) -> _Candidate | None:
    """Return the paragraph as a candidate if it may be a heading, or None otherwise.

    Args:
        before: Beginning of the previous paragraph.
        head: Beginning of the paragraph.
        after: Beginning of the next paragraph.
    """
    lines = [line.strip() for line in head.split("\n", 2)]
    line = " ".join(lines)
    if len(line) > _MAX_LINE or not after:
        return None
    if len(lines) > 1 and (len(lines) > 2 or _KEYWORD.match(lines[1]) or not _KEYWORD.match(lines[0])):
        return None
    if match := _KEYWORD.match(line):
        depth = _RANKS[match["word"].upper()]
        return _Candidate(0, "keyword", depth, line) if not match["title"] or _is_title(match["title"]) else None
    if match := _NUMBER.match(line):
        depth = _depth(line)
        is_item = depth in (_depth(before), _depth(after))
        return _Candidate(0, "number", depth, line) if _is_title(match["title"]) and not is_item else None
    is_followed = (len(after) >= _BODY and not after.isupper()) or _KEYWORD.match(after) or _depth(after)
    return _Candidate(0, "capitals", 1, line) if is_followed and _is_capitals(line) else None


def _depth(text: str) -> int:
    """Return the number of parts in the numbering at the beginning of a paragraph, or 0."""
    match = _LIST_ITEM.match(text)
    return match[1].count(".") + 1 if match else 0


def _is_title(text: str) -> bool:
    """Return whether the text looks like a title: short, beginning with a capital, and not a sentence or table row."""
    if not text[0].isalpha() or text[0].islower() or len(text.split()) > _MAX_WORDS:
        return False
    return not _NO_TITLE.search(text) and 2 * sum(map(str.isalpha, text)) >= len(text)


def _is_capitals(line: str) -> bool:
    is_short = len(line) <= _MAX_CAPITALS and sum(map(str.isalpha, line)) >= _MIN_LETTERS
    return is_short and line.isupper() and bool(_CAPITALS.match(line)) and not _NO_TITLE.search(line)


# Markdown

TITLE_REACH = 5_000
"""Number of characters at the beginning of a file in which a heading can be the title of the document."""
MAX_PARSED = 10_000_000
"""Maximum number of characters that are parsed."""
MAX_LINES = 100_000
"""Maximum number of lines that are parsed; parsing a list with this many items takes half a minute."""
MAX_NESTING = 60
"""Maximum nesting of lists and quotes; at deeper levels, the parser would drop the rest of the file."""
MAX_TITLE = 200
"""Maximum length of a title in characters; a longer paragraph above a line of hyphens is not a heading."""
_NO_TEXT = {"softbreak": " ", "hardbreak": " ", "html_inline": ""}
_LINE_END = re.compile(r"\r\n?|\n")


def parse_markdown(source: FileSource) -> ParsedFile:
    """Read a Markdown file, its headings and its front matter. The front matter remains part of the text.

    Raises:
        ReadError: The file is empty, binary or too large.
    """
    text, warnings = decode(source)
    source.account.add_text(len(text))
    front = read_front_matter(text) or FrontMatter()
    headings, notes = markdown_headings(text, front.end)
    level = min((heading.level for heading in headings), default=1)
    top = [heading for heading in headings if heading.level == level]
    # Several headings below the first level are sections of equal rank, and none of them names the document.
    has_title = top and (level == 1 or len(top) == 1) and top[0].start < front.end + TITLE_REACH
    return ParsedFile(
        text=text,
        map=DocumentMap(headings=headings),
        title=front.title or (top[0].title if has_title else None),
        warnings=(*warnings, *front.warnings, *notes),
        metadata=front.metadata,
        digest=source.digest,
    )


def markdown_headings(text: str, start: int = 0) -> tuple[tuple[Heading, ...], tuple[str, ...]]:
    """Return the headings that begin at or after `start`, and warnings.

    Headings in quotes, lists and code are omitted, because they do not divide the document.

    Args:
        text: The whole file.
        start: Offset at which the Markdown begins, after the front matter.
    """
    from markdown_it import MarkdownIt

    if len(text) > MAX_PARSED or text.count("\n") + text.count("\r") > MAX_LINES:
        return (), ("is too long for its headings to be recognised: split it into smaller files",)
    # Without the table rule, the parser would mistake a table above a thematic break for a heading.
    parser = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING}).enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    tokens = parser.parse(text[start:])
    line_starts = [start, *(end.end() for end in _LINE_END.finditer(text, start))]
    headings = islice(_headings(tokens, line_starts), MAX_HEADINGS)
    is_deep = any(token.level >= MAX_NESTING - 1 for token in tokens)
    notes = ("has lists or quotes nested too deeply: headings below them may be missing",) if is_deep else ()
    return tuple(headings), notes


_HTML_HEADING = re.compile(r"<h([1-6])(?:\s[^<>]{0,500})?>((?:[^<]|<(?!/?h[1-6]\b)){1,2000})</h\1\s*>", re.IGNORECASE)
_NO_HEADINGS = re.compile(r"\s{0,3}<(?:!|\?|pre\b|script\b|style\b|textarea\b)", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]{0,1000}>")


def _headings(tokens: list[Token], line_starts: list[int]) -> Iterator[Heading]:
    from markdown_it import MarkdownIt

    inline = MarkdownIt("commonmark")
    for token, content in zip_longest(tokens, tokens[1:]):
        if token.level or not token.map:
            continue
        if token.type == "html_block" and not _NO_HEADINGS.match(token.content):
            yield from _html_headings(token.content, line_starts[token.map[0]])
        elif token.type == "heading_open":
            is_rule = token.markup in ("-", "=") and len(content.content) > MAX_TITLE
            children = inline.parseInline(content.content[: 4 * MAX_TITLE])[0].children or []
            title = one_line(_inline_text(children), MAX_TITLE)
            if title and not is_rule:
                yield Heading(line_starts[token.map[0]], int(token.tag[1]), title)


def _inline_text(children: list[Token]) -> str:
    """Return the text of a heading, with marks for superscripts and subscripts."""
    runs: list[tuple[str, int]] = []
    level = 0
    for child in children:
        tag = child.content.lower() if child.type == "html_inline" else ""
        level = {"<sup>": 1, "<sub>": -1, "</sup>": 0, "</sub>": 0}.get(tag, level)
        runs.append((_NO_TEXT.get(child.type, child.content), level))
    return joined_runs(runs)


def _html_headings(block: str, start: int) -> Iterator[Heading]:
    """Yield the headings of a block of HTML that begins at an offset of the text."""
    for match in _HTML_HEADING.finditer(block):
        if title := one_line(html.unescape(_TAG.sub("", match[2])), MAX_TITLE):
            yield Heading(start + match.start(), int(match[1]), title)


# Front matter

MAX_FRONT_MATTER = 32_768
"""Maximum length of the front matter in characters; a longer block is treated as text."""
MAX_VALUE = 1_000
"""Maximum length of a front matter value in characters."""
MAX_ITEMS = 100
"""Maximum number of items of a list in the front matter."""
Scalar = str | int | float | bool
_FRONT_MATTER = re.compile(r"---[ \t]*(?:\r\n?|\n)(.*?)(?<=[\r\n])(?:---|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)", re.DOTALL)
_TOML = re.compile(r"\+\+\+[ \t]*(?:\r\n?|\n)(.*?)(?<=[\r\n])\+\+\+[ \t]*(?:\r\n?|\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"([\w-]+):(.*)")


@dataclass(frozen=True)
class FrontMatter:
    """Front matter of a Markdown file.

    Attributes:
        end: Offset of the first character after the front matter.
        title: Value of the `title` key.
        metadata: The other top-level scalars, and lists of scalars. Nested mappings are omitted.
        warnings: Warnings about keys that cannot be used.
    """

    end: int = 0
    title: str | None = None
    metadata: Mapping[str, Scalar | list[Scalar]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_front_matter(text: str) -> FrontMatter | None:
    """Return the front matter in YAML or TOML, or None if the text has none."""
    head = text[:MAX_FRONT_MATTER]
    if block := _TOML.match(head):
        entries = _toml_entries(block[1])
    else:
        block = _FRONT_MATTER.match(head)
        entries = _entries(block[1]) if block else None
    if block is None or entries is None:
        return None
    title = one_line(str(entries.pop(TITLE, "")))
    unusable = [key for key in entries if not key or one_line(key) != key or is_own_key(key)]
    warnings = [
        f"front matter: {one_line(repr(key))} cannot be used as a metadata key and is left out" for key in unusable
    ]
    metadata = {key: value for key, value in entries.items() if key not in unusable}
    return FrontMatter(block.end(), title or None, metadata, tuple(warnings))


def _entries(block: str) -> dict[str, Scalar | list[Scalar]] | None:
    """Return the top-level scalars and lists of a YAML block, without empty values, or None if it is not a mapping."""
    import yaml

    try:
        # Objects are not constructed, so that tags and aliases are not resolved, and "1.10" and "no" stay as written.
        root = yaml.compose(block, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return _entries_by_line(block)
    if not isinstance(root, yaml.MappingNode):
        return None

    def scalar(node: yaml.Node) -> Scalar | None:
        if not isinstance(node, yaml.ScalarNode):
            return None
        text = one_line(node.value, MAX_VALUE)
        return text if node.style in ("'", '"') else _scalar(text)

    entries: dict[str, Scalar | list[Scalar]] = {}
    for key, value in root.value:
        if isinstance(key, yaml.ScalarNode):
            is_list = isinstance(value, yaml.SequenceNode)
            items = [
                item for node in (value.value[:MAX_ITEMS] if is_list else [value]) if _is_set(item := scalar(node))
            ]
            if items:
                entries[key.value] = items if is_list else items[0]
    return entries


def _is_set(value: Scalar | None) -> TypeGuard[Scalar]:
    return value not in (None, "")


def _toml_entries(block: str) -> dict[str, Scalar | list[Scalar]] | None:
    """Return the top-level scalars and lists of a TOML block, without empty values, or None if it is not TOML."""
    try:
        root = tomllib.loads(block.replace("\r\n", "\n").replace("\r", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError):
        return None

    def scalar(value: object) -> Scalar | None:
        if isinstance(value, date | time):
            return value.isoformat()
        if isinstance(value, str):
            return one_line(value, MAX_VALUE)
        return value if isinstance(value, int | float) and value_fault(value) is None else None

    entries: dict[str, Scalar | list[Scalar]] = {}
    for key, value in root.items():
        is_list = isinstance(value, list)
        items = [item for each in (value[:MAX_ITEMS] if is_list else [value]) if _is_set(item := scalar(each))]
        if items:
            entries[key] = items if is_list else items[0]
    return entries


def _entries_by_line(block: str) -> dict[str, Scalar | list[Scalar]] | None:
    """Read the `key: value` lines of a block that is not valid YAML, such as `title: Rome: a history`."""
    lines = [line for line in block.splitlines() if line.strip() and line[0] not in " \t#-"]
    entries = [_ENTRY.fullmatch(line) for line in lines]
    return (
        {entry[1]: one_line(entry[2], MAX_VALUE).strip("\"'") for entry in entries if entry} if all(entries) else None
    )


def _scalar(text: str) -> Scalar | None:
    """Convert a value to a number, bool or None if this is lossless; otherwise, return the text."""
    try:
        value = parse_json(text)
    except ValueError:
        return text
    is_scalar = value is None or isinstance(value, int | float)
    return value if is_scalar and json.dumps(value) == text and value_fault(value) is None else text
