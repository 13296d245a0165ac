"""Read text files and detect their encoding.

`decode_file` tries a byte order mark, UTF-16 and UTF-32 without one, UTF-8, and finally legacy encodings. Encodings of
Latin scripts use nearly the same bytes for letters of different languages. They are told apart by alphabets: a text is
written in one language, so its letters beyond ASCII belong to one alphabet. charset-normalizer decides all other cases:
Cyrillic, Greek, Hebrew, Arabic, Thai, Chinese, Japanese and Korean text, and Latin text of several languages.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from llama_index_contextual.errors import ReadError
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.readers.base import FileAccount, ParsedFile, ReadLimits
from llama_index_contextual.readers.discovery import read_limited
from llama_index_contextual.readers.headings import plain_outline


def read_text(path: Path, *, limits: ReadLimits = ReadLimits()) -> ParsedFile:  # noqa: B008
    """Read a plain text file and recognise headings by their numbering, keywords and capitals.

    The text is kept as it is, including newlines; only a byte order mark is removed.

    Raises:
        ReadError: The file is empty, binary, too large, or cannot be opened.
    """
    return parse_text(decode_file(path, limits=limits))


def parse_text(decoded: Decoded) -> ParsedFile:
    """Recognise the headings of a decoded text, as `read_text` does."""
    outline = plain_outline(decoded.text)
    return ParsedFile(
        text=decoded.text,
        map=DocumentMap(headings=outline.headings),
        title=outline.title,
        warnings=(*decoded.warnings, *outline.warnings),
        digest=decoded.digest,
    )


PIECE_BYTES = 1 << 20
SAMPLE_BYTES = 1 << 16
_REPLACEMENT = "\ufffd"
_BINARY = "is a binary file, not text: remove it, or give it the extension of its type"


@dataclass(frozen=True)
class Decoded:
    """Decoded text of a file.

    Attributes:
        text: The text with the newlines of the file, without byte order mark.
        encoding: Name of the codec.
        warnings: Assumptions and replacements.
        digest: xxh3-128 of the bytes that were decoded, in hexadecimal.
    """

    text: str
    encoding: str
    warnings: tuple[str, ...] = ()
    digest: str = ""

    def with_warning(self, warning: str) -> Decoded:
        """Return a copy with one more warning."""
        return replace(self, warnings=(*self.warnings, warning))


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
        path: Name of the file in errors.
        data: The bytes.
        charset: Encoding that the file declares; it is used if it is known and fits, unless a byte order mark differs.

    Raises:
        ReadError: The bytes are empty or not text.
    """
    source = _Source(path, data)
    name = _DECLARED.get((charset or "").strip().lower(), (charset or "").strip())
    if name and data and not marked_encoding(data):
        try:
            return _without_nul(source, Decoded(source.text(name), name))
        except (LookupError, ValueError):  # unknown, not an encoding of text, or not that of this text
            pass
    return _decode(source)


