"""Tells the encoding of a text from samples of its bytes."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable

from llama_index_contextual.readers.alphabets import latin_encoding

SAMPLE_BYTES = 1 << 16

_MARKS = (
    # UTF-32 first: its little-endian mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
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


def signature(head: bytes) -> str | None:
    """Return what kind of file begins like this, if it is one that is often misnamed as text."""
    return next((kind for mark, kind in _SIGNATURES if head.startswith(mark)), None)


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding that the byte order mark names."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)


def looks_binary(window: bytes) -> bool:
    """Say whether more than 2 % of the bytes are control characters that no text has."""
    return len(window) - len(window.translate(None, _CONTROLS)) > max(len(window) // 50, 1)


def unmarked_encoding(head: bytes) -> str | None:
    """Return the encoding of a text in UTF-16, UTF-32 or ISO-2022-JP without byte order mark, None if it is neither."""
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
    """Return how many blanks and full stops the sample has if read so; 0 if it would be nonsense."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return 0
    odd = sum(unicodedata.category(char) in ("Cn", "Co", "Cc") and char not in _COMMON for char in text)
    return 0 if odd * 100 > len(text) else sum(map(text.count, _COMMON))


def legacy_encoding(pieces: Iterable[bytes]) -> str | None:
    """Return the most likely encoding of a text that is no Unicode, judged by a sample of its non-ASCII lines."""
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
    found = re.search(rb"[\x80-\xff]", line)
    start = max(0, found.start() - 200 if found else 0)
    window = line[start : start + width]
    # A byte below 0x30 is never the second half of a character in any of the encodings.
    ends = [window.rfind(byte) for byte in (b" ", b",", b".", b"!")]
    return window[: max(ends) + 1] or window
