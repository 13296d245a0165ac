"""Makes names and titles that come from files safe to print, to log and to put into a prompt."""

from __future__ import annotations

import unicodedata

# They join letters of Indic and Persian words and emoji sequences; every other format character is invisible or bidi.
_JOINERS = "\u200c\u200d"
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def _is_unsafe(char: str) -> bool:
    return unicodedata.category(char) in _UNSAFE and char not in _JOINERS


def printable(name: str) -> str:
    r"""Return a file name with control, bidi and invisible characters and lone surrogates written as escapes.

    No two names give the same result, since the backslash itself is doubled.

    Example:
        >>> printable("a\x1b[31m.txt")
        'a\\x1b[31m.txt'
    """
    if name.isascii() and name.isprintable() and "\\" not in name:
        return name
    return "".join(_escape(char) for char in name)


def _escape(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if not _is_unsafe(char):
        return char
    code = ord(char)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str, limit: int = 200) -> str:
    """Return a title as one line of at most `limit` characters, without control, bidi and invisible characters."""
    head = " ".join(text[: 4 * limit].split())
    if not head.isascii() or not head.isprintable():
        head = " ".join("".join(char for char in head if not _is_unsafe(char)).split())
    return head if len(head) <= limit else head[: limit - 1].rstrip() + "…"
