"""Text and widths of the codes of a PDF font.

pypdf reads the font, its encoding and its widths.
"""

from __future__ import annotations

import re

from pypdf.generic import DictionaryObject

# The only private name of pypdf in this package, and a reason for `pypdf<8`. No public name gives the widths of codes:
# the visitors of `PageObject.extract_text` receive text without widths. See https://github.com/py-pdf/pypdf/issues/3607
from pypdf.generic._font import Font

FORCE_BOLD = 1 << 18  # ISO 32000-2, table 121
MIN_BOLD_WEIGHT = 600  # of CSS and of /FontWeight
DEFAULT_SPACE = 200.0  # width in thousandths of the font size, for fonts without a space

BOLD_NAME = re.compile(r"(?i)bold|black|heavy|[,-]b(?:i|old)?$")


class FontTable:
    """Text and width of each code of a font, and whether it is bold."""

    def __init__(self, resource: DictionaryObject) -> None:
        self.resource = resource  # kept alive, so that its id is not reused
        font = self._font = Font.from_font_resource(resource)
        self._glyphs: dict[str, tuple[str, float]] = {}
        matrix = resource.get("/FontMatrix") if font.sub_type == "Type3" else None
        self._scale = abs(float(matrix[0])) if matrix else 0.001
        known = font.character_widths.get(font.space_char, 0)
        self.space = (font.space_width if known else DEFAULT_SPACE) * self._scale
        self.bold = _is_bold(resource)
        self.vertical = str(resource.get("/Encoding")).endswith("-V")

    def decode(self, data: bytes) -> tuple[str, float, int, int]:
        """Return the text, its width at font size 1, the number of codes, and the number of one-byte spaces."""
        encoding = self._font.encoding
        if isinstance(encoding, str):
            codes, spaces = data.decode(encoding, "replace"), 0
        else:
            codes, spaces = data.decode("latin-1"), data.count(32)
        glyphs = self._glyphs
        found = [glyphs.get(code) or self._look_up(code) for code in codes]
        return "".join([text for text, _ in found]), sum([width for _, width in found]), len(codes), spaces

    def _look_up(self, code: str) -> tuple[str, float]:
        font = self._font
        text = code if isinstance(font.encoding, str) else font.encoding.get(ord(code), code)
        widths = font.character_widths
        width = font.space_width if code == font.space_char else widths.get(code, widths["default"])
        glyph = self._glyphs[code] = (str(font.character_map.get(text, text)), float(width) * self._scale)
        return glyph


def _is_bold(resource: DictionaryObject) -> bool:
    fonts = [resource, *resource.get("/DescendantFonts", ())]
    descriptors = [font.get_object().get("/FontDescriptor", {}) for font in fonts]
    for descriptor in (each.get_object() if hasattr(each, "get_object") else each for each in descriptors):
        if int(descriptor.get("/Flags", 0)) & FORCE_BOLD or float(descriptor.get("/FontWeight", 0)) >= MIN_BOLD_WEIGHT:
            return True
    return BOLD_NAME.search(str(resource.get("/BaseFont", ""))) is not None
