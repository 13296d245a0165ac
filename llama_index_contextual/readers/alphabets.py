"""Tells legacy encodings of Latin scripts apart by the alphabets of the languages that are written in them.

They give nearly the same bytes to letters of different languages; a text is written in one language, though, and its
letters beyond ASCII are those of one alphabet.
"""

from __future__ import annotations

from collections import Counter

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
    """Return the encoding in which a sample reads as one language in Latin script, None if there is none."""
    shares = {encoding: _share(sample, encoding) for encoding in _ALPHABETS}
    best = max(shares, key=lambda encoding: shares[encoding])
    return best if shares[best] >= _ENOUGH else None


def _share(sample: bytes, encoding: str) -> float:
    """Return the share of the characters beyond ASCII that one alphabet and its punctuation explain."""
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return 0.0
    found = _foreign(text)
    letters = sum(map(str.isalpha, text))
    total = sum(found.values())
    if not total or total > _MAX_FOREIGN * letters:
        return 0.0
    marks = found["mark"]
    return max(marks + sum(found[char] for char in alphabet) for alphabet in _ALPHABETS[encoding]) / total


def _foreign(text: str) -> Counter[str]:
    """Count the characters beyond ASCII: letters in lower case, punctuation in its place as "mark"."""
    found: Counter[str] = Counter()
    for at, char in enumerate(text):
        if char.isascii():
            continue
        before, after = text[max(at - 1, 0) : at], text[at + 1 : at + 2]
        if char.isalpha():
            # A capital in the middle of a word is another letter, or no letter, in the right encoding.
            found["odd" if char.isupper() and before.islower() else char.lower()] += 1
        elif char in _INSIDE_WORDS or (char in _BETWEEN_WORDS and not (before.isalpha() and after.isalpha())):
            found["mark"] += 1
        else:
            found["odd"] += 1
    return found
