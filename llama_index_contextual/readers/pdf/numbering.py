"""Recognise text that reads like a heading: its numbering, such as "Item 7" or "3.2", and its title."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

_ROMAN = r"(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_COUNT = (
    "ONE|TWO|THREE|FOUR|FIVE|SIX|SEVEN|EIGHT|NINE|TEN|ELEVEN|TWELVE|THIRTEEN|FOURTEEN|FIFTEEN|SIXTEEN|SEVENTEEN"
    "|EIGHTEEN|NINETEEN|TWENTY(?:-(?:ONE|TWO|THREE|FOUR|FIVE|SIX|SEVEN|EIGHT|NINE))?|THIRTY"
    "|FIRST|SECOND|THIRD|FOURTH|FIFTH|SIXTH|SEVENTH|EIGHTH|NINTH|TENTH"
)
_ATTACHED = ("EXHIBIT", "SCHEDULE", "ANNEX", "APPENDIX", "ATTACHMENT", "ADDENDUM", "ENCLOSURE", "ANLAGE")
_PARTS = ("PART", "BOOK", "TEIL", "PARTIE", "PARTE")
_CHAPTERS = ("ITEM", "ARTICLE", "CHAPTER", "ARTIKEL", "KAPITEL", "CHAPITRE", "CAPÍTULO", "ARTÍCULO")
_SECTIONS = ("NOTE", "SECTION", "CLAUSE", "ABSCHNITT", "SECCIÓN", "CLÁUSULA")
_FAMILIES = {
    **dict.fromkeys(_ATTACHED, "attachment"),
    **dict.fromkeys(_PARTS, "part"),
    **dict.fromkeys(_CHAPTERS, "chapter"),
    **dict.fromkeys(_SECTIONS, "section"),
}
_WORD = "|".join(spelled for word in _FAMILIES for spelled in (word, word.title()))
_KEYWORD = re.compile(
    rf"(?P<word>{_WORD}|§)[ ]+(?P<number>\d{{1,3}}(?:\.\d{{1,3}})*\.?[A-Z]?(?:\(\w{{1,3}}\))?|{_ROMAN}"
    rf"|[A-Z](?:-?\d{{1,2}})?|(?i:{_COUNT}))(?![\w'’/-])(?P<mark>[ ]?[.:—–-]+)?(?:[ ]*(?P<title>\S.*))?$"
)
_NUMBER = re.compile(
    rf"(?:(?P<decimal>\d{{1,3}}(?:\.\d{{1,3}}){{0,4}})(?P<dot>[.)])?|(?P<roman>{_ROMAN})\.|(?P<letter>[A-Z])\."
    rf"|\((?P<inner>[a-z]{{1,4}}|[A-Z]|\d{{1,2}})\))(?:[ ]+|(?<=[.)])(?=[A-Z][A-Za-z]))(?P<title>\S.*)$"
)
_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}


class Label(NamedTuple):
    """The numbering at the beginning of a heading.

    Attributes:
        family: What is numbered: "part", "chapter", "section", "attachment", "decimal", "roman", "letter" or "inner".
        numbers: The numbers; the last one increases from heading to heading.
        depth: Number of parts in a decimal number, otherwise 1.
        title: The text after the numbering.
    """

    family: str
    numbers: tuple[str, ...]
    depth: int
    title: str

    @property
    def is_keyword(self) -> bool:
        """Whether the label begins with a word such as "Item" or "Exhibit"."""
        return self.family in ("part", "chapter", "section", "attachment")


def label_in(text: str) -> Label | None:
    """Return the numbering at the beginning of a line, or None.

    Example:
        >>> tuple(label_in("Item 7. Risk factors"))
        ('chapter', ('ITEM', '7'), 1, 'Risk factors')
    """
    if match := _KEYWORD.match(text):
        number, word = match["number"].rstrip("."), match["word"].upper()
        parts = tuple(_number(part) for part in number.upper().split("."))
        title = match["title"] or ""
        return Label(_FAMILIES.get(word, "section"), (word, *parts), len(parts), title)
    if match := _NUMBER.match(text):
        if match["decimal"]:
            parts = tuple(match["decimal"].split("."))
            if len(parts) == 1 and not match["dot"]:
                return Label("bare", parts, 1, match["title"]) if len(parts[0]) < 3 else None
            return Label("decimal", parts, len(parts), match["title"])
        for family in ("roman", "letter", "inner"):
            if match[family]:
                value = _number(match[family]) if family == "roman" else match[family]
                return Label(family, (value,), 1, match["title"])
    return None


def without_label(text: str) -> str:
    """Return the line without the numbering at its beginning."""
    label = label_in(text)
    return label.title if label else text


def _number(text: str) -> str:
    """Return a Roman numeral as digits, and anything else unchanged."""
    return str(roman_value(text)) if text and all(char in _DIGITS for char in text) else text


def roman_value(numeral: str) -> int:
    """Return the value of a Roman numeral in capitals."""
    values = [_DIGITS[digit] for digit in numeral]
    return sum(-a if a < b else a for a, b in pairwise([*values, 0]))


# ---- titles --------------------------------------------------------------------------------------------------------

MAX_LETTERS = 200
MAX_WORDS = 16
MAX_RUN_IN_WORDS = 10

SMALL = frozenset({"a", "an", "and", "as", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"})
VERB = re.compile(r"(?i)\b(?:shall|will|must|may(?! \d)|can|is|are|was|were|has|have|had|be|been|agrees?|means?)\b")
_SENTENCE = re.compile(r"[^\W\d_]{3}(?<!Inc)(?<!Corp)(?<!Ltd)(?<!Mrs)[.!?;] +[A-Z]")
RUN_IN = re.compile(r"(?P<title>[A-Z“\"'‘(][^.;:]{1,90}?)(?P<mark>\.[”\"’]?|:|[ ]?[–—]| -)(?:\s+(?P<rest>\S.*)|\s*$)")
_BULLETS = "[\\|{#~^_•●▪■◦·–—-*☐☒%&+/=<>"
MONTH = "january|february|march|april|may|june|july|august|september|october|november|december"
_NO_TITLE = re.compile(
    r"(?i)(?:by|name|title|its|date|dated|attn|attention|tel|telephone|phone|fax|facsimile|e-?mail|address|signed|to"
    r"|re|witness|print(?:ed)? name)\s*:"  # a form, a letter or a signature
    r"|/s/|_{3}|.*(?:_{4}|\.{4}|…)|\[.*\]$|\*"
    r"|.*@|https?:|www\.|.*\b(?:\d{5}(?:-\d{4})?|[A-Z]{2} \d{5})$"  # an address
    r"|.*\b(?:inc\.|l\.?l\.?c\.?|ltd\.?|corp\.|l\.p\.),?$|(?:inc|llc|ltd)\.?$|by and between|between$"  # a party
    rf"|(?:{MONTH})\s+\d|dated\b|as of\b"
    r"|\(?\$|\((?:in|dollars?|amounts?|continued|unaudited|thousands|millions|u\.?s)\b|total\b|and$|or$|none\.?$"
    r"|(?:by|name|title|its|date|page)$|not applicable|-?\s*\d+\s*-?$|page\b|continued|table of contents$|\d+ u\.?s\.?c"
)
CONTINUED = re.compile(r"(?i)[\s,–—-]*\(?\s*(?:continued|cont[’'.]?d?\.?)\s*\)?\.?$")


def is_title_case(text: str) -> bool:
    """Return whether most significant words begin with a capital."""
    words = [word for word in re.findall(r"[^\W\d_][\w’'&.-]*", text) if word.casefold() not in SMALL]
    return bool(words) and words[0][0].isupper() and 4 * sum(word[0].isupper() for word in words) >= 3 * len(words)


def is_plain_title(text: str, *, words: int = MAX_WORDS) -> bool:
    """Return whether the text may be a title: not a sentence, table row, address, date or blank line of a form."""
    tokens = text.split()
    if not tokens or len(tokens) > words or len(text) > MAX_LETTERS or _NO_TITLE.match(text):
        return False
    first = next((char for char in text if char.isalnum()), "")
    count = sum(map(str.isalpha, text))
    if not first or first.islower() or text[0] in _BULLETS or count < 3 or 2 * count < len(text) - 4:
        return False
    is_closed = all(text.count(a) == text.count(b) for a, b in ("()", "[]", "“”"))
    return text[-1] not in ",;" and is_closed and (text.isupper() or not _SENTENCE.search(text))
