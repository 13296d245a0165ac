"""Turns the bytes of a text file into characters, in pieces and without guessing where a byte order mark speaks."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.base import ReadLimits
from llama_index_contextual.readers.encodings import (
    SAMPLE_BYTES,
    legacy_encoding,
    looks_binary,
    marked_encoding,
    signature,
    unmarked_encoding,
)
from llama_index_contextual.readers.files import read_once

PIECE_BYTES = 1 << 20

_REPLACEMENT = "\ufffd"
_BINARY = "is a binary file, no text: remove it, or give it the extension of its type"


@dataclass(frozen=True)
class Decoded:
    """The characters of a file.

    Attributes:
        text: Newlines as they are in the file, without byte order mark.
        encoding: Name of the codec.
        warnings: What was assumed or replaced.
        digest: xxh3-128, in hexadecimal, of the bytes that were decoded.
    """

    text: str
    encoding: str
    warnings: tuple[str, ...] = ()
    digest: str = ""

    def but(self, warning: str) -> Decoded:
        """Return the same with one more warning."""
        return replace(self, warnings=(*self.warnings, warning))


def decode_file(path: Path, *, limits: ReadLimits) -> Decoded:
    """Decode a text file: UTF-8, UTF-16 and UTF-32 with or without byte order mark, else a legacy encoding.

    The file is read a single time, whatever is tried on its bytes; the peak of memory is about twice the text.

    Raises:
        ReadError: The file is empty, no text, too large or cannot be opened.
    """
    try:
        data, digest = read_once(path, max_bytes=limits.max_bytes)
    except OSError as error:
        raise ReadError(str(path), f"cannot be read: {error.strerror}") from error
    return replace(_decode(_Source(path, data, limits)), digest=digest)


class _Source:
    """The bytes of a file, on which several encodings can be tried.

    Raises:
        ReadError: They are more than the limit.
    """

    def __init__(self, path: Path, data: bytes, limits: ReadLimits) -> None:
        self.path = path
        self._data = data
        self._limits = limits
        if len(data) > limits.max_bytes:
            raise self.fail(f"has more than {limits.max_bytes:,} bytes: raise ReadLimits.max_bytes to read it")

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
        text = self._data.decode(encoding, errors)
        if len(text) > self._limits.max_characters:
            limit = f"{self._limits.max_characters:,} characters"
            raise self.fail(f"has more than {limit}: raise ReadLimits.max_characters to read it")
        return text


def _decode(source: _Source) -> Decoded:
    head = source.head()
    if not head:
        raise source.fail("is empty")
    if kind := signature(head):
        raise source.fail(f"is no text but {kind}: give it the extension of its type")
    marked = marked_encoding(head)
    unmarked = None if marked else unmarked_encoding(head)
    if not marked and not unmarked and looks_binary(head):
        raise source.fail(_BINARY)
    encoding = marked or unmarked or "utf-8"
    decoded = _decode_strictly(source, encoding) or _decode_damaged(source, encoding) or _decode_legacy(source)
    if unmarked:
        decoded = decoded.but(f"has no byte order mark: read as {unmarked}; save it as UTF-8 if letters look wrong")
    return _without_nul(source, decoded)


def _decode_strictly(source: _Source, encoding: str) -> Decoded | None:
    try:
        return Decoded(source.text(encoding), encoding)
    except UnicodeDecodeError:
        return None


def _decode_damaged(source: _Source, encoding: str) -> Decoded | None:
    """Decode Unicode that is damaged in a few places; None if it is no Unicode at all."""
    damaged = foreign = total = 0
    for piece in source.characters(encoding, "replace"):
        damaged += piece.count(_REPLACEMENT)
        foreign += len(piece) - len(piece.encode("ascii", "ignore"))
        total += len(piece)
    # A legacy encoding is hardly ever valid UTF-8: many more whole characters than broken ones mean damaged UTF-8.
    if encoding == "utf-8" and foreign < 10 * damaged:
        return None
    if damaged * 10 > total:
        raise source.fail(_BINARY)
    what = f"{damaged:,} damaged characters were" if damaged != 1 else "1 damaged character was"
    decoded = Decoded(source.text(encoding, "replace"), encoding)
    return decoded.but(f"is not quite valid {encoding}: {what} replaced by U+FFFD")


def _decode_legacy(source: _Source) -> Decoded:
    for window in _windows(source):
        if looks_binary(window):
            raise source.fail(_BINARY)
    for encoding in (legacy_encoding(source.pieces()), "cp1252"):
        decoded = _decode_strictly(source, encoding) if encoding else None
        if decoded:
            return decoded.but(f"is not UTF-8: read as {encoding}; save it as UTF-8 if letters look wrong")
    decoded = Decoded(source.text("cp1252", "replace"), "cp1252")
    count = decoded.text.count(_REPLACEMENT)
    return decoded.but(f"is in no known encoding: read as cp1252, {count:,} characters replaced; save it as UTF-8")


def _windows(source: _Source) -> Iterator[bytes]:
    for piece in source.pieces():
        for at in range(0, len(piece), SAMPLE_BYTES):
            yield piece[at : at + SAMPLE_BYTES]


def _without_nul(source: _Source, decoded: Decoded) -> Decoded:
    if not decoded.text or decoded.text.isspace():
        raise source.fail("is empty: it holds white space only")
    count = decoded.text.count("\0")
    if not count:
        return decoded
    if count * 50 > len(decoded.text):
        raise source.fail(_BINARY)
    what = f"{count:,} NUL characters were" if count != 1 else "1 NUL character was"
    text = decoded.text.replace("\0", _REPLACEMENT)
    return Decoded(text, decoded.encoding, decoded.warnings).but(f"{what} replaced by U+FFFD")
