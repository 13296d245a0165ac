"""Text into the terms of the lexical index: words, stems, and the parts of compounds beside the whole.

"TS-999" gives ts-999, ts and 999; "getUserName" gives getusername, get, user and name; ordinary words stay single.
Scripts without spaces between words are cut into overlapping pairs of characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cached_property

# Letters of scripts that are written without spaces: Thai, Lao, Myanmar, Khmer, kana, Han.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+(?:[-.'’/@:+&][^\W{_UNSPACED}]+)*")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_PLAIN = re.compile(r"[a-z]+|[A-Z][a-z]*|[A-Z]+|[0-9]+")
_JOINT = re.compile(r"[-.'’/@:+&_]+")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\da-zA-Z_]+")
_POSSESSIVE = re.compile(r"['’]s$")
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))

_STOPWORD_LISTS = {
    "english": "STOPWORDS_EN",
    "porter": "STOPWORDS_EN",
    "danish": "STOPWORDS_DANISH",
    "dutch": "STOPWORDS_DUTCH",
    "french": "STOPWORDS_FRENCH",
    "german": "STOPWORDS_GERMAN",
    "italian": "STOPWORDS_ITALIAN",
    "norwegian": "STOPWORDS_NORWEGIAN",
    "portuguese": "STOPWORDS_PORTUGUESE",
    "russian": "STOPWORDS_RUSSIAN",
    "spanish": "STOPWORDS_SPANISH",
    "swedish": "STOPWORDS_SWEDISH",
    "turkish": "STOPWORDS_TURKISH",
}


class Analyzer:
    """Turns text into terms; the same settings give the same terms, in the index and in a query.

    Args:
        language: A Snowball stemmer's name, or `none` for no stemming and no stop words.

    Example:
        >>> Analyzer("english").terms("Error code TS-999")
        ['error', 'code', 'ts-999', 'ts', '999']
    """

    def __init__(self, language: str = "english") -> None:
        self.language = language
        self._known: dict[str, tuple[str, ...]] = {}

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text, in order, with repetitions."""
        known = self._known
        found: list[str] = []
        for token in _TOKEN.findall(normalise(text)):
            terms = known.get(token)
            if terms is None:
                terms = known[token] = self._analyse(token)
            found.extend(terms)
        return found

    def _analyse(self, token: str) -> tuple[str, ...]:
        if _IS_UNSPACED.match(token):
            return tuple(token[i : i + 2] for i in range(len(token) - 1)) or (token,)
        if _PLAIN.fullmatch(token):
            return self._word(token)
        whole = _POSSESSIVE.sub("", token)
        parts = [part for piece in _JOINT.split(whole) for part in _CAMEL.findall(piece)]
        if len(parts) < 2:
            return self._word(whole)
        terms = [whole.lower()]
        for part in parts:
            terms.extend(self._word(part))
        return tuple(dict.fromkeys(terms))

    def _word(self, word: str) -> tuple[str, ...]:
        word = word.lower()
        if word in self._stopwords or (len(word) == 1 and not word.isdigit()):
            return ()
        return (self._stem(word),)

    @cached_property
    def _stem(self) -> Callable[[str], str]:
        if self.language == "none":
            return str
        import Stemmer

        stem: Callable[[str], str] = Stemmer.Stemmer(self.language).stemWord
        return stem

    @cached_property
    def _stopwords(self) -> frozenset[str]:
        name = _STOPWORD_LISTS.get(self.language)
        if name is None:
            return frozenset()
        from bm25s import stopwords

        return frozenset(getattr(stopwords, name))


def normalise(text: str) -> str:
    """Return the text with compatibility characters unified and invisible ones removed, for search only."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", text.translate(_INVISIBLE))
