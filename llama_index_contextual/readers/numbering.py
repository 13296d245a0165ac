"""Numbers of list items, as Word, PowerPoint and browsers show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Element = Any  # lxml ships no types

MAX_LEVEL = 9  # Word has nine levels
MAX_NUMBER = 1_000_000
MAX_REPEATED_LETTER = 30
MAX_LABEL = 100
"""Maximum length of the number of an item in characters."""
_ROMAN = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl")),
    *((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)
_RUSSIAN = "абвгдежзиклмнопрстуфхцчшщыэюя"
_CHINESE = "〇一二三四五六七八九"
_PLACES = ("", "十", "百", "千")


def roman(number: int) -> str:
    """Return a number from 1 to 3,999 in lower-case Roman numerals, or in digits outside this range.

    Example:
        >>> roman(1994)
        'mcmxciv'
    """
    if not 0 < number < 4000:
        return str(number)
    text = ""
    for value, letters in _ROMAN:
        count, number = divmod(number, value)
        text += letters * count
    return text


def letters(number: int) -> str:
    """Return a number as lower-case letters, as in web pages: a to z, aa, ab.

    Example:
        >>> letters(1), letters(28)
        ('a', 'ab')
    """
    text = ""
    while number > 0:
        number, at = divmod(number - 1, 26)
        text = chr(ord("a") + at) + text
    return text or "0"


def _repeated(alphabet: str) -> Callable[[int], str]:
    """Return a function for letters as in Word: a to z, aa, bb."""

    def text(number: int) -> str:
        count, at = divmod(number - 1, len(alphabet))
        return alphabet[at] * min(count + 1, MAX_REPEATED_LETTER) if number > 0 else str(number)

    return text


def chinese(number: int) -> str:
    """Return a number in Chinese numerals, or in digits from 10,000.

    Example:
        >>> chinese(15), chinese(203)
        ('十五', '二百零三')
    """
    if not 0 < number < 10_000:
        return "〇" if number == 0 else str(number)
    text, is_gap = "", False
    for place in range(3, -1, -1):
        digit = number // 10**place % 10
        if digit:
            text += ("零" if is_gap and text else "") + _CHINESE[digit] + _PLACES[place]
        is_gap = not digit
    return text.removeprefix("一") if text.startswith("一十") else text


def ordinal(number: int) -> str:
    """Return an English ordinal number.

    Example:
        >>> ordinal(2), ordinal(11)
        ('2nd', '11th')
    """
    is_teen = 10 <= number % 100 <= 20
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _circled(number: int) -> str:
    return chr(0x245F + number) if 0 < number <= 20 else str(number)


FORMATS: Mapping[str, Callable[[int], str]] = {
    "decimalZero": lambda number: f"{number:02d}",
    "upperRoman": lambda number: roman(number).upper(),
    "lowerRoman": roman,
    "upperLetter": _repeated("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "lowerLetter": _repeated("abcdefghijklmnopqrstuvwxyz"),
    "russianUpper": _repeated(_RUSSIAN.upper()),
    "russianLower": _repeated(_RUSSIAN),
    "ordinal": ordinal,
    "decimalEnclosedCircle": _circled,
    "decimalEnclosedCircleChinese": _circled,
    "ideographDigital": lambda number: "".join(_CHINESE[int(digit)] for digit in str(abs(number))),
    "japaneseDigitalTenThousand": lambda number: "".join(_CHINESE[int(digit)] for digit in str(abs(number))),
    **dict.fromkeys(("chineseCounting", "chineseCountingThousand", "japaneseCounting", "taiwaneseCounting"), chinese),
    "none": lambda number: "",
}
"""Functions for Word's number formats; other formats are shown as digits."""

_HTML_TYPES: Mapping[str, Callable[[int], str]] = {
    "a": letters,
    "A": lambda number: letters(number).upper(),
    "i": roman,
    "I": lambda number: roman(number).upper(),
    "lower-alpha": letters,
    "lower-latin": letters,
    "upper-alpha": lambda number: letters(number).upper(),
    "upper-latin": lambda number: letters(number).upper(),
    "lower-roman": roman,
    "upper-roman": lambda number: roman(number).upper(),
    "decimal-leading-zero": lambda number: f"{number:02d}",
}


def html_number(number: int, kind: str) -> str:
    """Return the number of an item of a web page; `kind` is the type or CSS style of its list."""
    shape = _HTML_TYPES.get(kind)
    return str(number) if shape is None or number <= 0 else shape(number)


# Word


@dataclass
class _Level:
    """One level of a list: the start, the format, the text with placeholders such as %1, and when it restarts."""

    start: int = 1
    format: str = "decimal"
    text: str = ""
    restart: int | None = None
    is_legal: bool = False
    zeros: int = 0


@dataclass
class _List:
    """A list: its definition, its levels, and the levels whose number it starts again."""

    definition: str
    levels: dict[int, _Level]
    starts: dict[int, int] = field(default_factory=dict)


