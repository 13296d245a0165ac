"""Format numbers with the number formats of Excel."""

from __future__ import annotations

import re

MAX_FORMAT = 255
"""Maximum length of a number format in characters, as in Excel."""

_CODE = re.compile(r'"([^"]*)"|\\(.)|\[\$([^\[\]-]*+)[^\[\]]*+\]|\[[^\[\]]*+\]|[_*].|(.)')
_SPECIAL = re.compile(r"[0#?],+(?![#0?,])|[Ee/@]")  # scaling by thousands, exponents, fractions, text
_CONDITION = re.compile(r"\[[<>=]")
_DIGITS = re.compile(r"(?P<prefix>[^#0?]*)(?P<whole>[#0?,]+)(?:\.(?P<decimals>[#0?]*))?(?P<suffix>[^#0?]*)")


def number_text(value: float | None, code: str) -> str:
    """Format a number with an Excel number format; fractions, scaled numbers etc. are formatted as "General".

    Example:
        >>> number_text(0.1234, "0.0%"), number_text(-1234567.8, "#,##0.00"), number_text(7, "000")
        ('12.3%', '-1,234,567.80', '007')
    """
    if value is None:
        return ""
    if len(code) > MAX_FORMAT:
        code = "General"
    sections = code.split(";")
    is_negative = value < 0 and len(sections) > 1
    pieces = _CODE.findall(sections[1 if is_negative else 0])
    parts = _DIGITS.fullmatch("".join(map("".join, pieces)).strip())
    if parts is None or _SPECIAL.search("".join(piece[-1] for piece in pieces)) or _CONDITION.search(code):
        return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.15g}"
    prefix, suffix, places = parts["prefix"], parts["suffix"], parts["decimals"] or ""
    number = f"{abs(value) * 100 ** suffix.count('%'):,.{len(places)}f}"
    whole, point, decimals = (number if "," in parts["whole"] else number.replace(",", "")).partition(".")
    optional = len(places) - len(places.rstrip("#"))
    kept = decimals[: len(places) - optional] + decimals[len(places) - optional :].rstrip("0")
    sign = "-" if value < 0 and not is_negative else ""
    return f"{sign}{prefix}{whole.zfill(parts['whole'].count('0'))}{point if kept else ''}{kept}{suffix}".strip()
