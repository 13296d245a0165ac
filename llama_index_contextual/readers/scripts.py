"""Write superscripts, subscripts and formulas as plain text.

Without a mark, 10 with a raised 6 would become 106. Raised text that is read as part of the word, such as "1st" and
"CO2", has no mark.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llama_index_contextual.readers.package import local

Element = Any  # lxml ships no types

MAX_FORMULA_DEPTH = 60
"""Maximum nesting depth of the parts of a formula."""
_PLAIN_RAISED = re.compile(
    r"(?i)(?:st|nd|rd|th|er|ère|re|e|ème|me|os?|ers|res|es|mes|lle|lles|r|d|de|ª|º|tm|sm|mc|md|[®™©°′″'’\"*†‡§]+)\.?"
)
_UNIT = re.compile(r"(?<![^\W_])(?:[kcdmµ]?m|ft|in|yd|mi|sq)\Z")
_POWER = re.compile(r"[23²³]")
_NOTE = re.compile(r"[(\[]")
_DIGIT = re.compile(r"[\d+\-−–]")


def superscript(text: str, before: str, after: str = "", *, is_note: bool = False) -> str:
    """Return raised text with a mark, unless it is read as part of the word.

    Args:
        text: The raised text.
        before: The text before it; the last 20 characters are enough.
        after: The text after it; the first character is enough.
        is_note: Whether the raised text is the mark of a note.

    Example:
        >>> [superscript(text, before) for text, before in [("6", "10"), ("st", "1"), ("2", "25 m"), ("a", "Total")]]
        ['^6', 'st', '2', '^a']
        >>> superscript("3", "45", is_note=True)
        '[3]'
    """
    raised = text.strip()
    if not raised or not before or before[-1].isspace() or _NOTE.match(raised):
        return text
    if is_note:
        return text.replace(raised, f"[{raised}]", 1)
    is_unit = _POWER.fullmatch(raised) and _UNIT.search(before[-20:])
    is_word = raised.isalpha() and len(raised) > 1 and before[-1].isalpha()
    is_ordinal = _PLAIN_RAISED.fullmatch(raised) and not (raised == "d" and before[-1].isalpha())
    mark = "" if is_unit or is_word or is_ordinal or before[-1] in "^([{" else "^"
    return f"{mark}{text}{_gap(raised, after)}"


def subscript(text: str, before: str, after: str = "") -> str:
    """Return lowered text, with a mark if it would join the digits before it.

    Example:
        >>> subscript("2", "CO"), subscript("2", "101")
        ('2', '_2')
    """
    lowered = text.strip()
    if not lowered or not before:
        return text
    mark = "_" if before[-1].isdigit() and lowered[0].isdigit() else ""
    return f"{mark}{text}{_gap(lowered, after)}"


def _gap(text: str, after: str) -> str:
    """Return a space if a digit follows raised or lowered digits, because they are not one number."""
    return " " if text[-1].isdigit() and after[:1].isdigit() else ""


# Formulas

_SIMPLE = re.compile(r"[√∛∜]?[\w.,∞]*")
_WITH_SCRIPTS = frozenset(
    ("sSup", "sSub", "sSubSup", "msup", "msub", "msubsup", "munder", "munderover", "mmultiscripts")
)
_ACCENTS = {
    **dict.fromkeys("^ˆ", "\u0302"),
    **dict.fromkeys("~˜", "\u0303"),
    **dict.fromkeys("¯‾―_", "\u0305"),
    **dict.fromkeys("˙.", "\u0307"),
    **dict.fromkeys("→⃗", "\u20d7"),
    "¨": "\u0308",
    "ˇ": "\u030c",
}
"""Combining characters for the accents of formulas."""


def _grouped(text: str) -> str:
    """Return a part of a formula, in parentheses if it is more than one symbol."""
    text = text.strip()
    is_closed = text.startswith("(") and text.find(")") == len(text) - 1
    return text if _SIMPLE.fullmatch(text) or is_closed else f"({text})"


def _raised(base: str, lower: str, upper: str) -> str:
    below = f"_{_grouped(lower)}" if lower.strip() else ""
    above = f"^{_grouped(upper)}" if upper.strip() else ""
    return f"{base.strip()}{below}{above}"


def _fraction(over: str, under: str, *, has_bar: bool = True) -> str:
    return f"{_grouped(over)}{'/' if has_bar else ' over '}{_grouped(under)}"


def _accented(base: str, accent: str) -> str:
    """Return a symbol with an accent above it; an accent above several symbols is written before them."""
    base, accent = base.strip(), accent.strip()
    mark = _ACCENTS.get(accent, accent if accent and unicodedata.combining(accent[0]) else "")
    if mark and len(base) == 1:
        return f"{base}{mark}"
    return f"{accent}({base})" if mark else _raised(base, "", accent)


def _side_by_side(texts: Sequence[str], names: Sequence[str]) -> str:
    """Join the parts of a formula, with a space where an exponent, an index or a word would join the next symbol."""
    pieces: list[str] = []
    end = last = ""
    for text, name in zip(texts, names, strict=True):
        is_apart = name == "mtext" or last == "mtext" or last in _WITH_SCRIPTS
        if is_apart and (end.isalnum() or last.startswith("munder")) and text[:1].isalnum():
            pieces.append(" ")
        pieces.append(text)
        end, last = text[-1:] or end, name
    return "".join(pieces)


def _root(radicand: str, degree: str = "") -> str:
    sign = {"": "√", "2": "√", "3": "∛", "4": "∜"}.get(degree.strip())
    return f"{sign}{_grouped(radicand)}" if sign else f"root{_grouped(degree)}{_grouped(radicand)}"


def office_formula(element: Element, depth: int = 0) -> str:
    """Return a formula of an Office file (OMML) as text.

    Raises:
        RecursionError: The formula is nested too deeply.
    """
    if depth > MAX_FORMULA_DEPTH:
        raise RecursionError
    name = local(element)
    if name == "t":
        return element.text or ""
    if name == "del":
        return ""
    children = [child for child in element if isinstance(child.tag, str) and not local(child).endswith("Pr")]
    texts = [office_formula(child, depth + 1) for child in children]
    parts = dict(zip(map(local, children), texts, strict=True))

    def part(key: str) -> str:
        return parts.get(key, "")

    if name in ("sSup", "sSub", "sSubSup"):
        return _raised(part("e"), part("sub"), part("sup"))
    if name == "sPre":
        return _raised("", part("sub"), part("sup")) + part("e")
    if name == "f":
        return _fraction(part("num"), part("den"), has_bar=_character(element, "fPr", "bar", "type") != "noBar")
    if name == "acc":
        return _accented(part("e"), _character(element, "accPr", "\u0302"))
    if name == "bar":
        is_above = _character(element, "barPr", "bot", "pos") == "top"
        return _accented(part("e"), "¯" if is_above else "\u0332")
    if name == "rad":
        return _root(part("e"), part("deg"))
    if name == "nary":
        return f"{_raised(_character(element, 'naryPr', '∫'), part('sub'), part('sup'))} {part('e')}"
    if name == "func":
        return f"{part('fName')} {part('e')}"
    if name == "limLow":
        return _raised(part("e"), part("lim"), "")
    if name == "limUpp":
        return _raised(part("e"), "", part("lim"))
    if name == "d":
        opening = _character(element, "dPr", "(", "begChr")
        closing = _character(element, "dPr", ")", "endChr")
        return f"{opening}{_character(element, 'dPr', ', ', 'sepChr').join(texts)}{closing}"
    if name == "mr":
        return ", ".join(texts)
    if name in ("m", "eqArr"):
        return "; ".join(texts)
    if name == "oMathPara":
        return "\n".join(texts)
    return _side_by_side(texts, list(map(local, children)))


def _character(element: Element, properties: str, default: str, name: str = "chr") -> str:
    """Return a character that a formula's properties define, or the default."""
    for child in element.iterchildren():
        if local(child) == properties:
            for entry in child:
                if local(entry) == name:
                    return next(iter(entry.attrib.values()), default)
    return default