class _Source:
    """Bytes of a file that can be decoded with several encodings."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self._data = data

    def fail(self, reason: str) -> ReadError:
        return ReadError(str(self.path), reason)

    def head(self) -> bytes:
        return self._data[:SAMPLE_BYTES]

    def pieces(self) -> Iterator[bytes]:
        for at in range(0, len(self._data), PIECE_BYTES):
            yield self._data[at : at + PIECE_BYTES]

    def characters(self, encoding: str, errors: str) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        for piece in self.pieces():
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)

    def text(self, encoding: str, errors: str = "strict") -> str:
        return self._data.decode(encoding, errors)


def _decode(source: _Source) -> Decoded:
    head = source.head()
    if not head:
        raise source.fail("is empty")
    if kind := signature(head):
        raise source.fail(f"is not text but {kind}: give it the extension of its type")
    marked = marked_encoding(head)
    unmarked = None if marked else unmarked_encoding(head)
    if not marked and not unmarked and looks_binary(head):
        raise source.fail(_BINARY)
    encoding = marked or unmarked or "utf-8"
    decoded = _decode_strictly(source, encoding) or _decode_damaged(source, encoding) or _decode_legacy(source)
    if unmarked:
        decoded = decoded.with_warning(
            f"has no byte order mark: read as {unmarked}; save it as UTF-8 if letters look wrong"
        )
    return _without_nul(source, decoded)


def _decode_strictly(source: _Source, encoding: str) -> Decoded | None:
    try:
        return Decoded(source.text(encoding), encoding)
    except UnicodeDecodeError:
        return None


def _decode_damaged(source: _Source, encoding: str) -> Decoded | None:
    """Decode Unicode that is damaged in a few places; return None if it is not Unicode at all."""
    damaged = foreign = total = 0
    for piece in source.characters(encoding, "replace"):
        damaged += piece.count(_REPLACEMENT)
        foreign += len(piece) - len(piece.encode("ascii", "ignore"))
        total += len(piece)
    # Text in a legacy encoding is rarely valid UTF-8: if most characters are valid, it is damaged UTF-8.
    if encoding == "utf-8" and foreign < 10 * damaged:
        return None
    if damaged * 10 > total:
        raise source.fail(_BINARY)
    characters = f"{damaged:,} damaged characters were" if damaged != 1 else "1 damaged character was"
    decoded = Decoded(source.text(encoding, "replace"), encoding)
    return decoded.with_warning(f"is not quite valid {encoding}: {characters} replaced by U+FFFD")


def _decode_legacy(source: _Source) -> Decoded:
    for window in _windows(source):
        if looks_binary(window):
            raise source.fail(_BINARY)
    for encoding in (legacy_encoding(source.pieces()), "cp1252"):
        decoded = _decode_strictly(source, encoding) if encoding else None
        if decoded:
            return decoded.with_warning(f"is not UTF-8: read as {encoding}; save it as UTF-8 if letters look wrong")
    decoded = Decoded(source.text("cp1252", "replace"), "cp1252")
    count = decoded.text.count(_REPLACEMENT)
    return decoded.with_warning(
        f"has an unknown encoding: read as cp1252, {count:,} characters replaced; save it as UTF-8"
    )


def _windows(source: _Source) -> Iterator[bytes]:
    for piece in source.pieces():
        for at in range(0, len(piece), SAMPLE_BYTES):
            yield piece[at : at + SAMPLE_BYTES]


def _without_nul(source: _Source, decoded: Decoded) -> Decoded:
    if not decoded.text or decoded.text.isspace():
        raise source.fail("is empty: it contains only white space")
    count = decoded.text.count("\0")
    if not count:
        return decoded
    if count * 50 > len(decoded.text):
        raise source.fail(_BINARY)
    characters = f"{count:,} NUL characters were" if count != 1 else "1 NUL character was"
    text = decoded.text.replace("\0", _REPLACEMENT)
    return Decoded(text, decoded.encoding, decoded.warnings).with_warning(f"{characters} replaced by U+FFFD")


# Detection by byte order mark, signature and control characters

# A byte order mark is decisive. Before version 3.5, charset-normalizer ignores the mark of a UTF-16 text of formulas.
_MARKS = (
    # UTF-32 first: its little-endian mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Names of ISO 8859-1 and ASCII stand for cp1252, as in browsers.
_DECLARED = dict.fromkeys(("iso-8859-1", "iso8859-1", "latin-1", "latin1", "us-ascii", "ascii"), "cp1252")
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_SIGNATURES = (
    (b"%PDF-", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive or Office document"),
    (b"\xd0\xcf\x11\xe0", "an old Office document"),
    (b"{\\rtf", "an RTF document"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
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
    """Return the encoding of a text in UTF-16, UTF-32 or ISO-2022-JP without byte order mark, or None.

    charset-normalizer is not used here: it takes a table that is drawn with box characters for UTF-8, does not
    recognise formulas such as "∀x ∈ ℝ", and before version 3.5 reads some binary files as UTF-16.
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


def legacy_encoding(pieces: Iterable[bytes]) -> str | None:
    """Return the most likely encoding of a text that is not Unicode, from a sample of its non-ASCII lines."""
    sample = _foreign_lines(pieces)
    if latin := latin_encoding(sample):
        return latin
    from charset_normalizer import from_bytes

    match = from_bytes(sample, cp_isolation=list(LEGACY)).best()
    return match.encoding if match else None


def _foreign_lines(pieces: Iterable[bytes]) -> bytes:
    lines: list[bytes] = []
    size = 0
    for piece in pieces:
        if piece.isascii():
            continue
        for line in piece.splitlines():
            if not line.isascii():
                lines.append(_around_first_foreign(line))
                size += len(lines[-1])
            if size >= SAMPLE_BYTES:
                return b"\n".join(lines)
    return b"\n".join(lines)


def _around_first_foreign(line: bytes, width: int = 4096) -> bytes:
    if len(line) <= width:
        return line
    match = re.search(rb"[\x80-\xff]", line)
    start = max(0, match.start() - 200 if match else 0)
    window = line[start : start + width]
    # Cut at a byte below 0x30, which is not the second half of a character in any of the encodings.
    ends = [window.rfind(byte) for byte in (b" ", b",", b".", b"!")]
    return window[: max(ends) + 1] or window


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
    """Return the encoding in which a sample is a text of one language in Latin script, or None."""
    shares = {encoding: _share(sample, encoding) for encoding in _ALPHABETS}
    best = max(shares, key=lambda encoding: shares[encoding])
    return best if shares[best] >= _ENOUGH else None


def _share(sample: bytes, encoding: str) -> float:
    """Return the share of the characters beyond ASCII that belong to one alphabet and its punctuation."""
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
