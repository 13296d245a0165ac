"""Read text and Markdown files: encoding, headings and front matter.

`decode` looks for a byte order mark, and then tries UTF-8 and legacy encodings. Encodings for Latin scripts assign
different letters to the same bytes. They are distinguished by alphabet, because most text is in one language and its
non-ASCII letters belong to one alphabet. All other cases are left to charset-normalizer.

`plain_headings` finds the headings of plain text: lines between blank lines that begin with a keyword or a number, or
are in capitals. Doubtful lines are not treated as headings. The headings of Markdown are found with markdown-it-py.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from llama_index_contextual._utils.text import parse_json, pluralize
from llama_index_contextual.metadata import TITLE, DocumentMap, Heading, is_own_key, value_fault
from llama_index_contextual.readers.files import FileSource, ParsedFile, one_line

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
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Text declared as ISO 8859-1 or ASCII is decoded as cp1252, as in browsers.
_DECLARED = ("iso8859-1", "ascii")
_SIGNATURES = (b"%PDF-", b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"{\\rtf", b"\x89PNG")
_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n\v\f\r\b\x1a\x1b"})


def decode(source: FileSource, charset: str | None = None) -> tuple[str, list[str]]:
    """Decode text in UTF-8, in UTF-16 with a byte order mark, or in a legacy encoding.

    Args:
        source: The file.
        charset: Declared encoding, which is used if it is known and can decode the bytes. A byte order mark takes
            precedence.

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
            return _without_nul(source, data.decode("cp1252" if name in _DECLARED else name), [])
    if not data:
        raise source.error("is empty")
    if data.startswith(_SIGNATURES) or (not marked and _looks_binary(data[:_SAMPLE_BYTES])):
        raise source.error(_BINARY)
    text, warnings = _from_unicode(source, marked or "utf-8") or _from_legacy(source)
    return _without_nul(source, text, warnings)


def _looks_binary(window: bytes) -> bool:
    """Return whether more than 2 % of the bytes are control characters that do not occur in text."""
    return len(window) - len(window.translate(None, _CONTROLS)) > max(len(window) // 50, 1)


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
    "mac_roman": _WEST,
}
_PUNCTUATION = frozenset("’‘“”„‚…–—•«»‹›€£§°©®™´¿¡½¼\u00ad\u00a0")
_ENOUGH = 0.95
_MAX_FOREIGN = 0.4
# Without this list, charset-normalizer mistakes Russian text in KOI8-R for Japanese, and Polish text in ISO 8859-2 for
# ISO 8859-14 ("ṡycie" for "życie").
_CONFUSED = ["iso8859_14", "mac_latin2", "shift_jis_2004", "shift_jisx0213", "euc_jis_2004", "euc_jisx0213"]
_SAMPLE_LINES = 1_000


def _legacy_encoding(data: bytes) -> str | None:
    """Return the most likely encoding of text that is not Unicode, based on a sample of its non-ASCII lines."""
    sample = b"\n".join([line for line in data.split(b"\n") if not line.isascii()][:_SAMPLE_LINES])
    shares = {encoding: _share(sample, encoding) for encoding in _ALPHABETS}
    best = max(shares, key=lambda encoding: shares[encoding])
    if shares[best] >= _ENOUGH:
        return best
    from charset_normalizer import from_bytes

    match = from_bytes(sample, cp_exclusion=_CONFUSED).best()
    return match.encoding if match else None


def _share(sample: bytes, encoding: str) -> float:
    """Decode a sample and return the share of its non-ASCII characters that belong to one alphabet.

    Of the encoding's alphabets, the alphabet that contains the most of these characters is used. Punctuation is not
    counted.
    """
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return 0.0
    counts = Counter(char.lower() for char in text if not char.isascii() and char not in _PUNCTUATION)
    if counts.total() > _MAX_FOREIGN * sum(map(str.isalpha, text)):
        return 0.0
    most = max(sum(counts[char] for char in alphabet) for alphabet in _ALPHABETS[encoding])
    return most / counts.total() if counts else 1.0


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
    early = [heading for heading in headings if heading.start < front.end + TITLE_REACH]
    first = min(early, key=lambda heading: heading.level > 1, default=None)
    return ParsedFile(
        text=text,
        map=DocumentMap(headings=headings),
        title=front.title or (first.title if first else None),
        warnings=(*warnings, *front.warnings, *notes),
        metadata=front.metadata,
        digest=source.digest,
    )


def markdown_headings(text: str, start: int = 0) -> tuple[tuple[Heading, ...], tuple[str, ...]]:
    """Return the headings that begin at or after `start`, and warnings.

    Headings in quotes, lists, code and HTML are omitted, because they do not divide the document.

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


def _headings(tokens: list[Token], line_starts: list[int]) -> Iterator[Heading]:
    from markdown_it import MarkdownIt

    inline = MarkdownIt("commonmark")
    for token, content in pairwise(tokens):
        if token.type != "heading_open" or token.level or not token.map:
            continue
        is_rule = token.markup in ("-", "=") and len(content.content) > MAX_TITLE
        children = inline.parseInline(content.content[: 4 * MAX_TITLE])[0].children or []
        title = one_line("".join(_NO_TEXT.get(child.type, child.content) for child in children), MAX_TITLE)
        if title and not is_rule:
            yield Heading(line_starts[token.map[0]], int(token.tag[1]), title)


# Front matter

MAX_FRONT_MATTER = 32_768
"""Maximum length of the front matter in characters; a longer block is treated as text."""
MAX_VALUE = 1_000
"""Maximum length of a front matter value in characters."""
Scalar = str | int | float | bool
_FRONT_MATTER = re.compile(r"---[ \t]*(?:\r\n?|\n)(.*?)(?<=[\r\n])(?:---|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"([\w-]+):(.*)")


@dataclass(frozen=True)
class FrontMatter:
    """Front matter of a Markdown file.

    Attributes:
        end: Offset of the first character after the front matter.
        title: Value of the `title` key.
        metadata: The other top-level scalars. Lists and nested mappings are omitted.
        warnings: Warnings about keys that cannot be used.
    """

    end: int = 0
    title: str | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_front_matter(text: str) -> FrontMatter | None:
    """Return the front matter, or None if the text has none."""
    block = _FRONT_MATTER.match(text[:MAX_FRONT_MATTER])
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


def _entries(block: str) -> dict[str, Scalar] | None:
    """Return the top-level scalars of a YAML block, without empty values, or None if the block is not a mapping."""
    import yaml

    try:
        # Objects are not constructed, so that tags and aliases are not resolved, and "1.10" and "no" stay as written.
        root = yaml.compose(block, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return _entries_by_line(block)
    if not isinstance(root, yaml.MappingNode):
        return None
    entries: dict[str, Scalar] = {}
    for key, value in root.value:
        if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
            text = one_line(value.value, MAX_VALUE)
            scalar = text if value.style in ("'", '"') else _scalar(text)
            if scalar not in (None, ""):
                entries[key.value] = scalar
    return entries


def _entries_by_line(block: str) -> dict[str, Scalar] | None:
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