def html_formula(element: Element, depth: int = 0) -> str:
    """Return a formula of a web page (MathML) as text.

    Raises:
        RecursionError: The formula is nested too deeply.
    """
    if depth > MAX_FORMULA_DEPTH:
        raise RecursionError
    name = local(element)
    if name in ("annotation", "annotation-xml", "script", "style"):
        return ""
    if name == "mspace":
        return " "
    children = [child for child in element if isinstance(child.tag, str)]
    if not children:
        return " ".join((element.text or "").split())
    texts = [html_formula(child, depth + 1) for child in children]
    names = list(map(local, children))
    padded = [*texts, "", "", ""]
    if name == "mfrac" and re.match(r"0+\D*\Z", element.get("linethickness", "")):
        return _fraction(padded[0], padded[1], has_bar=False)
    if name == "mfenced":
        return f"{element.get('open', '(')}{', '.join(texts)}{element.get('close', ')')}"
    if name == "mmultiscripts":
        return _multiscripts(texts, names)
    shape = _SHAPES.get(name)
    if shape is not None:
        return shape(padded)
    if name in ("msqrt", "menclose"):
        return _root("".join(texts)) if name == "msqrt" else "".join(texts)
    separator = {"mtable": "; ", "mtr": ", "}.get(name)
    inner = _side_by_side(texts, names) if separator is None else separator.join(texts)
    return (element.text or "").strip() + inner


def _multiscripts(texts: Sequence[str], names: Sequence[str]) -> str:
    """Return a symbol with indices and exponents after it and, behind `mprescripts`, before it."""
    at = names.index("mprescripts") if "mprescripts" in names else len(names)
    after, before = texts[1:at], texts[at + 1 :]
    scripts = (_raised("", "".join(side[::2]), "".join(side[1::2])) for side in (before, after))
    return texts[0].join(scripts)


_SHAPES: dict[str, Callable[[list[str]], str]] = {
    "msup": lambda parts: _raised(parts[0], "", parts[1]),
    "mover": lambda parts: _accented(parts[0], parts[1]),
    "msub": lambda parts: _raised(parts[0], parts[1], ""),
    "munder": lambda parts: _raised(parts[0], parts[1], ""),
    "msubsup": lambda parts: _raised(parts[0], parts[1], parts[2]),
    "munderover": lambda parts: _raised(parts[0], parts[1], parts[2]),
    "mfrac": lambda parts: _fraction(parts[0], parts[1]),
    "mroot": lambda parts: _root(parts[0], parts[1]),
}


def joined_runs(runs: Iterable[tuple[str, int]]) -> str:
    """Join the runs of a paragraph.

    Args:
        runs: The text of each run, and 1 if it is raised, -1 if it is lowered, or 0.
    """
    pieces = [(text, level) for text, level in runs if text]
    out = ""
    for at, (text, level) in enumerate(pieces):
        after = pieces[at + 1][0] if at + 1 < len(pieces) else ""
        if level:
            text = superscript(text, out[-20:], after) if level > 0 else subscript(text, out[-20:], after)
        out += text
    return out
