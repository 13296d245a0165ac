"""Sets texts anew as PDFs that need the repairs which the contracts, made from HTML, do not need.

Two columns drawn row by row, words cut at line ends with a hyphen, ligatures as single glyphs, a running header and a
page number.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.support.pdf_files import RawPdf, show

WIDTH = 50  # characters of a line
ROWS = 56
_FONT = (
    b"<</Type/Font/Subtype/Type1/BaseFont/Courier/Encoding"
    b"<</BaseEncoding/WinAnsiEncoding/Differences[1/fi/fl/ff/ffi/ffl]>>>>"
)
_GLYPHS = {"ffi": "\x04", "ffl": "\x05", "ff": "\x03", "fi": "\x01", "fl": "\x02"}


def typeset(text: str, header: str) -> bytes:
    """Return a PDF of the text; the words of the text come in their order, white space does not matter."""
    pdf = RawPdf()
    pdf.objects[2] = _FONT
    lines = list(_broken(text))
    for number, start in enumerate(range(0, len(lines), 2 * ROWS), 1):
        left, right = lines[start : start + ROWS], lines[start + ROWS : start + 2 * ROWS]
        content = show(50, 775, header, size=7) + show(290, 25, str(number), size=7)
        for at, line in enumerate(left):
            content += show(40, 740 - 12 * at, line, size=8)
            if at < len(right):
                content += show(310, 740 - 12 * at, right[at], size=8)
        pdf.page(content)
    return pdf.data()


def _broken(text: str) -> Iterator[str]:
    """Yield lines of about WIDTH characters, cutting a long word that does not fit."""
    dice = random.Random(0)
    line = ""
    for word in text.encode("cp1252", "replace").decode("cp1252").split():
        room = WIDTH - len(line) - 1
        if len(word) > room and room >= 4 and len(word) >= 7 and word.isalpha():
            cut = dice.randint(3, min(room - 1, len(word) - 3))
            yield _with_ligatures(f"{line} {word[:cut]}-".strip())
            line = word[cut:]
        elif len(word) > room:
            yield _with_ligatures(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    yield _with_ligatures(line)


def _with_ligatures(line: str) -> str:
    for letters, glyph in _GLYPHS.items():
        line = line.replace(letters, glyph)
    return line