class WordNumbering:
    """Numbers of the paragraphs of a Word document, which must be asked for in the order of the document.

    Args:
        root: Root element of the part with the list definitions, or None.
        namespace: Namespace of the elements in braces.
        style_lists: The ids of the lists of numbering styles.
    """

    def __init__(self, root: Element | None, namespace: str, style_lists: Mapping[str, str]) -> None:
        self._w = namespace
        self._definitions: dict[str, Element] = {}
        self._lists: dict[str, Element] = {}
        self._style_lists = style_lists
        self._parsed: dict[str, _List | None] = {}
        self._counters: dict[str, dict[int, int]] = {}
        self._started: set[tuple[str, int]] = set()
        if root is None:
            return
        for element in root.iterchildren(f"{namespace}abstractNum"):
            self._definitions[element.get(f"{namespace}abstractNumId", "")] = element
        for element in root.iterchildren(f"{namespace}num"):
            self._lists.setdefault(element.get(f"{namespace}numId", ""), element)

    def level_of_style(self, list_id: str, style: str) -> int | None:
        """Return the level of a list that is linked to a paragraph style, or None."""
        definition = self._definition(list_id)
        for level in () if definition is None else definition.iterchildren(f"{self._w}lvl"):
            if self._value(level, "pStyle") == style:
                return self._number(level.get(f"{self._w}ilvl"), 0)
        return None

    def label(self, list_id: str, level: int) -> str | None:
        """Count a paragraph and return its number, or None if it has a bullet or its list is not defined."""
        numbered = self._list(list_id)
        if numbered is None or level not in numbered.levels:
            return None
        kind = numbered.levels[level]
        counters = self._counters.setdefault(numbered.definition, {})
        if level in numbered.starts and (list_id, level) not in self._started:
            self._started.add((list_id, level))
            counters[level] = numbered.starts[level]
        else:
            counters[level] = counters.get(level, kind.start - 1) + 1
        for deeper, other in numbered.levels.items():
            if deeper > level and (other.restart is None or 0 < level + 1 <= other.restart):
                counters.pop(deeper, None)
                if deeper in numbered.starts:
                    counters[deeper] = numbered.starts[deeper] - 1
        if kind.format == "bullet":
            return None
        return self._text(numbered, counters, kind)

    @staticmethod
    def _text(numbered: _List, counters: Mapping[int, int], kind: _Level) -> str:
        text = kind.text
        for at in range(MAX_LEVEL):
            if f"%{at + 1}" in text and at in numbered.levels:
                level = numbered.levels[at]
                number = counters.get(at, level.start)
                shape = None if kind.is_legal else FORMATS.get(level.format)
                digits = str(number).zfill(level.zeros) if shape is None else shape(number)
                text = text.replace(f"%{at + 1}", digits)
        return text.strip()[:MAX_LABEL]

    def _definition(self, list_id: str) -> Element | None:
        """Return the definition of a list, following links to numbering styles."""
        for _ in range(MAX_LEVEL):
            if list_id not in self._lists:
                return None
            definition = self._definitions.get(self._value(self._lists[list_id], "abstractNumId"))
            link = "" if definition is None else self._value(definition, "numStyleLink")
            if not link or link not in self._style_lists:
                return definition
            list_id = self._style_lists[link]
        return None

    def _list(self, list_id: str) -> _List | None:
        if list_id not in self._parsed:
            definition = self._definition(list_id)
            self._parsed[list_id] = None if definition is None else self._parse(list_id, definition)
        return self._parsed[list_id]

    def _parse(self, list_id: str, definition: Element) -> _List:
        levels = {
            self._number(level.get(f"{self._w}ilvl"), 0): self._level(level)
            for level in definition.iterchildren(f"{self._w}lvl")
        }
        numbered = _List(definition.get(f"{self._w}abstractNumId", ""), levels)
        for override in self._lists[list_id].iterchildren(f"{self._w}lvlOverride"):
            at = self._number(override.get(f"{self._w}ilvl"), 0)
            for level in override.iterchildren(f"{self._w}lvl"):
                levels[at] = self._level(level)
            start = self._value(override, "startOverride")
            if start:
                numbered.starts[at] = self._number(start, 1)
        return numbered

    def _level(self, element: Element) -> _Level:
        kind, custom = self._value(element, "numFmt"), ""
        for choice in element.iter(f"{self._w}numFmt"):  # the last one is the fallback for a custom format
            kind = choice.get(f"{self._w}val") or "decimal"
            custom = custom or choice.get(f"{self._w}format", "").partition(",")[0]
        restart = self._value(element, "lvlRestart")
        return _Level(
            start=self._number(self._value(element, "start"), 0),
            format=kind or "decimal",
            text=self._value(element, "lvlText"),
            restart=self._number(restart, 0) if restart else None,
            is_legal=element.find(f"{self._w}isLgl") is not None,
            zeros=len(custom) if custom.isdigit() and len(custom) < MAX_LEVEL else 0,
        )

    def _value(self, element: Element, name: str) -> str:
        child = element.find(f"{self._w}{name}")
        return "" if child is None else child.get(f"{self._w}val", "")

    @staticmethod
    def _number(text: str | None, default: int) -> int:
        is_number = text is not None and text.isascii() and text.isdigit() and len(text) < 7
        return min(int(text or 0), MAX_NUMBER) if is_number else default


# PowerPoint

_SLIDE_FORMATS = (
    ("alphaLc", letters),
    ("alphaUc", lambda number: letters(number).upper()),
    ("romanLc", roman),
    ("romanUc", lambda number: roman(number).upper()),
    ("circleNum", _circled),
    ("ea1Chs", chinese),
    ("ea1Cht", chinese),
    ("ea1Jpn", chinese),
)


def slide_number(number: int, kind: str) -> str:
    """Return the number of a paragraph of a slide.

    Example:
        >>> slide_number(2, "alphaLcParenBoth"), slide_number(4, "arabicPeriod")
        ('(b)', '4.')
    """
    shape = next((shape for prefix, shape in _SLIDE_FORMATS if kind.startswith(prefix)), str)
    text = shape(number)
    if kind.endswith("ParenBoth"):
        return f"({text})"
    return f"{text})" if kind.endswith("ParenR") else f"{text}." if kind.endswith("Period") else text
